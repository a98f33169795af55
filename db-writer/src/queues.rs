//! One local task a queue, each with its connection and at most one job.
//!
//! 1. A job goes to the task of its queue, and its outcome comes back with the moment of handing
//!    over. No queue waits for another.

use std::sync::Arc;
use std::time::Instant;

use gateway_core::certificate::UnknownSerial;
use gateway_core::duplicate::DuplicateRule;
use gateway_core::ids::GatewayId;
use gateway_core::store::{Job, Outcome, Queue};
use gateway_core::time::Moment;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::mpsc;

use crate::hooks::Hooks;
use crate::jobs::QueueRunner;
use crate::loops::Loops;
use crate::status::WriterStatus;

/// A job's outcome on its way back.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) outcome: Outcome,
    pub(crate) entries: usize,
    pub(crate) started: Moment,
}

/// The ways to the queues' tasks, and the way back from all of them.
#[derive(Debug)]
pub(crate) struct Queues {
    ways: Vec<mpsc::Sender<(Job, Moment)>>,
    pub(crate) done: mpsc::Receiver<Done>,
}

impl Queues {
    /// Starts the tasks, within a `LocalSet`.
    #[allow(clippy::too_many_arguments, reason = "each is one thing that runners are given, named once")]
    pub(crate) fn start(
        options: &PgConnectOptions,
        gateway: &GatewayId,
        synchronous_dispatch: bool,
        duplicates: DuplicateRule,
        unknown_serial: UnknownSerial,
        destructive_kinds: &Arc<[String]>,
        hooks: &Arc<Hooks>,
        loops: &mut Loops,
        status: &Arc<WriterStatus>,
    ) -> Self {
        let (sender, done) = mpsc::channel(Queue::ALL.len());
        let ways = Queue::ALL
            .into_iter()
            .map(|queue| {
                let (way, jobs) = mpsc::channel(1);
                let runner = QueueRunner::new(options, gateway, queue, synchronous_dispatch)
                    .with_duplicates(duplicates)
                    .with_unknown_serial(unknown_serial)
                    .with_destructive_kinds(Arc::clone(destructive_kinds))
                    .with_hooks(Arc::clone(hooks), Arc::clone(status));
                loops.start(queue.label(), serve(runner, jobs, sender.clone()));
                way
            })
            .collect();
        Self { ways, done }
    }

    /// Hands a job over. Its queue has none in flight: the writer's machine sees to that.
    pub(crate) fn hand(&self, job: Job, now: Moment) {
        let queue = job.queue();
        let handed = self.ways[queue as usize].try_send((job, now));
        assert!(handed.is_ok(), "queue {} has two jobs in flight, or its task is gone", queue.label());
    }
}

async fn serve(mut runner: QueueRunner, mut jobs: mpsc::Receiver<(Job, Moment)>, done: mpsc::Sender<Done>) {
    while let Some((job, started)) = jobs.recv().await {
        let outcome = runner.run(&job).await;
        if done.send(Done { outcome, entries: entries(&job), started }).await.is_err() {
            return;
        }
    }
}

fn entries(job: &Job) -> usize {
    match job {
        Job::Lease(_) | Job::Cancels { .. } | Job::Sweep(_) | Job::Revocations(_) => 1,
        Job::Hellos { entries, .. } => entries.len(),
        Job::Dispatch { wants, .. } => wants.len(),
        Job::ReadLanes { lanes, .. } => lanes.len(),
        Job::Updates { entries } => entries.len(),
        Job::Presence { entries, .. } => entries.len(),
        Job::SpecsDue { looks, .. } => looks.len(),
        Job::SpecsApplied { entries } => entries.len(),
        Job::Statuses { entries } => entries.len(),
        Job::Inventory { entries, .. } => entries.len(),
        Job::Events { entries } => entries.iter().map(|entry| entry.batch.events.len()).sum(),
    }
}

/// The clock of the process, on which all its threads' moments compare.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    started: Instant,
}

impl Clock {
    pub(crate) fn new(started: Instant) -> Self {
        Self { started }
    }

    pub(crate) fn now(self) -> Moment {
        Moment::on_clock(self.started, Instant::now())
    }

    /// The instant that a moment of this clock is.
    pub(crate) fn instant(self, moment: Moment) -> tokio::time::Instant {
        tokio::time::Instant::from_std(self.started + moment.since(Moment::default()))
    }
}

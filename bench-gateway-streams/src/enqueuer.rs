//! An open-loop enqueuer: each command has its intended start, whatever became of those before.
//!
//! It has threads of its own, each with one connection: a thread sleeps to the intended start with
//! the kernel's precision, which the nodes' runtime (ticks of 1 ms) does not have.
//!
//! 1. Command n is due at start + n / rate; which thread takes it does not matter.
//! 2. When all threads are busy, commands start late, and that is recorded, not skipped.
//! 3. One that rides outages out goes on with the next command when an enqueue fails; whether the one that
//!    failed was stored is left in doubt, for the rows to say.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use gateway_testbed::clock::monotonic_ns;
use sqlx::{Connection, PgConnection};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, oneshot};
use uuid::Uuid;

use crate::tracker::Tracker;

const STATEMENT: &str =
    "SELECT enqueue_command(node_id => $1, kind => $2, payload => $3, lane => 'default', id => $4)";
// A stop must not wait for a command that is far off.
const LONGEST_NAP: Duration = Duration::from_millis(100);
const LONGEST_DIAL: Duration = Duration::from_secs(2);

/// What to enqueue.
#[derive(Debug, Clone)]
pub(crate) struct EnqueuePlan {
    pub(crate) database_url: String,
    pub(crate) node_ids: Arc<[String]>,
    pub(crate) per_second: f64,
    /// `None`: until it is stopped.
    pub(crate) duration: Option<Duration>,
    pub(crate) kind: String,
    pub(crate) payload_bytes: usize,
    /// Whether a failed enqueue is no failure of the run.
    pub(crate) rides_out: bool,
}

#[derive(Debug)]
struct Shared {
    plan: EnqueuePlan,
    tracker: Arc<Tracker>,
    start_ns: AtomicU64,
    next: AtomicU64,
    stopped: AtomicBool,
    // Nobody waits for what is under way.
    abandoned: AtomicBool,
    running: AtomicU64,
    over: Notify,
    first_error: Mutex<Option<String>>,
}

/// A running enqueuer. Stopped when dropped.
#[derive(Debug)]
pub(crate) struct Enqueuer {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Enqueuer {
    /// Connects all its threads and warms their statements up, then starts.
    pub(crate) async fn start(plan: EnqueuePlan, tracker: Arc<Tracker>) -> anyhow::Result<Self> {
        let count = ((plan.per_second / 25.0).ceil() as u64).clamp(4, 32);
        let shared = Arc::new(Shared {
            plan,
            tracker,
            start_ns: AtomicU64::new(0),
            next: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            running: AtomicU64::new(count),
            over: Notify::new(),
            first_error: Mutex::new(None),
        });
        let mut enqueuer = Self { shared: Arc::clone(&shared), threads: Vec::new() };
        let mut prepared = Vec::new();
        for index in 0..count {
            let (tell, told) = oneshot::channel();
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("enqueuer-{index}"));
            enqueuer.threads.push(thread.spawn(move || run(&shared, tell)).context("starting a thread")?);
            prepared.push(told);
        }
        for told in prepared {
            told.await.context("an enqueuer's thread ended")??;
        }
        // A little ahead, so that the first command is not late.
        shared.start_ns.store(monotonic_ns() + 20_000_000, Ordering::Release);
        for thread in &enqueuer.threads {
            thread.thread().unpark();
        }
        Ok(enqueuer)
    }

    /// Waits until all was enqueued; an error if an enqueue failed.
    pub(crate) async fn finished(&self) -> anyhow::Result<()> {
        while self.shared.running.load(Ordering::Acquire) > 0 {
            self.shared.over.notified().await;
        }
        match self.shared.first_error.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(anyhow::anyhow!("enqueueing: {error}")),
            None => Ok(()),
        }
    }

    /// Enqueues nothing more.
    pub(crate) fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Release);
        for thread in &self.threads {
            thread.thread().unpark();
        }
    }
}

impl Drop for Enqueuer {
    fn drop(&mut self) {
        self.shared.abandoned.store(true, Ordering::Release);
        self.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, prepared: oneshot::Sender<anyhow::Result<()>>) {
    match prepare(&shared.plan) {
        Err(error) => drop(prepared.send(Err(error))),
        Ok((runtime, mut connection)) => {
            let _ = prepared.send(Ok(()));
            if let Err(error) = enqueue_all(shared, &runtime, &mut connection) {
                let mut first = shared.first_error.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert(error.to_string());
                shared.stopped.store(true, Ordering::Release);
            }
        }
    }
    shared.running.fetch_sub(1, Ordering::AcqRel);
    shared.over.notify_one();
}

fn prepare(plan: &EnqueuePlan) -> anyhow::Result<(Runtime, PgConnection)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let connection = runtime.block_on(async {
        let mut connection = PgConnection::connect(&plan.database_url).await?;
        // Parsed, planned and cached before the clock runs; nothing of it stays.
        let mut transaction = connection.begin().await?;
        if let Some(node_id) = plan.node_ids.first() {
            enqueue(&mut transaction, plan, node_id, Uuid::new_v4(), &[]).await?;
        }
        transaction.rollback().await?;
        Ok::<_, sqlx::Error>(connection)
    });
    Ok((runtime, connection.context("preparing an enqueuer")?))
}

fn enqueue_all(shared: &Shared, runtime: &Runtime, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let plan = &shared.plan;
    let payload = vec![b'x'; plan.payload_bytes];
    let period_ns = 1e9 / plan.per_second;
    let last = plan.duration.map(|duration| (duration.as_secs_f64() * plan.per_second) as u64);
    while shared.start_ns.load(Ordering::Acquire) == 0 {
        std::thread::park_timeout(LONGEST_NAP);
        if shared.stopped.load(Ordering::Acquire) {
            return Ok(());
        }
    }
    let start = shared.start_ns.load(Ordering::Acquire);
    loop {
        let index = shared.next.fetch_add(1, Ordering::Relaxed);
        if last.is_some_and(|last| index >= last) {
            return Ok(());
        }
        let intended = start + (index as f64 * period_ns) as u64;
        if !sleep_until(intended, &shared.stopped) {
            return Ok(());
        }
        let Some(node_id) = plan.node_ids.get(spread(index, plan.node_ids.len())) else { return Ok(()) };
        let id = Uuid::now_v7();
        shared.tracker.sending(id, intended, monotonic_ns());
        let outcome = runtime.block_on(async {
            tokio::select! {
                biased;
                outcome = enqueue(connection, plan, node_id, id, &payload) => Some(outcome),
                // A server that stands still would keep the thread, and who drops it, for ever.
                () = abandoned(shared) => None,
            }
        });
        let Some(outcome) = outcome else { return Ok(()) };
        match outcome {
            Ok(()) => shared.tracker.committed(id, monotonic_ns()),
            Err(_) if plan.rides_out => {
                shared.tracker.doubtful(id);
                if !connect_again(shared, runtime, connection) {
                    return Ok(());
                }
            }
            Err(error) => {
                shared.tracker.failed(id);
                return Err(error);
            }
        }
    }
}

async fn abandoned(shared: &Shared) {
    while !shared.abandoned.load(Ordering::Acquire) {
        tokio::time::sleep(LONGEST_NAP).await;
    }
}

/// Until there is a connection that works; false if it was stopped meanwhile.
fn connect_again(shared: &Shared, runtime: &Runtime, connection: &mut PgConnection) -> bool {
    while !shared.stopped.load(Ordering::Acquire) {
        let connecting = PgConnection::connect(&shared.plan.database_url);
        if let Ok(Ok(fresh)) =
            runtime.block_on(async { tokio::time::timeout(LONGEST_DIAL, connecting).await })
        {
            *connection = fresh;
            return true;
        }
        std::thread::sleep(LONGEST_NAP);
    }
    false
}

async fn enqueue(
    connection: &mut PgConnection,
    plan: &EnqueuePlan,
    node_id: &str,
    id: Uuid,
    payload: &[u8],
) -> Result<(), sqlx::Error> {
    let query = sqlx::query(STATEMENT).bind(node_id).bind(&plan.kind).bind(payload).bind(id);
    query.execute(connection).await.map(|_| ())
}

/// False if it was stopped meanwhile.
fn sleep_until(at_ns: u64, stopped: &AtomicBool) -> bool {
    loop {
        if stopped.load(Ordering::Acquire) {
            return false;
        }
        let left = Duration::from_nanos(at_ns.saturating_sub(monotonic_ns()));
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(LONGEST_NAP));
    }
}

// Each node in turn, but neighbours in time are far apart.
fn spread(index: u64, nodes: usize) -> usize {
    const STRIDE: u64 = 7919;
    let nodes = (nodes as u64).max(1);
    let stride = if nodes.is_multiple_of(STRIDE) { 1 } else { STRIDE };
    usize::try_from((index % nodes) * (stride % nodes).max(1) % nodes).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_has_its_turn() {
        for nodes in [1usize, 2, 7, 200, 5000, 7919] {
            let seen: std::collections::HashSet<usize> =
                (0..nodes as u64).map(|n| spread(n, nodes)).collect();
            assert_eq!(seen.len(), nodes);
        }
    }
}

//! An enqueuer of batches: as many commands as are taken (a closed loop), or a rate that single commands could
//! not reach.
//!
//! Threads of its own, each with one connection and a share of the nodes that is its alone, so that no two wait
//! for each other's counters.
//!
//! 1. In a closed loop no more than `window` commands are under way; one that is done makes room.
//! 2. At a rate, batch n is due at start + n batches' time, whatever became of those before.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use gateway_testbed::clock::monotonic_ns;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::tracker::Tracker;

/// Many commands of one payload.
pub(crate) const ENQUEUE: &str = "SELECT count(*) FROM enqueue_commands(node_ids => $1, kinds => ARRAY['bench'], \
                         payloads => ARRAY[$2::bytea], ids => $3)";
pub(crate) const PAYLOAD_BYTES: usize = 128;
const NAP: Duration = Duration::from_millis(1);

/// How fast.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// That many under way.
    Window(u64),
    PerSecond(f64),
}

/// What to enqueue.
#[derive(Debug, Clone)]
pub(crate) struct FloodPlan {
    pub(crate) database_url: String,
    pub(crate) node_ids: Arc<[String]>,
    pub(crate) pace: Pace,
    /// Commands of one transaction.
    pub(crate) batch: usize,
    pub(crate) threads: usize,
}

#[derive(Debug)]
struct Shared {
    plan: FloodPlan,
    tracker: Arc<Tracker>,
    start_ns: u64,
    next: AtomicU64,
    stopped: AtomicBool,
    first_error: Mutex<Option<String>>,
}

/// A running one. Stopped when dropped.
#[derive(Debug)]
pub(crate) struct Flood {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Flood {
    pub(crate) fn start(plan: FloodPlan, tracker: Arc<Tracker>) -> anyhow::Result<Self> {
        let threads = plan.threads.clamp(1, plan.node_ids.len().max(1));
        let shared = Arc::new(Shared {
            plan,
            tracker,
            start_ns: monotonic_ns() + 50_000_000,
            next: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            first_error: Mutex::new(None),
        });
        let mut flood = Self { shared, threads: Vec::new() };
        for index in 0..threads {
            let shared = Arc::clone(&flood.shared);
            let thread = std::thread::Builder::new().name(format!("flood-{index}"));
            let run = move || {
                if let Err(error) = enqueue_all(&shared, index, threads) {
                    let mut first = shared.first_error.lock().unwrap_or_else(PoisonError::into_inner);
                    first.get_or_insert(format!("{error:#}"));
                    shared.stopped.store(true, Ordering::Release);
                }
            };
            flood.threads.push(thread.spawn(run).context("starting a thread")?);
        }
        Ok(flood)
    }

    /// Fails where an enqueue has failed.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        match self.shared.first_error.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            Some(error) => Err(anyhow::anyhow!("enqueueing: {error}")),
            None => Ok(()),
        }
    }

    /// Enqueues nothing more, and waits for what is under way.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        self.end();
        self.check()
    }

    fn end(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.end();
    }
}

fn enqueue_all(shared: &Shared, index: usize, threads: usize) -> anyhow::Result<()> {
    let plan = &shared.plan;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut connection = runtime.block_on(PgConnection::connect(&plan.database_url))?;
    let payload = vec![b'x'; PAYLOAD_BYTES];
    let mut nodes = plan.node_ids.iter().skip(index).step_by(threads).cycle();
    while let Some(intended) = shared.turn() {
        let names: Vec<&str> = nodes.by_ref().take(plan.batch).map(String::as_str).collect();
        let ids: Vec<Uuid> = names.iter().map(|_| Uuid::now_v7()).collect();
        shared.tracker.sending_many(&ids, intended, monotonic_ns());
        let query = sqlx::query(ENQUEUE).bind(&names).bind(&payload).bind(&ids);
        runtime.block_on(query.execute(&mut connection))?;
        shared.tracker.committed_many(&ids, monotonic_ns());
    }
    Ok(())
}

impl Shared {
    /// Waits until a batch is due; gives when it was meant to be sent, `None` when it is over.
    fn turn(&self) -> Option<u64> {
        let due = match self.plan.pace {
            Pace::Window(_) => 0,
            Pace::PerSecond(rate) => {
                let batch = self.next.fetch_add(1, Ordering::Relaxed) as f64;
                self.start_ns + (batch * self.plan.batch as f64 * 1e9 / rate) as u64
            }
        };
        loop {
            if self.stopped.load(Ordering::Acquire) {
                return None;
            }
            let now = monotonic_ns();
            match self.plan.pace {
                Pace::Window(window) if self.tracker.under_way() + self.plan.batch as u64 <= window => {
                    return Some(now);
                }
                Pace::Window(_) => std::thread::sleep(NAP),
                Pace::PerSecond(_) if now >= due => return Some(due),
                Pace::PerSecond(_) => {
                    std::thread::sleep(Duration::from_nanos(due - now).min(100 * NAP));
                }
            }
        }
    }
}

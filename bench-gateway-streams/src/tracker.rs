//! Where each command is between its intended start and its durable result, and the latencies that
//! come of it.
//!
//! The enqueuer tells when a command was due, when it was sent and when its commit was known; the
//! nodes tell when they read it and when its result was acked. Any of the two may be first.
//!
//! 1. Latencies count from the commit of the enqueue, plus the time by which the enqueuer was late:
//!    a generator that stalls shows in the figures instead of hiding them.
//! 2. A command counts as done when its terminal update was acked, which is after it was stored.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sqlx::PgConnection;
use uuid::Uuid;

use crate::latency::Latencies;

/// Times of one command, in nanoseconds of the monotonic clock.
#[derive(Debug, Clone, Copy)]
struct Times {
    intended: u64,
    sent: u64,
    committed: Option<u64>,
    received: Option<u64>,
    acked: Option<u64>,
}

/// Figures so far.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    /// Enqueue commit to the node has it.
    pub(crate) dispatch: Latencies,
    /// Enqueue commit to its result is acked as stored.
    pub(crate) completion: Latencies,
    /// Intended start to the node has it: the enqueue's own time is in it.
    pub(crate) dispatch_from_intended: Latencies,
    /// The enqueue's own time.
    pub(crate) enqueue: Latencies,
    /// Intended start to sent.
    pub(crate) lag: Latencies,
    pub(crate) committed: u64,
    pub(crate) received: u64,
    pub(crate) completed: u64,
}

#[derive(Debug)]
struct Inner {
    open: HashMap<Uuid, Times>,
    enqueued: HashSet<Uuid>,
    // Their enqueue failed in a way that says nothing of whether they are stored.
    doubtful: HashSet<Uuid>,
    doubts: u64,
    figures: Figures,
    // Dispatch latencies since the last look, for figures over time.
    recent: Latencies,
}

/// Shared by the enqueuer's threads and the nodes' observer.
#[derive(Debug)]
pub(crate) struct Tracker(Mutex<Inner>);

impl Default for Tracker {
    fn default() -> Self {
        let figures = Figures {
            dispatch: Latencies::new(),
            completion: Latencies::new(),
            dispatch_from_intended: Latencies::new(),
            enqueue: Latencies::new(),
            lag: Latencies::new(),
            committed: 0,
            received: 0,
            completed: 0,
        };
        let recent = Latencies::new();
        Self(Mutex::new(Inner {
            open: HashMap::new(),
            enqueued: HashSet::new(),
            doubtful: HashSet::new(),
            doubts: 0,
            figures,
            recent,
        }))
    }
}

impl Tracker {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A command is about to be enqueued.
    pub(crate) fn sending(&self, id: Uuid, intended: u64, sent: u64) {
        let mut inner = self.lock();
        inner.figures.lag.record_ns(sent.saturating_sub(intended));
        inner.open.insert(id, Times { intended, sent, committed: None, received: None, acked: None });
    }

    /// Commands of one transaction are about to be enqueued.
    pub(crate) fn sending_many(&self, ids: &[Uuid], intended: u64, sent: u64) {
        let mut inner = self.lock();
        for id in ids {
            inner.open.insert(*id, Times { intended, sent, committed: None, received: None, acked: None });
        }
    }

    /// Its commit is known.
    pub(crate) fn committed(&self, id: Uuid, at: u64) {
        self.lock().commit(id, at);
    }

    /// The commit of all of them is known.
    pub(crate) fn committed_many(&self, ids: &[Uuid], at: u64) {
        let mut inner = self.lock();
        ids.iter().for_each(|id| inner.commit(*id, at));
    }

    /// The enqueue failed: nothing to wait for.
    pub(crate) fn failed(&self, id: Uuid) {
        self.lock().open.remove(&id);
    }

    /// The enqueue had no answer: the rows say whether there is such a command.
    pub(crate) fn doubtful(&self, id: Uuid) {
        let mut inner = self.lock();
        inner.open.remove(&id);
        inner.doubtful.insert(id);
        inner.doubts += 1;
    }

    /// How many enqueues had no answer, ever.
    pub(crate) fn doubts(&self) -> u64 {
        self.lock().doubts
    }

    /// Commands that somebody else enqueued; they have no latencies.
    pub(crate) fn also_enqueued(&self, ids: &[Uuid]) {
        let mut inner = self.lock();
        inner.enqueued.extend(ids);
        inner.figures.committed += ids.len() as u64;
    }

    /// Looks up what was in doubt: what is stored was enqueued, the rest never was.
    pub(crate) async fn resolve_doubts(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let doubtful: Vec<Uuid> = self.lock().doubtful.iter().copied().collect();
        let statement = "SELECT id FROM commands WHERE id = ANY ($1)";
        let stored: Vec<Uuid> = sqlx::query_scalar(statement).bind(&doubtful).fetch_all(connection).await?;
        let mut inner = self.lock();
        for id in &doubtful {
            inner.doubtful.remove(id);
        }
        inner.figures.committed += stored.len() as u64;
        inner.enqueued.extend(stored);
        Ok(())
    }

    /// Commands whose result is known to be stored.
    pub(crate) fn completed(&self) -> u64 {
        self.lock().figures.completed
    }

    /// The commands whose commit is known and whose result is not.
    pub(crate) fn open_ids(&self) -> HashSet<Uuid> {
        let inner = self.lock();
        inner.open.iter().filter(|(_, times)| times.committed.is_some()).map(|(id, _)| *id).collect()
    }

    /// How many of `ids` are not done.
    pub(crate) fn still_open(&self, ids: &HashSet<Uuid>) -> usize {
        let inner = self.lock();
        ids.iter().filter(|id| inner.open.contains_key(id)).count()
    }

    /// A node read it. A replay later does not count.
    pub(crate) fn received(&self, id: Uuid, at: u64) {
        let mut inner = self.lock();
        let Some(times) = inner.open.get_mut(&id).filter(|times| times.received.is_none()) else { return };
        times.received = Some(at);
        let from_intended = at.saturating_sub(times.intended);
        inner.figures.received += 1;
        inner.figures.dispatch_from_intended.record_ns(from_intended);
        inner.settle(id);
    }

    /// Its terminal update was acked.
    pub(crate) fn acked(&self, id: Uuid, at: u64) {
        let mut inner = self.lock();
        let Some(times) = inner.open.get_mut(&id) else { return };
        times.acked = Some(at);
        inner.settle(id);
    }

    /// How many commands were committed and are not done, by count: what a closed loop asks all the time.
    pub(crate) fn under_way(&self) -> u64 {
        let inner = self.lock();
        inner.figures.committed.saturating_sub(inner.figures.completed)
    }

    /// How many of all commands a node has read.
    pub(crate) fn received_so_far(&self) -> u64 {
        self.lock().figures.received
    }

    /// Commands whose commit is known and whose result is not.
    pub(crate) fn open(&self) -> usize {
        self.lock().open.values().filter(|times| times.committed.is_some()).count()
    }

    /// The figures so far.
    pub(crate) fn figures(&self) -> Figures {
        self.lock().figures.clone()
    }

    /// Dispatch latencies since the last call.
    pub(crate) fn take_recent(&self) -> Latencies {
        std::mem::replace(&mut self.lock().recent, Latencies::new())
    }

    /// Every command whose commit is known.
    pub(crate) fn enqueued(&self) -> HashSet<Uuid> {
        self.lock().enqueued.clone()
    }
}

impl Inner {
    fn commit(&mut self, id: Uuid, at: u64) {
        self.enqueued.insert(id);
        self.figures.committed += 1;
        if let Some(times) = self.open.get_mut(&id) {
            times.committed = Some(at);
            let took = at.saturating_sub(times.sent);
            self.figures.enqueue.record_ns(took);
        }
        self.settle(id);
    }

    // Once everything of a command is known it is counted and forgotten.
    fn settle(&mut self, id: Uuid) {
        let Some(times) = self.open.get(&id) else { return };
        let (Some(committed), Some(received), Some(acked)) = (times.committed, times.received, times.acked)
        else {
            return;
        };
        let late = times.sent.saturating_sub(times.intended);
        self.figures.dispatch.record_ns(received.saturating_sub(committed) + late);
        self.recent.record_ns(received.saturating_sub(committed) + late);
        self.figures.completion.record_ns(acked.saturating_sub(committed) + late);
        self.figures.completed += 1;
        self.open.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_late_generator_shows_in_the_latencies() {
        let (tracker, id) = (Tracker::default(), Uuid::from_u128(1));
        // Due at 0, sent 50 ms late, committed 5 ms after, at the node 2 ms and stored 9 ms after that.
        tracker.sending(id, 0, 50 * MS);
        tracker.committed(id, 55 * MS);
        assert_eq!(tracker.open(), 1);
        tracker.received(id, 57 * MS);
        tracker.acked(id, 64 * MS);
        let figures = tracker.figures();
        let near = |latencies: &Latencies, ms: f64| {
            let max = latencies.percentiles().expect("one").max;
            assert!((max - ms).abs() < 0.1, "{max} is not {ms}");
        };
        near(&figures.dispatch, 52.0);
        near(&figures.completion, 59.0);
        near(&figures.dispatch_from_intended, 57.0);
        near(&figures.enqueue, 5.0);
        near(&figures.lag, 50.0);
        assert_eq!((tracker.open(), figures.completed), (0, 1));
    }

    #[test]
    fn a_node_may_be_faster_than_the_word_of_the_commit() {
        let (tracker, id) = (Tracker::default(), Uuid::from_u128(1));
        tracker.sending(id, 0, 0);
        tracker.received(id, 2 * MS);
        tracker.acked(id, 3 * MS);
        tracker.committed(id, 4 * MS);
        assert_eq!(tracker.figures().completed, 1);
    }

    #[test]
    fn a_replay_does_not_count_again() {
        let (tracker, id) = (Tracker::default(), Uuid::from_u128(1));
        tracker.sending(id, 0, 0);
        tracker.committed(id, MS);
        tracker.received(id, 2 * MS);
        tracker.received(id, 90 * MS);
        assert_eq!(tracker.figures().received, 1);
    }
}

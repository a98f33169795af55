//! What the nodes of a run have seen, whichever process they are in.
//!
//! 1. Drops are counted by the nodes: a session that stood and ended, not by our doing.
//! 2. When a node came back is the time that it says itself, not when somebody looked.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gateway_testbed::node::{NodeEvent, Observer};
use uuid::Uuid;

use super::news::{Ending, News};
use crate::latency::Latencies;
use crate::tracker::Tracker;

const LAST_COMPLETED: usize = 8;
const RESOURCE_EXHAUSTED: u32 = 8;

/// What the nodes have seen.
#[derive(Debug)]
pub(crate) struct FleetCounts {
    tracker: Arc<Tracker>,
    connected: AtomicUsize,
    drops: AtomicU64,
    heartbeats_acked: AtomicU64,
    events_stored: AtomicU64,
    sections_stored: AtomicU64,
    closing: AtomicBool,
    // Rare or small: how sessions ended, heartbeat round trips, the last completed commands.
    detail: Mutex<Detail>,
}

#[derive(Debug)]
struct Detail {
    ends: BTreeMap<String, u64>,
    heartbeats: Latencies,
    completed: VecDeque<Completed>,
    standings: HashMap<Arc<str>, Standing>,
    refusals: Refusals,
    /// How late the runtimes of other load processes were.
    lag: Latencies,
}

/// Where a node stands. Times are nanoseconds of the monotonic clock, 0 for never.
#[derive(Debug, Clone, Copy, Default)]
struct Standing {
    /// Sessions that stand: two for the moment in which a drained one is replaced.
    sessions: u32,
    epoch: u64,
    welcomed_at_ns: u64,
    dropped_at_ns: u64,
    /// When it was told to come back later, and how much later.
    told: Option<(u64, Duration)>,
    /// Of its journal.
    events_acked: u64,
    sections_acked: u64,
}

impl Standing {
    const fn is_live(&self) -> bool {
        self.sessions > 0
    }
}

/// Nodes that were told to come back later.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Refusals {
    pub(crate) count: u64,
    /// Of those, the ones with the delay to wait.
    pub(crate) with_delay: u64,
    /// Of those, the ones that were not seen again before it was over.
    pub(crate) kept: u64,
}

/// A command that was completed lately.
#[derive(Debug, Clone)]
pub(crate) struct Completed {
    pub(crate) node: Arc<str>,
    pub(crate) id: Uuid,
    pub(crate) state: Cow<'static, str>,
}

impl FleetCounts {
    pub(super) fn new(tracker: Arc<Tracker>) -> Self {
        let detail = Detail {
            ends: BTreeMap::new(),
            heartbeats: Latencies::new(),
            completed: VecDeque::new(),
            standings: HashMap::new(),
            refusals: Refusals::default(),
            lag: Latencies::new(),
        };
        Self {
            tracker,
            connected: AtomicUsize::new(0),
            drops: AtomicU64::new(0),
            heartbeats_acked: AtomicU64::new(0),
            events_stored: AtomicU64::new(0),
            sections_stored: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            detail: Mutex::new(detail),
        }
    }

    pub(crate) fn connected(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }

    pub(crate) fn drops(&self) -> u64 {
        self.drops.load(Ordering::Relaxed)
    }

    pub(crate) fn heartbeats_acked(&self) -> u64 {
        self.heartbeats_acked.load(Ordering::Relaxed)
    }

    /// Events that nodes saw acked.
    pub(crate) fn events_stored(&self) -> u64 {
        self.events_stored.load(Ordering::Relaxed)
    }

    /// Sections that nodes saw acked.
    pub(crate) fn sections_stored(&self) -> u64 {
        self.sections_stored.load(Ordering::Relaxed)
    }

    /// Events that each of `nodes` saw acked, in order.
    pub(crate) fn events_acked(&self, nodes: &[String]) -> Vec<u64> {
        self.of_each(nodes, |standing| standing.events_acked)
    }

    /// Sections that each of `nodes` saw acked, in order.
    pub(crate) fn sections_acked(&self, nodes: &[String]) -> Vec<u64> {
        self.of_each(nodes, |standing| standing.sections_acked)
    }

    fn of_each(&self, nodes: &[String], figure: impl Fn(&Standing) -> u64) -> Vec<u64> {
        let detail = self.detail();
        nodes.iter().map(|node| detail.standings.get(node.as_str()).map_or(0, &figure)).collect()
    }

    /// How late the runtimes of other load processes were.
    pub(crate) fn lag(&self) -> Latencies {
        self.detail().lag.clone()
    }

    /// Nobody is missed from now on.
    pub(super) fn expect_ends(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// How sessions ended so far, by reason.
    pub(crate) fn ends(&self) -> BTreeMap<String, u64> {
        self.detail().ends.clone()
    }

    /// Forgets the heartbeats so far: those beside the opening of sessions tell nothing of a phase.
    pub(crate) fn restart_heartbeats(&self) {
        self.detail().heartbeats = Latencies::new();
        self.heartbeats_acked.store(0, Ordering::Relaxed);
    }

    /// Round trips of heartbeats.
    pub(crate) fn heartbeats(&self) -> Latencies {
        self.detail().heartbeats.clone()
    }

    /// The last commands whose result was acked, newest first.
    pub(crate) fn last_completed(&self) -> Vec<Completed> {
        self.detail().completed.iter().cloned().collect()
    }

    /// How nodes were told to come back later.
    pub(crate) fn refusals(&self) -> Refusals {
        self.detail().refusals
    }

    /// Of `nodes`, how long after `since_ns` each had a new session, where it has one now.
    pub(crate) fn back_since(&self, nodes: &[String], since_ns: u64) -> Vec<u64> {
        let detail = self.detail();
        let standings = nodes.iter().filter_map(|node| detail.standings.get(node.as_str()));
        let back = standings.filter(|one| one.is_live() && one.welcomed_at_ns > since_ns);
        back.map(|one| one.welcomed_at_ns - since_ns).collect()
    }

    /// How many of `nodes` have a session now.
    pub(crate) fn live(&self, nodes: &[String]) -> usize {
        let detail = self.detail();
        let standings = nodes.iter().filter_map(|node| detail.standings.get(node.as_str()));
        standings.filter(|one| one.is_live()).count()
    }

    /// Of `nodes`, how many lost a session after `since_ns`.
    pub(crate) fn dropped_since(&self, nodes: &[String], since_ns: u64) -> usize {
        let detail = self.detail();
        let standings = nodes.iter().filter_map(|node| detail.standings.get(node.as_str()));
        standings.filter(|one| one.dropped_at_ns > since_ns).count()
    }

    fn detail(&self) -> MutexGuard<'_, Detail> {
        self.detail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session epochs of those of `nodes` that have a session now.
    pub(crate) fn epochs(&self, nodes: &[String]) -> HashMap<String, i64> {
        let detail = self.detail();
        let live = nodes.iter().filter_map(|node| {
            let standing = detail.standings.get(node.as_str()).filter(|one| one.is_live())?;
            Some((node.clone(), i64::try_from(standing.epoch).unwrap_or(i64::MAX)))
        });
        live.collect()
    }

    fn handle_welcome(&self, node: &Arc<str>, epoch: u64, at_ns: u64) {
        let mut detail = self.detail();
        let standing = detail.standings.entry(Arc::clone(node)).or_default();
        let told = standing.told.take();
        // A drained session is replaced while it stands; its own end comes later.
        standing.sessions += 1;
        let is_first = standing.sessions == 1;
        standing.welcomed_at_ns = at_ns;
        standing.epoch = epoch;
        detail.refusals.handle_return(told, at_ns);
        if is_first {
            self.connected.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn handle_end(&self, node: &Arc<str>, end: Ending) {
        let mut detail = self.detail();
        let standing = detail.standings.entry(Arc::clone(node)).or_default();
        if end.was_welcomed && standing.is_live() {
            standing.sessions -= 1;
            self.connected.fetch_sub(usize::from(!standing.is_live()), Ordering::Relaxed);
        }
        if end.is_drop {
            standing.dropped_at_ns = end.at_ns;
        }
        let told = standing.told.take();
        standing.told = end.pushback.map(|pushback| (end.at_ns, pushback));
        detail.refusals.handle_return(told, end.at_ns);
        if end.status == Some(RESOURCE_EXHAUSTED) {
            detail.refusals.count += 1;
            detail.refusals.with_delay += u64::from(end.pushback.is_some());
        }
        if self.closing.load(Ordering::Relaxed) {
            return;
        }
        if end.is_drop {
            self.drops.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(reason) = end.reason {
            *detail.ends.entry(reason).or_default() += 1;
        }
    }

    fn handle_events(&self, node: &Arc<str>, acked_seq: u64) {
        let mut detail = self.detail();
        let standing = detail.standings.entry(Arc::clone(node)).or_default();
        let more = acked_seq.saturating_sub(standing.events_acked);
        standing.events_acked += more;
        self.events_stored.fetch_add(more, Ordering::Relaxed);
    }

    /// Takes what a node told.
    pub(super) fn take(&self, node: &Arc<str>, news: News) {
        match news {
            News::Welcome { epoch, at_ns } => self.handle_welcome(node, epoch, at_ns),
            News::Received { id, at_ns } => self.tracker.received(id, at_ns),
            News::Acked { id, stored, at_ns } => {
                self.tracker.acked(id, at_ns);
                let mut detail = self.detail();
                detail.completed.truncate(LAST_COMPLETED - 1);
                detail.completed.push_front(Completed { node: Arc::clone(node), id, state: stored });
            }
            News::Beat { round_trip_ns } => {
                self.heartbeats_acked.fetch_add(1, Ordering::Relaxed);
                self.detail().heartbeats.record_ns(round_trip_ns);
            }
            News::Events { acked_seq } => self.handle_events(node, acked_seq),
            News::Section => {
                self.detail().standings.entry(Arc::clone(node)).or_default().sections_acked += 1;
                self.sections_stored.fetch_add(1, Ordering::Relaxed);
            }
            News::Ended(end) => self.handle_end(node, end),
            News::Lag { ns } => self.detail().lag.record_ns(ns),
        }
    }
}

impl Refusals {
    fn handle_return(&mut self, told: Option<(u64, Duration)>, at_ns: u64) {
        if let Some((told_at_ns, delay)) = told {
            self.kept += u64::from(Duration::from_nanos(at_ns.saturating_sub(told_at_ns)) >= delay);
        }
    }
}

impl Observer for FleetCounts {
    fn on_event(&self, node: &Arc<str>, event: NodeEvent) {
        if let Some(news) = News::of(event) {
            self.take(node, news);
        }
    }
}

#[cfg(test)]
mod tests {
    use gateway_testbed::node::{End, EndKind};

    use super::*;

    fn end(kind: EndKind, pushback: Option<u64>, was_welcomed: bool, at_ns: u64) -> Ending {
        let pushback = pushback.map(Duration::from_millis);
        Ending::of(End { kind, message: String::new(), pushback, was_welcomed }, at_ns)
    }

    #[test]
    fn a_node_is_back_when_it_has_a_session_of_after_the_fault() {
        const MS: u64 = 1_000_000;
        let counts = FleetCounts::new(Arc::new(Tracker::default()));
        let nodes = ["a".to_owned(), "b".to_owned(), "c".to_owned()];
        let names: Vec<Arc<str>> = nodes.iter().map(|node| Arc::from(node.as_str())).collect();
        for name in &names {
            counts.handle_welcome(name, 1, MS);
        }
        let fault = 10 * MS;
        counts.handle_end(&names[0], end(EndKind::Transport, None, true, 11 * MS));
        counts.handle_end(&names[1], end(EndKind::Asked, None, true, 12 * MS));
        assert_eq!((counts.live(&nodes), counts.connected()), (1, 1));
        assert_eq!(counts.back_since(&nodes, fault), Vec::<u64>::new(), "c never left, and is not back");
        // Told to wait 5 ms: the one that comes after 4 ms does not keep it, the one after 5 ms does.
        counts.handle_end(&names[0], end(EndKind::Status(8), Some(5), false, 20 * MS));
        counts.handle_welcome(&names[0], 2, 24 * MS);
        counts.handle_end(&names[1], end(EndKind::Status(8), Some(5), false, 20 * MS));
        counts.handle_welcome(&names[1], 2, 25 * MS);
        assert_eq!(counts.back_since(&nodes, fault), [14 * MS, 15 * MS]);
        assert_eq!((counts.dropped_since(&nodes, fault), counts.drops()), (1, 1), "a cut of ours is no drop");
        let Refusals { count, with_delay, kept } = counts.refusals();
        assert_eq!((count, with_delay, kept), (2, 2, 1));
        assert_eq!(counts.connected(), 3);
    }

    #[test]
    fn a_node_that_moves_is_there_all_the_time() {
        let counts = FleetCounts::new(Arc::new(Tracker::default()));
        let (nodes, name) = (["a".to_owned()], Arc::from("a"));
        counts.handle_welcome(&name, 1, 1);
        counts.handle_welcome(&name, 2, 3);
        assert_eq!((counts.live(&nodes), counts.connected()), (1, 1));
        counts.handle_end(&name, end(EndKind::Asked, None, true, 4));
        assert_eq!(
            (counts.live(&nodes), counts.connected(), counts.drops()),
            (1, 1, 0),
            "the old one has ended"
        );
        assert_eq!(counts.back_since(&nodes, 2), [1]);
        counts.handle_end(&name, end(EndKind::Transport, None, true, 5));
        assert_eq!((counts.live(&nodes), counts.connected(), counts.drops()), (0, 0, 1));
    }
}

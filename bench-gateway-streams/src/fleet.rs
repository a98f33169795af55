//! The simulated nodes of a run, and what they count.
//!
//! 1. Drops are counted by the nodes: a session that stood and ended, not by our doing.
//! 2. Nodes are opened at a pace; they dial again by the protocol's own rules.
//! 3. When a node came back is the time that it says itself, not when somebody looked.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gateway_testbed::node::{
    Behaviour, End, EndKind, ExecutionLog, Node, NodeEvent, NodeOptions, Observer, RedialBounds, Target,
    Transport, is_terminal, state_name,
};
use gateway_testbed::pki::Pki;
use uuid::Uuid;

use crate::latency::Latencies;
use crate::progress::Step;
use crate::tracker::Tracker;
use crate::world::World;

const TICK: Duration = Duration::from_millis(20);
const LAST_COMPLETED: usize = 8;
const RESOURCE_EXHAUSTED: u32 = 8;

/// What the nodes have seen.
#[derive(Debug)]
pub(crate) struct FleetCounts {
    tracker: Arc<Tracker>,
    connected: AtomicUsize,
    drops: AtomicU64,
    heartbeats_acked: AtomicU64,
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
    pub(crate) state: &'static str,
}

impl FleetCounts {
    fn new(tracker: Arc<Tracker>) -> Self {
        let detail = Detail {
            ends: BTreeMap::new(),
            heartbeats: Latencies::new(),
            completed: VecDeque::new(),
            standings: HashMap::new(),
            refusals: Refusals::default(),
        };
        Self {
            tracker,
            connected: AtomicUsize::new(0),
            drops: AtomicU64::new(0),
            heartbeats_acked: AtomicU64::new(0),
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

    fn detail(&self) -> std::sync::MutexGuard<'_, Detail> {
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

    fn handle_end(&self, node: &Arc<str>, end: &End, at_ns: u64) {
        let mut detail = self.detail();
        let standing = detail.standings.entry(Arc::clone(node)).or_default();
        if end.was_welcomed && standing.is_live() {
            standing.sessions -= 1;
            self.connected.fetch_sub(usize::from(!standing.is_live()), Ordering::Relaxed);
        }
        if end.is_drop() {
            standing.dropped_at_ns = at_ns;
        }
        let told = standing.told.take();
        standing.told = end.pushback.map(|pushback| (at_ns, pushback));
        detail.refusals.handle_return(told, at_ns);
        if end.status() == Some(RESOURCE_EXHAUSTED) {
            detail.refusals.count += 1;
            detail.refusals.with_delay += u64::from(end.pushback.is_some());
        }
        drop(detail);
        if self.closing.load(Ordering::Relaxed) {
            return;
        }
        if end.is_drop() {
            self.drops.fetch_add(1, Ordering::Relaxed);
        }
        let reason = match &end.kind {
            EndKind::Status(code) => format!("status {code}: {}", end.message),
            EndKind::TlsAlert(alert) => format!("TLS alert {alert}"),
            EndKind::Transport | EndKind::GatewaySilent => end.message.clone(),
            EndKind::Asked => return,
        };
        *self.detail().ends.entry(reason).or_default() += 1;
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
        match event {
            NodeEvent::Connected { epoch, at_ns } => self.handle_welcome(node, epoch, at_ns),
            NodeEvent::CommandReceived(command) => self.tracker.received(command.id, command.at_ns),
            NodeEvent::Acked { id, reported, stored, at_ns, .. } if is_terminal(reported) => {
                self.tracker.acked(id, at_ns);
                let mut detail = self.detail();
                detail.completed.truncate(LAST_COMPLETED - 1);
                let completed = Completed { node: Arc::clone(node), id, state: state_name(stored) };
                detail.completed.push_front(completed);
            }
            NodeEvent::HeartbeatAcked { round_trip, .. } => {
                self.heartbeats_acked.fetch_add(1, Ordering::Relaxed);
                let nanoseconds = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
                self.detail().heartbeats.record_ns(nanoseconds);
            }
            NodeEvent::Ended { end, at_ns, .. } => self.handle_end(node, &end, at_ns),
            _ => {}
        }
    }
}

/// Which nodes to open.
#[derive(Debug)]
pub(crate) struct FleetPlan {
    /// Where they dial, in turn.
    pub(crate) addresses: Vec<SocketAddr>,
    /// The nodes, by the names in their certificates.
    pub(crate) names: Vec<String>,
    pub(crate) per_second: f64,
    pub(crate) behaviour: Behaviour,
    pub(crate) redial: RedialBounds,
    /// So many of them, the first, dial from that address.
    pub(crate) from: Option<(usize, IpAddr)>,
    pub(crate) transport: Transport,
    pub(crate) log: Arc<ExecutionLog>,
}

impl FleetPlan {
    /// Every node of the world, as a node behaves and dials again where nothing else is asked of it.
    pub(crate) fn of(world: &World, per_second: f64) -> Self {
        Self {
            addresses: world.addresses(),
            names: world.node_names().to_vec(),
            per_second,
            behaviour: Behaviour::default(),
            redial: RedialBounds::default(),
            from: None,
            transport: Transport::default(),
            log: Arc::clone(world.log()),
        }
    }
}

/// Running nodes.
#[derive(Debug)]
pub(crate) struct Fleet {
    nodes: Vec<Node>,
    counts: Arc<FleetCounts>,
}

impl Fleet {
    /// Opens them and waits until every one has its `Welcome`.
    pub(crate) async fn open(plan: FleetPlan, pki: &Pki, tracker: Arc<Tracker>) -> anyhow::Result<Self> {
        let counts = Arc::new(FleetCounts::new(tracker));
        let names = &plan.names;
        let identities = pki.nodes(names.iter().map(String::as_str))?;
        let mut fleet = Self { nodes: Vec::with_capacity(names.len()), counts };
        let mut step = Step::new("opening sessions", names.len() as u64);
        let started = Instant::now();
        let addresses = plan.addresses.iter().cycle();
        for ((name, identity), address) in names.iter().zip(&identities).zip(addresses) {
            let due = Duration::from_secs_f64(fleet.nodes.len() as f64 / plan.per_second);
            while started.elapsed() < due {
                step.at(fleet.counts.connected() as u64, "");
                tokio::time::sleep(TICK.min(due.saturating_sub(started.elapsed()))).await;
            }
            let mut target = Target::new(*address, pki.client_config(Some(identity))?).over(plan.transport);
            if let Some((count, source)) = plan.from
                && fleet.nodes.len() < count
            {
                target = target.from_source(source);
            }
            fleet.nodes.push(start_node(&plan, &pki.node_id(name), target, &fleet.counts));
        }
        fleet.await_all(&mut step).await?;
        let seconds = started.elapsed().as_secs_f64();
        step.done(&format!("{} in {seconds:.1} s", names.len()));
        Ok(fleet)
    }

    // An end by status is not the end of it: a node dials again. Nothing new for a minute is.
    async fn await_all(&self, step: &mut Step) -> anyhow::Result<()> {
        let (mut best, mut since) = (0, Instant::now());
        while self.counts.connected() < self.nodes.len() {
            let connected = self.counts.connected();
            if connected > best {
                (best, since) = (connected, Instant::now());
            }
            step.at(connected as u64, "");
            anyhow::ensure!(
                since.elapsed() < Duration::from_secs(60),
                "{connected} of {} nodes are connected and no more come; sessions ended so: {:?}",
                self.nodes.len(),
                self.counts.ends()
            );
            tokio::time::sleep(TICK).await;
        }
        Ok(())
    }

    pub(crate) fn counts(&self) -> &Arc<FleetCounts> {
        &self.counts
    }

    /// Cuts every connection at once; the nodes dial again by their rules.
    pub(crate) fn cut_all(&self) {
        for node in &self.nodes {
            node.cut();
        }
    }

    /// Cuts one in `of`, beginning with number `first`; gives their ids.
    pub(crate) fn cut_some(&self, first: usize, of: usize) -> Vec<String> {
        let some = self.nodes.iter().skip(first).step_by(of.max(1));
        some.inspect(|node| node.cut()).map(|node| node.name().to_owned()).collect()
    }

    /// Says Goodbye with every node and waits for the streams' ends, for a bounded time.
    pub(crate) async fn close(self) {
        self.counts.closing.store(true, Ordering::Relaxed);
        let all = async {
            let goodbyes: Vec<_> = self.nodes.into_iter().map(|node| tokio::spawn(node.goodbye())).collect();
            for goodbye in goodbyes {
                let _ = goodbye.await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(20), all).await;
    }
}

/// Starts one node of `plan`, counted by `counts`.
pub(crate) fn start_node(plan: &FleetPlan, id: &str, target: Target, counts: &Arc<FleetCounts>) -> Node {
    let observer: Arc<dyn Observer> = Arc::clone(counts) as Arc<dyn Observer>;
    Node::start(NodeOptions {
        behaviour: plan.behaviour.clone(),
        redial: plan.redial,
        observer,
        log: Some(Arc::clone(&plan.log)),
        ..NodeOptions::new(id, target)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(kind: EndKind, pushback: Option<u64>, was_welcomed: bool) -> End {
        End { kind, message: String::new(), pushback: pushback.map(Duration::from_millis), was_welcomed }
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
        counts.handle_end(&names[0], &end(EndKind::Transport, None, true), 11 * MS);
        counts.handle_end(&names[1], &end(EndKind::Asked, None, true), 12 * MS);
        assert_eq!((counts.live(&nodes), counts.connected()), (1, 1));
        assert_eq!(counts.back_since(&nodes, fault), Vec::<u64>::new(), "c never left, and is not back");
        // Told to wait 5 ms: the one that comes after 4 ms does not keep it, the one after 5 ms does.
        counts.handle_end(&names[0], &end(EndKind::Status(8), Some(5), false), 20 * MS);
        counts.handle_welcome(&names[0], 2, 24 * MS);
        counts.handle_end(&names[1], &end(EndKind::Status(8), Some(5), false), 20 * MS);
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
        counts.handle_end(&name, &end(EndKind::Asked, None, true), 4);
        assert_eq!(
            (counts.live(&nodes), counts.connected(), counts.drops()),
            (1, 1, 0),
            "the old one has ended"
        );
        assert_eq!(counts.back_since(&nodes, 2), [1]);
        counts.handle_end(&name, &end(EndKind::Transport, None, true), 5);
        assert_eq!((counts.live(&nodes), counts.connected(), counts.drops()), (0, 0, 1));
    }
}

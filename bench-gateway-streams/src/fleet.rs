//! The simulated nodes of a run, and what they count.
//!
//! 1. Drops are counted by the nodes: a session that stood and ended, not by our doing.
//! 2. Nodes are opened at a pace; they dial again by the protocol's own rules.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gateway_testbed::node::{
    Behaviour, End, EndKind, ExecutionLog, Node, NodeEvent, NodeOptions, Observer, Target, is_terminal,
    state_name,
};
use gateway_testbed::pki::Pki;
use uuid::Uuid;

use crate::latency::Latencies;
use crate::progress::Step;
use crate::tracker::Tracker;

const TICK: Duration = Duration::from_millis(20);
const LAST_COMPLETED: usize = 8;

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
        let detail =
            Detail { ends: BTreeMap::new(), heartbeats: Latencies::new(), completed: VecDeque::new() };
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

    fn detail(&self) -> std::sync::MutexGuard<'_, Detail> {
        self.detail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle_end(&self, end: &End) {
        if end.was_welcomed {
            self.connected.fetch_sub(1, Ordering::Relaxed);
        }
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

impl Observer for FleetCounts {
    fn on_event(&self, node: &Arc<str>, event: NodeEvent) {
        match event {
            NodeEvent::Connected { .. } => {
                self.connected.fetch_add(1, Ordering::Relaxed);
            }
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
            NodeEvent::Ended { end, .. } => self.handle_end(&end),
            _ => {}
        }
    }
}

/// Which nodes to open.
#[derive(Debug)]
pub(crate) struct FleetPlan {
    pub(crate) address: SocketAddr,
    /// The nodes, by the names in their certificates.
    pub(crate) names: Vec<String>,
    pub(crate) per_second: f64,
    pub(crate) behaviour: Behaviour,
    pub(crate) log: Arc<ExecutionLog>,
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
        for (name, identity) in names.iter().zip(&identities) {
            let due = Duration::from_secs_f64(fleet.nodes.len() as f64 / plan.per_second);
            while started.elapsed() < due {
                step.at(fleet.counts.connected() as u64, "");
                tokio::time::sleep(TICK.min(due.saturating_sub(started.elapsed()))).await;
            }
            let target = Target::new(plan.address, pki.client_config(Some(identity))?);
            let observer: Arc<dyn Observer> = Arc::clone(&fleet.counts) as Arc<dyn Observer>;
            fleet.nodes.push(Node::start(NodeOptions {
                behaviour: plan.behaviour.clone(),
                observer,
                log: Some(Arc::clone(&plan.log)),
                ..NodeOptions::new(&pki.node_id(name), target)
            }));
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

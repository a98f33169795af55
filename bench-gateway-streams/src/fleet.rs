//! The simulated nodes of a run: in this process, or spread over load processes.
//!
//! 1. Nodes are opened at a pace; they dial again by the protocol's own rules.
//! 2. What they count is the same wherever they are; see `counts`.
//! 3. Closing them says Goodbye with each, for a bounded time.

mod counts;
mod news;
mod process;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use gateway_testbed::database::register_certificates;
use gateway_testbed::node::{Behaviour, ExecutionLog, Node, NodeOptions, Observer, RedialBounds, Target};
use gateway_testbed::pki::{Identity, Pki};
use gateway_testbed::process::{Usage, usage};
use sqlx::{Connection, PgConnection};

use self::process::LoadProcess;
use crate::arguments::NodeTransport;
use crate::progress::Step;
use crate::tracker::Tracker;
use crate::world::World;

pub(crate) use self::counts::FleetCounts;
pub(crate) use self::news::Order;
pub(crate) use self::process::{log_of, serve};

const TICK: Duration = Duration::from_millis(20);
const EVENT_KIND: &str = "bench";
const SECTION: &str = "bench";
const SECTION_BYTES: usize = 256;

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
    pub(crate) transport: NodeTransport,
    pub(crate) log: Arc<ExecutionLog>,
    /// Processes that they are spread over; 1: this one.
    pub(crate) processes: usize,
    /// Loopback addresses that they dial from in turn; 1: the kernel's choice.
    pub(crate) source_addresses: u16,
    /// The authority of their certificates, where other processes have to read it.
    pub(crate) pki_folder: Option<PathBuf>,
    /// The database in which their certificates are recorded before they dial; `None`: the gateway takes those that it
    /// does not know.
    pub(crate) recorded_in: Option<String>,
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
            transport: NodeTransport::default(),
            log: Arc::clone(world.log()),
            processes: world.load_processes(),
            source_addresses: world.source_addresses(),
            pki_folder: world.pki_folder().map(PathBuf::from),
            // A gateway that runs already may be strict.
            recorded_in: world.is_attached().then(|| world.database_url().to_owned()),
        }
    }

    /// The address that node `number` dials from; `None`: the kernel's choice.
    fn source_of(&self, number: usize, target: SocketAddr) -> Option<IpAddr> {
        if let Some((_, source)) = self.from.filter(|(count, _)| number < *count) {
            return Some(source);
        }
        let count = usize::from(self.source_addresses);
        (count > 1 && target.ip().is_loopback()).then(|| source_address(number % count))
    }
}

/// Records the nodes' certificates, where they are to be.
async fn record(plan: &FleetPlan, starts: &VecDeque<NodeStart>, serials: &[String]) -> anyhow::Result<()> {
    let Some(url) = &plan.recorded_in else { return Ok(()) };
    let mut connection = PgConnection::connect(url).await.context("recording certificates")?;
    let ids: Vec<String> = starts.iter().map(|start| start.id.clone()).collect();
    register_certificates(&mut connection, &ids, serials).await.context("recording certificates")
}

// Away from 127.0.0.1, which everybody else uses.
fn source_address(turn: usize) -> IpAddr {
    const HOSTS: usize = 250;
    let (net, host) = (1 + turn / HOSTS, 1 + turn % HOSTS);
    Ipv4Addr::new(127, 1, u8::try_from(net).unwrap_or(u8::MAX), u8::try_from(host).unwrap_or(u8::MAX)).into()
}

/// All that one node needs to be started.
#[derive(Debug)]
struct NodeStart {
    id: String,
    target: Target,
}

impl NodeStart {
    /// Of every node of `plan`, the first of which is number `first` among all; with the serials of their certificates.
    fn all(plan: &FleetPlan, pki: &Pki, first: usize) -> anyhow::Result<(VecDeque<Self>, Vec<String>)> {
        let names = &plan.names;
        let identities: Vec<Identity> = pki.nodes(names.iter().map(String::as_str))?;
        let mut starts = VecDeque::with_capacity(names.len());
        for ((number, name), identity) in (first..).zip(names).zip(&identities) {
            let turn = number % plan.addresses.len().max(1);
            let address = *plan.addresses.get(turn).context("nodes need a gateway's address")?;
            let mut target =
                Target::new(address, pki.client_config(Some(identity))?).over(plan.transport.into());
            if let Some(source) = plan.source_of(number, address) {
                target = target.from_source(source);
            }
            starts.push_back(Self { id: pki.node_id(name), target });
        }
        Ok((starts, identities.into_iter().map(|identity| identity.serial).collect()))
    }

    fn start(self, plan: &FleetPlan, observer: Arc<dyn Observer>) -> Node {
        Node::start(NodeOptions {
            behaviour: plan.behaviour.clone(),
            redial: plan.redial,
            observer,
            log: Some(Arc::clone(&plan.log)),
            ..NodeOptions::new(&self.id, self.target)
        })
    }
}

/// Does with `nodes`, the first of which is number `first` among all, what is ordered.
fn carry_out(nodes: &[Node], first: usize, order: Order) {
    let of = |number: usize| number.checked_sub(first).and_then(|index| nodes.get(index));
    match order {
        Order::Cut { first: from, of } => {
            let some = nodes.iter().zip(first..).filter(|(_, number)| {
                number.checked_sub(from).is_some_and(|after| after.is_multiple_of(of.max(1)))
            });
            some.for_each(|(node, _)| node.cut());
        }
        Order::Emit { node, count, bytes } => {
            let body = Bytes::from(vec![b'e'; bytes]);
            if let Some(node) = of(node) {
                (0..count).for_each(|_| node.emit(EVENT_KIND, body.clone()));
            }
        }
        Order::Section { node, turn } => {
            let mut body = vec![b's'; SECTION_BYTES];
            body.splice(..8, turn.to_be_bytes());
            if let Some(node) = of(node) {
                node.set_section(SECTION, Bytes::from(body));
            }
        }
    }
}

async fn goodbye_all(nodes: Vec<Node>) {
    let all = async {
        let goodbyes: Vec<_> = nodes.into_iter().map(|node| tokio::spawn(node.goodbye())).collect();
        for goodbye in goodbyes {
            let _ = goodbye.await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(20), all).await;
}

/// Running nodes.
#[derive(Debug)]
pub(crate) struct Fleet {
    nodes: Vec<Node>,
    processes: Vec<LoadProcess>,
    ids: Vec<String>,
    counts: Arc<FleetCounts>,
}

impl Fleet {
    /// Opens them and waits until every one has its `Welcome`.
    pub(crate) async fn open(plan: FleetPlan, pki: &Pki, tracker: Arc<Tracker>) -> anyhow::Result<Self> {
        let mut fleet = Self {
            nodes: Vec::new(),
            processes: Vec::new(),
            ids: Vec::new(),
            counts: Arc::new(FleetCounts::new(tracker)),
        };
        Box::pin(fleet.add(plan, pki)).await?;
        Ok(fleet)
    }

    /// Opens more of them.
    pub(crate) async fn add(&mut self, plan: FleetPlan, pki: &Pki) -> anyhow::Result<()> {
        let (before, count) = (self.ids.len(), plan.names.len());
        self.ids.extend(plan.names.iter().map(|name| pki.node_id(name)));
        let mut step = Step::new("opening sessions", self.ids.len() as u64);
        let started = Instant::now();
        if plan.processes > 1 {
            self.start_processes(&plan, before)?;
        } else {
            let (starts, serials) = NodeStart::all(&plan, pki, before)?;
            record(&plan, &starts, &serials).await?;
            for (index, start) in starts.into_iter().enumerate() {
                let due = Duration::from_secs_f64(index as f64 / plan.per_second);
                while started.elapsed() < due {
                    step.at(self.counts.connected() as u64, "");
                    tokio::time::sleep(TICK.min(due.saturating_sub(started.elapsed()))).await;
                }
                let observer = Arc::clone(&self.counts) as Arc<dyn Observer>;
                self.nodes.push(start.start(&plan, observer));
            }
        }
        self.await_all(&mut step).await?;
        let seconds = started.elapsed().as_secs_f64();
        step.done(&format!("{count} in {seconds:.1} s"));
        Ok(())
    }

    fn start_processes(&mut self, plan: &FleetPlan, before: usize) -> anyhow::Result<()> {
        let pki = plan.pki_folder.as_deref().context("load processes need the authority as files")?;
        let share = plan.names.len().div_ceil(plan.processes).max(1);
        for (index, names) in plan.names.chunks(share).enumerate() {
            let (number, first) = (self.processes.len() + 1, before + index * share);
            let ids =
                self.ids.iter().skip(first).take(names.len()).map(|id| Arc::from(id.as_str())).collect();
            self.processes.push(LoadProcess::start(plan, pki, number, first, names, ids, &self.counts)?);
        }
        Ok(())
    }

    // An end by status is not the end of it: a node dials again. Nothing new for a minute is.
    async fn await_all(&mut self, step: &mut Step) -> anyhow::Result<()> {
        let (mut best, mut since) = (0, Instant::now());
        while self.counts.connected() < self.ids.len() {
            let connected = self.counts.connected();
            if connected > best {
                (best, since) = (connected, Instant::now());
            }
            step.at(connected as u64, "");
            anyhow::ensure!(
                since.elapsed() < Duration::from_secs(60),
                "{connected} of {} nodes are connected and no more come; sessions ended so: {:?}",
                self.ids.len(),
                self.counts.ends()
            );
            self.processes.iter_mut().try_for_each(LoadProcess::check)?;
            tokio::time::sleep(TICK).await;
        }
        Ok(())
    }

    pub(crate) fn counts(&self) -> &Arc<FleetCounts> {
        &self.counts
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// The processes that they are in.
    pub(crate) fn pids(&self) -> Vec<u32> {
        std::iter::once(std::process::id()).chain(self.processes.iter().map(LoadProcess::pid)).collect()
    }

    /// Gives an order to those whom it is for.
    pub(crate) fn order(&self, order: Order) {
        carry_out(&self.nodes, 0, order);
        self.processes.iter().for_each(|process| process.order(order));
    }

    /// Cuts every connection at once; the nodes dial again by their rules.
    pub(crate) fn cut_all(&self) {
        self.order(Order::Cut { first: 0, of: 1 });
    }

    /// Cuts one in `of`, beginning with number `first`; gives their ids.
    pub(crate) fn cut_some(&self, first: usize, of: usize) -> Vec<String> {
        self.order(Order::Cut { first, of });
        self.ids.iter().skip(first).step_by(of.max(1)).cloned().collect()
    }

    /// Says Goodbye with every node and waits for the streams' ends, for a bounded time.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        self.counts.expect_ends();
        goodbye_all(self.nodes).await;
        // All at once: each has its own time to end.
        let closing: Vec<_> =
            self.processes.into_iter().map(|process| tokio::spawn(process.close())).collect();
        for closed in closing {
            closed.await??;
        }
        Ok(())
    }
}

/// What processes use together; one that is gone uses nothing.
pub(crate) fn usage_of(pids: &[u32]) -> Usage {
    let nothing = Usage { rss_bytes: 0, rss_peak_bytes: 0, cpu: Duration::ZERO, threads: 0 };
    pids.iter().filter_map(|pid| usage(*pid).ok()).fold(nothing, |sum, one| Usage {
        rss_bytes: sum.rss_bytes + one.rss_bytes,
        rss_peak_bytes: sum.rss_peak_bytes + one.rss_peak_bytes,
        cpu: sum.cpu + one.cpu,
        threads: sum.threads + one.threads,
    })
}

/// Starts one node of `plan`, counted by `counts`.
pub(crate) fn start_node(plan: &FleetPlan, id: &str, target: Target, counts: &Arc<FleetCounts>) -> Node {
    let observer: Arc<dyn Observer> = Arc::clone(counts) as Arc<dyn Observer>;
    NodeStart { id: id.to_owned(), target }.start(plan, observer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_loopback_addresses_and_no_two_are_the_same() {
        let all: std::collections::BTreeSet<IpAddr> = (0..10_000).map(source_address).collect();
        assert!(all.len() == 10_000 && all.iter().all(IpAddr::is_loopback));
    }
}

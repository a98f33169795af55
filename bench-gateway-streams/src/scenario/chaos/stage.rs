//! The stage of a chaos run: world, fleet and load, and what is done with them around each fault.
//!
//! 1. Each fault begins at full load and ends with no load at all, judged.
//! 2. What was enqueued while the database was away is known by the rows in the end, never guessed.
//! 3. A victim that was killed runs again before the next fault.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gateway_testbed::node::{Behaviour, Execution, Node, RedialBounds};

use super::dice::Dice;
use super::hold::until;
use super::own::SmallDisk;
use super::{database, network, rows, zombie};
use crate::arguments::{ChaosPlan, Fault, GatewayArguments, LoadPlan};
use crate::enqueuer::{EnqueuePlan, Enqueuer};
use crate::fleet::{Fleet, FleetCounts, FleetPlan};
use crate::host;
use crate::progress::say;
use crate::report::ChaosRow;
use crate::scenario::multi::GATEWAYS;
use crate::tracker::Tracker;
use crate::world::{World, WorldPlan};

/// With 250 commands a second, 150 are under way.
const EXECUTION: Duration = Duration::from_millis(600);
/// A node that waited half a minute by the default's bound would be what is measured.
const REDIAL: RedialBounds = RedialBounds { first: Duration::from_millis(250), max: Duration::from_secs(2) };
/// No fault begins before that.
const LEAST_PER_SECOND: u64 = 200;
const LEAST_UNACKED: usize = 100;
const FULL_LOAD_WITHIN: Duration = Duration::from_secs(60);
const DRAIN_WITHIN: Duration = Duration::from_secs(60);
/// Gateways, enqueuers and the run itself need about seventy.
const MAX_CONNECTIONS: u32 = 120;
const DISK_MEBIBYTES: u32 = 900;
/// Where the nodes dial from whose packets will vanish: an address of the run's own network.
pub(super) const HOLE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// What stands while faults come.
pub(super) struct Stage {
    pub(super) fleet: Fleet,
    pub(super) tracker: Arc<Tracker>,
    pub(super) world: World,
    pub(super) disk: Option<SmallDisk>,
    /// Every node that has to be at home after a fault, by id.
    pub(super) nodes: Vec<String>,
    /// Those that dial from `HOLE`.
    pub(super) holes: Vec<String>,
    pub(super) lease_ttl: Duration,
    load: LoadPlan,
    recover_within: Duration,
}

/// What a fault did.
#[derive(Debug, Default)]
pub(super) struct Struck {
    pub(super) detail: String,
    pub(super) violations: Vec<String>,
    /// A gateway that is down, to be started again after the recovery.
    pub(super) down: Option<usize>,
    /// Nodes of this fault alone, which have to come home too.
    pub(super) more: Vec<Node>,
}

impl Stage {
    /// Builds it; what `faults` need of mounts and addresses is made where it is needed.
    pub(super) async fn set(
        plan: &ChaosPlan,
        gateway: GatewayArguments,
        faults: &[Fault],
    ) -> anyhow::Result<Self> {
        host::allow_files(plan.load.sessions as u64 + network::HALF_OPEN as u64 + 300)?;
        let disk = match faults.contains(&Fault::DiskFull) {
            true => Some(SmallDisk::mount(DISK_MEBIBYTES)?),
            false => None,
        };
        let mut settings = vec![("max_connections".to_owned(), MAX_CONNECTIONS.to_string())];
        if disk.is_some() {
            settings.push(("max_wal_size".to_owned(), "256MB".to_owned()));
        }
        let world = Box::pin(World::build(WorldPlan {
            gateways: GATEWAYS,
            opens_per_second: Some(2000),
            lease_ttl: Some(plan.lease_ttl),
            cluster_dir: disk.as_ref().map(|disk| disk.path().join("postgres")),
            cluster_settings: settings,
            ..WorldPlan::new(plan.load.sessions, plan.load.heartbeat, gateway)
        }))
        .await?;
        let mut from = None;
        if faults.contains(&Fault::BlackHole) {
            network::appear(HOLE)?;
            from = Some((plan.load.sessions / 10, IpAddr::V4(HOLE)));
        }
        let tracker = Arc::new(Tracker::default());
        let fleet_plan = FleetPlan { per_second: plan.load.connect_rate, from, ..Self::nodes_like(&world) };
        let fleet = Box::pin(Fleet::open(fleet_plan, world.pki(), Arc::clone(&tracker))).await?;
        let nodes = world.node_ids().to_vec();
        let holes = nodes.iter().take(from.map_or(0, |(count, _)| count)).cloned().collect();
        let (lease_ttl, load) = (plan.lease_ttl, plan.load.clone());
        let recover_within = plan.recover_within;
        Ok(Self { fleet, tracker, world, disk, nodes, holes, lease_ttl, load, recover_within })
    }

    /// The nodes of a chaos run: they take their time, and dial again soon.
    pub(super) fn nodes_like(world: &World) -> FleetPlan {
        FleetPlan {
            behaviour: Behaviour { execution: Execution::After(EXECUTION), ..Behaviour::default() },
            redial: REDIAL,
            ..FleetPlan::of(world, 400.0)
        }
    }

    /// One fault, from full load to the judgement.
    pub(super) async fn suffer(&mut self, fault: Fault, dice: &mut Dice) -> anyhow::Result<ChaosRow> {
        say(&format!("── {} ──", fault.name()));
        self.spread().await?;
        let enqueuer = self.load().await?;
        let (per_second, unacked) = self.await_full_load().await?;
        say(&format!("  {per_second} commands/s, {unacked} unacked"));
        let drops = self.fleet.counts().drops();
        let begun = Instant::now();
        let struck = Box::pin(self.strike(fault, dice)).await?;
        let lasted = begun.elapsed();
        let ended = Instant::now();
        let recovery = self.recover(&struck, ended).await;
        let sessions_lost = self.fleet.counts().drops() - drops;
        if let Some(down) = struck.down {
            self.member(down)?.start_again().await?;
        }
        enqueuer.stop();
        enqueuer.finished().await?;
        drop(enqueuer);
        let open = self.drain().await;
        for node in struck.more {
            node.goodbye().await;
        }
        let mut violations = struck.violations;
        violations.extend(recovery.as_ref().err().cloned());
        if open > 0 {
            violations.push(format!("{open} commands are not done {} s later", DRAIN_WITHIN.as_secs()));
        }
        violations.extend(self.world.verify().await?);
        Ok(ChaosRow {
            fault: fault.name(),
            detail: struck.detail,
            commands_per_second: per_second,
            unacked: unacked as u64,
            lasted_ms: lasted.as_secs_f64() * 1000.0,
            recovery_ms: recovery.ok().map(|took| took.as_secs_f64() * 1000.0),
            sessions_lost,
            commands_lost: open,
            violations,
        })
    }

    // A gateway that was just started has no node, and its death would hurt nobody: some nodes dial anew, and
    // the balancer sends them where there are few.
    async fn spread(&mut self) -> anyhow::Result<()> {
        let least = self.nodes.len() / (4 * GATEWAYS);
        let ids: Vec<String> = self.world.members()?.iter().map(|member| member.id().to_owned()).collect();
        let (url, mut turn) = (self.world.database_url(), 0);
        until(self.recover_within, "every gateway has its share of the nodes", async || {
            let counts = self.fleet.counts();
            let Some(by_gateway) = rows::sessions_by_gateway(url).await else { return Ok(None) };
            if counts.live(&self.nodes) < self.nodes.len() {
                return Ok(None);
            }
            let poor = ids.iter().any(|id| by_gateway.get(id).is_none_or(|count| *count < least));
            if poor {
                let cut = self.fleet.cut_some(turn % 2, 2);
                say(&format!("  {} nodes dial anew, to be spread over all gateways", cut.len()));
                turn += 1;
                // They have no session until they are back, which the next look waits for.
                tokio::time::timeout(Duration::from_secs(1), self.await_cut(&cut)).await.ok();
            }
            Ok((!poor).then_some(()))
        })
        .await
    }

    async fn await_cut(&self, nodes: &[String]) {
        while self.fleet.counts().live(nodes) == nodes.len() {
            tokio::task::yield_now().await;
        }
    }

    pub(super) async fn load(&self) -> anyhow::Result<Enqueuer> {
        let plan = EnqueuePlan {
            database_url: self.world.database_url().to_owned(),
            node_ids: self.nodes.clone().into(),
            per_second: self.load.commands_per_second,
            duration: None,
            kind: "chaos".to_owned(),
            payload_bytes: 128,
            rides_out: true,
        };
        Enqueuer::start(plan, Arc::clone(&self.tracker)).await
    }

    // What ended in the last second, and what is enqueued and not acked.
    async fn await_full_load(&self) -> anyhow::Result<(u64, usize)> {
        const LOOKS_A_SECOND: usize = 10;
        let mut seen = std::collections::VecDeque::new();
        let started = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_secs(1) / LOOKS_A_SECOND as u32).await;
            let completed = self.tracker.completed();
            seen.push_back((Instant::now(), completed));
            if seen.len() > LOOKS_A_SECOND + 1 {
                seen.pop_front();
            }
            let per_second = match seen.front() {
                Some((at, then)) if seen.len() > LOOKS_A_SECOND => {
                    ((completed - then) as f64 / at.elapsed().as_secs_f64()) as u64
                }
                _ => 0,
            };
            let unacked = self.tracker.open();
            if per_second >= LEAST_PER_SECOND && unacked >= LEAST_UNACKED {
                return Ok((per_second, unacked));
            }
            anyhow::ensure!(
                started.elapsed() < FULL_LOAD_WITHIN,
                "no full load: {per_second} commands/s end and {unacked} are unacked; a fault needs \
                 {LEAST_PER_SECOND} and {LEAST_UNACKED}"
            );
        }
    }

    async fn strike(&mut self, fault: Fault, dice: &mut Dice) -> anyhow::Result<Struck> {
        match fault {
            Fault::Kill => self.kill(dice).await,
            Fault::Zombie => zombie::strike(self, dice).await,
            Fault::DatabaseKilled => database::killed(self, dice).await,
            Fault::DatabaseFrozen => database::frozen(self, dice).await,
            Fault::ConnectionsCut => database::connections_cut(self).await,
            Fault::DiskFull => database::disk_full(self, dice).await,
            Fault::ConnectionLimit => database::connection_limit(self, dice).await,
            Fault::BlackHole => network::black_hole(self, dice).await,
            Fault::HalfOpen => network::half_open(self, dice).await,
        }
    }

    async fn kill(&mut self, dice: &mut Dice) -> anyhow::Result<Struck> {
        let down = dice.pick(GATEWAYS);
        let member = self.member(down)?;
        let id = member.id().to_owned();
        member.kill()?;
        Ok(Struck { detail: format!("{id}; from the kill"), down: Some(down), ..Struck::default() })
    }

    /// The gateway of that number.
    pub(super) fn member(&mut self, index: usize) -> anyhow::Result<&mut crate::world::Member> {
        self.world.members()?.get_mut(index).ok_or_else(|| anyhow::anyhow!("there is no gateway {index}"))
    }

    // Every node has the session that the rows name, and every command enqueued before is done.
    async fn recover(&self, struck: &Struck, ended: Instant) -> Result<Duration, String> {
        let open = self.tracker.open_ids();
        let more = struck.more.iter().map(|node| node.name().to_owned());
        let nodes: Vec<String> = self.nodes.iter().cloned().chain(more).collect();
        let counts = self.fleet.counts();
        let mut missing = String::new();
        let whole = until(self.recover_within, "recovery", async || {
            let (live, undone) = (counts.live(&nodes), self.tracker.still_open(&open));
            missing =
                format!("{live} of {} nodes have a session, {undone} commands are not done", nodes.len());
            if live < nodes.len() || undone > 0 {
                return Ok(None);
            }
            let Some(rows) = rows::sessions(self.world.database_url()).await else { return Ok(None) };
            let by_nodes = counts.epochs(&nodes);
            let same = by_nodes.iter().filter(|(node, epoch)| rows.get(*node) == Some(epoch)).count();
            missing = format!("the rows name the sessions of {same} of {} nodes", nodes.len());
            Ok((same == nodes.len()).then(|| ended.elapsed()))
        });
        let outcome = whole.await;
        outcome.map_err(|_| format!("no recovery within {} s: {missing}", self.recover_within.as_secs()))
    }

    /// Gives what is still open by the rows when the time is over.
    pub(super) async fn drain(&self) -> u64 {
        let url = self.world.database_url();
        let drained = until(DRAIN_WITHIN, "the end of all commands", async || {
            let open = rows::open_commands(url).await;
            Ok((open == Some(0) && self.tracker.open() == 0).then_some(()))
        });
        if drained.await.is_ok() {
            if let Ok(mut connection) = self.world.connect().await {
                // The rows say what became of enqueues that had no answer.
                let _ = self.tracker.resolve_doubts(&mut connection).await;
            }
            return 0;
        }
        let open = rows::open_commands(url).await.unwrap_or_default();
        u64::try_from(open).unwrap_or_default().max(self.tracker.open() as u64)
    }

    /// Says Goodbye with every node; gives what judges the whole.
    pub(super) async fn close(self) -> anyhow::Result<(World, Arc<Tracker>, Arc<FleetCounts>)> {
        let Self { fleet, tracker, mut world, disk, .. } = self;
        let counts = Arc::clone(fleet.counts());
        fleet.close().await?;
        tracker.resolve_doubts(&mut world.connect().await?).await?;
        // The disk goes after the server that has its data there.
        world.keep_until_the_end(disk);
        Ok((world, tracker, counts))
    }
}

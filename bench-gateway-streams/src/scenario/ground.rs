//! What scenarios share that bring their own load: a fleet that stands, what was read before, and the judgement
//! at the end.
//!
//! 1. Memory is measured with no session, and after all sessions have settled.
//! 2. The run ends with the nodes' logs held against the database, and with `gateway verify`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use gateway_testbed::clock::monotonic_ns;
use gateway_testbed::node::Behaviour;
use gateway_testbed::process::Usage;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::verdict::{commands, drain, judgement, ledger, ledger_of_own, verdict};
use crate::arguments::LoadPlan;
use crate::fleet::{Fleet, FleetPlan, usage_of};
use crate::flood::ENQUEUE;
use crate::gate::GateBounds;
use crate::host;
use crate::latency::Percentiles;
use crate::report::{FanoutRound, GatewayShare, LoadShare, Report};
use crate::sampler::{Sampler, WindowPlan, cpu_percent};
use crate::statistics::{self, Baseline};
use crate::tracker::Tracker;
use crate::world::World;

/// After the last node is there, before anything is measured.
const SETTLE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(2);
const REACHED_WITHIN: Duration = Duration::from_secs(60);

/// A fleet that stands, with nothing to do.
pub(super) struct Ground {
    pub(super) world: World,
    pub(super) fleet: Fleet,
    pub(super) tracker: Arc<Tracker>,
    pub(super) connection: PgConnection,
    baseline: Baseline,
    idle: Option<Usage>,
    settled: Option<Usage>,
    load_before: Usage,
    started: Instant,
    // For the lateness of the nodes' runtime, and memory over time.
    sampler: Option<Sampler>,
}

impl Ground {
    /// Opens the fleet of the world.
    pub(super) async fn stand(
        world: World,
        connect_rate: f64,
        behaviour: Behaviour,
        sampled: bool,
    ) -> anyhow::Result<Self> {
        let all = world.node_names().len();
        Self::stand_some(world, all, connect_rate, behaviour, sampled).await
    }

    /// The same with the first `count` of its nodes.
    pub(super) async fn stand_some(
        world: World,
        count: usize,
        connect_rate: f64,
        behaviour: Behaviour,
        sampled: bool,
    ) -> anyhow::Result<Self> {
        statistics::say_settings(&mut world.connect().await?).await?;
        let idle = world.gateway_usage()?;
        let tracker = Arc::new(Tracker::default());
        let mut plan = FleetPlan { behaviour, ..FleetPlan::of(&world, connect_rate) };
        plan.names.truncate(count);
        let fleet = Box::pin(Fleet::open(plan, world.pki(), Arc::clone(&tracker))).await?;
        tokio::time::sleep(SETTLE).await;
        let settled = world.gateway_usage()?;
        let mut connection = world.connect().await?;
        let baseline = statistics::begin(&mut connection).await?;
        let load_before = usage_of(&fleet.pids());
        let sampler = sampled.then(|| {
            let (counts, tracker) = (Arc::clone(fleet.counts()), Arc::clone(&tracker));
            Sampler::start(world.gateway_pid(), fleet.pids(), counts, tracker, WindowPlan::default())
        });
        let started = Instant::now();
        Ok(Self { world, fleet, tracker, connection, baseline, idle, settled, load_before, started, sampler })
    }

    /// One command to each of `nodes` at once; waits until every result is stored.
    pub(super) async fn reach_all(&mut self, nodes: &[String], payload: &[u8]) -> anyhow::Result<Reached> {
        let ids: Vec<Uuid> = nodes.iter().map(|_| Uuid::now_v7()).collect();
        let (received, cpu) = (self.tracker.received_so_far(), self.world.gateway_usage()?);
        drop(self.tracker.take_recent());
        let began = Instant::now();
        let mut transaction = self.connection.begin().await?;
        sqlx::query(ENQUEUE).bind(nodes).bind(payload).bind(&ids).execute(&mut *transaction).await?;
        let enqueue = began.elapsed();
        // From before the COMMIT: the wait for the disk counts, and no node can be faster than that.
        let due = monotonic_ns();
        self.tracker.sending_many(&ids, due, due);
        self.tracker.committed_many(&ids, due);
        let committing = Instant::now();
        transaction.commit().await?;
        let all = received + ids.len() as u64;
        while (self.tracker.received_so_far() < all || self.tracker.under_way() > 0)
            && committing.elapsed() < REACHED_WITHIN
        {
            tokio::time::sleep(LOOK).await;
        }
        let done = committing.elapsed();
        let missing = all.saturating_sub(self.tracker.received_so_far());
        let latencies = self.tracker.take_recent();
        let reached_ms = latencies.percentiles().context("a fan-out reached no node")?;
        let used =
            self.world.gateway_usage()?.zip(cpu).map(|(now, before)| now.cpu.saturating_sub(before.cpu));
        let milliseconds = |time: Duration| time.as_secs_f64() * 1000.0;
        let round = FanoutRound {
            enqueue_ms: milliseconds(enqueue),
            reached_ms,
            done_ms: milliseconds(done),
            gateway_cpu_ms: used.map(milliseconds),
        };
        Ok(Reached { round, latencies, missing })
    }

    /// Ends the load, closes everything and judges.
    pub(super) async fn conclude(
        self,
        plan: &LoadPlan,
        gate: &GateBounds,
        mut report: Report,
        judged: Judged,
    ) -> anyhow::Result<bool> {
        let Self {
            world,
            fleet,
            tracker,
            mut connection,
            baseline,
            idle,
            settled,
            load_before,
            started,
            sampler,
        } = self;
        drain(&tracker).await;
        let elapsed = started.elapsed();
        let (mine, last) = (usage_of(&fleet.pids()), world.gateway_usage()?);
        let mut nodes_lag = fleet.counts().lag();
        if let Some(sampler) = sampler {
            let samples = sampler.stop().await?;
            nodes_lag.add(&samples.loop_lag);
            report.series = samples.series;
        }
        let nodes_lag = nodes_lag.percentiles().map_or(0.0, |ms: Percentiles| ms.p99);
        report.commit = host::commit();
        report.machine = host::Machine::this();
        report.sessions = plan.sessions;
        report.duration_s = elapsed.as_secs_f64();
        report.heartbeat_s = plan.heartbeat.as_secs_f64();
        report.drops = fleet.counts().drops();
        report.heartbeats_acked = fleet.counts().heartbeats_acked();
        report.session_ends = fleet.counts().ends();
        let a_session = idle.zip(settled).map(|(idle, settled)| {
            settled.rss_bytes.saturating_sub(idle.rss_bytes) as f64 / plan.sessions as f64
        });
        report.gateway = GatewayShare {
            rss_bytes_idle: idle.map(|usage| usage.rss_bytes),
            rss_bytes_max: last.map(|usage| usage.rss_peak_bytes),
            rss_per_session_bytes: a_session,
            threads: last.map(|usage| usage.threads),
            ..report.gateway
        };
        report.load = Some(LoadShare {
            cpu_percent: cpu_percent(load_before, mine, elapsed),
            lag_ms_p99: nodes_lag,
            enqueuer_lag_ms_p99: 0.0,
            nodes_lag_ms_p99: nodes_lag,
            rss_bytes: mine.rss_bytes,
        });
        let committed = tracker.figures().committed;
        report.database =
            statistics::end(&mut connection, baseline, elapsed.as_secs_f64(), committed).await?;
        fleet.close().await?;
        let (ledger, broken) = match judged {
            Judged::All => (ledger(&world, &tracker).await?, judgement(&world).await?),
            Judged::OwnCommands => (ledger_of_own(&world, &tracker).await?, Vec::new()),
        };
        let unclean = world.close().await?;
        report.commands = commands(&tracker, &ledger);
        let violations: Vec<String> = ledger.violations.into_iter().chain(broken).chain(unclean).collect();
        verdict(report, violations, gate, plan.report.as_deref())
    }
}

/// What the rows are held against in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judged {
    /// The whole database, by the nodes' logs and by `gateway verify`.
    All,
    /// The run's own commands, by the nodes' logs: others are there that nobody executed.
    OwnCommands,
}

/// What a fan-out gave.
pub(super) struct Reached {
    pub(super) round: FanoutRound,
    pub(super) latencies: crate::latency::Latencies,
    /// Nodes that did not have it in time.
    pub(super) missing: u64,
}

//! What scenarios with a fault share: a fleet under load, the wait until its nodes are back, and the
//! judgement at the end.
//!
//! 1. The load goes on through the fault, and some seconds beyond the return of the last node.
//! 2. The run ends with the nodes' logs held against the database, and with `gateway verify`.
//! 3. A return that does not come in time is no figure: its gate is missed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gateway_testbed::clock::monotonic_ns;
use gateway_testbed::process::Usage;
use sqlx::PgConnection;

use super::verdict::{commands, drain, judgement, ledger, verdict};
use crate::arguments::LoadPlan;
use crate::enqueuer::{EnqueuePlan, Enqueuer};
use crate::fleet::{Fleet, FleetPlan, usage_of};
use crate::flood::PAYLOAD_BYTES;
use crate::gate::GateBounds;
use crate::host;
use crate::progress::Step;
use crate::report::{GatewayShare, LoadShare, Report};
use crate::sampler::{Sampler, WindowPlan, cpu_percent};
use crate::statistics::{self, Baseline};
use crate::tracker::Tracker;
use crate::world::World;

// The nodes tell themselves when they came back, so that how often one looks changes no figure; a look goes through all.
const TICK: Duration = Duration::from_millis(250);

/// A fleet that is at work.
pub(super) struct AtWork {
    pub(super) fleet: Fleet,
    tracker: Arc<Tracker>,
    enqueuer: Enqueuer,
    sampler: Sampler,
    connection: PgConnection,
    baseline: Baseline,
    idle: Option<Usage>,
    before: (Usage, Instant),
}

impl AtWork {
    /// Opens the fleet, and gives it commands for `plan.duration` before the fault.
    pub(super) async fn begin(plan: &LoadPlan, world: &World) -> anyhow::Result<Self> {
        statistics::say_settings(&mut world.connect().await?).await?;
        let idle = world.gateway_usage()?;
        let tracker = Arc::new(Tracker::default());
        let nodes = FleetPlan::of(world, plan.connect_rate);
        let fleet = Box::pin(Fleet::open(nodes, world.pki(), Arc::clone(&tracker))).await?;
        let mut connection = world.connect().await?;
        let baseline = statistics::begin(&mut connection).await?;
        let enqueue = EnqueuePlan {
            database_url: world.database_url().to_owned(),
            node_ids: world.node_ids(),
            per_second: plan.commands_per_second,
            duration: None,
            kind: "bench".to_owned(),
            payload_bytes: PAYLOAD_BYTES,
            rides_out: false,
        };
        let enqueuer = Enqueuer::start(enqueue, Arc::clone(&tracker)).await?;
        let sampler = Sampler::start(
            world.gateway_pid(),
            fleet.pids(),
            Arc::clone(fleet.counts()),
            Arc::clone(&tracker),
            WindowPlan::default(),
        );
        let before = (usage_of(&fleet.pids()), Instant::now());
        let work = Self { fleet, tracker, enqueuer, sampler, connection, baseline, idle, before };
        work.carry_on(plan).await?;
        Ok(work)
    }

    async fn carry_on(&self, plan: &LoadPlan) -> anyhow::Result<()> {
        tokio::select! {
            ended = self.enqueuer.finished() => ended,
            () = tokio::time::sleep(plan.duration) => Ok(()),
        }
    }

    /// Waits until all of `nodes` have a session that began after the fault. Gives how long each took, in
    /// order; those that did not come within `within` are missing.
    pub(super) async fn await_return(&self, nodes: &[String], fault_ns: u64, within: Duration) -> Vec<u64> {
        let mut step = Step::new("waiting for the nodes", nodes.len() as u64);
        let started = Instant::now();
        let back = loop {
            let back = self.fleet.counts().back_since(nodes, fault_ns);
            if back.len() == nodes.len() || started.elapsed() > within {
                break back;
            }
            step.at(back.len() as u64, "");
            tokio::time::sleep(TICK).await;
        };
        step.done(&format!("{} of {} are back", back.len(), nodes.len()));
        let mut back = back;
        back.sort_unstable();
        back
    }

    /// Goes on for `plan.duration`, ends the load, closes everything and judges.
    pub(super) async fn conclude(
        self,
        plan: &LoadPlan,
        gate: &GateBounds,
        world: World,
        mut report: Report,
    ) -> anyhow::Result<bool> {
        self.carry_on(plan).await?;
        let Self { fleet, tracker, enqueuer, sampler, mut connection, baseline, idle, before } = self;
        enqueuer.stop();
        enqueuer.finished().await?;
        drain(&tracker).await;
        let elapsed = before.1.elapsed();
        let (mine, last) = (usage_of(&fleet.pids()), world.gateway_usage()?);
        let samples = sampler.stop().await?;
        let figures = tracker.figures();
        let lag = |latencies: &crate::latency::Latencies| latencies.percentiles().map_or(0.0, |ms| ms.p99);
        let (enqueuer_lag, nodes_lag) =
            (lag(&figures.lag), lag(&samples.loop_lag).max(lag(&fleet.counts().lag())));
        report.commit = host::commit();
        report.machine = host::Machine::this();
        report.sessions = plan.sessions;
        report.duration_s = elapsed.as_secs_f64();
        report.dispatch_ms = figures.dispatch.percentiles();
        report.completion_ms = figures.completion.percentiles();
        report.drops = fleet.counts().drops();
        report.gateway = GatewayShare {
            rss_bytes_idle: idle.map(|usage| usage.rss_bytes),
            rss_bytes_max: last.map(|usage| usage.rss_peak_bytes),
            ..GatewayShare::default()
        };
        report.load = Some(LoadShare {
            cpu_percent: cpu_percent(before.0, mine, elapsed),
            lag_ms_p99: enqueuer_lag.max(nodes_lag),
            enqueuer_lag_ms_p99: enqueuer_lag,
            nodes_lag_ms_p99: nodes_lag,
            rss_bytes: mine.rss_bytes,
        });
        report.commands_per_second = plan.commands_per_second;
        report.heartbeat_s = plan.heartbeat.as_secs_f64();
        report.heartbeats_acked = fleet.counts().heartbeats_acked();
        report.session_ends = fleet.counts().ends();
        report.series = samples.series;
        report.curves.insert("dispatch", figures.dispatch.curve());
        report.curves.insert("completion", figures.completion.curve());
        report.database =
            statistics::end(&mut connection, baseline, elapsed.as_secs_f64(), figures.committed).await?;
        drop(enqueuer);
        fleet.close().await?;
        judge(report, plan, gate, &tracker, world).await
    }
}

/// The time on the nodes' clock: what comes after it is after the fault.
pub(super) fn fault_begins() -> u64 {
    monotonic_ns()
}

async fn judge(
    mut report: Report,
    plan: &LoadPlan,
    gate: &GateBounds,
    tracker: &Tracker,
    world: World,
) -> anyhow::Result<bool> {
    let ledger = ledger(&world, tracker).await?;
    let broken = judgement(&world).await?;
    let unclean = world.close().await?;
    report.commands = commands(tracker, &ledger);
    let violations: Vec<String> = ledger.violations.into_iter().chain(broken).chain(unclean).collect();
    verdict(report, violations, gate, plan.report.as_deref())
}

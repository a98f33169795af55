//! `steady`: N sessions with heartbeats, R commands a second through PostgreSQL (none: the sessions
//! idle, and what they cost is the figure), for a time T.
//!
//! 1. Memory is measured with no session, and after all sessions have settled.
//! 2. The floor is measured in the same run, on the same cluster, while the sessions idle.
//! 3. The run ends with the nodes' logs held against the database.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gateway_testbed::process::Usage;

use super::bloat::Pin;
use super::verdict::{commands, drain, judgement, ledger, verdict};
use crate::arguments::{GatewayArguments, SteadyArguments, SteadyPlan};
use crate::enqueuer::{EnqueuePlan, Enqueuer};
use crate::fleet::{Fleet, FleetPlan, usage_of};
use crate::floor::{self, FloorPlan};
use crate::host;
use crate::latency::Percentiles;
use crate::progress::{Step, say};
use crate::report::{GatewayShare, LoadShare, Report, ScrapeShare};
use crate::sampler::{Sampler, Samples, cpu_percent};
use crate::scraper::Scraper;
use crate::statistics::{self, DatabaseShare};
use crate::tracker::Tracker;
use crate::world::{World, WorldPlan};

const TICK: Duration = Duration::from_millis(200);

/// What the measured phase gave.
struct Measured {
    samples: Samples,
    database: DatabaseShare,
    seconds: f64,
    gateway_cpu_percent: Option<f64>,
    scrape: Option<ScrapeShare>,
    load_cpu_percent: f64,
}

/// Runs it; true if its gate held.
pub(crate) async fn run(arguments: Box<SteadyArguments>) -> anyhow::Result<bool> {
    let plan = arguments.plan()?;
    Box::pin(perform("steady", &plan, &arguments.gateway)).await
}

/// What `steady` and `bloat` do.
pub(super) async fn perform(
    scenario: &'static str,
    plan: &SteadyPlan,
    gateway: &GatewayArguments,
) -> anyhow::Result<bool> {
    let world = WorldPlan::new(plan.sessions, plan.heartbeat, gateway.clone());
    let mut world = Box::pin(World::build(world)).await?;
    statistics::say_settings(&mut world.connect().await?).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let idle = world.gateway_usage()?;
    let tracker = Arc::new(Tracker::default());
    let nodes = FleetPlan { transport: plan.transport, ..FleetPlan::of(&world, plan.connect_rate) };
    let fleet = Box::pin(Fleet::open(nodes, world.pki(), Arc::clone(&tracker))).await?;
    wait("settling", plan.settle).await;
    let settled = world.gateway_usage()?;
    let floor = match plan.with_floor {
        true => Some(measure_floor(plan, &world).await?),
        false => None,
    };
    let pin = match plan.pins_the_horizon {
        true => Some(Pin::set(&world).await?),
        false => None,
    };
    let measured = Box::pin(measure(plan, &mut world, &fleet, &tracker)).await?;
    let last = world.gateway_usage()?;

    let mut report = figures(scenario, plan, &fleet, &tracker, &measured);
    report.floor_ms = floor;
    report.gateway = gateway_share(plan, idle, settled, last, &measured);
    if let Some(pin) = pin {
        report.bloat = Some(pin.lift(&world).await?);
    }
    fleet.close().await?;
    let ledger = ledger(&world, &tracker).await?;
    report.commands = commands(&tracker, &ledger);
    let broken = judgement(&world).await?;
    let violations = ledger.violations.into_iter().chain(broken).chain(world.close().await?).collect();
    verdict(report, violations, &plan.gate, plan.report.as_deref())
}

async fn wait(name: &'static str, how_long: Duration) {
    let (started, mut step) = (Instant::now(), Step::new(name, how_long.as_secs()));
    while started.elapsed() < how_long {
        tokio::time::sleep(TICK.min(how_long.saturating_sub(started.elapsed()))).await;
        step.at(started.elapsed().as_secs(), "s");
    }
    step.done(&format!("{} s", how_long.as_secs()));
}

async fn measure_floor(plan: &SteadyPlan, world: &World) -> anyhow::Result<Percentiles> {
    say("measuring the bare floor: INSERT + NOTIFY -> LISTEN + claim, three rounds …");
    let round = (plan.duration / 12).clamp(Duration::from_secs(2), Duration::from_secs(10));
    let plan = FloorPlan {
        database_url: world.database_url().to_owned(),
        per_second: plan.commands_per_second.min(200.0),
        round,
        payload_bytes: plan.payload_bytes,
    };
    floor::measure(plan).await
}

async fn measure(
    plan: &SteadyPlan,
    world: &mut World,
    fleet: &Fleet,
    tracker: &Arc<Tracker>,
) -> anyhow::Result<Measured> {
    let enqueue = EnqueuePlan {
        database_url: world.database_url().to_owned(),
        node_ids: world.node_ids(),
        per_second: plan.commands_per_second,
        duration: Some(plan.duration),
        kind: "bench".to_owned(),
        payload_bytes: plan.payload_bytes,
        rides_out: false,
    };
    let mut connection = world.connect().await?;
    let enqueuer = match plan.is_idle() {
        true => None,
        false => Some(Enqueuer::start(enqueue, Arc::clone(tracker)).await?),
    };
    fleet.counts().restart_heartbeats();
    let baseline = statistics::begin(&mut connection).await?;
    let sampler = Sampler::start(
        world.gateway_pid(),
        fleet.pids(),
        Arc::clone(fleet.counts()),
        Arc::clone(tracker),
        plan.windows,
    );
    let before = (world.gateway_usage()?, usage_of(&fleet.pids()), Instant::now());
    let scraper = plan.scrape.map(|every| Scraper::start(world, every, plan.duration)).transpose()?;
    watch(plan, world, fleet, tracker, enqueuer.as_ref()).await?;
    let scrape = match scraper {
        Some(scraper) => Some(scraper.stop().await?),
        None => None,
    };
    let elapsed = before.2.elapsed();
    let now = (world.gateway_usage()?, usage_of(&fleet.pids()));
    drain(tracker).await;
    let samples = sampler.stop().await?;
    let seconds = elapsed.as_secs_f64();
    let commands = tracker.figures().committed;
    let database = statistics::end(&mut connection, baseline, seconds, commands).await?;
    Ok(Measured {
        samples,
        database,
        seconds,
        scrape,
        gateway_cpu_percent: now.0.zip(before.0).map(|(now, before)| cpu_percent(before, now, elapsed)),
        load_cpu_percent: cpu_percent(before.1, now.1, elapsed),
    })
}

// Shows how it goes and, where asked for, stalls the gateway halfway.
async fn watch(
    plan: &SteadyPlan,
    world: &mut World,
    fleet: &Fleet,
    tracker: &Tracker,
    enqueuer: Option<&Enqueuer>,
) -> anyhow::Result<()> {
    let (started, mut step) = (Instant::now(), Step::new("measuring", plan.duration.as_secs()));
    let mut stall = plan.inject_stall;
    let mut finished = std::pin::pin!(async {
        match enqueuer {
            Some(enqueuer) => enqueuer.finished().await,
            None => {
                tokio::time::sleep(plan.duration).await;
                Ok(())
            }
        }
    });
    loop {
        tokio::select! {
            outcome = &mut finished => {
                outcome?;
                break;
            }
            () = tokio::time::sleep(TICK) => {}
        }
        if started.elapsed() > plan.duration / 2
            && let Some(how_long) = stall.take()
        {
            world.stall(how_long).await?;
        }
        let figures = tracker.figures();
        let p99 = figures.dispatch.percentiles().map_or(0.0, |ms| ms.p99);
        let more =
            format!("s  {} commands  p99 {p99:.2} ms  {} drops", figures.completed, fleet.counts().drops());
        step.at(started.elapsed().as_secs(), &more);
    }
    step.done(&format!("{} commands", tracker.figures().committed));
    Ok(())
}

fn figures(
    scenario: &'static str,
    plan: &SteadyPlan,
    fleet: &Fleet,
    tracker: &Tracker,
    measured: &Measured,
) -> Report {
    let figures = tracker.figures();
    let lag = |latencies: &crate::latency::Latencies| latencies.percentiles().map_or(0.0, |ms| ms.p99);
    let counts = fleet.counts();
    let nodes_lag = lag(&measured.samples.loop_lag).max(lag(&counts.lag()));
    let enqueuer_lag = lag(&figures.lag);
    Report {
        scenario,
        commit: host::commit(),
        machine: host::Machine::this(),
        sessions: plan.sessions,
        transport: Some(plan.transport),
        duration_s: measured.seconds,
        dispatch_ms: figures.dispatch.percentiles(),
        completion_ms: figures.completion.percentiles(),
        drops: counts.drops(),
        load: Some(LoadShare {
            cpu_percent: measured.load_cpu_percent,
            lag_ms_p99: enqueuer_lag.max(nodes_lag),
            enqueuer_lag_ms_p99: enqueuer_lag,
            nodes_lag_ms_p99: nodes_lag,
            rss_bytes: usage_of(&fleet.pids()).rss_bytes,
        }),
        commands_per_second: plan.commands_per_second,
        heartbeat_s: plan.heartbeat.as_secs_f64(),
        dispatch_from_intended_ms: figures.dispatch_from_intended.percentiles(),
        enqueue_ms: figures.enqueue.percentiles(),
        heartbeat_ms: counts.heartbeats().percentiles(),
        scrape: measured.scrape.clone(),
        injected_stall_ms: plan.inject_stall.map(|stall| stall.as_secs_f64() * 1000.0),
        heartbeats_acked: counts.heartbeats_acked(),
        session_ends: counts.ends(),
        database: measured.database.clone(),
        series: measured.samples.series.clone(),
        windows: measured.samples.windows.clone(),
        curves: [
            ("dispatch", figures.dispatch.curve()),
            ("completion", figures.completion.curve()),
            ("heartbeat", counts.heartbeats().curve()),
        ]
        .into(),
        ..Report::default()
    }
}

fn gateway_share(
    plan: &SteadyPlan,
    idle: Option<Usage>,
    settled: Option<Usage>,
    last: Option<Usage>,
    measured: &Measured,
) -> GatewayShare {
    let rss = |usage: Option<Usage>| usage.map(|usage| usage.rss_bytes);
    let sampled = measured.samples.series.iter().filter_map(|sample| sample.rss_bytes);
    let from = match plan.growth_from {
        None => rss(settled),
        Some(from) => measured
            .samples
            .series
            .iter()
            .find(|sample| sample.at_s >= from.as_secs_f64())
            .and_then(|sample| sample.rss_bytes),
    };
    let a_session = idle.zip(settled).map(|(idle, settled)| {
        settled.rss_bytes.saturating_sub(idle.rss_bytes) as f64 / plan.sessions as f64
    });
    GatewayShare {
        rss_bytes_idle: rss(idle),
        rss_bytes_max: sampled.clone().chain(rss(settled)).chain(rss(last)).max(),
        rss_per_session_bytes: a_session,
        rss_growth_ratio: from.zip(rss(last)).map(|(first, last)| last as f64 / first.max(1) as f64),
        cpu_percent: measured.gateway_cpu_percent,
        threads: last.map(|usage| usage.threads),
    }
}

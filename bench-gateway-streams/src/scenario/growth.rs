//! `growth`: what an operation costs as sessions, the rate, the backlog or the table grow.
//!
//! One gateway and one fleet for all points of an axis, from the least to the greatest.
//!
//! 1. Sessions: the gateway's CPU for a heartbeat. Rate and backlog: its CPU for a command. Table: buffers that
//!    PostgreSQL touches for a command.
//! 2. A point is measured for the plan's duration; the time that a fill or a connect takes is not in it.
//! 3. The table is filled with copies of a command that was executed; they are no commands of the run, so that
//!    axis ends without `gateway verify`, and the nodes' logs are held against the run's own commands.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use gateway_testbed::node::Behaviour;
use gateway_testbed::process::Usage;
use sqlx::PgConnection;

use super::ground::{Ground, Judged};
use super::verdict::drain;
use crate::arguments::{Axis, GrowthArguments, GrowthPlan, LoadPlan};
use crate::fleet::FleetPlan;
use crate::flood::{Flood, FloodPlan, PAYLOAD_BYTES, Pace};
use crate::latency::Latencies;
use crate::progress::{Step, say};
use crate::report::{GrowthPoint, GrowthShare, Report};
use crate::sampler::cpu_percent;
use crate::statistics::buffers;
use crate::world::{World, WorldPlan};

const TABLE_RATE: f64 = 50.0;
const PAYLOAD: &[u8] = &[b'x'; PAYLOAD_BYTES];
/// Sessions that were just opened are not at rest yet.
const REST: Duration = Duration::from_secs(2);
/// Less of what was asked for is saturation.
const REACHED: f64 = 0.9;
const FILL: &str = include_str!("../../sql/growth_fill.sql");
const ROWS_A_FILL: u64 = 200_000;

/// Runs it; true if its gate held.
pub(crate) async fn run(arguments: Box<GrowthArguments>) -> anyhow::Result<bool> {
    let plan = arguments.plan()?;
    let world = WorldPlan::new(plan.sessions, plan.heartbeat, arguments.gateway.clone());
    let world = Box::pin(World::build(world)).await?;
    let first = match plan.axis {
        Axis::Sessions => usize::try_from(plan.points.first().copied().unwrap_or(1))?,
        _ => plan.sessions,
    };
    let mut ground = Ground::stand_some(world, first, plan.connect_rate, Behaviour::default(), false).await?;
    let mut points = Vec::new();
    for &asked in &plan.points {
        let mut point = match plan.axis {
            Axis::Sessions => Box::pin(sessions(&plan, &mut ground, asked)).await?,
            Axis::Rate => Box::pin(rate(&plan, &mut ground, asked as f64)).await?,
            Axis::Backlog => Box::pin(backlog(&plan, &mut ground, usize::try_from(asked)?)).await?,
            Axis::Table => Box::pin(table(&plan, &mut ground, asked)).await?,
        };
        point.asked = asked;
        point.rss_bytes = ground.world.gateway_usage()?.map_or(0, |usage| usage.rss_bytes);
        say(&format!("{} {asked}: {:.2} {}", plan.axis.name(), point.y, measure(plan.axis)));
        points.push(point);
    }
    let growth = GrowthShare::of(plan.axis.name(), measure(plan.axis), points);
    let report = Report { scenario: "growth", growth: Some(growth), ..Report::default() };
    let load = LoadPlan {
        sessions: plan.sessions,
        heartbeat: plan.heartbeat,
        commands_per_second: 0.0,
        duration: plan.duration,
        connect_rate: plan.connect_rate,
        report: plan.report.clone(),
    };
    let judged = if plan.axis == Axis::Table { Judged::OwnCommands } else { Judged::All };
    Box::pin(ground.conclude(&load, &plan.gate, report, judged)).await
}

const fn measure(axis: Axis) -> &'static str {
    match axis {
        Axis::Sessions => "us of the gateway's CPU for a heartbeat",
        Axis::Rate | Axis::Backlog => "us of the gateway's CPU for a command",
        Axis::Table => "buffers for a command",
    }
}

/// What was counted when a point began.
struct Begun {
    at: Instant,
    cpu: Usage,
}

impl Begun {
    fn now(ground: &Ground) -> anyhow::Result<Self> {
        let cpu = ground.world.gateway_usage()?.context("the gateway's process is not known")?;
        Ok(Self { at: Instant::now(), cpu })
    }

    fn point(&self, ground: &Ground, operations: u64) -> anyhow::Result<GrowthPoint> {
        let (now, elapsed) = (Self::now(ground)?, self.at.elapsed());
        let used = now.cpu.cpu.saturating_sub(self.cpu.cpu).as_secs_f64();
        let cpu_us = 1e6 * used / operations.max(1) as f64;
        let cpu_percent = cpu_percent(self.cpu, now.cpu, elapsed);
        Ok(GrowthPoint { operations, cpu_us, y: cpu_us, cpu_percent, ..GrowthPoint::default() })
    }
}

async fn sessions(plan: &GrowthPlan, ground: &mut Ground, asked: u64) -> anyhow::Result<GrowthPoint> {
    let names = ground.world.node_names();
    let (standing, asked) = (ground.fleet.len(), usize::try_from(asked)?);
    let more = names.get(standing..asked.min(names.len())).unwrap_or_default().to_vec();
    if !more.is_empty() {
        let more = FleetPlan { names: more, ..FleetPlan::of(&ground.world, plan.connect_rate) };
        Box::pin(ground.fleet.add(more, ground.world.pki())).await?;
    }
    tokio::time::sleep(REST).await;
    ground.fleet.counts().restart_heartbeats();
    let begun = Begun::now(ground)?;
    tokio::time::sleep(plan.duration).await;
    let beats = ground.fleet.counts().heartbeats_acked();
    let heartbeats = ground.fleet.counts().heartbeats().percentiles();
    let point = begun.point(ground, beats)?;
    Ok(GrowthPoint {
        x: asked as f64,
        p50_ms: heartbeats.map(|ms| ms.p50),
        p99_ms: heartbeats.map(|ms| ms.p99),
        ..point
    })
}

async fn rate(plan: &GrowthPlan, ground: &mut Ground, per_second: f64) -> anyhow::Result<GrowthPoint> {
    // A transaction each 10 ms at the most, as single ones would measure the load.
    let batch = ((per_second / 100.0) as usize).clamp(1, 500);
    let flood = FloodPlan {
        database_url: ground.world.database_url().to_owned(),
        node_ids: ground.world.node_ids(),
        pace: Pace::PerSecond(per_second),
        batch,
        threads: 2,
    };
    let flood = Flood::start(flood, Arc::clone(&ground.tracker))?;
    tokio::time::sleep(REST).await;
    flood.check()?;
    drop(ground.tracker.take_recent());
    crate::statistics::restart_buffers(&mut ground.connection).await?;
    let (begun, before) = (Begun::now(ground)?, ground.tracker.completed());
    tokio::time::sleep(plan.duration).await;
    let (operations, elapsed) = (ground.tracker.completed() - before, begun.at.elapsed());
    let point = begun.point(ground, operations)?;
    let buffers = buffers(&mut ground.connection).await?;
    let latencies = ground.tracker.take_recent().percentiles();
    tokio::task::spawn_blocking(move || flood.stop()).await??;
    drain(&ground.tracker).await;
    let reached = operations as f64 / elapsed.as_secs_f64();
    // Few commands of a slow rate may fall to either side of the end.
    let is_saturated =
        reached < REACHED * per_second && operations as f64 + 2.0 < per_second * elapsed.as_secs_f64();
    Ok(GrowthPoint {
        x: reached,
        p50_ms: latencies.map(|ms| ms.p50),
        p99_ms: latencies.map(|ms| ms.p99),
        buffers: buffers.map(|buffers| buffers / operations.max(1) as f64),
        is_saturated,
        ..point
    })
}

async fn backlog(plan: &GrowthPlan, ground: &mut Ground, nodes: usize) -> anyhow::Result<GrowthPoint> {
    let nodes: Vec<String> = ground.world.node_ids().iter().take(nodes).cloned().collect();
    Box::pin(ground.reach_all(&nodes, PAYLOAD)).await?;
    crate::statistics::restart_buffers(&mut ground.connection).await?;
    let (begun, mut rounds, mut all) = (Begun::now(ground)?, 0, Latencies::new());
    while begun.at.elapsed() < plan.duration || rounds == 0 {
        let reached = Box::pin(ground.reach_all(&nodes, PAYLOAD)).await?;
        anyhow::ensure!(reached.missing == 0, "{} nodes did not have their command in time", reached.missing);
        all.add(&reached.latencies);
        rounds += 1;
    }
    let operations = rounds * nodes.len() as u64;
    let point = begun.point(ground, operations)?;
    let buffers = buffers(&mut ground.connection).await?;
    let latencies = all.percentiles();
    Ok(GrowthPoint {
        x: nodes.len() as f64,
        p50_ms: latencies.map(|ms| ms.p50),
        p99_ms: latencies.map(|ms| ms.p99),
        buffers: buffers.map(|buffers| buffers / operations.max(1) as f64),
        ..point
    })
}

async fn table(plan: &GrowthPlan, ground: &mut Ground, rows: u64) -> anyhow::Result<GrowthPoint> {
    if ground.tracker.completed() == 0 {
        // What is copied is a command that was executed.
        let nodes = ground.world.node_ids().to_vec();
        Box::pin(ground.reach_all(&nodes, PAYLOAD)).await?;
    }
    fill(&mut ground.connection, rows).await?;
    let point = Box::pin(rate(plan, ground, TABLE_RATE)).await?;
    let y = point.buffers.context("this axis needs pg_stat_statements, which the server has not")?;
    Ok(GrowthPoint { x: rows as f64, y, is_saturated: false, ..point })
}

/// Until there are so many finished commands.
async fn fill(connection: &mut PgConnection, rows: u64) -> anyhow::Result<()> {
    let finished = "SELECT count(*) FROM commands WHERE phase = 't'";
    let mut there = u64::try_from(sqlx::query_scalar::<_, i64>(finished).fetch_one(&mut *connection).await?)?;
    let mut step = Step::new("filling the table", rows);
    while there < rows {
        let more = i64::try_from((rows - there).min(ROWS_A_FILL))?;
        let added = sqlx::query(FILL).bind(more).execute(&mut *connection).await?.rows_affected();
        anyhow::ensure!(added > 0, "no finished command is there to be copied");
        there += added;
        step.at(there, "rows");
    }
    // As autovacuum would, sooner or later.
    sqlx::raw_sql("VACUUM (ANALYZE) commands").execute(&mut *connection).await?;
    step.done(&format!("{there} finished commands"));
    Ok(())
}

//! `throughput`: as many commands, events and sections as go through, one after the other, beside the writer
//! alone and the ceiling of bare SQL.
//!
//! 1. A command counts when a node saw its result acked; an event and a section, when it saw them acked.
//! 2. The load is a closed loop: it is as fast as the whole is. Each part warms up before it counts.
//! 3. How the writer batched is what its own metrics say.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gateway_testbed::node::Behaviour;

use super::ground::{Ground, Judged};
use crate::arguments::{Part, ThroughputArguments, ThroughputPlan};
use crate::bare;
use crate::fleet::Order;
use crate::flood::{Flood, FloodPlan, PAYLOAD_BYTES, Pace};
use crate::progress::say;
use crate::report::{BatchSize, Report, ThroughputShare};
use crate::sampler::cpu_percent;
use crate::world::{Metrics, World, WorldPlan};
use crate::writer_alone::{self, AlonePlan};

const TICK: Duration = Duration::from_millis(2);
const LAST_WITHIN: Duration = Duration::from_secs(30);
const EVENT_BYTES: usize = 64;
/// The yardstick's, as the writer's own batches are at the most.
const BARE_BATCH: usize = 500;
const BARE_ROUNDS: usize = 3;
const EACH: usize = 12;

/// Runs it; true if its gate held.
pub(crate) async fn run(arguments: Box<ThroughputArguments>) -> anyhow::Result<bool> {
    let plan = arguments.plan()?;
    let load = &plan.load;
    let world = WorldPlan::new(load.sessions, load.heartbeat, arguments.gateway.clone());
    let mut world = Box::pin(World::build(world)).await?;
    let mut share = ThroughputShare::default();
    if plan.has(Part::Writer) && world.is_own() {
        // Its own database on the same server, before any session stands.
        let url = world.cluster()?.create_database("writer_alone").await?;
        let alone =
            AlonePlan { nodes: plan.writer_nodes, batch: BARE_BATCH, rounds: BARE_ROUNDS, each: EACH };
        share.take(Box::pin(writer_alone::measure(&url, &alone)).await?);
    }
    let mut ground = Ground::stand(world, load.connect_rate, Behaviour::default(), true).await?;
    let mut report = Report { scenario: "throughput", ..Report::default() };
    if plan.has(Part::Commands) {
        share.commands_per_s = Some(Box::pin(commands(&plan, &mut ground, &mut share)).await?);
        let figures = ground.tracker.figures();
        report.dispatch_ms = figures.dispatch.percentiles();
        report.completion_ms = figures.completion.percentiles();
        report.curves.insert("dispatch", figures.dispatch.curve());
        report.curves.insert("completion", figures.completion.curve());
    }
    if plan.has(Part::Commands) && ground.world.is_own() {
        share.bare_statements = Some(bare::measure_statements(&ground.world, PAYLOAD_BYTES).await?);
    }
    if plan.has(Part::Events) {
        share.events_per_s = Some(Box::pin(events(&plan, &mut ground, &mut share)).await?);
    }
    if plan.has(Part::Sections) {
        share.sections_per_s = Some(Box::pin(sections(&plan, &mut ground, &mut share)).await?);
    }
    report.throughput = Some(share);
    Box::pin(ground.conclude(load, &plan.gate, report, Judged::All)).await
}

/// A part that is being measured: what there was when it began to count.
struct Meter {
    part: &'static str,
    before: u64,
    metrics: Metrics,
    cpu: Option<gateway_testbed::process::Usage>,
    began: Instant,
}

impl Meter {
    async fn begin(part: &'static str, ground: &Ground, count: u64) -> anyhow::Result<Self> {
        let (metrics, cpu) = (ground.world.metrics().await?, ground.world.gateway_usage()?);
        Ok(Self { part, before: count, metrics, cpu, began: Instant::now() })
    }

    /// Ends it; gives the rate.
    async fn end(self, ground: &Ground, count: u64, share: &mut ThroughputShare) -> anyhow::Result<f64> {
        let elapsed = self.began.elapsed();
        let rate = (count - self.before) as f64 / elapsed.as_secs_f64();
        if let Some((now, before)) = ground.world.gateway_usage()?.zip(self.cpu) {
            share.gateway_cpu_percent.insert(self.part, cpu_percent(before, now, elapsed));
        }
        let batches = batches(&self.metrics, &ground.world.metrics().await?, elapsed);
        share.batches.insert(self.part, batches);
        say(&format!("{}: {rate:.0}/s", self.part));
        Ok(rate)
    }
}

// Of the queues that committed, by what the gateway's metrics say.
fn batches(before: &Metrics, now: &Metrics, elapsed: Duration) -> BTreeMap<String, BatchSize> {
    let more = |name: &str| {
        let (before, now) = (before.by_label(name, "queue"), now.by_label(name, "queue"));
        move |queue: &str| now.get(queue).unwrap_or(&0.0) - before.get(queue).unwrap_or(&0.0)
    };
    let (jobs, entries) = (more("gateway_jobs_total"), more("gateway_job_entries_total"));
    let seconds = more("gateway_job_seconds_total");
    let queues = now.by_label("gateway_jobs_total", "queue").into_keys().filter_map(|queue| {
        let commits = jobs(&queue);
        let size = BatchSize {
            commits_per_s: commits / elapsed.as_secs_f64(),
            entries_per_commit: entries(&queue) / commits,
            ms_per_commit: 1000.0 * seconds(&queue) / commits,
        };
        // What beats now and then tells nothing of batches.
        (size.commits_per_s >= 5.0).then_some((queue, size))
    });
    queues.collect()
}

fn warm_up(plan: &ThroughputPlan) -> Duration {
    (plan.load.duration / 5).min(Duration::from_secs(3))
}

async fn commands(
    plan: &ThroughputPlan,
    ground: &mut Ground,
    share: &mut ThroughputShare,
) -> anyhow::Result<f64> {
    let (tracker, counted) = (Arc::clone(&ground.tracker), plan.load.duration);
    say(&format!("commands, {} under way, {} s …", plan.window, counted.as_secs_f64()));
    let flood = Flood::start(
        FloodPlan {
            database_url: ground.world.database_url().to_owned(),
            node_ids: ground.world.node_ids(),
            pace: Pace::Window(plan.window as u64),
            batch: plan.enqueue_batch.min(plan.window),
            threads: plan.enqueuers,
        },
        Arc::clone(&tracker),
    )?;
    tokio::time::sleep(warm_up(plan)).await;
    flood.check()?;
    let meter = Meter::begin("commands", ground, tracker.completed()).await?;
    tokio::time::sleep(counted).await;
    let rate = meter.end(ground, tracker.completed(), share).await?;
    // A thread may wait for its last batch.
    tokio::task::spawn_blocking(move || flood.stop()).await??;
    super::verdict::drain(&tracker).await;
    Ok(rate)
}

async fn events(
    plan: &ThroughputPlan,
    ground: &mut Ground,
    share: &mut ThroughputShare,
) -> anyhow::Result<f64> {
    say(&format!(
        "events, at most {} of a node ahead, {} s …",
        plan.events_ahead,
        plan.load.duration.as_secs_f64()
    ));
    let counts = Arc::clone(ground.fleet.counts());
    let nodes = ground.world.node_ids();
    let mut written = vec![0u64; nodes.len()];
    let ahead = plan.events_ahead as u64;
    let (begin, mut meter) = (Instant::now(), None);
    let rate = loop {
        let stored = counts.events_acked(&nodes);
        for (node, (written, stored)) in written.iter_mut().zip(&stored).enumerate() {
            let open = *written - (*stored).min(*written);
            if open <= ahead / 2 {
                let count = ahead - open;
                ground.fleet.order(Order::Emit { node, count: usize::try_from(count)?, bytes: EVENT_BYTES });
                *written += count;
            }
        }
        tokio::time::sleep(TICK).await;
        match meter.take() {
            None if begin.elapsed() >= warm_up(plan) => {
                meter = Some(Meter::begin("events", ground, counts.events_stored()).await?);
            }
            Some(counting) if counting.began.elapsed() >= plan.load.duration => {
                break counting.end(ground, counts.events_stored(), share).await?;
            }
            unchanged => meter = unchanged,
        }
    };
    let all: u64 = written.iter().sum();
    await_last("events", all, || counts.events_stored()).await?;
    Ok(rate)
}

async fn sections(
    plan: &ThroughputPlan,
    ground: &mut Ground,
    share: &mut ThroughputShare,
) -> anyhow::Result<f64> {
    say(&format!("sections, one of a node under way, {} s …", plan.load.duration.as_secs_f64()));
    let counts = Arc::clone(ground.fleet.counts());
    let nodes = ground.world.node_ids();
    let mut sent = vec![0u64; nodes.len()];
    let (begin, mut meter) = (Instant::now(), None);
    let rate = loop {
        let stored = counts.sections_acked(&nodes);
        for (node, (sent, stored)) in sent.iter_mut().zip(&stored).enumerate() {
            if *sent <= *stored {
                *sent += 1;
                ground.fleet.order(Order::Section { node, turn: *sent });
            }
        }
        tokio::time::sleep(TICK).await;
        match meter.take() {
            None if begin.elapsed() >= warm_up(plan) => {
                meter = Some(Meter::begin("sections", ground, counts.sections_stored()).await?);
            }
            Some(counting) if counting.began.elapsed() >= plan.load.duration => {
                break counting.end(ground, counts.sections_stored(), share).await?;
            }
            unchanged => meter = unchanged,
        }
    };
    let all: u64 = sent.iter().sum();
    await_last("sections", all, || counts.sections_stored()).await?;
    Ok(rate)
}

// What does not come is a loss, and a failed run.
async fn await_last(what: &str, all: u64, stored: impl Fn() -> u64) -> anyhow::Result<()> {
    let began = Instant::now();
    while stored() < all {
        anyhow::ensure!(
            began.elapsed() < LAST_WITHIN,
            "{} of {all} {what} were acked, {} s after the last was sent",
            stored(),
            LAST_WITHIN.as_secs()
        );
        tokio::time::sleep(TICK).await;
    }
    Ok(())
}

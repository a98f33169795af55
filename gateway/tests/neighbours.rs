//! What a hundred healthy nodes lose by a neighbour: one with a thousand commands that can't go, and one whose
//! report has a hook that sleeps for five seconds.
//!
//! A command goes to the next healthy node every few milliseconds, by the clock and not by the answers, and its
//! latency is that from the commit of its enqueue until its node has read it. Stretches with and without the
//! neighbour take turns in one run, so that what else the machine does meets both alike.
//!
//! `cargo test --release -p gateway --test neighbours -- --ignored --nocapture --test-threads 1`

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use gateway_testbed::clock::monotonic_ns;
use gateway_testbed::database::{NewCommand, enqueue};
use gateway_testbed::node::{Execution, Node};
use sqlx::{AssertSqlSafe, Executor, PgConnection};
use support::{SOON, World, asked_until};
use uuid::Uuid;

const HEALTHY: usize = 100;
const PACE: Duration = Duration::from_millis(5);
const STRETCHES: u32 = 8;
const COMMANDS_A_STRETCH: usize = 800;
/// What healthy nodes may lose, as the ratio of their 99th percentiles.
const BAR: f64 = 1.2;

/// The healthy ones, and who enqueues for them.
struct Stage {
    world: World,
    database: PgConnection,
    enqueuer: PgConnection,
    healthy: Vec<Node>,
    next: usize,
    _gateway: gateway_testbed::gateway_process::GatewayProcess,
}

impl Stage {
    async fn new(story: &str, schema: &str, config: &str) -> Self {
        let world = World::new(story).await;
        let mut database = world.connect().await;
        database.execute(AssertSqlSafe(schema.to_owned())).await.unwrap();
        let gateway = world.gateway("g", config).await;
        let healthy = world.nodes("healthy", HEALTHY, "g", |_| {}).await;
        let enqueuer = world.connect().await;
        let mut stage = Self { world, database, enqueuer, healthy, next: 0, _gateway: gateway };
        // Plans, connections and pages are warm before anything counts.
        stage.stretch(&mut Vec::new()).await;
        stage
    }

    /// Commands at a pace, until the last has ended.
    async fn stretch(&mut self, latencies: &mut Vec<u64>) {
        let mut pace = tokio::time::interval(PACE);
        let mut committed: HashMap<Uuid, u64> = HashMap::new();
        for _ in 0..COMMANDS_A_STRETCH {
            pace.tick().await;
            let node = self.healthy[self.next % HEALTHY].name();
            self.next += 1;
            let command =
                NewCommand { node_id: node, kind: "test", payload: b"", lane: "default", notify: false };
            let id = enqueue(&mut self.enqueuer, &command).await.unwrap();
            committed.insert(id, monotonic_ns());
        }
        let ids: Vec<Uuid> = committed.keys().copied().collect();
        self.world.watch.all_settled(&ids, SOON).await;
        self.world.watch.look(|seen| {
            for one in seen.received.iter().rev().take(2 * COMMANDS_A_STRETCH) {
                if let Some(at) = committed.get(&one.id) {
                    latencies.push(one.at_ns.saturating_sub(*at));
                }
            }
        });
    }

    async fn execute(&mut self, statement: String) {
        self.database.execute(AssertSqlSafe(statement)).await.unwrap();
    }
}

/// Milliseconds.
fn quantile(sorted: &[u64], quantile: f64) -> f64 {
    let place = (sorted.len() as f64 * quantile).ceil() as usize;
    sorted[place.clamp(1, sorted.len()) - 1] as f64 / 1e6
}

fn judge(what: &str, mut without: Vec<u64>, mut with: Vec<u64>) {
    for (side, of) in [("without", &mut without), ("with", &mut with)] {
        of.sort_unstable();
        eprintln!(
            "measured: {side} {what}: dispatch p50 {:.2} p90 {:.2} p99 {:.2} max {:.2} ms of {} commands",
            quantile(of, 0.5),
            quantile(of, 0.9),
            quantile(of, 0.99),
            quantile(of, 1.0),
            of.len()
        );
    }
    let ratio = quantile(&with, 0.99) / quantile(&without, 0.99);
    eprintln!("measured: {what}: the ratio of the 99th percentiles is {ratio:.2}");
    assert!(ratio <= BAR, "{what}: {ratio:.2} times the latency");
}

#[tokio::test]
#[ignore = "a measurement, for a machine that does nothing else"]
async fn a_thousand_commands_that_cannot_go_beside_a_hundred_healthy_nodes() {
    let mut stage = Stage::new("neighbours_stuck", "", "").await;
    let stuck = stage
        .world
        .node("stuck", "g", |options| {
            options.lanes = vec![("full".to_owned(), 1), ("free".to_owned(), 8)];
            options.behaviour.execution = Execution::Held;
        })
        .await;
    let name = stuck.name().to_owned();
    // Behind one that never ends, on a lane that the node does not have, and before their time.
    let backlog = format!(
        "SELECT count(*) FROM (
             SELECT enqueue_command('{name}', 'test', lane => 'full') FROM generate_series(1, 500)
             UNION ALL SELECT enqueue_command('{name}', 'test', lane => 'nowhere') FROM generate_series(1, 250)
             UNION ALL SELECT enqueue_command('{name}', 'test', lane => 'free', not_before => now() + interval '1 h')
                       FROM generate_series(1, 250)) b"
    );
    let clear = format!(
        "SELECT count(cancel_command('{name}', id)) FROM commands WHERE node_id = '{name}' AND state = 'pending'"
    );
    stage.execute(format!("SELECT enqueue_command('{name}', 'test', lane => 'full')")).await;
    let held = stage
        .world
        .watch
        .until(SOON, "one is held", |seen| seen.received_on(&name, "full").next().is_some().then_some(()));
    held.await;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..STRETCHES {
        stage.stretch(&mut without).await;
        stage.execute(backlog.clone()).await;
        stage.stretch(&mut with).await;
        stage.execute(clear.clone()).await;
    }
    judge("1,000 commands of a neighbour that can't go", without, with);
    let read = stage.world.watch.look(|seen| seen.received.iter().filter(|one| *one.node == *name).count());
    assert_eq!(read, 1, "none of the backlog was sent");
}

#[tokio::test]
#[ignore = "a measurement, for a machine that does nothing else"]
async fn a_hook_that_sleeps_five_seconds_beside_a_hundred_healthy_nodes() {
    let schema = "CREATE FUNCTION on_slow(told report) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                      PERFORM pg_sleep(5);
                  END $$";
    let config = "[hooks]\ntimeout = \"20s\"\n[hooks.reports]\n\"slow\" = \"on_slow\"\n";
    let mut stage = Stage::new("neighbours_hook", schema, config).await;
    let reporter = stage.world.node("reporter", "g", |_| {}).await;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for told in 1..=u64::from(STRETCHES) {
        stage.stretch(&mut without).await;
        reporter.emit("slow", Bytes::new());
        let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        let database = &mut stage.database;
        asked_until(SOON, "the hook sleeps", async || {
            let (count,): (i64,) = sqlx::query_as(sleeps).fetch_one(&mut *database).await.unwrap();
            (count == 1).then_some(())
        })
        .await;
        stage.stretch(&mut with).await;
        let acked = stage.world.watch.until(SOON, "the report is stored", |seen| {
            (seen.events_acked_to(reporter.name()) == told).then_some(())
        });
        acked.await;
    }
    judge("a hook that sleeps 5 s", without, with);
}

//! Desired state gets to its node whatever is lost on the way: without any poke by the sweep, after a kill
//! between the commit and the push by the next Hello, and large or many without cutting a node that reads.
//!
//! 1. Where a sweep is told from a poke, the other is off.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use gateway_testbed::node::Behaviour;
use sqlx::{AssertSqlSafe, Executor, PgConnection};
use support::{SOON, World, measured, seconds};

const NO_POKE: &str = "[database]\nnotify = false\n[specs]\nsweep_every = \"300ms\"\n";

async fn set(database: &mut PgConnection, node: &str, name: &str, body: &str) -> i64 {
    let query = "SELECT set_spec($1, $2, $3)";
    let set = sqlx::query_as(query).bind(node).bind(name).bind(body.as_bytes()).fetch_one(database);
    let (generation,): (i64,) = set.await.unwrap();
    generation
}

/// What `spec_status` says, a line a spec.
async fn status(database: &mut PgConnection) -> Vec<String> {
    let rows: Vec<(String,)> = sqlx::query_as(
        "SELECT concat_ws(' ', name, generation, applied_generation, outcome, waits_for) FROM spec_status \
         ORDER BY node_id, name",
    )
    .fetch_all(database)
    .await
    .unwrap();
    rows.into_iter().map(|(row,)| row).collect()
}

async fn acked(world: &World, name: &str, generation: u64, ok: bool) {
    let what = format!("{name} {generation} is answered and acked");
    let is_it =
        |one: &(std::sync::Arc<str>, String, u64, bool)| one.1 == name && one.2 == generation && one.3 == ok;
    world.watch.until(SOON, &what, |seen| seen.spec_acks.iter().any(is_it).then_some(())).await;
}

#[tokio::test]
async fn without_a_poke_the_sweep_finds_what_changed_and_sends_no_answered_one_again() {
    let world = World::new("spec_sweep").await;
    let _gateway = world.gateway("g", NO_POKE).await;
    let mut database = world.connect().await;
    let node = world.node("node", "g", |_| {}).await;
    database.execute("SET gateway.notify = off").await.unwrap();
    for generation in 1..=3 {
        assert_eq!(set(&mut database, node.name(), "dns", &format!("body {generation}")).await, generation);
        let began = Instant::now();
        acked(&world, "dns", generation as u64, true).await;
        measured("from the commit to the ack, by a sweep of every 300 ms", seconds(began));
    }
    node.behave(Behaviour { spec_error: Some("no such device".into()), ..Behaviour::default() });
    set(&mut database, node.name(), "gpu", "bad").await;
    acked(&world, "gpu", 1, false).await;
    assert_eq!(status(&mut database).await, ["dns 3 3 applied", "gpu 1 1 failed: no such device"]);
    // The sweep after the next has passed when this is there: none of them sent an answered one again.
    for generation in 2..=3 {
        set(&mut database, node.name(), "gpu", &format!("bad {generation}")).await;
        acked(&world, "gpu", generation, false).await;
    }
    let read = world
        .watch
        .look(|seen| seen.specs.iter().map(|(_, name, at)| format!("{name} {at}")).collect::<Vec<_>>());
    assert_eq!(read, ["dns 1", "dns 2", "dns 3", "gpu 1", "gpu 2", "gpu 3"]);
    world.verify().await;
}

#[tokio::test]
async fn killed_between_the_commit_and_the_push_the_next_hello_brings_it() {
    let world = World::new("spec_kill").await;
    // Neither a poke nor a sweep comes in time: what arrives, arrives by Hello.
    let far = "[database]\nnotify = false\n[specs]\nsweep_every = \"1h\"\n";
    let gateway = world.gateway("g", far).await;
    let mut database = world.connect().await;
    let node = world.node("node", "g", |_| {}).await;
    set(&mut database, node.name(), "dns", "one").await;
    assert_eq!(status(&mut database).await, ["dns 1 the node has not answered yet"]);
    let before = world.watch.epoch_of(node.name());
    let options = gateway.kill().unwrap();
    let gateway = world.start(options).await;
    world.watch.connected_after(node.name(), before).await;
    acked(&world, "dns", 1, true).await;
    // The node has it, so another Hello brings nothing, and one that fails is brought by each.
    node.behave(Behaviour { spec_error: Some("not yet".into()), ..Behaviour::default() });
    set(&mut database, node.name(), "gpu", "one").await;
    for _ in 0..2 {
        let before = world.watch.epoch_of(node.name());
        let told = world.watch.look(|seen| seen.spec_acks.len());
        node.cut();
        world.watch.connected_after(node.name(), before).await;
        world
            .watch
            .until(SOON, "its failure is acked", |seen| (seen.spec_acks.len() > told).then_some(()))
            .await;
    }
    let read = world
        .watch
        .look(|seen| seen.specs.iter().map(|(_, name, at)| format!("{name} {at}")).collect::<Vec<_>>());
    assert_eq!(read, ["dns 1", "gpu 1", "gpu 1"]);
    assert_eq!(status(&mut database).await, ["dns 1 1 applied", "gpu 1 1 failed: not yet"]);
    world.verify().await;
    drop(gateway);
}

#[tokio::test]
async fn many_and_large_specs_reach_a_node_that_reads_without_cutting_it() {
    let world = World::new("spec_large").await;
    // A quarter of 2 MiB may be on its way at once: the specs of one node are sixteen times as much.
    let _gateway = world.gateway("g", "[sessions]\noutbox_bytes = \"2MiB\"\n").await;
    let mut database = world.connect().await;
    let nodes = world.nodes("node", 3, "g", |_| {}).await;
    let names: Vec<String> = nodes.iter().map(|node| format!("'{}'", node.name())).collect();
    let large = format!(
        "SELECT count(s.n) FROM generate_series(1, 64) i, \
         LATERAL (SELECT count(*) AS n FROM set_specs(ARRAY[{}], 'spec-' || i, convert_to(repeat('x', 524288), 'UTF8'))) s",
        names.join(",")
    );
    let began = Instant::now();
    database.execute(AssertSqlSafe(large)).await.unwrap();
    world
        .watch
        .until(Duration::from_secs(60), "every spec of every node is answered", |seen| {
            (seen.spec_acks.len() >= 3 * 64).then_some(())
        })
        .await;
    measured("64 specs of 512 KiB for each of three nodes, set and answered", seconds(began));
    world.watch.look(|seen| {
        assert_eq!(seen.drops().count(), 0, "nobody was cut");
        assert_eq!((seen.specs.len(), seen.spec_acks.len()), (192, 192), "each was sent once");
    });
    world.verify().await;
}

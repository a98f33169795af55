//! A command goes out when its transaction commits, not when the next poll comes; the poll finds what no
//! poke announced; and a slow enqueue of a burst holds nobody else up.
//!
//! 1. Where a poke is told from the poll, the poll is thirty seconds away.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use gateway_testbed::clock::monotonic_ns;
use gateway_testbed::database::{self, NewCommand};
use sqlx::postgres::PgListener;
use sqlx::{Connection, Executor, PgConnection};
use support::{SOON, World, measured, within};
use uuid::Uuid;

/// So slow that whatever comes sooner did not come by the poll.
const SLOW_POLL: &str = "[dispatch]\npoll_every = \"30s\"";

#[tokio::test]
async fn a_commit_wakes_the_dispatch_long_before_the_poll() {
    let world = World::new("pokes").await;
    let _gateway = world.gateway("g", SLOW_POLL).await;
    let mut database = world.connect().await;
    let node = world.node("node", "g", |_| {}).await;
    let mut waits = Vec::new();
    for _ in 0..20 {
        let command = NewCommand::new(node.name(), b"x");
        let id = database::enqueue(&mut database, &command).await.unwrap();
        let committed = monotonic_ns();
        let received = world.watch.received(id, SOON).await;
        waits.push(Duration::from_nanos(received.at_ns.saturating_sub(committed)));
        // A lane of sixteen must not be what it waits for.
        world.watch.all_settled(&[id], SOON).await;
    }
    waits.sort();
    measured("from the commit to the node: median, slowest", format!("{:?}, {:?}", waits[10], waits[19]));
    assert!(waits[19] < Duration::from_secs(1), "the poll is every 30 s, so it was not the poll: {waits:?}");

    // A burst over many nodes in one transaction: one commit, and all are on their way.
    let nodes = world.nodes("burst", 50, "g", |_| {}).await;
    let names: Vec<String> = nodes.iter().flat_map(|node| vec![node.name().to_owned(); 10]).collect();
    let ids = database::enqueue_many(&mut database, &names, b"x").await.unwrap();
    let committed = std::time::Instant::now();
    world.watch.all_settled(&ids, SOON).await;
    measured("500 commands in one commit for 50 nodes, until all were acked", support::seconds(committed));
}

#[tokio::test]
async fn what_no_poke_announces_is_found_by_the_poll() {
    let world = World::new("poll").await;
    let _gateway = world.gateway("g", "").await;
    let mut database = world.connect().await;
    let node = world.node("node", "g", |_| {}).await;
    let mut pokes = PgListener::connect(&world.url).await.unwrap();
    pokes.listen("gw:g").await.unwrap();
    database.execute("SET gateway.notify = off").await.unwrap();
    let mut slowest = Duration::ZERO;
    for _ in 0..3 {
        let id = database::enqueue(&mut database, &NewCommand::new(node.name(), b"x")).await.unwrap();
        let committed = monotonic_ns();
        let received = world.watch.received(id, SOON).await;
        slowest = slowest.max(Duration::from_nanos(received.at_ns.saturating_sub(committed)));
    }
    measured("slowest by the poll of every second", format!("{slowest:?}"));
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
    // A poke of ours is the first that this channel tells: none came for the commands.
    database.execute("NOTIFY \"gw:g\", 'mark'").await.unwrap();
    let first = within(SOON, "the mark on the channel", pokes.recv()).await.unwrap();
    assert_eq!(first.payload(), "mark", "a command was announced although gateway.notify is off");
}

#[tokio::test]
async fn a_gateway_that_does_not_listen_finds_commands_by_the_poll() {
    let world = World::new("deaf").await;
    let _gateway = world.gateway("g", "[database]\nnotify = false\n[dispatch]\npoll_every = \"1s\"").await;
    let mut database = world.connect().await;
    let node = world.node("node", "g", |_| {}).await;
    for _ in 0..3 {
        let id = database::enqueue(&mut database, &NewCommand::new(node.name(), b"x")).await.unwrap();
        world.watch.all_settled(&[id], SOON).await;
    }
}

#[tokio::test]
async fn a_slow_enqueue_of_a_burst_holds_up_nobody_else_and_goes_out_in_the_order_of_its_commit() {
    let world = World::new("slow_enqueue").await;
    let _gateway = world.gateway("g", SLOW_POLL).await;
    let mut database = world.connect().await;
    let busy = world.node("busy", "g", |_| {}).await;
    let other = world.node("other", "g", |_| {}).await;

    // A transaction that has enqueued a hundred and does not commit.
    let mut slow = world.connect().await;
    let mut open = slow.begin().await.unwrap();
    let mut burst = enqueue_burst(&mut open, busy.name(), 100).await;
    // Who enqueues for the same node meanwhile waits for its commit, and comes after it.
    let (url, name) = (world.url.clone(), busy.name().to_owned());
    let behind = tokio::spawn(async move {
        let mut connection = PgConnection::connect(&url).await.unwrap();
        database::enqueue(&mut connection, &NewCommand::new(&name, b"behind")).await.unwrap()
    });
    support::asked_until(SOON, "the second enqueue waits for the first", async || {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = $1";
        let (count,): (i64,) =
            sqlx::query_as(waiting).bind(&world.database).fetch_one(&mut database).await.unwrap();
        (count == 1).then_some(())
    })
    .await;
    for _ in 0..5 {
        let id = database::enqueue(&mut database, &NewCommand::new(other.name(), b"x")).await.unwrap();
        world.watch.all_settled(&[id], SOON).await;
    }
    assert_eq!(world.watch.look(|seen| seen.received_on(busy.name(), "default").count()), 0);

    open.commit().await.unwrap();
    burst.push(within(SOON, "the second enqueue", behind).await.unwrap());
    world.watch.all_settled(&burst, SOON).await;
    let order: Vec<Uuid> =
        world.watch.look(|seen| seen.received_on(busy.name(), "default").map(|one| one.id).collect());
    assert_eq!(order, burst, "the order of the commits is the order at the node");
    let all = all_ids(&mut database).await;
    world.ledger(&mut database, &all).await;
}

async fn enqueue_burst(connection: &mut PgConnection, node: &str, count: usize) -> Vec<Uuid> {
    let nodes = vec![node.to_owned(); count];
    database::enqueue_many(connection, &nodes, b"burst").await.unwrap()
}

async fn all_ids(connection: &mut PgConnection) -> Vec<Uuid> {
    let rows: Vec<(Uuid,)> = sqlx::query_as("SELECT id FROM commands").fetch_all(connection).await.unwrap();
    rows.into_iter().map(|(id,)| id).collect()
}

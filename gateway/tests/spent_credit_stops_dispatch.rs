//! A lane never has more commands in flight than its capacity, whatever waits; its node may change the
//! capacity while it works; and a lane that is blocked blocks nothing else.
//!
//! 1. That nothing more comes is seen after passes that looked at the lane, never after a time.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::HashMap;
use std::time::Duration;

use gateway_testbed::database::{self, NewCommand};
use gateway_testbed::node::{Behaviour, Execution, LogEvent, LogLine, Node, NodeOptions};
use sqlx::PgConnection;
use support::{SOON, World};
use uuid::Uuid;

fn held(options: &mut NodeOptions) {
    options.behaviour = Behaviour { execution: Execution::Held, ..Behaviour::default() };
}

#[tokio::test]
async fn ten_commands_for_a_capacity_of_two_run_two_at_a_time() {
    let world = World::new("credit").await;
    let _gateway = world.gateway("g", "").await;
    let mut database = world.connect().await;
    let node = world
        .node("worker", "g", |options| {
            options.lanes = vec![("default".to_owned(), 2)];
            options.behaviour.execution = Execution::After(Duration::from_millis(30));
        })
        .await;
    let ids = enqueue(&mut database, node.name(), "default", 10).await;
    world.watch.all_settled(&ids, SOON).await;

    assert_eq!(most_in_flight(&world.log_lines()), 2, "by the node's own log");
    let rows: Vec<(i32, i32, i32, String)> = sqlx::query_as(
        "SELECT lane_in_flight, lane_capacity, attempt, state::text FROM commands ORDER BY seq",
    )
    .fetch_all(&mut database)
    .await
    .unwrap();
    assert_eq!(rows.len(), 10);
    for row in &rows {
        let (in_flight, capacity, attempt, state) = row;
        assert!((1..=2).contains(in_flight) && *capacity == 2, "at its dispatch: {row:?}");
        // A node refuses what is over its capacity; that would be a second attempt.
        assert_eq!((*attempt, state.as_str()), (1, "succeeded"));
    }
    let order: Vec<u64> = world.watch.look(|seen| seen.received.iter().map(|one| one.seq).collect());
    assert!(order.is_sorted(), "first in, first out: {order:?}");
    world.ledger(&mut database, &ids).await;
}

#[tokio::test]
async fn a_capacity_that_is_lowered_and_raised_counts_from_then_on() {
    let world = World::new("capacity").await;
    let _gateway = world.gateway("g", "").await;
    let mut database = world.connect().await;
    let node = world
        .node("worker", "g", |options| {
            held(options);
            options.lanes = vec![("default".to_owned(), 4), ("probe".to_owned(), 1)];
        })
        .await;
    let ids = enqueue(&mut database, node.name(), "default", 20).await;
    await_received(&world, &node, 4, "the lane is filled").await;
    stays_at(&world, &mut database, &node, 4).await;

    // Four are in flight and two are allowed: none may come until one alone is left.
    node.set_capacity("default", 2);
    finish(&world, &node, &ids[..1]).await;
    stays_at(&world, &mut database, &node, 4).await;
    finish(&world, &node, &ids[1..2]).await;
    stays_at(&world, &mut database, &node, 4).await;
    finish(&world, &node, &ids[2..3]).await;
    await_received(&world, &node, 5, "one is in flight, so one more comes").await;
    stays_at(&world, &mut database, &node, 5).await;

    node.set_capacity("default", 6);
    await_received(&world, &node, 9, "two were in flight, so four more come").await;
    stays_at(&world, &mut database, &node, 9).await;

    node.behave(Behaviour::default());
    node.release(None);
    world.watch.all_settled(&ids, SOON).await;
    let (refused,): (i64,) = sqlx::query_as("SELECT count(*) FROM commands WHERE attempt > 1")
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert_eq!(refused, 0, "no command came to a node that had no room for it");
}

#[tokio::test]
async fn a_blocked_lane_blocks_no_other_lane_and_no_other_node() {
    let world = World::new("lanes").await;
    let _gateway = world.gateway("g", "").await;
    let mut database = world.connect().await;
    // First in every order that a query could go by.
    let blocked = world
        .node("aaa", "g", |options| {
            held(options);
            options.lanes = vec![("blocked".to_owned(), 1), ("open".to_owned(), 1)];
        })
        .await;
    let first = enqueue(&mut database, blocked.name(), "blocked", 1).await;
    world.watch.received(first[0], SOON).await;
    enqueue(&mut database, blocked.name(), "blocked", 1500).await;
    enqueue(&mut database, blocked.name(), "undeclared", 300).await;

    let others = world.nodes("zzz", 5, "g", |_| {}).await;
    let mut ids = Vec::new();
    for round in 0..4 {
        for node in &others {
            ids.extend(enqueue(&mut database, node.name(), "default", 1 + round).await);
        }
    }
    let open = enqueue(&mut database, blocked.name(), "open", 1).await;
    world.watch.received(open[0], SOON).await;
    world.watch.all_settled(&ids, SOON).await;

    let names = [blocked.name().to_owned()];
    let rows: Vec<(String, String, i64)> = sqlx::query_as(
        "SELECT lane, coalesce(waits_for, 'nothing'), count(*) FROM command_status \
         WHERE node_id = ANY ($1) GROUP BY 1, 2 ORDER BY 1, 3",
    )
    .bind(&names[..])
    .fetch_all(&mut database)
    .await
    .unwrap();
    let row = |lane: &str, waits_for: &str, count: i64| (lane.to_owned(), waits_for.to_owned(), count);
    assert_eq!(
        rows,
        [
            row("blocked", "the node has it", 1),
            row("blocked", "it waits for a credit of its lane", 1500),
            row("open", "the node has it", 1),
            row("undeclared", "the node did not declare this lane", 300),
        ]
    );
    let waits = "SELECT coalesce(max(extract(epoch FROM dispatched_at - enqueued_at)), 0)::float8 FROM commands \
                 WHERE id = ANY ($1)";
    let (slowest,): (f64,) = sqlx::query_as(waits).bind(&ids).fetch_one(&mut database).await.unwrap();
    support::measured("slowest dispatch beside 1,800 undeliverable commands", format!("{slowest:.3} s"));
}

async fn enqueue(database: &mut PgConnection, node: &str, lane: &str, count: usize) -> Vec<Uuid> {
    let mut ids = Vec::new();
    if count > 20 {
        let statement = "SELECT command_id FROM enqueue_commands(node_ids => $1, kinds => ARRAY['test'], \
                         lanes => ARRAY[$2]) ORDER BY slot";
        let nodes = vec![node.to_owned(); count];
        let rows: Vec<(Uuid,)> =
            sqlx::query_as(statement).bind(&nodes).bind(lane).fetch_all(database).await.unwrap();
        return rows.into_iter().map(|(id,)| id).collect();
    }
    for _ in 0..count {
        let command = NewCommand { lane, ..NewCommand::new(node, b"payload") };
        ids.push(database::enqueue(database, &command).await.unwrap());
    }
    ids
}

async fn await_received(world: &World, node: &Node, count: usize, what: &str) {
    let what = format!("{what}: {count} commands were read");
    world
        .watch
        .until(SOON, &what, |seen| (seen.received_on(node.name(), "default").count() >= count).then_some(()))
        .await;
}

/// Nothing more was sent on the lane `default`, although passes looked at it: each command on the lane
/// `probe` comes by a pass that was woken for all lanes of the node.
async fn stays_at(world: &World, database: &mut PgConnection, node: &Node, count: usize) {
    for _ in 0..2 {
        let probe = enqueue(database, node.name(), "probe", 1).await;
        world.watch.received(probe[0], SOON).await;
        finish(world, node, &probe).await;
    }
    let now = world.watch.look(|seen| seen.received_on(node.name(), "default").count());
    assert_eq!(now, count, "commands read on the lane; its credit is spent");
}

async fn finish(world: &World, node: &Node, ids: &[Uuid]) {
    for id in ids {
        node.release(Some(*id));
    }
    world.watch.all_settled(ids, SOON).await;
}

/// The highest number of commands that the node had between reading them and finishing them.
fn most_in_flight(lines: &[LogLine]) -> usize {
    let (mut now, mut most) = (HashMap::new(), 0);
    for line in lines {
        match line.event {
            LogEvent::Received => drop(now.insert(line.id, ())),
            LogEvent::Finished => drop(now.remove(&line.id)),
            LogEvent::Started | LogEvent::Acked => {}
        }
        most = most.max(now.len());
    }
    most
}

//! SIGTERM ends a gateway in good order: its nodes are told, their disconnects are written, and the
//! lease is free for whoever comes next, on any host.
//!
//! 1. What the stop promises is written when the process has ended: it is asked for once.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use gateway_testbed::database;
use gateway_testbed::node::Execution;
use support::{SOON, UNAVAILABLE, World, measured, seconds};

const NODES: usize = 8;

#[tokio::test]
async fn a_terminated_gateway_tells_its_nodes_and_leaves_nothing_to_wait_for() {
    let world = World::new("clean_stop").await;
    let mut gateway = world.gateway("g", "").await;
    let mut database = world.connect().await;
    let nodes =
        world.nodes("node", NODES, "g", |options| options.behaviour.execution = Execution::Held).await;
    let mut names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
    names.sort();
    let ids = database::enqueue_many(&mut database, &names, b"held over the stop").await.unwrap();
    for id in &ids {
        world.watch.received(*id, SOON).await;
    }

    let asked = Instant::now();
    let status = gateway.terminate(SOON).await.unwrap();
    measured("from SIGTERM to the exit", seconds(asked));
    assert_eq!(status.code(), Some(0), "a clean stop");
    assert!(asked.elapsed() < Duration::from_secs(5), "a clean stop is quick: {:?}", asked.elapsed());

    let ends = world
        .watch
        .until(SOON, "every session has ended", |seen| {
            let ends: Vec<_> = seen.drops().map(|ended| ended.end.clone()).collect();
            (ends.len() >= NODES).then_some(ends)
        })
        .await;
    for end in &ends {
        assert_eq!(end.status(), Some(UNAVAILABLE), "{end:?}");
        assert_eq!(end.message, "gateway stopping; reconnect");
    }
    assert_eq!(ends.len(), NODES);

    // All of this was written before the exit, so it is asked once.
    let open: Vec<(String,)> =
        sqlx::query_as("SELECT node_id FROM node_sessions WHERE disconnected_at IS NULL")
            .fetch_all(&mut database)
            .await
            .unwrap();
    assert_eq!(open, [], "sessions without a disconnect");
    let told: Vec<(String,)> = sqlx::query_as(
        "SELECT node_id FROM outbox WHERE kind = 'node.disconnected' AND body ->> 'reason' = 'stopping' \
         ORDER BY node_id COLLATE \"C\"",
    )
    .fetch_all(&mut database)
    .await
    .unwrap();
    assert_eq!(told.into_iter().map(|(node,)| node).collect::<Vec<_>>(), names, "one node.disconnected each");
    let (released, draining): (bool, bool) = sqlx::query_as(
        "SELECT l.expires_at <= compute_now(), g.draining FROM leases l, gateways g \
         WHERE l.name = 'gateway:g' AND g.id = 'g'",
    )
    .fetch_one(&mut database)
    .await
    .unwrap();
    assert!(released, "the lease has run out");
    assert!(draining, "nobody is sent to it any more");

    // Another host, which can't know that its predecessor is dead; the nodes dial the same address.
    let mut options = world.options_in("another-host", "g", "");
    options.listen = world.address_of("g").to_string();
    let spawned = Instant::now();
    let _successor = world.start(options).await;
    measured("from the spawn of a successor elsewhere to READY", seconds(spawned));
    assert!(spawned.elapsed() < Duration::from_secs(5), "it waited for a lease that was given back");
    world
        .watch
        .until(SOON, "every node is back", |seen| {
            names.iter().all(|name| seen.epoch_of(name) == 2).then_some(())
        })
        .await;
    for node in &nodes {
        node.release(None);
    }
    world.watch.all_settled(&ids, SOON).await;
    world.ledger(&mut database, &ids).await;
}

#[tokio::test]
async fn a_stop_in_the_middle_of_work_loses_nothing() {
    let world = World::new("stop_under_load").await;
    let mut gateway = world.gateway("g", "").await;
    let mut database = world.connect().await;
    let nodes = world
        .nodes("node", 20, "g", |options| {
            options.behaviour.execution = Execution::After(Duration::from_millis(20));
        })
        .await;
    let names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
    let mut ids = Vec::new();
    for _ in 0..40 {
        ids.extend(database::enqueue_many(&mut database, &names, b"work").await.unwrap());
    }
    world.watch.until(SOON, "the work is under way", |seen| (seen.settled.len() > 100).then_some(())).await;
    let status = gateway.terminate(SOON).await.unwrap();
    assert_eq!(status.code(), Some(0));
    let settled = world.watch.look(|seen| seen.settled.len());
    assert!(settled < ids.len(), "the stop came while there was work");

    let _gateway = world.start(gateway.options().clone()).await;
    world.watch.all_settled(&ids, SOON).await;
    let report = world.ledger(&mut database, &ids).await;
    assert_eq!(report.in_state("succeeded"), ids.len() as u64, "{report:?}");
    measured("settled before the stop, and in all", format!("{settled} of {}", ids.len()));
}

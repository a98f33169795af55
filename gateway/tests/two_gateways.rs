//! Two gateways on one database: a node that moves is fenced where it was, and a certificate that two
//! machines use in turn is quarantined on both.
//!
//! 1. What a gateway has not done itself it learns from the database, within a flush of liveness.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use gateway_testbed::database::{self, NewCommand};
use gateway_testbed::node::{Node, RedialBounds};
use support::{ABORTED, SOON, World, measured, seconds};

const PERMISSION_DENIED: u32 = 7;
const LIVELY: &str = "[sessions]\nheartbeat_interval = \"200ms\"\nliveness_write_every = \"1s\"\n";
const NEVER_AGAIN: RedialBounds =
    RedialBounds { first: Duration::from_secs(3600), max: Duration::from_secs(3600) };

#[tokio::test]
async fn a_session_that_a_newer_one_on_another_gateway_superseded_ends_aborted_with_the_next_liveness() {
    let world = World::new("moved").await;
    let _left = world.gateway("left", LIVELY).await;
    let _reached = world.gateway("reached", LIVELY).await;
    let mut database = world.connect().await;
    let identity = world.register("roamer").await;
    let mut options = world.node_options("roamer", &identity, "left");
    options.redial = NEVER_AGAIN;
    let old = Node::start(options);
    world.watch.connected_after(old.name(), 0).await;
    let moved = Instant::now();
    let new = Node::start(world.node_options("roamer", &identity, "reached"));
    world.watch.connected_after(new.name(), 1).await;
    let end = world
        .watch
        .until(SOON, "the old session ends", |seen| seen.drops().next().map(|one| one.end.clone()))
        .await;
    measured("from the move until the old session had ended", seconds(moved));
    assert_eq!(end.status(), Some(ABORTED), "{end:?}");
    assert!(end.message.contains("superseded"), "{end:?}");
    assert!(moved.elapsed() < Duration::from_secs(6), "a flush of liveness, at most 2 s, and its poll");
    let id = database::enqueue(&mut database, &NewCommand::new(new.name(), b"x")).await.unwrap();
    let received = world.watch.received(id, SOON).await;
    assert_eq!(received.session_epoch, 2);
    world.watch.all_settled(&[id], SOON).await;
    world.ledger(&mut database, &[id]).await;
}

#[tokio::test]
async fn two_machines_with_one_certificate_are_both_refused_in_the_end_and_told_why() {
    let world = World::new("duplicate").await;
    let _one = world.gateway("one", LIVELY).await;
    let _two = world.gateway("two", LIVELY).await;
    let mut database = world.connect().await;
    let identity = world.register("cloned").await;
    let begun = Instant::now();
    let clones: Vec<Node> = [("one", "machine-a"), ("two", "machine-b")]
        .into_iter()
        .map(|(place, machine)| {
            let mut options = world.node_options("cloned", &identity, place);
            options.machine = machine.to_owned();
            Node::start(options)
        })
        .collect();
    let refusals = world
        .watch
        .until(SOON * 2, "both machines are refused", |seen| {
            let refused = seen.ended.iter().filter(|one| one.end.status() == Some(PERMISSION_DENIED));
            let sentences: Vec<String> = refused.map(|one| one.end.message.clone()).collect();
            (sentences.len() >= 2).then_some(sentences)
        })
        .await;
    measured("from the first Hello until both were refused", seconds(begun));
    assert!(refusals.iter().all(|sentence| sentence.contains("two machines use it in turn")), "{refusals:?}");
    support::asked_until(SOON, "neither dials again", async || {
        clones.iter().all(Node::has_stopped).then_some(())
    })
    .await;
    let (reason, connected): (String, bool) = sqlx::query_as(
        "SELECT k.revoked_reason, s.disconnected_at IS NULL FROM node_certs k \
         JOIN node_sessions s USING (node_id) WHERE k.serial = $1 AND k.revoked_at IS NOT NULL",
    )
    .bind(&identity.serial)
    .fetch_one(&mut database)
    .await
    .unwrap();
    assert_eq!((reason.as_str(), connected), ("duplicate-identity", false));
    let (told,): (i64,) = sqlx::query_as("SELECT count(*) FROM outbox WHERE kind = 'node.quarantined'")
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert_eq!(told, 1);
    world.verify_rows().await;
}

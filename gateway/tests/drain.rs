//! SIGTERM drains a gateway: its nodes move to another one, each at a moment of its own, while commands
//! flow; then it stops. Whoever does not leave is cut at the limit and told when to come.
//!
//! 1. A node that leaves has its next session before it has left the old one: no command waits.
//! 2. While it drains, a gateway is not ready, by every way in which that is asked.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gateway_proto::health::health_check_response::ServingStatus;
use gateway_proto::path;
use gateway_testbed::database::{self, NewCommand};
use gateway_testbed::gateway_process::GatewayProcess;
use gateway_testbed::node::{EndKind, Node};
use gateway_testbed::raw::RawCall;
use http::HeaderMap;
use rustix::process::Signal;
use sqlx::PgConnection;
use support::health::{HealthWatch, control_address, get, health};
use support::load::Load;
use support::{SOON, UNAVAILABLE, World, asked_until, measured, seconds, within};

const NODES: usize = 60;

fn draining(within: &str, grace: &str) -> String {
    format!("[gateway]\ndrain = \"{within}\"\ndrain_grace = \"{grace}\"\n")
}

/// Nodes of the gateway `from` that know `to` too.
async fn nodes(world: &World, prefix: &str, count: usize, from: &str, to: &str) -> Vec<Node> {
    let names: Vec<String> = (0..count).map(|index| format!("{prefix}-{index:03}")).collect();
    let identities = world.register_all(&names).await;
    let nodes: Vec<Node> = names
        .iter()
        .zip(&identities)
        .map(|(name, identity)| {
            let mut options = world.node_options(name, identity, from);
            options.elsewhere = vec![world.target(to, identity)];
            Node::start(options)
        })
        .collect();
    let all_are_there =
        |seen: &support::watch::Seen| nodes.iter().all(|node| seen.epoch_of(node.name()) == 1).then_some(());
    world.watch.until(SOON, "every node has its Welcome", all_are_there).await;
    nodes
}

async fn flag(database: &mut PgConnection, gateway: &str) -> bool {
    let (draining,): (bool,) = sqlx::query_as("SELECT draining FROM gateways WHERE id = $1")
        .bind(gateway)
        .fetch_one(database)
        .await
        .unwrap();
    draining
}

async fn ended(gateway: &mut GatewayProcess) -> Option<i32> {
    within(SOON, "the drained gateway ends", gateway.wait()).await.unwrap().code()
}

#[tokio::test]
async fn a_drained_gateway_hands_its_nodes_over_while_commands_flow_and_none_is_cut() {
    let world = World::new("drain").await;
    let mut old = world.gateway("old", &draining("4s", "30s")).await;
    let _new = world.gateway("new", "").await;
    let mut database = world.connect().await;
    let control = control_address(&mut database, "old").await;
    let nodes = nodes(&world, "node", NODES, "old", "new").await;
    let names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
    let stranger = world.register("stranger").await;
    let target = world.target("old", &stranger);
    let (mut watch, first) = HealthWatch::open(&target).await;
    assert_eq!((first, flag(&mut database, "old").await), (ServingStatus::Serving, false));
    let load = Load::start(world.connect().await, names.clone(), 200, b"work".to_vec());
    world.watch.until(SOON, "commands flow", |seen| (seen.settled.len() > 100).then_some(())).await;

    let asked = Instant::now();
    old.signal(Signal::TERM).unwrap();
    watch.becomes(ServingStatus::NotServing, SOON).await;
    let (code, body) = health(&control).await;
    assert_eq!((code, &body["phase"]), (503, &"draining".into()), "{body}");
    assert!(get(&control, "/metrics").await.1.contains("gateway_phase{phase=\"draining\"} 1"));
    asked_until(SOON, "the database knows that it drains", async || {
        flag(&mut database, "old").await.then_some(())
    })
    .await;
    measured("from SIGTERM until the database knew", seconds(asked));
    let opening = RawCall::open(&target, path::SESSION, HeaderMap::new());
    let mut refused = within(SOON, "a stream", opening).await.unwrap();
    let end = refused.end(SOON).await.expect("a new session is refused");
    assert_eq!(end.status(), Some(UNAVAILABLE), "{end:?}");
    assert!(end.message.contains("draining") && end.pushback.is_some(), "{end:?}");
    assert!(asked.elapsed() < Duration::from_secs(4), "all that was seen while nodes were still there");
    drop(refused);
    drop(watch);

    assert_eq!(ended(&mut old).await, Some(0), "a clean stop");
    let took = asked.elapsed();
    measured("from SIGTERM to the exit, within 4 s", format!("{took:?}"));
    assert!(
        took < Duration::from_secs(14),
        "it stops when the last has left, and not at the limit: {took:?}"
    );

    let delays: BTreeSet<Duration> =
        world.watch.look(|seen| seen.drains.iter().map(|(_, delay)| *delay).collect());
    assert!(delays.len() > NODES * 9 / 10, "each its own: {delays:?}");
    assert!(delays.iter().all(|delay| *delay < Duration::from_secs(4)), "{delays:?}");
    assert!(delays.first() < Some(&Duration::from_secs(1)) && delays.last() > Some(&Duration::from_secs(3)));
    world.watch.look(|seen| {
        assert_eq!(seen.drains.len(), NODES, "each is told once");
        for name in &names {
            let anew = seen.connected.iter().find(|one| *one.node == **name && one.epoch == 2);
            let anew = anew.unwrap_or_else(|| panic!("{name} has no second session"));
            let left = seen.ended.iter().find(|one| *one.node == **name).unwrap();
            assert_eq!(left.end.kind, EndKind::Asked, "{name} left by itself: {left:?}");
            assert!(left.at_ns >= anew.at_ns, "{name} was welcomed before it left");
        }
        assert_eq!(seen.drops().count(), 0, "nobody is cut");
    });
    let elsewhere: Vec<(String,)> = sqlx::query_as(
        "SELECT node_id FROM node_sessions WHERE gateway_id IS DISTINCT FROM 'new' OR disconnected_at IS NOT NULL",
    )
    .fetch_all(&mut database)
    .await
    .unwrap();
    assert_eq!(elsewhere, [(world.id("stranger"),)], "nodes that are not on the new gateway");
    let (released,): (bool,) =
        sqlx::query_as("SELECT expires_at <= compute_now() FROM leases WHERE name = 'gateway:old'")
            .fetch_one(&mut database)
            .await
            .unwrap();
    assert!(released, "a successor need not wait");

    let ids = load.stop().await;
    world.watch.all_settled(&ids, SOON).await;
    let report = world.ledger(&mut database, &ids).await;
    assert_eq!(report.in_state("succeeded"), ids.len() as u64, "{report:?}");
}

#[tokio::test]
async fn a_node_that_ignores_a_drain_is_served_until_the_limit_and_then_cut_with_a_delay() {
    let world = World::new("drain_ignored").await;
    let mut gateway = world.gateway("g", &draining("500ms", "1500ms")).await;
    let mut database = world.connect().await;
    let node = world.node("stubborn", "g", |options| options.behaviour.drains = false).await;
    let asked = Instant::now();
    gateway.signal(Signal::TERM).unwrap();
    world.watch.until(SOON, "it is told to leave", |seen| seen.drains.first().map(|_| ())).await;
    let command = NewCommand::new(node.name(), b"for who stays");
    let id = database::enqueue(&mut database, &command).await.unwrap();
    world.watch.all_settled(&[id], SOON).await;
    let end =
        world.watch.until(SOON, "it is cut", |seen| seen.drops().next().map(|ended| ended.end.clone())).await;
    assert!(asked.elapsed() >= Duration::from_secs(2), "{:?}", asked.elapsed());
    assert_eq!((end.status(), end.pushback.is_some()), (Some(UNAVAILABLE), true), "{end:?}");
    assert_eq!(end.message, "gateway draining; reconnect after the given delay");
    assert_eq!(ended(&mut gateway).await, Some(0), "that is a clean stop too");
    world.ledger(&mut database, &[id]).await;
}

#[tokio::test]
async fn a_second_sigterm_and_a_sigint_stop_at_once_whatever_the_drain_may_take() {
    let world = World::new("drain_cut_short").await;
    let mut database = world.connect().await;
    let stubborn = |options: &mut gateway_testbed::node::NodeOptions| options.behaviour.drains = false;
    let mut gateway = world.gateway("g", &draining("5m", "5m")).await;
    let control = control_address(&mut database, "g").await;
    let node = world.node("stubborn", "g", stubborn).await;
    gateway.signal(Signal::TERM).unwrap();
    asked_until(SOON, "it drains", async || (health(&control).await.1["phase"] == "draining").then_some(()))
        .await;
    let asked = Instant::now();
    gateway.signal(Signal::TERM).unwrap();
    assert_eq!(ended(&mut gateway).await, Some(0));
    assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
    let end =
        world.watch.until(SOON, "it is cut", |seen| seen.drops().next().map(|ended| ended.end.clone())).await;
    assert_eq!((end.status(), end.pushback.is_some()), (Some(UNAVAILABLE), true), "{end:?}");

    let mut gateway = world.start(gateway.options().clone()).await;
    world.watch.connected_after(node.name(), 1).await;
    let asked = Instant::now();
    gateway.signal(Signal::INT).unwrap();
    assert_eq!(ended(&mut gateway).await, Some(0));
    assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
    let last = world
        .watch
        .until(SOON, "it is told that the gateway stops", |seen| {
            seen.drops().nth(1).map(|one| one.end.clone())
        })
        .await;
    assert_eq!(last.message, "gateway stopping; reconnect");
}

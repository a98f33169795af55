//! Two processes act as one gateway id, on hosts that know nothing of each other. Only the holder of the
//! lease routes; one that slept through its lease wakes up, finds it gone, and lets go of everything.
//!
//! 1. A Hello, commands and a report wait for the sleeper when it wakes; none of them is routed by it.
//! 2. Its epoch of the lease stands on nothing that was committed after the takeover.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use gateway_proto::path;
use gateway_proto::v1::{Hello, Lane, node_frame::Frame};
use gateway_testbed::database::{self, NewCommand};
use gateway_testbed::node::{Execution, Node, RedialBounds};
use gateway_testbed::raw::RawCall;
use http::HeaderMap;
use support::health::health;
use support::{SOON, UNAVAILABLE, World, asked_until, measured, within};

const SHORT_LEASE: &str = "[lease]\nttl = \"3s\"\nrenew_every = \"500ms\"\n";

#[tokio::test]
async fn a_gateway_that_slept_through_its_lease_routes_nothing_and_fences_itself() {
    let world = World::new("zombie").await;
    let mut zombie = world.start(world.options_in("host-a", "g", SHORT_LEASE)).await;
    let mut database = world.connect().await;
    let control = support::health::control_address(&mut database, "g").await;
    let stays = world
        .node("stays", "host-a", |options| {
            options.behaviour.execution = Execution::Held;
            options.redial =
                RedialBounds { first: Duration::from_millis(50), max: Duration::from_millis(50) };
        })
        .await;
    let in_flight =
        database::enqueue(&mut database, &NewCommand::new(stays.name(), b"held by the zombie's node"))
            .await
            .unwrap();
    world.watch.received(in_flight, SOON).await;
    // A stream that is open and has not said Hello.
    let late = world.register("late").await;
    let target = world.target("host-a", &late);
    let opening = RawCall::open(&target, path::SESSION, HeaderMap::new());
    let mut late_call = within(SOON, "a stream is opened", opening).await.expect("a stream");
    asked_until(SOON, "the zombie counts the stream", async || {
        let body = tokio::select! {
            (_, body) = health(&control) => body,
            early = late_call.next(SOON) => panic!("before its Hello the stream got {early:?}"),
        };
        (body["streams"] == 2).then_some(())
    })
    .await;

    zombie.pause().unwrap();
    let asleep = Instant::now();
    let mut heir = world.start(world.options_in("host-b", "g", SHORT_LEASE)).await;
    measured("from the sleep until the heir served", support::seconds(asleep));
    let (epoch, owner): (i64, String) =
        sqlx::query_as("SELECT epoch, owner FROM leases WHERE name = 'gateway:g'")
            .fetch_one(&mut database)
            .await
            .unwrap();
    assert_eq!(epoch, 2, "the heir's lease");
    // What wakes the zombie up to work: a Hello, a report, and commands for the node that it has.
    late_call.send(Frame::Hello(Hello {
        protocol: 1,
        boot_id: "late".to_owned(),
        lanes: vec![Lane { name: "default".to_owned(), capacity: 1 }],
        ..Hello::default()
    }));
    let silent = late_call.next(Duration::from_millis(100)).await;
    assert!(silent.is_none(), "a process that is stopped answers nothing: {silent:?}");
    let mut ids = vec![in_flight];
    for _ in 0..5 {
        let command = NewCommand::new(stays.name(), b"for a node of the zombie");
        ids.push(database::enqueue(&mut database, &command).await.unwrap());
    }

    zombie.resume().unwrap();
    let woken = Instant::now();
    let end = world
        .watch
        .until(SOON, "the zombie closes its session", |seen| seen.drops().next().map(|one| one.end.clone()))
        .await;
    assert_eq!((end.status(), end.message.as_str()), (Some(UNAVAILABLE), "gateway fenced; reconnect"));
    let end = late_call.end(SOON).await.expect("the late Hello is refused");
    assert_eq!(end.status(), Some(UNAVAILABLE), "{end:?}");
    measured("from the wake until the zombie had fenced itself", support::seconds(woken));
    let (code, body) = health(&control).await;
    assert_eq!((code, &body["serving"], &body["fenced"]), (503, &false.into(), &true.into()), "{body}");
    world
        .watch
        .until(SOON, "its node dials the zombie again and is refused", |seen| {
            seen.ended.iter().find(|one| !one.end.was_welcomed).map(|_| ())
        })
        .await;

    // Nothing that it might have routed was committed.
    let (routed,): (i64,) =
        sqlx::query_as("SELECT count(*) FROM commands WHERE id <> $1 AND dispatched_at IS NOT NULL")
            .bind(in_flight)
            .fetch_one(&mut database)
            .await
            .unwrap();
    assert_eq!(routed, 0, "commands that the zombie dispatched");
    let (hellos,): (i64,) = sqlx::query_as("SELECT session_epoch FROM node_sessions WHERE node_id = $1")
        .bind(world.id("late"))
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert_eq!(hellos, 0, "a Hello that the zombie granted");

    // The heir serves those nodes.
    let memory = stays.stop().await;
    assert_eq!(memory.len(), 1, "the node still has its command");
    let moved = world.register("stays").await;
    let moved = Node::start(world.node_options("stays", &moved, "host-b"));
    world.watch.connected_after(moved.name(), 1).await;
    world.watch.all_settled(&ids, SOON).await;
    let rows: Vec<(i64, i64)> =
        sqlx::query_as("SELECT lease_epoch, session_epoch FROM commands WHERE id <> $1 ORDER BY seq")
            .bind(in_flight)
            .fetch_all(&mut database)
            .await
            .unwrap();
    assert_eq!(rows, [(2, 2); 5], "dispatched under the heir's lease, to the node's second session");
    let history: Vec<(i64, String)> =
        sqlx::query_as("SELECT epoch, owner FROM leases_history WHERE name = 'gateway:g' ORDER BY epoch")
            .fetch_all(&mut database)
            .await
            .unwrap();
    assert_eq!(history.len(), 2, "{history:?}");
    assert_ne!(history[0].1, history[1].1);
    assert_eq!(history[1], (2, owner), "the heir kept its lease");
    assert_eq!(heir.try_wait().unwrap(), None, "the heir runs");
    // Of the rows alone: the node that moved has forgotten what it began under the zombie.
    world.verify_rows().await;
}

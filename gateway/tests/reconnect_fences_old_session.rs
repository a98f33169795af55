//! A node that comes back has one session: the new one. The old one ends `ABORTED`, its commands are
//! the new one's, and its epoch is not used again; on one shard and across shards.
//!
//! 1. That two sessions live on different shards is read from the shards' own counts.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use gateway_proto::path;
use gateway_proto::v1::{Hello, Lane, gateway_frame, node_frame::Frame};
use gateway_testbed::database::{self, NewCommand};
use gateway_testbed::node::{Behaviour, End, Execution, Node, RedialBounds, Target};
use gateway_testbed::raw::RawCall;
use http::HeaderMap;
use support::health::{control_address, health, sessions_by_shard};
use support::{ABORTED, SOON, World, asked_until, within};
use uuid::Uuid;

#[tokio::test]
async fn a_second_session_takes_over_the_commands_and_the_first_ends_aborted() {
    let world = World::new("reconnect").await;
    let _gateway = world.gateway("g", "").await;
    let mut database = world.connect().await;
    let identity = world.register("twin").await;
    let held = Behaviour { execution: Execution::Held, ..Behaviour::default() };

    let mut options = world.node_options("twin", &identity, "g");
    options.behaviour = held;
    // The old machine does not fight for its session.
    options.redial = RedialBounds { first: Duration::from_secs(3600), max: Duration::from_secs(3600) };
    let old = Node::start(options);
    let old_epoch = world.watch.connected_after(old.name(), 0).await;
    let in_flight =
        database::enqueue(&mut database, &NewCommand::new(old.name(), b"held by the old session"))
            .await
            .unwrap();
    let first = world.watch.received(in_flight, SOON).await;
    assert_eq!(first.session_epoch, old_epoch);

    let new = Node::start(world.node_options("twin", &identity, "g"));
    let new_epoch = world.watch.connected_after(new.name(), old_epoch).await;
    let end = world
        .watch
        .until(SOON, "the old session ends", |seen| seen.drops().next().map(|ended| ended.end.clone()))
        .await;
    assert_eq!(end.status(), Some(ABORTED), "{end:?}");
    assert!(end.message.contains("superseded"), "{end:?}");

    // What the old session had and the new one does not know is sent again, as the same attempt.
    let later =
        database::enqueue(&mut database, &NewCommand::new(new.name(), b"for the new session")).await.unwrap();
    world.watch.all_settled(&[in_flight, later], SOON).await;
    let (epochs, stored) = world.watch.look(|seen| {
        let epochs: Vec<(Uuid, u64, u32)> =
            seen.received.iter().map(|one| (one.id, one.session_epoch, one.attempt)).collect();
        (epochs, seen.settled.iter().map(|one| one.stored).collect::<Vec<_>>())
    });
    assert_eq!(epochs, [(in_flight, old_epoch, 1), (in_flight, new_epoch, 1), (later, new_epoch, 1)]);
    assert_eq!(stored, ["succeeded", "succeeded"]);
    assert_eq!(world.watch.epoch_of(new.name()), new_epoch, "nobody came after the new session");
    drop(old);
    // Of the rows alone: the two machines of this node know nothing of each other's work.
    world.verify_rows().await;
}

#[tokio::test]
async fn a_session_on_another_shard_supersedes_too() {
    let world = World::new("across_shards").await;
    let _gateway = world.gateway("g", "[shards]\ncount = 4\npin = false").await;
    let mut database = world.connect().await;
    let control = control_address(&mut database, "g").await;
    let target = world.target("g", &world.register("roamer").await);
    let node = world.id("roamer");

    let (mut old, old_shard) = open_session(&target, &control, &[0; 4]).await;
    let old_epoch = say_hello(&mut old).await;

    // The kernel spreads connections over the shards: dial until one lands elsewhere.
    let mut before = [0; 4];
    before[old_shard] = 1;
    let mut dials = 0;
    let (mut new, new_shard) = loop {
        dials += 1;
        assert!(dials < 100, "a hundred connections all came to shard {old_shard} of 4");
        let (call, shard) = open_session(&target, &control, &before).await;
        if shard != old_shard {
            break (call, shard);
        }
        drop(call);
        asked_until(SOON, "the dial that came to the same shard is gone", async || {
            (sessions_by_shard(&health(&control).await.1) == before).then_some(())
        })
        .await;
    };
    let new_epoch = say_hello(&mut new).await;
    assert!(new_epoch > old_epoch, "epochs rise: {old_epoch}, then {new_epoch}");
    let end = old.end(SOON).await.expect("the old session ends");
    assert_eq!(end.status(), Some(ABORTED), "{end:?}");

    let mut only_new = [0; 4];
    only_new[new_shard] = 1;
    asked_until(SOON, "the session is on its new shard alone", async || {
        (sessions_by_shard(&health(&control).await.1) == only_new).then_some(())
    })
    .await;
    let id = database::enqueue(&mut database, &NewCommand::new(&node, b"x")).await.unwrap();
    let command = loop {
        match new.frame(SOON).await.expect("a command for the new session").expect("the session stands").frame
        {
            Some(gateway_frame::Frame::Command(command)) => break command,
            other => assert!(!matches!(other, Some(gateway_frame::Frame::Welcome(_))), "a second Welcome"),
        }
    };
    assert_eq!(Uuid::from_slice(&command.command_id).unwrap(), id);
    assert_eq!(command.session_epoch, new_epoch);
    support::measured(
        "shards of the old and the new session",
        format!("{old_shard} and {new_shard}, {dials} dials"),
    );
    world.verify().await;
}

/// Opens a stream that says nothing yet; gives it and the shard that has one session more than `before`.
async fn open_session(target: &Target, control: &str, before: &[u64]) -> (RawCall, usize) {
    let opening = RawCall::open(target, path::SESSION, HeaderMap::new());
    let mut call = within(SOON, "a stream is opened", opening).await.expect("a stream");
    let counted = asked_until(SOON, "the opened stream is counted by its shard", async || {
        let now = sessions_by_shard(&health(control).await.1);
        assert_eq!(now.len(), before.len(), "one count a shard");
        now.iter().zip(before).position(|(now, before)| now > before)
    });
    let shard = tokio::select! {
        shard = counted => shard,
        // Drives the call meanwhile; before the Hello nothing is due.
        early = call.next(SOON) => panic!("before its Hello the stream got {early:?}"),
    };
    (call, shard)
}

async fn say_hello(call: &mut RawCall) -> u64 {
    call.send(Frame::Hello(Hello {
        protocol: 1,
        boot_id: Uuid::new_v4().to_string(),
        lanes: vec![Lane { name: "default".to_owned(), capacity: 4 }],
        ..Hello::default()
    }));
    let answer: Result<_, End> = call.frame(SOON).await.expect("an answer to the Hello");
    match answer.expect("the session is welcomed").frame {
        Some(gateway_frame::Frame::Welcome(welcome)) => welcome.session_epoch,
        other => panic!("the first frame is {other:?}, not a Welcome"),
    }
}

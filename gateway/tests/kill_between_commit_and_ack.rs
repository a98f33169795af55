//! The gateway dies after a result was committed and before its node has read the ack. The node resends,
//! is acked with what is stored, and nothing happens twice.
//!
//! 1. The loss is made sure of: the node reads nothing until its connection is gone.
//! 2. An update stays stored once, a command keeps its attempt.

#![allow(clippy::unwrap_used)]

mod support;

use gateway_testbed::database::{self, DoneWaiter, NewCommand};
use gateway_testbed::node::{Behaviour, Execution, LogEvent};
use sqlx::PgConnection;
use support::{SOON, World};
use uuid::Uuid;

type Row = (String, i32, Option<Vec<u8>>, Option<String>, i32);

#[tokio::test]
async fn a_result_whose_ack_was_lost_is_acked_again_and_changes_nothing() {
    let world = World::new("lost_ack").await;
    let gateway = world.gateway("g", "").await;
    let mut database = world.connect().await;
    let held = Behaviour { execution: Execution::Held, ..Behaviour::default() };
    let node = world.node("deaf", "g", |options| options.behaviour = held.clone()).await;
    let mut done = DoneWaiter::new(&world.url).await.unwrap();
    let id = database::enqueue(&mut database, &NewCommand::new(node.name(), b"the result")).await.unwrap();
    world
        .watch
        .until(SOON, "the command is accepted, and that is acked", |seen| (seen.acks >= 1).then_some(()))
        .await;

    // From here on it reads nothing, so whatever the gateway answers is lost with the connection.
    node.behave(Behaviour { reads: false, ..held });
    node.release(Some(id));
    let row = done.wait(&mut database, node.name(), id, SOON).await.unwrap();
    assert_eq!((row.state.as_str(), row.result.as_deref()), ("succeeded", Some(&b"the result"[..])));
    let options = gateway.kill().unwrap();
    let stored = read(&mut database, id).await;
    world.watch.until(SOON, "the node has lost its connection", |seen| seen.drops().next().map(drop)).await;
    assert_eq!(world.watch.look(|seen| seen.settled.len()), 0, "the ack was not read");

    node.behave(Behaviour::default());
    let _gateway = world.start(options).await;
    world.watch.connected_after(node.name(), 1).await;
    world.watch.all_settled(&[id], SOON).await;
    world.watch.look(|seen| {
        assert_eq!((seen.settled[0].reported, seen.settled[0].stored), ("succeeded", "succeeded"));
        assert_eq!(seen.received.len(), 1, "it was not sent again: {:?}", seen.received);
        assert!(seen.rejected.is_empty(), "{:?}", seen.rejected);
    });
    assert_eq!(read(&mut database, id).await, stored, "the row is as it was");
    let starts = world.log_lines().iter().filter(|line| line.event == LogEvent::Started).count();
    assert_eq!(starts, 1, "one execution");
    world.ledger(&mut database, &[id]).await;
}

#[tokio::test]
async fn a_command_whose_dispatch_was_lost_with_the_gateway_is_sent_again_as_the_same_attempt() {
    let world = World::new("lost_command").await;
    let gateway = world.gateway("g", "").await;
    let mut database = world.connect().await;
    let node = world.node("deaf", "g", |options| options.behaviour.reads = true).await;
    // It does not read the command either: the mark is committed, the command never arrives.
    node.behave(Behaviour { reads: false, ..Behaviour::default() });
    let id = database::enqueue(&mut database, &NewCommand::new(node.name(), b"x")).await.unwrap();
    support::asked_until(SOON, "the command is marked as dispatched", async || {
        let row = database::command(&mut database, node.name(), id).await.unwrap();
        (row.state == "dispatched").then_some(())
    })
    .await;
    let options = gateway.kill().unwrap();
    world.watch.until(SOON, "the node has lost its connection", |seen| seen.drops().next().map(drop)).await;
    assert_eq!(world.watch.look(|seen| seen.received.len()), 0, "the command was not read");

    node.behave(Behaviour::default());
    let _gateway = world.start(options).await;
    world.watch.all_settled(&[id], SOON).await;
    world.watch.look(|seen| {
        let read: Vec<_> = seen.received.iter().map(|one| (one.id, one.attempt, one.session_epoch)).collect();
        assert_eq!(read, [(id, 1, 2)]);
    });
    let (_, attempt, _, _, replays) = read(&mut database, id).await;
    assert_eq!((attempt, replays), (1, 1), "the same attempt, replayed once");
    world.ledger(&mut database, &[id]).await;
}

async fn read(database: &mut PgConnection, id: Uuid) -> Row {
    let statement =
        "SELECT state::text, attempt, result, finished_at::text, replays FROM commands WHERE id = $1";
    sqlx::query_as(statement).bind(id).fetch_one(database).await.unwrap()
}

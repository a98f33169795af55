//! When a command may be sent: not before its time, never after it, and again after a refusal.
//!
//! What the database decides statement by statement is in db-writer's tests, and what a stock client
//! sees of refusals and cancellations in the conformance script; here it is what nodes get in the end.
//!
//! 1. All times are the database's; that something does not come is seen by what comes after it.

#![allow(clippy::unwrap_used)]

mod support;

use gateway_proto::v1::RefusalReason;
use gateway_testbed::database::{DoneWaiter, command};
use gateway_testbed::node::{Behaviour, Execution};
use sqlx::PgConnection;
use support::{SOON, World};
use uuid::Uuid;

const QUICK_SWEEPS: &str = "[sweeps]\nevery = '200ms'\n";

/// Enqueues on the lane `default`, with more of the function's arguments; they are the story's own.
async fn enqueue(database: &mut PgConnection, node: &str, more: &str) -> Uuid {
    let statement = format!("SELECT enqueue_command($1, 'test', notify => true {more})");
    let (id,) = sqlx::query_as(sqlx::AssertSqlSafe(statement)).bind(node).fetch_one(database).await.unwrap();
    id
}

/// Waits for the command's end, which is `state`.
async fn ends_as(world: &World, database: &mut PgConnection, node: &str, id: Uuid, state: &str) {
    let mut done = DoneWaiter::new(&world.url).await.unwrap();
    let row = done.wait(database, node, id, SOON).await.unwrap();
    assert_eq!(row.state, state, "{row:?}");
}

#[tokio::test]
async fn what_is_not_due_waits_and_blocks_nothing() {
    let world = World::new("not_before").await;
    let _gateway = world.gateway("g", "").await;
    let mut database = world.connect().await;
    let node = world.node("worker", "g", |_| {}).await;
    let later =
        enqueue(&mut database, node.name(), ", not_before => compute_now() + interval '1500 ms'").await;
    let now = enqueue(&mut database, node.name(), "").await;
    world.watch.all_settled(&[later, now], SOON).await;

    let order: Vec<Uuid> = world.watch.look(|seen| seen.received.iter().map(|one| one.id).collect());
    assert_eq!(order, [now, later]);
    let early: (bool,) = sqlx::query_as("SELECT dispatched_at < not_before FROM commands WHERE id = $1")
        .bind(later)
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert!(!early.0, "it was sent before its time");
    world.ledger(&mut database, &[later, now]).await;
}

#[tokio::test]
async fn what_is_too_late_expires_and_is_never_read() {
    let world = World::new("not_after").await;
    let _gateway = world.gateway("g", QUICK_SWEEPS).await;
    let mut database = world.connect().await;
    world.register("absent").await;
    let absent = world.id("absent");
    let busy = world
        .node("busy", "g", |options| {
            options.lanes = vec![("default".to_owned(), 1)];
            options.behaviour = Behaviour { execution: Execution::Held, ..Behaviour::default() };
        })
        .await;
    let held = enqueue(&mut database, busy.name(), "").await;
    world.watch.received(held, SOON).await;
    let soon_over = ", not_after => compute_now() + interval '1 s'";
    let unread = enqueue(&mut database, &absent, soon_over).await;
    let crowded_out = enqueue(&mut database, busy.name(), soon_over).await;
    let after = enqueue(&mut database, busy.name(), "").await;
    ends_as(&world, &mut database, &absent, unread, "expired").await;
    ends_as(&world, &mut database, busy.name(), crowded_out, "expired").await;

    // The lane goes on, and what expired is not among what it gets.
    busy.behave(Behaviour::default());
    busy.release(None);
    world.watch.all_settled(&[held, after], SOON).await;
    let read: Vec<Uuid> = world.watch.look(|seen| seen.received.iter().map(|one| one.id).collect());
    assert_eq!(read, [held, after]);
    world.ledger(&mut database, &[held, unread, crowded_out, after]).await;
}

#[tokio::test]
async fn a_refusal_is_tried_again_ever_later_until_the_attempts_are_used_up() {
    let world = World::new("refusals").await;
    let _gateway = world.gateway("g", "").await;
    let mut database = world.connect().await;
    let node = world
        .node("worker", "g", |options| {
            options.behaviour.execution =
                Execution::Refused { reason: RefusalReason::LaneFull, retryable: true };
        })
        .await;
    let refused = enqueue(&mut database, node.name(), ", max_attempts => 3").await;
    let final_refusal = enqueue(&mut database, node.name(), ", max_attempts => 1").await;
    ends_as(&world, &mut database, node.name(), refused, "refused").await;
    ends_as(&world, &mut database, node.name(), final_refusal, "refused").await;

    let (attempts, order) = world.watch.look(|seen| {
        let of = |id: Uuid| seen.received.iter().filter(move |one| one.id == id);
        let attempts: Vec<(u32, u64)> = of(refused).map(|one| (one.attempt, one.at_ns)).collect();
        (attempts, seen.received.iter().map(|one| (one.id, one.attempt)).collect::<Vec<_>>())
    });
    assert_eq!(attempts.iter().map(|(attempt, _)| *attempt).collect::<Vec<_>>(), [1, 2, 3]);
    let waits: Vec<u64> = attempts.windows(2).map(|pair| (pair[1].1 - pair[0].1) / 1_000_000).collect();
    assert!(waits[0] >= 900 && waits[1] >= 1_900, "a second, then two: {waits:?} ms");
    let second = order.iter().position(|one| *one == (refused, 2)).unwrap();
    let other = order.iter().position(|one| *one == (final_refusal, 1)).unwrap();
    assert!(other < second, "a refused command holds up nothing: {order:?}");
    let row = command(&mut database, node.name(), refused).await.unwrap();
    assert_eq!((row.attempt, row.done), (3, true));
    world.verify().await;
}

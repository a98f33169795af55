//! Two gateways share a database, and the one that sweeps for both is killed. The other takes the lead
//! when it has run out, and does what the dead one was to do: expire commands, and end the sessions
//! that the dead one left behind.
//!
//! 1. Before the kill the one that leads sweeps, and the other does not.
//! 2. After it each session of the dead gateway is ended once, and none of the living one's.
//! 3. A process that comes back finds the lead taken, and does not take it.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Instant;

use serde_json::Value;
use sqlx::PgConnection;
use support::health::{control_address, health};
use support::{SOON, World, asked_until, measured, seconds};

const CONFIG: &str = "[lease]\nttl = \"3s\"\nrenew_every = \"500ms\"\n[sweeps]\nevery = \"500ms\"\n";
const NODES: usize = 5;

#[tokio::test]
async fn the_gateway_that_sweeps_is_killed_and_the_other_one_expires_and_reaps_in_its_place() {
    let world = World::new("sweep_takeover").await;
    let first = world.gateway("first", CONFIG).await;
    let mut database = world.connect().await;
    let first_control = control_address(&mut database, "first").await;
    until_leads(&first_control).await;
    let second = world.gateway("second", CONFIG).await;
    let second_control = control_address(&mut database, "second").await;
    let left = world.nodes("left", NODES, "first", |_| {}).await;
    let stays = world.nodes("stays", NODES, "second", |_| {}).await;
    world.register("absent").await;

    let id = world.id("absent");
    let early = expiring(&mut database, &id, "200 ms").await;
    until_expired(&mut database, early).await;
    assert_eq!(sweeps(&second_control).await["leads"], false, "one gateway leads");
    assert_eq!(sweeps(&second_control).await["runs"], 0, "the other never swept");

    let late = expiring(&mut database, &id, "100 ms").await;
    let options = first.kill().unwrap();
    let killed = Instant::now();
    until_leads(&second_control).await;
    measured("from the kill until the other gateway led the sweeps", seconds(killed));
    until_expired(&mut database, late).await;
    asked_until(SOON, "the sessions that the dead gateway left are ended", async || {
        (connected(&mut database, "first").await == 0).then_some(())
    })
    .await;
    measured("from the kill until its sessions were ended", seconds(killed));
    assert_eq!(connected(&mut database, "second").await, NODES as i64, "those of the living one stand");
    let told: Vec<(String, i64)> = sqlx::query_as(
        "SELECT node_id, count(*) FROM outbox WHERE kind = 'node.disconnected' GROUP BY node_id ORDER BY node_id",
    )
    .fetch_all(&mut database)
    .await
    .unwrap();
    let expected: Vec<(String, i64)> = left.iter().map(|node| (node.name().to_owned(), 1)).collect();
    assert_eq!(told, expected, "each is published once");
    let leads: Vec<(i64, bool)> = sqlx::query_as(
        "SELECT h.epoch, h.owner = l.owner FROM leases_history h \
         JOIN leases l ON l.name = 'gateway:' || CASE h.epoch WHEN 1 THEN 'first' ELSE 'second' END \
         WHERE h.name = 'leader:sweeps' ORDER BY h.epoch",
    )
    .fetch_all(&mut database)
    .await
    .unwrap();
    assert_eq!(leads, [(1, true), (2, true)], "the lead passed on once, to the process that lives");

    // It comes back, and its nodes with it; the lead stays where it is.
    let _first = world.start(options).await;
    let first_control = control_address(&mut database, "first").await;
    world
        .watch
        .until(SOON, "its nodes are back", |seen| {
            left.iter().all(|node| seen.epoch_of(node.name()) >= 2).then_some(())
        })
        .await;
    let runs = sweeps(&second_control).await["runs"].as_u64().unwrap();
    asked_until(SOON, "the second gateway sweeps on", async || {
        (sweeps(&second_control).await["runs"].as_u64().unwrap() > runs + 1).then_some(())
    })
    .await;
    assert_eq!(sweeps(&first_control).await["leads"], false);
    assert_eq!(connected(&mut database, "first").await, NODES as i64, "a session that is new is not ended");
    world.verify().await;
    drop((second, stays));
}

/// What a gateway tells of its sweeps.
async fn sweeps(control: &str) -> Value {
    health(control).await.1["sweeps"].clone()
}

async fn until_leads(control: &str) {
    asked_until(SOON, "the gateway leads the sweeps", async || {
        (sweeps(control).await["leads"] == true).then_some(())
    })
    .await;
}

/// A command for a node that is not there, with an end so far from now.
async fn expiring(database: &mut PgConnection, node: &str, within: &str) -> uuid::Uuid {
    let query = "SELECT enqueue_command($1, 'work', not_after => compute_now() + $2::text::interval)";
    let (id,) = sqlx::query_as(query).bind(node).bind(within).fetch_one(database).await.unwrap();
    id
}

async fn until_expired(database: &mut PgConnection, id: uuid::Uuid) {
    asked_until(SOON, "a command whose time has passed is expired", async || {
        let query = "SELECT state::text FROM commands WHERE id = $1";
        let (state,): (String,) = sqlx::query_as(query).bind(id).fetch_one(&mut *database).await.unwrap();
        (state == "expired").then_some(())
    })
    .await;
}

async fn connected(database: &mut PgConnection, gateway: &str) -> i64 {
    let query = "SELECT count(*) FROM node_sessions WHERE gateway_id = $1 AND disconnected_at IS NULL";
    let (count,) = sqlx::query_as(query).bind(gateway).fetch_one(database).await.unwrap();
    count
}

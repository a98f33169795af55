//! Nodes stream events while their gateway is killed, twice, and their connections are cut. Each event
//! is stored exactly once, in its place, and no ack was a lie.
//!
//! 1. Both kills fall into the middle of the stream: asserted by what is acked and by what is not.
//! 2. What is acked when the gateway dies is in the database then, not only at the end.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use gateway_testbed::node::Node;
use sqlx::PgConnection;
use support::{World, measured, seconds};

const NODES: usize = 16;
const EVENTS: u64 = 600;
/// Small batches, so that a stream takes many commits.
const CONFIG: &str = "[sessions]\nevents_per_batch = 5\n";

#[tokio::test]
async fn killed_in_the_middle_of_streams_every_event_is_stored_once_and_contiguous() {
    let world = World::new("events_kill").await;
    let gateway = world.gateway("g", CONFIG).await;
    let nodes = world.nodes("node", NODES, "g", |_| {}).await;
    let mut database = world.connect().await;
    let began = Instant::now();
    for node in &nodes {
        for seq in 1..=EVENTS {
            node.emit("story.event", body(node.name(), seq));
        }
    }

    let mut gateway = gateway;
    for part in [4, 2] {
        let wanted = NODES as u64 * EVENTS / part;
        world
            .watch
            .until(Duration::from_secs(30), "a part of the events is acked", |seen| {
                (acked(&nodes, seen) >= wanted).then_some(())
            })
            .await;
        let options = gateway.kill().unwrap();
        let acked = world.watch.look(|seen| cursors(&nodes, seen));
        let sum: u64 = acked.iter().sum();
        measured("events acked when the gateway was killed", sum);
        assert!(sum < NODES as u64 * EVENTS, "the kill came too late: all was acked");
        for (node, acked) in nodes.iter().zip(acked) {
            let stored = stored(&mut database, node.name()).await;
            assert!(stored >= acked, "{}: {stored} events of {acked} acked ones are stored", node.name());
        }
        gateway = world.start(options).await;
        // A cut in the middle of the next stretch, beside the kill.
        nodes[0].cut();
    }

    world
        .watch
        .until(Duration::from_secs(60), "every event is acked", |seen| {
            (acked(&nodes, seen) == NODES as u64 * EVENTS).then_some(())
        })
        .await;
    measured("from the first event until all were acked, over two kills", seconds(began));
    for node in &nodes {
        check_journal(&mut database, node.name()).await;
    }
    let (all,): (i64,) =
        sqlx::query_as("SELECT count(*) FROM events").fetch_one(&mut database).await.unwrap();
    assert_eq!(all as u64, NODES as u64 * EVENTS, "and nothing else");
    world.watch.look(|seen| assert!(seen.event_rejections.is_empty(), "{:?}", seen.event_rejections));
    world.verify().await;
    drop(gateway);
}

/// The second process of a node, with a journal of its own, begins a cursor of its own.
#[tokio::test]
async fn a_new_journal_begins_at_one_and_the_old_one_stays() {
    let world = World::new("events_new_journal").await;
    let _gateway = world.gateway("g", "").await;
    let mut database = world.connect().await;
    for (journal, count) in [("first", 3), ("second", 2), ("first", 0)] {
        let node = world.node("reinstalled", "g", |options| options.journal = journal.to_owned()).await;
        for seq in 1..=count {
            node.emit("story.event", body(journal, seq));
        }
        let expected = if journal == "first" { 3 } else { 2 };
        world
            .watch
            .until(support::SOON, "its events are acked, by an ack or by Welcome", |seen| {
                let told = seen.last_cursor.as_ref().map(|(_, journal, seq)| (journal.as_str(), *seq));
                (told == Some((journal, expected))).then_some(())
            })
            .await;
        node.goodbye().await;
    }
    let rows: Vec<(String, i64, i64)> = sqlx::query_as(
        "SELECT j.journal_id, j.acked_seq, (SELECT count(*) FROM events e WHERE (e.node_id, e.journal_id) = \
         (j.node_id, j.journal_id)) FROM node_journals j ORDER BY 1",
    )
    .fetch_all(&mut database)
    .await
    .unwrap();
    assert_eq!(rows, [("first".to_owned(), 3, 3), ("second".to_owned(), 2, 2)]);
    world.verify().await;
}

fn body(name: &str, seq: u64) -> Bytes {
    Bytes::from(format!("{seq} of {name}"))
}

fn cursors(nodes: &[Node], seen: &support::watch::Seen) -> Vec<u64> {
    nodes.iter().map(|node| seen.events_acked_to(node.name())).collect()
}

fn acked(nodes: &[Node], seen: &support::watch::Seen) -> u64 {
    cursors(nodes, seen).iter().sum()
}

async fn stored(database: &mut PgConnection, node: &str) -> u64 {
    let query = "SELECT count(*) FROM events WHERE node_id = $1";
    let (count,): (i64,) = sqlx::query_as(query).bind(node).fetch_one(database).await.unwrap();
    count as u64
}

async fn check_journal(database: &mut PgConnection, node: &str) {
    let rows: Vec<(i64, Vec<u8>)> =
        sqlx::query_as("SELECT seq, body FROM events WHERE node_id = $1 ORDER BY seq")
            .bind(node)
            .fetch_all(&mut *database)
            .await
            .unwrap();
    let expected: Vec<(i64, Vec<u8>)> =
        (1..=EVENTS).map(|seq| (seq as i64, body(node, seq).to_vec())).collect();
    assert_eq!(rows, expected, "the journal of {node}");
    let cursors: Vec<(i64,)> = sqlx::query_as("SELECT acked_seq FROM node_journals WHERE node_id = $1")
        .bind(node)
        .fetch_all(database)
        .await
        .unwrap();
    assert_eq!(cursors, [(EVENTS as i64,)], "one journal of {node}, acked to its end");
}

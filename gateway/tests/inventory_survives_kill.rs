//! Nodes change their inventories while their gateway is killed: in the end the database has what the nodes
//! have, and each ack was true.
//!
//! 1. What is acked when the gateway dies is in the database then.
//! 2. A change that was never sent is found out: by the Hello after the kill, or from a heartbeat's list.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use gateway_testbed::node::{Behaviour, Node, hash_of};
use sqlx::PgConnection;
use support::{SOON, World};

const NODES: usize = 12;
const SECTIONS: usize = 8;
const ROUNDS: usize = 40;

#[tokio::test]
async fn killed_while_sections_change_the_database_ends_with_what_the_nodes_have() {
    let world = World::new("inventory_kill").await;
    let gateway = world.gateway("g", "").await;
    let nodes = world
        .nodes("node", NODES, "g", |options| {
            options.heartbeat = Some(Duration::from_millis(300));
            options.behaviour.lists_inventory = true;
        })
        .await;
    let mut database = world.connect().await;
    for round in 0..ROUNDS {
        change_all(&nodes, round);
    }
    let acks = |seen: &support::watch::Seen| seen.sections_stored.len();
    world
        .watch
        .until(SOON, "some sections are acked", |seen| (acks(seen) >= NODES * SECTIONS).then_some(()))
        .await;
    let options = gateway.kill().unwrap();
    let (acked, total) = world.watch.look(|seen| {
        let acked: BTreeSet<(String, String)> =
            seen.sections_stored.iter().map(|(node, section)| (node.to_string(), section.clone())).collect();
        (acked, acks(seen))
    });
    assert!(total < NODES * SECTIONS * ROUNDS, "the kill came too late: all was acked");
    let stored: BTreeSet<(String, String)> =
        stored(&mut database).await.into_iter().map(|(node, section, _)| (node, section)).collect();
    assert!(acked.is_subset(&stored), "what was acked is there");

    // While there is no gateway, half of the nodes change once more.
    change_all(&nodes[..NODES / 2], ROUNDS);
    let _gateway = world.start(options).await;
    until_stored(&world, &mut database, |node| if node < NODES / 2 { ROUNDS } else { ROUNDS - 1 }).await;
    world.watch.look(|seen| assert!(seen.section_rejections.is_empty(), "{:?}", seen.section_rejections));
}

/// What is not sent unasked is found out from the heartbeats' lists, and asked for in the same session.
#[tokio::test]
async fn a_change_that_is_not_sent_is_asked_for_after_a_heartbeat() {
    let world = World::new("inventory_heartbeat").await;
    let _gateway = world.gateway("g", "").await;
    let silent = Behaviour { lists_inventory: true, sends_changes: false, ..Behaviour::default() };
    let node = world
        .node("quiet", "g", |options| {
            options.sections = vec![("cpu".to_owned(), body("quiet", 0, 0))];
            options.heartbeat = Some(Duration::from_millis(200));
            options.behaviour = silent;
        })
        .await;
    let mut database = world.connect().await;
    let what = |section: &str| format!("{section} is stored");
    let is_stored = |section: &'static str, times: usize| {
        move |seen: &support::watch::Seen| {
            let of_section = seen.sections_stored.iter().filter(|(_, stored)| stored == section);
            (of_section.count() == times).then_some(())
        }
    };
    world.watch.until(SOON, &what("cpu"), is_stored("cpu", 1)).await;
    assert_eq!(world.watch.look(|seen| seen.sections_wanted.len()), 1, "by Welcome");
    let epoch = world.watch.epoch_of(node.name());
    node.set_section("cpu", body("quiet", 0, 1));
    node.set_section("disk", body("quiet", 1, 1));
    world.watch.until(SOON, &what("cpu again"), is_stored("cpu", 2)).await;
    world.watch.until(SOON, &what("disk"), is_stored("disk", 1)).await;
    assert_eq!(world.watch.epoch_of(node.name()), epoch, "in the same session");
    let rows: Vec<Vec<u8>> =
        sqlx::query_scalar("SELECT body FROM inventory_sections WHERE node_id = $1 ORDER BY section")
            .bind(node.name())
            .fetch_all(&mut database)
            .await
            .unwrap();
    assert_eq!(rows, [body("quiet", 0, 1), body("quiet", 1, 1)]);
}

fn change_all(nodes: &[Node], round: usize) {
    for (number, node) in nodes.iter().enumerate() {
        for section in 0..SECTIONS {
            node.set_section(&name(section), body(&number.to_string(), section, round));
        }
    }
}

fn name(section: usize) -> String {
    format!("section-{section}")
}

fn body(node: &str, section: usize, round: usize) -> Bytes {
    Bytes::from(format!("round {round} of section {section} of {node}").repeat(20))
}

async fn stored(database: &mut PgConnection) -> Vec<(String, String, Vec<u8>)> {
    sqlx::query_as("SELECT node_id, section, hash FROM inventory_sections ORDER BY node_id, section")
        .fetch_all(database)
        .await
        .unwrap()
}

/// Waits until each node's sections are stored as they were in that round; each ack is a reason to look.
async fn until_stored(world: &World, database: &mut PgConnection, round: impl Fn(usize) -> usize) {
    let expected: BTreeSet<(String, String, Vec<u8>)> = (0..NODES)
        .flat_map(|node| {
            let round = round(node);
            (0..SECTIONS).map(move |section| {
                let hash = hash_of(&body(&node.to_string(), section, round));
                (node, name(section), hash.to_vec())
            })
        })
        .map(|(node, section, hash)| (world.id(&format!("node-{node:03}")), section, hash))
        .collect();
    let mut seen_acks = 0;
    loop {
        let found: BTreeSet<_> = stored(database).await.into_iter().collect();
        if found == expected {
            return;
        }
        seen_acks = world
            .watch
            .until(SOON, "another section is acked, since not all are stored", |seen| {
                Some(seen.sections_stored.len()).filter(|acks| *acks > seen_acks)
            })
            .await;
    }
}

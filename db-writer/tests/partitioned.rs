//! The stories of the store once more, on tables that are hash-partitioned by node.
//!
//! Every table whose key begins with the node is made into one of four partitions before a story begins
//! (`support/partition.sql`), so that an operator may do the same. The stories are the files beside this
//! one, as they stand; which form a database has is told by the name of this crate alone.
//!
//! 1. No table that can be partitioned by node is left out, and no query needs one to be whole.

#![allow(clippy::unwrap_used)]
// Each file of stories has the words of its own, as it does when it is a test of its own.
#![allow(clippy::duplicate_mod)]

#[path = "dispatch.rs"]
mod dispatch;
#[path = "enqueue.rs"]
mod enqueue;
#[path = "events.rs"]
mod events;
#[path = "failures.rs"]
mod failures;
#[path = "hello.rs"]
mod hello;
#[path = "lease.rs"]
mod lease;
#[path = "locks.rs"]
mod locks;
#[path = "model.rs"]
mod model;
#[path = "round_trips.rs"]
mod round_trips;
mod support;
#[path = "sweeps.rs"]
mod sweeps;
#[path = "updates.rs"]
mod updates;

use support::*;

#[tokio::test]
async fn every_table_whose_key_begins_with_the_node_is_partitioned() {
    let mut db = database().await;
    let kinds = "SELECT c.relname || ' ' || c.relkind::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid \
                 WHERE c.relnamespace = 'public'::regnamespace AND a.attname = 'node_id' AND c.relkind IN ('r', 'p') \
                 AND NOT c.relispartition ORDER BY 1";
    let tables = texts(&mut db.sql, kinds).await;
    // Certificates are looked up by serial, and what is published is read in its own order.
    let (whole, partitioned): (Vec<_>, Vec<_>) = tables.iter().partition(|line| line.ends_with(" r"));
    assert_eq!(whole, ["node_certs r", "outbox r"]);
    for name in ["commands", "events", "journals", "node_liveness", "node_sessions", "nodes"] {
        assert!(partitioned.contains(&&format!("{name} p")), "{name}: {partitioned:?}");
    }
}

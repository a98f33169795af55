//! The schema as others rely on it: names of tables and columns, and the one clock.
//!
//! What is stored in them is told by the other stories; that every hot table can be partitioned by node, by
//! `partitioned`.

#![allow(clippy::unwrap_used)]

mod support;

use support::*;

/// Table by table, the columns that other services and `gateway verify` read.
const CONTRACT: [(&str, &str); 16] = [
    ("allocations", "bound_report bound_sig bound_sig_kid id node_id state tenant_id"),
    (
        "commands",
        "attempt dispatched_at dispatched_by id lane lane_capacity lane_in_flight lease_epoch node_id seq \
         session_epoch state",
    ),
    ("events", "body journal_id kind node_id seq"),
    ("gateways", "draining heartbeat_at id internal_url max_streams region sessions started_at version"),
    ("inventory_sections", "body hash node_id section"),
    ("leases", "epoch expires_at name owner"),
    ("leases_history", "epoch name owner"),
    ("node_certs", "allowed_kinds node_id not_after revoked_at revoked_reason role serial tenant_controlled"),
    ("node_counters", "node_id"),
    ("node_journals", "acked_seq journal_id node_id"),
    ("node_liveness", "last_seen_at node_id"),
    ("node_sessions", "boot_id connected_at disconnected_at gateway_id machine node_id session_epoch"),
    ("nodes", "node_id tenant_id"),
    ("outbox", "body kind node_id"),
    ("specs", "body generation name node_id"),
    ("work", "key kind"),
];

#[tokio::test]
async fn the_tables_that_others_rely_on_have_their_names() {
    let mut db = database().await;
    for (table, columns) in CONTRACT {
        let query = format!(
            "SELECT a.attname FROM pg_attribute a WHERE a.attrelid = to_regclass('public.{table}') AND a.attnum > 0 \
             AND NOT a.attisdropped"
        );
        let found = texts(&mut db.sql, &query).await;
        for column in columns.split_whitespace() {
            assert!(found.iter().any(|name| name == column), "{table}.{column} is gone; there are {found:?}");
        }
    }
}

/// Functions and literals that read a clock of their own.
const OTHER_CLOCKS: [&str; 8] = [
    "now()",
    "clock_timestamp()",
    "statement_timestamp()",
    "transaction_timestamp()",
    "timeofday()",
    "current_timestamp",
    "localtimestamp",
    "current_date",
];

#[test]
fn no_statement_reads_another_clock_than_the_one() {
    let mut offenders = Vec::new();
    let mut files = 0;
    for folder in ["queries", "migrations"] {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            files += 1;
            for line in text.lines() {
                let code = line.split("--").next().unwrap_or_default().to_lowercase();
                let code = code.replace("compute_now()", "");
                // The clock itself; and an id's first bits, which order it and decide nothing.
                // And how long a call of hooks has run, which is no date.
                let is_its_own = code.contains("as 'select statement_timestamp()'")
                    || code.contains("began timestamptz := clock_timestamp()")
                    || code.contains("clock_timestamp() - began >= patience_ms")
                    || code.contains("int8send(floor(extract(epoch from clock_timestamp())");
                if !is_its_own && OTHER_CLOCKS.iter().any(|clock| code.contains(clock)) {
                    offenders.push(format!("{}: {line}", path.display()));
                }
            }
        }
    }
    assert!(files > 20, "the statements were not found");
    assert!(offenders.is_empty(), "compute_now() is the one clock:\n{}", offenders.join("\n"));
}

#[tokio::test]
async fn the_one_clock_stands_still_within_a_statement() {
    let mut db = database().await;
    let within = "SELECT count(DISTINCT compute_now()) FROM generate_series(1, 1000) i, pg_sleep(0.02)";
    assert_eq!(number(&mut db.sql, within).await, 1);
    let first = text(&mut db.sql, "SELECT compute_now()").await;
    assert_ne!(text(&mut db.sql, "SELECT compute_now()").await, first, "and goes on between statements");
}

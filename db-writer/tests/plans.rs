//! Plans: what is cached while the tables are empty must be right when they are large.
//!
//! Every file of `queries/` is listed here, but for the two that are asked once, at the start; a new one
//! fails the count until it is added. How much a statement reads when rows have died is held in `dead_rows`.

#![allow(clippy::unwrap_used)]

mod support;

use support::*;

const QUERIES: [(&str, &str); 36] = [
    ("cancels", include_str!("../queries/cancels.sql")),
    ("certificate_look", include_str!("../queries/certificate_look.sql")),
    ("dispatch", DISPATCH),
    ("events_append", include_str!("../queries/events_append.sql")),
    ("events_cursors", include_str!("../queries/events_cursors.sql")),
    ("events_lock", include_str!("../queries/events_lock.sql")),
    ("events_write", include_str!("../queries/events_write.sql")),
    ("hello_commands", include_str!("../queries/hello_commands.sql")),
    ("hello_sessions", include_str!("../queries/hello_sessions.sql")),
    ("hello_write", include_str!("../queries/hello_write.sql")),
    ("hooks_publish", include_str!("../queries/hooks_publish.sql")),
    ("hooks_reports", include_str!("../queries/hooks_reports.sql")),
    ("hooks_statuses", include_str!("../queries/hooks_statuses.sql")),
    ("hooks_tenants", include_str!("../queries/hooks_tenants.sql")),
    ("inventory_look", include_str!("../queries/inventory_look.sql")),
    ("inventory_store", include_str!("../queries/inventory_store.sql")),
    ("lanes_lock", include_str!("../queries/lanes_lock.sql")),
    ("lanes_read", include_str!("../queries/lanes_read.sql")),
    ("lanes_remark", include_str!("../queries/lanes_remark.sql")),
    ("lease_lock", include_str!("../queries/lease_lock.sql")),
    ("lease_release", include_str!("../queries/lease_release.sql")),
    ("lease_renew", include_str!("../queries/lease_renew.sql")),
    ("lease_seed", include_str!("../queries/lease_seed.sql")),
    ("lease_take", include_str!("../queries/lease_take.sql")),
    ("presence", include_str!("../queries/presence.sql")),
    ("revocations_all", include_str!("../queries/revocations_all.sql")),
    ("revocations_changed", include_str!("../queries/revocations_changed.sql")),
    ("specs_applied", include_str!("../queries/specs_applied.sql")),
    ("specs_due", include_str!("../queries/specs_due.sql")),
    ("statuses_write", include_str!("../queries/statuses_write.sql")),
    ("sweep_dead", include_str!("../queries/sweep_dead.sql")),
    ("sweep_expire", include_str!("../queries/sweep_expire.sql")),
    ("sweep_lead", include_str!("../queries/sweep_lead.sql")),
    ("sweep_reap", include_str!("../queries/sweep_reap.sql")),
    ("sweep_resign", include_str!("../queries/sweep_resign.sql")),
    ("updates", include_str!("../queries/updates.sql")),
];

fn parameters(query: &str) -> usize {
    query
        .split('$')
        .skip(1)
        .filter_map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok())
        .max()
        .unwrap_or(0)
}

#[tokio::test]
async fn no_cached_plan_scans_a_table_or_an_index_from_end_to_end() {
    let mut db = database().await;
    run(&mut db.sql, PLANNING).await;
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/queries")).unwrap().count();
    assert_eq!(
        files,
        QUERIES.len() + 2,
        "schema_version.sql and hooks_check.sql alone are asked once; the others are listed here"
    );
    for (name, query) in QUERIES {
        let nulls = vec!["NULL"; parameters(query)].join(", ");
        run(&mut db.sql, &format!("PREPARE {name} AS {query}")).await;
        let plan = texts(&mut db.sql, &format!("EXPLAIN EXECUTE {name}({nulls})")).await;
        let whole = plan.join("\n");
        for (line, next) in plan.iter().zip(plan.iter().skip(1)) {
            assert!(!line.contains("Seq Scan"), "{name}: a table is scanned\n{whole}");
            // A partial index of nothing but what is asked for may be read from end to end.
            let small = line.contains("commands_to_cancel");
            assert!(
                !line.contains("Scan using") && !line.contains("Scan Backward using")
                    || next.contains("Index Cond")
                    || small,
                "{name}: an index is scanned\n{line}\n{whole}"
            );
            let of_commands = line.contains(" on commands ") && line.contains("Scan");
            // By the time at which they end, over all nodes: that is the expiry's question.
            let by_end = line.contains("commands_expiring") && next.contains("not_after");
            // By where the row lies, which was found by its node.
            let by_place = next.contains("TID Cond");
            assert!(
                !of_commands || small || by_end || by_place || next.contains("node_id"),
                "{name}: no node is named\n{whole}"
            );
        }
    }
}

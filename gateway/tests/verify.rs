//! `gateway verify` sees every invariant break: each is broken in a private database, and named.
//!
//! 1. Before the break everything holds; after it exactly that invariant does not.
//! 2. No invariant is without its break.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;

use gateway::operate::INVARIANTS;
use gateway_testbed::node::{LogEvent, LogLine};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use support::{SOON, World, within};

/// A node on gateway g1: two commands that succeeded, one that runs, one that is pending; three events,
/// of one of which a hook failed; a spec that it has applied; a section.
const SOUND: &str = "
    SELECT register_node('n1');
    INSERT INTO leases VALUES ('gateway:g1', 'o1', 1, now() + interval '1 h');
    INSERT INTO leases_history VALUES ('gateway:g1', 1, 'o1', '', now() - interval '2 h');
    UPDATE node_sessions SET gateway_id = 'g1', session_epoch = 1, lease_epoch = 1, lanes = '{default}',
        lane_capacities = '{2}', connected_at = now() - interval '1 h';
    UPDATE node_liveness SET session_epoch = 1, last_seen_at = now();
    INSERT INTO commands (node_id, id, seq, lane, kind, state, dispatched_by, lease_epoch, session_epoch,
                          dispatched_at, started_at, finished_at, lane_capacity, lane_in_flight, lane_floor)
    SELECT 'n1', gen_random_uuid(), c.seq, 'default', 'echo', c.state::command_state, 'g1', 1, 1,
           now() - c.sent * interval '1 min', now() - c.sent * interval '1 min',
           now() - c.ended * interval '1 min', 2, c.in_flight, c.floor
    FROM (VALUES (1, 'succeeded', 50, 49, 1, 1), (2, 'succeeded', 40, 30, 1, 2), (3, 'running', 35, NULL, 2, 2))
        c (seq, state, sent, ended, in_flight, floor);
    SELECT enqueue_command('n1', 'echo');
    INSERT INTO node_journals (node_id, journal_id, acked_seq) VALUES ('n1', 'j', 3);
    INSERT INTO events (node_id, journal_id, seq, kind) SELECT 'n1', 'j', i, 'k' FROM generate_series(1, 3) i;
    INSERT INTO outbox (kind, node_id, body)
    VALUES ('node.report-failed', 'n1', '{\"journal_id\": \"j\", \"seq\": 1, \"kind\": \"k\", \"hook\": \"h\"}');
    INSERT INTO inventory_sections (node_id, section, hash, body) VALUES ('n1', 'cpu', sha256('b'), 'b');
    SELECT set_spec('n1', 'dns', 'body');
    UPDATE specs SET applied_generation = 1, applied_outcome = 'applied', applied_at = now();";

/// The invariant, and what breaks it alone.
const BREAKS: [(&str, &str); 28] = [
    ("seq-without-gap", "DELETE FROM commands WHERE seq = 2"),
    ("known-node", "DELETE FROM node_liveness"),
    ("known-node", "INSERT INTO commands (node_id, id, seq, lane, kind) VALUES ('n2', gen_random_uuid(), 1, 'l', 'k')"),
    ("one-end", "UPDATE commands SET started_at = NULL WHERE seq = 3"),
    ("one-end", "UPDATE commands SET finished_at = now() WHERE seq = 4"),
    ("ran-was-sent", "UPDATE commands SET dispatched_at = NULL, dispatched_by = NULL WHERE seq = 1"),
    (
        "fifo",
        "UPDATE commands SET dispatched_at = now() - interval '20 min', finished_at = now() - interval '19 min'
         WHERE seq = 1",
    ),
    (
        "due-after-cursor",
        "UPDATE commands SET state = 'pending', dispatched_at = NULL, dispatched_by = NULL, started_at = NULL,
             finished_at = NULL WHERE seq = 2",
    ),
    ("in-flight-above-floor", "UPDATE commands SET lane_floor = 4 WHERE seq = 3"),
    ("capacity-as-told", "UPDATE commands SET lane_in_flight = 3 WHERE seq = 3"),
    ("capacity-by-rows", "UPDATE commands SET lane_capacity = 1, lane_in_flight = 1 WHERE seq = 3"),
    ("lease-epochs-rise", "INSERT INTO leases_history VALUES ('gateway:g1', 2, 'o2', 'o1', now())"),
    ("lease-epochs-rise", "DELETE FROM leases"),
    ("session-epochs-rise", "UPDATE node_liveness SET session_epoch = 9"),
    ("session-epochs-rise", "UPDATE commands SET session_epoch = 0 WHERE seq = 3"),
    ("events-contiguous", "DELETE FROM events WHERE seq = 2"),
    ("events-contiguous", "INSERT INTO events (node_id, journal_id, seq, kind) VALUES ('n1', 'j', 5, 'k')"),
    ("events-contiguous", "DELETE FROM events WHERE seq = 3"),
    ("events-contiguous", "UPDATE node_journals SET acked_seq = 4"),
    ("events-in-journals", "INSERT INTO events (node_id, journal_id, seq, kind) VALUES ('n1', 'k', 1, 'k')"),
    ("spec-answers-were-sent", "UPDATE specs SET applied_generation = 2"),
    ("spec-answers-were-sent", "UPDATE specs SET applied_outcome = NULL"),
    ("failed-report-stored", "UPDATE outbox SET body = body || '{\"seq\": 4}'"),
    ("hook-failed-once", "INSERT INTO outbox (kind, node_id, body) SELECT kind, node_id, body FROM outbox"),
    ("inventory-hash", "UPDATE inventory_sections SET body = 'another'"),
    (
        "dispatch-under-lease",
        "UPDATE leases SET epoch = 2, owner = 'o2';
         INSERT INTO leases_history VALUES ('gateway:g1', 2, 'o2', 'o1', now() - interval '37 min')",
    ),
    ("hello-under-lease", "UPDATE node_sessions SET lease_epoch = 7"),
    ("not-after-kept", "UPDATE commands SET not_after = dispatched_at - interval '1 s' WHERE seq = 1"),
];

async fn verify(url: &str, more: &[&str]) -> (i32, String) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_gateway"));
    command.arg("verify").args(["--database-url", url]).args(more).kill_on_drop(true);
    let output = within(SOON, "gateway verify", command.output()).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout) + &text(&output.stderr))
}

fn broken(document: &str) -> Vec<Value> {
    let document: Value =
        serde_json::from_str(document).unwrap_or_else(|error| panic!("{error}: {document}"));
    let invariants = document["invariants"].as_array().unwrap();
    assert_eq!(document["holds"], invariants.iter().all(|one| one["holds"] == true));
    invariants.iter().filter(|one| one["holds"] == false).cloned().collect()
}

#[tokio::test]
async fn every_invariant_that_is_broken_is_named_with_the_rows_that_break_it() {
    let world = World::new("verify").await;
    let mut sound = world.connect().await;
    sound.execute(SOUND).await.unwrap();
    let (code, text) = verify(&world.url, &[]).await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(&format!("All {} invariants hold.", INVARIANTS.len())), "{text}");

    for (index, (name, breaking)) in BREAKS.into_iter().enumerate() {
        // In a transaction it would not be seen from outside: a copy of the database for each.
        let copy = format!("{}_{index}", world.database);
        let url = world.url.replace(&world.database, &copy);
        let statement = format!("CREATE DATABASE {copy} TEMPLATE {}", world.database);
        drop(std::mem::replace(&mut sound, elsewhere(&world).await));
        sound.execute(AssertSqlSafe(statement)).await.unwrap();
        let mut connection = PgConnection::connect(&url).await.unwrap();
        connection.execute(AssertSqlSafe(breaking.to_owned())).await.unwrap();

        let (code, document) = verify(&url, &["--json"]).await;
        assert_eq!(code, 1, "{name}: {document}");
        let found = broken(&document);
        let names: Vec<&str> = found.iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(names, [name], "by {breaking}: {document}");
        assert!(!found[0]["rows"].as_array().unwrap().is_empty(), "{document}");
        let (code, text) = verify(&url, &["--only", name]).await;
        assert_eq!(code, 1, "{text}");
        assert!(text.contains(&format!("BROKEN  {name}: ")), "{text}");
    }
    let covered: BTreeSet<&str> = BREAKS.iter().map(|(name, _)| *name).collect();
    let all: BTreeSet<&str> = INVARIANTS.iter().map(|invariant| invariant.name).collect();
    assert_eq!(covered, all, "every invariant has a break");
}

/// A connection to another database: a template must have none.
async fn elsewhere(world: &World) -> PgConnection {
    let url = world.url.replace(&world.database, "postgres");
    PgConnection::connect(&url).await.unwrap()
}

#[tokio::test]
async fn the_nodes_own_logs_are_held_against_the_rows() {
    let world = World::new("verify_logs").await;
    let _gateway = world.gateway("g", "").await;
    let node = world.node("n1", "g", |_| {}).await;
    let mut connection = world.connect().await;
    let nodes = vec![node.name().to_owned(); 20];
    let ids = gateway_testbed::database::enqueue_many(&mut connection, &nodes, b"x").await.unwrap();
    world.watch.all_settled(&ids, SOON).await;
    let lines = world.log_lines();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nodes.jsonl");
    let write = |lines: &[LogLine], torn: &str| {
        let lines: Vec<String> =
            lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect();
        std::fs::write(&path, lines.concat() + torn).unwrap();
    };
    let logs = ["--node-logs", path.to_str().unwrap()];

    // As it was; the last line as a killed node leaves it.
    write(&lines, "{\"t\":1,\"no");
    let (code, text) = verify(&world.url, &logs).await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("holds   log-one-start") && text.contains("torn"), "{text}");

    let of = |event: LogEvent| {
        lines.iter().position(|line| line.id == ids[3] && line.event == event).expect("a line of the command")
    };
    type Break = (&'static str, Box<dyn Fn(&mut Vec<LogLine>)>);
    let (started, acked) = (of(LogEvent::Started), of(LogEvent::Acked));
    let last_acked =
        lines.iter().rposition(|line| line.id == ids[3] && line.event == LogEvent::Acked).unwrap_or(acked);
    let breaks: [Break; 4] = [
        ("log-one-start", Box::new(move |lines| lines.push(lines[started].clone()))),
        ("log-ended-was-started", Box::new(move |lines| drop(lines.remove(started)))),
        ("log-acked-is-stored", Box::new(move |lines| lines[last_acked].state = Some("failed".to_owned()))),
        (
            "log-ran-is-known",
            Box::new(move |lines| {
                let mut line = lines[started].clone();
                line.id = uuid::Uuid::new_v4();
                lines.push(line);
            }),
        ),
    ];
    for (name, break_it) in breaks {
        let mut changed = lines.clone();
        break_it(&mut changed);
        write(&changed, "");
        let (code, document) = verify(&world.url, &[&logs[..], &["--json"]].concat()).await;
        assert_eq!(code, 1, "{name}: {document}");
        let found = broken(&document);
        let names: Vec<&str> = found.iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(names, [name], "{document}");
    }
    write(&lines[..1], "not json\n");
    let (code, text) = verify(&world.url, &logs).await;
    assert!(code == 2 && text.contains("line 2: is no line of a node's log"), "{code}: {text}");
}

// More nodes than one query is about, and of each more rows than a page has.
#[tokio::test]
async fn every_row_of_every_node_is_held_against_the_logs_whatever_page_it_is_on() {
    let world = World::new("verify_pages").await;
    let mut connection = world.connect().await;
    connection
        .execute(
            "SELECT register_node('n' || i) FROM generate_series(1, 60) i;
             INSERT INTO commands (node_id, id, seq, lane, kind, state, dispatched_at, finished_at)
             SELECT n.node_id, new_command_id(), i, 'default', 'x', 'succeeded', now(), now()
             FROM nodes n, generate_series(1, CASE n.node_id WHEN 'n7' THEN 2100 ELSE 3 END) i",
        )
        .await
        .unwrap();
    let rows: Vec<(String, uuid::Uuid)> =
        sqlx::query_as("SELECT node_id, id FROM commands ORDER BY node_id COLLATE \"C\", id")
            .fetch_all(&mut connection)
            .await
            .unwrap();
    // Of the first node, of a third page, of the last node.
    let third_page = rows.iter().position(|(node, _)| node == "n7").unwrap() + 2050;
    let left_out = [0, third_page, rows.len() - 1].map(|place| rows[place].1);
    let log = rows.iter().map(|(node, id)| {
        let event = if left_out.contains(id) { "received" } else { "started" };
        format!("{}\n", serde_json::json!({"node": node, "event": event, "id": id, "attempt": 1}))
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nodes.jsonl");
    std::fs::write(&path, log.collect::<String>()).unwrap();
    let (_, document) = verify(&world.url, &["--json", "--node-logs", path.to_str().unwrap()]).await;
    let found = broken(&document);
    let ended = found.iter().find(|one| one["name"] == "log-ended-was-started").expect("what never started");
    let named: BTreeSet<String> =
        ended["rows"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(named, left_out.map(|id| id.to_string()).into(), "{document}");
}

#[tokio::test]
async fn the_rows_that_are_shown_are_bounded_and_it_is_said_that_there_are_more() {
    let world = World::new("verify_rows").await;
    let mut connection = world.connect().await;
    connection.execute("SELECT register_node('n' || i) FROM generate_series(1, 30) i").await.unwrap();
    connection.execute("DELETE FROM node_counters").await.unwrap();
    let (code, document) = verify(&world.url, &["--json", "--rows", "7"]).await;
    assert_eq!(code, 1, "{document}");
    let found = broken(&document);
    assert_eq!(
        (found[0]["rows"].as_array().unwrap().len(), &found[0]["more"]),
        (7, &true.into()),
        "{document}"
    );
    let (_, text) = verify(&world.url, &["--rows", "7"]).await;
    assert!(text.contains("--rows shows more"), "{text}");
}

#[test]
fn names_are_unique_and_sentences_are_sentences() {
    let names: BTreeSet<&str> = INVARIANTS.iter().map(|invariant| invariant.name).collect();
    assert_eq!(names.len(), INVARIANTS.len());
    assert!(INVARIANTS.iter().all(|invariant| invariant.sentence.ends_with('.')));
}

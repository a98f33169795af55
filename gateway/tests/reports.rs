//! Reports and statuses through a whole gateway: hooks that the configuration names run once, whatever is
//! killed; a function that is not there is refused before anything is served; a slow one holds up nobody else.
//!
//! 1. What a hook did is read from the database, with the events that it was told.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use gateway::Gateway;
use gateway::config::Config;
use gateway::hooks::{EmbeddedHooks, HookFuture, HookTransaction, Report, ReportHook};
use gateway_proto::v1::SignedEnvelope;
use gateway_testbed::database::{NewCommand, enqueue};
use gateway_testbed::gateway_process::GatewayProcess;
use gateway_testbed::node::Node;
use sqlx::{AssertSqlSafe, Executor, PgConnection};
use support::{SOON, World, asked_until, measured, seconds};

const NODES: usize = 6;
const EVENTS: u64 = 120;
const STATUSES: u64 = 20;

const FUNCTIONS: &str = "
    CREATE SCHEMA acme;
    CREATE TABLE acme.doors (node_id text, subject text);
    CREATE FUNCTION acme.on_door(told report) RETURNS void LANGUAGE sql AS $$
        INSERT INTO acme.doors VALUES (told.node_id, told.journal_id || ' ' || told.seq) $$;
    CREATE FUNCTION acme.on_alarm(told report) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO acme.doors VALUES (told.node_id, 'never kept');
        RAISE EXCEPTION 'nobody is there';
    END $$;
    CREATE FUNCTION acme.on_word(told status_report) RETURNS void LANGUAGE sql AS $$
        INSERT INTO acme.doors VALUES (told.node_id, told.id) $$;
";

const CONFIG: &str = "
[sessions]
events_per_batch = 5

[hooks.reports]
\"door\" = \"acme.on_door\"
\"alarm\" = [\"acme.on_door\", \"acme.on_alarm\"]

[hooks.statuses]
\"word\" = \"acme.on_word\"
";

async fn count(database: &mut PgConnection, query: &str) -> i64 {
    let (count,): (i64,) = sqlx::query_as(AssertSqlSafe(query.to_owned())).fetch_one(database).await.unwrap();
    count
}

fn acked(nodes: &[Node], seen: &support::watch::Seen) -> u64 {
    nodes.iter().map(|node| seen.events_acked_to(node.name())).sum()
}

/// Every event is a report, every third one with a hook that fails; statuses go beside them.
fn speak(nodes: &[Node]) {
    for node in nodes {
        for seq in 1..=EVENTS {
            let kind = if seq % 3 == 0 { "alarm" } else { "door" };
            node.emit(kind, Bytes::from(format!("{seq}")));
        }
        for number in 1..=STATUSES {
            node.tell_status(&format!("word {number}"), "word", Bytes::new());
        }
    }
}

#[tokio::test]
async fn killed_in_the_middle_every_hook_has_run_once_for_what_is_stored_once() {
    let world = World::new("reports_kill").await;
    let mut database = world.connect().await;
    database.execute(FUNCTIONS).await.unwrap();
    let mut gateway = world.gateway("g", CONFIG).await;
    let nodes = world.nodes("node", NODES, "g", |_| {}).await;
    let began = Instant::now();
    speak(&nodes);
    let all = NODES as u64 * EVENTS;
    for part in [4, 2] {
        world
            .watch
            .until(SOON * 2, "a part of the events is acked", |seen| {
                (acked(&nodes, seen) >= all / part).then_some(())
            })
            .await;
        let options = gateway.kill().unwrap();
        assert!(world.watch.look(|seen| acked(&nodes, seen)) < all, "the kill came too late: all was acked");
        gateway = world.start(options).await;
    }
    world
        .watch
        .until(SOON * 3, "every event and status is acked", |seen| {
            let statuses = seen.statuses.len() as u64 == NODES as u64 * STATUSES;
            (acked(&nodes, seen) == all && statuses).then_some(())
        })
        .await;
    measured("from the first report until all were acked, over two kills", seconds(began));
    let counted = [
        // Each event once, and each status once: by (node, subject) and not only in sum.
        ("SELECT count(*) FROM acme.doors", all + NODES as u64 * STATUSES),
        ("SELECT count(DISTINCT (node_id, subject)) FROM acme.doors", all + NODES as u64 * STATUSES),
        ("SELECT count(*) FROM events", all),
        ("SELECT count(*) FROM node_statuses", NODES as u64 * STATUSES),
        ("SELECT count(*) FROM outbox WHERE kind = 'node.report-failed'", all / 3),
        (
            "SELECT count(DISTINCT (node_id, body ->> 'seq')) FROM outbox WHERE kind = 'node.report-failed'",
            all / 3,
        ),
    ];
    for (query, expected) in counted {
        assert_eq!(count(&mut database, query).await as u64, expected, "{query}");
    }
    world.verify().await;
}

/// All that a gateway says that does not start.
async fn refusal(world: &World) -> String {
    let options = world.options("g", CONFIG);
    let log = options.log_path();
    let _ = std::fs::remove_file(&log);
    GatewayProcess::start(options).await.unwrap_err();
    std::fs::read_to_string(log).unwrap()
}

#[tokio::test]
async fn a_function_that_is_not_there_is_refused_with_what_to_create() {
    let world = World::new("reports_refused").await;
    let mut database = world.connect().await;
    database
        .execute("CREATE SCHEMA acme; CREATE FUNCTION acme.on_word(text) RETURNS void LANGUAGE sql AS ''")
        .await
        .unwrap();
    let refused = refusal(&world).await;
    for sentence in [
        "hooks.reports: kind \"door\" names the function acme.on_door, which is not there; create it, or name another:",
        "CREATE FUNCTION acme.on_door(told report) RETURNS void LANGUAGE plpgsql AS $$",
        "hooks.reports: kind \"alarm\" names the function acme.on_alarm, which is not there",
        "names the function acme.on_word, which does not take a status_report (there is acme.on_word(text))",
        "CREATE FUNCTION acme.on_word(told status_report) RETURNS void",
    ] {
        assert!(refused.contains(sentence), "no {sentence:?} in {refused}");
    }
    // As it was told, but for a result that a hook has not.
    database
        .execute(
            "CREATE FUNCTION acme.on_door(told report) RETURNS void LANGUAGE plpgsql AS $$ BEGIN END $$;
             CREATE FUNCTION acme.on_alarm(told report) RETURNS integer LANGUAGE sql AS 'SELECT 1';
             CREATE FUNCTION acme.on_word(told status_report) RETURNS void LANGUAGE plpgsql AS $$ BEGIN END $$;",
        )
        .await
        .unwrap();
    let refused = refusal(&world).await;
    assert!(refused.contains("acme.on_alarm, which does not return void"), "{refused}");
    assert!(
        !refused.contains("acme.on_door, which") && !refused.contains("acme.on_word, which"),
        "{refused}"
    );
    database
        .execute(
            "DROP FUNCTION acme.on_alarm(report);
             CREATE FUNCTION acme.on_alarm(told report) RETURNS void LANGUAGE plpgsql AS $$ BEGIN END $$;",
        )
        .await
        .unwrap();
    let gateway = world.gateway("g", CONFIG).await;

    // Gone while it serves: a failing hook, and the stream goes on.
    database.execute("DROP FUNCTION acme.on_door(report)").await.unwrap();
    let node = world.node("n", "g", |_| {}).await;
    node.emit("door", Bytes::new());
    node.emit("plain", Bytes::new());
    world
        .watch
        .until(SOON, "both are acked", |seen| (seen.events_acked_to(node.name()) == 2).then_some(()))
        .await;
    let failed =
        "SELECT count(*) FROM outbox WHERE kind = 'node.report-failed' AND body ->> 'sqlstate' = '42883'";
    assert_eq!(count(&mut database, failed).await, 1);
    drop(gateway);
}

#[tokio::test]
async fn what_a_node_signed_is_kept_as_received_for_a_worker_and_no_other_node_binds() {
    let world = World::new("reports_attested").await;
    let _gateway = world.gateway("g", "[hooks]\nattested_bindings = true\n").await;
    let owner = world.node("owner", "g", |_| {}).await;
    let thief = world.node("thief", "g", |_| {}).await;
    let mut database = world.connect().await;
    let id = uuid::Uuid::new_v4();
    sqlx::query("INSERT INTO allocations (node_id, id, tenant_id, state) VALUES ($1, $2, 't', 'placed')")
        .bind(owner.name())
        .bind(id)
        .execute(&mut database)
        .await
        .unwrap();
    let body = Bytes::from(format!("{{\"allocation_id\": \"{id}\"}}"));
    let envelope = |word: &str| SignedEnvelope {
        body: Bytes::from(format!("\u{0}{word} signed this")),
        kid: format!("key of {word}"),
        signature: Bytes::from_static(&[0, 255, 7]),
    };
    for node in [&thief, &owner] {
        node.emit_signed("allocation.bound", body.clone(), envelope(node.name()));
        world
            .watch
            .until(SOON, "its event is acked", |seen| (seen.events_acked_to(node.name()) == 1).then_some(()))
            .await;
    }
    let rows: Vec<(String, Vec<u8>, String, Vec<u8>)> =
        sqlx::query_as("SELECT state, bound_report, bound_sig_kid, bound_sig FROM allocations")
            .fetch_all(&mut database)
            .await
            .unwrap();
    let SignedEnvelope { body, kid, signature } = envelope(owner.name());
    assert_eq!(rows, [("bound-unverified".to_owned(), body.to_vec(), kid, signature.to_vec())]);
    let work: Vec<(String, String)> =
        sqlx::query_as("SELECT kind, key FROM work").fetch_all(&mut database).await.unwrap();
    assert_eq!(work, [("allocation.verify".to_owned(), id.to_string())]);
    let failed = "SELECT count(*) FROM outbox WHERE kind = 'node.report-failed'";
    assert_eq!(
        count(&mut database, failed).await,
        0,
        "another node's allocation is an unknown one, not an error"
    );
}

/// Notes doors, and has each looked at.
struct DoorLog;

impl ReportHook for DoorLog {
    fn name(&self) -> &str {
        "door-log"
    }

    fn on_report<'a>(
        &'a self,
        report: Report<'a>,
        transaction: &'a mut HookTransaction<'_>,
    ) -> HookFuture<'a> {
        Box::pin(async move {
            sqlx::query("INSERT INTO doors VALUES ($1, $2)")
                .bind(report.node.as_str())
                .bind(&report.event.body[..])
                .execute(&mut *transaction.connection())
                .await?;
            transaction.enqueue_work("door.look", report.node.as_str(), "{}").await?;
            Ok(())
        })
    }
}

#[tokio::test]
async fn a_program_that_embeds_a_gateway_runs_hooks_of_its_own() {
    let world = World::new("reports_embedded").await;
    let mut database = world.connect().await;
    database.execute("CREATE TABLE doors (node_id text, body bytea)").await.unwrap();
    let options = world.options("g", "");
    options.write().unwrap();
    let config = Config::load(&options.config_path()).unwrap();
    let hooks = EmbeddedHooks::default().on_report("door", DoorLog);
    let mut gateway = Gateway::start_with(&config, hooks).unwrap();
    gateway.wait_until_serving(SOON).unwrap();
    let node = world.node("n", "g", |_| {}).await;
    for body in ["1", "2"] {
        node.emit("door", Bytes::from_static(body.as_bytes()));
    }
    node.emit("other", Bytes::new());
    world
        .watch
        .until(SOON, "its events are acked", |seen| (seen.events_acked_to(node.name()) == 3).then_some(()))
        .await;
    let rows: Vec<(String, Vec<u8>)> = sqlx::query_as("SELECT node_id, body FROM doors ORDER BY body")
        .fetch_all(&mut database)
        .await
        .unwrap();
    assert_eq!(rows, ["1", "2"].map(|body| (node.name().to_owned(), body.as_bytes().to_vec())));
    assert_eq!(count(&mut database, "SELECT count(*) FROM work WHERE kind = 'door.look'").await, 1);
    gateway.stop();
    tokio::task::spawn_blocking(|| gateway.join()).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_hook_that_takes_long_holds_up_no_hello_no_command_no_update_and_no_status() {
    let world = World::new("reports_slow").await;
    let mut database = world.connect().await;
    database
        .execute(
            "CREATE FUNCTION slow(told report) RETURNS void LANGUAGE sql AS $$
                 SELECT FROM pg_advisory_xact_lock(4711) $$",
        )
        .await
        .unwrap();
    let extra = "[hooks]\ntimeout = \"30s\"\nreports = { \"slow\" = \"slow\" }\n";
    let _gateway = world.gateway("g", extra).await;
    let first = world.node("first", "g", |_| {}).await;
    let third = world.node("third", "g", |_| {}).await;
    let mut holder = world.connect().await;
    holder.execute("SELECT pg_advisory_lock(4711)").await.unwrap();
    first.emit("slow", Bytes::new());
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'gateway % events' \
                   AND wait_event = 'advisory' AND datname = current_database()";
    asked_until(SOON, "the hook is running", async || {
        (count(&mut database, waiting).await == 1).then_some(())
    })
    .await;

    // While it runs: a Hello, commands and their updates, a status; and a command for the node itself, whose
    // own updates wait behind its event, as every durable frame of a session waits for the one before.
    let began = Instant::now();
    let second = world.node("second", "g", |_| {}).await;
    let mut ids = Vec::new();
    for node in [&first, &second, &third] {
        ids.push(enqueue(&mut database, &NewCommand::new(node.name(), b"x")).await.unwrap());
    }
    world.watch.received(ids[0], SOON).await;
    world.watch.all_settled(&ids[1..], SOON).await;
    second.tell_status("s", "plain", Bytes::new());
    world.watch.until(SOON, "the status is acked", |seen| seen.statuses.first().map(|_| ())).await;
    measured("a Hello, three commands and a status beside a hook that runs", seconds(began));
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(count(&mut database, waiting).await, 1, "the hook ran all the while");
    assert_eq!(world.watch.look(|seen| seen.events_acked_to(first.name())), 0, "and its event is not acked");

    holder.execute("SELECT pg_advisory_unlock(4711)").await.unwrap();
    world
        .watch
        .until(SOON, "the event is acked", |seen| (seen.events_acked_to(first.name()) == 1).then_some(()))
        .await;
    world.watch.all_settled(&ids, SOON).await;
}

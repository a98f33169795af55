//! Hooks in PostgreSQL: each runs once for what is stored once, in its transaction, and one that fails or
//! hangs takes back what it did and holds up nothing else.
//!
//! What is told, by SQL and in Rust, is compared with what was sent; what a failure leaves is read from
//! `outbox`. Which batches are made, and how many hooks they may have, is the core's.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gateway_core::frame::{Attested, Event, EventBatch, RejectCode, Status};
use gateway_core::ids::*;
use gateway_core::seam::{EventsRequest, StatusRequest};
use gateway_core::store::*;
use gateway_db_writer::hooks::{
    EmbeddedHooks, HookError, HookFuture, HookTransaction, Hooks, Report, ReportHook, StatusHook,
    StatusReport,
};
use gateway_db_writer::{QueueRunner, WriterStatus};
use support::*;

/// Longer than any hook of these stories takes, but for those that are to hang.
const PATIENCE: Duration = Duration::from_secs(20);

/// Tables and functions of the stories. `slow` names what it waits for, so that a story can see it.
const FUNCTIONS: &str = "
    CREATE TABLE seen (what text NOT NULL, number bigint, UNIQUE (what, number) DEFERRABLE INITIALLY DEFERRED);
    CREATE FUNCTION note(told report) RETURNS void LANGUAGE sql AS $$
        INSERT INTO seen VALUES ('note ' || told.node_id, told.seq) $$;
    CREATE FUNCTION fail(told report) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO seen VALUES ('fail', told.seq);
        RAISE EXCEPTION 'no % today', told.seq USING ERRCODE = 'GW001';
    END $$;
    CREATE FUNCTION fail_late(told report) RETURNS void LANGUAGE sql AS $$
        INSERT INTO seen VALUES ('note ' || told.node_id, 1) $$;
    CREATE FUNCTION hang(told report) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO seen VALUES ('hang', told.seq);
        PERFORM pg_sleep(600);
    END $$;
    CREATE FUNCTION wait(told report) RETURNS void LANGUAGE sql AS $$
        INSERT INTO seen SELECT 'waited', told.seq FROM pg_advisory_xact_lock(7) $$;
    CREATE FUNCTION leave(told report) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_terminate_backend(pg_backend_pid());
        PERFORM pg_sleep(600);
    END $$;
    CREATE FUNCTION leave_status(told status_report) RETURNS void LANGUAGE sql AS $$
        SELECT leave(NULL) $$;
    CREATE FUNCTION commit_it(told report) RETURNS void LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$;
    CREATE FUNCTION note_status(told status_report) RETURNS void LANGUAGE sql AS $$
        INSERT INTO seen VALUES (concat_ws('|', told.node_id, told.tenant_id, told.id, told.kind, told.boot_id,
                                           encode(told.body, 'escape')), NULL) $$;
    CREATE FUNCTION fail_status(told status_report) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO seen VALUES ('fail', NULL);
        PERFORM 1 / 0;
    END $$;
";

async fn stage() -> Db {
    let mut db = database().await;
    db.nodes(3).await;
    run(&mut db.sql, FUNCTIONS).await;
    run(&mut db.sql, "UPDATE nodes SET tenant_id = 'tenant of ' || node_id").await;
    db
}

/// The hooks of a gateway: reports of a kind run the function of that name.
fn by_name(timeout: Duration) -> Hooks {
    let mut hooks = Hooks::new(timeout, EmbeddedHooks::default());
    for name in ["note", "fail", "fail_late", "hang", "wait", "leave", "commit_it", "gone"] {
        hooks.add_report_function(name, name);
    }
    hooks.add_report_function("many", "note");
    hooks.add_report_function("many", "fail");
    hooks.add_report_function("many", "note");
    hooks.add_status_function("note", "note_status");
    hooks.add_status_function("leave", "leave_status");
    hooks.add_status_function("both", "fail_status");
    hooks.add_status_function("both", "note_status");
    hooks
}

fn runner(db: &Db, queue: Queue, hooks: Hooks) -> QueueRunner {
    db.runner(queue).with_hooks(Arc::new(hooks), Arc::default())
}

/// A run of a journal from `first` on, with an event of each kind.
fn reports(name: &str, first: u64, kinds: &[&str]) -> EventsRequest {
    let event = |(seq, kind): (u64, &&str)| Event {
        seq: EventSeq(seq),
        kind: (*kind).to_owned(),
        body: Bytes::from(format!("body {seq}")),
        attested: None,
        refused: None,
    };
    EventsRequest {
        key: SessionKey { shard: ShardId(0), slot: 1, serial: 1 },
        node: node(name),
        batch: Arc::new(EventBatch {
            frame_ref: FrameRef(1),
            journal: JournalId::new("j").unwrap(),
            boot_id: "boot".to_owned(),
            events: (first..).zip(kinds).map(event).collect(),
        }),
    }
}

fn status(name: &str, id: &str, kind: &str, body: &str) -> StatusRequest {
    StatusRequest {
        key: SessionKey { shard: ShardId(0), slot: 1, serial: 1 },
        node: node(name),
        boot_id: "boot".into(),
        status: Status {
            frame_ref: FrameRef(1),
            id: id.to_owned(),
            kind: kind.to_owned(),
            body: Bytes::copy_from_slice(body.as_bytes()),
        },
    }
}

fn acks(outcome: Outcome) -> Vec<u64> {
    let Outcome::Events(Ok(outcomes)) = outcome else { panic!("{outcome:?}") };
    outcomes.iter().map(|outcome| outcome.acked.0).collect()
}

async fn store(runner: &mut QueueRunner, entries: Vec<EventsRequest>) -> Vec<u64> {
    acks(runner.run(&Job::Events { entries }).await)
}

async fn tell(runner: &mut QueueRunner, entries: Vec<StatusRequest>) -> Vec<bool> {
    let outcome = runner.run(&Job::Statuses { entries }).await;
    let Outcome::Statuses(Ok(outcomes)) = outcome else { panic!("{outcome:?}") };
    outcomes.iter().map(|outcome| outcome.is_new).collect()
}

async fn seen(db: &mut Db) -> Vec<String> {
    texts(&mut db.sql, "SELECT concat_ws(' ', what, number) FROM seen ORDER BY what, number").await
}

/// What was published of failures: node, what it was about, hook, SQLSTATE, message.
async fn failures(db: &mut Db) -> Vec<String> {
    texts(
        &mut db.sql,
        "SELECT concat_ws('|', node_id, body ->> 'journal_id', body ->> 'seq', body ->> 'status_id', body ->> 'kind',
                          body ->> 'hook', body ->> 'sqlstate', body ->> 'message')
         FROM outbox WHERE kind = 'node.report-failed' ORDER BY id",
    )
    .await
}

#[tokio::test]
async fn a_report_is_told_all_of_its_event_once_and_never_again_for_a_resend() {
    let mut db = stage().await;
    run(
        &mut db.sql,
        "CREATE TABLE told (told report NOT NULL);
         CREATE FUNCTION keep(told report) RETURNS void LANGUAGE sql AS $$ INSERT INTO told SELECT told $$",
    )
    .await;
    let mut hooks = by_name(PATIENCE);
    hooks.add_report_function("keep", "keep");
    let mut runner = runner(&db, Queue::Events, hooks);
    let mut request = reports("n1", 1, &["keep", "plain", "keep"]);
    let attested = Attested { body: "signed".into(), kid: "key-1".into(), signature: "sig".into() };
    Arc::make_mut(&mut request.batch).events[2].attested = Some(attested);
    for _ in 0..3 {
        assert_eq!(store(&mut runner, vec![request.clone()]).await, [3]);
    }
    // Behind a gap: not stored, and not told.
    assert_eq!(store(&mut runner, vec![reports("n1", 5, &["keep"])]).await, [3]);
    let told = texts(
        &mut db.sql,
        "SELECT concat_ws('|', (told).node_id, (told).tenant_id, (told).journal_id, (told).seq, (told).kind,
                          (told).boot_id, (told).signed, encode((told).attested_body, 'escape'), (told).attested_kid,
                          encode((told).attested_signature, 'escape'), encode((told).body, 'escape'))
         FROM told ORDER BY (told).seq",
    )
    .await;
    assert_eq!(
        told,
        ["n1|tenant of n1|j|1|keep|boot|f|body 1", "n1|tenant of n1|j|3|keep|boot|t|signed|key-1|sig|body 3"]
    );
    // What comes again beside what is new is not told again; a tombstone is no report.
    let mut more = reports("n1", 2, &["plain", "keep", "keep", "keep"]);
    Arc::make_mut(&mut more.batch).events[3].refuse(RejectCode::Invalid, "no".to_owned());
    assert_eq!(store(&mut runner, vec![more.clone(), more]).await, [5, 5]);
    assert_eq!(number(&mut db.sql, "SELECT count(*) FROM told").await, 3);
    assert_eq!(failures(&mut db).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_hook_that_fails_leaves_its_name_alone_and_all_others_work() {
    let mut db = stage().await;
    let status = Arc::new(WriterStatus::default());
    let mut runner = db.runner(Queue::Events).with_hooks(Arc::new(by_name(PATIENCE)), Arc::clone(&status));
    let entries = vec![
        reports("n2", 1, &["note", "many", "plain"]),
        // A constraint that is checked at the commit, a function that is not there, a COMMIT.
        reports("n1", 1, &["note", "fail", "fail_late", "gone", "commit_it", "note"]),
    ];
    assert_eq!(store(&mut runner, entries).await, [3, 6]);
    assert_eq!(seen(&mut db).await, ["note n1 1", "note n1 6", "note n2 1", "note n2 2"]);
    assert_eq!(
        failures(&mut db).await,
        [
            "n1|j|2|fail|fail|GW001|no 2 today",
            "n1|j|3|fail_late|fail_late|23505|duplicate key value violates unique constraint \"seen_what_number_key\"",
            "n1|j|4|gone|gone|42883|function gone(report) does not exist",
            "n1|j|5|commit_it|commit_it|2D000|invalid transaction termination",
            "n2|j|2|many|fail|GW001|no 2 today",
            // The same hook twice for one event breaks the constraint of its table.
            "n2|j|2|many|note|23505|duplicate key value violates unique constraint \"seen_what_number_key\"",
        ]
    );
    assert_eq!(number(&mut db.sql, "SELECT count(*) FROM events").await, 9, "each event is stored");
    assert_eq!(status.hooks_run.load(Ordering::Relaxed), 10);
    assert_eq!(status.hooks_failed.load(Ordering::Relaxed), 6);
}

#[tokio::test]
async fn a_hook_that_hangs_is_ended_and_those_behind_it_have_their_own_time() {
    let mut db = stage().await;
    let timeout = Duration::from_millis(200);
    let mut runner = runner(&db, Queue::Events, by_name(timeout));
    let began = Instant::now();
    let entries = vec![reports("n1", 1, &["note", "hang", "note", "hang", "note"])];
    assert_eq!(store(&mut runner, entries).await, [5]);
    let took = began.elapsed();
    assert!(took >= timeout * 4, "each may take up to twice its time: {took:?}");
    assert!(took < PATIENCE, "none took its 600 s: {took:?}");
    assert_eq!(seen(&mut db).await, ["note n1 1", "note n1 3", "note n1 5"]);
    assert_eq!(
        failures(&mut db).await,
        [
            "n1|j|2|hang|hang|57014|canceling statement due to statement timeout",
            "n1|j|4|hang|hang|57014|canceling statement due to statement timeout",
        ]
    );
    // Its lock time-out is the same.
    let mut holder = db.client("holder").await;
    run(&mut holder, "BEGIN; SELECT pg_advisory_xact_lock(7)").await;
    assert_eq!(store(&mut runner, vec![reports("n1", 6, &["wait", "note"])]).await, [7]);
    let last = failures(&mut db).await.pop().unwrap();
    assert_eq!(last, "n1|j|6|wait|wait|55P03|canceling statement due to lock timeout");
}

#[tokio::test]
async fn the_settings_that_hooks_get_end_with_their_transaction() {
    let mut db = stage().await;
    run(
        &mut db.sql,
        "CREATE FUNCTION settings(told report) RETURNS void LANGUAGE sql AS $$
             INSERT INTO seen SELECT name || ' ' || setting, told.seq FROM pg_settings
             WHERE name IN ('enable_hashjoin', 'statement_timeout', 'cpu_operator_cost') $$",
    )
    .await;
    let mut hooks = by_name(Duration::from_secs(3));
    hooks.add_report_function("settings", "settings");
    let mut runner = runner(&db, Queue::Events, hooks);
    for seq in 1..=2 {
        assert_eq!(store(&mut runner, vec![reports("n1", seq, &["settings"])]).await, [seq]);
    }
    assert_eq!(
        seen(&mut db).await,
        [
            "cpu_operator_cost 0.0025 1",
            "cpu_operator_cost 0.0025 2",
            "enable_hashjoin on 1",
            "enable_hashjoin on 2",
            "statement_timeout 6000 1",
            "statement_timeout 6000 2"
        ],
        "the database's own"
    );
}

#[tokio::test]
async fn what_a_hook_sets_for_good_ends_with_it_and_what_it_makes_hides_no_table() {
    let mut db = stage().await;
    run(
        &mut db.sql,
        "CREATE FUNCTION meddle(told report) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
             CREATE TEMP TABLE IF NOT EXISTS events (LIKE public.events INCLUDING ALL);
             SET synchronous_commit = off;
             SET search_path = pg_catalog;
             SET ROLE pg_monitor;
             PERFORM pg_advisory_lock(8);
         END $$;
         CREATE FUNCTION look(told report) RETURNS void LANGUAGE sql AS $$
             INSERT INTO seen VALUES (current_setting('role') || ' ' || current_setting('synchronous_commit'), told.seq) $$",
    )
    .await;
    let mut hooks = by_name(Duration::from_secs(5));
    hooks.add_report_function("meddle", "meddle");
    hooks.add_report_function("look", "look");
    let mut runner = runner(&db, Queue::Events, hooks);
    // The one behind it in the same batch is called as if it had not been.
    assert_eq!(store(&mut runner, vec![reports("n1", 1, &["meddle", "note"])]).await, [2]);
    assert_eq!(failures(&mut db).await, [] as [&str; 0]);
    // And the next batch of its connection waits for the disk, and is stored where it belongs.
    assert_eq!(store(&mut runner, vec![reports("n1", 3, &["look", "plain"])]).await, [4]);
    assert_eq!(seen(&mut db).await, ["none on 3", "note n1 2"]);
    assert_eq!(number(&mut db.sql, "SELECT count(*) FROM public.events").await, 4);
    assert_eq!(text(&mut db.sql, "SELECT pg_try_advisory_lock(8)::text").await, "true", "its lock is gone");
}

#[tokio::test]
async fn a_connection_that_is_cut_under_a_hook_loses_and_doubles_nothing() {
    let mut db = stage().await;
    let mut runner = runner(&db, Queue::Events, by_name(PATIENCE));
    let mut holder = db.client("holder").await;
    run(&mut holder, "BEGIN; SELECT pg_advisory_xact_lock(7)").await;
    let entries = vec![reports("n1", 1, &["note", "wait", "note"])];
    let job = Job::Events { entries: entries.clone() };
    let storing = tokio::spawn(async move {
        let outcome = runner.run(&job).await;
        (runner, outcome)
    });
    db.until_waits_for("gateway g1 events", "holder").await;
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'gateway g1 events' \
               AND datname = current_database()";
    run(&mut db.sql, cut).await;
    let (mut runner, outcome) = storing.await.unwrap();
    assert!(matches!(outcome, Outcome::Events(Err(StoreError::Retry(_)))), "{outcome:?}");
    assert_eq!(number(&mut db.sql, "SELECT count(*) FROM events").await, 0);
    assert_eq!(seen(&mut db).await, Vec::<String>::new());
    run(&mut holder, "ROLLBACK").await;
    assert_eq!(store(&mut runner, entries).await, [3]);
    assert_eq!(seen(&mut db).await, ["note n1 1", "note n1 3", "waited 2"]);
}

/// How often a job fails until it is done; its outcome.
async fn tries(runner: &mut QueueRunner, job: &Job) -> (usize, Outcome) {
    for failed in 0..10 {
        match runner.run(job).await {
            Outcome::Events(Err(StoreError::Retry(_))) | Outcome::Statuses(Err(StoreError::Retry(_))) => {}
            outcome => return (failed, outcome),
        }
    }
    panic!("it is tried for ever");
}

const LEFT_OUT: &str =
    "what it is told could not be stored together with it, several times, and is stored without it";

#[tokio::test]
async fn a_hook_that_ends_its_connection_each_time_is_left_out_and_all_else_is_stored_and_told() {
    let mut db = stage().await;
    let mut runner = runner(&db, Queue::Events, by_name(PATIENCE));
    let job = Job::Events {
        entries: vec![reports("n1", 1, &["note", "leave", "note"]), reports("n2", 1, &["note", "fail"])],
    };
    let (failed, outcome) = tries(&mut runner, &job).await;
    assert_eq!((failed, acks(outcome)), (4, vec![3, 2]), "once with others, three times alone");
    assert_eq!(seen(&mut db).await, ["note n1 1", "note n1 3", "note n2 1"]);
    let told = failures(&mut db).await;
    assert_eq!(
        told,
        [format!("n1|j|2|leave|leave|{LEFT_OUT}"), "n2|j|2|fail|fail|GW001|no 2 today".to_owned()]
    );
    // It is left out for that event alone.
    let (failed, outcome) =
        tries(&mut runner, &Job::Events { entries: vec![reports("n1", 4, &["leave"])] }).await;
    assert_eq!((failed, acks(outcome)), (3, vec![4]));
}

#[tokio::test]
async fn a_handler_and_a_rust_hook_that_end_their_connection_are_left_out_too() {
    let mut db = stage().await;
    let mut statuses = runner(&db, Queue::Statuses, by_name(PATIENCE));
    let entries = vec![status("n1", "a", "leave", "x"), status("n2", "b", "note", "y")];
    let (failed, outcome) = tries(&mut statuses, &Job::Statuses { entries }).await;
    assert!(failed == 4 && matches!(outcome, Outcome::Statuses(Ok(_))), "{failed}, {outcome:?}");
    let mut events = runner(&db, Queue::Events, embedded(PATIENCE));
    let (failed, outcome) =
        tries(&mut events, &Job::Events { entries: vec![orders(1, &["ok", "end", "ok"])] }).await;
    assert_eq!((failed, acks(outcome)), (3, vec![3]), "a hook in Rust is always alone");
    assert_eq!(
        failures(&mut db).await,
        [format!("n1|a|leave|leave_status|{LEFT_OUT}"), format!("n1|j|2|rust|obedient|{LEFT_OUT}")]
    );
    assert_eq!(seen(&mut db).await.len(), 3);
}

#[tokio::test]
async fn hooks_that_fail_the_commit_alone_are_left_out_and_their_event_is_stored() {
    let mut db = stage().await;
    // What the trigger makes at the end of the hook is checked at the commit.
    run(
        &mut db.sql,
        "CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF NEW.what = 'spoilt' THEN RAISE EXCEPTION 'at the commit'; END IF;
             SET CONSTRAINTS ALL DEFERRED;
             INSERT INTO seen VALUES ('spoilt', NEW.number);
             RETURN NULL;
         END $$;
         CREATE CONSTRAINT TRIGGER spoil AFTER INSERT ON seen DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW WHEN (NEW.number > 100) EXECUTE FUNCTION spoil();
         CREATE FUNCTION spoil(told report) RETURNS void LANGUAGE sql AS $$
             INSERT INTO seen VALUES ('spoil', 100 + told.seq) $$",
    )
    .await;
    let mut hooks = by_name(PATIENCE);
    hooks.add_report_function("spoil", "spoil");
    let mut runner = runner(&db, Queue::Events, hooks);
    let several = Job::Events { entries: vec![reports("n1", 1, &["note", "spoil"])] };
    let outcome = runner.run(&several).await;
    assert!(
        matches!(outcome, Outcome::Events(Err(StoreError::Rejected(_)))),
        "to be narrowed down: {outcome:?}"
    );
    assert_eq!(store(&mut runner, vec![reports("n1", 1, &["note"])]).await, [1]);
    let (failed, outcome) =
        tries(&mut runner, &Job::Events { entries: vec![reports("n1", 2, &["spoil"])] }).await;
    assert_eq!((failed, acks(outcome)), (1, vec![2]));
    assert_eq!(failures(&mut db).await, [format!("n1|j|2|spoil|spoil|{LEFT_OUT}")]);
    assert_eq!(seen(&mut db).await, ["note n1 1"]);
}

#[tokio::test]
async fn a_deadlock_costs_the_hook_that_is_its_victim_and_no_event() {
    let mut db = stage().await;
    run(
        &mut db.sql,
        "CREATE TABLE pair (id integer PRIMARY KEY); INSERT INTO pair VALUES (1), (2);
         CREATE FUNCTION cross_it(told report) RETURNS void LANGUAGE sql AS $$
             UPDATE pair SET id = id WHERE id = 2; UPDATE pair SET id = id WHERE id = 1 $$;",
    )
    .await;
    let mut hooks = by_name(PATIENCE);
    hooks.add_report_function("cross", "cross_it");
    let mut runner = runner(&db, Queue::Events, hooks);
    let mut holder = db.client("holder").await;
    // The holder never looks for a deadlock, so the other is the victim.
    run(&mut holder, "SET deadlock_timeout = '1h'; BEGIN; UPDATE pair SET id = id WHERE id = 1").await;
    let storing =
        tokio::spawn(
            async move { store(&mut runner, vec![reports("n1", 1, &["note", "cross", "note"])]).await },
        );
    db.until_waits_for("gateway g1 events", "holder").await;
    run(&mut holder, "UPDATE pair SET id = id WHERE id = 2; COMMIT").await;
    assert_eq!(storing.await.unwrap(), [3]);
    assert_eq!(failures(&mut db).await, ["n1|j|2|cross|cross_it|40P01|deadlock detected"]);
    assert_eq!(seen(&mut db).await, ["note n1 1", "note n1 3"]);
}

#[tokio::test]
async fn only_a_batch_with_a_hooked_kind_pays_and_as_much_for_one_report_as_for_sixty() {
    let mut db = stage().await;
    let mut runner = runner(&db, Queue::Events, by_name(PATIENCE));
    let mut counts = Vec::new();
    // The first round connects and prepares; its counts are not compared.
    for (round, kind, reported) in
        [(0, "note", 1), (1, "note", 1), (2, "note", 60), (3, "plain", 60), (4, "note", 0)]
    {
        let name = format!("n{round}");
        let kinds: Vec<&str> = std::iter::repeat_n(kind, reported).chain(["plain"; 3]).collect();
        let job = Job::Events { entries: vec![reports(&name, 1, &kinds)] };
        run(&mut db.sql, "SELECT pg_stat_statements_reset()").await;
        let outcome = runner.run(&job).await;
        let count = "SELECT sum(s.calls) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid \
                     WHERE d.datname = current_database() AND s.query NOT LIKE '%pg_stat_statements%' \
                     AND s.query !~ '^(SET|RESET|SELECT set_config|SELECT pg_catalog.pg_advisory)'";
        let settings = "SELECT coalesce(sum(s.calls), 0) FROM pg_stat_statements s JOIN pg_database d \
                        ON d.oid = s.dbid WHERE d.datname = current_database() AND s.query ~ '^(SET|RESET|SELECT set_config|SELECT pg_catalog.pg_advisory)'";
        let count = (number(&mut db.sql, count).await, number(&mut db.sql, settings).await);
        assert_eq!(acks(outcome), [kinds.len() as u64]);
        if round > 0 {
            counts.push(count);
        }
    }
    // BEGIN, make and lock journals, read cursors, write, run the hooks, COMMIT; the settings are two round trips.
    let [one, sixty, plain, none] = counts[..] else { panic!("{counts:?}") };
    assert_eq!(one, sixty);
    assert_eq!(one.0, 6);
    assert!(one.1 > 0);
    assert_eq!((plain, none), ((5, 0), (5, 0)));
}

#[tokio::test]
async fn a_status_is_stored_once_whatever_is_sent_again_and_told_to_every_handler_once() {
    let mut db = stage().await;
    let mut runner = runner(&db, Queue::Statuses, by_name(PATIENCE));
    let entries =
        vec![status("n2", "a", "plain", "p"), status("n1", "a", "both", "x"), status("n1", "b", "note", "y")];
    assert_eq!(tell(&mut runner, entries.clone()).await, [true; 3]);
    assert_eq!(tell(&mut runner, entries).await, [false; 3]);
    // Another body under the same id is the same status; beside a new one it is not told again.
    let again = vec![status("n1", "b", "note", "other"), status("n1", "c", "note", "z")];
    assert_eq!(tell(&mut runner, again).await, [false, true]);
    assert_eq!(tell(&mut runner, vec![status("n3", "a", "plain", "p")]).await, [true]);
    assert_eq!(
        seen(&mut db).await,
        ["n1|tenant of n1|a|both|boot|x", "n1|tenant of n1|b|note|boot|y", "n1|tenant of n1|c|note|boot|z"]
    );
    assert_eq!(failures(&mut db).await, ["n1|a|both|fail_status|22012|division by zero"]);
    let rows = "SELECT concat_ws('|', node_id, id, kind, encode(body, 'escape'), boot_id) FROM node_statuses \
                ORDER BY node_id, id";
    assert_eq!(
        texts(&mut db.sql, rows).await,
        [
            "n1|a|both|x|boot",
            "n1|b|note|y|boot",
            "n1|c|note|z|boot",
            "n2|a|plain|p|boot",
            "n3|a|plain|p|boot"
        ]
    );
    let removed = "SELECT remove_old_statuses('n1', compute_now() + interval '1 s', 2)";
    assert_eq!(number(&mut db.sql, removed).await, 2, "so many at most");
    assert_eq!(number(&mut db.sql, removed).await, 1);
    assert_eq!(number(&mut db.sql, removed).await, 0);
    assert_eq!(number(&mut db.sql, "SELECT count(*) FROM node_statuses").await, 2, "other nodes' stay");
}

#[tokio::test]
async fn a_batch_of_1_50_and_500_statuses_costs_the_same_number_of_statements() {
    let mut db = stage().await;
    let mut runner = runner(&db, Queue::Statuses, by_name(PATIENCE));
    let mut counts = Vec::new();
    for (round, size) in [1, 1, 50, 500].into_iter().enumerate() {
        let entries = (0..size).map(|i| status(&format!("n{i}"), &format!("round {round}"), "plain", "b"));
        let job = Job::Statuses { entries: entries.collect() };
        run(&mut db.sql, "SELECT pg_stat_statements_reset()").await;
        let outcome = runner.run(&job).await;
        let count = "SELECT sum(s.calls) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid \
                     WHERE d.datname = current_database() AND s.query NOT LIKE '%pg_stat_statements%'";
        let count = number(&mut db.sql, count).await;
        assert_eq!(outcome, Outcome::Statuses(Ok(vec![StatusOutcome { is_new: true }; size])));
        if round > 0 {
            counts.push(count);
        }
    }
    assert_eq!(counts, [1, 1, 1], "one statement that commits by itself");
}

// -- what is built in ----------------------------------------------------------------------------

fn built_in(attested_bindings: bool) -> Hooks {
    let mut hooks = Hooks::new(PATIENCE, EmbeddedHooks::default());
    hooks.add_built_in(attested_bindings);
    hooks
}

fn allocation(number: u128) -> String {
    uuid::Uuid::from_u128(number).to_string()
}

/// A report about an allocation, signed where `attested` is given.
fn about(name: &str, seq: u64, kind: &str, number: u128, attested: Option<&str>) -> EventsRequest {
    let mut request = reports(name, seq, &[kind]);
    let event = &mut Arc::make_mut(&mut request.batch).events[0];
    event.body = Bytes::from(format!("{{\"allocation_id\": \"{}\", \"more\": [1]}}", allocation(number)));
    event.attested = attested.map(|body| Attested {
        body: Bytes::copy_from_slice(body.as_bytes()),
        kid: "key-1".to_owned(),
        signature: "sig".into(),
    });
    request
}

async fn place(db: &mut Db, name: &str, number: u128) {
    let id = allocation(number);
    let row = format!(
        "INSERT INTO allocations (node_id, id, tenant_id, state) VALUES ('{name}', '{id}', 't', 'placed')"
    );
    run(&mut db.sql, &row).await;
}

async fn allocations(db: &mut Db) -> Vec<String> {
    texts(
        &mut db.sql,
        "SELECT concat_ws('|', node_id, right(id::text, 1), state, encode(bound_report, 'escape'), bound_sig_kid,
                          encode(bound_sig, 'escape')) FROM allocations ORDER BY node_id, id",
    )
    .await
}

#[tokio::test]
async fn a_node_binds_releases_and_fails_its_own_allocations_and_no_others() {
    let mut db = stage().await;
    for (name, number) in [("n1", 1), ("n1", 2), ("n1", 3), ("n2", 4)] {
        place(&mut db, name, number).await;
    }
    let mut runner = runner(&db, Queue::Events, built_in(false));
    let steps = [
        ("allocation.bound", 1, Some("not json")),
        ("allocation.bound", 2, None),
        // Another node's, and one that nobody knows: not an error.
        ("allocation.bound", 4, Some("forged")),
        ("allocation.released", 4, None),
        ("allocation.failed", 9, None),
    ];
    for (seq, (kind, number, attested)) in (1..).zip(steps) {
        store(&mut runner, vec![about("n1", seq, kind, number, attested)]).await;
    }
    assert_eq!(
        allocations(&mut db).await,
        ["n1|1|bound|not json|key-1|sig", "n1|2|bound", "n1|3|placed", "n2|4|placed"]
    );
    // Each end once; a late bound changes nothing.
    let steps = [
        ("allocation.released", 1),
        ("allocation.failed", 1),
        ("allocation.bound", 1),
        ("allocation.failed", 2),
        ("allocation.released", 2),
        ("allocation.released", 3),
        ("allocation.bound", 3),
    ];
    for (seq, (kind, number)) in (6..).zip(steps) {
        store(&mut runner, vec![about("n1", seq, kind, number, Some("later"))]).await;
    }
    assert_eq!(
        allocations(&mut db).await,
        ["n1|1|released|not json|key-1|sig", "n1|2|failed", "n1|3|released", "n2|4|placed"]
    );
    assert_eq!(failures(&mut db).await, Vec::<String>::new());
    assert_eq!(number(&mut db.sql, "SELECT count(*) FROM work").await, 0);
    // A body that is none is a failing hook, and the event is stored.
    let mut bad = reports("n1", 13, &["allocation.bound", "allocation.bound"]);
    Arc::make_mut(&mut bad.batch).events[1].body = "{}".into();
    assert_eq!(store(&mut runner, vec![bad]).await, [14]);
    assert_eq!(
        failures(&mut db).await,
        [
            "n1|j|13|allocation.bound|on_allocation_bound|22P02|invalid input syntax for type json",
            "n1|j|14|allocation.bound|on_allocation_bound|22023|the body of allocation.bound names no allocation_id"
        ]
    );
}

#[tokio::test]
async fn where_bindings_are_attested_a_worker_is_asked_once() {
    let mut db = stage().await;
    place(&mut db, "n1", 1).await;
    let mut runner = runner(&db, Queue::Events, built_in(true));
    for seq in 1..=2 {
        let request = about("n1", seq, "allocation.bound", 1, Some(&format!("report {seq}")));
        store(&mut runner, vec![request]).await;
    }
    assert_eq!(allocations(&mut db).await, ["n1|1|bound-unverified|report 1|key-1|sig"]);
    let work = "SELECT concat_ws('|', kind, right(key, 1), payload) FROM work";
    assert_eq!(texts(&mut db.sql, work).await, [r#"allocation.verify|1|{"node_id": "n1"}"#]);
    // The worker has verified it; the node says it once more.
    run(&mut db.sql, "UPDATE allocations SET state = 'active'; DELETE FROM work").await;
    store(&mut runner, vec![about("n1", 3, "allocation.bound", 1, None)]).await;
    assert_eq!(allocations(&mut db).await, ["n1|1|active|report 1|key-1|sig"]);
    assert_eq!(number(&mut db.sql, "SELECT count(*) FROM work").await, 0);
}

#[tokio::test]
async fn an_xid_is_counted_and_published_and_a_handler_of_the_deployment_runs_beside() {
    let mut db = stage().await;
    let mut hooks = built_in(false);
    hooks.add_status_function("gpu.xid", "note_status");
    let mut runner = runner(&db, Queue::Statuses, hooks);
    let body = r#"{"gpu": "GPU-0", "xid": 79}"#;
    for id in ["a", "b", "a"] {
        tell(&mut runner, vec![status("n1", id, "gpu.xid", body)]).await;
    }
    let bad =
        vec![status("n1", "c", "gpu.xid", "no json"), status("n1", "d", "gpu.xid", r#"{"gpu": "GPU-0"}"#)];
    assert_eq!(tell(&mut runner, bad).await, [true, true]);
    let xids = "SELECT concat_ws('|', node_id, gpu, xid, times) FROM gpu_xids";
    assert_eq!(texts(&mut db.sql, xids).await, ["n1|GPU-0|79|2"]);
    let published =
        "SELECT body ->> 'status_id' || (body ->> 'xid') FROM outbox WHERE kind = 'node.gpu-xid' ORDER BY id";
    assert_eq!(texts(&mut db.sql, published).await, ["a79", "b79"]);
    assert_eq!(
        failures(&mut db).await,
        [
            "n1|c|gpu.xid|on_gpu_xid|22P02|invalid input syntax for type json",
            "n1|d|gpu.xid|on_gpu_xid|22023|the body of gpu.xid must name a gpu and an xid"
        ]
    );
    assert_eq!(seen(&mut db).await.len(), 4, "the other handler ran for each of them");
}

// -- hooks of an embedder ------------------------------------------------------------------------

/// Does what the body of its event says.
struct Obedient;

impl ReportHook for Obedient {
    fn name(&self) -> &str {
        "obedient"
    }

    fn on_report<'a>(
        &'a self,
        report: Report<'a>,
        transaction: &'a mut HookTransaction<'_>,
    ) -> HookFuture<'a> {
        Box::pin(async move {
            let seq = i64::try_from(report.event.seq.0)?;
            sqlx::query("INSERT INTO seen VALUES ($1, $2)")
                .bind(format!("{} of {} on {}", report.event.kind, report.node, report.tenant))
                .bind(seq)
                .execute(&mut *transaction.connection())
                .await?;
            match &report.event.body[..] {
                b"work" => {
                    let first = transaction.enqueue_work("look", report.node.as_str(), "{}").await?;
                    let second =
                        transaction.enqueue_work("look", report.node.as_str(), r#"{"a": 1}"#).await?;
                    assert!(first && !second);
                    Ok(())
                }
                b"err" => Err(HookError::new("not today")),
                b"sql" => {
                    sqlx::query("SELECT 1 / 0").execute(&mut *transaction.connection()).await?;
                    Ok(())
                }
                b"swallow" => {
                    let _ = sqlx::query("SELECT 1 / 0").execute(&mut *transaction.connection()).await;
                    Ok(())
                }
                b"late" => {
                    let late = "INSERT INTO seen SELECT what, number FROM seen ORDER BY number LIMIT 1";
                    sqlx::query(late).execute(&mut *transaction.connection()).await?;
                    Ok(())
                }
                b"panic" => panic!("at the disco"),
                b"query" => {
                    sqlx::query("SELECT pg_sleep(600)").execute(&mut *transaction.connection()).await?;
                    Ok(())
                }
                b"hang" => std::future::pending().await,
                b"end" => {
                    let end = "SELECT pg_terminate_backend(pg_backend_pid())";
                    sqlx::query(end).execute(&mut *transaction.connection()).await?;
                    Ok(())
                }
                // A query is on its way when the hook gives up on it.
                b"leave" => {
                    let query = sqlx::query("SELECT pg_sleep(0.2)").execute(&mut *transaction.connection());
                    let mut query = Box::pin(query);
                    std::future::poll_fn(|context| {
                        let _ = query.as_mut().poll(context);
                        std::task::Poll::Ready(())
                    })
                    .await;
                    panic!("with a query on its way")
                }
                _ => Ok(()),
            }
        })
    }
}

struct Handler;

impl StatusHook for Handler {
    fn name(&self) -> &str {
        "handler"
    }

    fn on_status<'a>(
        &'a self,
        status: StatusReport<'a>,
        transaction: &'a mut HookTransaction<'_>,
    ) -> HookFuture<'a> {
        Box::pin(async move {
            let line = format!("{} {} {} {}", status.node, status.tenant, status.status.id, status.boot_id);
            sqlx::query("INSERT INTO seen VALUES ($1)")
                .bind(line)
                .execute(&mut *transaction.connection())
                .await?;
            if status.status.body.is_empty() { Err(HookError::new("nothing in it")) } else { Ok(()) }
        })
    }
}

fn embedded(timeout: Duration) -> Hooks {
    let embedded = EmbeddedHooks::default().on_report("rust", Obedient).on_status("rust", Handler);
    let mut hooks = Hooks::new(timeout, embedded);
    hooks.add_report_function("note", "note");
    hooks
}

fn orders(first: u64, bodies: &[&'static str]) -> EventsRequest {
    let mut request = reports("n1", first, &vec!["rust"; bodies.len()]);
    for (event, body) in Arc::make_mut(&mut request.batch).events.iter_mut().zip(bodies) {
        event.body = Bytes::from_static(body.as_bytes());
    }
    request
}

#[tokio::test]
async fn a_rust_hook_that_fails_in_any_way_takes_back_what_it_did_and_hinders_nobody() {
    let mut db = stage().await;
    let mut runner = runner(&db, Queue::Events, embedded(Duration::from_millis(1_500)));
    let bodies = ["ok", "work", "err", "sql", "swallow", "panic", "query", "hang", "leave", "late", "ok"];
    let mut request = orders(1, &bodies);
    Arc::make_mut(&mut request.batch).events.extend(reports("n1", 12, &["note"]).batch.events.clone());
    assert_eq!(store(&mut runner, vec![request.clone()]).await, [12]);
    assert_eq!(
        seen(&mut db).await,
        [
            "note n1 12",
            "rust of n1 on tenant of n1 1",
            "rust of n1 on tenant of n1 2",
            "rust of n1 on tenant of n1 11"
        ]
    );
    let told = failures(&mut db).await;
    let expected = [
        "n1|j|3|rust|obedient|not today",
        "n1|j|4|rust|obedient|22012|error returned from database: division by zero",
        "n1|j|5|rust|obedient|25P02|error returned from database: current transaction is aborted, commands ignored \
         until end of transaction block",
        "n1|j|6|rust|obedient|it panicked: at the disco",
        "n1|j|7|rust|obedient|",
        "n1|j|8|rust|obedient|it did not end within 1.5s",
        "n1|j|9|rust|obedient|it panicked: with a query on its way",
        "n1|j|10|rust|obedient|23505|",
    ];
    assert_eq!(told.len(), expected.len(), "{told:#?}");
    for (told, expected) in told.iter().zip(expected) {
        assert!(told.starts_with(expected), "{told} is not {expected}");
    }
    assert_eq!(texts(&mut db.sql, "SELECT key || payload FROM work").await, [r#"n1{"a": 1}"#]);
    assert_eq!(store(&mut runner, vec![request]).await, [12], "a resend is told to none of them");
    assert_eq!(failures(&mut db).await.len(), expected.len());
    assert_eq!(seen(&mut db).await.len(), 4);
}

#[tokio::test]
async fn a_rust_handler_of_statuses_is_told_whose_it_is() {
    let mut db = stage().await;
    let mut runner = runner(&db, Queue::Statuses, embedded(PATIENCE));
    let entries = vec![status("n1", "a", "rust", "x"), status("n2", "b", "rust", "")];
    assert_eq!(tell(&mut runner, entries).await, [true, true]);
    assert_eq!(seen(&mut db).await, ["n1 tenant of n1 a boot"]);
    assert_eq!(failures(&mut db).await, ["n2|b|rust|handler|nothing in it"]);
}

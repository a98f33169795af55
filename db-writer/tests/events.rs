//! Journals in PostgreSQL: each event once, cursors that are contiguous, one bad entry among good ones.
//!
//! Each story stores batches and compares the answers and the rows. Who is answered what, and how a
//! refused batch is narrowed down, is the core's; here it is shown that PostgreSQL plays along.

#![allow(clippy::unwrap_used)]

mod support;

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use gateway_core::frame::{Attested, Event, EventBatch, RejectCode};
use gateway_core::ids::*;
use gateway_core::seam::EventsRequest;
use gateway_core::store::*;
use support::*;

fn run_of(name: &str, journal: &str, seqs: RangeInclusive<u64>) -> EventsRequest {
    let event = |seq: u64| Event {
        seq: EventSeq(seq),
        kind: "gpu.xid".to_owned(),
        body: Bytes::from(format!("body {seq}")),
        attested: None,
        refused: None,
    };
    EventsRequest {
        key: SessionKey { shard: ShardId(0), slot: 1, serial: 1 },
        node: node(name),
        batch: Arc::new(EventBatch {
            frame_ref: FrameRef(1),
            journal: JournalId::new(journal).unwrap(),
            boot_id: "boot".to_owned(),
            events: seqs.map(event).collect(),
        }),
    }
}

fn edited(mut request: EventsRequest, edit: impl FnOnce(&mut EventBatch)) -> EventsRequest {
    edit(Arc::make_mut(&mut request.batch));
    request
}

fn acks(outcome: Outcome) -> Vec<u64> {
    let Outcome::Events(Ok(outcomes)) = outcome else { panic!("{outcome:?}") };
    outcomes.iter().map(|outcome| outcome.acked.0).collect()
}

async fn store(db: &Db, entries: Vec<EventsRequest>) -> Vec<u64> {
    acks(db.runner(Queue::Events).run(&Job::Events { entries }).await)
}

/// The seqs of a journal, in order, as one text.
async fn seqs(db: &mut Db, name: &str, journal: &str) -> String {
    let query = format!(
        "SELECT string_agg(seq::text, ' ' ORDER BY seq) FROM events WHERE node_id = '{name}' AND journal_id = '{journal}'"
    );
    text(&mut db.sql, &query).await
}

#[tokio::test]
async fn resends_store_each_event_once_and_are_acked_with_the_cursor() {
    let mut db = database().await;
    assert_eq!(store(&db, vec![run_of("n1", "j", 1..=5)]).await, [5]);
    let before = texts(&mut db.sql, "SELECT e::text FROM events e ORDER BY seq").await;
    for resent in [1..=5, 2..=3, 5..=5] {
        let changed = edited(run_of("n1", "j", resent), |batch| batch.events[0].body = "other".into());
        assert_eq!(store(&db, vec![changed]).await, [5]);
    }
    assert_eq!(texts(&mut db.sql, "SELECT e::text FROM events e ORDER BY seq").await, before);
    assert_eq!(store(&db, vec![run_of("n1", "j", 4..=8)]).await, [8], "what is new joins on");
    assert_eq!(seqs(&mut db, "n1", "j").await, "1 2 3 4 5 6 7 8");
}

#[tokio::test]
async fn an_event_is_stored_as_it_came_with_its_envelope_and_a_tombstone_with_its_reason() {
    let mut db = database().await;
    let batch = edited(run_of("n1", "j", 1..=3), |batch| {
        batch.events[1].attested =
            Some(Attested { body: "signed".into(), kid: "key-1".into(), signature: "sig".into() });
        batch.events[2].refuse(RejectCode::Invalid, "kind is empty".to_owned());
    });
    assert_eq!(store(&db, vec![batch]).await, [3]);
    let rows = texts(
        &mut db.sql,
        "SELECT concat_ws('|', seq, kind, encode(body, 'escape'), boot_id, encode(signed_body, 'escape'), signed_kid, \
         encode(signature, 'escape'), rejected) FROM events ORDER BY seq",
    )
    .await;
    assert_eq!(
        rows,
        ["1|gpu.xid|body 1|boot", "2|gpu.xid|body 2|boot|signed|key-1|sig", "3|||boot|kind is empty"]
    );
}

#[tokio::test]
async fn a_gap_is_stored_and_acked_only_up_to_it() {
    let mut db = database().await;
    assert_eq!(store(&db, vec![run_of("n1", "j", 2..=4)]).await, [0], "a journal begins with 1");
    assert_eq!(seqs(&mut db, "n1", "j").await, "");
    assert_eq!(store(&db, vec![run_of("n1", "j", 1..=3)]).await, [3]);
    assert_eq!(store(&db, vec![run_of("n1", "j", 5..=9)]).await, [3]);
    assert_eq!(seqs(&mut db, "n1", "j").await, "1 2 3");
    assert_eq!(store(&db, vec![run_of("n1", "j", 4..=9)]).await, [9], "the gap is filled by a resend");
    assert_eq!(seqs(&mut db, "n1", "j").await, "1 2 3 4 5 6 7 8 9");
}

#[tokio::test]
async fn a_new_journal_begins_a_new_cursor_and_the_hello_is_told_that_of_the_journal_it_names() {
    let mut db = database().await;
    db.nodes(2).await;
    let proof = db.lease().await;
    assert_eq!(store(&db, vec![run_of("n1", "old", 1..=7), run_of("n2", "old", 1..=1)]).await, [7, 1]);
    assert_eq!(store(&db, vec![run_of("n1", "new", 1..=2)]).await, [2]);
    for (journal, acked) in [(Some("old"), 7), (Some("new"), 2), (Some("none yet"), 0), (None, 0)] {
        let mut request = hello("n1", &[], &[]);
        request.hello.journal = journal.map(|id| JournalId::new(id).unwrap());
        let job = Job::Hellos { proof: proof.clone(), entries: vec![request] };
        let grant = granted(db.runner(Queue::Hellos).run(&job).await).pop().unwrap();
        assert_eq!(grant.journal_acked, EventSeq(acked), "{journal:?}");
    }
}

#[tokio::test]
async fn batches_of_one_node_in_one_flush_join_on_to_each_other_whatever_their_order() {
    let mut db = database().await;
    // The older session's batch and the newer one's resend of it, and more.
    let entries = vec![
        run_of("n1", "j", 4..=6),
        run_of("n2", "j", 1..=1),
        run_of("n1", "j", 1..=4),
        run_of("n1", "j", 9..=9),
        run_of("n1", "other", 1..=2),
    ];
    assert_eq!(store(&db, entries).await, [6, 1, 6, 6, 2]);
    assert_eq!(seqs(&mut db, "n1", "j").await, "1 2 3 4 5 6");
    assert_eq!(seqs(&mut db, "n1", "other").await, "1 2");
}

#[tokio::test]
async fn a_flush_of_1_50_and_500_batches_costs_the_same_number_of_statements() {
    let mut db = database().await;
    let mut runner = db.runner(Queue::Events);
    let mut counts = Vec::new();
    // The first round connects and prepares; its counts are not compared.
    for (round, size) in [1_u64, 1, 50, 500, 500].into_iter().enumerate() {
        // Some journals are new and some are not; at the end the cursors of all are known.
        let entries = (0..size).map(|i| {
            let acked = match (size, round) {
                (1, _) => 4 * round as u64,
                (500, 3) if i < 50 => 4,
                (500, 4) => 4 + 4 * u64::from(i < 50),
                _ => 0,
            };
            let name = if size == 1 { "lone".to_owned() } else { format!("herd-{i}") };
            run_of(&name, "j", acked + 1..=acked + 4)
        });
        let job = Job::Events { entries: entries.collect() };
        run(&mut db.sql, "SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = current_database()), 0)").await;
        let started = std::time::Instant::now();
        let outcome = runner.run(&job).await;
        let took = started.elapsed();
        let count = "SELECT sum(s.calls) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid \
                     WHERE d.datname = current_database() AND s.query NOT LIKE '%pg_stat_statements%'";
        let count = number(&mut db.sql, count).await;
        let acked = acks(outcome);
        assert_eq!(acked.len() as u64, size);
        assert!(acked.iter().all(|acked| *acked >= 4), "{acked:?}");
        eprintln!("{size} batches of 4 events: {count} statements, {took:?}");
        if round > 0 {
            counts.push(count);
        }
    }
    // BEGIN, read cursors, lock new journals, write, COMMIT; one statement where all cursors are known.
    assert_eq!(counts, [1, 5, 5, 1]);
}

#[tokio::test]
async fn a_cursor_that_another_gateway_has_moved_meanwhile_is_read_anew() {
    let mut db = database().await;
    let (mut here, mut there) = (db.runner(Queue::Events), db.runner(Queue::Events));
    let mut both = async |steps: &[(bool, RangeInclusive<u64>, u64)]| {
        for (is_here, seqs, expected) in steps {
            let runner = if *is_here { &mut here } else { &mut there };
            let other = run_of("n2", "j", seqs.clone());
            let entries = vec![run_of("n1", "j", seqs.clone()), other];
            let acked = acks(runner.run(&Job::Events { entries }).await);
            assert_eq!(acked, [*expected, *expected], "{is_here} {seqs:?}");
        }
    };
    both(&[
        (true, 1..=3, 3),
        (false, 4..=6, 6),
        // What is known here is three, and the other has stored what joins on.
        (true, 4..=8, 8),
        (false, 7..=9, 9),
        // A gap by what is known here alone, then a true one, then a resend.
        (true, 10..=11, 11),
        (false, 13..=14, 11),
        (false, 12..=12, 12),
        (true, 1..=2, 12),
        (true, 13..=13, 13),
    ])
    .await;
    assert_eq!(seqs(&mut db, "n1", "j").await, "1 2 3 4 5 6 7 8 9 10 11 12 13");
    assert_eq!(seqs(&mut db, "n2", "j").await, "1 2 3 4 5 6 7 8 9 10 11 12 13");
}

#[tokio::test]
async fn what_is_known_of_cursors_ends_with_the_connection() {
    let mut db = database().await;
    let mut runner = db.runner(Queue::Events);
    assert_eq!(acks(runner.run(&Job::Events { entries: vec![run_of("n1", "j", 1..=3)] }).await), [3]);
    // A database that was set back, as by a fail-over to a standby that lagged; its connections are gone.
    run(
        &mut db.sql,
        "SET session_replication_role = replica; DELETE FROM events WHERE seq = 3;
         UPDATE journals SET acked_seq = 2; SET session_replication_role = origin;
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE application_name = 'gateway g1 events' AND datname = current_database()",
    )
    .await;
    let job = Job::Events { entries: vec![run_of("n1", "j", 4..=4)] };
    let lost = runner.run(&job).await;
    assert!(matches!(lost, Outcome::Events(Err(StoreError::OutcomeUnknown(_)))), "{lost:?}");
    assert_eq!(acks(runner.run(&job).await), [2], "the node is told to send the third again");
    assert_eq!(seqs(&mut db, "n1", "j").await, "1 2");
}

#[tokio::test]
async fn one_batch_that_the_database_refuses_fails_the_flush_and_leaves_nothing_behind() {
    let mut db = database().await;
    run(&mut db.sql, "ALTER TABLE events ADD CONSTRAINT no_poison CHECK (kind <> 'poison')").await;
    let bad = edited(run_of("n2", "j", 1..=3), |batch| batch.events[1].kind = "poison".to_owned());
    let entries = vec![run_of("n1", "j", 1..=3), bad.clone(), run_of("n3", "j", 1..=3)];
    let mut runner = db.runner(Queue::Events);
    let outcome = runner.run(&Job::Events { entries: entries.clone() }).await;
    assert!(matches!(outcome, Outcome::Events(Err(StoreError::Rejected(_)))), "{outcome:?}");
    assert_eq!(number(&mut db.sql, "SELECT count(*) FROM events").await, 0, "nothing is stored by halves");
    assert_eq!(number(&mut db.sql, "SELECT count(*) FROM node_journals").await, 0);
    // As the core goes on: the others, the event before, a tombstone, the event after.
    let others = vec![entries[0].clone(), entries[2].clone()];
    assert_eq!(acks(runner.run(&Job::Events { entries: others }).await), [3, 3]);
    let tombstone = edited(bad, |batch| batch.events[1].refuse(RejectCode::NotStorable, "no".to_owned()));
    assert_eq!(acks(runner.run(&Job::Events { entries: vec![tombstone] }).await), [3]);
    assert_eq!(
        text(
            &mut db.sql,
            "SELECT string_agg(seq || coalesce(rejected, ''), ' ' ORDER BY seq) FROM events \
                                  WHERE node_id = 'n2'"
        )
        .await,
        "1 2no 3"
    );
}

#[tokio::test]
async fn retention_removes_a_journals_first_events_and_its_cursor_stays() {
    let mut db = database().await;
    store(&db, vec![run_of("n1", "j", 1..=6), run_of("n1", "k", 1..=2), run_of("n2", "j", 1..=2)]).await;
    run(
        &mut db.sql,
        "UPDATE events SET stored_at = stored_at - interval '2 days' \
         WHERE node_id = 'n1' AND (journal_id = 'k' OR seq IN (1, 2, 3, 5))",
    )
    .await;
    let remove = "SELECT remove_old_events('n1', now() - interval '1 day', at_most => 2)";
    let mut removed = Vec::new();
    for _ in 0..4 {
        removed.push(number(&mut db.sql, remove).await);
    }
    assert_eq!(removed, [2, 2, 1, 0], "the fifth is behind one that stays");
    assert_eq!(seqs(&mut db, "n1", "j").await, "4 5 6");
    let journals = "SELECT concat_ws(' ', node_id, journal_id, acked_seq, removed_to) FROM node_journals \
                    ORDER BY node_id, journal_id";
    assert_eq!(texts(&mut db.sql, journals).await, ["n1 j 6 3", "n1 k 2 2", "n2 j 2 0"]);
    assert_eq!(store(&db, vec![run_of("n1", "k", 1..=3)]).await, [3], "what was removed is not stored again");
    assert_eq!(seqs(&mut db, "n1", "k").await, "3");
}

#[tokio::test]
async fn however_events_go_no_cursor_falls() {
    for gone in ["DELETE FROM events WHERE seq > 1", "DELETE FROM events", "TRUNCATE events"] {
        let mut db = database().await;
        store(&db, vec![run_of("n1", "j", 1..=4), run_of("n2", "j", 1..=4)]).await;
        run(&mut db.sql, gone).await;
        assert_eq!(
            texts(&mut db.sql, "SELECT acked_seq::text FROM node_journals").await,
            ["4", "4"],
            "{gone}"
        );
        assert_eq!(store(&db, vec![run_of("n1", "j", 3..=5)]).await, [5], "{gone}");
        assert_eq!(number(&mut db.sql, "SELECT max(seq) FROM events").await, 5);
    }
}

#[tokio::test]
async fn what_would_take_an_ack_back_is_refused() {
    let mut db = database().await;
    store(&db, vec![run_of("n1", "j", 1..=3)]).await;
    let mut old = db.client("old snapshot").await;
    run(&mut old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM nodes").await;
    store(&db, vec![run_of("n1", "j", 4..=6)]).await;
    let truncated = sqlx::query("TRUNCATE events").execute(&mut old).await;
    assert!(truncated.unwrap_err().to_string().contains("READ COMMITTED alone"));
    let deleted = sqlx::query("DELETE FROM node_journals").execute(&mut db.sql).await;
    assert!(deleted.unwrap_err().to_string().contains("a journal can not be deleted"));
    run(&mut old, "ROLLBACK").await;
    assert_eq!(store(&db, vec![run_of("n1", "j", 7..=7)]).await, [7]);
}

#[tokio::test]
async fn an_operator_acks_what_a_node_has_lost_and_never_takes_an_ack_back() {
    let mut db = database().await;
    store(&db, vec![run_of("n1", "j", 1..=2)]).await;
    assert_eq!(store(&db, vec![run_of("n1", "j", 6..=7)]).await, [2], "it waits behind the gap");
    run(&mut db.sql, "UPDATE node_journals SET acked_seq = 5 WHERE node_id = 'n1' AND journal_id = 'j'")
        .await;
    assert_eq!(store(&db, vec![run_of("n1", "j", 6..=7)]).await, [7]);
    let back = sqlx::query("UPDATE node_journals SET acked_seq = 3").execute(&mut db.sql).await;
    assert!(back.unwrap_err().to_string().contains("only to a higher one than 7"));
}

#[tokio::test]
async fn two_gateways_that_store_one_journal_at_once_wait_and_store_each_event_once() {
    let mut db = database().await;
    let mut holder = db.client("holder").await;
    run(
        &mut holder,
        "BEGIN; INSERT INTO node_journals (node_id, journal_id, acked_seq) VALUES ('n1', 'j', 2)",
    )
    .await;
    let mut runner = db.runner(Queue::Events);
    let storing = tokio::spawn(async move {
        acks(runner.run(&Job::Events { entries: vec![run_of("n1", "j", 1..=5)] }).await)
    });
    // The other gateway began the same journal a moment before, and stored two events of it.
    db.until_waits_for("gateway g1 events", "holder").await;
    run(
        &mut holder,
        "INSERT INTO events (node_id, journal_id, seq, kind) VALUES ('n1', 'j', 1, 'k'), ('n1', 'j', 2, 'k'); COMMIT",
    )
    .await;
    assert_eq!(storing.await.unwrap(), [5]);
    let kinds = texts(&mut db.sql, "SELECT kind FROM events ORDER BY seq").await;
    assert_eq!(kinds, ["k", "k", "gpu.xid", "gpu.xid", "gpu.xid"]);

    // Again, with the row there: of what both store at once, the other's is waited for.
    run(
        &mut holder,
        "BEGIN; INSERT INTO events (node_id, journal_id, seq, kind) VALUES ('n1', 'j', 6, 'k'), ('n1', 'j', 7, 'k')",
    )
    .await;
    let mut runner = db.runner(Queue::Events);
    let storing = tokio::spawn(async move {
        acks(runner.run(&Job::Events { entries: vec![run_of("n1", "j", 6..=9)] }).await)
    });
    db.until_waits_for("gateway g1 events", "holder").await;
    run(&mut holder, "COMMIT").await;
    assert_eq!(storing.await.unwrap(), [9]);
    assert_eq!(seqs(&mut db, "n1", "j").await, "1 2 3 4 5 6 7 8 9");
    let kinds = texts(&mut db.sql, "SELECT kind FROM events WHERE seq > 5 ORDER BY seq").await;
    assert_eq!(kinds, ["k", "k", "gpu.xid", "gpu.xid"]);

    // And where the other takes it back, it is ours.
    run(
        &mut holder,
        "BEGIN; INSERT INTO events (node_id, journal_id, seq, kind) VALUES ('n1', 'j', 10, 'k')",
    )
    .await;
    let mut runner = db.runner(Queue::Events);
    let storing = tokio::spawn(async move {
        acks(runner.run(&Job::Events { entries: vec![run_of("n1", "j", 10..=11)] }).await)
    });
    db.until_waits_for("gateway g1 events", "holder").await;
    run(&mut holder, "ROLLBACK").await;
    assert_eq!(storing.await.unwrap(), [11]);
    assert_eq!(text(&mut db.sql, "SELECT kind FROM events WHERE seq = 10").await, "gpu.xid");
}

#[tokio::test]
async fn flushes_of_the_same_journals_in_opposite_orders_do_not_deadlock() {
    let mut db = database().await;
    let mut tasks = Vec::new();
    for reversed in [false, true] {
        let mut runner = db.runner(Queue::Events);
        tasks.push(tokio::spawn(async move {
            for round in 0..20_u64 {
                let mut names: Vec<u64> = (0..40).collect();
                if reversed {
                    names.reverse();
                }
                let journal = format!("j{}", round / 4);
                let entry = |i: &u64| run_of(&format!("n{i}"), &journal, 1..=1 + round % 4);
                let acked =
                    acks(runner.run(&Job::Events { entries: names.iter().map(entry).collect() }).await);
                assert!(acked.iter().all(|acked| *acked > round % 4), "{acked:?}");
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(number(&mut db.sql, deadlocks).await, 0);
    let broken = "SELECT count(*) FROM node_journals j WHERE j.acked_seq <> 4 OR j.acked_seq <> \
                  (SELECT count(*) FROM events e WHERE (e.node_id, e.journal_id) = (j.node_id, j.journal_id))";
    assert_eq!(number(&mut db.sql, broken).await, 0);
}

#[tokio::test]
async fn events_wait_for_no_hello_dispatch_or_liveness_and_none_of_them_for_events() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("default", 1)]).await;
    let id = db.enqueue("n1", "default").await;
    let mut holder = db.client("holder").await;
    run(&mut holder, "BEGIN; SELECT FROM node_sessions FOR UPDATE; SELECT FROM leases FOR UPDATE").await;
    assert_eq!(store(&db, vec![run_of("n1", "j", 1..=2)]).await, [2], "sessions and leases are not locked");
    run(&mut holder, "ROLLBACK; BEGIN; SELECT FROM node_journals FOR UPDATE").await;
    let claims =
        dispatch(&mut db.runner(Queue::Dispatch), &proof, vec![want("n1", session.epoch, "default", 1)])
            .await;
    assert_eq!(ids(&claims), [id], "a dispatch locks no journal");
    let mut request = hello("n1", &[("default", 1)], &[]);
    request.hello.journal = Some(JournalId::new("j").unwrap());
    let job = Job::Hellos { proof, entries: vec![request] };
    let grant = granted(db.runner(Queue::Hellos).run(&job).await).pop().unwrap();
    assert_eq!(grant.journal_acked, EventSeq(2), "a Hello reads the journal and does not wait for it");
}

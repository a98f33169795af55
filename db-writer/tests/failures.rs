//! Failures: what a job says when its connection is lost, and what the next one finds.
//!
//! The backends are really ended, in the middle of a statement or before a commit. Whether the job
//! may be tried again or its outcome is unknown, that no lock stays, and which schema is served are held
//! here. What the writer then does about it is the core's.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use bytes::Bytes;
use gateway_core::command::CommandState;
use gateway_core::frame::{Event, EventBatch};
use gateway_core::ids::*;
use gateway_core::seam::EventsRequest;
use gateway_core::store::*;
use support::*;

/// Ends the backends of that name while they wait, and waits until they are gone.
async fn kill(db: &mut Db, name: &str) {
    let kill = format!(
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE application_name = '{name}' \
         AND datname = current_database()"
    );
    assert_eq!(number(&mut db.sql, &kill).await, 1);
}

#[tokio::test]
async fn a_dispatch_whose_connection_is_lost_has_an_unknown_outcome() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("default", 1)]).await;
    let id = db.enqueue("n1", "default").await;
    let mut holder = db.client("holder").await;
    run(&mut holder, "BEGIN; SELECT 1 FROM leases FOR UPDATE").await;
    let mut runner = db.runner(Queue::Dispatch);
    let wants = vec![want("n1", session.epoch, "default", 1)];
    let job = Job::Dispatch { proof: proof.clone(), wants: wants.clone() };
    let passing = tokio::spawn(async move {
        let outcome = runner.run(&job).await;
        (runner, outcome)
    });
    db.until_waits_for("gateway g1 dispatch", "holder").await;
    kill(&mut db, "gateway g1 dispatch").await;
    let (mut runner, outcome) = passing.await.unwrap();
    assert!(matches!(outcome, Outcome::Dispatch(Err(StoreError::OutcomeUnknown(_)))), "{outcome:?}");
    run(&mut holder, "COMMIT").await;
    // It is resolved by reading, on a new connection of the same queue.
    let lanes =
        vec![LaneRead { node: node("n1"), epoch: session.epoch, lane: lane("default"), sent: Vec::new() }];
    let outcome = runner.run(&Job::ReadLanes { proof: proof.clone(), lanes }).await;
    let Outcome::LanesRead(Ok(Routed::Committed(states))) = outcome else { panic!("{outcome:?}") };
    assert_eq!(states[0].in_flight, []);
    assert_eq!(ids(&dispatch(&mut runner, &proof, wants).await), [id]);
}

#[tokio::test]
async fn a_hello_whose_connection_is_lost_before_its_commit_is_tried_again() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let mut holder = db.client("holder").await;
    run(&mut holder, "BEGIN; SELECT 1 FROM node_sessions FOR UPDATE").await;
    let mut runner = db.runner(Queue::Hellos);
    let job = Job::Hellos { proof, entries: vec![hello("n1", &[], &[])] };
    let again = job.clone();
    let saying = tokio::spawn(async move {
        let outcome = runner.run(&job).await;
        (runner, outcome)
    });
    db.until_waits_for("gateway g1 hellos", "holder").await;
    kill(&mut db, "gateway g1 hellos").await;
    let (mut runner, outcome) = saying.await.unwrap();
    assert!(matches!(outcome, Outcome::Hellos(Err(StoreError::Retry(_)))), "{outcome:?}");
    run(&mut holder, "COMMIT").await;
    assert_eq!(granted(runner.run(&again).await)[0].epoch.0, 1);
}

#[tokio::test]
async fn a_failed_job_leaves_no_lock_behind() {
    let mut db = database().await;
    db.nodes(2).await;
    let proof = db.lease().await;
    let mut holder = db.client("holder").await;
    run(&mut holder, "BEGIN; SELECT 1 FROM node_sessions WHERE node_id = 'n2' FOR UPDATE").await;
    let entries = vec![hello("n1", &[], &[]), hello("n2", &[], &[])];
    let mut runner = db.runner(Queue::Hellos);
    let outcome = runner.run(&Job::Hellos { proof, entries }).await;
    assert!(matches!(outcome, Outcome::Hellos(Err(StoreError::Retry(_)))), "{outcome:?}");
    run(&mut db.sql, "SELECT 1 FROM node_sessions WHERE node_id = 'n1' FOR UPDATE NOWAIT").await;
    let idle = "SELECT state FROM pg_stat_activity WHERE application_name = 'gateway g1 hellos'";
    assert_eq!(text(&mut db.sql, idle).await, "idle");
}

#[tokio::test]
async fn what_a_lost_connection_still_runs_is_ended_before_the_next_job() {
    let mut db = database().await;
    db.nodes(1).await;
    let id = db.enqueue("n1", "default").await;
    let mut holder = db.client("holder").await;
    run(&mut holder, "BEGIN; SELECT 1 FROM commands FOR UPDATE").await;
    let mut runner = db.runner(Queue::Updates);
    let job = Job::Updates { entries: vec![update("n1", id, 1, CommandState::Succeeded)] };
    // The job's future is dropped while its statement waits in the server, as when a network is cut.
    tokio::select! {
        outcome = runner.run(&job) => panic!("{outcome:?}"),
        () = db.until_waits_for("gateway g1 updates", "holder") => {}
    }
    let waiting = "SELECT pid FROM pg_stat_activity WHERE application_name = 'gateway g1 updates'";
    let old = text(&mut db.sql, waiting).await;
    runner.forget_connection();
    let rival = Job::Updates { entries: vec![update("n1", id, 1, CommandState::Failed)] };
    let storing = tokio::spawn(async move { updated(runner.run(&rival).await) });
    let others = format!("{waiting} AND pid <> {old}");
    while text(&mut db.sql, &others).await.is_empty()
        || !texts(&mut db.sql, waiting).await.iter().all(|pid| *pid != old)
    {
        tokio::task::yield_now().await;
    }
    run(&mut holder, "COMMIT").await;
    assert_eq!(storing.await.unwrap(), [stored(CommandState::Failed, "default")]);
    assert_eq!(db.state(id).await, "failed");
}

#[tokio::test]
async fn a_database_that_is_away_is_tried_again_and_a_wrong_name_is_not() {
    let mut db = database().await;
    let away = "postgres://gateway@127.0.0.1:1/none".parse().unwrap();
    let mut runner = gateway_db_writer::QueueRunner::new(&away, &gateway("g1"), Queue::Lease, true);
    let outcome = runner.run(&acquire("g1", "o1", None)).await;
    assert!(matches!(outcome, Outcome::Lease(Err(StoreError::Retry(_)))), "{outcome:?}");
    let wrong = db.options.clone().database("no_such_database");
    let mut runner = gateway_db_writer::QueueRunner::new(&wrong, &gateway("g1"), Queue::Lease, true);
    let outcome = runner.run(&acquire("g1", "o1", None)).await;
    assert!(matches!(outcome, Outcome::Lease(Err(StoreError::Fatal(_)))), "{outcome:?}");
    run(&mut db.sql, "ALTER TABLE leases RENAME TO leases_elsewhere").await;
    let outcome = db.runner(Queue::Lease).run(&acquire("g1", "o1", None)).await;
    let Outcome::Lease(Err(StoreError::Fatal(what))) = outcome else { panic!("{outcome:?}") };
    assert!(what.contains("leases") && what.contains("42P01"), "{what}");
}

#[tokio::test]
async fn a_migration_runs_twice_and_from_two_processes_and_reports_what_it_did() {
    let db = database().await;
    let newest = gateway_db_writer::newest_version();
    let report = gateway_db_writer::migrate(&db.url).await.unwrap();
    assert_eq!((report.from, report.to), (newest, newest));
    assert_eq!(gateway_db_writer::schema_version(&db.options).await.unwrap(), newest);
}

#[tokio::test]
async fn a_schema_of_a_later_release_is_refused_and_that_of_the_release_before_is_served() {
    let mut db = database().await;
    let newest = gateway_db_writer::newest_version();
    let oldest = gateway_db_writer::OLDEST_SERVED;
    run(&mut db.sql, &format!("DELETE FROM _sqlx_migrations WHERE version > {oldest}")).await;
    assert_eq!(gateway_db_writer::schema_version(&db.options).await.unwrap(), oldest, "it is one of them");
    run(&mut db.sql, &format!("DELETE FROM _sqlx_migrations WHERE version >= {oldest}")).await;
    let error = gateway_db_writer::schema_version(&db.options).await.unwrap_err().to_string();
    assert!(error.contains("run `gateway migrate`"), "{error}");
    run(
        &mut db.sql,
        &format!(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
             VALUES ({}, 'later', true, '', 0)",
            newest + 1
        ),
    )
    .await;
    let error = gateway_db_writer::schema_version(&db.options).await.unwrap_err().to_string();
    assert!(error.contains("install the release"), "{error}");
    let error = gateway_db_writer::migrate(&db.url).await.unwrap_err().to_string();
    assert!(error.contains("install the release"), "{error}");
}

#[tokio::test]
async fn all_but_dispatches_wait_for_the_disk_whatever_the_server_says() {
    let mut db = database().await;
    db.nodes(1).await;
    // What a statement is committed by is what it sees of the setting.
    run(
        &mut db.sql,
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$;
         CREATE TABLE story_disk (of text, waits text);
         CREATE FUNCTION story_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO story_disk VALUES (current_setting('application_name'), current_setting('synchronous_commit'));
             RETURN NULL;
         END $$;
         CREATE TRIGGER story_disk AFTER INSERT OR UPDATE ON leases EXECUTE FUNCTION story_disk();
         CREATE TRIGGER story_disk AFTER INSERT OR UPDATE ON node_sessions EXECUTE FUNCTION story_disk();
         CREATE TRIGGER story_disk AFTER INSERT OR UPDATE ON commands EXECUTE FUNCTION story_disk();
         CREATE TRIGGER story_disk AFTER INSERT OR UPDATE ON events EXECUTE FUNCTION story_disk();",
    )
    .await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("default", 1)]).await;
    let id = db.enqueue("n1", "default").await;
    run(&mut db.sql, "TRUNCATE story_disk").await;
    db.lease().await;
    db.connect(&proof, "n1", &[("default", 1)]).await;
    let mut careless =
        gateway_db_writer::QueueRunner::new(&db.options, &gateway("g1"), Queue::Dispatch, false);
    let epoch = SessionEpoch(session.epoch.0 + 1);
    assert_eq!(ids(&dispatch(&mut careless, &proof, vec![want("n1", epoch, "default", 1)]).await), [id]);
    let entries = vec![update("n1", id, 1, CommandState::Succeeded)];
    updated(db.runner(Queue::Updates).run(&Job::Updates { entries }).await);
    let batch = Arc::new(EventBatch {
        frame_ref: FrameRef(1),
        journal: JournalId::new("j").unwrap(),
        boot_id: String::new(),
        events: vec![Event {
            seq: EventSeq(1),
            kind: "kind".to_owned(),
            body: Bytes::new(),
            attested: None,
            refused: None,
        }],
    });
    let key = SessionKey { shard: ShardId(0), slot: 1, serial: 1 };
    let entries = vec![EventsRequest { key, node: node("n1"), batch }];
    let outcome = db.runner(Queue::Events).run(&Job::Events { entries }).await;
    assert!(matches!(outcome, Outcome::Events(Ok(_))), "{outcome:?}");
    let found = texts(&mut db.sql, "SELECT DISTINCT of || ': ' || waits FROM story_disk ORDER BY 1").await;
    assert_eq!(
        found,
        [
            "gateway g1 dispatch: off",
            "gateway g1 events: on",
            "gateway g1 hellos: on",
            "gateway g1 lease: on",
            "gateway g1 updates: on"
        ]
    );
}

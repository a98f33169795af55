//! Certificates as the database has them: what a Hello may by its certificate's row, which kinds of commands that keeps
//! out, and how a gateway finds what was revoked, or is no longer, whichever way the row came to it.
//!
//! What shards do with it is theirs to test; that both stores answer alike, the model's.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use gateway_core::certificate::{KIND_NOT_ALLOWED, UnknownSerial};
use gateway_core::close::StatusCode;
use gateway_core::ids::CommandId;
use gateway_core::store::*;
use gateway_db_writer::QueueRunner;
use support::*;

/// A Hello of `n1` under the certificate AB, by a gateway that does this with one that is not recorded.
async fn say_hello(db: &Db, proof: &LeaseProof, unknown: UnknownSerial, role: &str) -> HelloOutcome {
    let mut entry = hello("n1", &[], &[]);
    entry.identity.certificate_serial = "AB".to_owned();
    entry.hello.role = role.to_owned();
    let mut runner = db.runner(Queue::Hellos).with_unknown_serial(unknown);
    let job = Job::Hellos { proof: proof.clone(), entries: vec![entry] };
    let Outcome::Hellos(Ok(Routed::Committed(mut outcomes))) = runner.run(&job).await else {
        panic!("no Hello")
    };
    outcomes.remove(0)
}

fn refused(outcome: HelloOutcome) -> (StatusCode, String) {
    match outcome {
        HelloOutcome::Refused(reason) => (reason.status(), reason.to_string()),
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_hello_is_granted_as_far_as_its_certificates_row_allows() {
    let mut db = database().await;
    db.nodes(2).await;
    let proof = db.lease().await;
    let (refuse, accept) = (UnknownSerial::Refuse, UnknownSerial::Accept);
    let (status, sentence) = refused(say_hello(&db, &proof, refuse, "node").await);
    assert_eq!(status, StatusCode::Unauthenticated);
    let advice = "INSERT INTO node_certs (serial, node_id) VALUES ('AB', 'n1')";
    assert!(sentence.contains(advice), "{sentence}");
    let HelloOutcome::Granted(grant) = say_hello(&db, &proof, accept, "node").await else { panic!() };
    assert!(!grant.is_recorded, "nobody can revoke it by its row");

    // The advice works as it stands.
    run(&mut db.sql, advice).await;
    let HelloOutcome::Granted(grant) = say_hello(&db, &proof, refuse, "node").await else { panic!() };
    assert!(grant.is_recorded);
    assert!(matches!(say_hello(&db, &proof, refuse, "").await, HelloOutcome::Granted(_)));
    let epoch = grant.epoch.0 + 1;

    for (change, role, status, told) in [
        ("role = 'storage'", "node", StatusCode::PermissionDenied, "names another role than storage"),
        ("role = 'node'", "storage", StatusCode::PermissionDenied, "names another role than node"),
        ("allowed_kinds = '{}'", "node", StatusCode::PermissionDenied, "allows no kind of command"),
        (
            "allowed_kinds = NULL, node_id = 'n2'",
            "node",
            StatusCode::Unauthenticated,
            "was issued to another node than n1",
        ),
        (
            "node_id = 'n1', revoked_at = compute_now(), revoked_reason = 'stolen'",
            "node",
            StatusCode::Unauthenticated,
            "certificate AB is revoked: stolen; reconnect with another one",
        ),
        ("revoked_reason = NULL", "node", StatusCode::Unauthenticated, "is revoked: no reason given"),
        ("revoked_reason = 'duplicate-identity'", "node", StatusCode::PermissionDenied, "is quarantined"),
    ] {
        run(&mut db.sql, &format!("UPDATE node_certs SET {change} WHERE serial = 'AB'")).await;
        let (found, sentence) = refused(say_hello(&db, &proof, accept, role).await);
        assert_eq!(found, status, "{change}: {sentence}");
        assert!(sentence.contains(told), "{change}: {sentence}");
    }
    let stored = "SELECT session_epoch::text FROM node_sessions WHERE node_id = 'n1'";
    assert_eq!(text(&mut db.sql, stored).await, epoch.to_string(), "who is refused fences nobody");
    let clear = "UPDATE node_certs SET revoked_at = NULL, revoked_reason = NULL WHERE serial = 'AB'";
    run(&mut db.sql, clear).await;
    assert!(matches!(say_hello(&db, &proof, refuse, "node").await, HelloOutcome::Granted(_)));
}

async fn look(runner: &mut QueueRunner, look: RevocationLook) -> RevocationsFound {
    match runner.run(&Job::Revocations(look)).await {
        Outcome::Revocations(Ok(found)) => found,
        other => panic!("{other:?}"),
    }
}

async fn changes(runner: &mut QueueRunner, after: &ChangeMark, at_most: u32) -> RevocationsFound {
    look(runner, RevocationLook::Changes { after: after.clone(), at_most }).await
}

async fn all(runner: &mut QueueRunner, after: &str, at_most: u32) -> RevocationsFound {
    look(runner, RevocationLook::All { after: after.to_owned(), at_most }).await
}

/// Each certificate, with why it is revoked.
fn told(found: &RevocationsFound) -> Vec<(&str, Option<&str>)> {
    found.certificates.iter().map(|one| (one.serial.as_str(), one.revoked.as_deref())).collect()
}

#[tokio::test]
async fn what_is_revoked_and_what_is_cleared_is_found_by_when_that_was_done() {
    let mut db = database().await;
    let mut runner = db.runner(Queue::Revocations);
    run(
        &mut db.sql,
        "INSERT INTO node_certs (serial, node_id) SELECT upper(to_hex(i + 160)), 'n' FROM generate_series(0, 9) i",
    )
    .await;
    let nothing = all(&mut runner, "", 10).await;
    assert!(told(&nothing).is_empty() && nothing.now_micros > 0);
    let begin = ChangeMark { micros: nothing.now_micros - 1, serial: String::new() };
    assert!(told(&changes(&mut runner, &begin, 10).await).is_empty(), "what was never revoked is no change");

    // With a date of long ago, and by the insert itself.
    run(
        &mut db.sql,
        "UPDATE node_certs SET revoked_at = '2020-01-01', revoked_reason = 'old' WHERE serial = 'A1'",
    )
    .await;
    run(
        &mut db.sql,
        "INSERT INTO node_certs (serial, node_id, revoked_at) VALUES ('B0', 'n', compute_now())",
    )
    .await;
    let found = changes(&mut runner, &begin, 10).await;
    assert_eq!(told(&found), [("A1", Some("old")), ("B0", Some("no reason given"))]);
    assert_eq!(found.more_changes, None);

    // Cleared; and a change of nothing that counts.
    let from = ChangeMark { micros: found.now_micros, serial: String::new() };
    run(&mut db.sql, "UPDATE node_certs SET revoked_at = NULL, revoked_reason = NULL WHERE serial = 'A1'")
        .await;
    run(&mut db.sql, "UPDATE node_certs SET role = 'other' WHERE serial = 'B0'").await;
    assert_eq!(told(&changes(&mut runner, &from, 10).await), [("A1", None)]);

    // Many at one instant, in pages without a gap.
    run(&mut db.sql, "UPDATE node_certs SET revoked_at = compute_now(), revoked_reason = 'all'").await;
    let (mut after, mut seen) = (from, Vec::new());
    loop {
        let page = changes(&mut runner, &after, 4).await;
        seen.extend(page.certificates.into_iter().filter(|one| one.revoked.as_deref() == Some("all")));
        match page.more_changes {
            Some(more) => after = more,
            None => break,
        }
    }
    assert_eq!(seen.len(), 11, "{seen:?}");
}

#[tokio::test]
async fn all_that_is_revoked_is_read_in_pages_without_what_has_expired() {
    let mut db = database().await;
    let mut runner = db.runner(Queue::Revocations);
    run(
        &mut db.sql,
        "INSERT INTO node_certs (serial, node_id, revoked_at, not_after)
         SELECT upper(to_hex(i + 4096)), 'n', CASE WHEN i % 2 = 0 THEN compute_now() END,
                CASE WHEN i < 10 THEN compute_now() - interval '2 days'
                     WHEN i < 20 THEN compute_now() - interval '1 hour' END
         FROM generate_series(0, 49) i",
    )
    .await;
    let (mut after, mut seen, mut pages) = (String::new(), Vec::new(), 0);
    loop {
        let page = all(&mut runner, &after, 7).await;
        pages += 1;
        seen.extend(page.certificates.iter().map(|one| one.serial.clone()));
        match page.more_after {
            Some(more) => after = more,
            None => break,
        }
    }
    let expected: Vec<String> = (10..50).filter(|i| i % 2 == 0).map(|i| format!("{:X}", 4096 + i)).collect();
    assert_eq!((seen, pages), (expected, 3), "those that expired two days ago are forgotten");
}

#[tokio::test]
async fn a_revocation_pokes_every_gateway_once_a_transaction_and_nothing_else_does() {
    let mut db = database().await;
    let mut ear = sqlx::postgres::PgListener::connect(&db.url).await.unwrap();
    ear.listen("gateway_certs").await.unwrap();
    let quiet = "INSERT INTO node_certs (serial, node_id) SELECT upper(to_hex(i)), 'n' FROM generate_series(1, 9) i; \
                 UPDATE node_certs SET role = 'other'; SET gateway.notify = off; \
                 UPDATE node_certs SET revoked_at = compute_now() WHERE serial = '1'; RESET gateway.notify";
    run(&mut db.sql, quiet).await;
    run(&mut db.sql, "UPDATE node_certs SET revoked_at = compute_now() WHERE serial > '1'").await;
    run(&mut db.sql, "NOTIFY gateway_certs, 'end'").await;
    assert_eq!(ear.recv().await.unwrap().payload(), "", "one for eight certificates");
    assert_eq!(ear.recv().await.unwrap().payload(), "end");
}

#[tokio::test]
async fn a_look_reads_no_more_for_certificates_that_are_not_revoked() {
    let mut db = database().await;
    run(&mut db.sql, PLANNING).await;
    let queries =
        [include_str!("../queries/revocations_changed.sql"), include_str!("../queries/revocations_all.sql")];
    let arguments = ["0, '', 5000", "'', 5000"];
    for (place, query) in queries.iter().enumerate() {
        run(&mut db.sql, &format!("PREPARE look{place} AS {query}")).await;
    }
    let mut read = Vec::new();
    for _ in 0..2 {
        for (place, arguments) in arguments.iter().enumerate() {
            let look = format!("EXECUTE look{place}({arguments})");
            run(&mut db.sql, &look).await;
            read.push(buffers(&mut db.sql, &look).await);
        }
        let many = "INSERT INTO node_certs (serial, node_id) \
                    SELECT upper(to_hex(i)), 'n' || i FROM generate_series(1, 20000) i ON CONFLICT DO NOTHING";
        run(&mut db.sql, many).await;
    }
    assert_eq!(read[..2], read[2..], "buffers with no certificate, and with twenty thousand that are good");
}

/// Of each command, its state and why it ended so.
async fn fates(db: &mut Db, commands: &[CommandId]) -> Vec<(String, String)> {
    let mut fates = Vec::new();
    for id in commands {
        let state = db.state(*id).await;
        let error = text(&mut db.sql, &format!("SELECT error FROM command_status WHERE id = '{id}'")).await;
        fates.push((state, error));
    }
    fates
}

async fn enqueue_kind(db: &mut Db, kind: &str) -> CommandId {
    let query = format!("SELECT enqueue_command('n1', '{kind}', 'body')");
    CommandId(text(&mut db.sql, &query).await.parse().unwrap())
}

/// A session of `n1` under the certificate AB; gives its epoch and what it was sent again.
async fn under_certificate(db: &Db, proof: &LeaseProof, destructive: &Arc<[String]>) -> HelloGrant {
    let mut entry = hello("n1", &[("default", 9)], &[]);
    entry.identity.certificate_serial = "AB".to_owned();
    let mut runner = db.runner(Queue::Hellos).with_destructive_kinds(Arc::clone(destructive));
    granted(runner.run(&Job::Hellos { proof: proof.clone(), entries: vec![entry] }).await).remove(0)
}

#[tokio::test]
async fn a_destructive_command_never_reaches_a_machine_that_its_tenant_controls_and_holds_up_none() {
    let mut db = database().await;
    db.nodes(1).await;
    run(&mut db.sql, "INSERT INTO node_certs (serial, node_id) VALUES ('AB', 'n1')").await;
    let proof = db.lease().await;
    let destructive: Arc<[String]> = Arc::new(["wipe".to_owned()]);
    let mut runner = db.runner(Queue::Dispatch).with_destructive_kinds(Arc::clone(&destructive));

    // The platform controls it: all goes. Then the tenant has its key, and what was sent is not sent again.
    let epoch = under_certificate(&db, &proof, &destructive).await.epoch;
    let (wiped, ran) = (enqueue_kind(&mut db, "wipe").await, enqueue_kind(&mut db, "run").await);
    let sent = dispatch(&mut runner, &proof, vec![want("n1", epoch, "default", 9)]).await;
    assert_eq!(ids(&sent), [wiped, ran]);
    run(&mut db.sql, "UPDATE node_certs SET tenant_controlled = true WHERE serial = 'AB'").await;
    let grant = under_certificate(&db, &proof, &destructive).await;
    assert_eq!(grant.replays.iter().map(|command| command.id).collect::<Vec<_>>(), [ran]);
    assert_eq!(grant.in_flight.len(), 1, "what is refused takes no credit");
    let refused = ("refused".to_owned(), KIND_NOT_ALLOWED.to_owned());
    assert_eq!(fates(&mut db, &[wiped]).await, std::slice::from_ref(&refused));

    // New ones end as refused in their place, and the others go.
    let mut commands = Vec::new();
    for kind in ["wipe", "run", "wipe", "run"] {
        commands.push(enqueue_kind(&mut db, kind).await);
    }
    let sent = dispatch(&mut runner, &proof, vec![want("n1", grant.epoch, "default", 9)]).await;
    assert_eq!(ids(&sent), [commands[1], commands[3]]);
    let fates_now = fates(&mut db, &commands).await;
    assert_eq!([&fates_now[0], &fates_now[2]], [&refused, &refused]);
    assert_eq!([&fates_now[1].0, &fates_now[3].0], ["dispatched", "dispatched"]);
    let seen = "SELECT concat_ws(' ', state, done, error IS NOT NULL) FROM command_status WHERE kind = 'wipe' LIMIT 1";
    assert_eq!(text(&mut db.sql, seen).await, "refused t t", "whoever enqueued it sees why");

    // Who lists nothing as destructive sends it.
    let mut careless = db.runner(Queue::Dispatch);
    let id = enqueue_kind(&mut db, "wipe").await;
    assert_eq!(
        ids(&dispatch(&mut careless, &proof, vec![want("n1", grant.epoch, "default", 9)]).await),
        [id]
    );
}

#[tokio::test]
async fn a_certificate_that_allows_some_kinds_is_sent_no_other() {
    let mut db = database().await;
    db.nodes(1).await;
    run(
        &mut db.sql,
        "INSERT INTO node_certs (serial, node_id, allowed_kinds) VALUES ('AB', 'n1', '{run,look}')",
    )
    .await;
    let proof = db.lease().await;
    let epoch = under_certificate(&db, &proof, &Arc::default()).await.epoch;
    let mut commands = Vec::new();
    for kind in ["run", "other", "look"] {
        commands.push(enqueue_kind(&mut db, kind).await);
    }
    let mut runner = db.runner(Queue::Dispatch);
    let sent = dispatch(&mut runner, &proof, vec![want("n1", epoch, "default", 9)]).await;
    assert_eq!(ids(&sent), [commands[0], commands[2]]);
    assert_eq!(fates(&mut db, &commands[1..2]).await[0].0, "refused");
}

#[tokio::test]
async fn a_renewal_takes_over_the_limits_of_the_certificate_before_it() {
    let mut db = database().await;
    run(
        &mut db.sql,
        "INSERT INTO node_certs (serial, node_id, role, allowed_kinds, tenant_controlled) \
         VALUES ('AB', 'n1', 'storage', '{echo}', true)",
    )
    .await;
    run(&mut db.sql, "SELECT record_renewal('AB', 'CD', now() + interval '1 day')").await;
    let row = "SELECT concat_ws(' ', node_id, role, allowed_kinds, tenant_controlled, not_after > now()) \
               FROM node_certs WHERE serial = 'CD'";
    assert_eq!(text(&mut db.sql, row).await, "n1 storage {echo} t t");

    run(&mut db.sql, "INSERT INTO node_certs (serial, node_id, revoked_at) VALUES ('DD', 'n1', now())").await;
    for (statement, sentence) in [
        ("SELECT record_renewal('FF', 'EF')", "no certificate with the serial FF is recorded"),
        ("SELECT record_renewal('CD', '0EF')", "upper_case_hex_without_leading_zeros"),
        ("SELECT record_renewal('DD', 'EF')", "is revoked and can't be renewed"),
    ] {
        let error = sqlx::query(statement).execute(&mut db.sql).await.unwrap_err().to_string();
        assert!(error.contains(sentence), "{statement}: {error}");
    }
}

//! Certificates as the database has them: what a Hello may by its certificate's row, and how a gateway finds what
//! was revoked, or is no longer, whichever way the row came to it.
//!
//! What shards do with it is theirs to test; that both stores answer alike, the model's.

#![allow(clippy::unwrap_used)]

mod support;

use gateway_core::certificate::UnknownSerial;
use gateway_core::close::StatusCode;
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

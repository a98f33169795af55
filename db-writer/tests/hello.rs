//! Hellos: who is let in, what is sent again, adopted or expired, and how they wait for dispatches.
//!
//! Each story says Hello with what a node claims to know and compares the grant and the rows. The rows
//! decide, but for what the node lists itself. Superseding among shards is not seen here: that is the
//! core's.

#![allow(clippy::unwrap_used)]

mod support;

use gateway_core::close::CloseReason;
use gateway_core::command::CommandState;
use gateway_core::ids::{Attempt, CommandId, EventSeq, JournalId, LaneSeq, SessionEpoch};
use gateway_core::store::*;
use support::*;

/// `n1` with a session and so many commands dispatched on lane `default`.
async fn with_dispatched(db: &mut Db, commands: u32) -> (LeaseProof, Vec<CommandId>) {
    db.nodes(1).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("default", commands)]).await;
    let mut sent = Vec::new();
    for _ in 0..commands {
        sent.push(db.enqueue("n1", "default").await);
    }
    let wants = vec![want("n1", session.epoch, "default", commands)];
    assert_eq!(ids(&dispatch(&mut db.runner(Queue::Dispatch), &proof, wants).await), sent);
    (proof, sent)
}

async fn say(db: &Db, proof: &LeaseProof, known: &[(CommandId, u32, CommandState)]) -> HelloGrant {
    let entries = vec![hello("n1", &[("default", 9)], known)];
    granted(db.runner(Queue::Hellos).run(&Job::Hellos { proof: proof.clone(), entries }).await).pop().unwrap()
}

#[tokio::test]
async fn each_hello_of_a_batch_has_its_own_answer() {
    let mut db = database().await;
    db.nodes(4).await;
    run(
        &mut db.sql,
        "INSERT INTO node_certs (serial, node_id, revoked_at, revoked_reason) VALUES \
         ('AA', 'n2', now(), 'stolen'), ('BB', 'n4', NULL, NULL), ('CC', 'n4', NULL, NULL)",
    )
    .await;
    let proof = db.lease().await;
    let with_serial = |name: &str, serial: &str| {
        let mut entry = hello(name, &[("default", 1)], &[]);
        entry.identity.certificate_serial = serial.to_owned();
        entry
    };
    let entries = vec![
        with_serial("n9", "99"),
        with_serial("n2", "AA"),
        with_serial("n1", "01"),
        with_serial("n3", "BB"),
        with_serial("n4", "CC"),
    ];
    let outcome = db.runner(Queue::Hellos).run(&Job::Hellos { proof, entries }).await;
    let Outcome::Hellos(Ok(Routed::Committed(outcomes))) = outcome else { panic!("{outcome:?}") };
    let HelloOutcome::Refused(CloseReason::NotPermitted(sentence)) = &outcomes[0] else {
        panic!("{outcomes:?}")
    };
    assert!(sentence.contains("SELECT register_node('n9')"), "{sentence}");
    let HelloOutcome::Refused(CloseReason::Revoked(sentence)) = &outcomes[1] else { panic!("{outcomes:?}") };
    assert!(sentence.contains("revoked: stolen"), "{sentence}");
    assert!(matches!(&outcomes[2], HelloOutcome::Granted(grant) if grant.epoch == SessionEpoch(1)));
    assert!(matches!(&outcomes[3], HelloOutcome::Refused(CloseReason::BadCertificate(_))), "{outcomes:?}");
    assert!(matches!(&outcomes[4], HelloOutcome::Granted(_)));
    let epochs = "SELECT string_agg(session_epoch::text, ' ' ORDER BY node_id) FROM node_sessions";
    assert_eq!(text(&mut db.sql, epochs).await, "1 0 0 1");
}

#[tokio::test]
async fn a_hello_is_stored_with_all_that_it_says() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    run(&mut db.sql, "INSERT INTO node_journals (node_id, journal_id, acked_seq) VALUES ('n1', 'j1', 41)")
        .await;
    let mut entry = hello("n1", &[("b", 2), ("a", 3)], &[]);
    entry.hello.journal = Some(JournalId::new("j1").unwrap());
    let job = Job::Hellos { proof: proof.clone(), entries: vec![entry] };
    let grant = granted(db.runner(Queue::Hellos).run(&job).await).pop().unwrap();
    assert_eq!((grant.epoch, grant.journal_acked), (SessionEpoch(1), EventSeq(41)));
    assert_eq!((grant.cursors, grant.has_pending), (vec![LaneSeq(0), LaneSeq(0)], false));
    let now = number(&mut db.sql, "SELECT unix_millis(now())").await;
    assert!((now - grant.server_time.0).abs() < 10_000);
    let row = "SELECT concat_ws('/', gateway_id, session_epoch, lease_epoch, boot_id, machine, software_version, role, \
               certificate_serial, lanes::text, lane_capacities::text, disconnected_at) FROM node_sessions";
    assert_eq!(text(&mut db.sql, row).await, "g1/1/1/boot/machine/0.1/node/1002/{b,a}/{2,3}");
    let outbox = "SELECT kind || node_id || (body ->> 'session_epoch') || (body ->> 'gateway') FROM outbox";
    assert_eq!(text(&mut db.sql, outbox).await, "node.connectedn11g1");
    let lanes = [("\"} \\", 1), ("NULL", 2), ("{a,b}", 3)];
    db.connect(&proof, "n1", &lanes).await;
    let stored = texts(&mut db.sql, "SELECT unnest(lanes) FROM node_sessions").await;
    assert_eq!(stored, lanes.map(|(name, _)| name.to_owned()));
}

#[tokio::test]
async fn what_the_node_does_not_list_is_sent_again_in_order_with_the_new_epoch() {
    let mut db = database().await;
    let (proof, sent) = with_dispatched(&mut db, 4).await;
    let entries = vec![update("n1", sent[1], 1, CommandState::Succeeded)];
    db.runner(Queue::Updates).run(&Job::Updates { entries }).await;
    let waiting = db.enqueue("n1", "default").await;
    let grant = say(&db, &proof, &[(sent[2], 1, CommandState::Running)]).await;
    let again: Vec<CommandId> = grant.replays.iter().map(|command| command.id).collect();
    assert_eq!(again, [sent[0], sent[3]]);
    assert!(grant.replays.iter().all(|command| command.session_epoch == SessionEpoch(2)));
    assert!(
        grant.replays.iter().all(|command| &command.payload[..] == b"body" && command.attempt == Attempt(1))
    );
    let held: Vec<CommandId> = grant.in_flight.iter().map(|held| held.id).collect();
    assert_eq!(held, [sent[0], sent[2], sent[3]]);
    assert_eq!((grant.cursors, grant.has_pending), (vec![LaneSeq(4)], true));
    assert_eq!(db.state(sent[2]).await, "running");
    assert_eq!(db.state(waiting).await, "pending");
    let replays = "SELECT string_agg(replays::text, ' ' ORDER BY seq) FROM commands";
    assert_eq!(text(&mut db.sql, replays).await, "1 0 0 1 0");
}

#[tokio::test]
async fn a_command_past_its_time_expires_instead_of_being_sent_again() {
    let mut db = database().await;
    let (proof, sent) = with_dispatched(&mut db, 2).await;
    run(&mut db.sql, "UPDATE commands SET not_after = now() - interval '1 s', notify = true").await;
    let grant = say(&db, &proof, &[(sent[1], 1, CommandState::Accepted)]).await;
    assert_eq!(grant.replays, []);
    assert_eq!(db.state(sent[0]).await, "expired");
    assert_eq!(db.state(sent[1]).await, "accepted");
    assert_eq!(grant.in_flight.len(), 1);
}

#[tokio::test]
async fn what_the_node_lists_is_adopted_whatever_the_row_says() {
    let mut db = database().await;
    db.nodes(2).await;
    let proof = db.lease().await;
    let lost_mark = db.enqueue("n1", "default").await;
    let untouched = db.enqueue("n1", "default").await;
    let ended = db.enqueue("n1", "default").await;
    let other_nodes = db.enqueue("n2", "default").await;
    // Pending when it was canceled, as its mark was lost too.
    let taken_back = db.enqueue("n1", "default").await;
    run(&mut db.sql, &format!("UPDATE commands SET state = 'succeeded' WHERE id = '{ended}'")).await;
    run(&mut db.sql, &format!("SELECT cancel_command('n1', '{taken_back}')")).await;
    let known = [
        (lost_mark, 1, CommandState::Running),
        (taken_back, 1, CommandState::Running),
        (ended, 1, CommandState::Running),
        (other_nodes, 1, CommandState::Running),
        (CommandId(uuid::Uuid::new_v4()), 1, CommandState::Accepted),
    ];
    let grant = say(&db, &proof, &known).await;
    assert_eq!(grant.in_flight.iter().map(|held| held.id).collect::<Vec<_>>(), [lost_mark, taken_back]);
    assert_eq!(grant.cancels.iter().map(|cancel| cancel.id).collect::<Vec<_>>(), [taken_back]);
    assert_eq!(grant.replays, []);
    assert_eq!(db.state(lost_mark).await, "running");
    assert_eq!(db.state(taken_back).await, "running");
    assert_eq!(db.state(ended).await, "succeeded");
    assert_eq!(db.state(other_nodes).await, "pending");
    // The adopted one says nothing of those before or behind it.
    assert_eq!((grant.cursors, grant.has_pending), (vec![LaneSeq(0)], true));
    let claims =
        dispatch(&mut db.runner(Queue::Dispatch), &proof, vec![want("n1", grant.epoch, "default", 9)]).await;
    assert_eq!(ids(&claims), [untouched]);
    // And it is found again by the next Hello.
    let grant = say(&db, &proof, &[(untouched, 1, CommandState::Dispatched)]).await;
    assert_eq!(grant.replays.iter().map(|command| command.id).collect::<Vec<_>>(), [lost_mark, taken_back]);
}

#[tokio::test]
async fn a_retried_command_that_the_node_lists_by_its_old_attempt_is_sent_again() {
    let mut db = database().await;
    let (proof, sent) = with_dispatched(&mut db, 1).await;
    db.runner(Queue::Updates).run(&Job::Updates { entries: vec![refusal("n1", sent[0], 1)] }).await;
    db.set_clock("2 s").await;
    let wants = vec![want("n1", SessionEpoch(1), "default", 1)];
    assert_eq!(dispatch(&mut db.runner(Queue::Dispatch), &proof, wants).await.len(), 1);
    let grant = say(&db, &proof, &[(sent[0], 1, CommandState::Refused)]).await;
    assert_eq!(grant.replays.len(), 1);
    assert_eq!((grant.replays[0].attempt, &grant.replays[0].payload[..]), (Attempt(2), &b"body"[..]));
    let grant = say(&db, &proof, &[(sent[0], 2, CommandState::Accepted)]).await;
    assert_eq!((grant.replays.len(), grant.in_flight[0].attempt), (0, Attempt(2)));
}

#[tokio::test]
async fn a_cancellation_is_asked_for_again_at_every_hello() {
    let mut db = database().await;
    let (proof, sent) = with_dispatched(&mut db, 2).await;
    let answer = text(&mut db.sql, &format!("SELECT cancel_command('n1', '{}', 'no more')", sent[0])).await;
    assert_eq!(answer, "dispatched");
    for _ in 0..2 {
        let grant = say(&db, &proof, &[(sent[0], 1, CommandState::Running)]).await;
        assert_eq!(grant.cancels.len(), 1);
        assert_eq!((grant.cancels[0].id, grant.cancels[0].reason.as_str()), (sent[0], "no more"));
    }
}

#[tokio::test]
async fn all_in_flight_is_found_however_lanes_and_attempts_are_mixed() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let lanes = [("a", 4), ("b", 4), ("c", 4)];
    let mut session = db.connect(&proof, "n1", &lanes).await;
    let mut expected = std::collections::BTreeSet::new();
    // A fixed sequence that mixes dispatches, ends out of order, refusals and Hellos.
    let mut random: u32 = 12345;
    let mut next = |bound: usize| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) as usize % bound
    };
    let (mut dispatcher, mut updates) = (db.runner(Queue::Dispatch), db.runner(Queue::Updates));
    let mut attempts = std::collections::BTreeMap::new();
    for step in 0..120 {
        let lane_name = lanes[next(3)].0;
        db.enqueue("n1", lane_name).await;
        let free = next(3) as u32 + 1;
        for claim in dispatch(&mut dispatcher, &proof, vec![want("n1", session.epoch, lane_name, free)]).await
        {
            attempts.insert(claim.command.id, claim.command.attempt.0);
            expected.insert(claim.command.id);
        }
        for _ in 0..next(3) {
            let Some(id) = expected.iter().nth(next(expected.len().max(1))).copied() else { continue };
            let entry = match next(3) {
                0 => refusal("n1", id, attempts[&id]),
                _ => update("n1", id, attempts[&id], CommandState::Succeeded),
            };
            expected.remove(&id);
            updates.run(&Job::Updates { entries: vec![entry] }).await;
        }
        if step % 10 == 9 {
            run(&mut db.sql, "UPDATE commands SET not_before = now() WHERE phase = 'p' AND deferred").await;
            session = db.connect(&proof, "n1", &lanes).await;
            let found =
                session.in_flight.iter().map(|held| held.id).collect::<std::collections::BTreeSet<_>>();
            assert_eq!(found, expected, "at step {step}");
            assert_eq!(session.replays.len(), expected.len());
            let seqs: Vec<u64> = session.replays.iter().map(|command| command.seq.0).collect();
            assert!(seqs.is_sorted(), "{seqs:?}");
        }
    }
    assert!(!expected.is_empty());
}

#[tokio::test]
async fn a_hello_waits_for_an_open_dispatch_and_sees_what_it_sent() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("default", 1)]).await;
    let sent = db.enqueue("n1", "default").await;
    let mut router = db.client("router").await;
    run(&mut router, &format!("BEGIN; PREPARE pass AS {DISPATCH}")).await;
    let arguments = dispatch_arguments(&proof, &[want("n1", session.epoch, "default", 1)]);
    run(&mut router, &format!("EXECUTE pass({arguments})")).await;
    let mut runner = db.runner(Queue::Hellos);
    let entries = vec![hello("n1", &[("default", 1)], &[])];
    let job = Job::Hellos { proof, entries };
    let saying = tokio::spawn(async move { granted(runner.run(&job).await).pop().unwrap() });
    db.until_waits_for("gateway g1 hellos", "router").await;
    run(&mut router, "COMMIT").await;
    let grant = saying.await.unwrap();
    assert_eq!(grant.replays.iter().map(|command| command.id).collect::<Vec<_>>(), [sent]);
}

#[tokio::test]
async fn a_dispatch_passes_by_the_node_of_an_open_hello_and_serves_the_others() {
    let mut db = database().await;
    db.nodes(2).await;
    let proof = db.lease().await;
    let one = db.connect(&proof, "n1", &[("default", 1)]).await;
    let two = db.connect(&proof, "n2", &[("default", 1)]).await;
    db.enqueue("n1", "default").await;
    let served = db.enqueue("n2", "default").await;
    let mut saying = db.client("saying").await;
    run(&mut saying, "BEGIN; SELECT 1 FROM node_sessions WHERE node_id = 'n1' FOR UPDATE").await;
    let wants = vec![want("n1", one.epoch, "default", 1), want("n2", two.epoch, "default", 1)];
    let mut runner = db.runner(Queue::Dispatch);
    assert_eq!(ids(&dispatch(&mut runner, &proof, wants.clone()).await), [served]);
    run(&mut saying, "UPDATE node_sessions SET session_epoch = 2 WHERE node_id = 'n1'; COMMIT").await;
    assert_eq!(dispatch(&mut runner, &proof, wants).await, []);
}

#[tokio::test]
async fn two_hellos_of_one_node_are_never_one_batch() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let entries = vec![hello("n1", &[], &[]), hello("n1", &[], &[])];
    let outcome = db.runner(Queue::Hellos).run(&Job::Hellos { proof, entries }).await;
    assert!(matches!(outcome, Outcome::Hellos(Err(StoreError::Rejected(_)))), "{outcome:?}");
    assert_eq!(number(&mut db.sql, "SELECT session_epoch FROM node_sessions").await, 0);
}

/// One Hello of `n1` from a machine and boot; what became of it.
async fn hello_from(db: &Db, proof: &LeaseProof, machine: &str, boot: &str) -> HelloOutcome {
    let mut entry = hello("n1", &[("a", 1)], &[]);
    entry.identity.certificate_serial = "AB".to_owned();
    (entry.hello.machine, entry.hello.boot_id) = (machine.to_owned(), boot.to_owned());
    let job = Job::Hellos { proof: proof.clone(), entries: vec![entry, hello("n2", &[], &[])] };
    let outcome = db.runner_of(proof.gateway.as_str(), Queue::Hellos).run(&job).await;
    let Outcome::Hellos(Ok(Routed::Committed(mut outcomes))) = outcome else { panic!("{outcome:?}") };
    assert!(matches!(outcomes[1], HelloOutcome::Granted(_)), "its neighbour is served: {outcomes:?}");
    outcomes.swap_remove(0)
}

#[tokio::test]
async fn a_certificate_that_two_machines_use_in_turn_is_revoked_whichever_gateways_they_dial() {
    let mut db = database().await;
    db.nodes(2).await;
    let (one, two) = (db.lease_of("g1", "o1").await, db.lease_of("g2", "o2").await);
    // A is tried and rolled back, and reboots: one return in all.
    for (machine, boot) in [("A", "a1"), ("B", "b1"), ("A", "a2"), ("A", "a3"), ("A", "a3")] {
        let outcome = hello_from(&db, &one, machine, boot).await;
        assert!(matches!(outcome, HelloOutcome::Granted(_)), "{outcome:?}");
    }
    for (proof, machine, boot) in [(&two, "B", "b1"), (&one, "A", "a3")] {
        let outcome = hello_from(&db, proof, machine, boot).await;
        assert!(matches!(outcome, HelloOutcome::Granted(_)), "{outcome:?}");
    }
    let HelloOutcome::Quarantined(identity) = hello_from(&db, &two, "B", "b1").await else {
        panic!("the fourth return")
    };
    assert_eq!((identity.node.as_str(), &*identity.certificate_serial), ("n1", "AB"));
    let cert = "SELECT concat_ws(' ', node_id, revoked_at IS NOT NULL, revoked_reason) FROM node_certs WHERE serial = 'AB'";
    assert_eq!(text(&mut db.sql, cert).await, "n1 t duplicate-identity");
    // The session that stood is fenced: dispatches and liveness of it fit no more.
    let session = "SELECT concat_ws(' ', gateway_id, session_epoch, disconnected_at IS NOT NULL) FROM node_sessions \
                   WHERE node_id = 'n1'";
    assert_eq!(text(&mut db.sql, session).await, "g1 8 t");
    let told = "SELECT string_agg(kind, ' ' ORDER BY kind) FROM outbox WHERE node_id = 'n1' AND kind <> 'node.connected'";
    assert_eq!(text(&mut db.sql, told).await, "node.disconnected node.quarantined");
    let why = "SELECT body ->> 'reason' FROM outbox WHERE node_id = 'n1' AND kind = 'node.disconnected'";
    assert_eq!(text(&mut db.sql, why).await, "quarantined");
    for (proof, machine, boot) in [(&one, "A", "a3"), (&two, "B", "b1"), (&one, "C", "c")] {
        let outcome = hello_from(&db, proof, machine, boot).await;
        let HelloOutcome::Refused(reason) = outcome else { panic!("{outcome:?}") };
        assert!(matches!(reason, CloseReason::NotPermitted(_)), "{reason:?}");
    }
    assert_eq!(text(&mut db.sql, session).await, "g1 8 t", "a refused Hello changes nothing");
    // Someone has found the copy, and admits the certificate again.
    run(&mut db.sql, "UPDATE node_certs SET revoked_at = NULL, revoked_reason = NULL").await;
    for (machine, boot) in [("A", "a3"), ("B", "b1"), ("A", "a3")] {
        let outcome = hello_from(&db, &one, machine, boot).await;
        assert!(matches!(outcome, HelloOutcome::Granted(_)), "it begins anew: {outcome:?}");
    }
}

#[tokio::test]
async fn returns_that_are_long_ago_and_a_new_certificate_count_nothing() {
    let mut db = database().await;
    db.nodes(2).await;
    let proof = db.lease().await;
    run(&mut db.sql, "UPDATE leases SET expires_at = 'infinity'").await;
    for round in 0..12 {
        db.set_clock(&format!("{} minutes", round * 6)).await;
        let machine = if round % 2 == 0 { "A" } else { "B" };
        let outcome = hello_from(&db, &proof, machine, machine).await;
        assert!(matches!(outcome, HelloOutcome::Granted(_)), "{round}: {outcome:?}");
    }
    let remembered = "SELECT concat_ws(' ', cardinality(machines), cardinality(returned_at)) FROM node_moves";
    assert_eq!(text(&mut db.sql, remembered).await, "2 2", "what is too old is forgotten");
    db.set_clock("100 minutes").await;
    for round in 0..12 {
        let mut entry = hello("n1", &[], &[]);
        entry.identity.certificate_serial = format!("C{round}");
        entry.hello.machine = if round % 2 == 0 { "A".to_owned() } else { "B".to_owned() };
        let job = Job::Hellos { proof: proof.clone(), entries: vec![entry] };
        granted(db.runner(Queue::Hellos).run(&job).await);
    }
    assert_eq!(number(&mut db.sql, "SELECT count(*) FROM node_certs").await, 0);
}

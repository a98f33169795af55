//! Who waits for whom: each kind of transaction is held open, and the others go on, or wait.
//!
//! That something does not wait is shown beside a transaction that is open and stays so, not by a time
//! that was measured. Batches in opposite orders must never be a deadlock.

#![allow(clippy::unwrap_used)]

mod support;

use gateway_core::command::CommandState;
use gateway_core::store::*;
use support::*;

/// `n1` and `n2` with sessions, and a command each.
async fn two_nodes(db: &mut Db) -> (LeaseProof, Vec<LaneWant>, Vec<gateway_core::ids::CommandId>) {
    db.nodes(2).await;
    let proof = db.lease().await;
    let mut wants = Vec::new();
    let mut sent = Vec::new();
    for name in ["n1", "n2"] {
        let epoch = db.connect(&proof, name, &[("default", 9)]).await.epoch;
        wants.push(want(name, epoch, "default", 9));
        sent.push(db.enqueue(name, "default").await);
    }
    (proof, wants, sent)
}

/// A dispatch must pass while these statements are open in a transaction.
async fn dispatch_passes_beside(held: &str) {
    let mut db = database().await;
    let (proof, wants, sent) = two_nodes(&mut db).await;
    let mut holder = db.client("holder").await;
    run(&mut holder, &format!("BEGIN; {held}")).await;
    // Were it to wait, it would end with a lock time-out, as Retry.
    assert_eq!(ids(&dispatch(&mut db.runner(Queue::Dispatch), &proof, wants).await), sent);
    run(&mut holder, "ROLLBACK").await;
}

#[tokio::test]
async fn a_dispatch_does_not_wait_for_liveness() {
    dispatch_passes_beside("UPDATE node_liveness SET last_seen_at = now()").await;
}

#[tokio::test]
async fn a_dispatch_does_not_wait_for_a_disconnect_nor_lets_it_wait() {
    dispatch_passes_beside("UPDATE node_sessions SET disconnected_at = now()").await;
}

#[tokio::test]
async fn a_dispatch_does_not_wait_for_events_or_a_hook_that_sleeps() {
    // As the ingestion will do it: the event, the cursor, and then the hook's work, still open.
    dispatch_passes_beside(
        "INSERT INTO events (node_id, journal_id, seq, kind) VALUES ('n1', 'j', 1, 'k'); \
         INSERT INTO journals VALUES ('n1', 'j', 1) ON CONFLICT (node_id, journal_id) DO UPDATE SET acked_seq = 1; \
         SAVEPOINT hook; INSERT INTO work (kind, key) VALUES ('hook', 'n1'); \
         INSERT INTO allocations (node_id, id, tenant_id, state) VALUES ('n1', gen_random_uuid(), 't', 'bound')",
    )
    .await;
}

#[tokio::test]
async fn a_dispatch_does_not_wait_for_inventory_or_specs() {
    dispatch_passes_beside(
        "INSERT INTO inventory_sections (node_id, section, hash, body) VALUES ('n1', 's', sha256(''), ''); \
         INSERT INTO specs (node_id, name, generation, body) VALUES ('n1', 's', 1, '')",
    )
    .await;
}

#[tokio::test]
async fn a_dispatch_does_not_wait_for_an_enqueue_that_is_open() {
    dispatch_passes_beside("SELECT enqueue_command('n1', 'work'), enqueue_command('n2', 'work')").await;
}

#[tokio::test]
async fn a_dispatch_does_not_wait_for_a_renewal() {
    dispatch_passes_beside("UPDATE leases SET expires_at = expires_at + interval '1 s'").await;
}

#[tokio::test]
async fn a_hello_does_not_wait_for_liveness_of_others_events_or_an_enqueue() {
    let mut db = database().await;
    let (proof, _, _) = two_nodes(&mut db).await;
    let mut holder = db.client("holder").await;
    run(
        &mut holder,
        "BEGIN; UPDATE node_liveness SET last_seen_at = now() WHERE node_id = 'n2'; \
         INSERT INTO journals VALUES ('n1', 'j', 1); SELECT enqueue_command('n1', 'work')",
    )
    .await;
    assert_eq!(db.connect(&proof, "n1", &[("default", 1)]).await.epoch.0, 2);
    run(&mut holder, "ROLLBACK").await;
}

#[tokio::test]
async fn hellos_of_other_nodes_do_not_wait_for_a_hello() {
    let mut db = database().await;
    let (proof, _, _) = two_nodes(&mut db).await;
    let mut holder = db.client("holder").await;
    run(&mut holder, "BEGIN; SELECT 1 FROM node_sessions WHERE node_id = 'n2' FOR UPDATE").await;
    assert_eq!(db.connect(&proof, "n1", &[("default", 1)]).await.epoch.0, 2);
    run(&mut holder, "ROLLBACK").await;
}

#[tokio::test]
async fn an_update_does_not_wait_for_a_hello_of_a_session_without_that_command() {
    let mut db = database().await;
    let (proof, wants, sent) = two_nodes(&mut db).await;
    dispatch(&mut db.runner(Queue::Dispatch), &proof, wants).await;
    let mut holder = db.client("holder").await;
    run(&mut holder, "BEGIN; SELECT 1 FROM node_sessions FOR UPDATE").await;
    let entries = vec![update("n1", sent[0], 1, CommandState::Succeeded)];
    let outcome = db.runner(Queue::Updates).run(&Job::Updates { entries }).await;
    assert_eq!(updated(outcome), [stored(CommandState::Succeeded, "default")]);
    run(&mut holder, "ROLLBACK").await;
}

#[tokio::test]
async fn an_update_waits_for_a_cancellation_of_the_command_and_then_counts() {
    let mut db = database().await;
    let (proof, wants, sent) = two_nodes(&mut db).await;
    dispatch(&mut db.runner(Queue::Dispatch), &proof, wants).await;
    let mut holder = db.client("holder").await;
    run(&mut holder, &format!("BEGIN; SELECT cancel_command('n1', '{}')", sent[0])).await;
    let entries = vec![
        update("n2", sent[1], 1, CommandState::Succeeded),
        update("n1", sent[0], 1, CommandState::Succeeded),
    ];
    let mut runner = db.runner(Queue::Updates);
    let storing = tokio::spawn(async move { updated(runner.run(&Job::Updates { entries }).await) });
    db.until_waits_for("gateway g1 updates", "holder").await;
    run(&mut holder, "COMMIT").await;
    assert_eq!(storing.await.unwrap(), vec![stored(CommandState::Succeeded, "default"); 2]);
    let row = "SELECT state || (cancel_requested_at IS NOT NULL)::text FROM commands WHERE node_id = 'n1'";
    assert_eq!(text(&mut db.sql, row).await, "succeededtrue");
}

#[tokio::test]
async fn a_client_that_never_commits_costs_a_retry_and_no_more() {
    let mut db = database().await;
    let (proof, wants, sent) = two_nodes(&mut db).await;
    dispatch(&mut db.runner(Queue::Dispatch), &proof, wants).await;
    let mut holder = db.client("holder").await;
    run(&mut holder, &format!("BEGIN; SELECT cancel_command('n1', '{}')", sent[0])).await;
    let mut runner = db.runner(Queue::Updates);
    let job = Job::Updates { entries: vec![update("n1", sent[0], 1, CommandState::Succeeded)] };
    let outcome = runner.run(&job).await;
    assert!(matches!(outcome, Outcome::Updates(Err(StoreError::Retry(_)))), "{outcome:?}");
    run(&mut holder, "ROLLBACK").await;
    assert_eq!(updated(runner.run(&job).await), [stored(CommandState::Succeeded, "default")]);
}

#[tokio::test]
async fn batches_in_opposite_orders_never_lock_each_other_out() {
    let mut db = database().await;
    db.nodes(40).await;
    let proof = db.lease().await;
    let names: Vec<String> = (1..=40).map(|i| format!("n{i}")).collect();
    let mut sent = Vec::new();
    for name in &names {
        db.connect(&proof, name, &[("default", 9)]).await;
        sent.push(db.enqueue(name, "default").await);
    }
    let mut tasks = Vec::new();
    for reversed in [false, true] {
        let mut pairs: Vec<_> = names.iter().cloned().zip(sent.clone()).collect();
        if reversed {
            pairs.reverse();
        }
        let (mut hellos, mut updates, mut presence) =
            (db.runner(Queue::Hellos), db.runner(Queue::Updates), db.runner(Queue::Presence));
        let proof = proof.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                let entries = pairs.iter().map(|(name, _)| hello(name, &[("default", 9)], &[])).collect();
                let grants = granted(hellos.run(&Job::Hellos { proof: proof.clone(), entries }).await);
                let entries =
                    pairs.iter().map(|(name, id)| update(name, *id, 1, CommandState::Running)).collect();
                updated(updates.run(&Job::Updates { entries }).await);
                let entries = pairs
                    .iter()
                    .zip(&grants)
                    .map(|((name, _), grant)| PresenceEntry::Alive { node: node(name), epoch: grant.epoch })
                    .collect();
                let outcome = presence.run(&Job::Presence { gateway: gateway("g1"), entries }).await;
                assert!(matches!(outcome, Outcome::Presence(Ok(_))), "{outcome:?}");
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(number(&mut db.sql, deadlocks).await, 0);
    assert_eq!(number(&mut db.sql, "SELECT min(session_epoch) FROM node_sessions").await, 21);
}

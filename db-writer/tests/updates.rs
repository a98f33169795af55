//! Updates, presence and the feed of cancellations.
//!
//! Each story stores a batch and compares the answers with the rows. An end is stored once and stays;
//! a node changes its own commands alone; an old epoch counts for nothing. Acks and credit are the
//! core's.

#![allow(clippy::unwrap_used)]

mod support;

use bytes::Bytes;
use gateway_core::command::{CommandState, Transition};
use gateway_core::ids::{Attempt, CommandId, SessionEpoch};
use gateway_core::store::*;
use sqlx::postgres::PgListener;
use support::*;

async fn store(db: &Db, entries: Vec<gateway_core::seam::UpdateRequest>) -> Vec<UpdateOutcome> {
    updated(db.runner(Queue::Updates).run(&Job::Updates { entries }).await)
}

/// What leads on, in all the ways in which it may come together.
const CHAINS: [&[CommandState]; 7] = [
    &[CommandState::Accepted, CommandState::Running],
    &[CommandState::Accepted, CommandState::Succeeded],
    &[CommandState::Accepted, CommandState::Failed],
    &[CommandState::Running, CommandState::Succeeded],
    &[CommandState::Running, CommandState::Failed],
    &[CommandState::Accepted, CommandState::Running, CommandState::Succeeded],
    &[CommandState::Accepted, CommandState::Running, CommandState::Failed],
];

#[tokio::test]
async fn updates_that_lead_on_come_together_to_what_they_come_to_apart() {
    let mut db = database().await;
    db.nodes(1).await;
    let mut cases = Vec::new();
    for before in CommandState::ALL {
        for attempt in [1, 2, 3] {
            for (lost, timed) in [(false, false), (false, true), (true, false)] {
                cases.extend(CHAINS.map(|chain| (before, attempt, lost, timed, chain)));
            }
        }
    }
    let mut together = Vec::new();
    let mut apart = [Vec::new(), Vec::new(), Vec::new()];
    let mut pairs = Vec::new();
    for (before, attempt, lost, timed, chain) in &cases {
        let mut ids = Vec::new();
        for _ in 0..2 {
            let id = db.enqueue("n1", "default").await;
            let dispatched = if *lost { "NULL" } else { "compute_now()" };
            let time = if *timed { "'2020-01-01'" } else { "NULL" };
            let row = format!(
                "state = '{before}', attempt = 2, dispatched_at = {dispatched}, accepted_at = {time}, \
                 started_at = {time}, progress = 'before'"
            );
            run(&mut db.sql, &format!("UPDATE commands SET {row} WHERE id = '{id}'")).await;
            ids.push(id);
        }
        for (turn, state) in chain.iter().enumerate() {
            together.push(update("n1", ids[0], *attempt, *state));
            apart[turn].push(update("n1", ids[1], *attempt, *state));
            // What is told with the last word is kept with it.
            if turn + 1 == chain.len() {
                together.last_mut().unwrap().update.progress = Some("all".to_owned());
                apart[turn].last_mut().unwrap().update.progress = Some("all".to_owned());
            }
        }
        pairs.push((ids[0], ids[1]));
    }
    let mut in_turn = Vec::new();
    for batch in apart {
        in_turn.push(store(&db, batch).await.into_iter());
    }
    let in_turn: Vec<UpdateOutcome> = cases
        .iter()
        .flat_map(|(.., chain)| {
            (0..chain.len()).map(|turn| in_turn[turn].next().unwrap()).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(store(&db, together).await, in_turn);
    let row = |id: CommandId| {
        format!(
            "SELECT (state, attempt, deferred, dispatched_at IS NULL, accepted_at = '2020-01-01', \
             started_at = '2020-01-01', finished_at IS NULL, progress, result, error, not_before)::text \
             FROM commands WHERE id = '{id}'"
        )
    };
    for ((together, apart), case) in pairs.into_iter().zip(&cases) {
        assert_eq!(text(&mut db.sql, &row(together)).await, text(&mut db.sql, &row(apart)).await, "{case:?}");
    }
}

#[tokio::test]
async fn an_acceptance_and_an_end_that_come_together_are_one_write_of_the_row() {
    let mut db = database().await;
    db.nodes(1).await;
    let (id, other) = (db.enqueue("n1", "default").await, db.enqueue("n1", "default").await);
    let version = format!("SELECT ctid FROM commands WHERE id = '{id}'");
    assert_eq!(text(&mut db.sql, &version).await, "(0,1)");
    let word = |state| update("n1", id, 1, state);
    let life = [CommandState::Accepted, CommandState::Running, CommandState::Succeeded];
    // What stands between them is another's.
    let mut entries: Vec<_> = life.map(word).into();
    entries.insert(1, update("n1", other, 1, CommandState::Accepted));
    let states = [life[0], CommandState::Accepted, life[1], life[2]];
    assert_eq!(store(&db, entries).await, states.map(|state| stored(state, "default")));
    let written = text(&mut db.sql, &version).await;
    assert!(["(0,3)", "(0,4)"].contains(&written.as_str()), "{written}");
    let times = format!(
        "SELECT count(*) FROM commands WHERE id = '{id}' AND accepted_at = started_at AND started_at = finished_at"
    );
    assert_eq!(number(&mut db.sql, &times).await, 1);
    // They come again after their answers were lost, and one more that leads nowhere.
    let again =
        vec![word(CommandState::Accepted), word(CommandState::Succeeded), word(CommandState::Running)];
    let conflict =
        || UpdateOutcome::Stored { state: CommandState::Succeeded, lane: lane("default"), conflict: true };
    assert_eq!(store(&db, again).await, [conflict(), stored(CommandState::Succeeded, "default"), conflict()]);
    assert_eq!(text(&mut db.sql, &version).await, written, "nothing is written again");
}

#[tokio::test]
async fn every_state_and_report_ends_as_the_core_says() {
    let mut db = database().await;
    db.nodes(1).await;
    let reportable = || CommandState::ALL.into_iter().filter(|state| state.is_reportable());
    let mut entries = Vec::new();
    let mut expected = Vec::new();
    for before in CommandState::ALL {
        for reported in reportable() {
            let id = db.enqueue("n1", "default").await;
            run(
                &mut db.sql,
                &format!(
                    "UPDATE commands SET state = '{before}', dispatched_at = compute_now() WHERE id = '{id}'"
                ),
            )
            .await;
            entries.push(update("n1", id, 1, reported));
            let after = match before.on_report(reported) {
                Transition::Apply => reported,
                Transition::Repeat | Transition::Conflict => before,
            };
            let conflict = before.on_report(reported) == Transition::Conflict;
            expected.push((
                id,
                UpdateOutcome::Stored { state: after, lane: lane("default"), conflict },
                after,
            ));
        }
    }
    // Once more, after it is stored: what was applied is now a repeat.
    for round in 0..2 {
        let outcomes = store(&db, entries.clone()).await;
        for ((id, outcome, after), got) in expected.iter().zip(&outcomes) {
            assert_eq!(got, outcome, "round {round}");
            assert_eq!(db.state(*id).await, after.as_str());
        }
    }
}

#[tokio::test]
async fn a_result_is_stored_once_and_stays() {
    let mut db = database().await;
    db.nodes(1).await;
    let id = db.enqueue("n1", "default").await;
    let mut running = update("n1", id, 1, CommandState::Running);
    running.update.progress = Some("10 %".to_owned());
    store(&db, vec![running.clone()]).await;
    running.update.progress = Some("20 %".to_owned());
    assert_eq!(store(&db, vec![running.clone()]).await, [stored(CommandState::Running, "default")]);
    let row = "SELECT concat_ws('/', state, progress, encode(result, 'escape'), error, started_at IS NOT NULL, \
               finished_at IS NOT NULL) FROM commands";
    assert_eq!(text(&mut db.sql, row).await, "running/20 %/t/f");
    let mut done = update("n1", id, 1, CommandState::Failed);
    done.update.error = Some("exit 1".to_owned());
    store(&db, vec![done.clone()]).await;
    assert_eq!(text(&mut db.sql, row).await, "failed/20 %/result/exit 1/t/t");
    done.update.result = Bytes::from_static(b"another");
    done.update.state = CommandState::Succeeded;
    running.update.progress = Some("30 %".to_owned());
    let conflict =
        [UpdateOutcome::Stored { state: CommandState::Failed, lane: lane("default"), conflict: true }];
    assert_eq!(store(&db, vec![done]).await, conflict);
    assert_eq!(store(&db, vec![running]).await, conflict);
    assert_eq!(text(&mut db.sql, row).await, "failed/20 %/result/exit 1/t/t");
}

#[tokio::test]
async fn an_update_of_another_nodes_command_touches_nothing() {
    let mut db = database().await;
    db.nodes(2).await;
    let mine = db.enqueue("n1", "default").await;
    let others = db.enqueue("n2", "default").await;
    let outcomes = store(
        &db,
        vec![
            update("n1", others, 1, CommandState::Succeeded),
            update("n1", mine, 1, CommandState::Succeeded),
            update("n1", CommandId(uuid::Uuid::new_v4()), 1, CommandState::Succeeded),
        ],
    )
    .await;
    assert_eq!(
        outcomes,
        [
            UpdateOutcome::UnknownCommand,
            stored(CommandState::Succeeded, "default"),
            UpdateOutcome::UnknownCommand
        ]
    );
    assert_eq!(db.state(others).await, "pending");
}

#[tokio::test]
async fn a_refusal_is_tried_again_until_the_attempts_are_used_up() {
    let mut db = database().await;
    db.nodes(1).await;
    let id = db.enqueue_with("n1", "default", ", max_attempts => 3").await;
    let mut waits = Vec::new();
    for attempt in 1..=2 {
        assert_eq!(
            store(&db, vec![refusal("n1", id, attempt)]).await,
            [stored(CommandState::Pending, "default")]
        );
        let wait = "SELECT round(extract(epoch FROM not_before - compute_now())) FROM commands";
        waits.push(number(&mut db.sql, wait).await);
        // The node repeats what was not acked.
        let old = UpdateOutcome::OldAttempt { current: Attempt(attempt + 1) };
        assert_eq!(store(&db, vec![refusal("n1", id, attempt)]).await, [old]);
    }
    assert!(waits[0] < waits[1], "{waits:?}");
    assert_eq!(store(&db, vec![refusal("n1", id, 3)]).await, [stored(CommandState::Refused, "default")]);
    assert_eq!(text(&mut db.sql, "SELECT refusal FROM commands").await, "lane-full");
    let unretryable = db.enqueue("n1", "default").await;
    let entries = vec![update("n1", unretryable, 1, CommandState::Refused)];
    assert_eq!(store(&db, entries).await, [stored(CommandState::Refused, "default")]);
    // Whoever wants it canceled does not want it tried again.
    let canceled = db.enqueue("n1", "default").await;
    store(&db, vec![update("n1", canceled, 1, CommandState::Accepted)]).await;
    run(&mut db.sql, &format!("SELECT cancel_command('n1', '{canceled}')")).await;
    assert_eq!(
        store(&db, vec![refusal("n1", canceled, 1)]).await,
        [stored(CommandState::Refused, "default")]
    );
}

#[tokio::test]
async fn several_updates_of_a_command_in_a_batch_count_in_its_order() {
    let mut db = database().await;
    db.nodes(1).await;
    let id = db.enqueue("n1", "default").await;
    let other = db.enqueue("n1", "default").await;
    let outcomes = store(
        &db,
        vec![
            update("n1", id, 1, CommandState::Running),
            update("n1", other, 1, CommandState::Accepted),
            update("n1", id, 1, CommandState::Succeeded),
            update("n1", id, 1, CommandState::Failed),
        ],
    )
    .await;
    let conflict =
        UpdateOutcome::Stored { state: CommandState::Succeeded, lane: lane("default"), conflict: true };
    assert_eq!(
        outcomes,
        [
            stored(CommandState::Running, "default"),
            stored(CommandState::Accepted, "default"),
            stored(CommandState::Succeeded, "default"),
            conflict
        ]
    );
    assert_eq!(db.state(id).await, "succeeded");
}

#[tokio::test]
async fn a_value_that_cannot_be_stored_rejects_the_batch_and_changes_nothing() {
    let mut db = database().await;
    db.nodes(1).await;
    let good = db.enqueue("n1", "default").await;
    let bad = db.enqueue("n1", "default").await;
    let mut entry = update("n1", bad, 1, CommandState::Failed);
    entry.update.error = Some("a\0b".to_owned());
    let entries = vec![update("n1", good, 1, CommandState::Succeeded), entry];
    let mut runner = db.runner(Queue::Updates);
    let outcome = runner.run(&Job::Updates { entries: entries.clone() }).await;
    assert!(matches!(outcome, Outcome::Updates(Err(StoreError::Rejected(_)))), "{outcome:?}");
    assert_eq!(db.state(good).await, "pending");
    let outcome = runner.run(&Job::Updates { entries: entries[..1].to_vec() }).await;
    assert_eq!(updated(outcome), [stored(CommandState::Succeeded, "default")]);
}

#[tokio::test]
async fn who_asked_for_it_is_told_the_end_and_nobody_else() {
    let mut db = database().await;
    db.nodes(1).await;
    let mut listener = PgListener::connect(&db.url).await.unwrap();
    listener.listen("gateway_command_done").await.unwrap();
    let silent = db.enqueue("n1", "default").await;
    let told = db.enqueue_with("n1", "default", ", notify => true").await;
    let canceled = db.enqueue_with("n1", "default", ", notify => true").await;
    store(&db, vec![update("n1", told, 1, CommandState::Running)]).await;
    let ends =
        vec![update("n1", silent, 1, CommandState::Succeeded), update("n1", told, 1, CommandState::Failed)];
    store(&db, ends.clone()).await;
    store(&db, ends).await;
    run(&mut db.sql, &format!("SELECT cancel_command('n1', '{canceled}')")).await;
    assert_eq!(listener.recv().await.unwrap().payload(), format!("{told} failed"));
    assert_eq!(listener.recv().await.unwrap().payload(), format!("{canceled} canceled"));
}

#[tokio::test]
async fn liveness_and_disconnects_count_for_their_epoch_alone() {
    let mut db = database().await;
    db.nodes(2).await;
    let proof = db.lease().await;
    let old = db.connect(&proof, "n1", &[]).await.epoch;
    let new = db.connect(&proof, "n1", &[]).await.epoch;
    let alive = |name: &str, epoch| PresenceEntry::Alive { node: node(name), epoch };
    let gone = |name: &str, epoch| PresenceEntry::Disconnected {
        node: node(name),
        epoch,
        reason: "heartbeat-timeout",
    };
    let mut runner = db.runner(Queue::Presence);
    let mut write = async |entries: Vec<PresenceEntry>| {
        let outcome = runner.run(&Job::Presence { gateway: gateway("g1"), entries }).await;
        let Outcome::Presence(Ok(outcomes)) = outcome else { panic!("{outcome:?}") };
        outcomes
    };
    use PresenceOutcome::{Superseded, Written};
    assert_eq!(write(vec![alive("n1", old), gone("n1", old), alive("n2", old)]).await, [Superseded; 3]);
    let seen = "SELECT count(*) FROM node_liveness WHERE last_seen_at IS NOT NULL AND session_epoch = 2";
    assert_eq!(number(&mut db.sql, seen).await, 0);
    assert_eq!(write(vec![alive("n1", new), alive("n1", new)]).await, [Written; 2]);
    assert_eq!(number(&mut db.sql, seen).await, 1);
    assert_eq!(write(vec![gone("n1", new), alive("n1", new)]).await, [Written; 2]);
    assert_eq!(write(vec![gone("n1", new)]).await, [Written]);
    let told = "SELECT string_agg(body ->> 'reason', ' ') FROM outbox WHERE kind = 'node.disconnected'";
    assert_eq!(text(&mut db.sql, told).await, "heartbeat-timeout", "it is told once, with why");
    assert_eq!(number(&mut db.sql, "SELECT count(disconnected_at) FROM node_sessions").await, 1);
}

#[tokio::test]
async fn the_feed_names_what_this_gateways_sessions_must_cancel() {
    let mut db = database().await;
    db.nodes(2).await;
    let proof = db.lease().await;
    let other = db.lease_of("g2", "p1").await;
    let mut sent = Vec::new();
    for (name, proof) in [("n1", &proof), ("n2", &other)] {
        let epoch = db.connect(proof, name, &[("default", 2)]).await.epoch;
        let id = db.enqueue(name, "default").await;
        db.enqueue(name, "default").await;
        let mut runner = db.runner_of(proof.gateway.as_str(), Queue::Dispatch);
        dispatch(&mut runner, proof, vec![want(name, epoch, "default", 2)]).await;
        run(&mut db.sql, &format!("SELECT cancel_command('{name}', '{id}', 'enough')")).await;
        sent.push(id);
    }
    let mut runner = db.runner(Queue::Feed);
    let mut feed = async || {
        let outcome = runner.run(&Job::Cancels { gateway: gateway("g1") }).await;
        let Outcome::Cancels(Ok(wanted)) = outcome else { panic!("{outcome:?}") };
        wanted
    };
    let wanted = feed().await;
    assert_eq!(wanted.len(), 1);
    assert_eq!(
        (wanted[0].node.as_str(), wanted[0].epoch, wanted[0].cancel.id),
        ("n1", SessionEpoch(1), sent[0])
    );
    assert_eq!(wanted[0].cancel.reason, "enough");
    store(&db, vec![update("n1", sent[0], 1, CommandState::Canceled)]).await;
    assert_eq!(feed().await, []);
}

#[tokio::test]
async fn an_update_whose_row_changes_while_it_waits_is_decided_about_anew() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("default", 4)]).await;
    for _ in 0..4 {
        db.enqueue("n1", "default").await;
    }
    let wants = vec![want("n1", session.epoch, "default", 4)];
    let ids = ids(&dispatch(&mut db.runner(Queue::Dispatch), &proof, wants).await);
    // One is to be canceled, one ends, one is untouched and one takes back what was begun.
    let mut holder = db.client("holder").await;
    run(
        &mut holder,
        &format!(
            "BEGIN; UPDATE commands SET cancel_requested_at = now() WHERE id = '{}';
             UPDATE commands SET state = 'canceled', finished_at = now() WHERE id = '{}';
             SELECT FROM commands WHERE id = '{}' FOR UPDATE",
            ids[0], ids[1], ids[2]
        ),
    )
    .await;
    let life = [CommandState::Accepted, CommandState::Succeeded];
    let entries: Vec<_> = ids.iter().flat_map(|id| life.map(|state| update("n1", *id, 1, state))).collect();
    let mut runner = db.runner(Queue::Updates);
    let storing = tokio::spawn(async move { updated(runner.run(&Job::Updates { entries }).await) });
    db.until_waits_for("gateway g1 updates", "holder").await;
    run(&mut holder, "COMMIT").await;
    let conflict =
        UpdateOutcome::Stored { state: CommandState::Canceled, lane: lane("default"), conflict: true };
    let [conflicts, told] = [[conflict.clone(), conflict], life.map(|state| stored(state, "default"))];
    let expected = [told.clone(), conflicts, told.clone(), told].concat();
    assert_eq!(storing.await.unwrap(), expected, "slot for slot");
    let rows = "SELECT concat_ws(' ', state, cancel_requested_at IS NOT NULL) FROM commands ORDER BY seq";
    assert_eq!(texts(&mut db.sql, rows).await, ["succeeded t", "canceled f", "succeeded f", "succeeded f"]);
}

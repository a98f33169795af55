//! Dispatch: order, time, credit, locks, and who does not starve.
//!
//! Each story runs the job as the thread does, against a database of its own, and looks at what was
//! claimed and what the rows say. Who waits for whose transaction is in `locks`, what a lost connection
//! means in `failures`; which lanes are asked for is the core's.

#![allow(clippy::unwrap_used)]

mod support;

use gateway_core::command::CommandState;
use gateway_core::ids::{Credits, LaneSeq, SessionEpoch};
use gateway_core::store::*;
use support::*;

#[tokio::test]
async fn a_lane_is_served_in_order_of_seq_and_within_its_credit() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("a", 2), ("b", 2)]).await;
    let mut a = Vec::new();
    let mut b = Vec::new();
    for _ in 0..3 {
        a.push(db.enqueue("n1", "a").await);
        b.push(db.enqueue("n1", "b").await);
    }
    let mut runner = db.runner(Queue::Dispatch);
    let wants = vec![want("n1", session.epoch, "a", 2), want("n1", session.epoch, "b", 1)];
    let claims = dispatch(&mut runner, &proof, wants).await;
    assert_eq!(ids(&claims), [a[0], b[0], a[1]]);
    let command = &claims[0].command;
    assert!(claims[0].moves_cursor);
    assert_eq!((command.kind.as_str(), &command.payload[..]), ("work", &b"body"[..]));
    assert_eq!((command.attempt.0, command.seq.0, command.session_epoch), (1, 1, session.epoch));
    let next = LaneWant { cursor: LaneSeq(3), in_flight: Credits(1), ..want("n1", session.epoch, "a", 9) };
    assert_eq!(ids(&dispatch(&mut runner, &proof, vec![next]).await), [a[2]]);
    let marks = "SELECT string_agg(concat_ws('/', lane, seq, dispatched_by, lease_epoch, session_epoch, attempt, \
                 lane_capacity, lane_in_flight, lane_floor), ' ' ORDER BY seq) FROM commands WHERE state = 'dispatched'";
    assert_eq!(
        text(&mut db.sql, marks).await,
        "a/1/g1/1/1/1/2/1/1 b/2/g1/1/1/1/1/1/2 a/3/g1/1/1/1/2/2/1 a/5/g1/1/1/1/9/2/1"
    );
}

#[tokio::test]
async fn a_delayed_command_holds_no_other_back_and_rejoins_by_seq_when_due() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("default", 9)]).await;
    let late = db.enqueue_with("n1", "default", ", not_before => now() + interval '1 hour'").await;
    let later = db.enqueue_with("n1", "default", ", not_before => now() + interval '30 min'").await;
    let now = db.enqueue("n1", "default").await;
    let mut runner = db.runner(Queue::Dispatch);
    let wants = vec![want("n1", session.epoch, "default", 9)];
    assert_eq!(ids(&dispatch(&mut runner, &proof, wants.clone()).await), [now]);
    assert_eq!(dispatch(&mut runner, &proof, wants.clone()).await, []);
    let behind = db.enqueue("n1", "default").await;
    db.set_clock("61 min").await;
    run(&mut db.sql, "UPDATE leases SET expires_at = 'infinity'").await;
    let wants = vec![LaneWant { cursor: LaneSeq(3), ..wants[0].clone() }];
    let claims = dispatch(&mut runner, &proof, wants).await;
    assert_eq!(ids(&claims), [late, later, behind]);
    assert_eq!(claims.iter().map(|claim| claim.moves_cursor).collect::<Vec<_>>(), [false, false, true]);
    // It waited since it came due, not since it was enqueued.
    assert!((50..70).contains(&claims[0].waited.as_secs()), "{:?}", claims[0].waited);
}

#[tokio::test]
async fn nothing_is_sent_after_its_time() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("default", 9)]).await;
    db.enqueue_with("n1", "default", ", not_after => now() + interval '10 s'").await;
    let lasting = db.enqueue_with("n1", "default", ", not_after => now() + interval '1 day'").await;
    db.set_clock("11 s").await;
    let wants = vec![want("n1", session.epoch, "default", 9)];
    let claims = dispatch(&mut db.runner(Queue::Dispatch), &proof, wants).await;
    assert_eq!(ids(&claims), [lasting]);
    assert!(claims[0].command.not_after.is_some());
}

#[tokio::test]
async fn a_lane_whose_head_is_locked_is_skipped_whole_and_its_prefix_is_kept() {
    let mut db = database().await;
    db.nodes(2).await;
    let proof = db.lease().await;
    let one = db.connect(&proof, "n1", &[("a", 9), ("b", 9)]).await;
    let two = db.connect(&proof, "n2", &[("a", 9)]).await;
    let a = [db.enqueue("n1", "a").await, db.enqueue("n1", "a").await];
    let b = [db.enqueue("n1", "b").await, db.enqueue("n1", "b").await, db.enqueue("n1", "b").await];
    let other = db.enqueue("n2", "a").await;
    let mut holder = db.client("holder").await;
    run(&mut holder, "BEGIN").await;
    run(&mut holder, &format!("SELECT cancel_command('n1', '{}')", a[0])).await;
    run(&mut holder, &format!("SELECT 1 FROM commands WHERE id = '{}' FOR UPDATE", b[1])).await;
    let wants =
        vec![want("n1", one.epoch, "a", 9), want("n1", one.epoch, "b", 9), want("n2", two.epoch, "a", 9)];
    let mut runner = db.runner(Queue::Dispatch);
    assert_eq!(ids(&dispatch(&mut runner, &proof, wants.clone()).await), [b[0], other]);
    run(&mut holder, "COMMIT").await;
    assert_eq!(ids(&dispatch(&mut runner, &proof, wants).await), [a[1], b[1], b[2]]);
}

#[tokio::test]
async fn only_the_live_session_of_this_gateway_is_served() {
    let mut db = database().await;
    db.nodes(3).await;
    let proof = db.lease().await;
    let stranger = db.lease_of("g2", "p1").await;
    let old = db.connect(&proof, "n1", &[("default", 1)]).await;
    let new = db.connect(&proof, "n1", &[("default", 1)]).await;
    let moved = db.connect(&proof, "n2", &[("default", 1)]).await;
    let elsewhere = db.connect(&stranger, "n2", &[("default", 1)]).await;
    let gone = db.connect(&proof, "n3", &[("default", 1)]).await;
    for name in ["n1", "n2", "n3"] {
        db.enqueue(name, "default").await;
    }
    let entries =
        vec![PresenceEntry::Disconnected { node: node("n3"), epoch: gone.epoch, reason: "peer-gone" }];
    db.runner(Queue::Presence).run(&Job::Presence { gateway: gateway("g1"), entries }).await;
    assert_eq!((old.epoch, new.epoch, elsewhere.epoch), (SessionEpoch(1), SessionEpoch(2), SessionEpoch(2)));
    let wants = |epochs: [SessionEpoch; 3]| {
        ["n1", "n2", "n3"]
            .iter()
            .zip(epochs)
            .map(|(n, epoch)| want(n, epoch, "default", 1))
            .collect::<Vec<_>>()
    };
    let mut runner = db.runner(Queue::Dispatch);
    assert_eq!(dispatch(&mut runner, &proof, wants([old.epoch, moved.epoch, gone.epoch])).await, []);
    assert_eq!(dispatch(&mut runner, &proof, wants([old.epoch, elsewhere.epoch, gone.epoch])).await, []);
    let claims = dispatch(&mut runner, &proof, wants([new.epoch, elsewhere.epoch, gone.epoch])).await;
    assert_eq!(claims.iter().map(|claim| claim.node.as_str()).collect::<Vec<_>>(), ["n1"]);
}

#[tokio::test]
async fn a_node_with_a_thousand_commands_that_cannot_go_starves_nobody() {
    let mut db = database().await;
    db.nodes(101).await;
    run(
        &mut db.sql,
        "SELECT enqueue_command('n1', 'work', lane => 'undeclared') FROM generate_series(1, 1000)",
    )
    .await;
    run(&mut db.sql, "SELECT enqueue_command('n1', 'work') FROM generate_series(1, 1000)").await;
    run(&mut db.sql, "SELECT enqueue_command('n' || i, 'work') FROM generate_series(2, 101) i").await;
    let proof = db.lease().await;
    let mut wants = Vec::new();
    for i in 1..=101 {
        let name = format!("n{i}");
        let session = db.connect(&proof, &name, &[("default", 4)]).await;
        wants.push(want(&name, session.epoch, "default", 4));
    }
    let claims = dispatch(&mut db.runner(Queue::Dispatch), &proof, wants).await;
    assert_eq!(claims.len(), 104);
    assert_eq!(claims.iter().filter(|claim| claim.node == node("n1")).count(), 4);
}

#[tokio::test]
async fn a_retried_command_comes_back_as_the_next_attempt_when_its_wait_is_over() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("default", 9)]).await;
    let first = db.enqueue("n1", "default").await;
    let mut runner = db.runner(Queue::Dispatch);
    let wants = vec![want("n1", session.epoch, "default", 9)];
    assert_eq!(ids(&dispatch(&mut runner, &proof, wants).await), [first]);
    let job = Job::Updates { entries: vec![refusal("n1", first, 1)] };
    assert_eq!(
        updated(db.runner(Queue::Updates).run(&job).await),
        [stored(CommandState::Pending, "default")]
    );
    let second = db.enqueue("n1", "default").await;
    let wants = vec![LaneWant { cursor: LaneSeq(1), ..want("n1", session.epoch, "default", 9) }];
    assert_eq!(ids(&dispatch(&mut runner, &proof, wants.clone()).await), [second]);
    db.set_clock("2 s").await;
    let claims = dispatch(&mut runner, &proof, wants).await;
    assert_eq!(ids(&claims), [first]);
    assert_eq!(claims[0].command.attempt.0, 2);
}

#[tokio::test]
async fn a_lane_is_read_anew_with_all_that_is_in_flight() {
    let mut db = database().await;
    db.nodes(2).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("a", 9), ("b", 9)]).await;
    let delayed = db.enqueue_with("n1", "a", ", not_before => now() + interval '1 s'").await;
    let first = db.enqueue("n1", "a").await;
    let second = db.enqueue("n1", "a").await;
    db.enqueue("n1", "a").await;
    let mut runner = db.runner(Queue::Dispatch);
    db.set_clock("2 s").await;
    dispatch(&mut runner, &proof, vec![want("n1", session.epoch, "a", 3)]).await;
    let entries = vec![update("n1", first, 1, CommandState::Succeeded)];
    db.runner(Queue::Updates).run(&Job::Updates { entries }).await;
    let read = |lane_name: &str| LaneRead {
        node: node("n1"),
        epoch: session.epoch,
        lane: lane(lane_name),
        sent: Vec::new(),
    };
    let job = Job::ReadLanes { proof: proof.clone(), lanes: vec![read("b"), read("a")] };
    let outcome = runner.run(&job).await;
    let Outcome::LanesRead(Ok(Routed::Committed(states))) = outcome else { panic!("{outcome:?}") };
    assert_eq!(states[0], LaneState { is_live: true, in_flight: Vec::new(), cursor: LaneSeq(0) });
    assert_eq!(states[1].cursor, LaneSeq(3));
    let found: Vec<_> = states[1].in_flight.iter().map(|command| command.id).collect();
    assert_eq!(found, [delayed, second]);
    assert_eq!(&states[1].in_flight[1].payload[..], b"body");
    assert!(states.iter().all(|state| state.is_live));
    // The node has a newer session, and that is all that is asked: what is in flight stays.
    run(&mut db.sql, "UPDATE node_sessions SET session_epoch = session_epoch + 1").await;
    let outcome = runner.run(&Job::ReadLanes { proof: proof.clone(), lanes: vec![read("a")] }).await;
    let Outcome::LanesRead(Ok(Routed::Committed(states))) = outcome else { panic!("{outcome:?}") };
    assert!(!states[0].is_live && states[0].in_flight.len() == 2, "{states:?}");
    db.runner(Queue::Lease).run(&acquire("g1", "o2", Some("o1"))).await;
    let job = Job::ReadLanes { proof, lanes: vec![read("a")] };
    assert_eq!(runner.run(&job).await, Outcome::LanesRead(Ok(Routed::LeaseLost)));
}

#[tokio::test]
async fn a_command_canceled_between_look_and_lock_is_not_sent() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("default", 9)]).await;
    let first = db.enqueue("n1", "default").await;
    let second = db.enqueue("n1", "default").await;
    assert_eq!(text(&mut db.sql, &format!("SELECT cancel_command('n1', '{first}')")).await, "canceled");
    let wants = vec![want("n1", session.epoch, "default", 9)];
    assert_eq!(ids(&dispatch(&mut db.runner(Queue::Dispatch), &proof, wants).await), [second]);
    assert_eq!(db.state(first).await, "canceled");
}

#[tokio::test]
async fn no_plan_of_a_gateway_scans_a_table_even_when_it_was_made_over_an_empty_one() {
    let mut db = database().await;
    db.nodes(20).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("default", 4)]).await;
    let mut router = db.client("router").await;
    run(&mut router, PLANNING).await;
    run(&mut router, &format!("PREPARE pass AS {DISPATCH}")).await;
    let pass = format!("pass({})", dispatch_arguments(&proof, &[want("n1", session.epoch, "default", 4)]));
    run(&mut router, &format!("EXECUTE {pass}")).await;
    run(
        &mut db.sql,
        "INSERT INTO commands (node_id, id, seq, lane, kind, state, dispatched_at) SELECT 'n' || i, new_command_id(), s, \
         'default', 'work', 'succeeded', now() FROM generate_series(1, 20) i, generate_series(1, 1000) s",
    )
    .await;
    run(&mut db.sql, "SELECT enqueue_command('n1', 'work') FROM generate_series(1, 10)").await;
    let plan = texts(&mut router, &format!("EXPLAIN (ANALYZE, BUFFERS) EXECUTE {pass}")).await.join("\n");
    assert!(!plan.contains("Seq Scan"), "{plan}");
    // The index of a partition has a name of its own.
    assert!(is_partitioned() || plan.contains("commands_due"), "{plan}");
    let read = plan.split("Buffers: shared hit=").nth(1).unwrap();
    let read: u32 = read.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap();
    assert!(read < 300, "{read} buffers for four commands\n{plan}");
}

#[tokio::test]
async fn what_another_transaction_rewrote_meanwhile_waits_for_the_next_pass_with_all_behind_it() {
    let mut db = database().await;
    db.nodes(2).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("default", 9)]).await;
    let beside = db.connect(&proof, "n2", &[("default", 9)]).await;
    let first = db.enqueue("n1", "default").await;
    let second = db.enqueue("n1", "default").await;
    let other = db.enqueue("n2", "default").await;
    let wants = vec![want("n1", session.epoch, "default", 9), want("n2", beside.epoch, "default", 9)];
    // The pass begins to read, and stands at the lease.
    let mut holder = db.client("holder").await;
    run(&mut holder, "BEGIN; SELECT FROM leases WHERE name = 'gateway:g1' FOR UPDATE").await;
    let (mut runner, asked, shown) = (db.runner(Queue::Dispatch), wants.clone(), proof.clone());
    let passing = tokio::spawn(async move {
        let claims = dispatch(&mut runner, &shown, asked).await;
        (claims, runner)
    });
    db.until_waits_for("gateway g1 dispatch", "holder").await;
    run(&mut db.sql, &format!("UPDATE commands SET payload = 'mended' WHERE id = '{first}'")).await;
    run(&mut holder, "ROLLBACK").await;
    let (claims, mut runner) = passing.await.unwrap();
    assert_eq!(ids(&claims), [other], "the second of a lane never goes before its first");
    let claims = dispatch(&mut runner, &proof, wants).await;
    assert_eq!(ids(&claims), [first, second]);
    assert_eq!(&claims[0].command.payload[..], b"mended");
}

#[tokio::test]
async fn a_floor_that_is_known_is_looked_for_again_when_the_lane_has_moved_on() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("default", 9)]).await;
    let mut runner = db.runner(Queue::Dispatch);
    let mut next = want("n1", session.epoch, "default", 1);
    let mut floors = Vec::new();
    for seq in 1..=70 {
        let id = db.enqueue("n1", "default").await;
        let claims = dispatch(&mut runner, &proof, vec![next.clone()]).await;
        assert_eq!(ids(&claims), [id]);
        next = LaneWant { cursor: claims[0].command.seq, floor: claims[0].floor, ..next };
        floors.push(claims[0].floor.0);
        // The third stays in flight: no floor is above it.
        if seq != 3 {
            let entries = vec![update("n1", id, 1, CommandState::Succeeded)];
            db.runner(Queue::Updates).run(&Job::Updates { entries }).await;
        }
    }
    assert_eq!(floors[..64], [1; 64]);
    assert_eq!(floors[64..], [3; 6]);
    let held = "SELECT count(*) FROM commands WHERE lane_floor > 3 OR lane_floor IS NULL";
    assert_eq!(number(&mut db.sql, held).await, 0);
}

//! The lease: who holds it, when it passes on, and who waits for whom meanwhile.
//!
//! Two owners of one gateway id take, renew, release and lose the lease in a real database. That a
//! writer without it stops routing is the core's to hold, and `gateway/tests/zombie_gateway.rs` shows it
//! with processes.

#![allow(clippy::unwrap_used)]

mod support;

use gateway_core::ids::{Credits, LaneSeq};
use gateway_core::store::*;
use support::*;

fn epoch(outcome: Outcome) -> u64 {
    let Outcome::Lease(Ok(LeaseOutcome::Held { epoch })) = outcome else { panic!("{outcome:?}") };
    epoch.0
}

fn other(outcome: Outcome) -> String {
    let Outcome::Lease(Ok(LeaseOutcome::HeldByOther { owner, expires_in })) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(expires_in <= TTL);
    owner
}

#[tokio::test]
async fn the_epoch_rises_with_the_owner_and_only_then() {
    let mut db = database().await;
    let mut runner = db.runner(Queue::Lease);
    assert_eq!(epoch(runner.run(&acquire("g1", "a-1", None)).await), 1);
    assert_eq!(epoch(runner.run(&acquire("g1", "a-1", None)).await), 1);
    assert_eq!(other(runner.run(&acquire("g1", "b-1", None)).await), "a-1");
    // A prefix that proves another process dead, or none at all, takes nothing.
    assert_eq!(other(runner.run(&acquire("g1", "b-1", Some("c-"))).await), "a-1");
    assert_eq!(other(runner.run(&acquire("g1", "b-1", Some(""))).await), "a-1");
    assert_eq!(epoch(runner.run(&acquire("g1", "b-1", Some("a-"))).await), 2);
    db.set_clock("21 s").await;
    assert_eq!(epoch(runner.run(&acquire("g1", "c-1", None)).await), 3);
    let history =
        "SELECT string_agg(epoch || previous_owner || '>' || owner, ' ' ORDER BY epoch) FROM leases_history";
    assert_eq!(text(&mut db.sql, history).await, "1>a-1 2a-1>b-1 3b-1>c-1");
    let row = "SELECT region || max_streams || draining FROM gateways WHERE id = 'g1'";
    assert_eq!(text(&mut db.sql, row).await, "r10false");
}

#[tokio::test]
async fn a_renewal_prolongs_only_the_lease_that_it_proves() {
    let mut db = database().await;
    let mut runner = db.runner(Queue::Lease);
    let proof = db.lease().await;
    db.set_clock("15 s").await;
    assert_eq!(epoch(runner.run(&renew(&proof)).await), 1);
    let left = "SELECT round(extract(epoch FROM expires_at - compute_now())) FROM leases";
    assert_eq!(number(&mut db.sql, left).await, 20);
    assert_eq!(number(&mut db.sql, "SELECT sessions FROM gateways").await, 3);
    assert_eq!(epoch(runner.run(&acquire("g1", "o2", Some("o1"))).await), 2);
    assert_eq!(other(runner.run(&renew(&proof)).await), "o2");
}

#[tokio::test]
async fn a_released_lease_is_free_at_once_and_routes_nothing() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("default", 1)]).await;
    db.enqueue("n1", "default").await;
    let mut runner = db.runner(Queue::Lease);
    let released = runner.run(&Job::Lease(LeaseJob::Release { proof: proof.clone() })).await;
    assert_eq!(released, Outcome::Lease(Ok(LeaseOutcome::Released)));
    assert_eq!(text(&mut db.sql, "SELECT draining FROM gateways").await, "t");
    let wants = vec![want("n1", session.epoch, "default", 1)];
    let outcome = db.runner(Queue::Dispatch).run(&Job::Dispatch { proof, wants }).await;
    assert_eq!(outcome, Outcome::Dispatch(Ok(Routed::LeaseLost)));
    assert_eq!(epoch(runner.run(&acquire("g1", "o2", None)).await), 2);
}

#[tokio::test]
async fn a_renewal_never_waits_for_a_dispatch_that_is_open() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("default", 1)]).await;
    db.enqueue("n1", "default").await;
    let mut router = db.client("router").await;
    let arguments = dispatch_arguments(&proof, &[want("n1", session.epoch, "default", 1)]);
    run(&mut router, &format!("BEGIN; PREPARE pass AS {DISPATCH}")).await;
    run(&mut router, &format!("EXECUTE pass({arguments})")).await;
    // It would fail with 55P03 (Retry) after its lock time-out, if it had to wait.
    assert_eq!(epoch(db.runner(Queue::Lease).run(&renew(&proof)).await), 1);
    run(&mut router, "COMMIT").await;
}

#[tokio::test]
async fn a_takeover_waits_for_the_zombies_open_dispatch_and_then_fences_it() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("default", 5)]).await;
    let first = db.enqueue("n1", "default").await;
    let second = db.enqueue("n1", "default").await;
    let wants = [want("n1", session.epoch, "default", 1)];
    let mut router = db.client("router").await;
    run(&mut router, &format!("BEGIN; PREPARE pass AS {DISPATCH}")).await;
    run(&mut router, &format!("EXECUTE pass({})", dispatch_arguments(&proof, &wants))).await;
    let mut lease = db.runner(Queue::Lease);
    let takeover = tokio::spawn(async move { lease.run(&acquire("g1", "o2", Some("o1"))).await });
    db.until_waits_for("gateway g1 lease", "router").await;
    // A second pass slips in beside the first while the takeover waits for it.
    let mut second_pass = LaneWant { cursor: LaneSeq(1), ..wants[0].clone() };
    second_pass.in_flight = Credits(1);
    assert_eq!(ids(&dispatch(&mut db.runner(Queue::Dispatch), &proof, vec![second_pass]).await), [second]);
    run(&mut router, "COMMIT").await;
    assert_eq!(epoch(takeover.await.unwrap()), 2);
    assert_eq!(db.state(first).await, "dispatched");
    let third = db.enqueue("n1", "default").await;
    // What the zombie begins now does not commit.
    let job = Job::Dispatch { proof: proof.clone(), wants: wants.to_vec() };
    assert_eq!(db.runner(Queue::Dispatch).run(&job).await, Outcome::Dispatch(Ok(Routed::LeaseLost)));
    let job = Job::Hellos { proof, entries: vec![hello("n1", &[], &[])] };
    assert_eq!(db.runner(Queue::Hellos).run(&job).await, Outcome::Hellos(Ok(Routed::LeaseLost)));
    assert_eq!(db.state(third).await, "pending");
    assert_eq!(number(&mut db.sql, "SELECT session_epoch FROM node_sessions").await, 1);
    // By the clock of the database every dispatch is older than the epoch that came after it.
    let order = "SELECT bool_and(c.dispatched_at < h.acquired_at) FROM commands c, leases_history h \
                 WHERE h.epoch = 2 AND c.dispatched_at IS NOT NULL";
    assert_eq!(text(&mut db.sql, order).await, "t");
}

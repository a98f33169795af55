//! The sweeps in a real database: who leads them, what they expire, whose sessions they end.
//!
//! Gateways `g1`, `g2`, `g3` share a database, and each asks with a connection of its own. That a
//! machine asks at the right time is the core's to hold (`core/src/writer/sweeps.rs`); what no index
//! scan may do is in `plans`.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use gateway_core::ids::{LeaseEpoch, NodeId};
use gateway_core::store::*;
use gateway_core::time::UnixMillis;
use gateway_db_writer::QueueRunner;
use support::*;

const START: UnixMillis = UnixMillis(0);

/// A runner that sweeps, and the proof of its lead.
struct Sweeper {
    runner: QueueRunner,
    proof: LeaderProof,
}

async fn ask(runner: &mut QueueRunner, owner: &str, dead_owner_prefix: Option<&str>) -> SweepOutcome {
    let dead_owner_prefix = dead_owner_prefix.map(str::to_owned);
    sweep(runner, SweepJob::Lead { owner: owner.to_owned(), dead_owner_prefix, ttl: TTL }).await
}

async fn sweep(runner: &mut QueueRunner, job: SweepJob) -> SweepOutcome {
    let outcome = runner.run(&Job::Sweep(job)).await;
    let Outcome::Sweep(Ok(outcome)) = outcome else { panic!("{outcome:?}") };
    outcome
}

const fn leads(epoch: u64) -> SweepOutcome {
    SweepOutcome::Leads { epoch: LeaseEpoch(epoch) }
}

impl Sweeper {
    /// `g1` leads, as owner `o1`.
    async fn new(db: &Db) -> Self {
        let mut runner = db.runner(Queue::Sweeps);
        assert_eq!(ask(&mut runner, "o1", None).await, leads(1));
        Self { runner, proof: LeaderProof { owner: "o1".to_owned(), epoch: LeaseEpoch(1) } }
    }

    async fn expire(&mut self, from: UnixMillis, at_most: u32) -> ExpiryPass {
        let job = SweepJob::Expire { proof: self.proof.clone(), from, at_most };
        let outcome = sweep(&mut self.runner, job).await;
        let SweepOutcome::Expired(pass) = outcome else { panic!("{outcome:?}") };
        pass
    }

    async fn dead(&mut self) -> Vec<DeadGateway> {
        let outcome = sweep(&mut self.runner, SweepJob::FindDead { proof: self.proof.clone() }).await;
        let SweepOutcome::Dead(gateways) = outcome else { panic!("{outcome:?}") };
        gateways
    }

    async fn page(
        &mut self,
        dead: &DeadGateway,
        scan: (Option<NodeId>, Option<UnixMillis>, bool),
        at_most: u32,
    ) -> ReapPass {
        let (after, since, skipped) = scan;
        let job =
            SweepJob::Reap { proof: self.proof.clone(), dead: dead.clone(), after, since, skipped, at_most };
        let outcome = sweep(&mut self.runner, job).await;
        let SweepOutcome::Reaped(pass) = outcome else { panic!("{outcome:?}") };
        pass
    }
}

async fn states(db: &mut Db) -> Vec<String> {
    texts(&mut db.sql, "SELECT state FROM commands ORDER BY node_id, seq").await
}

async fn connected(db: &mut Db) -> Vec<String> {
    let query = "SELECT node_id FROM node_sessions WHERE gateway_id IS NOT NULL AND disconnected_at IS NULL ORDER BY 1";
    texts(&mut db.sql, query).await
}

fn named(gateways: &[DeadGateway]) -> Vec<(&str, u64, bool)> {
    gateways.iter().map(|dead| (dead.gateway.as_str(), dead.epoch.0, dead.is_expired)).collect()
}

// -- who leads -----------------------------------------------------------------------------------

#[tokio::test]
async fn of_two_that_ask_at_once_one_leads() {
    let db = database().await;
    let (mut first, mut second) = (db.runner_of("g1", Queue::Sweeps), db.runner_of("g2", Queue::Sweeps));
    let (one, two) = tokio::join!(ask(&mut first, "o1", None), ask(&mut second, "o2", None));
    let won = [&one, &two].into_iter().filter(|outcome| **outcome == leads(1)).count();
    assert_eq!(won, 1, "{one:?} and {two:?}");
    let lost = if one == leads(1) { two } else { one };
    let SweepOutcome::LedByOther { expires_in } = lost else { panic!("{lost:?}") };
    assert!(expires_in <= TTL);
}

#[tokio::test]
async fn the_lead_passes_on_when_it_is_given_back_when_it_ran_out_and_when_its_owner_is_dead() {
    let mut db = database().await;
    let mut sweeper = Sweeper::new(&db).await;
    let mut other = db.runner_of("g2", Queue::Sweeps);
    assert_eq!(ask(&mut sweeper.runner, "o1", None).await, leads(1), "a renewal is no takeover");
    assert!(matches!(ask(&mut other, "o2", Some("")).await, SweepOutcome::LedByOther { .. }));
    let resign = SweepJob::Resign { proof: sweeper.proof.clone() };
    assert_eq!(sweep(&mut sweeper.runner, resign.clone()).await, SweepOutcome::Resigned);
    assert_eq!(ask(&mut other, "o2", None).await, leads(2));
    // The one before can't end the new lead, nor sweep any more.
    assert_eq!(sweep(&mut sweeper.runner, resign).await, SweepOutcome::Resigned);
    assert!(matches!(ask(&mut sweeper.runner, "o1", None).await, SweepOutcome::LedByOther { .. }));
    for job in [
        SweepJob::Expire { proof: sweeper.proof.clone(), from: START, at_most: 9 },
        SweepJob::FindDead { proof: sweeper.proof.clone() },
    ] {
        assert_eq!(sweep(&mut sweeper.runner, job).await, SweepOutcome::LeadLost);
    }
    db.set_clock("21 s").await;
    assert_eq!(ask(&mut sweeper.runner, "o1", None).await, leads(3));
    assert_eq!(ask(&mut other, "p2", Some("o1")).await, leads(4));
    let history =
        "SELECT string_agg(epoch || previous_owner || '>' || owner, ' ' ORDER BY epoch) FROM leases_history";
    assert_eq!(text(&mut db.sql, history).await, "1>o1 2o1>o2 3o2>o1 4o1>p2");
}

#[tokio::test]
async fn who_asks_in_vain_does_not_wait_for_a_sweep_that_is_open_nor_hold_it_up() {
    let db = database().await;
    let sweeper = Sweeper::new(&db).await;
    let mut open = db.client("open sweep").await;
    run(&mut open, "BEGIN; SELECT FROM leases WHERE name = 'leader:sweeps' FOR KEY SHARE").await;
    let mut other = db.runner_of("g2", Queue::Sweeps);
    // It would fail with 55P03 (Retry) after its lock time-out, if it had to wait.
    assert!(matches!(ask(&mut other, "o2", None).await, SweepOutcome::LedByOther { .. }));
    drop(sweeper);
    run(&mut open, "COMMIT").await;
}

// -- expiry --------------------------------------------------------------------------------------

#[tokio::test]
async fn only_what_is_pending_and_past_its_time_expires() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("default", 1)]).await;
    run(&mut db.sql, "LISTEN gateway_command_done").await;
    let soon = ", not_after => compute_now() + interval '10 s'";
    let sent = db.enqueue_with("n1", "default", soon).await;
    let mut router = db.runner(Queue::Dispatch);
    let claims = dispatch(&mut router, &proof, vec![want("n1", session.epoch, "default", 1)]).await;
    assert_eq!(ids(&claims), [sent]);
    db.enqueue_with("n1", "default", soon).await;
    db.enqueue_with("n1", "default", ", not_after => compute_now() + interval '1 h'").await;
    db.enqueue("n1", "default").await;
    let waiting =
        ", not_before => compute_now() + interval '5 s', not_after => compute_now() + interval '10 s'";
    db.enqueue_with("n1", "default", waiting).await;
    let mut sweeper = Sweeper::new(&db).await;
    assert_eq!(sweeper.expire(START, 1000).await.expired, 0, "nothing is due yet");
    db.set_clock("10 s").await;
    let pass = sweeper.expire(START, 1000).await;
    assert_eq!((pass.expired, pass.is_full, pass.skipped), (2, false, None));
    assert_eq!(states(&mut db).await, ["dispatched", "expired", "pending", "pending", "expired"]);
    let ended = "SELECT bool_and((finished_at IS NOT NULL) = (state = 'expired')) FROM commands";
    assert_eq!(text(&mut db.sql, ended).await, "t");
    assert_eq!(sweeper.expire(pass.next, 1000).await.expired, 0);
}

#[tokio::test]
async fn whoever_asked_for_it_is_told_of_an_expiry() {
    let mut db = database().await;
    db.nodes(1).await;
    let soon = ", notify => true, not_after => compute_now() + interval '10 s'";
    let id = db.enqueue_with("n1", "default", soon).await;
    let mut ends = sqlx::postgres::PgListener::connect(&db.url).await.unwrap();
    ends.listen("gateway_command_done").await.unwrap();
    db.set_clock("11 s").await;
    let mut sweeper = Sweeper::new(&db).await;
    assert_eq!(sweeper.expire(START, 1000).await.expired, 1);
    let told = tokio::time::timeout(Duration::from_secs(20), ends.recv()).await.unwrap().unwrap();
    assert_eq!(told.payload(), format!("{id} expired"));
}

#[tokio::test]
async fn a_full_pass_says_where_the_next_begins_until_none_is_left() {
    let mut db = database().await;
    db.nodes(5).await;
    // Fifty that all end at one instant, and fifty that follow one by one.
    let bulk = "SELECT count(*) FROM enqueue_commands((SELECT array_agg('n' || 1 + i % 5) FROM generate_series(1, 50) i), \
                ARRAY['work'], not_after => compute_now() + interval '5 s')";
    run(&mut db.sql, bulk).await;
    run(
        &mut db.sql,
        "SELECT enqueue_command('n' || 1 + i % 5, 'work', not_after => compute_now() + (5000 + i) * interval '1 ms') \
         FROM generate_series(1, 50) i",
    )
    .await;
    db.set_clock("20 s").await;
    let mut sweeper = Sweeper::new(&db).await;
    let (mut from, mut passes) = (START, Vec::new());
    loop {
        let pass = sweeper.expire(from, 30).await;
        assert!(pass.next >= from && pass.skipped.is_none());
        passes.push(pass.expired);
        from = pass.next;
        if !pass.is_full {
            break;
        }
    }
    assert_eq!(passes, [30, 30, 30, 10]);
    assert_eq!(number(&mut db.sql, "SELECT count(*) FROM commands WHERE state = 'expired'").await, 100);
}

#[tokio::test]
async fn a_row_that_is_locked_is_skipped_and_said_so_and_expires_later() {
    let mut db = database().await;
    db.nodes(1).await;
    let held = db.enqueue_with("n1", "default", ", not_after => compute_now() + interval '3 s'").await;
    let free = db.enqueue_with("n1", "default", ", not_after => compute_now() + interval '4 s'").await;
    db.set_clock("5 s").await;
    let mut holder = db.client("holder").await;
    run(&mut holder, &format!("BEGIN; SELECT FROM commands WHERE id = '{held}' FOR UPDATE")).await;
    let mut sweeper = Sweeper::new(&db).await;
    // It would fail with 55P03 (Retry) after its lock time-out, if it had to wait.
    let pass = sweeper.expire(START, 1000).await;
    assert_eq!(pass.expired, 1);
    assert_eq!((db.state(held).await, db.state(free).await), ("pending".into(), "expired".into()));
    let end =
        number(&mut db.sql, &format!("SELECT unix_millis(not_after) FROM commands WHERE id = '{held}'"))
            .await;
    assert_eq!(pass.skipped, Some(UnixMillis(end)));
    run(&mut holder, "COMMIT").await;
    assert_eq!(sweeper.expire(UnixMillis(end), 1000).await.expired, 1);
    assert_eq!(db.state(held).await, "expired");
}

#[tokio::test]
async fn a_cancellation_that_comes_first_is_what_stays() {
    let mut db = database().await;
    db.nodes(1).await;
    let id = db.enqueue_with("n1", "default", ", not_after => compute_now() + interval '3 s'").await;
    let mut canceler = db.client("canceler").await;
    run(&mut canceler, &format!("BEGIN; SELECT cancel_command('n1', '{id}')")).await;
    db.set_clock("5 s").await;
    let mut sweeper = Sweeper::new(&db).await;
    assert_eq!(sweeper.expire(START, 1000).await.expired, 0);
    run(&mut canceler, "COMMIT").await;
    assert_eq!(sweeper.expire(START, 1000).await.expired, 0);
    assert_eq!(db.state(id).await, "canceled");
}

/// Buffers that an expiry pass from `from` on reads.
async fn buffers(db: &mut Db, from: UnixMillis) -> i64 {
    let arguments = format!("'o1', 1, {}, 1000", from.0);
    let plan = texts(
        &mut db.sql,
        &format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT TEXT) EXECUTE expiry({arguments})"),
    )
    .await;
    let line = plan.iter().find(|line| line.contains("Buffers:")).unwrap();
    let of = |what: &str| {
        let rest = line.split(what).nth(1).unwrap_or("0");
        rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<i64>().unwrap_or(0)
    };
    of("hit=") + of("read=")
}

#[tokio::test]
async fn commands_that_expired_long_ago_are_not_read_again_though_no_vacuum_can_run() {
    let mut db = database().await;
    db.nodes(10).await;
    let mut pin = db.client("pin").await;
    run(&mut pin, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM nodes").await;
    let mut sweeper = Sweeper::new(&db).await;
    run(&mut db.sql, "UPDATE leases SET expires_at = 'infinity'").await;
    run(&mut db.sql, PLANNING).await;
    run(&mut db.sql, &format!("PREPARE expiry AS {}", include_str!("../queries/sweep_expire.sql"))).await;
    let before = buffers(&mut db, START).await;
    // Fifty thousand that ended in time, and fifty thousand that expired: dead entries, all kept.
    run(
        &mut db.sql,
        "SELECT count(*) FROM enqueue_commands((SELECT array_agg('n' || 1 + i % 10) FROM generate_series(1, 100000) i), \
         ARRAY['work'], not_after => compute_now() + interval '5 s'); \
         UPDATE commands SET state = 'succeeded', finished_at = now() WHERE seq % 2 = 0",
    )
    .await;
    db.set_clock("10 s").await;
    let (mut from, mut expired) = (START, 0);
    loop {
        let pass = sweeper.expire(from, 1000).await;
        (from, expired) = (pass.next, expired + pass.expired);
        if !pass.is_full {
            break;
        }
    }
    assert_eq!(expired, 50_000);
    let (again, at_all) = (buffers(&mut db, from).await, buffers(&mut db, START).await);
    eprintln!("buffers of a pass: {before} before, {again} after, {at_all} where it looks at all");
    assert!(at_all > before + 100, "the dead entries are there: {at_all}");
    // The index has grown by a level or two.
    assert!(again <= before + 4, "{again} buffers after, {before} before");
    run(&mut pin, "COMMIT").await;
}

// -- sessions of the dead ------------------------------------------------------------------------

#[tokio::test]
async fn sessions_of_a_gateway_whose_lease_ran_out_are_ended_and_no_others() {
    let mut db = database().await;
    db.nodes(5).await;
    let dying = db.lease_of("g2", "o2").await;
    for name in ["n1", "n2", "n4"] {
        db.connect(&dying, name, &[("default", 1)]).await;
    }
    db.set_clock("15 s").await;
    let living = db.lease_of("g3", "o3").await;
    db.connect(&living, "n3", &[("default", 1)]).await;
    let mut sweeper = Sweeper::new(&db).await;
    assert_eq!(sweeper.dead().await, [], "both leases are held");
    db.set_clock("21 s").await;
    // One moved on to the gateway that lives.
    db.connect(&living, "n2", &[("default", 1)]).await;
    let dead = sweeper.dead().await;
    assert_eq!(named(&dead), [("g2", 1, true)]);
    let pass = sweeper.page(&dead[0], (None, None, false), 1000).await;
    assert_eq!((pass.is_dead, pass.reaped, pass.skipped, pass.next), (true, 2, false, None));
    assert_eq!(connected(&mut db).await, ["n2", "n3"]);
    let told = "SELECT node_id || ' ' || (body ->> 'gateway') || ' ' || (body ->> 'session_epoch') || ' ' || \
                (body ->> 'reason') FROM outbox WHERE kind = 'node.disconnected' ORDER BY id";
    assert_eq!(texts(&mut db.sql, told).await, ["n1 g2 1 gateway-dead", "n4 g2 1 gateway-dead"]);
    assert_eq!(sweeper.dead().await, [], "it is looked through once");
    // It comes back, and dies again: under the same epoch, since the owner is the same.
    let again = db.lease_of("g2", "o2").await;
    db.connect(&again, "n5", &[("default", 1)]).await;
    assert_eq!(sweeper.dead().await, []);
    db.set_clock("60 s").await;
    assert_eq!(ask(&mut sweeper.runner, "o1", None).await, leads(1));
    let dead = sweeper.dead().await;
    assert_eq!(named(&dead), [("g2", 1, true), ("g3", 1, true)]);
    assert_eq!(sweeper.page(&dead[0], (None, None, false), 1000).await.reaped, 1);
}

#[tokio::test]
async fn what_an_older_process_of_a_living_gateway_left_behind_is_ended() {
    let mut db = database().await;
    db.nodes(3).await;
    let before = db.lease_of("g2", "boot-1").await;
    db.connect(&before, "n1", &[("default", 1)]).await;
    db.connect(&before, "n2", &[("default", 1)]).await;
    let mut runner = db.runner_of("g2", Queue::Lease);
    let outcome = runner.run(&acquire("g2", "boot-2", Some("boot-1"))).await;
    let Outcome::Lease(Ok(LeaseOutcome::Held { epoch })) = outcome else { panic!("{outcome:?}") };
    let after = LeaseProof { owner: "boot-2".to_owned(), epoch, ..before };
    db.connect(&after, "n2", &[("default", 1)]).await;
    db.connect(&after, "n3", &[("default", 1)]).await;
    let mut sweeper = Sweeper::new(&db).await;
    let dead = sweeper.dead().await;
    assert_eq!(named(&dead), [("g2", 2, false)]);
    // It lives: a Hello of it that is open is not waited for.
    let mut router = db.client("open hello").await;
    run(&mut router, "BEGIN; SELECT FROM leases WHERE name = 'gateway:g2' FOR KEY SHARE").await;
    let pass = sweeper.page(&dead[0], (None, None, false), 1000).await;
    assert_eq!((pass.is_dead, pass.reaped), (true, 1));
    run(&mut router, "COMMIT").await;
    assert_eq!(connected(&mut db).await, ["n2", "n3"]);
    assert_eq!(sweeper.dead().await, []);
}

#[tokio::test]
async fn a_look_through_many_nodes_goes_page_by_page() {
    let mut db = database().await;
    db.nodes(9).await;
    let dying = db.lease_of("g2", "o2").await;
    for number in [1, 2, 5, 8] {
        db.connect(&dying, &format!("n{number}"), &[("default", 1)]).await;
    }
    db.set_clock("21 s").await;
    let mut sweeper = Sweeper::new(&db).await;
    let dead = sweeper.dead().await.remove(0);
    let (mut scan, mut pages) = ((None, None, false), Vec::new());
    loop {
        let pass = sweeper.page(&dead, scan.clone(), 4).await;
        pages.push((pass.reaped, pass.next.as_ref().map(|node| node.as_str().to_owned())));
        if pass.next.is_none() {
            break;
        }
        scan = (pass.next, scan.1.or(Some(pass.now)), false);
    }
    assert_eq!(pages, [(2, Some("n4".to_owned())), (2, Some("n8".to_owned())), (0, None)]);
    assert_eq!(sweeper.dead().await, []);
}

#[tokio::test]
async fn a_session_that_is_locked_is_left_for_the_next_look_and_a_gateway_that_takes_its_lease_lives() {
    let mut db = database().await;
    db.nodes(2).await;
    let dying = db.lease_of("g2", "o2").await;
    db.connect(&dying, "n1", &[("default", 1)]).await;
    db.connect(&dying, "n2", &[("default", 1)]).await;
    db.set_clock("21 s").await;
    let mut sweeper = Sweeper::new(&db).await;
    let dead = sweeper.dead().await.remove(0);
    // As a Hello on another gateway does.
    let mut mover = db.client("mover").await;
    run(&mut mover, "BEGIN; SELECT FROM node_sessions WHERE node_id = 'n1' FOR UPDATE").await;
    let pass = sweeper.page(&dead, (None, None, false), 1000).await;
    assert_eq!((pass.reaped, pass.skipped), (1, true));
    run(&mut mover, "ROLLBACK").await;
    assert_eq!(named(&sweeper.dead().await), [("g2", 1, true)], "it is not looked through");
    // As an acquisition does.
    run(&mut mover, "BEGIN; SELECT FROM leases WHERE name = 'gateway:g2' FOR UPDATE").await;
    let pass = sweeper.page(&dead, (None, None, false), 1000).await;
    assert_eq!((pass.is_dead, pass.reaped), (false, 0));
    run(&mut mover, "ROLLBACK").await;
    db.lease_of("g2", "o2").await;
    assert_eq!(sweeper.page(&dead, (None, None, false), 1000).await.reaped, 0, "it lives again");
    assert_eq!(connected(&mut db).await, ["n1"]);
}

#[tokio::test]
async fn a_session_that_was_taken_for_dead_is_told_so_by_its_next_liveness_write() {
    let mut db = database().await;
    db.nodes(2).await;
    let living = db.lease_of("g2", "o2").await;
    let taken = db.connect(&living, "n1", &[("default", 1)]).await;
    // The database's clock jumps ahead, and the gateway renews its lease a moment later.
    db.set_clock("21 s").await;
    let mut sweeper = Sweeper::new(&db).await;
    let dead = sweeper.dead().await.remove(0);
    assert_eq!(sweeper.page(&dead, (None, None, false), 1000).await.reaped, 1);
    db.lease_of("g2", "o2").await;
    let kept = db.connect(&living, "n2", &[("default", 1)]).await;
    let alive = |name: &str, epoch| PresenceEntry::Alive { node: node(name), epoch };
    let entries = vec![alive("n1", taken.epoch), alive("n2", kept.epoch)];
    let job = Job::Presence { gateway: gateway("g2"), entries };
    let outcome = db.runner_of("g2", Queue::Presence).run(&job).await;
    assert_eq!(outcome, Outcome::Presence(Ok(vec![PresenceOutcome::Superseded, PresenceOutcome::Written])));
    assert_eq!(connected(&mut db).await, ["n2"]);
}

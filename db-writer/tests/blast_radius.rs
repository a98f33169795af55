//! One node makes bad updates among five hundred that make good ones: what the good ones lose by it.
//!
//! The bad ones pass every check of ours and are refused by PostgreSQL alone, here by a constraint that the
//! deployment has added. Each turn every good node has one update stored and the bad node one refused; it
//! is cut after some, dials again, and goes on. How many jobs and entries that costs is held in the core
//! (`core/src/writer/batch.rs`); here it is shown with the real thing, and measured:
//!
//! `cargo test --release -p gateway-db-writer --test blast_radius -- --ignored --nocapture`

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use gateway_core::command::CommandState;
use gateway_core::ids::CommandId;
use gateway_core::seam::{SessionNews, ToWriter};
use support::shard::*;
use support::*;
use uuid::Uuid;

const GOOD: u32 = 500;
/// Throughput that good nodes keep, in percent.
const KEPT: u32 = 80;

struct Stage {
    db: Db,
    running: Running,
    good: Vec<CommandId>,
    bad: CommandId,
    /// The bad node's session; it has a new one after each cut.
    bad_slot: u32,
    turn: u32,
    refused: u32,
    cuts: u32,
}

impl Stage {
    async fn new() -> Self {
        let mut db = database().await;
        db.nodes(GOOD + 1).await;
        let constraint =
            "ALTER TABLE commands ADD CONSTRAINT no_poison CHECK (progress IS DISTINCT FROM 'poison')";
        run(&mut db.sql, constraint).await;
        let enqueue = format!(
            "SELECT command_id FROM enqueue_commands((SELECT array_agg('n' || i ORDER BY i) FROM generate_series(1, {}) i), \
             ARRAY['work']) ORDER BY slot",
            GOOD + 1
        );
        let ids = texts(&mut db.sql, &enqueue).await;
        let mut good: Vec<CommandId> = ids.iter().map(|id| CommandId(id.parse::<Uuid>().unwrap())).collect();
        let bad = good.pop().unwrap();
        let mut running = start(&db.url, "o1", |_| {});
        for shard in &mut running.shards {
            shard.until_serving().await;
        }
        let mut stage = Self { db, running, good, bad, bad_slot: 0, turn: 0, refused: 0, cuts: 0 };
        for slot in 1..=GOOD {
            let shard = &mut stage.running.shards[0];
            shard.say_hello(slot, &format!("n{slot}"), &[]).await;
        }
        let (mut grants, mut commands) = (0, 0);
        while grants < GOOD || commands < GOOD {
            match stage.running.shards[0].news().await {
                (slot, SessionNews::Granted(_)) => {
                    stage.running.shards[0].open.push((slot, format!("n{slot}")));
                    grants += 1;
                }
                (_, SessionNews::Commands(_)) => commands += 1,
                other => panic!("{other:?}"),
            }
        }
        stage.dial_bad().await;
        stage
    }

    fn bad_name() -> String {
        format!("n{}", GOOD + 1)
    }

    async fn dial_bad(&mut self) {
        self.bad_slot += 1;
        let (name, slot, bad) = (Self::bad_name(), self.bad_slot, self.bad);
        let shard = &mut self.running.shards[1];
        shard.say_hello(slot, &name, &[(bad, 1, CommandState::Running)]).await;
        loop {
            match shard.news().await {
                (at, SessionNews::Granted(_)) if at == slot => break,
                // Of the session before.
                (at, SessionNews::Close(_)) if at < slot => {}
                other => panic!("{other:?}"),
            }
        }
        shard.open = vec![(slot, name)];
    }

    /// Every good node has one update stored, and the bad one, where it is there, one refused. Gives how long
    /// the good ones took; that the bad one dials again after a cut is its own affair.
    async fn turn(&mut self, with_bad: bool) -> Duration {
        self.turn += 1;
        let started = Instant::now();
        if with_bad {
            let mut request = update(&Self::bad_name(), self.bad, 1, CommandState::Running);
            request.update.progress = Some("poison".to_owned());
            request.key = self.running.shards[1].key(self.bad_slot);
            self.running.shards[1].put(ToWriter::Update(Box::new(request))).await;
        }
        let shard = &mut self.running.shards[0];
        for (slot, id) in (1..).zip(&self.good) {
            let mut request = update(&format!("n{slot}"), *id, 1, CommandState::Running);
            request.update.progress = Some(format!("turn {}", self.turn));
            request.key = shard.key(slot);
            shard.put(ToWriter::Update(Box::new(request))).await;
        }
        shard.post.ring();
        for _ in 0..GOOD {
            let (slot, news) = shard.news().await;
            assert!(
                matches!(news, SessionNews::Stored { state: Some(CommandState::Running) }),
                "{slot}: {news:?}"
            );
        }
        let took = started.elapsed();
        if with_bad {
            self.hear_refusal().await;
        }
        took
    }

    async fn hear_refusal(&mut self) {
        let shard = &mut self.running.shards[1];
        let (_, news) = shard.news().await;
        let SessionNews::NotStored { message, .. } = news else { panic!("{news:?}") };
        assert!(message.contains("no_poison"), "{message}");
        self.refused += 1;
        // The writer cuts a session that makes eight of them.
        if self.refused.is_multiple_of(8) {
            let (_, news) = shard.news().await;
            assert!(matches!(news, SessionNews::Close(_)), "{news:?}");
            let (key, node) = (shard.key(self.bad_slot), node(&Self::bad_name()));
            let closed = ToWriter::Closed { key, node, reason: "protocol" };
            shard.post(closed).await;
            self.cuts += 1;
            self.dial_bad().await;
        }
    }

    async fn turns(&mut self, count: u32, with_bad: bool) -> Duration {
        let mut took = Duration::ZERO;
        for _ in 0..count {
            took += self.turn(with_bad).await;
        }
        took
    }

    /// All good updates are stored, and none of the bad ones.
    async fn check(&mut self) {
        let query =
            "SELECT count(*) || ' ' || coalesce(progress, 'none') FROM commands GROUP BY progress ORDER BY 1";
        let expected = ["1 none".to_owned(), format!("{GOOD} turn {}", self.turn)];
        assert_eq!(texts(&mut self.db.sql, query).await, expected);
    }
}

#[tokio::test]
async fn good_updates_are_stored_turn_by_turn_beside_a_node_that_makes_bad_ones() {
    let mut stage = Stage::new().await;
    stage.turns(20, true).await;
    stage.check().await;
    assert_eq!((stage.refused, stage.cuts), (20, 2));
    stop(stage.running).await;
}

#[tokio::test]
#[ignore = "a measurement, for a machine that does nothing else"]
async fn five_hundred_nodes_keep_their_throughput_beside_one_that_makes_bad_updates() {
    let mut stage = Stage::new().await;
    stage.turns(50, false).await;
    let (mut alone, mut beside) = (Duration::ZERO, Duration::ZERO);
    // In short stretches, so that what else the machine does meets both alike.
    for _ in 0..20 {
        alone += stage.turns(20, false).await;
        beside += stage.turns(20, true).await;
    }
    stage.check().await;
    let per_second = |took: Duration| f64::from(400 * GOOD) / took.as_secs_f64();
    let kept = 100.0 * alone.as_secs_f64() / beside.as_secs_f64();
    eprintln!(
        "measured: {:.0} updates/s alone, {:.0}/s beside a bad one a turn: {kept:.1} % are kept; {} refused, {} cuts",
        per_second(alone),
        per_second(beside),
        stage.refused,
        stage.cuts
    );
    assert!(kept >= f64::from(KEPT), "{kept:.1} % of the throughput are kept, not {KEPT} %");
    stop(stage.running).await;
}

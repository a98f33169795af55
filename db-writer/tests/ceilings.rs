//! How near the writer comes to what the database can take: its thread, fed from memory by sessions that each
//! wait for the answer to their last frame, beside the same rows written by one connection in batches of 500.
//!
//! The yardsticks are `ceilings/updates.sql` and `ceilings/events.sql`, on the same tables, with the same
//! settings and the same wait for the disk. Both sides take turns in one run; the best of three counts.
//!
//! `cargo test --release -p gateway-db-writer --test ceilings -- --ignored --nocapture --test-threads 1`

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use gateway_core::command::CommandState;
use gateway_core::frame::{Event, EventBatch};
use gateway_core::ids::*;
use gateway_core::seam::{EventsRequest, SessionNews, ToWriter};
use sqlx::Executor;
use sqlx::postgres::PgConnection;
use support::shard::*;
use support::*;
use uuid::Uuid;

/// Three batches: one that commits, one that gathers, one on its way.
const NODES: u32 = 1_500;
const BATCH: usize = 500;
const ROUNDS: usize = 3;
/// What the writer reaches at least, in percent of the yardstick.
const REACHED: f64 = 60.0;

/// Both sides' best, in entries a second.
#[derive(Debug, Default)]
struct Best {
    bare: f64,
    writer: f64,
}

impl Best {
    fn judge(&self, what: &str) {
        let reached = 100.0 * self.writer / self.bare;
        eprintln!(
            "measured: {what}: {:.0}/s by the writer, {:.0}/s by bare SQL in batches of {BATCH}: {reached:.0} %",
            self.writer, self.bare
        );
        assert!(reached >= REACHED, "{what}: {reached:.0} % of the yardstick");
    }
}

fn per_second(count: usize, since: Instant) -> f64 {
    count as f64 / since.elapsed().as_secs_f64()
}

struct Stage {
    db: Db,
    bare: PgConnection,
    running: Running,
}

impl Stage {
    async fn new() -> Self {
        let mut db = database().await;
        db.nodes(NODES).await;
        let mut bare = db.client("bare").await;
        run(&mut db.sql, "SET gateway.notify = off").await;
        // As the writer's connections are.
        run(&mut bare, PLANNING).await;
        let mut running = start_with(&db.url, "o1", 1, 8192, |_| {});
        running.shards[0].until_serving().await;
        for slot in 1..=NODES {
            running.shards[0].say_hello(slot, &name(slot), &[]).await;
        }
        for _ in 0..NODES {
            let (slot, news) = running.shards[0].news().await;
            assert!(matches!(news, SessionNews::Granted(_)), "{news:?}");
            running.shards[0].open.push((slot, name(slot)));
        }
        Self { db, bare, running }
    }

    /// One dispatched command more for each node, on a lane that no pass looks at; their ids by slot.
    async fn dispatched(&mut self) -> Vec<CommandId> {
        let enqueue = format!(
            "SELECT command_id FROM enqueue_commands((SELECT array_agg('n' || i ORDER BY i) \
             FROM generate_series(1, {NODES}) i), ARRAY['work'], lanes => ARRAY['elsewhere']) ORDER BY slot"
        );
        let ids = texts(&mut self.db.sql, &enqueue).await;
        run(
            &mut self.db.sql,
            "UPDATE commands SET state = 'dispatched', dispatched_at = now(), session_epoch = 1, lane_floor = seq, \
             dispatched_by = 'g1' WHERE state = 'pending'",
        )
        .await;
        ids.iter().map(|id| CommandId(id.parse::<Uuid>().unwrap())).collect()
    }
}

fn name(slot: u32) -> String {
    format!("n{slot}")
}

// -- updates -----------------------------------------------------------------------------------------

/// How many commands of each node a turn takes to their end.
const COMMANDS: usize = 12;

async fn updates_by_the_writer(stage: &mut Stage, commands: &[Vec<CommandId>]) -> f64 {
    let shard = &mut stage.running.shards[0];
    let request = |shard: &Shard, slot: u32, step: usize| {
        let state = if step.is_multiple_of(2) { CommandState::Accepted } else { CommandState::Succeeded };
        let mut request = update(&name(slot), commands[step / 2][slot as usize - 1], 1, state);
        if state == CommandState::Succeeded {
            request.update.result = Bytes::from_static(b"done");
        }
        request.key = shard.key(slot);
        ToWriter::Update(Box::new(request))
    };
    let steps = 2 * commands.len();
    let mut done = vec![0; NODES as usize + 1];
    let began = Instant::now();
    for slot in 1..=NODES {
        shard.put(request(shard, slot, 0)).await;
    }
    shard.post.ring();
    for _ in 0..steps * NODES as usize {
        let (slot, news) = shard.news().await;
        assert!(matches!(news, SessionNews::Stored { .. }), "{news:?}");
        done[slot as usize] += 1;
        if done[slot as usize] < steps {
            shard.post(request(shard, slot, done[slot as usize])).await;
        }
    }
    per_second(steps * NODES as usize, began)
}

async fn updates_by_bare_sql(stage: &mut Stage, commands: &[Vec<CommandId>]) -> f64 {
    let names: Vec<String> = (1..=NODES).map(name).collect();
    let began = Instant::now();
    for ids in commands {
        for (names, ids) in names.chunks(BATCH).zip(ids.chunks(BATCH)) {
            let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
            for state in ["accepted", "succeeded"] {
                let query = sqlx::query(include_str!("ceilings/updates.sql"))
                    .bind(names)
                    .bind(&ids)
                    .bind(vec![state; ids.len()]);
                let written = stage.bare.execute(query).await.unwrap();
                assert_eq!(written.rows_affected(), ids.len() as u64);
            }
        }
    }
    per_second(2 * commands.len() * NODES as usize, began)
}

#[tokio::test]
#[ignore = "a measurement, for a machine that does nothing else"]
async fn updates_against_bare_sql() {
    let mut stage = Stage::new().await;
    let mut best = Best::default();
    for round in 0..=ROUNDS {
        let mut commands = Vec::new();
        for _ in 0..COMMANDS {
            commands.push(stage.dispatched().await);
        }
        let bare = updates_by_bare_sql(&mut stage, &commands).await;
        commands.clear();
        for _ in 0..COMMANDS {
            commands.push(stage.dispatched().await);
        }
        let writer = updates_by_the_writer(&mut stage, &commands).await;
        eprintln!("updates, round {round}: {writer:.0}/s by the writer, {bare:.0}/s by bare SQL");
        // The first warms both up.
        if round > 0 {
            best = Best { bare: best.bare.max(bare), writer: best.writer.max(writer) };
        }
    }
    let open = "SELECT count(*) FROM commands WHERE state <> 'succeeded' OR result <> 'done'";
    assert_eq!(number(&mut stage.db.sql, open).await, 0);
    best.judge("updates");
    eprintln!("measured: that is {:.0} commands/s of two updates each", best.writer / 2.0);
    stop(stage.running).await;
}

// -- events ------------------------------------------------------------------------------------------

const KIND: &str = "conformance";
const BODY: &[u8] = b"a body of an event that is neither long nor short, as they are";

async fn events_by_the_writer(stage: &mut Stage, run_length: u64, runs: u64, after: &mut u64) -> f64 {
    let shard = &mut stage.running.shards[0];
    let first = *after + 1;
    let request = |shard: &Shard, slot: u32, run: u64| {
        let event = |seq| Event {
            seq: EventSeq(seq),
            kind: KIND.to_owned(),
            body: Bytes::from_static(BODY),
            attested: None,
            refused: None,
        };
        let from = first + run * run_length;
        ToWriter::Events(EventsRequest {
            key: shard.key(slot),
            node: node(&name(slot)),
            batch: Arc::new(EventBatch {
                frame_ref: FrameRef(run),
                journal: JournalId::new("j").unwrap(),
                boot_id: "boot".to_owned(),
                events: (from..from + run_length).map(event).collect(),
            }),
        })
    };
    let mut done = vec![0; NODES as usize + 1];
    let began = Instant::now();
    for slot in 1..=NODES {
        shard.put(request(shard, slot, 0)).await;
    }
    shard.post.ring();
    for _ in 0..runs * u64::from(NODES) {
        let (slot, news) = shard.news().await;
        assert!(matches!(news, SessionNews::EventsStored { .. }), "{news:?}");
        done[slot as usize] += 1;
        if done[slot as usize] < runs {
            shard.post(request(shard, slot, done[slot as usize])).await;
        }
    }
    *after += run_length * runs;
    per_second((run_length * runs) as usize * NODES as usize, began)
}

async fn events_by_bare_sql(stage: &mut Stage, count: u64, after: &mut u64) -> f64 {
    let began = Instant::now();
    let rows: Vec<(String, i64)> = (1..=count)
        .flat_map(|seq| (1..=NODES).map(move |slot| (name(slot), seq as i64)))
        .map(|(name, seq)| (name, seq + *after as i64))
        .collect();
    for rows in rows.chunks(BATCH) {
        let names: Vec<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
        let seqs: Vec<i64> = rows.iter().map(|(_, seq)| *seq).collect();
        let query = sqlx::query(include_str!("ceilings/events.sql"))
            .bind(names)
            .bind(vec!["bare"; rows.len()])
            .bind(seqs)
            .bind(KIND)
            .bind(BODY);
        let written = stage.bare.execute(query).await.unwrap();
        assert_eq!(written.rows_affected(), rows.len() as u64);
    }
    *after += count;
    per_second(rows.len(), began)
}

async fn events_in_runs_of(run_length: u64) {
    const EVENTS: u64 = 40;
    let mut stage = Stage::new().await;
    let mut best = Best::default();
    let (mut stored, mut bare_stored) = (0, 0);
    for round in 0..=ROUNDS {
        let bare = events_by_bare_sql(&mut stage, EVENTS, &mut bare_stored).await;
        let writer = events_by_the_writer(&mut stage, run_length, EVENTS / run_length, &mut stored).await;
        eprintln!("events, round {round}: {writer:.0}/s by the writer, {bare:.0}/s by bare SQL");
        if round > 0 {
            best = Best { bare: best.bare.max(bare), writer: best.writer.max(writer) };
        }
    }
    let count = "SELECT count(*) FROM events";
    assert_eq!(number(&mut stage.db.sql, count).await as u64, u64::from(NODES) * (stored + bare_stored));
    best.judge(&format!("events in runs of {run_length}"));
    stop(stage.running).await;
}

#[tokio::test]
#[ignore = "a measurement, for a machine that does nothing else"]
async fn events_against_bare_sql() {
    events_in_runs_of(10).await;
}

#[tokio::test]
#[ignore = "a measurement, for a machine that does nothing else"]
async fn events_that_come_one_by_one_against_bare_sql() {
    events_in_runs_of(1).await;
}

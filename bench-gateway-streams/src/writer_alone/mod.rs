//! The writer alone: its thread, fed from memory by sessions that each wait for the answer to their last frame,
//! beside the same rows written by one connection in batches. What `throughput` starts as a process of its own.
//!
//! The yardsticks are `sql/ceilings/updates.sql` and `events.sql`: the same tables and indexes, the same settings,
//! the same wait for the disk.
//!
//! 1. Both sides take turns in one run; all rounds are told, and the best of each counts.
//! 2. One round before them warms both up and is not told.
//! 3. In the end every row is there, or the run has failed.

mod shard;

use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use bytes::Bytes;
use gateway_core::command::CommandState;
use gateway_core::frame::{CommandUpdate, Event, EventBatch};
use gateway_core::ids::{Attempt, CommandId, EventSeq, FrameRef, JournalId};
use gateway_core::seam::{EventsRequest, SessionNews, ToWriter, UpdateRequest};
use gateway_testbed::database::register_nodes;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use self::shard::{GATEWAY, PlayedShard};
use crate::arguments::WriterAloneArguments;
use crate::progress::{print, say};
use crate::report::{Sides, WriterAlone};
use crate::statistics;

const KIND: &str = "bench";
const BODY: &[u8] = b"a body of an event that is neither long nor short, as they are";
const RESULT: &[u8] = b"done";
/// Events of a batch, as a node sends them that has some to tell.
const RUN_OF_EVENTS: usize = 10;

/// Starts the process and awaits what it tells.
pub(crate) async fn measure(database_url: &str, plan: &AlonePlan) -> anyhow::Result<WriterAlone> {
    let AlonePlan { nodes, batch, rounds, each } = *plan;
    say(&format!(
        "the writer alone, fed by {nodes} sessions from memory, beside bare SQL, {rounds} rounds …"
    ));
    let mut command = tokio::process::Command::new(std::env::current_exe()?);
    command.arg("writer-alone").arg("--database-url").arg(database_url);
    command.arg("--nodes").arg(nodes.to_string()).arg("--batch").arg(batch.to_string());
    command.arg("--rounds").arg(rounds.to_string()).arg("--each").arg(each.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let child = command.spawn().context("starting the writer alone")?;
    let output = child.wait_with_output().await?;
    let told = String::from_utf8_lossy(&output.stdout);
    anyhow::ensure!(output.status.success(), "the writer alone ended with {}: {told}", output.status);
    let last = told.lines().last().unwrap_or_default();
    serde_json::from_str(last).with_context(|| format!("what the writer alone told: {told}"))
}

/// How it is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AlonePlan {
    pub(crate) nodes: u32,
    pub(crate) batch: usize,
    pub(crate) rounds: usize,
    /// Commands, and events, of each node in a round.
    pub(crate) each: usize,
}

/// What the process does; its last line is one JSON object.
pub(crate) async fn serve(arguments: WriterAloneArguments) -> anyhow::Result<bool> {
    gateway_db_writer::migrate(&arguments.database_url).await?;
    let mut stage = Stage::set(&arguments).await?;
    let updates = stage.updates(&arguments).await?;
    let events = stage.events(&arguments).await?;
    stage.shard.stop().await?;
    let told = WriterAlone { nodes: arguments.nodes, batch: arguments.batch, updates, events };
    print(&serde_json::to_string(&told)?);
    Ok(true)
}

fn name(slot: u32) -> String {
    format!("alone-{slot}")
}

fn per_second(count: usize, since: Instant) -> f64 {
    count as f64 / since.elapsed().as_secs_f64()
}

struct Stage {
    names: Vec<String>,
    bare: PgConnection,
    shard: PlayedShard,
    // What was stored of the journals so far, by each side.
    stored: usize,
    bare_stored: usize,
}

impl Stage {
    async fn set(arguments: &WriterAloneArguments) -> anyhow::Result<Self> {
        let names: Vec<String> = (1..=arguments.nodes).map(name).collect();
        let mut bare = PgConnection::connect(&arguments.database_url).await?;
        sqlx::raw_sql(include_str!("../../sql/ceilings/session.sql")).execute(&mut bare).await?;
        register_nodes(&mut bare, &names).await?;
        statistics::say_settings(&mut bare).await?;
        let mut shard = PlayedShard::start(&arguments.database_url).await?;
        shard.open_sessions(&names).await?;
        Ok(Self { names, bare, shard, stored: 0, bare_stored: 0 })
    }

    // -- updates ----------------------------------------------------------------------------------------

    async fn updates(&mut self, arguments: &WriterAloneArguments) -> anyhow::Result<Sides> {
        let mut sides = Sides::default();
        for round in 0..=arguments.rounds {
            let commands = self.dispatched(arguments.each).await?;
            let bare = self.updates_by_bare_sql(&commands, arguments.batch).await?;
            let commands = self.dispatched(arguments.each).await?;
            let writer = self.updates_by_the_writer(&commands).await?;
            say(&format!("updates, round {round}: {writer:.0}/s by the writer, {bare:.0}/s by bare SQL"));
            if round > 0 {
                sides.writer.push(writer);
                sides.bare.push(bare);
            }
        }
        let open = "SELECT count(*) FROM commands WHERE state <> 'succeeded' OR result <> 'done'";
        let open: i64 = sqlx::query_scalar(open).fetch_one(&mut self.bare).await?;
        anyhow::ensure!(open == 0, "{open} commands are not as they were written");
        Ok(sides)
    }

    /// So many dispatched commands of each node; of each turn the ids by node.
    async fn dispatched(&mut self, each: usize) -> anyhow::Result<Vec<Vec<CommandId>>> {
        let mut commands = Vec::with_capacity(each);
        for _ in 0..each {
            let enqueue =
                sqlx::query_scalar(include_str!("../../sql/ceilings/enqueue.sql")).bind(&self.names);
            let ids: Vec<Uuid> = enqueue.fetch_all(&mut self.bare).await?;
            commands.push(ids.into_iter().map(CommandId).collect());
        }
        let dispatched = sqlx::query(include_str!("../../sql/ceilings/dispatched.sql")).bind(GATEWAY);
        dispatched.execute(&mut self.bare).await?;
        Ok(commands)
    }

    async fn updates_by_the_writer(&mut self, commands: &[Vec<CommandId>]) -> anyhow::Result<f64> {
        let nodes = self.names.len();
        let steps = 2 * commands.len();
        let request = |shard: &PlayedShard, index: usize, step: usize| {
            let state = if step.is_multiple_of(2) { CommandState::Accepted } else { CommandState::Succeeded };
            let result = if state == CommandState::Succeeded { RESULT } else { b"" };
            ToWriter::Update(Box::new(UpdateRequest {
                key: shard.key(index),
                node: shard.node(index),
                update: CommandUpdate {
                    frame_ref: FrameRef(1),
                    id: commands[step / 2][index],
                    attempt: Attempt(1),
                    state,
                    progress: None,
                    result: Bytes::from_static(result),
                    error: None,
                    refusal: None,
                },
            }))
        };
        let mut done = vec![0; nodes];
        let began = Instant::now();
        for index in 0..nodes {
            self.shard.put(request(&self.shard, index, 0)).await?;
        }
        self.shard.ring();
        for _ in 0..steps * nodes {
            let (index, news) = self.shard.news().await?;
            anyhow::ensure!(matches!(news, SessionNews::Stored { .. }), "an update was not stored: {news:?}");
            done[index] += 1;
            if done[index] < steps {
                self.shard.put(request(&self.shard, index, done[index])).await?;
                self.shard.ring();
            }
        }
        Ok(per_second(steps * nodes, began))
    }

    async fn updates_by_bare_sql(
        &mut self,
        commands: &[Vec<CommandId>],
        batch: usize,
    ) -> anyhow::Result<f64> {
        let began = Instant::now();
        for ids in commands {
            for (names, ids) in self.names.chunks(batch).zip(ids.chunks(batch)) {
                let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
                for state in ["accepted", "succeeded"] {
                    let query = sqlx::query(include_str!("../../sql/ceilings/updates.sql"))
                        .bind(names)
                        .bind(&ids)
                        .bind(vec![state; ids.len()]);
                    let written = query.execute(&mut self.bare).await?.rows_affected();
                    anyhow::ensure!(
                        written == ids.len() as u64,
                        "{written} of {} rows were updated",
                        ids.len()
                    );
                }
            }
        }
        Ok(per_second(2 * commands.len() * self.names.len(), began))
    }

    // -- events -----------------------------------------------------------------------------------------

    async fn events(&mut self, arguments: &WriterAloneArguments) -> anyhow::Result<Sides> {
        let runs = arguments.each.div_ceil(RUN_OF_EVENTS).max(1);
        let mut sides = Sides::default();
        for round in 0..=arguments.rounds {
            let bare = self.events_by_bare_sql(runs * RUN_OF_EVENTS, arguments.batch).await?;
            let writer = self.events_by_the_writer(runs).await?;
            say(&format!("events, round {round}: {writer:.0}/s by the writer, {bare:.0}/s by bare SQL"));
            if round > 0 {
                sides.writer.push(writer);
                sides.bare.push(bare);
            }
        }
        let stored: i64 = sqlx::query_scalar("SELECT count(*) FROM events").fetch_one(&mut self.bare).await?;
        let sent = self.names.len() * (self.stored + self.bare_stored);
        anyhow::ensure!(usize::try_from(stored)? == sent, "{stored} of {sent} events are stored");
        Ok(sides)
    }

    async fn events_by_the_writer(&mut self, runs: usize) -> anyhow::Result<f64> {
        let (nodes, first) = (self.names.len(), self.stored + 1);
        let journal = JournalId::new("j").map_err(|error| anyhow::anyhow!("{error}"))?;
        let event = |seq: usize| Event {
            seq: EventSeq(seq as u64),
            kind: KIND.to_owned(),
            body: Bytes::from_static(BODY),
            attested: None,
            refused: None,
        };
        let request = |shard: &PlayedShard, index: usize, run: usize| {
            let from = first + run * RUN_OF_EVENTS;
            ToWriter::Events(EventsRequest {
                key: shard.key(index),
                node: shard.node(index),
                batch: Arc::new(EventBatch {
                    frame_ref: FrameRef(run as u64),
                    journal: journal.clone(),
                    boot_id: "boot".to_owned(),
                    events: (from..from + RUN_OF_EVENTS).map(event).collect(),
                }),
            })
        };
        let mut done = vec![0; nodes];
        let began = Instant::now();
        for index in 0..nodes {
            self.shard.put(request(&self.shard, index, 0)).await?;
        }
        self.shard.ring();
        for _ in 0..runs * nodes {
            let (index, news) = self.shard.news().await?;
            anyhow::ensure!(
                matches!(news, SessionNews::EventsStored { .. }),
                "events were not stored: {news:?}"
            );
            done[index] += 1;
            if done[index] < runs {
                self.shard.put(request(&self.shard, index, done[index])).await?;
                self.shard.ring();
            }
        }
        self.stored += runs * RUN_OF_EVENTS;
        Ok(per_second(runs * RUN_OF_EVENTS * nodes, began))
    }

    async fn events_by_bare_sql(&mut self, count: usize, batch: usize) -> anyhow::Result<f64> {
        let first = self.bare_stored + 1;
        let rows: Vec<(&str, i64)> = (first..first + count)
            .flat_map(|seq| self.names.iter().map(move |name| (name.as_str(), seq as i64)))
            .collect();
        let began = Instant::now();
        for rows in rows.chunks(batch) {
            let names: Vec<&str> = rows.iter().map(|(name, _)| *name).collect();
            let seqs: Vec<i64> = rows.iter().map(|(_, seq)| *seq).collect();
            let query = sqlx::query(include_str!("../../sql/ceilings/events.sql"))
                .bind(names)
                .bind(vec!["bare"; rows.len()])
                .bind(seqs)
                .bind(KIND)
                .bind(BODY);
            let written = query.execute(&mut self.bare).await?.rows_affected();
            anyhow::ensure!(written == rows.len() as u64, "{written} of {} events were stored", rows.len());
        }
        let rate = per_second(rows.len(), began);
        self.bare_stored += count;
        Ok(rate)
    }
}

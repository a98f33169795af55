//! A batch of command updates: one statement, one round trip.
//!
//! 1. Within a statement a command stands once. Updates of it that lead on from one another (accepted, running, an
//!    end) are one write of its row, and each is answered as if it had been stored by itself. Where a batch
//!    holds others of a command (a node came back while an update of its older session waited), the batch is
//!    a transaction with one statement for each in turn, so that they count in the batch's order.
//! 2. A command that somebody else changes at the same moment is waited for, and decided about anew, by one
//!    statement more.

use std::collections::HashMap;

use gateway_core::command::{CommandState, Transition};
use gateway_core::frame::RefusalReason;
use gateway_core::ids::{Attempt, CommandId, LaneName, NodeId};
use gateway_core::seam::UpdateRequest;
use gateway_core::store::{StoreError, UpdateOutcome};
use sqlx::PgConnection;

use super::JobError;
use super::stored::{command_state, corrupt, integer, lane_name, number};
use crate::connection::Link;

/// More often than that something is wrong.
const MOST_TIMES_OVERTAKEN: u32 = 8;

pub(super) async fn execute(
    link: &mut Link,
    entries: &[UpdateRequest],
) -> Result<Vec<UpdateOutcome>, JobError> {
    let rounds = rounds(entries);
    let mut outcomes = Vec::with_capacity(entries.len());
    if let [only] = rounds.as_slice() {
        store(link.autocommit(), entries, only, &mut outcomes).await?;
    } else {
        link.begin().await?;
        for round in &rounds {
            store(link.within(), entries, round, &mut outcomes).await?;
        }
        link.commit().await?;
    }
    outcomes.sort_by_key(|(slot, _)| *slot);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}

/// One write of a command's row.
#[derive(Debug, Clone, Copy)]
struct Write {
    /// The last update that it stores.
    slot: usize,
    /// Those that led to it: an acceptance, a start.
    accepted: Option<usize>,
    started: Option<usize>,
}

impl Write {
    const fn of(slot: usize) -> Self {
        Self { slot, accepted: None, started: None }
    }

    /// Stores the update of the slot too, if it goes on from the last one.
    fn take(&mut self, slot: usize, entries: &[UpdateRequest]) -> bool {
        let last = &entries[self.slot];
        let joins = entries[slot].goes_on_from(last);
        if joins {
            let led = if last.update.state == CommandState::Accepted {
                &mut self.accepted
            } else {
                &mut self.started
            };
            *led = Some(std::mem::replace(&mut self.slot, slot));
        }
        joins
    }

    fn slots(&self) -> impl Iterator<Item = usize> {
        self.accepted.into_iter().chain(self.started).chain([self.slot])
    }
}

/// What is written, in rounds in which each command stands once.
fn rounds(entries: &[UpdateRequest]) -> Vec<Vec<Write>> {
    // The round of a command's last write, and its place there.
    let mut last: HashMap<(&NodeId, CommandId), (usize, usize)> = HashMap::with_capacity(entries.len());
    let mut rounds: Vec<Vec<Write>> = Vec::new();
    for (slot, entry) in entries.iter().enumerate() {
        let command = (&entry.node, entry.update.id);
        let before = last.get(&command).copied();
        if before.is_some_and(|(round, place)| rounds[round][place].take(slot, entries)) {
            continue;
        }
        let round = before.map_or(0, |(round, _)| round + 1);
        if round == rounds.len() {
            rounds.push(Vec::new());
        }
        last.insert(command, (round, rounds[round].len()));
        rounds[round].push(Write::of(slot));
    }
    rounds
}

/// Stores what one round writes.
async fn store(
    sql: &mut PgConnection,
    entries: &[UpdateRequest],
    writes: &[Write],
    outcomes: &mut Vec<(usize, UpdateOutcome)>,
) -> Result<(), JobError> {
    let mut overtaken = store_once(sql, entries, writes, outcomes).await?;
    for _ in 0..MOST_TIMES_OVERTAKEN {
        if overtaken.is_empty() {
            return Ok(());
        }
        overtaken = store_once(sql, entries, &overtaken, outcomes).await?;
    }
    Err(JobError::Store(StoreError::Retry("others keep changing the same commands".to_owned())))
}

/// The same, in one statement; gives the writes whose rows others changed while it waited for them.
async fn store_once(
    sql: &mut PgConnection,
    entries: &[UpdateRequest],
    writes: &[Write],
    outcomes: &mut Vec<(usize, UpdateOutcome)>,
) -> Result<Vec<Write>, JobError> {
    let chosen: Vec<&UpdateRequest> = writes.iter().map(|write| &entries[write.slot]).collect();
    let nodes: Vec<&str> = chosen.iter().map(|entry| entry.node.as_str()).collect();
    let ids: Vec<_> = chosen.iter().map(|entry| entry.update.id.0).collect();
    let attempts: Vec<i32> = chosen.iter().map(|entry| integer(entry.update.attempt.0)).collect();
    let states: Vec<&str> = chosen.iter().map(|entry| entry.update.state.as_str()).collect();
    let progress: Vec<Option<&str>> = chosen.iter().map(|entry| entry.update.progress.as_deref()).collect();
    let results: Vec<&[u8]> = chosen.iter().map(|entry| entry.update.result.as_ref()).collect();
    let errors: Vec<Option<&str>> = chosen.iter().map(|entry| entry.update.error.as_deref()).collect();
    let refusals: Vec<Option<&str>> =
        chosen.iter().map(|entry| entry.update.refusal.map(|refusal| reason(refusal.reason))).collect();
    let retryable: Vec<bool> =
        chosen.iter().map(|entry| entry.update.refusal.is_some_and(|refusal| refusal.retryable)).collect();
    let accepts: Vec<bool> = writes.iter().map(|write| write.accepted.is_some()).collect();
    let starts: Vec<bool> = writes.iter().map(|write| write.started.is_some()).collect();
    let rows = sqlx::query_file!(
        "queries/updates.sql",
        &nodes as &[&str],
        &ids,
        &attempts,
        &states as &[&str],
        &progress as &[Option<&str>],
        &results as &[&[u8]],
        &errors as &[Option<&str>],
        &refusals as &[Option<&str>],
        &retryable,
        &accepts,
        &starts
    )
    .fetch_all(sql)
    .await?;
    if rows.len() != chosen.len() {
        return Err(corrupt("an update without an answer"));
    }
    let mut overtaken = Vec::new();
    for (write, row) in writes.iter().zip(rows) {
        let (Some(state), Some(stored), Some(lane)) = (row.state, row.stored, row.lane) else {
            outcomes.extend(write.slots().map(|slot| (slot, UpdateOutcome::UnknownCommand)));
            continue;
        };
        let current = Attempt(number(row.current_attempt.unwrap_or_default()));
        match row.verdict.as_str() {
            "overtaken" => overtaken.push(*write),
            "old" => outcomes.extend(write.slots().map(|slot| (slot, UpdateOutcome::OldAttempt { current }))),
            verdict => {
                let lane = lane_name(&lane)?;
                let before = command_state(&stored)?;
                let is_later = entries[write.slot].update.attempt > current;
                // What the row was then counts no more: an attempt is over, or an end has yielded.
                let is_news = verdict == "apply" && (before.is_terminal() || is_later);
                outcomes.extend(led_to(write, before, is_news, &lane));
                let (state, conflict) = (command_state(&state)?, verdict == "conflict");
                outcomes.push((write.slot, UpdateOutcome::Stored { state, lane, conflict }));
            }
        }
    }
    Ok(overtaken)
}

/// What the updates that led to a write come to, each as if it had been stored by itself.
fn led_to(
    write: &Write,
    before: CommandState,
    is_news: bool,
    lane: &LaneName,
) -> impl Iterator<Item = (usize, UpdateOutcome)> {
    let accepted = write.accepted.map(|slot| (slot, CommandState::Accepted));
    let started = write.started.map(|slot| (slot, CommandState::Running));
    let (mut row, mut is_news) = (before, is_news);
    accepted.into_iter().chain(started).map(move |(slot, told)| {
        let transition = if is_news { Transition::Apply } else { row.on_report(told) };
        if transition == Transition::Apply {
            (row, is_news) = (told, false);
        }
        let conflict = transition == Transition::Conflict;
        (slot, UpdateOutcome::Stored { state: row, lane: lane.clone(), conflict })
    })
}

const fn reason(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::Unspecified => "unspecified",
        RefusalReason::LaneFull => "lane-full",
        RefusalReason::UnknownKind => "unknown-kind",
        RefusalReason::Expired => "expired",
        RefusalReason::StaleEpoch => "stale-epoch",
    }
}

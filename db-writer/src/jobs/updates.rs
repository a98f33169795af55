//! A batch of command updates: one statement, one round trip.
//!
//! 1. Within a statement a command stands once. Where a batch holds several updates of a command
//!    (a node came back while an update of its older session waited), the batch is a transaction
//!    with one statement for each in turn, so that they count in the batch's order.
//! 2. A command that somebody else changes at the same moment is waited for, and decided about anew, by one
//!    statement more.

use std::collections::HashMap;

use gateway_core::frame::RefusalReason;
use gateway_core::ids::{Attempt, CommandId, NodeId};
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

/// The slots of the entries, in rounds in which each command stands once.
fn rounds(entries: &[UpdateRequest]) -> Vec<Vec<usize>> {
    let mut seen: HashMap<(&NodeId, CommandId), usize> = HashMap::with_capacity(entries.len());
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    for (slot, entry) in entries.iter().enumerate() {
        let round = seen.entry((&entry.node, entry.update.id)).or_default();
        match rounds.get_mut(*round) {
            Some(slots) => slots.push(slot),
            None => rounds.push(vec![slot]),
        }
        *round += 1;
    }
    rounds
}

/// Stores the updates of slots.
async fn store(
    sql: &mut PgConnection,
    entries: &[UpdateRequest],
    slots: &[usize],
    outcomes: &mut Vec<(usize, UpdateOutcome)>,
) -> Result<(), JobError> {
    let mut overtaken = store_once(sql, entries, slots, outcomes).await?;
    for _ in 0..MOST_TIMES_OVERTAKEN {
        if overtaken.is_empty() {
            return Ok(());
        }
        overtaken = store_once(sql, entries, &overtaken, outcomes).await?;
    }
    Err(JobError::Store(StoreError::Retry("others keep changing the same commands".to_owned())))
}

/// The same, in one statement; gives the slots whose rows others changed while it waited for them.
async fn store_once(
    sql: &mut PgConnection,
    entries: &[UpdateRequest],
    slots: &[usize],
    outcomes: &mut Vec<(usize, UpdateOutcome)>,
) -> Result<Vec<usize>, JobError> {
    let chosen: Vec<&UpdateRequest> = slots.iter().filter_map(|slot| entries.get(*slot)).collect();
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
        &retryable
    )
    .fetch_all(sql)
    .await?;
    if rows.len() != chosen.len() {
        return Err(corrupt("an update without an answer"));
    }
    let mut overtaken = Vec::new();
    for (slot, row) in slots.iter().zip(rows) {
        let verdict = row.verdict;
        let (Some(state), Some(lane)) = (row.state, row.lane) else {
            outcomes.push((*slot, UpdateOutcome::UnknownCommand));
            continue;
        };
        let outcome = match verdict.as_str() {
            "overtaken" => {
                overtaken.push(*slot);
                continue;
            }
            "old" => UpdateOutcome::OldAttempt {
                current: Attempt(number(row.current_attempt.unwrap_or_default())),
            },
            _ => {
                let (state, lane) = (command_state(&state)?, lane_name(&lane)?);
                UpdateOutcome::Stored { state, lane, conflict: verdict == "conflict" }
            }
        };
        outcomes.push((*slot, outcome));
    }
    Ok(overtaken)
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

//! What reports and sweeps may do to rows.
//!
//! It says by its own rule what each report makes of its row, and holds row and answer against that.
//!
//! 1. A state goes forward, and an end stays; but an end that nobody was sent yields to a node that began.
//! 2. A later attempt is news. An older one changes nothing, nor does another node's report.
//! 3. A retryable refusal makes the next attempt, later, while attempts are left and nobody cancels.
//! 4. Reports of one batch count in their order, each answered as if it had been stored alone.
//! 5. A sweep expires what is pending past its time and was never given to a node, and ends sessions of the
//!    dead alone, under the lead.

use std::collections::{BTreeMap, BTreeSet};

use gateway_core::command::CommandState;
use gateway_core::frame::CommandUpdate;
use gateway_core::ids::{Attempt, CommandId};
use gateway_core::seam::UpdateRequest;
use gateway_core::store::{SweepJob, SweepOutcome, UpdateOutcome};
use gateway_core::time::UnixMillis;

use super::{Oracle, Row};
use crate::check::must;
use crate::store::{CommandRow, Store};

use CommandState::{Accepted, Canceled, Dispatched, Expired, Failed, Pending, Refused, Running, Succeeded};

pub(super) const fn is_end(state: CommandState) -> bool {
    matches!(state, Succeeded | Failed | Canceled | Expired | Refused)
}

pub(super) const fn takes_credit(state: CommandState) -> bool {
    matches!(state, Dispatched | Accepted | Running)
}

/// Whether what a node shows undoes an end that was set while the mark of the dispatch was lost.
pub(super) const fn is_undone(row: &Row, shown: CommandState) -> bool {
    !row.dispatched
        && matches!(row.state, Canceled | Expired)
        && matches!(shown, Dispatched | Accepted | Running | Succeeded | Failed)
}

const fn rank(state: CommandState) -> u8 {
    match state {
        Pending => 0,
        Dispatched => 1,
        Accepted => 2,
        Running => 3,
        Succeeded | Failed | Canceled | Expired | Refused => 4,
    }
}

enum Verdict {
    Old,
    Stays { conflict: bool },
    Moves,
    TriedAgain,
}

impl Verdict {
    /// How a row must be after a report that others of its batch follow, and so is no last word.
    const fn leaves(&self, was: Row, update: &CommandUpdate) -> Row {
        match self {
            Self::Moves => Row { state: update.state, attempt: update.attempt, dispatched: true, ..was },
            Self::Old | Self::Stays { .. } | Self::TriedAgain => was,
        }
    }
}

fn verdict(row: &Row, max_attempts: u32, update: &CommandUpdate) -> Verdict {
    if update.attempt < row.attempt {
        return Verdict::Old;
    }
    let state = if is_undone(row, update.state) { Pending } else { row.state };
    if is_end(state) {
        return Verdict::Stays { conflict: state != update.state };
    }
    if update.attempt == row.attempt && rank(update.state) <= rank(state) {
        return Verdict::Stays { conflict: false };
    }
    let retryable = update.state == Refused && update.refusal.is_some_and(|refusal| refusal.retryable);
    if retryable && update.attempt.0 < max_attempts && !row.cancel_requested {
        Verdict::TriedAgain
    } else {
        Verdict::Moves
    }
}

impl Oracle {
    pub(super) fn judge_updates(
        &mut self,
        entries: &[UpdateRequest],
        outcomes: &[UpdateOutcome],
        before: &BTreeMap<CommandId, Row>,
        store: &Store,
        now: UnixMillis,
    ) -> BTreeSet<CommandId> {
        let mut allowed = BTreeSet::new();
        // What a row must have been between two reports of the batch.
        let mut between: BTreeMap<CommandId, Row> = BTreeMap::new();
        must("an outcome for each entry", entries.len() == outcomes.len(), || format!("{outcomes:?}"));
        for (slot, (UpdateRequest { node, update, .. }, outcome)) in entries.iter().zip(outcomes).enumerate()
        {
            let was = between.get(&update.id).or(before.get(&update.id)).copied();
            let row = was.zip(store.commands().get(&update.id));
            let Some((was, row)) = row.filter(|(_, row)| row.node == *node) else {
                let unknown = *outcome == UpdateOutcome::UnknownCommand;
                must("another's command is unknown", unknown, || {
                    format!("{update:?} of {node}: {outcome:?}")
                });
                continue;
            };
            let verdict = verdict(&was, row.max_attempts, update);
            let is_followed = entries[slot + 1..].iter().any(|then| then.update.id == update.id);
            let is = if is_followed { verdict.leaves(was, update) } else { Row::of(row) };
            between.insert(update.id, is);
            self.reports.push((was.state, update.state));
            if !takes_credit(was.state) && takes_credit(is.state) {
                self.foretold.insert(update.id);
            }
            let right = match &verdict {
                Verdict::Old | Verdict::Stays { .. } => is == was,
                Verdict::Moves => {
                    (is.state, is.attempt, is.dispatched) == (update.state, update.attempt, true)
                }
                Verdict::TriedAgain => is_tried_again(row, update, now),
            };
            must("a report does to its row what it may", right, || {
                format!("{was:?} to {is:?} by {update:?}")
            });
            let answer = match verdict {
                Verdict::Old => UpdateOutcome::OldAttempt { current: was.attempt },
                Verdict::Stays { conflict } => {
                    UpdateOutcome::Stored { state: is.state, lane: row.lane.clone(), conflict }
                }
                Verdict::Moves | Verdict::TriedAgain => {
                    UpdateOutcome::Stored { state: is.state, lane: row.lane.clone(), conflict: false }
                }
            };
            must("the answer to a report says what is stored", *outcome == answer, || {
                format!("{outcome:?}, not {answer:?}, to {update:?} of {was:?}")
            });
            if matches!(outcome, UpdateOutcome::Stored { .. }) {
                self.reported.insert((node.clone(), update.id, update.attempt, update.state));
                let ends = is_end(update.state) && is.state == update.state && was != is;
                let kept = row.report.result.as_ref() == Some(&update.result);
                must("a result is stored with its end", !ends || kept, || format!("{update:?} in {row:?}"));
            }
            allowed.insert(update.id);
        }
        allowed
    }

    pub(super) fn judge_sweep(
        &mut self,
        job: &SweepJob,
        outcome: &SweepOutcome,
        changed: &[(CommandId, Row, Row)],
        store: &Store,
        now: UnixMillis,
    ) -> BTreeSet<CommandId> {
        self.leases.handle_lead(job, outcome, now);
        let mut allowed = BTreeSet::new();
        match (job, outcome) {
            (SweepJob::Expire { proof, .. }, SweepOutcome::Expired(pass)) => {
                self.leases.check_lead(proof, now);
                for (id, was, is) in changed {
                    let late =
                        store.commands().get(id).and_then(|row| row.not_after).is_some_and(|end| end <= now);
                    let right = was.state == Pending && *is == Row { state: Expired, ..*was } && late;
                    must("a sweep expires what is pending past its time", right, || {
                        format!("{id}: {was:?} to {is:?} at {now}")
                    });
                    let given = self.given.contains(&(*id, was.attempt)) && !self.marks_lost.contains(id);
                    must("what expires unsent was never sent", !given, || format!("{id}: {was:?}"));
                    allowed.insert(*id);
                }
                must("a sweep says what it did", pass.expired as usize == changed.len(), || {
                    format!("{pass:?}")
                });
            }
            (SweepJob::Reap { proof, .. }, SweepOutcome::Reaped(pass)) => {
                self.leases.check_lead(proof, now);
                let mut reaped = 0;
                for (node, fact) in &mut self.sessions {
                    let Some(row) = store.sessions().get(node) else { continue };
                    let ends = fact.connected && !row.connected && fact.epoch == row.epoch;
                    if !ends {
                        continue;
                    }
                    let state = fact.gateway.as_ref().map(|gateway| self.leases.state_of(gateway, now));
                    let dead = state.is_none_or(|(is_free, epoch)| is_free || epoch > row.lease_epoch);
                    must("only sessions of the dead are reaped", dead, || {
                        format!("{node}: {row:?} at {now}")
                    });
                    fact.connected = false;
                    reaped += 1;
                }
                must("a sweep says what it did", pass.reaped == reaped, || format!("{reaped}, not {pass:?}"));
            }
            _ => {}
        }
        allowed
    }
}

fn is_tried_again(is: &CommandRow, update: &CommandUpdate, now: UnixMillis) -> bool {
    let wait = is.not_before.map_or(0, |due| due.0 - now.0);
    // It grows from attempt to attempt, and has an end.
    let least = 1_000 << (update.attempt.0 - 1).min(8);
    (is.state, is.attempt, is.dispatched) == (Pending, Attempt(update.attempt.0 + 1), false)
        && is.deferred
        && (least..=600_000).contains(&wait)
}

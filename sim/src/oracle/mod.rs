//! An account of the database that the store does not keep itself: what each commit may change, by rule.
//!
//! Owns its own record of leases, sessions and rows, made of jobs and outcomes alone. It is asked after each
//! commit, compares what changed with what delivery allows, and changes nothing. The store may be wrong
//! here as well as whoever asked it: no rule of the store is used to judge it.
//!
//! 1. A job that failed or found the lease gone changed nothing.
//! 2. Routing commits only under the lease as this account has it (`leases`).
//! 3. A row changes only by what may change it: `routing` for Hellos and dispatch, `updates` for reports and
//!    sweeps. Journals only grow; statuses and sections come from what was sent (`told`).
//! 4. Each answer says what is stored.

mod identities;
mod leases;
mod routing;
mod shape;
mod told;
mod updates;

use std::collections::{BTreeMap, BTreeSet};

use gateway_core::command::CommandState;
use gateway_core::duplicate::DuplicateRule;
use gateway_core::ids::{Attempt, CommandId, GatewayId, NodeId, SessionEpoch};
use gateway_core::store::{Job, Outcome, PresenceEntry, Routed};
use gateway_core::time::UnixMillis;

use crate::check::{broken, must};
use crate::store::{CommandRow, Store};

use identities::Identities;
use leases::Leases;
pub(crate) use shape::check_shape;

/// What counts of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    state: CommandState,
    attempt: Attempt,
    dispatched: bool,
    deferred: bool,
    not_before: Option<UnixMillis>,
    cancel_requested: bool,
}

impl Row {
    const fn of(row: &CommandRow) -> Self {
        Self {
            state: row.state,
            attempt: row.attempt,
            dispatched: row.dispatched,
            deferred: row.deferred,
            not_before: row.not_before,
            cancel_requested: row.cancel_requested,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct SessionFact {
    gateway: Option<GatewayId>,
    epoch: SessionEpoch,
    connected: bool,
}

/// What was reported and is stored.
type Reported = (NodeId, CommandId, Attempt, CommandState);

/// The account.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    leases: Leases,
    sessions: BTreeMap<NodeId, SessionFact>,
    rows: BTreeMap<CommandId, Row>,
    /// The latest that the clock ever said: what was too late once may be passed over for good.
    latest: UnixMillis,
    reported: BTreeSet<Reported>,
    reports: Vec<(CommandState, CommandState)>,
    /// Attempts that a pass, a Hello or a reading gave to a session.
    given: BTreeSet<(CommandId, Attempt)>,
    /// Commands whose mark a crash of the database took, once at least.
    marks_lost: BTreeSet<CommandId>,
    /// Commands that nobody had been sent when a report on them was stored: whoever asks for their lane may not
    /// have heard of that.
    foretold: BTreeSet<CommandId>,
    identities: Identities,
    /// Rows of each journal that were looked at.
    journals: BTreeMap<(NodeId, gateway_core::ids::JournalId), usize>,
}

impl Oracle {
    /// Of a database that quarantines certificates by this rule.
    pub(crate) fn with_duplicates(rule: DuplicateRule) -> Self {
        Self { identities: Identities::new(rule), ..Self::default() }
    }

    /// Clients changed something: rows may be new, pending or canceled.
    pub(crate) fn handle_clients(&mut self, store: &Store) {
        for (id, row) in store.commands() {
            let now = Row::of(row);
            let before = self.rows.insert(*id, now);
            let allowed = match before {
                None => now.state == CommandState::Pending && now.attempt == Attempt(1) && !now.dispatched,
                Some(before) => {
                    let ends = before.state == CommandState::Pending && now.state == CommandState::Canceled;
                    let asked = Row { cancel_requested: now.cancel_requested, ..before };
                    now == asked || (ends && now.cancel_requested && now == Row { state: now.state, ..asked })
                }
            };
            must("a client changes only what it may", allowed, || format!("{id}: {before:?} to {now:?}"));
        }
    }

    /// A crash of the database took the marks of dispatches that did not wait for the disk.
    pub(crate) fn handle_marks_lost(&mut self, lost: &[(CommandId, Attempt)], store: &Store) {
        self.marks_lost.extend(lost.iter().map(|(id, _)| *id));
        self.rows = store.commands().iter().map(|(id, row)| (*id, Row::of(row))).collect();
    }

    /// The store carried the job out, or says why not.
    pub(crate) fn handle_commit(&mut self, job: &Job, outcome: &Outcome, store: &Store, now: UnixMillis) {
        self.latest = self.latest.max(now);
        let before = std::mem::take(&mut self.rows);
        self.rows = store.commands().iter().map(|(id, row)| (*id, Row::of(row))).collect();
        let changed: Vec<(CommandId, Row, Row)> = self
            .rows
            .iter()
            .filter_map(|(id, row)| Some((*id, *before.get(id)?, *row)))
            .filter(|(_, before, after)| before != after)
            .collect();
        must("no row appears or vanishes in a commit", before.len() == self.rows.len(), || {
            format!("{job:?}")
        });
        let mut allowed = BTreeSet::new();
        match (job, outcome) {
            (Job::Lease(job), Outcome::Lease(Ok(outcome))) => self.leases.handle_lease(job, outcome, now),
            (Job::Hellos { proof, entries }, Outcome::Hellos(Ok(Routed::Committed(outcomes)))) => {
                self.leases.check_proof(proof, now, "Hellos");
                allowed = self.judge_hellos(proof, entries, outcomes, &before, store, now);
            }
            (Job::Dispatch { proof, wants }, Outcome::Dispatch(Ok(Routed::Committed(claims)))) => {
                self.leases.check_proof(proof, now, "dispatch");
                allowed = self.judge_claims(proof, wants, claims, &before, store, now);
            }
            (Job::ReadLanes { proof, lanes }, Outcome::LanesRead(Ok(Routed::Committed(states)))) => {
                self.leases.check_proof(proof, now, "a reading of lanes");
                allowed = self.judge_readings(proof, lanes, states, &before, store);
            }
            (Job::Updates { entries }, Outcome::Updates(Ok(outcomes))) => {
                allowed = self.judge_updates(entries, outcomes, &before, store, now);
            }
            (Job::Sweep(job), Outcome::Sweep(Ok(outcome))) => {
                allowed = self.judge_sweep(job, outcome, &changed, store, now);
            }
            (Job::Presence { gateway, entries }, Outcome::Presence(Ok(_))) => {
                self.take_disconnects(gateway, entries);
            }
            (Job::Events { entries }, Outcome::Events(Ok(outcomes))) => {
                self.judge_events(entries, outcomes, store);
            }
            (Job::Statuses { entries }, Outcome::Statuses(Ok(_))) => self.judge_statuses(entries, store),
            (Job::Inventory { entries, .. }, Outcome::Inventory(Ok(outcomes))) => {
                self.judge_inventory(entries, outcomes, store);
            }
            (Job::SpecsDue { gateway, looks, .. }, Outcome::SpecsDue(Ok(found))) => {
                self.judge_found(gateway, looks, found, store);
            }
            (Job::SpecsApplied { entries }, Outcome::SpecsApplied(Ok(outcomes))) => {
                self.judge_spec_answers(entries, outcomes, store);
            }
            _ => {}
        }
        for (id, before, after) in &changed {
            must("a row changes only by what may change it", allowed.contains(id), || {
                format!("{id}: {before:?} to {after:?} by {job:?} with {outcome:?}")
            });
        }
        self.check_sessions(job, store);
    }

    /// What was reported, and then acked, is stored.
    pub(crate) fn check_ack(&self, node: &NodeId, id: CommandId, attempt: Attempt, state: CommandState) {
        let is_stored = self.reported.contains(&(node.clone(), id, attempt, state));
        must("no ack before its commit", is_stored, || format!("{id}, attempt {attempt}, {state} of {node}"));
    }

    /// Updates of stored rows since the last call: what was stored and what was reported.
    pub(crate) fn take_reports(&mut self) -> Vec<(CommandState, CommandState)> {
        std::mem::take(&mut self.reports)
    }

    /// Whether a report on the command was stored.
    pub(crate) fn was_reported(&self, id: CommandId) -> bool {
        self.reported.iter().any(|(_, of, ..)| *of == id)
    }

    /// Whether the attempt was given to a session of its node.
    pub(crate) fn was_given(&self, id: CommandId, attempt: Attempt) -> bool {
        self.given.contains(&(id, attempt))
    }

    fn take_disconnects(&mut self, gateway: &GatewayId, entries: &[PresenceEntry]) {
        for entry in entries {
            let PresenceEntry::Disconnected { node, epoch, .. } = entry else { continue };
            let Some(fact) = self.sessions.get_mut(node) else { continue };
            if fact.epoch == *epoch && fact.gateway.as_ref() == Some(gateway) {
                fact.connected = false;
            }
        }
    }

    /// The sessions of the store are those of this account.
    fn check_sessions(&self, job: &Job, store: &Store) {
        let none = SessionFact::default();
        for (node, row) in store.sessions() {
            let fact = self.sessions.get(node).unwrap_or(&none);
            let same =
                (fact.epoch, fact.connected, &fact.gateway) == (row.epoch, row.connected, &row.gateway);
            if !same {
                broken(
                    "a session changes only by its Hello, its end or a sweep",
                    &format!("{node}: {row:?}, not {fact:?}, by {job:?}"),
                );
            }
        }
    }
}

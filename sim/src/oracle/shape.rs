//! What a job may ask of a database at once.
//!
//! Looks at a job as the writer gives it, before any store sees it. Knows the bounds, and no machine.
//!
//! 1. A batch has at most `batch_entries` entries and `MAX_SAVEPOINTS` savepoints (or one entry).
//! 2. No two entries of a batch depend on each other: one Hello of a node, one status of an id, one body of a
//!    section, one answer of a spec; of a command one update, or more of one attempt that lead on: accepted,
//!    running, an end, each once and in this order, and none but the last says more.
//! 3. A pass asks for no lane twice and for no credit that the lane has not.

use std::collections::{BTreeMap, BTreeSet};

use gateway_core::hooks::HookedKinds;
use gateway_core::ids::CommandId;
use gateway_core::limits::{Limits, MAX_CLAIMS_PER_PASS, MAX_SAVEPOINTS};
use gateway_core::seam::UpdateRequest;
use gateway_core::store::{InventoryEntry, Job, PresenceEntry};

use crate::check::must;

use gateway_core::command::CommandState::{Accepted, Failed, Running, Succeeded};

/// Checks a job that the writer gave.
pub(crate) fn check_shape(job: &Job, limits: &Limits, hooked: &HookedKinds) {
    let entries = match job {
        Job::Hellos { entries, .. } => {
            alone(job, entries.iter().map(|entry| entry.identity.node.clone()));
            entries.len()
        }
        Job::Updates { entries } => {
            let mut last: BTreeMap<CommandId, &UpdateRequest> = BTreeMap::new();
            for entry in entries {
                let before = last.insert(entry.update.id, entry);
                let joins = before.is_none_or(|before| before.node == entry.node && leads(before, entry));
                must("what excludes each other shares no batch", joins, || format!("{job:?}"));
            }
            entries.len()
        }
        Job::Statuses { entries } => {
            alone(job, entries.iter().map(|entry| (entry.node.clone(), entry.status.id.clone())));
            savepoints(job, entries.iter().map(|entry| hooked.of_status(&entry.status.kind)));
            entries.len()
        }
        Job::Events { entries } => {
            savepoints(job, entries.iter().map(|entry| hooked.of_events(&entry.batch)));
            entries.len()
        }
        Job::Inventory { entries, .. } => {
            let sections = entries.iter().filter_map(|entry| match entry {
                InventoryEntry::Section(request) => Some((request.node.clone(), request.section.clone())),
                InventoryEntry::Look(_) => None,
            });
            alone(job, sections);
            entries.len()
        }
        Job::SpecsApplied { entries } => {
            alone(job, entries.iter().map(|entry| (entry.node.clone(), entry.name.clone())));
            entries.len()
        }
        Job::Presence { entries, .. } => {
            alone(job, entries.iter().map(PresenceEntry::node));
            entries.len()
        }
        Job::Dispatch { wants, .. } => {
            alone(job, wants.iter().map(|want| (want.node.clone(), want.lane.clone())));
            let free: u64 = wants.iter().map(|want| u64::from(want.free.0)).sum();
            must("a pass claims a bounded number", free <= MAX_CLAIMS_PER_PASS as u64, || format!("{job:?}"));
            for want in wants {
                let within = want.free.0 > 0 && want.in_flight.0 + want.free.0 <= want.capacity.0;
                must("a lane asks for its free credit at most", within, || format!("{want:?}"));
            }
            0
        }
        Job::Lease(_)
        | Job::ReadLanes { .. }
        | Job::Cancels { .. }
        | Job::Sweep(_)
        | Job::Revocations(_)
        | Job::SpecsDue { .. } => 0,
    };
    must("a batch is bounded", entries <= limits.batch_entries, || format!("{entries} entries in {job:?}"));
}

/// Whether an update is no more than a step on the way to the other.
fn leads(before: &UpdateRequest, then: &UpdateRequest) -> bool {
    let (before, then) = (&before.update, &then.update);
    let in_order = match before.state {
        Accepted => matches!(then.state, Running | Succeeded | Failed),
        Running => matches!(then.state, Succeeded | Failed),
        _ => false,
    };
    let says_more = before.progress.is_some() || before.error.is_some() || before.refusal.is_some();
    in_order && !says_more && before.attempt == then.attempt
}

fn alone<T: Ord>(job: &Job, keys: impl Iterator<Item = T>) {
    let mut seen = BTreeSet::new();
    for key in keys {
        must("what excludes each other shares no batch", seen.insert(key), || format!("{job:?}"));
    }
}

fn savepoints(job: &Job, of_each: impl Iterator<Item = usize>) {
    let each: Vec<usize> = of_each.collect();
    let all: usize = each.iter().sum();
    must("a transaction takes few savepoints", all <= MAX_SAVEPOINTS, || format!("{all} in {job:?}"));
}

//! Which kinds of events and statuses have hooks, and how many: all that decisions know of hooks.
//!
//! What a hook is, and what it does, is the store's. A hook costs its transaction a savepoint, and too
//! many of those make a transaction slow for everybody; so a batch is cut by what is counted here.
//!
//! 1. A kind that is not named here has no hook and costs nothing.
//! 2. No kind has more than `MAX_HOOKS_OF_A_KIND`, so an event always fits a transaction.

use std::collections::BTreeMap;

use crate::frame::{Event, EventBatch};
use crate::limits::MAX_HOOKS_OF_A_KIND;

/// Kinds with hooks, each with how many it has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HookedKinds {
    events: BTreeMap<String, usize>,
    statuses: BTreeMap<String, usize>,
}

impl HookedKinds {
    /// What is hooked, as kinds and how many hooks each has.
    pub fn new(
        events: impl IntoIterator<Item = (String, usize)>,
        statuses: impl IntoIterator<Item = (String, usize)>,
    ) -> Self {
        let kinds = Self { events: events.into_iter().collect(), statuses: statuses.into_iter().collect() };
        let most = kinds.events.values().chain(kinds.statuses.values()).max().copied().unwrap_or(0);
        assert!(most <= MAX_HOOKS_OF_A_KIND, "hooks 2: a kind has {most} hooks");
        kinds
    }

    /// How many hooks run when this event is stored. A tombstone is no report.
    pub fn of_event(&self, event: &Event) -> usize {
        if event.refused.is_some() {
            return 0;
        }
        self.events.get(&event.kind).copied().unwrap_or(0)
    }

    /// How many hooks run when all of a run is stored.
    pub fn of_events(&self, batch: &EventBatch) -> usize {
        if self.events.is_empty() {
            return 0;
        }
        batch.events.iter().map(|event| self.of_event(event)).sum()
    }

    /// How many handlers a status of this kind has.
    pub fn of_status(&self, kind: &str) -> usize {
        self.statuses.get(kind).copied().unwrap_or(0)
    }
}

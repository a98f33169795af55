//! Hooks: what runs when an event or a status of a kind is stored, in the transaction that stores it.
//!
//! Owns the set of them: SQL functions by name, and implementations of an embedder. Never runs one: that is
//! `jobs::hooks`. Whether the functions are there is asked at the start, in `check`.
//!
//! 1. A hook runs once for what is stored once, and its effect commits with it or not at all.
//! 2. A hook that fails takes back what it did, is published in `outbox` as `node.report-failed`, and holds
//!    up nothing else.
//! 3. A kind has at most `MAX_HOOKS_OF_A_KIND` hooks, of both sorts together.

mod check;
mod embedded;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gateway_core::hooks::HookedKinds;
use gateway_core::limits::MAX_HOOKS_OF_A_KIND;
use gateway_core::store::Job;

pub use check::HooksError;
pub(crate) use check::check_hooks;
pub use embedded::{
    EmbeddedHooks, HookError, HookFuture, HookTransaction, Report, ReportHook, StatusHook, StatusReport,
};

/// The SQL functions that come with the schema, and what each is for.
const BUILT_IN_REPORTS: [(&str, &str); 2] =
    [("allocation.released", "on_allocation_released"), ("allocation.failed", "on_allocation_failed")];
const BOUND: &str = "allocation.bound";
const ON_BOUND: &str = "on_allocation_bound";
const ON_BOUND_ATTESTED: &str = "on_allocation_bound_attested";
const BUILT_IN_STATUSES: [(&str, &str); 1] = [("gpu.xid", "on_gpu_xid")];

/// Kinds, each with the SQL functions that run for it, in order.
type Functions = BTreeMap<String, Vec<SqlFunction>>;

/// A SQL function, by a name with schema or without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SqlFunction {
    pub(crate) name: String,
    pub(crate) is_built_in: bool,
}

/// All hooks of a gateway.
#[derive(Debug, Clone, Default)]
pub struct Hooks {
    timeout: Duration,
    reports: Functions,
    statuses: Functions,
    embedded: EmbeddedHooks,
}

impl Hooks {
    /// No hooks yet. A hook may take `timeout`, and is ended after at most twice as long.
    pub fn new(timeout: Duration, embedded: EmbeddedHooks) -> Self {
        Self { timeout, embedded, ..Self::default() }
    }

    /// Adds those that come with the schema. With `attested_bindings` an allocation that was reported bound
    /// waits for a worker to verify what the node signed.
    pub fn add_built_in(&mut self, attested_bindings: bool) {
        let bound = if attested_bindings { ON_BOUND_ATTESTED } else { ON_BOUND };
        for (kind, name) in [(BOUND, bound)].into_iter().chain(BUILT_IN_REPORTS) {
            add(&mut self.reports, kind, name, true);
        }
        for (kind, name) in BUILT_IN_STATUSES {
            add(&mut self.statuses, kind, name, true);
        }
    }

    /// Adds a SQL function for events of a kind.
    pub fn add_report_function(&mut self, kind: &str, name: &str) {
        add(&mut self.reports, kind, name, false);
    }

    /// Adds a SQL function for statuses of a kind.
    pub fn add_status_function(&mut self, kind: &str, name: &str) {
        add(&mut self.statuses, kind, name, false);
    }

    /// Whether every kind has few enough; `Err` is the sentence that says which has not.
    pub fn check_counts(&self) -> Result<(), String> {
        let (events, statuses) = self.counts();
        let of = |what, counts: BTreeMap<String, usize>| counts.into_iter().map(move |count| (what, count));
        match of("event", events)
            .chain(of("status", statuses))
            .find(|(_, (_, count))| *count > MAX_HOOKS_OF_A_KIND)
        {
            Some((what, (kind, count))) => Err(format!(
                "{what} kind {kind:?} has {count} hooks; at most {MAX_HOOKS_OF_A_KIND} are allowed for a kind"
            )),
            None => Ok(()),
        }
    }

    /// What the writer's machine must know: see `check_counts` first.
    pub fn kinds(&self) -> HookedKinds {
        let (events, statuses) = self.counts();
        HookedKinds::new(events, statuses)
    }

    fn counts(&self) -> (BTreeMap<String, usize>, BTreeMap<String, usize>) {
        fn count<T>(into: &mut BTreeMap<String, usize>, hooks: &BTreeMap<String, Vec<T>>) {
            for (kind, hooks) in hooks {
                *into.entry(kind.clone()).or_default() += hooks.len();
            }
        }
        let (mut events, mut statuses) = (BTreeMap::new(), BTreeMap::new());
        count(&mut events, &self.reports);
        count(&mut events, &self.embedded.reports);
        count(&mut statuses, &self.statuses);
        count(&mut statuses, &self.embedded.statuses);
        (events, statuses)
    }

    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn report_functions(&self, kind: &str) -> &[SqlFunction] {
        self.reports.get(kind).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn status_functions(&self, kind: &str) -> &[SqlFunction] {
        self.statuses.get(kind).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn embedded_reports(&self, kind: &str) -> &[Arc<dyn ReportHook>] {
        self.embedded.reports.get(kind).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn embedded_statuses(&self, kind: &str) -> &[Arc<dyn StatusHook>] {
        self.embedded.statuses.get(kind).map_or(&[], Vec::as_slice)
    }

    /// How long the hooks of a job may take, together.
    pub(crate) fn patience(&self, job: &Job) -> Duration {
        let of_event = |kind: &str| self.report_functions(kind).len() + self.embedded_reports(kind).len();
        let of_status = |kind: &str| self.status_functions(kind).len() + self.embedded_statuses(kind).len();
        let slots: usize = match job {
            Job::Events { entries } => {
                let events = entries.iter().flat_map(|entry| &entry.batch.events);
                events.filter(|event| event.refused.is_none()).map(|event| of_event(&event.kind)).sum()
            }
            Job::Statuses { entries } => entries.iter().map(|entry| of_status(&entry.status.kind)).sum(),
            _ => 0,
        };
        self.timeout.saturating_mul(2).saturating_mul(u32::try_from(slots).unwrap_or(u32::MAX))
    }
}

fn add(functions: &mut Functions, kind: &str, name: &str, is_built_in: bool) {
    let function = SqlFunction { name: name.to_owned(), is_built_in };
    functions.entry(kind.to_owned()).or_default().push(function);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_takes_hooks_of_its_own_beside_the_built_in_and_not_too_many() {
        let mut hooks = Hooks::new(Duration::from_secs(1), EmbeddedHooks::default());
        hooks.add_built_in(true);
        hooks.add_report_function(BOUND, "acme.on_bound");
        let names: Vec<&str> = hooks.report_functions(BOUND).iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, [ON_BOUND_ATTESTED, "acme.on_bound"]);
        assert_eq!(hooks.kinds().of_status("gpu.xid"), 1);
        for _ in 0..MAX_HOOKS_OF_A_KIND {
            hooks.add_status_function("gpu.xid", "acme.page");
        }
        let sentence = hooks.check_counts().expect_err("one too many");
        assert_eq!(sentence, "status kind \"gpu.xid\" has 17 hooks; at most 16 are allowed for a kind");
    }
}

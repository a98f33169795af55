//! What a batch of statuses does, and what hooks do with what is stored: by rule.
//!
//! A hook of the model has a name and either works or fails; what it worked on, and what it failed on, is
//! kept. What a real one does with its transaction is PostgreSQL's.
//!
//! 1. A status is stored once for each id of its node; the first counts.
//! 2. A hook runs once for what is stored. One that fails leaves its name, and nothing else.

use std::collections::BTreeMap;

use bytes::Bytes;
use gateway_core::hooks::HookedKinds;
use gateway_core::ids::NodeId;
use gateway_core::seam::StatusRequest;
use gateway_core::store::{Outcome, StatusOutcome, StoreError};

use super::Store;

/// A row of `node_statuses`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusRow {
    pub kind: String,
    pub body: Bytes,
    pub boot_id: String,
}

/// The hooks of each kind, of events and of statuses alike, and what came of them.
#[derive(Debug, Default)]
pub struct HookRules {
    /// Each hook by name, and whether it fails.
    rules: BTreeMap<String, Vec<(String, bool)>>,
    /// How often a hook worked on a subject, or failed: hook and subject.
    worked: BTreeMap<(String, String), u32>,
    failed: BTreeMap<(String, String), u32>,
}

impl HookRules {
    /// Adds a hook for a kind.
    pub fn add(&mut self, kind: &str, hook: &str, fails: bool) {
        self.rules.entry(kind.to_owned()).or_default().push((hook.to_owned(), fails));
    }

    /// What a writer knows of them.
    pub fn kinds(&self) -> HookedKinds {
        let counts = || self.rules.iter().map(|(kind, hooks)| (kind.clone(), hooks.len()));
        HookedKinds::new(counts(), counts())
    }

    /// On what hooks worked, and how often.
    pub fn worked(&self) -> &BTreeMap<(String, String), u32> {
        &self.worked
    }

    /// On what hooks failed, and how often.
    pub fn failed(&self) -> &BTreeMap<(String, String), u32> {
        &self.failed
    }

    pub(super) fn run(&mut self, kind: &str, subject: &str) {
        for (hook, fails) in self.rules.get(kind).into_iter().flatten() {
            let came = if *fails { &mut self.failed } else { &mut self.worked };
            *came.entry((hook.clone(), subject.to_owned())).or_default() += 1;
        }
    }
}

impl Store {
    pub(super) fn store_statuses(&mut self, entries: &[StatusRequest]) -> Outcome {
        if entries.iter().any(|entry| Some(entry.status.kind.as_str()) == self.poison.as_deref()) {
            return Outcome::Statuses(Err(StoreError::Rejected("the status's kind is poisoned".into())));
        }
        Outcome::Statuses(Ok(entries.iter().map(|entry| self.store_status(entry)).collect()))
    }

    fn store_status(&mut self, entry: &StatusRequest) -> StatusOutcome {
        let StatusRequest { node, boot_id, status, .. } = entry;
        let key = (node.clone(), status.id.clone());
        let is_new = !self.statuses.contains_key(&key);
        if is_new {
            let (kind, body) = (status.kind.clone(), status.body.clone());
            self.statuses.insert(key, StatusRow { kind, body, boot_id: boot_id.to_string() });
            self.hooks.run(&status.kind, &format!("{node} {}", status.id));
        }
        StatusOutcome { is_new }
    }

    /// Every status, by node and id.
    pub fn statuses(&self) -> &BTreeMap<(NodeId, String), StatusRow> {
        &self.statuses
    }

    /// The hooks, and what came of them.
    pub fn hooks(&self) -> &HookRules {
        &self.hooks
    }
}

//! What a job of the inventory does: sections replace each other, lists are compared.
//!
//! 1. A section remembers the session that brought it; what an older session sent is not stored over it.
//! 2. What is stored already changes nothing. What changes enqueues work, once for each node.

use bytes::Bytes;
use gateway_core::ids::{NodeId, SectionName, SessionEpoch};
use gateway_core::inventory::{BodyHash, SectionHash};
use gateway_core::seam::SectionRequest;
use gateway_core::store::{InventoryEntry, InventoryOutcome, Outcome, StoreError};

use super::Store;

/// A row of `inventory_sections`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SectionRow {
    pub hash: BodyHash,
    pub body: Bytes,
    pub epoch: SessionEpoch,
}

impl Store {
    pub(super) fn inventory(&mut self, entries: &[InventoryEntry], most: usize) -> Outcome {
        let poison = self.poison.as_deref().map(str::as_bytes);
        let is_bad = |entry: &InventoryEntry| match entry {
            InventoryEntry::Section(request) => Some(request.body.as_ref()) == poison,
            InventoryEntry::Look(_) => false,
        };
        if entries.iter().any(is_bad) {
            return Outcome::Inventory(Err(StoreError::Rejected("the section's body is poisoned".into())));
        }
        let mut outcomes = vec![InventoryOutcome::Stored; entries.len()];
        // The looks see the sections of their own batch.
        for (entry, outcome) in entries.iter().zip(&mut outcomes) {
            if let InventoryEntry::Section(request) = entry {
                *outcome = self.store_section(request, most);
            }
        }
        for (entry, outcome) in entries.iter().zip(&mut outcomes) {
            if let InventoryEntry::Look(request) = entry {
                *outcome = InventoryOutcome::Wanted(self.wanted(&request.node, &request.list));
            }
        }
        Outcome::Inventory(Ok(outcomes))
    }

    fn store_section(&mut self, request: &SectionRequest, most: usize) -> InventoryOutcome {
        let Some(session) = self.sessions.get(&request.node) else { return InventoryOutcome::UnknownNode };
        if session.epoch > request.epoch {
            return InventoryOutcome::Superseded;
        }
        let held = self.sections_of(&request.node).count();
        let place = (request.node.clone(), request.section.clone());
        let before = self.sections.get(&place);
        if before.is_none() && held >= most {
            return InventoryOutcome::TooMany;
        }
        if before.is_none_or(|row| row.hash != request.hash) {
            let row = SectionRow { hash: request.hash, body: request.body.clone(), epoch: request.epoch };
            self.sections.insert(place, row);
            self.inventory_work.insert(request.node.clone());
        }
        InventoryOutcome::Stored
    }

    /// What of a node's list is not stored as it stands there.
    pub(super) fn wanted(&self, node: &NodeId, list: &[SectionHash]) -> Vec<SectionName> {
        let is_stored = |entry: &&SectionHash| {
            let row = self.section(node, &entry.section);
            row.is_some_and(|row| row.hash == entry.hash)
        };
        list.iter().filter(|entry| !is_stored(entry)).map(|entry| entry.section.clone()).collect()
    }

    /// A section of a node.
    pub fn section(&self, node: &NodeId, section: &SectionName) -> Option<&SectionRow> {
        self.sections.get(&(node.clone(), section.clone()))
    }

    /// Every section, by node and name.
    pub fn sections(&self) -> impl Iterator<Item = (&NodeId, &SectionName, &SectionRow)> {
        self.sections.iter().map(|((node, section), row)| (node, section, row))
    }

    /// The nodes for which work is enqueued.
    pub fn inventory_work(&self) -> impl Iterator<Item = &NodeId> {
        self.inventory_work.iter()
    }

    fn sections_of(&self, node: &NodeId) -> impl Iterator<Item = &SectionRow> {
        self.sections().filter(move |(of, ..)| *of == node).map(|(.., row)| row)
    }
}

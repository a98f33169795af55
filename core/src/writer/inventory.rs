//! Sections of inventories and looks at them, as entries of a group commit, and what becomes of them.
//!
//! Both are entries of one queue: they share its connection, leave in order of arrival, and one that the
//! database refuses is found like any other.
//!
//! 1. Of one section of a node, at most one is in a batch, and they commit in order of arrival: the later
//!    one wins. What an older session of the node sent is not stored over what a newer one did: the
//!    store sees to that, by epoch.
//! 2. A section is answered once, by its ref. A look that can't be made is answered too: its session may
//!    ask for another.

use std::sync::Arc;

use super::Writer;
use super::batch::Entry;
use crate::ids::{NodeId, SectionName, SessionKey};
use crate::mail::Weigh;
use crate::seam::{LookRequest, SectionRequest, SessionNews};
use crate::store::{InventoryEntry, InventoryOutcome, StoreError};
use crate::time::Moment;

/// What an entry shares a batch with no other of.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Alone {
    Section(NodeId, SectionName),
    Look(SessionKey),
}

impl Entry for InventoryEntry {
    type Exclusive = Alone;

    fn exclusive(&self) -> Alone {
        match self {
            Self::Section(request) => Alone::Section(request.node.clone(), request.section.clone()),
            Self::Look(request) => Alone::Look(request.key),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Section(request) => request.weight_bytes(),
            Self::Look(request) => request.weight_bytes(),
        }
    }

    fn node(&self) -> &NodeId {
        match self {
            Self::Section(request) => &request.node,
            Self::Look(request) => &request.node,
        }
    }
}

impl Writer {
    pub(super) fn take_section(&mut self, request: Arc<SectionRequest>) {
        self.take_inventory(InventoryEntry::Section(request));
    }

    pub(super) fn take_look(&mut self, request: Arc<LookRequest>) {
        self.take_inventory(InventoryEntry::Look(request));
    }

    fn take_inventory(&mut self, entry: InventoryEntry) {
        if self.may_store(entry.bytes()) {
            self.inventory.push(entry);
        }
    }

    /// The fence: what waits is forgotten.
    pub(super) fn forsake_inventory(&mut self) {
        self.released_bytes += self.inventory.forsake().iter().map(Entry::bytes).sum::<usize>();
    }

    pub(super) fn take_inventory_outcomes(&mut self, outcomes: Vec<InventoryOutcome>) {
        let (entries, forsaken) = self.inventory.handle_committed(outcomes.len());
        for (entry, outcome) in entries.into_iter().zip(outcomes) {
            self.released_bytes += entry.bytes();
            if !forsaken {
                self.settle_inventory(&entry, outcome);
            }
        }
    }

    fn settle_inventory(&mut self, entry: &InventoryEntry, outcome: InventoryOutcome) {
        match (entry, outcome) {
            (InventoryEntry::Section(request), InventoryOutcome::Stored) => {
                self.counts.sections_stored += 1;
                self.tell(request.key, SessionNews::SectionStored { frame_ref: request.frame_ref });
            }
            (InventoryEntry::Section(request), InventoryOutcome::UnknownNode) => {
                let message = format!("node {} is not registered any more", request.node);
                self.refuse_section(request, message);
            }
            (InventoryEntry::Section(request), InventoryOutcome::TooMany) => {
                let most = self.config.limits.sections_per_node;
                let message = format!(
                    "the node has {most} sections already (sessions.sections_per_node); an operator removes one \
                     that it has no more with SELECT forget_section('{}', …)",
                    request.node
                );
                self.refuse_section(request, message);
            }
            // As a liveness write that no longer matches.
            (InventoryEntry::Section(request), InventoryOutcome::Superseded) => self.supersede(request.key),
            (InventoryEntry::Look(request), InventoryOutcome::Wanted(wanted)) => {
                self.tell(request.key, SessionNews::InventoryWanted(wanted));
            }
            (entry, outcome) => unreachable!("store 2: {outcome:?} in the slot of {entry:?}"),
        }
    }

    fn refuse_section(&mut self, request: &SectionRequest, message: String) {
        self.counts.sections_refused += 1;
        let frame_ref = request.frame_ref;
        self.tell(request.key, SessionNews::SectionNotStored { frame_ref, message });
    }

    pub(super) fn take_inventory_error(&mut self, error: &StoreError, now: Moment) {
        let setback = self.inventory.handle_failed(error, now);
        match self.settle_setback(setback) {
            None => {}
            Some((InventoryEntry::Section(request), sentence)) => {
                self.refuse_section(&request, sentence);
                self.count_bad_entry(request.key);
            }
            Some((InventoryEntry::Look(request), _)) => {
                self.tell(request.key, SessionNews::InventoryNotLooked);
            }
        }
    }
}

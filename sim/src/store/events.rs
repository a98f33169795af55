//! What a batch of journals' runs does: events are appended while they join on.
//!
//! 1. A journal holds each seq once, from 1 on, without a gap: by construction, as a list.
//! 2. A report is told to each hook of its kind once, when it is stored.
//! 3. Runs of one batch join on to each other, whatever their order; each is answered with the
//!    journal's cursor after all of them. Of an event that several hold, the first one's is stored.

use std::collections::BTreeMap;

use gateway_core::frame::Event;
use gateway_core::ids::{EventSeq, JournalId, NodeId};
use gateway_core::seam::EventsRequest;
use gateway_core::store::{EventsOutcome, Outcome, StoreError};

use super::Store;

/// A row of `events`; its seq is its place in the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRow {
    pub boot_id: String,
    pub event: Event,
}

impl Store {
    pub(super) fn append(&mut self, entries: &[EventsRequest]) -> Outcome {
        let poison = self.poison.as_deref();
        let is_bad = |event: &Event| Some(event.kind.as_str()) == poison;
        if entries.iter().flat_map(|entry| &entry.batch.events).any(is_bad) {
            return Outcome::Events(Err(StoreError::Rejected("the event's kind is poisoned".into())));
        }
        let mut offered: BTreeMap<(NodeId, JournalId), BTreeMap<EventSeq, EventRow>> = BTreeMap::new();
        for EventsRequest { node, batch, .. } in entries {
            let events = offered.entry((node.clone(), batch.journal.clone())).or_default();
            for event in &batch.events {
                let row = || EventRow { boot_id: batch.boot_id.clone(), event: event.clone() };
                events.entry(event.seq).or_insert_with(row);
            }
        }
        for ((node, id), mut events) in offered {
            let journal = self.events.entry((node.clone(), id.clone())).or_default();
            loop {
                let seq = EventSeq(journal.len() as u64 + 1);
                let Some(row) = events.remove(&seq) else { break };
                if row.event.refused.is_none() {
                    self.hooks.run(&row.event.kind, &format!("{node} {id} {seq}"));
                }
                journal.push(row);
            }
        }
        let outcome = |entry: &EventsRequest| EventsOutcome {
            acked: self.journal_acked(&entry.node, &entry.batch.journal),
        };
        Outcome::Events(Ok(entries.iter().map(outcome).collect()))
    }

    /// The highest contiguous seq of a journal; 0 where none is stored.
    pub fn journal_acked(&self, node: &NodeId, journal: &JournalId) -> EventSeq {
        EventSeq(self.journal(node, journal).len() as u64)
    }

    /// How many events are stored, and how many of them are tombstones.
    pub fn count_events(&self) -> (u64, u64) {
        let rows = || self.events.values().flatten();
        let tombstones = rows().filter(|row| row.event.refused.is_some());
        (rows().count() as u64, tombstones.count() as u64)
    }

    /// Every journal with its events.
    pub fn journals(&self) -> impl Iterator<Item = (&(NodeId, JournalId), &[EventRow])> + Clone {
        self.events.iter().map(|(journal, rows)| (journal, rows.as_slice()))
    }

    /// A journal's events, from seq 1 on.
    pub fn journal(&self, node: &NodeId, journal: &JournalId) -> &[EventRow] {
        self.events.get(&(node.clone(), journal.clone())).map_or(&[], Vec::as_slice)
    }
}

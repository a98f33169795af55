//! What nodes told and what is stored of it: journals, statuses, sections, specs.
//!
//! It holds each answer against the rows, and each new row against what was sent. What a node sent against
//! what it meant is held by the world, which knows its nodes.
//!
//! 1. Journals grow at their end alone, by events of the batch, each in its place.
//! 2. The first status of an id stays.
//! 3. A stored section is one that was sent, with the hash of its body.
//! 4. A look finds specs as they are set, for the live session alone; an answer to a later generation stays.

use gateway_core::ids::{GatewayId, Generation};
use gateway_core::inventory::BodyHash;
use gateway_core::seam::{EventsRequest, SpecAnswer, StatusRequest};
use gateway_core::store::{
    EventsOutcome, InventoryEntry, InventoryOutcome, SpecAppliedOutcome, SpecsFound, SpecsLook,
};

use super::Oracle;
use crate::check::must;
use crate::store::Store;

impl Oracle {
    pub(super) fn judge_events(
        &mut self,
        entries: &[EventsRequest],
        outcomes: &[EventsOutcome],
        store: &Store,
    ) {
        for (entry, outcome) in entries.iter().zip(outcomes) {
            let stored = store.journal(&entry.node, &entry.batch.journal);
            must("an ack of events says what is stored", outcome.acked.0 == stored.len() as u64, || {
                format!("{outcome:?} of {} rows", stored.len())
            });
            let key = (entry.node.clone(), entry.batch.journal.clone());
            let known = self.journals.insert(key, stored.len()).unwrap_or(0);
            must("a journal only grows", stored.len() >= known, || format!("{known} to {}", stored.len()));
            for (place, row) in stored.iter().enumerate().skip(known) {
                let is_sent = |entry: &EventsRequest| entry.batch.events.contains(&row.event);
                let right = row.event.seq.0 == place as u64 + 1 && entries.iter().any(is_sent);
                must("an event is stored once, in its place, as it was sent", right, || {
                    format!("{row:?} in place {place}")
                });
            }
        }
    }

    pub(super) fn judge_statuses(&self, entries: &[StatusRequest], store: &Store) {
        for StatusRequest { node, status, .. } in entries {
            let row = store.statuses().get(&(node.clone(), status.id.clone()));
            must("a status that is answered is stored", row.is_some(), || format!("{status:?} of {node}"));
        }
    }

    pub(super) fn judge_inventory(
        &self,
        entries: &[InventoryEntry],
        outcomes: &[InventoryOutcome],
        store: &Store,
    ) {
        for (entry, outcome) in entries.iter().zip(outcomes) {
            match (entry, outcome) {
                (InventoryEntry::Section(request), InventoryOutcome::Stored) => {
                    let row = store.section(&request.node, &request.section);
                    let is_it = row.is_some_and(|row| row.body == request.body && row.hash == request.hash);
                    let hash = BodyHash::of(&request.body) == request.hash;
                    must("a section that is answered is stored, under its own hash", is_it && hash, || {
                        format!("{request:?} as {row:?}")
                    });
                    let epoch = self.sessions.get(&request.node).map(|fact| fact.epoch);
                    must("an older session stores no section", epoch <= Some(request.epoch), || {
                        format!("{request:?} at {epoch:?}")
                    });
                }
                (InventoryEntry::Section(request), InventoryOutcome::Superseded) => {
                    let epoch = self.sessions.get(&request.node).map(|fact| fact.epoch);
                    must("only an older session is superseded", epoch > Some(request.epoch), || {
                        format!("{request:?} at {epoch:?}")
                    });
                }
                (InventoryEntry::Look(request), InventoryOutcome::Wanted(wanted)) => {
                    let differs = |entry: &&gateway_core::inventory::SectionHash| {
                        let row = store.section(&request.node, &entry.section);
                        row.is_none_or(|row| row.hash != entry.hash)
                    };
                    let list: Vec<_> =
                        request.list.iter().filter(differs).map(|entry| &entry.section).collect();
                    let told: Vec<_> = wanted.iter().collect();
                    must("a look finds what is not stored", list == told, || {
                        format!("{told:?}, not {list:?}")
                    });
                }
                _ => {}
            }
        }
    }

    pub(super) fn judge_found(
        &self,
        gateway: &GatewayId,
        looks: &[SpecsLook],
        found: &[SpecsFound],
        store: &Store,
    ) {
        must("an outcome for each entry", looks.len() == found.len(), || format!("{found:?}"));
        for (look, found) in looks.iter().zip(found) {
            let fact = self.sessions.get(&look.node);
            let is_live = fact.is_some_and(|fact| {
                fact.connected && fact.epoch == look.epoch && fact.gateway.as_ref() == Some(gateway)
            });
            must("specs are found for the live session alone", is_live || found.specs.is_empty(), || {
                format!("{look:?}, but {fact:?}")
            });
            for spec in &found.specs {
                let row = store.specs().get(&(look.node.clone(), spec.name.clone()));
                let same = row.is_some_and(|row| row.generation == spec.generation && row.body == spec.body);
                must("a spec is found as it is set", same, || {
                    format!("{} at {}", spec.name, spec.generation)
                });
            }
            let due = store.specs().iter().filter(|((node, name), row)| {
                let has = look.known.iter().find(|known| known.name == *name);
                let is_new = row.generation > has.map_or(Generation(0), |known| known.generation);
                is_live && *node == look.node && is_new && (look.answered_too || !row.is_answered())
            });
            let due = due.count();
            let all = found.specs.len() == due || (found.more && found.specs.len() < due);
            must("a look brings all there is, or says that there is more", all, || {
                format!("{due} for {look:?}")
            });
        }
    }

    pub(super) fn judge_spec_answers(
        &self,
        entries: &[SpecAnswer],
        outcomes: &[SpecAppliedOutcome],
        store: &Store,
    ) {
        for (entry, outcome) in entries.iter().zip(outcomes) {
            let row = store.specs().get(&(entry.node.clone(), entry.name.clone()));
            let answered = row.and_then(|row| row.answer.as_ref());
            let right = match outcome {
                SpecAppliedOutcome::Stored => answered.is_some_and(|(generation, error)| {
                    *generation > entry.generation
                        || (*generation == entry.generation && *error == entry.error)
                }),
                SpecAppliedOutcome::UnknownSpec => row.is_none(),
                SpecAppliedOutcome::UnknownGeneration { current } => {
                    row.is_some_and(|row| row.generation == *current && entry.generation > *current)
                }
            };
            must("an answer to a spec is stored, or a later one is", right, || {
                format!("{entry:?}: {outcome:?}, {answered:?}")
            });
        }
    }
}

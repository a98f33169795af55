//! What shares a batch with what: entries of a node that makes bad ones are nobody else's trouble.
//!
//! Owns an account of whom a writer must suspect, made of jobs and outcomes alone. Changes nothing.
//!
//! 1. Of a node whose entry was refused, what it sends shares no batch with entries of others, until enough of
//!    its own was stored.

use std::collections::BTreeMap;

use gateway_core::ids::NodeId;
use gateway_core::limits::GOOD_ENTRIES_OF_A_SUSPECT;
use gateway_core::store::{InventoryEntry, Job, Queue, StoreError};

use crate::check::must;

/// Of one writer.
#[derive(Debug, Default)]
pub(crate) struct Company {
    /// Nodes whose entry alone was refused, of each queue, and how many of theirs were stored since.
    suspects: BTreeMap<(Queue, NodeId), u32>,
}

impl Company {
    /// A batch that is asked for: who is suspected has no company but others who are.
    pub(crate) fn check(&self, job: &Job) {
        let suspected = |node: &&NodeId| self.suspects.contains_key(&(job.queue(), (*node).clone()));
        let nodes = nodes_of(job);
        let count = nodes.iter().filter(|node| suspected(node)).count();
        must("what a suspect sends is nobody else's trouble", count == 0 || count == nodes.len(), || {
            format!("{job:?}: {:?}", self.suspects)
        });
    }

    /// The writer hears what became of a batch.
    pub(crate) fn handle_outcome(&mut self, job: &Job, error: Option<&StoreError>) {
        match (&nodes_of(job)[..], error) {
            ([alone], Some(StoreError::Rejected(_))) => {
                self.suspects.insert((job.queue(), (*alone).clone()), 0);
            }
            (nodes, None) => {
                for node in nodes {
                    let place = (job.queue(), (*node).clone());
                    if let Some(good) = self.suspects.get_mut(&place) {
                        *good += 1;
                        if *good >= GOOD_ENTRIES_OF_A_SUSPECT {
                            self.suspects.remove(&place);
                        }
                    }
                }
            }
            _ => {}
        }
    }
}

/// Whose the entries are of a group commit that suspects are kept apart in.
fn nodes_of<'a>(job: &'a Job) -> Vec<&'a NodeId> {
    match job {
        Job::Updates { entries } => entries.iter().map(|entry| &entry.node).collect(),
        Job::Events { entries } => entries.iter().map(|entry| &entry.node).collect(),
        Job::Statuses { entries } => entries.iter().map(|entry| &entry.node).collect(),
        Job::SpecsApplied { entries } => entries.iter().map(|entry| &entry.node).collect(),
        Job::Inventory { entries, .. } => {
            let node = |entry: &'a InventoryEntry| match entry {
                InventoryEntry::Section(request) => &request.node,
                InventoryEntry::Look(request) => &request.node,
            };
            entries.iter().map(node).collect()
        }
        _ => Vec::new(),
    }
}

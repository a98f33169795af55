//! Specs: setting them, what is due of them to a session, and what a node's answer does.
//!
//! 1. A generation counts bodies: it rises with each change, and the same body again changes nothing.
//! 2. Room is used up session by session in turn, the specs of each in order of name; the last one may pass it.

use bytes::Bytes;
use gateway_core::frame::Spec;
use gateway_core::ids::{GatewayId, Generation, NodeId, SpecName};
use gateway_core::mail::Weigh;
use gateway_core::seam::SpecAnswer;
use gateway_core::store::{SpecAppliedOutcome, SpecsFound, SpecsLook};

use super::Store;

/// A row of `specs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecRow {
    pub generation: Generation,
    pub body: Bytes,
    /// The generation that was answered last, and why it failed, if it did.
    pub answer: Option<(Generation, Option<String>)>,
}

impl SpecRow {
    /// Whether the node has answered the spec as it is now.
    pub fn is_answered(&self) -> bool {
        self.answer.as_ref().is_some_and(|(generation, _)| *generation == self.generation)
    }
}

impl Store {
    /// `set_spec`. Gives the generation; `None` where the node is not known.
    pub fn set_spec(&mut self, node: &NodeId, name: &SpecName, body: Bytes) -> Option<Generation> {
        if !self.sessions.contains_key(node) {
            return None;
        }
        let fresh = SpecRow { generation: Generation(0), body: Bytes::new(), answer: None };
        let row = self.specs.entry((node.clone(), name.clone())).or_insert(fresh);
        if row.generation.0 == 0 || row.body != body {
            row.generation.0 += 1;
            row.body = body;
        }
        Some(row.generation)
    }

    pub(super) fn specs_due(
        &self,
        gateway: &GatewayId,
        looks: &[SpecsLook],
        at_most_bytes: usize,
    ) -> Vec<SpecsFound> {
        let due: Vec<Vec<Spec>> = looks.iter().map(|look| self.due(gateway, look)).collect();
        let longest = due.iter().map(Vec::len).max().unwrap_or(0);
        let mut found = vec![SpecsFound::default(); looks.len()];
        let mut given = vec![0; looks.len()];
        let mut of_all = 0;
        for place in 0..longest {
            for (slot, look) in looks.iter().enumerate() {
                let Some(spec) = due[slot].get(place) else { continue };
                if given[slot] < look.room && of_all < at_most_bytes {
                    found[slot].specs.push(spec.clone());
                } else {
                    found[slot].more = true;
                }
                // What has no room in its session takes none of the others'.
                of_all += if given[slot] < look.room { spec.weight_bytes() } else { 0 };
                given[slot] += spec.weight_bytes();
            }
        }
        found
    }

    /// In order of name.
    fn due(&self, gateway: &GatewayId, look: &SpecsLook) -> Vec<Spec> {
        let session = self.sessions.get(&look.node);
        let is_live = session.is_some_and(|row| {
            row.connected && row.epoch == look.epoch && row.gateway.as_ref() == Some(gateway)
        });
        let of_node = self.specs.iter().filter(|((node, _), _)| is_live && *node == look.node);
        of_node
            .filter(|((_, name), row)| {
                let known = look.known.iter().find(|known| known.name == *name);
                let has = known.map_or(Generation(0), |known| known.generation);
                row.generation > has && (look.answered_too || !row.is_answered())
            })
            .map(|((_, name), row)| Spec {
                name: name.clone(),
                generation: row.generation,
                body: row.body.clone(),
            })
            .collect()
    }

    pub(super) fn spec_applied(&mut self, entry: &SpecAnswer) -> SpecAppliedOutcome {
        let Some(row) = self.specs.get_mut(&(entry.node.clone(), entry.name.clone())) else {
            return SpecAppliedOutcome::UnknownSpec;
        };
        if entry.generation > row.generation {
            return SpecAppliedOutcome::UnknownGeneration { current: row.generation };
        }
        if row.answer.as_ref().is_none_or(|(answered, _)| entry.generation >= *answered) {
            row.answer = Some((entry.generation, entry.error.clone()));
        }
        SpecAppliedOutcome::Stored
    }
}

//! The specs of a simulated node: what it has applied, and the outcomes that it still owes.
//!
//! 1. Of each name the highest generation counts. One that it has is answered again and not applied again; one
//!    that failed is tried again.
//! 2. An outcome is owed until it is acked; after `Welcome` all that is owed goes again.

use std::collections::{BTreeMap, VecDeque};

use gateway_core::frame::{Spec, SpecApplied, SpecGeneration};
use gateway_core::ids::{FrameRef, Generation, SpecName};

use crate::check::must;
use crate::random::Chance;

#[derive(Debug, Default)]
pub(crate) struct SimSpecs {
    /// What the node runs with.
    pub(crate) applied: BTreeMap<SpecName, Spec>,
    /// What became of the last generation that it was sent.
    outcomes: BTreeMap<SpecName, (Generation, Option<String>)>,
    owed: VecDeque<SpecApplied>,
    /// How many bytes each generation that was set has, which tells its body.
    pub(crate) set: BTreeMap<(SpecName, Generation), usize>,
    sent: usize,
    /// Answers that were acked: checked and taken by the world.
    pub(crate) acked: Vec<SpecApplied>,
}

impl SimSpecs {
    /// A session begins; what the Hello lists.
    pub(crate) fn handle_connected(&mut self) -> Vec<SpecGeneration> {
        self.sent = 0;
        let listed = |spec: &Spec| SpecGeneration { name: spec.name.clone(), generation: spec.generation };
        self.applied.values().map(listed).collect()
    }

    /// The node is installed anew.
    pub(crate) fn forget_all(&mut self) {
        let (acked, set) = (std::mem::take(&mut self.acked), std::mem::take(&mut self.set));
        *self = Self { acked, set, ..Self::default() };
    }

    pub(crate) fn handle_spec(&mut self, spec: Spec, next_ref: &mut u64, chance: &mut Chance) {
        let (name, generation) = (spec.name.clone(), spec.generation);
        let bytes = self.set.get(&(name.clone(), generation));
        must("a node reads a spec as it was set", bytes == Some(&spec.body.len()), || {
            format!("{name} at {generation}: {} bytes, not {bytes:?}", spec.body.len())
        });
        let before = self.outcomes.get(&name).cloned();
        let error = match before {
            Some((known, _)) if known > generation => return,
            Some((known, None)) if known == generation => None,
            _ if chance.percent(20) => Some("no room".to_owned()),
            _ => {
                self.applied.insert(name.clone(), spec);
                None
            }
        };
        self.outcomes.insert(name.clone(), (generation, error.clone()));
        let frame_ref = FrameRef(*next_ref);
        *next_ref += 1;
        self.owed.push_back(SpecApplied { frame_ref, name: name.as_str().to_owned(), generation, error });
    }

    /// Whether the answer was to one of these.
    pub(crate) fn handle_ack(&mut self, frame_ref: FrameRef) -> bool {
        if self.sent == 0 || self.owed.front().is_none_or(|applied| applied.frame_ref != frame_ref) {
            return false;
        }
        self.sent -= 1;
        self.acked.extend(self.owed.pop_front());
        true
    }

    /// What is owed and was not sent in this session.
    pub(crate) fn poll_answers(&mut self) -> Vec<SpecApplied> {
        let answers = self.owed.iter().skip(self.sent).cloned().collect();
        self.sent = self.owed.len();
        answers
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.owed.is_empty()
    }
}

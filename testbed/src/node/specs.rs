//! A node's specs: what it has applied, kept over sessions, and what it has to say of each.
//!
//! Its refs begin with the bits 010: those of events begin with 1, of sections with 011, of statuses with 001.
//!
//! 1. Of each name the highest generation counts. One that it has is answered again, and not applied again.
//! 2. An answer is kept until it is acked or rejected, and sent again in the next session.

use std::collections::{BTreeMap, VecDeque};

use gateway_proto::v1::{Spec, SpecApplied, SpecGeneration};

/// Marks refs of answers about specs.
const REF_BIT: u64 = 1 << 62;

/// The specs of one node.
#[derive(Debug)]
pub(super) struct NodeSpecs {
    applied: BTreeMap<String, u64>,
    owed: VecDeque<SpecApplied>,
    next_ref: u64,
}

impl NodeSpecs {
    pub(super) fn new() -> Self {
        Self { applied: BTreeMap::new(), owed: VecDeque::new(), next_ref: REF_BIT }
    }

    /// What `Hello` lists.
    pub(super) fn listed(&self) -> Vec<SpecGeneration> {
        let listed = |(name, generation): (&String, &u64)| SpecGeneration {
            name: name.clone(),
            generation: *generation,
        };
        self.applied.iter().map(listed).collect()
    }

    /// A spec came. `error` is why it can't be applied, if it can't. Gives the answer, if it needs one.
    pub(super) fn handle_spec(&mut self, spec: &Spec, error: Option<&str>) -> Option<SpecApplied> {
        let has = self.applied.get(&spec.name).copied().unwrap_or(0);
        if spec.generation < has {
            return None;
        }
        let ok = error.is_none() || spec.generation == has;
        if ok {
            self.applied.insert(spec.name.clone(), spec.generation);
        }
        self.next_ref += 1;
        let answer = SpecApplied {
            r#ref: self.next_ref,
            name: spec.name.clone(),
            generation: spec.generation,
            ok,
            error: if ok { String::new() } else { error.unwrap_or_default().to_owned() },
        };
        self.owed.push_back(answer.clone());
        Some(answer)
    }

    /// What was not acked yet, to be sent after `Welcome`.
    pub(super) fn unacked(&self) -> Vec<SpecApplied> {
        self.owed.iter().cloned().collect()
    }

    /// An answer of the gateway came, an ack or not; gives what it was to.
    pub(super) fn handle_answered(&mut self, frame_ref: u64) -> Option<SpecApplied> {
        let place = self.owed.iter().position(|owed| owed.r#ref == frame_ref)?;
        self.owed.remove(place)
    }

    /// Whether a ref is one of an answer about a spec.
    pub(super) const fn is_ref(frame_ref: u64) -> bool {
        frame_ref >> 61 == REF_BIT >> 61
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, generation: u64) -> Spec {
        Spec { name: name.into(), generation, ..Spec::default() }
    }

    #[test]
    fn what_is_applied_is_listed_and_what_is_not_acked_is_said_again() {
        let mut specs = NodeSpecs::new();
        let first = specs.handle_spec(&spec("a", 2), None).expect("an answer");
        assert!(
            first.ok
                && NodeSpecs::is_ref(first.r#ref)
                && !NodeSpecs::is_ref(7)
                && !NodeSpecs::is_ref(1 << 63)
        );
        let failed = specs.handle_spec(&spec("b", 1), Some("no disk")).expect("an answer");
        assert_eq!((failed.ok, failed.error.as_str()), (false, "no disk"));
        assert_eq!(specs.listed(), [SpecGeneration { name: "a".into(), generation: 2 }]);
        assert_eq!(specs.unacked(), [first.clone(), failed]);
        assert_eq!(specs.handle_answered(first.r#ref), Some(first));
        assert_eq!(specs.unacked().len(), 1);
    }

    #[test]
    fn an_older_generation_is_not_applied_and_the_same_one_not_again() {
        let mut specs = NodeSpecs::new();
        specs.handle_spec(&spec("a", 2), None);
        assert_eq!(specs.handle_spec(&spec("a", 1), None), None);
        let again = specs.handle_spec(&spec("a", 2), Some("not asked")).expect("an answer");
        assert!(again.ok, "it has it");
    }
}

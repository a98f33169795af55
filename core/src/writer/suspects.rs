//! Nodes whose entry the database has refused: their entries are batched apart from those of others.
//!
//! Owns who is suspected. Finding the one bad entry in a batch of many costs some twenty statements and
//! as many entries again as the batch has; a node that makes one has most often more of the kind, under
//! this session or its next. So it is found once, and what it sends from then on is nobody else's trouble.
//!
//! 1. Suspicion changes what shares a batch and nothing else: a suspect's good entry is stored all the same.
//! 2. So many good entries in a row end it. Of too many suspects, the one whose last bad entry is the
//!    longest ago is forgotten.

use std::collections::BTreeMap;

use crate::ids::NodeId;
use crate::limits::{GOOD_ENTRIES_OF_A_SUSPECT, MAX_SUSPECTS};

#[derive(Debug)]
struct Record {
    /// Its last bad entry, by its number among all.
    last_bad: u64,
    good_since: u32,
}

#[derive(Debug, Default)]
pub(super) struct Suspects {
    nodes: BTreeMap<NodeId, Record>,
    bad_entries: u64,
}

impl Suspects {
    /// An entry of the node was refused.
    pub(super) fn handle_bad(&mut self, node: &NodeId) {
        self.bad_entries += 1;
        let record = Record { last_bad: self.bad_entries, good_since: 0 };
        self.nodes.insert(node.clone(), record);
    }

    /// An entry of the node was stored. True where that ends the suspicion.
    pub(super) fn handle_good(&mut self, node: &NodeId) -> bool {
        let Some(record) = self.nodes.get_mut(node) else { return false };
        record.good_since += 1;
        let is_over = record.good_since >= GOOD_ENTRIES_OF_A_SUSPECT;
        if is_over {
            self.nodes.remove(node);
        }
        is_over
    }

    /// Forgets the oldest where there are too many; gives it.
    pub(super) fn poll_forgotten(&mut self) -> Option<NodeId> {
        if self.nodes.len() <= MAX_SUSPECTS {
            return None;
        }
        let oldest = self.nodes.iter().min_by_key(|(_, record)| record.last_bad);
        let node = oldest.map(|(node, _)| node.clone())?;
        self.nodes.remove(&node);
        Some(node)
    }

    pub(super) fn has(&self, node: &NodeId) -> bool {
        !self.nodes.is_empty() && self.nodes.contains_key(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::testing::node;

    #[test]
    fn good_entries_in_a_row_end_the_suspicion_and_a_bad_one_between_does_not() {
        let mut suspects = Suspects::default();
        suspects.handle_bad(&node("a"));
        for _ in 1..GOOD_ENTRIES_OF_A_SUSPECT {
            assert!(!suspects.handle_good(&node("a")));
        }
        suspects.handle_bad(&node("a"));
        for _ in 1..GOOD_ENTRIES_OF_A_SUSPECT {
            assert!(!suspects.handle_good(&node("a")));
        }
        assert!(suspects.has(&node("a")));
        assert!(suspects.handle_good(&node("a")));
        assert!(!suspects.has(&node("a")) && !suspects.handle_good(&node("a")));
    }

    #[test]
    fn of_too_many_the_one_that_was_good_for_the_longest_time_is_forgotten() {
        let mut suspects = Suspects::default();
        (0..MAX_SUSPECTS).for_each(|number| suspects.handle_bad(&node(&format!("n{number}"))));
        suspects.handle_bad(&node("n0"));
        assert_eq!(suspects.poll_forgotten(), None);
        suspects.handle_bad(&node("one more"));
        assert_eq!(suspects.poll_forgotten(), Some(node("n1")));
        assert_eq!(suspects.poll_forgotten(), None);
        assert!(suspects.has(&node("n0")) && !suspects.has(&node("n1")));
    }
}

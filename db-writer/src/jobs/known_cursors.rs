//! Cursors of journals as this gateway last stored or read them, so that a flush need not read them again.
//!
//! A cursor never falls, whoever stores and whatever is removed, so what is known here is never above the
//! database's: a run that joins on to it joins on, and what is at or below it is stored. It may be below, where
//! another gateway has stored for the node meanwhile; then the insert meets the key of events and the cursors
//! are read after all.
//!
//! 1. Nothing is known of a journal whose flush failed in any way: the database may be another one.
//! 2. Of a node `MAX_OF_A_NODE` journals are known, of all nodes' `MAX_NODES`; who is forgotten is read again.

use std::collections::HashMap;

use gateway_core::ids::{EventSeq, JournalId, NodeId};

const MAX_OF_A_NODE: usize = 2;
/// More than the sessions of a gateway by default.
const MAX_NODES: usize = 16_384;

#[derive(Debug, Default)]
pub(super) struct KnownCursors {
    /// The journal that was heard of last is the last.
    nodes: HashMap<NodeId, Vec<(JournalId, EventSeq)>>,
}

impl KnownCursors {
    /// A journal's cursor is this, or higher.
    pub(super) fn handle_cursor(&mut self, node: &NodeId, journal: &JournalId, cursor: EventSeq) {
        if self.nodes.len() >= MAX_NODES && !self.nodes.contains_key(node) {
            self.nodes.clear();
        }
        let journals = match self.nodes.get_mut(node) {
            Some(journals) => journals,
            None => self.nodes.entry(node.clone()).or_default(),
        };
        match journals.iter_mut().find(|(known, _)| known == journal) {
            Some((_, known)) => *known = cursor.max(*known),
            None => {
                if journals.len() == MAX_OF_A_NODE {
                    journals.remove(0);
                }
                journals.push((journal.clone(), cursor));
            }
        }
    }

    /// Nothing that was known is relied on any more.
    pub(super) fn forget_all(&mut self) {
        self.nodes.clear();
    }

    pub(super) fn get(&self, node: &NodeId, journal: &JournalId) -> Option<EventSeq> {
        let journals = self.nodes.get(node)?;
        journals.iter().find(|(known, _)| known == journal).map(|(_, cursor)| *cursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId::new(name).expect("a node id")
    }

    fn journal(name: &str) -> JournalId {
        JournalId::new(name).expect("a journal id")
    }

    #[test]
    fn a_cursor_only_rises_and_a_third_journal_takes_the_place_of_the_first() {
        let mut known = KnownCursors::default();
        known.handle_cursor(&node("n"), &journal("a"), EventSeq(7));
        known.handle_cursor(&node("n"), &journal("a"), EventSeq(5));
        known.handle_cursor(&node("n"), &journal("b"), EventSeq(1));
        assert_eq!(known.get(&node("n"), &journal("a")), Some(EventSeq(7)));
        known.handle_cursor(&node("n"), &journal("c"), EventSeq(2));
        assert_eq!(known.get(&node("n"), &journal("a")), None);
        assert_eq!(known.get(&node("m"), &journal("b")), None);
        known.forget_all();
        assert_eq!(known.get(&node("n"), &journal("c")), None);
    }

    #[test]
    fn what_is_known_stays_bounded() {
        let mut known = KnownCursors::default();
        for number in 0..=MAX_NODES {
            known.handle_cursor(&node(&format!("n{number}")), &journal("j"), EventSeq(1));
        }
        assert_eq!(known.nodes.len(), 1);
    }
}

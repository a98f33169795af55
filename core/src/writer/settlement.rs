//! Stored updates that overtake a snapshot.
//!
//! Queues commit and answer independently, so a Hello or a reading of lanes may have looked at rows
//! before an update changed them, and be heard of after it. What was stored meanwhile is kept here,
//! and applied on top of the older snapshot. Owns that, and nothing else.
//!
//! 1. Of a command of a node only the last stored state of its latest attempt counts: updates are heard of in the
//!    order of commits, and what is said late of an older attempt is no news of a later one. What another node
//!    says of it is nothing of it.
//! 2. What is kept is bounded by the commands in flight when the snapshot's job left.

use std::collections::BTreeMap;

use super::lanes::{LaneId, Ledger};
use crate::command::CommandState;
use crate::ids::{Attempt, CommandId, LaneName, NodeId};

/// What is durable of a command, as an update left or found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settlement {
    pub(super) node: NodeId,
    pub(super) id: CommandId,
    /// The attempt that was reported.
    pub(super) attempt: Attempt,
    pub(super) row: RowState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RowState {
    /// The row is in this state, on this lane.
    In { state: CommandState, lane: LaneName },
    /// The reported attempt is over: the row is at a later one, or gone. Another gateway may have
    /// stored the end of that attempt after this one's Hello had found it in flight.
    Past,
}

impl Settlement {
    /// Enters it into the ledger: a debit (adoption) while in flight, else a credit.
    pub(super) fn apply(&self, lanes: &[LaneId], ledger: &mut Ledger) {
        match &self.row {
            RowState::In { state, lane } if state.is_in_flight() => {
                if let Some(lane) = ledger.find(lanes, lane) {
                    ledger.debit(lane, self.id, self.attempt);
                }
            }
            RowState::In { .. } | RowState::Past => {
                lanes.iter().for_each(|lane| ledger.credit(*lane, self.id, self.attempt));
            }
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Overlap {
    settled: BTreeMap<(NodeId, CommandId), Settlement>,
}

impl Overlap {
    pub(super) fn note(&mut self, settlement: &Settlement) {
        let place = (settlement.node.clone(), settlement.id);
        if self.settled.get(&place).is_none_or(|known| known.attempt <= settlement.attempt) {
            self.settled.insert(place, settlement.clone());
        }
    }

    /// Whether that attempt is known to have left the flight: it ended, or was refused and is to be tried again.
    pub(super) fn is_over(&self, node: &NodeId, id: CommandId, attempt: Attempt) -> bool {
        let settled = self.settled.get(&(node.clone(), id));
        let settled = settled.filter(|settlement| settlement.attempt >= attempt);
        settled.is_some_and(|settlement| match &settlement.row {
            RowState::In { state, .. } => !state.is_in_flight(),
            RowState::Past => true,
        })
    }

    /// Enters what was settled of this node on top of an older snapshot.
    pub(super) fn apply(&self, node: &NodeId, lanes: &[LaneId], ledger: &mut Ledger) {
        for settlement in self.settled.values().filter(|settlement| settlement.node == *node) {
            settlement.apply(lanes, ledger);
        }
    }

    pub(super) fn clear(&mut self) {
        self.settled.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::testing::{command_id, lane, node};

    #[test]
    fn what_is_told_late_of_an_older_attempt_hides_nothing_of_the_later_one() {
        let mut overlap = Overlap::default();
        let settled =
            |attempt, row| Settlement { node: node("a"), id: command_id(7), attempt: Attempt(attempt), row };
        let in_state = |state| RowState::In { state, lane: lane("main") };
        overlap.note(&settled(2, in_state(CommandState::Running)));
        assert!(!overlap.is_over(&node("a"), command_id(7), Attempt(2)));
        overlap.note(&settled(2, in_state(CommandState::Succeeded)));
        overlap.note(&settled(1, RowState::Past));
        assert!(overlap.is_over(&node("a"), command_id(7), Attempt(2)), "it has ended");
        assert!(overlap.is_over(&node("a"), command_id(7), Attempt(1)));
        overlap.note(&settled(3, in_state(CommandState::Accepted)));
        assert!(!overlap.is_over(&node("a"), command_id(7), Attempt(3)));
    }
}

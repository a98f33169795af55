//! Liveness and disconnects on their way to the database.
//!
//! Owns at most one waiting entry a node. Never needs the lease: each entry is fenced by its
//! session epoch, so that one written late changes nothing that is newer. That is why disconnects
//! outlive a fence.
//!
//! 1. Of a node the newest epoch is written; of one epoch, the disconnect.
//! 2. Both kinds are idempotent, and go again after any failure; one that the database refuses for
//!    good is dropped, as the next liveness write or Hello says the same.
//! 3. Liveness is no news: it waits for the next poll and then goes in one batch, so that thousands of
//!    sessions cost a commit a second and not one each. A disconnect leaves at once, and takes along
//!    what waits.
//! 4. Why a session ended is told with a fixed word: the label of its `CloseReason`, or one of the writer's.

use std::collections::HashMap;

use super::batch::{Entry, GroupQueue, Setback, Ticket};
use crate::ids::{NodeId, SessionEpoch};
use crate::limits::Limits;
use crate::store::{PresenceEntry, StoreError};
use crate::time::Moment;

impl PresenceEntry {
    /// The node that the entry is about.
    pub const fn node(&self) -> &NodeId {
        match self {
            Self::Alive { node, .. } | Self::Disconnected { node, .. } => node,
        }
    }

    /// The session that the entry is about.
    pub const fn epoch(&self) -> SessionEpoch {
        match self {
            Self::Alive { epoch, .. } | Self::Disconnected { epoch, .. } => *epoch,
        }
    }
}

impl Entry for PresenceEntry {
    type Exclusive = NodeId;

    fn exclusive(&self) -> NodeId {
        self.node().clone()
    }

    fn bytes(&self) -> usize {
        0
    }

    fn node(&self) -> &NodeId {
        Self::node(self)
    }
}

#[derive(Debug)]
pub(super) struct Presence {
    queue: GroupQueue<PresenceEntry>,
    // Only looked up, never iterated.
    tickets: HashMap<NodeId, Ticket>,
    /// Whether what waits should be written now.
    is_due: bool,
}

impl Presence {
    pub(super) fn new() -> Self {
        Self { queue: GroupQueue::new(), tickets: HashMap::new(), is_due: false }
    }

    pub(super) fn push(&mut self, entry: PresenceEntry) {
        self.is_due |= matches!(entry, PresenceEntry::Disconnected { .. });
        let rank =
            |entry: &PresenceEntry| (entry.epoch(), matches!(entry, PresenceEntry::Disconnected { .. }));
        let waiting = self.tickets.get(entry.node()).copied();
        match waiting.and_then(|ticket| Some((ticket, self.queue.waiting(ticket)?))) {
            Some((_, before)) if rank(before) >= rank(&entry) => {}
            Some((ticket, _)) => self.queue.replace(ticket, entry),
            None => {
                let node = entry.node().clone();
                let ticket = self.queue.push(entry);
                self.tickets.insert(node, ticket);
            }
        }
    }

    /// What waits should be written now: the poll, or the end of the gateway.
    pub(super) fn handle_due(&mut self) {
        self.is_due = self.queue.len() > 0;
    }

    /// The next batch, which is in flight from here on.
    pub(super) fn poll_batch(&mut self, limits: &Limits, now: Moment) -> Option<Vec<PresenceEntry>> {
        if !self.is_due {
            return None;
        }
        let entries = self.queue.poll_batch(limits, now)?;
        self.is_due = self.queue.len() > 0;
        for entry in &entries {
            let ticket = self.tickets.get(entry.node()).copied();
            if ticket.is_some_and(|ticket| self.queue.waiting(ticket).is_none()) {
                self.tickets.remove(entry.node());
            }
        }
        Some(entries)
    }

    /// The batch in flight committed; gives its entries, slot for slot.
    pub(super) fn handle_committed(&mut self, slots: usize) -> Vec<PresenceEntry> {
        self.queue.handle_committed(slots).0
    }

    pub(super) fn handle_failed(&mut self, error: &StoreError, now: Moment) {
        self.is_due = true;
        match self.queue.handle_failed(error, now) {
            Setback::GoesAgain | Setback::Forsaken(_) | Setback::Bad(..) => {}
        }
    }

    /// When a batch that waits for its back-off may start.
    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.queue.next_deadline().filter(|_| self.is_due)
    }

    pub(super) fn queue(&self) -> &GroupQueue<PresenceEntry> {
        &self.queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::testing::{at, node};

    fn alive(name: &str, epoch: u64) -> PresenceEntry {
        PresenceEntry::Alive { node: node(name), epoch: SessionEpoch(epoch) }
    }

    fn disconnected(name: &str, epoch: u64) -> PresenceEntry {
        PresenceEntry::Disconnected { node: node(name), epoch: SessionEpoch(epoch), reason: "peer-gone" }
    }

    #[test]
    fn of_a_node_the_newest_epoch_is_written_and_of_one_epoch_the_disconnect() {
        let mut presence = Presence::new();
        let limits = Limits::default();
        for entry in [alive("a", 1), disconnected("a", 1), alive("a", 1), alive("b", 3), disconnected("b", 2)]
        {
            presence.push(entry);
        }
        let batch = presence.poll_batch(&limits, at(0));
        assert_eq!(batch, Some(vec![disconnected("a", 1), alive("b", 3)]));
        presence.push(alive("a", 2));
        presence.handle_committed(2);
        presence.handle_due();
        assert_eq!(presence.poll_batch(&limits, at(0)), Some(vec![alive("a", 2)]));
    }

    #[test]
    fn liveness_waits_for_the_poll_or_goes_along_with_a_disconnect() {
        let mut presence = Presence::new();
        let limits = Limits::default();
        presence.push(alive("a", 1));
        presence.push(alive("b", 1));
        assert_eq!(presence.poll_batch(&limits, at(0)), None);
        assert_eq!(presence.next_deadline(), None, "nothing is due");
        presence.handle_due();
        assert_eq!(presence.poll_batch(&limits, at(1)), Some(vec![alive("a", 1), alive("b", 1)]));
        presence.handle_committed(2);
        presence.push(alive("a", 1));
        presence.push(disconnected("c", 1));
        assert_eq!(presence.poll_batch(&limits, at(1)), Some(vec![alive("a", 1), disconnected("c", 1)]));
    }
}

//! Hellos on their way to being durable.
//!
//! Owns every Hello from its arrival to its outcome, and what happens to its session meanwhile.
//! Never enters a session anywhere: it says what became of each Hello, and whether anyone is left.
//!
//! 1. At most one Hello of a node is in a batch; those of one node commit in order of arrival.
//! 2. A session that closes while its Hello waits takes it along; while it is in flight, the grant
//!    is answered by a disconnect and never by an entry in the directory.
//! 3. A Hello whose outcome is unknown goes again while its session lives. It may have bumped the
//!    session epoch the first time; the second bump is harmless, because nobody was told the first
//!    epoch, and whatever it fenced is fenced by the second too.
//! 4. What is stored between a Hello's snapshot and its outcome is applied on top.

use std::collections::BTreeMap;

use super::batch::{Entry, GroupQueue, Setback, Ticket};
use super::settlement::{Overlap, Settlement};
use crate::ids::{NodeId, SessionKey};
use crate::limits::Limits;
use crate::mail::Weigh;
use crate::seam::HelloRequest;
use crate::store::StoreError;
use crate::time::Moment;

impl Entry for HelloRequest {
    type Exclusive = NodeId;

    fn exclusive(&self) -> NodeId {
        self.identity.node.clone()
    }

    fn bytes(&self) -> usize {
        self.weight_bytes()
    }

    fn node(&self) -> &NodeId {
        &self.identity.node
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Waiting(Ticket),
    /// In flight, or to go again.
    Taken,
    /// In flight, and its session is over.
    Gone,
}

/// What a session's end meant for its Hello.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HelloClosed {
    /// It was dropped; so many bytes are free.
    Dropped(usize),
    /// It is in flight; its grant will be answered by a disconnect.
    Awaited,
    /// No Hello of that session is on its way.
    Unknown,
}

/// A Hello whose outcome is there.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) request: HelloRequest,
    /// Whether the session still waits for it: it is not closed and no fence came between.
    pub(super) wanted: bool,
    pub(super) overlap: Overlap,
    /// Whether something was enqueued for the node while the Hello was in flight.
    pub(super) poked: bool,
}

/// What happened to a node while its Hello was in flight.
#[derive(Debug, Default)]
struct Meanwhile {
    overlap: Overlap,
    poked: bool,
}

#[derive(Debug)]
pub(super) struct Hellos {
    queue: GroupQueue<HelloRequest>,
    places: BTreeMap<SessionKey, Place>,
    /// Of the nodes in flight.
    meanwhile: BTreeMap<NodeId, Meanwhile>,
}

impl Hellos {
    pub(super) fn new() -> Self {
        Self { queue: GroupQueue::new(), places: BTreeMap::new(), meanwhile: BTreeMap::new() }
    }

    pub(super) fn push(&mut self, request: HelloRequest) {
        let key = request.key;
        let ticket = self.queue.push(request);
        let before = self.places.insert(key, Place::Waiting(ticket));
        assert!(before.is_none(), "a session posts one Hello");
    }

    pub(super) fn handle_closed(&mut self, key: SessionKey) -> HelloClosed {
        let dropped = match self.places.get(&key) {
            None => return HelloClosed::Unknown,
            Some(Place::Waiting(ticket)) => self.queue.withdraw(*ticket),
            Some(Place::Taken | Place::Gone) => self.queue.drop_from_again(|entry| entry.key == key).pop(),
        };
        match dropped {
            Some(request) => {
                self.places.remove(&key);
                HelloClosed::Dropped(request.weight_bytes())
            }
            None => {
                self.places.insert(key, Place::Gone);
                HelloClosed::Awaited
            }
        }
    }

    pub(super) fn handle_settlement(&mut self, settlement: &Settlement) {
        if let Some(meanwhile) = self.meanwhile.get_mut(&settlement.node) {
            meanwhile.overlap.note(settlement);
        }
    }

    /// Something was enqueued; the snapshot in flight may not have seen it.
    pub(super) fn handle_poke(&mut self, node: &NodeId) {
        if let Some(meanwhile) = self.meanwhile.get_mut(node) {
            meanwhile.poked = true;
        }
    }

    /// The next batch, which is in flight from here on.
    pub(super) fn poll_batch(&mut self, limits: &Limits, now: Moment) -> Option<Vec<HelloRequest>> {
        let entries = self.queue.poll_batch(limits, now)?;
        for entry in &entries {
            self.places.insert(entry.key, Place::Taken);
            self.meanwhile.insert(entry.identity.node.clone(), Meanwhile::default());
        }
        Some(entries)
    }

    /// The batch in flight committed; slot for slot.
    pub(super) fn handle_committed(&mut self, slots: usize) -> Vec<Answered> {
        let (entries, forsaken) = self.queue.handle_committed(slots);
        entries.into_iter().map(|request| self.answer(request, forsaken)).collect()
    }

    /// The batch in flight did not commit, or nobody knows. Gives the one that is to blame with its
    /// sentence, and the bytes of those for which nobody waits any more.
    pub(super) fn handle_failed(
        &mut self,
        error: &StoreError,
        now: Moment,
    ) -> (Option<(Answered, String)>, usize) {
        self.meanwhile.clear();
        match self.queue.handle_failed(error, now) {
            Setback::GoesAgain => {
                let places = &self.places;
                let gone = self.queue.drop_from_again(|entry| places.get(&entry.key) == Some(&Place::Gone));
                (None, self.forget(gone))
            }
            Setback::Bad(request, sentence) => (Some((self.answer(request, false), sentence)), 0),
            Setback::Forsaken(requests) => (None, self.forget(requests)),
        }
    }

    /// The batch in flight found the lease gone. Gives whether that counts, and the bytes.
    pub(super) fn handle_lease_lost(&mut self) -> (bool, usize) {
        self.meanwhile.clear();
        let (requests, forsaken) = self.queue.handle_lease_lost();
        (!forsaken, self.forget(requests))
    }

    /// The fence, or the stop: what waits is forgotten, what is in flight is wanted by nobody.
    /// Gives the bytes that are free.
    pub(super) fn forsake(&mut self) -> usize {
        let dropped = self.queue.forsake();
        self.forget(dropped)
    }

    fn forget(&mut self, requests: Vec<HelloRequest>) -> usize {
        for request in &requests {
            self.places.remove(&request.key);
        }
        requests.iter().map(Weigh::weight_bytes).sum()
    }

    fn answer(&mut self, request: HelloRequest, forsaken: bool) -> Answered {
        let gone = self.places.remove(&request.key) == Some(Place::Gone);
        let Meanwhile { overlap, poked } = self.meanwhile.remove(&request.identity.node).unwrap_or_default();
        Answered { request, wanted: !gone && !forsaken, overlap, poked }
    }

    pub(super) fn queue(&self) -> &GroupQueue<HelloRequest> {
        &self.queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::testing::{at, away, hello, key};

    #[test]
    fn a_session_that_closes_takes_its_waiting_hello_along() {
        let mut hellos = Hellos::new();
        let limits = Limits::default();
        hellos.push(hello("a", 1, &[]));
        let weight = hello("a", 1, &[]).weight_bytes();
        assert_eq!(hellos.handle_closed(key(1)), HelloClosed::Dropped(weight));
        assert_eq!(hellos.handle_closed(key(1)), HelloClosed::Unknown);
        assert_eq!(hellos.poll_batch(&limits, at(0)), None);
    }

    #[test]
    fn a_hello_of_a_closed_session_does_not_go_again() {
        let mut hellos = Hellos::new();
        let limits = Limits::default();
        hellos.push(hello("a", 1, &[]));
        hellos.push(hello("b", 2, &[]));
        assert_eq!(hellos.poll_batch(&limits, at(0)).map(|batch| batch.len()), Some(2));
        assert_eq!(hellos.handle_closed(key(1)), HelloClosed::Awaited);
        let (bad, bytes) = hellos.handle_failed(&away(), at(0));
        assert!(bad.is_none());
        assert_eq!(bytes, hello("a", 1, &[]).weight_bytes());
        let weight = hello("b", 2, &[]).weight_bytes();
        assert_eq!(hellos.handle_closed(key(2)), HelloClosed::Dropped(weight));
        assert!(hellos.queue().is_idle());
    }

    #[test]
    fn a_second_hello_of_a_node_waits_for_the_first() {
        let mut hellos = Hellos::new();
        let limits = Limits::default();
        hellos.push(hello("a", 1, &[]));
        hellos.push(hello("a", 2, &[]));
        hellos.push(hello("b", 3, &[]));
        let keys = |batch: Option<Vec<HelloRequest>>| -> Vec<u32> {
            batch.unwrap_or_default().iter().map(|request| request.key.slot).collect()
        };
        assert_eq!(keys(hellos.poll_batch(&limits, at(0))), [1, 3]);
        assert_eq!(hellos.handle_committed(2).len(), 2);
        assert_eq!(keys(hellos.poll_batch(&limits, at(0))), [2]);
    }
}

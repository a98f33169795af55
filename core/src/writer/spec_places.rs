//! What is remembered of sessions for their specs: who stands in line, what was sent, what is on its way.
//!
//! Owns the line and the sums. Never asks a store, and never decides when to look.
//!
//! 1. A session stands in line once. One that has no room steps out of it until something has left.
//! 2. A session of which there is nothing to remember takes no memory.
//! 3. The sum of all that is on its way is that of the places, always.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::frame::{Spec, SpecGeneration};
use crate::ids::{Generation, SessionKey, SpecName};
use crate::mail::Weigh;
use crate::time::Moment;

/// A session that takes nothing for so long does not hold others up.
const SLOW_AFTER: Duration = Duration::from_secs(10);

/// What a session was sent and has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Given {
    generation: Generation,
    /// A sweep has passed since.
    is_old: bool,
}

/// What is remembered of one session.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// What its Hello listed, and what it has answered since, until a look has brought all else.
    pub(super) listed: Option<Vec<SpecGeneration>>,
    given: BTreeMap<SpecName, Given>,
    on_the_way: usize,
    /// When something of it left last, or began to wait.
    moved_at: Moment,
    is_in_line: bool,
    waits_for_room: bool,
}

impl Place {
    /// What the node has, or was sent.
    pub(super) fn known(&self) -> Vec<SpecGeneration> {
        let mut known: BTreeMap<&SpecName, Generation> = BTreeMap::new();
        for spec in self.listed.iter().flatten() {
            known.insert(&spec.name, spec.generation);
        }
        for (name, given) in &self.given {
            let generation = known.entry(name).or_default();
            *generation = given.generation.max(*generation);
        }
        let pair =
            |(name, generation): (&SpecName, Generation)| SpecGeneration { name: name.clone(), generation };
        known.into_iter().map(pair).collect()
    }

    /// What may still go to it, of `room` in all.
    pub(super) fn room(&self, room: usize) -> usize {
        room.saturating_sub(self.on_the_way)
    }

    fn is_empty(&self) -> bool {
        self.listed.is_none()
            && self.given.is_empty()
            && self.on_the_way == 0
            && !self.is_in_line
            && !self.waits_for_room
    }
}

#[derive(Debug, Default)]
pub(super) struct Places {
    places: BTreeMap<SessionKey, Place>,
    line: VecDeque<SessionKey>,
    on_the_way: usize,
}

impl Places {
    pub(super) fn at(&mut self, key: SessionKey) -> &mut Place {
        self.places.entry(key).or_default()
    }

    /// Puts a session at the end of the line.
    pub(super) fn line_up(&mut self, key: SessionKey) {
        let place = self.places.entry(key).or_default();
        place.waits_for_room = false;
        if !std::mem::replace(&mut place.is_in_line, true) {
            self.line.push_back(key);
        }
    }

    /// Puts sessions back that were taken for a look, in their order.
    pub(super) fn return_to_front(&mut self, keys: Vec<SessionKey>) {
        for key in keys.into_iter().rev() {
            let place = self.places.entry(key).or_default();
            if !std::mem::replace(&mut place.is_in_line, true) {
                self.line.push_front(key);
            }
        }
    }

    /// Takes the first session that has room.
    pub(super) fn next_in_line(&mut self, room: usize) -> Option<SessionKey> {
        while let Some(key) = self.line.pop_front() {
            let Some(place) = self.places.get_mut(&key) else { continue };
            // What a removal left behind is passed over.
            if std::mem::take(&mut place.is_in_line) && self.take_for_look(key, room) {
                return Some(key);
            }
        }
        None
    }

    /// Whether a session has room to be looked at; where not, it is when something has left.
    pub(super) fn take_for_look(&mut self, key: SessionKey, room: usize) -> bool {
        let Some(place) = self.places.get_mut(&key) else { return true };
        place.waits_for_room = place.room(room) == 0;
        !place.waits_for_room
    }

    /// These are on their way to the session from here on.
    pub(super) fn note_given(&mut self, key: SessionKey, specs: &[Spec], now: Moment) {
        let place = self.places.entry(key).or_default();
        if place.on_the_way == 0 {
            place.moved_at = now;
        }
        let bytes: usize = specs.iter().map(Weigh::weight_bytes).sum();
        place.on_the_way += bytes;
        self.on_the_way += bytes;
        for spec in specs {
            place.given.insert(spec.name.clone(), Given { generation: spec.generation, is_old: false });
        }
    }

    /// So much has left for the node.
    pub(super) fn note_sent(&mut self, key: SessionKey, bytes: usize, now: Moment) {
        let Some(place) = self.places.get_mut(&key) else { return };
        let bytes = bytes.min(place.on_the_way);
        place.on_the_way -= bytes;
        place.moved_at = now;
        self.on_the_way -= bytes;
        if place.waits_for_room {
            self.line_up(key);
        }
        self.drop_if_empty(key);
    }

    /// The node has answered that generation.
    pub(super) fn note_answered(&mut self, key: SessionKey, name: &SpecName, generation: Generation) {
        let Some(place) = self.places.get_mut(&key) else { return };
        if place.given.get(name).is_some_and(|given| given.generation <= generation) {
            place.given.remove(name);
            // The look of its Hello goes on, and brings what is answered too: this one the node has.
            if let Some(listed) = &mut place.listed {
                listed.retain(|spec| spec.name != *name);
                listed.push(SpecGeneration { name: name.clone(), generation });
            }
        }
        self.drop_if_empty(key);
    }

    /// A sweep comes to the session: what it was sent before the last one, and did not answer, may go again.
    pub(super) fn age(&mut self, key: SessionKey) {
        let Some(place) = self.places.get_mut(&key) else { return };
        place.given.retain(|_, given| !std::mem::replace(&mut given.is_old, true));
        self.drop_if_empty(key);
    }

    pub(super) fn remove(&mut self, key: SessionKey) {
        if let Some(place) = self.places.remove(&key) {
            self.on_the_way -= place.on_the_way;
        }
    }

    pub(super) fn drop_if_empty(&mut self, key: SessionKey) {
        if self.places.get(&key).is_some_and(Place::is_empty) {
            self.places.remove(&key);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    // -- getters ---------------------------------------------------------------------------------

    pub(super) fn get(&self, key: SessionKey) -> Option<&Place> {
        self.places.get(&key)
    }

    /// Sessions that stand in line.
    pub(super) fn in_line(&self) -> usize {
        self.line.len()
    }

    /// The weight of all that is on its way.
    pub(super) fn all_on_the_way(&self) -> usize {
        self.on_the_way
    }

    /// The same without that of sessions that take nothing; looked at closely only from `enough` on.
    pub(super) fn on_the_way(&self, now: Moment, enough: usize) -> usize {
        if self.on_the_way < enough {
            return self.on_the_way;
        }
        let moves = |place: &&Place| now < place.moved_at + SLOW_AFTER;
        self.places.values().filter(moves).map(|place| place.on_the_way).sum()
    }
}

//! The ledger of credits: for every lane of every live session, what is in flight, and whether the
//! lane should be looked at.
//!
//! Owns the lanes and the two lines in which they wait for a dispatch pass. Never asks a store:
//! `dispatch` takes lanes from here and brings back what a pass found.
//!
//! 1. Free credit is capacity minus in flight, and never below zero: a lowered capacity is no
//!    violation, it only lets nothing new in.
//! 2. Only claims debit, only a stored state that is not in flight credits, only what a node was
//!    found to have (adoption) enters otherwise. An older attempt never takes a newer one out.
//! 3. A lane stands in a line exactly while it should be looked at, has free credit, is in no pass,
//!    not frozen and not held back; with the same wish it keeps its place.
//! 4. Who has been served goes to the back: no lane waits for another more than once around.
//! 5. A wish that comes while a pass is out with the lane survives the pass: what was enqueued after
//!    the pass's snapshot is looked at again.
//! 6. A lane whose credit stays spent for long is read anew: its commands may just run that long, or
//!    their end was stored where this writer could not hear it (another gateway, an operator).
//! 7. Nothing here costs more for lanes that are idle; only the poll visits all.

use std::collections::BTreeMap;

use crate::ids::{Attempt, CommandId, Credits, LaneName, LaneSeq, NodeId, SessionEpoch, SessionKey};
use crate::limits::{MAX_LANE_CAPACITY, MAX_PAYLOAD_BYTES};

/// Polls that a lane sits out after a pass with it alone was refused by the database.
const HELD_BACK_POLLS: u8 = 5;

/// Polls after which a lane whose credit is spent and does not move is read anew.
const SPENT_POLLS: u8 = 60;
/// Lanes that are read anew at one poll.
const AUDITS_PER_POLL: usize = 256;

/// A lane of a live session; stale once the session is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LaneId {
    index: u32,
    generation: u32,
}

/// Why a lane should be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Look {
    /// There is no reason.
    Clean,
    /// The poll: there is no sign that anything is due.
    Patrol,
    /// A poke, credit, or a pass that got all it asked for.
    Urgent,
}

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) key: SessionKey,
    pub(super) node: NodeId,
    pub(super) epoch: SessionEpoch,
    pub(super) name: LaneName,
    pub(super) cursor: LaneSeq,
    /// That of the last claim; 0 where the next pass must look for it.
    pub(super) floor: LaneSeq,
    capacity: u32,
    in_flight: BTreeMap<CommandId, Attempt>,
    /// What was sent and not reported on yet, with the bytes of its payload.
    unreported: BTreeMap<CommandId, usize>,
    unreported_bytes: usize,
    read_ahead_bytes: usize,
    look: Look,
    in_pass: bool,
    frozen: bool,
    held_back: u8,
    /// Polls since anything was debited or credited, while no credit is free.
    spent_polls: u8,
    place: Option<(Look, i64)>,
}

impl Lane {
    pub(super) fn capacity(&self) -> Credits {
        Credits(self.capacity)
    }

    pub(super) fn in_flight(&self) -> Credits {
        Credits(u32::try_from(self.in_flight.len()).unwrap_or(u32::MAX))
    }

    pub(super) fn free(&self) -> u32 {
        let room = self.read_ahead_bytes.saturating_sub(self.unreported_bytes).div_ceil(MAX_PAYLOAD_BYTES);
        self.capacity.saturating_sub(self.in_flight().0).min(u32::try_from(room).unwrap_or(u32::MAX))
    }

    /// What is in flight, as far as it is known here.
    pub(super) fn held(&self) -> impl Iterator<Item = (CommandId, Attempt)> {
        self.in_flight.iter().map(|(id, attempt)| (*id, *attempt))
    }

    fn note_reported(&mut self, id: CommandId) {
        self.unreported_bytes -= self.unreported.remove(&id).unwrap_or(0);
    }

    pub(super) fn holds(&self, id: CommandId, attempt: Attempt) -> bool {
        self.in_flight.get(&id).is_some_and(|held| *held >= attempt)
    }

    fn wanted_line(&self) -> Option<Look> {
        let waits = !self.in_pass && !self.frozen && self.held_back == 0 && self.free() > 0;
        (waits && self.look != Look::Clean).then_some(self.look)
    }
}

#[derive(Debug, Default)]
struct Line {
    waiting: BTreeMap<i64, LaneId>,
    front: i64,
    back: i64,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    lane: Option<Lane>,
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    urgent: Line,
    patrol: Line,
    /// Times that the last free credit of a lane was taken.
    exhausted: u64,
}

impl Ledger {
    /// Opens a lane of a session whose Hello is durable.
    pub(super) fn open(
        &mut self,
        (key, node, epoch): (SessionKey, &NodeId, SessionEpoch),
        name: LaneName,
        capacity: Credits,
        cursor: LaneSeq,
    ) -> LaneId {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("lanes are bounded by streams")
        });
        let slot = &mut self.slots[index as usize];
        slot.lane = Some(Lane {
            key,
            node: node.clone(),
            epoch,
            name,
            cursor,
            floor: LaneSeq(0),
            capacity: capacity.0.min(MAX_LANE_CAPACITY),
            in_flight: BTreeMap::new(),
            unreported: BTreeMap::new(),
            unreported_bytes: 0,
            read_ahead_bytes: usize::MAX,
            look: Look::Clean,
            in_pass: false,
            frozen: false,
            held_back: 0,
            spent_polls: 0,
            place: None,
        });
        LaneId { index, generation: slot.generation }
    }

    /// Forgets the lanes of a session that is gone.
    pub(super) fn close(&mut self, lanes: &[LaneId]) {
        for id in lanes {
            self.leave_line(*id);
            if self.get(*id).is_some() {
                let slot = &mut self.slots[id.index as usize];
                slot.lane = None;
                slot.generation = slot.generation.wrapping_add(1);
                self.vacant.push(id.index);
            }
        }
    }

    /// The lane should be looked at.
    pub(super) fn mark(&mut self, id: LaneId, look: Look) {
        self.change(id, |lane| lane.look = lane.look.max(look));
    }

    /// The poll: every lane should be looked at.
    pub(super) fn mark_all(&mut self) {
        for index in 0..self.slots.len() {
            let generation = self.slots[index].generation;
            self.change(LaneId { index: index as u32, generation }, |lane| {
                lane.held_back = lane.held_back.saturating_sub(1);
                lane.look = lane.look.max(Look::Patrol);
            });
        }
    }

    /// Freezes lanes whose credit has been spent for too long, and gives them, to be read.
    pub(super) fn freeze_spent(&mut self) -> Vec<LaneId> {
        let mut spent = Vec::new();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(lane) = &mut slot.lane else { continue };
            if lane.in_flight.is_empty() || lane.free() > 0 || lane.in_pass || lane.frozen {
                lane.spent_polls = 0;
                continue;
            }
            lane.spent_polls = lane.spent_polls.saturating_add(1);
            if lane.spent_polls >= SPENT_POLLS && spent.len() < AUDITS_PER_POLL {
                lane.spent_polls = 0;
                spent.push(LaneId { index: index as u32, generation: slot.generation });
            }
        }
        spent.iter().for_each(|id| self.freeze(*id));
        spent
    }

    /// Freezes every lane with something in flight, and gives them: what the database knows of it may be
    /// less than what is known here.
    pub(super) fn freeze_holding(&mut self) -> Vec<LaneId> {
        let mut holding = Vec::new();
        for (index, slot) in self.slots.iter().enumerate() {
            let Some(lane) = &slot.lane else { continue };
            if !lane.in_flight.is_empty() && !lane.frozen {
                holding.push(LaneId { index: index as u32, generation: slot.generation });
            }
        }
        holding.iter().for_each(|id| self.freeze(*id));
        holding
    }

    /// The node announced another capacity.
    pub(super) fn set_capacity(&mut self, id: LaneId, capacity: Credits) {
        self.change(id, |lane| {
            let capacity = capacity.0.min(MAX_LANE_CAPACITY);
            if capacity > lane.capacity {
                lane.look = Look::Urgent;
            }
            lane.capacity = capacity;
        });
    }

    /// The command takes one of the lane's credits: claimed or adopted.
    pub(super) fn debit(&mut self, id: LaneId, command: CommandId, attempt: Attempt) {
        let had_credit = self.get(id).is_some_and(|lane| lane.in_flight() < lane.capacity());
        self.change(id, |lane| {
            lane.spent_polls = 0;
            lane.note_reported(command);
            let held = lane.in_flight.entry(command).or_insert(attempt);
            *held = attempt.max(*held);
        });
        let is_spent = self.get(id).is_some_and(|lane| lane.in_flight() >= lane.capacity());
        self.exhausted += u64::from(had_credit && is_spent);
    }

    /// How many bytes of payloads may be on their way to the node, or read and not yet reported on.
    pub(super) fn set_read_ahead(&mut self, id: LaneId, bytes: usize) {
        self.change(id, |lane| lane.read_ahead_bytes = bytes);
    }

    /// A command that was debited is on its way to the node.
    pub(super) fn note_sent(&mut self, id: LaneId, command: CommandId, payload_bytes: usize) {
        self.change(id, |lane| {
            lane.note_reported(command);
            lane.unreported.insert(command, payload_bytes);
            lane.unreported_bytes += payload_bytes;
        });
    }

    /// The command is no longer in flight, as far as this attempt goes.
    pub(super) fn credit(&mut self, id: LaneId, command: CommandId, attempt: Attempt) {
        self.change(id, |lane| {
            if lane.in_flight.get(&command).is_some_and(|held| *held <= attempt) {
                lane.spent_polls = 0;
                lane.in_flight.remove(&command);
                lane.note_reported(command);
            }
        });
    }

    /// Nobody knows what a pass did to the lane: nothing is dispatched on it until it is read.
    pub(super) fn freeze(&mut self, id: LaneId) {
        self.change(id, |lane| {
            lane.in_pass = false;
            lane.frozen = true;
        });
    }

    /// The lane was read: this is in flight on it, and it should be looked at again.
    pub(super) fn thaw(&mut self, id: LaneId, in_flight: BTreeMap<CommandId, Attempt>, cursor: LaneSeq) {
        self.change(id, |lane| {
            lane.frozen = false;
            lane.in_flight = in_flight;
            lane.unreported.clear();
            lane.unreported_bytes = 0;
            lane.cursor = lane.cursor.max(cursor);
            lane.floor = LaneSeq(0);
            lane.look = Look::Urgent;
        });
    }

    /// The first lane of a line, if there is one; it is in a pass from here on.
    pub(super) fn take_first(&mut self, look: Look) -> Option<LaneId> {
        let (_, id) = self.line(look).waiting.first_key_value()?;
        let id = *id;
        self.change(id, |lane| {
            lane.in_pass = true;
            lane.look = Look::Clean;
        });
        Some(id)
    }

    /// The pass committed; `full` where the lane got all that it asked for, and may have more.
    pub(super) fn end_pass(&mut self, id: LaneId, full: bool) {
        self.change(id, |lane| {
            lane.in_pass = false;
            if full {
                lane.look = Look::Urgent;
            }
        });
    }

    /// The pass did not happen; the lane stands first again, as it did before.
    pub(super) fn return_to_front(&mut self, id: LaneId, look: Look) {
        let Some(lane) = self.get_mut(id) else { return };
        lane.in_pass = false;
        lane.look = lane.look.max(look);
        if let Some(look) = lane.wanted_line() {
            let line = self.line_mut(look);
            line.front -= 1;
            let place = line.front;
            line.waiting.insert(place, id);
            if let Some(lane) = self.get_mut(id) {
                lane.place = Some((look, place));
            }
        }
    }

    /// A pass with this lane alone was refused by the database; others must not suffer from it.
    pub(super) fn hold_back(&mut self, id: LaneId) {
        self.change(id, |lane| {
            lane.in_pass = false;
            lane.held_back = HELD_BACK_POLLS;
        });
    }

    pub(super) fn move_cursor(&mut self, id: LaneId, cursor: LaneSeq, floor: LaneSeq) {
        if let Some(lane) = self.get_mut(id) {
            lane.cursor = lane.cursor.max(cursor);
            lane.floor = lane.floor.max(floor);
        }
    }

    fn change(&mut self, id: LaneId, change: impl FnOnce(&mut Lane)) {
        let Some(lane) = self.get_mut(id) else { return };
        change(lane);
        let wanted = lane.wanted_line();
        if wanted == lane.place.map(|(look, _)| look) {
            return;
        }
        self.leave_line(id);
        if let Some(look) = wanted {
            let line = self.line_mut(look);
            let place = line.back;
            line.back += 1;
            line.waiting.insert(place, id);
            if let Some(lane) = self.get_mut(id) {
                lane.place = Some((look, place));
            }
        }
    }

    fn leave_line(&mut self, id: LaneId) {
        if let Some((look, place)) = self.get_mut(id).and_then(|lane| lane.place.take()) {
            self.line_mut(look).waiting.remove(&place);
        }
    }

    fn line(&self, look: Look) -> &Line {
        if look == Look::Urgent { &self.urgent } else { &self.patrol }
    }

    fn line_mut(&mut self, look: Look) -> &mut Line {
        if look == Look::Urgent { &mut self.urgent } else { &mut self.patrol }
    }

    /// The lane, unless its session is gone.
    pub(super) fn get(&self, id: LaneId) -> Option<&Lane> {
        let slot = self.slots.get(id.index as usize)?;
        slot.lane.as_ref().filter(|_| slot.generation == id.generation)
    }

    fn get_mut(&mut self, id: LaneId) -> Option<&mut Lane> {
        let slot = self.slots.get_mut(id.index as usize)?;
        slot.lane.as_mut().filter(|_| slot.generation == id.generation)
    }

    /// Of a session's lanes the one with this name.
    pub(super) fn find(&self, lanes: &[LaneId], name: &LaneName) -> Option<LaneId> {
        lanes.iter().copied().find(|id| self.get(*id).is_some_and(|lane| lane.name == *name))
    }

    /// Whether the command takes a credit of one of these lanes.
    pub(super) fn is_in_flight(&self, lanes: &[LaneId], command: CommandId) -> bool {
        lanes.iter().any(|id| self.get(*id).is_some_and(|lane| lane.in_flight.contains_key(&command)))
    }

    /// Times that the last free credit of a lane was taken.
    pub(super) fn exhausted(&self) -> u64 {
        self.exhausted
    }

    /// How many lanes wait in a line.
    pub(super) fn waiting(&self, look: Look) -> usize {
        self.line(look).waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ShardId;
    use uuid::Uuid;

    fn command(number: u128) -> CommandId {
        CommandId(Uuid::from_u128(number))
    }

    fn open(ledger: &mut Ledger, slot: u32, capacity: u32) -> LaneId {
        let key = SessionKey { shard: ShardId(0), slot, serial: 0 };
        let node = NodeId::new(&format!("node-{slot}")).expect("a node id");
        let name = LaneName::new("main").expect("a lane name");
        ledger.open((key, &node, SessionEpoch(1)), name, Credits(capacity), LaneSeq(0))
    }

    fn urgent(ledger: &mut Ledger) -> Option<LaneId> {
        ledger.take_first(Look::Urgent)
    }

    #[test]
    fn a_lane_poked_without_credit_is_looked_at_when_credit_returns() {
        let mut ledger = Ledger::default();
        let lane = open(&mut ledger, 1, 1);
        ledger.debit(lane, command(1), Attempt(1));
        ledger.mark(lane, Look::Urgent);
        assert_eq!(urgent(&mut ledger), None);
        ledger.credit(lane, command(1), Attempt(1));
        assert_eq!(urgent(&mut ledger), Some(lane));
    }

    #[test]
    fn a_poke_during_a_pass_causes_another_look() {
        let mut ledger = Ledger::default();
        let lane = open(&mut ledger, 1, 4);
        ledger.mark(lane, Look::Urgent);
        assert_eq!(urgent(&mut ledger), Some(lane));
        ledger.mark(lane, Look::Urgent);
        assert_eq!(urgent(&mut ledger), None, "a lane is in one pass at a time");
        ledger.end_pass(lane, false);
        assert_eq!(urgent(&mut ledger), Some(lane));
        ledger.end_pass(lane, false);
        assert_eq!(urgent(&mut ledger), None, "it got less than it asked for, and nobody poked");
    }

    #[test]
    fn who_was_served_goes_to_the_back_and_who_was_not_stays_in_front() {
        let mut ledger = Ledger::default();
        let lanes: Vec<_> = (0..3).map(|slot| open(&mut ledger, slot, 9)).collect();
        lanes.iter().for_each(|lane| ledger.mark(*lane, Look::Urgent));
        ledger.mark(lanes[2], Look::Urgent);
        assert_eq!(urgent(&mut ledger), Some(lanes[0]));
        ledger.end_pass(lanes[0], true);
        assert_eq!(urgent(&mut ledger), Some(lanes[1]));
        ledger.return_to_front(lanes[1], Look::Urgent);
        assert_eq!(urgent(&mut ledger), Some(lanes[1]));
        ledger.end_pass(lanes[1], false);
        assert_eq!(urgent(&mut ledger), Some(lanes[2]));
        assert_eq!(urgent(&mut ledger), Some(lanes[0]));
    }

    #[test]
    fn a_lane_asks_for_no_more_than_its_node_has_room_to_read() {
        let mut ledger = Ledger::default();
        let lane = open(&mut ledger, 1, 1000);
        ledger.set_read_ahead(lane, 4 * MAX_PAYLOAD_BYTES);
        assert_eq!(ledger.get(lane).map(Lane::free), Some(4), "each payload may be as large as any");
        for number in 1..=4 {
            ledger.debit(lane, command(number), Attempt(1));
            ledger.note_sent(lane, command(number), MAX_PAYLOAD_BYTES);
        }
        ledger.mark(lane, Look::Urgent);
        assert_eq!(urgent(&mut ledger), None);
        ledger.debit(lane, command(1), Attempt(1));
        assert_eq!(urgent(&mut ledger), Some(lane), "a report says that it was read");
        assert_eq!(ledger.get(lane).map(Lane::free), Some(1));
        ledger.credit(lane, command(1), Attempt(1));
        ledger.credit(lane, command(2), Attempt(1));
        assert_eq!(ledger.get(lane).map(Lane::free), Some(2));
    }

    #[test]
    fn a_lowered_capacity_is_no_violation() {
        let mut ledger = Ledger::default();
        let lane = open(&mut ledger, 1, 3);
        (1..=3).for_each(|number| ledger.debit(lane, command(number), Attempt(1)));
        ledger.set_capacity(lane, Credits(1));
        ledger.mark(lane, Look::Urgent);
        assert_eq!(ledger.get(lane).map(Lane::free), Some(0));
        ledger.credit(lane, command(1), Attempt(1));
        ledger.credit(lane, command(2), Attempt(1));
        assert_eq!(urgent(&mut ledger), None);
        ledger.credit(lane, command(3), Attempt(1));
        assert_eq!(urgent(&mut ledger), Some(lane));
    }

    #[test]
    fn an_older_attempt_gives_no_credit_back() {
        let mut ledger = Ledger::default();
        let lane = open(&mut ledger, 1, 2);
        ledger.debit(lane, command(1), Attempt(2));
        ledger.debit(lane, command(1), Attempt(1));
        ledger.credit(lane, command(1), Attempt(1));
        assert_eq!(ledger.get(lane).map(Lane::free), Some(1));
        ledger.credit(lane, command(1), Attempt(2));
        assert_eq!(ledger.get(lane).map(Lane::free), Some(2));
    }

    #[test]
    fn a_lane_of_a_gone_session_is_touched_by_nothing() {
        let mut ledger = Ledger::default();
        let gone = open(&mut ledger, 1, 1);
        ledger.mark(gone, Look::Urgent);
        ledger.close(&[gone]);
        assert_eq!(urgent(&mut ledger), None);
        let lane = open(&mut ledger, 2, 1);
        ledger.debit(gone, command(1), Attempt(1));
        ledger.mark(gone, Look::Urgent);
        ledger.end_pass(gone, true);
        assert_eq!(urgent(&mut ledger), None);
        assert_eq!(ledger.get(lane).map(Lane::free), Some(1));
        assert!(ledger.get(gone).is_none());
    }

    #[test]
    fn the_poll_looks_without_haste_and_a_poke_hurries_it() {
        let mut ledger = Ledger::default();
        let lanes: Vec<_> = (0..3).map(|slot| open(&mut ledger, slot, 1)).collect();
        ledger.mark_all();
        assert_eq!((ledger.waiting(Look::Patrol), ledger.waiting(Look::Urgent)), (3, 0));
        ledger.mark(lanes[1], Look::Urgent);
        assert_eq!((ledger.waiting(Look::Patrol), ledger.waiting(Look::Urgent)), (2, 1));
        assert_eq!(urgent(&mut ledger), Some(lanes[1]));
    }

    #[test]
    fn a_lane_that_no_pass_can_store_sits_out_some_polls() {
        let mut ledger = Ledger::default();
        let lane = open(&mut ledger, 1, 1);
        ledger.mark(lane, Look::Urgent);
        urgent(&mut ledger);
        ledger.hold_back(lane);
        ledger.mark(lane, Look::Urgent);
        for _ in 1..HELD_BACK_POLLS {
            ledger.mark_all();
            assert_eq!(urgent(&mut ledger), None);
        }
        ledger.mark_all();
        assert_eq!(urgent(&mut ledger), Some(lane));
    }

    #[test]
    fn a_frozen_lane_waits_until_it_is_read() {
        let mut ledger = Ledger::default();
        let lane = open(&mut ledger, 1, 2);
        ledger.mark(lane, Look::Urgent);
        urgent(&mut ledger);
        ledger.freeze(lane);
        ledger.mark(lane, Look::Urgent);
        assert_eq!(urgent(&mut ledger), None);
        ledger.thaw(lane, BTreeMap::from([(command(9), Attempt(1))]), LaneSeq(4));
        assert_eq!(urgent(&mut ledger), Some(lane));
        let read = ledger.get(lane).expect("the lane is open");
        assert_eq!((read.free(), read.cursor), (1, LaneSeq(4)));
    }
}

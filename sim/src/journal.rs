//! A simulated node's journal of events: what it persists of it, and what it sends when.
//!
//! 1. An event is kept until it is acked, and sent again after each `Welcome`, from its cursor on.
//! 2. One batch is on its way at a time. The next begins behind what was acked.
//! 3. A cursor never falls, and never passes what was written: asserted, since the gateway promises it.

use std::time::Duration;

use bytes::Bytes;
use gateway_core::frame::{Event, EventAck, EventBatch, RejectCode, Rejected};
use gateway_core::ids::{EventSeq, FrameRef, JournalId};
use gateway_core::time::Moment;

use crate::node::POISON;
use crate::random::Chance;

/// Events that a node writes in its life.
const EVENTS: u64 = 24;
/// Events of a batch, so that a journal takes several.
const BATCH: usize = 11;
/// A journal of so many events is followed by a new one, as after a reinstallation.
const LONGEST: usize = 12;

#[derive(Debug)]
pub(crate) struct SimJournal {
    pub(crate) id: JournalId,
    /// All that was written, from seq 1 on.
    pub(crate) events: Vec<Event>,
    pub(crate) acked: EventSeq,
    /// Earlier journals, all of whose events were acked.
    pub(crate) past: Vec<(JournalId, Vec<Event>)>,
    in_flight: Option<FrameRef>,
    /// Whether an ack brought nothing forward: then the next session must.
    stuck: bool,
    number: u32,
    left: u64,
    write_at: Option<Moment>,
    poisons: bool,
}

fn journal_id(number: u32) -> JournalId {
    JournalId::new(&format!("journal-{number}")).expect("a journal id")
}

impl SimJournal {
    pub(crate) fn new(poisons: bool) -> Self {
        Self {
            id: journal_id(0),
            events: Vec::new(),
            acked: EventSeq(0),
            past: Vec::new(),
            in_flight: None,
            stuck: false,
            number: 0,
            left: EVENTS,
            write_at: Some(Moment::default() + Duration::from_millis(500)),
            poisons,
        }
    }

    /// A session begins.
    pub(crate) fn handle_connected(&mut self) {
        self.in_flight = None;
        if self.events.len() >= LONGEST && self.is_idle_now() {
            self.number += 1;
            let before = std::mem::replace(&mut self.id, journal_id(self.number));
            self.past.push((before, std::mem::take(&mut self.events)));
            self.acked = EventSeq(0);
        }
    }

    pub(crate) fn handle_welcome(&mut self, journal: Option<&JournalId>, acked: EventSeq) {
        assert_eq!(journal, Some(&self.id), "Welcome names the journal of the Hello");
        self.stuck = false;
        self.move_to(acked);
    }

    /// The acked cursor, to be checked against the store.
    pub(crate) fn handle_ack(&mut self, ack: &EventAck) {
        assert_eq!(self.in_flight.take(), Some(ack.frame_ref), "an ack follows its batch");
        assert_eq!(ack.journal, self.id);
        self.stuck = ack.acked <= self.acked;
        self.move_to(ack.acked);
    }

    /// Whether the answer was about the batch on its way.
    pub(crate) fn handle_rejected(&mut self, rejected: &Rejected) -> bool {
        let mine = self.in_flight == Some(rejected.frame_ref);
        if mine {
            assert_eq!(rejected.code, RejectCode::NotStorable, "{rejected:?}");
            assert!(self.poisons, "{rejected:?}");
        }
        mine
    }

    pub(crate) fn handle_time(&mut self, chance: &mut Chance, now: Moment) {
        if self.write_at.is_none_or(|at| now < at) {
            return;
        }
        for _ in 0..chance.within(1..14).min(self.left) {
            let seq = EventSeq(self.events.len() as u64 + 1);
            let poison = self.poisons && chance.percent(10);
            let kind = if poison { POISON } else { "event" }.to_owned();
            let body = Bytes::from(format!("{} of {}", chance.next(), self.id));
            self.events.push(Event { seq, kind, body, attested: None, refused: None });
            self.left -= 1;
        }
        self.write_at = (self.left > 0).then(|| now + Duration::from_millis(chance.within(1..4_000)));
    }

    /// The next batch, on its way from here on.
    pub(crate) fn poll_batch(&mut self, next_ref: &mut u64) -> Option<EventBatch> {
        if self.in_flight.is_some() || self.stuck {
            return None;
        }
        let events: Vec<Event> =
            self.events.iter().skip(self.acked.0 as usize).take(BATCH).cloned().collect();
        if events.is_empty() {
            return None;
        }
        let frame_ref = FrameRef(*next_ref);
        *next_ref += 1;
        self.in_flight = Some(frame_ref);
        Some(EventBatch { frame_ref, journal: self.id.clone(), boot_id: "boot".into(), events })
    }

    /// Whether all is written and acked.
    pub(crate) fn is_idle(&self) -> bool {
        self.left == 0 && self.is_idle_now()
    }

    pub(crate) fn next_deadline(&self) -> Option<Moment> {
        self.write_at
    }

    fn is_idle_now(&self) -> bool {
        self.acked.0 == self.events.len() as u64
    }

    fn move_to(&mut self, acked: EventSeq) {
        assert!(acked >= self.acked, "a cursor never falls: {acked} after {}", self.acked);
        assert!(acked.0 <= self.events.len() as u64, "{acked} was never written");
        self.acked = acked;
    }
}

//! A node's journal of events: kept until acked, over sessions, and sent again from the cursor.
//!
//! Its refs have the highest bit set, so that they are told from those of command updates.
//!
//! 1. One batch is on its way at a time; the next begins behind what was acked.
//! 2. What an answer brings no further forward waits for the next session.

use std::collections::VecDeque;

use bytes::Bytes;
use gateway_proto::v1::{Event, EventAck, EventBatch, Hello, SignedEnvelope, Welcome};

/// Marks refs of batches.
const REF_BIT: u64 = 1 << 63;

/// The journal of one node.
#[derive(Debug)]
pub(super) struct EventJournal {
    id: String,
    boot_id: String,
    /// Not acked yet, in order of seq.
    kept: VecDeque<Event>,
    last_seq: u64,
    next_ref: u64,
    in_flight: Option<u64>,
    /// As `Welcome` says; 0 before it, when nothing may be sent.
    per_batch: usize,
}

impl EventJournal {
    pub(super) fn new(id: String, boot_id: String) -> Self {
        Self {
            id,
            boot_id,
            kept: VecDeque::new(),
            last_seq: 0,
            next_ref: REF_BIT,
            in_flight: None,
            per_batch: 0,
        }
    }

    /// Writes an event; gives its seq.
    pub(super) fn append(&mut self, kind: String, body: Bytes, attested: Option<SignedEnvelope>) -> u64 {
        self.last_seq += 1;
        self.kept.push_back(Event { seq: self.last_seq, kind, body, attested });
        self.last_seq
    }

    /// A session begins; nothing is sent before its `Welcome`.
    pub(super) fn start_session(&mut self) {
        self.in_flight = None;
        self.per_batch = 0;
    }

    /// What `Hello` says of the journal.
    pub(super) fn hello(&self) -> Hello {
        Hello { journal_id: self.id.clone(), journal_last_seq: self.last_seq, ..Hello::default() }
    }

    /// `Welcome` came, with the journal's cursor.
    pub(super) fn handle_welcome(&mut self, welcome: &Welcome) {
        self.forget(welcome.journal_acked_seq);
        let allowed = welcome.limits.as_ref().map_or(1, |limits| limits.events_per_batch);
        self.per_batch = usize::try_from(allowed).unwrap_or(usize::MAX).max(1);
    }

    /// An ack came, with the journal's cursor.
    pub(super) fn handle_ack(&mut self, ack: &EventAck) {
        let before = self.kept.len();
        self.forget(ack.acked_seq);
        // Behind a cursor that stays where it is, the same batch would be sent for ever.
        if self.in_flight == Some(ack.r#ref) && self.kept.len() < before {
            self.in_flight = None;
        }
    }

    /// The next batch, on its way from here on.
    pub(super) fn next_batch(&mut self) -> Option<EventBatch> {
        if self.in_flight.is_some() || self.kept.is_empty() || self.per_batch == 0 {
            return None;
        }
        self.next_ref += 1;
        self.in_flight = Some(self.next_ref);
        Some(EventBatch {
            r#ref: self.next_ref,
            journal_id: self.id.clone(),
            boot_id: self.boot_id.clone(),
            events: self.kept.iter().take(self.per_batch).cloned().collect(),
        })
    }

    /// Whether a ref is one of a batch.
    pub(super) const fn is_ref(frame_ref: u64) -> bool {
        frame_ref & REF_BIT != 0
    }

    fn forget(&mut self, acked_seq: u64) {
        while self.kept.front().is_some_and(|event| event.seq <= acked_seq) {
            self.kept.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seqs(batch: Option<EventBatch>) -> Vec<u64> {
        batch.unwrap_or_default().events.iter().map(|event| event.seq).collect()
    }

    fn welcome(journal_acked_seq: u64, events_per_batch: u32) -> Welcome {
        let limits = Some(gateway_proto::v1::Limits { events_per_batch, ..Default::default() });
        Welcome { journal_acked_seq, limits, ..Welcome::default() }
    }

    fn journal(events: usize) -> EventJournal {
        let mut journal = EventJournal::new("j".into(), "b".into());
        for _ in 0..events {
            journal.append("kind".into(), Bytes::new(), None);
        }
        journal
    }

    #[test]
    fn what_was_not_acked_is_sent_again_from_the_cursor_of_the_next_welcome() {
        let mut journal = journal(5);
        assert_eq!(seqs(journal.next_batch()), [0; 0], "not before Welcome");
        journal.handle_welcome(&welcome(0, 3));
        assert_eq!(seqs(journal.next_batch()), [1, 2, 3]);
        assert_eq!(seqs(journal.next_batch()), [0; 0], "one on its way");
        journal.start_session();
        let hello = journal.hello();
        assert_eq!((hello.journal_id.as_str(), hello.journal_last_seq), ("j", 5));
        journal.handle_welcome(&welcome(2, 3));
        assert_eq!(seqs(journal.next_batch()), [3, 4, 5], "two were stored, their ack was lost");
    }

    #[test]
    fn an_ack_that_brings_nothing_forward_is_not_answered_with_the_same_batch() {
        let mut journal = journal(2);
        journal.handle_welcome(&welcome(0, 10));
        let batch = journal.next_batch().expect("a batch");
        assert!(EventJournal::is_ref(batch.r#ref) && !EventJournal::is_ref(7));
        let mut ack = EventAck { r#ref: batch.r#ref, journal_id: "j".into(), acked_seq: 0 };
        journal.handle_ack(&ack);
        assert_eq!(seqs(journal.next_batch()), [0; 0]);
        ack.acked_seq = 1;
        journal.handle_ack(&ack);
        assert_eq!(seqs(journal.next_batch()), [2]);
    }
}

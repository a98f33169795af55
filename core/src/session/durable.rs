//! The durable frames of a session: to the writer one after the other, and back as answers.
//!
//! Owns what a durable frame needs to be handed on and how its answer is put. Which may leave when is
//! the inbox's order and `in_flight`'s; what a field may hold is `validation`'s.
//!
//! 1. A frame that can't be stored at all is answered here, in its turn. An event that can't be
//!    becomes a tombstone and goes with its batch.
//! 2. Events get one answer, their `EventAck`. A `Rejected` before it tells of the first tombstone.

use std::sync::Arc;

use super::Session;
use super::inbox::{Item, LocalRefusal};
use super::lifecycle::Phase;
use super::validation;
use crate::close::CloseReason;
use crate::frame::{
    CommandUpdate, CreditChange, EventAck, EventBatch, GatewayFrame, RefusedEvent, RejectCode, Rejected,
    SpecApplied, Status,
};
use crate::ids::{EventSeq, FrameRef, JournalId};
use crate::limits::MAX_BAD_FRAMES_IN_A_ROW;
use crate::seam::{EventsRequest, SpecAnswer, StatusRequest, ToWriter, UpdateRequest};

impl Session {
    pub(super) fn take_update(&mut self, update: CommandUpdate, bytes: usize) {
        let item = match validation::check_update(&update, &self.limits) {
            Ok(()) => Item::Update(Box::new(update)),
            Err(message) => invalid(update.frame_ref, message),
        };
        self.inbox.push(item, bytes);
    }

    pub(super) fn take_events(&mut self, mut batch: Box<EventBatch>, bytes: usize) {
        let item = match validation::admit_events(&mut batch, &self.limits) {
            Ok(()) => Item::Events(batch),
            Err(message) => invalid(batch.frame_ref, message),
        };
        self.inbox.push(item, bytes);
    }

    pub(super) fn take_spec_applied(&mut self, applied: SpecApplied, bytes: usize) {
        let frame_ref = applied.frame_ref;
        let item = match validation::admit_spec_applied(applied) {
            Ok((name, generation, error)) => {
                let answer = SpecAnswer { key: self.key, node: self.node.clone(), name, generation, error };
                Item::SpecApplied(frame_ref, Box::new(answer))
            }
            Err(message) => invalid(frame_ref, message),
        };
        self.inbox.push(item, bytes);
    }

    pub(super) fn take_status(&mut self, status: Status, bytes: usize) {
        let item = match validation::check_status(&status) {
            Ok(()) => Item::Status(Box::new(status)),
            Err(message) => invalid(status.frame_ref, message),
        };
        self.inbox.push(item, bytes);
    }

    pub(super) fn take_credit(&mut self, mut change: CreditChange, bytes: usize) {
        if !self.lanes.contains(&change.lane) {
            self.ignored_credits = self.ignored_credits.saturating_add(1);
            return;
        }
        change.capacity = validation::clamp_capacity(change.capacity);
        self.inbox.push(Item::Credit(change), bytes);
    }

    /// The next of what waits for the writer, if its turn has come.
    pub(super) fn poll_inbox(&mut self) -> Option<ToWriter> {
        let in_flight = &mut self.in_flight;
        let item = self.inbox.pop_if(|item| match item {
            // Not awaited: behind the frame that is with the writer its order is the mailbox's.
            Item::Credit(_) => true,
            Item::Update(update) => in_flight.admits(update),
            Item::Events(_) | Item::SpecApplied(..) | Item::Status(_) => in_flight.is_empty(),
            Item::Refused(_) | Item::Heartbeat { .. } => false,
        })?;
        let (key, node) = (self.key, self.node.clone());
        match item {
            Item::Credit(change) => Some(ToWriter::Credit { key, node, change }),
            Item::Update(update) => {
                in_flight.push_update(&update);
                Some(ToWriter::Update(Box::new(UpdateRequest { key, node, update: *update })))
            }
            Item::Events(batch) => {
                in_flight.push(batch.frame_ref);
                Some(ToWriter::Events(EventsRequest { key, node, batch: Arc::new(*batch) }))
            }
            Item::SpecApplied(frame_ref, answer) => {
                in_flight.push(frame_ref);
                Some(ToWriter::SpecApplied(answer))
            }
            Item::Status(status) => {
                in_flight.push(status.frame_ref);
                let boot_id = Arc::clone(&self.boot_id);
                Some(ToWriter::Status(Box::new(StatusRequest { key, node, boot_id, status: *status })))
            }
            Item::Refused(_) | Item::Heartbeat { .. } => None,
        }
    }

    /// The writer stored what joined on of the events that are with it.
    pub(super) fn answer_events(
        &mut self,
        frame_ref: FrameRef,
        journal: JournalId,
        acked: EventSeq,
        refused: Option<(EventSeq, RefusedEvent)>,
    ) {
        match refused {
            None => self.bad_frames_in_a_row = 0,
            Some((seq, RefusedEvent { code, message })) => {
                let message = format!("event {seq} is not stored but skipped: {message}");
                self.reject(Rejected { frame_ref, code, message, retryable: false });
            }
        }
        // The `Rejected` may have been one too many.
        if self.phase != Phase::Ended {
            self.outbox.push(GatewayFrame::EventAck(EventAck { frame_ref, journal, acked }));
        }
    }

    pub(super) fn reject(&mut self, rejected: Rejected) {
        let is_bad = matches!(rejected.code, RejectCode::Invalid | RejectCode::NotStorable);
        self.outbox.push(GatewayFrame::Rejected(rejected));
        if is_bad {
            self.bad_frames_in_a_row += 1;
            if self.bad_frames_in_a_row >= MAX_BAD_FRAMES_IN_A_ROW {
                self.close(CloseReason::Protocol(format!(
                    "{MAX_BAD_FRAMES_IN_A_ROW} frames in a row could not be stored; see their Rejected"
                )));
            }
        }
    }
}

pub(super) fn invalid(frame_ref: FrameRef, message: String) -> Item {
    Item::Refused(Box::new(LocalRefusal { frame_ref, code: RejectCode::Invalid, message }))
}

//! What a node makes of answers to its durable frames, and what it sends next.
//!
//! It finds out by the ref what an answer is about: a batch of events, a status, a spec, a
//! section, or an update. What is kept
//! until then is the business of those.
//!
//! 1. What was answered is told to the observer, and logged where it is the end of a command.

use gateway_proto::v1::{self, RejectCode, node_frame::Frame};

use super::super::events::EventJournal;
use super::super::inventory::Inventory;
use super::super::journal::LogEvent;
use super::super::memory::is_terminal;
use super::super::observer::NodeEvent;
use super::super::specs::NodeSpecs;
use super::{NodeTask, Phase};
use crate::clock::monotonic_ns;

impl NodeTask {
    pub(super) fn events_acked(&mut self, acked_seq: u64) {
        let journal = self.options.journal.clone();
        self.tell(NodeEvent::EventsAcked { journal, acked_seq, at_ns: monotonic_ns() });
        self.send_events();
    }

    pub(super) fn send_events(&mut self) {
        if let Some(batch) = self.journal.next_batch() {
            self.send(Frame::EventBatch(batch));
        }
    }

    pub(super) fn sections_wanted(&mut self, sections: Vec<String>) {
        if !sections.is_empty() {
            self.tell(NodeEvent::SectionsWanted { sections });
        }
        self.send_sections();
    }

    pub(super) fn send_sections(&mut self) {
        while let Some(section) = self.inventory.next_section() {
            self.send(Frame::InventorySection(section));
        }
    }

    pub(super) fn send_statuses(&mut self) {
        let is_welcomed = matches!(&self.phase, Phase::Live(session) if session.epoch.is_some());
        while is_welcomed && let Some(status) = self.statuses.next() {
            self.send(Frame::Status(status));
        }
    }

    pub(super) fn handle_ack(&mut self, ack: &v1::Ack) {
        if let Some(id) = self.statuses.settle(ack.r#ref) {
            return self.tell(NodeEvent::StatusAcked { id });
        }
        if Inventory::is_ref(ack.r#ref) {
            if let Some(section) = self.inventory.handle_answer(ack.r#ref) {
                self.tell(NodeEvent::SectionStored { section, at_ns: monotonic_ns() });
            }
            return;
        }
        if NodeSpecs::is_ref(ack.r#ref) {
            return self.spec_acked(ack.r#ref);
        }
        let Some(settled) = self.memory.handle_ack(ack.r#ref) else { return };
        let at_ns = monotonic_ns();
        if is_terminal(settled.reported) {
            self.log(LogEvent::Acked, settled.id, settled.attempt, Some(ack.state()));
        }
        self.tell(NodeEvent::Acked {
            id: settled.id,
            attempt: settled.attempt,
            reported: settled.reported,
            stored: ack.state(),
            at_ns,
        });
    }

    pub(super) fn handle_rejected(&mut self, rejected: v1::Rejected) {
        let code = RejectCode::try_from(rejected.code).unwrap_or(RejectCode::Unspecified);
        if EventJournal::is_ref(rejected.r#ref) {
            return self.tell(NodeEvent::EventRejected { code, message: rejected.message });
        }
        if let Some(id) = self.statuses.settle(rejected.r#ref) {
            return self.tell(NodeEvent::StatusRejected { id, code, message: rejected.message });
        }
        if Inventory::is_ref(rejected.r#ref) {
            if let Some(section) = self.inventory.handle_answer(rejected.r#ref) {
                self.tell(NodeEvent::SectionRejected { section, code, message: rejected.message });
            }
            return;
        }
        if NodeSpecs::is_ref(rejected.r#ref) {
            return self.spec_rejected(rejected.r#ref, code, rejected.message);
        }
        let Some(settled) = self.memory.handle_rejected(rejected.r#ref, rejected.retryable) else { return };
        self.tell(NodeEvent::Rejected {
            id: settled.id,
            attempt: settled.attempt,
            code,
            message: rejected.message,
        });
    }
}

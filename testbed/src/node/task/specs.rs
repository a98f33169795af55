//! What a node has to say of specs: applied or not, until that is acked.
//!
//! Carries between the session and the bookkeeping of specs; neither decides here.

use gateway_proto::v1::{self, RejectCode, node_frame::Frame};

use super::super::observer::NodeEvent;
use super::NodeTask;
use crate::clock::monotonic_ns;

impl NodeTask {
    pub(super) fn handle_spec(&mut self, spec: v1::Spec) {
        let answer = self.specs.handle_spec(&spec, self.options.behaviour.spec_error.as_deref());
        let v1::Spec { name, generation, body } = spec;
        self.tell(NodeEvent::SpecReceived { name, generation, body, at_ns: monotonic_ns() });
        if let Some(answer) = answer.filter(|_| self.options.behaviour.reports) {
            self.send(Frame::SpecApplied(answer));
        }
    }

    /// What was said of specs in earlier sessions and not acked.
    pub(super) fn send_spec_answers(&mut self) {
        if self.options.behaviour.reports {
            for answer in self.specs.unacked() {
                self.send(Frame::SpecApplied(answer));
            }
        }
    }

    pub(super) fn spec_acked(&mut self, frame_ref: u64) {
        if let Some(v1::SpecApplied { name, generation, ok, .. }) = self.specs.handle_answered(frame_ref) {
            self.tell(NodeEvent::SpecAcked { name, generation, ok });
        }
    }

    pub(super) fn spec_rejected(&mut self, frame_ref: u64, code: RejectCode, message: String) {
        if let Some(v1::SpecApplied { name, generation, .. }) = self.specs.handle_answered(frame_ref) {
            self.tell(NodeEvent::SpecRejected { name, generation, code, message });
        }
    }
}

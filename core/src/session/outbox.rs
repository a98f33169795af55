//! What waits to be sent to the node, in order.
//!
//! 1. First in, first out; nothing overtakes.
//! 2. Answers are counted apart: they are of the node's making, so they bound what is read of it.
//!    All else is bounded by credits and by what a Hello replays.
//! 3. Empty, it holds next to no memory.

use std::collections::VecDeque;

use crate::frame::GatewayFrame;

/// Slots kept when the queue runs empty.
const KEPT_SLOTS: usize = 4;

#[derive(Debug, Default)]
pub(super) struct SessionOutbox {
    frames: VecDeque<GatewayFrame>,
    answers: u32,
}

impl SessionOutbox {
    /// Puts a frame at the end.
    pub(super) fn push(&mut self, frame: GatewayFrame) {
        self.answers += u32::from(is_answer(&frame));
        self.frames.push_back(frame);
    }

    /// Takes the first frame.
    pub(super) fn pop(&mut self) -> Option<GatewayFrame> {
        let frame = self.frames.pop_front()?;
        self.answers -= u32::from(is_answer(&frame));
        if self.frames.is_empty() && self.frames.capacity() > KEPT_SLOTS {
            self.frames = VecDeque::new();
        }
        Some(frame)
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    #[cfg(test)]
    pub(super) fn kept_slots(&self) -> usize {
        self.frames.capacity()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn answers(&self) -> usize {
        self.answers as usize
    }
}

const fn is_answer(frame: &GatewayFrame) -> bool {
    matches!(
        frame,
        GatewayFrame::Ack(_)
            | GatewayFrame::EventAck(_)
            | GatewayFrame::Rejected(_)
            | GatewayFrame::InventoryWanted(_)
            | GatewayFrame::HeartbeatAck { .. }
    )
}

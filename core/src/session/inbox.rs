//! What a node sent and what could not be handed on yet, in order of arrival.
//!
//! It never decides when an item may leave; the machine does, by the head.
//!
//! 1. Order is kept across kinds.
//! 2. It is full at `session_inbox_frames` items or `session_inbox_bytes` of the wire. What comes
//!    although it is full is taken all the same: the driver stops reading, nothing is dropped.
//! 3. Empty, it holds next to no memory.

use std::collections::VecDeque;

use crate::frame::{CommandUpdate, CreditChange, EventBatch, RejectCode, Status};
use crate::ids::FrameRef;
use crate::limits::Limits;
use crate::seam::SpecAnswer;

/// Slots kept when the queue runs empty.
const KEPT_SLOTS: usize = 4;

/// A frame that waits.
#[derive(Debug)]
pub(super) enum Item {
    Update(Box<CommandUpdate>),
    Events(Box<EventBatch>),
    SpecApplied(FrameRef, Box<SpecAnswer>),
    Status(Box<Status>),
    Credit(CreditChange),
    /// Answered by the session itself, in its turn.
    Refused(Box<LocalRefusal>),
    /// Only before `Welcome`: later ones are answered at once.
    Heartbeat {
        sequence: u64,
    },
}

/// Why a durable frame is not handed to the writer.
#[derive(Debug)]
pub(super) struct LocalRefusal {
    pub(super) frame_ref: FrameRef,
    pub(super) code: RejectCode,
    pub(super) message: String,
}

#[derive(Debug, Default)]
pub(super) struct SessionInbox {
    items: VecDeque<(Item, u32)>,
    bytes: usize,
}

impl SessionInbox {
    /// Puts an item that took `bytes` on the wire at the end.
    pub(super) fn push(&mut self, item: Item, bytes: usize) {
        let counted = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.bytes += counted as usize;
        self.items.push_back((item, counted));
    }

    /// Takes the head if it is one that `may_leave`.
    pub(super) fn pop_if(&mut self, may_leave: impl FnOnce(&Item) -> bool) -> Option<Item> {
        let (item, counted) = self.items.pop_front_if(|(item, _)| may_leave(item))?;
        self.bytes -= counted as usize;
        self.shrink_if_empty();
        Some(item)
    }

    /// Takes the heartbeats out, wherever they stand; their sequences in order.
    pub(super) fn take_heartbeats(&mut self) -> Vec<u64> {
        let mut sequences = Vec::new();
        let bytes = &mut self.bytes;
        self.items.retain(|(item, counted)| {
            let Item::Heartbeat { sequence } = item else { return true };
            sequences.push(*sequence);
            *bytes -= *counted as usize;
            false
        });
        self.shrink_if_empty();
        sequences
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn is_full(&self, limits: &Limits) -> bool {
        self.items.len() >= limits.session_inbox_frames || self.bytes >= limits.session_inbox_bytes
    }

    #[cfg(test)]
    pub(super) fn kept_slots(&self) -> usize {
        self.items.capacity()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn shrink_if_empty(&mut self) {
        if self.items.is_empty() && self.items.capacity() > KEPT_SLOTS {
            self.items = VecDeque::new();
        }
    }
}

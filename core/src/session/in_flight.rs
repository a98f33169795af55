//! The durable frames that are with the writer: which they are, and what may join them.
//!
//! Knows their refs, and of the last of them what it told of an attempt. Never keeps a frame.
//!
//! 1. There is one, or a few updates of one attempt, each of which leads to the next: the writer stores those in
//!    order too, by one write of the row where they meet there.
//! 2. Answers come in the order of what was handed on.
//! 3. Empty, it holds next to no memory.

use crate::frame::{CommandUpdate, Headway};
use crate::ids::FrameRef;

/// Accepted, running and an end: headway leads no further.
const MOST: usize = 3;

#[derive(Debug, Default)]
pub(super) struct InFlight(Option<Box<Flight>>);

#[derive(Debug, Default)]
struct Flight {
    refs: [FrameRef; MOST],
    count: usize,
    /// What the last of them told, if more may follow it.
    headway: Option<Headway>,
}

impl InFlight {
    /// A frame is handed to the writer.
    pub(super) fn push(&mut self, frame_ref: FrameRef) {
        let flight = self.0.get_or_insert_default();
        let Some(place) = flight.refs.get_mut(flight.count) else {
            unreachable!("1: headway leads no further");
        };
        *place = frame_ref;
        flight.count += 1;
        flight.headway = None;
    }

    /// The same, of an update.
    pub(super) fn push_update(&mut self, update: &CommandUpdate) {
        self.push(update.frame_ref);
        if let Some(flight) = &mut self.0 {
            flight.headway = update.headway();
        }
    }

    /// The first of them has its outcome.
    pub(super) fn pop(&mut self) -> Option<FrameRef> {
        let flight = self.0.as_mut()?;
        let [first, ..] = flight.refs;
        flight.refs.rotate_left(1);
        flight.count -= 1;
        if flight.count == 0 {
            self.0 = None;
        }
        Some(first)
    }

    /// Forgets them.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether the update may be handed on now.
    pub(super) fn admits(&self, update: &CommandUpdate) -> bool {
        let Some(flight) = &self.0 else { return true };
        flight.headway.as_ref().is_some_and(|headway| headway.leads_to(update))
    }
}

//! What can be read off a session, for its driver, for metrics and for tests.
//!
//! 1. Reading changes nothing, and nothing here decides.
//! 2. What bounds a session is among it: frames that wait, either way.

use super::{Phase, Session};
use crate::ids::{NodeId, SessionEpoch, SessionKey};
use crate::time::Moment;

impl Session {
    /// The session's address.
    pub fn key(&self) -> SessionKey {
        self.key
    }

    /// When its Hello must be there.
    pub(super) fn hello_due_at(&self) -> Moment {
        self.opened_at + self.limits.hello_timeout
    }

    /// The node of the session.
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// The session's epoch, once its Hello is durable.
    pub fn epoch(&self) -> Option<SessionEpoch> {
        self.membership.as_ref().map(|membership| membership.epoch)
    }

    /// Where the session is in its life.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// How many frames wait to be sent to the node.
    pub fn queued_frames(&self) -> usize {
        self.outbox.len()
    }

    /// How many of `queued_frames` answer the node.
    pub fn waiting_answers(&self) -> usize {
        self.outbox.answers()
    }

    /// How many of the node's frames wait for the writer, beside the one that is with it.
    pub fn inbox_frames(&self) -> usize {
        self.inbox.len()
    }

    /// How many bytes of the wire those frames took.
    pub fn inbox_bytes(&self) -> usize {
        self.inbox.bytes()
    }

    /// How many sections of the inventory wait for the writer or for its answer.
    pub fn sections_on_their_way(&self) -> usize {
        self.inventory.len()
    }

    /// How many credit changes named a lane that the Hello did not declare.
    pub fn ignored_credits(&self) -> u32 {
        self.ignored_credits
    }
}

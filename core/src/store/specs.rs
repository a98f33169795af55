//! The jobs of specs: which are due to the sessions of a gateway, and what nodes have said of them.
//!
//! Owns the shapes of the questions and of the answers. When to look, and what a session was sent before, is
//! the writer's to say.
//!
//! 1. A look changes nothing. A session whose epoch is not the node's, or whose gateway is another by now,
//!    gets nothing.
//! 2. What one look brings is bounded in bytes, for each session and for all: session by session in turn, the
//!    specs of each in order of name, until the room is used up. The last one may pass it.
//! 3. Answers are idempotent. Of a spec the answer to the highest generation counts, and of those the last.

use crate::frame::{Spec, SpecGeneration};
use crate::ids::{Generation, NodeId, SessionEpoch};

/// A session whose specs are looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecsLook {
    pub node: NodeId,
    pub epoch: SessionEpoch,
    /// What the node has, or was sent: only later generations are due. Each spec once.
    pub known: Vec<SpecGeneration>,
    /// Whether those count too that the node has answered at their generation: after a Hello, which says
    /// itself what the node has.
    pub answered_too: bool,
    /// How many bytes may go to it; at least 1. A spec takes its body and `SPEC_HEAD_BYTES`.
    pub room: usize,
}

/// What is due to one session; slot for slot with the looks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecsFound {
    /// In order of name.
    pub specs: Vec<Spec>,
    /// Whether more is due for which there was no room.
    pub more: bool,
}

/// What became of what a node said of a spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecAppliedOutcome {
    /// Stored, now or before; or of a generation older than the one answered last, which changes nothing.
    Stored,
    /// The node has no spec of that name.
    UnknownSpec,
    /// The spec has not come to that generation.
    UnknownGeneration { current: Generation },
}

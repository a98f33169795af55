//! Command updates as entries of a group commit.
//!
//! 1. Of one command, at most one update is in a batch, and they commit in order of arrival: what
//!    an update does depends on the row that the one before it left.
//! 2. But for those that lead on from one another, which a store keeps by one write of the row: most commands of a
//!    node that works fast have their acceptance and their end waiting together.

use super::batch::Entry;
use crate::ids::{CommandId, NodeId};
use crate::mail::Weigh;
use crate::seam::UpdateRequest;

impl Entry for UpdateRequest {
    type Exclusive = CommandId;

    fn exclusive(&self) -> CommandId {
        self.update.id
    }

    fn joins(&self, earlier: &Self) -> bool {
        self.goes_on_from(earlier)
    }

    fn bytes(&self) -> usize {
        self.weight_bytes()
    }

    fn node(&self) -> &NodeId {
        &self.node
    }
}

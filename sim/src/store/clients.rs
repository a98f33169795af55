//! What clients do to commands: enqueue, cancel, and the sweep that expires.
//!
//! 1. A node's seqs have no gap and no repetition: the next is one above the last.
//! 2. The same idempotency key of a node names the first command that had it; nothing changes.
//! 3. What could never be delivered is refused, and nothing is stored of it.

use bytes::Bytes;
use gateway_core::command::CommandState;
use gateway_core::ids::{Attempt, CommandId, LaneName, LaneSeq, NodeId};
use gateway_core::time::UnixMillis;

use super::{CommandRow, Report, Store};

/// What a client enqueues.
#[derive(Debug, Clone)]
pub struct NewCommand {
    pub id: CommandId,
    pub node: NodeId,
    pub lane: LaneName,
    pub kind: String,
    pub payload: Bytes,
    pub idempotency_key: Option<String>,
    pub not_before: Option<UnixMillis>,
    pub not_after: Option<UnixMillis>,
    pub max_attempts: u32,
}

/// Why nothing was enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnqueueRefusal {
    /// Its `not_after` has passed, or is not after its `not_before`.
    TooLate,
    /// No attempt is allowed.
    NoAttempts,
    UnknownNode,
    /// The node has a command of that id.
    SameId,
}

impl Store {
    /// `enqueue_command`. Gives the id of the stored command, which is an older one where the
    /// idempotency key is known.
    pub fn enqueue(&mut self, new: NewCommand, now: UnixMillis) -> Result<CommandId, EnqueueRefusal> {
        if new.max_attempts == 0 {
            return Err(EnqueueRefusal::NoAttempts);
        }
        let ends = |date: UnixMillis| new.not_after.is_some_and(|end| end <= date);
        if ends(now) || new.not_before.is_some_and(ends) {
            return Err(EnqueueRefusal::TooLate);
        }
        if !self.sessions.contains_key(&new.node) {
            return Err(EnqueueRefusal::UnknownNode);
        }
        if let Some(key) = &new.idempotency_key {
            let known = self.rows_of(&new.node).find(|(_, row)| row.idempotency_key.as_ref() == Some(key));
            if let Some((id, _)) = known {
                return Ok(id);
            }
        }
        if self.rows_of(&new.node).any(|(id, _)| id == new.id) {
            return Err(EnqueueRefusal::SameId);
        }
        let of_node = self.of_node.entry(new.node.clone()).or_default();
        let seq = LaneSeq(of_node.last_key_value().map_or(0, |(seq, _)| seq.0) + 1);
        of_node.insert(seq, new.id);
        let row = CommandRow {
            node: new.node,
            lane: new.lane,
            seq,
            kind: new.kind,
            payload: new.payload,
            idempotency_key: new.idempotency_key,
            state: CommandState::Pending,
            attempt: Attempt(1),
            max_attempts: new.max_attempts,
            deferred: new.not_before.is_some_and(|due| due > now),
            enqueued: now,
            not_before: new.not_before,
            not_after: new.not_after,
            dispatched: false,
            cancel_requested: false,
            cancel_reason: String::new(),
            report: Report::default(),
        };
        self.commands.insert(new.id, row);
        Ok(new.id)
    }

    /// `cancel_command`: at once while pending, else a request. Gives the state; `None` where the
    /// node has no such command. The first reason counts.
    pub fn cancel(&mut self, node: &NodeId, id: CommandId, reason: &str) -> Option<CommandState> {
        let row = self.commands.get_mut(&id).filter(|row| row.node == *node)?;
        if !row.state.is_terminal() {
            if !row.cancel_requested {
                row.cancel_reason = reason.to_owned();
            }
            row.cancel_requested = true;
            if row.state == CommandState::Pending {
                row.set_state(CommandState::Canceled);
            }
        }
        Some(row.state)
    }

    /// What a crash of the database does to dispatches that did not wait for the disk: of a lane, those
    /// after the last of which more is stored lose their mark. Gives which.
    pub fn lose_marks(&mut self, node: &NodeId, lane: &LaneName) -> Vec<CommandId> {
        let of_lane = |row: &CommandRow| row.node == *node && row.lane == *lane && !row.deferred;
        let rows = self.commands.values().filter(|row| of_lane(row));
        let stored = rows.filter(|row| row.dispatched && row.state != CommandState::Dispatched);
        let last = stored.map(|row| row.seq).max().unwrap_or_default();
        let mut lost = Vec::new();
        for (id, row) in self.commands.iter_mut().filter(|(_, row)| of_lane(row) && row.seq > last) {
            if row.state == CommandState::Dispatched {
                row.state = CommandState::Pending;
                row.dispatched = false;
                lost.push(*id);
            }
        }
        lost
    }

    /// The same for dispatches of which it is known that nothing durable followed them. Gives those that were
    /// lost: an attempt that has come further since is stored.
    pub fn forget_marks(&mut self, dispatched: &[(CommandId, Attempt)]) -> Vec<(CommandId, Attempt)> {
        let mut lost = Vec::new();
        for (id, attempt) in dispatched {
            let Some(row) = self.commands.get_mut(id) else { continue };
            if row.state == CommandState::Dispatched && row.attempt == *attempt {
                row.state = CommandState::Pending;
                row.dispatched = false;
                lost.push((*id, *attempt));
            }
        }
        lost
    }

    /// The sweep: what is pending past its time expires.
    pub fn expire(&mut self, now: UnixMillis) {
        for row in self.commands.values_mut() {
            if row.state == CommandState::Pending && row.is_too_late(now) {
                row.set_state(CommandState::Expired);
            }
        }
    }
}

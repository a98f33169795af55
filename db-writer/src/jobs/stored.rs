//! Between the types of the database and those of the core.
//!
//! 1. Counters are bigint there and unsigned here; none ever reaches the sign bit.
//! 2. What is stored was checked when it was stored. A row that still does not parse was written
//!    by other hands, and is a fault of the database, not of an entry.

use std::time::Duration;

use bytes::Bytes;
use gateway_core::command::CommandState;
use gateway_core::frame::Command;
use gateway_core::ids::{Attempt, CommandId, LaneName, LaneSeq, NodeId, SectionName, SessionEpoch};
use gateway_core::store::StoreError;
use gateway_core::time::UnixMillis;
use uuid::Uuid;

use super::JobError;

/// An unsigned counter as a bigint.
pub(super) fn bigint(counter: u64) -> i64 {
    i64::try_from(counter).unwrap_or(i64::MAX)
}

/// A bigint as an unsigned counter.
pub(super) fn counter(bigint: i64) -> u64 {
    u64::try_from(bigint).unwrap_or(0)
}

/// A small unsigned number as an integer.
pub(super) fn integer(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// An integer as a small unsigned number.
pub(super) fn number(integer: i32) -> u32 {
    u32::try_from(integer).unwrap_or(0)
}

/// Milliseconds of a duration, for an interval.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The row holds what no function of the schema would have stored.
pub(super) fn corrupt(what: impl std::fmt::Display) -> JobError {
    JobError::Store(StoreError::Fatal(format!("a stored row can't be read: {what}")))
}

pub(super) fn node_id(text: &str) -> Result<NodeId, JobError> {
    NodeId::new(text).map_err(corrupt)
}

pub(super) fn lane_name(text: &str) -> Result<LaneName, JobError> {
    LaneName::new(text).map_err(corrupt)
}

pub(super) fn section_name(text: &str) -> Result<SectionName, JobError> {
    SectionName::new(text).map_err(corrupt)
}

pub(super) fn command_state(name: &str) -> Result<CommandState, JobError> {
    CommandState::from_name(name).ok_or_else(|| corrupt(format!("no command state {name:?}")))
}

/// The columns of a command that is to be sent.
#[derive(Debug)]
pub(super) struct StoredCommand {
    pub(super) id: Uuid,
    pub(super) attempt: i32,
    pub(super) lane: LaneName,
    pub(super) seq: i64,
    pub(super) kind: String,
    pub(super) payload: Vec<u8>,
    pub(super) not_after: Option<i64>,
}

impl StoredCommand {
    /// The command as it is sent in a session of that epoch.
    pub(super) fn send_in(self, session_epoch: SessionEpoch) -> Command {
        Command {
            id: CommandId(self.id),
            attempt: Attempt(number(self.attempt)),
            lane: self.lane,
            seq: LaneSeq(counter(self.seq)),
            kind: self.kind,
            payload: Bytes::from(self.payload),
            not_after: self.not_after.map(UnixMillis),
            session_epoch,
        }
    }
}

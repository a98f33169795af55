//! The writer's decisions: which jobs go to the database, and what their outcomes mean for whom.
//!
//! (Skeleton: the machine is still to be built.)

use std::sync::Arc;
use std::time::Duration;

use crate::ids::{GatewayId, NodeId, ShardId};
use crate::limits::Limits;
use crate::seam::{ToShard, ToWriter};
use crate::store::{GatewayRow, Job, Outcome};
use crate::time::Moment;

/// What the writer needs to know of its gateway.
#[derive(Debug, Clone)]
pub struct WriterConfig {
    pub gateway: GatewayId,
    /// This process instance; no other process ever has the same.
    pub owner: String,
    /// Owners whose text begins so are proven dead; see `LeaseJob::Acquire`.
    pub dead_owner_prefix: Option<String>,
    pub row: GatewayRow,
    pub shards: u16,
    pub limits: Arc<Limits>,
    pub lease_ttl: Duration,
    pub lease_renew_every: Duration,
    pub poll_every: Duration,
}

/// Where the writer is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// No lease yet, or fenced; every stream is refused.
    Waiting,
    /// The lease is held.
    Serving,
    /// Shards close their sessions; disconnects are written, then the lease is released.
    Stopping,
    /// All is written; the thread may end.
    Stopped,
}

/// The machine of the writer's thread.
#[derive(Debug)]
pub struct Writer {}

impl Writer {
    /// A writer that holds no lease yet; its first job is to acquire it.
    pub fn new(_config: WriterConfig, _now: Moment) -> Self {
        todo!()
    }

    /// A shard posted this.
    pub fn handle_message(&mut self, _message: ToWriter, _now: Moment) {
        todo!()
    }

    /// A job's outcome. `started` is when the job was handed to the store.
    pub fn handle_outcome(&mut self, _outcome: Outcome, _started: Moment, _now: Moment) {
        todo!()
    }

    /// A notification: these nodes have new commands or cancellations (`None`: look at all).
    pub fn handle_poke(&mut self, _node: Option<&NodeId>, _now: Moment) {
        todo!()
    }

    /// Time has passed; to be called at `next_deadline` or later.
    pub fn handle_time(&mut self, _now: Moment) {
        todo!()
    }

    /// The process must end in good order.
    pub fn handle_stop(&mut self, _now: Moment) {
        todo!()
    }

    /// The next job for a store, of a queue that has none in flight.
    pub fn poll_job(&mut self, _now: Moment) -> Option<Job> {
        todo!()
    }

    /// The next message for a shard, in order.
    pub fn poll_to_shard(&mut self) -> Option<(ShardId, ToShard)> {
        todo!()
    }

    /// Bytes of messages that are done with since the last call, to be released to their box.
    pub fn poll_released_bytes(&mut self) -> usize {
        todo!()
    }

    /// Whether more messages of the shards should be taken now.
    pub fn wants_messages(&self) -> bool {
        todo!()
    }

    /// When `handle_time` must be called next; it may move with each input.
    pub fn next_deadline(&self) -> Option<Moment> {
        todo!()
    }

    /// Where the writer is in its life.
    pub fn phase(&self) -> Phase {
        todo!()
    }

    /// Sessions with a durable Hello.
    pub fn sessions(&self) -> usize {
        todo!()
    }
}

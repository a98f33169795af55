//! What the control API asks of the writer and of the shards, and what it is told.
//!
//! `Writer::handle_ask` answers at once, of what the writer knows. What follows of an ask (a look, a dispatch
//! pass, an order to the shards) comes as of a notification: it goes through the same machines.
//!
//! 1. Nothing depends on an ask: whatever it hastens is found without it, a little later.
//! 2. An ask names a bounded number of nodes, and its answer holds a bounded number of sessions.
//! 3. An ask is answered, or its asker is told that nobody will: it never waits for a database.

use crate::drain::DrainPlan;
use crate::ids::{CommandId, Credits, LaneName, NodeId, SessionEpoch, SessionKey};
use crate::mail::{Post, Weigh};
use crate::time::Moment;

/// Nodes, or commands, that one ask may name.
pub const MAX_NAMED: usize = 1000;
/// Sessions that one answer may hold.
pub const MAX_SESSIONS_SHOWN: usize = 500;

/// What the writer is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeskAsk {
    /// Look for commands of these nodes; of none named: of all.
    Dispatch(Vec<NodeId>),
    /// Look for changed specs of these nodes; of none named: of all.
    Specs(Vec<NodeId>),
    /// Look for cancellations, which are read together; those named are counted.
    Cancel(Vec<(NodeId, CommandId)>),
    /// Look for what was revoked, which is read together; the node named is looked up.
    Revoke(NodeId),
    /// Send the nodes away, and refuse new sessions until `Undrain`.
    Drain(DrainPlan),
    /// Take new sessions again.
    Undrain,
    /// Live sessions in the order of their keys, from the one after `after`.
    Sessions { after: Option<SessionKey>, at_most: usize },
    /// The live session of one node.
    Session(NodeId),
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeskAnswer {
    /// What was asked for is looked at; so many of what was named are here.
    Looking(Found),
    /// The gateway drains; so many sessions were told to leave.
    Draining { sessions: usize, is_new: bool },
    /// It takes new sessions; `was_draining` says whether that is new.
    Undrained { was_draining: bool },
    /// Nothing was done, and why.
    Refused(DeskRefusal),
    /// A page of live sessions; `more` is where the next begins.
    Sessions { sessions: Vec<SessionReport>, more: Option<SessionKey>, in_all: usize },
}

/// How much of what an ask named the writer knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    /// Nodes, or commands, that were named.
    pub named: usize,
    /// Of those, the ones whose node has its live session here.
    pub here: usize,
    /// Commands named that their session has, or is about to have.
    pub in_flight: usize,
}

/// Why an ask came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeskRefusal {
    /// The lease is not held: no session is here, and none may be.
    NoLease,
    /// The gateway drains towards its stop, or stops: that is not taken back, and there is nothing to hasten.
    Stopping,
}

/// A live session as the writer knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionReport {
    pub node: NodeId,
    pub key: SessionKey,
    pub epoch: SessionEpoch,
    pub lanes: Vec<LaneReport>,
}

/// A lane of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneReport {
    pub lane: LaneName,
    pub capacity: Credits,
    pub in_flight: Credits,
}

/// What a shard is asked: when these sessions of its own had their last heartbeats.
#[derive(Debug)]
pub struct VitalsAsk {
    pub keys: Vec<SessionKey>,
    /// Where the answer goes; whoever drops it unused says that there is none.
    pub answer: Post<Vitals>,
}

/// Of the sessions that are still there, and have had one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vitals(pub Vec<(SessionKey, Moment)>);

impl Weigh for Vitals {
    // Bounded by what was asked.
    fn weight_bytes(&self) -> usize {
        0
    }
}

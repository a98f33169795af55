//! What the writer asks of the database and what it hears back: the seam below the writer.
//!
//! A `Job` is one group commit of one queue; a store carries it out in a fixed number of round
//! trips and answers with one `Outcome` of the same queue. PostgreSQL is one store; the reference
//! model of the simulator is the other, and both must answer alike.
//!
//! 1. At most one job of a queue is in flight.
//! 2. Answers are slot for slot: `outcomes[i]` is what became of `entries[i]`.
//! 3. A job either commits whole, with its outcomes, or fails whole with a `StoreError`.
//! 4. `Hellos` and `Dispatch` commit only while the lease of their proof is held, which the store
//!    checks in the same transaction, under a lock.

mod lease;
mod revocations;
mod specs;
mod sweeps;

use std::sync::Arc;
use std::time::Duration;

pub use self::lease::{GatewayRow, LeaseJob, LeaseOutcome};
pub use self::revocations::{CertificateState, ChangeMark, RevocationLook, RevocationsFound};
pub use self::specs::{SpecAppliedOutcome, SpecsFound, SpecsLook};
pub use self::sweeps::{DeadGateway, ExpiryPass, LeaderProof, ReapPass, SweepJob, SweepOutcome};

use crate::close::CloseReason;
use crate::command::CommandState;
use crate::frame::{CancelCommand, Command};
use crate::ids::{
    Attempt, CommandId, Credits, EventSeq, GatewayId, LaneName, LaneSeq, LeaseEpoch, NodeId, SectionName,
    SessionEpoch,
};
use crate::seam::{
    EventsRequest, HelloRequest, Identity, LookRequest, SectionRequest, SpecAnswer, StatusRequest,
    UpdateRequest,
};
use crate::time::UnixMillis;

/// The writer's queues: each has a connection and at most one commit in flight, so none waits for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Queue {
    Lease,
    Hellos,
    Dispatch,
    Updates,
    /// Liveness and disconnects.
    Presence,
    /// What is polled: cancellations asked for.
    Feed,
    /// Nodes' journals.
    Events,
    /// Sections of nodes' inventories, and looks at what is stored of them.
    Inventory,
    /// What one gateway does for all of them.
    Sweeps,
    /// Desired state: what is due to nodes, and what they answered.
    Specs,
    /// What nodes tell outside of their journals. Apart from events, since handlers of the one may be slow.
    Statuses,
    /// Looks at what is revoked. Apart from the feed: nothing that holds that up may keep a session alive.
    Revocations,
}

impl Queue {
    /// Every queue.
    pub const ALL: [Self; 12] = [
        Self::Lease,
        Self::Hellos,
        Self::Dispatch,
        Self::Updates,
        Self::Presence,
        Self::Feed,
        Self::Events,
        Self::Inventory,
        Self::Sweeps,
        Self::Specs,
        Self::Statuses,
        Self::Revocations,
    ];

    /// The queue's name in logs and metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Hellos => "hellos",
            Self::Dispatch => "dispatch",
            Self::Updates => "updates",
            Self::Presence => "presence",
            Self::Feed => "feed",
            Self::Events => "events",
            Self::Inventory => "inventory",
            Self::Sweeps => "sweeps",
            Self::Specs => "specs",
            Self::Statuses => "statuses",
            Self::Revocations => "revocations",
        }
    }
}

/// Why a job did not commit, split by what the writer must do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing was committed, and the same job may be tried again: the database is away,
    /// overloaded, or chose this transaction as a victim.
    #[error("not committed, may be retried: {0}")]
    Retry(String),
    /// Nothing was committed, and the same job will fail again: an entry in it is bad.
    #[error("not committed, an entry is refused: {0}")]
    Rejected(String),
    /// The connection was lost at the commit: it may have happened.
    #[error("the commit's outcome is unknown: {0}")]
    OutcomeUnknown(String),
    /// The database can't be worked with: wrong schema, missing rights.
    #[error("the database can't be used: {0}")]
    Fatal(String),
}

/// What proves that this process may route: the lease as it holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseProof {
    pub gateway: GatewayId,
    /// This process instance; see `LeaseJob::Acquire`.
    pub owner: String,
    pub epoch: LeaseEpoch,
}

/// One group commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Job {
    Lease(LeaseJob),
    Hellos {
        proof: LeaseProof,
        entries: Vec<HelloRequest>,
    },
    Dispatch {
        proof: LeaseProof,
        wants: Vec<LaneWant>,
    },
    /// Lanes whose in-flight commands must be read anew after an unknown outcome.
    ReadLanes {
        proof: LeaseProof,
        lanes: Vec<LaneRead>,
    },
    /// Of a command at most one, or a few each of which goes on from the one before it.
    Updates {
        entries: Vec<UpdateRequest>,
    },
    Presence {
        gateway: GatewayId,
        entries: Vec<PresenceEntry>,
    },
    /// Cancellations asked for of commands in flight on sessions of this gateway.
    Cancels {
        gateway: GatewayId,
    },
    /// Runs of journals, each without a gap; several of one journal may be among them.
    Events {
        entries: Vec<EventsRequest>,
    },
    /// Each id of a node at most once.
    Statuses {
        entries: Vec<StatusRequest>,
    },
    /// Sections and looks; a section of a node is among them once. The looks see the sections stored.
    Inventory {
        entries: Vec<InventoryEntry>,
        /// Sections that a node may have.
        most: usize,
    },
    Sweep(SweepJob),
    /// The specs that are due to sessions of this gateway, at most so many bytes of them.
    SpecsDue {
        gateway: GatewayId,
        looks: Vec<SpecsLook>,
        at_most_bytes: usize,
    },
    /// What nodes said of specs, each spec of a node once.
    SpecsApplied {
        entries: Vec<SpecAnswer>,
    },
    Revocations(RevocationLook),
}

impl Job {
    /// The queue that the job belongs to.
    pub const fn queue(&self) -> Queue {
        match self {
            Self::Lease(_) => Queue::Lease,
            Self::Hellos { .. } => Queue::Hellos,
            Self::Dispatch { .. } | Self::ReadLanes { .. } => Queue::Dispatch,
            Self::Updates { .. } => Queue::Updates,
            Self::Presence { .. } => Queue::Presence,
            Self::Cancels { .. } => Queue::Feed,
            Self::Events { .. } => Queue::Events,
            Self::Statuses { .. } => Queue::Statuses,
            Self::Inventory { .. } => Queue::Inventory,
            Self::Sweep(_) => Queue::Sweeps,
            Self::SpecsDue { .. } | Self::SpecsApplied { .. } => Queue::Specs,
            Self::Revocations(_) => Queue::Revocations,
        }
    }
}

/// What became of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Lease(Result<LeaseOutcome, StoreError>),
    Hellos(Result<Routed<Vec<HelloOutcome>>, StoreError>),
    Dispatch(Result<Routed<Vec<Claim>>, StoreError>),
    LanesRead(Result<Routed<Vec<LaneState>>, StoreError>),
    Updates(Result<Vec<UpdateOutcome>, StoreError>),
    Presence(Result<Vec<PresenceOutcome>, StoreError>),
    Cancels(Result<Vec<WantedCancel>, StoreError>),
    Events(Result<Vec<EventsOutcome>, StoreError>),
    Statuses(Result<Vec<StatusOutcome>, StoreError>),
    Inventory(Result<Vec<InventoryOutcome>, StoreError>),
    Sweep(Result<SweepOutcome, StoreError>),
    SpecsDue(Result<Vec<SpecsFound>, StoreError>),
    SpecsApplied(Result<Vec<SpecAppliedOutcome>, StoreError>),
    Revocations(Result<RevocationsFound, StoreError>),
}

impl Outcome {
    /// The outcome of a job that failed whole.
    pub fn failed(job: &Job, error: StoreError) -> Self {
        match job {
            Job::Lease(_) => Self::Lease(Err(error)),
            Job::Hellos { .. } => Self::Hellos(Err(error)),
            Job::Dispatch { .. } => Self::Dispatch(Err(error)),
            Job::ReadLanes { .. } => Self::LanesRead(Err(error)),
            Job::Updates { .. } => Self::Updates(Err(error)),
            Job::Presence { .. } => Self::Presence(Err(error)),
            Job::Cancels { .. } => Self::Cancels(Err(error)),
            Job::Events { .. } => Self::Events(Err(error)),
            Job::Statuses { .. } => Self::Statuses(Err(error)),
            Job::Inventory { .. } => Self::Inventory(Err(error)),
            Job::Sweep(_) => Self::Sweep(Err(error)),
            Job::SpecsDue { .. } => Self::SpecsDue(Err(error)),
            Job::SpecsApplied { .. } => Self::SpecsApplied(Err(error)),
            Job::Revocations(_) => Self::Revocations(Err(error)),
        }
    }

    /// The queue that the outcome belongs to.
    pub const fn queue(&self) -> Queue {
        match self {
            Self::Lease(_) => Queue::Lease,
            Self::Hellos(_) => Queue::Hellos,
            Self::Dispatch(_) | Self::LanesRead(_) => Queue::Dispatch,
            Self::Updates(_) => Queue::Updates,
            Self::Presence(_) => Queue::Presence,
            Self::Cancels(_) => Queue::Feed,
            Self::Events(_) => Queue::Events,
            Self::Statuses(_) => Queue::Statuses,
            Self::Inventory(_) => Queue::Inventory,
            Self::Sweep(_) => Queue::Sweeps,
            Self::SpecsDue(_) | Self::SpecsApplied(_) => Queue::Specs,
            Self::Revocations(_) => Queue::Revocations,
        }
    }

    /// Why the job failed, if it did.
    pub const fn error(&self) -> Option<&StoreError> {
        match self {
            Self::Lease(Err(error))
            | Self::Hellos(Err(error))
            | Self::Dispatch(Err(error))
            | Self::LanesRead(Err(error))
            | Self::Updates(Err(error))
            | Self::Presence(Err(error))
            | Self::Cancels(Err(error))
            | Self::Events(Err(error))
            | Self::Statuses(Err(error))
            | Self::Inventory(Err(error))
            | Self::Sweep(Err(error))
            | Self::SpecsDue(Err(error))
            | Self::SpecsApplied(Err(error))
            | Self::Revocations(Err(error)) => Some(error),
            _ => None,
        }
    }
}

/// The answer of a routing transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Routed<T> {
    Committed(T),
    /// The lease of the proof is no longer held; nothing was committed.
    LeaseLost,
}

// -- Hellos --------------------------------------------------------------------------------------

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelloOutcome {
    Granted(Box<HelloGrant>),
    Refused(CloseReason),
    /// Two machines use its certificate: that is revoked now, and any session that the node had is fenced.
    Quarantined(Box<Identity>),
}

/// What the Hello transaction committed and read for one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelloGrant {
    pub epoch: SessionEpoch,
    pub server_time: UnixMillis,
    /// Of the journal that the Hello named; 0 where none is stored.
    pub journal_acked: EventSeq,
    /// To be sent again, in order of seq: dispatched before, not terminal, not listed by the node.
    pub replays: Vec<Command>,
    /// All that takes credit now: the replays and what the node listed and is not terminal.
    pub in_flight: Vec<InFlight>,
    pub cancels: Vec<CancelCommand>,
    /// For each lane of the Hello, in its order: a seq at or below which no first attempt is due.
    pub cursors: Vec<LaneSeq>,
    /// Whether a lane of the Hello may have pending commands: a hint to look. False where there are none,
    /// but for those that this Hello adopted.
    pub has_pending: bool,
    /// Sections that the Hello lists and that are not stored so, in its order.
    pub inventory_wanted: Vec<SectionName>,
    /// Whether `node_certs` has its certificate. One that it does not have nobody can revoke by its row.
    pub is_recorded: bool,
}

/// A command that takes a credit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlight {
    pub lane: LaneName,
    pub id: CommandId,
    pub attempt: Attempt,
}

// -- dispatch ------------------------------------------------------------------------------------

/// One lane's wish in a dispatch pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneWant {
    pub node: NodeId,
    pub epoch: SessionEpoch,
    pub lane: LaneName,
    /// At most that many are claimed.
    pub free: Credits,
    /// First attempts at or below this seq are known to be gone.
    pub cursor: LaneSeq,
    /// What the lane's last claim gave as its floor, 0 where that is not known.
    pub floor: LaneSeq,
    /// For the row (`verify` needs them): the lane's capacity, and what is in flight before this pass.
    pub capacity: Credits,
    pub in_flight: Credits,
}

/// A command that a pass marked dispatched. In order of (node, seq) within an outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub node: NodeId,
    pub command: Command,
    /// Whether the lane's cursor found it, and moves to its seq; the deferred are found otherwise.
    pub moves_cursor: bool,
    /// No first attempt of the lane with a lower seq is in flight, nor will be. A bound that was right stays right.
    pub floor: LaneSeq,
    /// How long ago it was enqueued, or came due.
    pub waited: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneRead {
    pub node: NodeId,
    pub epoch: SessionEpoch,
    pub lane: LaneName,
    /// What this gateway has sent and not heard the end of: a mark that a crash lost is set again first.
    pub sent: Vec<(CommandId, Attempt)>,
}

/// What is stored of a lane now; slot for slot with the lanes read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneState {
    /// Whether the session that it was read for still has the node. What is in flight is for no other.
    pub is_live: bool,
    /// All in flight on the lane, with what is needed to send those that were never sent.
    pub in_flight: Vec<Command>,
    pub cursor: LaneSeq,
}

// -- updates -------------------------------------------------------------------------------------

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpdateOutcome {
    /// Stored, now or before. The row is in `state` (which is not the reported one where another
    /// terminal state came first), of `lane`; `retried` when a retryable refusal made it pending.
    Stored {
        state: CommandState,
        lane: LaneName,
        conflict: bool,
    },
    UnknownCommand,
    OldAttempt {
        current: Attempt,
    },
}

// -- events --------------------------------------------------------------------------------------

/// What is stored of the entry's journal after the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventsOutcome {
    /// The highest contiguous seq.
    pub acked: EventSeq,
}

// -- statuses ------------------------------------------------------------------------------------

/// A status is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusOutcome {
    /// Whether by this job; else one with its id was there.
    pub is_new: bool,
}

// -- inventory -----------------------------------------------------------------------------------

/// What a job of the inventory does for one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InventoryEntry {
    Section(Arc<SectionRequest>),
    Look(Arc<LookRequest>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InventoryOutcome {
    /// The section is stored, now or before; where its body is another than before, work for the node is
    /// enqueued with it.
    Stored,
    UnknownNode,
    /// The node has as many sections as it may, and not this one.
    TooMany,
    /// The node has a newer session than the one that sent the section.
    Superseded,
    /// Of a look: what is not stored as the node has it, in the order of its list.
    Wanted(Vec<SectionName>),
}

// -- presence ------------------------------------------------------------------------------------

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PresenceEntry {
    Alive { node: NodeId, epoch: SessionEpoch },
    Disconnected { node: NodeId, epoch: SessionEpoch, reason: &'static str },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PresenceOutcome {
    Written,
    /// The node's session has another epoch or gateway by now, or was written as ended while it lived: a
    /// sweep took its gateway for dead, as it may when the database's clock jumps ahead.
    Superseded,
}

// -- feed ----------------------------------------------------------------------------------------

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedCancel {
    pub node: NodeId,
    pub epoch: SessionEpoch,
    pub cancel: CancelCommand,
}

//! The jobs of the sweeps: what one gateway of a fleet does for all of them.
//!
//! Owns the shapes of the questions and of the answers. Who sweeps, and when, is the writer's to say.
//!
//! 1. Whoever sweeps holds the lease `leader:sweeps`; `Expire`, `FindDead` and `Reap` prove it in the
//!    same statement, under a lock.
//! 2. A sweep waits for no row: what another transaction holds is skipped, and said to be.
//! 3. Each job handles at most so many rows as it is told, and is harmless when it is done twice.

use std::time::Duration;

use crate::ids::{GatewayId, LeaseEpoch, NodeId};
use crate::time::UnixMillis;

/// What proves that this process may sweep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderProof {
    /// This process instance, as in `LeaseJob::Acquire`.
    pub owner: String,
    pub epoch: LeaseEpoch,
}

/// One job of the sweeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SweepJob {
    /// Takes `leader:sweeps` where it is free, has expired, or belongs to an owner whose text begins
    /// with `dead_owner_prefix`; prolongs it where it is this owner's.
    Lead { owner: String, dead_owner_prefix: Option<String>, ttl: Duration },
    /// Makes pending commands whose `not_after` is `from` or later, and has passed, expired: those
    /// that passed first, at most `at_most`.
    Expire { proof: LeaderProof, from: UnixMillis, at_most: u32 },
    /// Names the gateways that left sessions behind, maybe: their lease has expired, or has passed on
    /// to a newer process, since their sessions were looked through.
    FindDead { proof: LeaderProof },
    /// Looks through the next `at_most` nodes after `after`, in order of id, and marks the sessions
    /// that they have on a dead gateway as disconnected: while its lease is expired all of them, else
    /// those of an older lease epoch. `since` is when the first page was read; the last page of a scan
    /// in which `skipped` is false notes how far the gateway is looked through.
    Reap {
        proof: LeaderProof,
        dead: DeadGateway,
        after: Option<NodeId>,
        since: Option<UnixMillis>,
        skipped: bool,
        at_most: u32,
    },
    /// Ends the lease at once, so that another gateway need not wait.
    Resign { proof: LeaderProof },
}

/// What became of a sweep's job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SweepOutcome {
    /// This process sweeps.
    Leads {
        epoch: LeaseEpoch,
    },
    LedByOther {
        expires_in: Duration,
    },
    /// The proof does not hold any more; nothing was changed.
    LeadLost,
    Expired(ExpiryPass),
    Dead(Vec<DeadGateway>),
    Reaped(ReapPass),
    Resigned,
}

/// One pass of the expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpiryPass {
    pub expired: u32,
    /// There may be more that is due at `next` or later.
    pub is_full: bool,
    /// All that was due before it is expired now, but for what was skipped.
    pub next: UnixMillis,
    /// The earliest `not_after` of what another transaction held.
    pub skipped: Option<UnixMillis>,
}

/// A gateway that may have left sessions behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadGateway {
    pub gateway: GatewayId,
    /// The epoch of its lease now: sessions of an older one are of a process that is gone.
    pub epoch: LeaseEpoch,
    /// Whether the lease has expired, so that no process of it may have a session.
    pub is_expired: bool,
}

/// One page of a look through the sessions of a dead gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReapPass {
    /// False where the lease of a gateway that had expired is held again, or locked: the scan ends.
    pub is_dead: bool,
    pub reaped: u32,
    /// Whether another transaction held a session, which is then left for the next scan.
    pub skipped: bool,
    /// The last node of the page, where more may follow.
    pub next: Option<NodeId>,
    /// The database's clock.
    pub now: UnixMillis,
}

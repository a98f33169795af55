//! The jobs of the lease that a gateway holds while it routes.
//!
//! Owns the shapes of the questions and of the answers. When to renew, and what to do without it, is the
//! writer's to say.

use std::time::Duration;

use super::LeaseProof;
use crate::ids::{GatewayId, LeaseEpoch};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseJob {
    /// Takes the lease `gateway:<id>` where it is free, has expired, is this owner's, or belongs to
    /// an owner whose text begins with `dead_owner_prefix` (a predecessor proven dead). Waits for
    /// transactions of the previous owner that are still open. Writes the `gateways` row.
    Acquire {
        gateway: GatewayId,
        owner: String,
        dead_owner_prefix: Option<String>,
        ttl: Duration,
        row: GatewayRow,
    },
    /// Prolongs the lease and writes sessions and drain flag to `gateways`.
    Renew { proof: LeaseProof, ttl: Duration, sessions: u32, draining: bool },
    /// Ends the lease at once, so that a successor need not wait, and marks the gateway draining.
    Release { proof: LeaseProof },
}

/// The `gateways` row, but for what changes with each renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayRow {
    pub region: String,
    pub internal_url: String,
    pub version: String,
    pub max_streams: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseOutcome {
    Held {
        epoch: LeaseEpoch,
    },
    /// Another owner holds it (answer to Acquire and Renew).
    HeldByOther {
        owner: String,
        expires_in: Duration,
    },
    Released,
}

//! Who held which lease when, from the answers to lease jobs alone.
//!
//! Owns that record, by the database's clock. Never asks the store for a row.
//!
//! 1. A lease passes on only when it is free, has expired, or its owner is proven dead; its epoch rises by one
//!    then, and never otherwise.
//! 2. A renewal is granted only to who holds the lease, under the epoch that it has.

use std::collections::BTreeMap;
use std::time::Duration;

use gateway_core::ids::{GatewayId, LeaseEpoch};
use gateway_core::store::{LeaderProof, LeaseJob, LeaseOutcome, LeaseProof, SweepJob, SweepOutcome};
use gateway_core::time::UnixMillis;

use crate::check::must;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    owner: String,
    epoch: LeaseEpoch,
    expires: UnixMillis,
}

#[derive(Debug, Default)]
pub(super) struct Leases {
    gateways: BTreeMap<GatewayId, Held>,
    leader: Option<Held>,
}

impl Leases {
    pub(super) fn handle_lease(&mut self, job: &LeaseJob, outcome: &LeaseOutcome, now: UnixMillis) {
        match (job, outcome) {
            (
                LeaseJob::Acquire { gateway, owner, dead_owner_prefix, ttl, .. },
                LeaseOutcome::Held { epoch },
            ) => {
                let before = self.gateways.get(gateway);
                let held = taken(before, owner, dead_owner_prefix.as_deref(), *epoch, *ttl, now);
                self.gateways.insert(gateway.clone(), held);
            }
            (LeaseJob::Renew { proof, ttl, .. }, LeaseOutcome::Held { epoch }) => {
                let held = self.gateways.get_mut(&proof.gateway);
                let held = held.filter(|held| held.owner == proof.owner && held.epoch == proof.epoch);
                let is_own = held.is_some() && *epoch == proof.epoch;
                must("a renewal is granted to the owner alone", is_own, || format!("{proof:?}, now {epoch}"));
                if let Some(held) = held {
                    held.expires = now.plus(*ttl);
                }
            }
            (LeaseJob::Release { proof }, LeaseOutcome::Released) => {
                let held = self.gateways.get_mut(&proof.gateway);
                if let Some(held) = held.filter(|held| held.owner == proof.owner && held.epoch == proof.epoch)
                {
                    held.expires = now;
                }
            }
            (LeaseJob::Acquire { gateway, owner, .. }, LeaseOutcome::HeldByOther { .. }) => {
                let other = self.gateways.get(gateway);
                let is_held = other.is_some_and(|held| held.owner != *owner && held.expires > now);
                must("a free lease is refused to nobody", is_held, || format!("{owner}: {other:?} at {now}"));
            }
            _ => {}
        }
    }

    pub(super) fn handle_lead(&mut self, job: &SweepJob, outcome: &SweepOutcome, now: UnixMillis) {
        match (job, outcome) {
            (SweepJob::Lead { owner, dead_owner_prefix, ttl }, SweepOutcome::Leads { epoch }) => {
                let prefix = dead_owner_prefix.as_deref();
                self.leader = Some(taken(self.leader.as_ref(), owner, prefix, *epoch, *ttl, now));
            }
            (SweepJob::Resign { proof }, SweepOutcome::Resigned) => {
                if let Some(leader) = self.leader.as_mut().filter(|leader| is_proven(leader, proof)) {
                    leader.expires = now;
                }
            }
            _ => {}
        }
    }

    /// A routing job committed under this proof.
    pub(super) fn check_proof(&self, proof: &LeaseProof, now: UnixMillis, what: &str) {
        let held = self.gateways.get(&proof.gateway);
        let holds = held
            .is_some_and(|held| held.owner == proof.owner && held.epoch == proof.epoch && held.expires > now);
        must("no routing under a lease that has passed on", holds, || {
            format!("{what} by {proof:?} at {now}; the lease: {held:?}")
        });
    }

    /// A sweep changed something under this proof.
    pub(super) fn check_lead(&self, proof: &LeaderProof, now: UnixMillis) {
        let leads =
            self.leader.as_ref().is_some_and(|leader| is_proven(leader, proof) && leader.expires > now);
        must("no sweep without the lead", leads, || format!("{proof:?} at {now}; it is {:?}", self.leader));
    }

    /// Whether no process may act as the gateway now, and the epoch that its lease has come to.
    pub(super) fn state_of(&self, gateway: &GatewayId, now: UnixMillis) -> (bool, LeaseEpoch) {
        let held = self.gateways.get(gateway);
        (held.is_none_or(|held| held.expires <= now), held.map_or(LeaseEpoch(0), |held| held.epoch))
    }
}

fn is_proven(leader: &Held, proof: &LeaderProof) -> bool {
    leader.owner == proof.owner && leader.epoch == proof.epoch
}

fn taken(
    before: Option<&Held>,
    owner: &str,
    dead_prefix: Option<&str>,
    epoch: LeaseEpoch,
    ttl: Duration,
    now: UnixMillis,
) -> Held {
    let is_own = before.is_some_and(|held| held.owner == owner);
    let is_free = before.is_none_or(|held| {
        let dead = dead_prefix.is_some_and(|prefix| !prefix.is_empty() && held.owner.starts_with(prefix));
        held.expires <= now || dead
    });
    must("a lease passes on only when it may", is_own || is_free, || {
        format!("{before:?} to {owner} at {now}")
    });
    let last = before.map_or(LeaseEpoch(0), |held| held.epoch);
    let expected = if is_own { last } else { LeaseEpoch(last.0 + 1) };
    must("a lease's epoch rises when it passes on, and only then", epoch == expected, || {
        format!("{before:?} to {owner} at epoch {epoch}")
    });
    Held { owner: owner.to_owned(), epoch, expires: now.plus(ttl) }
}

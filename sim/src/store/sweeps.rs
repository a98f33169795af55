//! What the sweeps do: the lease of who leads them, commands whose time has passed, sessions of the dead.
//!
//! Owns that lease, and what was swept. As everywhere in the model nothing is locked, so nothing is
//! ever skipped.
//!
//! 1. What is swept is swept under the lease `leader:sweeps`, unexpired.
//! 2. An attempt that a sweep expired was never handed to a node: only pending rows are swept, and the
//!    world holds that none of these attempts reaches a node, before or after.
//! 3. A session is reaped only while its gateway's lease is expired, or has reached a later epoch than
//!    the session was opened under.

use std::collections::BTreeMap;
use std::time::Duration;

use gateway_core::command::CommandState;
use gateway_core::ids::{Attempt, CommandId, GatewayId, LeaseEpoch, NodeId};
use gateway_core::store::{DeadGateway, ExpiryPass, LeaderProof, ReapPass, SweepJob, SweepOutcome};
use gateway_core::time::UnixMillis;

use super::Store;

/// What only the sweeps know.
#[derive(Debug, Default)]
pub(super) struct SweepTables {
    leader: Option<Leader>,
    /// Since when no session of a dead process is left, by gateway.
    looked_through: BTreeMap<GatewayId, UnixMillis>,
    /// Below which lease epoch none is left, by gateway; 1 where nothing stands.
    reaped_below: BTreeMap<GatewayId, LeaseEpoch>,
    /// The attempts that expired while they were pending.
    expired: BTreeMap<CommandId, Attempt>,
    reaped: u64,
}

#[derive(Debug)]
struct Leader {
    owner: String,
    epoch: LeaseEpoch,
    expires: UnixMillis,
}

impl Leader {
    fn is_proven_by(&self, proof: &LeaderProof) -> bool {
        self.owner == proof.owner && self.epoch == proof.epoch
    }
}

impl Store {
    pub(super) fn sweep(&mut self, job: &SweepJob, now: UnixMillis) -> SweepOutcome {
        match job {
            SweepJob::Lead { owner, dead_owner_prefix, ttl } => {
                self.lead(owner, dead_owner_prefix.as_deref(), *ttl, now)
            }
            SweepJob::Resign { proof } => {
                if let Some(leader) = self.sweeps.leader.as_mut().filter(|leader| leader.is_proven_by(proof))
                {
                    leader.expires = now;
                }
                SweepOutcome::Resigned
            }
            SweepJob::Expire { proof, .. } | SweepJob::FindDead { proof } | SweepJob::Reap { proof, .. }
                if !self.leads(proof, now) =>
            {
                SweepOutcome::LeadLost
            }
            SweepJob::Expire { from, at_most, .. } => {
                SweepOutcome::Expired(self.expire_from(*from, *at_most, now))
            }
            SweepJob::FindDead { .. } => SweepOutcome::Dead(self.dead(now)),
            SweepJob::Reap { .. } => SweepOutcome::Reaped(self.reap(job, now)),
        }
    }

    fn lead(
        &mut self,
        owner: &str,
        dead_prefix: Option<&str>,
        ttl: Duration,
        now: UnixMillis,
    ) -> SweepOutcome {
        let epoch = match &self.sweeps.leader {
            None => LeaseEpoch(1),
            Some(leader) if leader.owner == owner => leader.epoch,
            Some(leader) => {
                // An empty text would prove every owner dead, and so proves none.
                let dead =
                    dead_prefix.is_some_and(|prefix| !prefix.is_empty() && leader.owner.starts_with(prefix));
                if leader.expires > now && !dead {
                    let left = u64::try_from(leader.expires.0 - now.0).unwrap_or(0);
                    return SweepOutcome::LedByOther { expires_in: Duration::from_millis(left) };
                }
                LeaseEpoch(leader.epoch.0 + 1)
            }
        };
        self.sweeps.leader = Some(Leader { owner: owner.to_owned(), epoch, expires: now.plus(ttl) });
        SweepOutcome::Leads { epoch }
    }

    fn leads(&self, proof: &LeaderProof, now: UnixMillis) -> bool {
        self.sweeps.leader.as_ref().is_some_and(|leader| leader.is_proven_by(proof) && leader.expires > now)
    }

    fn expire_from(&mut self, from: UnixMillis, at_most: u32, now: UnixMillis) -> ExpiryPass {
        let mut due: Vec<(UnixMillis, CommandId)> = self
            .commands
            .iter()
            .filter(|(_, row)| row.state == CommandState::Pending && row.is_too_late(now))
            .filter_map(|(id, row)| Some((row.not_after?, *id)))
            .filter(|(end, _)| *end >= from)
            .collect();
        due.sort();
        let is_full = due.len() >= at_most as usize;
        due.truncate(at_most as usize);
        for (_, id) in &due {
            let Some(row) = self.commands.get_mut(id) else { continue };
            row.set_state(CommandState::Expired);
            self.sweeps.expired.insert(*id, row.attempt);
        }
        let last = due.last().map(|(end, _)| *end).filter(|_| is_full);
        ExpiryPass { expired: due.len() as u32, is_full, next: last.unwrap_or(now), skipped: None }
    }

    fn dead(&self, now: UnixMillis) -> Vec<DeadGateway> {
        let tables = &self.sweeps;
        self.leases
            .iter()
            .filter(|(gateway, row)| {
                let below = tables.reaped_below.get(gateway).copied().unwrap_or(LeaseEpoch(1));
                let looked = tables.looked_through.get(gateway);
                below < row.epoch || (row.expires <= now && looked.is_none_or(|since| *since < row.expires))
            })
            .map(|(gateway, row)| DeadGateway {
                gateway: gateway.clone(),
                epoch: row.epoch,
                is_expired: row.expires <= now,
            })
            .collect()
    }

    fn reap(&mut self, job: &SweepJob, now: UnixMillis) -> ReapPass {
        let mut pass = ReapPass { is_dead: false, reaped: 0, skipped: false, next: None, now };
        let SweepJob::Reap { dead, after, since, skipped, at_most, .. } = job else { return pass };
        let DeadGateway { gateway, epoch, is_expired } = dead;
        if *is_expired && self.leases.get(gateway).is_none_or(|row| row.expires > now) {
            return pass;
        }
        pass.is_dead = true;
        let beyond = |node: &NodeId| after.as_ref().is_none_or(|after| node > after);
        let page: Vec<NodeId> =
            self.sessions.keys().filter(|node| beyond(node)).take(*at_most as usize).cloned().collect();
        for node in &page {
            let Some(session) = self.sessions.get_mut(node) else { continue };
            let is_left = *is_expired || session.lease_epoch < *epoch;
            if session.connected && session.gateway.as_ref() == Some(gateway) && is_left {
                session.connected = false;
                pass.reaped += 1;
            }
        }
        self.sweeps.reaped += u64::from(pass.reaped);
        pass.next = page.last().filter(|_| page.len() >= *at_most as usize).cloned();
        if pass.next.is_none() && !skipped && self.leases.contains_key(gateway) {
            self.sweeps.reaped_below.insert(gateway.clone(), *epoch);
            if *is_expired {
                self.sweeps.looked_through.insert(gateway.clone(), since.unwrap_or(now));
            }
        }
        pass
    }

    // -- getters ---------------------------------------------------------------------------------

    /// The attempts that a sweep expired while they were pending: no node may ever read one.
    pub fn swept(&self) -> &BTreeMap<CommandId, Attempt> {
        &self.sweeps.expired
    }

    /// Who leads the sweeps or led them last, with the lease's epoch and end.
    pub fn leader(&self) -> Option<(&str, LeaseEpoch, UnixMillis)> {
        let leader = self.sweeps.leader.as_ref()?;
        Some((&leader.owner, leader.epoch, leader.expires))
    }

    /// How far a gateway's sessions are looked through: no session of a lease epoch below the first is
    /// left, and since the second none of a process that is dead.
    pub fn looked_through(&self, gateway: &GatewayId) -> (LeaseEpoch, Option<UnixMillis>) {
        let below = self.sweeps.reaped_below.get(gateway).copied().unwrap_or(LeaseEpoch(1));
        (below, self.sweeps.looked_through.get(gateway).copied())
    }

    /// How many sessions of dead gateways were marked disconnected.
    pub fn reaped(&self) -> u64 {
        self.sweeps.reaped
    }
}

//! Sweeps, as the model conformance tests make them up: who leads, what is looked through, how far.
//!
//! Several owners ask for the lead, and go on with whatever proof they had last, as a zombie does. A look
//! through the sessions of a dead gateway is of one that was found, or of one that is made up: alive, of
//! an older epoch, never seen.
//!
//! 1. `Sweeper` remembers what a leader remembers: its epoch, what it found, how far a look has come.

use std::collections::BTreeMap;
use std::time::Duration;

use gateway_core::ids::{GatewayId, LeaseEpoch, NodeId};
use gateway_core::store::{DeadGateway, Job, LeaderProof, Outcome, SweepJob, SweepOutcome};
use gateway_core::time::UnixMillis;
use proptest::prelude::*;

use super::operations::{GATEWAYS, OWNERS};

/// Of the lead: short enough that it runs out between sweeps now and then.
const LEAD_TTL: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub enum Sweep {
    Lead {
        owner: u8,
        /// The owner who is proven dead; the number after the last is an empty proof.
        dead: Option<u8>,
    },
    Resign {
        owner: u8,
    },
    Expire {
        owner: u8,
        from: From,
        at_most: u8,
    },
    FindDead {
        owner: u8,
    },
    Reap {
        owner: u8,
        dead: Dead,
        /// Whether it goes on after the last page of that gateway.
        goes_on: bool,
        /// Whether an earlier page says that it skipped a session.
        skipped: bool,
        at_most: u8,
    },
}

/// Where an expiry begins.
#[derive(Debug, Clone)]
pub enum From {
    Start,
    /// In milliseconds from now.
    Now(i32),
    /// At the very instant at which a command has ended that still looks pending.
    EndOf(u8),
}

/// Whose sessions are looked through.
#[derive(Debug, Clone)]
pub enum Dead {
    /// One of those found last.
    Found(u8),
    MadeUp {
        gateway: u8,
        older: bool,
        expired: bool,
    },
}

/// Mostly those of one that has just asked for the lead.
pub fn sweeps() -> impl Strategy<Value = Vec<Sweep>> {
    (prop::bool::weighted(0.8), prop::collection::vec(sweep(), 1..6)).prop_map(|(leads, mut sweeps)| {
        if leads {
            sweeps.insert(0, Sweep::Lead { owner: 0, dead: None });
        }
        sweeps
    })
}

fn sweep() -> impl Strategy<Value = Sweep> {
    let owner = || prop_oneof![6 => Just(0u8), 1 => 0..OWNERS];
    let at_most = || prop_oneof![2 => 1..4u8, 1 => Just(100u8)];
    let dead = prop_oneof![
        3 => (0..3u8).prop_map(Dead::Found),
        1 => (0..GATEWAYS, any::<bool>(), any::<bool>())
            .prop_map(|(gateway, older, expired)| Dead::MadeUp { gateway, older, expired }),
    ];
    let from = prop_oneof![
        2 => Just(From::Start),
        1 => (-6_000..500i32).prop_map(From::Now),
        2 => (0..2u8).prop_map(From::EndOf),
    ];
    prop_oneof![
        2 => (owner(), prop::option::weighted(0.2, 0..=OWNERS))
            .prop_map(|(owner, dead)| Sweep::Lead { owner, dead }),
        1 => owner().prop_map(|owner| Sweep::Resign { owner }),
        5 => (owner(), from, at_most())
            .prop_map(|(owner, from, at_most)| Sweep::Expire { owner, from, at_most }),
        4 => owner().prop_map(|owner| Sweep::FindDead { owner }),
        6 => (owner(), dead, any::<bool>(), prop::bool::weighted(0.1), at_most()).prop_map(
            |(owner, dead, goes_on, skipped, at_most)| Sweep::Reap { owner, dead, goes_on, skipped, at_most }
        ),
    ]
}

/// What the leaders of a sequence remember.
#[derive(Debug, Default)]
pub struct Sweeper {
    epochs: BTreeMap<String, LeaseEpoch>,
    found: Vec<DeadGateway>,
    /// The last node of the last page and when the first was read, by gateway.
    scans: BTreeMap<GatewayId, (Option<NodeId>, Option<UnixMillis>)>,
}

impl Sweeper {
    fn proof(&self, owner: u8) -> LeaderProof {
        let owner = owner_name(owner);
        let epoch = self.epochs.get(&owner).copied().unwrap_or(LeaseEpoch(1));
        LeaderProof { owner, epoch }
    }

    /// The job of a sweep; `None` where it is about a gateway that was not found. `lease` gives the
    /// name of a gateway and the epoch that its lease has reached; `end` when commands
    /// have ended that look pending.
    pub fn job(
        &self,
        sweep: &Sweep,
        now: UnixMillis,
        lease: impl Fn(u8) -> (GatewayId, LeaseEpoch),
        end: impl Fn(u8) -> Option<UnixMillis>,
    ) -> Option<Job> {
        Some(Job::Sweep(match sweep {
            Sweep::Lead { owner, dead } => SweepJob::Lead {
                owner: owner_name(*owner),
                dead_owner_prefix: dead
                    .map(|dead| if dead == OWNERS { String::new() } else { owner_name(dead) }),
                ttl: LEAD_TTL,
            },
            Sweep::Resign { owner } => SweepJob::Resign { proof: self.proof(*owner) },
            Sweep::Expire { owner, from, at_most } => SweepJob::Expire {
                proof: self.proof(*owner),
                from: match from {
                    From::Start => UnixMillis(0),
                    From::Now(millis) => UnixMillis(now.0 + i64::from(*millis)),
                    From::EndOf(command) => end(*command).unwrap_or_default(),
                },
                at_most: u32::from(*at_most),
            },
            Sweep::FindDead { owner } => SweepJob::FindDead { proof: self.proof(*owner) },
            Sweep::Reap { owner, dead, goes_on, skipped, at_most } => {
                let dead = match dead {
                    Dead::Found(which) => self.found.get(usize::from(*which))?.clone(),
                    Dead::MadeUp { gateway, older, expired } => {
                        let (gateway, LeaseEpoch(epoch)) = lease(*gateway);
                        let epoch = LeaseEpoch(if *older { epoch.saturating_sub(1) } else { epoch });
                        DeadGateway { gateway, epoch, is_expired: *expired }
                    }
                };
                let scan = self.scans.get(&dead.gateway).filter(|_| *goes_on).cloned();
                let (after, since) = scan.unwrap_or_default();
                let (proof, at_most) = (self.proof(*owner), u32::from(*at_most));
                SweepJob::Reap { proof, dead, after, since, skipped: *skipped, at_most }
            }
        }))
    }

    pub fn remember(&mut self, job: &Job, outcome: &Outcome) {
        let (Job::Sweep(job), Outcome::Sweep(Ok(outcome))) = (job, outcome) else { return };
        match (job, outcome) {
            (SweepJob::Lead { owner, .. }, SweepOutcome::Leads { epoch }) => {
                self.epochs.insert(owner.clone(), *epoch);
            }
            (_, SweepOutcome::Dead(found)) => self.found.clone_from(found),
            (SweepJob::Reap { dead, since, .. }, SweepOutcome::Reaped(pass)) => {
                let scan = (pass.next.clone(), since.or(Some(pass.now)));
                self.scans.insert(dead.gateway.clone(), scan);
            }
            _ => {}
        }
    }
}

pub fn owner_name(index: u8) -> String {
    format!("owner{index}")
}

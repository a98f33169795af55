//! Which job leaves next, when the next may, and how each queue is doing.
//!
//! Every queue appears here once in each of these lists.
//!
//! 1. A queue gives a job only while it has none in flight; routing queues only while the lease is held.
//! 2. The lease goes first, then what routes, then what stores, then what looks.

use super::lanes::Look;
use super::lease::LeaseWish;
use super::{Phase, QueueHealth, Writer};
use crate::ids::LeaseEpoch;
use crate::store::{Job, LeaseJob, LeaseProof, Queue};
use crate::time::Moment;

impl Writer {
    /// The next job for a store, of a queue that has none in flight.
    pub fn poll_job(&mut self, now: Moment) -> Option<Job> {
        if self.phase() == Phase::Stopped {
            return None;
        }
        self.poll_lease_job(now)
            .or_else(|| self.poll_routing_job(now))
            .or_else(|| {
                let entries = self.updates.poll_batch(&self.config.limits, now)?;
                Some(Job::Updates { entries })
            })
            .or_else(|| {
                let entries = self.events.poll_batch(&self.config.limits, now)?;
                Some(Job::Events { entries })
            })
            .or_else(|| self.poll_specs_job(now))
            .or_else(|| {
                let entries = self.statuses.poll_batch(&self.config.limits, now)?;
                Some(Job::Statuses { entries })
            })
            .or_else(|| {
                let entries = self.inventory.poll_batch(&self.config.limits, now)?;
                Some(Job::Inventory { entries, most: self.config.limits.sections_per_node })
            })
            .or_else(|| {
                let entries = self.presence.poll_batch(&self.config.limits, now)?;
                Some(Job::Presence { gateway: self.config.gateway.clone(), entries })
            })
            .or_else(|| {
                let look = self.may_route() && self.directory.len() > 0 && self.cancels.poll_look(now);
                look.then(|| Job::Cancels { gateway: self.config.gateway.clone() })
            })
            .or_else(|| {
                let look = if self.may_route() { self.revocations.poll_look(now) } else { None };
                look.map(Job::Revocations)
            })
            .or_else(|| self.poll_sweep_job(now))
    }

    /// When `handle_time` must be called next; it may move with each input. `poll_job` may have a
    /// job then that it did not have before.
    pub fn next_deadline(&self) -> Option<Moment> {
        if self.phase() == Phase::Stopped {
            return None;
        }
        let routing = self.may_route().then(|| {
            let dispatch = self.dispatch.next_deadline(&self.ledger);
            let hellos = self.hellos.queue().next_deadline();
            let cancels = self.cancels.next_deadline().filter(|_| self.directory.len() > 0);
            let specs = self.specs.next_look().filter(|_| self.directory.len() > 0);
            let revocations = self.revocations.next_deadline();
            [dispatch, hellos, cancels, specs, revocations, self.next_poll].into_iter().flatten().min()
        });
        let always = [
            self.lease.next_deadline(self.lease_aim()),
            self.updates.next_deadline(),
            self.events.queue().next_deadline(),
            self.specs.next_answers(),
            self.statuses.queue().next_deadline(),
            self.inventory.next_deadline(),
            self.presence.next_deadline(),
            self.drain.next_deadline(),
            self.stop.next_deadline(),
            self.sweep_deadline(),
            routing.flatten(),
        ];
        always.into_iter().flatten().min()
    }

    /// How a queue is doing.
    pub fn queue_health(&self, queue: Queue) -> &QueueHealth {
        match queue {
            Queue::Lease => self.lease.backoff().health(),
            Queue::Hellos => self.hellos.queue().backoff().health(),
            Queue::Dispatch => self.dispatch.backoff().health(),
            Queue::Updates => self.updates.backoff().health(),
            Queue::Events => self.events.queue().backoff().health(),
            Queue::Statuses => self.statuses.queue().backoff().health(),
            Queue::Inventory => self.inventory.backoff().health(),
            Queue::Presence => self.presence.queue().backoff().health(),
            Queue::Feed => self.cancels.backoff().health(),
            Queue::Revocations => self.revocations.backoff().health(),
            Queue::Sweeps => self.sweeps.backoff().health(),
            Queue::Specs => self.specs.backoff().health(),
        }
    }

    /// Entries of a queue that wait for a batch; lanes that wait for a pass.
    pub fn queue_len(&self, queue: Queue) -> usize {
        match queue {
            Queue::Lease | Queue::Feed | Queue::Sweeps | Queue::Revocations => 0,
            Queue::Hellos => self.hellos.queue().len(),
            Queue::Dispatch => self.ledger.waiting(Look::Urgent) + self.ledger.waiting(Look::Patrol),
            Queue::Updates => self.updates.len(),
            Queue::Events => self.events.queue().len(),
            Queue::Statuses => self.statuses.queue().len(),
            Queue::Inventory => self.inventory.len(),
            Queue::Presence => self.presence.queue().len(),
            Queue::Specs => self.specs.len(),
        }
    }

    fn poll_lease_job(&mut self, now: Moment) -> Option<Job> {
        let wish = self.lease.poll_wish(self.lease_aim(), now)?;
        let job = match wish {
            LeaseWish::Acquire => LeaseJob::Acquire {
                gateway: self.config.gateway.clone(),
                owner: self.config.owner.clone(),
                dead_owner_prefix: self.config.dead_owner_prefix.clone(),
                ttl: self.config.lease_ttl,
                row: self.config.row.clone(),
            },
            LeaseWish::Renew(epoch) => LeaseJob::Renew {
                proof: self.proof(epoch),
                ttl: self.config.lease_ttl,
                sessions: u32::try_from(self.directory.len()).unwrap_or(u32::MAX),
                draining: self.drain.is_begun() || self.stop.is_begun(),
            },
            LeaseWish::Release(epoch) => LeaseJob::Release { proof: self.proof(epoch) },
        };
        Some(Job::Lease(job))
    }

    fn poll_routing_job(&mut self, now: Moment) -> Option<Job> {
        let epoch = self.lease.epoch().filter(|_| self.may_route())?;
        if let Some(entries) = self.hellos.poll_batch(&self.config.limits, now) {
            return Some(Job::Hellos { proof: self.proof(epoch), entries });
        }
        let proof = self.proof(epoch);
        let job = self.dispatch.poll_job(&mut self.ledger, proof, now)?;
        self.counts.dispatch_passes += u64::from(matches!(job, Job::Dispatch { .. }));
        Some(job)
    }

    fn proof(&self, epoch: LeaseEpoch) -> LeaseProof {
        LeaseProof { gateway: self.config.gateway.clone(), owner: self.config.owner.clone(), epoch }
    }
}

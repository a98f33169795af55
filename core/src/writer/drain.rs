//! The drain: nodes are told to leave, and new ones are refused.
//!
//! Owns when it ends. Which node leaves when is `crate::drain`'s, what a session makes of it the
//! session's. Commands go on to whoever is still here, since a node that is on its way has both its
//! sessions until the new one is welcomed.
//!
//! 1. A drain that leads to the stop begins once and leads nowhere else. One that the control API asked for
//!    stands until it is taken back, or until one to the stop takes its place: nobody is told twice then.
//! 2. The stop begins when no session is left (a fence leaves none), at the latest `within + grace`
//!    after the beginning of the drain that leads to it, or when it is asked for.
//! 3. Whoever is still here then is cut with a delay of its own, never as one of a herd. A drain that
//!    stands cuts nobody.
//! 4. The lease is kept as long as it is ours, and its next renewal says that the gateway drains. With one
//!    that is lost all sessions are: a drain to the stop comes to it, and none is asked for anew; one that
//!    stands goes on with the next lease.

use super::Writer;
use crate::desk::{DeskAnswer, DeskRefusal};
use crate::drain::{DrainOrder, DrainPlan};
use crate::seam::ToShard;
use crate::time::Moment;

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drain {
    #[default]
    NotBegun,
    /// Until it is taken back.
    Standing { order: DrainOrder },
    /// To the stop.
    Leaving { until: Moment, order: DrainOrder },
    /// The stop has begun.
    Over,
}

impl Drain {
    pub(super) fn is_begun(self) -> bool {
        self != Self::NotBegun
    }

    pub(super) fn leads_to_stop(self) -> bool {
        matches!(self, Self::Leaving { .. } | Self::Over)
    }

    /// What shards are told when the lease is had.
    pub(super) fn opening(self) -> ToShard {
        match self {
            Self::Standing { order } | Self::Leaving { order, .. } => ToShard::Drain(order),
            Self::NotBegun | Self::Over => ToShard::Serving(true),
        }
    }

    pub(super) fn next_deadline(self) -> Option<Moment> {
        match self {
            Self::Leaving { until, .. } => Some(until),
            Self::NotBegun | Self::Standing { .. } | Self::Over => None,
        }
    }
}

impl Writer {
    /// The nodes must leave, and the process then end in good order.
    pub fn handle_drain(&mut self, plan: DrainPlan, now: Moment) {
        self.observe_time(now);
        if self.drain.leads_to_stop() || self.stop.is_begun() {
            return;
        }
        let order = self.begin_drain(plan);
        self.drain = Drain::Leaving { until: now + plan.within + plan.grace, order };
        self.advance_stop(now);
    }

    /// The control API asks for a drain that may be taken back.
    pub(super) fn take_drain_ask(&mut self, plan: DrainPlan, now: Moment) -> DeskAnswer {
        if self.stop.is_begun() {
            return DeskAnswer::Refused(DeskRefusal::Stopping);
        }
        let is_new = !self.drain.is_begun();
        if is_new {
            self.drain = Drain::Standing { order: self.begin_drain(plan) };
            self.advance_stop(now);
        }
        DeskAnswer::Draining { sessions: self.directory.len(), is_new }
    }

    /// The control API takes it back. Who was told to leave leaves all the same.
    pub(super) fn take_undrain_ask(&mut self) -> DeskAnswer {
        if self.drain.leads_to_stop() || self.stop.is_begun() {
            return DeskAnswer::Refused(DeskRefusal::Stopping);
        }
        let was_draining = self.drain.is_begun();
        if was_draining {
            self.drain = Drain::NotBegun;
            self.lease.handle_news();
            for shard in self.shards() {
                self.to_shard.push_back((shard, ToShard::Serving(self.lease.is_held())));
            }
        }
        DeskAnswer::Undrained { was_draining }
    }

    /// Tells the shards, unless they were told; gives what they go by.
    fn begin_drain(&mut self, plan: DrainPlan) -> DrainOrder {
        if let Drain::Standing { order } = self.drain {
            return order;
        }
        let seed = self.lease.epoch().map_or(0, |epoch| epoch.0);
        let order = DrainOrder { within: plan.within, seed };
        self.lease.handle_news();
        for shard in self.shards() {
            self.to_shard.push_back((shard, ToShard::Drain(order)));
        }
        order
    }

    /// Begins the stop when it is time.
    pub(super) fn advance_drain(&mut self, now: Moment) {
        if let Drain::Leaving { until, .. } = self.drain
            && (self.directory.len() == 0 || now >= until)
        {
            self.begin_stop(now);
        }
    }

    /// The stop has begun.
    pub(super) fn end_drain(&mut self) {
        if let Drain::Leaving { order, .. } | Drain::Standing { order } = self.drain {
            self.drain = Drain::Over;
            for shard in self.shards() {
                self.to_shard.push_back((shard, ToShard::Cut(order)));
            }
        }
    }
}

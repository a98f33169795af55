//! The drain: nodes are told to leave, and the stop begins when all have, or when they had long enough.
//!
//! Owns when it ends. Which node leaves when is `crate::drain`'s, what a session makes of it the
//! session's. Commands go on to whoever is still here, since a node that is on its way has both its
//! sessions until the new one is welcomed.
//!
//! 1. It begins once, and leads to the stop and nowhere else: a gateway that has told its nodes to leave
//!    does not take new ones.
//! 2. The stop begins when no session is left (a fence leaves none), at the latest `within + grace`
//!    after the beginning, or when it is asked for.
//! 3. Whoever is still here then is cut with a delay of its own, never as one of a herd.
//! 4. The lease is kept as long as it is ours, and its next renewal says that the gateway drains; with one
//!    that is lost all sessions are, so that the stop begins and none is asked for anew.

use super::Writer;
use crate::drain::{DrainOrder, DrainPlan};
use crate::seam::ToShard;
use crate::time::Moment;

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drain {
    #[default]
    NotBegun,
    Leaving {
        until: Moment,
        order: DrainOrder,
    },
    /// The stop has begun.
    Over,
}

impl Drain {
    pub(super) fn is_begun(self) -> bool {
        self != Self::NotBegun
    }

    pub(super) fn next_deadline(self) -> Option<Moment> {
        match self {
            Self::Leaving { until, .. } => Some(until),
            Self::NotBegun | Self::Over => None,
        }
    }
}

impl Writer {
    /// The nodes must leave, and the process then end in good order.
    pub fn handle_drain(&mut self, plan: DrainPlan, now: Moment) {
        self.observe_time(now);
        if self.drain.is_begun() || self.stop.is_begun() {
            return;
        }
        let seed = self.lease.epoch().map_or(0, |epoch| epoch.0);
        let order = DrainOrder { within: plan.within, seed };
        self.drain = Drain::Leaving { until: now + plan.within + plan.grace, order };
        self.lease.handle_news();
        for shard in self.shards() {
            self.to_shard.push_back((shard, ToShard::Drain(order)));
        }
        self.advance_stop(now);
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
        if let Drain::Leaving { order, .. } = self.drain {
            self.drain = Drain::Over;
            for shard in self.shards() {
                self.to_shard.push_back((shard, ToShard::Cut(order)));
            }
        }
    }
}

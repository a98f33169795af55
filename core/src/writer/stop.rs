//! The way to a good end: shards first, then what they left to be written, then the lease.
//!
//! Owns the order and the bounds in time. Never hurries a commit: it only stops waiting for it.
//!
//! 1. The lease is released when all shards have stopped and nothing of theirs is left to write.
//! 2. A shard that does not stop is waited for `SHARDS_TAKE_AT_MOST`, what can't be written
//!    `FLUSH_TAKES_AT_MOST` after that. Then the lease is released all the same, since nothing that is left
//!    needs it: what routes is refused without it, and all else is fenced by its session or idempotent.
//! 3. The release has `RELEASE_TAKES_AT_MOST` of its own; then the thread may end: the lease runs out by
//!    itself, and what was not acked is sent again by the nodes.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Writer;
use super::lease::LeaseAim;
use crate::ids::ShardId;
use crate::seam::ToShard;
use crate::time::Moment;

const SHARDS_TAKE_AT_MOST: Duration = Duration::from_secs(10);
const FLUSH_TAKES_AT_MOST: Duration = Duration::from_secs(5);
/// At least; a flush that is over sooner leaves it the rest of its time.
const RELEASE_TAKES_AT_MOST: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopState {
    NotBegun,
    Shards { until: Moment },
    Flush { until: Moment },
    Release { until: Moment },
    Over,
}

#[derive(Debug)]
pub(super) struct Stop {
    state: StopState,
    running: BTreeSet<ShardId>,
}

impl Stop {
    pub(super) fn new(shards: u16) -> Self {
        Self { state: StopState::NotBegun, running: (0..shards).map(ShardId).collect() }
    }

    /// Whether this call began it.
    pub(super) fn begin(&mut self, now: Moment) -> bool {
        let first = self.state == StopState::NotBegun;
        if first {
            self.state = StopState::Shards { until: now + SHARDS_TAKE_AT_MOST };
        }
        first
    }

    pub(super) fn handle_shard_stopped(&mut self, shard: ShardId) {
        self.running.remove(&shard);
    }

    /// Steps on as far as it goes.
    fn advance(&mut self, flushed: bool, lease_given_up: bool, now: Moment) {
        loop {
            let next = match self.state {
                StopState::Shards { until } if self.running.is_empty() || now >= until => {
                    StopState::Flush { until: now + FLUSH_TAKES_AT_MOST }
                }
                StopState::Flush { until } if flushed || now >= until => {
                    StopState::Release { until: until.max(now + RELEASE_TAKES_AT_MOST) }
                }
                StopState::Release { until } if lease_given_up || now >= until => StopState::Over,
                _ => return,
            };
            self.state = next;
        }
    }

    pub(super) fn is_begun(&self) -> bool {
        self.state != StopState::NotBegun
    }

    pub(super) fn is_over(&self) -> bool {
        self.state == StopState::Over
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        match self.state {
            StopState::NotBegun | StopState::Over => None,
            StopState::Shards { until } | StopState::Flush { until } | StopState::Release { until } => {
                Some(until)
            }
        }
    }
}

impl Writer {
    pub(super) fn begin_stop(&mut self, now: Moment) {
        if !self.stop.begin(now) {
            return;
        }
        self.end_drain();
        // Their sessions end as `Stopping`; what is granted all the same is written as disconnected.
        self.released_bytes += self.hellos.forsake();
        for shard in self.shards() {
            self.to_shard.push_back((shard, ToShard::Stop));
        }
    }

    /// To be called after each input: a stop that waits for something may have it now.
    pub(super) fn advance_stop(&mut self, now: Moment) {
        self.advance_drain(now);
        if self.stop.is_begun() {
            self.presence.handle_due();
            let flushed = self.updates.is_idle()
                && self.events.queue().is_idle()
                && self.statuses.queue().is_idle()
                && self.inventory.is_idle()
                && self.presence.queue().is_idle()
                && self.hellos.queue().is_idle()
                && !self.dispatch.is_in_flight()
                && self.specs.answers().is_idle()
                && self.sweeps.is_over();
            self.stop.advance(flushed, self.lease.is_given_up(), now);
        }
    }

    pub(super) fn lease_aim(&self) -> LeaseAim {
        match self.stop.state {
            StopState::NotBegun => LeaseAim::Hold,
            StopState::Shards { .. } | StopState::Flush { .. } => LeaseAim::Keep,
            StopState::Release { .. } | StopState::Over => LeaseAim::Release,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::default() + Duration::from_secs(seconds)
    }

    #[test]
    fn a_stop_waits_for_shards_then_writes_then_the_lease() {
        let mut stop = Stop::new(2);
        assert!(stop.begin(at(0)));
        assert!(!stop.begin(at(1)));
        stop.handle_shard_stopped(ShardId(0));
        stop.advance(true, true, at(1));
        assert_eq!(stop.state, StopState::Shards { until: at(10) });
        stop.handle_shard_stopped(ShardId(1));
        stop.advance(false, false, at(2));
        assert_eq!(stop.state, StopState::Flush { until: at(7) });
        stop.advance(true, false, at(3));
        assert_eq!(stop.state, StopState::Release { until: at(7) });
        stop.advance(true, true, at(4));
        assert!(stop.is_over());
    }

    #[test]
    fn nothing_is_waited_for_without_end() {
        let mut stop = Stop::new(1);
        stop.begin(at(0));
        stop.advance(false, false, at(10));
        assert_eq!(stop.state, StopState::Flush { until: at(15) });
        stop.advance(false, false, at(15));
        assert_eq!(stop.state, StopState::Release { until: at(17) });
        stop.advance(false, false, at(17));
        assert!(stop.is_over());
    }

    #[test]
    fn a_flush_that_ends_late_leaves_the_release_a_time_of_its_own() {
        let mut stop = Stop::new(0);
        stop.begin(at(0));
        stop.advance(true, false, at(4));
        assert_eq!(stop.state, StopState::Release { until: at(9) });
        let mut stop = Stop::new(0);
        stop.begin(at(0));
        stop.advance(false, false, at(0));
        stop.advance(true, false, at(4));
        assert_eq!(stop.state, StopState::Release { until: at(6) });
    }
}

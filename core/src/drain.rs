//! How a gateway sends its nodes away before it stops: what each of them is told, and when.
//!
//! Owns the delays. Never ends a session and knows no time: the writer says when the drain begins and
//! when it is over, a session what being told means to it.
//!
//! 1. Each session is told a delay of its own, spread evenly over `within`, and the same one however
//!    often it is asked for.
//! 2. Whoever is refused or cut is told a delay too: nobody has to guess, and nobody returns as one of
//!    a herd.

use std::time::Duration;

use crate::close::CloseReason;
use crate::ids::SessionKey;
use crate::splitmix::part_of;

/// The shortest delay of whoever is refused or cut: a balancer needs a moment to look elsewhere.
const SHORTEST_PUSHBACK: Duration = Duration::from_millis(500);
/// The longest of them, where `within` is not shorter: a node without a session should not be without
/// one for long.
const LONGEST_PUSHBACK: Duration = Duration::from_secs(10);

/// How a gateway is to be drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainPlan {
    /// Over how long its nodes are spread.
    pub within: Duration,
    /// How much longer those that were told may take; then they are cut.
    pub grace: Duration,
}

/// What shards do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainOrder {
    /// Over how long nodes are spread.
    pub within: Duration,
    /// Makes the delays of one drain others than those of the next.
    pub seed: u64,
}

impl DrainOrder {
    /// After how long the node of this session is to dial anew.
    pub fn delay_of(&self, key: SessionKey) -> Duration {
        part_of(self.within, self.seed ^ number(key))
    }

    /// The answer to a stream that is opened during the drain. `random` is any number.
    pub fn refusal(&self, random: u64) -> CloseReason {
        let room = LONGEST_PUSHBACK.min(self.within).saturating_sub(SHORTEST_PUSHBACK);
        CloseReason::Draining { reconnect_after: SHORTEST_PUSHBACK + part_of(room, random) }
    }

    /// The end of a session that has not left, or that had not come so far as to be told.
    pub fn cut(&self, key: SessionKey) -> CloseReason {
        self.refusal(self.seed.rotate_left(32) ^ number(key))
    }
}

fn number(key: SessionKey) -> u64 {
    (u64::from(key.serial) << 32) ^ u64::from(key.slot) ^ (u64::from(key.shard.0) << 24)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ShardId;

    const ORDER: DrainOrder = DrainOrder { within: Duration::from_secs(60), seed: 7 };

    fn key(shard: u16, slot: u32) -> SessionKey {
        SessionKey { shard: ShardId(shard), slot, serial: slot + 1 }
    }

    #[test]
    fn ten_thousand_nodes_leave_evenly_each_at_a_moment_of_its_own() {
        let mut in_second = [0_u32; 60];
        for shard in 0..4 {
            for slot in 0..2500 {
                let delay = ORDER.delay_of(key(shard, slot));
                assert_eq!(delay, ORDER.delay_of(key(shard, slot)));
                in_second[usize::try_from(delay.as_secs()).unwrap()] += 1;
            }
        }
        // 167 is the mean; the bounds are five times its spread away.
        assert!(in_second.iter().all(|nodes| (100..240).contains(nodes)), "{in_second:?}");
    }

    #[test]
    fn another_drain_has_other_delays() {
        let next = DrainOrder { seed: 8, ..ORDER };
        let same = (0..1000)
            .filter(|slot| ORDER.delay_of(key(0, *slot)).as_secs() == next.delay_of(key(0, *slot)).as_secs());
        assert!(same.count() < 60, "one in sixty at random");
    }

    #[test]
    fn whoever_is_refused_or_cut_is_told_a_bounded_delay_that_is_not_everyones() {
        let mut told = std::collections::BTreeSet::new();
        for slot in 0..1000 {
            for reason in [ORDER.cut(key(1, slot)), ORDER.refusal(u64::from(slot))] {
                let CloseReason::Draining { reconnect_after } = reason else { panic!("{reason:?}") };
                assert!((SHORTEST_PUSHBACK..=LONGEST_PUSHBACK).contains(&reconnect_after));
                told.insert(reconnect_after);
            }
        }
        assert!(told.len() > 1900, "{} delays", told.len());
        let at_once = DrainOrder { within: Duration::ZERO, seed: 1 };
        assert_eq!(at_once.refusal(3), CloseReason::Draining { reconnect_after: SHORTEST_PUSHBACK });
    }
}

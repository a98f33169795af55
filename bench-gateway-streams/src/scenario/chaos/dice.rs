//! What of a chaos run is chance: the order of faults, who suffers, how long it lasts.
//!
//! 1. All of it comes of the seed. What the processes then do is their own affair.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Numbers that a seed repeats.
#[derive(Debug)]
pub(super) struct Dice(SmallRng);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(SmallRng::seed_from_u64(seed))
    }

    /// One of `count`, from 0.
    pub(super) fn pick(&mut self, count: usize) -> usize {
        self.0.random_range(0..count.max(1))
    }

    /// A time from `shortest` to `longest`.
    pub(super) fn between(&mut self, shortest: Duration, longest: Duration) -> Duration {
        shortest + longest.saturating_sub(shortest).mul_f64(self.0.random::<f64>())
    }

    /// Puts them into another order.
    pub(super) fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.pick(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_what_is_chance() {
        let draw = |seed| {
            let (mut dice, mut order) = (Dice::new(seed), (0..9).collect::<Vec<_>>());
            dice.shuffle(&mut order);
            (order, dice.pick(3), dice.between(Duration::from_secs(1), Duration::from_secs(9)))
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let mut sorted = draw(7).0;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..9).collect::<Vec<_>>(), "none is lost");
    }
}

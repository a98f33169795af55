//! Numbers that look like chance (SplitMix64), and times that are spread by them.
//!
//! Owns the generator and its finalizer. Never asks a system for chance: whoever wants some brings a seed.
//!
//! 1. A seed gives the same numbers again, on any machine.
//! 2. Numbers that are near give parts that are not: a caller may just count.

use std::time::Duration;

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A row of numbers, from a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitMix(u64);

impl SplitMix {
    /// The row of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        finalized(self.0)
    }
}

/// Another number for each, in which every bit hangs on every bit.
pub const fn finalized(number: u64) -> u64 {
    let mut mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A part of `most`, spread evenly over numbers.
pub fn part_of(most: Duration, number: u64) -> Duration {
    let nanos = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
    let mixed = SplitMix::new(number).next();
    // The upper half of the product is `most` times the part that `mixed` is of 2^64.
    Duration::from_nanos(((u128::from(nanos) * u128::from(mixed)) >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_numbers_that_it_gives_everywhere() {
        let mut row = SplitMix::new(1_234_567);
        let first = [row.next(), row.next(), row.next()];
        // As published with the algorithm.
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn counted_numbers_spread_evenly_over_the_whole() {
        let mut tenths = [0; 10];
        for number in 0..10_000 {
            let part = part_of(Duration::from_secs(10), number);
            tenths[usize::try_from(part.as_secs()).unwrap()] += 1;
        }
        assert!(tenths.iter().all(|tenth| (850..1150).contains(tenth)), "{tenths:?}");
        assert_eq!(part_of(Duration::ZERO, 7), Duration::ZERO);
    }
}

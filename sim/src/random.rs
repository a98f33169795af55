//! The one source of chance in a simulated world: a seed gives the same world again, on any machine.
//!
//! Owns what is asked of chance. Never looks at a clock, an address or a hash map's order.

use gateway_core::splitmix::SplitMix;

/// Chance, from a seed.
#[derive(Debug, Clone)]
pub struct Chance(SplitMix);

impl Chance {
    /// The chance of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(SplitMix::new(seed))
    }

    /// Any number.
    pub const fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// A number of `range`, which is not empty.
    pub const fn within(&mut self, range: std::ops::Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    /// True `percent` times of a hundred.
    pub const fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    /// One of `choices`, which is not empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[(self.next() % choices.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_again() {
        let numbers = |seed| -> Vec<u64> {
            let mut chance = Chance::new(seed);
            (0..8).map(|_| chance.within(10..20)).collect()
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        assert!(numbers(7).iter().all(|number| (10..20).contains(number)));
    }
}

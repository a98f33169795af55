//! The one source of chance in a simulated world: a seed gives the same world again, on any machine.
//!
//! Owns a SplitMix64 generator. Never looks at a clock, an address or a hash map's order.

/// Chance, from a seed.
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// The chance of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
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

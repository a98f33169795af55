//! How many connections a peer may hold, so that none takes the descriptors of all others.
//!
//! A connection with a session is bounded by admission; one without may stand as long as its peer keeps a
//! call of health on it, and costs a descriptor. A `Crowd` counts those of each certificate on one shard, and
//! another its streams of tunnels; those of peers without a certificate are counted for all shards together, by `Admission`.
//!
//! 1. Whoever was let in is counted until it left, and leaves once.
//! 2. No count exceeds its bound.

use std::collections::BTreeMap;

use crate::revocation::SerialKey;

/// The connections of one shard, by certificate.
#[derive(Debug)]
pub struct Crowd {
    of_each: BTreeMap<SerialKey, u32>,
    most: u32,
}

impl Crowd {
    /// Where each certificate may have `most` connections.
    pub const fn new(most: u32) -> Self {
        Self { of_each: BTreeMap::new(), most }
    }

    /// A connection under this certificate came. Whether it may stay.
    pub fn handle_arrival(&mut self, certificate: SerialKey) -> bool {
        let count = self.of_each.entry(certificate).or_default();
        let may_stay = *count < self.most;
        if may_stay {
            *count += 1;
        }
        may_stay
    }

    /// Whether another connection under this certificate might stay.
    pub fn has_room(&self, certificate: SerialKey) -> bool {
        self.of_each.get(&certificate).is_none_or(|count| *count < self.most)
    }

    /// One that was let in has left.
    pub fn handle_departure(&mut self, certificate: SerialKey) {
        let count = self.of_each.get_mut(&certificate);
        debug_assert!(count.is_some(), "a connection left that never came");
        if let Some(count) = count {
            *count -= 1;
            if *count == 0 {
                self.of_each.remove(&certificate);
            }
        }
    }

    /// Certificates with a connection.
    pub fn certificates(&self) -> usize {
        self.of_each.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_certificate_has_its_bound_and_no_other_pays_for_it() {
        let (mut crowd, greedy, other) = (Crowd::new(2), SerialKey::of("01"), SerialKey::of("02"));
        assert_eq!([greedy; 3].map(|one| crowd.handle_arrival(one)), [true, true, false]);
        assert!(crowd.handle_arrival(other));
        crowd.handle_departure(greedy);
        assert!(crowd.handle_arrival(greedy) && !crowd.handle_arrival(greedy));
    }

    #[test]
    fn who_left_is_forgotten() {
        let (mut crowd, one) = (Crowd::new(1), SerialKey::of("01"));
        assert!(crowd.handle_arrival(one));
        crowd.handle_departure(one);
        assert_eq!(crowd.certificates(), 0);
    }
}

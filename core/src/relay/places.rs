//! Which calls a shard takes to be passed on, before anything of their requests was read.
//!
//! A place is held from the opening of a call to its end, and a peer may be slow with its request and with
//! its answer: so nobody may hold many. One certificate has few places. Joins, which anybody may ask for,
//! have places of their own, so that strangers take none of those of nodes.
//!
//! 1. At most `MAX_RELAYS_PER_SHARD` are held, of which `MAX_JOINS_PER_SHARD` by joins and all others not.
//! 2. One certificate holds at most `MAX_RELAYS_PER_CERTIFICATE`.
//! 3. What was given is given back once; a refusal takes nothing.

use std::time::Duration;

use crate::close::{AdmissionBound, CloseReason};
use crate::crowd::Crowd;
use crate::limits::{MAX_JOINS_PER_SHARD, MAX_RELAYS_PER_CERTIFICATE, MAX_RELAYS_PER_SHARD};
use crate::revocation::SerialKey;

/// What a call that finds no place is told to wait.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The places of one shard.
#[derive(Debug)]
pub struct RelayPlaces {
    joins: usize,
    of_nodes: usize,
    of_each: Crowd,
}

impl Default for RelayPlaces {
    fn default() -> Self {
        Self { joins: 0, of_nodes: 0, of_each: Crowd::new(MAX_RELAYS_PER_CERTIFICATE) }
    }
}

impl RelayPlaces {
    /// A call comes, under this certificate; a join counts under none. `Err` is a `CloseReason::Refused`.
    pub fn handle_open(&mut self, certificate: Option<SerialKey>) -> Result<(), CloseReason> {
        let has_place = match certificate {
            None => self.joins < MAX_JOINS_PER_SHARD,
            Some(certificate) => {
                self.of_nodes < MAX_RELAYS_PER_SHARD - MAX_JOINS_PER_SHARD
                    && self.of_each.handle_arrival(certificate)
            }
        };
        if !has_place {
            return Err(CloseReason::Refused { bound: AdmissionBound::Relays, retry_after: RETRY_AFTER });
        }
        *self.count(certificate) += 1;
        Ok(())
    }

    /// A call that had its place is over.
    pub fn handle_end(&mut self, certificate: Option<SerialKey>) {
        let count = self.count(certificate);
        debug_assert!(*count > 0, "a place was given back that was never given");
        *count = count.saturating_sub(1);
        if let Some(certificate) = certificate {
            self.of_each.handle_departure(certificate);
        }
    }

    fn count(&mut self, certificate: Option<SerialKey>) -> &mut usize {
        if certificate.is_some() { &mut self.of_nodes } else { &mut self.joins }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: usize) -> Option<SerialKey> {
        Some(SerialKey::of(&format!("{number:X}")))
    }

    fn taken(places: &mut RelayPlaces, whose: Option<SerialKey>, asked: usize) -> usize {
        (0..asked).filter(|_| places.handle_open(whose).is_ok()).count()
    }

    #[test]
    fn one_certificate_has_four_places_and_leaves_all_others_theirs() {
        let mut places = RelayPlaces::default();
        assert_eq!(taken(&mut places, node(0), 1_000), 4);
        let refused = places.handle_open(node(0)).expect_err("it has its places");
        assert_eq!(refused.to_string(), "too many calls are being passed on; retry after the given delay");
        assert_eq!(refused.pushback(), Some(RETRY_AFTER));
        let of_others: usize = (1..1_000).map(|other| taken(&mut places, node(other), 1)).sum();
        assert_eq!(of_others, 124, "all that are for nodes");
        assert_eq!(taken(&mut places, None, 1_000), 128, "and none of them is a join's");
    }

    #[test]
    fn strangers_who_join_take_no_place_of_a_node() {
        let mut places = RelayPlaces::default();
        assert_eq!(taken(&mut places, None, 1_000), 128);
        assert_eq!((0..32).map(|n| taken(&mut places, node(n), 4)).sum::<usize>(), 128);
        assert!(places.handle_open(node(99)).is_err());
        places.handle_end(None);
        assert!(places.handle_open(node(99)).is_err(), "a join that ends makes no room for it");
        assert_eq!(taken(&mut places, None, 5), 1);
    }

    #[test]
    fn what_was_given_back_can_be_had_again_and_a_refusal_takes_nothing() {
        let mut places = RelayPlaces::default();
        assert_eq!(taken(&mut places, node(7), 50), 4);
        for _ in 0..4 {
            places.handle_end(node(7));
        }
        assert_eq!(taken(&mut places, node(7), 50), 4);
    }
}

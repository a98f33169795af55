//! Which certificates two machines use in turn, from Hellos and their outcomes alone.
//!
//! Owns the record of places that each certificate was let in from. It holds quarantines against that, and
//! never asks the rule's owner.
//!
//! 1. A certificate is quarantined at the return that the rule counts to, not before and not later.
//! 2. One that is quarantined is let in from nowhere.

use std::collections::{BTreeMap, BTreeSet};

use gateway_core::close::CloseReason;
use gateway_core::duplicate::DuplicateRule;
use gateway_core::seam::HelloRequest;
use gateway_core::store::HelloOutcome;

use crate::check::must;

/// A machine's fingerprint and its boot's id.
type From = (String, String);

#[derive(Debug, Default)]
pub(super) struct Identities {
    flips: u32,
    /// Where each certificate came from, each time that it came from elsewhere. A history is shorter than the
    /// rule's window, and there are fewer places than it remembers.
    places: BTreeMap<String, Vec<From>>,
    quarantined: BTreeSet<String>,
}

impl Identities {
    pub(super) fn new(rule: DuplicateRule) -> Self {
        Self { flips: rule.flips, ..Self::default() }
    }

    pub(super) fn judge(&mut self, entry: &HelloRequest, outcome: &HelloOutcome) {
        if let HelloOutcome::Refused(CloseReason::Revoked(_)) = outcome {
            // An operator's affair: nobody was let in, so nobody came from anywhere.
            return;
        }
        let serial = &entry.identity.certificate_serial;
        let places = self.places.entry(serial.clone()).or_default();
        let here = (entry.hello.machine.clone(), entry.hello.boot_id.clone());
        let is_out = self.quarantined.contains(serial);
        let is_elsewhere = places.last() != Some(&here);
        if is_elsewhere {
            places.push(here);
        }
        let returns = (1..places.len()).filter(|place| places[..*place].contains(&places[*place])).count();
        let counts = self.flips > 0 && returns >= self.flips as usize;
        let (let_in, found) = match outcome {
            HelloOutcome::Granted(_) => (true, false),
            HelloOutcome::Quarantined(_) => (false, true),
            HelloOutcome::Refused(_) => (false, false),
        };
        must("a quarantined certificate is let in from nowhere", !(is_out && let_in), || {
            format!("{entry:?}")
        });
        must("two machines in turn are quarantined, and nobody else", is_out || found == counts, || {
            format!("{serial} with {returns} returns of {}, by {places:?}: {outcome:?}", self.flips)
        });
        if found {
            self.quarantined.insert(serial.clone());
        }
    }
}

//! One certificate on two machines: how that is told from a node that moves, or that reboots.
//!
//! A Hello says from which machine and boot it comes. Two machines that share a certificate take the
//! session from each other, so that its Hellos alternate between them; a node that was moved, re-imaged
//! or rebooted comes from a place where it never was. Owns the rule and what must be remembered for it;
//! the stores keep that, written in the Hello's transaction, since the two may dial different gateways.
//!
//! 1. Only a return counts: to a machine that was left, or on the same machine to a boot that was left.
//! 2. Only what happened within `within` counts, and at most `MAX_LEFT` places are remembered.
//! 3. What was remembered of one certificate says nothing about another.

use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::close::CloseReason;
use crate::time::UnixMillis;

/// Why the certificate is revoked, as `node_certs` has it.
pub const DUPLICATE_IDENTITY: &str = "duplicate-identity";
/// Places that are remembered.
pub const MAX_LEFT: usize = 8;

/// When a certificate is quarantined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DuplicateRule {
    /// So many returns; 0 turns it off.
    pub flips: u32,
    pub within: Duration,
}

impl Default for DuplicateRule {
    fn default() -> Self {
        Self { flips: 4, within: Duration::from_secs(600) }
    }
}

/// The place that a Hello comes from: digests of the machine's fingerprint and of its boot's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub machine: i64,
    pub boot: i64,
}

impl Place {
    /// The place with this fingerprint and boot id.
    pub fn of(machine: &str, boot_id: &str) -> Self {
        Self { machine: digest(machine), boot: digest(boot_id) }
    }
}

/// What is remembered of a node under one certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moves {
    /// Places that it left, in the order in which it did, with when.
    pub left: Vec<(Place, UnixMillis)>,
    /// When it came back to one.
    pub returned: Vec<UnixMillis>,
}

/// What a Hello from another place means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// The node moved; this is to be remembered.
    Moved(Moves),
    /// Two machines have the certificate: it is to be revoked, and what was remembered forgotten.
    Duplicate,
}

/// Judges a Hello that comes from `here` at `now`, after one of the same certificate from `before`. `None`
/// where it comes from the same place, or nobody asks.
pub fn judge(
    rule: &DuplicateRule,
    before: Place,
    moves: &Moves,
    here: Place,
    now: UnixMillis,
) -> Option<Judgement> {
    if rule.flips == 0 || before == here {
        return None;
    }
    let counts = |at: UnixMillis| at.plus(rule.within) > now;
    let mut left: Vec<(Place, UnixMillis)> =
        moves.left.iter().copied().filter(|(place, at)| *place != before && counts(*at)).collect();
    let is_return = left.iter().any(|(place, _)| match place.machine == before.machine {
        true => *place == here,
        false => place.machine == here.machine,
    });
    left.push((before, now));
    left.drain(..left.len().saturating_sub(MAX_LEFT));
    let mut returned: Vec<UnixMillis> = moves.returned.iter().copied().filter(|at| counts(*at)).collect();
    returned.extend(is_return.then_some(now));
    if returned.len() >= rule.flips as usize {
        return Some(Judgement::Duplicate);
    }
    Some(Judgement::Moved(Moves { left, returned }))
}

/// The answer to the Hello that showed the duplicate.
pub fn quarantined(serial: &str) -> CloseReason {
    CloseReason::NotPermitted(format!(
        "certificate {serial} is quarantined: two machines use it in turn, so that neither can be told from the \
         other; give each its own certificate, under its own node id"
    ))
}

/// The answer to a Hello whose certificate is revoked.
pub fn revoked(serial: &str, reason: &str) -> CloseReason {
    match reason {
        DUPLICATE_IDENTITY => quarantined(serial),
        _ => CloseReason::Revoked(format!(
            "certificate {serial} is revoked: {reason}; reconnect with another one"
        )),
    }
}

fn digest(text: &str) -> i64 {
    let whole: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    let mut first = [0; 8];
    first.copy_from_slice(&whole[..8]);
    i64::from_be_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: DuplicateRule = DuplicateRule { flips: 4, within: Duration::from_secs(600) };

    /// At which of these Hellos, one each `every`, the certificate is quarantined.
    fn quarantined_at(hellos: &[(&str, &str)], every: Duration) -> Option<usize> {
        let (mut moves, mut now) = (Moves::default(), UnixMillis(1_000));
        let mut last: Option<Place> = None;
        for (index, (machine, boot)) in hellos.iter().enumerate() {
            let here = Place::of(machine, boot);
            match last.and_then(|before| judge(&RULE, before, &moves, here, now)) {
                Some(Judgement::Duplicate) => return Some(index),
                Some(Judgement::Moved(next)) => moves = next,
                None => {}
            }
            assert!(moves.left.len() <= MAX_LEFT && moves.returned.len() < 4);
            last = Some(here);
            now = now.plus(every);
        }
        None
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn two_machines_that_take_turns_are_found_at_the_fourth_return() {
        let turns: Vec<_> = [("a", "1"), ("b", "2")].into_iter().cycle().take(20).collect();
        assert_eq!(quarantined_at(&turns, SECOND), Some(5), "the first two are no returns");
        assert_eq!(quarantined_at(&turns, Duration::from_secs(149)), Some(5));
        assert_eq!(quarantined_at(&turns, Duration::from_secs(601)), None, "too far apart to count");
    }

    #[test]
    fn clones_with_one_fingerprint_are_told_apart_by_their_boots() {
        let turns: Vec<_> = [("", "1"), ("", "2")].into_iter().cycle().take(20).collect();
        assert_eq!(quarantined_at(&turns, SECOND), Some(5));
    }

    #[test]
    fn machines_that_also_reboot_are_found_by_their_fingerprints() {
        let boots: Vec<String> = (0..20).map(|boot| boot.to_string()).collect();
        let turns: Vec<_> = ["a", "b"].into_iter().cycle().zip(boots.iter().map(String::as_str)).collect();
        assert_eq!(quarantined_at(&turns, SECOND), Some(5));
    }

    #[test]
    fn reboots_new_machines_and_one_way_back_are_no_duplicates() {
        let boots: Vec<String> = (0..50).map(|boot| boot.to_string()).collect();
        let rebooting: Vec<_> = boots.iter().map(|boot| ("a", boot.as_str())).collect();
        assert_eq!(quarantined_at(&rebooting, SECOND), None);
        let replaced: Vec<_> = boots.iter().map(|number| (number.as_str(), number.as_str())).collect();
        assert_eq!(quarantined_at(&replaced, SECOND), None);
        let tried_and_rolled_back = [("a", "1"), ("b", "2"), ("a", "3"), ("a", "4"), ("b", "5"), ("b", "6")];
        assert_eq!(quarantined_at(&tried_and_rolled_back, SECOND), None);
        assert_eq!(quarantined_at(&[("a", "1"); 30], SECOND), None, "a node that reconnects");
    }

    #[test]
    fn a_rule_of_nothing_asks_nothing() {
        let off = DuplicateRule { flips: 0, ..RULE };
        let (a, b) = (Place::of("a", "1"), Place::of("b", "2"));
        assert_eq!(judge(&off, a, &Moves::default(), b, UnixMillis(0)), None);
    }
}

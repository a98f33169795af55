//! Which certificates are revoked, as a gateway remembers it between its looks at the database.
//!
//! Owns the set, which every shard reads in its handshakes, and what the node of a revoked certificate is
//! told. When to look is the writer's to say (`writer/revocations.rs`); that a Hello of a revoked certificate
//! is refused whatever this set says, the stores'.
//!
//! 1. A set never changes: a change makes another one, which shards get by message. So nobody locks it.
//! 2. A serial takes 16 bytes, whatever its length: 127 bits of its SHA-256, and one that says whether it is
//!    quarantined. No two serials that an authority gives out share them by chance.
//! 3. A quarantined certificate is let into TLS, and told `PERMISSION_DENIED` where it opens a session: its
//!    node must stop, and an alert could not say so. Any other that is revoked fails in the handshake.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::close::CloseReason;
use crate::duplicate;

/// Why a certificate is revoked, where it is: as it stands in `node_certs`, which need not say.
pub fn why(is_revoked: bool, reason: Option<String>) -> Option<String> {
    is_revoked.then(|| reason.unwrap_or_else(|| "no reason given".to_owned()))
}

/// A serial, as the set has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SerialKey(u128);

impl SerialKey {
    /// Of a serial as `node_certs` has it: upper-case hex, no separators.
    pub fn of(serial: &str) -> Self {
        let whole: [u8; 32] = Sha256::digest(serial.as_bytes()).into();
        let mut first = [0; 16];
        first.copy_from_slice(&whole[..16]);
        Self(u128::from_be_bytes(first) & !1)
    }
}

/// What is held against a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Revoked,
    /// Two machines use it in turn.
    Quarantined,
}

/// A certificate that is revoked, with why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revocation {
    pub serial: String,
    pub reason: String,
}

impl Revocation {
    /// What is held against it.
    pub fn verdict(&self) -> Verdict {
        match self.reason.as_str() {
            duplicate::DUPLICATE_IDENTITY => Verdict::Quarantined,
            _ => Verdict::Revoked,
        }
    }

    /// The end of its sessions.
    pub fn close_reason(&self) -> CloseReason {
        duplicate::revoked(&self.serial, &self.reason)
    }
}

/// The refusal of a session whose certificate the set holds: on a connection that stood before it did.
pub fn refusal(serial: &str, verdict: Verdict) -> CloseReason {
    match verdict {
        Verdict::Quarantined => duplicate::quarantined(serial),
        Verdict::Revoked => {
            CloseReason::Revoked(format!("certificate {serial} is revoked; reconnect with another one"))
        }
    }
}

/// The certificates that are revoked.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RevokedSet {
    /// Ascending; the lowest bit of each says whether it is quarantined.
    entries: Box<[u128]>,
}

impl RevokedSet {
    /// Of these, each once, in order.
    pub fn of(entries: &BTreeMap<SerialKey, Verdict>) -> Self {
        Self { entries: entries.iter().map(|(key, verdict)| entry(*key, *verdict)).collect() }
    }

    /// What is held against a certificate.
    pub fn verdict(&self, key: SerialKey) -> Option<Verdict> {
        let at = self.entries.binary_search_by_key(&key.0, |entry| entry & !1).ok()?;
        Some(if self.entries[at] & 1 == 1 { Verdict::Quarantined } else { Verdict::Revoked })
    }

    /// The same set after these changes: `None` takes a certificate out of it.
    pub fn changed(&self, changes: &BTreeMap<SerialKey, Option<Verdict>>) -> Self {
        let mut entries = Vec::with_capacity(self.entries.len() + changes.len());
        let mut old = self.entries.iter().copied().peekable();
        for (key, verdict) in changes {
            while let Some(before) = old.next_if(|entry| (entry & !1) < key.0) {
                entries.push(before);
            }
            old.next_if(|entry| (entry & !1) == key.0);
            entries.extend(verdict.map(|verdict| entry(*key, verdict)));
        }
        entries.extend(old);
        Self { entries: entries.into() }
    }

    /// Every certificate, in order.
    pub fn keys(&self) -> impl Iterator<Item = SerialKey> {
        self.entries.iter().map(|entry| SerialKey(entry & !1))
    }

    /// How many it holds.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

fn entry(key: SerialKey, verdict: Verdict) -> u128 {
    key.0 | u128::from(verdict == Verdict::Quarantined)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_set_says_of_each_certificate_what_is_held_against_it() {
        let key = |number: u32| SerialKey::of(&format!("{number:X}"));
        let held: BTreeMap<SerialKey, Verdict> = (0..1000)
            .map(|number| {
                (key(number), if number % 3 == 0 { Verdict::Quarantined } else { Verdict::Revoked })
            })
            .collect();
        let set = RevokedSet::of(&held);
        assert_eq!(set.len(), 1000);
        for number in 0..2000 {
            assert_eq!(set.verdict(key(number)), held.get(&key(number)).copied(), "{number}");
        }
        assert_eq!(RevokedSet::default().verdict(key(1)), None);
    }

    proptest! {
        #[test]
        fn changes_go_into_a_set_as_into_a_map(
            before in prop::collection::btree_map(0..40_u32, any::<bool>(), 0..30),
            changes in prop::collection::btree_map(0..40_u32, prop::option::of(any::<bool>()), 0..30),
        ) {
            let verdict = |duplicate: bool| if duplicate { Verdict::Quarantined } else { Verdict::Revoked };
            let key = |number: u32| SerialKey::of(&number.to_string());
            let mut expected: BTreeMap<_, _> =
                before.into_iter().map(|(number, duplicate)| (key(number), verdict(duplicate))).collect();
            let set = RevokedSet::of(&expected);
            let changes: BTreeMap<_, _> =
                changes.into_iter().map(|(number, to)| (key(number), to.map(verdict))).collect();
            for (key, to) in &changes {
                match to {
                    Some(verdict) => drop(expected.insert(*key, *verdict)),
                    None => drop(expected.remove(key)),
                }
            }
            prop_assert_eq!(set.changed(&changes), RevokedSet::of(&expected));
        }
    }
}

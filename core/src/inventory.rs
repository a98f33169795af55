//! How bodies of an inventory are hashed, and how two lists of hashes are told apart.
//!
//! It keeps neither a body nor a list, and does not know who asks.
//!
//! 1. The hash of a section is the SHA-256 of its body.
//! 2. A digest of a list does not depend on the list's order. Lists with the same digest are taken for
//!    the same: a node that makes two of them on purpose misleads nobody about another node.

use std::fmt;
use std::num::NonZeroU64;

use sha2::{Digest, Sha256};

use crate::ids::SectionName;
use crate::splitmix;

/// SHA-256 of a section's body.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BodyHash(pub [u8; 32]);

impl BodyHash {
    /// How long it is.
    pub const BYTES: usize = 32;

    /// The hash of `body`.
    pub fn of(body: &[u8]) -> Self {
        Self(Sha256::digest(body).into())
    }

    /// The hash that stands in `bytes`, where they are as many as one has.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Debug for BodyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BodyHash(")?;
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("…)")
    }
}

/// A section that a node has, by the hash of its body.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SectionHash {
    pub section: SectionName,
    pub hash: BodyHash,
}

/// What a session remembers of a list of hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListDigest(NonZeroU64);

impl ListDigest {
    /// The digest of a list; `None` of an empty one.
    pub fn of(list: &[SectionHash]) -> Option<Self> {
        if list.is_empty() {
            return None;
        }
        let sum = list.iter().map(mixed).fold(0_u64, u64::wrapping_add);
        Some(Self(NonZeroU64::new(sum).unwrap_or(NonZeroU64::MIN)))
    }
}

/// Name and hash in one number (FNV-1a, then the finalizer of SplitMix64, so that sums don't collide).
fn mixed(entry: &SectionHash) -> u64 {
    let name = entry.section.as_str().as_bytes();
    // No name holds a NUL, so no two entries read the same.
    let bytes = name.iter().chain(&[0]).chain(&entry.hash.0);
    let state = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |state, byte| {
        (state ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    splitmix::finalized(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, body: &str) -> SectionHash {
        SectionHash { section: SectionName::new(name).expect("a name"), hash: BodyHash::of(body.as_bytes()) }
    }

    #[test]
    fn a_hash_is_the_sha_256_of_the_body() {
        let shown = |body: &[u8]| format!("{:?}", BodyHash::of(body));
        assert_eq!(shown(b""), "BodyHash(e3b0c442…)");
        assert_eq!(shown(b"abc"), "BodyHash(ba7816bf…)");
        assert_eq!(BodyHash::from_bytes(&[0; 31]), None);
        assert_eq!(BodyHash::from_bytes(&BodyHash::of(b"abc").0), Some(BodyHash::of(b"abc")));
    }

    #[test]
    fn lists_are_the_same_in_any_order_and_differ_in_names_bodies_and_pairs() {
        let list = [entry("cpu", "1"), entry("disk", "2")];
        let other = |list: &[SectionHash]| {
            assert_ne!(ListDigest::of(list), ListDigest::of(&[entry("cpu", "1"), entry("disk", "2")]))
        };
        assert_eq!(ListDigest::of(&list), ListDigest::of(&[list[1].clone(), list[0].clone()]));
        other(&[entry("cpu", "2"), entry("disk", "1")]);
        other(&[entry("cpu", "1"), entry("disk", "3")]);
        other(&[entry("cpu", "1")]);
        other(&[entry("cpu", "1"), entry("disk", "2"), entry("disk", "2")]);
        assert_eq!(ListDigest::of(&[]), None);
    }
}

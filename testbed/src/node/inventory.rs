//! A node's inventory: its sections, kept over sessions, and which of them must be sent.
//!
//! Its refs begin with the bits 011: those of events begin with 1, of specs with 010, of statuses with 001.
//!
//! 1. Nothing is sent before `Welcome`. What is on its way is not sent again until it is answered, or the
//!    session is another.
//! 2. A section that changed while it was on its way is sent anew if that is asked for, or when it is
//!    wanted.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use gateway_proto::v1::{InventorySection, SectionHash};
use sha2::{Digest, Sha256};

/// Marks refs of sections.
const REF_BIT: u64 = 3 << 61;

/// The inventory of one node.
#[derive(Debug)]
pub(super) struct Inventory {
    sections: BTreeMap<String, Bytes>,
    to_send: BTreeSet<String>,
    on_their_way: BTreeMap<u64, String>,
    next_ref: u64,
    welcomed: bool,
}

impl Inventory {
    pub(super) fn new(sections: impl IntoIterator<Item = (String, Bytes)>) -> Self {
        Self {
            sections: sections.into_iter().collect(),
            to_send: BTreeSet::new(),
            on_their_way: BTreeMap::new(),
            next_ref: REF_BIT,
            welcomed: false,
        }
    }

    /// Changes a section, or adds it; `sends` says whether it is sent unasked.
    pub(super) fn set(&mut self, section: String, body: Bytes, sends: bool) {
        if sends {
            self.to_send.insert(section.clone());
        }
        self.sections.insert(section, body);
    }

    /// A session begins.
    pub(super) fn start_session(&mut self) {
        self.welcomed = false;
        self.on_their_way.clear();
        // Whatever of it is not stored, `Welcome` wants.
        self.to_send.clear();
    }

    /// `Welcome` came, with what is wanted.
    pub(super) fn handle_welcome(&mut self, wanted: &[String]) {
        self.welcomed = true;
        self.handle_wanted(wanted);
    }

    pub(super) fn handle_wanted(&mut self, wanted: &[String]) {
        let on_their_way = &self.on_their_way;
        let is_due = |section: &&String| !on_their_way.values().any(|sent| sent == *section);
        self.to_send.extend(wanted.iter().filter(is_due).cloned());
    }

    /// A section was acked or rejected; gives its name.
    pub(super) fn handle_answer(&mut self, frame_ref: u64) -> Option<String> {
        self.on_their_way.remove(&frame_ref)
    }

    /// The next section, on its way from here on.
    pub(super) fn next_section(&mut self) -> Option<InventorySection> {
        if !self.welcomed {
            return None;
        }
        loop {
            let section = self.to_send.pop_first()?;
            let Some(body) = self.sections.get(&section).cloned() else { continue };
            self.next_ref += 1;
            self.on_their_way.insert(self.next_ref, section.clone());
            return Some(InventorySection { r#ref: self.next_ref, section, hash: hash_of(&body), body });
        }
    }

    /// The hashes of all sections, as `Hello` and heartbeats list them.
    pub(super) fn list(&self) -> Vec<SectionHash> {
        let entry = |(section, body): (&String, &Bytes)| SectionHash {
            section: section.clone(),
            hash: hash_of(body),
        };
        self.sections.iter().map(entry).collect()
    }

    /// Whether a ref is one of a section.
    pub(super) const fn is_ref(frame_ref: u64) -> bool {
        frame_ref >> 61 == REF_BIT >> 61
    }
}

/// The hash of a section with this body.
pub fn hash_of(body: &[u8]) -> Bytes {
    Bytes::copy_from_slice(&Sha256::digest(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(inventory: &mut Inventory) -> Vec<(u64, String)> {
        std::iter::from_fn(|| inventory.next_section())
            .map(|sent| (sent.r#ref & 0xff, sent.section))
            .collect()
    }

    #[test]
    fn what_is_wanted_is_sent_once_until_it_is_answered() {
        let mut inventory = Inventory::new([("cpu".to_owned(), Bytes::from_static(b"1"))]);
        inventory.start_session();
        assert_eq!(inventory.list()[0].hash, hash_of(b"1"));
        inventory.set("disk".to_owned(), Bytes::new(), true);
        assert_eq!(sent(&mut inventory), [], "not before Welcome");
        inventory.handle_welcome(&["cpu".to_owned(), "what it never had".to_owned()]);
        assert_eq!(sent(&mut inventory), [(1, "cpu".to_owned()), (2, "disk".to_owned())]);
        inventory.handle_wanted(&["cpu".to_owned()]);
        assert_eq!(sent(&mut inventory), [], "it is on its way");
        assert_eq!(inventory.handle_answer(REF_BIT + 1).as_deref(), Some("cpu"));
        inventory.handle_wanted(&["cpu".to_owned()]);
        assert_eq!(sent(&mut inventory), [(3, "cpu".to_owned())]);
        inventory.set("cpu".to_owned(), Bytes::from_static(b"2"), false);
        assert_eq!(sent(&mut inventory), [], "its list will tell");
        inventory.start_session();
        inventory.handle_welcome(&["cpu".to_owned()]);
        assert_eq!(sent(&mut inventory), [(4, "cpu".to_owned())], "in a new session all goes anew");
        assert!(Inventory::is_ref(REF_BIT + 4) && !Inventory::is_ref(7) && !Inventory::is_ref(1 << 63));
    }
}

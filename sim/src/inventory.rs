//! A simulated node's inventory: its sections, how they change, and what it sends of them when.
//!
//! 1. A change is sent at once, or found out by the gateway from the list of a heartbeat.
//! 2. What is wanted is sent, mostly. What is not, and what is lost with a session, is found out again.
//! 3. Now and then a body is corrupt on its way: it is rejected, and asked for again.
//! 4. An ack names a section that was sent. Each section keeps all that it ever held, so the world can
//!    hold what is stored against what was acked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use gateway_core::frame::{InventorySection, RejectCode, Rejected};
use gateway_core::ids::{FrameRef, SectionName};
use gateway_core::inventory::{BodyHash, SectionHash};
use gateway_core::time::Moment;

use crate::check::must;
use crate::node::POISON;
use crate::random::Chance;

/// Sections of a node.
const SECTIONS: usize = 3;
/// Changes in a node's life.
const CHANGES: u64 = 16;

#[derive(Debug)]
pub(crate) struct SimInventory {
    /// All that each section ever held, the present body last.
    pub(crate) held: BTreeMap<SectionName, Vec<Bytes>>,
    /// What was acked: section and place among what it held. To be checked and taken by the world.
    pub(crate) acked: Vec<(SectionName, usize)>,
    on_their_way: BTreeMap<FrameRef, (SectionName, usize)>,
    corrupt: BTreeSet<FrameRef>,
    to_send: Vec<SectionName>,
    left: u64,
    change_at: Option<Moment>,
    poisons: bool,
}

impl SimInventory {
    pub(crate) fn new(poisons: bool) -> Self {
        let name = |number: usize| SectionName::new(&format!("section-{number}")).expect("a section name");
        Self {
            held: (0..SECTIONS).map(|number| (name(number), vec![Bytes::from_static(b"first")])).collect(),
            acked: Vec::new(),
            on_their_way: BTreeMap::new(),
            corrupt: BTreeSet::new(),
            to_send: Vec::new(),
            left: CHANGES,
            change_at: Some(Moment::default() + Duration::from_millis(700)),
            poisons,
        }
    }

    /// What the node has.
    pub(crate) fn list(&self) -> Vec<SectionHash> {
        let entry = |(section, held): (&SectionName, &Vec<Bytes>)| {
            Some(SectionHash { section: section.clone(), hash: BodyHash::of(held.last()?) })
        };
        self.held.iter().filter_map(entry).collect()
    }

    pub(crate) fn handle_connected(&mut self) {
        self.on_their_way.clear();
        self.corrupt.clear();
        self.to_send.clear();
    }

    /// Now and then it does not get round to one, which then is asked for again.
    pub(crate) fn handle_wanted(&mut self, wanted: &[SectionName], chance: &mut Chance) {
        assert!(wanted.iter().all(|section| self.held.contains_key(section)), "{wanted:?} was never listed");
        self.to_send.extend(wanted.iter().filter(|_| !chance.percent(20)).cloned());
    }

    /// Whether the ack was one of a section.
    pub(crate) fn handle_ack(&mut self, frame_ref: FrameRef) -> bool {
        must("a corrupt section is not acked", !self.corrupt.contains(&frame_ref), || format!("{frame_ref}"));
        let answered = self.on_their_way.remove(&frame_ref);
        let mine = answered.is_some();
        self.acked.extend(answered);
        mine
    }

    /// Whether the answer was about a section; what can't be stored is changed.
    pub(crate) fn handle_rejected(&mut self, rejected: &Rejected, chance: &mut Chance) -> bool {
        let Some((section, place)) = self.on_their_way.remove(&rejected.frame_ref) else { return false };
        if self.corrupt.remove(&rejected.frame_ref) {
            assert_eq!(rejected.code, RejectCode::Invalid, "{rejected:?}");
            return true;
        }
        assert_eq!(rejected.code, RejectCode::NotStorable, "{rejected:?}");
        let held = self.held.get_mut(&section).expect("a section that was sent");
        assert_eq!(held[place], POISON, "{rejected:?}");
        if held.len() == place + 1 {
            held.push(Bytes::from(format!("{} after poison", chance.next())));
        }
        true
    }

    pub(crate) fn handle_time(&mut self, chance: &mut Chance, now: Moment) {
        if self.change_at.is_none_or(|at| now < at) {
            return;
        }
        let number = chance.within(0..SECTIONS as u64) as usize;
        let (section, held) = self.held.iter_mut().nth(number).expect("a section");
        let body = match chance.within(0..10) {
            // Back to what it was: what is stored now may be neither.
            0..3 if held.len() > 1 && held[held.len() - 2] != POISON => held[held.len() - 2].clone(),
            3 if self.poisons && self.left > 1 => Bytes::from_static(POISON.as_bytes()),
            _ => Bytes::from(format!("{} of {section}", chance.next())),
        };
        held.push(body);
        if chance.percent(60) {
            self.to_send.push(section.clone());
        }
        self.left -= 1;
        self.change_at = (self.left > 0).then(|| now + Duration::from_millis(chance.within(1..2_500)));
    }

    /// The next section to send.
    pub(crate) fn poll(&mut self, next_ref: &mut u64) -> Option<InventorySection> {
        let section = self.to_send.pop()?;
        let held = self.held.get(&section)?;
        let body = held.last()?.clone();
        let frame_ref = FrameRef(*next_ref);
        *next_ref += 1;
        let hash = Bytes::copy_from_slice(&BodyHash::of(&body).0);
        // By its ref, so that it is not every time one section's.
        let is_corrupt = frame_ref.0.is_multiple_of(17);
        let body = if is_corrupt { Bytes::from_static(b"corrupt") } else { body };
        if is_corrupt {
            self.corrupt.insert(frame_ref);
        }
        let name = section.as_str().to_owned();
        self.on_their_way.insert(frame_ref, (section, held.len() - 1));
        Some(InventorySection { frame_ref, section: name, hash, body })
    }

    /// Whether nothing changes any more and nothing is on its way.
    pub(crate) fn is_idle(&self) -> bool {
        self.left == 0 && self.on_their_way.is_empty() && self.to_send.is_empty()
    }

    pub(crate) fn next_deadline(&self) -> Option<Moment> {
        self.change_at
    }
}

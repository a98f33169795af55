//! A session's inventory: sections on their way, and what of the node's list is known to be stored.
//!
//! Sections go beside the durable frames: they wait for none of these, and none waits for them. Never
//! looks into a body; the hash was checked when the section came (`validation`).
//!
//! 1. Sections leave in the order in which they came. What waits and what is with the writer is bounded,
//!    in number and in bytes; past it the session is not read.
//! 2. A list of hashes is looked at unless it is the one last found to be stored whole, one look at a
//!    time, and not while sections are on their way. What a look wants is asked for again with the next
//!    list, so a lost section is lost for one heartbeat.
//! 3. A section that comes makes the list that was known to be stored unknown.
//! 4. With nothing on its way it holds no memory of its own.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Session;
use super::lifecycle::Event;
use super::validation::{self, Section};
use crate::close::CloseReason;
use crate::frame::{Ack, GatewayFrame, InventorySection, RejectCode, Rejected};
use crate::ids::{FrameRef, SectionName};
use crate::inventory::{ListDigest, SectionHash};
use crate::limits::{Limits, MAX_SECTIONS_WITH_WRITER};
use crate::seam::{LookRequest, SectionRequest, ToWriter};

#[derive(Debug, Default)]
pub(super) struct SessionInventory {
    on_its_way: Option<Box<OnItsWay>>,
    /// The last list that was found to be stored whole.
    stored: Option<ListDigest>,
    look: Look,
}

/// The look at a list of the node's.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Look {
    #[default]
    None,
    /// Its answer will say whether this list is stored.
    At(ListDigest),
    /// A section came meanwhile, so its answer is about a list that the node may not have any more.
    Outdated,
}

#[derive(Debug, Default)]
struct OnItsWay {
    waiting: VecDeque<(Section, u32)>,
    waiting_bytes: usize,
    with_writer: VecDeque<(FrameRef, u32)>,
    with_writer_bytes: usize,
    /// What is to be looked at.
    list: Option<Box<[SectionHash]>>,
}

/// What leaves next.
enum Leaving {
    Section(Section),
    List(Box<[SectionHash]>),
}

impl SessionInventory {
    fn push(&mut self, section: Section, bytes: usize) {
        let counted = u32::try_from(bytes).unwrap_or(u32::MAX);
        let on_its_way = self.on_its_way.get_or_insert_default();
        on_its_way.waiting_bytes += counted as usize;
        on_its_way.waiting.push_back((section, counted));
        self.stored = None;
        if self.look != Look::None {
            self.look = Look::Outdated;
        }
    }

    /// The Hello lists this, and its grant will say what of it is wanted.
    pub(super) fn handle_hello(&mut self, list: &[SectionHash]) {
        self.look = ListDigest::of(list).map_or(Look::None, Look::At);
    }

    /// Whether a list that the node sent is worth a look.
    fn is_news(&self, digest: ListDigest) -> bool {
        self.stored != Some(digest) && self.look == Look::None && !self.has_sections()
    }

    fn handle_list(&mut self, list: Box<[SectionHash]>, digest: ListDigest) {
        self.look = Look::At(digest);
        self.on_its_way.get_or_insert_default().list = Some(list);
    }

    /// The look has its answer; `Some` says whether all of the list is stored.
    pub(super) fn handle_looked(&mut self, all_stored: Option<bool>) {
        if let Look::At(digest) = std::mem::take(&mut self.look)
            && all_stored == Some(true)
        {
            self.stored = Some(digest);
        }
    }

    /// The writer answered a section. Whether it was one that is with the writer.
    fn handle_answer(&mut self, frame_ref: FrameRef) -> bool {
        let Some(on_its_way) = &mut self.on_its_way else { return false };
        let Some(place) = on_its_way.with_writer.iter().position(|(known, _)| *known == frame_ref) else {
            return false;
        };
        if let Some((_, counted)) = on_its_way.with_writer.remove(place) {
            on_its_way.with_writer_bytes -= counted as usize;
        }
        self.forget_if_empty();
        true
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn poll(&mut self, limits: &Limits) -> Option<Leaving> {
        let on_its_way = self.on_its_way.as_mut()?;
        if let Some((_, counted)) = on_its_way.waiting.front() {
            let bytes = on_its_way.with_writer_bytes + *counted as usize;
            let fits = on_its_way.with_writer.is_empty()
                || (on_its_way.with_writer.len() < MAX_SECTIONS_WITH_WRITER && bytes <= limits.frame_bytes);
            if !fits {
                return None;
            }
            let (section, counted) = on_its_way.waiting.pop_front()?;
            on_its_way.waiting_bytes -= counted as usize;
            on_its_way.with_writer_bytes += counted as usize;
            on_its_way.with_writer.push_back((section.frame_ref, counted));
            return Some(Leaving::Section(section));
        }
        let list = on_its_way.list.take()?;
        self.forget_if_empty();
        Some(Leaving::List(list))
    }

    /// Whether the session must not be read for now.
    pub(super) fn is_full(&self, limits: &Limits) -> bool {
        self.on_its_way.as_ref().is_some_and(|on_its_way| {
            on_its_way.waiting.len() >= limits.session_inbox_frames
                || on_its_way.waiting_bytes >= limits.session_inbox_bytes
        })
    }

    /// Whether a section waits for the writer or for its answer.
    pub(super) fn has_sections(&self) -> bool {
        self.len() > 0
    }

    /// How many sections wait for the writer or for its answer.
    pub(super) fn len(&self) -> usize {
        let on_its_way = self.on_its_way.as_ref();
        on_its_way.map_or(0, |on_its_way| on_its_way.waiting.len() + on_its_way.with_writer.len())
    }

    #[cfg(test)]
    pub(super) fn holds_memory(&self) -> bool {
        self.on_its_way.is_some()
    }

    fn forget_if_empty(&mut self) {
        if !self.has_sections()
            && self.on_its_way.as_ref().is_some_and(|on_its_way| on_its_way.list.is_none())
        {
            self.on_its_way = None;
        }
    }
}

impl Session {
    pub(super) fn take_section(&mut self, section: InventorySection, bytes: usize) {
        let frame_ref = section.frame_ref;
        match validation::admit_section(section) {
            Ok(section) => self.inventory.push(section, bytes),
            // Before `Welcome` nothing may be sent, so a bad one has its answer from behind that.
            Err(message) if self.membership.is_none() => {
                self.inbox.push(super::durable::invalid(frame_ref, message), bytes);
            }
            Err(message) => {
                self.reject(Rejected { frame_ref, code: RejectCode::Invalid, message, retryable: false });
            }
        }
    }

    /// A heartbeat lists what the node has.
    pub(super) fn take_list(&mut self, list: Box<[SectionHash]>) {
        let Some(digest) = ListDigest::of(&list).filter(|digest| self.inventory.is_news(*digest)) else {
            return;
        };
        match validation::check_list(&list, &self.limits) {
            Ok(()) => self.inventory.handle_list(list, digest),
            Err(why) => self.close(CloseReason::Protocol(format!("Heartbeat: {why}"))),
        }
    }

    /// What of the inventory leaves for the writer next.
    pub(super) fn poll_inventory(&mut self) -> Option<ToWriter> {
        let epoch = self.membership.as_ref()?.epoch;
        let leaving = self.inventory.poll(&self.limits)?;
        let (key, node) = (self.key, self.node.clone());
        Some(match leaving {
            Leaving::Section(Section { frame_ref, name: section, hash, body }) => {
                let request = SectionRequest { key, node, epoch, frame_ref, section, hash, body };
                ToWriter::Section(Arc::new(request))
            }
            Leaving::List(list) => ToWriter::InventoryLook(Arc::new(LookRequest { key, node, list })),
        })
    }

    /// The writer stored a section, or says why not.
    pub(super) fn answer_section(&mut self, frame_ref: FrameRef, refusal: Option<String>) {
        if !self.take_event(Event::Answer) {
            return;
        }
        let known = self.inventory.handle_answer(frame_ref);
        debug_assert!(known, "seam 3: the answer to a section that is not with the writer");
        match refusal {
            None => {
                self.bad_frames_in_a_row = 0;
                self.outbox.push(GatewayFrame::Ack(Ack { frame_ref, state: None }));
            }
            Some(message) => {
                let code = RejectCode::NotStorable;
                self.reject(Rejected { frame_ref, code, message, retryable: false });
            }
        }
    }

    /// The writer looked at the node's list: what is wanted, or `None` where it could not look.
    pub(super) fn take_looked(&mut self, wanted: Option<Vec<SectionName>>) {
        if !self.take_event(Event::Order) {
            return;
        }
        self.inventory.handle_looked(wanted.as_ref().map(Vec::is_empty));
        if let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) {
            self.outbox.push(GatewayFrame::InventoryWanted(wanted));
        }
    }
}

//! One session of one node, as a sans-IO machine.
//!
//! It owns what a session may do and in which order. It never sees a socket or the database; it
//! answers with what the writer said is durable. `lifecycle` is its table, `durable` what is
//! stored, `inventory` what is stored beside that, `validation` what a frame may hold, `inbox` what
//! waits, `vitals` when the node was heard, `draining` how it is sent away, `certificate` why it must go,
//! `tunnels` what it is offered beside.
//!
//! A driver gives it inputs, then polls `poll_to_writer`, `poll_frame` and `poll_end`, in that order,
//! each until `None`. What can't be posted at once is kept and posted first later; the driver goes on
//! reading as long as `wants_read` says so.
//!
//! 1. `Welcome` is the first frame to the node, then replays by seq, cancels, and all else.
//! 2. At most one durable frame is with the writer, or updates that lead on from one another (`in_flight`); the
//!    next follows the answers to those, across kinds.
//! 3. Durable frames are answered in order of arrival, each once, also those rejected here. Sections of
//!    the inventory are answered once, beside that order.
//! 4. A heartbeat never waits behind a durable frame.
//! 5. Once the session ended nothing is given out but the end, what `certificate` says of it, and `Closed`
//!    if the writer was told of the session: once, and last.
//! 6. What waits is bounded by `wants_read`; an idle session holds a few hundred bytes.

mod certificate;
mod draining;
mod durable;
mod in_flight;
mod inbox;
mod inventory;
mod last_word;
mod lifecycle;
mod membership;
mod outbox;
#[cfg(test)]
mod properties;
mod readings;
#[cfg(test)]
mod stories;
mod tunnels;
mod validation;
mod vitals;

use std::mem;
use std::sync::Arc;

use crate::close::CloseReason;
use crate::frame::{Ack, Command, GatewayFrame, Heartbeat, Hello, NodeFrame, RejectCode, Rejected};
use crate::ids::{FrameRef, JournalId, LaneName, NodeId, SessionKey};
use crate::limits::{Limits, MAX_WAITING_ANSWERS};
use crate::mail::Weigh;
use crate::seam::{Granted, HelloRequest, Identity, SessionNews, ToWriter};
use crate::time::Moment;

use in_flight::InFlight;
use inbox::{Item, LocalRefusal, SessionInbox};
use inventory::SessionInventory;
use last_word::LastWord;
use lifecycle::{Ending, Event, Step};
pub use lifecycle::{Event as SessionEvent, Phase};
use membership::Membership;
use outbox::SessionOutbox;
use tunnels::SessionTunnels;

/// A session, from the opening of its stream to its end.
#[derive(Debug)]
pub struct Session {
    key: SessionKey,
    node: NodeId,
    limits: Arc<Limits>,
    phase: Phase,
    opened_at: Moment,
    expires_at: Option<Moment>,
    introduction: Introduction,
    /// What `Welcome` repeats of the Hello.
    journal: Option<JournalId>,
    /// What goes with each status.
    boot_id: Arc<str>,
    lanes: Box<[LaneName]>,
    membership: Option<Membership>,
    inbox: SessionInbox,
    /// What is with the writer.
    in_flight: InFlight,
    inventory: SessionInventory,
    outbox: SessionOutbox,
    specs: SpecsOnTheWay,
    tunnels: SessionTunnels,
    held_back: bool,
    bad_frames_in_a_row: u32,
    ignored_credits: u32,
    last_word: LastWord,
}

/// The weight of specs that the writer gave and must hear of when they have left.
#[derive(Debug, Default)]
struct SpecsOnTheWay {
    /// Polled by the driver.
    polled: usize,
    /// Left for the node.
    sent: usize,
}

/// What the writer knows of the session.
#[derive(Debug)]
enum Introduction {
    /// Nothing: the Hello has not come.
    Awaited(Box<Identity>),
    /// Nothing yet: the Hello waits to be posted.
    Ready(Box<HelloRequest>),
    /// The Hello was posted, so `Closed` is owed.
    Posted,
    /// Nothing is owed to it.
    Over,
}

impl Session {
    /// A stream was admitted; its first frame must be a Hello.
    pub fn new(key: SessionKey, identity: Identity, limits: Arc<Limits>, now: Moment) -> Self {
        Self {
            key,
            node: identity.node.clone(),
            limits,
            phase: Phase::Opening,
            opened_at: now,
            expires_at: None,
            introduction: Introduction::Awaited(Box::new(identity)),
            journal: None,
            boot_id: Arc::default(),
            lanes: Box::default(),
            membership: None,
            inbox: SessionInbox::default(),
            in_flight: InFlight::default(),
            inventory: SessionInventory::default(),
            outbox: SessionOutbox::default(),
            specs: SpecsOnTheWay::default(),
            tunnels: SessionTunnels::default(),
            held_back: false,
            bad_frames_in_a_row: 0,
            ignored_credits: 0,
            last_word: LastWord::default(),
        }
    }

    // -- inputs ----------------------------------------------------------------------------------

    /// The node sent a frame that took `bytes` on the wire.
    pub fn handle_frame(&mut self, frame: NodeFrame, bytes: usize, now: Moment) {
        let event = match &frame {
            NodeFrame::Hello(_) => Event::Hello,
            NodeFrame::Goodbye(_) => Event::Goodbye,
            _ => Event::Frame,
        };
        if !self.take_event(event) {
            return;
        }
        if let Some(membership) = &mut self.membership {
            membership.vitals.handle_frame(&self.limits, now);
        }
        match frame {
            NodeFrame::Hello(hello) => self.take_hello(hello),
            NodeFrame::Heartbeat(heartbeat) => self.take_heartbeat(heartbeat, bytes, now),
            NodeFrame::CommandUpdate(update) => self.take_update(update, bytes),
            NodeFrame::EventBatch(batch) => self.take_events(batch, bytes),
            NodeFrame::SpecApplied(applied) => self.take_spec_applied(*applied, bytes),
            NodeFrame::Status(status) => self.take_status(*status, bytes),
            NodeFrame::InventorySection(section) => self.take_section(*section, bytes),
            NodeFrame::Credit(change) => self.take_credit(change, bytes),
            NodeFrame::TunnelRefused(refused) => self.tunnels.handle_refused(refused),
            NodeFrame::Unsupported(frame_ref) => {
                let message = "this gateway does not store frames of that kind".to_owned();
                let refusal = LocalRefusal { frame_ref, code: RejectCode::Unsupported, message };
                self.inbox.push(Item::Refused(Box::new(refusal)), bytes);
            }
            NodeFrame::Goodbye(_) | NodeFrame::Ignored => {}
        }
        self.settle(now);
    }

    /// The node closed its half of the stream: acks in flight are finished, then `Finished`.
    pub fn handle_half_close(&mut self, now: Moment) {
        self.take_event(Event::HalfClose);
        self.settle(now);
    }

    /// The writer has news for this session.
    pub fn handle_news(&mut self, news: SessionNews, now: Moment) {
        match news {
            SessionNews::Granted(granted) => {
                if self.take_event(Event::Granted) {
                    self.take_grant(*granted, now);
                }
            }
            SessionNews::Stored { state } => {
                if let Some(frame_ref) = self.take_answer() {
                    self.bad_frames_in_a_row = 0;
                    self.outbox.push(GatewayFrame::Ack(Ack { frame_ref, state }));
                }
            }
            SessionNews::EventsStored { journal, acked, refused } => {
                if let Some(frame_ref) = self.take_answer() {
                    self.answer_events(frame_ref, journal, acked, refused);
                }
            }
            SessionNews::NotStored { code, message, retryable } => {
                if let Some(frame_ref) = self.take_answer() {
                    self.reject(Rejected { frame_ref, code, message, retryable });
                }
            }
            SessionNews::SectionStored { frame_ref } => self.answer_section(frame_ref, None),
            SessionNews::SectionNotStored { frame_ref, message } => {
                self.answer_section(frame_ref, Some(message));
            }
            SessionNews::InventoryWanted(wanted) => self.take_looked(Some(wanted)),
            SessionNews::InventoryNotLooked => self.take_looked(None),
            SessionNews::Commands(commands) => {
                if self.take_event(Event::Order) {
                    self.send_commands(commands);
                }
            }
            SessionNews::Cancel(cancel) => {
                if self.take_event(Event::Order) {
                    self.outbox.push(GatewayFrame::CancelCommand(cancel));
                }
            }
            SessionNews::Specs(specs) => {
                if self.take_event(Event::Order) {
                    specs.into_iter().for_each(|spec| self.outbox.push(GatewayFrame::Spec(Box::new(spec))));
                }
            }
            SessionNews::Close(reason) => self.close(reason),
        }
        self.settle(now);
    }

    /// Whether the driver reads nothing for want of memory to receive into: no silence of the node's.
    pub fn handle_held_back(&mut self, held_back: bool, now: Moment) {
        if self.held_back != held_back {
            self.held_back = held_back;
            self.settle(now);
        }
    }

    /// All frames that were polled have left for the node.
    pub fn handle_all_sent(&mut self) {
        self.specs.sent += mem::take(&mut self.specs.polled);
    }

    /// The session must end: a malformed frame, the peer gone or slow, the gateway fenced or
    /// stopping. It ends at once; what waits to be sent is dropped. An earlier end stays.
    pub fn handle_close(&mut self, reason: CloseReason, _now: Moment) {
        self.close(reason);
    }

    /// Time has passed; to be called at `next_deadline` or later.
    pub fn handle_time(&mut self, now: Moment) {
        self.settle(now);
        self.check_expiry(now);
        if self.phase == Phase::Opening && now >= self.hello_due_at() {
            self.take_event(Event::HelloLate);
        }
        if self.phase == Phase::Live
            && let Some(membership) = &mut self.membership
            && membership.vitals.handle_time(&self.limits, now)
        {
            self.take_event(Event::Silence);
        }
    }

    // -- outputs ---------------------------------------------------------------------------------

    /// What must be posted to the writer, in order. `Closed` is the last, and comes only for a
    /// session whose Hello was given out here.
    pub fn poll_to_writer(&mut self) -> Option<ToWriter> {
        if self.phase.is_over_for_writer() {
            return self.poll_farewell();
        }
        if let Introduction::Ready(_) = self.introduction
            && let Introduction::Ready(request) = mem::replace(&mut self.introduction, Introduction::Posted)
        {
            return Some(ToWriter::Hello(request));
        }
        if !self.phase.stores() {
            return None;
        }
        if let Some(membership) = &mut self.membership
            && membership.vitals.poll_write()
        {
            let epoch = membership.epoch;
            return Some(ToWriter::Alive { key: self.key, node: self.node.clone(), epoch });
        }
        if self.has_sent_specs() {
            return Some(ToWriter::SpecsSent { key: self.key, bytes: mem::take(&mut self.specs.sent) });
        }
        let message = self.poll_inventory().or_else(|| self.poll_inbox());
        self.advance();
        // The item may have been the last that a finishing session owed.
        message.or_else(|| self.phase.is_over_for_writer().then(|| self.poll_farewell()).flatten())
    }

    /// What must be sent to the node, in order.
    pub fn poll_frame(&mut self) -> Option<GatewayFrame> {
        let frame = self.outbox.pop()?;
        if let GatewayFrame::Spec(spec) = &frame {
            self.specs.polled += spec.weight_bytes();
        }
        self.advance();
        Some(frame)
    }

    /// The end of the stream, once, after the last frame was polled.
    pub fn poll_end(&mut self) -> Option<CloseReason> {
        self.last_word.poll()
    }

    // -- getters ---------------------------------------------------------------------------------

    /// Whether more of the node's bytes should be read now.
    pub fn wants_read(&self) -> bool {
        self.phase != Phase::Ended
            && !self.inbox.is_full(&self.limits)
            && !self.inventory.is_full(&self.limits)
            && self.outbox.answers() < MAX_WAITING_ANSWERS
    }

    /// When `handle_time` must be called next; it may move with each input.
    pub fn next_deadline(&self) -> Option<Moment> {
        let expiry = self.expires_at.filter(|_| self.phase != Phase::Ended);
        let of_phase = match (self.phase, &self.membership) {
            (Phase::Opening, _) => Some(self.hello_due_at()),
            (Phase::Live, Some(membership)) if self.wants_read() && !self.held_back => {
                Some(membership.vitals.deadline())
            }
            _ => None,
        };
        of_phase.into_iter().chain(expiry).min()
    }

    /// Whether the Hello still waits for its outcome, from the opening of the stream on (for
    /// `Admission::handle_hello_done`). Once `false` it stays so.
    pub fn hello_is_pending(&self) -> bool {
        self.phase.awaits_hello_outcome()
    }

    /// Whether the writer must hear of specs that have left.
    pub fn has_sent_specs(&self) -> bool {
        self.specs.sent > 0
    }

    // -- what the node sent ----------------------------------------------------------------------

    fn take_hello(&mut self, mut hello: Box<Hello>) {
        if let Err(why) = validation::admit_hello(&mut hello, &self.limits) {
            return self.close(CloseReason::Protocol(why));
        }
        let Introduction::Awaited(identity) = mem::replace(&mut self.introduction, Introduction::Over) else {
            unreachable!("lifecycle: a Hello is taken only while it is awaited");
        };
        self.lanes = hello.lanes.iter().map(|lane| lane.lane.clone()).collect();
        self.journal.clone_from(&hello.journal);
        self.boot_id = Arc::from(hello.boot_id.as_str());
        self.inventory.handle_hello(&hello.inventory);
        self.tunnels.handle_hello(&hello.features, self.limits.tunnels.most > 0);
        let request = HelloRequest { key: self.key, identity: *identity, hello: *hello };
        self.introduction = Introduction::Ready(Box::new(request));
    }

    fn take_heartbeat(&mut self, heartbeat: Heartbeat, bytes: usize, now: Moment) {
        let Heartbeat { sequence, inventory } = heartbeat;
        match &self.membership {
            Some(membership) => {
                let server_time = membership.server_time(now);
                self.outbox.push(GatewayFrame::HeartbeatAck { sequence, server_time });
                self.take_list(inventory);
            }
            // Its list is no news: the Hello before it has one.
            None => self.inbox.push(Item::Heartbeat { sequence }, bytes),
        }
    }

    // -- what the writer said --------------------------------------------------------------------

    fn take_grant(&mut self, granted: Granted, now: Moment) {
        let membership = Membership::new(self.key, granted.epoch, granted.server_time, &self.limits, now);
        self.inventory.handle_looked(Some(granted.inventory_wanted.is_empty()));
        let mut welcome = membership.welcome(self.journal.take(), granted.journal_acked, &self.limits);
        welcome.inventory_wanted = granted.inventory_wanted;
        self.tunnels.fill_in(&mut welcome);
        self.membership = Some(membership);
        self.outbox.push(GatewayFrame::Welcome(Box::new(welcome)));
        if self.phase == Phase::Live {
            self.send_commands(granted.replays);
            for cancel in granted.cancels {
                self.outbox.push(GatewayFrame::CancelCommand(cancel));
            }
        }
        for sequence in self.inbox.take_heartbeats() {
            self.outbox.push(GatewayFrame::HeartbeatAck { sequence, server_time: granted.server_time });
        }
    }

    /// The ref of the durable frame whose outcome came, where the outcome still matters.
    fn take_answer(&mut self) -> Option<FrameRef> {
        if !self.take_event(Event::Answer) {
            return None;
        }
        debug_assert!(
            !self.in_flight.is_empty(),
            "seam 3: an outcome without a durable frame with the writer"
        );
        self.in_flight.pop()
    }

    // -- steps -----------------------------------------------------------------------------------

    /// Takes the table's step for `event`. Whether the event is to be carried out.
    fn take_event(&mut self, event: Event) -> bool {
        match self.phase.on(event) {
            Step::Stay => true,
            Step::To(phase) => {
                self.phase = phase;
                true
            }
            Step::End(ending) => {
                if let Some(reason) = ending.reason(&self.limits) {
                    self.end(reason);
                }
                false
            }
            Step::Drop => false,
            Step::Stray => {
                debug_assert!(false, "lifecycle 3: {event:?} while {:?}", self.phase);
                false
            }
        }
    }

    fn close(&mut self, reason: CloseReason) {
        if self.phase.on(Event::Close) == Step::End(Ending::AsGiven) {
            self.end(reason);
        }
    }

    fn end(&mut self, reason: CloseReason) {
        self.phase = Phase::Ended;
        self.last_word = LastWord::Due(reason);
        self.inbox.clear();
        self.in_flight.clear();
        self.inventory.clear();
        self.outbox.clear();
        self.specs = SpecsOnTheWay::default();
        if !matches!(self.introduction, Introduction::Posted) {
            self.introduction = Introduction::Over;
        }
    }

    /// Does what needs no input: answers refused frames whose turn it is, notices that all is done.
    fn advance(&mut self) {
        while self.phase.stores() && self.in_flight.is_empty() {
            let Some(Item::Refused(refusal)) = self.inbox.pop_if(|item| matches!(item, Item::Refused(_)))
            else {
                break;
            };
            let LocalRefusal { frame_ref, code, message } = *refusal;
            self.reject(Rejected { frame_ref, code, message, retryable: false });
        }
        if self.inbox.is_empty() && self.in_flight.is_empty() && !self.inventory.has_sections() {
            self.take_event(Event::AllAnswered);
        }
        if self.outbox.is_empty() {
            self.take_event(Event::AllTaken);
        }
    }

    fn settle(&mut self, now: Moment) {
        self.advance();
        let reads = self.wants_read() && !self.held_back;
        if let Some(membership) = &mut self.membership {
            membership.vitals.handle_reading(reads, &self.limits, now);
        }
    }

    fn send_commands(&mut self, commands: Vec<Command>) {
        for command in commands {
            self.outbox.push(GatewayFrame::Command(Box::new(command)));
        }
    }

    fn poll_farewell(&mut self) -> Option<ToWriter> {
        match mem::replace(&mut self.introduction, Introduction::Over) {
            Introduction::Posted => {
                let reason = self.last_word.label();
                Some(ToWriter::Closed { key: self.key, node: self.node.clone(), reason })
            }
            _ => None,
        }
    }
}

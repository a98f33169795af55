//! The driver of a session: between its stream, its machine and the writer.
//!
//! It carries: mail and messages in, what the machine gives out to the writer's mailbox and to the
//! stream. What any of it means is decided by `gateway_core::session`.
//!
//! 1. In: mail, time, frames. Out: to the writer, to the node, the end. In this order, each until
//!    nothing is left or the other side must move first.
//! 2. The body is read only while the machine wants it.
//! 3. While the writer's mailbox is full the machine is not asked for messages, so nothing piles up.
//! 4. From its end on a session has `send_timeout` to be read, however busily its peer reads; its place under
//!    the gateway's bounds is free from its end on.
//! 5. The writer learns the end of every session that it was told of, once: see `Dues`.

use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use gateway_core::close::CloseReason;
use gateway_core::frame::{GatewayFrame, NodeFrame};
use gateway_core::ids::{NodeId, SessionKey};
use gateway_core::seam::{SessionNews, ToWriter};
use gateway_core::session::Session;
use gateway_core::time::Moment;
use gateway_core::tunnel::ToTunnels;
use gateway_proto::framing::PREFIX_BYTES;

use crate::admitted::Admitted;
use crate::bell::Bell;
use crate::identity::NodeCertificate;
use crate::outbound::RoomWait;
use crate::outbox::{Flush, Outbox};
use crate::receive::{FrameReader, ReadEnd};
use crate::shard::{Mail, Shard, SlotLease};
use crate::status::CallStatus;
use crate::stream::Afterwards;
use crate::transport::{Outlet, Source};
use crate::tunnel_desk::SessionPlace;
use crate::wire;

/// Frames of one session taken before others have their turn.
const FRAMES_PER_TURN: usize = 16;

pub(crate) struct SessionIo {
    shard: Rc<Shard>,
    bell: Arc<Bell>,
    session: Session,
    /// Its connection's.
    certificate: Rc<NodeCertificate>,
    slot: SlotLease,
    /// Until its end.
    admitted: Option<Admitted>,
    dues: Dues,
    reader: FrameReader,
    reading: Reading,
    outbox: Outbox,
    orders: Orders,
    room_wait: Option<RoomWait>,
    /// Among the sessions that take tunnels.
    place: Option<SessionPlace>,
    end: Option<CloseReason>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    On,
    /// The machine wants nothing more for now.
    Paused,
    /// The node has closed its half.
    Over,
}

/// What came of a look for a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Taken,
    Paused,
    Nothing,
}

/// What the writer was told of the session; at the end it is told the rest, even after a panic.
struct Dues {
    shard: Rc<Shard>,
    key: SessionKey,
    node: NodeId,
    closed_owed: bool,
    /// Why it has ended, should it fall to this to tell.
    reason: &'static str,
}

/// The bytes of commands and specs that wait to be sent, without those that the Hello replayed: what a Hello
/// replays is what the node asked for, so it never makes a node slow.
#[derive(Debug, Default)]
struct Orders {
    replays_left: usize,
    bytes: usize,
}

impl SessionIo {
    /// A session on an exchange that was accepted.
    pub(crate) fn new(
        shard: &Rc<Shard>,
        bell: &Arc<Bell>,
        certificate: &Rc<NodeCertificate>,
        admitted: Admitted,
        (source, outlet): (Source, Outlet),
    ) -> Box<Self> {
        let slot = shard.lease_slot(bell, certificate.serial);
        let identity = certificate.identity.clone();
        let (key, node) = (slot.key(), identity.node.clone());
        let (limits, now) = (&shard.limits, shard.clock.now());
        let expires_at = now + shard.listener_tls.time_left(certificate.ends_at);
        Box::new(Self {
            reader: FrameReader::new(source, limits.frame_bytes, shard, bell)
                .bounded_by("sessions.frame_bytes")
                .awaiting_hello(identity.node.clone(), limits.hello_bytes()),
            session: Session::new(key, identity, Arc::clone(limits), now).with_expiry(expires_at),
            certificate: Rc::clone(certificate),
            slot,
            admitted: Some(admitted),
            dues: Dues {
                shard: Rc::clone(shard),
                key,
                node,
                closed_owed: false,
                reason: CloseReason::PeerGone.label(),
            },
            reading: Reading::On,
            outbox: Outbox::new(outlet, bell),
            orders: Orders::default(),
            room_wait: None,
            place: None,
            end: None,
            bell: Arc::clone(bell),
            shard: Rc::clone(shard),
        })
    }

    /// Carries what there is to carry. `Ready` when the stream is over.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, now: Moment) -> Poll<Afterwards> {
        self.take_mail(now);
        if self.session.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.session.handle_time(now);
        }
        for _ in 0..FRAMES_PER_TURN {
            let look = self.take_frame(context, now);
            self.give_to_writer();
            self.give_to_tunnels();
            if look == Look::Taken {
                // Answers to frames that came together go together.
                self.fill_outbox();
                continue;
            }
            self.give_to_node(context, now);
            if look == Look::Nothing || !self.session.wants_read() {
                return self.poll_end(now);
            }
        }
        self.give_to_node(context, now);
        self.bell.ring();
        self.poll_end(now)
    }

    /// When `poll` must be called, though nothing rang.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        let reading = if self.reading == Reading::On { self.reader.deadline() } else { None };
        let unread = self.outbox.deadline(self.shard.limits.send_timeout);
        [self.session.next_deadline(), reading, unread].into_iter().flatten().min()
    }

    /// Whether nothing that was said to the node waits here.
    pub(crate) fn has_said_all(&self) -> bool {
        self.outbox.is_empty() && self.session.queued_frames() == 0
    }

    /// Ends the stream after a panic, without a look at the machine.
    pub(crate) fn fail(mut self: Box<Self>, reason: CloseReason) {
        self.outbox.clear();
        self.outbox.end(&CallStatus::from(&reason));
        self.end = Some(reason);
    }

    // -- in --------------------------------------------------------------------------------------

    fn take_mail(&mut self, now: Moment) {
        while let Some(mail) = self.slot.take_mail() {
            match mail {
                Mail::News(news) => {
                    if self.orders.take(&news) + self.outbox.bytes() > self.shard.limits.session_outbox_bytes
                    {
                        self.session.handle_close(CloseReason::SlowPeer, now);
                    }
                    self.session.handle_news(news, now);
                }
                Mail::Drain(order) => self.session.handle_drain(&order, now),
                Mail::Cut(order) => self.session.handle_cut(&order, now),
                Mail::Revoked(revocation) => self.session.handle_revoked(&revocation, now),
                Mail::Offer(open) => {
                    if self.session.handle_offer(*open, now) {
                        self.bell.mark_tunnel_asked();
                    } else {
                        self.shard.tunnels.send(ToTunnels::SessionEnded { session: self.slot.key() });
                    }
                }
                Mail::End(reason) => self.session.handle_close(reason, now),
            }
        }
    }

    /// What the session has for the tunnels' room: its place there, and refusals of its node.
    fn give_to_tunnels(&mut self) {
        if self.place.is_none()
            && self.session.takes_tunnels()
            && let Some(epoch) = self.session.epoch()
        {
            self.place = Some(self.shard.tunnels.enter(self.session.node(), epoch, self.slot.key()));
        }
        while let Some(refused) = self.session.poll_to_tunnels() {
            self.shard.tunnels.send(ToTunnels::Refused { session: self.slot.key(), refused });
        }
    }

    fn take_frame(&mut self, context: &mut Context<'_>, now: Moment) -> Look {
        match (self.reading, self.session.wants_read()) {
            (Reading::Over, _) => return Look::Nothing,
            (_, false) => {
                self.reading = Reading::Paused;
                return Look::Paused;
            }
            (Reading::Paused, true) => {
                self.reading = Reading::On;
                self.reader.resume(now);
            }
            (Reading::On, true) => {}
        }
        let frame = self.reader.poll_frame(context, now);
        self.session.handle_held_back(self.reader.is_held_back(), now);
        match frame {
            Poll::Pending => Look::Nothing,
            Poll::Ready(Ok(message)) => {
                self.take_message(message, now);
                Look::Taken
            }
            Poll::Ready(Err(end)) => {
                self.reading = Reading::Over;
                match end {
                    ReadEnd::HalfClosed => self.session.handle_half_close(now),
                    ReadEnd::PeerGone => self.session.handle_close(CloseReason::PeerGone, now),
                    ReadEnd::Broken(reason) => self.session.handle_close(reason, now),
                }
                Look::Nothing
            }
        }
    }

    fn take_message(&mut self, message: Bytes, now: Moment) {
        let bytes = PREFIX_BYTES + message.len();
        self.shard.counters.frames_in.one_more();
        self.shard.counters.bytes_in.add(bytes as u64);
        match wire::decode(message, &self.shard.limits) {
            Ok(frame) => {
                inject_fault(&frame);
                self.shard.counters.frames_in_by_kind.count(frame.kind());
                if matches!(frame, NodeFrame::Heartbeat(_)) {
                    self.slot.note_heartbeat(now);
                    let expires_at = now + self.shard.listener_tls.time_left(self.certificate.ends_at);
                    self.session.handle_expiry(expires_at, now);
                }
                self.session.handle_frame(frame, bytes, now);
            }
            Err(reason) => self.session.handle_close(reason, now),
        }
    }

    // -- out -------------------------------------------------------------------------------------

    fn give_to_writer(&mut self) {
        let outbound = &self.shard.outbound;
        while outbound.accepts()
            && let Some(message) = self.session.poll_to_writer()
        {
            self.dues.note(&message);
            // Nobody waits for what becomes of these.
            if !matches!(message, ToWriter::Alive { .. } | ToWriter::InventoryLook(_)) {
                self.shard.rest.note_activity();
            }
            outbound.send(message);
        }
        if outbound.accepts() {
            self.room_wait = None;
        } else if self.room_wait.as_ref().is_none_or(RoomWait::is_spent) {
            self.room_wait = Some(outbound.wait_for_room(&self.bell));
        }
    }

    fn fill_outbox(&mut self) {
        while self.outbox.wants_more()
            && let Some(frame) = self.session.poll_frame()
        {
            self.orders.give(&frame);
            self.shard.counters.frames_out_by_kind.count(frame.kind());
            let bytes = wire::encode(frame);
            self.shard.counters.frames_out.one_more();
            self.shard.counters.bytes_out.add(bytes.len() as u64);
            self.outbox.push(bytes);
        }
    }

    fn give_to_node(&mut self, context: &mut Context<'_>, now: Moment) {
        loop {
            self.fill_outbox();
            let was_empty = self.outbox.is_empty();
            match self.outbox.poll_flush(context, now) {
                Flush::Empty if was_empty => break,
                Flush::Empty => self.session.handle_all_sent(),
                Flush::Stalled => {
                    self.check_stall(now);
                    break;
                }
                Flush::PeerGone => {
                    self.session.handle_close(CloseReason::PeerGone, now);
                    self.outbox.clear();
                    break;
                }
            }
        }
        if self.session.has_sent_specs() {
            self.give_to_writer();
        }
        if !self.session.hello_is_pending()
            && let Some(admitted) = &mut self.admitted
        {
            admitted.note_hello_done();
        }
    }

    fn check_stall(&mut self, now: Moment) {
        let deadline = self.outbox.stall_deadline(self.shard.limits.send_timeout);
        if deadline.is_some_and(|deadline| deadline <= now) {
            self.session.handle_close(CloseReason::SlowPeer, now);
            self.outbox.clear();
        }
    }

    fn poll_end(&mut self, now: Moment) -> Poll<Afterwards> {
        if self.end.is_none() {
            self.end = self.session.poll_end();
            // What the end made the machine owe, `Closed` above all.
            self.give_to_writer();
            if self.end.is_some() {
                self.admitted = None;
                self.outbox.begin_farewell(now + self.shard.limits.send_timeout);
            }
        }
        match &self.end {
            None => Poll::Pending,
            Some(CloseReason::PeerGone) => Poll::Ready(Afterwards::Serve),
            Some(CloseReason::SlowPeer) => {
                self.outbox.clear();
                self.outbox.end(&CallStatus::from(&CloseReason::SlowPeer));
                Poll::Ready(Afterwards::Close)
            }
            Some(reason) if !self.outbox.is_empty() => {
                if !self.outbox.farewell_is_over(now) {
                    return Poll::Pending;
                }
                self.outbox.clear();
                self.outbox.end(&CallStatus::from(reason));
                Poll::Ready(Afterwards::Close)
            }
            Some(reason) => {
                self.outbox.end(&CallStatus::from(reason));
                Poll::Ready(Afterwards::Serve)
            }
        }
    }
}

impl Drop for SessionIo {
    fn drop(&mut self) {
        // A connection that dies takes its sessions along without a turn of theirs.
        let cut_for = if self.bell.is_flooded() { CloseReason::Flood } else { CloseReason::PeerGone };
        let reason = self.end.take().unwrap_or(cut_for);
        self.dues.reason = reason.label();
        self.shard.counters.closes.count(&reason);
        if reason == CloseReason::HeartbeatTimeout {
            self.shard.counters.heartbeat_timeouts.one_more();
        }
        self.shard.listener_tls.tell_end(&self.certificate, &reason);
        tracing::debug!(
            shard = self.shard.id.0,
            node = self.dues.node.as_str(),
            reason = reason.label(),
            "a session ended"
        );
    }
}

impl Dues {
    fn note(&mut self, message: &ToWriter) {
        match message {
            ToWriter::Hello(_) => self.closed_owed = true,
            ToWriter::Closed { .. } => self.closed_owed = false,
            _ => {}
        }
    }
}

impl Drop for Dues {
    fn drop(&mut self) {
        if mem::take(&mut self.closed_owed) {
            // The connection died, or a panic took the session's turn.
            let (key, node, reason) = (self.key, self.node.clone(), self.reason);
            self.shard.outbound.send(ToWriter::Closed { key, node, reason });
            self.shard.outbound.ring();
        }
    }
}

impl Orders {
    /// Counts news that come; the bytes of commands and specs that wait now.
    fn take(&mut self, news: &SessionNews) -> usize {
        match news {
            SessionNews::Granted(granted) => self.replays_left += granted.replays.len(),
            SessionNews::Commands(commands) => {
                self.bytes += commands.iter().map(|command| command.payload.len()).sum::<usize>();
            }
            SessionNews::Specs(specs) => {
                self.bytes += specs.iter().map(|spec| spec.body.len()).sum::<usize>();
            }
            _ => {}
        }
        self.bytes
    }

    /// Counts a frame that goes. Replays go before all other commands.
    fn give(&mut self, frame: &GatewayFrame) {
        match frame {
            GatewayFrame::Command(command) => match self.replays_left.checked_sub(1) {
                Some(left) => self.replays_left = left,
                None => self.bytes = self.bytes.saturating_sub(command.payload.len()),
            },
            GatewayFrame::Spec(spec) => self.bytes = self.bytes.saturating_sub(spec.body.len()),
            _ => {}
        }
    }
}

/// The Goodbye that makes a session panic, where the tests of this crate ask for it.
#[cfg(feature = "fault-injection")]
fn inject_fault(frame: &NodeFrame) {
    if let NodeFrame::Goodbye(goodbye) = frame {
        assert!(goodbye.reason != "fault-injection: panic", "a fault was injected");
    }
}

#[cfg(not(feature = "fault-injection"))]
fn inject_fault(_frame: &NodeFrame) {}

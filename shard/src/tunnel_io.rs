//! The driver of a node's tunnel stream: between the stream and the tunnels' room.
//!
//! It carries: the first frame names the tunnel, the room admits it or ends it, then frames go both ways.
//! What may open, and what ends a tunnel, is decided by `gateway_core::tunnel`.
//!
//! 1. The stream is read only while the direction to the caller has room, and nothing is written that the
//!    node's window does not take: its transport holds the node back, grants hold the caller back.
//! 2. What waits to be written is at most the window of its direction; a node that does not read stops its
//!    tunnel and nothing else.
//! 3. `Hello` is sent once, and then `Ended` once, whatever happens: see `Dues`.
//! 4. What a tunnel carries is on no log line.

use std::collections::VecDeque;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use gateway_core::close::CloseReason;
use gateway_core::ids::NodeId;
use gateway_core::time::Moment;
use gateway_core::tunnel::flow::cost_bytes;
use gateway_core::tunnel::{
    MAX_TUNNEL_FRAME_BYTES, ToTunnels, TunnelClose, TunnelFlow, TunnelFrame, TunnelId, TunnelKey,
};

use crate::bell::Bell;
use crate::identity::NodeCertificate;
use crate::outbox::{Flush, Outbox};
use crate::receive::{FrameReader, ReadEnd};
use crate::shard::{Shard, Stage};
use crate::status::CallStatus;
use crate::stream::{Afterwards, Stream};
use crate::transport::Exchange;
use crate::tunnel_desk::{TunnelLease, TunnelMail};
use crate::tunnel_wire::{self, Said};

/// Frames of one tunnel taken before others have their turn.
const FRAMES_PER_TURN: usize = 16;
/// How much longer than an open takes a stream waits for the room, which keeps the time itself.
const GRACE: Duration = Duration::from_secs(1);

#[derive(Debug)]
enum State {
    Receiving { due_at: Moment },
    Waiting { due_at: Moment },
    Open,
    Ending(CallStatus),
}

/// What the room was told of the stream; at its end it is told the rest, even after a panic.
struct Dues {
    shard: Rc<Shard>,
    stream: TunnelKey,
    /// Once `Hello` was sent, until `Ended` is.
    owed: Option<TunnelId>,
}

pub(crate) struct TunnelIo {
    shard: Rc<Shard>,
    bell: Arc<Bell>,
    node: NodeId,
    lease: TunnelLease,
    reader: FrameReader,
    outbox: Outbox,
    state: State,
    dues: Dues,
    /// From the node to the caller.
    flow: TunnelFlow,
    /// A frame of the node, or what is left of it, that does not fit yet.
    held: Option<TunnelFrame>,
    /// Frames to the node that wait in the outbox: what they take there, and what they count for.
    unsent: VecDeque<(usize, usize)>,
    ungranted: usize,
}

impl TunnelIo {
    pub(crate) fn open(
        shard: &Rc<Shard>,
        bell: &Arc<Bell>,
        certificate: &NodeCertificate,
        exchange: Exchange<'_>,
    ) -> Result<Option<Stream>, CloseReason> {
        let lease = may_open(shard)
            .and_then(|()| shard.tunnels.lease(bell, certificate.serial))
            .inspect_err(|reason| shard.counters.count_refusal(reason))?;
        let Some((source, outlet)) = exchange.accept() else { return Ok(None) };
        shard.counters.tunnel_streams.one_more();
        shard.rest.note_activity();
        Ok(Some(Stream::Tunnel(Box::new(Self {
            bell: Arc::clone(bell),
            node: certificate.identity.node.clone(),
            dues: Dues { shard: Rc::clone(shard), stream: lease.key(), owed: None },
            lease,
            reader: FrameReader::new(source, MAX_TUNNEL_FRAME_BYTES, shard, bell),
            outbox: Outbox::new(outlet, bell),
            state: State::Receiving { due_at: shard.clock.now() + shard.limits.hello_timeout },
            flow: TunnelFlow::new(shard.limits.tunnels.window_bytes),
            held: None,
            unsent: VecDeque::new(),
            ungranted: 0,
            shard: Rc::clone(shard),
        }))))
    }

    /// Carries what there is to carry. `Ready` when the stream is over.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, now: Moment) -> Poll<Afterwards> {
        self.take_mail();
        if self.shard.stage.get() == Stage::Stopping {
            self.end(TunnelClose::Stopping);
        }
        match self.state {
            State::Receiving { due_at } => self.receive_hello(context, due_at, now),
            State::Waiting { due_at } if now >= due_at + GRACE => self.end(TunnelClose::NotKnown),
            State::Open => self.receive(context, now),
            State::Waiting { .. } | State::Ending(_) => {}
        }
        let flush = self.outbox.poll_flush(context, now);
        self.grant();
        match (flush, &self.state) {
            (Flush::PeerGone, _) => {
                self.dues.pay(TunnelClose::NodeGone);
                Poll::Ready(Afterwards::Serve)
            }
            (Flush::Empty, State::Ending(status)) => {
                self.outbox.end(status);
                Poll::Ready(Afterwards::Serve)
            }
            (Flush::Stalled, State::Ending(status))
                if self.unread_deadline().is_some_and(|deadline| deadline <= now) =>
            {
                let status = status.clone();
                self.outbox.clear();
                self.outbox.end(&status);
                Poll::Ready(Afterwards::Serve)
            }
            _ => Poll::Pending,
        }
    }

    /// When `poll` must be called, though nothing rang.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        match self.state {
            State::Receiving { due_at } => self.reader.deadline().into_iter().chain([due_at]).min(),
            State::Waiting { due_at } => Some(due_at + GRACE),
            State::Open if self.held.is_none() => self.reader.deadline(),
            State::Open => None,
            State::Ending(_) => self.unread_deadline(),
        }
    }

    /// Ends the stream after a panic.
    pub(crate) fn fail(mut self: Box<Self>, reason: &CloseReason) {
        self.outbox.clear();
        self.outbox.end(&CallStatus::from(reason));
    }

    /// When what is not read yet is dropped.
    fn unread_deadline(&self) -> Option<Moment> {
        self.outbox.deadline(self.shard.limits.send_timeout)
    }

    fn take_mail(&mut self) {
        while let Some(mail) = self.lease.take_mail() {
            if let State::Ending(_) = self.state {
                continue;
            }
            match mail {
                TunnelMail::Admit => {
                    // The offer allowed it on the connection of the session, which this need not be.
                    self.bell.mark_tunnel_asked();
                    self.state = State::Open;
                }
                TunnelMail::Grant(bytes) => self.flow.handle_grant(bytes),
                TunnelMail::Close(close) => self.end(close),
                TunnelMail::Frame(frame) => {
                    let cost = cost_bytes(&frame);
                    self.shard.rest.note_activity();
                    let message = tunnel_wire::encode(frame);
                    self.shard.counters.tunnel_bytes_out.add(message.len() as u64);
                    let bytes = self.outbox.push(message);
                    self.unsent.push_back((bytes, cost));
                }
            }
        }
    }

    fn receive_hello(&mut self, context: &mut Context<'_>, due_at: Moment, now: Moment) {
        let said = match self.reader.poll_frame(context, now) {
            Poll::Pending if now < due_at => return,
            Poll::Pending => Err(broken("no TunnelHello came in time")),
            Poll::Ready(Ok(message)) => tunnel_wire::decode(message).map_err(closed_by),
            Poll::Ready(Err(ReadEnd::Broken(reason))) => Err(closed_by(reason)),
            Poll::Ready(Err(_)) => Err(broken("the stream ended without a TunnelHello")),
        };
        match said {
            Ok(Said::Hello { id, ticket }) => {
                let hello =
                    ToTunnels::Hello { stream: self.lease.key(), node: self.node.clone(), id, ticket };
                self.dues.owed = Some(id);
                self.shard.tunnels.send(hello);
                self.state = State::Waiting { due_at: now + self.shard.limits.tunnels.open_timeout };
            }
            Ok(_) => self.end(broken("the first frame of a tunnel must be TunnelHello")),
            Err(close) => self.end(close),
        }
    }

    fn receive(&mut self, context: &mut Context<'_>, now: Moment) {
        for _ in 0..FRAMES_PER_TURN {
            let was_held = self.held.is_some();
            if !self.send_held() {
                return;
            }
            if was_held {
                self.reader.resume(now);
            }
            match self.reader.poll_frame(context, now) {
                Poll::Pending => return,
                Poll::Ready(Ok(message)) => self.take_message(message),
                Poll::Ready(Err(ReadEnd::HalfClosed)) => return self.end(TunnelClose::Finished),
                Poll::Ready(Err(ReadEnd::PeerGone)) => return self.end(TunnelClose::NodeGone),
                Poll::Ready(Err(ReadEnd::Broken(reason))) => return self.end(closed_by(reason)),
            }
            if let State::Ending(_) = self.state {
                return;
            }
        }
        self.bell.ring();
    }

    /// Sends what fits of the frame that waits. Whether the next may be read.
    fn send_held(&mut self) -> bool {
        let Some(frame) = self.held.take() else { return true };
        let (desk, Some(id)) = (&self.shard.tunnels, self.dues.owed) else { return true };
        if !desk.accepts() {
            desk.wait_for_room(&self.bell);
            self.held = Some(frame);
            return false;
        }
        let (leaves, waits) = self.flow.take(frame);
        if let Some(frame) = leaves {
            self.shard.rest.note_activity();
            desk.send(ToTunnels::Frame { id, frame });
        }
        self.held = waits;
        self.held.is_none()
    }

    fn take_message(&mut self, message: Bytes) {
        self.shard.counters.tunnel_bytes_in.add(message.len() as u64);
        match tunnel_wire::decode(message) {
            Ok(Said::Frame(frame)) => match self.flow.handle_frame(&frame) {
                Ok(()) => {
                    self.held = Some(frame);
                    let _ = self.send_held();
                }
                Err(close) => self.end(close),
            },
            Ok(Said::Other) => {}
            Ok(Said::Hello { .. }) => self.end(broken("a tunnel has one TunnelHello; this is the second")),
            Err(reason) => self.end(closed_by(reason)),
        }
    }

    /// Gives back what has left for the node, in pieces of some size.
    fn grant(&mut self) {
        let waiting: usize = self.unsent.iter().map(|(bytes, _)| bytes).sum();
        let mut left = waiting.saturating_sub(self.outbox.bytes());
        while let Some((bytes, cost)) = self.unsent.front().copied()
            && bytes <= left
        {
            left -= bytes;
            self.ungranted += cost;
            self.unsent.pop_front();
        }
        // What was sent of the frame that is being sent is known from its remaining size.
        if left > 0
            && let Some((bytes, _)) = self.unsent.front_mut()
        {
            *bytes -= left;
        }
        let is_worth_it =
            self.unsent.is_empty() || self.ungranted >= self.shard.limits.tunnels.window_bytes / 4;
        if self.ungranted > 0
            && is_worth_it
            && let Some(id) = self.dues.owed
        {
            let bytes = mem::take(&mut self.ungranted);
            self.shard.tunnels.send(ToTunnels::Grant { id, bytes });
        }
    }

    /// The stream ends, at once: what waits to be written is dropped, but after the node's own end.
    fn end(&mut self, close: TunnelClose) {
        if let State::Ending(_) = self.state {
            return;
        }
        if close != TunnelClose::Finished {
            self.outbox.clear();
            self.unsent.clear();
        }
        self.held = None;
        self.outbox.begin_farewell(self.shard.clock.now() + self.shard.limits.send_timeout);
        self.state = State::Ending(CallStatus::from(&close));
        self.dues.pay(close);
    }
}

impl Dues {
    fn pay(&mut self, close: TunnelClose) {
        if let Some(id) = self.owed.take() {
            self.shard.tunnels.send(ToTunnels::Ended { stream: self.stream, id, close });
            self.shard.tunnels.ring();
        }
    }
}

impl Drop for Dues {
    fn drop(&mut self) {
        self.pay(TunnelClose::NodeGone);
        self.shard.counters.tunnel_streams.one_less();
    }
}

/// Whether nodes may open streams for their tunnels now: who has a session here may, to its end.
fn may_open(shard: &Shard) -> Result<(), CloseReason> {
    if shard.limits.tunnels.most == 0 {
        return Err(CloseReason::Unimplemented("tunnels are not offered by this gateway".to_owned()));
    }
    match shard.stage.get() {
        Stage::Serving | Stage::Draining(_) => Ok(()),
        Stage::Closed => Err(CloseReason::Fenced),
        Stage::Stopping => Err(CloseReason::Stopping),
    }
}

fn broken(why: &str) -> TunnelClose {
    TunnelClose::Protocol(why.to_owned())
}

fn closed_by(reason: CloseReason) -> TunnelClose {
    match reason {
        CloseReason::PeerGone => TunnelClose::NodeGone,
        reason => TunnelClose::Protocol(reason.to_string()),
    }
}

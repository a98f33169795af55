//! One connection that speaks HTTP/2: its state and the streams on it, driven by one task.
//!
//! A turn: take what the peer sent, serve each stream, send what they wrote; again while something
//! rang, a few times at most.
//!
//! 1. HTTP/2 is polled to `Pending` before the streams, and an error of it ends the connection.
//! 2. A panic in a stream ends its stream with `INTERNAL` and its connection, and nothing else.
//! 3. A connection without a stream is closed after `streamless_timeout`; one that is leaving is
//!    dropped after `LEAVE_TIMEOUT`, whatever its peer does.
//! 4. A peer is told that no new stream is taken (GOAWAY) after it was told in its sessions to leave.
//! 5. A connection that is over drops its streams, and each of them settles what it owes.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use gateway_core::close::CloseReason;
use gateway_core::limits::Limits;
use gateway_core::time::Moment;
use h2::Reason;
use h2::server::Builder;

use crate::bell::{Bell, Wish};
use crate::executor::Tcp;
use crate::paced::Paced;
use crate::panics;
use crate::place::Place;
use crate::shard::{ConnectionLease, Shard};
use crate::stream::{self, Afterwards, Peer, Stream, StreamCount};
use crate::timers::Deadline;
use crate::tls_stream::TlsStream;

pub(crate) type Http2 = h2::server::Connection<Paced<TlsStream<Tcp>>, Bytes>;

/// How often a turn goes on because something rang.
const ROUNDS_PER_TURN: usize = 4;
/// Requests taken before the streams have their turn.
const REQUESTS_PER_ROUND: usize = 8;
/// What a peer may take to let a leaving connection end well.
pub(crate) const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 128 << 10;
const SEND_BUFFER_BYTES: usize = 64 << 10;
const RESET_STREAMS_KEPT: usize = 16;
/// What h2 may spend on tiny DATA frames that are not read yet. A session that is held back must run
/// into its window first, which it does with frames of 32 bytes and more.
const TINY_FRAMES_BYTES: usize = 512 << 10;

/// A node's tunnels have a bound of their own beside its other streams.
fn tunnels_per_connection(limits: &Limits) -> u32 {
    let tunnels = if limits.tunnels.most == 0 { 0 } else { limits.tunnels.per_node };
    u32::try_from(tunnels).unwrap_or(u32::MAX)
}

/// HTTP/2 with everything small that a peer could make large.
pub(crate) fn http2(limits: &Limits) -> Builder {
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(limits.header_list_bytes)
        .header_table_size(0)
        .max_concurrent_streams(limits.streams_per_connection + tunnels_per_connection(limits))
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .data_frame_budget(TINY_FRAMES_BYTES)
        .max_concurrent_reset_streams(RESET_STREAMS_KEPT)
        .max_pending_accept_reset_streams(RESET_STREAMS_KEPT)
        .max_local_error_reset_streams(Some(RESET_STREAMS_KEPT));
    builder
}

/// Whether the peer was told that no new stream is taken here (GOAWAY), while its streams go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Renounced {
    No,
    /// Once HTTP/2 has had a turn to send what its sessions said before.
    Soon,
    Yes,
}

/// A connection of any protocol, to its task.
pub(crate) trait Turns {
    /// One turn. `Ready` when the connection is over.
    fn poll(&mut self, task: &Waker) -> Poll<()>;

    fn bell(&self) -> &Bell;

    /// Does what there is to do. `Ready` when the connection is over.
    fn round(&mut self, context: &mut Context<'_>, now: Moment) -> Poll<()>;

    /// Goes on as long as something rings, and the turn's share lasts.
    fn rounds(&mut self, context: &mut Context<'_>, now: Moment) -> Rounds {
        for _ in 0..ROUNDS_PER_TURN {
            if self.round(context, now).is_ready() {
                return Rounds::Over;
            }
            if !self.bell().take_rung() || self.bell().is_over_budget() {
                return Rounds::Rest;
            }
        }
        Rounds::More
    }
}

/// What a turn's rounds have come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounds {
    /// The connection is over.
    Over,
    /// Nothing rang since, or the turn's share is used up.
    Rest,
    /// Something rang again and again.
    More,
}

pub(crate) struct Connection {
    shard: Rc<Shard>,
    bell: Arc<Bell>,
    /// What all that is polled wakes: the bell.
    waker: Waker,
    http2: Http2,
    peer: Peer,
    streams: Vec<Stream>,
    streamless_since: Option<Moment>,
    leaving_until: Option<Moment>,
    renounced: Renounced,
    /// For how many tunnels the connection's window is wide enough.
    tunnels: u32,
    /// Whether its streams have the window of tunnels.
    is_wide: bool,
    deadline: Deadline,
    _place: Option<Place>,
    // Last: the shard counts the connection until all above is gone.
    _lease: ConnectionLease,
}

impl Connection {
    /// Without a place it is only told that its peer has too many.
    pub(crate) fn new(
        shard: &Rc<Shard>,
        lease: ConnectionLease,
        place: Option<Place>,
        mut http2: Http2,
        peer: Peer,
    ) -> Box<Self> {
        let bell = Arc::clone(lease.bell());
        let (mut leaving_until, mut renounced) = (None, Renounced::No);
        if place.is_none() {
            http2.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
            (leaving_until, renounced) = (Some(shard.clock.now() + LEAVE_TIMEOUT), Renounced::Yes);
        }
        Box::new(Self {
            waker: Waker::from(Arc::clone(&bell)),
            http2,
            peer,
            streams: Vec::new(),
            streamless_since: Some(shard.clock.now()),
            leaving_until,
            renounced,
            tunnels: 0,
            is_wide: false,
            deadline: shard.timers.deadline(Arc::clone(&bell)),
            bell,
            shard: Rc::clone(shard),
            _place: place,
            _lease: lease,
        })
    }

    fn turn(&mut self) -> Poll<()> {
        let now = self.shard.clock.now();
        match self.bell.wish() {
            Wish::Serve | Wish::Renounce => {}
            Wish::Leave => self.leave(now),
            Wish::Quit => return Poll::Ready(()),
        }
        let waker = self.waker.clone();
        let context = &mut Context::from_waker(&waker);
        match self.rounds(context, now) {
            Rounds::Over => return Poll::Ready(()),
            Rounds::Rest => {}
            // Others have their turn; then this one goes on.
            Rounds::More => self.bell.ring(),
        }
        self.rest(now)
    }

    /// Takes requests. `Ready` when the connection is over.
    fn poll_http2(&mut self, context: &mut Context<'_>, now: Moment) -> Poll<()> {
        for _ in 0..REQUESTS_PER_ROUND {
            match self.http2.poll_accept(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Ready(Some(Err(error))) => {
                    tracing::debug!(shard = self.shard.id.0, %error, "a connection broke");
                    self.tell_flood();
                    return Poll::Ready(());
                }
                Poll::Ready(Some(Ok((request, respond)))) => {
                    let (shard, bell, peer) = (&self.shard, &self.bell, &self.peer);
                    let open = StreamCount::of(&self.streams);
                    match panics::contain(|| stream::open(shard, bell, peer, open, request, respond)) {
                        Ok(stream) => self.streams.extend(stream),
                        Err(panic) => {
                            panic.report(shard, "opening a stream");
                            self.leave(now);
                        }
                    }
                }
            }
        }
        // More in another turn, after a look at the sockets of the others.
        self.bell.mark_over_budget();
        Poll::Pending
    }

    /// Tells the log of a node that floods, unless a session of its does.
    fn tell_flood(&self) {
        if let Peer::Node(certificate) = &self.peer
            && self.bell.is_flooded()
            && !self.streams.iter().any(|stream| matches!(stream, Stream::Session(_)))
        {
            self.shard.listener_tls.tell_end(certificate, &CloseReason::Flood);
        }
    }

    fn poll_streams(&mut self, context: &mut Context<'_>, now: Moment) {
        let mut index = 0;
        while let Some(stream) = self.streams.get_mut(index) {
            match panics::contain(|| stream.poll(context, now)) {
                Ok(Poll::Pending) => index += 1,
                Ok(Poll::Ready(afterwards)) => {
                    panics::discard(self.streams.swap_remove(index));
                    if afterwards == Afterwards::Close {
                        self.leave(now);
                    }
                }
                Err(panic) => {
                    let reason = panic.report(&self.shard, "serving a stream");
                    let broken = self.streams.swap_remove(index);
                    // What is left of it may panic again, in which case its peer sees a reset.
                    let _ = panics::contain(move || broken.fail(reason));
                    self.leave(now);
                }
            }
        }
    }

    /// Tells the peer to open its next stream elsewhere, when what its sessions said has left before.
    fn renounce(&mut self) {
        let said_all = self.streams.iter().all(Stream::has_said_all);
        match (self.bell.wish(), self.renounced) {
            (Wish::Renounce, Renounced::No) if said_all => {
                self.renounced = Renounced::Soon;
                self.bell.ring();
            }
            (Wish::Renounce, Renounced::Soon) if said_all => {
                self.renounced = Renounced::Yes;
                self.http2.graceful_shutdown();
                self.bell.ring();
            }
            _ => {}
        }
    }

    /// Each tunnel may keep a whole window unread, and the others of the connection lose nothing.
    fn fit_window(&mut self) {
        let tunnels = self.streams.iter().filter(|stream| stream.is_tunnel()).count();
        let tunnels = u32::try_from(tunnels).unwrap_or(u32::MAX);
        let window = self.shard.limits.tunnels.window_bytes;
        let window = u32::try_from(window).unwrap_or(u32::MAX).max(STREAM_WINDOW_BYTES);
        if std::mem::replace(&mut self.tunnels, tunnels) != tunnels {
            self.http2.set_target_window_size(CONNECTION_WINDOW_BYTES + tunnels * window);
            self.bell.ring();
        }
        // It can't be said until the peer has taken the settings before: then in the turn that this brings.
        if tunnels > 0
            && window > STREAM_WINDOW_BYTES
            && !self.is_wide
            && self.http2.set_initial_window_size(window).is_ok()
        {
            self.is_wide = true;
            self.bell.ring();
        }
    }

    /// Ends the turn: looks at what time has brought, and when to look again.
    fn rest(&mut self, now: Moment) -> Poll<()> {
        self.renounce();
        self.fit_window();
        if !self.streams.is_empty() {
            self.streamless_since = None;
        } else if self.leaving_until.is_none() {
            let since = *self.streamless_since.get_or_insert(now);
            if now >= since + self.shard.limits.streamless_timeout {
                // What h2 still holds of streams that ended belongs to a peer that does not read.
                self.http2.abrupt_shutdown(Reason::NO_ERROR);
                self.leaving_until = Some(now + LEAVE_TIMEOUT);
                self.bell.ring();
            }
        }
        if self.leaving_until.is_some_and(|until| until <= now) {
            return Poll::Ready(());
        }
        let idle = match (self.leaving_until, self.streamless_since) {
            (Some(until), _) => Some(until),
            (None, since) => since.map(|since| since + self.shard.limits.streamless_timeout),
        };
        let deadline = self.streams.iter().filter_map(Stream::deadline).chain(idle).min();
        self.deadline.set(deadline, now);
        Poll::Pending
    }

    /// Takes no new stream; the connection ends with its last one.
    fn leave(&mut self, now: Moment) {
        if self.leaving_until.is_none() {
            self.leaving_until = Some(now + LEAVE_TIMEOUT);
            self.renounced = Renounced::Yes;
            self.http2.graceful_shutdown();
        }
    }
}

impl Turns for Connection {
    fn bell(&self) -> &Bell {
        &self.bell
    }

    fn round(&mut self, context: &mut Context<'_>, now: Moment) -> Poll<()> {
        if self.poll_http2(context, now).is_ready() {
            return Poll::Ready(());
        }
        self.poll_streams(context, now);
        Poll::Pending
    }

    fn poll(&mut self, task: &Waker) -> Poll<()> {
        self.bell.begin_turn(task);
        let outcome = self.turn();
        self.shard.end_turn(&self.bell, outcome)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        for stream in self.streams.drain(..) {
            panics::discard(stream);
        }
        self.shard.outbound.ring();
    }
}

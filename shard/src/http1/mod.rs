//! One connection that speaks HTTP/1.1: its requests one after the other, or the session or tunnel that one of them
//! upgrades it to. Driven by one task, like its sibling `connection` for HTTP/2.
//!
//! 1. One call at a time; what it is and who may have it is decided where HTTP/2's calls are (`stream`).
//! 2. A panic in a call ends it with `INTERNAL`, and its connection, and nothing else.
//! 3. Each stage is bounded: a head by `streamless_timeout`, a call by its own deadlines, an end by
//!    `LEAVE_TIMEOUT`, whatever the peer does.
//! 4. A refusal ends the connection, and so does the end of a session or a tunnel. The peer has time to read it: what it
//!    still sends is read and dropped, so that no reset of the kernel overtakes it.
//! 5. A turn takes a few rounds of frames, however small; the next comes after a look at all sockets.

mod answer;
mod frames;
mod head;
mod link;

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use gateway_core::splitmix::part_of;
use gateway_core::time::Moment;
use http::StatusCode;
use tokio::io::ReadBuf;

pub(crate) use answer::{close, ended, go_on, upgraded};
pub(crate) use frames::{Arrived, Fault, Incoming, message};
pub(crate) use link::{Link, PIECE_BYTES};

pub(crate) use head::HeadReader;
use head::{Refused, Request};

use crate::bell::{Bell, Wish};
use crate::connection::{LEAVE_TIMEOUT, Rounds, Turns};
use crate::executor::Tcp;
use crate::flood::{Bucket, Flood};
use crate::panics;
use crate::place::Place;
use crate::shard::{ConnectionLease, Shard};
use crate::status::CallStatus;
use crate::stream::{self, Afterwards, Peer, Stream};
use crate::timers::Deadline;
use crate::tls_stream::TlsStream;
use crate::transport::{Exchange, Gone};

/// ALPN's name of it.
pub(crate) const ALPN: &[u8] = b"http/1.1";

/// Frames that are dropped in one turn of a connection that leaves.
const FRAMES_PER_TURN: usize = 64;

/// What a session's frames are read with, also when the session is over.
pub(crate) type Frames = Rc<RefCell<Incoming>>;

pub(crate) struct Http1 {
    shard: Rc<Shard>,
    bell: Arc<Bell>,
    waker: Waker,
    link: Rc<Link>,
    peer: Peer,
    stage: Stage,
    requests: Bucket,
    leaving_until: Option<Moment>,
    deadline: Deadline,
    _place: Option<Place>,
    // Last: the shard counts the connection until all above is gone.
    _lease: ConnectionLease,
}

enum Stage {
    Head { reader: HeadReader, due_at: Moment },
    Call { stream: Stream, frames: Option<Frames> },
    Leaving { frames: Option<Frames>, has_shut: bool },
}

impl Http1 {
    /// Without a place it is only told that its peer has too many.
    pub(crate) fn new(
        shard: &Rc<Shard>,
        lease: ConnectionLease,
        place: Option<Place>,
        tls: TlsStream<Tcp>,
        peer: Peer,
    ) -> Box<Self> {
        let bell = Arc::clone(lease.bell());
        let (now, has_place) = (shard.clock.now(), place.is_some());
        let mut connection = Box::new(Self {
            waker: Waker::from(Arc::clone(&bell)),
            link: Link::new(shard, &bell, tls),
            peer,
            stage: Stage::of_head(shard, now),
            requests: Bucket::requests(now),
            leaving_until: None,
            deadline: shard.timers.deadline(Arc::clone(&bell)),
            bell,
            shard: Rc::clone(shard),
            _place: place,
            _lease: lease,
        });
        if !has_place {
            connection.refuse_for_now(
                "there are too many connections of this certificate, or of clients without one; \
                 retry after the given delay",
                now,
            );
        }
        connection
    }

    fn turn(&mut self) -> Poll<()> {
        let now = self.shard.clock.now();
        match (self.bell.wish(), &self.stage) {
            (Wish::Quit, _) => return Poll::Ready(()),
            (Wish::Leave, _) | (Wish::Renounce, Stage::Head { .. }) => self.leave(now),
            _ => {}
        }
        let waker = self.waker.clone();
        let context = &mut Context::from_waker(&waker);
        match self.rounds(context, now) {
            Rounds::Over => return Poll::Ready(()),
            Rounds::Rest => {}
            // Others have their turn, and so have the shard's sockets: a peer that sends small frames without end stays
            // below what a turn may read.
            Rounds::More => self.bell.mark_over_budget(),
        }
        self.rest(now)
    }

    fn poll_head(&mut self, context: &mut Context<'_>, now: Moment) -> Poll<()> {
        // The answer before goes first.
        match self.link.poll_sent(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(Gone)) => return Poll::Ready(()),
            Poll::Ready(Ok(())) => {}
        }
        let Stage::Head { reader, .. } = &mut self.stage else { return Poll::Pending };
        loop {
            let mut space = [const { mem::MaybeUninit::uninit() }; PIECE_BYTES];
            let mut buffer = ReadBuf::uninit(&mut space);
            match self.link.poll_read(context, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(Gone)) => return Poll::Ready(()),
                Poll::Ready(Ok(())) => {}
            }
            match reader.handle_bytes(buffer.filled()) {
                Ok(None) => {}
                Ok(Some((request, behind))) => {
                    self.link.put_back(behind);
                    self.open(request, now);
                    break;
                }
                Err(refused) => {
                    self.refuse(&refused, now);
                    break;
                }
            }
        }
        self.bell.ring();
        Poll::Pending
    }

    /// Opens the call that is asked for, or refuses it.
    fn open(&mut self, request: Request, now: Moment) {
        let clock = self.shard.clock;
        if let Err(Flood) = self.requests.take(|| clock.now()) {
            self.shard.counters.floods.one_more();
            let sentence = "one connection sends too many requests; retry after the given delay";
            return self.refuse_for_now(sentence, now);
        }
        let new_frames = || Rc::new(RefCell::new(Incoming::new(0, now)));
        let frames: Option<Frames> = matches!(request, Request::Upgrade { .. }).then(new_frames);
        let (path, exchange) = match (&request, &frames) {
            (Request::Upgrade { path, accept }, Some(frames)) => {
                (*path, Exchange::WebSocket { link: &self.link, frames, accept })
            }
            (Request::Call { path, body_bytes, keep_alive, expects_continue }, _) => {
                let (body_bytes, keep_alive) = (*body_bytes, *keep_alive);
                let expects_continue = *expects_continue;
                (*path, Exchange::Unary { link: &self.link, body_bytes, keep_alive, expects_continue })
            }
            (Request::Upgrade { .. }, None) => return self.leave(now),
        };
        let (shard, bell, peer) = (&self.shard, &self.bell, &self.peer);
        match panics::contain(|| stream::start(shard, bell, peer, path, exchange)) {
            Ok(Ok(Some(stream))) => self.stage = Stage::Call { stream, frames },
            Ok(Ok(None)) => self.leave(now),
            Ok(Err(reason)) => {
                self.link.stage_last(ended(&CallStatus::from(&reason), &[], false));
                self.leave(now);
            }
            Err(panic) => {
                let reason = panic.report(&self.shard, "opening a stream");
                self.link.stage_last(ended(&CallStatus::from(&reason), &[], false));
                self.leave(now);
            }
        }
    }

    fn refuse(&mut self, refused: &Refused, now: Moment) {
        self.link.stage_last(answer::refused(refused));
        self.leave(now);
    }

    /// Refuses for a bound that no measure tells the end of, with a delay that spreads a herd.
    fn refuse_for_now(&mut self, sentence: &'static str, now: Moment) {
        let pushback = Some(RETRY_REFUSED + part_of(RETRY_REFUSED, self.shard.random()));
        self.refuse(
            &Refused { status: StatusCode::TOO_MANY_REQUESTS, header: None, pushback, sentence },
            now,
        );
    }

    /// The call is over: the next request, or the end.
    fn end_call(&mut self, afterwards: Afterwards, now: Moment) {
        let goes_on = self.link.take_reusable()
            && afterwards == Afterwards::Serve
            && self.leaving_until.is_none()
            && self.bell.wish() == Wish::Serve;
        if goes_on {
            let over = mem::replace(&mut self.stage, Stage::of_head(&self.shard, now));
            panics::discard(over);
            self.bell.ring();
        } else {
            panics::discard(self.leave_call(now));
        }
    }

    /// Leaves, without the call if there is one.
    fn leave_call(&mut self, now: Moment) -> Option<Stream> {
        self.bell.ring();
        self.leaving_until.get_or_insert(now + LEAVE_TIMEOUT);
        let left = mem::replace(&mut self.stage, Stage::Leaving { frames: None, has_shut: false });
        match left {
            Stage::Call { stream, frames } => {
                // A session's peer answers the close, unless it closed before or speaks no WebSocket.
                let frames = frames.filter(|frames| !frames.borrow().is_over());
                if let Some(frames) = &frames {
                    frames.borrow_mut().discard();
                }
                self.stage = Stage::Leaving { frames, has_shut: false };
                Some(stream)
            }
            Stage::Leaving { .. } => {
                self.stage = left;
                None
            }
            Stage::Head { .. } => None,
        }
    }

    /// Takes no new request; the connection ends with its call.
    fn leave(&mut self, now: Moment) {
        self.leaving_until.get_or_insert(now + LEAVE_TIMEOUT);
        if matches!(self.stage, Stage::Head { .. }) {
            self.leave_call(now);
        }
    }

    /// Says the last, then reads until the peer ends too.
    fn poll_leaving(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.link.poll_sent(context) {
            Poll::Pending => {}
            Poll::Ready(Err(Gone)) => return Poll::Ready(()),
            Poll::Ready(Ok(())) => {
                let Stage::Leaving { frames, has_shut } = &mut self.stage else { return Poll::Pending };
                if frames.is_none() && !*has_shut && self.link.poll_shutdown(context).is_ready() {
                    *has_shut = true;
                }
            }
        }
        let Stage::Leaving { frames, .. } = &mut self.stage else { return Poll::Pending };
        for _ in 0..FRAMES_PER_TURN {
            let is_over = match frames {
                Some(frames) => match self.link.poll_frame(context, &mut frames.borrow_mut()) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(Gone)) => return Poll::Ready(()),
                    Poll::Ready(Ok(Ok(Some(Arrived::Close)) | Err(_))) => true,
                    Poll::Ready(Ok(Ok(_))) => false,
                },
                None => {
                    let mut space = [const { mem::MaybeUninit::uninit() }; PIECE_BYTES];
                    match self.link.poll_read(context, &mut ReadBuf::uninit(&mut space)) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Err(Gone)) => return Poll::Ready(()),
                        Poll::Ready(Ok(())) => false,
                    }
                }
            };
            if is_over {
                *frames = None;
                break;
            }
        }
        self.bell.ring();
        Poll::Pending
    }

    /// Ends the turn: looks at what time has brought, and when to look again.
    fn rest(&mut self, now: Moment) -> Poll<()> {
        if let Stage::Head { reader, due_at } = &self.stage
            && *due_at <= now
        {
            if reader.has_begun() {
                self.link.stage_last(answer::refused(&TOO_SLOW));
            }
            self.leave(now);
        }
        if self.leaving_until.is_some_and(|until| until <= now) {
            return Poll::Ready(());
        }
        let of_stage = match &self.stage {
            Stage::Head { due_at, .. } => Some(*due_at),
            Stage::Call { stream, .. } => stream.deadline(),
            Stage::Leaving { .. } => None,
        };
        self.deadline.set(of_stage.into_iter().chain(self.leaving_until).min(), now);
        Poll::Pending
    }
}

impl Turns for Http1 {
    fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Does what the stage asks for.
    fn round(&mut self, context: &mut Context<'_>, now: Moment) -> Poll<()> {
        match &mut self.stage {
            Stage::Head { .. } => self.poll_head(context, now),
            Stage::Call { stream, .. } => {
                match panics::contain(|| stream.poll(context, now)) {
                    Ok(Poll::Pending) => {}
                    Ok(Poll::Ready(afterwards)) => self.end_call(afterwards, now),
                    Err(panic) => {
                        let reason = panic.report(&self.shard, "serving a stream");
                        let ended = self.leave_call(now);
                        // What is left of it may panic again, in which case its peer sees the connection end.
                        let _ = panics::contain(move || ended.map(|stream| stream.fail(reason)));
                    }
                }
                // A pong, or an end; if the peer is gone, the call finds it out.
                let _ = self.link.poll_sent(context);
                Poll::Pending
            }
            Stage::Leaving { .. } => self.poll_leaving(context),
        }
    }

    fn poll(&mut self, task: &Waker) -> Poll<()> {
        self.bell.begin_turn(task);
        let outcome = self.turn();
        self.shard.end_turn(&self.bell, outcome)
    }
}

impl Drop for Http1 {
    fn drop(&mut self) {
        panics::discard(mem::replace(&mut self.stage, Stage::Leaving { frames: None, has_shut: true }));
        self.shard.outbound.ring();
    }
}

impl Stage {
    fn of_head(shard: &Shard, now: Moment) -> Self {
        let max_bytes = shard.limits.header_list_bytes as usize;
        let due_at = now + shard.limits.streamless_timeout;
        Self::Head { reader: HeadReader::new(max_bytes), due_at }
    }
}

/// The shortest delay of who is refused for a bound of connections or requests; it is twice as long at most.
const RETRY_REFUSED: Duration = Duration::from_secs(1);

const TOO_SLOW: Refused = Refused {
    status: StatusCode::REQUEST_TIMEOUT,
    header: None,
    pushback: None,
    sentence: "the head of the request did not come in time (sessions.streamless_timeout)",
};

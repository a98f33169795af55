//! One connection in memory: the session on it, driven by one task, like its siblings over sockets.
//!
//! 1. A session is opened by the same rules as over HTTP/2, its place among its certificate's connections included;
//!    a refusal is all that its sink is told.
//! 2. A panic in the session, or in its sink, ends it with `INTERNAL`, and nothing else.
//! 3. A sink has `LEAVE_TIMEOUT` to take what is left when its session is over; then it is ended without that.

use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, UNIX_EPOCH};

use gateway_core::close::{AdmissionBound, CloseReason};
use gateway_core::time::Moment;
use gateway_proto::path;

use super::visitors::Visit;
use super::{LocalLink, LocalPeer};
use crate::bell::{Bell, Wish};
use crate::connection::{LEAVE_TIMEOUT, Rounds, Turns};
use crate::panics;
use crate::place::Place;
use crate::refusals::Shown;
use crate::relay_io::RETRY_RELAY;
use crate::shard::{ConnectionLease, Shard};
use crate::status::CallStatus;
use crate::stream::{self, Peer, Stream, Unproven};
use crate::timers::Deadline;
use crate::transport::Exchange;

pub(super) struct LocalConnection {
    shard: Rc<Shard>,
    bell: Arc<Bell>,
    waker: Waker,
    link: Rc<LocalLink>,
    peer: Peer,
    stage: Stage,
    leaving_until: Option<Moment>,
    deadline: Deadline,
    place: Option<Place>,
    // Last: the shard counts the connection until all above is gone.
    _lease: ConnectionLease,
}

enum Stage {
    Opening,
    Call(Stream),
    Leaving,
}

impl LocalConnection {
    pub(super) fn new(shard: &Rc<Shard>, lease: ConnectionLease, visit: Visit) -> Box<Self> {
        let bell = Arc::clone(lease.bell());
        let peer = identify(shard, &visit.peer);
        Box::new(Self {
            waker: Waker::from(Arc::clone(&bell)),
            link: LocalLink::new(&bell, visit.pipe, visit.sink),
            place: Place::take(shard, &peer),
            peer,
            stage: Stage::Opening,
            leaving_until: None,
            deadline: shard.timers.deadline(Arc::clone(&bell)),
            bell,
            shard: Rc::clone(shard),
            _lease: lease,
        })
    }

    fn turn(&mut self) -> Poll<()> {
        let now = self.shard.clock.now();
        match self.bell.wish() {
            Wish::Serve | Wish::Renounce => {}
            Wish::Leave => {
                self.leaving_until.get_or_insert(now + LEAVE_TIMEOUT);
            }
            Wish::Quit => return Poll::Ready(()),
        }
        let waker = self.waker.clone();
        let context = &mut Context::from_waker(&waker);
        match self.rounds(context, now) {
            Rounds::Over => return Poll::Ready(()),
            Rounds::Rest => {}
            // Others have their turn, and so have the shard's sockets.
            Rounds::More => self.bell.mark_over_budget(),
        }
        self.rest(now)
    }

    fn open(&mut self, now: Moment) {
        let (shard, bell, peer) = (&self.shard, &self.bell, &self.peer);
        let opened = match (&self.place, peer) {
            // Who is not whom it says has none either, and is told why.
            (None, Peer::Node(_)) => {
                Err(CloseReason::Refused { bound: AdmissionBound::Streams, retry_after: RETRY_RELAY })
            }
            _ => panics::contain(|| {
                stream::start(shard, bell, peer, path::SESSION, Exchange::Local(&self.link))
            })
            .unwrap_or_else(|panic| Err(panic.report(shard, "opening a stream"))),
        };
        match opened {
            Ok(Some(stream)) => self.stage = Stage::Call(stream),
            Ok(None) => drop(self.leave(now)),
            Err(reason) => {
                self.link.stage_end(&CallStatus::from(&reason));
                self.leave(now);
            }
        }
        self.bell.ring();
    }

    /// Leaves, and gives the session if there is one.
    fn leave(&mut self, now: Moment) -> Option<Stream> {
        self.bell.ring();
        self.leaving_until.get_or_insert(now + LEAVE_TIMEOUT);
        match mem::replace(&mut self.stage, Stage::Leaving) {
            Stage::Call(stream) => Some(stream),
            Stage::Opening | Stage::Leaving => None,
        }
    }

    /// Ends the turn: looks at what time has brought, and when to look again.
    fn rest(&mut self, now: Moment) -> Poll<()> {
        if self.leaving_until.is_some_and(|until| until <= now) {
            self.link.forget();
            return self.link.poll_sent(&mut Context::from_waker(&self.waker)).map(drop);
        }
        let of_stage = match &self.stage {
            Stage::Call(stream) => stream.deadline(),
            Stage::Opening | Stage::Leaving => None,
        };
        self.deadline.set(of_stage.into_iter().chain(self.leaving_until).min(), now);
        Poll::Pending
    }
}

impl Turns for LocalConnection {
    fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Does what the stage asks for.
    fn round(&mut self, context: &mut Context<'_>, now: Moment) -> Poll<()> {
        match &mut self.stage {
            Stage::Opening => {
                self.open(now);
                Poll::Pending
            }
            Stage::Call(stream) => {
                match panics::contain(|| stream.poll(context, now)) {
                    Ok(Poll::Pending) => {}
                    Ok(Poll::Ready(_)) => panics::discard(self.leave(now)),
                    Err(panic) => {
                        let reason = panic.report(&self.shard, "serving a stream");
                        let broken = self.leave(now);
                        // What is left of it may panic again, in which case its sink is told that it was lost.
                        let _ = panics::contain(move || broken.map(|stream| stream.fail(reason)));
                    }
                }
                Poll::Pending
            }
            // The last frames, and the end; a sink that is gone has no use for them.
            Stage::Leaving => match panics::contain(|| self.link.poll_sent(context).map(drop)) {
                Ok(outcome) => outcome,
                // It took frames before; it is told that it was lost, if that works.
                Err(panic) => {
                    panic.report(&self.shard, "a sink");
                    Poll::Ready(())
                }
            },
        }
    }

    fn poll(&mut self, task: &Waker) -> Poll<()> {
        self.bell.begin_turn(task);
        let outcome = self.turn();
        self.shard.end_turn(&self.bell, outcome)
    }
}

impl Drop for LocalConnection {
    fn drop(&mut self) {
        panics::discard(mem::replace(&mut self.stage, Stage::Leaving));
        self.shard.outbound.ring();
    }
}

fn identify(shard: &Shard, peer: &LocalPeer) -> Peer {
    let ends_at = peer.ends_at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    match shard.identity.claimed(&peer.node, &peer.certificate_serial, ends_at) {
        Ok(certificate) => Peer::Node(Rc::new(certificate)),
        Err(reason) => {
            let shown = Shown::claimed(&peer.node, &peer.certificate_serial);
            Peer::Unproven(Box::new(Unproven { shown, reason }))
        }
    }
}

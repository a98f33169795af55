//! How calls of this process come to a shard: a mailbox of each shard's own, and one handle over all of them.
//!
//! Owns the way in, and the word that the gateway is to die. Never serves a call: that is `connection`'s.
//!
//! 1. Whoever opens a call waits for nobody: a shard with as many waiting as may is tried, then the next, and where
//!    all are full it is said.
//! 2. A call that a stopping shard has not begun is told so; one that a dying gateway has not begun was lost.
//! 3. A crash is heard by every shard, whatever waits before it.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use gateway_core::close::CloseReason;
use gateway_core::mail::{Inbox, Post, PostError, Weigh, mailbox};

use super::connection::LocalConnection;
use super::link::Sink;
use super::pipe::{PipeReceiver, pipe};
use super::{
    CallEnd, FrameConnection, FrameSender, FrameSink, HalfClosed, LocalPeer, UP_BYTES, UP_FRAMES, pipe_sink,
};
use crate::executor;
use crate::handshake;
use crate::rest::RousingWaker;
use crate::shard::{Shard, Stage};
use crate::status::CallStatus;

/// Calls that may wait for one shard.
const WAITING: usize = 1024;
const VISITS_PER_TURN: usize = 64;

/// A call that waits for its shard.
#[derive(Debug)]
pub(super) struct Visit {
    pub(super) peer: LocalPeer,
    pub(super) pipe: PipeReceiver<HalfClosed>,
    pub(super) sink: Sink,
}

impl Visit {
    /// Tells it that the gateway stops.
    fn turn_away(mut self) {
        self.sink.end(CallEnd::from(&CallStatus::from(&CloseReason::Stopping)));
    }
}

impl Weigh for Visit {
    // Nothing of its frames is here yet.
    fn weight_bytes(&self) -> usize {
        0
    }
}

/// Why a call was not taken; its sink is told nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// As many calls wait for the shards as may; try again a little later.
    #[error("as many sessions wait to be opened as may; try again in a moment")]
    Busy,
    /// The gateway has stopped.
    #[error("the gateway has stopped")]
    Stopped,
}

/// The way in, for any thread.
#[derive(Debug)]
pub struct Visitors {
    posts: Box<[Post<Visit>]>,
    next: AtomicUsize,
    crashed: Arc<AtomicBool>,
}

/// What one shard has of it.
#[derive(Debug)]
pub struct VisitorsInbox {
    inbox: Inbox<Visit>,
    crashed: Arc<AtomicBool>,
}

/// The way to so many shards, and what each of them is given.
pub fn visitors(shards: usize) -> (Visitors, Vec<VisitorsInbox>) {
    let crashed = Arc::<AtomicBool>::default();
    let (posts, inboxes) = (0..shards)
        .map(|_| {
            let (mut posts, inbox) = mailbox(WAITING, usize::MAX, 1);
            let post = posts.pop().expect("a mailbox has as many posts as were asked for");
            (post, VisitorsInbox { inbox, crashed: Arc::clone(&crashed) })
        })
        .unzip::<_, _, Vec<_>, Vec<_>>();
    (Visitors { posts: posts.into(), next: AtomicUsize::new(0), crashed }, inboxes)
}

impl Visitors {
    /// Opens a session of this peer, whose frames from the gateway go to `sink`. Shards take turns.
    ///
    /// What the gateway thinks of the peer comes to the sink: its `Welcome`, or an end with why not.
    pub fn open(&self, peer: LocalPeer, sink: Box<dyn FrameSink>) -> Result<FrameSender, Refused> {
        let (sender, pipe) = pipe(UP_FRAMES, UP_BYTES);
        let mut visit = Visit { peer, pipe, sink: Sink::new(sink) };
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut refused = Refused::Stopped;
        for turn in 0..self.posts.len() {
            let post = &self.posts[first.wrapping_add(turn) % self.posts.len()];
            match post.post(visit) {
                Ok(()) => {
                    post.ring();
                    return Ok(FrameSender(Some(sender)));
                }
                Err(PostError::Full(back)) => (visit, refused) = (back, Refused::Busy),
                Err(PostError::Gone(back)) => visit = back,
            }
        }
        visit.sink.dismiss();
        Err(refused)
    }

    /// The same with a sink that is read when its owner likes.
    pub fn connect(&self, peer: LocalPeer) -> Result<FrameConnection, Refused> {
        let (sink, receiver) = pipe_sink();
        Ok(FrameConnection { sender: self.open(peer, sink)?, receiver })
    }

    /// Every shard ends as its process would: at once, and nobody is told.
    pub fn crash(&self) {
        self.crashed.store(true, Ordering::Release);
        for post in &self.posts {
            post.ring();
        }
    }
}

impl VisitorsInbox {
    /// Whether the gateway is to die.
    pub(crate) fn is_crashed(&self) -> bool {
        self.crashed.load(Ordering::Acquire)
    }

    fn poll_take(&self, context: &mut Context<'_>) -> Poll<Option<Visit>> {
        let next = self.inbox.poll_take(context);
        // After the look, which registered for the next ring.
        if self.is_crashed() { Poll::Ready(None) } else { next }
    }

    /// Nobody serves what waits.
    pub(crate) fn turn_away(&self) {
        while let Some(visit) = self.inbox.take() {
            if !self.is_crashed() {
                visit.turn_away();
            }
        }
    }
}

/// Has calls served, until the gateway is to die.
pub(crate) async fn run(shard: &Rc<Shard>, visitors: &VisitorsInbox) {
    let (mut rousing, mut taken) = (RousingWaker::default(), 0);
    loop {
        let next = poll_fn(|context| {
            let rousing = rousing.of(context.waker(), &shard.rest);
            visitors.poll_take(&mut Context::from_waker(rousing))
        });
        let Some(visit) = next.await else {
            if visitors.is_crashed() {
                return;
            }
            // Nobody is left who could open a call.
            return std::future::pending().await;
        };
        shard.rest.note_activity();
        if shard.stage.get() == Stage::Stopping {
            visit.turn_away();
            continue;
        }
        let connection = LocalConnection::new(shard, shard.lease_connection(), visit);
        shard.queues.spawn_session(handshake::serve(Rc::clone(shard), connection));
        taken += 1;
        if taken % VISITS_PER_TURN == 0 {
            executor::yield_now().await;
        }
    }
}

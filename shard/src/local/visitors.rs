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
    ways: Box<[(Post<Visit>, Arc<Room>)]>,
    next: AtomicUsize,
}

/// What one shard has of it. It takes no call any more when it is dropped.
#[derive(Debug)]
pub struct VisitorsInbox(Arc<Room>);

/// Where calls wait for one shard. The other side has it too, for the call that comes as the shard goes.
#[derive(Debug)]
struct Room {
    inbox: Inbox<Visit>,
    is_closed: AtomicBool,
    crashed: Arc<AtomicBool>,
}

/// The way to so many shards, and what each of them is given.
pub fn visitors(shards: usize) -> (Visitors, Vec<VisitorsInbox>) {
    let crashed = Arc::<AtomicBool>::default();
    let (ways, inboxes) = (0..shards)
        .map(|_| {
            let (mut posts, inbox) = mailbox(WAITING, usize::MAX, 1);
            let post = posts.pop().expect("a mailbox has as many posts as were asked for");
            let (is_closed, crashed) = (AtomicBool::new(false), Arc::clone(&crashed));
            let room = Arc::new(Room { inbox, is_closed, crashed });
            ((post, Arc::clone(&room)), VisitorsInbox(room))
        })
        .unzip::<_, _, Vec<_>, Vec<_>>();
    (Visitors { ways: ways.into(), next: AtomicUsize::new(0) }, inboxes)
}

impl Visitors {
    /// Opens a session of this peer, whose frames from the gateway go to `sink`. Shards take turns.
    ///
    /// What the gateway thinks of the peer comes to the sink: its `Welcome`, or an end with why not.
    ///
    /// # Errors
    /// The sink is then dropped, and told nothing.
    pub fn open(&self, peer: LocalPeer, sink: Box<dyn FrameSink>) -> Result<FrameSender, Refused> {
        let (sender, pipe) = pipe(UP_FRAMES, UP_BYTES);
        let mut visit = Visit { peer, pipe, sink: Sink::new(sink) };
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut refused = Refused::Stopped;
        for turn in 0..self.ways.len() {
            let (post, room) = &self.ways[first.wrapping_add(turn) % self.ways.len()];
            if room.is_closed.load(Ordering::SeqCst) {
                continue;
            }
            match post.post(visit) {
                Ok(()) => {
                    post.ring();
                    // Either the shard has seen it as it closed, or this sees that it has closed.
                    if room.is_closed.load(Ordering::SeqCst) {
                        room.turn_away();
                    }
                    return Ok(FrameSender(Some(sender)));
                }
                Err(PostError::Full(back) | PostError::Gone(back)) => {
                    (visit, refused) = (back, Refused::Busy)
                }
            }
        }
        visit.sink.dismiss();
        Err(refused)
    }

    /// The same with a sink that is read when its owner likes.
    ///
    /// # Errors
    /// As `open`.
    pub fn connect(&self, peer: LocalPeer) -> Result<FrameConnection, Refused> {
        let (sink, receiver) = pipe_sink();
        Ok(FrameConnection { sender: self.open(peer, sink)?, receiver })
    }

    /// Every shard ends as its process would: at once, and nobody is told.
    pub fn crash(&self) {
        for (post, room) in &self.ways {
            room.crashed.store(true, Ordering::SeqCst);
            post.ring();
        }
    }
}

impl Room {
    /// Tells those who wait that the gateway stops; of one that dies, that they were lost.
    fn turn_away(&self) {
        while let Some(visit) = self.inbox.take() {
            if !self.crashed.load(Ordering::SeqCst) {
                visit.turn_away();
            }
        }
    }
}

impl VisitorsInbox {
    /// Whether the gateway is to die.
    pub(crate) fn is_crashed(&self) -> bool {
        self.0.crashed.load(Ordering::SeqCst)
    }

    fn poll_take(&self, context: &mut Context<'_>) -> Poll<Option<Visit>> {
        let next = self.0.inbox.poll_take(context);
        // After the look, which registered for the next ring.
        if self.is_crashed() { Poll::Ready(None) } else { next }
    }
}

impl Drop for VisitorsInbox {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::SeqCst);
        self.0.turn_away();
        self.0.inbox.forget_waker();
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
            // Nobody is left who could open a call, or ask for a crash.
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

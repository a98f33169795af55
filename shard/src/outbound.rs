//! The way of a shard's messages into the writer's mailbox.
//!
//! When the mailbox has no room, messages wait in the `Backlog`, and `accepts` turns false: sessions then keep
//! what they have, stop reading when their own inboxes are full, and HTTP/2 holds the nodes back.
//!
//! 1. Messages leave in the order in which they were sent.
//! 2. Nothing is dropped, unless the writer's thread is gone.
//! 3. What waits here is what one turn had begun to send, and ends of sessions: one `Closed` each.
//! 4. Sessions that wait for room are woken in the order in which they began to wait, a few at a
//!    time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use gateway_core::mail::Post;
use gateway_core::seam::ToWriter;

use crate::backlog::{Backlog, Met};
use crate::bell::Bell;
use crate::counters::ShardCounters;
use crate::executor;
use crate::sleeper::Sleeper;

/// Sessions woken at once when there is room again.
const WAKES_PER_TURN: usize = 64;

#[derive(Debug)]
pub(crate) struct Outbound {
    backlog: Backlog<ToWriter>,
    counters: Arc<ShardCounters>,
    waiting: RefCell<VecDeque<Rc<Waiting>>>,
    /// That the writer is gone was told.
    writer_gone: Cell<bool>,
    flush_waiter: Sleeper,
}

/// A session that waits for room.
#[derive(Debug)]
struct Waiting {
    bell: Arc<Bell>,
    gave_up: Cell<bool>,
    woken: Cell<bool>,
}

/// Held by a session while it waits for room.
#[derive(Debug)]
pub(crate) struct RoomWait(Rc<Waiting>);

impl RoomWait {
    /// Whether it rang: to wait further takes another wait.
    pub(crate) fn is_spent(&self) -> bool {
        self.0.woken.get()
    }
}

impl Drop for RoomWait {
    fn drop(&mut self) {
        self.0.gave_up.set(true);
    }
}

impl Outbound {
    pub(crate) fn new(post: Post<ToWriter>, counters: Arc<ShardCounters>) -> Self {
        Self {
            backlog: Backlog::new(post),
            counters,
            waiting: RefCell::default(),
            writer_gone: Cell::new(false),
            flush_waiter: Sleeper::default(),
        }
    }

    /// Whether sessions may give out what they have for the writer.
    pub(crate) fn accepts(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Sends a message. The writer learns of it at the next `ring`.
    pub(crate) fn send(&self, message: ToWriter) {
        match self.backlog.send(message) {
            Met::Way => {}
            Met::Full => self.counters.writer_full_waits.one_more(),
            Met::Nobody => self.lose_writer(),
        }
    }

    /// Tells the writer of all that was posted since the last time.
    pub(crate) fn ring(&self) {
        self.backlog.ring();
    }

    /// The bell rings when there is room, unless the wait is dropped before.
    pub(crate) fn wait_for_room(&self, bell: &Arc<Bell>) -> RoomWait {
        let place =
            Rc::new(Waiting { bell: Arc::clone(bell), gave_up: Cell::new(false), woken: Cell::new(false) });
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() == waiting.capacity() {
            // Before it grows: who gave up needs no place.
            waiting.retain(|place| !place.gave_up.get());
        }
        waiting.push_back(Rc::clone(&place));
        RoomWait(place)
    }

    /// Posts what waits, whenever there is room, for ever.
    pub(crate) async fn run(&self) {
        loop {
            poll_fn(|context| self.poll_empty(context)).await;
            self.flush_waiter.wake();
            self.wake_waiting();
            if self.accepts() && !self.waiting.borrow().is_empty() {
                executor::yield_now().await;
                continue;
            }
            self.backlog.until_used().await;
        }
    }

    /// Resolves when nothing waits here any more.
    pub(crate) async fn flushed(&self) {
        self.flush_waiter.until(|| self.accepts()).await;
    }

    fn poll_empty(&self, context: &Context<'_>) -> Poll<()> {
        let outcome = self.backlog.poll_empty(context);
        if self.backlog.is_gone() {
            self.lose_writer();
        }
        outcome
    }

    fn wake_waiting(&self) {
        let mut woken = 0;
        while woken < WAKES_PER_TURN {
            let Some(next) = self.waiting.borrow_mut().pop_front() else { return };
            if !next.gave_up.get() {
                next.woken.set(true);
                next.bell.ring();
                woken += 1;
            }
        }
    }

    fn lose_writer(&self) {
        if !self.writer_gone.replace(true) {
            tracing::error!("the writer's thread is gone; its messages are dropped until the process ends");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use gateway_core::ids::ShardId;
    use gateway_core::mail::{Inbox, mailbox};

    use super::*;

    fn outbound(capacity: usize) -> (Outbound, Inbox<ToWriter>) {
        let (mut posts, inbox) = mailbox(capacity, 1 << 20, 1);
        (Outbound::new(posts.remove(0), Arc::default()), inbox)
    }

    fn numbered(shard: u16) -> ToWriter {
        ToWriter::ShardStopped { shard: ShardId(shard) }
    }

    fn number(message: Option<ToWriter>) -> Option<u16> {
        message.map(|message| match message {
            ToWriter::ShardStopped { shard } => shard.0,
            other => panic!("an unexpected {other:?}"),
        })
    }

    #[test]
    fn a_full_writer_holds_sessions_back_and_loses_nothing() {
        let (outbound, inbox) = outbound(2);
        for n in 0..5 {
            outbound.send(numbered(n));
        }
        assert!(!outbound.accepts());
        let context = Context::from_waker(Waker::noop());
        assert!(outbound.poll_empty(&context).is_pending());
        let mut seen = Vec::new();
        loop {
            while let Some(n) = number(inbox.take()) {
                seen.push(n);
            }
            inbox.announce_space();
            if outbound.poll_empty(&context).is_ready() {
                break;
            }
        }
        seen.extend(std::iter::from_fn(|| number(inbox.take())));
        assert_eq!(seen, [0, 1, 2, 3, 4]);
        assert!(outbound.accepts());
    }

    #[test]
    fn a_gone_writer_does_not_make_a_shard_grow() {
        let (outbound, inbox) = outbound(1);
        outbound.send(numbered(0));
        outbound.send(numbered(1));
        drop(inbox);
        assert!(outbound.poll_empty(&Context::from_waker(Waker::noop())).is_ready());
        outbound.send(numbered(2));
        assert!(outbound.accepts() && outbound.writer_gone.get());
    }
}

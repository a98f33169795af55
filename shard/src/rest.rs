//! When a shard rests, and how it dozes then: heartbeats of many sessions are taken together.
//!
//! Waking a thread for one heartbeat costs several times what the heartbeat itself does. On a shard
//! where nothing but heartbeats comes, the thread dozes a little after each look at its sockets, so
//! that the next look finds several. What a node waits for ends the rest: mail of the writer, a
//! message to it, a new connection.
//!
//! 1. Mail ends a doze at once: a command is never later for it.
//! 2. Bytes of a node wait one doze at most, and only after `metronome` found nothing but heartbeats for
//!    half a second.
//! 3. A shard that was told to spin, or not to doze, never rests.

use std::cell::Cell;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use crate::sleeper::Sleeper;

/// The rest of one shard; it is made on the shard's thread.
#[derive(Debug)]
pub(crate) struct Rest {
    thread: Thread,
    /// Zero: it never rests.
    doze: Duration,
    resting: Cell<bool>,
    active: Cell<bool>,
    wanted: Cell<bool>,
    dozer: Sleeper,
}

impl Rest {
    pub(crate) fn new(doze: Duration) -> Self {
        Self {
            thread: std::thread::current(),
            doze,
            resting: Cell::new(false),
            active: Cell::new(true),
            wanted: Cell::new(false),
            dozer: Sleeper::default(),
        }
    }

    /// Something came that a node or the writer waits for.
    pub(crate) fn note_activity(&self) {
        self.active.set(true);
        self.resting.set(false);
    }

    /// Whether something came since this was last asked.
    pub(crate) fn take_active(&self) -> bool {
        self.active.replace(false)
    }

    /// Nothing came for long enough.
    pub(crate) fn begin(&self) {
        self.resting.set(!self.doze.is_zero());
    }

    /// A connection had its turn: a shard that rests dozes now.
    pub(crate) fn handle_turn(&self) {
        if self.resting.get() && !self.wanted.replace(true) {
            self.dozer.wake();
        }
    }

    /// Dozes where it is wanted, for ever.
    pub(crate) async fn run(&self) {
        loop {
            self.dozer.until(|| self.wanted.take()).await;
            if self.resting.get() {
                std::thread::park_timeout(self.doze);
            }
        }
    }

    /// A waker that wakes `task` and ends the doze in which it may find the thread.
    fn rousing(&self, task: &Waker) -> Waker {
        Waker::from(Arc::new(Rousing { task: task.clone(), thread: self.thread.clone() }))
    }
}

/// The rousing waker of one task, made anew only when the task's own changes.
#[derive(Debug, Default)]
pub(crate) struct RousingWaker(Option<(Waker, Waker)>);

impl RousingWaker {
    pub(crate) fn of(&mut self, task: &Waker, rest: &Rest) -> &Waker {
        let known = self.0.take().filter(|(known, _)| known.will_wake(task));
        &self.0.insert(known.unwrap_or_else(|| (task.clone(), rest.rousing(task)))).1
    }
}

struct Rousing {
    task: Waker,
    thread: Thread,
}

impl Wake for Rousing {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.task.wake_by_ref();
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn mail_ends_a_doze_and_activity_the_rest() {
        let rest = Rest::new(Duration::from_secs(20));
        rest.begin();
        rest.handle_turn();
        assert!(rest.wanted.get());
        let waker = rest.rousing(Waker::noop());
        let rouser = std::thread::spawn(move || waker.wake());
        let begun = Instant::now();
        std::thread::park_timeout(Duration::from_secs(20));
        assert!(begun.elapsed() < Duration::from_secs(10), "it was not roused");
        rouser.join().expect("the rouser");
        rest.note_activity();
        assert!(!rest.resting.get() && rest.take_active() && !rest.take_active());
    }

    #[test]
    fn a_shard_without_a_doze_never_rests() {
        let rest = Rest::new(Duration::ZERO);
        rest.begin();
        rest.handle_turn();
        assert!(!rest.wanted.get());
    }
}

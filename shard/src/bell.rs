//! How the task of a connection is woken, and what it is asked to do.
//!
//! The task gives the bell itself as the waker to all that it polls. What rings while the task has
//! its turn (HTTP/2 tells its connection that a stream has something to send, say) only makes the
//! turn go on; so a turn ends when nothing is left to do, and costs one schedule.
//!
//! 1. Nothing that rang is lost: after the end of a turn a ring reaches the executor.
//! 2. A turn reads at most `READ_BYTES_PER_TURN`: no peer, however fast, keeps a shard to itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use atomic_waker::AtomicWaker;

/// Plaintext that one turn of a connection may read.
pub(crate) const READ_BYTES_PER_TURN: usize = 128 << 10;

/// What a connection is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Go on.
    Serve,
    /// Say that no new stream is taken, and go on with those that there are.
    Renounce,
    /// Take no new stream, end when the last one has.
    Leave,
    /// End now.
    Quit,
}

/// One connection's bell. It is made of atomics since a `Waker` may be called from any thread.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    task: AtomicWaker,
    in_turn: AtomicBool,
    rung: AtomicBool,
    wish: AtomicU8,
    read_bytes_left: AtomicUsize,
    over_budget: AtomicBool,
    data_frames_sent: AtomicU32,
    tunnels_asked: AtomicU32,
    flooded: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

impl Bell {
    /// Wakes the task, or makes its present turn go on.
    pub(crate) fn ring(&self) {
        if self.in_turn.load(Ordering::SeqCst) {
            self.rung.store(true, Ordering::SeqCst);
            // The turn may have ended between the two; a task woken for nothing is no harm.
            if self.in_turn.load(Ordering::SeqCst) {
                return;
            }
        }
        self.task.wake();
    }

    /// The connection's task is over, so there is nobody to wake, whoever still holds the bell.
    pub(crate) fn forget_task(&self) {
        drop(self.task.take());
    }

    /// The turn of the connection's present task begins.
    pub(crate) fn begin_turn(&self, task: &Waker) {
        self.task.register(task);
        self.read_bytes_left.store(READ_BYTES_PER_TURN, Ordering::Relaxed);
        self.over_budget.store(false, Ordering::Relaxed);
        self.rung.store(false, Ordering::SeqCst);
        self.in_turn.store(true, Ordering::SeqCst);
    }

    /// Whether it rang since the turn began or this was last asked.
    pub(crate) fn take_rung(&self) -> bool {
        self.rung.swap(false, Ordering::SeqCst)
    }

    /// The turn is over.
    pub(crate) fn end_turn(&self) {
        self.in_turn.store(false, Ordering::SeqCst);
        if self.rung.swap(false, Ordering::SeqCst) {
            self.ring();
        }
    }

    /// How much may still be read in this turn; zero once it is used up.
    pub(crate) fn read_bytes_left(&self) -> usize {
        self.read_bytes_left.load(Ordering::Relaxed)
    }

    /// `bytes` were read in this turn.
    pub(crate) fn spend(&self, bytes: usize) {
        let left = self.read_bytes_left.load(Ordering::Relaxed);
        self.read_bytes_left.store(left.saturating_sub(bytes), Ordering::Relaxed);
    }

    /// More could be read, in another turn.
    pub(crate) fn mark_over_budget(&self) {
        self.over_budget.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_over_budget(&self) -> bool {
        self.over_budget.load(Ordering::Relaxed)
    }

    /// A DATA frame was given to HTTP/2 for the peer.
    pub(crate) fn mark_data_sent(&self) {
        self.data_frames_sent.fetch_add(1, Ordering::Relaxed);
    }

    /// How many were since this was last asked.
    pub(crate) fn take_data_sent(&self) -> u32 {
        self.data_frames_sent.swap(0, Ordering::Relaxed)
    }

    /// The peer was asked for a tunnel, or a stream of its has joined one.
    pub(crate) fn mark_tunnel_asked(&self) {
        self.tunnels_asked.fetch_add(1, Ordering::Relaxed);
    }

    /// How many were since this was last asked.
    pub(crate) fn take_tunnels_asked(&self) -> u32 {
        self.tunnels_asked.swap(0, Ordering::Relaxed)
    }

    /// The connection is over, since its peer floods it.
    pub(crate) fn mark_flooded(&self) {
        self.flooded.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_flooded(&self) -> bool {
        self.flooded.load(Ordering::Relaxed)
    }

    /// Asks something of the connection and wakes it. A stronger wish stays.
    pub(crate) fn ask(&self, wish: Wish) {
        self.wish.fetch_max(wish as u8, Ordering::Relaxed);
        self.ring();
    }

    pub(crate) fn wish(&self) -> Wish {
        match self.wish.load(Ordering::Relaxed) {
            0 => Wish::Serve,
            1 => Wish::Renounce,
            2 => Wish::Leave,
            _ => Wish::Quit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_ring_within_a_turn_makes_it_go_on_and_one_after_it_wakes() {
        let (bell, task) = (Bell::default(), Arc::new(Task::default()));
        let waker = Waker::from(Arc::clone(&task));
        bell.begin_turn(&waker);
        bell.ring();
        assert!(bell.take_rung());
        bell.end_turn();
        assert_eq!(task.0.load(Ordering::SeqCst), 0);
        bell.ring();
        assert_eq!(task.0.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_ring_that_the_turn_did_not_see_is_not_lost() {
        let (bell, task) = (Bell::default(), Arc::new(Task::default()));
        bell.begin_turn(&Waker::from(Arc::clone(&task)));
        bell.ring();
        bell.end_turn();
        assert_eq!(task.0.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_stronger_wish_stays() {
        let bell = Bell::default();
        bell.ask(Wish::Quit);
        bell.ask(Wish::Leave);
        assert_eq!(bell.wish(), Wish::Quit);
    }
}

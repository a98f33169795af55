//! Takes connections off the listener, no faster than their handshakes are done.
//!
//! 1. A handshake's slot is taken before the accept, so a storm waits in the kernel's queue, where it
//!    costs nothing, and sessions keep their latency.
//! 2. A peer that lets its handshake wait holds its slot for `SLOT_PATIENCE` only; then it steps
//!    aside, and at most `MAX_ASIDE` may stand there: silent peers do not keep others out.
//! 3. A failed accept (too many open files) is followed by a pause, and is told once until it works
//!    again.
//! 4. After `Stage::Stopping` nothing is accepted.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::executor::{self, Listener};
use crate::handshake;
use crate::shard::{Shard, Stage};

/// How long a handshake may wait for its peer in its slot: two thousand silent peers with 16 slots hold
/// up who comes after them by three seconds.
pub(crate) const SLOT_PATIENCE: Duration = Duration::from_millis(25);
/// Handshakes of one shard that stand aside.
const MAX_ASIDE: usize = 1024;
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(100);

/// The bound over the handshakes of a shard.
#[derive(Debug)]
pub(crate) struct HandshakeSlots {
    free: Cell<usize>,
    aside: Cell<usize>,
    acceptor: RefCell<Option<Waker>>,
}

/// One handshake's slot.
#[derive(Debug)]
pub(crate) struct HandshakeSlot {
    slots: Rc<HandshakeSlots>,
    is_aside: bool,
}

impl HandshakeSlots {
    pub(crate) fn new(at_once: usize) -> Rc<Self> {
        Rc::new(Self { free: Cell::new(at_once.max(1)), aside: Cell::new(0), acceptor: RefCell::default() })
    }

    fn try_take(self: &Rc<Self>) -> Option<HandshakeSlot> {
        self.free.set(self.free.get().checked_sub(1)?);
        Some(HandshakeSlot { slots: Rc::clone(self), is_aside: false })
    }

    fn give_back(&self) {
        self.free.set(self.free.get() + 1);
        self.wake_acceptor();
    }

    /// The acceptor looks again: a slot is free, or the shard stops.
    pub(crate) fn wake_acceptor(&self) {
        if let Some(acceptor) = self.acceptor.borrow_mut().take() {
            acceptor.wake();
        }
    }
}

impl HandshakeSlot {
    /// Lets another handshake begin, though this one has not ended.
    pub(crate) fn step_aside(&mut self) {
        if !self.is_aside && self.slots.aside.get() < MAX_ASIDE {
            self.is_aside = true;
            self.slots.aside.set(self.slots.aside.get() + 1);
            self.slots.give_back();
        }
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        if self.is_aside {
            self.slots.aside.set(self.slots.aside.get() - 1);
        } else {
            self.slots.give_back();
        }
    }
}

/// Accepts until the shard stops.
pub(crate) async fn run(shard: Rc<Shard>, listener: Listener) {
    let mut failing = false;
    while let Some(slot) = next_slot(&shard).await {
        match listener.accept().await {
            Ok(tcp) => {
                failing = false;
                let lease = shard.lease_connection();
                shard.queues.spawn_handshake(handshake::run(Rc::clone(&shard), tcp, slot, lease));
            }
            Err(_) if shard.stage.get() == Stage::Stopping => return,
            Err(error) => {
                shard.counters.accept_errors.one_more();
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(
                        shard = shard.id.0,
                        %error,
                        "connections can't be accepted; if files ran out, raise LimitNOFILE"
                    );
                }
                executor::sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }
}

async fn next_slot(shard: &Rc<Shard>) -> Option<HandshakeSlot> {
    poll_fn(|context| {
        if shard.stage.get() == Stage::Stopping {
            return Poll::Ready(None);
        }
        if let Some(slot) = shard.handshakes.try_take() {
            return Poll::Ready(Some(slot));
        }
        *shard.handshakes.acceptor.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_peers_do_not_keep_others_out() {
        let slots = HandshakeSlots::new(2);
        let mut silent: Vec<_> = std::iter::from_fn(|| slots.try_take()).collect();
        assert_eq!(silent.len(), 2);
        for slot in &mut silent {
            slot.step_aside();
            slot.step_aside();
        }
        let others: Vec<_> = std::iter::from_fn(|| slots.try_take()).collect();
        assert_eq!(others.len(), 2);
        drop((silent, others));
        assert_eq!((slots.free.get(), slots.aside.get()), (2, 0));
    }
}

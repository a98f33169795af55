//! Takes connections off the listener, no faster than their handshakes are done.
//!
//! 1. A handshake's slot is taken before the accept, so a storm waits in the kernel's queue, where it
//!    costs nothing, and sessions keep their latency.
//! 2. A peer that lets its handshake wait holds its slot for `SLOT_PATIENCE` only; then it steps
//!    aside, and at most `MAX_ASIDE` stand there, the newest: silent peers do not keep others out.
//! 3. A failed accept (too many open files) is followed by a pause, and is told once until it works
//!    again.
//! 4. After `Stage::Stopping` nothing is accepted.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::bell::{Bell, Wish};
use crate::executor::{self, Listener};
use crate::handshake;
use crate::shard::{Shard, Stage};
use crate::sleeper::Sleeper;

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
    /// By the order in which they stepped aside.
    aside: RefCell<BTreeMap<u64, Arc<Bell>>>,
    next_place: Cell<u64>,
    acceptor: Sleeper,
}

/// One handshake's slot.
#[derive(Debug)]
pub(crate) struct HandshakeSlot {
    slots: Rc<HandshakeSlots>,
    /// Where it stands aside.
    place: Option<u64>,
}

impl HandshakeSlots {
    pub(crate) fn new(at_once: usize) -> Rc<Self> {
        Rc::new(Self {
            free: Cell::new(at_once.max(1)),
            aside: RefCell::default(),
            next_place: Cell::new(0),
            acceptor: Sleeper::default(),
        })
    }

    fn try_take(self: &Rc<Self>) -> Option<HandshakeSlot> {
        self.free.set(self.free.get().checked_sub(1)?);
        Some(HandshakeSlot { slots: Rc::clone(self), place: None })
    }

    fn give_back(&self) {
        self.free.set(self.free.get() + 1);
        self.wake_acceptor();
    }

    /// The acceptor looks again: a slot is free, or the shard stops.
    pub(crate) fn wake_acceptor(&self) {
        self.acceptor.wake();
    }
}

impl HandshakeSlot {
    /// Lets another handshake begin, though this one, of the connection that `bell` wakes, has not
    /// ended. Where too many stand aside, the oldest must go.
    pub(crate) fn step_aside(&mut self, bell: &Arc<Bell>) {
        if self.place.is_some() {
            return;
        }
        let slots = &self.slots;
        let place = slots.next_place.get();
        slots.next_place.set(place + 1);
        self.place = Some(place);
        let mut aside = slots.aside.borrow_mut();
        aside.insert(place, Arc::clone(bell));
        let oldest = if aside.len() > MAX_ASIDE { aside.pop_first() } else { None };
        drop(aside);
        if let Some((_, oldest)) = oldest {
            oldest.ask(Wish::Quit);
        }
        slots.give_back();
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        match self.place {
            Some(place) => {
                self.slots.aside.borrow_mut().remove(&place);
            }
            None => self.slots.give_back(),
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
                shard.rest.note_activity();
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
    let look = || match shard.stage.get() {
        Stage::Stopping => Some(None),
        _ => shard.handshakes.try_take().map(Some),
    };
    shard.handshakes.acceptor.until_some(look).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_peers_do_not_keep_others_out() {
        let slots = HandshakeSlots::new(2);
        let bells: Vec<Arc<Bell>> = (0..MAX_ASIDE + 2).map(|_| Arc::default()).collect();
        let mut silent = Vec::new();
        for bell in &bells {
            let mut slot = slots.try_take().expect("a slot is free");
            slot.step_aside(bell);
            slot.step_aside(bell);
            silent.push(slot);
        }
        assert_eq!(slots.aside.borrow().len(), MAX_ASIDE);
        let must_go = bells.iter().filter(|bell| bell.wish() == Wish::Quit).count();
        assert_eq!(must_go, 2);
        assert_eq!((bells[0].wish(), bells[1].wish()), (Wish::Quit, Wish::Quit), "the oldest");
        drop(silent);
        assert_eq!((slots.free.get(), slots.aside.borrow().len()), (2, 0));
    }

    #[test]
    fn no_more_shake_hands_at_once_than_may() {
        let slots = HandshakeSlots::new(2);
        let taken: Vec<_> = std::iter::from_fn(|| slots.try_take()).collect();
        assert_eq!(taken.len(), 2);
        drop(taken);
        assert_eq!(slots.free.get(), 2);
    }
}

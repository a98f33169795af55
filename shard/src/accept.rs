//! Takes connections off the listener, no faster than their handshakes are done.
//!
//! 1. A handshake's slot is taken before the accept, so a storm waits in the kernel's queue, where it
//!    costs nothing, and sessions keep their latency.
//! 2. A peer that lets its handshake wait holds its slot for `SLOT_PATIENCE` only; then it steps
//!    aside. At most `MAX_ASIDE` stand there; when they do, one more takes the place of the oldest, once
//!    that has stood for `ASIDE_PATIENCE`, and keeps its slot until then. So silent peers do not keep
//!    others out, and a crowd of honest ones whose answers take a while is not thrown out for it.
//! 3. A failed accept (too many open files) is followed by a pause, and is told once until it works
//!    again.
//! 4. After `Stage::Stopping` nothing is accepted.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gateway_core::time::Moment;

use crate::bell::{Bell, Wish};
use crate::executor::{self, Listener};
use crate::handshake;
use crate::shard::{Shard, Stage};
use crate::sleeper::Sleeper;

/// How long a handshake may wait for its peer in its slot.
pub(crate) const SLOT_PATIENCE: Duration = Duration::from_millis(25);
/// Handshakes of one shard that stand aside.
pub const MAX_ASIDE: usize = 1024;
/// How long one may stand there whatever comes: two thousand silent peers with 16 slots hold up who comes
/// after them by six seconds, and thousands of nodes that dial at once have this long to answer.
const ASIDE_PATIENCE: Duration = Duration::from_secs(3);
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(100);

/// The bound over the handshakes of a shard.
#[derive(Debug)]
pub(crate) struct HandshakeSlots {
    free: Cell<usize>,
    /// By the order in which they stepped aside.
    aside: RefCell<BTreeMap<u64, Aside>>,
    next_place: Cell<u64>,
    acceptor: Sleeper,
}

/// One that stands aside.
#[derive(Debug)]
struct Aside {
    since: Moment,
    bell: Arc<Bell>,
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
    /// ended. False where too many stand aside and none has for long: then it keeps its slot, and asks
    /// again.
    pub(crate) fn step_aside(&mut self, bell: &Arc<Bell>, now: Moment) -> bool {
        if self.place.is_some() {
            return true;
        }
        let slots = &self.slots;
        let mut aside = slots.aside.borrow_mut();
        let mut oldest = None;
        if aside.len() >= MAX_ASIDE {
            let Some(entry) = aside.first_entry() else { return false };
            if now.since(entry.get().since) < ASIDE_PATIENCE {
                return false;
            }
            oldest = Some(entry.remove().bell);
        }
        let place = slots.next_place.get();
        slots.next_place.set(place + 1);
        self.place = Some(place);
        aside.insert(place, Aside { since: now, bell: Arc::clone(bell) });
        drop(aside);
        if let Some(oldest) = oldest {
            oldest.ask(Wish::Quit);
        }
        slots.give_back();
        true
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
            // It came as the shard began to end: nobody would ask its connection to go.
            Ok(_) if shard.stage.get() == Stage::Stopping => return,
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
    fn silent_peers_do_not_keep_others_out_and_slow_ones_are_not_thrown_out_for_a_crowd() {
        let slots = HandshakeSlots::new(2);
        let begin = Moment::from_nanos(1);
        let bells: Vec<Arc<Bell>> = (0..MAX_ASIDE + 2).map(|_| Arc::default()).collect();
        let mut silent = Vec::new();
        for bell in bells.iter().take(MAX_ASIDE) {
            let mut slot = slots.try_take().expect("a slot is free");
            assert!(slot.step_aside(bell, begin) && slot.step_aside(bell, begin));
            silent.push(slot);
        }
        // A crowd: the next ones stay in their slots while those aside may still answer.
        let mut more: Vec<HandshakeSlot> = std::iter::from_fn(|| slots.try_take()).collect();
        let early = begin + (ASIDE_PATIENCE - Duration::from_millis(1));
        for (slot, bell) in more.iter_mut().zip(&bells[MAX_ASIDE..]) {
            assert!(!slot.step_aside(bell, early));
        }
        let must_go = || bells.iter().filter(|bell| bell.wish() == Wish::Quit).count();
        assert_eq!((more.len(), slots.free.get(), must_go()), (2, 0, 0));
        // They have had their time: the oldest must go.
        for (slot, bell) in more.iter_mut().zip(&bells[MAX_ASIDE..]) {
            assert!(slot.step_aside(bell, begin + ASIDE_PATIENCE));
        }
        assert_eq!((slots.aside.borrow().len(), slots.free.get(), must_go()), (MAX_ASIDE, 2, 2));
        assert_eq!((bells[0].wish(), bells[1].wish()), (Wish::Quit, Wish::Quit), "the oldest");
        drop((silent, more));
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

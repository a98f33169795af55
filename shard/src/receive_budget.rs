//! The memory of a shard for large frames that are still on their way.
//!
//! A frame above `FREE_BYTES` is received only after its whole declared size was granted here; its
//! stream is not read meanwhile, so HTTP/2 holds the node back.
//!
//! 1. What is granted at a time is at most the budget.
//! 2. First come, first served: a large frame is not starved by smaller ones.
//! 3. A claim that is dropped gives back what it was granted, once.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use crate::bell::Bell;

/// Frames up to this size need no grant: a session's own share covers them.
pub(crate) const FREE_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct ReceiveBudget {
    free: Cell<usize>,
    waiting: RefCell<VecDeque<Rc<Place>>>,
}

/// A frame's place in the line, and its grant once it has one.
#[derive(Debug)]
pub(crate) struct Claim {
    budget: Rc<ReceiveBudget>,
    place: Rc<Place>,
}

#[derive(Debug)]
struct Place {
    bytes: usize,
    state: Cell<State>,
    bell: Arc<Bell>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waits,
    Granted,
    GivenUp,
}

impl ReceiveBudget {
    pub(crate) fn new(bytes: usize) -> Rc<Self> {
        Rc::new(Self { free: Cell::new(bytes), waiting: RefCell::default() })
    }

    /// Asks for `bytes`; the bell rings when they are granted, if they are not at once.
    pub(crate) fn claim(self: &Rc<Self>, bytes: usize, bell: &Arc<Bell>) -> Claim {
        let place = Rc::new(Place { bytes, state: Cell::new(State::Waits), bell: Arc::clone(bell) });
        self.waiting.borrow_mut().push_back(Rc::clone(&place));
        self.grant_in_order(Some(&place));
        Claim { budget: Rc::clone(self), place }
    }

    /// Grants from the head of the line as far as it goes. `asking` has its turn and needs no bell.
    fn grant_in_order(&self, asking: Option<&Rc<Place>>) {
        let mut waiting = self.waiting.borrow_mut();
        while let Some(head) = waiting.front() {
            if head.state.get() == State::Waits {
                let Some(left) = self.free.get().checked_sub(head.bytes) else { return };
                self.free.set(left);
                head.state.set(State::Granted);
                if !asking.is_some_and(|asking| Rc::ptr_eq(asking, head)) {
                    head.bell.ring();
                }
            }
            waiting.pop_front();
        }
    }
}

impl Claim {
    pub(crate) fn is_granted(&self) -> bool {
        self.place.state.get() == State::Granted
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.place.state.replace(State::GivenUp) == State::Granted {
            self.budget.free.set(self.budget.free.get() + self.place.bytes);
        }
        self.budget.grant_in_order(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_frame_is_not_overtaken_by_smaller_ones() {
        let (budget, bell) = (ReceiveBudget::new(100), Arc::default());
        let first = budget.claim(60, &bell);
        let large = budget.claim(90, &bell);
        let small = budget.claim(10, &bell);
        assert!(first.is_granted() && !large.is_granted() && !small.is_granted());
        drop(first);
        assert!(large.is_granted() && small.is_granted());
        drop((large, small));
        assert_eq!(budget.free.get(), 100);
    }

    #[test]
    fn who_gave_up_waiting_takes_nothing_and_blocks_nobody() {
        let (budget, bell) = (ReceiveBudget::new(100), Arc::default());
        let first = budget.claim(100, &bell);
        let gave_up = budget.claim(100, &bell);
        let last = budget.claim(40, &bell);
        drop(gave_up);
        drop(first);
        assert!(last.is_granted());
        drop(last);
        assert_eq!(budget.free.get(), 100);
    }
}

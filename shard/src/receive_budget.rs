//! The memory of a shard for large frames that are still on their way.
//!
//! A frame above `FREE_BYTES` is received only after its whole declared size was granted here; its
//! stream is not read meanwhile, so HTTP/2 holds the node back.
//!
//! 1. What is granted at a time is at most the budget.
//! 2. First come, first served: a large frame is not starved by smaller ones.
//! 3. A claim that is dropped gives back what it was granted, once.
//! 4. Of the claims in a node's name one is in the line or granted; the others wait behind it, in their
//!    order, and hold up nobody else. So one certificate, on however many connections, holds one frame.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use gateway_core::ids::NodeId;

use crate::bell::Bell;

/// Frames up to this size need no grant: a session's own share covers them.
pub(crate) const FREE_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct ReceiveBudget {
    free: Cell<usize>,
    waiting: RefCell<VecDeque<Rc<Place>>>,
    /// Nodes in whose name one claim has its turn, with those that wait behind it by their order.
    named: RefCell<BTreeMap<NodeId, BTreeMap<u64, Rc<Place>>>>,
    next_number: Cell<u64>,
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
    /// In whose name it is claimed.
    node: Option<NodeId>,
    number: u64,
    /// Whether it is in the line, or was; the others of its node are behind it.
    has_turn: Cell<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waits,
    Granted,
    GivenUp,
}

impl ReceiveBudget {
    pub(crate) fn new(bytes: usize) -> Rc<Self> {
        Rc::new(Self {
            free: Cell::new(bytes),
            waiting: RefCell::default(),
            named: RefCell::default(),
            next_number: Cell::new(0),
        })
    }

    /// Asks for `bytes`, in the name of a node where only one at a time may be its; the bell rings when
    /// they are granted, if they are not at once.
    pub(crate) fn claim(self: &Rc<Self>, bytes: usize, node: Option<&NodeId>, bell: &Arc<Bell>) -> Claim {
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        let place = Rc::new(Place {
            bytes,
            state: Cell::new(State::Waits),
            bell: Arc::clone(bell),
            node: node.cloned(),
            number,
            has_turn: Cell::new(false),
        });
        if self.take_turn(&place) {
            self.enter_line(&place);
            self.grant_in_order(Some(&place));
        }
        Claim { budget: Rc::clone(self), place }
    }

    /// Whether it is the turn of this one among those of its node; otherwise it waits behind them.
    fn take_turn(&self, place: &Rc<Place>) -> bool {
        let Some(node) = &place.node else { return true };
        let mut named = self.named.borrow_mut();
        if let Some(behind) = named.get_mut(node) {
            behind.insert(place.number, Rc::clone(place));
            return false;
        }
        named.insert(node.clone(), BTreeMap::new());
        true
    }

    fn enter_line(&self, place: &Rc<Place>) {
        place.has_turn.set(true);
        self.waiting.borrow_mut().push_back(Rc::clone(place));
    }

    /// A place was given up: the next of its node has its turn, at the end of the line.
    fn pass_turn(&self, place: &Place) {
        let Some(node) = &place.node else { return };
        let mut named = self.named.borrow_mut();
        let Some(behind) = named.get_mut(node) else { return };
        if !place.has_turn.get() {
            behind.remove(&place.number);
        } else if let Some((_, next)) = behind.pop_first() {
            self.enter_line(&next);
        } else {
            named.remove(node);
        }
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
        self.budget.pass_turn(&self.place);
        self.budget.grant_in_order(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_frame_is_not_overtaken_by_smaller_ones() {
        let (budget, bell) = (ReceiveBudget::new(100), Arc::default());
        let first = budget.claim(60, None, &bell);
        let large = budget.claim(90, None, &bell);
        let small = budget.claim(10, None, &bell);
        assert!(first.is_granted() && !large.is_granted() && !small.is_granted());
        drop(first);
        assert!(large.is_granted() && small.is_granted());
        drop((large, small));
        assert_eq!(budget.free.get(), 100);
    }

    #[test]
    fn who_gave_up_waiting_takes_nothing_and_blocks_nobody() {
        let (budget, bell) = (ReceiveBudget::new(100), Arc::default());
        let first = budget.claim(100, None, &bell);
        let gave_up = budget.claim(100, None, &bell);
        let last = budget.claim(40, None, &bell);
        drop(gave_up);
        drop(first);
        assert!(last.is_granted());
        drop(last);
        assert_eq!(budget.free.get(), 100);
    }

    #[test]
    fn one_node_holds_one_frame_and_holds_up_nobody_else() {
        let (budget, bell) = (ReceiveBudget::new(100), Arc::default());
        let [hog, honest] = ["hog", "honest"].map(|name| NodeId::new(name).expect("an id"));
        let mut hogs: Vec<Claim> = (0..50).map(|_| budget.claim(40, Some(&hog), &bell)).collect();
        let other = budget.claim(60, Some(&honest), &bell);
        assert!(other.is_granted(), "it waits behind those of another");
        let granted = |hogs: &[Claim]| hogs.iter().filter(|claim| claim.is_granted()).count();
        assert_eq!((granted(&hogs), hogs[0].is_granted()), (1, true));
        // One that waits goes, and one that has its turn: the next in order has it then.
        drop(hogs.remove(1));
        drop(hogs.remove(0));
        assert_eq!((granted(&hogs), hogs[0].is_granted()), (1, true));
        // The line is full: the turn alone grants nothing, and unnamed ones go by the line.
        let unnamed = budget.claim(40, None, &bell);
        drop(hogs.remove(0));
        assert!(unnamed.is_granted() && granted(&hogs) == 0);
        drop(other);
        assert_eq!(granted(&hogs), 1);
        drop((hogs, unnamed));
        assert_eq!((budget.free.get(), budget.named.borrow().len()), (100, 0));
    }
}

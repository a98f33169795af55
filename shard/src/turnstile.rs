//! Lets one handshake go a step at a time, and looks at the sockets before the next.
//!
//! A step is a signature or a chain that is checked: a quarter of a millisecond in which nothing else of
//! the shard goes on. The runtime runs all steps that are ready before it looks for I/O again, so a crowd
//! that shakes hands would add its steps to the latency of every session. Here a step adds its own alone.
//!
//! 1. After a step the next is let through when the shard has looked at its sockets, in the order in
//!    which they came.
//! 2. Who is let through and does not come gives its turn to the next.
//! 3. It costs nothing while one handshake is under way.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::bell::Bell;
use crate::executor;
use crate::sleeper::Sleeper;

/// Short, since a shard with nothing else to do is idle for as long; now and then it has passed before the
/// look, and one more step goes before it.
const BREATH: Duration = Duration::from_micros(10);

#[derive(Debug, Default)]
pub(crate) struct Turnstile {
    /// A step was made since the last look.
    taken: Cell<bool>,
    waiting: RefCell<VecDeque<Arc<Bell>>>,
    /// Who was let through and has not made its step yet.
    called: RefCell<Option<Arc<Bell>>>,
    task: Sleeper,
}

/// One handshake before the turnstile.
#[derive(Debug)]
pub(crate) struct Passage<'a> {
    turnstile: &'a Turnstile,
    bell: &'a Arc<Bell>,
    waits: bool,
}

impl Turnstile {
    /// For the handshake that this bell belongs to.
    pub(crate) fn passage<'a>(&'a self, bell: &'a Arc<Bell>) -> Passage<'a> {
        Passage { turnstile: self, bell, waits: false }
    }

    /// Lets one after the other through, for ever.
    pub(crate) async fn run(&self) {
        loop {
            self.task.until(|| self.taken.get()).await;
            executor::sleep(BREATH).await;
            self.let_through();
        }
    }

    fn let_through(&self) {
        self.taken.set(false);
        let next = self.waiting.borrow_mut().pop_front();
        if let Some(bell) = &next {
            bell.ring();
        }
        self.called.replace(next);
    }

    fn take(&self) {
        self.taken.set(true);
        self.task.wake();
    }
}

impl Passage<'_> {
    /// Whether a step may be made now; where not, the bell rings when it may.
    pub(crate) fn may_step(&mut self) -> bool {
        let turnstile = self.turnstile;
        let is_called = turnstile.called.borrow().as_ref().is_some_and(|bell| Arc::ptr_eq(bell, self.bell));
        if is_called {
            turnstile.called.take();
            self.waits = false;
        } else if self.waits || turnstile.taken.get() || turnstile.called.borrow().is_some() {
            if !self.waits {
                turnstile.waiting.borrow_mut().push_back(Arc::clone(self.bell));
                self.waits = true;
            }
            return false;
        }
        turnstile.take();
        true
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        if !self.waits {
            return;
        }
        let mut called = self.turnstile.called.borrow_mut();
        if called.as_ref().is_some_and(|bell| Arc::ptr_eq(bell, self.bell)) {
            *called = None;
            // It made no step; what looks like one lets the next through.
            self.turnstile.take();
        } else {
            self.turnstile.waiting.borrow_mut().retain(|bell| !Arc::ptr_eq(bell, self.bell));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bells<const N: usize>() -> [Arc<Bell>; N] {
        std::array::from_fn(|_| Arc::default())
    }

    #[test]
    fn a_lone_handshake_never_waits() {
        let (turnstile, [bell]) = (Turnstile::default(), bells());
        let mut passage = turnstile.passage(&bell);
        for _ in 0..3 {
            assert!(passage.may_step());
            turnstile.let_through();
        }
    }

    #[test]
    fn one_step_is_made_between_two_looks_in_the_order_of_coming() {
        let (turnstile, [a, b, c]) = (Turnstile::default(), bells());
        let mut passages = [&a, &b, &c].map(|bell| turnstile.passage(bell));
        assert_eq!(passages.each_mut().map(Passage::may_step), [true, false, false]);
        turnstile.let_through();
        // The first comes again, and waits behind those that were there.
        assert_eq!(passages.each_mut().map(Passage::may_step), [false, true, false]);
        turnstile.let_through();
        assert_eq!(passages.each_mut().map(Passage::may_step), [false, false, true]);
        turnstile.let_through();
        assert_eq!(passages.each_mut().map(Passage::may_step), [true, false, false]);
    }

    #[test]
    fn who_is_gone_holds_nobody_up() {
        let (turnstile, [a, b, c, d]) = (Turnstile::default(), bells());
        let [mut first, mut called, mut waiting, mut last] =
            [&a, &b, &c, &d].map(|bell| turnstile.passage(bell));
        assert!(first.may_step());
        assert!(!called.may_step() && !waiting.may_step() && !last.may_step());
        drop(waiting);
        turnstile.let_through();
        drop(called);
        assert!(turnstile.taken.get(), "the task lets the next through");
        turnstile.let_through();
        assert!(last.may_step());
    }
}

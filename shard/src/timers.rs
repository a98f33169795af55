//! When connections must be looked at again, though nothing happened on them.
//!
//! Lazy: a connection whose deadline moves later keeps its old entry, is woken at that time, finds
//! that it is not due, and is put down again. So a busy session costs nothing here.
//!
//! 1. A connection has at most one entry, and none once its `Deadline` is dropped.
//! 2. A bell rings at its entry's time or a little later, never earlier.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gateway_core::time::Moment;

use crate::bell::Bell;
use crate::executor::{self, Clock};
use crate::sleeper::Sleeper;

/// Bells rung between two yields.
const RINGS_PER_TURN: usize = 64;
/// The shortest sleep.
const SHORTEST: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(crate) struct Timers {
    due: RefCell<BTreeMap<(Moment, u64), Arc<Bell>>>,
    next_id: Cell<u64>,
    sleeper: Sleeper,
}

/// One connection's entry.
#[derive(Debug)]
pub(crate) struct Deadline {
    timers: Rc<Timers>,
    id: u64,
    bell: Arc<Bell>,
    registered: Option<Moment>,
}

impl Timers {
    pub(crate) fn deadline(self: &Rc<Self>, bell: Arc<Bell>) -> Deadline {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        Deadline { timers: Rc::clone(self), id, bell, registered: None }
    }

    /// Rings what is due, for ever.
    pub(crate) async fn run(&self, clock: Clock) {
        loop {
            if self.ring_due(clock.now()) == RINGS_PER_TURN {
                executor::yield_now().await;
                continue;
            }
            match self.next() {
                None => self.earlier_than(None).await,
                Some(at) => {
                    let sleep = executor::sleep(at.since(clock.now()));
                    let earlier = self.earlier_than(Some(at));
                    futures_util::pin_mut!(sleep, earlier);
                    futures_util::future::select(sleep, earlier).await;
                }
            }
        }
    }

    /// Rings and forgets what is due at `now`; how many that were, at most `RINGS_PER_TURN`.
    fn ring_due(&self, now: Moment) -> usize {
        for rung in 0..RINGS_PER_TURN {
            let mut due = self.due.borrow_mut();
            let Some(entry) = due.first_entry().filter(|entry| entry.key().0 <= now) else { return rung };
            let bell = entry.remove();
            drop(due);
            bell.ring();
        }
        RINGS_PER_TURN
    }

    fn next(&self) -> Option<Moment> {
        self.due.borrow().first_key_value().map(|((at, _), _)| *at)
    }

    /// Resolves once an entry is earlier than `at`.
    async fn earlier_than(&self, at: Option<Moment>) {
        self.sleeper.until(|| self.next().is_some_and(|next| at.is_none_or(|at| next < at))).await;
    }
}

impl Deadline {
    /// The bell must ring at `at`. `None` and later times than before change nothing at once.
    pub(crate) fn set(&mut self, at: Option<Moment>, now: Moment) {
        // A deadline that has passed and stays would keep the thread busy.
        let Some(at) = at.map(|at| at.max(now + SHORTEST)) else { return };
        if self.registered.is_some_and(|registered| registered > now && registered <= at) {
            return;
        }
        let mut due = self.timers.due.borrow_mut();
        if let Some(registered) = self.registered {
            due.remove(&(registered, self.id));
        }
        due.insert((at, self.id), Arc::clone(&self.bell));
        self.registered = Some(at);
        let is_first = due.first_key_value().is_some_and(|(key, _)| *key == (at, self.id));
        drop(due);
        if is_first {
            self.timers.sleeper.wake();
        }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        if let Some(registered) = self.registered {
            self.timers.due.borrow_mut().remove(&(registered, self.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::default() + Duration::from_secs(seconds)
    }

    #[test]
    fn a_connection_has_one_entry_however_its_deadline_moves() {
        let timers = Rc::new(Timers::default());
        let mut deadline = timers.deadline(Arc::default());
        for seconds in [10, 20, 5, 7] {
            deadline.set(Some(at(seconds)), at(0));
            assert_eq!(timers.due.borrow().len(), 1);
        }
        assert_eq!(timers.next(), Some(at(5)), "the earliest that was asked for");
        assert_eq!(timers.ring_due(at(4)), 0);
        assert_eq!(timers.ring_due(at(5)), 1);
        deadline.set(Some(at(9)), at(5));
        assert_eq!(timers.next(), Some(at(9)));
        drop(deadline);
        assert_eq!(timers.next(), None);
    }
}

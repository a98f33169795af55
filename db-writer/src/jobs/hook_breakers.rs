//! Hooks that take their connection along: found out one by one, and no longer run.
//!
//! A hook that ends its own backend, or hangs where nothing can cancel it, fails the whole transaction, which
//! goes again, and again: it would hold up everybody's events for ever. Owns the suspicion, and never touches
//! the connection.
//!
//! 1. After hooks that never came back, the next transactions run each hook in a call of its own.
//! 2. A hook that alone did not come back so many times, for one event or status, is not run for that again:
//!    it counts as one that failed.
//! 3. Those whose event's commit is refused though none failed (by what they left for the commit to check), and
//!    which were alone in it, are not run again for it either.
//! 4. A connection that is lost for another reason costs a hook nothing: it would have to be lost under the
//!    same hook, for the same event, each time.

use std::collections::BTreeMap;

/// So many transactions with hooks, of those that commit, run them in calls of their own.
const ALONE_FOR: u32 = 16;
/// So many times alone, and it is not run again.
const STRIKES: u32 = 3;
/// Of how many hooks it is remembered.
const MAX_STRUCK: usize = 64;

/// A hook, and what it is told.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) hook: String,
    pub(super) node: String,
    /// Journal and seq of an event, or the id of a status.
    pub(super) subject: (String, i64),
}

#[derive(Debug)]
enum Running {
    Several,
    One(Place),
}

#[derive(Debug, Default)]
pub(super) struct Breakers {
    running: Option<Running>,
    alone_for: u32,
    strikes: BTreeMap<Place, u32>,
    /// What ran in this transaction, for one event or status.
    ran: Vec<Place>,
}

impl Breakers {
    /// A transaction comes to its hooks. What ran in the last one and has not ended, never will.
    pub(super) fn handle_begin(&mut self) {
        self.ran.clear();
        let Some(lost) = self.running.take() else { return };
        self.alone_for = ALONE_FOR;
        if let Running::One(place) = lost {
            self.strike(place, 1);
        }
    }

    fn strike(&mut self, place: Place, times: u32) {
        if self.strikes.len() >= MAX_STRUCK && !self.strikes.contains_key(&place) {
            self.strikes.pop_first();
        }
        *self.strikes.entry(place).or_default() += times;
    }

    /// This runs in the transaction, in which all hooks are told the same event or status.
    pub(super) fn handle_lone(&mut self, place: Place) {
        self.ran.push(place);
    }

    /// The commit was refused. Whether hooks are to blame, which are not run again.
    pub(super) fn handle_refused_commit(&mut self) -> bool {
        let blamed = std::mem::take(&mut self.ran);
        let is_theirs = !blamed.is_empty();
        for place in blamed {
            self.strike(place, STRIKES);
            self.alone_for = ALONE_FOR;
        }
        is_theirs
    }

    /// Hooks are called: that one, or several where none is named.
    pub(super) fn handle_call(&mut self, only: Option<Place>) {
        self.running = Some(only.map_or(Running::Several, Running::One));
    }

    /// The call came back, with whatever answer.
    pub(super) fn handle_return(&mut self) {
        self.running = None;
    }

    pub(super) fn handle_commit(&mut self) {
        self.alone_for = self.alone_for.saturating_sub(1);
        if self.alone_for == 0 {
            self.strikes.clear();
        }
    }

    /// Whether each hook gets a call of its own.
    pub(super) const fn runs_alone(&self) -> bool {
        self.alone_for > 0
    }

    /// Whether it took its connection along too often.
    pub(super) fn is_out(&self, place: &Place) -> bool {
        self.strikes.get(place).is_some_and(|strikes| *strikes >= STRIKES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(seq: i64) -> Place {
        Place { hook: "h".to_owned(), node: "n".to_owned(), subject: ("j".to_owned(), seq) }
    }

    /// A transaction whose hooks are `seqs`, of which `bad` takes its connection along. Whether it commits.
    fn transaction(breakers: &mut Breakers, seqs: &[i64], bad: i64) -> bool {
        breakers.handle_begin();
        if !breakers.runs_alone() {
            breakers.handle_call(None);
            if seqs.contains(&bad) {
                return false;
            }
            breakers.handle_return();
        } else {
            for seq in seqs {
                if breakers.is_out(&place(*seq)) {
                    continue;
                }
                breakers.handle_call(Some(place(*seq)));
                if *seq == bad {
                    return false;
                }
                breakers.handle_return();
            }
        }
        breakers.handle_commit();
        true
    }

    #[test]
    fn the_one_that_never_comes_back_is_found_and_left_out_though_others_commit_between() {
        let mut breakers = Breakers::default();
        let mut tries = 0;
        while !transaction(&mut breakers, &[1, 2, 3], 2) {
            tries += 1;
            assert!(tries < 10, "it never ends");
            assert!(transaction(&mut breakers, &[7, 8], 2));
        }
        assert_eq!(tries, 1 + STRIKES);
        assert!(!breakers.is_out(&place(1)) && !breakers.is_out(&place(3)));
        (0..ALONE_FOR).for_each(|_| assert!(transaction(&mut breakers, &[9], 2)));
        assert!(!breakers.runs_alone() && !breakers.is_out(&place(2)), "all is forgotten");
    }

    #[test]
    fn those_whose_lone_event_can_not_be_committed_are_left_out_once() {
        let mut breakers = Breakers::default();
        breakers.handle_begin();
        breakers.handle_lone(place(1));
        breakers.handle_lone(place(2));
        assert!(breakers.handle_refused_commit());
        breakers.handle_begin();
        assert!(breakers.is_out(&place(1)) && breakers.is_out(&place(2)) && !breakers.is_out(&place(3)));
        assert!(!breakers.handle_refused_commit(), "without them it is the event's own fault");
    }

    #[test]
    fn a_connection_that_is_lost_once_under_each_hook_costs_none_its_run() {
        let mut breakers = Breakers::default();
        for bad in 1..=40 {
            assert!(!transaction(&mut breakers, &[bad], bad));
            assert!(!breakers.is_out(&place(bad)));
        }
        assert!(transaction(&mut breakers, &[1, 2], 0));
    }
}

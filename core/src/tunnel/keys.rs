//! When the keys that tickets are signed with are fetched anew, and which of them count.
//!
//! A machine without the keys themselves: it knows their names and the times. Whoever holds the keys fetches
//! them when it is told to, says what came, and asks again.
//!
//! 1. Keys are used for `max_age` after they were fetched; older ones are fetched anew before.
//! 2. A name that is not known makes a fetch, since keys are rotated, but never two within `MIN_PAUSE`: who
//!    makes names up causes no storm.
//! 3. While they can't be fetched, known keys go on to count for `MAX_STALE` and no longer.

use std::collections::BTreeSet;
use std::time::Duration;

use super::ticket::TicketFault;
use crate::time::Moment;

/// Shortest time between two fetches for a name that is not known, or after one that failed.
pub const MIN_PAUSE: Duration = Duration::from_secs(5);
/// How long keys count beyond their age while they can't be fetched.
pub const MAX_STALE: Duration = Duration::from_secs(600);

/// What is to be done about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyVerdict {
    Use,
    /// Fetch them all, then ask again.
    Fetch,
    Refuse(TicketFault),
}

/// The machine.
#[derive(Debug)]
pub struct KeyShelf {
    max_age: Duration,
    names: BTreeSet<String>,
    fetched_at: Option<Moment>,
    tried_at: Option<Moment>,
}

impl KeyShelf {
    /// With none yet.
    pub const fn new(max_age: Duration) -> Self {
        Self { max_age, names: BTreeSet::new(), fetched_at: None, tried_at: None }
    }

    /// These keys, and no others, are published now.
    pub fn handle_fetched(&mut self, names: impl IntoIterator<Item = String>, now: Moment) {
        self.names = names.into_iter().collect();
        self.fetched_at = Some(now);
        self.tried_at = Some(now);
    }

    /// A fetch of them begins, or has failed: for a while nobody else need begin.
    pub fn handle_tried(&mut self, now: Moment) {
        self.tried_at = Some(now);
    }

    /// A ticket names this key.
    pub fn judge(&self, name: &str, now: Moment) -> KeyVerdict {
        let may_fetch = self.tried_at.is_none_or(|at| now.since(at) >= MIN_PAUSE);
        let age = self.fetched_at.map(|at| now.since(at));
        let is_known = self.names.contains(name);
        match age {
            Some(age) if is_known && age < self.max_age => KeyVerdict::Use,
            _ if may_fetch => KeyVerdict::Fetch,
            Some(age) if is_known && age < self.max_age + MAX_STALE => KeyVerdict::Use,
            Some(age) if age < self.max_age => KeyVerdict::Refuse(TicketFault::UnknownKey),
            _ => KeyVerdict::Refuse(TicketFault::KeysAway),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Moment {
        Moment::default() + SECOND * seconds
    }

    fn shelf() -> KeyShelf {
        KeyShelf::new(SECOND * 300)
    }

    #[test]
    fn keys_are_fetched_when_they_are_first_needed_and_when_they_are_old() {
        let mut shelf = shelf();
        assert_eq!(shelf.judge("a", at(0)), KeyVerdict::Fetch);
        shelf.handle_fetched(["a".to_owned()], at(0));
        assert_eq!(shelf.judge("a", at(299)), KeyVerdict::Use);
        assert_eq!(shelf.judge("a", at(300)), KeyVerdict::Fetch);
    }

    #[test]
    fn while_a_fetch_is_under_way_known_keys_go_on_to_count() {
        let mut shelf = shelf();
        shelf.handle_fetched(["a".to_owned()], at(0));
        for age in [10, 350] {
            shelf.handle_tried(at(age));
            assert_eq!(shelf.judge("a", at(age)), KeyVerdict::Use);
            assert_ne!(shelf.judge("b", at(age)), KeyVerdict::Fetch);
        }
    }

    #[test]
    fn a_new_name_makes_one_fetch_in_a_while_and_one_that_was_taken_back_does_not_count() {
        let mut shelf = shelf();
        shelf.handle_fetched(["a".to_owned()], at(0));
        assert_eq!(shelf.judge("b", at(4)), KeyVerdict::Refuse(TicketFault::UnknownKey));
        assert_eq!(shelf.judge("b", at(5)), KeyVerdict::Fetch);
        shelf.handle_fetched(["b".to_owned()], at(5));
        assert_eq!(shelf.judge("b", at(5)), KeyVerdict::Use);
        assert_eq!(shelf.judge("a", at(6)), KeyVerdict::Refuse(TicketFault::UnknownKey));
    }

    #[test]
    fn keys_that_cannot_be_fetched_count_for_a_while_and_then_no_more() {
        let mut shelf = shelf();
        shelf.handle_tried(at(0));
        assert_eq!(shelf.judge("a", at(1)), KeyVerdict::Refuse(TicketFault::KeysAway));
        shelf.handle_fetched(["a".to_owned()], at(5));
        shelf.handle_tried(at(400));
        assert_eq!(shelf.judge("a", at(401)), KeyVerdict::Use);
        assert_eq!(shelf.judge("a", at(405)), KeyVerdict::Fetch, "and it is tried again");
        shelf.handle_tried(at(905));
        assert_eq!(shelf.judge("a", at(906)), KeyVerdict::Refuse(TicketFault::KeysAway));
    }

    #[derive(Debug, Clone)]
    enum Event {
        Fetched(Vec<u8>),
        Tried,
        Asked(u8),
        Passed(u32),
    }

    proptest! {
        /// Held against the list of all that there was.
        #[test]
        fn whatever_is_fetched_and_asked_the_shelf_says_what_its_history_does(
            max_age in 1u32..400,
            events in prop::collection::vec(
                prop_oneof![
                    1 => prop::collection::vec(0u8..4, 0..4).prop_map(Event::Fetched),
                    1 => Just(Event::Tried),
                    4 => (0u8..5).prop_map(Event::Asked),
                    2 => (0u32..10).prop_map(Event::Passed),
                    1 => (10u32..700).prop_map(Event::Passed),
                ],
                1..80,
            ),
        ) {
            let (mut shelf, mut seconds) = (KeyShelf::new(SECOND * max_age), 0u32);
            // When a fetch began, failed or came, and what came.
            let mut history: Vec<(u32, Option<Vec<u8>>)> = Vec::new();
            for event in events {
                match event {
                    Event::Passed(passed) => seconds += passed,
                    Event::Tried => {
                        shelf.handle_tried(at(seconds));
                        history.push((seconds, None));
                    }
                    Event::Fetched(names) => {
                        shelf.handle_fetched(names.iter().map(u8::to_string), at(seconds));
                        history.push((seconds, Some(names)));
                    }
                    Event::Asked(name) => {
                        let may_fetch = history.iter().all(|(at, _)| seconds - at >= 5);
                        let last = history.iter().rev().find_map(|(at, names)| Some((seconds - at, names.as_ref()?)));
                        let known_for = last.filter(|(_, names)| names.contains(&name)).map(|(age, _)| age);
                        let expected = match (known_for, last) {
                            (Some(age), _) if age < max_age => KeyVerdict::Use,
                            _ if may_fetch => KeyVerdict::Fetch,
                            (Some(age), _) if age < max_age + 600 => KeyVerdict::Use,
                            (None, Some((age, _))) if age < max_age => {
                                KeyVerdict::Refuse(TicketFault::UnknownKey)
                            }
                            _ => KeyVerdict::Refuse(TicketFault::KeysAway),
                        };
                        prop_assert_eq!(shelf.judge(&name.to_string(), at(seconds)), expected);
                    }
                }
            }
        }
    }
}

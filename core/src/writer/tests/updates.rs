//! Stories of updates that lead on from one another: they share a batch, and each has its own answer.
//!
//! Which of them a session hands on together is its own to tell, and that they are one write the store's.

use super::*;

impl Desk {
    /// The next batch of updates, by command and state.
    fn told(&mut self) -> Vec<String> {
        let Some(Job::Updates { entries }) = self.updates_job() else { return Vec::new() };
        let told = entries.iter().map(|entry| &entry.update);
        told.map(|update| format!("{} {}", update.id.0.as_u128(), update.state)).collect()
    }
}

#[test]
fn an_acceptance_and_its_end_that_wait_together_share_a_batch_and_give_the_credit_back() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 1)]);
    desk.enter("b", 2, 1, &[]);
    desk.poke("a");
    assert_eq!(free(&desk.pass()), [1]);
    desk.outcome(claims("a", 1, [1]));
    assert_eq!(desk.news(), ["1: commands 1"]);
    desk.post(update("b", 2, 9, CommandState::Running));
    assert_eq!(desk.told(), ["9 running"]);
    for state in [CommandState::Accepted, CommandState::Running, CommandState::Succeeded] {
        desk.post(update("a", 1, 1, state));
    }
    assert_eq!(desk.told(), [""; 0], "one batch is in flight");
    desk.outcome(stored(&[CommandState::Running]));
    assert_eq!(desk.news(), ["2: stored running"]);
    assert_eq!(desk.told(), ["1 accepted", "1 running", "1 succeeded"]);
    desk.poke("a");
    assert!(desk.has_no_pass(), "no credit before the end is stored");
    assert_eq!(desk.news(), [""; 0], "no answer before the commit");
    desk.outcome(stored(&[CommandState::Accepted, CommandState::Running, CommandState::Succeeded]));
    assert_eq!(desk.news(), ["1: stored accepted", "1: stored running", "1: stored succeeded"]);
    assert_eq!(free(&desk.pass()), [1]);
    assert!(desk.bytes_are_balanced());
}

#[test]
fn who_only_looks_like_the_next_waits_for_the_batch_before() {
    let mut desk = Desk::serving();
    let others = [
        // Another node has no part in it, nor has what comes again, nor an end after an end.
        ("b", CommandState::Accepted, CommandState::Succeeded),
        ("a", CommandState::Accepted, CommandState::Accepted),
        ("a", CommandState::Running, CommandState::Accepted),
        ("a", CommandState::Succeeded, CommandState::Failed),
        ("a", CommandState::Accepted, CommandState::Canceled),
        ("a", CommandState::Accepted, CommandState::Refused),
    ];
    for (name, first, then) in others {
        desk.post(update("c", 3, 9, CommandState::Running));
        assert_eq!(desk.told(), ["9 running"]);
        desk.post(update("a", 1, 1, first));
        desk.post(update(name, 2, 1, then));
        for told in [format!("1 {first}"), format!("1 {then}")] {
            desk.outcome(stored(&[CommandState::Running]));
            assert_eq!(desk.told(), [told]);
        }
        desk.outcome(stored(&[CommandState::Running]));
    }
    assert!(desk.bytes_are_balanced());
}

#[test]
fn of_two_that_share_a_batch_the_bad_one_is_refused_alone() {
    for bad in [CommandState::Accepted, CommandState::Succeeded] {
        let mut desk = Desk::serving();
        desk.enter("a", 1, 1, &[]);
        desk.post(update("b", 2, 9, CommandState::Running));
        assert_eq!(desk.told(), ["9 running"]);
        for state in [CommandState::Accepted, CommandState::Succeeded] {
            desk.post(update("a", 1, 1, state));
        }
        desk.outcome(stored(&[CommandState::Running]));
        assert_eq!(desk.told(), ["1 accepted", "1 succeeded"]);
        let refused = || Outcome::Updates(Err(StoreError::Rejected("a bad result".into())));
        desk.outcome(refused());
        for state in [CommandState::Accepted, CommandState::Succeeded] {
            assert_eq!(desk.told(), [format!("1 {state}")], "each alone, in order");
            desk.outcome(if state == bad { refused() } else { stored(&[state]) });
        }
        let answer = |state| match state == bad {
            true => "1: not stored, NotStorable".to_owned(),
            false => format!("1: stored {state}"),
        };
        let expected =
            ["2: stored running".to_owned(), answer(CommandState::Accepted), answer(CommandState::Succeeded)];
        assert_eq!(desk.news(), expected);
        assert!(desk.bytes_are_balanced());
    }
}

#[test]
fn a_fence_forgets_an_acceptance_and_its_end_and_what_they_weigh() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[]);
    desk.post(update("a", 1, 1, CommandState::Accepted));
    assert_eq!(desk.told(), ["1 accepted"]);
    for number in [1, 2] {
        desk.post(update("a", 1, number, CommandState::Running));
    }
    desk.at(60_000);
    desk.outcome(stored(&[CommandState::Accepted]));
    let news = desk.news();
    assert!(news.iter().all(|line| !line.contains("stored")), "{news:?}");
    assert!(desk.bytes_are_balanced());
}

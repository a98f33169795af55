//! Stories of the drain: what shards are told and when, and how the stop follows.
//!
//! Delays are `crate::drain`'s to test, what a session does with one the session's.

use super::*;
use crate::desk::{DeskAnswer, DeskAsk, DeskRefusal};
use crate::drain::DrainPlan;

const PLAN: DrainPlan = DrainPlan { within: Duration::from_secs(60), grace: Duration::from_secs(10) };

impl Desk {
    fn drain(&mut self) {
        self.writer.handle_drain(PLAN, self.now);
    }

    fn renewals(&mut self) -> Vec<(u32, bool)> {
        let mut renewals = Vec::new();
        while let Some(job) = self.job() {
            match job {
                Job::Lease(LeaseJob::Renew { sessions, draining, .. }) => {
                    renewals.push((sessions, draining));
                    self.outcome(held(1));
                }
                Job::Presence { entries, .. } => {
                    self.outcome(Outcome::Presence(Ok(vec![PresenceOutcome::Written; entries.len()])));
                }
                Job::Dispatch { .. } => self.outcome(Outcome::Dispatch(Ok(Routed::Committed(Vec::new())))),
                Job::Cancels { .. } => self.outcome(Outcome::Cancels(Ok(Vec::new()))),
                other => panic!("{other:?}"),
            }
        }
        renewals
    }
}

#[test]
fn a_drain_says_so_at_once_serves_who_is_there_and_stops_when_the_last_has_left() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 1)]);
    desk.enter("b", 2, 1, &[("main", 1)]);
    assert_eq!(desk.renewals(), [], "the lease is fresh");
    desk.drain();
    assert_eq!(desk.news(), ["shard 0: drain within 60s", "shard 1: drain within 60s"]);
    assert_eq!(desk.writer.phase(), Phase::Draining);
    assert_eq!(desk.renewals(), [(2, true)], "told before the next renewal is due");
    assert_eq!(desk.renewals(), [], "and once");

    desk.poke("a");
    assert_eq!(free(&desk.pass()), [1], "commands go on");
    desk.outcome(claims("a", 1, [7]));
    assert_eq!(desk.news(), ["1: commands 7"]);
    desk.post(update("a", 1, 7, CommandState::Succeeded));
    assert!(matches!(desk.job(), Some(Job::Updates { .. })));
    desk.outcome(stored(&[CommandState::Succeeded]));
    assert_eq!(desk.news(), ["1: stored succeeded"]);

    desk.at(5_000);
    assert_eq!(desk.renewals(), [(2, true)], "the lease is kept");
    desk.post(closed("a", 1));
    assert_eq!(desk.writer.phase(), Phase::Draining);
    desk.post(closed("b", 2));
    assert_eq!(desk.writer.phase(), Phase::Stopping, "the last has left");
    // Nobody is left to be cut, but for streams that the writer does not know.
    assert_eq!(desk.news(), ["shard 0: cut", "shard 1: cut", "shard 0: stop", "shard 1: stop"]);
    desk.renewals();
    (0..2).for_each(|shard| desk.post(ToWriter::ShardStopped { shard: ShardId(shard) }));
    assert!(matches!(desk.job(), Some(Job::Lease(LeaseJob::Release { .. }))));
    desk.outcome(Outcome::Lease(Ok(LeaseOutcome::Released)));
    assert_eq!(desk.writer.phase(), Phase::Stopped);
    assert!(desk.bytes_are_balanced());
}

#[test]
fn who_has_not_left_at_the_limit_is_cut_and_not_before() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[]);
    desk.drain();
    desk.news();
    for second in (5..70).step_by(5) {
        desk.at(second * 1000);
        desk.renewals();
        assert_eq!(desk.writer.phase(), Phase::Draining, "{second} s");
    }
    desk.at(69_999);
    desk.renewals();
    assert_eq!(desk.news(), [] as [&str; 0]);
    assert!(desk.writer.next_deadline().is_some_and(|due| due <= at(70_000)));
    desk.at(70_000);
    assert_eq!(desk.news(), ["shard 0: cut", "shard 1: cut", "shard 0: stop", "shard 1: stop"]);
    assert_eq!(desk.writer.phase(), Phase::Stopping);
}

#[test]
fn a_gateway_without_sessions_or_without_a_lease_stops_at_once() {
    let mut desk = Desk::serving();
    desk.drain();
    assert_eq!(desk.writer.phase(), Phase::Stopping);
    let mut desk = Desk::new();
    assert!(matches!(desk.job(), Some(Job::Lease(LeaseJob::Acquire { .. }))));
    desk.drain();
    assert_eq!(desk.writer.phase(), Phase::Stopping);
    desk.outcome(held(1));
    assert!(!desk.news().contains(&"shard 0: serving true".to_owned()), "it is on its way out");
}

#[test]
fn a_stop_cuts_a_drain_short_and_a_second_drain_changes_nothing() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[]);
    desk.drain();
    desk.news();
    desk.at(1_000);
    desk.drain();
    assert_eq!(desk.news(), [] as [&str; 0]);
    desk.writer.handle_stop(desk.now);
    assert_eq!(desk.news(), ["shard 0: cut", "shard 1: cut", "shard 0: stop", "shard 1: stop"]);
    desk.drain();
    assert_eq!(desk.writer.phase(), Phase::Stopping);
}

#[test]
fn a_fence_during_a_drain_ends_it_and_asks_for_no_new_lease() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[]);
    desk.drain();
    desk.news();
    // The renewal that says so never comes back.
    assert!(desk.queues().contains(&Queue::Lease));
    desk.at(10_000);
    let news = desk.news();
    assert!(news.contains(&"shard 1: close all, fenced".to_owned()), "{news:?}");
    assert_eq!(desk.writer.phase(), Phase::Stopping);
    desk.outcome(Outcome::Lease(Err(away())));
    assert!(!desk.queues().contains(&Queue::Lease), "nothing is asked for anew");
}

#[test]
fn a_drain_that_begins_while_a_renewal_is_in_flight_is_told_by_the_next() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[]);
    desk.at(5_000);
    let Some(Job::Lease(LeaseJob::Renew { draining: false, .. })) = desk.job() else { panic!("no renewal") };
    desk.drain();
    desk.outcome(held(1));
    assert_eq!(desk.renewals(), [(1, true)], "at once");
}

impl Desk {
    fn stand(&mut self) -> DeskAnswer {
        self.writer.handle_ask(DeskAsk::Drain(PLAN), self.now)
    }

    fn undrain(&mut self) -> DeskAnswer {
        self.writer.handle_ask(DeskAsk::Undrain, self.now)
    }
}

#[test]
fn a_drain_that_the_control_api_asked_for_stops_nothing_cuts_nobody_and_is_taken_back() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 1)]);
    assert_eq!(desk.stand(), DeskAnswer::Draining { sessions: 1, is_new: true });
    assert_eq!(desk.stand(), DeskAnswer::Draining { sessions: 1, is_new: false });
    assert_eq!(desk.news(), ["shard 0: drain within 60s", "shard 1: drain within 60s"], "told once");
    assert_eq!(desk.writer.phase(), Phase::Draining);
    assert_eq!(desk.renewals(), [(1, true)]);
    desk.poke("a");
    assert_eq!(free(&desk.pass()), [1], "commands go on");
    desk.outcome(Outcome::Dispatch(Ok(Routed::Committed(Vec::new()))));
    for second in (5..200).step_by(5) {
        desk.at(second * 1000);
        desk.renewals();
    }
    assert_eq!(desk.news(), [] as [&str; 0], "whoever stays is not cut");
    desk.post(closed("a", 1));
    desk.renewals();
    assert_eq!(desk.writer.phase(), Phase::Draining, "nobody is left, and nothing stops");
    assert_eq!(desk.undrain(), DeskAnswer::Undrained { was_draining: true });
    assert_eq!(desk.news(), ["shard 0: serving true", "shard 1: serving true"]);
    assert_eq!(desk.writer.phase(), Phase::Serving);
    assert_eq!(desk.renewals(), [(0, false)], "told at once");
    assert_eq!(desk.undrain(), DeskAnswer::Undrained { was_draining: false });
    assert_eq!(desk.news(), [] as [&str; 0]);
    desk.enter("b", 2, 1, &[]);
}

#[test]
fn a_drain_to_the_stop_takes_the_place_of_one_that_stands_and_is_not_taken_back() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[]);
    desk.stand();
    desk.news();
    desk.at(1_000);
    desk.drain();
    assert_eq!(desk.news(), [] as [&str; 0], "nobody is told twice");
    assert_eq!(desk.undrain(), DeskAnswer::Refused(DeskRefusal::Stopping));
    assert_eq!(desk.stand(), DeskAnswer::Draining { sessions: 1, is_new: false });
    for second in (5..71).step_by(5) {
        desk.at(second * 1000);
        desk.renewals();
    }
    desk.at(70_999);
    desk.renewals();
    assert_eq!(desk.writer.phase(), Phase::Draining);
    desk.at(71_000);
    assert_eq!(desk.news(), ["shard 0: cut", "shard 1: cut", "shard 0: stop", "shard 1: stop"]);
    assert_eq!(desk.stand(), DeskAnswer::Refused(DeskRefusal::Stopping));
    let mut empty = Desk::serving();
    empty.stand();
    empty.drain();
    assert_eq!(empty.writer.phase(), Phase::Stopping, "all have left before");
}

#[test]
fn a_gateway_that_was_drained_and_fenced_drains_on_with_its_next_lease() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[]);
    desk.stand();
    desk.news();
    assert!(desk.queues().contains(&Queue::Lease));
    desk.at(10_000);
    assert!(desk.news().contains(&"shard 1: close all, fenced".to_owned()));
    assert_eq!(desk.writer.phase(), Phase::Waiting);
    desk.outcome(Outcome::Lease(Err(away())));
    desk.at(20_000);
    assert!(desk.queues().contains(&Queue::Lease), "a lease is asked for");
    desk.outcome(held(2));
    assert_eq!(desk.news(), ["shard 0: drain within 60s", "shard 1: drain within 60s"]);
    assert_eq!(desk.writer.phase(), Phase::Draining);
}

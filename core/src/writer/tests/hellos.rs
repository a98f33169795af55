//! Stories of Hellos in the writer: what a grant brings along, what it costs, and how many share a commit.
//!
//! 1. What a Hello replays is sent whatever the credit; what is new waits for it.

use super::*;

fn say(name: &str, slot: u32, lanes: &[(&str, u32)]) -> ToWriter {
    ToWriter::Hello(Box::new(hello(name, slot, lanes)))
}

#[test]
fn replays_beyond_a_lanes_capacity_are_all_sent_and_stop_what_is_new() {
    let mut desk = Desk::serving();
    desk.post(say("a", 1, &[("main", 2)]));
    assert!(matches!(desk.job(), Some(Job::Hellos { .. })));
    let replays: Vec<Command> = (1..=5).map(|number| command(number, "main", 1)).collect();
    let in_flight = replays.iter().map(|command| InFlight {
        lane: command.lane.clone(),
        id: command.id,
        attempt: command.attempt,
    });
    let grant = HelloGrant {
        in_flight: in_flight.collect(),
        replays: replays.clone(),
        has_pending: true,
        ..grant(1)
    };
    desk.outcome(granted(&[grant]));
    let sent = std::iter::from_fn(|| desk.writer.poll_to_shard()).find_map(|(_, message)| match message {
        ToShard::Session { news: SessionNews::Granted(granted), .. } => Some(granted.replays),
        _ => None,
    });
    assert_eq!(sent, Some(replays), "five replays on a lane of two");
    assert!(desk.has_no_pass());
    // Three ends bring it to its capacity, and the fourth below it.
    for number in 1..=4 {
        assert!(desk.has_no_pass(), "{} are in flight", 6 - number);
        desk.post(update("a", 1, number, CommandState::Succeeded));
        assert!(matches!(desk.updates_job(), Some(Job::Updates { .. })));
        desk.outcome(stored(&[CommandState::Succeeded]));
    }
    assert_eq!(free(&desk.pass()), [1]);
}

#[test]
fn a_hello_without_pending_commands_costs_no_pass() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 2)]);
    assert!(desk.has_no_pass());
    desk.post(say("b", 2, &[("main", 2)]));
    assert!(matches!(desk.job(), Some(Job::Hellos { .. })));
    desk.outcome(granted(&[HelloGrant { has_pending: true, ..grant(1) }]));
    assert_eq!(free(&desk.pass()), [2], "of the one that has some");
}

#[test]
fn a_storm_of_five_thousand_hellos_is_ten_transactions() {
    let mut desk = Desk::serving();
    for slot in 0..5_000 {
        desk.post(say(&format!("n{slot}"), slot, &[("main", 1)]));
    }
    let mut batches = Vec::new();
    while let Some(Job::Hellos { entries, .. }) = desk.job() {
        desk.outcome(granted(&vec![grant(1); entries.len()]));
        batches.push(entries.len());
    }
    assert_eq!(batches, [500; 10]);
    assert_eq!(desk.news().len(), 5_000);
    assert!(desk.bytes_are_balanced());
}

#[test]
fn another_end_than_the_stored_one_is_acked_with_the_stored_one_and_counted() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 1)]);
    desk.post(update("a", 1, 1, CommandState::Failed));
    assert!(matches!(desk.updates_job(), Some(Job::Updates { .. })));
    let state = CommandState::Succeeded;
    let outcome = UpdateOutcome::Stored { state, lane: lane("main"), conflict: true };
    desk.outcome(Outcome::Updates(Ok(vec![outcome])));
    assert_eq!(desk.news(), ["1: stored succeeded"]);
    assert_eq!(desk.writer.counts().update_conflicts, 1);
}

#[test]
fn a_quarantine_ends_the_session_that_stands_and_the_hello_that_showed_it() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 1)]);
    let shows = hello("a", 2, &[("main", 1)]);
    let identity = Box::new(shows.identity.clone());
    desk.post(ToWriter::Hello(Box::new(shows)));
    assert!(matches!(desk.job(), Some(Job::Hellos { .. })));
    desk.outcome(Outcome::Hellos(Ok(Routed::Committed(vec![HelloOutcome::Quarantined(identity)]))));
    assert_eq!(desk.news(), ["1: close, not-permitted", "2: close, not-permitted"]);
    assert_eq!(desk.writer.sessions(), 0);
    assert_eq!(desk.writer.counts().certificates_quarantined, 1);
    desk.post(closed("a", 1));
    desk.post(closed("a", 2));
    assert_eq!(desk.queues(), [], "the store has written its end");
    assert!(desk.bytes_are_balanced());
}

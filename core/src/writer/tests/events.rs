//! Stories of events in the writer: resends, a bad event among good ones, a database that is away.
//!
//! 1. A session is answered after the commit, once a batch, with the cursor.

use super::super::testing::events_batch;
use super::*;
use crate::seam::EventsRequest;
use crate::store::EventsOutcome;

fn run(slot: u32, seqs: std::ops::Range<u64>) -> ToWriter {
    let batch = Arc::new(events_batch(seqs));
    ToWriter::Events(EventsRequest { key: key(slot), node: node("a"), batch })
}

fn acked(seqs: &[u64]) -> Outcome {
    Outcome::Events(Ok(seqs.iter().map(|seq| EventsOutcome { acked: EventSeq(*seq) }).collect()))
}

impl Desk {
    fn events_job(&mut self) -> Option<Vec<EventsRequest>> {
        std::iter::from_fn(|| self.job()).find_map(|job| match job {
            Job::Events { entries } => Some(entries),
            _ => None,
        })
    }
}

#[test]
fn batches_of_one_turn_share_a_commit_and_each_session_is_answered_after_it() {
    let mut desk = Desk::serving();
    for slot in [1, 2, 3] {
        desk.post(run(slot, 1..4));
    }
    assert_eq!(desk.events_job().expect("a job").len(), 3);
    desk.post(run(4, 1..2));
    assert_eq!(desk.events_job(), None, "one commit in flight");
    assert_eq!(desk.news(), Vec::<String>::new(), "no ack before the commit");
    desk.outcome(acked(&[3, 3, 3]));
    assert_eq!(desk.news(), ["1: events up to 3", "2: events up to 3", "3: events up to 3"]);
    assert_eq!(desk.events_job().expect("the next").len(), 1);
    desk.outcome(acked(&[3]));
    assert!(desk.bytes_are_balanced());
    assert_eq!(desk.writer.counts().event_batches_stored, 4);
}

#[test]
fn the_one_event_that_the_database_refuses_becomes_a_tombstone_and_all_others_are_stored() {
    for bad in 1..=13 {
        let mut desk = Desk::serving();
        desk.enter("a", 1, 1, &[]);
        desk.post(run(1, 1..14));
        desk.post(ToWriter::Events(EventsRequest {
            key: key(2),
            node: node("b"),
            batch: Arc::new(events_batch(1..6)),
        }));
        let mut stored: Vec<(u64, bool)> = Vec::new();
        let mut commits = 0;
        while let Some(entries) = desk.events_job() {
            commits += 1;
            let is_bad = |entry: &EventsRequest| {
                let mut events = entry.batch.events.iter();
                entry.node == node("a") && events.any(|event| event.seq.0 == bad && event.refused.is_none())
            };
            if entries.iter().any(is_bad) {
                desk.outcome(Outcome::Events(Err(StoreError::Rejected("a bad body".into()))));
                continue;
            }
            let mut cursors = Vec::new();
            for entry in &entries {
                let events = &entry.batch.events;
                if entry.node == node("a") {
                    stored.extend(events.iter().map(|event| (event.seq.0, event.refused.is_some())));
                }
                cursors.push(events.last().map_or(0, |event| event.seq.0));
            }
            desk.outcome(acked(&cursors));
        }
        assert_eq!(stored, (1..14).map(|seq| (seq, seq == bad)).collect::<Vec<_>>(), "in order, each once");
        let mut news = desk.news();
        news.sort();
        assert_eq!(
            news,
            [format!("1: events up to 13, {bad} is NotStorable"), "2: events up to 5".to_owned()]
        );
        assert!(commits <= 14, "{commits} commits to find one event");
        assert_eq!(desk.writer.counts().events_refused, 1);
        assert!(desk.bytes_are_balanced());
    }
}

#[test]
fn a_journal_that_takes_not_even_a_tombstone_is_told_so_and_its_session_is_cut_in_the_end() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[]);
    for _ in 0..4 {
        desk.post(run(1, 1..2));
        while desk.events_job().is_some() {
            desk.outcome(Outcome::Events(Err(StoreError::Rejected("no such journal".into()))));
        }
    }
    let told = format!("1: not stored, {:?}", RejectCode::NotStorable);
    let news = desk.news();
    assert_eq!(news.iter().filter(|line| **line == told).count(), 4, "{news:?}");
    assert_eq!(news.last().map(String::as_str), Some("1: close, protocol"));
    assert!(desk.bytes_are_balanced());
}

#[test]
fn a_commit_that_nobody_knows_of_goes_again_and_is_answered_once() {
    let mut desk = Desk::serving();
    desk.post(run(1, 1..4));
    assert!(desk.events_job().is_some());
    desk.outcome(Outcome::Events(Err(StoreError::OutcomeUnknown("cut".into()))));
    assert_eq!(desk.events_job(), None, "after the back-off");
    desk.at(50);
    let entries = desk.events_job().expect("again");
    assert_eq!(entries[0].batch.events.len(), 3);
    desk.outcome(acked(&[3]));
    assert_eq!(desk.news(), ["1: events up to 3"]);
    assert!(desk.bytes_are_balanced());
}

#[test]
fn a_fence_drops_events_that_are_not_acked_and_gives_their_bytes_back() {
    let mut desk = Desk::serving();
    desk.post(run(1, 1..4));
    assert!(desk.events_job().is_some());
    desk.post(run(2, 1..4));
    desk.at(10_000);
    assert!(desk.news().iter().any(|line| line.contains("fenced")), "half the TTL is over");
    desk.outcome(acked(&[3]));
    assert_eq!(desk.news(), Vec::<String>::new(), "its session is gone");
    assert!(desk.bytes_are_balanced());
}

#[test]
fn a_stop_waits_for_events_that_shards_left() {
    let mut desk = Desk::serving();
    desk.writer.handle_stop(desk.now);
    desk.post(run(1, 1..4));
    for shard in [0, 1] {
        desk.post(ToWriter::ShardStopped { shard: ShardId(shard) });
    }
    assert!(desk.events_job().is_some());
    assert!(desk.writer.lease_epoch().is_some() && desk.queues().is_empty(), "the lease is not released yet");
    desk.outcome(acked(&[3]));
    assert_eq!(desk.queues(), [Queue::Lease]);
}

//! Stories of statuses in the writer, and of hooked events: a transaction gets few savepoints.
//!
//! 1. A session is answered after the commit, once a status.

use super::super::testing::events_batch;
use super::*;
use crate::frame::Status;
use crate::limits::MAX_SAVEPOINTS;
use crate::seam::{EventsRequest, StatusRequest};
use crate::store::{EventsOutcome, StatusOutcome};

fn told(slot: u32, name: &str, id: &str) -> ToWriter {
    let status =
        Status { frame_ref: FrameRef(1), id: id.into(), kind: "told".into(), body: Bytes::from_static(b"b") };
    ToWriter::Status(Box::new(StatusRequest {
        key: key(slot),
        node: node(name),
        boot_id: "boot".into(),
        status,
    }))
}

fn stored(news: &[bool]) -> Outcome {
    Outcome::Statuses(Ok(news.iter().map(|is_new| StatusOutcome { is_new: *is_new }).collect()))
}

impl Desk {
    fn statuses_job(&mut self) -> Option<Vec<StatusRequest>> {
        std::iter::from_fn(|| self.job()).find_map(|job| match job {
            Job::Statuses { entries } => Some(entries),
            _ => None,
        })
    }

    fn hooked(events: &[(&str, usize)], statuses: &[(&str, usize)]) -> Self {
        let own = |kinds: &[(&str, usize)]| -> Vec<(String, usize)> {
            kinds.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect()
        };
        let config = WriterConfig { hooked: HookedKinds::new(own(events), own(statuses)), ..config() };
        let mut desk = Self { writer: Writer::new(config, at(0)), ..Self::new() };
        assert!(matches!(desk.job(), Some(Job::Lease(LeaseJob::Acquire { .. }))));
        desk.outcome(held(1));
        desk.news();
        desk
    }

    /// The next job of events; a lease is renewed meanwhile.
    fn events_job_and_leases(&mut self) -> Option<Vec<EventsRequest>> {
        loop {
            match self.job()? {
                Job::Events { entries } => return Some(entries),
                Job::Lease(_) => self.outcome(held(1)),
                _ => {}
            }
        }
    }

    /// Takes a job of events as a store would; gives how many events of each entry it held.
    fn store_events(&mut self) -> Option<Vec<usize>> {
        let job = std::iter::from_fn(|| self.job()).find_map(|job| match job {
            Job::Events { entries } => Some(entries),
            _ => None,
        })?;
        let last = |entry: &EventsRequest| entry.batch.events.last().expect("an event").seq;
        let outcomes = job.iter().map(|entry| EventsOutcome { acked: last(entry) }).collect();
        let sizes = job.iter().map(|entry| entry.batch.events.len()).collect();
        self.outcome(Outcome::Events(Ok(outcomes)));
        Some(sizes)
    }
}

fn run(slot: u32, count: u64) -> ToWriter {
    let batch = Arc::new(events_batch(1..count + 1));
    ToWriter::Events(EventsRequest { key: key(slot), node: node(&format!("n{slot}")), batch })
}

#[test]
fn statuses_share_a_commit_and_each_session_is_answered_after_it() {
    let mut desk = Desk::serving();
    desk.post(told(1, "a", "x"));
    desk.post(told(2, "b", "x"));
    // Of a newer session of the node, which sends again what was not acked: not in the same batch.
    desk.post(told(3, "a", "x"));
    assert_eq!(desk.statuses_job().expect("a job").len(), 2);
    assert_eq!(desk.news(), Vec::<String>::new(), "no ack before the commit");
    desk.outcome(stored(&[true, true]));
    assert_eq!(desk.news(), ["1: stored", "2: stored"]);
    assert_eq!(desk.statuses_job().expect("the next").len(), 1);
    desk.outcome(stored(&[false]));
    assert_eq!(desk.news(), ["3: stored"]);
    assert!(desk.bytes_are_balanced());
    assert_eq!(desk.writer.counts().statuses_stored, 2, "the one that was there is not counted again");
}

#[test]
fn the_one_status_that_the_database_refuses_fails_alone() {
    let mut desk = Desk::serving();
    for slot in 1..=5 {
        desk.post(told(slot, "a", &format!("id-{slot}")));
    }
    while let Some(entries) = desk.statuses_job() {
        match entries.iter().any(|entry| entry.status.id == "id-3") {
            true => desk.outcome(Outcome::Statuses(Err(StoreError::Rejected("bad".into())))),
            false => desk.outcome(stored(&vec![true; entries.len()])),
        }
    }
    let mut news = desk.news();
    news.sort();
    assert_eq!(news, ["1: stored", "2: stored", "3: not stored, NotStorable", "4: stored", "5: stored"]);
    assert!(desk.bytes_are_balanced());
}

#[test]
fn a_fence_drops_statuses_that_are_not_acked_and_a_stop_waits_for_those_in_flight() {
    let mut desk = Desk::serving();
    desk.post(told(1, "a", "x"));
    assert!(desk.statuses_job().is_some());
    desk.post(told(2, "b", "x"));
    desk.at(10_000);
    desk.news();
    desk.outcome(stored(&[true]));
    assert_eq!(desk.news(), Vec::<String>::new(), "its session is gone");
    assert!(desk.bytes_are_balanced());

    let mut desk = Desk::serving();
    desk.writer.handle_stop(desk.now);
    desk.post(told(1, "a", "x"));
    for shard in [0, 1] {
        desk.post(ToWriter::ShardStopped { shard: ShardId(shard) });
    }
    assert!(desk.statuses_job().is_some());
    assert!(desk.queues().is_empty(), "the lease is not released yet");
    desk.outcome(stored(&[true]));
    assert_eq!(desk.queues(), [Queue::Lease]);
}

#[test]
fn statuses_with_handlers_share_no_more_savepoints_than_a_transaction_may_have() {
    let mut desk = Desk::hooked(&[], &[("told", 16)]);
    for slot in 0..8 {
        desk.post(told(slot, "a", &format!("id-{slot}")));
    }
    let mut sizes = Vec::new();
    while let Some(entries) = desk.statuses_job() {
        sizes.push(entries.len());
        desk.outcome(stored(&vec![true; entries.len()]));
    }
    assert_eq!(sizes, [3, 3, 2], "48 of {MAX_SAVEPOINTS}");
    assert_eq!(desk.news().len(), 8);
}

#[test]
fn a_run_with_many_reports_goes_in_pieces_and_is_answered_once_at_its_end() {
    let mut desk = Desk::hooked(&[("kind", 2)], &[]);
    desk.post(run(1, 70));
    desk.post(run(2, 5));
    // 30 events take 60 savepoints. The second run does not wait for all of the first.
    let stored: Vec<Vec<usize>> = std::iter::from_fn(|| desk.store_events()).collect();
    assert_eq!(stored, [[30], [5], [30], [10]]);
    let mut news = desk.news();
    news.sort();
    assert_eq!(news, ["1: events up to 70", "2: events up to 5"]);
    assert!(desk.bytes_are_balanced());
}

#[test]
fn events_without_hooks_are_not_cut_by_hooks_of_other_kinds() {
    let mut desk = Desk::hooked(&[("another", 16)], &[("kind", 16)]);
    for slot in 1..=3 {
        desk.post(run(slot, 1000));
    }
    assert_eq!(desk.store_events(), Some(vec![1000, 1000, 1000]), "one batch");
}

#[test]
fn a_piece_that_the_database_refuses_is_narrowed_and_the_pieces_behind_it_follow() {
    let mut desk = Desk::hooked(&[("kind", 1)], &[]);
    desk.enter("n1", 1, 1, &[]);
    desk.post(run(1, 100));
    let mut stored: Vec<(u64, bool)> = Vec::new();
    loop {
        let Some(entries) = std::iter::from_fn(|| desk.job()).find_map(|job| match job {
            Job::Events { entries } => Some(entries),
            _ => None,
        }) else {
            break;
        };
        let events = &entries[0].batch.events;
        if events.iter().any(|event| event.seq.0 == 10 && event.refused.is_none()) {
            desk.outcome(Outcome::Events(Err(StoreError::Rejected("a bad body".into()))));
            continue;
        }
        stored.extend(events.iter().map(|event| (event.seq.0, event.refused.is_some())));
        let acked = events.last().expect("an event").seq;
        desk.outcome(Outcome::Events(Ok(vec![EventsOutcome { acked }])));
    }
    assert_eq!(stored, (1..=100).map(|seq| (seq, seq == 10)).collect::<Vec<_>>(), "in order, each once");
    assert_eq!(desk.news(), ["1: events up to 100, 10 is NotStorable"]);
    assert!(desk.bytes_are_balanced());
}

#[test]
fn hooks_that_hang_go_one_by_one_and_what_has_no_hook_waits_for_one_of_them() {
    const HANGS: Duration = Duration::from_millis(600);
    let mut desk = Desk::hooked(&[("kind", 1)], &[]);
    let mut stored = 0;
    let mut waits = Vec::new();
    for _ in 0..4 {
        desk.post(run(1, 8));
        desk.post(run(2, 4));
        let mut plain = events_batch(1..4);
        plain.events.iter_mut().for_each(|event| event.kind = "plain".to_owned());
        desk.post(ToWriter::Events(EventsRequest { key: key(3), node: node("n3"), batch: Arc::new(plain) }));
        let mut waited = Duration::ZERO;
        while let Some(entries) = desk.events_job_and_leases() {
            let events = entries.iter().flat_map(|entry| &entry.batch.events);
            let hooked = u32::try_from(events.filter(|event| event.kind == "kind").count()).expect("few");
            stored += hooked;
            waited += HANGS * hooked;
            if entries.iter().any(|entry| entry.node == node("n3")) {
                waits.push(waited);
            }
            let acked = |entry: &EventsRequest| entry.batch.events.last().expect("an event").seq;
            let outcomes = entries.iter().map(|entry| EventsOutcome { acked: acked(entry) }).collect();
            let started = desk.now;
            desk.now = desk.now + HANGS * hooked;
            desk.writer.handle_outcome(Outcome::Events(Ok(outcomes)), started, desk.now);
        }
    }
    assert_eq!(stored, 4 * 12, "all, each once");
    assert_eq!(waits, [12 * HANGS, HANGS, HANGS, HANGS], "what hangs is known after the first");
    assert!(desk.bytes_are_balanced());
}

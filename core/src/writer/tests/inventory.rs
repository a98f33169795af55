//! Stories of inventories in the writer: a bad section among good ones, the later of two, looks.
//!
//! 1. A section is answered by its ref after the commit, once; its bytes are given back once.

use super::super::testing::{list_of, section};
use super::*;
use crate::seam::LookRequest;
use crate::store::{InventoryEntry, InventoryOutcome};

fn post_of(name: &str, slot: u32, frame_ref: u64, of: &str, body: &str) -> ToWriter {
    ToWriter::Section(Arc::new(section(name, slot, frame_ref, of, body)))
}

fn look(slot: u32) -> ToWriter {
    let list = list_of(&[("cpu", "1"), ("disk", "2")]);
    ToWriter::InventoryLook(Arc::new(LookRequest { key: key(slot), node: node("a"), list }))
}

fn stored_all(count: usize) -> Outcome {
    Outcome::Inventory(Ok(vec![InventoryOutcome::Stored; count]))
}

fn rejected() -> Outcome {
    Outcome::Inventory(Err(StoreError::Rejected("a bad body".into())))
}

impl Desk {
    /// The refs of the sections of the next job, 0 for a look.
    fn inventory_job(&mut self) -> Vec<u64> {
        let entries = std::iter::from_fn(|| self.job()).find_map(|job| match job {
            Job::Inventory { entries, most: 64 } => Some(entries),
            _ => None,
        });
        let named = |entry: &InventoryEntry| match entry {
            InventoryEntry::Section(request) => request.frame_ref.0,
            InventoryEntry::Look(_) => 0,
        };
        entries.unwrap_or_default().iter().map(named).collect()
    }
}

#[test]
fn sections_and_looks_of_one_turn_share_a_commit_and_are_answered_after_it() {
    let mut desk = Desk::serving();
    desk.post(post_of("a", 1, 11, "cpu", "1"));
    desk.post(post_of("a", 1, 12, "disk", "2"));
    desk.post(look(2));
    assert_eq!(desk.inventory_job(), [11, 12, 0]);
    desk.post(post_of("b", 3, 13, "cpu", "1"));
    assert_eq!(desk.inventory_job(), [], "one commit in flight");
    assert_eq!(desk.news(), [] as [&str; 0], "no ack before the commit");
    let wanted = InventoryOutcome::Wanted(vec![SectionName::new("disk").expect("a name")]);
    desk.outcome(Outcome::Inventory(Ok(vec![InventoryOutcome::Stored, InventoryOutcome::Stored, wanted])));
    assert_eq!(desk.news(), ["1: section 11 stored", "1: section 12 stored", "2: wanted: disk"]);
    assert_eq!(desk.inventory_job(), [13]);
    desk.outcome(stored_all(1));
    assert_eq!(desk.news(), ["3: section 13 stored"]);
    assert!(desk.bytes_are_balanced());
    assert_eq!(desk.writer.counts().sections_stored, 3);
}

#[test]
fn of_two_sections_of_one_name_the_later_commits_later() {
    let mut desk = Desk::serving();
    desk.post(post_of("a", 1, 1, "cpu", "old"));
    desk.post(post_of("a", 1, 2, "cpu", "new"));
    desk.post(post_of("b", 2, 3, "cpu", "other node"));
    assert_eq!(desk.inventory_job(), [1, 3]);
    desk.outcome(Outcome::Inventory(Err(away())));
    desk.at(50);
    assert_eq!(desk.inventory_job(), [1, 3], "what failed goes before what is newer");
    desk.outcome(stored_all(2));
    assert_eq!(desk.inventory_job(), [2]);
}

#[test]
fn the_one_section_that_the_database_refuses_fails_alone_and_a_session_of_many_is_cut() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[]);
    for frame_ref in 1..=7 {
        desk.post(post_of("a", 1, frame_ref, &format!("s{frame_ref}"), "body"));
    }
    let mut stored = Vec::new();
    loop {
        let refs = desk.inventory_job();
        match refs.as_slice() {
            [] => break,
            refs if refs.contains(&5) => desk.outcome(rejected()),
            refs => {
                stored.extend_from_slice(refs);
                desk.outcome(stored_all(refs.len()));
            }
        }
    }
    assert_eq!(stored, [1, 2, 3, 4, 6, 7]);
    assert!(desk.news().contains(&"1: section 5 not stored".to_owned()));
    for frame_ref in 8..=14 {
        desk.post(post_of("a", 1, frame_ref, "s", "body"));
        assert_eq!(desk.inventory_job(), [frame_ref]);
        desk.outcome(rejected());
    }
    assert_eq!(desk.news().last().map(String::as_str), Some("1: close, protocol"));
    assert_eq!((desk.writer.counts().sections_stored, desk.writer.counts().sections_refused), (6, 8));
    assert!(desk.bytes_are_balanced());
}

#[test]
fn what_the_store_says_of_a_section_is_told_to_its_session() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[]);
    desk.post(post_of("a", 1, 1, "cpu", "1"));
    desk.post(post_of("a", 1, 2, "disk", "1"));
    assert_eq!(desk.inventory_job(), [1, 2]);
    desk.outcome(Outcome::Inventory(Ok(vec![InventoryOutcome::UnknownNode, InventoryOutcome::TooMany])));
    assert_eq!(desk.news(), ["1: section 1 not stored", "1: section 2 not stored"]);
    desk.post(post_of("a", 1, 3, "cpu", "1"));
    assert_eq!(desk.inventory_job(), [3]);
    desk.outcome(Outcome::Inventory(Ok(vec![InventoryOutcome::Superseded])));
    assert_eq!(desk.news(), ["1: close, superseded"], "another gateway has the node");
    assert_eq!(desk.writer.sessions(), 0);
    assert!(desk.bytes_are_balanced());
}

#[test]
fn a_look_that_can_not_be_made_is_answered_and_a_fence_drops_all() {
    let mut desk = Desk::serving();
    desk.post(look(1));
    assert_eq!(desk.inventory_job(), [0]);
    desk.outcome(rejected());
    assert_eq!(desk.news(), ["1: not looked"]);
    desk.post(post_of("a", 1, 1, "cpu", "1"));
    assert_eq!(desk.inventory_job(), [1]);
    desk.post(look(2));
    desk.post(post_of("b", 2, 2, "cpu", "1"));
    desk.at(10_000);
    assert!(desk.news().iter().any(|line| line.contains("fenced")), "half the TTL is over");
    desk.outcome(stored_all(1));
    assert_eq!(desk.news(), [] as [&str; 0], "its session is gone");
    desk.post(look(3));
    assert!(desk.bytes_are_balanced());
}

#[test]
fn a_stop_waits_for_sections_that_shards_left() {
    let mut desk = Desk::serving();
    desk.writer.handle_stop(desk.now);
    desk.post(post_of("a", 1, 1, "cpu", "1"));
    for shard in [0, 1] {
        desk.post(ToWriter::ShardStopped { shard: ShardId(shard) });
    }
    assert_eq!(desk.inventory_job(), [1]);
    assert!(desk.writer.lease_epoch().is_some() && desk.queues().is_empty(), "the lease is not released yet");
    desk.outcome(stored_all(1));
    assert_eq!(desk.queues(), [Queue::Lease]);
}

//! Stories of specs in the writer: when a session is looked at, what it is not sent twice, what is on its way.
//!
//! The sweep of these stories comes every second, give or take a quarter.

use super::*;
use crate::frame::{Spec, SpecGeneration};
use crate::ids::{Generation, SpecName};
use crate::limits::{MAX_SPEC_BYTES, MAX_SPEC_BYTES_ON_THE_WAY, MAX_SPEC_LOOKS};
use crate::seam::{SPEC_HEAD_BYTES, SpecAnswer};
use crate::store::{SpecAppliedOutcome, SpecsLook};

fn spec(name: &str, generation: u64, bytes: usize) -> Spec {
    let name = SpecName::new(name).expect("a spec name");
    Spec { name, generation: Generation(generation), body: vec![0; bytes].into() }
}

fn found(specs: Vec<Spec>) -> SpecsFound {
    SpecsFound { specs, more: false }
}

fn answer(slot: u32, name: &str, generation: u64) -> ToWriter {
    let (key, node) = (key(slot), node("a"));
    let name = SpecName::new(name).expect("a spec name");
    ToWriter::SpecApplied(Box::new(SpecAnswer {
        key,
        node,
        name,
        generation: Generation(generation),
        error: None,
    }))
}

/// "a after x 1, y 2, after Hello": whom a look asks for, what it has, and whether answered ones count.
fn describe_look(look: &SpecsLook) -> String {
    let known: Vec<String> =
        look.known.iter().map(|known| format!("{} {}", known.name, known.generation)).collect();
    let hello = if look.answered_too { ", by its Hello" } else { "" };
    format!("{} has [{}]{hello}", look.node, known.join(", "))
}

impl Desk {
    fn with_specs(spec_sweep_every: Duration) -> Self {
        let mut desk = Self::with(WriterConfig { spec_sweep_every, ..config() }).begin();
        desk.has_specs = true;
        desk
    }

    fn specs_job(&mut self) -> Option<Job> {
        std::iter::from_fn(|| self.job()).find(|job| job.queue() == Queue::Specs)
    }

    /// Whom the next look asks for; nobody where there is none.
    fn look(&mut self) -> Vec<String> {
        match self.specs_job() {
            Some(Job::SpecsDue { looks, .. }) => looks.iter().map(describe_look).collect(),
            None => Vec::new(),
            other => panic!("no look but {other:?}"),
        }
    }

    fn found(&mut self, slots: Vec<SpecsFound>) -> Vec<String> {
        self.outcome(Outcome::SpecsDue(Ok(slots)));
        self.news()
    }

    fn sent(&mut self, slot: u32, bytes: usize) {
        self.post(ToWriter::SpecsSent { key: key(slot), bytes: bytes + SPEC_HEAD_BYTES });
    }

    /// A session in slot 1 of node a, looked at after its Hello.
    fn enter_a(&mut self) {
        self.enter("a", 1, 1, &[]);
        assert_eq!(self.look(), ["a has [], by its Hello"]);
        assert_eq!(self.found(vec![found(Vec::new())]), [""; 0]);
    }
}

const NEVER: Duration = Duration::from_secs(24 * 3600);
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_hello_is_looked_at_by_what_it_lists_and_a_poke_by_what_is_not_answered() {
    let mut desk = Desk::with_specs(NEVER);
    let mut request = hello("a", 1, &[]);
    request.hello.specs = vec![SpecGeneration { name: spec("x", 1, 0).name, generation: Generation(4) }];
    desk.post(ToWriter::Hello(Box::new(request)));
    assert!(desk.job().is_some());
    desk.outcome(granted(&[grant(1)]));
    assert_eq!(desk.news(), ["1: granted 1"]);
    assert_eq!(desk.look(), ["a has [x 4], by its Hello"]);
    assert_eq!(desk.found(vec![found(vec![spec("y", 2, 5)])]), ["1: specs y 2"]);
    assert_eq!(desk.look(), [""; 0], "once looked at, it rests");
    desk.writer.handle_specs_poke(Some(&node("a")), desk.now);
    desk.writer.handle_specs_poke(Some(&node("a")), desk.now);
    desk.writer.handle_specs_poke(Some(&node("stranger")), desk.now);
    assert_eq!(desk.look(), ["a has [y 2]"], "pokes are coalesced, and what was sent is not sent again");
    desk.writer.handle_specs_poke(Some(&node("a")), desk.now);
    assert_eq!(desk.found(vec![found(vec![spec("y", 3, 5)])]), ["1: specs y 3"]);
    assert_eq!(desk.look(), ["a has [y 3]"], "a poke during a look may be newer than it");
}

#[test]
fn sessions_that_stand_in_line_for_a_look_keep_no_message_out() {
    let limits = Arc::new(Limits { to_writer_messages: 1, ..Limits::default() });
    let mut desk = Desk::with(WriterConfig { limits, spec_sweep_every: NEVER, ..config() }).begin();
    desk.enter("a", 1, 1, &[]);
    assert_eq!(desk.writer.queue_len(Queue::Specs), 1, "it waits for a look");
    assert!(desk.writer.wants_messages(), "what it may wait for would never be taken");
    desk.post(answer(1, "x", 1));
    assert!(!desk.writer.wants_messages(), "an answer is a message");
}

#[test]
fn an_enqueue_that_pokes_costs_no_look_at_specs() {
    let mut desk = Desk::with_specs(NEVER);
    desk.enter_a();
    desk.poke("a");
    assert_eq!(desk.look(), [""; 0]);
}

#[test]
fn what_was_sent_goes_again_only_when_a_whole_sweep_has_passed_without_an_answer() {
    let mut desk = Desk::with_specs(SECOND);
    desk.enter_a();
    desk.writer.handle_specs_poke(Some(&node("a")), desk.now);
    assert_eq!(desk.look(), ["a has []"]);
    desk.found(vec![found(vec![spec("x", 1, 5), spec("y", 1, 5)])]);
    desk.sent(1, 5);
    desk.sent(1, 5);
    desk.post(answer(1, "x", 1));
    assert!(matches!(desk.specs_job(), Some(Job::SpecsApplied { .. })));
    desk.outcome(Outcome::SpecsApplied(Ok(vec![SpecAppliedOutcome::Stored])));
    assert_eq!(desk.news(), ["1: stored"]);
    desk.at(1_260);
    assert_eq!(
        desk.look(),
        ["a has [y 1]"],
        "x is answered, which is the store's to know; y may be on its way"
    );
    desk.found(vec![found(Vec::new())]);
    desk.at(2_600);
    assert_eq!(desk.look(), ["a has []"]);
    assert_eq!(desk.found(vec![found(vec![spec("y", 1, 5)])]), ["1: specs y 1"]);
    desk.sent(1, 5);
}

#[test]
fn a_sweep_comes_to_every_session_a_page_at_a_time_and_then_rests() {
    let mut desk = Desk::with_specs(SECOND);
    let sessions = MAX_SPEC_LOOKS as u32 + 7;
    for slot in 0..sessions {
        desk.enter(&format!("n{slot}"), slot, 1, &[]);
    }
    loop {
        let looks = desk.look().len();
        if looks == 0 {
            break;
        }
        desk.found(vec![found(Vec::new()); looks]);
    }
    desk.at(1_260);
    assert_eq!(desk.look().len(), MAX_SPEC_LOOKS);
    assert_eq!(desk.look(), [""; 0], "one look at a time");
    desk.found(vec![found(Vec::new()); MAX_SPEC_LOOKS]);
    assert_eq!(desk.look().len(), 7);
    desk.found(vec![found(Vec::new()); 7]);
    assert_eq!(desk.look(), [""; 0]);
    assert!(desk.writer.next_deadline().is_some_and(|due| due > desk.now), "nothing spins");
}

#[test]
fn what_was_not_heard_is_looked_for_at_once_and_once_more_where_a_sweep_was_past_it() {
    let mut desk = Desk::with_specs(NEVER);
    for slot in 0..=MAX_SPEC_LOOKS as u32 {
        desk.enter(&format!("n{slot}"), slot, 1, &[]);
    }
    let looks = |desk: &mut Desk| {
        let mut pages = Vec::new();
        loop {
            let looks = desk.look().len();
            if looks == 0 {
                return pages;
            }
            pages.push(looks);
            if pages.len() == 1 {
                desk.writer.handle_specs_poke(None, desk.now);
            }
            desk.found(vec![found(Vec::new()); looks]);
        }
    };
    looks(&mut desk);
    assert_eq!(looks(&mut desk), [0; 0], "at rest");
    desk.writer.handle_specs_poke(None, desk.now);
    assert_eq!(looks(&mut desk), [MAX_SPEC_LOOKS, 1, MAX_SPEC_LOOKS, 1], "the second began during the first");
}

#[test]
fn a_session_is_given_no_more_than_it_takes_and_goes_on_when_something_has_left() {
    let mut desk = Desk::with_specs(NEVER);
    desk.enter_a();
    desk.writer.handle_specs_poke(Some(&node("a")), desk.now);
    let Some(Job::SpecsDue { looks, .. }) = desk.specs_job() else { panic!("no look") };
    let room = looks[0].room;
    let two = vec![spec("x", 1, MAX_SPEC_BYTES), spec("y", 1, MAX_SPEC_BYTES)];
    desk.outcome(Outcome::SpecsDue(Ok(vec![SpecsFound { specs: two, more: true }])));
    assert_eq!(desk.news(), ["1: specs x 1, y 1"]);
    assert!(room <= 2 * MAX_SPEC_BYTES);
    assert_eq!(desk.look(), [""; 0], "no room is left");
    assert!(desk.writer.next_deadline().is_some_and(|due| due > desk.now), "and nothing spins for it");
    desk.sent(1, MAX_SPEC_BYTES);
    assert_eq!(desk.look(), ["a has [x 1, y 1]"], "without any answer of the node");
}

#[test]
fn what_is_answered_while_the_look_of_a_hello_goes_on_is_not_sent_again() {
    let mut desk = Desk::with_specs(NEVER);
    desk.enter("a", 1, 1, &[]);
    assert_eq!(desk.look(), ["a has [], by its Hello"]);
    let first = SpecsFound { specs: vec![spec("x", 1, 5), spec("y", 1, 5)], more: true };
    assert_eq!(desk.found(vec![first]), ["1: specs x 1, y 1"]);
    desk.post(answer(1, "x", 1));
    assert!(matches!(desk.specs_job(), Some(Job::SpecsApplied { .. })));
    desk.outcome(Outcome::SpecsApplied(Ok(vec![SpecAppliedOutcome::Stored])));
    assert_eq!(desk.news(), ["1: stored"]);
    assert_eq!(desk.look(), ["a has [x 1, y 1], by its Hello"]);
    desk.found(vec![found(vec![spec("z", 1, 5)])]);
    desk.writer.handle_specs_poke(Some(&node("a")), desk.now);
    assert_eq!(desk.look(), ["a has [y 1, z 1]"], "the next look goes by what has no answer");
}

#[test]
fn nodes_that_take_nothing_fill_the_room_of_all_only_for_a_while() {
    let mut desk = Desk::with_specs(NEVER);
    let each = MAX_SPEC_BYTES + SPEC_HEAD_BYTES;
    let full = MAX_SPEC_BYTES_ON_THE_WAY.div_ceil(each) as u32;
    for slot in 0..full {
        desk.enter(&format!("n{slot}"), slot, 1, &[]);
        assert_eq!(desk.look().len(), 1, "there is room for the {slot}th");
        desk.found(vec![found(vec![spec("x", 1, MAX_SPEC_BYTES)])]);
    }
    desk.enter("a", full, 1, &[]);
    assert_eq!(desk.look(), [""; 0], "all the room is taken");
    assert!(desk.writer.next_deadline().is_some_and(|due| due > desk.now), "nothing spins");
    desk.at(9_000);
    let jobs = desk.queues();
    assert!(jobs.contains(&Queue::Lease) && !jobs.contains(&Queue::Specs), "{jobs:?}");
    desk.outcome(held(1));
    desk.at(10_000);
    assert_eq!(desk.look(), ["a has [], by its Hello"]);
    desk.found(vec![found(vec![spec("x", 1, 5)])]);
    for slot in 0..=full {
        desk.post(ToWriter::Closed { key: key(slot), node: node("n"), reason: "peer-gone" });
    }
    desk.enter("b", full + 1, 1, &[]);
    let Some(Job::SpecsDue { at_most_bytes, .. }) = desk.specs_job() else { panic!("no look") };
    assert_eq!(
        at_most_bytes,
        crate::limits::MAX_SPEC_BYTES_PER_PASS,
        "a session that ends gives its room back"
    );
}

#[test]
fn a_look_that_is_refused_is_narrowed_to_the_session_that_is_to_blame() {
    let mut desk = Desk::with_specs(NEVER);
    for slot in 0..9 {
        desk.enter(&format!("n{slot}"), slot, 1, &[]);
        if slot == 0 {
            // It keeps the queue busy, so that the others wait for one look.
            assert_eq!(desk.look().len(), 1);
        }
    }
    desk.found(vec![found(Vec::new())]);
    let (mut looked, mut refusals) = (Vec::new(), 0);
    loop {
        let looks = desk.look();
        if looks.is_empty() {
            break;
        }
        if looks.iter().any(|look| look.starts_with("n5 ")) {
            refusals += 1;
            assert!(refusals < 10, "it is looked at for ever");
            desk.outcome(Outcome::SpecsDue(Err(StoreError::Rejected("a broken page".into()))));
        } else {
            desk.found(vec![found(Vec::new()); looks.len()]);
            looked.extend(looks);
        }
    }
    assert_eq!(looked.len(), 7, "all but n5, each once: {looked:?}");
}

#[test]
fn a_database_that_is_away_is_asked_again_after_the_back_off() {
    let mut desk = Desk::with_specs(NEVER);
    desk.enter("a", 1, 1, &[]);
    assert_eq!(desk.look().len(), 1);
    desk.outcome(Outcome::SpecsDue(Err(away())));
    assert_eq!(desk.look(), [""; 0]);
    assert_eq!(desk.writer.queue_health(Queue::Specs).consecutive_failures, 1);
    desk.at(50);
    assert_eq!(desk.look(), ["a has [], by its Hello"]);
}

#[test]
fn a_superseded_session_gets_nothing_of_a_look_that_was_for_it() {
    let mut desk = Desk::with_specs(NEVER);
    desk.enter("a", 1, 1, &[]);
    assert_eq!(desk.look().len(), 1);
    desk.post(ToWriter::Hello(Box::new(hello("a", 2, &[]))));
    assert!(matches!(desk.job(), Some(Job::Hellos { .. })));
    desk.outcome(granted(&[grant(2)]));
    assert_eq!(desk.news(), ["1: close, superseded", "2: granted 2"]);
    assert_eq!(desk.found(vec![found(vec![spec("x", 1, 5)])]), [""; 0]);
    assert_eq!(desk.look(), ["a has [], by its Hello"]);
    assert_eq!(desk.found(vec![found(vec![spec("x", 1, 5)])]), ["2: specs x 1"]);
}

#[test]
fn each_outcome_has_its_answer_and_looks_and_answers_take_turns() {
    let mut desk = Desk::with_specs(NEVER);
    desk.enter_a();
    for (slot, name) in [(1, "x"), (2, "y"), (3, "z"), (4, "x")] {
        desk.post(answer(slot, name, 7));
    }
    desk.writer.handle_specs_poke(Some(&node("a")), desk.now);
    let Some(Job::SpecsApplied { entries }) = desk.specs_job() else { panic!("answers go first") };
    assert_eq!(entries.len(), 3, "a spec of a node stands once");
    assert!(desk.specs_job().is_none(), "one job at a time");
    desk.outcome(Outcome::SpecsApplied(Ok(vec![
        SpecAppliedOutcome::Stored,
        SpecAppliedOutcome::UnknownSpec,
        SpecAppliedOutcome::UnknownGeneration { current: Generation(3) },
    ])));
    let unknown = format!("not stored, {:?}", RejectCode::UnknownSpec);
    assert_eq!(desk.news(), ["1: stored".to_owned(), format!("2: {unknown}"), format!("3: {unknown}")]);
    assert_eq!(desk.look(), ["a has []"], "the look has its turn before the next answers");
    desk.found(vec![found(Vec::new())]);
    assert!(matches!(desk.specs_job(), Some(Job::SpecsApplied { .. })));
    desk.outcome(Outcome::SpecsApplied(Err(StoreError::Rejected("bad".into()))));
    assert_eq!(desk.news(), [format!("4: not stored, {:?}", RejectCode::NotStorable)]);
    assert!(desk.bytes_are_balanced());
    let counts = desk.writer.counts();
    assert_eq!((counts.spec_answers_stored, counts.spec_answers_refused), (1, 3));
}

#[test]
fn a_fence_forgets_all_and_a_stop_waits_for_answers() {
    let mut desk = Desk::with_specs(NEVER);
    desk.enter("a", 1, 1, &[]);
    assert_eq!(desk.look().len(), 1);
    desk.post(answer(1, "x", 1));
    desk.at(10_000);
    assert!(desk.news().iter().any(|line| line.contains("fenced")));
    assert_eq!(desk.found(vec![found(vec![spec("x", 1, 5)])]), [""; 0], "its session is gone");
    assert!(desk.bytes_are_balanced());

    let mut desk = Desk::with_specs(NEVER);
    desk.writer.handle_stop(desk.now);
    desk.post(answer(1, "x", 1));
    for shard in [0, 1] {
        desk.post(ToWriter::ShardStopped { shard: ShardId(shard) });
    }
    assert!(matches!(desk.specs_job(), Some(Job::SpecsApplied { .. })));
    assert!(desk.queues().is_empty(), "the lease is not released yet");
    desk.outcome(Outcome::SpecsApplied(Ok(vec![SpecAppliedOutcome::Stored])));
    assert_eq!(desk.queues(), [Queue::Lease]);
}

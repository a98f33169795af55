//! Stories of the whole machine, told with jobs and outcomes by hand.
//!
//! A `Desk` holds the writer and plays its store and its shards: a story takes the jobs, answers them in
//! the order it likes, and reads what the shards are told. Sessions that supersede, fences, credit,
//! unknown outcomes, refused entries and the stop are told here; orders that nobody thought of are in
//! `sequences`, SQL is in `db-writer/tests/`.

mod asks;
mod drain;
mod events;
mod hellos;
mod inventory;
mod specs;
mod statuses;
mod updates;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::testing::{at, away, command_id, hello, key, lane, node};
use super::*;
use crate::command::CommandState;
use crate::frame::{CancelCommand, Command, CommandUpdate, RejectCode};
use crate::ids::{Attempt, Credits, EventSeq, FrameRef, LaneSeq, SectionName};
use crate::store::{
    Claim, HelloGrant, HelloOutcome, InFlight, Job, LaneRead, LaneState, LaneWant, LeaseJob, LeaseOutcome,
    PresenceOutcome, Queue, RevocationsFound, Routed, SpecsFound, StoreError, UpdateOutcome, WantedCancel,
};
use crate::time::UnixMillis;

/// The writer, with a store that answers what the story says.
struct Desk {
    writer: Writer,
    now: Moment,
    posted_bytes: usize,
    released_bytes: usize,
    /// Whether the story is about specs; else no node has any.
    has_specs: bool,
}

pub(super) fn config() -> WriterConfig {
    WriterConfig {
        gateway: GatewayId::new("gw").expect("a gateway id"),
        owner: "boot-1/pid-1".into(),
        dead_owner_prefix: None,
        row: GatewayRow {
            region: "r".into(),
            internal_url: String::new(),
            version: "1".into(),
            max_streams: 10,
        },
        shards: 2,
        // A read-ahead that no story meets but the one about it.
        limits: Arc::new(Limits { session_outbox_bytes: 4 << 30, ..Limits::default() }),
        lease_ttl: Duration::from_secs(20),
        lease_renew_every: Duration::from_secs(5),
        poll_every: Duration::from_secs(1),
        // Sweeps have stories of their own.
        sweep_every: Duration::from_secs(24 * 3600),
        spec_sweep_every: Duration::from_secs(24 * 3600),
        revocation_poll: Duration::from_secs(24 * 3600),
        revocation_scan: Duration::from_secs(24 * 3600),
        hooked: HookedKinds::default(),
    }
}

impl Desk {
    fn new() -> Self {
        Self::with(config())
    }

    fn with(config: WriterConfig) -> Self {
        Self {
            writer: Writer::new(config, at(0)),
            now: at(0),
            posted_bytes: 0,
            released_bytes: 0,
            has_specs: false,
        }
    }

    /// A writer that holds the lease since 0 ms; what it told the shards is read.
    fn serving() -> Self {
        Self::new().begin()
    }

    fn begin(self) -> Self {
        let mut desk = self;
        assert!(matches!(desk.job(), Some(Job::Lease(LeaseJob::Acquire { .. }))));
        desk.outcome(held(1));
        assert_eq!(desk.news(), ["shard 0: serving true", "shard 1: serving true"]);
        desk
    }

    fn job(&mut self) -> Option<Job> {
        loop {
            match self.writer.poll_job(self.now)? {
                Job::SpecsDue { looks, .. } if !self.has_specs => {
                    let found = vec![SpecsFound::default(); looks.len()];
                    self.outcome(Outcome::SpecsDue(Ok(found)));
                }
                // Revocations have stories of their own, in their file.
                Job::Revocations(_) => {
                    let nothing = RevocationsFound {
                        certificates: Vec::new(),
                        more_changes: None,
                        more_after: None,
                        now_micros: 0,
                    };
                    self.outcome(Outcome::Revocations(Ok(nothing)));
                }
                job => return Some(job),
            }
        }
    }

    fn queues(&mut self) -> Vec<Queue> {
        std::iter::from_fn(|| self.job()).map(|job| job.queue()).collect()
    }

    fn outcome(&mut self, outcome: Outcome) {
        self.writer.handle_outcome(outcome, self.now, self.now);
    }

    fn post(&mut self, message: ToWriter) {
        self.posted_bytes += message.weight_bytes();
        self.writer.handle_message(message, self.now);
    }

    fn at(&mut self, millis: u64) {
        self.now = at(millis);
        self.writer.handle_time(self.now);
    }

    fn news(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.writer.poll_to_shard()).map(describe).collect()
    }

    /// A live session of `name` in `slot`.
    fn enter(&mut self, name: &str, slot: u32, epoch: u64, lanes: &[(&str, u32)]) {
        self.post(ToWriter::Hello(Box::new(hello(name, slot, lanes))));
        assert!(matches!(self.job(), Some(Job::Hellos { .. })));
        self.outcome(granted(&[grant(epoch)]));
        assert_eq!(self.news(), [format!("{slot}: granted {epoch}")]);
    }

    fn poke(&mut self, name: &str) {
        self.writer.handle_poke(Some(&node(name)), self.now);
    }

    fn pass(&mut self) -> Vec<LaneWant> {
        loop {
            match self.job() {
                Some(Job::Dispatch { wants, .. }) => return wants,
                Some(Job::Cancels { .. }) => self.outcome(Outcome::Cancels(Ok(Vec::new()))),
                other => panic!("no pass but {other:?}"),
            }
        }
    }

    fn has_no_pass(&mut self) -> bool {
        !self.queues().contains(&Queue::Dispatch)
    }

    fn bytes_are_balanced(&mut self) -> bool {
        self.released_bytes += self.writer.poll_released_bytes();
        self.released_bytes == self.posted_bytes
    }
}

fn describe((shard, message): (ShardId, ToShard)) -> String {
    match message {
        ToShard::Serving(serving) => format!("shard {shard}: serving {serving}"),
        ToShard::CloseAll(reason) => format!("shard {shard}: close all, {}", reason.label()),
        ToShard::Drain(order) => format!("shard {shard}: drain within {:?}", order.within),
        ToShard::Revoked { added, .. } => format!("shard {shard}: {} revoked", added.len()),
        ToShard::Cut(_) => format!("shard {shard}: cut"),
        ToShard::Stop => format!("shard {shard}: stop"),
        ToShard::Relayed(_) | ToShard::Vitals(_) | ToShard::Tunnel(_) => {
            unreachable!("these are not the writer's")
        }
        ToShard::Session { key, news } => {
            assert_eq!(key.shard, shard);
            format!("{}: {}", key.slot, describe_news(news))
        }
    }
}

fn describe_news(news: SessionNews) -> String {
    match news {
        SessionNews::Granted(granted) => format!("granted {}", granted.epoch),
        SessionNews::Stored { state: Some(state) } => format!("stored {state}"),
        SessionNews::Stored { state: None } => "stored".to_owned(),
        SessionNews::EventsStored { acked, refused, .. } => match refused {
            None => format!("events up to {acked}"),
            Some((seq, refused)) => format!("events up to {acked}, {seq} is {:?}", refused.code),
        },
        SessionNews::NotStored { code, .. } => format!("not stored, {code:?}"),
        SessionNews::SectionStored { frame_ref } => format!("section {frame_ref} stored"),
        SessionNews::SectionNotStored { frame_ref, .. } => format!("section {frame_ref} not stored"),
        SessionNews::InventoryWanted(wanted) => {
            let names: Vec<&str> = wanted.iter().map(SectionName::as_str).collect();
            format!("wanted: {}", names.join(" "))
        }
        SessionNews::InventoryNotLooked => "not looked".to_owned(),
        SessionNews::Commands(commands) => {
            let ids: Vec<String> =
                commands.iter().map(|command| command.id.0.as_u128().to_string()).collect();
            format!("commands {}", ids.join(" "))
        }
        SessionNews::Specs(specs) => {
            let specs: Vec<String> =
                specs.iter().map(|spec| format!("{} {}", spec.name, spec.generation)).collect();
            format!("specs {}", specs.join(", "))
        }
        SessionNews::Cancel(cancel) => format!("cancel {}", cancel.id.0.as_u128()),
        SessionNews::Close(reason) => format!("close, {}", reason.label()),
    }
}

fn held(epoch: u64) -> Outcome {
    Outcome::Lease(Ok(LeaseOutcome::Held { epoch: LeaseEpoch(epoch) }))
}

fn grant(epoch: u64) -> HelloGrant {
    HelloGrant {
        epoch: SessionEpoch(epoch),
        server_time: UnixMillis(0),
        journal_acked: EventSeq(0),
        replays: Vec::new(),
        in_flight: Vec::new(),
        cancels: Vec::new(),
        cursors: vec![LaneSeq(0); 16],
        has_pending: false,
        inventory_wanted: Vec::new(),
        is_recorded: true,
    }
}

fn granted(grants: &[HelloGrant]) -> Outcome {
    let grants = grants.iter().cloned().map(|grant| HelloOutcome::Granted(Box::new(grant)));
    Outcome::Hellos(Ok(Routed::Committed(grants.collect())))
}

fn command(number: u128, lane_name: &str, epoch: u64) -> Command {
    Command {
        id: command_id(number),
        attempt: Attempt(1),
        lane: lane(lane_name),
        seq: LaneSeq(number as u64),
        kind: "echo".into(),
        payload: Bytes::new(),
        not_after: None,
        session_epoch: SessionEpoch(epoch),
    }
}

fn claims(name: &str, epoch: u64, numbers: impl IntoIterator<Item = u128>) -> Outcome {
    let claim = |number| Claim {
        node: node(name),
        command: command(number, "main", epoch),
        moves_cursor: true,
        floor: LaneSeq(0),
        waited: Duration::ZERO,
    };
    Outcome::Dispatch(Ok(Routed::Committed(numbers.into_iter().map(claim).collect())))
}

fn update(name: &str, slot: u32, number: u128, state: CommandState) -> ToWriter {
    let update = CommandUpdate {
        frame_ref: FrameRef(1),
        id: command_id(number),
        attempt: Attempt(1),
        state,
        progress: None,
        result: Bytes::from_static(b"result"),
        error: None,
        refusal: None,
    };
    ToWriter::Update(Box::new(UpdateRequest { key: key(slot), node: node(name), update }))
}

fn stored(states: &[CommandState]) -> Outcome {
    let outcome =
        |state: &CommandState| UpdateOutcome::Stored { state: *state, lane: lane("main"), conflict: false };
    Outcome::Updates(Ok(states.iter().map(outcome).collect()))
}

fn closed(name: &str, slot: u32) -> ToWriter {
    ToWriter::Closed { key: key(slot), node: node(name), reason: "peer-gone" }
}

fn free(wants: &[LaneWant]) -> Vec<u32> {
    wants.iter().map(|want| want.free.0).collect()
}

// -- sessions ------------------------------------------------------------------------------------

#[test]
fn a_newer_session_of_a_node_closes_the_older_before_it_is_granted() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 1)]);
    desk.post(ToWriter::Hello(Box::new(hello("a", 2, &[("main", 1)]))));
    assert!(matches!(desk.job(), Some(Job::Hellos { .. })));
    desk.outcome(granted(&[grant(2)]));
    assert_eq!(desk.news(), ["1: close, superseded", "2: granted 2"]);
    desk.post(closed("a", 1));
    assert_eq!(desk.queues(), [], "the end of a superseded session is nobody's news");
    desk.post(closed("a", 2));
    let Some(Job::Presence { entries, .. }) = desk.job() else { panic!("no presence job") };
    let gone = PresenceEntry::Disconnected { node: node("a"), epoch: SessionEpoch(2), reason: "peer-gone" };
    assert_eq!(entries, [gone]);
    assert!(desk.bytes_are_balanced());
}

#[test]
fn a_session_that_closed_while_its_hello_was_in_flight_never_enters() {
    let mut desk = Desk::serving();
    desk.post(ToWriter::Hello(Box::new(hello("a", 1, &[("main", 1)]))));
    assert!(matches!(desk.job(), Some(Job::Hellos { .. })));
    desk.post(closed("a", 1));
    desk.outcome(granted(&[grant(5)]));
    assert_eq!(desk.news(), [] as [&str; 0]);
    assert_eq!(desk.writer.sessions(), 0);
    let Some(Job::Presence { entries, .. }) = desk.job() else { panic!("no presence job") };
    let gone = PresenceEntry::Disconnected { node: node("a"), epoch: SessionEpoch(5), reason: "unwelcomed" };
    assert_eq!(entries, [gone]);
    assert!(desk.bytes_are_balanced());
}

#[test]
fn a_grant_for_a_session_that_closed_ends_the_older_session_that_it_fenced() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 1)]);
    desk.post(ToWriter::Hello(Box::new(hello("a", 2, &[("main", 1)]))));
    assert_eq!(desk.queues(), [Queue::Hellos]);
    desk.post(closed("a", 2));
    desk.outcome(granted(&[grant(2)]));
    assert_eq!(desk.news(), ["1: close, superseded"]);
    assert_eq!(desk.writer.sessions(), 0);
}

#[test]
fn a_liveness_write_that_no_longer_matches_ends_the_session() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[]);
    desk.post(ToWriter::Alive { key: key(1), node: node("a"), epoch: SessionEpoch(1) });
    assert_eq!(desk.queues(), [], "liveness waits for the poll");
    desk.at(1_000);
    assert_eq!(desk.queues(), [Queue::Presence, Queue::Feed]);
    desk.outcome(Outcome::Presence(Ok(vec![PresenceOutcome::Superseded])));
    assert_eq!(desk.news(), ["1: close, superseded"]);
    desk.post(closed("a", 1));
    assert_eq!(desk.queues(), [], "the row belongs to another session");
}

#[test]
fn a_hello_that_can_not_be_stored_closes_its_session_alone() {
    let mut desk = Desk::serving();
    for (name, slot) in [("a", 1), ("b", 2)] {
        desk.post(ToWriter::Hello(Box::new(hello(name, slot, &[]))));
    }
    let rejected = || Outcome::Hellos(Err(StoreError::Rejected("bad text".into())));
    assert_eq!(desk.queues(), [Queue::Hellos]);
    desk.outcome(rejected());
    assert_eq!(desk.queues(), [Queue::Hellos]);
    desk.outcome(rejected());
    assert_eq!(desk.queues(), [Queue::Hellos]);
    desk.outcome(granted(&[grant(1)]));
    assert_eq!(desk.news(), ["1: close, protocol", "2: granted 1"]);
    assert!(desk.bytes_are_balanced());
}

// -- the fence -----------------------------------------------------------------------------------

#[test]
fn a_fence_forgets_everything_and_no_late_outcome_leaks() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 4)]);
    desk.enter("b", 2, 1, &[("main", 4)]);
    desk.poke("a");
    assert_eq!(desk.pass().len(), 1);
    desk.post(update("a", 1, 1, CommandState::Running));
    desk.post(ToWriter::Hello(Box::new(hello("c", 3, &[]))));
    assert_eq!(desk.queues(), [Queue::Hellos, Queue::Updates, Queue::Feed]);
    desk.post(update("b", 2, 2, CommandState::Running));
    desk.post(ToWriter::Hello(Box::new(hello("d", 4, &[]))));

    desk.at(5_000);
    let Some(Job::Lease(LeaseJob::Renew { .. })) = desk.job() else { panic!("no renewal") };
    desk.at(10_000);
    assert_eq!(
        desk.news(),
        [
            "shard 0: serving false",
            "shard 0: close all, fenced",
            "shard 1: serving false",
            "shard 1: close all, fenced"
        ]
    );
    assert_eq!((desk.writer.phase(), desk.writer.sessions()), (Phase::Waiting, 0));
    for (name, slot) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
        desk.post(closed(name, slot));
    }

    // The renewal from before the fence comes back good; so does everything else.
    desk.writer.handle_outcome(held(1), at(5_000), desk.now);
    assert_eq!(desk.writer.phase(), Phase::Waiting);
    desk.outcome(claims("a", 1, [1, 2]));
    desk.outcome(stored(&[CommandState::Running]));
    desk.outcome(granted(&[grant(1)]));
    let cancel = CancelCommand { id: command_id(1), reason: "x".into() };
    let wanted = WantedCancel { node: node("a"), epoch: SessionEpoch(1), cancel };
    desk.outcome(Outcome::Cancels(Ok(vec![wanted])));
    assert_eq!(desk.news(), [] as [&str; 0]);
    assert!(desk.bytes_are_balanced());

    let jobs: Vec<Job> = std::iter::from_fn(|| desk.job()).collect();
    assert!(matches!(jobs[0], Job::Lease(LeaseJob::Acquire { .. })));
    let Job::Presence { entries, .. } = &jobs[1] else { panic!("no presence job") };
    let nodes: Vec<&str> = entries.iter().map(|entry| entry.node().as_str()).collect();
    assert_eq!(nodes, ["b", "a", "c"], "disconnects outlive the fence, in order of sessions");
    assert_eq!(jobs.len(), 2);
}

#[test]
fn a_dispatch_that_finds_the_lease_gone_fences_at_once() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 4)]);
    desk.poke("a");
    desk.pass();
    desk.outcome(Outcome::Dispatch(Ok(Routed::LeaseLost)));
    assert_eq!(desk.writer.phase(), Phase::Waiting);
    assert_eq!(desk.writer.counts().fences, 1);
    assert_eq!(desk.queues(), [Queue::Lease, Queue::Presence]);
}

#[test]
fn a_routing_job_from_before_the_fence_can_not_end_the_new_lease() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 4)]);
    desk.poke("a");
    desk.pass();
    desk.post(ToWriter::Hello(Box::new(hello("b", 2, &[]))));
    assert_eq!(desk.queues(), [Queue::Hellos, Queue::Feed]);
    desk.at(10_000);
    assert!(desk.queues().contains(&Queue::Lease));
    desk.outcome(held(2));
    assert_eq!(desk.writer.phase(), Phase::Serving);
    desk.outcome(Outcome::Dispatch(Ok(Routed::LeaseLost)));
    desk.outcome(Outcome::Hellos(Ok(Routed::LeaseLost)));
    assert_eq!((desk.writer.phase(), desk.writer.counts().fences), (Phase::Serving, 1));
    assert!(desk.bytes_are_balanced());
}

#[test]
fn what_slips_in_while_no_lease_is_held_is_closed_and_its_bytes_released() {
    let mut desk = Desk::new();
    desk.post(ToWriter::Hello(Box::new(hello("a", 1, &[]))));
    desk.post(update("a", 1, 1, CommandState::Running));
    assert_eq!(desk.news(), ["1: close, fenced"]);
    assert!(desk.bytes_are_balanced());
    assert_eq!(desk.queues(), [Queue::Lease]);
}

// -- dispatch and credit -------------------------------------------------------------------------

#[test]
fn spent_credit_stops_dispatch_until_a_durable_end_gives_it_back() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 2)]);
    desk.poke("a");
    assert_eq!(free(&desk.pass()), [2]);
    desk.outcome(claims("a", 1, [1, 2]));
    assert_eq!(desk.news(), ["1: commands 1 2"]);
    desk.poke("a");
    assert!(desk.has_no_pass());
    desk.post(update("a", 1, 1, CommandState::Running));
    assert!(desk.has_no_pass());
    desk.outcome(stored(&[CommandState::Running]));
    assert!(desk.has_no_pass(), "a running command keeps its credit");
    desk.post(update("a", 1, 1, CommandState::Succeeded));
    assert!(desk.has_no_pass(), "not before it is durable");
    desk.outcome(stored(&[CommandState::Succeeded]));
    assert_eq!(desk.news(), ["1: stored running", "1: stored succeeded"]);
    let wants = desk.pass();
    assert_eq!((wants[0].free, wants[0].in_flight, wants[0].cursor), (Credits(1), Credits(1), LaneSeq(2)));
}

#[test]
fn what_a_hello_found_in_flight_takes_credit() {
    let mut desk = Desk::serving();
    desk.post(ToWriter::Hello(Box::new(hello("a", 1, &[("main", 3)]))));
    assert!(matches!(desk.job(), Some(Job::Hellos { .. })));
    let in_flight = |number| InFlight { lane: lane("main"), id: command_id(number), attempt: Attempt(1) };
    let found = HelloGrant { in_flight: vec![in_flight(1), in_flight(2)], has_pending: true, ..grant(1) };
    desk.outcome(granted(&[found]));
    assert_eq!(free(&desk.pass()), [1]);
}

#[test]
fn an_update_that_overtakes_a_hellos_snapshot_leaves_no_phantom_in_flight() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 1)]);
    desk.post(update("a", 1, 9, CommandState::Succeeded));
    desk.post(ToWriter::Hello(Box::new(hello("a", 2, &[("main", 1)]))));
    assert_eq!(desk.queues(), [Queue::Hellos, Queue::Updates]);
    desk.outcome(stored(&[CommandState::Succeeded]));
    let held = InFlight { lane: lane("main"), id: command_id(9), attempt: Attempt(1) };
    desk.outcome(granted(&[HelloGrant { in_flight: vec![held], has_pending: true, ..grant(2) }]));
    assert_eq!(free(&desk.pass()), [1]);
}

#[test]
fn an_attempt_that_ended_through_another_gateway_gives_its_credit_back() {
    let mut desk = Desk::serving();
    desk.post(ToWriter::Hello(Box::new(hello("a", 1, &[("main", 1)]))));
    assert!(matches!(desk.job(), Some(Job::Hellos { .. })));
    let held = InFlight { lane: lane("main"), id: command_id(9), attempt: Attempt(1) };
    desk.outcome(granted(&[HelloGrant { in_flight: vec![held], has_pending: true, ..grant(1) }]));
    assert!(desk.has_no_pass());
    // Its refusal was stored over there, so the row is pending at the second attempt by now.
    desk.post(update("a", 1, 9, CommandState::Refused));
    assert_eq!(desk.queues(), [Queue::Updates]);
    desk.outcome(Outcome::Updates(Ok(vec![UpdateOutcome::OldAttempt { current: Attempt(2) }])));
    assert_eq!(free(&desk.pass()), [1]);
}

#[test]
fn a_poke_that_overtakes_a_hellos_snapshot_is_not_lost() {
    let mut desk = Desk::serving();
    desk.post(ToWriter::Hello(Box::new(hello("a", 1, &[("main", 1)]))));
    assert_eq!(desk.queues(), [Queue::Hellos]);
    desk.poke("a");
    desk.outcome(granted(&[grant(1)]));
    assert_eq!(free(&desk.pass()), [1]);
}

#[test]
fn claims_of_a_session_that_is_gone_are_left_to_the_next_hello() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 2)]);
    desk.poke("a");
    desk.pass();
    desk.enter_anew("a", 2, 2);
    desk.outcome(claims("a", 1, [1, 2]));
    assert_eq!(desk.news(), [] as [&str; 0]);
    desk.poke("a");
    assert_eq!(free(&desk.pass()), [2], "the new session's credit is not debited");
}

#[test]
fn after_an_unknown_outcome_a_lane_is_frozen_until_it_is_read() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 3)]);
    desk.poke("a");
    desk.pass();
    desk.outcome(claims("a", 1, [1]));
    assert_eq!(desk.news(), ["1: commands 1"]);
    desk.poke("a");
    assert_eq!(free(&desk.pass()), [2]);
    desk.outcome(Outcome::Dispatch(Err(StoreError::OutcomeUnknown("cut at COMMIT".into()))));
    desk.poke("a");
    desk.at(50);
    let Some(Job::ReadLanes { lanes, .. }) = desk.job() else { panic!("the lane must be read") };
    assert_eq!(lanes.len(), 1);
    // Meanwhile the first command ends; what is read is older than that.
    desk.post(update("a", 1, 1, CommandState::Succeeded));
    assert!(desk.has_no_pass());
    desk.outcome(stored(&[CommandState::Succeeded]));
    let read = |number| command(number, "main", 1);
    let state = LaneState { is_live: true, in_flight: vec![read(1), read(2)], cursor: LaneSeq(2) };
    desk.outcome(Outcome::LanesRead(Ok(Routed::Committed(vec![state]))));
    assert_eq!(desk.news(), ["1: stored succeeded", "1: commands 2"]);
    let wants = desk.pass();
    assert_eq!((wants[0].free, wants[0].cursor), (Credits(2), LaneSeq(2)));
}

#[test]
fn what_was_refused_while_its_lane_was_read_is_not_sent_again() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 1)]);
    desk.enter("b", 2, 1, &[("main", 1)]);
    desk.poke("a");
    desk.pass();
    desk.outcome(claims("a", 1, [1]));
    assert_eq!(desk.news(), ["1: commands 1"]);
    desk.poke("b");
    desk.pass();
    desk.outcome(Outcome::Dispatch(Err(StoreError::OutcomeUnknown("the server crashed".into()))));
    desk.at(50);
    let Some(Job::ReadLanes { lanes, .. }) = desk.job() else { panic!("the lanes must be read") };
    // The first attempt is refused, to be tried again; what is read is older than that.
    desk.post(update("a", 1, 1, CommandState::Refused));
    assert!(desk.has_no_pass());
    desk.outcome(stored(&[CommandState::Pending]));
    let of_a = LaneState { is_live: true, in_flight: vec![command(1, "main", 1)], cursor: LaneSeq(1) };
    let of_b = LaneState { is_live: true, in_flight: Vec::new(), cursor: LaneSeq(0) };
    let is_a = |lane: &LaneRead| lane.node == node("a");
    let states = lanes.iter().map(|lane| if is_a(lane) { of_a.clone() } else { of_b.clone() }).collect();
    desk.outcome(Outcome::LanesRead(Ok(Routed::Committed(states))));
    assert_eq!(desk.news(), ["1: stored pending"], "that attempt is over");
    assert!(desk.pass().iter().all(|want| want.free == Credits(1)), "and takes no credit");
}

#[test]
fn what_was_claimed_for_a_session_elsewhere_is_not_sent_to_the_one_that_lost_its_node() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 2)]);
    desk.poke("a");
    desk.pass();
    desk.outcome(Outcome::Dispatch(Err(StoreError::OutcomeUnknown("cut at COMMIT".into()))));
    desk.at(50);
    assert!(matches!(desk.job(), Some(Job::ReadLanes { .. })));
    // The node has moved: another gateway has claimed a command for its session there.
    let state = LaneState { is_live: false, in_flight: vec![command(1, "main", 1)], cursor: LaneSeq(1) };
    desk.outcome(Outcome::LanesRead(Ok(Routed::Committed(vec![state]))));
    assert_eq!(desk.news(), ["1: close, superseded"]);
    assert!(desk.has_no_pass());
}

#[test]
fn what_a_node_says_of_anothers_command_holds_up_no_claim_of_it() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 1)]);
    desk.enter("b", 2, 1, &[("main", 1)]);
    desk.poke("a");
    desk.pass();
    // While the pass is out, another node reports on the command that it claims.
    desk.post(update("b", 2, 1, CommandState::Succeeded));
    assert!(desk.has_no_pass());
    desk.outcome(Outcome::Updates(Ok(vec![UpdateOutcome::UnknownCommand])));
    desk.outcome(claims("a", 1, [1]));
    assert_eq!(desk.news().last().map(String::as_str), Some("1: commands 1"));
}

#[test]
fn after_a_lost_connection_all_that_was_sent_is_asserted_before_anything_is_dispatched() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 3)]);
    desk.enter("b", 2, 1, &[("main", 3)]);
    desk.enter("c", 3, 1, &[("main", 3)]);
    desk.poke("a");
    desk.pass();
    desk.outcome(claims("a", 1, [1, 2]));
    assert_eq!(desk.news(), ["1: commands 1 2"]);
    desk.poke("b");
    desk.pass();
    // The pass was about the second node's lane; the crash may have lost marks of the first's.
    desk.outcome(Outcome::Dispatch(Err(StoreError::OutcomeUnknown("the server crashed".into()))));
    desk.poke("c");
    desk.at(50);
    let Some(Job::ReadLanes { lanes, .. }) = desk.job() else { panic!("the lanes must be read first") };
    let sent = |lane: &LaneRead| (lane.node.as_str().to_owned(), lane.sent.len());
    let mut asserted: Vec<_> = lanes.iter().map(sent).collect();
    asserted.sort();
    assert_eq!(asserted, [("a".to_owned(), 2), ("b".to_owned(), 0)]);
    assert!(desk.has_no_pass(), "not before the reading's outcome");
    // It fails too, and goes again whole.
    desk.outcome(Outcome::LanesRead(Err(away())));
    desk.at(500);
    let Some(Job::ReadLanes { lanes: again, .. }) = desk.job() else {
        panic!("the lanes must be read first")
    };
    assert_eq!(again.len(), lanes.len());
    let state = |lane: &LaneRead| LaneState {
        is_live: true,
        in_flight: lane.sent.iter().map(|(id, _)| command(id.0.as_u128(), "main", 1)).collect(),
        cursor: LaneSeq(0),
    };
    desk.outcome(Outcome::LanesRead(Ok(Routed::Committed(again.iter().map(state).collect()))));
    assert_eq!(desk.news(), [] as [&str; 0], "what was sent is not sent again");
    assert_eq!(desk.pass().len(), 3);
}

#[test]
fn credit_whose_end_was_stored_elsewhere_comes_back_by_reading_the_lane() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 1)]);
    desk.poke("a");
    desk.pass();
    desk.outcome(claims("a", 1, [1]));
    desk.outcome(Outcome::Cancels(Ok(Vec::new())));
    let mut read = None;
    for second in 1..=70 {
        desk.at(second * 1_000);
        while let Some(job) = desk.job() {
            match job {
                Job::Lease(_) => desk.outcome(held(1)),
                Job::Cancels { .. } => desk.outcome(Outcome::Cancels(Ok(Vec::new()))),
                Job::ReadLanes { .. } => read = read.or(Some(second)),
                other => panic!("the lane has no credit, but {other:?}"),
            }
        }
    }
    assert_eq!(read, Some(60));
    let empty = LaneState { is_live: true, in_flight: Vec::new(), cursor: LaneSeq(1) };
    desk.outcome(Outcome::LanesRead(Ok(Routed::Committed(vec![empty]))));
    assert_eq!(free(&desk.pass()), [1]);
}

#[test]
fn a_pass_that_did_not_commit_asks_for_the_same_lanes_again() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 3)]);
    desk.enter("b", 2, 1, &[("main", 3)]);
    desk.poke("a");
    desk.poke("b");
    let first = desk.pass();
    desk.outcome(Outcome::Dispatch(Err(away())));
    assert!(desk.has_no_pass(), "the queue backs off");
    assert_eq!(desk.writer.queue_health(Queue::Dispatch).consecutive_failures, 1);
    desk.at(50);
    assert_eq!(desk.pass(), first);
}

#[test]
fn a_lane_that_makes_a_pass_fail_is_found_and_the_others_are_served() {
    let mut desk = Desk::serving();
    for slot in 0..9 {
        desk.enter(&format!("node-{slot}"), slot, 1, &[("main", 1)]);
    }
    (0..9).for_each(|slot| desk.poke(&format!("node-{slot}")));
    let mut served = Vec::new();
    for _ in 0..16 {
        let Some(Job::Dispatch { wants, .. }) = desk.job() else { break };
        if wants.iter().any(|want| want.node == node("node-4")) {
            desk.outcome(Outcome::Dispatch(Err(StoreError::Rejected("bad".into()))));
        } else {
            served.extend(wants.iter().map(|want| want.node.to_string()));
            desk.outcome(claims("nobody", 1, []));
        }
    }
    let expected: Vec<String> = (0..9).filter(|slot| *slot != 4).map(|slot| format!("node-{slot}")).collect();
    assert_eq!(served, expected);
    desk.poke("node-4");
    assert!(desk.has_no_pass(), "the bad lane sits out");
}

#[test]
fn a_node_with_a_thousand_rows_that_it_can_not_take_starves_nobody() {
    let mut desk = Desk::serving();
    desk.enter("blocked", 0, 1, &[("main", 1)]);
    for slot in 1..=100 {
        desk.enter(&format!("node-{slot}"), slot, 1, &[("main", 2)]);
    }
    let mut backlog = [4_u32; 101];
    let mut next = 0_u128;
    let mut passes = 0;
    desk.writer.handle_poke(None, desk.now);
    while backlog[1..].iter().any(|left| *left > 0) {
        match desk.job() {
            Some(Job::Dispatch { wants, .. }) => {
                passes += 1;
                assert!(passes < 12, "someone starves: {backlog:?}");
                let mut claimed = Vec::new();
                for want in wants.iter().filter(|want| want.node != node("blocked")) {
                    let slot: usize = want.node.as_str()["node-".len()..].parse().expect("a slot");
                    for _ in 0..want.free.0.min(backlog[slot]) {
                        next += 1;
                        backlog[slot] -= 1;
                        claimed.push((slot as u32, next));
                    }
                }
                let claim = |(slot, number): &(u32, u128)| Claim {
                    node: node(&format!("node-{slot}")),
                    command: command(*number, "main", 1),
                    moves_cursor: true,
                    floor: LaneSeq(0),
                    waited: Duration::ZERO,
                };
                let all = claimed.iter().map(claim).collect();
                desk.outcome(Outcome::Dispatch(Ok(Routed::Committed(all))));
                for (slot, number) in claimed {
                    desk.post(update(&format!("node-{slot}"), slot, number, CommandState::Succeeded));
                }
            }
            Some(Job::Updates { entries }) => {
                desk.outcome(stored(&vec![CommandState::Succeeded; entries.len()]));
            }
            Some(Job::Cancels { .. }) => {}
            other => panic!("nothing is left to do, or {other:?}: {backlog:?}"),
        }
    }
}

#[test]
fn a_poke_is_not_behind_a_poll_of_fifteen_thousand_idle_lanes() {
    let mut desk = Desk::serving();
    for slot in 0..5_000 {
        desk.post(ToWriter::Hello(Box::new(hello(
            &format!("node-{slot}"),
            slot,
            &[("x", 8), ("y", 8), ("z", 1024)],
        ))));
    }
    while let Some(Job::Hellos { entries, .. }) = desk.job() {
        desk.outcome(granted(&vec![grant(1); entries.len()]));
    }
    desk.news();
    desk.at(1_000);
    desk.pass();
    desk.poke("node-4321");
    desk.outcome(claims("nobody", 1, []));
    let wants = desk.pass();
    assert_eq!(wants[0].node, node("node-4321"));
    let mut looked_at = 0;
    desk.outcome(claims("nobody", 1, []));
    while let Some(Job::Dispatch { wants, .. }) = desk.job() {
        assert!(wants.iter().map(|want| want.free.0).sum::<u32>() <= 1_000);
        looked_at += wants.len();
        desk.outcome(claims("nobody", 1, []));
    }
    assert!(looked_at > 14_000, "every lane is looked at once a poll: {looked_at}");
    assert!(desk.has_no_pass(), "and then idle lanes cost nothing");
}

#[test]
fn a_large_lane_leaves_room_for_others_in_a_pass() {
    let mut desk = Desk::serving();
    desk.enter("greedy", 0, 1, &[("main", 1024)]);
    desk.enter("small", 1, 1, &[("main", 1)]);
    desk.poke("greedy");
    desk.poke("small");
    assert_eq!(free(&desk.pass()), [500, 1]);
}

// -- updates -------------------------------------------------------------------------------------

#[test]
fn one_update_that_can_not_be_stored_is_refused_alone_and_a_repeated_offender_is_cut() {
    let mut desk = Desk::serving();
    desk.enter("bad", 1, 1, &[]);
    desk.enter("good", 2, 1, &[]);
    let mut news = Vec::new();
    for round in 0..8 {
        desk.post(update("bad", 1, 100 + round, CommandState::Running));
        desk.post(update("good", 2, 200 + round, CommandState::Running));
        while let Some(Job::Updates { entries }) = desk.updates_job() {
            if entries.iter().any(|entry| entry.node == node("bad")) {
                desk.outcome(Outcome::Updates(Err(StoreError::Rejected("a bad result".into()))));
            } else {
                desk.outcome(stored(&vec![CommandState::Running; entries.len()]));
            }
        }
        news.extend(desk.news());
    }
    let count = |text: &str| news.iter().filter(|line| line.as_str() == text).count();
    assert_eq!(count(&format!("1: not stored, {:?}", RejectCode::NotStorable)), 8);
    assert_eq!(count("2: stored running"), 8);
    assert_eq!(count("1: close, protocol"), 1);
    assert!(desk.bytes_are_balanced());
}

#[test]
fn a_database_that_is_away_for_updates_leaves_other_queues_alone_and_answers_later() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 1)]);
    desk.post(update("a", 1, 1, CommandState::Running));
    assert_eq!(desk.queues(), [Queue::Updates]);
    desk.outcome(Outcome::Updates(Err(away())));
    assert_eq!(desk.writer.next_deadline(), Some(at(50)));
    desk.poke("a");
    assert_eq!(desk.pass().len(), 1);
    desk.at(50);
    assert!(matches!(desk.updates_job(), Some(Job::Updates { .. })));
    desk.outcome(Outcome::Updates(Err(StoreError::OutcomeUnknown("cut".into()))));
    desk.at(200);
    assert!(matches!(desk.updates_job(), Some(Job::Updates { .. })), "an update is idempotent");
    desk.outcome(stored(&[CommandState::Running]));
    assert_eq!(desk.news(), ["1: stored running"]);
    assert!(desk.bytes_are_balanced());
}

#[test]
fn shards_are_not_read_while_too_much_waits() {
    let mut desk = Desk::serving();
    let most = config().limits.to_writer_messages as u128;
    desk.post(update("a", 1, 0, CommandState::Running));
    assert_eq!(desk.queues(), [Queue::Updates]);
    for number in 1..=most {
        assert!(desk.writer.wants_messages());
        desk.post(update("a", 1, number, CommandState::Running));
    }
    assert!(!desk.writer.wants_messages());
    desk.outcome(stored(&[CommandState::Running]));
    assert_eq!(desk.queues(), [Queue::Updates]);
    assert!(desk.writer.wants_messages());
}

// -- cancellations -------------------------------------------------------------------------------

#[test]
fn a_poke_brings_a_cancellation_without_waiting_for_the_poll() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 3, &[("main", 1)]);
    desk.poke("a");
    desk.pass();
    desk.outcome(claims("a", 3, [7]));
    desk.outcome(Outcome::Cancels(Ok(Vec::new())));
    assert_eq!(desk.news(), ["1: commands 7"]);
    desk.at(300);
    desk.poke("a");
    assert_eq!(desk.queues(), [Queue::Feed]);
    let wanted = |name: &str, epoch| WantedCancel {
        node: node(name),
        epoch: SessionEpoch(epoch),
        cancel: CancelCommand { id: command_id(7), reason: "asked for".into() },
    };
    desk.outcome(Outcome::Cancels(Ok(vec![wanted("a", 3), wanted("a", 2), wanted("b", 3)])));
    assert_eq!(desk.news(), ["1: cancel 7"]);
}

// -- the stop ------------------------------------------------------------------------------------

#[test]
fn a_stop_writes_what_shards_left_then_releases_the_lease() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 1)]);
    desk.writer.handle_stop(desk.now);
    assert_eq!(desk.news(), ["shard 0: stop", "shard 1: stop"]);
    assert_eq!(desk.writer.phase(), Phase::Stopping);
    desk.post(update("a", 1, 1, CommandState::Running));
    desk.post(closed("a", 1));
    assert_eq!(desk.queues(), [Queue::Updates, Queue::Presence]);
    desk.post(ToWriter::ShardStopped { shard: ShardId(0) });
    desk.post(ToWriter::ShardStopped { shard: ShardId(1) });
    desk.outcome(stored(&[CommandState::Running]));
    assert_eq!(desk.queues(), [], "the disconnect is not written yet");
    desk.outcome(Outcome::Presence(Ok(vec![PresenceOutcome::Written])));
    assert!(matches!(desk.job(), Some(Job::Lease(LeaseJob::Release { .. }))));
    desk.outcome(Outcome::Lease(Ok(LeaseOutcome::Released)));
    assert_eq!(desk.writer.phase(), Phase::Stopped);
    assert_eq!((desk.job(), desk.writer.next_deadline()), (None, None));
    assert!(desk.bytes_are_balanced());
}

#[test]
fn a_stop_with_the_database_away_ends_all_the_same() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[]);
    desk.writer.handle_stop(desk.now);
    desk.post(closed("a", 1));
    (0..2).for_each(|shard| desk.post(ToWriter::ShardStopped { shard: ShardId(shard) }));
    let mut ends = VecDeque::new();
    while desk.writer.phase() != Phase::Stopped {
        for queue in desk.queues() {
            match queue {
                Queue::Presence => desk.outcome(Outcome::Presence(Err(away()))),
                Queue::Lease => desk.outcome(Outcome::Lease(Err(away()))),
                other => panic!("{other:?}"),
            }
        }
        let next = desk.writer.next_deadline().expect("a stop always has a deadline");
        ends.push_back(next);
        desk.now = next;
        desk.writer.handle_time(next);
    }
    assert_eq!(ends.back(), Some(&at(7_000)), "two seconds of them for the release");
    assert!(ends.len() < 20, "with a back-off: {ends:?}");
}

#[test]
fn a_stop_that_can_t_write_all_in_its_time_still_gives_the_lease_back() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 1)]);
    desk.writer.handle_stop(desk.now);
    desk.post(update("a", 1, 1, CommandState::Running));
    desk.post(closed("a", 1));
    (0..2).for_each(|shard| desk.post(ToWriter::ShardStopped { shard: ShardId(shard) }));
    // The database takes all but the update, which hangs.
    assert_eq!(desk.queues(), [Queue::Updates, Queue::Presence]);
    desk.outcome(Outcome::Presence(Ok(vec![PresenceOutcome::Written])));
    desk.at(4_999);
    assert_eq!(desk.queues(), [], "the update may come yet");
    assert_eq!(desk.writer.next_deadline(), Some(at(5_000)));
    desk.at(5_000);
    assert!(matches!(desk.job(), Some(Job::Lease(LeaseJob::Release { .. }))));
    assert_eq!(desk.writer.phase(), Phase::Stopping);
    desk.outcome(Outcome::Lease(Ok(LeaseOutcome::Released)));
    assert_eq!(desk.writer.phase(), Phase::Stopped);
}

#[test]
fn a_release_that_hangs_is_waited_for_two_seconds() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[]);
    desk.writer.handle_stop(desk.now);
    desk.post(closed("a", 1));
    (0..2).for_each(|shard| desk.post(ToWriter::ShardStopped { shard: ShardId(shard) }));
    assert_eq!(desk.queues(), [Queue::Presence]);
    desk.at(5_000);
    assert_eq!(desk.queues(), [Queue::Lease]);
    desk.at(6_999);
    assert_eq!(desk.writer.phase(), Phase::Stopping);
    desk.at(7_000);
    assert_eq!(desk.writer.phase(), Phase::Stopped);
}

#[test]
fn a_hello_granted_after_the_stop_began_is_written_as_disconnected() {
    let mut desk = Desk::serving();
    desk.post(ToWriter::Hello(Box::new(hello("a", 1, &[]))));
    assert_eq!(desk.queues(), [Queue::Hellos]);
    desk.post(ToWriter::Hello(Box::new(hello("b", 2, &[]))));
    desk.writer.handle_stop(desk.now);
    desk.post(ToWriter::Hello(Box::new(hello("c", 3, &[]))));
    desk.outcome(granted(&[grant(1)]));
    assert_eq!(desk.news(), ["shard 0: stop", "shard 1: stop", "3: close, stopping"]);
    assert_eq!(desk.queues(), [Queue::Presence]);
    assert!(desk.bytes_are_balanced());
}

impl Desk {
    /// The node's next session, while its older one is live.
    fn enter_anew(&mut self, name: &str, slot: u32, epoch: u64) {
        self.post(ToWriter::Hello(Box::new(hello(name, slot, &[("main", 2)]))));
        assert!(matches!(self.job(), Some(Job::Hellos { .. })));
        self.outcome(granted(&[grant(epoch)]));
        assert_eq!(self.news().len(), 2);
    }

    /// The next job of the updates' queue; others stay in flight.
    fn updates_job(&mut self) -> Option<Job> {
        while let Some(job) = self.job() {
            if job.queue() == Queue::Updates {
                return Some(job);
            }
            if job.queue() == Queue::Dispatch {
                self.outcome(Outcome::Dispatch(Ok(Routed::Committed(Vec::new()))));
            }
        }
        None
    }
}

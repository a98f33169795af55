//! Stories of a session, and what their tellers (and the properties) need of frames.
//!
//! Each story gives a session frames, news and times by hand and reads what it sends, posts and how it
//! ends: the Hello, Welcome's order, the one durable frame at a time, bad frames, silence, half-closes,
//! fences. Bytes and sockets are the shard's to test, orders nobody thought of the properties'.

mod certificates;
mod draining;
pub(super) mod events;
mod headway;
pub(super) mod inventory;
mod specs;
pub(super) mod statuses;
mod tunnels;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::*;
use crate::command::CommandState;
use crate::frame::{
    CancelCommand, CommandUpdate, CreditChange, Goodbye, Heartbeat, KnownCommand, LaneCapacity, Welcome,
};
use crate::ids::{Attempt, CommandId, Credits, EventSeq, LaneSeq, SessionEpoch, ShardId};
use crate::limits::{MAX_BAD_FRAMES_IN_A_ROW, MAX_LANE_CAPACITY, MAX_TEXT_BYTES};
use crate::time::UnixMillis;

pub(super) fn identity() -> Identity {
    Identity {
        node: NodeId::new("spiffe://example.org/site/a/node/1").expect("a node id"),
        site: "a".to_owned(),
        certificate_serial: "01AB".to_owned(),
    }
}

pub(super) fn hello(lanes: &[&str]) -> Hello {
    Hello {
        protocol: 1,
        features: vec!["events".to_owned()],
        boot_id: "boot-1".to_owned(),
        machine: "machine-1".to_owned(),
        software_version: "1.0".to_owned(),
        role: "worker".to_owned(),
        lanes: lanes.iter().map(|name| lane(name, 4)).collect(),
        journal: Some(JournalId::new("journal-1").expect("a journal id")),
        known_commands: Vec::new(),
        specs: Vec::new(),
        inventory: Vec::new(),
    }
}

pub(super) fn update(frame_ref: u64, state: CommandState) -> CommandUpdate {
    CommandUpdate {
        frame_ref: FrameRef(frame_ref),
        id: CommandId(Uuid::from_u128(u128::from(frame_ref))),
        attempt: Attempt(1),
        state,
        progress: None,
        result: Bytes::new(),
        error: None,
        refusal: None,
    }
}

pub(super) fn command(seq: u64) -> Command {
    Command {
        id: CommandId(Uuid::from_u128(u128::from(seq))),
        attempt: Attempt(1),
        lane: LaneName::new("default").expect("a lane name"),
        seq: LaneSeq(seq),
        kind: "exec".to_owned(),
        payload: Bytes::new(),
        not_after: None,
        session_epoch: SessionEpoch(4),
    }
}

fn lane(name: &str, capacity: u32) -> LaneCapacity {
    LaneCapacity { lane: LaneName::new(name).expect("a lane name"), capacity: Credits(capacity) }
}

fn at(millis: u64) -> Moment {
    Moment::default() + Duration::from_millis(millis)
}

fn opened_with(limits: Limits) -> Session {
    let key = SessionKey { shard: ShardId(1), slot: 2, serial: 3 };
    Session::new(key, identity(), Arc::new(limits), at(0))
}

fn opened() -> Session {
    opened_with(Limits::default())
}

fn granted() -> SessionNews {
    SessionNews::Granted(Box::new(Granted {
        epoch: SessionEpoch(4),
        server_time: UnixMillis(1_000_000),
        journal_acked: EventSeq(17),
        replays: Vec::new(),
        cancels: Vec::new(),
        inventory_wanted: Vec::new(),
    }))
}

/// A live session; its Welcome was polled, at `at(0)`.
fn live_with(limits: Limits) -> Session {
    let mut session = opened_with(limits);
    session.handle_frame(NodeFrame::Hello(Box::new(hello(&["default"]))), 100, at(0));
    assert!(matches!(session.poll_to_writer(), Some(ToWriter::Hello(_))));
    session.handle_news(granted(), at(0));
    assert!(matches!(session.poll_frame(), Some(GatewayFrame::Welcome(_))));
    session
}

fn live() -> Session {
    live_with(Limits::default())
}

fn send_update(session: &mut Session, frame_ref: u64, now: Moment) {
    session.handle_frame(NodeFrame::CommandUpdate(update(frame_ref, CommandState::Running)), 100, now);
}

fn send_heartbeat(session: &mut Session, sequence: u64, now: Moment) {
    session.handle_frame(NodeFrame::Heartbeat(Heartbeat { sequence, ..Heartbeat::default() }), 10, now);
}

fn stored() -> SessionNews {
    SessionNews::Stored { state: Some(CommandState::Running) }
}

fn posted_ref(session: &mut Session) -> Option<u64> {
    match session.poll_to_writer() {
        Some(ToWriter::Update(request)) => Some(request.update.frame_ref.0),
        None => None,
        other => panic!("no update: {other:?}"),
    }
}

fn frames(session: &mut Session) -> Vec<GatewayFrame> {
    std::iter::from_fn(|| session.poll_frame()).collect()
}

fn ack(frame_ref: u64) -> GatewayFrame {
    GatewayFrame::Ack(Ack { frame_ref: FrameRef(frame_ref), state: Some(CommandState::Running) })
}

fn heartbeat_ack(sequence: u64, server_time: i64) -> GatewayFrame {
    GatewayFrame::HeartbeatAck { sequence, server_time: UnixMillis(server_time) }
}

/// The sentence of a session that ended for a broken protocol.
fn protocol_end(session: &mut Session) -> String {
    match session.poll_end() {
        Some(CloseReason::Protocol(sentence)) => sentence,
        other => panic!("no protocol end: {other:?}"),
    }
}

fn is_closed(message: Option<ToWriter>) -> bool {
    matches!(message, Some(ToWriter::Closed { .. }))
}

// -- the Hello -----------------------------------------------------------------------------------

#[test]
fn a_node_that_says_nothing_is_cut_when_the_hello_is_due() {
    let mut session = opened();
    assert_eq!(session.next_deadline(), Some(at(10_000)));
    session.handle_time(at(9_999));
    assert_eq!(session.poll_end(), None);
    session.handle_time(at(10_000));
    assert!(protocol_end(&mut session).contains("sessions.hello_timeout"));
    assert!(session.poll_to_writer().is_none(), "the writer never knew of it");
    assert_eq!(session.next_deadline(), None);
}

#[test]
fn a_wrong_first_frame_and_a_second_hello_end_the_stream() {
    let mut session = opened();
    send_heartbeat(&mut session, 1, at(0));
    assert_eq!(protocol_end(&mut session), "the first frame of a session must be Hello");

    let mut session = live();
    session.handle_frame(NodeFrame::Hello(Box::new(hello(&[]))), 10, at(1));
    assert_eq!(protocol_end(&mut session), "a session has one Hello; this is the second");
    assert!(is_closed(session.poll_to_writer()));
    assert!(session.poll_to_writer().is_none());
}

#[test]
fn a_bad_hello_is_told_what_is_wrong_with_it() {
    let known = |id: u128, attempt: u32, state: CommandState| KnownCommand {
        id: CommandId(Uuid::from_u128(id)),
        attempt: Attempt(attempt),
        state,
    };
    type Spoil = Box<dyn Fn(&mut Hello)>;
    let cases: Vec<(&str, Spoil)> = vec![
        ("protocol 1", Box::new(|hello| hello.protocol = 2)),
        ("boot_id", Box::new(|hello| hello.boot_id = "x".repeat(MAX_TEXT_BYTES + 1))),
        ("machine holds a NUL at byte 1", Box::new(|hello| hello.machine = "a\0b".to_owned())),
        ("software_version", Box::new(|hello| hello.software_version = "\0".to_owned())),
        ("role", Box::new(|hello| hello.role = "\0".to_owned())),
        ("features holds 65", Box::new(|hello| hello.features = vec![String::new(); 65])),
        ("features is 65 bytes", Box::new(|hello| hello.features = vec!["x".repeat(65)])),
        (
            "sessions.lanes_per_node",
            Box::new(|hello| hello.lanes = (0..17).map(|n| lane(&n.to_string(), 1)).collect()),
        ),
        ("lane 1 has the name", Box::new(|hello| hello.lanes = vec![lane("a", 1), lane("a", 2)])),
        (
            "sessions.known_commands",
            Box::new(move |hello| {
                hello.known_commands = (0..4097).map(|id| known(id, 1, CommandState::Running)).collect();
            }),
        ),
        (
            "is pending",
            Box::new(move |hello| hello.known_commands = vec![known(1, 1, CommandState::Pending)]),
        ),
        (
            "attempt is 0",
            Box::new(move |hello| hello.known_commands = vec![known(1, 0, CommandState::Running)]),
        ),
        (
            "listed twice",
            Box::new(move |hello| {
                hello.known_commands =
                    vec![known(1, 1, CommandState::Running), known(1, 1, CommandState::Accepted)];
            }),
        ),
    ];
    for (expected, spoil) in cases {
        let mut session = opened();
        let mut hello = hello(&["default"]);
        spoil(&mut hello);
        session.handle_frame(NodeFrame::Hello(Box::new(hello)), 10, at(0));
        let sentence = protocol_end(&mut session);
        assert!(sentence.contains(expected), "{sentence:?} does not say {expected:?}");
        assert!(session.poll_to_writer().is_none(), "the writer is not told of a bad Hello");
        assert!(!session.hello_is_pending());
    }
}

#[test]
fn a_hello_at_its_limits_passes_and_its_capacities_are_clamped() {
    let mut session = opened();
    let mut full = hello(&[]);
    full.lanes = (0..16).map(|n| lane(&n.to_string(), u32::MAX)).collect();
    full.boot_id = "x".repeat(MAX_TEXT_BYTES);
    full.known_commands = (0..4096)
        .map(|id| KnownCommand {
            id: CommandId(Uuid::from_u128(id / 2)),
            attempt: Attempt(1 + u32::from(id % 2 == 1)),
            state: CommandState::Refused,
        })
        .collect();
    session.handle_frame(NodeFrame::Hello(Box::new(full)), 10, at(0));
    let Some(ToWriter::Hello(request)) = session.poll_to_writer() else { panic!("no Hello") };
    assert!(request.hello.lanes.iter().all(|lane| lane.capacity == Credits(MAX_LANE_CAPACITY)));
    assert_eq!(request.identity, identity());
    assert!(session.hello_is_pending());
    assert!(session.poll_to_writer().is_none());
}

#[test]
fn welcome_comes_first_then_replays_cancels_and_what_waited() {
    let mut session = opened();
    session.handle_frame(NodeFrame::Hello(Box::new(hello(&["default"]))), 100, at(0));
    assert!(matches!(session.poll_to_writer(), Some(ToWriter::Hello(_))));
    send_update(&mut session, 1, at(1));
    send_heartbeat(&mut session, 9, at(2));
    session.handle_frame(NodeFrame::Unsupported(FrameRef(2)), 10, at(3));
    assert!(session.poll_to_writer().is_none(), "frames wait for the Hello");
    assert_eq!(session.poll_frame(), None);
    assert_eq!(session.next_deadline(), None, "the wait for the database is not the node's");

    let cancel = CancelCommand { id: CommandId(Uuid::nil()), reason: "late".to_owned() };
    let news = SessionNews::Granted(Box::new(Granted {
        epoch: SessionEpoch(4),
        server_time: UnixMillis(50),
        journal_acked: EventSeq(17),
        replays: vec![command(5), command(8)],
        cancels: vec![cancel.clone()],
        inventory_wanted: Vec::new(),
    }));
    session.handle_news(news, at(4));
    assert!(!session.hello_is_pending());
    assert_eq!(session.epoch(), Some(SessionEpoch(4)));
    session.handle_news(SessionNews::Commands(vec![command(9)]), at(5));
    assert_eq!(posted_ref(&mut session), Some(1));
    session.handle_news(stored(), at(6));

    let limits = Limits::default();
    let welcome = Welcome {
        session_epoch: SessionEpoch(4),
        heartbeat_interval_ms: 10_000,
        server_time: UnixMillis(50),
        journal: Some(JournalId::new("journal-1").expect("a journal id")),
        journal_acked: EventSeq(17),
        frame_bytes: limits.frame_bytes as u32,
        result_bytes: limits.result_bytes as u32,
        events_per_batch: 1000,
        inventory_wanted: Vec::new(),
        features: Vec::new(),
        tunnel_address: None,
    };
    let rejected = Rejected {
        frame_ref: FrameRef(2),
        code: RejectCode::Unsupported,
        message: "this gateway does not store frames of that kind".to_owned(),
        retryable: false,
    };
    let expected = [
        GatewayFrame::Welcome(Box::new(welcome)),
        GatewayFrame::Command(Box::new(command(5))),
        GatewayFrame::Command(Box::new(command(8))),
        GatewayFrame::CancelCommand(cancel),
        heartbeat_ack(9, 50),
        GatewayFrame::Command(Box::new(command(9))),
        ack(1),
        GatewayFrame::Rejected(rejected),
    ];
    assert_eq!(frames(&mut session), expected);
}

#[test]
fn a_hello_that_is_not_granted_ends_with_the_writers_reason() {
    let mut session = opened();
    session.handle_frame(NodeFrame::Hello(Box::new(hello(&[]))), 100, at(0));
    assert!(matches!(session.poll_to_writer(), Some(ToWriter::Hello(_))));
    let reason = CloseReason::NotPermitted("the certificate is revoked".to_owned());
    session.handle_news(SessionNews::Close(reason.clone()), at(1));
    assert!(!session.hello_is_pending());
    assert_eq!(session.poll_end(), Some(reason));
    assert!(is_closed(session.poll_to_writer()));
}

#[test]
fn a_peer_that_left_while_its_hello_was_with_the_writer_is_closed_at_once_and_the_grant_ignored() {
    let mut session = opened();
    session.handle_frame(NodeFrame::Hello(Box::new(hello(&[]))), 100, at(0));
    assert!(matches!(session.poll_to_writer(), Some(ToWriter::Hello(_))));
    session.handle_close(CloseReason::PeerGone, at(1));
    assert!(is_closed(session.poll_to_writer()));
    session.handle_news(granted(), at(2));
    assert_eq!(session.poll_frame(), None);
    assert_eq!(session.poll_end(), Some(CloseReason::PeerGone));
    assert_eq!(session.poll_end(), None);
    assert!(session.poll_to_writer().is_none());
    assert_eq!(session.epoch(), None);
}

#[test]
fn a_hello_that_was_never_posted_is_not_posted_after_the_end() {
    let mut session = opened();
    session.handle_frame(NodeFrame::Hello(Box::new(hello(&[]))), 100, at(0));
    session.handle_close(CloseReason::Fenced, at(1));
    assert!(session.poll_to_writer().is_none());
}

// -- durable frames ------------------------------------------------------------------------------

#[test]
fn the_next_durable_frame_waits_for_the_answer_to_the_one_before() {
    let mut session = live();
    send_update(&mut session, 1, at(1));
    send_update(&mut session, 2, at(1));
    session.handle_frame(NodeFrame::Unsupported(FrameRef(3)), 10, at(1));
    assert_eq!(posted_ref(&mut session), Some(1));
    assert_eq!(posted_ref(&mut session), None);
    assert_eq!(session.poll_frame(), None, "no ack before durable, and no answer out of turn");
    session.handle_news(stored(), at(2));
    assert_eq!(frames(&mut session), [ack(1)]);
    assert_eq!(posted_ref(&mut session), Some(2));
    let not_stored = SessionNews::NotStored {
        code: RejectCode::OldAttempt,
        message: "attempt 2 is the current one".to_owned(),
        retryable: false,
    };
    session.handle_news(not_stored, at(3));
    let answers = frames(&mut session);
    assert!(
        matches!(
            &answers[..],
            [
                GatewayFrame::Rejected(Rejected { frame_ref: FrameRef(2), code: RejectCode::OldAttempt, .. }),
                GatewayFrame::Rejected(Rejected {
                    frame_ref: FrameRef(3),
                    code: RejectCode::Unsupported,
                    ..
                }),
            ]
        ),
        "{answers:?}"
    );
}

#[test]
fn a_heartbeat_overtakes_a_durable_frame_that_is_stuck() {
    let mut session = live();
    send_update(&mut session, 1, at(1));
    assert_eq!(posted_ref(&mut session), Some(1));
    send_update(&mut session, 2, at(1));
    send_heartbeat(&mut session, 7, at(2_500));
    assert_eq!(frames(&mut session), [heartbeat_ack(7, 1_002_500)]);
}

#[test]
fn a_credit_change_keeps_its_place_among_updates() {
    let mut session = live();
    let credit = |lane: &str, capacity| {
        let lane = LaneName::new(lane).expect("a lane name");
        NodeFrame::Credit(CreditChange { lane, capacity: Credits(capacity) })
    };
    send_update(&mut session, 1, at(1));
    session.handle_frame(credit("default", u32::MAX), 10, at(1));
    session.handle_frame(credit("never declared", 2), 10, at(1));
    send_update(&mut session, 2, at(1));
    session.handle_frame(credit("default", 0), 10, at(1));

    assert_eq!(posted_ref(&mut session), Some(1));
    let Some(ToWriter::Credit { change, .. }) = session.poll_to_writer() else { panic!("no credit") };
    assert_eq!(change.capacity, Credits(MAX_LANE_CAPACITY));
    assert!(session.poll_to_writer().is_none(), "the second credit waits behind the second update");
    session.handle_news(stored(), at(2));
    assert_eq!(posted_ref(&mut session), Some(2));
    let Some(ToWriter::Credit { change, .. }) = session.poll_to_writer() else { panic!("no credit") };
    assert_eq!(change.capacity, Credits(0));
    assert_eq!(session.ignored_credits(), 1);
}

#[test]
fn a_bad_update_is_rejected_alone_and_never_reaches_the_writer() {
    type Spoil = Box<dyn Fn(&mut CommandUpdate)>;
    let cases: Vec<(&str, Spoil)> = vec![
        ("pending", Box::new(|update| update.state = CommandState::Pending)),
        ("dispatched", Box::new(|update| update.state = CommandState::Dispatched)),
        ("expired", Box::new(|update| update.state = CommandState::Expired)),
        ("attempt is 0", Box::new(|update| update.attempt = Attempt(0))),
        ("attempt is 4294967295", Box::new(|update| update.attempt = Attempt(u32::MAX))),
        ("sessions.result_bytes", Box::new(|update| update.result = vec![0; (512 << 10) + 1].into())),
        ("progress is 4097 bytes", Box::new(|update| update.progress = Some("x".repeat(MAX_TEXT_BYTES + 1)))),
        ("error holds a NUL at byte 2", Box::new(|update| update.error = Some("ab\0".to_owned()))),
    ];
    let mut session = live();
    for (frame_ref, (expected, spoil)) in cases.into_iter().enumerate() {
        let mut update = update(frame_ref as u64, CommandState::Succeeded);
        spoil(&mut update);
        session.handle_frame(NodeFrame::CommandUpdate(update), 10, at(1));
        assert!(session.poll_to_writer().is_none());
        match &frames(&mut session)[..] {
            [GatewayFrame::Rejected(rejected)] => {
                assert_eq!(rejected.frame_ref, FrameRef(frame_ref as u64));
                assert_eq!(rejected.code, RejectCode::Invalid);
                assert!(rejected.message.contains(expected), "{:?}: {expected:?}", rejected.message);
            }
            other => panic!("{expected}: {other:?}"),
        }
    }
    let mut largest = update(100, CommandState::Succeeded);
    largest.result = vec![0; 512 << 10].into();
    session.handle_frame(NodeFrame::CommandUpdate(largest), 600_000, at(2));
    assert_eq!(posted_ref(&mut session), Some(100), "the session goes on");
}

#[test]
fn a_session_that_keeps_sending_bad_frames_is_cut_and_a_good_one_saves_it() {
    let bad = |session: &mut Session, times: u32| {
        for _ in 0..times {
            let mut update = update(1, CommandState::Running);
            update.attempt = Attempt(0);
            session.handle_frame(NodeFrame::CommandUpdate(update), 10, at(1));
        }
    };
    let mut session = live();
    bad(&mut session, MAX_BAD_FRAMES_IN_A_ROW - 1);
    send_update(&mut session, 2, at(1));
    assert_eq!(posted_ref(&mut session), Some(2));
    session.handle_news(stored(), at(1));
    bad(&mut session, MAX_BAD_FRAMES_IN_A_ROW - 2);
    // What the database could not store counts as well; what it does not know is no bad frame.
    for (frame_ref, code) in [(3, RejectCode::NotStorable), (4, RejectCode::UnknownCommand)] {
        send_update(&mut session, frame_ref, at(1));
        assert_eq!(posted_ref(&mut session), Some(frame_ref));
        let message = String::new();
        session.handle_news(SessionNews::NotStored { code, message, retryable: false }, at(1));
    }
    assert_eq!(session.poll_end(), None);
    bad(&mut session, 1);
    assert!(protocol_end(&mut session).contains("32 frames in a row"));
    assert!(is_closed(session.poll_to_writer()));
}

#[test]
fn a_full_inbox_stops_reading_until_the_writer_answers() {
    let mut session = live_with(Limits { session_inbox_frames: 2, ..Limits::default() });
    send_update(&mut session, 1, at(1));
    assert_eq!(posted_ref(&mut session), Some(1));
    send_update(&mut session, 2, at(1));
    assert!(session.wants_read());
    send_update(&mut session, 3, at(1));
    assert!(!session.wants_read());
    session.handle_news(stored(), at(2));
    assert_eq!(posted_ref(&mut session), Some(2));
    assert!(session.wants_read());

    let mut session = live_with(Limits { session_inbox_bytes: 1_000, ..Limits::default() });
    session.handle_frame(NodeFrame::CommandUpdate(update(1, CommandState::Running)), 999, at(1));
    assert!(session.wants_read());
    session.handle_frame(NodeFrame::CommandUpdate(update(2, CommandState::Running)), 1, at(1));
    assert_eq!((session.inbox_frames(), session.inbox_bytes()), (2, 1_000));
    assert!(!session.wants_read());
}

#[test]
fn a_node_that_floods_and_does_not_read_its_answers_is_not_read_either() {
    let mut session = live();
    for sequence in 0..MAX_WAITING_ANSWERS as u64 {
        assert!(session.wants_read());
        send_heartbeat(&mut session, sequence, at(1));
    }
    assert!(!session.wants_read());
    assert!(session.poll_frame().is_some());
    assert!(session.wants_read());
}

// -- life ----------------------------------------------------------------------------------------

#[test]
fn a_silent_node_is_dead_after_three_heartbeats_and_any_frame_is_life() {
    let mut session = live();
    assert_eq!(session.next_deadline(), Some(at(30_000)));
    session.handle_frame(NodeFrame::Ignored, 2, at(20_000));
    assert_eq!(session.next_deadline(), Some(at(50_000)));
    session.handle_time(at(49_999));
    assert_eq!(session.poll_end(), None);
    session.handle_time(at(50_000));
    assert_eq!(session.poll_end(), Some(CloseReason::HeartbeatTimeout));
    assert!(is_closed(session.poll_to_writer()));
}

#[test]
fn a_node_whose_large_frame_waits_for_our_memory_is_not_silent() {
    let mut session = live_with(Limits::default());
    session.handle_held_back(true, at(1));
    assert_eq!(session.next_deadline(), None);
    session.handle_time(at(300_000));
    assert_eq!(session.poll_end(), None);
    session.handle_held_back(false, at(300_000));
    assert_eq!(session.next_deadline(), Some(at(330_000)));
}

#[test]
fn silence_of_a_session_that_is_not_read_is_not_the_nodes() {
    let mut session = live_with(Limits { session_inbox_frames: 1, ..Limits::default() });
    send_update(&mut session, 1, at(1));
    assert_eq!(posted_ref(&mut session), Some(1));
    send_update(&mut session, 2, at(1));
    assert!(!session.wants_read());
    assert_eq!(session.next_deadline(), None);
    session.handle_time(at(300_000));
    assert_eq!(session.poll_end(), None);
    session.handle_news(stored(), at(300_000));
    assert_eq!(posted_ref(&mut session), Some(2));
    assert!(session.wants_read());
    // Reading began again at a poll, whose time is not known: the next look starts the count.
    let deadline = session.next_deadline().expect("the silence counts again");
    session.handle_time(deadline.max(at(300_001)));
    assert_eq!(session.poll_end(), None);
    assert_eq!(session.next_deadline(), Some(at(330_001)));
}

#[test]
fn liveness_is_written_once_a_period_and_the_hello_is_the_first_write() {
    let mut session = live();
    let mut written = Vec::new();
    for second in 1..=300u64 {
        send_heartbeat(&mut session, second, at(second * 1_000));
        while let Some(message) = session.poll_to_writer() {
            assert!(matches!(message, ToWriter::Alive { epoch: SessionEpoch(4), .. }), "{message:?}");
            written.push(second);
        }
        frames(&mut session);
    }
    assert!((30..=60).contains(&written[0]), "{written:?}");
    assert!(written.windows(2).all(|pair| pair[1] - pair[0] == 30), "{written:?}");
}

// -- ends ----------------------------------------------------------------------------------------

#[test]
fn a_half_closed_stream_gets_its_answers_and_then_ok() {
    let mut session = live();
    send_update(&mut session, 1, at(1));
    assert_eq!(posted_ref(&mut session), Some(1));
    send_update(&mut session, 2, at(1));
    session.handle_half_close(at(2));
    session.handle_news(SessionNews::Commands(vec![command(9)]), at(2));
    assert_eq!(session.next_deadline(), None, "a node that is done need not be heard");
    session.handle_news(stored(), at(3));
    assert_eq!(session.poll_end(), None);
    assert_eq!(posted_ref(&mut session), Some(2));
    session.handle_news(stored(), at(4));
    assert!(is_closed(session.poll_to_writer()), "the writer may know before the node took its answers");
    assert_eq!(session.poll_end(), None, "the answers go first");
    assert_eq!(frames(&mut session), [ack(1), ack(2)], "no command that could not be answered");
    assert_eq!(session.poll_end(), Some(CloseReason::Finished));
    assert!(session.poll_to_writer().is_none());
}

#[test]
fn goodbye_with_nothing_owed_ends_at_once_and_what_follows_is_ignored() {
    let mut session = live();
    session.handle_frame(NodeFrame::Goodbye(Goodbye { reason: "reboot".to_owned() }), 10, at(1));
    send_update(&mut session, 1, at(2));
    session.handle_half_close(at(2));
    assert_eq!(session.poll_end(), Some(CloseReason::Finished));
    assert!(is_closed(session.poll_to_writer()));
    assert!(session.poll_to_writer().is_none());
}

#[test]
fn a_node_that_half_closes_before_welcome_still_gets_its_answers() {
    let mut session = opened();
    session.handle_frame(NodeFrame::Hello(Box::new(hello(&["default"]))), 100, at(0));
    send_update(&mut session, 1, at(0));
    session.handle_half_close(at(0));
    assert!(matches!(session.poll_to_writer(), Some(ToWriter::Hello(_))));
    assert_eq!(session.poll_end(), None);
    session.handle_news(granted(), at(1));
    assert_eq!(posted_ref(&mut session), Some(1));
    session.handle_news(stored(), at(2));
    let sent = frames(&mut session);
    assert!(matches!(&sent[..], [GatewayFrame::Welcome(_), GatewayFrame::Ack(_)]), "{sent:?}");
    assert_eq!(session.poll_end(), Some(CloseReason::Finished));
    assert!(is_closed(session.poll_to_writer()));
}

#[test]
fn a_stream_that_half_closes_without_a_word_is_finished() {
    let mut session = opened();
    session.handle_half_close(at(1));
    assert_eq!(session.poll_end(), Some(CloseReason::Finished));
    assert!(session.poll_to_writer().is_none());
    assert!(!session.hello_is_pending());
}

#[test]
fn a_fenced_session_drops_what_it_held_and_sends_nothing_more() {
    let mut session = live();
    send_update(&mut session, 1, at(1));
    assert_eq!(posted_ref(&mut session), Some(1));
    send_update(&mut session, 2, at(1));
    send_heartbeat(&mut session, 1, at(1));
    session.handle_close(CloseReason::Fenced, at(2));
    session.handle_close(CloseReason::PeerGone, at(3));
    assert_eq!(session.poll_frame(), None);
    assert!(is_closed(session.poll_to_writer()));
    session.handle_news(stored(), at(4));
    assert_eq!(session.poll_frame(), None);
    assert_eq!(session.poll_end(), Some(CloseReason::Fenced), "the first reason stays");
    assert!(!session.wants_read());
}

#[test]
fn a_peer_too_slow_for_its_last_answers_is_cut() {
    let mut session = live();
    send_heartbeat(&mut session, 1, at(1));
    session.handle_half_close(at(1));
    session.handle_close(CloseReason::SlowPeer, at(2));
    assert_eq!(session.poll_frame(), None);
    assert_eq!(session.poll_end(), Some(CloseReason::SlowPeer));
}

// -- memory --------------------------------------------------------------------------------------

#[test]
fn an_idle_session_costs_little_memory() {
    eprintln!("a session takes {} bytes", size_of::<Session>());
    assert!(size_of::<Session>() <= 384, "{}", size_of::<Session>());
    assert!(size_of::<GatewayFrame>() <= 64, "{}", size_of::<GatewayFrame>());
    let mut session = live_with(Limits { session_inbox_frames: 1_000, ..Limits::default() });
    for frame_ref in 0..1_000 {
        send_update(&mut session, frame_ref, at(1));
    }
    session.handle_news(SessionNews::Commands((1..1_000).map(command).collect()), at(1));
    for frame_ref in 0..1_000 {
        assert_eq!(posted_ref(&mut session), Some(frame_ref));
        session.handle_news(stored(), at(1));
    }
    frames(&mut session);
    assert!(
        session.inbox.kept_slots() <= 8 && session.outbox.kept_slots() <= 8,
        "burst memory is given back"
    );
}

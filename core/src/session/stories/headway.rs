//! Stories of updates that lead on from one another: what may be with the writer together, and how that is answered.
//!
//! That they share a batch is the writer's to tell, that they are one write the store's.

use super::*;
use crate::frame::{Refusal, RefusalReason};

/// Of one command, whatever the ref.
fn told(frame_ref: u64, state: CommandState) -> CommandUpdate {
    CommandUpdate { id: CommandId(Uuid::nil()), ..update(frame_ref, state) }
}

fn send(session: &mut Session, update: CommandUpdate) {
    session.handle_frame(NodeFrame::CommandUpdate(update), 100, at(1));
}

fn posted(session: &mut Session) -> Vec<u64> {
    std::iter::from_fn(|| posted_ref(session)).collect()
}

fn stored_as(state: CommandState) -> SessionNews {
    SessionNews::Stored { state: Some(state) }
}

fn ack_of(frame_ref: u64, state: CommandState) -> GatewayFrame {
    GatewayFrame::Ack(Ack { frame_ref: FrameRef(frame_ref), state: Some(state) })
}

#[test]
fn an_end_follows_its_acceptance_to_the_writer_and_each_has_its_answer_in_turn() {
    let mut session = live();
    for (frame_ref, state) in [(1, CommandState::Accepted), (2, CommandState::Running)] {
        send(&mut session, told(frame_ref, state));
        assert_eq!(posted(&mut session), [frame_ref]);
    }
    send(&mut session, told(3, CommandState::Succeeded));
    send(&mut session, update(4, CommandState::Accepted));
    assert_eq!(posted(&mut session), [3], "of another command nothing follows");
    assert_eq!(session.poll_frame(), None, "no ack before durable");
    session.handle_news(stored_as(CommandState::Accepted), at(2));
    assert_eq!(frames(&mut session), [ack_of(1, CommandState::Accepted)]);
    assert_eq!(posted(&mut session), [], "two are with the writer still");
    session.handle_news(stored_as(CommandState::Running), at(3));
    session.handle_news(stored_as(CommandState::Succeeded), at(3));
    assert_eq!(frames(&mut session), [ack_of(2, CommandState::Running), ack_of(3, CommandState::Succeeded)]);
    assert_eq!(posted(&mut session), [4]);
}

#[test]
fn what_says_more_than_headway_or_of_something_else_waits_for_the_answer() {
    type Change = fn(&mut CommandUpdate);
    let accepted: Vec<(&str, Change)> = vec![
        ("a progress", |update| update.progress = Some("half".to_owned())),
        ("an error", |update| update.error = Some("odd".to_owned())),
        ("a refusal", |update| {
            update.refusal = Some(Refusal { reason: RefusalReason::LaneFull, retryable: true });
        }),
        ("an end before", |update| update.state = CommandState::Succeeded),
    ];
    let then: Vec<(&str, Change)> = vec![
        ("another command", |update| update.id = CommandId(Uuid::from_u128(7))),
        ("another attempt", |update| update.attempt = Attempt(2)),
        ("an acceptance again", |update| update.state = CommandState::Accepted),
        ("a cancellation", |update| update.state = CommandState::Canceled),
        ("a refusal", |update| update.state = CommandState::Refused),
    ];
    let nothing: Change = |_| {};
    let cases = accepted.into_iter().map(|(what, change)| (what, change, nothing));
    for (what, first, second) in cases.chain(then.into_iter().map(|(what, change)| (what, nothing, change))) {
        let mut session = live();
        let (mut one, mut other) = (told(1, CommandState::Accepted), told(2, CommandState::Succeeded));
        first(&mut one);
        second(&mut other);
        send(&mut session, one);
        send(&mut session, other);
        assert_eq!(posted(&mut session), [1], "{what}");
        session.handle_news(stored(), at(2));
        assert_eq!(posted(&mut session), [2], "{what}");
    }
}

#[test]
fn nothing_passes_a_frame_that_stands_between_an_acceptance_and_its_end() {
    let mut session = live();
    send(&mut session, told(1, CommandState::Accepted));
    session.handle_frame(NodeFrame::Unsupported(FrameRef(2)), 10, at(1));
    send(&mut session, told(3, CommandState::Succeeded));
    assert_eq!(posted(&mut session), [1]);
    session.handle_news(stored_as(CommandState::Accepted), at(2));
    assert_eq!(posted(&mut session), [3]);
    session.handle_news(stored_as(CommandState::Succeeded), at(3));
    let answers = frames(&mut session);
    let refused = |frame: &GatewayFrame| {
        matches!(frame, GatewayFrame::Rejected(Rejected { frame_ref: FrameRef(2), .. }))
    };
    assert_eq!(answers.iter().position(refused), Some(1), "{answers:?}");
}

#[test]
fn an_acceptance_that_is_not_stored_takes_nothing_from_the_end_behind_it() {
    let mut session = live();
    send(&mut session, told(1, CommandState::Accepted));
    send(&mut session, told(2, CommandState::Failed));
    assert_eq!(posted(&mut session), [1, 2]);
    let message = "no".to_owned();
    let not_stored = SessionNews::NotStored { code: RejectCode::NotStorable, message, retryable: false };
    session.handle_news(not_stored, at(2));
    session.handle_half_close(at(2));
    session.handle_news(stored_as(CommandState::Failed), at(3));
    let answers = frames(&mut session);
    assert!(
        matches!(
            answers[..],
            [GatewayFrame::Rejected(Rejected { frame_ref: FrameRef(1), .. }), GatewayFrame::Ack(_)]
        ),
        "{answers:?}"
    );
    assert_eq!(answers[1], ack_of(2, CommandState::Failed));
    assert_eq!(session.poll_end(), Some(CloseReason::Finished));
}

#[test]
fn a_session_that_ends_forgets_all_that_is_with_the_writer() {
    let mut session = live();
    send(&mut session, told(1, CommandState::Accepted));
    send(&mut session, told(2, CommandState::Succeeded));
    assert_eq!(posted(&mut session), [1, 2]);
    session.handle_close(CloseReason::Fenced, at(2));
    for state in [CommandState::Accepted, CommandState::Succeeded] {
        session.handle_news(stored_as(state), at(3));
    }
    assert_eq!(session.poll_frame(), None);
    assert_eq!(session.poll_end(), Some(CloseReason::Fenced));
}

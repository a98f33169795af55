//! Stories of specs: sent in order, told when they have left, answered like any durable frame.
//!
//! When a spec is due is the writer's; here stands what a session does with it.

use super::*;
use crate::frame::{Spec, SpecApplied};
use crate::ids::{Generation, SpecName};
use crate::seam::SPEC_HEAD_BYTES;

fn spec(name: &str, generation: u64, bytes: usize) -> Spec {
    let name = SpecName::new(name).expect("a spec name");
    Spec { name, generation: Generation(generation), body: vec![1; bytes].into() }
}

fn applied(frame_ref: u64, name: &str, generation: u64, error: Option<&str>) -> NodeFrame {
    let (frame_ref, generation) = (FrameRef(frame_ref), Generation(generation));
    let error = error.map(str::to_owned);
    NodeFrame::SpecApplied(Box::new(SpecApplied { frame_ref, name: name.to_owned(), generation, error }))
}

fn told(session: &mut Session) -> Option<usize> {
    match session.poll_to_writer()? {
        ToWriter::SpecsSent { bytes, .. } => Some(bytes),
        other => panic!("{other:?} in the place of SpecsSent"),
    }
}

#[test]
fn the_writer_hears_of_specs_when_they_have_left_and_not_before() {
    let mut session = live();
    session.handle_news(SessionNews::Specs(vec![spec("a", 1, 10), spec("b", 2, 20)]), at(1));
    session.handle_all_sent();
    assert_eq!(told(&mut session), None, "they were not polled yet");
    assert_eq!(session.poll_frame(), Some(GatewayFrame::Spec(Box::new(spec("a", 1, 10)))));
    assert_eq!(told(&mut session), None, "polled is not sent");
    session.handle_all_sent();
    assert!(session.has_sent_specs());
    assert_eq!(told(&mut session), Some(10 + SPEC_HEAD_BYTES));
    assert_eq!(session.poll_frame(), Some(GatewayFrame::Spec(Box::new(spec("b", 2, 20)))));
    session.handle_all_sent();
    assert_eq!(told(&mut session), Some(20 + SPEC_HEAD_BYTES));
    assert_eq!(told(&mut session), None, "once");
}

#[test]
fn an_outcome_waits_its_turn_and_is_acked_without_a_state() {
    let mut session = live();
    send_update(&mut session, 1, at(1));
    session.handle_frame(applied(2, "a", 3, Some("no disk")), 30, at(1));
    assert_eq!(posted_ref(&mut session), Some(1));
    assert!(session.poll_to_writer().is_none(), "it waits for the update before it");
    session.handle_news(stored(), at(2));
    assert_eq!(frames(&mut session), [ack(1)]);
    let Some(ToWriter::SpecApplied(answer)) = session.poll_to_writer() else { panic!("no answer is posted") };
    assert_eq!(
        (answer.name.as_str(), answer.generation, answer.error.as_deref()),
        ("a", Generation(3), Some("no disk"))
    );
    session.handle_news(SessionNews::Stored { state: None }, at(3));
    assert_eq!(frames(&mut session), [GatewayFrame::Ack(Ack { frame_ref: FrameRef(2), state: None })]);
}

#[test]
fn what_names_no_spec_or_generation_is_rejected_alone() {
    let mut session = live();
    for (frame, expected) in [
        (applied(9, "", 1, None), "a spec name is empty"),
        (applied(9, &"n".repeat(65), 1, None), "65 bytes"),
        (applied(9, "a\nb", 1, None), "control character"),
        (applied(9, "a", 0, None), "generation is 0"),
        (applied(9, "a", u64::MAX, None), "counts from 1"),
    ] {
        session.handle_frame(frame, 30, at(1));
        assert!(session.poll_to_writer().is_none(), "{expected}");
        let frames = frames(&mut session);
        let [GatewayFrame::Rejected(rejected)] = &frames[..] else { panic!("{expected}: {frames:?}") };
        assert_eq!((rejected.frame_ref, rejected.code), (FrameRef(9), RejectCode::Invalid));
        assert!(rejected.message.contains(expected), "{rejected:?}: {expected}");
    }
    session.handle_frame(applied(10, "a", 1, None), 30, at(2));
    assert!(matches!(session.poll_to_writer(), Some(ToWriter::SpecApplied(_))), "the stream goes on");
}

#[test]
fn a_long_error_is_cut_and_a_nul_in_it_replaced_so_that_every_outcome_is_stored() {
    let mut session = live();
    let error = format!("\0{}ü", "e".repeat(MAX_TEXT_BYTES - 4));
    session.handle_frame(applied(1, "a", 1, Some(&error)), 30, at(1));
    let Some(ToWriter::SpecApplied(answer)) = session.poll_to_writer() else { panic!("no answer is posted") };
    let stored = answer.error.expect("it failed");
    assert_eq!(stored, format!("\u{FFFD}{}", "e".repeat(MAX_TEXT_BYTES - 4)), "no half of a character");
}

#[test]
fn a_hello_that_lists_a_spec_twice_or_too_many_or_none_at_zero_ends_the_stream() {
    let listed = |name: &str, generation| crate::frame::SpecGeneration {
        name: SpecName::new(name).expect("a spec name"),
        generation: Generation(generation),
    };
    let many = |count: usize| (0..count).map(|index| listed(&format!("s{index}"), 1)).collect::<Vec<_>>();
    let most = Limits::default().specs_per_node;
    for (specs, expected) in [
        (vec![listed("a", 1), listed("a", 2)], Some("list each spec once")),
        (vec![listed("a", 0)], Some("generation is 0")),
        (many(most + 1), Some("sessions.specs_per_node")),
        (many(most), None),
    ] {
        let mut session = opened();
        let hello = Hello { specs, ..hello(&["default"]) };
        session.handle_frame(NodeFrame::Hello(Box::new(hello)), 100, at(0));
        match (session.poll_end(), expected) {
            (Some(CloseReason::Protocol(sentence)), Some(expected)) => {
                assert!(sentence.contains(expected), "{sentence}");
            }
            (None, None) => {}
            (other, _) => panic!("{expected:?}: {other:?}"),
        }
    }
}

#[test]
fn specs_that_come_after_a_half_close_are_dropped_and_nobody_waits_for_them() {
    let mut session = live();
    send_update(&mut session, 1, at(1));
    assert_eq!(posted_ref(&mut session), Some(1));
    session.handle_half_close(at(1));
    session.handle_news(SessionNews::Specs(vec![spec("a", 1, 10)]), at(1));
    session.handle_news(stored(), at(2));
    assert_eq!(frames(&mut session), [ack(1)]);
    assert!(
        matches!(session.poll_to_writer(), Some(ToWriter::Closed { .. })),
        "which frees all that was on its way"
    );
}

//! Stories of events: batches in, one answer out, tombstones for what can't be stored.
//!
//! What a cursor does is the store's; here stands what a session hands on, and what it says.

use super::*;
use crate::frame::{Attested, Event, EventAck, EventBatch, RefusedEvent};
use crate::limits::{MAX_EVENT_BODY_BYTES, MAX_EVENT_TEXT_BYTES};

pub(in crate::session) fn journal() -> JournalId {
    JournalId::new("journal-1").expect("a journal id")
}

pub(in crate::session) fn events(frame_ref: u64, seqs: std::ops::Range<u64>) -> EventBatch {
    let event = |seq| Event {
        seq: EventSeq(seq),
        kind: "gpu.xid".to_owned(),
        body: Bytes::from_static(b"body"),
        attested: None,
        refused: None,
    };
    EventBatch {
        frame_ref: FrameRef(frame_ref),
        journal: journal(),
        boot_id: "boot-1".to_owned(),
        events: seqs.map(event).collect(),
    }
}

fn send(session: &mut Session, batch: EventBatch) {
    session.handle_frame(NodeFrame::EventBatch(Box::new(batch)), 100, at(1));
}

fn posted(session: &mut Session) -> Option<Arc<EventBatch>> {
    match session.poll_to_writer()? {
        ToWriter::Events(request) => Some(request.batch),
        other => panic!("{other:?} in the place of events"),
    }
}

fn seqs(batch: &EventBatch) -> Vec<u64> {
    batch.events.iter().map(|event| event.seq.0).collect()
}

fn stored_up_to(acked: u64) -> SessionNews {
    SessionNews::EventsStored { journal: journal(), acked: EventSeq(acked), refused: None }
}

fn event_ack(frame_ref: u64, acked: u64) -> GatewayFrame {
    let frame_ref = FrameRef(frame_ref);
    GatewayFrame::EventAck(EventAck { frame_ref, journal: journal(), acked: EventSeq(acked) })
}

#[test]
fn events_and_updates_go_one_after_the_other_and_are_acked_after_the_commit() {
    let mut session = live();
    send(&mut session, events(1, 1..4));
    send_update(&mut session, 2, at(1));
    send(&mut session, events(3, 4..5));
    assert_eq!(seqs(&posted(&mut session).expect("the first batch")), [1, 2, 3]);
    assert!(session.poll_to_writer().is_none(), "the update waits for the events before it");
    assert_eq!(session.poll_frame(), None, "no ack before durable");
    session.handle_news(stored_up_to(3), at(2));
    assert_eq!(frames(&mut session), [event_ack(1, 3)]);
    assert_eq!(posted_ref(&mut session), Some(2));
    session.handle_news(stored(), at(3));
    assert_eq!(frames(&mut session), [ack(2)]);
    assert_eq!(seqs(&posted(&mut session).expect("the second batch")), [4]);
}

#[test]
fn what_stands_behind_a_gap_is_not_handed_on() {
    let mut session = live();
    let mut batch = events(1, 5..12);
    batch.events.remove(3);
    send(&mut session, batch);
    assert_eq!(seqs(&posted(&mut session).expect("the run")), [5, 6, 7]);
}

#[test]
fn a_batch_that_is_no_run_of_a_journal_is_rejected_whole() {
    type Spoil = Box<dyn Fn(&mut EventBatch)>;
    let cases: Vec<(&str, Spoil)> = vec![
        ("events is empty", Box::new(|batch| batch.events.clear())),
        ("a journal counts from 1", Box::new(|batch| batch.events[0].seq = EventSeq(0))),
        ("a journal counts from 1", Box::new(|batch| batch.events[3].seq = EventSeq(u64::MAX))),
        ("seqs must ascend", Box::new(|batch| batch.events[1].seq = EventSeq(1))),
        ("seqs must ascend", Box::new(|batch| batch.events.reverse())),
        ("boot_id is 4097 bytes", Box::new(|batch| batch.boot_id = "b".repeat(MAX_TEXT_BYTES + 1))),
        ("sessions.events_per_batch", Box::new(|batch| batch.events = events(1, 1..1002).events)),
    ];
    let mut session = live();
    for (expected, spoil) in cases {
        let mut batch = events(9, 1..5);
        spoil(&mut batch);
        send(&mut session, batch);
        assert!(session.poll_to_writer().is_none(), "{expected}");
        match &frames(&mut session)[..] {
            [
                GatewayFrame::Rejected(Rejected {
                    frame_ref: FrameRef(9),
                    code: RejectCode::Invalid,
                    message,
                    ..
                }),
            ] => {
                assert!(message.contains(expected), "{message:?}: {expected:?}");
            }
            other => panic!("{expected}: {other:?}"),
        }
    }
    send(&mut session, events(10, 1..1001));
    assert_eq!(posted(&mut session).expect("as many as are allowed").events.len(), 1000);
}

#[test]
fn an_event_that_can_not_be_stored_becomes_a_tombstone_and_its_neighbours_go_on() {
    type Spoil = Box<dyn Fn(&mut Event)>;
    let envelope = |kid: &str, body: usize, signature: usize| Attested {
        body: vec![0; body].into(),
        kid: kid.to_owned(),
        signature: vec![0; signature].into(),
    };
    let cases: Vec<(&str, Spoil)> = vec![
        ("kind is empty", Box::new(|event| event.kind.clear())),
        ("kind is 257 bytes", Box::new(|event| event.kind = "k".repeat(MAX_EVENT_TEXT_BYTES + 1))),
        ("kind holds a NUL at byte 1", Box::new(|event| event.kind = "k\0".to_owned())),
        ("body is 524289 bytes", Box::new(|event| event.body = vec![0; MAX_EVENT_BODY_BYTES + 1].into())),
        ("attested.kid holds a NUL", Box::new(move |event| event.attested = Some(envelope("\0", 1, 1)))),
        ("attested.body is", Box::new(move |event| event.attested = Some(envelope("k", 600_000, 1)))),
        ("attested.signature is", Box::new(move |event| event.attested = Some(envelope("k", 1, 9_000)))),
    ];
    let mut session = live();
    for (expected, spoil) in cases {
        let mut batch = events(9, 1..4);
        spoil(&mut batch.events[1]);
        send(&mut session, batch);
        let batch = posted(&mut session).expect("the batch goes on");
        assert_eq!(seqs(&batch), [1, 2, 3]);
        let tombstone = &batch.events[1];
        assert_eq!(
            (tombstone.kind.as_str(), &tombstone.body[..], &tombstone.attested),
            ("", &b""[..], &None)
        );
        let refused = tombstone.refused.clone().expect("a tombstone");
        assert_eq!(refused.code, RejectCode::Invalid);
        assert!(refused.message.contains(expected), "{refused:?}: {expected:?}");
        assert!(batch.events[0].refused.is_none() && batch.events[2].refused.is_none());
        session.handle_news(stored_up_to(3), at(2));
        assert_eq!(frames(&mut session), [event_ack(9, 3)]);
    }
}

#[test]
fn a_tombstone_is_told_before_the_ack_and_counts_against_the_session() {
    let mut session = live();
    let refused = RefusedEvent { code: RejectCode::Invalid, message: "kind is empty".to_owned() };
    for round in 1..=MAX_BAD_FRAMES_IN_A_ROW {
        send(&mut session, events(1, 1..2));
        assert!(posted(&mut session).is_some());
        let refused = Some((EventSeq(1), refused.clone()));
        session.handle_news(
            SessionNews::EventsStored { journal: journal(), acked: EventSeq(1), refused },
            at(2),
        );
        if round < MAX_BAD_FRAMES_IN_A_ROW {
            let rejected = GatewayFrame::Rejected(Rejected {
                frame_ref: FrameRef(1),
                code: RejectCode::Invalid,
                message: "event 1 is not stored but skipped: kind is empty".to_owned(),
                retryable: false,
            });
            assert_eq!(frames(&mut session), [rejected, event_ack(1, 1)]);
        }
    }
    assert!(matches!(session.poll_end(), Some(CloseReason::Protocol(_))), "it does nothing else");
    assert_eq!(session.poll_frame(), None, "and nothing is sent after the end");
}

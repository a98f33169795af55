//! Stories of statuses: handed on with the boot that the Hello named, acked when stored, refused alone.
//!
//! What a handler does with one is the store's; here stands what a session hands on, and what it says.

use super::*;
use crate::frame::Status;
use crate::limits::{MAX_STATUS_BODY_BYTES, MAX_STATUS_TEXT_BYTES};

pub(in crate::session) fn status(frame_ref: u64) -> Status {
    Status {
        frame_ref: FrameRef(frame_ref),
        id: format!("status-{frame_ref}"),
        kind: "gpu.xid".to_owned(),
        body: Bytes::from_static(b"body"),
    }
}

fn send(session: &mut Session, status: Status) {
    session.handle_frame(NodeFrame::Status(Box::new(status)), 100, at(1));
}

#[test]
fn a_status_takes_its_turn_among_durable_frames_and_its_ack_has_no_state() {
    let mut session = live();
    send(&mut session, status(1));
    send_update(&mut session, 2, at(1));
    let Some(ToWriter::Status(request)) = session.poll_to_writer() else { panic!("no status") };
    assert_eq!(request.status, status(1));
    assert_eq!(&*request.boot_id, hello(&[]).boot_id);
    assert!(session.poll_to_writer().is_none(), "the update waits for the status before it");
    session.handle_news(SessionNews::Stored { state: None }, at(2));
    assert_eq!(posted_ref(&mut session), Some(2));
    session.handle_news(stored(), at(3));
    let acked = GatewayFrame::Ack(Ack { frame_ref: FrameRef(1), state: None });
    assert_eq!(frames(&mut session), [acked, ack(2)]);
}

#[test]
fn a_status_that_can_not_be_stored_is_rejected_alone_with_what_is_wrong() {
    let long = "x".repeat(MAX_STATUS_TEXT_BYTES + 1);
    let large = Bytes::from(vec![0; MAX_STATUS_BODY_BYTES + 1]);
    for (wrong, sentence) in [
        (Status { id: String::new(), ..status(1) }, "id is empty"),
        (Status { id: long.clone(), ..status(1) }, "id is 257 bytes long; at most 256 are allowed"),
        (Status { kind: String::new(), ..status(1) }, "kind is empty"),
        (Status { kind: long, ..status(1) }, "kind is 257 bytes long"),
        (Status { kind: "a\0b".to_owned(), ..status(1) }, "kind holds a NUL at byte 1"),
        (Status { body: large, ..status(1) }, "body is 524289 bytes long"),
    ] {
        let mut session = live();
        send(&mut session, wrong);
        send(&mut session, status(2));
        let Some(ToWriter::Status(request)) = session.poll_to_writer() else { panic!("no status") };
        assert_eq!(request.status.frame_ref, FrameRef(2), "the next one goes on");
        let sent = frames(&mut session);
        let [GatewayFrame::Rejected(rejected)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((rejected.frame_ref, rejected.code), (FrameRef(1), RejectCode::Invalid));
        assert!(rejected.message.contains(sentence), "{}", rejected.message);
    }
}

//! Stories of certificates that are revoked or expire while their sessions last.
//!
//! Whose certificate it is, and when it ends, is given here; who finds that out is the shard's and the writer's.

use super::*;
use crate::duplicate::DUPLICATE_IDENTITY;
use crate::revocation::Revocation;

fn revocation(reason: &str) -> Revocation {
    Revocation { serial: "0ABC".into(), reason: reason.into() }
}

#[test]
fn a_revoked_session_is_told_so_and_ends_with_nothing_else() {
    let mut session = live();
    send_heartbeat(&mut session, 1, at(1));
    session.handle_revoked(&revocation("key leaked"), at(2));
    let notice = GatewayFrame::RevocationNotice { reason: "key leaked".into(), serials: vec!["0ABC".into()] };
    assert_eq!(frames(&mut session), [notice]);
    let sentence = "certificate 0ABC is revoked: key leaked; reconnect with another one";
    assert_eq!(session.poll_end(), Some(CloseReason::Revoked(sentence.into())));
    assert!(matches!(session.poll_to_writer(), Some(ToWriter::Closed { .. })));
    session.handle_revoked(&revocation("again"), at(3));
    assert_eq!((session.poll_frame(), session.poll_end()), (None, None), "it ended before");
}

#[test]
fn a_session_that_was_not_welcomed_ends_without_a_frame() {
    let mut session = opened();
    session.handle_revoked(&revocation("key leaked"), at(1));
    assert_eq!(session.poll_frame(), None, "Welcome is the first frame");
    assert!(matches!(session.poll_end(), Some(CloseReason::Revoked(_))));
}

#[test]
fn a_quarantined_certificate_ends_its_session_as_not_permitted() {
    let mut session = live();
    session.handle_revoked(&revocation(DUPLICATE_IDENTITY), at(1));
    assert!(matches!(session.poll_frame(), Some(GatewayFrame::RevocationNotice { .. })));
    assert!(matches!(session.poll_end(), Some(CloseReason::NotPermitted(_))));
}

#[test]
fn a_session_ends_at_its_certificates_expiry_though_its_node_is_heard() {
    let session = live();
    let expires_at = at(25_000);
    let mut session = session.with_expiry(expires_at);
    for second in [8, 16, 24] {
        send_heartbeat(&mut session, second, at(second * 1_000));
        session.handle_time(at(second * 1_000));
        assert_eq!(session.poll_end(), None);
    }
    assert_eq!(session.next_deadline(), Some(expires_at), "before the silence would be too long");
    session.handle_time(expires_at);
    assert_eq!(session.poll_end(), Some(CloseReason::Expired));
    assert_eq!(session.next_deadline(), None);
}

#[test]
fn a_clock_that_jumped_past_the_certificates_end_ends_its_session_with_the_next_heartbeat() {
    let mut session = live().with_expiry(at(3_600_000));
    session.handle_expiry(at(3_600_000), at(5_000));
    assert_eq!(session.poll_end(), None, "the clock goes on as ever");
    session.handle_expiry(at(9_000), at(9_000));
    assert_eq!(session.poll_end(), Some(CloseReason::Expired));
}

#[test]
fn a_clock_that_was_set_back_gives_the_certificate_its_time_again() {
    let mut session = live().with_expiry(at(25_000));
    session.handle_expiry(at(3_600_000), at(20_000));
    send_heartbeat(&mut session, 1, at(24_000));
    session.handle_time(at(25_000));
    assert_eq!(session.poll_end(), None);
    session.handle_expiry(at(24_500), at(25_100));
    assert_eq!(session.poll_end(), Some(CloseReason::Expired));
}

//! Stories of a drain: a live session tells its node and goes on, one that is not welcomed is refused.
//!
//! How delays are spread is `crate::drain`'s to test.

use super::*;
use crate::drain::DrainOrder;

const ORDER: DrainOrder = DrainOrder { within: Duration::from_secs(60), seed: 5 };

fn reconnect_after(session: &mut Session) -> Duration {
    match session.poll_end() {
        Some(CloseReason::Draining { reconnect_after }) => reconnect_after,
        other => panic!("not drained: {other:?}"),
    }
}

#[test]
fn a_live_session_tells_its_node_when_to_leave_and_goes_on_until_it_does() {
    let mut session = live();
    session.handle_news(SessionNews::Commands(vec![command(1)]), at(1));
    session.handle_drain(&ORDER, at(1));
    session.handle_news(SessionNews::Commands(vec![command(2)]), at(2));
    let delay = ORDER.delay_of(session.key());
    let reconnect_after_ms = u32::try_from(delay.as_millis()).unwrap();
    assert!(delay > Duration::ZERO && delay < Duration::from_secs(60), "{delay:?}");
    let told = GatewayFrame::Drain { reconnect_after_ms };
    let commands = [1, 2].map(|seq| GatewayFrame::Command(Box::new(command(seq))));
    assert_eq!(frames(&mut session), [commands[0].clone(), told, commands[1].clone()]);

    send_update(&mut session, 1, at(3));
    assert_eq!(posted_ref(&mut session), Some(1));
    session.handle_news(stored(), at(4));
    assert_eq!(frames(&mut session), [ack(1)]);
    session.handle_half_close(at(5));
    assert_eq!(session.poll_end(), Some(CloseReason::Finished), "it has left, and is owed nothing");
    assert!(is_closed(session.poll_to_writer()));
}

#[test]
fn who_is_not_welcomed_yet_is_refused_with_a_delay() {
    let mut session = opened();
    session.handle_drain(&ORDER, at(1));
    let delay = reconnect_after(&mut session);
    assert!(delay > Duration::ZERO && delay <= Duration::from_secs(10), "{delay:?}");
    assert!(session.poll_to_writer().is_none(), "the writer never knew of it");

    let mut session = opened();
    session.handle_frame(NodeFrame::Hello(Box::new(hello(&[]))), 100, at(0));
    assert!(matches!(session.poll_to_writer(), Some(ToWriter::Hello(_))));
    session.handle_drain(&ORDER, at(1));
    reconnect_after(&mut session);
    assert!(is_closed(session.poll_to_writer()), "its Hello may be granted all the same");
}

#[test]
fn who_does_not_leave_is_cut_with_a_delay_and_who_is_finishing_is_not_told() {
    let mut session = live();
    session.handle_drain(&ORDER, at(1));
    session.handle_cut(&ORDER, at(70_000));
    assert_eq!(session.poll_end(), Some(ORDER.cut(session.key())));

    let mut session = live();
    send_update(&mut session, 1, at(1));
    assert_eq!(posted_ref(&mut session), Some(1));
    session.handle_half_close(at(1));
    session.handle_drain(&ORDER, at(1));
    session.handle_news(stored(), at(2));
    assert_eq!(frames(&mut session), [ack(1)]);
    assert_eq!(session.poll_end(), Some(CloseReason::Finished));
}

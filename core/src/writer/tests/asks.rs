//! Stories of what the control API asks: what is looked at for it, and what it is told.
//!
//! Its drains are told in `drain`.

use super::*;
use crate::desk::{DeskAnswer, DeskAsk, DeskRefusal, Found, SessionReport};

impl Desk {
    fn ask(&mut self, ask: DeskAsk) -> DeskAnswer {
        self.writer.handle_ask(ask, self.now)
    }

    fn page(&mut self, after: Option<SessionKey>) -> (Vec<SessionReport>, Option<SessionKey>) {
        match self.ask(DeskAsk::Sessions { after, at_most: 2 }) {
            DeskAnswer::Sessions { sessions, more, in_all: 3 } => (sessions, more),
            other => panic!("{other:?}"),
        }
    }
}

fn looking(named: usize, here: usize, in_flight: usize) -> DeskAnswer {
    DeskAnswer::Looking(Found { named, here, in_flight })
}

#[test]
fn a_poke_of_the_control_api_is_a_pass_as_of_a_notification() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 2)]);
    desk.enter("b", 2, 1, &[("main", 3)]);
    desk.queues();
    assert_eq!(desk.ask(DeskAsk::Dispatch(vec![node("b"), node("elsewhere")])), looking(2, 1, 0));
    assert_eq!(free(&desk.pass()), [3], "of who was named alone");
    desk.outcome(Outcome::Dispatch(Ok(Routed::Committed(Vec::new()))));
    assert_eq!(desk.ask(DeskAsk::Dispatch(Vec::new())), looking(0, 0, 0));
    assert_eq!(free(&desk.pass()).len(), 2, "of all");
}

#[test]
fn a_cancellation_is_looked_for_at_once_and_its_command_is_counted_where_it_is() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 1, &[("main", 2)]);
    desk.poke("a");
    desk.pass();
    desk.outcome(claims("a", 1, [7]));
    while let Some(job) = desk.job() {
        match job {
            Job::Cancels { .. } => desk.outcome(Outcome::Cancels(Ok(Vec::new()))),
            Job::Dispatch { .. } => desk.outcome(Outcome::Dispatch(Ok(Routed::Committed(Vec::new())))),
            other => panic!("{other:?}"),
        }
    }
    desk.at(200);
    let named = vec![(node("a"), command_id(7)), (node("a"), command_id(8)), (node("b"), command_id(9))];
    assert_eq!(desk.ask(DeskAsk::Cancel(named)), looking(3, 2, 1));
    assert!(desk.queues().contains(&Queue::Feed));
}

#[test]
fn without_a_lease_or_on_the_way_out_there_is_nothing_to_hasten() {
    let mut desk = Desk::new();
    let asks = || {
        [
            DeskAsk::Dispatch(Vec::new()),
            DeskAsk::Specs(vec![node("a")]),
            DeskAsk::Cancel(Vec::new()),
            DeskAsk::Revoke(node("a")),
        ]
    };
    for ask in asks() {
        assert_eq!(desk.ask(ask), DeskAnswer::Refused(DeskRefusal::NoLease));
    }
    desk.writer.handle_stop(desk.now);
    for ask in asks() {
        assert_eq!(desk.ask(ask), DeskAnswer::Refused(DeskRefusal::Stopping));
    }
}

#[test]
fn sessions_are_shown_page_by_page_each_with_what_its_lanes_have() {
    let mut desk = Desk::serving();
    desk.enter("a", 1, 4, &[("main", 2), ("slow", 1)]);
    desk.enter("b", 2, 1, &[]);
    desk.enter("c", 3, 1, &[]);
    desk.poke("a");
    desk.pass();
    desk.outcome(claims("a", 4, [7]));
    let (mut shown, more) = desk.page(None);
    assert_eq!(shown.len(), 2);
    let (rest, end) = desk.page(more);
    assert_eq!((rest.len(), end), (1, None));
    shown.extend(rest);
    assert!(shown.is_sorted_by_key(|session| session.key), "{shown:?}");
    let names: std::collections::BTreeSet<NodeId> =
        shown.iter().map(|session| session.node.clone()).collect();
    assert_eq!(names.len(), 3, "each once");
    let of_a = shown.iter().find(|session| session.node == node("a")).expect("a session");
    let lanes: Vec<_> = of_a.lanes.iter().map(|lane| (lane.capacity.0, lane.in_flight.0)).collect();
    assert_eq!((of_a.epoch, lanes), (SessionEpoch(4), vec![(2, 1), (1, 0)]));
    let DeskAnswer::Sessions { sessions, .. } = desk.ask(DeskAsk::Session(node("b"))) else { panic!() };
    assert_eq!(sessions[0].key, key(2));
    let DeskAnswer::Sessions { sessions, .. } = desk.ask(DeskAsk::Session(node("x"))) else { panic!() };
    assert_eq!(sessions, []);
}

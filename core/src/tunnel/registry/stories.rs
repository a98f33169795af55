//! Stories of the registry: how tunnels open, what ends them, and that nothing of them is left.
//!
//! Each by hand. Whatever inputs come in whatever order is for `super::super::model`.

use std::time::Duration;

use super::*;
use crate::time::UnixMillis;

const SECOND: Duration = Duration::from_secs(1);

struct Stage {
    tunnels: Tunnels,
    now: Moment,
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("a node id")
}

fn id(number: u32) -> TunnelId {
    TunnelId(u128::from(number).to_be_bytes())
}

fn session(slot: u32) -> SessionKey {
    SessionKey { shard: ShardId(0), slot, serial: 0 }
}

fn stream(slot: u32) -> TunnelKey {
    TunnelKey { shard: ShardId(1), slot, serial: 0 }
}

fn ticket() -> Hidden<String> {
    Hidden("ticket".to_owned())
}

fn wish(name: &str, number: u32) -> OpenWish {
    OpenWish {
        node: node(name),
        grant: TicketGrant {
            subject: "ada".to_owned(),
            ticket_id: format!("t{number}"),
            issued_at: UnixMillis(0),
            expires_at: UnixMillis(0),
        },
        open: OpenTunnel {
            id: id(number),
            ticket: ticket(),
            kind: "shell".to_owned(),
            parameters: Vec::new(),
            direct_address: String::new(),
        },
    }
}

impl Stage {
    fn new(shape: impl FnOnce(&mut TunnelLimits)) -> Self {
        let mut limits = TunnelLimits { most: 3, per_node: 2, ..TunnelLimits::default() };
        shape(&mut limits);
        Self { tunnels: Tunnels::new(Arc::new(limits), vec![ShardId(0), ShardId(1)]), now: Moment::default() }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.tunnels.handle_time(self.now);
    }

    fn actions(&mut self) -> Vec<TunnelAction> {
        std::iter::from_fn(|| self.tunnels.poll_action()).collect()
    }

    fn open(&mut self, name: &str, number: u32) {
        self.tunnels.handle_open(wish(name, number), self.now).expect("there is room");
    }

    fn offered(&mut self, name: &str, number: u32) {
        self.open(name, number);
        let found = Some((SessionEpoch(1), session(number)));
        self.tunnels.handle_sought(id(number), ShardId(0), found);
        self.tunnels.handle_sought(id(number), ShardId(1), None);
    }

    fn joined(&mut self, name: &str, number: u32) {
        self.offered(name, number);
        self.tunnels.handle_hello(stream(number), &node(name), id(number), &ticket());
        self.actions();
    }

    fn closes(&mut self) -> Vec<(Option<TunnelKey>, Option<TunnelId>, TunnelClose)> {
        let closes = self.actions().into_iter().filter_map(|action| match action {
            TunnelAction::CloseStream { stream, close } => Some((Some(stream), None, close)),
            TunnelAction::CloseCaller { id, close } => Some((None, Some(id), close)),
            _ => None,
        });
        closes.collect()
    }

    fn is_bare(&self) -> bool {
        let tunnels = &self.tunnels;
        let places: usize = tunnels.per_node.values().sum();
        tunnels.by_id.is_empty()
            && places == tunnels.leaving()
            && tunnels.deadlines.is_empty()
            && tunnels.joined == 0
    }
}

#[test]
fn a_tunnel_is_sought_on_every_shard_offered_once_and_joined_by_its_node_alone() {
    let mut stage = Stage::new(|_| {});
    stage.open("n1", 1);
    assert_eq!(stage.actions(), [TunnelAction::Seek { id: id(1), node: node("n1") }]);
    stage.tunnels.handle_sought(id(1), ShardId(0), Some((SessionEpoch(4), session(4))));
    assert_eq!(stage.actions(), [], "a shard has not answered");
    // The session of the higher epoch is the one that stays.
    stage.tunnels.handle_sought(id(1), ShardId(1), Some((SessionEpoch(5), session(5))));
    let offers = stage.actions();
    assert!(
        matches!(&offers[..], [TunnelAction::Offer { session: to, .. }] if *to == session(5)),
        "{offers:?}"
    );
    for (who, which, shown) in
        [("n2", id(1), ticket()), ("n1", id(2), ticket()), ("n1", id(1), Hidden("another".to_owned()))]
    {
        stage.tunnels.handle_hello(stream(7), &node(who), which, &shown);
        assert_eq!(stage.closes(), [(Some(stream(7)), None, TunnelClose::NotKnown)]);
    }
    stage.tunnels.handle_hello(stream(8), &node("n1"), id(1), &ticket());
    assert_eq!(stage.actions(), [TunnelAction::Join { id: id(1), stream: stream(8) }]);
    stage.tunnels.handle_hello(stream(9), &node("n1"), id(1), &ticket());
    assert_eq!(stage.closes(), [(Some(stream(9)), None, TunnelClose::NotKnown)], "it has its stream");
    assert_eq!(stage.tunnels.load(), (1, 1));
}

#[test]
fn an_open_that_finds_nobody_or_is_refused_or_late_ends_with_its_reason() {
    let mut stage = Stage::new(|_| {});
    stage.open("n1", 1);
    stage.tunnels.handle_sought(id(1), ShardId(0), None);
    stage.tunnels.handle_sought(id(1), ShardId(1), None);
    assert_eq!(stage.closes(), [(None, Some(id(1)), TunnelClose::NoSession)]);

    stage.offered("n1", 2);
    let refused = TunnelRefused { id: id(2), reason: "no shell".to_owned() };
    stage.tunnels.handle_refused(session(99), &refused);
    assert_eq!(stage.closes(), [], "another session has no say");
    stage.tunnels.handle_refused(session(2), &refused);
    assert_eq!(stage.closes(), [(None, Some(id(2)), TunnelClose::NodeRefused("no shell".to_owned()))]);

    stage.offered("n1", 3);
    stage.pass(SECOND * 9);
    assert_eq!(stage.closes(), []);
    stage.pass(SECOND);
    assert_eq!(stage.closes(), [(None, Some(id(3)), TunnelClose::NodeLate)]);
    // And the node that comes after all finds nothing.
    stage.tunnels.handle_hello(stream(1), &node("n1"), id(3), &ticket());
    assert_eq!(stage.closes(), [(Some(stream(1)), None, TunnelClose::NotKnown)]);
    assert!(stage.is_bare());
}

#[test]
fn bounds_hold_from_the_open_to_the_end() {
    let mut stage = Stage::new(|_| {});
    stage.open("n1", 1);
    stage.joined("n1", 2);
    let refused = stage.tunnels.handle_open(wish("n1", 3), stage.now);
    assert_eq!(refused, Err(TunnelClose::Full(TunnelBound::Node)));
    stage.open("n2", 3);
    let refused = stage.tunnels.handle_open(wish("n3", 4), stage.now);
    assert_eq!(refused, Err(TunnelClose::Full(TunnelBound::Gateway)));
    stage.tunnels.handle_caller_ended(id(1), TunnelClose::CallerGone);
    stage.open("n1", 4);
    // What a caller has not taken of a tunnel that is over is still there, and so is its place.
    stage.tunnels.handle_close(id(2), TunnelClose::asked(""));
    assert_eq!(
        stage.tunnels.handle_open(wish("n1", 5), stage.now),
        Err(TunnelClose::Full(TunnelBound::Gateway))
    );
    stage.tunnels.handle_caller_left(id(2));
    stage.tunnels.handle_caller_left(id(2));
    stage.open("n1", 5);
    let mut none = Stage::new(|limits| limits.most = 0);
    assert_eq!(none.tunnels.handle_open(wish("n1", 1), none.now), Err(TunnelClose::NotOffered));
}

#[test]
fn the_end_of_a_session_ends_its_tunnels_and_no_others() {
    let mut stage = Stage::new(|_| {});
    stage.joined("n1", 1);
    stage.offered("n1", 2);
    stage.joined("n2", 3);
    stage.actions();
    stage.tunnels.handle_session_ended(session(1));
    assert_eq!(
        stage.closes(),
        [(Some(stream(1)), None, TunnelClose::SessionEnded), (None, Some(id(1)), TunnelClose::SessionEnded)]
    );
    stage.tunnels.handle_session_ended(session(2));
    assert_eq!(stage.closes(), [(None, Some(id(2)), TunnelClose::SessionEnded)]);
    assert_eq!(stage.tunnels.load(), (1, 1));
    stage.tunnels.handle_stop();
    assert!(stage.is_bare());
}

#[test]
fn who_ended_it_is_not_told_and_the_other_is() {
    let mut stage = Stage::new(|_| {});
    stage.joined("n1", 1);
    stage.tunnels.handle_caller_ended(id(1), TunnelClose::CallerGone);
    assert_eq!(stage.closes(), [(Some(stream(1)), None, TunnelClose::CallerGone)]);
    stage.joined("n1", 2);
    stage.tunnels.handle_node_ended(stream(1), id(2), TunnelClose::NodeGone);
    assert_eq!(stage.closes(), [], "not its stream");
    stage.tunnels.handle_node_ended(stream(2), id(2), TunnelClose::Finished);
    assert_eq!(stage.closes(), [(None, Some(id(2)), TunnelClose::Finished)]);
    assert!(stage.is_bare());
}

#[test]
fn each_side_closes_its_half_and_the_tunnel_goes_on_until_the_node_ends() {
    let mut stage = Stage::new(|_| {});
    stage.joined("n1", 1);
    stage.tunnels.handle_caller_half_closed(id(1));
    assert_eq!(stage.tunnels.phase(id(1)), Some(Phase::CallerDone));
    stage.tunnels.handle_node_half_closed(id(1));
    assert_eq!(stage.tunnels.phase(id(1)), Some(Phase::BothDone));
    assert_eq!(stage.closes(), []);
    stage.tunnels.handle_node_ended(stream(1), id(1), TunnelClose::Finished);
    assert!(stage.is_bare());
}

#[test]
fn a_caller_is_asked_about_every_minute_and_a_refusal_closes() {
    let mut stage = Stage::new(|_| {});
    stage.joined("n1", 1);
    stage.pass(SECOND * 59);
    assert_eq!(stage.actions(), []);
    stage.pass(SECOND);
    let asked = stage.actions();
    let [TunnelAction::AskIam(question)] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((question.subject.as_str(), question.ticket_id.as_str()), ("ada", "t1"));
    stage.tunnels.handle_verdict(id(1), IamVerdict::Allowed, stage.now);
    stage.pass(SECOND * 59);
    assert_eq!(stage.actions(), []);
    stage.pass(SECOND);
    assert_eq!(stage.actions().len(), 1);
    stage.tunnels.handle_verdict(id(1), IamVerdict::Refused, stage.now);
    assert_eq!(stage.closes()[0], (Some(stream(1)), None, TunnelClose::NotAllowed));
    assert!(stage.is_bare());
}

#[test]
fn two_minutes_of_an_iam_service_that_is_away_close_and_less_does_not() {
    let mut stage = Stage::new(|_| {});
    stage.joined("n1", 1);
    stage.pass(SECOND * 60);
    let mut asked = 0;
    for _ in 0..119 {
        for action in stage.actions() {
            assert!(matches!(action, TunnelAction::AskIam(_)), "{action:?}");
            asked += 1;
            stage.tunnels.handle_verdict(id(1), IamVerdict::Away, stage.now);
        }
        stage.pass(SECOND);
    }
    assert!((5..=10).contains(&asked), "{asked}");
    stage.pass(SECOND);
    assert_eq!(stage.closes()[0], (Some(stream(1)), None, TunnelClose::IamAway));

    // An answer in between begins it anew; one that never comes counts as none.
    stage.joined("n1", 2);
    stage.pass(SECOND * 60);
    stage.actions();
    stage.tunnels.handle_verdict(id(2), IamVerdict::Away, stage.now);
    stage.pass(SECOND * 100);
    stage.actions();
    stage.tunnels.handle_verdict(id(2), IamVerdict::Allowed, stage.now);
    stage.pass(SECOND * 60);
    stage.actions();
    stage.pass(SECOND * 119);
    assert_eq!(stage.closes(), []);
    stage.pass(SECOND);
    assert_eq!(stage.closes().len(), 2);
    assert!(stage.is_bare());
}

#[test]
fn no_tunnel_lasts_longer_than_one_may() {
    let mut stage = Stage::new(|_| {});
    stage.joined("n1", 1);
    for _ in 0..(12 * 60 - 1) {
        stage.pass(SECOND * 60);
        for action in stage.actions() {
            assert!(matches!(action, TunnelAction::AskIam(_)), "{action:?}");
            stage.tunnels.handle_verdict(id(1), IamVerdict::Allowed, stage.now);
        }
    }
    stage.pass(SECOND * 60);
    assert_eq!(stage.closes()[0], (Some(stream(1)), None, TunnelClose::LifeOver));
}

#[test]
fn questions_wait_for_one_another_and_none_is_lost() {
    let mut stage = Stage::new(|limits| limits.iam_timeout = SECOND);
    stage.joined("n1", 1);
    stage.joined("n1", 2);
    stage.joined("n2", 3);
    stage.pass(SECOND * 60);
    for _ in 0..3 {
        let asked = stage.actions();
        let [TunnelAction::AskIam(question)] = &asked[..] else { panic!("{asked:?}") };
        stage.tunnels.handle_verdict(question.tunnel, IamVerdict::Allowed, stage.now);
    }
    assert_eq!(stage.actions(), []);
}

#[test]
fn a_thousand_tunnels_are_each_asked_about_every_minute_however_long_the_answers_take() {
    for took in [SECOND * 5 / 2, SECOND * 10] {
        let mut stage = Stage::new(|limits| (limits.most, limits.per_node) = (1_000, 1_000));
        // At once, which is the worst.
        (0..1_000).for_each(|number| stage.joined("n1", number));
        let (mut out, mut allowed_at) = (VecDeque::new(), BTreeMap::new());
        while stage.now < Moment::default() + SECOND * 600 {
            let deadline = stage.tunnels.next_deadline().expect("there are tunnels");
            stage.now = out.front().map_or(deadline, |(at, _)| deadline.min(*at));
            while let Some((_, tunnel)) = out.pop_front_if(|(at, _)| *at <= stage.now) {
                stage.tunnels.handle_verdict(tunnel, IamVerdict::Allowed, stage.now);
                let pause = allowed_at.insert(tunnel, stage.now).map(|before| stage.now.since(before));
                assert!(pause.is_none_or(|pause| pause <= SECOND * 60 + took), "{pause:?}, {took:?}");
            }
            stage.tunnels.handle_time(stage.now);
            for action in stage.actions() {
                let TunnelAction::AskIam(question) = action else { panic!("{action:?}") };
                out.push_back((stage.now + took, question.tunnel));
            }
        }
        assert_eq!((stage.tunnels.load(), allowed_at.len()), ((1_000, 1_000), 1_000));
    }
}

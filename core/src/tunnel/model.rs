//! A naive model of the registry, and whatever inputs in whatever order: the two must say the same, action by action.
//!
//! The model keeps what has happened to each tunnel that there ever was, as facts, and works everything out anew from
//! them: which there are, in which phase, what is due. It has no table of phases, no index, no deadlines and no counts.
//!
//! 1. It shares no rule with the registry: where both are wrong they are wrong in two ways.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::lifecycle::Phase;
use super::registry::{IamQuestion, IamVerdict, OpenWish, TunnelAction, Tunnels};
use super::ticket::TicketGrant;
use super::{OpenTunnel, TunnelBound, TunnelClose, TunnelId, TunnelKey, TunnelRefused};
use crate::ids::{NodeId, SessionEpoch, SessionKey, ShardId};
use crate::limits::TunnelLimits;
use crate::relay::Hidden;
use crate::time::{Moment, UnixMillis};

const SHARDS: u16 = 2;
const NODES: u8 = 3;
const SECOND: Duration = Duration::from_secs(1);

type Found = Option<(SessionEpoch, SessionKey)>;

/// All that has happened to a tunnel.
struct Story {
    open: OpenTunnel,
    node: NodeId,
    grant: TicketGrant,
    opened_at: Moment,
    answers: Vec<(ShardId, Found)>,
    offered_to: Option<SessionKey>,
    stream: Option<TunnelKey>,
    caller_is_done: bool,
    node_is_done: bool,
    allowed_at: Moment,
    /// The next question; `None` from when it is due until it is answered.
    ask_at: Option<Moment>,
    is_over: bool,
    has_left: bool,
}

impl Story {
    fn is_joined(&self) -> bool {
        self.stream.is_some()
    }

    fn phase(&self) -> Phase {
        match (self.offered_to.is_some(), self.is_joined(), self.caller_is_done, self.node_is_done) {
            (false, ..) => Phase::Sought,
            (true, false, ..) => Phase::Offered,
            (true, true, false, false) => Phase::Open,
            (true, true, true, false) => Phase::CallerDone,
            (true, true, false, true) => Phase::NodeDone,
            (true, true, true, true) => Phase::BothDone,
        }
    }

    /// What counts against the bounds.
    fn has_place(&self) -> bool {
        !self.is_over || (self.is_joined() && !self.has_left)
    }

    fn life_over_at(&self, limits: &TunnelLimits) -> Moment {
        self.opened_at + limits.max_life
    }

    fn untrusted_at(&self, limits: &TunnelLimits) -> Moment {
        self.allowed_at + limits.reauthorize_every + limits.iam_patience
    }

    fn due(&self, limits: &TunnelLimits) -> Moment {
        if !self.is_joined() {
            return self.opened_at + limits.open_timeout;
        }
        let ends = [Some(self.life_over_at(limits)), Some(self.untrusted_at(limits)), self.ask_at];
        ends.into_iter().flatten().min().expect("there are two at least")
    }
}

struct Model {
    limits: Arc<TunnelLimits>,
    /// In the order of their opening.
    stories: Vec<Story>,
    /// With the IAM service.
    asked: Vec<TunnelId>,
    /// To be asked.
    to_ask: Vec<TunnelId>,
    expected: Vec<TunnelAction>,
}

impl Model {
    fn live(&mut self, id: TunnelId) -> Option<&mut Story> {
        self.stories.iter_mut().find(|story| story.open.id == id && !story.is_over)
    }

    fn admit(&self, node: &NodeId) -> Result<(), TunnelClose> {
        let places: Vec<&Story> = self.stories.iter().filter(|story| story.has_place()).collect();
        if places.len() >= self.limits.most {
            return Err(TunnelClose::Full(TunnelBound::Gateway));
        }
        if places.iter().filter(|story| story.node == *node).count() >= self.limits.per_node {
            return Err(TunnelClose::Full(TunnelBound::Node));
        }
        Ok(())
    }

    fn open(&mut self, wish: &OpenWish, now: Moment) -> Result<(), TunnelClose> {
        self.admit(&wish.node)?;
        self.stories.push(Story {
            open: wish.open.clone(),
            node: wish.node.clone(),
            grant: wish.grant.clone(),
            opened_at: now,
            answers: Vec::new(),
            offered_to: None,
            stream: None,
            caller_is_done: false,
            node_is_done: false,
            allowed_at: now,
            ask_at: Some(now + self.limits.reauthorize_every),
            is_over: false,
            has_left: false,
        });
        self.expected.push(TunnelAction::Seek { id: wish.open.id, node: wish.node.clone() });
        Ok(())
    }

    fn end(&mut self, id: TunnelId, close: &TunnelClose, (tells_node, tells_caller): (bool, bool)) {
        let Some(story) = self.live(id) else { return };
        story.is_over = true;
        let (stream, was_joined) = (story.stream.filter(|_| tells_node), story.is_joined());
        let close = || close.clone();
        self.expected.extend(stream.map(|stream| TunnelAction::CloseStream { stream, close: close() }));
        self.expected.extend(tells_caller.then(|| TunnelAction::CloseCaller { id, close: close() }));
        self.expected.push(TunnelAction::Over { close: close(), was_joined });
    }

    fn end_all(&mut self, close: &TunnelClose, which: impl Fn(&Story) -> bool) -> usize {
        let ended = self.stories.iter().filter(|story| !story.is_over && which(story));
        let ended: BTreeSet<TunnelId> = ended.map(|story| story.open.id).collect();
        ended.iter().for_each(|id| self.end(*id, close, (true, true)));
        ended.len()
    }

    fn sought(&mut self, id: TunnelId, shard: ShardId, found: Found) {
        let Some(story) = self.live(id).filter(|story| story.offered_to.is_none()) else { return };
        story.answers.push((shard, found));
        let heard: BTreeSet<u16> = story.answers.iter().map(|(shard, _)| shard.0).collect();
        if heard.len() < usize::from(SHARDS) {
            return;
        }
        let found = story.answers.iter().filter_map(|(_, found)| *found);
        match found.max() {
            Some((_, session)) => {
                story.offered_to = Some(session);
                let open = Box::new(story.open.clone());
                self.expected.push(TunnelAction::Offer { session, open });
            }
            None => self.end(id, &TunnelClose::NoSession, (true, true)),
        }
    }

    fn hello(&mut self, stream: TunnelKey, node: &NodeId, id: TunnelId, ticket: &Hidden<String>) {
        let story = self.live(id).filter(|story| story.node == *node && story.open.ticket == *ticket);
        match story.filter(|story| story.offered_to.is_some() && !story.is_joined()) {
            Some(story) => {
                story.stream = Some(stream);
                self.expected.push(TunnelAction::Join { id, stream });
            }
            None => self.expected.push(TunnelAction::CloseStream { stream, close: TunnelClose::NotKnown }),
        }
    }

    fn refused(&mut self, session: SessionKey, id: TunnelId, reason: &str) {
        let refuses = |story: &mut Story| story.offered_to == Some(session) && !story.is_joined();
        if self.live(id).is_some_and(refuses) {
            self.end(id, &TunnelClose::node_refused(reason), (true, true));
        }
    }

    fn node_ended(&mut self, stream: TunnelKey, id: TunnelId, close: &TunnelClose) {
        if self.live(id).is_some_and(|story| story.stream == Some(stream)) {
            self.end(id, close, (false, true));
        }
    }

    fn half_closed(&mut self, id: TunnelId, by_node: bool) {
        if let Some(story) = self.live(id).filter(|story| story.is_joined()) {
            story.node_is_done |= by_node;
            story.caller_is_done |= !by_node;
        }
    }

    fn left(&mut self, id: TunnelId) {
        self.end(id, &TunnelClose::CallerGone, (true, false));
        self.stories.iter_mut().filter(|story| story.open.id == id).for_each(|story| story.has_left = true);
    }

    fn verdict(&mut self, id: TunnelId, verdict: IamVerdict, now: Moment) {
        let (every, patience) = (self.limits.reauthorize_every, self.limits.iam_patience);
        match (verdict, self.live(id)) {
            (IamVerdict::Refused, _) => self.end(id, &TunnelClose::NotAllowed, (true, true)),
            (IamVerdict::Allowed, Some(story)) => {
                (story.allowed_at, story.ask_at) = (now, Some(now + every));
            }
            (IamVerdict::Away, Some(story)) => story.ask_at = Some(now + patience / 8),
            (_, None) => {}
        }
        self.ask();
    }

    fn time(&mut self, now: Moment) {
        let limits = Arc::clone(&self.limits);
        let live = self.stories.iter().filter(|story| !story.is_over);
        let due: BTreeSet<(Moment, TunnelId)> =
            live.map(|story| (story.due(&limits), story.open.id)).filter(|(at, _)| *at <= now).collect();
        for (_, id) in due {
            let Some(story) = self.live(id) else { continue };
            let close = match story {
                story if !story.is_joined() && story.offered_to.is_none() => TunnelClose::NoSession,
                story if !story.is_joined() => TunnelClose::NodeLate,
                story if story.life_over_at(&limits) <= now => TunnelClose::LifeOver,
                story if story.untrusted_at(&limits) <= now => TunnelClose::IamAway,
                story => {
                    story.ask_at = None;
                    self.to_ask.push(id);
                    continue;
                }
            };
            self.end(id, &close, (true, true));
        }
        self.ask();
    }

    fn ask(&mut self) {
        let is_live = |stories: &[Story], id| stories.iter().any(|it| it.open.id == id && !it.is_over);
        self.to_ask.retain(|id| is_live(&self.stories, *id));
        while self.asked.len() < self.limits.iam_in_flight() && !self.to_ask.is_empty() {
            let id = self.to_ask.remove(0);
            self.asked.push(id);
            let story = self.live(id).expect("those that are over are not asked about");
            let question = IamQuestion {
                tunnel: id,
                subject: story.grant.subject.clone(),
                node: story.node.clone(),
                kind: story.open.kind.clone(),
                ticket_id: story.grant.ticket_id.clone(),
            };
            self.expected.push(TunnelAction::AskIam(Box::new(question)));
        }
    }
}

#[derive(Debug, Clone)]
enum Input {
    /// A tunnel that goes so far at once: until it is sought, offered or joined.
    Open {
        node: u8,
        until: Phase,
    },
    Sought {
        which: u8,
        shard: u16,
        found: Option<(u64, u32)>,
    },
    Hello {
        which: u8,
        is_wrong: Option<Wrong>,
        stream: u32,
    },
    Refused {
        which: u8,
        is_its_session: bool,
    },
    NodeEnded {
        which: u8,
        is_its_stream: bool,
    },
    HalfClose {
        which: u8,
        by_node: bool,
    },
    CallerEnded {
        which: u8,
    },
    CallerLeft {
        which: u8,
    },
    SessionEnded {
        which: u8,
    },
    Close {
        which: u8,
    },
    CloseNode {
        node: u8,
    },
    Verdict {
        which: u8,
        verdict: IamVerdict,
    },
    Time {
        millis: u32,
    },
    /// To the next deadline, or just before it.
    Deadline {
        is_before: bool,
    },
}

#[derive(Debug, Clone, Copy)]
enum Wrong {
    Node,
    Ticket,
}

fn input() -> impl Strategy<Value = Input> {
    let which = 0u8..8;
    let verdict = prop_oneof![
        4 => Just(IamVerdict::Allowed),
        4 => Just(IamVerdict::Away),
        1 => Just(IamVerdict::Refused)
    ];
    let until = prop_oneof![1 => Just(Phase::Sought), 1 => Just(Phase::Offered), 4 => Just(Phase::Open)];
    let session = proptest::option::weighted(0.8, (1u64..3, 0u32..4));
    let wrong = proptest::option::weighted(0.2, prop_oneof![Just(Wrong::Node), Just(Wrong::Ticket)]);
    prop_oneof![
        6 => (0..NODES, until).prop_map(|(node, until)| Input::Open { node, until }),
        10 => (which.clone(), 0..SHARDS, session)
            .prop_map(|(which, shard, found)| Input::Sought { which, shard, found }),
        8 => (which.clone(), wrong, 0u32..4)
            .prop_map(|(which, is_wrong, stream)| Input::Hello { which, is_wrong, stream }),
        2 => (which.clone(), any::<bool>())
            .prop_map(|(which, is_its_session)| Input::Refused { which, is_its_session }),
        2 => (which.clone(), proptest::bool::weighted(0.3))
            .prop_map(|(which, is_its_stream)| Input::NodeEnded { which, is_its_stream }),
        4 => (which.clone(), any::<bool>()).prop_map(|(which, by_node)| Input::HalfClose { which, by_node }),
        1 => which.clone().prop_map(|which| Input::CallerEnded { which }),
        2 => which.clone().prop_map(|which| Input::CallerLeft { which }),
        1 => which.clone().prop_map(|which| Input::SessionEnded { which }),
        1 => which.clone().prop_map(|which| Input::Close { which }),
        1 => (0..NODES).prop_map(|node| Input::CloseNode { node }),
        3 => (which, verdict).prop_map(|(which, verdict)| Input::Verdict { which, verdict }),
        3 => (0u32..3_000).prop_map(|millis| Input::Time { millis }),
        1 => (0u32..40_000).prop_map(|millis| Input::Time { millis }),
        3 => any::<bool>().prop_map(|is_before| Input::Deadline { is_before }),
    ]
}

fn limits() -> impl Strategy<Value = TunnelLimits> {
    let seconds = |from: u64, to: u64| (from..to).prop_map(Duration::from_secs);
    let times = (seconds(5, 60), seconds(20, 200), seconds(4, 20), seconds(4, 40), seconds(1, 5));
    (2usize..8, 1usize..5, times).prop_map(|(most, per_node, (open, life, every, patience, answer))| {
        TunnelLimits {
            most,
            per_node,
            open_timeout: open,
            max_life: life,
            reauthorize_every: every,
            iam_patience: patience,
            iam_timeout: answer,
            ..TunnelLimits::default()
        }
    })
}

fn node(number: u8) -> NodeId {
    NodeId::new(&format!("n{number}")).expect("a node id")
}

fn session((epoch, slot): (u64, u32)) -> (SessionEpoch, SessionKey) {
    (SessionEpoch(epoch), SessionKey { shard: ShardId(0), slot, serial: 0 })
}

/// A wish like no other: what of it is told to whom shows.
fn wish(number: u32, to: u8) -> OpenWish {
    OpenWish {
        node: node(to),
        grant: TicketGrant {
            subject: format!("subject {number}"),
            ticket_id: format!("ticket {number}"),
            issued_at: UnixMillis(0),
            expires_at: UnixMillis(0),
        },
        open: OpenTunnel {
            // Ids are not in the order of their opening.
            id: TunnelId(u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()),
            ticket: Hidden(format!("shown {number}")),
            kind: format!("kind {number}"),
            parameters: Vec::new(),
            direct_address: String::new(),
        },
    }
}

struct Pair {
    tunnels: Tunnels,
    model: Model,
    now: Moment,
}

impl Pair {
    fn new(limits: TunnelLimits) -> Self {
        let limits = Arc::new(limits);
        let shards = (0..SHARDS).map(ShardId).collect();
        let model = Model {
            limits: Arc::clone(&limits),
            stories: Vec::new(),
            asked: Vec::new(),
            to_ask: Vec::new(),
            expected: Vec::new(),
        };
        Self { tunnels: Tunnels::new(limits, shards), model, now: Moment::default() }
    }

    /// Of those with a place as a rule, now and then of the others.
    fn chosen(&self, which: u8) -> Option<&Story> {
        let mut stories: Vec<&Story> = self.model.stories.iter().collect();
        stories.sort_by_key(|story| (!story.has_place(), Reverse(story.opened_at)));
        stories.get(usize::from(which) % stories.len().clamp(1, 7)).copied()
    }

    fn feed(&mut self, input: &Input) {
        let now = self.now;
        match *input {
            Input::Open { node, until } => self.open(node, until),
            Input::CloseNode { node: number } => {
                let (node, close) = (node(number), TunnelClose::asked("of the node"));
                let expected = self.model.end_all(&close, |story| story.node == node);
                assert_eq!(self.tunnels.handle_close_node(&node, &close), expected);
            }
            Input::Verdict { which, verdict } if !self.model.asked.is_empty() => {
                let at = usize::from(which) % self.model.asked.len();
                let id = self.model.asked.remove(at);
                self.tunnels.handle_verdict(id, verdict, now);
                self.model.verdict(id, verdict, now);
            }
            Input::Verdict { .. } => {}
            Input::Time { millis } => self.pass(now + Duration::from_millis(millis.into())),
            Input::Deadline { is_before } => {
                if let Some(at) = self.tunnels.next_deadline() {
                    let nanos = at.as_nanos() - u64::from(is_before);
                    self.pass(Moment::from_nanos(nanos).max(now));
                }
            }
            Input::Sought { which, .. }
            | Input::Hello { which, .. }
            | Input::Refused { which, .. }
            | Input::NodeEnded { which, .. }
            | Input::HalfClose { which, .. }
            | Input::CallerEnded { which }
            | Input::CallerLeft { which }
            | Input::SessionEnded { which }
            | Input::Close { which } => self.feed_tunnel(which, input),
        }
    }

    fn open(&mut self, to: u8, until: Phase) {
        let number = self.model.stories.len() as u32;
        let (expected, said) = (self.model.open(&wish(number, to), self.now), wish(number, to));
        let (id, ticket) = (said.open.id, said.open.ticket.clone());
        assert_eq!(self.tunnels.handle_open(said, self.now), expected);
        if expected.is_err() || until == Phase::Sought {
            return;
        }
        for shard in (0..SHARDS).map(ShardId) {
            let found = Some(session((1, number % 4)));
            self.tunnels.handle_sought(id, shard, found);
            self.model.sought(id, shard, found);
        }
        if until == Phase::Open {
            let stream = TunnelKey { shard: ShardId(1), slot: number, serial: 1 };
            self.tunnels.handle_hello(stream, &node(to), id, &ticket);
            self.model.hello(stream, &node(to), id, &ticket);
        }
    }

    fn pass(&mut self, to: Moment) {
        self.now = to;
        self.tunnels.handle_time(to);
        self.model.time(to);
    }

    fn feed_tunnel(&mut self, which: u8, input: &Input) {
        let Some(story) = self.chosen(which) else { return };
        let (id, owner, ticket) = (story.open.id, story.node.clone(), story.open.ticket.clone());
        let other = SessionKey { shard: ShardId(1), slot: 9, serial: 9 };
        let own_session = story.offered_to.unwrap_or(other);
        let own_stream = story.stream;
        let (tunnels, model) = (&mut self.tunnels, &mut self.model);
        let key = |slot: u32| TunnelKey { shard: ShardId(1), slot, serial: 0 };
        match *input {
            Input::Sought { shard, found, .. } => {
                tunnels.handle_sought(id, ShardId(shard), found.map(session));
                model.sought(id, ShardId(shard), found.map(session));
            }
            Input::Hello { is_wrong, stream, .. } => {
                let (by, shown) = match is_wrong {
                    Some(Wrong::Node) => (node(NODES), ticket),
                    Some(Wrong::Ticket) => (owner, Hidden("another".to_owned())),
                    None => (owner, ticket),
                };
                tunnels.handle_hello(key(stream), &by, id, &shown);
                model.hello(key(stream), &by, id, &shown);
            }
            Input::Refused { is_its_session, .. } => {
                let session = if is_its_session { own_session } else { other };
                let refused = TunnelRefused { id, reason: "no".to_owned() };
                tunnels.handle_refused(session, &refused);
                model.refused(session, id, "no");
            }
            Input::NodeEnded { is_its_stream, .. } => {
                let stream = own_stream.filter(|_| is_its_stream).unwrap_or(key(9));
                tunnels.handle_node_ended(stream, id, TunnelClose::Finished);
                model.node_ended(stream, id, &TunnelClose::Finished);
            }
            Input::HalfClose { by_node, .. } => {
                if by_node {
                    tunnels.handle_node_half_closed(id);
                } else {
                    tunnels.handle_caller_half_closed(id);
                }
                model.half_closed(id, by_node);
            }
            Input::CallerEnded { .. } => {
                let close = TunnelClose::Protocol("of the caller".to_owned());
                tunnels.handle_caller_ended(id, close.clone());
                model.end(id, &close, (true, false));
            }
            Input::CallerLeft { .. } => {
                tunnels.handle_caller_left(id);
                model.left(id);
            }
            Input::SessionEnded { .. } => {
                tunnels.handle_session_ended(own_session);
                model.end_all(&TunnelClose::SessionEnded, |story| story.offered_to == Some(own_session));
            }
            Input::Close { .. } => {
                let close = TunnelClose::asked("of one");
                assert_eq!(tunnels.handle_close(id, close.clone()), model.live(id).is_some());
                model.end(id, &close, (true, true));
            }
            _ => unreachable!("it is of no tunnel"),
        }
    }

    fn hold(&mut self) {
        let actions: Vec<TunnelAction> = std::iter::from_fn(|| self.tunnels.poll_action()).collect();
        assert_eq!(actions, std::mem::take(&mut self.model.expected));
        let (model, tunnels) = (&self.model, &self.tunnels);
        let live = || model.stories.iter().filter(|story| !story.is_over);
        assert_eq!(tunnels.load(), (live().count(), live().filter(|story| story.is_joined()).count()));
        let places = model.stories.iter().filter(|story| story.has_place()).count();
        assert_eq!(tunnels.leaving(), places - live().count());
        assert_eq!(tunnels.next_deadline(), live().map(|story| story.due(&model.limits)).min());
        for number in 0..NODES {
            assert_eq!(tunnels.admit(&node(number)), model.admit(&node(number)));
        }
        for story in &model.stories {
            let phase = (!story.is_over).then(|| story.phase());
            assert_eq!(tunnels.phase(story.open.id), phase);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_registry_does_what_the_model_does(
        limits in limits(),
        inputs in proptest::collection::vec(input(), 1..150),
    ) {
        let mut pair = Pair::new(limits);
        for input in &inputs {
            pair.feed(input);
            pair.hold();
        }
        pair.tunnels.handle_stop();
        pair.model.end_all(&TunnelClose::Stopping, |_| true);
        pair.hold();
        // With the callers all places are given back.
        let ids: Vec<TunnelId> = pair.model.stories.iter().map(|story| story.open.id).collect();
        for id in ids {
            pair.tunnels.handle_caller_left(id);
            pair.model.left(id);
        }
        pair.hold();
        prop_assert_eq!((pair.tunnels.load(), pair.tunnels.leaving()), ((0, 0), 0));
        pair.pass(pair.now + SECOND * 1_000);
        prop_assert_eq!(pair.tunnels.next_deadline(), None);
    }
}

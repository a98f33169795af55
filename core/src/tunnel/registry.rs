//! Every tunnel of a gateway: opened, joined, asked about, ended.
//!
//! A machine: what callers, shards, the IAM service and time bring in; what is to be told to whom out. It
//! carries no data: frames go past it, between the two ends that it has joined.
//!
//! 1. At most `most` tunnels are there, and at most `per_node` of one node, from the open to the end; one that was joined
//!    counts until its caller has let go of it, since so long what waits for the caller is kept.
//! 2. A tunnel that is not joined within `open_timeout` of its opening is over.
//! 3. A joined tunnel is over `max_life` after its opening, and `iam_patience` after the moment at which its
//!    caller should have been allowed again and was not.
//! 4. What is over is forgotten at once: whoever comes with its id afterwards comes with no tunnel's.
//! 5. Both ends of a tunnel that is over are told once each, unless they ended it.
//! 6. At most `TunnelLimits::iam_in_flight` questions are out; the longest due is asked first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::lifecycle::{Event, Phase, Step};
use super::ticket::TicketGrant;
use super::{OpenTunnel, TunnelBound, TunnelClose, TunnelId, TunnelKey, TunnelRefused};
use crate::ids::{NodeId, SessionEpoch, SessionKey, ShardId};
use crate::limits::TunnelLimits;
use crate::relay::Hidden;
use crate::time::Moment;

/// A tunnel that a caller wants, whose ticket was judged and is used up.
#[derive(Debug)]
pub struct OpenWish {
    pub node: NodeId,
    pub grant: TicketGrant,
    pub open: OpenTunnel,
}

/// What the IAM service is asked: whether this caller may still have this tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IamQuestion {
    pub tunnel: TunnelId,
    pub subject: String,
    pub node: NodeId,
    pub kind: String,
    pub ticket_id: String,
}

/// What it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IamVerdict {
    Allowed,
    Refused,
    /// It could not be asked, or did not answer.
    Away,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum TunnelAction {
    /// Ask every shard for the node's session.
    Seek {
        id: TunnelId,
        node: NodeId,
    },
    /// Offer the tunnel to the session.
    Offer {
        session: SessionKey,
        open: Box<OpenTunnel>,
    },
    /// The node's stream has its tunnel, and the caller its node.
    Join {
        id: TunnelId,
        stream: TunnelKey,
    },
    AskIam(Box<IamQuestion>),
    /// End the node's stream.
    CloseStream {
        stream: TunnelKey,
        close: TunnelClose,
    },
    /// Tell the caller that its tunnel is over, or is not opened.
    CloseCaller {
        id: TunnelId,
        close: TunnelClose,
    },
    /// The tunnel is over and forgotten; for whoever counts.
    Over {
        close: TunnelClose,
        was_joined: bool,
    },
}

#[derive(Debug)]
struct Tunnel {
    node: NodeId,
    subject: String,
    ticket_id: String,
    ticket: Hidden<String>,
    kind: String,
    phase: Phase,
    /// Taken when it is offered.
    open: Option<Box<OpenTunnel>>,
    unanswered: BTreeSet<ShardId>,
    best: Option<(SessionEpoch, SessionKey)>,
    session: Option<SessionKey>,
    stream: Option<TunnelKey>,
    open_until: Moment,
    ends_at: Moment,
    /// `None` while a question is out or waits to be asked.
    ask_at: Option<Moment>,
    trusted_until: Moment,
}

impl Tunnel {
    fn deadline(&self) -> Moment {
        if !self.phase.is_joined() {
            return self.open_until;
        }
        self.ask_at.into_iter().fold(self.ends_at.min(self.trusted_until), Moment::min)
    }
}

/// The machine.
#[derive(Debug)]
pub struct Tunnels {
    limits: Arc<TunnelLimits>,
    shards: Vec<ShardId>,
    by_id: BTreeMap<TunnelId, Tunnel>,
    per_node: BTreeMap<NodeId, usize>,
    joined: usize,
    /// Over, and forgotten but for the place.
    leaving: BTreeMap<TunnelId, NodeId>,
    deadlines: BTreeSet<(Moment, TunnelId)>,
    asked: usize,
    to_ask: VecDeque<TunnelId>,
    actions: VecDeque<TunnelAction>,
}

impl Tunnels {
    /// Of a gateway with these shards.
    pub fn new(limits: Arc<TunnelLimits>, shards: Vec<ShardId>) -> Self {
        Self {
            limits,
            shards,
            by_id: BTreeMap::new(),
            per_node: BTreeMap::new(),
            joined: 0,
            leaving: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            asked: 0,
            to_ask: VecDeque::new(),
            actions: VecDeque::new(),
        }
    }

    // -- inputs ----------------------------------------------------------------------------------

    /// Whether one more tunnel to this node may be opened. To be asked before its ticket is used up.
    pub fn admit(&self, node: &NodeId) -> Result<(), TunnelClose> {
        if self.limits.most == 0 {
            return Err(TunnelClose::NotOffered);
        }
        if self.by_id.len() + self.leaving.len() >= self.limits.most {
            return Err(TunnelClose::Full(TunnelBound::Gateway));
        }
        if self.per_node.get(node).is_some_and(|open| *open >= self.limits.per_node) {
            return Err(TunnelClose::Full(TunnelBound::Node));
        }
        Ok(())
    }

    /// A caller opens a tunnel; its id is new and nobody can guess it.
    pub fn handle_open(&mut self, wish: OpenWish, now: Moment) -> Result<(), TunnelClose> {
        let OpenWish { node, grant, open } = wish;
        self.admit(&node)?;
        let id = open.id;
        let tunnel = Tunnel {
            node: node.clone(),
            subject: grant.subject,
            ticket_id: grant.ticket_id,
            ticket: open.ticket.clone(),
            kind: open.kind.clone(),
            phase: Phase::Sought,
            open: Some(Box::new(open)),
            unanswered: self.shards.iter().copied().collect(),
            best: None,
            session: None,
            stream: None,
            open_until: now + self.limits.open_timeout,
            ends_at: now + self.limits.max_life,
            ask_at: Some(now + self.limits.reauthorize_every),
            trusted_until: now + self.limits.reauthorize_every + self.limits.iam_patience,
        };
        *self.per_node.entry(node.clone()).or_default() += 1;
        self.deadlines.insert((tunnel.deadline(), id));
        let previous = self.by_id.insert(id, tunnel);
        assert!(previous.is_none(), "registry 1: an id was given twice");
        self.actions.push_back(TunnelAction::Seek { id, node });
        Ok(())
    }

    /// A shard has looked for the node's session.
    pub fn handle_sought(&mut self, id: TunnelId, shard: ShardId, found: Option<(SessionEpoch, SessionKey)>) {
        let Some(tunnel) = self.by_id.get_mut(&id).filter(|tunnel| tunnel.phase == Phase::Sought) else {
            return;
        };
        tunnel.unanswered.remove(&shard);
        // Of two sessions of a node the one of the higher epoch is about to supersede the other.
        tunnel.best = tunnel.best.max(found);
        if !tunnel.unanswered.is_empty() {
            return;
        }
        match tunnel.best {
            Some((_, session)) => {
                tunnel.session = Some(session);
                let open = tunnel.open.take();
                self.take_event(id, Event::Found, TunnelClose::NoSession);
                self.actions.extend(open.map(|open| TunnelAction::Offer { session, open }));
            }
            None => self.take_event(id, Event::NotFound, TunnelClose::NoSession),
        }
    }

    /// The node of a session refuses.
    pub fn handle_refused(&mut self, session: SessionKey, refused: &TunnelRefused) {
        if self.by_id.get(&refused.id).is_some_and(|tunnel| tunnel.session == Some(session)) {
            self.take_event(refused.id, Event::Refused, TunnelClose::node_refused(&refused.reason));
        }
    }

    /// A stream of `node` says that it is for this tunnel.
    pub fn handle_hello(&mut self, stream: TunnelKey, node: &NodeId, id: TunnelId, ticket: &Hidden<String>) {
        let known = self
            .by_id
            .get_mut(&id)
            .filter(|tunnel| tunnel.node == *node && tunnel.ticket == *ticket)
            .filter(|tunnel| tunnel.phase.on(Event::Joined) == Step::To(Phase::Open));
        let Some(tunnel) = known else {
            // In one word for all: nobody learns here which ids there are.
            return self
                .actions
                .push_back(TunnelAction::CloseStream { stream, close: TunnelClose::NotKnown });
        };
        tunnel.stream = Some(stream);
        self.take_event(id, Event::Joined, TunnelClose::NotKnown);
        self.actions.push_back(TunnelAction::Join { id, stream });
    }

    /// The node's stream is over.
    pub fn handle_node_ended(&mut self, stream: TunnelKey, id: TunnelId, close: TunnelClose) {
        if let Some(tunnel) = self.by_id.get_mut(&id)
            && tunnel.stream == Some(stream)
        {
            tunnel.stream = None;
            self.take_event(id, Event::NodeEnded, close);
        }
    }

    /// The node has closed its half.
    pub fn handle_node_half_closed(&mut self, id: TunnelId) {
        self.take_event(id, Event::NodeHalfClose, TunnelClose::Finished);
    }

    /// The caller has closed its half.
    pub fn handle_caller_half_closed(&mut self, id: TunnelId) {
        self.take_event(id, Event::CallerHalfClose, TunnelClose::Finished);
    }

    /// The caller has let go of its tunnel, or broke its rules: it is told nothing.
    pub fn handle_caller_ended(&mut self, id: TunnelId, close: TunnelClose) {
        self.end(id, close, false);
    }

    /// The caller of a tunnel that was joined has let go of all of it.
    pub fn handle_caller_left(&mut self, id: TunnelId) {
        self.end(id, TunnelClose::CallerGone, false);
        if let Some(node) = self.leaving.remove(&id) {
            self.release(&node);
        }
    }

    /// A session that was offered a tunnel is over.
    pub fn handle_session_ended(&mut self, session: SessionKey) {
        self.end_where(|tunnel| tunnel.session == Some(session), &TunnelClose::SessionEnded);
    }

    /// Someone wants a tunnel closed. Whether there was one.
    pub fn handle_close(&mut self, id: TunnelId, close: TunnelClose) -> bool {
        let is_there = self.by_id.contains_key(&id);
        self.take_event(id, Event::Close, close);
        is_there
    }

    /// Someone wants all tunnels of a node closed. How many there were.
    pub fn handle_close_node(&mut self, node: &NodeId, close: &TunnelClose) -> usize {
        self.end_where(|tunnel| tunnel.node == *node, close)
    }

    /// The gateway stops.
    pub fn handle_stop(&mut self) {
        self.end_where(|_| true, &TunnelClose::Stopping);
    }

    /// The IAM service has answered, or could not.
    pub fn handle_verdict(&mut self, id: TunnelId, verdict: IamVerdict, now: Moment) {
        debug_assert!(self.asked > 0, "registry 6: an answer without a question");
        self.asked = self.asked.saturating_sub(1);
        let (every, patience) = (self.limits.reauthorize_every, self.limits.iam_patience);
        match verdict {
            IamVerdict::Refused => self.take_event(id, Event::Close, TunnelClose::NotAllowed),
            IamVerdict::Allowed => self.set_times(id, |tunnel| {
                tunnel.ask_at = Some(now + every);
                tunnel.trusted_until = now + every + patience;
            }),
            // Several times within the patience.
            IamVerdict::Away => self.set_times(id, |tunnel| tunnel.ask_at = Some(now + patience / 8)),
        }
        self.ask_next();
    }

    /// Time has passed; to be called at `next_deadline` or later.
    pub fn handle_time(&mut self, now: Moment) {
        while let Some((at, id)) = self.deadlines.first().copied()
            && at <= now
        {
            let Some(tunnel) = self.by_id.get(&id) else { break };
            if !tunnel.phase.is_joined() {
                self.take_event(id, Event::OpenLate, late(tunnel.phase));
            } else if tunnel.ends_at <= now {
                self.take_event(id, Event::Close, TunnelClose::LifeOver);
            } else if tunnel.trusted_until <= now {
                self.take_event(id, Event::Close, TunnelClose::IamAway);
            } else {
                self.set_times(id, |tunnel| tunnel.ask_at = None);
                self.to_ask.push_back(id);
            }
        }
        self.ask_next();
    }

    // -- outputs ---------------------------------------------------------------------------------

    /// What is to be done, in order.
    pub fn poll_action(&mut self) -> Option<TunnelAction> {
        self.actions.pop_front()
    }

    // -- getters ---------------------------------------------------------------------------------

    /// When `handle_time` must be called, though nothing happens.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// How many tunnels there are, and how many of them are joined.
    pub fn load(&self) -> (usize, usize) {
        (self.by_id.len(), self.joined)
    }

    /// How many are over whose caller has not let go.
    pub fn leaving(&self) -> usize {
        self.leaving.len()
    }

    /// Where a tunnel is in its life.
    pub fn phase(&self, id: TunnelId) -> Option<Phase> {
        self.by_id.get(&id).map(|tunnel| tunnel.phase)
    }

    // -- steps -----------------------------------------------------------------------------------

    fn take_event(&mut self, id: TunnelId, event: Event, close: TunnelClose) {
        let Some(tunnel) = self.by_id.get_mut(&id) else { return };
        match tunnel.phase.on(event) {
            Step::To(phase) => {
                let before = (tunnel.deadline(), id);
                self.joined += usize::from(phase.is_joined() && !tunnel.phase.is_joined());
                tunnel.phase = phase;
                let after = (tunnel.deadline(), id);
                self.deadlines.remove(&before);
                self.deadlines.insert(after);
            }
            Step::End => self.end(id, close, true),
            Step::Stay | Step::Drop | Step::Refuse => {}
        }
    }

    fn set_times(&mut self, id: TunnelId, set: impl FnOnce(&mut Tunnel)) {
        let Some(tunnel) = self.by_id.get_mut(&id) else { return };
        self.deadlines.remove(&(tunnel.deadline(), id));
        set(tunnel);
        self.deadlines.insert((tunnel.deadline(), id));
    }

    fn ask_next(&mut self) {
        while self.asked < self.limits.iam_in_flight()
            && let Some(id) = self.to_ask.pop_front()
        {
            let Some(tunnel) = self.by_id.get(&id) else { continue };
            self.asked += 1;
            self.actions.push_back(TunnelAction::AskIam(Box::new(IamQuestion {
                tunnel: id,
                subject: tunnel.subject.clone(),
                node: tunnel.node.clone(),
                kind: tunnel.kind.clone(),
                ticket_id: tunnel.ticket_id.clone(),
            })));
        }
    }

    fn end_where(&mut self, which: impl Fn(&Tunnel) -> bool, close: &TunnelClose) -> usize {
        let ids: Vec<TunnelId> =
            self.by_id.iter().filter(|(_, tunnel)| which(tunnel)).map(|(id, _)| *id).collect();
        ids.iter().for_each(|id| self.end(*id, close.clone(), true));
        ids.len()
    }

    fn end(&mut self, id: TunnelId, close: TunnelClose, tells_caller: bool) {
        let Some(tunnel) = self.by_id.remove(&id) else { return };
        self.deadlines.remove(&(tunnel.deadline(), id));
        let was_joined = tunnel.phase.is_joined();
        if was_joined {
            self.joined -= 1;
            self.leaving.insert(id, tunnel.node);
        } else {
            self.release(&tunnel.node);
        }
        if let Some(stream) = tunnel.stream {
            self.actions.push_back(TunnelAction::CloseStream { stream, close: close.clone() });
        }
        if tells_caller {
            self.actions.push_back(TunnelAction::CloseCaller { id, close: close.clone() });
        }
        self.actions.push_back(TunnelAction::Over { close, was_joined });
    }

    fn release(&mut self, node: &NodeId) {
        if let Some(open) = self.per_node.get_mut(node) {
            *open -= 1;
            if *open == 0 {
                self.per_node.remove(node);
            }
        }
    }
}

/// Why an open is late: a shard that does not answer is our fault, not the node's.
const fn late(phase: Phase) -> TunnelClose {
    match phase {
        Phase::Sought => TunnelClose::NoSession,
        _ => TunnelClose::NodeLate,
    }
}

#[cfg(test)]
mod stories;

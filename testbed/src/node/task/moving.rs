//! How a node moves to another gateway after a `Drain`: the next session is welcomed before the old one
//! is left, so that no command waits.
//!
//! Owns the successor of a session and the session that was left. Which gateway is dialled is a turn
//! through the targets, as behind a balancer.
//!
//! 1. Until `Welcome` of the successor the old session is the node's: it beats, takes and reports.
//! 2. With it the successor is; the old one is half-closed and waited for, a few seconds at most.
//! 3. A successor that is refused or lost is tried again by the rules, while the old session stands.

use std::time::Duration;

use bytes::Bytes;
use gateway_proto::path;
use gateway_proto::v1::{GatewayFrame, Hello, gateway_frame, node_frame::Frame};
use http::HeaderMap;
use prost::Message;
use rand::Rng;
use tokio::time::Instant;

use super::super::call::{Arrival, Call, Target};
use super::super::end::{End, EndKind};
use super::super::observer::NodeEvent;
use super::super::redial::Redial;
use super::super::session::{Dial, Session};
use super::{DIAL_TIMEOUT, NodeTask, Phase};
use crate::clock::monotonic_ns;

const OK: u32 = 0;
const ABORTED: u32 = 10;
/// How long a session that was left may take to end.
const PARTING_TIMEOUT: Duration = Duration::from_secs(5);

/// The session that will replace a drained one.
#[derive(Default)]
pub(in crate::node) enum Successor {
    #[default]
    None,
    Dialing(Dial),
    /// Its Hello was sent.
    Greeting(Box<Session>),
}

/// A session that was left for its successor.
pub(super) struct Parting {
    pub(super) call: Box<Call>,
    until: Instant,
}

impl NodeTask {
    /// Where the present session was dialled, or the next one is.
    pub(super) fn session_target(&self) -> Target {
        let turns = self.options.elsewhere.len() + 1;
        match self.dials % turns {
            0 => self.options.target.clone(),
            turn => self.options.elsewhere[turn - 1].clone(),
        }
    }

    pub(super) fn dial(&mut self) -> Dial {
        if let Some(gateway) = &self.options.within {
            let called = Call::within(gateway.as_ref(), &self.name).map(Box::new);
            return Box::pin(std::future::ready(called));
        }
        let target = self.session_target();
        let enrolment = self.options.enrolment.clone();
        Box::pin(async move {
            let calling = async {
                let target = match enrolment {
                    Some(enrolment) => enrolment.dressed(&target).await?,
                    None => target,
                };
                target.call(path::SESSION, HeaderMap::new()).await
            };
            let called = tokio::time::timeout(DIAL_TIMEOUT, calling).await;
            called
                .unwrap_or_else(|_| Err(End::of(EndKind::Transport, "dialling took too long")))
                .map(Box::new)
        })
    }

    pub(super) fn hello(&self) -> Frame {
        Frame::Hello(Hello {
            protocol: 1,
            boot_id: self.options.boot_id.clone(),
            machine: self.options.machine.clone(),
            software_version: env!("CARGO_PKG_VERSION").to_owned(),
            role: self.options.role.clone(),
            features: self.features(),
            lanes: self.memory.lanes().to_vec(),
            known_commands: self.memory.listed(),
            specs: self.specs.listed(),
            inventory: self.inventory.list(),
            ..self.journal.hello()
        })
    }

    /// What was on its way in the session before is on its way no more.
    pub(super) fn start_session(&mut self) {
        self.memory.start_session();
        self.inventory.start_session();
        self.journal.start_session();
    }

    pub(super) fn handle_dialed(&mut self, call: Box<Call>) {
        let mut session = Box::new(Session::new(call, Instant::now()));
        session.send(self.hello());
        match &mut self.phase {
            Phase::Live(old) => old.successor = Successor::Greeting(session),
            _ => {
                self.start_session();
                self.phase = Phase::Live(session);
            }
        }
    }

    pub(super) fn handle_dial_failed(&mut self, end: End) {
        match &self.phase {
            Phase::Live(_) => self.handle_successor_ended(end),
            _ => self.handle_end(end),
        }
    }

    /// It is time to leave.
    pub(super) fn dial_successor(&mut self) {
        self.dials += 1;
        let dial = self.dial();
        if let Phase::Live(session) = &mut self.phase {
            session.successor = Successor::Dialing(dial);
        }
    }

    pub(super) fn handle_successor(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Message(message) => self.take_over(message),
            Arrival::Ended(end) => self.handle_successor_ended(end),
        }
    }

    /// The first frame of the successor.
    fn take_over(&mut self, message: Bytes) {
        let frame = GatewayFrame::decode(message.clone()).ok().and_then(|frame| frame.frame);
        if !matches!(frame, Some(gateway_frame::Frame::Welcome(_))) {
            return self.handle_successor_ended(End::of(EndKind::Transport, "the first frame is no Welcome"));
        }
        let Phase::Live(old) = &mut self.phase else { return };
        let Successor::Greeting(next) = std::mem::take(&mut old.successor) else { return };
        let Phase::Live(mut old) = std::mem::replace(&mut self.phase, Phase::Live(next)) else { return };
        old.call.half_close();
        self.parting = Some(Parting { call: old.call, until: Instant::now() + PARTING_TIMEOUT });
        self.start_session();
        self.handle_message(message);
    }

    fn handle_successor_ended(&mut self, end: End) {
        let delay = match self.redialer.handle_end(&end, self.random.next_u64()) {
            Redial::After(delay) => Some(delay),
            Redial::Never => None,
        };
        if let Phase::Live(session) = &mut self.phase {
            session.successor = Successor::None;
            if let Some(delay) = delay {
                session.drain(delay, Instant::now());
            }
        }
        self.tell(NodeEvent::Ended { end, redial_after: delay, at_ns: monotonic_ns() });
    }

    /// The session ended while its successor was on its way. Whether that is the node's session now.
    pub(super) fn succeed(&mut self, end: &End) -> bool {
        let Phase::Live(session) = &mut self.phase else { return false };
        let phase = match std::mem::take(&mut session.successor) {
            Successor::None => return false,
            Successor::Dialing(dial) => Phase::Dialing(dial, Instant::now() + DIAL_TIMEOUT),
            Successor::Greeting(next) => Phase::Live(next),
        };
        self.tell_left(end.clone());
        self.phase = phase;
        self.start_session();
        true
    }

    pub(super) fn handle_parted(&mut self, arrival: Arrival) {
        // Its last answers are to what goes again in the session that is there now.
        if let Arrival::Ended(end) = arrival {
            self.parting = None;
            self.tell_left(end);
        }
    }

    fn tell_left(&self, mut end: End) {
        end.was_welcomed = true;
        if matches!(end.kind, EndKind::Status(OK | ABORTED)) {
            end.kind = EndKind::Asked;
        }
        self.tell(NodeEvent::Ended { end, redial_after: Some(Duration::ZERO), at_ns: monotonic_ns() });
    }

    pub(super) fn moving_deadline(&self) -> Option<Instant> {
        let greeting = match &self.phase {
            Phase::Live(session) => match &session.successor {
                Successor::Greeting(next) => next.next_deadline(false),
                Successor::None | Successor::Dialing(_) => None,
            },
            _ => None,
        };
        greeting.into_iter().chain(self.parting.as_ref().map(|parting| parting.until)).min()
    }

    pub(super) fn handle_moving_time(&mut self, now: Instant) {
        if self.parting.as_ref().is_some_and(|parting| parting.until <= now) {
            self.parting = None;
            self.tell_left(End::of(EndKind::Asked, "replaced after a drain"));
        }
        if let Phase::Live(session) = &self.phase
            && let Successor::Greeting(next) = &session.successor
            && next.next_deadline(false).is_some_and(|due| due <= now)
        {
            self.handle_successor_ended(End::of(EndKind::GatewaySilent, "no Welcome came"));
        }
    }
}

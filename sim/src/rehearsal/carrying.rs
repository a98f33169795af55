//! Between nodes, sessions, the writer and the store: each is given what another one gives, a little later.
//!
//! Carries and never decides, as the shells of a gateway do.
//!
//! 1. One wire keeps the order of what goes over it; wires overtake each other.
//! 2. A job commits at one moment and is heard of at a later one.

use std::sync::Arc;
use std::time::Duration;

use gateway_core::close::CloseReason;
use gateway_core::frame::NodeFrame;
use gateway_core::ids::{SessionKey, ShardId};
use gateway_core::seam::{Identity, ToShard, ToWriter};
use gateway_core::session::Session;
use gateway_core::store::Queue;
use gateway_core::time::Moment;
use gateway_core::writer::Writer;

use super::{Event, Flight, Link, NodeLogic, Open, Rehearsal, StreamEnd, Wire};

/// What a frame counts in its session's inbox.
const FRAME_BYTES: usize = 100;
const SHARD: ShardId = ShardId(0);

impl<N: NodeLogic> Rehearsal<N> {
    pub(super) fn happen(&mut self, event: Event) {
        match event {
            Event::WriterTime { life } if life == self.life => {
                let now = self.now;
                if self.gateway.as_mut().is_some_and(|gateway| is_due(&mut gateway.timer, now)) {
                    self.with_writer(|writer, now| writer.handle_time(now));
                }
            }
            Event::SessionTime { life, key } if life == self.life => {
                let now = self.now;
                if self.open(key).is_some_and(|open| is_due(&mut open.timer, now)) {
                    self.with_session(key, |session, now| session.handle_time(now));
                }
            }
            Event::NodeTime { node } => self.node_time(node),
            Event::Post { life, message } if life == self.life => {
                self.with_writer(|writer, now| writer.handle_message(message, now));
            }
            Event::Mail { life, message } if life == self.life => self.mail(message),
            Event::Execute { life, queue } if life == self.life => self.execute(queue),
            Event::Heard { life, queue } if life == self.life => self.heard(queue),
            Event::Dial { node } => self.dial(node),
            Event::Up { link, frame } => self.up(link, frame),
            Event::Down { link, frame } => {
                if let Some(node) = self.node_of(link) {
                    self.seats[node].logic.handle_frame(frame, self.now);
                    self.ask_node(node);
                }
            }
            Event::Ended { link, end } => {
                if let Some(node) = self.node_of(link) {
                    self.links.remove(&link);
                    self.seats[node].link = None;
                    self.seats[node].logic.handle_ended(&end, self.now);
                    self.ask_node(node);
                }
            }
            Event::Refused { node, end } => {
                self.seats[node].is_dialling = false;
                self.seats[node].logic.handle_ended(&end, self.now);
                self.ask_node(node);
            }
            // Of a process that is gone.
            _ => {}
        }
    }

    fn at(&mut self, wait: Duration, event: Event) {
        self.events.insert((self.now + wait, self.next_event), event);
        self.next_event += 1;
    }

    fn along(&mut self, wire: Wire, event: Event) {
        let wait = Duration::from_micros(self.chance.within(50..5_000));
        let last = self.wires.get(&wire).copied().unwrap_or_default();
        let at = last.max(self.now + wait);
        self.wires.insert(wire, at);
        self.at(at.since(self.now), event);
    }

    // -- nodes -----------------------------------------------------------------------------------

    /// The node whose stream this is.
    fn node_of(&self, link: u64) -> Option<usize> {
        let node = self.links.get(&link)?.node;
        (self.seats[node].link == Some(link)).then_some(node)
    }

    /// Asks a node what it wants, and does that.
    pub(super) fn ask_node(&mut self, node: usize) {
        let now = self.now;
        let seat = &mut self.seats[node];
        if let Some(link) = seat.link {
            while let Some(frame) = self.seats[node].logic.poll_frame() {
                self.along(Wire::Up(link), Event::Up { link, frame });
            }
        } else if !seat.is_dialling && seat.logic.wants_stream(now) {
            seat.is_dialling = true;
            let wait = Duration::from_micros(self.chance.within(50..5_000));
            self.at(wait, Event::Dial { node });
        }
        let seat = &mut self.seats[node];
        // One that dials waits for what comes of that.
        if seat.is_dialling {
            return;
        }
        let deadline = seat.logic.next_deadline().map(|at| at.max(now));
        if let Some(at) = deadline.filter(|at| seat.timer.is_none_or(|timer| *at < timer)) {
            seat.timer = Some(at);
            self.at(at.since(now), Event::NodeTime { node });
        }
    }

    fn node_time(&mut self, node: usize) {
        if is_due(&mut self.seats[node].timer, self.now) {
            self.seats[node].logic.handle_time(self.now);
            self.ask_node(node);
        }
    }

    fn dial(&mut self, node: usize) {
        let random = self.chance.next();
        let opened = match &mut self.gateway {
            None => Err(None),
            Some(gateway) => match &gateway.refuses {
                Some(reason) => Err(Some(reason.clone())),
                None => gateway.admission.handle_open(random, self.now).map_err(Some),
            },
        };
        if let Err(reason) = opened {
            let wait = Duration::from_micros(self.chance.within(50..5_000));
            return self.at(wait, Event::Refused { node, end: StreamEnd { reason } });
        }
        let Some(gateway) = &mut self.gateway else { return };
        gateway.next_slot += 1;
        let key = SessionKey { shard: SHARD, slot: gateway.next_slot, serial: gateway.next_slot };
        let seat = &mut self.seats[node];
        let identity = Identity {
            node: seat.id.clone(),
            site: "rehearsal".into(),
            certificate_serial: format!("{:X}", node + 1),
        };
        let session = Session::new(key, identity, Arc::clone(&self.limits), self.now);
        let link = self.next_link;
        self.next_link += 1;
        gateway.sessions.insert(key, Open { session, link, hello_waits: true, timer: None });
        self.links.insert(link, Link { node, life: self.life, key });
        (seat.link, seat.is_dialling) = (Some(link), false);
        seat.logic.handle_opened(self.now);
        self.pump_session(key);
        self.ask_node(node);
    }

    /// Tells a node how its stream ended, behind what is on its way.
    pub(super) fn down(&mut self, link: u64, end: StreamEnd) {
        self.along(Wire::Down(link), Event::Ended { link, end });
    }

    // -- sessions --------------------------------------------------------------------------------

    fn open(&mut self, key: SessionKey) -> Option<&mut Open> {
        self.gateway.as_mut()?.sessions.get_mut(&key)
    }

    fn up(&mut self, link: u64, frame: NodeFrame) {
        if let Some(Link { life, key, .. }) = self.links.get(&link).copied()
            && life == self.life
        {
            self.with_session(key, |session, now| session.handle_frame(frame, FRAME_BYTES, now));
        }
    }

    pub(super) fn with_session(&mut self, key: SessionKey, input: impl FnOnce(&mut Session, Moment)) {
        let now = self.now;
        if let Some(open) = self.open(key) {
            input(&mut open.session, now);
            self.pump_session(key);
        }
    }

    fn pump_session(&mut self, key: SessionKey) {
        let (now, life) = (self.now, self.life);
        loop {
            let Some(open) = self.open(key) else { return };
            let link = open.link;
            if let Some(message) = open.session.poll_to_writer() {
                self.along(Wire::Post(life), Event::Post { life, message });
            } else if let Some(frame) = open.session.poll_frame() {
                open.session.handle_all_sent();
                self.along(Wire::Down(link), Event::Down { link, frame });
            } else if let Some(reason) = open.session.poll_end() {
                while let Some(message) = self.open(key).and_then(|open| open.session.poll_to_writer()) {
                    self.along(Wire::Post(life), Event::Post { life, message });
                }
                self.close(key);
                return self.down(link, StreamEnd { reason: Some(reason) });
            } else {
                let deadline = open.session.next_deadline().map(|at| at.max(now));
                let timer = deadline.filter(|at| open.timer.is_none_or(|timer| *at < timer));
                if let Some(at) = timer {
                    open.timer = Some(at);
                    self.at(at.since(now), Event::SessionTime { life, key });
                }
                return self.note_hello(key);
            }
        }
    }

    /// As a driver does: a stream whose Hello has its outcome waits for none.
    fn note_hello(&mut self, key: SessionKey) {
        let now = self.now;
        let Some(gateway) = &mut self.gateway else { return };
        if let Some(open) = gateway.sessions.get_mut(&key)
            && !open.session.hello_is_pending()
            && std::mem::take(&mut open.hello_waits)
        {
            gateway.admission.handle_hello_done(now);
        }
    }

    fn close(&mut self, key: SessionKey) {
        let now = self.now;
        let Some(gateway) = &mut self.gateway else { return };
        if gateway.sessions.remove(&key).is_some_and(|open| open.hello_waits) {
            gateway.admission.handle_hello_done(now);
        }
        gateway.admission.handle_close(now);
    }

    fn mail(&mut self, message: ToShard) {
        let all = |rehearsal: &Self| -> Vec<SessionKey> {
            rehearsal.gateway.iter().flat_map(|gateway| gateway.sessions.keys().copied()).collect()
        };
        let refuse = |rehearsal: &mut Self, reason| {
            if let Some(gateway) = &mut rehearsal.gateway {
                gateway.refuses = reason;
            }
        };
        match message {
            ToShard::Session { key, news } => {
                self.with_session(key, |session, now| session.handle_news(news, now));
            }
            ToShard::Serving(true) => refuse(self, None),
            ToShard::Serving(false) => refuse(self, Some(CloseReason::Fenced)),
            ToShard::CloseAll(reason) => {
                for key in all(self) {
                    let reason = reason.clone();
                    self.with_session(key, |session, now| session.handle_close(reason, now));
                }
            }
            ToShard::Revoked { added, .. } => {
                for revocation in added.iter() {
                    for key in self.of_certificate(&revocation.serial) {
                        self.with_session(key, |session, now| session.handle_revoked(revocation, now));
                    }
                }
            }
            ToShard::Drain(order) => {
                let random = self.chance.next();
                refuse(self, Some(order.refusal(random)));
                for key in all(self) {
                    self.with_session(key, |session, now| session.handle_drain(&order, now));
                }
            }
            ToShard::Cut(order) => {
                for key in all(self) {
                    self.with_session(key, |session, now| session.handle_cut(&order, now));
                }
            }
            ToShard::Stop => {
                refuse(self, Some(CloseReason::Stopping));
                for key in all(self) {
                    self.with_session(key, |session, now| session.handle_close(CloseReason::Stopping, now));
                }
                let life = self.life;
                let message = ToWriter::ShardStopped { shard: SHARD };
                self.along(Wire::Post(life), Event::Post { life, message });
            }
            ToShard::Relayed(_) | ToShard::Vitals(_) | ToShard::Tunnel(_) => {
                unreachable!("these are not the writer's")
            }
        }
    }

    fn of_certificate(&self, serial: &str) -> Vec<SessionKey> {
        let of = |link: &Link| format!("{:X}", link.node + 1) == serial && link.life == self.life;
        self.links.values().filter(|link| of(link)).map(|link| link.key).collect()
    }

    // -- the writer and the store ----------------------------------------------------------------

    pub(super) fn with_writer(&mut self, input: impl FnOnce(&mut Writer, Moment)) {
        let now = self.now;
        if let Some(gateway) = &mut self.gateway {
            input(&mut gateway.writer, now);
            self.pump_writer();
        }
    }

    pub(super) fn pump_writer(&mut self) {
        let (now, life) = (self.now, self.life);
        while let Some(gateway) = &mut self.gateway {
            if let Some((_, message)) = gateway.writer.poll_to_shard() {
                self.along(Wire::Mail(life), Event::Mail { life, message });
            } else if let Some(job) = gateway.writer.poll_job(now) {
                let queue = job.queue();
                let before = gateway.flights.insert(queue, Flight { job, started: now, outcome: None });
                assert!(before.is_none(), "one job of a queue at a time");
                let wait = Duration::from_micros(self.chance.within(100..5_000));
                self.at(wait, Event::Execute { life, queue });
            } else {
                break;
            }
        }
        let Some(gateway) = &mut self.gateway else { return };
        // Nothing here is held back by the bytes of a mailbox.
        gateway.writer.poll_released_bytes();
        let deadline = gateway.writer.next_deadline().map(|at| at.max(now));
        if let Some(at) = deadline.filter(|at| gateway.timer.is_none_or(|timer| *at < timer)) {
            gateway.timer = Some(at);
            self.at(at.since(now), Event::WriterTime { life });
        }
    }

    fn execute(&mut self, queue: Queue) {
        let (life, clock) = (self.life, self.clock());
        let Some(flight) = self.gateway.as_mut().and_then(|gateway| gateway.flights.get_mut(&queue)) else {
            return;
        };
        flight.outcome = Some(self.store.commit(&flight.job, clock));
        let wait = Duration::from_micros(self.chance.within(50..2_000));
        self.at(wait, Event::Heard { life, queue });
    }

    fn heard(&mut self, queue: Queue) {
        let flight = self.gateway.as_mut().and_then(|gateway| gateway.flights.remove(&queue));
        if let Some(Flight { outcome: Some(outcome), started, .. }) = flight {
            self.with_writer(|writer, now| writer.handle_outcome(outcome, started, now));
        }
    }
}

/// Whether a timer has come; an earlier one may have taken its place, and then it has not.
fn is_due(timer: &mut Option<Moment>, now: Moment) -> bool {
    timer.take_if(|at| *at <= now).is_some()
}

//! Between machines: nodes, sessions, writers and the store, each given what another one gives.
//!
//! Carries and never decides, as the shells of a gateway do. What passes is shown to `watch`, which changes
//! nothing.

use std::sync::Arc;
use std::time::Duration;

use gateway_core::close::CloseReason;
use gateway_core::frame::{GatewayFrame, NodeFrame};
use gateway_core::ids::{NodeId, SessionKey, ShardId};
use gateway_core::seam::{Identity, ToShard, ToWriter};
use gateway_core::session::{Phase as SessionPhase, Session, SessionEvent};
use gateway_core::store::{Outcome, Queue};
use gateway_core::time::Moment;
use gateway_core::writer::{LeaseState, Phase, Writer};

use super::revocations::serial_of;
use super::{Event, Link, Wire, World};
use crate::check::must;
use crate::coverage::event_of;
use crate::process::{Flight, OpenSession, Process, SHARDS};
use crate::watched::SessionWatch;

impl World {
    // -- nodes -----------------------------------------------------------------------------------

    pub(super) fn node_time(&mut self, number: usize) {
        self.node_timers[number] = None;
        let node = &mut self.nodes[number];
        node.handle_time(&mut self.chance, self.now);
        if node.takes_gateway_for_dead(self.now) {
            self.check_is_dead(number);
            self.note_fault("gateway taken for dead");
            if let Some(link) = self.nodes[number].link {
                self.along(Wire::Up(link), Event::UpEnds { link, half_close: false });
            }
            self.node_ended(number);
        }
        if self.nodes[number].redial_at.is_some_and(|at| self.now >= at) {
            self.dial(number);
        }
        self.pump_node(number);
    }

    pub(super) fn dial(&mut self, number: usize) {
        let Some(link) = self.open_link(number, false) else {
            // Exactly the pushback, where one was given.
            return match self.refused_until.take() {
                Some(at) => {
                    self.note_fault("a stream refused");
                    self.probes.told_until.insert(number, at);
                    self.nodes[number].handle_ended(at.since(self.now), self.now);
                    self.pump_node(number);
                }
                None => self.node_ended(number),
            };
        };
        if self.is_disturbed() && self.chance.percent(4) {
            self.nodes[number].specs.forget_all();
        }
        self.nodes[number].handle_connected(link, self.now);
    }

    /// Opens a session on some process; `None` where that does not serve.
    pub(super) fn open_link(&mut self, number: usize, is_twin: bool) -> Option<u64> {
        let process = self.chance.within(0..self.processes.len() as u64) as usize;
        self.open_link_to(process, number, is_twin)
    }

    pub(super) fn open_link_to(&mut self, process: usize, number: usize, is_twin: bool) -> Option<u64> {
        let shard = self.chance.within(0..u64::from(SHARDS)) as u16;
        self.refused_until = None;
        let gateway = &mut self.processes[process];
        if !gateway.serving[usize::from(shard)] || self.now < gateway.asleep_until {
            return None;
        }
        let asked = gateway.admission.handle_open(self.chance.next(), self.now);
        self.check_open(process, &asked);
        if let Err(CloseReason::Refused { retry_after, .. }) = &asked {
            let retry_after = *retry_after;
            self.check_refusal(process, retry_after);
            self.refused_until = Some(self.now + retry_after);
            return None;
        }
        let gateway = &mut self.processes[process];
        let key = gateway.next_key(shard);
        let identity = Identity {
            node: self.nodes[number].id.clone(),
            site: "sim".into(),
            certificate_serial: serial_of(number),
        };
        let session = Session::new(key, identity, Arc::clone(&gateway.limits), self.now);
        let link = self.next_link;
        self.next_link += 1;
        let watch = SessionWatch::opened(self.now);
        gateway.sessions.insert(key, OpenSession { session, hello_waits: true, link, timer: None, watch });
        let incarnation = gateway.incarnation;
        let of =
            Link { node: number, process, incarnation, key, is_twin, up_is_lost: false, down_is_lost: false };
        self.links.insert(link, of);
        self.pump_session(process, key);
        Some(link)
    }

    pub(super) fn node_ended(&mut self, number: usize) {
        // Some stay away for so long that their session is reaped, if its gateway died.
        let away = self.is_disturbed() && self.chance.percent(5);
        let wait = Duration::from_millis(self.chance.within(if away { 2_000..8_000 } else { 5..700 }));
        let not_before = self.nodes[number].away_until;
        let at = (self.now + wait).max(not_before);
        self.nodes[number].handle_ended(at.since(self.now), self.now);
        self.pump_node(number);
    }

    pub(super) fn node_frame(&mut self, link: u64, frame: GatewayFrame) {
        let Some(Link { node, is_twin, down_is_lost, .. }) = self.links.get(&link).copied() else { return };
        if is_twin || down_is_lost || self.nodes[node].link != Some(link) {
            return;
        }
        match &frame {
            GatewayFrame::Command(command) => {
                self.check_command(node, command);
                self.read.entry((command.id, command.attempt)).or_insert(self.now);
            }
            GatewayFrame::CancelCommand(cancel) => self.check_cancel(node, cancel.id),
            GatewayFrame::Spec(_) => self.story.specs_read += 1,
            // Some do not leave, and are cut.
            GatewayFrame::Drain { reconnect_after_ms } if self.chance.percent(80) => {
                let wait = Duration::from_millis((*reconnect_after_ms).into());
                self.at(wait, Event::Leaves { node, link });
            }
            _ => {}
        }
        self.nodes[node].handle_frame(frame, &mut self.chance, self.now);
        self.check_acks(node);
        self.check_events(node);
        self.check_spec_answers(node);
        self.check_statuses(node);
        self.check_sections(node);
        self.pump_node(node);
    }

    pub(super) fn pump_node(&mut self, number: usize) {
        if let Some(link) = self.nodes[number].link {
            for frame in std::mem::take(&mut self.nodes[number].outbox) {
                self.along(Wire::Up(link), Event::Up { link, frame });
            }
        }
        let Some(at) = self.nodes[number].next_deadline().map(|at| at.max(self.now)) else { return };
        if self.node_timers[number].is_none_or(|timer| at < timer) {
            self.node_timers[number] = Some(at);
            self.at(at.since(self.now), Event::NodeTime { node: number });
        }
    }

    // -- sessions --------------------------------------------------------------------------------

    /// The session of a link that is not lost, and is open.
    fn session_of(&self, link: u64) -> Option<(usize, SessionKey)> {
        let Link { process, incarnation, key, up_is_lost, .. } = self.links.get(&link).copied()?;
        let is_open = self.runs(process, incarnation) && self.processes[process].sessions.contains_key(&key);
        (is_open && !up_is_lost).then_some((process, key))
    }

    pub(super) fn up(&mut self, link: u64, frame: NodeFrame) {
        let Some((process, key)) = self.session_of(link) else { return };
        let event = match &frame {
            NodeFrame::Hello(_) => SessionEvent::Hello,
            NodeFrame::Goodbye(_) => SessionEvent::Goodbye,
            _ => SessionEvent::Frame,
        };
        let heartbeat = match &frame {
            NodeFrame::Heartbeat(heartbeat) => Some(heartbeat.sequence),
            _ => None,
        };
        self.watch_frame(process, key, event);
        self.given(process, key, event, |session, now| session.handle_frame(frame, 100, now));
        if let Some(sequence) = heartbeat {
            self.check_heartbeat(process, key, sequence);
        }
        self.pump_session(process, key);
    }

    /// The connection ends, or its one half. Whoever's frames are lost may still learn that.
    pub(super) fn up_ends(&mut self, link: u64, half_close: bool) {
        let Some(Link { process, incarnation, key, .. }) = self.links.get(&link).copied() else { return };
        if !self.runs(process, incarnation) || !self.processes[process].sessions.contains_key(&key) {
            return;
        }
        if half_close {
            self.watch_frame(process, key, SessionEvent::HalfClose);
            self.with_session(process, key, SessionEvent::HalfClose, Session::handle_half_close);
        } else {
            self.with_session(process, key, SessionEvent::Close, |session, now| {
                session.handle_close(CloseReason::PeerGone, now);
            });
        }
    }

    pub(super) fn session_time(&mut self, process: usize, key: SessionKey) {
        let Some(open) = self.processes[process].sessions.get_mut(&key) else { return };
        open.timer = None;
        let before = open.session.phase();
        open.session.handle_time(self.now);
        self.note_time(before, process, key);
        self.pump_session(process, key);
    }

    /// Whether the process still is the one that was meant.
    pub(super) fn runs(&self, process: usize, incarnation: u32) -> bool {
        self.processes[process].incarnation == incarnation
    }

    pub(super) fn with_session(
        &mut self,
        process: usize,
        key: SessionKey,
        event: SessionEvent,
        input: impl FnOnce(&mut Session, Moment),
    ) {
        if self.processes[process].sessions.contains_key(&key) {
            self.given(process, key, event, input);
            self.pump_session(process, key);
        }
    }

    /// Gives a session an input, and notes what it was in and what it went to by itself.
    fn given(
        &mut self,
        process: usize,
        key: SessionKey,
        event: SessionEvent,
        input: impl FnOnce(&mut Session, Moment),
    ) {
        let Some(open) = self.processes[process].sessions.get_mut(&key) else { return };
        let before = open.session.phase();
        let was_read = before == SessionPhase::Live && open.session.wants_read();
        input(&mut open.session, self.now);
        let after = open.session.phase();
        // Before what it gives is taken: it may be read again by that.
        if !was_read || !open.session.wants_read() {
            open.watch.unread_at = self.now;
        }
        self.coverage.note_session(before, event);
        self.note_steps(before, after, event);
    }

    pub(super) fn pump_session(&mut self, process: usize, key: SessionKey) {
        self.give_to_session(process, key);
        self.note_admission(process, key);
    }

    /// As a driver does: a stream whose Hello has its outcome waits for none, one that is over is none.
    fn note_admission(&mut self, process: usize, key: SessionKey) {
        let gateway = &mut self.processes[process];
        if let Some(open) = gateway.sessions.get_mut(&key)
            && open.hello_waits
            && !open.session.hello_is_pending()
        {
            open.hello_waits = false;
            gateway.admission.handle_hello_done(self.now);
        }
    }

    fn give_to_session(&mut self, process: usize, key: SessionKey) {
        let incarnation = self.processes[process].incarnation;
        loop {
            let Some(open) = self.processes[process].sessions.get_mut(&key) else { return };
            let (link, before) = (open.link, open.session.phase());
            if let Some(message) = open.session.poll_to_writer() {
                open.watch.handle_post(&message);
                let after = open.session.phase();
                self.note_steps(before, after, SessionEvent::AllAnswered);
                self.along(Wire::Post(process, key.shard), Event::Post { process, incarnation, message });
            } else if let Some(frame) = open.session.poll_frame() {
                open.session.handle_all_sent();
                open.watch.handle_frame(&frame);
                let after = open.session.phase();
                self.note_steps(before, after, SessionEvent::AllTaken);
                self.along(Wire::Down(link), Event::Down { link, frame });
            } else if let Some(reason) = open.session.poll_end() {
                if let Some(message) = open.session.poll_to_writer() {
                    open.watch.handle_post(&message);
                    self.along(Wire::Post(process, key.shard), Event::Post { process, incarnation, message });
                }
                self.check_session_end(process, key, &reason);
                let gateway = &mut self.processes[process];
                if gateway.sessions.remove(&key).is_some_and(|open| open.hello_waits) {
                    gateway.admission.handle_hello_done(self.now);
                }
                gateway.admission.handle_close(self.now);
                self.along(Wire::Down(link), Event::DownEnds { link });
                return;
            } else {
                let deadline = open.session.next_deadline().map(|at| at.max(self.now));
                if let Some(at) = deadline.filter(|at| open.timer.is_none_or(|timer| *at < timer)) {
                    open.timer = Some(at);
                    self.at(at.since(self.now), Event::SessionTime { process, incarnation, key });
                }
                return;
            }
        }
    }

    // -- writers ---------------------------------------------------------------------------------

    pub(super) fn with_writer(&mut self, process: usize, input: impl FnOnce(&mut Writer, Moment)) {
        if self.processes[process].writer.is_none() {
            return;
        }
        self.note_overdue(process);
        let overdue = self.is_overdue(process);
        if let Some(writer) = &mut self.processes[process].writer {
            let before = writer.counts().fences;
            input(writer, self.now);
            must("a fence has a reason", overdue || writer.counts().fences == before, || {
                format!("{process}")
            });
        }
        self.processes[process].is_dazed = false;
        self.pump_writer(process);
    }

    pub(super) fn pump_writer(&mut self, process: usize) {
        let incarnation = self.processes[process].incarnation;
        while let Some(writer) = &mut self.processes[process].writer {
            // What it tells is seen before what it asks for next is held against that.
            if let Some((shard, message)) = writer.poll_to_shard() {
                self.watch_told(process, &message);
                self.along(Wire::Mail(process, shard), Event::Mail { process, incarnation, shard, message });
                continue;
            }
            let lease = writer.lease_state();
            if let Some(job) = writer.poll_job(self.now) {
                let queue = job.queue();
                self.watch_job(process, lease, &job);
                let flight = Flight { job, started: self.now, outcome: None };
                let before = self.processes[process].flights.insert(queue, flight);
                assert!(before.is_none(), "one job of a queue at a time");
                let mut wait = self.job_takes(process, queue);
                let renews = queue == Queue::Lease && lease == LeaseState::Held && self.is_disturbed();
                if let Some(long) = self.processes[process].sleeps_at_renewal.take_if(|_| renews) {
                    // Either it stands still, or the database does, for this one job.
                    if self.chance.percent(50) {
                        self.pause(process, long);
                    } else {
                        self.note_fault("a slow commit");
                        wait = long;
                    }
                }
                self.at(wait, Event::Execute { process, incarnation, queue });
            } else {
                break;
            }
        }
        let gateway = &mut self.processes[process];
        let Some(writer) = &mut gateway.writer else { return };
        gateway.released_bytes += writer.poll_released_bytes();
        assert!(gateway.released_bytes <= gateway.posted_bytes, "bytes are released once");
        if writer.phase() == Phase::Stopped {
            self.check_stopped(process);
            self.end_process(process);
            let wait = Duration::from_millis(self.chance.within(10..2_000));
            return self.at(wait, Event::Start { process });
        }
        let deadline = writer.next_deadline().map(|at| at.max(self.now));
        if let Some(at) = deadline.filter(|at| gateway.writer_timer.is_none_or(|timer| *at < timer)) {
            gateway.writer_timer = Some(at);
            self.at(at.since(self.now), Event::WriterTime { process, incarnation });
        }
    }

    pub(super) fn mail(&mut self, process: usize, shard: ShardId, message: ToShard) {
        let of_shard = |gateway: &Process| -> Vec<SessionKey> {
            gateway.sessions.keys().copied().filter(|key| key.shard == shard).collect()
        };
        match message {
            ToShard::Session { key, news } => {
                if let Some(open) = self.processes[process].sessions.get_mut(&key) {
                    open.watch.handle_news(&news);
                    let event = event_of(&news);
                    self.with_session(process, key, event, |session, now| session.handle_news(news, now));
                }
            }
            ToShard::Serving(serving) => {
                self.processes[process].serving[usize::from(shard.0)] = serving;
                if !serving {
                    let keys = of_shard(&self.processes[process]);
                    self.must_be_over(process, keys, "a fenced gateway keeps no session");
                }
            }
            ToShard::CloseAll(reason) => {
                for key in of_shard(&self.processes[process]) {
                    let reason = reason.clone();
                    self.with_session(process, key, SessionEvent::Close, |session, now| {
                        session.handle_close(reason, now);
                    });
                }
            }
            ToShard::Revoked { added, .. } => {
                for revocation in added.iter() {
                    for key in self.of_certificate(process, shard, &revocation.serial) {
                        self.with_session(process, key, SessionEvent::Close, |session, now| {
                            session.handle_revoked(revocation, now);
                        });
                    }
                    let left = self.of_certificate(process, shard, &revocation.serial);
                    must("a revoked certificate keeps no session", left.is_empty(), || format!("{left:?}"));
                }
            }
            ToShard::Drain(order) => {
                self.processes[process].serving[usize::from(shard.0)] = false;
                for key in of_shard(&self.processes[process]) {
                    self.with_session(process, key, SessionEvent::Drain, |session, now| {
                        session.handle_drain(&order, now);
                    });
                    self.check_drain_told(process, key);
                }
            }
            ToShard::Cut(order) => {
                for key in of_shard(&self.processes[process]) {
                    if let Some(open) = self.processes[process].sessions.get_mut(&key) {
                        open.watch.is_cut = true;
                    }
                    self.with_session(process, key, SessionEvent::Close, |session, now| {
                        session.handle_cut(&order, now);
                    });
                }
            }
            ToShard::Relayed(_) | ToShard::Vitals(_) | ToShard::Tunnel(_) => {
                unreachable!("these are not the writer's")
            }
            ToShard::Stop => {
                self.processes[process].serving[usize::from(shard.0)] = false;
                for key in of_shard(&self.processes[process]) {
                    let reason = CloseReason::Stopping;
                    self.with_session(process, key, SessionEvent::Close, |session, now| {
                        session.handle_close(reason, now);
                    });
                }
                let incarnation = self.processes[process].incarnation;
                let message = ToWriter::ShardStopped { shard };
                self.along(Wire::Post(process, shard), Event::Post { process, incarnation, message });
            }
        }
    }

    // -- the store -------------------------------------------------------------------------------

    pub(super) fn execute(&mut self, process: usize, queue: Queue) {
        let Some(mut flight) = self.processes[process].flights.remove(&queue) else { return };
        let outcome = match self.failure_of(process, &flight.job) {
            Some((error, is_done)) => {
                if is_done {
                    self.commit(&flight.job);
                }
                Outcome::failed(&flight.job, error)
            }
            None => self.commit(&flight.job),
        };
        flight.outcome = Some(outcome);
        self.story.jobs += 1;
        let incarnation = self.processes[process].incarnation;
        self.processes[process].flights.insert(queue, flight);
        let wait = self.answer_takes(process, queue);
        self.at(wait, Event::Heard { process, incarnation, queue });
    }

    pub(super) fn number_of(&self, node: &NodeId) -> Option<usize> {
        self.nodes.iter().position(|known| known.id == *node)
    }
}

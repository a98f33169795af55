//! Between machines: nodes, sessions, writers and the store, each given what another one gives.
//!
//! Carries and never decides, as the shells of a gateway do.

use std::sync::Arc;
use std::time::Duration;

use gateway_core::close::CloseReason;
use gateway_core::frame::GatewayFrame;
use gateway_core::ids::{NodeId, SessionKey, ShardId};
use gateway_core::seam::{Identity, ToShard, ToWriter};
use gateway_core::session::Session;
use gateway_core::store::{Outcome, Queue, StoreError};
use gateway_core::time::{Moment, UnixMillis};
use gateway_core::writer::{Phase, Writer};

use super::{Event, Link, Wire, World};
use crate::process::{Flight, OpenSession, Process, SHARDS};

impl World {
    pub(super) fn node_time(&mut self, number: usize) {
        self.node_timers[number] = None;
        let node = &mut self.nodes[number];
        node.handle_time(&mut self.chance, self.now);
        if node.redial_at.is_some_and(|at| self.now >= at) {
            self.dial(number);
        }
        self.pump_node(number);
    }

    pub(super) fn dial(&mut self, number: usize) {
        let process = self.chance.within(0..self.processes.len() as u64) as usize;
        let shard = self.chance.within(0..u64::from(SHARDS)) as u16;
        let gateway = &mut self.processes[process];
        if !gateway.serving[usize::from(shard)] {
            return self.node_ended(number);
        }
        let key = gateway.next_key(shard);
        let identity = Identity {
            node: self.nodes[number].id.clone(),
            site: "sim".into(),
            certificate_serial: format!("{number:04X}"),
        };
        let session = Session::new(key, identity, Arc::clone(&gateway.limits), self.now);
        let link = self.next_link;
        self.next_link += 1;
        gateway.sessions.insert(key, OpenSession { session, link, timer: None });
        let incarnation = gateway.incarnation;
        self.links.insert(link, Link { node: number, process, incarnation, key });
        if self.is_disturbed() && self.chance.percent(4) {
            self.nodes[number].specs.forget_all();
        }
        self.nodes[number].handle_connected(link);
        self.pump_session(process, key);
    }

    pub(super) fn drop_link(&mut self, number: usize, seen_by_gateway: bool) {
        if let Some(link) = self.nodes[number].link {
            if seen_by_gateway {
                let half_close = self.chance.percent(30);
                self.along(Wire::Up(link), Event::UpEnds { link, half_close });
            }
            self.node_ended(number);
        }
    }

    pub(super) fn node_ended(&mut self, number: usize) {
        // Some stay away for so long that their session is reaped, if its gateway died.
        let away = self.is_disturbed() && self.chance.percent(5);
        let wait = Duration::from_millis(self.chance.within(if away { 2_000..8_000 } else { 5..700 }));
        self.nodes[number].handle_ended(wait, self.now);
        self.pump_node(number);
    }

    pub(super) fn node_frame(&mut self, link: u64, frame: GatewayFrame) {
        let Some(Link { node, .. }) = self.links.get(&link).copied() else { return };
        if self.nodes[node].link != Some(link) {
            return;
        }
        if let GatewayFrame::Command(command) = &frame {
            self.read.insert((command.id, command.attempt));
            self.check_order(node, command.id, command.attempt, &command.lane, command.seq);
        }
        // Some do not leave, and are cut.
        if let GatewayFrame::Drain { reconnect_after_ms } = frame
            && self.chance.percent(80)
        {
            let leave = Event::Drop { node, seen_by_gateway: true };
            self.at(Duration::from_millis(reconnect_after_ms.into()), leave);
        }
        self.story.specs_read += u64::from(matches!(frame, GatewayFrame::Spec(_)));
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

    /// Whether the process still is the one that was meant.
    pub(super) fn runs(&self, process: usize, incarnation: u32) -> bool {
        self.processes[process].incarnation == incarnation
    }

    pub(super) fn with_session_of(&mut self, link: u64, input: impl FnOnce(&mut Session, Moment)) {
        let Some(Link { process, incarnation, key, .. }) = self.links.get(&link).copied() else { return };
        if self.runs(process, incarnation) {
            self.with_session(process, key, input);
        }
    }

    pub(super) fn with_writer(&mut self, process: usize, input: impl FnOnce(&mut Writer, Moment)) {
        if let Some(writer) = &mut self.processes[process].writer {
            input(writer, self.now);
            self.pump_writer(process);
        }
    }

    pub(super) fn with_session(
        &mut self,
        process: usize,
        key: SessionKey,
        input: impl FnOnce(&mut Session, Moment),
    ) {
        if let Some(open) = self.processes[process].sessions.get_mut(&key) {
            input(&mut open.session, self.now);
            self.pump_session(process, key);
        }
    }

    pub(super) fn pump_session(&mut self, process: usize, key: SessionKey) {
        let incarnation = self.processes[process].incarnation;
        loop {
            let Some(open) = self.processes[process].sessions.get_mut(&key) else { return };
            let link = open.link;
            if let Some(message) = open.session.poll_to_writer() {
                self.along(Wire::Post(process, key.shard), Event::Post { process, incarnation, message });
            } else if let Some(frame) = open.session.poll_frame() {
                open.session.handle_all_sent();
                self.along(Wire::Down(link), Event::Down { link, frame });
            } else if let Some(_reason) = open.session.poll_end() {
                if let Some(message) = open.session.poll_to_writer() {
                    self.along(Wire::Post(process, key.shard), Event::Post { process, incarnation, message });
                }
                self.processes[process].sessions.remove(&key);
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

    pub(super) fn pump_writer(&mut self, process: usize) {
        let incarnation = self.processes[process].incarnation;
        while let Some(writer) = &mut self.processes[process].writer {
            if let Some(job) = writer.poll_job(self.now) {
                let queue = job.queue();
                let flight = Flight { job, started: self.now, outcome: None };
                let before = self.processes[process].flights.insert(queue, flight);
                assert!(before.is_none(), "one job of a queue at a time");
                let wait = self.job_takes();
                self.at(wait, Event::Execute { process, incarnation, queue });
            } else if let Some((shard, message)) = writer.poll_to_shard() {
                self.along(Wire::Mail(process, shard), Event::Mail { process, incarnation, shard, message });
            } else {
                break;
            }
        }
        let gateway = &mut self.processes[process];
        let Some(writer) = &mut gateway.writer else { return };
        gateway.released_bytes += writer.poll_released_bytes();
        assert!(gateway.released_bytes <= gateway.posted_bytes, "bytes are released once");
        if writer.phase() == Phase::Stopped {
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
                self.with_session(process, key, |session, now| session.handle_news(news, now));
            }
            ToShard::Serving(serving) => {
                self.processes[process].serving[usize::from(shard.0)] = serving;
            }
            ToShard::CloseAll(reason) => {
                for key in of_shard(&self.processes[process]) {
                    let reason = reason.clone();
                    self.with_session(process, key, |session, now| session.handle_close(reason, now));
                }
            }
            ToShard::Drain(order) => {
                self.processes[process].serving[usize::from(shard.0)] = false;
                for key in of_shard(&self.processes[process]) {
                    self.with_session(process, key, |session, now| session.handle_drain(&order, now));
                }
            }
            ToShard::Cut(order) => {
                for key in of_shard(&self.processes[process]) {
                    self.with_session(process, key, |session, now| session.handle_cut(&order, now));
                }
            }
            ToShard::Stop => {
                self.processes[process].serving[usize::from(shard.0)] = false;
                for key in of_shard(&self.processes[process]) {
                    let reason = CloseReason::Stopping;
                    self.with_session(process, key, |session, now| session.handle_close(reason, now));
                }
                let incarnation = self.processes[process].incarnation;
                let message = ToWriter::ShardStopped { shard };
                self.along(Wire::Post(process, shard), Event::Post { process, incarnation, message });
            }
        }
    }

    pub(super) fn job_takes(&mut self) -> Duration {
        let slow = self.is_disturbed() && self.chance.percent(2);
        Duration::from_micros(if slow {
            self.chance.within(10_000..2_500_000)
        } else {
            self.chance.within(100..4_000)
        })
    }

    pub(super) fn execute(&mut self, process: usize, queue: Queue) {
        let now = self.clock();
        let gateway = &self.processes[process];
        let away = self.now < gateway.database_away_until
            || (queue == Queue::Lease && self.now < gateway.lease_away_until);
        let fault = if self.is_disturbed() { self.chance.within(0..100) } else { 99 };
        let Some(flight) = self.processes[process].flights.get_mut(&queue) else { return };
        let outcome = match fault {
            _ if away => Outcome::failed(&flight.job, StoreError::Retry("away".into())),
            0..3 => Outcome::failed(&flight.job, StoreError::Retry("a deadlock".into())),
            3..5 => {
                self.story.unknown_outcomes += 1;
                self.store.commit(&flight.job, now);
                Outcome::failed(&flight.job, StoreError::OutcomeUnknown("cut at COMMIT".into()))
            }
            5..7 => {
                self.story.unknown_outcomes += 1;
                Outcome::failed(&flight.job, StoreError::OutcomeUnknown("cut before COMMIT".into()))
            }
            _ => self.store.commit(&flight.job, now),
        };
        flight.outcome = Some(outcome);
        let incarnation = self.processes[process].incarnation;
        let wait = self.job_takes();
        self.at(wait, Event::Heard { process, incarnation, queue });
    }

    pub(super) fn clock(&self) -> UnixMillis {
        UnixMillis((self.now.as_nanos() / 1_000_000) as i64)
    }

    pub(super) fn number_of(&self, node: &NodeId) -> Option<usize> {
        self.nodes.iter().position(|known| known.id == *node)
    }
}

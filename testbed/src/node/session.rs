//! One session of a node: the call, its heartbeats and its deadlines.
//!
//! 1. The first frame is `Hello`; nothing else is sent before `Welcome`.
//! 2. Three heartbeats without an ack: the gateway is dead.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use gateway_proto::framing::encode;
use gateway_proto::v1::{Heartbeat, NodeFrame, SectionHash, node_frame::Frame};
use tokio::time::Instant;

use super::call::Call;
use super::end::End;
use super::task::moving::Successor;
use crate::clock::unix_ms;

/// A call that is being opened.
pub(super) type Dial = Pin<Box<dyn Future<Output = Result<Box<Call>, End>> + Send>>;

/// How long a node waits for `Welcome`; a database outage may lie in it.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(30);
const MISSED_ACKS: u64 = 3;

/// What a session wants when one of its times has come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    NoWelcome,
    GatewaySilent,
    Redial,
}

pub(super) struct Session {
    pub(super) call: Box<Call>,
    /// Set by `Welcome`.
    pub(super) epoch: Option<u64>,
    /// The server's clock minus ours.
    pub(super) server_offset_ms: i64,
    /// The session that will replace this one after a `Drain`.
    pub(super) successor: Successor,
    pub(super) said_goodbye: bool,
    opened: Instant,
    interval: Duration,
    next_beat: Option<Instant>,
    sent: u64,
    acked: u64,
    last_beat: Instant,
    drain_at: Option<Instant>,
}

impl Session {
    pub(super) fn new(call: Box<Call>, now: Instant) -> Self {
        Self {
            call,
            epoch: None,
            server_offset_ms: 0,
            successor: Successor::None,
            said_goodbye: false,
            opened: now,
            interval: Duration::from_secs(10),
            next_beat: None,
            sent: 0,
            acked: 0,
            last_beat: now,
            drain_at: None,
        }
    }

    pub(super) fn send(&mut self, frame: Frame) {
        self.call.queue(encode(&NodeFrame { frame: Some(frame) }));
    }

    /// `Welcome` came. `phase` spreads the first beats of many nodes: 0 to 1 of an interval.
    pub(super) fn welcome(
        &mut self,
        epoch: u64,
        server_ms: i64,
        interval: Duration,
        phase: f64,
        now: Instant,
    ) {
        self.epoch = Some(epoch);
        self.server_offset_ms = if server_ms == 0 { 0 } else { server_ms - unix_ms() };
        self.interval = interval.max(Duration::from_millis(1));
        self.next_beat = Some(now + self.interval.mul_f64(phase));
    }

    pub(super) fn server_now_ms(&self) -> i64 {
        unix_ms() + self.server_offset_ms
    }

    /// A beat was acked; gives the round trip of the last one.
    pub(super) fn beat_acked(&mut self, sequence: u64, now: Instant) -> Duration {
        self.acked = self.acked.max(sequence.min(self.sent));
        now - self.last_beat
    }

    pub(super) fn drain(&mut self, after: Duration, now: Instant) {
        self.drain_at = Some(now + after);
    }

    /// The earliest of its times.
    pub(super) fn next_deadline(&self, beats: bool) -> Option<Instant> {
        if self.epoch.is_none() {
            return Some(self.opened + WELCOME_TIMEOUT);
        }
        let beat = if beats { self.next_beat } else { None };
        [beat, self.drain_at].into_iter().flatten().min()
    }

    /// Does what is due: beats, or says what its owner must do. `list` is what a beat lists.
    pub(super) fn handle_time(
        &mut self,
        beats: bool,
        list: impl FnOnce() -> Vec<SectionHash>,
        now: Instant,
    ) -> Due {
        if self.epoch.is_none() {
            return if now >= self.opened + WELCOME_TIMEOUT { Due::NoWelcome } else { Due::Nothing };
        }
        if self.drain_at.is_some_and(|at| now >= at) {
            self.drain_at = None;
            return Due::Redial;
        }
        if beats && self.next_beat.is_some_and(|at| now >= at) {
            if self.sent - self.acked >= MISSED_ACKS {
                return Due::GatewaySilent;
            }
            self.beat(list(), now);
        }
        Due::Nothing
    }

    fn beat(&mut self, inventory: Vec<SectionHash>, now: Instant) {
        self.sent += 1;
        self.last_beat = now;
        // From the time it was due, so that beats don't drift; never into the past.
        self.next_beat = self.next_beat.map(|at| (at + self.interval).max(now));
        self.send(Frame::Heartbeat(Heartbeat {
            sequence: self.sent,
            node_unix_ms: unix_ms(),
            inventory,
            ..Heartbeat::default()
        }));
    }
}

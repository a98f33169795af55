//! What a simulated node wants known outside of its journal: what it persists, and what it sends when.
//!
//! 1. A status is kept until it is acked or rejected, and sent again after each `Welcome`.
//! 2. Within a session each is sent once.

use std::time::Duration;

use bytes::Bytes;
use gateway_core::frame::{RejectCode, Rejected, Status};
use gateway_core::ids::FrameRef;
use gateway_core::time::Moment;

use crate::node::POISON;
use crate::random::Chance;

/// Statuses that a node tells in its life.
const STATUSES: u64 = 8;

#[derive(Debug)]
pub(crate) struct SimStatuses {
    kept: Vec<Status>,
    sent: usize,
    left: u64,
    tell_at: Option<Moment>,
    poisons: bool,
    /// What was acked: checked and taken by the world.
    pub(crate) acked: Vec<Status>,
}

impl SimStatuses {
    pub(crate) fn new(poisons: bool) -> Self {
        let tell_at = Some(Moment::default() + Duration::from_millis(700));
        Self { kept: Vec::new(), sent: 0, left: STATUSES, tell_at, poisons, acked: Vec::new() }
    }

    /// A session begins.
    pub(crate) fn handle_connected(&mut self) {
        self.sent = 0;
    }

    pub(crate) fn handle_time(&mut self, chance: &mut Chance, next_ref: &mut u64, now: Moment) {
        if self.tell_at.is_none_or(|at| now < at) {
            return;
        }
        let poison = self.poisons && chance.percent(20);
        let kind = if poison { POISON } else { "status" }.to_owned();
        let id = format!("status-{}", self.left);
        let body = Bytes::from(format!("{}", chance.next()));
        self.kept.push(Status { frame_ref: FrameRef(*next_ref), id, kind, body });
        *next_ref += 1;
        self.left -= 1;
        self.tell_at = (self.left > 0).then(|| now + Duration::from_millis(chance.within(1..3_000)));
    }

    /// The next that goes in this session.
    pub(crate) fn poll(&mut self) -> Option<Status> {
        let status = self.kept.get(self.sent)?.clone();
        self.sent += 1;
        Some(status)
    }

    /// Whether the ack was about a status.
    pub(crate) fn handle_ack(&mut self, frame_ref: FrameRef) -> bool {
        let settled = self.settle(frame_ref);
        let mine = settled.is_some();
        self.acked.extend(settled);
        mine
    }

    /// Whether the answer was about a status.
    pub(crate) fn handle_rejected(&mut self, rejected: &Rejected) -> bool {
        let settled = self.settle(rejected.frame_ref);
        if let Some(status) = &settled {
            assert_eq!((rejected.code, status.kind.as_str()), (RejectCode::NotStorable, POISON));
        }
        settled.is_some()
    }

    fn settle(&mut self, frame_ref: FrameRef) -> Option<Status> {
        let place = self.kept.iter().position(|status| status.frame_ref == frame_ref)?;
        assert_eq!(place, 0, "answers come in order");
        self.sent -= 1;
        Some(self.kept.remove(place))
    }

    /// Whether all is told and answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.left == 0 && self.kept.is_empty()
    }

    pub(crate) fn next_deadline(&self) -> Option<Moment> {
        self.tell_at
    }
}

//! What dispatch passes, readings of lanes and updates do to commands.
//!
//! 1. A pass claims of a lane, in order of seq, what is due: first attempts beyond the cursor, and
//!    what was deferred and whose time has come; never what is past its `not_after`.
//!    What the session's certificate does not allow ends as refused in its place.
//! 2. An update applies by `CommandState::on_report`; a retryable refusal makes a new attempt.

use std::time::Duration;

use gateway_core::command::{CommandState, Transition};
use gateway_core::frame::CommandUpdate;
use gateway_core::ids::{Attempt, CommandId, GatewayId, LaneName, LaneSeq, NodeId};
use gateway_core::seam::UpdateRequest;
use gateway_core::store::{Claim, LaneRead, LaneState, LaneWant, UpdateOutcome};
use gateway_core::time::UnixMillis;

use super::{CommandRow, Store};

impl Store {
    pub(super) fn claim(
        &mut self,
        gateway: &GatewayId,
        want: &LaneWant,
        now: UnixMillis,
        claims: &mut Vec<Claim>,
    ) {
        let Some(session) = self.sessions.get(&want.node) else { return };
        let live =
            session.connected && session.epoch == want.epoch && session.gateway.as_ref() == Some(gateway);
        if !live {
            return;
        }
        let due: Vec<CommandId> = self
            .rows_of(&want.node)
            .filter(|(_, row)| row.lane == want.lane && row.is_due(want, now))
            .map(|(id, _)| id)
            .take(want.free.0 as usize)
            .collect();
        self.assert_order(want, &due);
        self.assert_floor(want);
        let first = claims.len();
        let serial = session.came_from.as_ref().map_or_else(String::new, |(serial, _)| serial.clone());
        for id in &due {
            let Some(row) = self.commands.get_mut(id) else { continue };
            if !self.certificates.permits(&serial, &row.kind) {
                row.refuse_kind();
                continue;
            }
            row.set_state(CommandState::Dispatched);
            row.dispatched = true;
            claims.push(Claim {
                node: want.node.clone(),
                command: row.send_in(*id, want.epoch),
                moves_cursor: !row.deferred,
                floor: LaneSeq(0),
                waited: row.waited(now),
            });
        }
        let floor = self.lowest_in_flight(&want.node, &want.lane).unwrap_or_default();
        claims[first..].iter_mut().for_each(|claim| claim.floor = floor);
        if !due.is_empty() {
            let in_flight = self.in_flight(&want.node, &want.lane);
            let in_flight = in_flight.filter(|(id, _)| !self.foretold.contains(id)).count();
            assert!(
                in_flight <= want.capacity.0 as usize,
                "{in_flight} in flight on {} {} with a capacity of {}",
                want.node,
                want.lane,
                want.capacity
            );
        }
    }

    fn lowest_in_flight(&self, node: &NodeId, lane: &LaneName) -> Option<LaneSeq> {
        let held = self
            .rows_of(node)
            .filter(|(_, row)| row.lane == *lane && !row.deferred && row.state.is_in_flight());
        held.map(|(_, row)| row.seq).min()
    }

    /// No first attempt is in flight below a floor that a gateway has kept.
    fn assert_floor(&self, want: &LaneWant) {
        let lowest = self.lowest_in_flight(&want.node, &want.lane);
        assert!(
            lowest.is_none_or(|lowest| lowest >= want.floor),
            "{lowest:?} is in flight below {:?}, the floor of {} {}",
            want.floor,
            want.node,
            want.lane
        );
    }

    /// The cursor hides no first attempt, and none overtakes another.
    fn assert_order(&self, want: &LaneWant, due: &[CommandId]) {
        let pending = |(_, row): &(CommandId, &CommandRow)| {
            row.lane == want.lane
                && row.state == CommandState::Pending
                && !row.deferred
                && !row.is_too_late(self.latest)
        };
        let hidden = self.rows_of(&want.node).filter(pending).find(|(_, row)| row.seq <= want.cursor);
        assert!(hidden.is_none(), "the cursor {} of {want:?} hides {hidden:?}", want.cursor);
        let first = due.iter().filter_map(|id| self.commands.get(id)).find(|row| !row.deferred);
        if let Some(first) = first {
            let last = self.cursor(&want.node, &want.lane);
            assert!(first.seq > last, "{} is dispatched after {last} on {want:?}", first.seq);
        }
    }

    /// Marks that a crash lost are set again, then the lane is read.
    pub(super) fn read_lane(&mut self, gateway: &GatewayId, lane: &LaneRead) -> LaneState {
        let session = self.sessions.get(&lane.node);
        let own = session.is_some_and(|row| row.epoch == lane.epoch && row.gateway.as_ref() == Some(gateway));
        let is_live = own && session.is_some_and(|row| row.connected);
        for (id, attempt) in lane.sent.iter().filter(|_| own) {
            let row = self.commands.get_mut(id).filter(|row| row.node == lane.node);
            if let Some(row) = row.filter(|row| row.state == CommandState::Pending && row.attempt == *attempt)
            {
                row.set_state(CommandState::Dispatched);
                row.dispatched = true;
            }
        }
        LaneState {
            is_live,
            in_flight: self
                .in_flight(&lane.node, &lane.lane)
                .map(|(id, row)| row.send_in(id, lane.epoch))
                .collect(),
            cursor: self.cursor(&lane.node, &lane.lane),
        }
    }

    fn in_flight<'a>(
        &'a self,
        node: &'a NodeId,
        lane: &'a LaneName,
    ) -> impl Iterator<Item = (CommandId, &'a CommandRow)> {
        self.rows_of(node).filter(move |(_, row)| row.lane == *lane && row.state.is_in_flight())
    }

    pub(super) fn update(&mut self, entry: &UpdateRequest, now: UnixMillis) -> UpdateOutcome {
        let update = &entry.update;
        let Some(row) = self.commands.get_mut(&update.id).filter(|row| row.node == entry.node) else {
            return UpdateOutcome::UnknownCommand;
        };
        if update.attempt < row.attempt {
            return UpdateOutcome::OldAttempt { current: row.attempt };
        }
        if !row.dispatched && row.state.yields_to(update.state) {
            row.reopen();
        }
        // A later attempt is news, whatever it says: the row's own attempt is over.
        let transition = match row.state.on_report(update.state) {
            Transition::Repeat if update.attempt > row.attempt && !row.state.is_terminal() => {
                Transition::Apply
            }
            other => other,
        };
        let tried_again = update.state == CommandState::Refused
            && update.refusal.is_some_and(|refusal| refusal.retryable)
            && update.attempt.0 < row.max_attempts
            && !row.cancel_requested;
        if transition == Transition::Apply {
            if row.state == CommandState::Pending {
                self.foretold.insert(update.id);
            }
            row.deferred |= tried_again || row.state == CommandState::Pending;
            row.dispatched = !tried_again;
            row.take_report(update, !tried_again && update.state.is_terminal());
            if tried_again {
                let wait = Duration::from_secs((1 << (update.attempt.0 - 1).min(20)).min(300));
                row.not_before = Some(now.plus(wait));
                row.attempt = Attempt(update.attempt.0 + 1);
                row.set_state(CommandState::Pending);
            } else {
                row.attempt = update.attempt;
                row.set_state(update.state);
            }
        }
        if transition == Transition::Repeat
            && row.state == CommandState::Running
            && update.state == CommandState::Running
            && update.progress.is_some()
        {
            row.take_report(update, false);
        }
        UpdateOutcome::Stored {
            state: row.state,
            lane: row.lane.clone(),
            conflict: transition == Transition::Conflict,
        }
    }
}

impl CommandRow {
    fn is_due(&self, want: &LaneWant, now: UnixMillis) -> bool {
        let in_line =
            if self.deferred { self.not_before.is_none_or(|due| due <= now) } else { self.seq > want.cursor };
        self.state == CommandState::Pending && in_line && !self.is_too_late(now)
    }

    /// How long ago it was enqueued, or came due.
    fn waited(&self, now: UnixMillis) -> Duration {
        let since = self.not_before.map_or(self.enqueued, |due| due.max(self.enqueued));
        Duration::from_millis(u64::try_from(now.0 - since.0).unwrap_or(0))
    }

    fn take_report(&mut self, update: &CommandUpdate, ends: bool) {
        let report = &mut self.report;
        report.progress = update.progress.clone().or(report.progress.take());
        report.error = update.error.clone().or(report.error.take());
        report.refusal = update.refusal.map(|refusal| refusal.reason).or(report.refusal);
        if ends {
            report.result = Some(update.result.clone());
        }
    }
}

//! The look at cancellations that someone asked for.
//!
//! Owns when to look, and which cancellations a session was told already. Never decides whether a
//! command may be canceled: that is between the database and the node.
//!
//! 1. A look happens at each poll, and soon after a poke; never twice within `LEAST_GAP`.
//! 2. A session is told once, and again every `REMIND_EVERY` while the wish is still there.
//! 3. A cancellation follows its command: one of a command that was not sent to the session yet
//!    waits for a later look, or the node would answer it before it has the command.
//! 4. What is remembered is no more than the last look gave.

use std::collections::BTreeMap;
use std::time::Duration;

use super::backoff::Backoff;
use super::directory::Directory;
use super::lanes::Ledger;
use crate::frame::CancelCommand;
use crate::ids::{CommandId, SessionKey};
use crate::store::{StoreError, WantedCancel};
use crate::time::Moment;

/// Pokes within this time share a look.
const LEAST_GAP: Duration = Duration::from_millis(100);
/// A cancellation that is still wanted is told again after so long.
const REMIND_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct CancelFeed {
    wanted: bool,
    in_flight: bool,
    forsaken: bool,
    not_before: Moment,
    told: BTreeMap<(SessionKey, CommandId), Moment>,
    backoff: Backoff,
}

impl CancelFeed {
    pub(super) fn new() -> Self {
        Self {
            wanted: false,
            in_flight: false,
            forsaken: false,
            not_before: Moment::default(),
            told: BTreeMap::new(),
            backoff: Backoff::for_queue(),
        }
    }

    /// A poll or a poke: something may be wanted.
    pub(super) fn want_look(&mut self) {
        self.wanted = true;
    }

    /// A Hello's grant told the session these.
    pub(super) fn note_told(&mut self, key: SessionKey, cancels: &[CancelCommand], now: Moment) {
        self.told.extend(cancels.iter().map(|cancel| ((key, cancel.id), now)));
    }

    /// Whether to look now; the look is in flight from here on.
    pub(super) fn poll_look(&mut self, now: Moment) -> bool {
        let due = self.wanted && !self.in_flight && now >= self.ready_at();
        if due {
            self.wanted = false;
            self.in_flight = true;
            self.not_before = now + LEAST_GAP;
        }
        due
    }

    /// What is wanted now; gives what sessions must be told, in the order of the look.
    pub(super) fn handle_wanted(
        &mut self,
        wanted: Vec<WantedCancel>,
        directory: &Directory,
        ledger: &Ledger,
        now: Moment,
    ) -> Vec<(SessionKey, CancelCommand)> {
        self.backoff.handle_success();
        self.in_flight = false;
        if std::mem::take(&mut self.forsaken) {
            return Vec::new();
        }
        let before = std::mem::take(&mut self.told);
        let mut news = Vec::new();
        for WantedCancel { node, epoch, cancel } in wanted {
            let Some(session) = directory.of_epoch(&node, epoch) else { continue };
            if !ledger.is_in_flight(&session.lanes, cancel.id) {
                continue;
            }
            let place = (session.key, cancel.id);
            match before.get(&place) {
                Some(told) if now.since(*told) < REMIND_EVERY => {
                    self.told.insert(place, *told);
                }
                _ => {
                    self.told.insert(place, now);
                    news.push((session.key, cancel));
                }
            }
        }
        news
    }

    pub(super) fn handle_failed(&mut self, error: &StoreError, now: Moment) {
        self.backoff.handle_failure(error, now);
        self.in_flight = false;
        self.wanted |= !std::mem::take(&mut self.forsaken);
    }

    pub(super) fn forsake(&mut self) {
        self.forsaken = self.in_flight;
        self.wanted = false;
        self.told.clear();
    }

    fn ready_at(&self) -> Moment {
        self.not_before.max(self.backoff.ready_at())
    }

    pub(super) fn backoff(&self) -> &Backoff {
        &self.backoff
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        (self.wanted && !self.in_flight).then(|| self.ready_at())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Attempt, Credits, LaneSeq, SessionEpoch};
    use crate::writer::directory::LiveSession;
    use crate::writer::testing::{at, command_id, key, lane, node};

    fn wanted(number: u128) -> WantedCancel {
        let cancel = CancelCommand { id: command_id(number), reason: "asked for".into() };
        WantedCancel { node: node("a"), epoch: SessionEpoch(1), cancel }
    }

    fn one_session_that_has(commands: &[u128]) -> (Directory, Ledger) {
        let mut ledger = Ledger::default();
        let of_session = (key(1), &node("a"), SessionEpoch(1));
        let opened = ledger.open(of_session, lane("main"), Credits(4), LaneSeq(0));
        commands.iter().for_each(|number| ledger.debit(opened, command_id(*number), Attempt(1)));
        let mut directory = Directory::default();
        directory.enter(LiveSession {
            key: key(1),
            node: node("a"),
            epoch: SessionEpoch(1),
            lanes: vec![opened],
            bad_entries: 0,
        });
        (directory, ledger)
    }

    #[test]
    fn a_cancellation_does_not_overtake_its_command() {
        let mut feed = CancelFeed::new();
        let (directory, mut ledger) = one_session_that_has(&[]);
        feed.in_flight = true;
        assert_eq!(feed.handle_wanted(vec![wanted(7)], &directory, &ledger, at(0)), []);
        let lanes = &directory.get(key(1)).expect("the session is live").lanes;
        ledger.debit(lanes[0], command_id(7), Attempt(1));
        feed.in_flight = true;
        assert_eq!(feed.handle_wanted(vec![wanted(7)], &directory, &ledger, at(1_000)).len(), 1);
    }

    #[test]
    fn a_storm_of_pokes_is_one_look() {
        let mut feed = CancelFeed::new();
        let (directory, ledger) = one_session_that_has(&[]);
        feed.want_look();
        feed.want_look();
        assert!(feed.poll_look(at(1_000)));
        feed.want_look();
        assert!(!feed.poll_look(at(1_001)), "one look at a time");
        feed.handle_wanted(Vec::new(), &directory, &ledger, at(1_050));
        assert!(!feed.poll_look(at(1_099)));
        assert_eq!(feed.next_deadline(), Some(at(1_100)));
        assert!(feed.poll_look(at(1_100)));
    }

    #[test]
    fn a_session_is_told_once_and_reminded_rarely() {
        let mut feed = CancelFeed::new();
        let (directory, ledger) = one_session_that_has(&[7]);
        let told: Vec<u64> = (0..12)
            .filter(|second| {
                feed.want_look();
                feed.in_flight = true;
                !feed.handle_wanted(vec![wanted(7)], &directory, &ledger, at(second * 1_000)).is_empty()
            })
            .collect();
        assert_eq!(told, [0, 5, 10]);
        feed.in_flight = true;
        feed.handle_wanted(Vec::new(), &directory, &ledger, at(13_000));
        assert!(feed.told.is_empty());
    }
}

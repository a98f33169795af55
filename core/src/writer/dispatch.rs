//! Dispatch passes: which lanes are asked for, and what a pass's outcome means for them.
//!
//! Owns the pass in flight, and the lanes that must be read after an unknown outcome. Never touches
//! a session: it gives back commands by session key.
//!
//! 1. One pass, or one reading of lanes, is in flight.
//! 2. A pass asks at most a lane's free credit of each lane, `MAX_CLAIMS_PER_PASS` together. Lanes
//!    with a sign of work share it by rotation; those that are only polled ask for one each, a
//!    bounded number a pass, so that a poll of all lanes never delays a poked one by more than that.
//! 3. Only returned claims debit. After an unknown outcome the pass's lanes are frozen until read;
//!    what is found in flight there and was never sent is sent then.
//! 4. A connection that was lost may mean a crash, and a crash may have lost marks of dispatches that
//!    did not wait for the disk. So every lane with something in flight is read then, which gives
//!    those marks back, and no pass starts before all are.
//! 5. What was claimed or read, and whose attempt is known to be over by now, is not sent, nor is what has no
//!    session any more: the row stays as it is, and the next Hello replays it.

use std::collections::BTreeMap;

use super::backoff::Backoff;
use super::directory::Directory;
use super::lanes::{LaneId, Ledger, Look};
use super::settlement::{Overlap, Settlement};
use crate::frame::Command;
use crate::ids::{Attempt, CommandId, Credits, SessionKey};
use crate::limits::{MAX_CLAIMS_PER_PASS, MAX_LANES_PER_PASS};
use crate::store::{Claim, Job, LaneRead, LaneState, LaneWant, LeaseProof, StoreError};
use crate::time::Moment;

/// Lanes of a pass that are only polled.
const PATROL_LANES_PER_PASS: usize = 256;
/// Lanes that one job reads, each with all that is in flight on it.
const MAX_LANES_PER_READ: usize = 1_000;
/// A lane may ask for as much even where many wait: then most have little due, and a pass costs a round trip and a
/// statement's start (some ten commands' worth) whatever it claims, so that one over many lanes is cheaper by far.
const LEAST_SHARE: usize = 4;

#[derive(Debug, Clone, Copy)]
struct Asked {
    lane: LaneId,
    look: Look,
    free: u32,
}

#[derive(Debug)]
enum Flight {
    Pass(Vec<Asked>),
    Read(Vec<LaneId>),
}

/// Commands to be sent to sessions, in order of seq for each.
pub(super) type Deliveries = Vec<(SessionKey, Vec<Command>)>;

#[derive(Debug)]
pub(super) struct Dispatch {
    in_flight: Option<Flight>,
    forsaken: bool,
    /// Halves of a refused pass; their lanes count as in a pass.
    again: Vec<Vec<Asked>>,
    unread: Vec<LaneId>,
    overlap: Overlap,
    backoff: Backoff,
}

impl Dispatch {
    pub(super) fn new() -> Self {
        Self {
            in_flight: None,
            forsaken: false,
            again: Vec::new(),
            unread: Vec::new(),
            overlap: Overlap::default(),
            backoff: Backoff::for_queue(),
        }
    }

    /// An update was stored; a snapshot in flight may be older than it.
    pub(super) fn handle_settlement(&mut self, settlement: &Settlement) {
        if self.in_flight.is_some() {
            self.overlap.note(settlement);
        }
    }

    /// These lanes were frozen, and must be read.
    pub(super) fn want_reading(&mut self, lanes: Vec<LaneId>) {
        self.unread.extend(lanes);
    }

    /// The next job, which is in flight from here on.
    pub(super) fn poll_job(&mut self, ledger: &mut Ledger, proof: LeaseProof, now: Moment) -> Option<Job> {
        if self.in_flight.is_some() || !self.backoff.is_ready(now) {
            return None;
        }
        self.unread.retain(|lane| ledger.get(*lane).is_some());
        let (job, flight) = if self.unread.is_empty() {
            let (wants, asked) = self.plan(ledger)?;
            (Job::Dispatch { proof, wants }, Flight::Pass(asked))
        } else {
            let rest = self.unread.split_off(self.unread.len().min(MAX_LANES_PER_READ));
            let read = std::mem::replace(&mut self.unread, rest);
            let lanes = read.iter().filter_map(|id| {
                let lane = ledger.get(*id)?;
                let (node, name) = (lane.node.clone(), lane.name.clone());
                Some(LaneRead { node, epoch: lane.epoch, lane: name, sent: lane.held().collect() })
            });
            (Job::ReadLanes { proof, lanes: lanes.collect() }, Flight::Read(read))
        };
        self.overlap.clear();
        self.in_flight = Some(flight);
        Some(job)
    }

    fn plan(&mut self, ledger: &mut Ledger) -> Option<(Vec<LaneWant>, Vec<Asked>)> {
        while let Some(half) = self.again.pop() {
            let (wants, asked) = ask(ledger, half);
            if !asked.is_empty() {
                return Some((wants, asked));
            }
        }
        let asked = pick(ledger);
        let (wants, asked) = ask(ledger, asked);
        (!asked.is_empty()).then_some((wants, asked))
    }

    /// The pass committed these claims.
    pub(super) fn handle_claims(
        &mut self,
        claims: Vec<Claim>,
        ledger: &mut Ledger,
        directory: &Directory,
    ) -> Deliveries {
        let Some(Flight::Pass(asked)) = self.finish() else { return Vec::new() };
        let mut got: BTreeMap<LaneId, u32> = BTreeMap::new();
        let mut deliveries: Deliveries = Vec::new();
        for Claim { node, command, moves_cursor, floor, .. } in claims {
            let Some(session) = directory.of_epoch(&node, command.session_epoch) else { continue };
            let Some(lane) = ledger.find(&session.lanes, &command.lane) else { continue };
            *got.entry(lane).or_default() += 1;
            if moves_cursor {
                ledger.move_cursor(lane, command.seq, floor);
            }
            if self.overlap.is_over(&node, command.id, command.attempt) {
                continue;
            }
            ledger.debit(lane, command.id, command.attempt);
            ledger.note_sent(lane, command.id, command.payload.len());
            match deliveries.last_mut() {
                Some((key, commands)) if *key == session.key => commands.push(command),
                _ => deliveries.push((session.key, vec![command])),
            }
        }
        for Asked { lane, free, .. } in asked {
            ledger.end_pass(lane, got.get(&lane).is_some_and(|got| *got >= free));
        }
        deliveries
    }

    /// The lanes that were frozen have been read.
    pub(super) fn handle_lanes_read(
        &mut self,
        states: Vec<LaneState>,
        ledger: &mut Ledger,
        directory: &Directory,
    ) -> (Deliveries, Vec<SessionKey>) {
        let Some(Flight::Read(lanes)) = self.finish() else { return Default::default() };
        let mut superseded = Vec::new();
        assert_eq!(lanes.len(), states.len(), "a store answers slot for slot");
        let mut unsent: BTreeMap<SessionKey, Vec<Command>> = BTreeMap::new();
        for (id, state) in lanes.into_iter().zip(states) {
            let Some(lane) = ledger.get(id) else { continue };
            let key = lane.key;
            let in_flight: BTreeMap<CommandId, Attempt> =
                state.in_flight.iter().map(|command| (command.id, command.attempt)).collect();
            let new = state.in_flight.into_iter().filter(|command| {
                !lane.holds(command.id, command.attempt)
                    && !self.overlap.is_over(&lane.node, command.id, command.attempt)
            });
            if state.is_live {
                unsent.entry(key).or_default().extend(new);
            } else {
                superseded.push(key);
            }
            ledger.thaw(id, in_flight, state.cursor);
            if let Some(session) = directory.get(key) {
                self.overlap.apply(&session.node, &session.lanes, ledger);
            }
        }
        for commands in unsent.values_mut() {
            commands.sort_by_key(|command| command.seq);
        }
        (unsent.into_iter().filter(|(_, commands)| !commands.is_empty()).collect(), superseded)
    }

    /// The job in flight did not commit, or nobody knows.
    pub(super) fn handle_failed(&mut self, error: &StoreError, ledger: &mut Ledger, now: Moment) {
        let rejected = matches!(error, StoreError::Rejected(_));
        let was_forsaken = self.forsaken;
        let flight = self.in_flight.take();
        self.forsaken = false;
        if rejected && matches!(flight, Some(Flight::Pass(_))) {
            self.backoff.handle_success();
            self.backoff.note(error.to_string());
        } else {
            self.backoff.handle_failure(error, now);
        }
        match flight {
            _ if was_forsaken => {}
            Some(Flight::Read(lanes)) => {
                self.unread.extend(lanes);
                self.read_what_is_held(ledger);
            }
            Some(Flight::Pass(asked)) if matches!(error, StoreError::OutcomeUnknown(_)) => {
                for Asked { lane, .. } in asked {
                    ledger.freeze(lane);
                    self.unread.push(lane);
                }
                self.read_what_is_held(ledger);
            }
            Some(Flight::Pass(mut asked)) if rejected => {
                if let [alone] = asked[..] {
                    ledger.hold_back(alone.lane);
                } else {
                    let second = asked.split_off(asked.len() / 2);
                    self.again.extend([second, asked]);
                }
            }
            Some(Flight::Pass(asked)) => {
                for Asked { lane, look, .. } in asked.into_iter().rev() {
                    ledger.return_to_front(lane, look);
                }
            }
            None => {}
        }
    }

    /// The connection may have been lost by a crash.
    fn read_what_is_held(&mut self, ledger: &mut Ledger) {
        for Asked { lane, look, .. } in std::mem::take(&mut self.again).into_iter().flatten() {
            ledger.return_to_front(lane, look);
        }
        self.unread.extend(ledger.freeze_holding());
    }

    /// The job in flight is over, and it counts: `None` where it was forsaken.
    fn finish(&mut self) -> Option<Flight> {
        self.backoff.handle_success();
        let flight = self.in_flight.take();
        if std::mem::take(&mut self.forsaken) { None } else { flight }
    }

    /// The job in flight found the lease gone. Gives whether that counts.
    pub(super) fn handle_lease_lost(&mut self) -> bool {
        self.finish().is_some()
    }

    /// The fence: what is in flight will not count, what was to be repeated is forgotten.
    pub(super) fn forsake(&mut self) {
        self.forsaken = self.in_flight.is_some();
        self.again.clear();
        self.unread.clear();
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    pub(super) fn backoff(&self) -> &Backoff {
        &self.backoff
    }

    /// When a job that waits for its back-off may start.
    pub(super) fn next_deadline(&self, ledger: &Ledger) -> Option<Moment> {
        let waits = !self.unread.is_empty()
            || !self.again.is_empty()
            || ledger.waiting(Look::Urgent) > 0
            || ledger.waiting(Look::Patrol) > 0;
        (waits && self.in_flight.is_none()).then(|| self.backoff.ready_at())
    }
}

/// Takes lanes from the lines, with what each may ask for.
fn pick(ledger: &mut Ledger) -> Vec<Asked> {
    let patrols = ledger.waiting(Look::Patrol).min(PATROL_LANES_PER_PASS);
    let mut claims = MAX_CLAIMS_PER_PASS - patrols;
    let share = (claims / ledger.waiting(Look::Urgent).max(1)).max(LEAST_SHARE);
    let mut asked = Vec::new();
    // A lane that was taken does not come back within the pass, so this visits each at most once.
    while claims > 0 && asked.len() < MAX_LANES_PER_PASS - patrols {
        let Some(lane) = ledger.take_first(Look::Urgent) else { break };
        let free = ledger.get(lane).map_or(0, |lane| lane.free() as usize).min(share).min(claims);
        claims -= free;
        asked.push(Asked { lane, look: Look::Urgent, free: free as u32 });
    }
    for _ in 0..patrols {
        let Some(lane) = ledger.take_first(Look::Patrol) else { break };
        asked.push(Asked { lane, look: Look::Patrol, free: 1 });
    }
    asked
}

/// The wishes of lanes that are still there and have credit.
fn ask(ledger: &mut Ledger, candidates: Vec<Asked>) -> (Vec<LaneWant>, Vec<Asked>) {
    let mut wants = Vec::with_capacity(candidates.len());
    let mut asked = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        let Some(lane) = ledger.get(candidate.lane) else { continue };
        let free = candidate.free.min(lane.free());
        if free == 0 {
            // An adoption took the credit since a first half of the pass was refused.
            ledger.return_to_front(candidate.lane, candidate.look);
            continue;
        }
        wants.push(LaneWant {
            node: lane.node.clone(),
            epoch: lane.epoch,
            lane: lane.name.clone(),
            free: Credits(free),
            cursor: lane.cursor,
            floor: lane.floor,
            capacity: lane.capacity(),
            in_flight: lane.in_flight(),
        });
        asked.push(Asked { free, ..candidate });
    }
    (wants, asked)
}

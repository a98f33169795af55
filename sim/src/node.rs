//! A simulated node: what protocol.md says that a node does, without a network.
//!
//! Owns what a node persists (commands that it knows, updates that are owed, a journal, an inventory) and
//! its log of executions. Never talks to anyone: it fills an outbox, and the world carries it.
//!
//! 1. A command runs once for each (id, attempt) until it is forgotten, with its terminal ack.
//! 2. An update is owed until it is acked or rejected; after `Welcome` all that is owed goes again.
//! 3. Answers come in the order of what was sent and name it: asserted, but for sections of the inventory.
//! 4. A gateway that answers no heartbeat, or no Hello, for long is taken for dead.
//! 5. A refusal may be told once more long after, when the next attempt is under way.

mod streams;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use gateway_core::command::CommandState;
use gateway_core::frame::{
    Ack, Command, CommandUpdate, CreditChange, GatewayFrame, Heartbeat, LaneCapacity, NodeFrame, Refusal,
    RefusalReason, RejectCode, Rejected,
};
use gateway_core::ids::{Attempt, CommandId, Credits, FrameRef, LaneName, NodeId, SessionEpoch};
use gateway_core::time::Moment;

pub(crate) use self::streams::TWIN;
use crate::check::must;
use crate::inventory::SimInventory;
use crate::journal::SimJournal;
use crate::node_specs::SimSpecs;
use crate::random::Chance;
use crate::statuses::SimStatuses;

/// The progress text, the kind of an event or status and the body of a section that the store refuses.
pub(crate) const POISON: &str = "poison";

/// How often it sends a heartbeat, and how long it waits for answers to them, or to its Hello.
const HEARTBEAT_EVERY: Duration = Duration::from_millis(1_500);
const DEAD_AFTER: Duration = Duration::from_millis(3 * 1_500 + 500);
const WELCOME_WITHIN: Duration = Duration::from_secs(8);

#[derive(Debug, Clone)]
struct Held {
    lane: Option<LaneName>,
    attempt: Attempt,
    state: CommandState,
    next_step: Option<Moment>,
}

/// An ack of an update: what was reported, and what the gateway says is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acked {
    pub(crate) id: CommandId,
    pub(crate) attempt: Attempt,
    pub(crate) reported: CommandState,
    pub(crate) stored: CommandState,
}

#[derive(Debug)]
pub(crate) struct SimNode {
    pub(crate) id: NodeId,
    pub(crate) lanes: Vec<LaneCapacity>,
    pub(crate) outbox: Vec<NodeFrame>,
    pub(crate) executions: BTreeSet<(CommandId, Attempt)>,
    /// The link in use, if one is.
    pub(crate) link: Option<u64>,
    pub(crate) redial_at: Option<Moment>,
    /// What must be stored, by what was acked: checked and taken by the world.
    pub(crate) acked: Vec<Acked>,
    /// Attempts that the gateway said are over: checked and taken by the world.
    pub(crate) rejected: Vec<(CommandId, Attempt)>,
    /// It is not let in again before this.
    pub(crate) away_until: Moment,
    /// It takes commands and goes on with none.
    pub(crate) holds: bool,
    /// Durable frames that were sent in this session and are not answered, in order.
    awaited: VecDeque<FrameRef>,
    /// What of the gateway was heard last that says that it lives.
    heard_at: Moment,
    connected_at: Moment,
    pub(crate) welcomed_at: Moment,
    /// Somebody else reports on its commands, so credits are given back before it has ended them.
    pub(crate) is_meddled_with: bool,
    /// The highest capacity that it ever announced, by lane.
    highest: BTreeMap<LaneName, Credits>,
    /// How far the server's clock is ahead of time itself, in milliseconds.
    server_ahead: i128,
    known: BTreeMap<CommandId, Held>,
    owed: VecDeque<CommandUpdate>,
    /// What it will tell once more, and when.
    echoes: Vec<(Moment, CommandUpdate)>,
    sent: usize,
    epoch: Option<SessionEpoch>,
    last_epoch: SessionEpoch,
    next_ref: u64,
    heartbeat_at: Moment,
    heartbeats: u64,
    beats_acked: u64,
    poisons: bool,
    pub(crate) journal: SimJournal,
    pub(crate) specs: SimSpecs,
    pub(crate) statuses: SimStatuses,
    pub(crate) inventory: SimInventory,
    /// Whether a cursor was told: to be checked and unset by the world.
    pub(crate) cursor_told: bool,
}

impl SimNode {
    pub(crate) fn new(id: NodeId, lanes: Vec<LaneCapacity>, poisons: bool) -> Self {
        let highest = lanes.iter().map(|lane| (lane.lane.clone(), lane.capacity)).collect();
        Self {
            id,
            lanes,
            outbox: Vec::new(),
            executions: BTreeSet::new(),
            link: None,
            redial_at: Some(Moment::default()),
            acked: Vec::new(),
            rejected: Vec::new(),
            away_until: Moment::default(),
            holds: false,
            awaited: VecDeque::new(),
            heard_at: Moment::default(),
            connected_at: Moment::default(),
            welcomed_at: Moment::default(),
            is_meddled_with: false,
            highest,
            server_ahead: 0,
            known: BTreeMap::new(),
            owed: VecDeque::new(),
            echoes: Vec::new(),
            sent: 0,
            epoch: None,
            last_epoch: SessionEpoch(0),
            next_ref: 1,
            heartbeat_at: Moment::default(),
            heartbeats: 0,
            beats_acked: 0,
            poisons,
            journal: SimJournal::new(poisons),
            specs: SimSpecs::default(),
            statuses: SimStatuses::new(poisons),
            inventory: SimInventory::new(poisons),
            cursor_told: false,
        }
    }

    pub(crate) fn handle_frame(&mut self, frame: GatewayFrame, chance: &mut Chance, now: Moment) {
        match frame {
            GatewayFrame::Welcome(welcome) => {
                assert!(self.epoch.is_none(), "one Welcome a session");
                assert!(welcome.session_epoch > self.last_epoch, "epochs only rise");
                self.last_epoch = welcome.session_epoch;
                self.epoch = Some(welcome.session_epoch);
                self.heartbeat_at = now;
                self.heard_at = now;
                self.welcomed_at = now;
                self.server_ahead = i128::from(welcome.server_time.0) - millis(now);
                self.journal.handle_welcome(welcome.journal.as_ref(), welcome.journal_acked);
                self.cursor_told = true;
                self.inventory.handle_wanted(&welcome.inventory_wanted, chance);
            }
            GatewayFrame::Command(command) => {
                assert_eq!(Some(command.session_epoch), self.epoch, "a command of this session");
                self.take_command(*command, chance, now);
            }
            GatewayFrame::CancelCommand(cancel) => self.take_cancel(cancel.id),
            GatewayFrame::Spec(spec) => {
                assert!(self.epoch.is_some(), "a spec follows Welcome");
                self.specs.handle_spec(*spec, &mut self.next_ref, chance);
            }
            GatewayFrame::Ack(ack) if self.inventory.handle_ack(ack.frame_ref) => {}
            GatewayFrame::Rejected(rejected) if self.inventory.handle_rejected(&rejected, chance) => {}
            // It tells of an event of the batch that is on its way; the ack follows.
            GatewayFrame::Rejected(rejected) if self.journal.handle_rejected(&rejected) => {
                self.check_turn(rejected.frame_ref);
            }
            GatewayFrame::Ack(ack) => {
                self.take_turn(ack.frame_ref);
                if self.specs.handle_ack(ack.frame_ref) {
                    assert_eq!(ack.state, None);
                } else if !self.statuses.handle_ack(ack.frame_ref) {
                    self.take_ack(ack);
                }
            }
            GatewayFrame::EventAck(ack) => {
                self.take_turn(ack.frame_ref);
                self.journal.handle_ack(&ack);
                self.cursor_told = true;
            }
            GatewayFrame::Rejected(rejected) => {
                self.take_turn(rejected.frame_ref);
                if !self.statuses.handle_rejected(&rejected) {
                    self.take_rejected(&rejected);
                }
            }
            GatewayFrame::HeartbeatAck { sequence, server_time } => {
                self.check_time(sequence, server_time, now);
                must("heartbeats are answered in order", sequence > self.beats_acked, || {
                    format!("{sequence}")
                });
                assert!(sequence <= self.heartbeats);
                self.beats_acked = sequence;
                self.heard_at = now;
            }
            GatewayFrame::InventoryWanted(wanted) => self.inventory.handle_wanted(&wanted, chance),
            _ => {}
        }
        self.send();
    }

    pub(crate) fn handle_time(&mut self, chance: &mut Chance, now: Moment) {
        if self.epoch.is_some() && now >= self.heartbeat_at {
            self.heartbeats += 1;
            let inventory = self.inventory.list().into();
            self.outbox.push(NodeFrame::Heartbeat(Heartbeat { sequence: self.heartbeats, inventory }));
            self.heartbeat_at = now + HEARTBEAT_EVERY;
        }
        self.journal.handle_time(chance, now);
        self.statuses.handle_time(chance, &mut self.next_ref, now);
        self.inventory.handle_time(chance, now);
        let due: Vec<CommandId> = self
            .known
            .iter()
            .filter(|(_, held)| !self.holds && held.next_step.is_some_and(|at| now >= at))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.step(id, chance, now);
        }
        for (_, mut update) in self.echoes.extract_if(.., |(at, _)| now >= *at) {
            update.frame_ref = FrameRef(self.next_ref);
            self.next_ref += 1;
            self.owed.push_back(update);
        }
        self.send();
    }

    /// The node changes a lane's capacity.
    pub(crate) fn handle_capacity(&mut self, lane: usize, capacity: Credits) {
        let Some(declared) = self.lanes.get_mut(lane) else { return };
        declared.capacity = capacity;
        let lane = declared.lane.clone();
        let highest = self.highest.entry(lane.clone()).or_default();
        *highest = capacity.max(*highest);
        if self.link.is_some() {
            self.outbox.push(NodeFrame::Credit(CreditChange { lane, capacity }));
        }
    }

    fn take_command(&mut self, command: Command, chance: &mut Chance, now: Moment) {
        if self.known.get(&command.id).is_some_and(|held| held.attempt >= command.attempt) {
            return;
        }
        let late = command.not_after.is_some_and(|end| i128::from(end.0) <= millis(now) + self.server_ahead);
        let refusal = match chance.within(0..100) {
            _ if self.holds => None,
            _ if late => Some((RefusalReason::Expired, false)),
            0..4 => Some((RefusalReason::LaneFull, true)),
            4..6 => Some((RefusalReason::UnknownKind, false)),
            _ => None,
        };
        let lane = Some(command.lane.clone());
        let before = self.known.values().filter(|had| had.lane == lane && !had.state.is_terminal()).count();
        let most = self.highest.get(&command.lane).map_or(0, |most| most.0 as usize);
        must("a node is given no more than it ever took", before < most || self.is_meddled_with, || {
            format!("{before} of {most} before {command:?}")
        });
        let mut held =
            Held { lane, attempt: command.attempt, state: CommandState::Accepted, next_step: None };
        if let Some((reason, retryable)) = refusal {
            held.state = CommandState::Refused;
            self.known.insert(command.id, held);
            self.owe(command.id, CommandState::Refused, Some(Refusal { reason, retryable }), None);
            if retryable && chance.percent(60) {
                let later = now + Duration::from_millis(chance.within(1_000..3_000));
                self.echoes.extend(self.owed.back().map(|update| (later, update.clone())));
            }
            return;
        }
        let is_first = self.executions.insert((command.id, command.attempt));
        must("one execution start for each (id, attempt)", is_first, || format!("{command:?}"));
        // Some work so fast that what comes of it follows at once.
        let takes = chance.within(1..400);
        held.next_step = Some(now + Duration::from_millis(if takes > 80 { takes } else { 0 }));
        // Some nodes report what has come of it at once, and nothing before.
        if !self.holds && chance.percent(15) {
            let states = [
                CommandState::Running,
                CommandState::Succeeded,
                CommandState::Failed,
                CommandState::Canceled,
            ];
            held.state = *chance.pick(&states);
            held.next_step = held.next_step.filter(|_| !held.state.is_terminal());
        }
        let state = held.state;
        self.known.insert(command.id, held);
        self.owe(command.id, state, None, None);
    }

    fn step(&mut self, id: CommandId, chance: &mut Chance, now: Moment) {
        let poisons = self.poisons;
        let Some(held) = self.known.get_mut(&id) else { return };
        let (state, progress) = match held.state {
            CommandState::Accepted if chance.percent(70) => {
                let poison = poisons && chance.percent(20);
                (CommandState::Running, poison.then(|| POISON.to_owned()))
            }
            _ if chance.percent(15) => (CommandState::Failed, None),
            _ => (CommandState::Succeeded, None),
        };
        held.state = state;
        held.next_step = (!state.is_terminal()).then(|| now + Duration::from_millis(chance.within(1..800)));
        self.owe(id, state, None, progress);
    }

    fn take_cancel(&mut self, id: CommandId) {
        match self.known.get_mut(&id) {
            Some(held) if held.state.is_terminal() => return,
            Some(held) => {
                held.state = CommandState::Canceled;
                held.next_step = None;
            }
            None => {
                let held =
                    Held { lane: None, attempt: Attempt(1), state: CommandState::Canceled, next_step: None };
                self.known.insert(id, held);
            }
        }
        self.owe(id, CommandState::Canceled, None, None);
    }

    fn owe(
        &mut self,
        id: CommandId,
        state: CommandState,
        refusal: Option<Refusal>,
        progress: Option<String>,
    ) {
        let attempt = self.known.get(&id).map_or(Attempt(1), |held| held.attempt);
        self.owed.push_back(CommandUpdate {
            frame_ref: FrameRef(self.next_ref),
            id,
            attempt,
            state,
            progress,
            result: if state.is_terminal() { Bytes::from_static(b"result") } else { Bytes::new() },
            error: None,
            refusal,
        });
        self.next_ref += 1;
    }

    fn take_ack(&mut self, ack: Ack) {
        let update = self.answered(ack.frame_ref);
        let stored = ack.state.expect("the ack of an update has a state");
        let (id, attempt, reported) = (update.id, update.attempt, update.state);
        self.acked.push(Acked { id, attempt, reported, stored });
        if update.state.is_terminal() {
            self.forget(update.id, update.attempt);
        }
    }

    fn take_rejected(&mut self, rejected: &Rejected) {
        let update = self.answered(rejected.frame_ref);
        match rejected.code {
            RejectCode::NotStorable => assert_eq!(update.progress.as_deref(), Some(POISON)),
            code => {
                let old = code == RejectCode::OldAttempt;
                must("a report is refused for a reason that it has", old, || {
                    format!("{rejected:?} of {update:?}")
                });
                self.rejected.push((update.id, update.attempt));
                self.forget(update.id, update.attempt);
            }
        }
    }

    /// An answer names what was sent first and is not answered.
    fn check_turn(&self, frame_ref: FrameRef) {
        let first = self.awaited.front();
        must("answers come in order", first == Some(&frame_ref), || format!("{frame_ref}, not {first:?}"));
    }

    fn take_turn(&mut self, frame_ref: FrameRef) {
        self.check_turn(frame_ref);
        self.awaited.pop_front();
    }

    fn answered(&mut self, frame_ref: FrameRef) -> CommandUpdate {
        assert!(self.sent > 0, "an answer follows what was sent: {frame_ref}");
        self.sent -= 1;
        let update = self.owed.pop_front().expect("what was sent is owed");
        assert_eq!(update.frame_ref, frame_ref, "answers come in order");
        update
    }

    fn forget(&mut self, id: CommandId, attempt: Attempt) {
        if self.known.get(&id).is_some_and(|held| held.attempt <= attempt) {
            self.known.remove(&id);
        }
    }

    /// Sends what is owed and was not sent in this session.
    fn send(&mut self) {
        if self.epoch.is_none() {
            return;
        }
        let before = self.outbox.len();
        self.outbox.extend(self.owed.iter().skip(self.sent).cloned().map(NodeFrame::CommandUpdate));
        self.sent = self.owed.len();
        let answers = self.specs.poll_answers().into_iter();
        self.outbox.extend(answers.map(|applied| NodeFrame::SpecApplied(Box::new(applied))));
        let batch = self.journal.poll_batch(&mut self.next_ref);
        self.outbox.extend(batch.map(|batch| NodeFrame::EventBatch(Box::new(batch))));
        while let Some(status) = self.statuses.poll() {
            self.outbox.push(NodeFrame::Status(Box::new(status)));
        }
        self.awaited.extend(self.outbox[before..].iter().filter_map(ref_of));
        while let Some(section) = self.inventory.poll(&mut self.next_ref) {
            self.outbox.push(NodeFrame::InventorySection(Box::new(section)));
        }
    }

    /// It goes on with what it has held.
    pub(crate) fn release(&mut self, now: Moment) {
        self.holds = false;
        let waits = self.known.values_mut().filter(|held| !held.state.is_terminal());
        waits.for_each(|held| held.next_step = Some(now + Duration::from_millis(10)));
    }

    /// Whether nothing was heard for so long that it redials.
    pub(crate) fn takes_gateway_for_dead(&self, now: Moment) -> bool {
        self.link.is_some() && self.dead_at() <= now
    }

    fn dead_at(&self) -> Moment {
        if self.epoch.is_some() { self.heard_at + DEAD_AFTER } else { self.connected_at + WELCOME_WITHIN }
    }

    pub(crate) fn poisons(&self) -> bool {
        self.poisons
    }

    pub(crate) fn epoch(&self) -> Option<SessionEpoch> {
        self.epoch
    }

    pub(crate) fn is_live(&self) -> bool {
        self.epoch.is_some()
    }

    /// Commands that it has not ended.
    pub(crate) fn running(&self) -> impl Iterator<Item = CommandId> {
        self.known.iter().filter(|(_, held)| !held.state.is_terminal()).map(|(id, _)| *id)
    }

    /// Whether nothing is owed and nothing runs.
    pub(crate) fn is_idle(&self) -> bool {
        let told = self.owed.is_empty() && self.echoes.is_empty();
        let quiet = self.known.is_empty() && told && self.journal.is_idle();
        quiet && self.specs.is_idle() && self.statuses.is_idle() && self.inventory.is_idle()
    }

    pub(crate) fn next_deadline(&self) -> Option<Moment> {
        let steps = self.known.values().filter(|_| !self.holds).filter_map(|held| held.next_step);
        let echo = self.echoes.iter().map(|(at, _)| *at).min();
        let dead = self.link.map(|_| self.dead_at());
        let heartbeat = self.epoch.map(|_| self.heartbeat_at);
        let told =
            [self.journal.next_deadline(), self.statuses.next_deadline(), self.inventory.next_deadline()];
        steps
            .chain(heartbeat)
            .chain(echo)
            .chain(dead)
            .chain(self.redial_at)
            .chain(told.into_iter().flatten())
            .min()
    }

    pub(crate) fn lane_names(&self) -> Vec<LaneName> {
        self.lanes.iter().map(|lane| lane.lane.clone()).collect()
    }
}

fn millis(now: Moment) -> i128 {
    i128::from(now.as_nanos() / 1_000_000)
}

/// Of a durable frame that is answered in order.
fn ref_of(frame: &NodeFrame) -> Option<FrameRef> {
    match frame {
        NodeFrame::CommandUpdate(update) => Some(update.frame_ref),
        NodeFrame::SpecApplied(applied) => Some(applied.frame_ref),
        NodeFrame::EventBatch(batch) => Some(batch.frame_ref),
        NodeFrame::Status(status) => Some(status.frame_ref),
        _ => None,
    }
}

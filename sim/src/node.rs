//! A simulated node: what protocol.md says that a node does, without a network.
//!
//! Owns what a node persists (commands that it knows, updates that are owed, a journal, an inventory) and
//! its log of executions. Never talks to anyone: it fills an outbox, and the world carries it.
//!
//! 1. A command runs once for each (id, attempt); one that is known is not run again.
//! 2. An update is owed until it is acked or rejected; after `Welcome` all that is owed goes again.
//! 3. A command is forgotten with its terminal ack.
//! 4. Answers come in the order of what was sent, and name it: asserted, since the gateway promises it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use gateway_core::command::CommandState;
use gateway_core::frame::{
    Ack, Command, CommandUpdate, CreditChange, GatewayFrame, Heartbeat, Hello, KnownCommand, LaneCapacity,
    NodeFrame, PROTOCOL, Refusal, RefusalReason, RejectCode, Rejected,
};
use gateway_core::ids::{Attempt, CommandId, Credits, FrameRef, LaneName, NodeId, SessionEpoch};
use gateway_core::time::Moment;

use crate::inventory::SimInventory;
use crate::journal::SimJournal;
use crate::node_specs::SimSpecs;
use crate::random::Chance;
use crate::statuses::SimStatuses;

/// The progress text, the kind of an event or status and the body of a section that the store refuses.
pub(crate) const POISON: &str = "poison";

#[derive(Debug, Clone)]
struct Held {
    attempt: Attempt,
    state: CommandState,
    next_step: Option<Moment>,
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
    pub(crate) acked: Vec<(CommandId, CommandState)>,
    known: BTreeMap<CommandId, Held>,
    owed: VecDeque<CommandUpdate>,
    sent: usize,
    epoch: Option<SessionEpoch>,
    last_epoch: SessionEpoch,
    next_ref: u64,
    heartbeat_at: Moment,
    heartbeats: u64,
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
        Self {
            id,
            lanes,
            outbox: Vec::new(),
            executions: BTreeSet::new(),
            link: None,
            redial_at: Some(Moment::default()),
            acked: Vec::new(),
            known: BTreeMap::new(),
            owed: VecDeque::new(),
            sent: 0,
            epoch: None,
            last_epoch: SessionEpoch(0),
            next_ref: 1,
            heartbeat_at: Moment::default(),
            heartbeats: 0,
            poisons,
            journal: SimJournal::new(poisons),
            specs: SimSpecs::default(),
            statuses: SimStatuses::new(poisons),
            inventory: SimInventory::new(poisons),
            cursor_told: false,
        }
    }

    /// The stream is open; the Hello goes first.
    pub(crate) fn handle_connected(&mut self, link: u64) {
        self.link = Some(link);
        self.redial_at = None;
        self.epoch = None;
        self.sent = 0;
        self.outbox.clear();
        self.journal.handle_connected();
        let specs = self.specs.handle_connected();
        self.statuses.handle_connected();
        self.inventory.handle_connected();
        let known = |(id, held): (&CommandId, &Held)| KnownCommand {
            id: *id,
            attempt: held.attempt,
            state: held.state,
        };
        self.outbox.push(NodeFrame::Hello(Box::new(Hello {
            protocol: PROTOCOL,
            features: Vec::new(),
            boot_id: "boot".into(),
            machine: self.id.to_string(),
            software_version: "sim".into(),
            role: "node".into(),
            lanes: self.lanes.clone(),
            journal: Some(self.journal.id.clone()),
            known_commands: self.known.iter().map(known).collect(),
            specs,
            inventory: self.inventory.list(),
        })));
    }

    /// The stream is over, or was never opened.
    pub(crate) fn handle_ended(&mut self, wait: Duration, now: Moment) {
        self.link = None;
        self.epoch = None;
        self.sent = 0;
        self.outbox.clear();
        self.redial_at = Some(now + wait);
    }

    pub(crate) fn handle_frame(&mut self, frame: GatewayFrame, chance: &mut Chance, now: Moment) {
        match frame {
            GatewayFrame::Welcome(welcome) => {
                assert!(self.epoch.is_none(), "one Welcome a session");
                assert!(welcome.session_epoch > self.last_epoch, "epochs only rise");
                self.last_epoch = welcome.session_epoch;
                self.epoch = Some(welcome.session_epoch);
                self.heartbeat_at = now;
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
            GatewayFrame::Ack(ack) if self.specs.handle_ack(ack.frame_ref) => assert_eq!(ack.state, None),
            GatewayFrame::Ack(ack) if self.statuses.handle_ack(ack.frame_ref) => {}
            GatewayFrame::Ack(ack) if self.inventory.handle_ack(ack.frame_ref) => {}
            GatewayFrame::Ack(ack) => self.take_ack(ack),
            GatewayFrame::EventAck(ack) => {
                self.journal.handle_ack(&ack);
                self.cursor_told = true;
            }
            GatewayFrame::Rejected(rejected) if self.journal.handle_rejected(&rejected) => {}
            GatewayFrame::Rejected(rejected) if self.statuses.handle_rejected(&rejected) => {}
            GatewayFrame::Rejected(rejected) if self.inventory.handle_rejected(&rejected, chance) => {}
            GatewayFrame::Rejected(rejected) => self.take_rejected(&rejected),
            GatewayFrame::HeartbeatAck { sequence, .. } => assert!(sequence <= self.heartbeats),
            GatewayFrame::InventoryWanted(wanted) => self.inventory.handle_wanted(&wanted, chance),
            GatewayFrame::Drain { .. } => {}
        }
        self.send();
    }

    pub(crate) fn handle_time(&mut self, chance: &mut Chance, now: Moment) {
        if self.epoch.is_some() && now >= self.heartbeat_at {
            self.heartbeats += 1;
            let inventory = self.inventory.list().into();
            self.outbox.push(NodeFrame::Heartbeat(Heartbeat { sequence: self.heartbeats, inventory }));
            self.heartbeat_at = now + Duration::from_millis(1_500);
        }
        self.journal.handle_time(chance, now);
        self.statuses.handle_time(chance, &mut self.next_ref, now);
        self.inventory.handle_time(chance, now);
        let due: Vec<CommandId> = self
            .known
            .iter()
            .filter(|(_, held)| held.next_step.is_some_and(|at| now >= at))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.step(id, chance, now);
        }
        self.send();
    }

    /// The node changes a lane's capacity.
    pub(crate) fn handle_capacity(&mut self, lane: usize, capacity: Credits) {
        let Some(declared) = self.lanes.get_mut(lane) else { return };
        declared.capacity = capacity;
        let lane = declared.lane.clone();
        if self.link.is_some() {
            self.outbox.push(NodeFrame::Credit(CreditChange { lane, capacity }));
        }
    }

    fn take_command(&mut self, command: Command, chance: &mut Chance, now: Moment) {
        if self.known.get(&command.id).is_some_and(|held| held.attempt >= command.attempt) {
            return;
        }
        let late = command.not_after.is_some_and(|end| u128::from(end.0.unsigned_abs()) <= millis(now));
        let refusal = match chance.within(0..100) {
            _ if late => Some((RefusalReason::Expired, false)),
            0..4 => Some((RefusalReason::LaneFull, true)),
            4..6 => Some((RefusalReason::UnknownKind, false)),
            _ => None,
        };
        let mut held = Held { attempt: command.attempt, state: CommandState::Accepted, next_step: None };
        if let Some((reason, retryable)) = refusal {
            held.state = CommandState::Refused;
            self.known.insert(command.id, held);
            self.owe(command.id, CommandState::Refused, Some(Refusal { reason, retryable }), None);
            return;
        }
        assert!(
            self.executions.insert((command.id, command.attempt)),
            "one execution start for each (id, attempt): {command:?}"
        );
        held.next_step = Some(now + Duration::from_millis(chance.within(1..400)));
        self.known.insert(command.id, held);
        self.owe(command.id, CommandState::Accepted, None, None);
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
                let held = Held { attempt: Attempt(1), state: CommandState::Canceled, next_step: None };
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
        self.acked.push((update.id, ack.state.expect("the ack of an update has a state")));
        if update.state.is_terminal() {
            self.forget(update.id, update.attempt);
        }
    }

    fn take_rejected(&mut self, rejected: &Rejected) {
        let update = self.answered(rejected.frame_ref);
        match rejected.code {
            RejectCode::NotStorable => assert_eq!(update.progress.as_deref(), Some(POISON)),
            _ => self.forget(update.id, update.attempt),
        }
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
        if self.epoch.is_some() {
            self.outbox.extend(self.owed.iter().skip(self.sent).cloned().map(NodeFrame::CommandUpdate));
            self.sent = self.owed.len();
            let answers = self.specs.poll_answers().into_iter();
            self.outbox.extend(answers.map(|applied| NodeFrame::SpecApplied(Box::new(applied))));
            let batch = self.journal.poll_batch(&mut self.next_ref);
            self.outbox.extend(batch.map(|batch| NodeFrame::EventBatch(Box::new(batch))));
            while let Some(status) = self.statuses.poll() {
                self.outbox.push(NodeFrame::Status(Box::new(status)));
            }

            while let Some(section) = self.inventory.poll(&mut self.next_ref) {
                self.outbox.push(NodeFrame::InventorySection(Box::new(section)));
            }
        }
    }

    pub(crate) fn epoch(&self) -> Option<SessionEpoch> {
        self.epoch
    }

    pub(crate) fn is_live(&self) -> bool {
        self.epoch.is_some()
    }

    /// Whether nothing is owed and nothing runs.
    pub(crate) fn is_idle(&self) -> bool {
        let quiet = self.known.is_empty() && self.owed.is_empty() && self.journal.is_idle();
        quiet && self.specs.is_idle() && self.statuses.is_idle() && self.inventory.is_idle()
    }

    pub(crate) fn next_deadline(&self) -> Option<Moment> {
        let steps = self.known.values().filter_map(|held| held.next_step);
        let heartbeat = self.epoch.map(|_| self.heartbeat_at);
        let told =
            [self.journal.next_deadline(), self.statuses.next_deadline(), self.inventory.next_deadline()];
        steps.chain(heartbeat).chain(self.redial_at).chain(told.into_iter().flatten()).min()
    }

    pub(crate) fn lane_names(&self) -> Vec<LaneName> {
        self.lanes.iter().map(|lane| lane.lane.clone()).collect()
    }
}

fn millis(now: Moment) -> u128 {
    now.since(Moment::default()).as_millis()
}

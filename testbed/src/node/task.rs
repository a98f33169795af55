//! The task of one node: one loop over its orders, its session and its times.
//!
//! 1. Each turn takes one input: an order, an arrival, or a time that has come.
//! 2. What was received is logged before it is answered.

mod answers;
pub(super) mod moving;
pub(super) mod renewing;
mod specs;
mod tunnels;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use gateway_proto::v1::{
    self, CommandState, Credit, GatewayFrame, Goodbye, Lane, gateway_frame, node_frame::Frame,
};
use prost::Message;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};
use uuid::Uuid;

use super::call::{Arrival, Call};
use super::end::{End, EndKind};
use super::events::EventJournal;
use super::inventory::Inventory;
use super::journal::LogEvent;
use super::memory::{Memory, Running, Verdict, state_name};
use super::observer::{NodeEvent, ReceivedCommand};
use super::redial::{Redial, Redialer};
use super::session::{Dial, Due, Session};
use super::specs::NodeSpecs;
use super::statuses::Statuses;
use super::{Control, Execution, NodeOptions};
use crate::clock::monotonic_ns;
use moving::{Parting, Successor};

const DIAL_TIMEOUT: Duration = Duration::from_secs(30);

enum Phase {
    Waiting(Instant),
    Dialing(Dial, Instant),
    Live(Box<Session>),
    Stopped,
}

enum Turn {
    Order(Option<Control>),
    Dialed(Result<Box<Call>, End>),
    Arrived(Arrival),
    /// For the session that will replace a drained one.
    Successor(Arrival),
    /// For the one that was replaced.
    Parted(Arrival),
    Time,
}

pub(super) struct NodeTask {
    name: Arc<str>,
    options: NodeOptions,
    orders: mpsc::UnboundedReceiver<Control>,
    memory: Memory,
    journal: EventJournal,
    specs: NodeSpecs,
    statuses: Statuses,
    inventory: Inventory,
    redialer: Redialer,
    random: SmallRng,
    phase: Phase,
    parting: Option<Parting>,
    /// Counts turns through the targets.
    dials: usize,
    due: BinaryHeap<Reverse<(Instant, Uuid, u32)>>,
    running: Vec<Running>,
    tunnels: JoinSet<()>,
    sleep: Pin<Box<Sleep>>,
}

impl NodeTask {
    pub(super) fn new(
        name: Arc<str>,
        options: NodeOptions,
        orders: mpsc::UnboundedReceiver<Control>,
    ) -> Self {
        let lanes =
            options.lanes.iter().map(|(name, capacity)| Lane { name: name.clone(), capacity: *capacity });
        let memory = Memory::new(lanes.collect());
        let now = Instant::now();
        Self {
            name,
            memory,
            journal: EventJournal::new(options.journal.clone(), options.boot_id.clone()),
            specs: NodeSpecs::new(),
            statuses: Statuses::default(),
            inventory: Inventory::new(options.sections.iter().cloned()),
            orders,
            redialer: Redialer::new(options.redial),
            random: SmallRng::seed_from_u64(options.seed),
            phase: Phase::Waiting(now),
            parting: None,
            dials: 0,
            due: BinaryHeap::new(),
            running: Vec::new(),
            tunnels: JoinSet::new(),
            sleep: Box::pin(tokio::time::sleep_until(now)),
            options,
        }
    }

    pub(super) async fn run(mut self) -> Memory {
        while !matches!(self.phase, Phase::Stopped) {
            let turn = std::future::poll_fn(|cx| self.poll_turn(cx)).await;
            match turn {
                Turn::Order(None) => break,
                Turn::Order(Some(order)) => self.handle_order(order),
                Turn::Dialed(Ok(call)) => self.handle_dialed(call),
                Turn::Dialed(Err(end)) => self.handle_dial_failed(end),
                Turn::Arrived(Arrival::Message(message)) => self.handle_message(message),
                Turn::Arrived(Arrival::Ended(end)) => self.handle_end(end),
                Turn::Successor(arrival) => self.handle_successor(arrival),
                Turn::Parted(arrival) => self.handle_parted(arrival),
                Turn::Time => self.handle_time(),
            }
        }
        self.memory
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Turn> {
        if let Poll::Ready(order) = self.orders.poll_recv(cx) {
            return Poll::Ready(Turn::Order(order));
        }
        if let Some(parting) = &mut self.parting
            && let Poll::Ready(arrival) = parting.call.poll(cx, true)
        {
            return Poll::Ready(Turn::Parted(arrival));
        }
        match &mut self.phase {
            Phase::Dialing(dial, _) => {
                if let Poll::Ready(dialed) = dial.as_mut().poll(cx) {
                    return Poll::Ready(Turn::Dialed(dialed));
                }
            }
            Phase::Live(session) => {
                match &mut session.successor {
                    Successor::None => {}
                    Successor::Dialing(dial) => {
                        if let Poll::Ready(dialed) = dial.as_mut().poll(cx) {
                            return Poll::Ready(Turn::Dialed(dialed));
                        }
                    }
                    Successor::Greeting(next) => {
                        if let Poll::Ready(arrival) = next.call.poll(cx, true) {
                            return Poll::Ready(Turn::Successor(arrival));
                        }
                    }
                }
                if let Poll::Ready(arrival) = session.call.poll(cx, self.options.behaviour.reads) {
                    return Poll::Ready(Turn::Arrived(arrival));
                }
            }
            Phase::Waiting(_) | Phase::Stopped => {}
        }
        self.poll_time(cx).map(|()| Turn::Time)
    }

    fn poll_time(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let of_phase = match &self.phase {
            Phase::Waiting(until) | Phase::Dialing(_, until) => Some(*until),
            Phase::Live(session) => session.next_deadline(self.options.behaviour.heartbeats),
            Phase::Stopped => None,
        };
        let of_executions = self.due.peek().map(|Reverse((at, _, _))| *at);
        let of_moving = self.moving_deadline();
        let Some(deadline) = of_phase.into_iter().chain(of_executions).chain(of_moving).min() else {
            return Poll::Pending;
        };
        if self.sleep.deadline() != deadline {
            self.sleep.as_mut().reset(deadline);
        }
        std::future::Future::poll(self.sleep.as_mut(), cx)
    }

    fn handle_time(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, id, attempt))) = self.due.peek().copied() {
            if at > now {
                break;
            }
            self.due.pop();
            self.finish(id, attempt);
        }
        self.handle_moving_time(now);
        match &mut self.phase {
            Phase::Waiting(until) if *until <= now => {
                let dial = self.dial();
                self.phase = Phase::Dialing(dial, now + DIAL_TIMEOUT);
            }
            Phase::Dialing(_, until) if *until <= now => {
                self.handle_end(End::of(EndKind::Transport, "dialling took too long"));
            }
            Phase::Live(session) => {
                let behaviour = &self.options.behaviour;
                let (lists, inventory) = (behaviour.lists_inventory, &self.inventory);
                let list = || if lists { inventory.list() } else { Vec::new() };
                let due = session.handle_time(behaviour.heartbeats, list, now);
                self.handle_due(due);
            }
            _ => {}
        }
    }

    fn handle_due(&mut self, due: Due) {
        match due {
            Due::Nothing => self.report_open(),
            Due::NoWelcome => self.handle_end(End::of(EndKind::GatewaySilent, "no Welcome came")),
            Due::GatewaySilent => {
                self.handle_end(End::of(EndKind::GatewaySilent, "three heartbeats were not acked"));
            }
            Due::Redial => self.dial_successor(),
        }
    }

    // Whoever ended it, the session is over.
    fn handle_end(&mut self, mut end: End) {
        if self.succeed(&end) {
            return;
        }
        let (welcomed, said_goodbye) = match &self.phase {
            Phase::Live(session) => (session.epoch.is_some(), session.said_goodbye),
            _ => (false, false),
        };
        end.was_welcomed = welcomed;
        if said_goodbye {
            if end.status() == Some(0) {
                end.kind = EndKind::Asked;
            }
            self.tell_end(end, None);
            self.phase = Phase::Stopped;
            return;
        }
        self.dials += 1;
        match self.redialer.handle_end(&end, self.random.next_u64()) {
            Redial::After(delay) => {
                self.tell_end(end, Some(delay));
                self.phase = Phase::Waiting(Instant::now() + delay);
            }
            Redial::Never => {
                self.tell_end(end, None);
                self.phase = Phase::Stopped;
            }
        }
    }

    fn tell_end(&mut self, mut end: End, redial_after: Option<Duration>) {
        if let Phase::Live(session) = &self.phase {
            end.was_welcomed = session.epoch.is_some();
        }
        self.tell(NodeEvent::Ended { end, redial_after, at_ns: monotonic_ns() });
    }

    fn handle_order(&mut self, order: Control) {
        match order {
            Control::Release(which) => {
                let held: Vec<(Uuid, u32)> = self
                    .running
                    .iter()
                    .filter(|running| which.is_none_or(|id| id == running.id))
                    .map(|running| (running.id, running.attempt))
                    .collect();
                for (id, attempt) in held {
                    self.finish(id, attempt);
                }
            }
            Control::Behave(behaviour) => {
                self.options.behaviour = *behaviour;
                self.report_open();
            }
            Control::Capacity(lane, capacity) => {
                self.memory.set_capacity(&lane, capacity);
                self.send(Frame::Credit(Credit { lane, capacity }));
            }
            Control::Send(frame) => {
                if let Some(frame) = frame.frame {
                    self.send(frame);
                }
            }
            Control::Emit(kind, body, attested) => {
                self.journal.append(kind, body, attested);
                self.send_events();
            }
            Control::Tell(id, kind, body) => {
                self.statuses.add(id, kind, body);
                self.send_statuses();
            }
            Control::Section(section, body) => {
                self.inventory.set(section, body, self.options.behaviour.sends_changes);
                self.send_sections();
            }
            Control::Renewed => {
                if let Phase::Live(session) = &mut self.phase {
                    session.drain(Duration::ZERO, Instant::now());
                }
            }
            Control::Cut => {
                if !matches!(self.phase, Phase::Waiting(_)) {
                    self.handle_end(End::of(EndKind::Asked, "cut"));
                }
            }
            Control::Goodbye => match &mut self.phase {
                Phase::Live(session) if session.epoch.is_some() => {
                    session.said_goodbye = true;
                    session.send(Frame::Goodbye(Goodbye { reason: "stopping".to_owned() }));
                    session.call.half_close();
                }
                _ => self.phase = Phase::Stopped,
            },
        }
    }

    fn handle_message(&mut self, message: Bytes) {
        let frame = match GatewayFrame::decode(message) {
            Ok(frame) => frame.frame,
            Err(error) => {
                return self.handle_end(End::of(EndKind::Transport, format!("not a GatewayFrame: {error}")));
            }
        };
        match frame {
            Some(gateway_frame::Frame::Welcome(welcome)) => self.handle_welcome(&welcome),
            Some(gateway_frame::Frame::Command(command)) => self.handle_command(command),
            Some(gateway_frame::Frame::CancelCommand(cancel)) => self.handle_cancel(&cancel),
            Some(gateway_frame::Frame::Ack(ack)) => self.handle_ack(&ack),
            Some(gateway_frame::Frame::EventAck(ack)) => {
                self.journal.handle_ack(&ack);
                self.events_acked(ack.acked_seq);
            }
            Some(gateway_frame::Frame::Spec(spec)) => self.handle_spec(spec),
            Some(gateway_frame::Frame::Rejected(rejected)) => self.handle_rejected(rejected),
            Some(gateway_frame::Frame::InventoryWanted(wanted)) => {
                self.inventory.handle_wanted(&wanted.sections);
                self.sections_wanted(wanted.sections);
            }
            Some(gateway_frame::Frame::HeartbeatAck(ack)) => {
                if let Phase::Live(session) = &mut self.phase {
                    let round_trip = session.beat_acked(ack.sequence, Instant::now());
                    self.tell(NodeEvent::HeartbeatAcked { sequence: ack.sequence, round_trip });
                }
            }
            Some(gateway_frame::Frame::Drain(drain)) => {
                let after = Duration::from_millis(drain.reconnect_after_ms.into());
                if let Phase::Live(session) = &mut self.phase
                    && self.options.behaviour.drains
                {
                    session.drain(after, Instant::now());
                }
                self.tell(NodeEvent::DrainAsked { reconnect_after: after });
            }
            Some(gateway_frame::Frame::OpenTunnel(open)) => self.handle_offer(open),
            Some(gateway_frame::Frame::RevocationNotice(notice)) => {
                self.tell(NodeEvent::RevocationNoticed { reason: notice.reason, serials: notice.serials });
            }
            _ => {}
        }
    }

    fn handle_welcome(&mut self, welcome: &v1::Welcome) {
        let given = Duration::from_millis(welcome.heartbeat_interval_ms.into());
        let interval = self.options.heartbeat.unwrap_or(given);
        let phase = self.random.random::<f64>();
        if let Phase::Live(session) = &mut self.phase {
            session.welcome(welcome.session_epoch, welcome.server_unix_ms, interval, phase, Instant::now());
        }
        self.tell(NodeEvent::Connected { epoch: welcome.session_epoch, at_ns: monotonic_ns() });
        self.report_open();
        self.send_spec_answers();
        self.statuses.handle_welcome();
        self.send_statuses();
        self.journal.handle_welcome(welcome);
        self.events_acked(welcome.journal_acked_seq);
        self.inventory.handle_welcome(&welcome.inventory_wanted);
        self.sections_wanted(welcome.inventory_wanted.clone());
    }

    fn handle_command(&mut self, command: v1::Command) {
        let at_ns = monotonic_ns();
        let Phase::Live(session) = &self.phase else { return };
        let Ok(id) = Uuid::from_slice(&command.command_id) else { return };
        let verdict =
            self.memory.handle_command(&command, session.epoch.unwrap_or(0), session.server_now_ms());
        self.log(LogEvent::Received, id, command.attempt, None);
        self.tell(NodeEvent::CommandReceived(Box::new(ReceivedCommand {
            id,
            attempt: command.attempt,
            lane: command.lane,
            seq: command.seq,
            kind: command.kind,
            payload: command.payload.clone(),
            session_epoch: command.session_epoch,
            verdict,
            at_ns,
        })));
        match verdict {
            Verdict::Execute => self.execute(id, command.attempt, command.payload),
            Verdict::Duplicate | Verdict::Refuse(_) => self.report(id),
            Verdict::Ignore => {}
        }
    }

    fn execute(&mut self, id: Uuid, attempt: u32, payload: Bytes) {
        let delay = match self.options.behaviour.execution.clone() {
            Execution::Refused { reason, retryable } => {
                self.memory.refuse(id, attempt, reason, retryable);
                return self.report(id);
            }
            Execution::Instantly | Execution::Failing(_) => Some(Duration::ZERO),
            Execution::After(delay) => Some(delay),
            Execution::Held => None,
        };
        self.log(LogEvent::Started, id, attempt, None);
        self.tell(NodeEvent::Started { id, attempt });
        self.report(id);
        if self.options.behaviour.reports_running
            && self.memory.advance(id, attempt, CommandState::Running, Bytes::new(), "")
        {
            self.report(id);
        }
        let result = self.options.behaviour.result.clone().unwrap_or(payload);
        self.running.push(Running { id, attempt, result });
        match delay {
            Some(Duration::ZERO) => self.finish(id, attempt),
            Some(delay) => self.due.push(Reverse((Instant::now() + delay, id, attempt))),
            None => {}
        }
    }

    fn finish(&mut self, id: Uuid, attempt: u32) {
        // One that was canceled is not there any more.
        let is_this = |running: &Running| running.id == id && running.attempt == attempt;
        let Some(at) = self.running.iter().position(is_this) else { return };
        let running = self.running.swap_remove(at);
        let (state, error) = match &self.options.behaviour.execution {
            Execution::Failing(error) => (CommandState::Failed, error.clone()),
            _ => (CommandState::Succeeded, String::new()),
        };
        let result = if error.is_empty() { running.result } else { Bytes::new() };
        if self.memory.advance(id, attempt, state, result, &error) {
            self.log(LogEvent::Finished, id, attempt, Some(state));
            self.report(id);
        }
    }

    fn handle_cancel(&mut self, cancel: &v1::CancelCommand) {
        let Ok(id) = Uuid::from_slice(&cancel.command_id) else { return };
        self.tell(NodeEvent::CancelAsked { id });
        if let Some(attempt) = self.memory.handle_cancel(id) {
            self.running.retain(|running| running.id != id);
            self.log(LogEvent::Finished, id, attempt, Some(CommandState::Canceled));
        }
        self.report(id);
    }

    fn report(&mut self, id: Uuid) {
        let Phase::Live(session) = &mut self.phase else { return };
        if session.epoch.is_none() || !self.options.behaviour.reports {
            return;
        }
        if let Some(update) = self.memory.update_of(id) {
            session.send(Frame::CommandUpdate(update));
        }
    }

    fn report_open(&mut self) {
        for id in self.memory.unreported() {
            self.report(id);
        }
    }

    fn send(&mut self, frame: Frame) {
        if let Phase::Live(session) = &mut self.phase {
            session.send(frame);
        }
    }

    fn tell(&self, event: NodeEvent) {
        self.options.observer.on_event(&self.name, event);
    }

    fn log(&self, event: LogEvent, id: Uuid, attempt: u32, state: Option<CommandState>) {
        if let Some(log) = &self.options.log {
            log.append(&self.name, event, id, attempt, state.map(state_name));
        }
    }
}

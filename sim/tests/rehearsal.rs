//! A node of an embedder's on simulated time: an example of its logic, and what a rehearsal asks of it.
//!
//! `Daemon` is what a daemon in Rust would have at its core: no I/O, time as an argument. It is run here against
//! the machines of a real gateway and the model of its database; over real sockets, or in memory, the same logic
//! would sit behind the messages of the protocol.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use gateway_core::command::CommandState;
use gateway_core::frame::{
    CommandUpdate, GatewayFrame, Heartbeat, Hello, KnownCommand, LaneCapacity, NodeFrame, PROTOCOL,
};
use gateway_core::ids::{Attempt, CommandId, Credits, FrameRef, LaneName, NodeId};
use gateway_core::limits::Limits;
use gateway_core::time::Moment;
use gateway_sim::Chance;
use gateway_sim::rehearsal::{NodeLogic, Rehearsal, StreamEnd};
use gateway_sim::store::NewCommand;
use uuid::Uuid;

const LANE: &str = "default";
const HEARTBEAT_EVERY: Duration = Duration::from_secs(10);
const BACK_OFF: Duration = Duration::from_secs(1);

/// The logic of a daemon: it says Hello, beats, does each command once, reports until that is acked, and dials
/// again when it may.
struct Daemon {
    outbox: VecDeque<NodeFrame>,
    /// Commands that it has done, until their report is acked.
    done: BTreeMap<CommandId, Attempt>,
    executions: Vec<CommandId>,
    awaited: VecDeque<CommandId>,
    next_ref: u64,
    beats: u64,
    is_open: bool,
    /// When it may dial, or is to beat.
    due_at: Moment,
    /// When each stream was refused, and until when it was told to wait.
    refused: Vec<(Moment, Duration)>,
    dialled_at: Vec<Moment>,
    welcomes: u32,
    lost: u32,
}

impl Daemon {
    fn new() -> Self {
        Self {
            outbox: VecDeque::new(),
            done: BTreeMap::new(),
            executions: Vec::new(),
            awaited: VecDeque::new(),
            next_ref: 0,
            beats: 0,
            is_open: false,
            due_at: Moment::default(),
            refused: Vec::new(),
            dialled_at: Vec::new(),
            welcomes: 0,
            lost: 0,
        }
    }

    /// Does a command, unless it is known: it was sent again then, and its report is owed anyway.
    fn execute(&mut self, id: CommandId, attempt: Attempt) {
        if self.done.insert(id, attempt).is_none() {
            self.executions.push(id);
            self.report(id, attempt);
        }
    }

    fn report(&mut self, id: CommandId, attempt: Attempt) {
        self.next_ref += 1;
        self.awaited.push_back(id);
        self.outbox.push_back(NodeFrame::CommandUpdate(CommandUpdate {
            frame_ref: FrameRef(self.next_ref),
            id,
            attempt,
            state: CommandState::Succeeded,
            progress: None,
            result: Bytes::from_static(b"done"),
            error: None,
            refusal: None,
        }));
    }
}

impl NodeLogic for Daemon {
    fn handle_opened(&mut self, now: Moment) {
        self.is_open = true;
        self.outbox.clear();
        self.awaited.clear();
        self.dialled_at.push(now);
        self.due_at = now + HEARTBEAT_EVERY;
        let known = |(id, attempt): (&CommandId, &Attempt)| KnownCommand {
            id: *id,
            attempt: *attempt,
            state: CommandState::Succeeded,
        };
        self.outbox.push_back(NodeFrame::Hello(Box::new(Hello {
            protocol: PROTOCOL,
            features: Vec::new(),
            boot_id: "boot".into(),
            machine: "machine".into(),
            software_version: "1".into(),
            role: "node".into(),
            lanes: vec![LaneCapacity { lane: LaneName::new(LANE).unwrap(), capacity: Credits(4) }],
            journal: None,
            known_commands: self.done.iter().map(known).collect(),
            specs: Vec::new(),
            inventory: Vec::new(),
        })));
    }

    fn handle_frame(&mut self, frame: GatewayFrame, now: Moment) {
        match frame {
            GatewayFrame::Welcome(_) => {
                self.welcomes += 1;
                for (id, attempt) in self.done.clone() {
                    self.report(id, attempt);
                }
            }
            GatewayFrame::Command(command) => self.execute(command.id, command.attempt),
            GatewayFrame::Ack(_) => {
                if let Some(id) = self.awaited.pop_front() {
                    self.done.remove(&id);
                }
            }
            GatewayFrame::Drain { reconnect_after_ms } => {
                self.due_at = now + Duration::from_millis(reconnect_after_ms.into());
            }
            _ => {}
        }
    }

    fn handle_ended(&mut self, end: &StreamEnd, now: Moment) {
        self.is_open = false;
        self.lost += u32::from(end.reason.is_none());
        if let Some(pushback) = end.pushback() {
            self.refused.push((now, pushback));
        }
        self.due_at = now + end.pushback().unwrap_or(BACK_OFF);
    }

    fn handle_time(&mut self, now: Moment) {
        if self.is_open && now >= self.due_at {
            self.beats += 1;
            self.due_at = now + HEARTBEAT_EVERY;
            self.outbox.push_back(NodeFrame::Heartbeat(Heartbeat {
                sequence: self.beats,
                inventory: Box::default(),
            }));
        }
    }

    fn poll_frame(&mut self) -> Option<NodeFrame> {
        self.outbox.pop_front()
    }

    fn wants_stream(&self, now: Moment) -> bool {
        now >= self.due_at
    }

    fn next_deadline(&self) -> Option<Moment> {
        Some(self.due_at)
    }
}

fn node_id(number: usize) -> NodeId {
    NodeId::new(&format!("spiffe://fleet.example/site/a/node/{number}")).unwrap()
}

fn command(number: u128, node: usize) -> NewCommand {
    NewCommand {
        id: CommandId(Uuid::from_u128(number)),
        node: node_id(node),
        lane: LaneName::new(LANE).unwrap(),
        kind: "work".to_owned(),
        payload: Bytes::from_static(b"x"),
        idempotency_key: None,
        not_before: None,
        not_after: None,
        max_attempts: 3,
    }
}

fn with_nodes(seed: u64, limits: Limits, nodes: usize) -> Rehearsal<Daemon> {
    let mut rehearsal = Rehearsal::new(seed, limits);
    for number in 0..nodes {
        rehearsal.add_node(node_id(number), Daemon::new());
    }
    rehearsal
}

fn succeeded(rehearsal: &Rehearsal<Daemon>) -> usize {
    rehearsal.store().commands().values().filter(|row| row.state == CommandState::Succeeded).count()
}

/// What became of a history: for comparing two.
fn told(rehearsal: &Rehearsal<Daemon>) -> Vec<(Vec<Moment>, Vec<CommandId>, u64)> {
    rehearsal.nodes().map(|node| (node.dialled_at.clone(), node.executions.clone(), node.beats)).collect()
}

#[test]
fn every_command_is_done_once_through_lost_connections_and_two_deaths_of_the_gateway() {
    const NODES: usize = 40;
    for seed in 0..20 {
        let mut rehearsal = with_nodes(seed, Limits::default(), NODES);
        let mut chance = Chance::new(seed);
        let mut number = 0;
        for round in 0..10 {
            for node in 0..NODES {
                number += 1;
                rehearsal.enqueue(command(number, node)).unwrap();
            }
            rehearsal.run_for(Duration::from_millis(chance.within(1..400)));
            for _ in 0..5 {
                rehearsal.cut(chance.within(0..NODES as u64) as usize);
            }
            if round % 4 == 3 {
                rehearsal.crash();
                rehearsal.run_for(Duration::from_secs(chance.within(1..30)));
                rehearsal.start();
            }
        }
        let all = rehearsal.store().commands().len();
        assert!(
            rehearsal.run_until(Duration::from_secs(600), |rehearsal| succeeded(rehearsal) == all),
            "seed {seed}: {} of {all} commands came to their end",
            succeeded(&rehearsal)
        );
        let mut done: Vec<CommandId> = rehearsal.nodes().flat_map(|node| node.executions.clone()).collect();
        assert_eq!(done.len(), all, "seed {seed}: one execution each");
        done.sort();
        done.dedup();
        assert_eq!(done.len(), all, "seed {seed}");
        let lost: u32 = rehearsal.nodes().map(|node| node.lost).sum();
        let welcomes: u32 = rehearsal.nodes().map(|node| node.welcomes).sum();
        assert!(lost > NODES as u32 && welcomes > NODES as u32, "seed {seed}: {lost} {welcomes}");
    }
}

#[test]
fn a_herd_that_is_refused_comes_back_when_it_was_told_and_not_before() {
    let limits = Limits { opens_per_second: 10, opens_burst: 10, ..Limits::default() };
    let mut rehearsal = with_nodes(7, limits, 100);
    assert!(rehearsal.run_until(Duration::from_secs(120), |rehearsal| rehearsal.sessions() == 100));
    let mut refusals = 0;
    for node in rehearsal.nodes() {
        refusals += node.refused.len();
        for (at, pushback) in &node.refused {
            assert!(!pushback.is_zero());
            let next = node.dialled_at.iter().find(|dialled| *dialled > at);
            assert!(next.is_some_and(|next| next.since(*at) >= *pushback), "it dialled too early");
        }
    }
    assert!(refusals >= 90, "{refusals}");
    assert!(rehearsal.now().since(Moment::default()) >= Duration::from_secs(8), "faster than ten a second");
}

#[test]
fn a_drained_gateway_refuses_with_a_delay_until_it_is_undrained() {
    let mut rehearsal = with_nodes(3, Limits::default(), 4);
    assert!(rehearsal.run_until(Duration::from_secs(10), |rehearsal| rehearsal.sessions() == 4));
    rehearsal.drain(Duration::from_secs(5));
    rehearsal.run_for(Duration::from_secs(1));
    rehearsal.cut(0);
    let refused = |rehearsal: &Rehearsal<Daemon>| !rehearsal.node(0).refused.is_empty();
    assert!(rehearsal.run_until(Duration::from_secs(30), refused));
    rehearsal.undrain();
    assert!(rehearsal.run_until(Duration::from_secs(60), |rehearsal| rehearsal.sessions() == 4));
}

#[test]
fn an_hour_passes_in_no_time_and_a_seed_is_one_history() {
    let live = |seed| {
        let mut rehearsal = with_nodes(seed, Limits::default(), 10);
        for number in 0..50 {
            rehearsal.enqueue(command(number, number as usize % 10)).unwrap();
        }
        rehearsal.run_for(Duration::from_secs(3600));
        assert_eq!((succeeded(&rehearsal), rehearsal.sessions()), (50, 10));
        told(&rehearsal)
    };
    let first = live(1);
    // Every ten seconds, but for the moments before the first.
    assert!(first.iter().all(|(_, _, beats)| (355..=360).contains(beats)), "{first:?}");
    assert_eq!(first, live(1));
    assert_ne!(first, live(2));
}

#[test]
fn a_node_whose_stream_is_cut_is_told_no_reason_and_dials_again() {
    let mut rehearsal = with_nodes(1, Limits::default(), 1);
    assert!(rehearsal.run_until(Duration::from_secs(10), |rehearsal| rehearsal.sessions() == 1));
    let before = rehearsal.node(0).lost;
    rehearsal.cut(0);
    assert!(rehearsal.run_until(Duration::from_secs(10), |rehearsal| rehearsal.node(0).lost == before + 1));
    assert!(rehearsal.run_until(Duration::from_secs(30), |rehearsal| rehearsal.sessions() == 1));
}

#[test]
fn a_gateway_that_is_not_there_is_dialled_in_vain() {
    let mut rehearsal = with_nodes(1, Limits::default(), 1);
    assert!(rehearsal.run_until(Duration::from_secs(10), |rehearsal| rehearsal.sessions() == 1));
    rehearsal.crash();
    rehearsal.run_for(Duration::from_secs(20));
    assert_eq!(rehearsal.phase(), None);
    assert!(rehearsal.node(0).lost > 10, "{}", rehearsal.node(0).lost);
    rehearsal.start();
    assert!(rehearsal.run_until(Duration::from_secs(10), |rehearsal| rehearsal.sessions() == 1));
}

//! The world: time, wires, faults, and what must hold after every step.
//!
//! Owns the order of events. Everything comes from one seed: the same seed is the same history.
//! Wires keep order and take time; a job commits at one instant and is heard of at a later one, so
//! outcomes of different queues overtake each other and overtake messages.
//!
//! 1. A node acts on its newest stream only; frames of an older one are lost to it.
//! 2. At most one process believes that it holds a gateway's lease.
//! 3. First attempts of a lane reach their node in order of seq.
//! 4. What is acked as ended is stored so.
//! 5. When faults end, every command ends, and every byte that was posted is released.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use gateway_core::frame::{GatewayFrame, LaneCapacity, NodeFrame};
use gateway_core::ids::{
    Attempt, CommandId, Credits, GatewayId, LaneName, LaneSeq, NodeId, SessionKey, ShardId,
};
use gateway_core::mail::Weigh;
use gateway_core::seam::{Identity, ToShard, ToWriter};
use gateway_core::session::Session;
use gateway_core::store::{Queue, StoreError};
use gateway_core::time::{Moment, UnixMillis};
use gateway_core::writer::{Phase, Writer};
use uuid::Uuid;

use crate::node::{POISON, SimNode};
use crate::process::{Flight, OpenSession, Process, SHARDS};
use crate::random::Chance;
use crate::store::{NewCommand, Store};

/// How large a world is, and for how long it is disturbed.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub nodes: usize,
    pub commands: usize,
    /// Clients and faults act until then.
    pub disturbed_for: Duration,
    /// All must have ended so long after.
    pub settles_within: Duration,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            nodes: 4,
            commands: 30,
            disturbed_for: Duration::from_secs(12),
            // Less than the writer takes to read a lane anew whose credit stays spent: that must not
            // hide a credit that the ledger lost.
            settles_within: Duration::from_secs(45),
        }
    }
}

/// What a history came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Story {
    /// Of every event in order: equal for equal histories.
    pub digest: u64,
    pub events: u64,
    pub executions: u64,
    pub fences: u64,
    pub superseded: u64,
    pub rejected: u64,
    pub conflicts: u64,
    pub unknown_outcomes: u64,
    pub crashes: u64,
    pub simulated: Duration,
}

#[derive(Debug)]
enum Event {
    WriterTime {
        process: usize,
        incarnation: u32,
    },
    SessionTime {
        process: usize,
        incarnation: u32,
        key: SessionKey,
    },
    NodeTime {
        node: usize,
    },
    Post {
        process: usize,
        incarnation: u32,
        message: ToWriter,
    },
    Mail {
        process: usize,
        incarnation: u32,
        shard: ShardId,
        message: ToShard,
    },
    Execute {
        process: usize,
        incarnation: u32,
        queue: Queue,
    },
    /// A job of a process that died after it was sent.
    Straggler {
        flight: Box<Flight>,
    },
    Heard {
        process: usize,
        incarnation: u32,
        queue: Queue,
    },
    Up {
        link: u64,
        frame: NodeFrame,
    },
    UpEnds {
        link: u64,
        half_close: bool,
    },
    Down {
        link: u64,
        frame: GatewayFrame,
    },
    DownEnds {
        link: u64,
    },
    Enqueue {
        number: u64,
    },
    Cancel {
        id: CommandId,
    },
    Poke {
        node: usize,
    },
    Sweep,
    Crash {
        process: usize,
    },
    Start {
        process: usize,
    },
    Stop {
        process: usize,
    },
    DatabaseAway {
        process: usize,
        millis: u64,
    },
    LeaseAway {
        process: usize,
        millis: u64,
    },
    Drop {
        node: usize,
        seen_by_gateway: bool,
    },
    Capacity {
        node: usize,
    },
}

#[derive(Debug, Clone, Copy)]
struct Link {
    node: usize,
    process: usize,
    incarnation: u32,
    key: SessionKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wire {
    Post(usize, ShardId),
    Mail(usize, ShardId),
    Up(u64),
    Down(u64),
}

/// A deterministic world.
#[derive(Debug)]
pub struct World {
    plan: Plan,
    chance: Chance,
    now: Moment,
    events: BTreeMap<(Moment, u64), Event>,
    next_event: u64,
    store: Store,
    nodes: Vec<SimNode>,
    node_timers: Vec<Option<Moment>>,
    processes: Vec<Process>,
    links: BTreeMap<u64, Link>,
    next_link: u64,
    wires: BTreeMap<Wire, Moment>,
    first_seen: BTreeMap<(usize, LaneName), LaneSeq>,
    seen: std::collections::BTreeSet<CommandId>,
    story: Story,
}

impl World {
    /// The world of this seed.
    pub fn new(seed: u64, plan: Plan) -> Self {
        let mut chance = Chance::new(seed);
        let gateway = |name| GatewayId::new(name).expect("a gateway id");
        let mut world = Self {
            plan,
            now: Moment::default(),
            events: BTreeMap::new(),
            next_event: 0,
            store: Store::poisoned_by(POISON),
            nodes: Vec::new(),
            node_timers: vec![None; plan.nodes],
            // The third is a standby of the first.
            processes: vec![
                Process::new(gateway("ga"), "host-0"),
                Process::new(gateway("gb"), "host-1"),
                Process::new(gateway("ga"), "host-2"),
            ],
            links: BTreeMap::new(),
            next_link: 0,
            wires: BTreeMap::new(),
            first_seen: BTreeMap::new(),
            seen: std::collections::BTreeSet::new(),
            story: Story::default(),
            chance: Chance::new(chance.next()),
        };
        for number in 0..plan.nodes {
            world.add_node(number);
        }
        for process in 0..world.processes.len() {
            world.at(Duration::ZERO, Event::Start { process });
        }
        world.plan_clients();
        world.plan_faults();
        world.at(Duration::from_secs(1), Event::Sweep);
        world
    }

    /// Lives to the end, and says what it came to. Panics where something does not hold.
    pub fn live(mut self) -> Story {
        let end = Moment::default() + self.plan.disturbed_for + self.plan.settles_within;
        while let Some(((at, _), event)) = self.events.pop_first() {
            assert!(at <= end, "not all has ended: {}", self.what_is_left());
            self.now = at;
            self.note(&event);
            self.happen(event);
            self.check_leases();
            if self.now > Moment::default() + self.plan.disturbed_for && self.all_has_ended() {
                break;
            }
        }
        assert!(self.all_has_ended(), "nothing happens any more, but: {}", self.what_is_left());
        for process in 0..self.processes.len() {
            self.count(process);
        }
        self.story.executions = self.nodes.iter().map(|node| node.executions.len() as u64).sum();
        self.story.simulated = self.now.since(Moment::default());
        self.story
    }

    // -- the plan --------------------------------------------------------------------------------

    fn add_node(&mut self, number: usize) {
        let id = NodeId::new(&format!("spiffe://sim/node/{number}")).expect("a node id");
        let lanes = (0..self.chance.within(1..3))
            .map(|lane| LaneCapacity {
                lane: LaneName::new(&format!("lane-{lane}")).expect("a lane name"),
                capacity: Credits(self.chance.within(1..4) as u32),
            })
            .collect();
        self.store.register_node(id.clone());
        let poisons = self.chance.percent(20);
        self.nodes.push(SimNode::new(id, lanes, poisons));
        self.at(Duration::from_millis(1), Event::NodeTime { node: number });
    }

    fn plan_clients(&mut self) {
        for number in 0..self.plan.commands as u64 {
            let at = self.some_time();
            self.at(at, Event::Enqueue { number });
        }
    }

    fn plan_faults(&mut self) {
        let processes = self.processes.len() as u64;
        for _ in 0..self.chance.within(0..12) {
            let at = self.some_time();
            let process = self.chance.within(0..processes) as usize;
            let node = self.chance.within(0..self.nodes.len() as u64) as usize;
            let event = match self.chance.within(0..12) {
                0 => Event::Crash { process },
                1 => Event::Stop { process },
                2 => Event::DatabaseAway { process, millis: self.chance.within(50..4_000) },
                3 | 4 => Event::LeaseAway { process, millis: self.chance.within(500..6_000) },
                5 | 6 => Event::Capacity { node },
                7 | 8 => Event::Drop { node, seen_by_gateway: false },
                _ => Event::Drop { node, seen_by_gateway: true },
            };
            self.at(at, event);
        }
    }

    fn some_time(&mut self) -> Duration {
        Duration::from_millis(self.chance.within(100..self.plan.disturbed_for.as_millis() as u64))
    }

    fn is_disturbed(&self) -> bool {
        self.now < Moment::default() + self.plan.disturbed_for
    }

    // -- events ----------------------------------------------------------------------------------

    fn at(&mut self, later: Duration, event: Event) {
        self.events.insert((self.now + later, self.next_event), event);
        self.next_event += 1;
    }

    fn along(&mut self, wire: Wire, event: Event) {
        let slow = self.is_disturbed() && self.chance.percent(2);
        let micros = if slow { self.chance.within(1_000..400_000) } else { self.chance.within(50..5_000) };
        let last = self.wires.get(&wire).copied().unwrap_or_default();
        let at = last.max(self.now + Duration::from_micros(micros));
        self.wires.insert(wire, at);
        self.events.insert((at, self.next_event), event);
        self.next_event += 1;
    }

    fn note(&mut self, event: &Event) {
        self.story.events += 1;
        let kind = std::mem::discriminant(event);
        let mut hasher = Fnv(self.story.digest ^ self.now.as_nanos());
        std::hash::Hash::hash(&kind, &mut hasher);
        self.story.digest = hasher.0;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::WriterTime { process, incarnation } => {
                if self.processes[process].incarnation == incarnation {
                    self.processes[process].writer_timer = None;
                    self.with_writer(process, |writer, now| writer.handle_time(now));
                }
            }
            Event::SessionTime { process, incarnation, key } => {
                if self.processes[process].incarnation == incarnation {
                    if let Some(open) = self.processes[process].sessions.get_mut(&key) {
                        open.timer = None;
                    }
                    self.with_session(process, key, |session, now| session.handle_time(now));
                }
            }
            Event::NodeTime { node } => self.node_time(node),
            Event::Post { process, incarnation, message } => {
                if self.processes[process].incarnation == incarnation {
                    self.processes[process].posted_bytes += message.weight_bytes();
                    self.with_writer(process, |writer, now| writer.handle_message(message, now));
                }
            }
            Event::Mail { process, incarnation, shard, message } => {
                if self.processes[process].incarnation == incarnation {
                    self.mail(process, shard, message);
                }
            }
            Event::Execute { process, incarnation, queue } => {
                if self.processes[process].incarnation == incarnation {
                    self.execute(process, queue);
                }
            }
            Event::Straggler { flight } => {
                self.store.commit(&flight.job, self.clock());
            }
            Event::Heard { process, incarnation, queue } => {
                if self.processes[process].incarnation == incarnation
                    && let Some(flight) = self.processes[process].flights.remove(&queue)
                    && let Some(outcome) = flight.outcome
                {
                    self.with_writer(process, |writer, now| {
                        writer.handle_outcome(outcome, flight.started, now);
                    });
                }
            }
            Event::Up { link, frame } => {
                if let Some(Link { process, key, .. }) = self.live_link(link) {
                    self.with_session(process, key, |session, now| session.handle_frame(frame, 100, now));
                }
            }
            Event::UpEnds { link, half_close } => {
                if let Some(Link { process, key, .. }) = self.live_link(link) {
                    self.with_session(process, key, |session, now| {
                        if half_close {
                            session.handle_half_close(now);
                        } else {
                            session.handle_close(gateway_core::close::CloseReason::PeerGone, now);
                        }
                    });
                }
            }
            Event::Down { link, frame } => self.node_frame(link, frame),
            Event::DownEnds { link } => {
                if let Some(Link { node, .. }) = self.links.get(&link).copied()
                    && self.nodes[node].link == Some(link)
                {
                    self.node_ended(node);
                }
            }
            Event::Sweep => {
                self.store.expire(self.clock());
                self.at(Duration::from_secs(1), Event::Sweep);
            }
            other => self.act(other),
        }
    }

    /// Clients and faults.
    fn act(&mut self, event: Event) {
        match event {
            Event::Enqueue { number } => self.enqueue(number),
            Event::Cancel { id } => {
                self.store.cancel(id);
                let node = self.store.commands().get(&id).and_then(|row| self.number_of(&row.node));
                if let Some(node) = node.filter(|_| self.chance.percent(50)) {
                    self.at(Duration::from_millis(1), Event::Poke { node });
                }
            }
            Event::Poke { node } => {
                let id = self.nodes[node].id.clone();
                let owner = self.store.sessions().get(&id).and_then(|row| row.gateway.clone());
                for process in 0..self.processes.len() {
                    if Some(&self.processes[process].gateway) == owner.as_ref() {
                        self.with_writer(process, |writer, now| writer.handle_poke(Some(&id), now));
                    }
                }
            }
            Event::Crash { process } => self.crash(process),
            Event::Start { process } => self.start(process),
            Event::Stop { process } => self.with_writer(process, Writer::handle_stop),
            Event::DatabaseAway { process, millis } => {
                self.processes[process].database_away_until = self.now + Duration::from_millis(millis);
            }
            Event::LeaseAway { process, millis } => {
                self.processes[process].lease_away_until = self.now + Duration::from_millis(millis);
            }
            Event::Drop { node, seen_by_gateway } => self.drop_link(node, seen_by_gateway),
            Event::Capacity { node } => {
                let lane = self.chance.within(0..self.nodes[node].lanes.len() as u64) as usize;
                let capacity = Credits(self.chance.within(1..5) as u32);
                self.nodes[node].handle_capacity(lane, capacity);
                self.pump_node(node);
            }
            _ => {}
        }
    }

    fn enqueue(&mut self, number: u64) {
        let node = self.chance.within(0..self.nodes.len() as u64) as usize;
        let lane = self.chance.pick(&self.nodes[node].lane_names()).clone();
        let now = self.clock();
        let mut soon = |percent: u64, least: u64| {
            let wait = Duration::from_millis(self.chance.within(least..4_000));
            self.chance.percent(percent).then(|| now.plus(wait))
        };
        let (not_before, not_after) = (soon(20, 1), soon(15, 500));
        let id = CommandId(Uuid::from_u128(u128::from(number) + 1));
        let command = NewCommand {
            id,
            node: self.nodes[node].id.clone(),
            lane,
            kind: "echo".into(),
            payload: Bytes::from_static(b"payload"),
            not_before,
            not_after: not_after.filter(|end| not_before.is_none_or(|due| due < *end)),
            max_attempts: 3,
        };
        self.store.enqueue(command, now);
        if self.chance.percent(70) {
            let wait = Duration::from_micros(self.chance.within(100..3_000));
            self.at(wait, Event::Poke { node });
        }
        if self.chance.percent(15) {
            let wait = Duration::from_millis(self.chance.within(1..3_000));
            self.at(wait, Event::Cancel { id });
        }
    }

    fn start(&mut self, process: usize) {
        if self.processes[process].writer.is_none() {
            self.processes[process].start(self.now);
            self.pump_writer(process);
        }
    }

    fn crash(&mut self, process: usize) {
        if self.processes[process].writer.is_none() {
            return;
        }
        self.story.crashes += 1;
        let flights = std::mem::take(&mut self.processes[process].flights);
        for flight in flights.into_values().filter(|flight| flight.outcome.is_none()) {
            if self.chance.percent(50) {
                let wait = Duration::from_millis(self.chance.within(1..1_500));
                self.at(wait, Event::Straggler { flight: Box::new(flight) });
            }
        }
        self.end_process(process);
        let wait = Duration::from_millis(self.chance.within(100..3_000));
        self.at(wait, Event::Start { process });
    }

    /// Takes over what a writer counted, before it is gone.
    fn count(&mut self, process: usize) {
        if let Some(writer) = &self.processes[process].writer {
            let counts = writer.counts();
            self.story.fences += counts.fences;
            self.story.superseded += counts.sessions_superseded;
            self.story.rejected += counts.updates_not_stored;
            self.story.conflicts += counts.update_conflicts;
        }
    }

    fn end_process(&mut self, process: usize) {
        self.count(process);
        let links: Vec<u64> = self.processes[process].sessions.values().map(|open| open.link).collect();
        self.processes[process].end();
        for link in links {
            self.along(Wire::Down(link), Event::DownEnds { link });
        }
    }

    // -- nodes -----------------------------------------------------------------------------------

    fn node_time(&mut self, number: usize) {
        self.node_timers[number] = None;
        let node = &mut self.nodes[number];
        node.handle_time(&mut self.chance, self.now);
        if node.redial_at.is_some_and(|at| self.now >= at) {
            self.dial(number);
        }
        self.pump_node(number);
    }

    fn dial(&mut self, number: usize) {
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
        let session = Session::new(key, identity, std::sync::Arc::clone(&gateway.limits), self.now);
        let link = self.next_link;
        self.next_link += 1;
        gateway.sessions.insert(key, OpenSession { session, link, timer: None });
        let incarnation = gateway.incarnation;
        self.links.insert(link, Link { node: number, process, incarnation, key });
        self.nodes[number].handle_connected(link);
        self.pump_session(process, key);
    }

    fn drop_link(&mut self, number: usize, seen_by_gateway: bool) {
        if let Some(link) = self.nodes[number].link {
            if seen_by_gateway {
                let half_close = self.chance.percent(30);
                self.along(Wire::Up(link), Event::UpEnds { link, half_close });
            }
            self.node_ended(number);
        }
    }

    fn node_ended(&mut self, number: usize) {
        let wait = Duration::from_millis(self.chance.within(5..700));
        self.nodes[number].handle_ended(wait, self.now);
        self.pump_node(number);
    }

    fn node_frame(&mut self, link: u64, frame: GatewayFrame) {
        let Some(Link { node, .. }) = self.links.get(&link).copied() else { return };
        if self.nodes[node].link != Some(link) {
            return;
        }
        if let GatewayFrame::Command(command) = &frame {
            self.check_order(node, command.id, command.attempt, &command.lane, command.seq);
        }
        self.nodes[node].handle_frame(frame, &mut self.chance, self.now);
        self.check_acks(node);
        self.pump_node(node);
    }

    fn pump_node(&mut self, number: usize) {
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

    // -- processes -------------------------------------------------------------------------------

    fn live_link(&self, link: u64) -> Option<Link> {
        let found = self.links.get(&link).copied()?;
        (self.processes[found.process].incarnation == found.incarnation).then_some(found)
    }

    fn with_writer(&mut self, process: usize, input: impl FnOnce(&mut Writer, Moment)) {
        if let Some(writer) = &mut self.processes[process].writer {
            input(writer, self.now);
            self.pump_writer(process);
        }
    }

    fn with_session(&mut self, process: usize, key: SessionKey, input: impl FnOnce(&mut Session, Moment)) {
        if let Some(open) = self.processes[process].sessions.get_mut(&key) {
            input(&mut open.session, self.now);
            self.pump_session(process, key);
        }
    }

    fn pump_session(&mut self, process: usize, key: SessionKey) {
        let incarnation = self.processes[process].incarnation;
        loop {
            let Some(open) = self.processes[process].sessions.get_mut(&key) else { return };
            let link = open.link;
            if let Some(message) = open.session.poll_to_writer() {
                self.along(Wire::Post(process, key.shard), Event::Post { process, incarnation, message });
            } else if let Some(frame) = open.session.poll_frame() {
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

    fn pump_writer(&mut self, process: usize) {
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

    fn mail(&mut self, process: usize, shard: ShardId, message: ToShard) {
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
            ToShard::Stop => {
                self.processes[process].serving[usize::from(shard.0)] = false;
                for key in of_shard(&self.processes[process]) {
                    let reason = gateway_core::close::CloseReason::Stopping;
                    self.with_session(process, key, |session, now| session.handle_close(reason, now));
                }
                let incarnation = self.processes[process].incarnation;
                let message = ToWriter::ShardStopped { shard };
                self.along(Wire::Post(process, shard), Event::Post { process, incarnation, message });
            }
        }
    }

    // -- the database ----------------------------------------------------------------------------

    fn job_takes(&mut self) -> Duration {
        let slow = self.is_disturbed() && self.chance.percent(2);
        Duration::from_micros(if slow {
            self.chance.within(10_000..2_500_000)
        } else {
            self.chance.within(100..4_000)
        })
    }

    fn execute(&mut self, process: usize, queue: Queue) {
        let now = self.clock();
        let gateway = &self.processes[process];
        let away = self.now < gateway.database_away_until
            || (queue == Queue::Lease && self.now < gateway.lease_away_until);
        let fault = if self.is_disturbed() { self.chance.within(0..100) } else { 99 };
        let Some(flight) = self.processes[process].flights.get_mut(&queue) else { return };
        let outcome = match fault {
            _ if away => Store::failure(&flight.job, StoreError::Retry("away".into())),
            0..3 => Store::failure(&flight.job, StoreError::Retry("a deadlock".into())),
            3..5 => {
                self.story.unknown_outcomes += 1;
                self.store.commit(&flight.job, now);
                Store::failure(&flight.job, StoreError::OutcomeUnknown("cut at COMMIT".into()))
            }
            5..7 => {
                self.story.unknown_outcomes += 1;
                Store::failure(&flight.job, StoreError::OutcomeUnknown("cut before COMMIT".into()))
            }
            _ => self.store.commit(&flight.job, now),
        };
        flight.outcome = Some(outcome);
        let incarnation = self.processes[process].incarnation;
        let wait = self.job_takes();
        self.at(wait, Event::Heard { process, incarnation, queue });
    }

    fn clock(&self) -> UnixMillis {
        UnixMillis((self.now.as_nanos() / 1_000_000) as i64)
    }

    fn number_of(&self, node: &NodeId) -> Option<usize> {
        self.nodes.iter().position(|known| known.id == *node)
    }

    // -- what must hold --------------------------------------------------------------------------

    fn check_leases(&mut self) {
        for gateway in ["ga", "gb"] {
            let holders = self.processes.iter().filter(|process| {
                process.gateway.as_str() == gateway
                    && process.writer.as_ref().is_some_and(|writer| writer.lease_epoch().is_some())
            });
            assert!(holders.count() <= 1, "two processes believe that they hold {gateway}");
        }
    }

    fn check_order(&mut self, node: usize, id: CommandId, attempt: Attempt, lane: &LaneName, seq: LaneSeq) {
        let row = self.store.commands().get(&id).expect("a command that was enqueued");
        if attempt != Attempt(1) || !self.seen.insert(id) || row.deferred {
            return;
        }
        let last = self.first_seen.entry((node, lane.clone())).or_default();
        assert!(seq > *last, "seq {seq} reached node {node} after {last} on {lane}");
        *last = seq;
    }

    fn check_acks(&mut self, node: usize) {
        for (id, state) in std::mem::take(&mut self.nodes[node].acked) {
            let stored = self.store.commands().get(&id).map(|row| row.state);
            assert!(!state.is_terminal() || stored == Some(state), "{id} was acked {state}, is {stored:?}");
        }
    }

    fn all_has_ended(&self) -> bool {
        self.store.commands().len() == self.plan.commands
            && self.store.commands().values().all(|row| row.state.is_terminal())
            && self.nodes.iter().all(|node| node.is_live() && node.is_idle())
            && self.processes.iter().all(|process| process.posted_bytes == process.released_bytes)
    }

    fn what_is_left(&self) -> String {
        let rows = self.store.commands().values().filter(|row| !row.state.is_terminal());
        let rows: Vec<String> =
            rows.map(|row| format!("{} {} {} {}", row.node, row.lane, row.seq, row.state)).collect();
        let nodes: Vec<String> = self
            .nodes
            .iter()
            .filter(|node| !node.is_live() || !node.is_idle())
            .map(|node| format!("{node:?}"))
            .collect();
        let bytes: Vec<String> = self
            .processes
            .iter()
            .map(|process| format!("{} posted, {} released", process.posted_bytes, process.released_bytes))
            .collect();
        let sessions = self.store.sessions();
        let lanes: Vec<_> = self.nodes.iter().map(|node| (node.epoch(), &node.lanes)).collect();
        format!(
            "commands {rows:#?}, sessions {sessions:?}, lanes {lanes:?}, nodes {nodes:#?}, bytes {bytes:?}, story {:?}",
            self.story
        )
    }
}

/// FNV-1a: the same on every machine and in every process.
struct Fnv(u64);

impl std::hash::Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

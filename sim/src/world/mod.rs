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
//! 5. No node reads an attempt that a sweep expired.
//! 6. A hook runs once for what is stored once.
//! 7. When faults end, every command ends, every spec is answered at its last generation, and every byte that was
//!    posted is released.

mod checks;
mod clients;
mod wires;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gateway_core::close::CloseReason;
use gateway_core::frame::{GatewayFrame, NodeFrame};
use gateway_core::ids::{Attempt, CommandId, GatewayId, LaneName, LaneSeq, SessionKey, ShardId};
use gateway_core::mail::Weigh;
use gateway_core::seam::{ToShard, ToWriter};
use gateway_core::store::Queue;
use gateway_core::time::Moment;

use crate::node::{POISON, SimNode};
use crate::process::{Flight, Process};
use crate::random::Chance;
use crate::store::{HookRules, Store};

/// The hooks of each kind that has some.
pub(crate) const WORKS: &str = "works";
pub(crate) const FAILS: &str = "fails";

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
    /// Events of journals that are stored, and how many of them are tombstones.
    pub journaled: u64,
    pub tombstones: u64,
    /// Sections of inventories that were acked.
    pub sections: u64,
    /// Commands that a sweep made expired, and sessions of dead gateways that one ended.
    pub expired: u64,
    pub reaped: u64,
    /// Changes of specs, those that were answered as failed in the end, and how often a node was sent one.
    pub spec_changes: u64,
    pub specs_failed: u64,
    pub specs_read: u64,
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
    SetSpec,
    PokeSpecs {
        node: usize,
    },
    Poke {
        node: usize,
    },
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
    seen: BTreeSet<CommandId>,
    /// Every attempt that a node has read.
    read: BTreeSet<(CommandId, Attempt)>,
    story: Story,
}

impl World {
    /// The world of this seed.
    pub fn new(seed: u64, plan: Plan) -> Self {
        let mut chance = Chance::new(seed);
        let gateway = |name| GatewayId::new(name).expect("a gateway id");
        let mut hooks = HookRules::default();
        for kind in ["event", "status"] {
            hooks.add(kind, WORKS, false);
            hooks.add(kind, FAILS, true);
        }
        let process = |name, host| Process::new(gateway(name), host, hooks.kinds());
        let processes = vec![process("ga", "host-0"), process("gb", "host-1"), process("ga", "host-2")];
        let mut world = Self {
            plan,
            now: Moment::default(),
            events: BTreeMap::new(),
            next_event: 0,
            store: Store::poisoned_by(POISON).with_hooks(hooks),
            nodes: Vec::new(),
            node_timers: vec![None; plan.nodes],
            // The third is a standby of the first.
            processes,
            links: BTreeMap::new(),
            next_link: 0,
            wires: BTreeMap::new(),
            first_seen: BTreeMap::new(),
            seen: BTreeSet::new(),
            read: BTreeSet::new(),
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
        self.check_swept();
        self.check_what_runs();
        self.check_hooks();
        for process in 0..self.processes.len() {
            self.count(process);
        }
        (self.story.journaled, self.story.tombstones) = self.store.count_events();
        let specs = || self.store.specs().values();
        self.story.spec_changes = specs().map(|row| row.generation.0).sum();
        let failed = specs().filter(|row| matches!(row.answer, Some((_, Some(_)))));
        self.story.specs_failed = failed.count() as u64;
        self.story.executions = self.nodes.iter().map(|node| node.executions.len() as u64).sum();
        self.story.expired = self.store.swept().len() as u64;
        self.story.reaped = self.store.reaped();
        self.story.simulated = self.now.since(Moment::default());
        self.story
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
                if self.runs(process, incarnation) {
                    self.processes[process].writer_timer = None;
                    self.with_writer(process, |writer, now| writer.handle_time(now));
                }
            }
            Event::SessionTime { process, incarnation, key } => {
                if self.runs(process, incarnation)
                    && let Some(open) = self.processes[process].sessions.get_mut(&key)
                {
                    open.timer = None;
                    self.with_session(process, key, |session, now| session.handle_time(now));
                }
            }
            Event::NodeTime { node } => self.node_time(node),
            Event::Post { process, incarnation, message } => {
                if self.runs(process, incarnation) {
                    self.processes[process].posted_bytes += message.weight_bytes();
                    self.with_writer(process, |writer, now| writer.handle_message(message, now));
                }
            }
            Event::Mail { process, incarnation, shard, message } => {
                if self.runs(process, incarnation) {
                    self.mail(process, shard, message);
                }
            }
            Event::Execute { process, incarnation, queue } => {
                if self.runs(process, incarnation) {
                    self.execute(process, queue);
                }
            }
            Event::Straggler { flight } => {
                self.store.commit(&flight.job, self.clock());
            }
            Event::Heard { process, incarnation, queue } => {
                if self.runs(process, incarnation)
                    && let Some(flight) = self.processes[process].flights.remove(&queue)
                    && let Some(outcome) = flight.outcome
                {
                    self.with_writer(process, |writer, now| {
                        writer.handle_outcome(outcome, flight.started, now);
                    });
                }
            }
            Event::Up { link, frame } => {
                self.with_session_of(link, |session, now| session.handle_frame(frame, 100, now));
            }
            Event::UpEnds { link, half_close } => self.with_session_of(link, |session, now| {
                if half_close {
                    session.handle_half_close(now);
                } else {
                    session.handle_close(CloseReason::PeerGone, now);
                }
            }),
            Event::Down { link, frame } => self.node_frame(link, frame),
            Event::DownEnds { link } => {
                if let Some(Link { node, .. }) = self.links.get(&link).copied()
                    && self.nodes[node].link == Some(link)
                {
                    self.node_ended(node);
                }
            }
            other => self.act(other),
        }
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

//! The world: time, wires, faults, and what must hold after every step.
//!
//! Owns the order of events, all from one seed. Wires keep order and take time; a job commits at one instant
//! and is heard of later, so outcomes overtake each other and messages. First clients and faults act; then all
//! is calm: what was begun must end, and `probes` ask for what only a gateway that lost nothing can do.
//!
//! 1. A node acts on its newest stream only; frames of an older one are lost to it.
//! 2. `oracle` judges each commit, `watch` each machine by what it was given, `checks` each node by the store.
//! 3. The digest is of everything that any machine or the store was given, in order, with its content.

mod checks;
mod clients;
mod digest;
mod drains;
mod faults;
mod impostors;
mod probes;
mod revocations;
mod story;
mod watch;
mod weather;
mod wires;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gateway_core::duplicate::DuplicateRule;
use gateway_core::frame::{GatewayFrame, NodeFrame};
use gateway_core::ids::{Attempt, CommandId, GatewayId, LaneName, LaneSeq, NodeId, SessionKey, ShardId};
use gateway_core::mail::Weigh;
use gateway_core::seam::{ToShard, ToWriter};
use gateway_core::store::Queue;
use gateway_core::time::Moment;

use crate::check::must;
use crate::coverage::Coverage;
use crate::node::{POISON, SimNode};
use crate::oracle::Oracle;
use crate::process::{Flight, Process};
use crate::random::Chance;
use crate::store::{HookRules, Store};

use self::digest::Fnv;
use self::drains::DrainWish;
pub use self::faults::FAULTS;
use self::faults::Fault;
use self::probes::Probes;
pub use self::story::{Plan, Story};
use self::weather::Weather;

/// The hooks of each kind that has some.
pub(crate) const WORKS: [&str; 6] = ["works-0", "works-1", "works-2", "works-3", "works-4", "works-5"];
pub(crate) const FAILS: &str = "fails";

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
    Start {
        process: usize,
    },
    Fault(Fault),
    Drain {
        process: usize,
        incarnation: u32,
        wish: DrainWish,
    },
    DrainIsOver {
        process: usize,
        incarnation: u32,
    },
    /// A node was told to dial anew by now.
    Leaves {
        node: usize,
        link: u64,
    },
    /// Another machine takes the session once more.
    TakesAgain {
        node: usize,
        rounds: u32,
    },
    /// The twin of a node shows that it lives.
    TwinBeats {
        link: u64,
        sequence: u64,
    },
    /// The twin of a node goes away.
    TwinEnds {
        link: u64,
    },
    /// These sessions must be over by now.
    MustBeOver {
        process: usize,
        incarnation: u32,
        keys: Vec<SessionKey>,
        why: &'static str,
    },
    /// A look at what must come to pass in time.
    Tick,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    node: usize,
    process: usize,
    incarnation: u32,
    key: SessionKey,
    /// Of someone else with the node's certificate: nobody acts on what comes.
    is_twin: bool,
    /// What is on its way to the gateway, or to the node, is lost from now on.
    up_is_lost: bool,
    down_is_lost: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wire {
    Post(usize, ShardId),
    Mail(usize, ShardId),
    Up(u64),
    Down(u64),
}

/// How often what must come to pass is looked at.
const TICK: Duration = Duration::from_millis(100);
/// No moment has as many events, but where somebody asks again and again without waiting.
const AT_ONCE: u32 = 10_000;
/// So long after the last fault everything is as if there had been none: outages have ended, waits have run
/// out, sessions that nobody answers are over.
const CALMS_WITHIN: Duration = Duration::from_secs(8);

/// A deterministic world.
#[derive(Debug)]
pub struct World {
    plan: Plan,
    chance: Chance,
    now: Moment,
    events: BTreeMap<(Moment, u64), Event>,
    next_event: u64,
    store: Store,
    oracle: Oracle,
    coverage: Coverage,
    weather: Weather,
    probes: Probes,
    nodes: Vec<SimNode>,
    node_timers: Vec<Option<Moment>>,
    processes: Vec<Process>,
    links: BTreeMap<u64, Link>,
    next_link: u64,
    /// Until when the last stream that was asked for is refused, if it was.
    refused_until: Option<Moment>,
    wires: BTreeMap<Wire, Moment>,
    first_seen: BTreeMap<(usize, LaneName), LaneSeq>,
    seen: BTreeSet<CommandId>,
    /// Every attempt that a node has read, and when it did first.
    read: BTreeMap<(CommandId, Attempt), Moment>,
    /// Commands that were enqueued.
    enqueued: u64,
    /// Since when a command waits although nothing is in its way.
    waits_since: BTreeMap<CommandId, Moment>,
    /// Commands on which a twin reported, whatever it liked.
    meddled: BTreeSet<CommandId>,
    /// Nodes whose certificate was revoked, and maybe cleared since.
    was_revoked: BTreeSet<NodeId>,
    /// Since when an open session is not the live one of its node.
    outdated_since: BTreeMap<(usize, SessionKey), Moment>,
    story: Story,
}

impl World {
    /// The world of this seed.
    pub fn new(seed: u64, plan: Plan) -> Self {
        let mut chance = Chance::new(seed);
        let gateway = |name| GatewayId::new(name).expect("a gateway id");
        let mut hooks = HookRules::default();
        for kind in ["event", "status"] {
            WORKS.iter().for_each(|hook| hooks.add(kind, hook, false));
            hooks.add(kind, FAILS, true);
        }
        let process = |name, host| Process::new(gateway(name), host, hooks.kinds());
        let processes = vec![process("ga", "host-0"), process("gb", "host-1"), process("ga", "host-2")];
        // In most, a node gets over it that another machine has its certificate.
        let flips = if chance.percent(30) { chance.within(2..5) as u32 } else { 0 };
        let duplicates = DuplicateRule { flips, ..DuplicateRule::default() };
        let mut world = Self {
            plan,
            now: Moment::default(),
            events: BTreeMap::new(),
            next_event: 0,
            store: Store::poisoned_by(POISON).with_hooks(hooks).with_duplicates(duplicates),
            oracle: Oracle::with_duplicates(duplicates),
            coverage: Coverage::default(),
            weather: Weather::new(&mut chance),
            probes: Probes::default(),
            nodes: Vec::new(),
            node_timers: vec![None; plan.nodes],
            // The third is a standby of the first.
            processes,
            links: BTreeMap::new(),
            next_link: 0,
            refused_until: None,
            wires: BTreeMap::new(),
            first_seen: BTreeMap::new(),
            seen: BTreeSet::new(),
            read: BTreeMap::new(),
            enqueued: 0,
            waits_since: BTreeMap::new(),
            meddled: BTreeSet::new(),
            was_revoked: BTreeSet::new(),
            outdated_since: BTreeMap::new(),
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
        world.plan_standing_drain(seed);
        world.at(TICK, Event::Tick);
        world
    }

    /// Lives to the end, and says what it came to. Panics where something does not hold.
    pub fn live(self) -> Story {
        self.live_covered().0
    }

    /// As `live`, with what was covered on the way.
    pub fn live_covered(mut self) -> (Story, Coverage) {
        let mut at_once = 0;
        while let Some(((at, _), event)) = self.events.pop_first() {
            at_once = if at == self.now { at_once + 1 } else { 0 };
            must("time goes on", at_once < AT_ONCE, || format!("{event:?} at {at:?}"));
            self.now = at;
            let Some(event) = self.unless_asleep(event) else { continue };
            self.note(&event);
            self.happen(event);
            self.check_processes();
            if self.probes.are_over() {
                break;
            }
        }
        must("all comes to its end", self.probes.are_over(), || self.what_is_left());
        self.check_end();
        for process in 0..self.processes.len() {
            self.count(process);
        }
        self.tell_story();
        (self.story, self.coverage)
    }

    fn tell_story(&mut self) {
        let story = &mut self.story;
        (story.journaled, story.tombstones) = self.store.count_events();
        let specs = || self.store.specs().values();
        story.spec_changes = specs().map(|row| row.generation.0).sum();
        story.specs_failed = specs().filter(|row| matches!(row.answer, Some((_, Some(_))))).count() as u64;
        story.executions = self.nodes.iter().map(|node| node.executions.len() as u64).sum();
        story.expired = self.store.swept().len() as u64;
        story.reaped = self.store.reaped();
        story.simulated = self.now.since(Moment::default());
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
        if self.plan.told {
            tell(self.now, event);
        }
        self.story.digest = Fnv::next(self.story.digest, self.now, event);
    }

    /// The event, but where it is one of a process that stands still: that has it when it goes on.
    fn unless_asleep(&mut self, event: Event) -> Option<Event> {
        let process = match &event {
            Event::WriterTime { process, .. }
            | Event::SessionTime { process, .. }
            | Event::Post { process, .. }
            | Event::Mail { process, .. }
            | Event::Heard { process, .. }
            | Event::MustBeOver { process, .. }
            | Event::Drain { process, .. }
            | Event::DrainIsOver { process, .. }
            | Event::Fault(Fault::Stop { process }) => *process,
            Event::Up { link, .. } | Event::UpEnds { link, .. } => self.links.get(link)?.process,
            _ => return Some(event),
        };
        let until = self.processes[process].asleep_until;
        if self.now >= until {
            return Some(event);
        }
        self.events.insert((until, self.next_event), event);
        self.next_event += 1;
        None
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::WriterTime { process, incarnation } => {
                let timer = &mut self.processes[process].writer_timer;
                // An earlier one may have taken its place.
                let is_due = timer.is_some_and(|at| at <= self.now);
                if is_due && self.runs(process, incarnation) {
                    self.processes[process].writer_timer = None;
                    self.with_writer(process, |writer, now| writer.handle_time(now));
                }
            }
            Event::SessionTime { process, incarnation, key } => {
                if self.runs(process, incarnation) {
                    self.session_time(process, key);
                }
            }
            Event::NodeTime { node } => {
                if self.node_timers[node].is_some_and(|at| at <= self.now) {
                    self.node_time(node);
                }
            }
            Event::Post { process, incarnation, message } => {
                if self.runs(process, incarnation) {
                    self.processes[process].posted_bytes += message.weight_bytes();
                    self.watch_message(process, &message);
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
                self.coverage.note_fault("a job of a dead process commits");
                self.commit(&flight.job);
            }
            Event::Heard { process, incarnation, queue } => {
                if self.runs(process, incarnation)
                    && let Some(flight) = self.processes[process].flights.remove(&queue)
                    && let Some(outcome) = flight.outcome
                {
                    self.heard(process, &flight.job, outcome, flight.started);
                }
            }
            Event::Up { link, frame } => self.up(link, frame),
            Event::UpEnds { link, half_close } => self.up_ends(link, half_close),
            Event::Down { link, frame } => self.node_frame(link, frame),
            Event::DownEnds { link } => {
                if let Some(Link { node, down_is_lost: false, .. }) = self.links.get(&link).copied()
                    && self.nodes[node].link == Some(link)
                {
                    self.node_ended(node);
                }
            }
            Event::Start { process } => self.start(process),
            Event::Fault(fault) => self.strike(fault),
            Event::Drain { process, incarnation, wish } => self.wish(process, incarnation, wish),
            Event::DrainIsOver { process, incarnation } => self.check_drain(process, incarnation),
            Event::Leaves { node, link } => self.leave(node, link),
            Event::TakesAgain { node, rounds } => self.duel(node, rounds),
            Event::TwinBeats { link, sequence } => self.twin_beats(link, sequence),
            Event::TwinEnds { link } => self.up_ends(link, false),
            Event::MustBeOver { process, incarnation, keys, why } => {
                if self.runs(process, incarnation) {
                    self.check_over(process, &keys, why);
                }
            }
            Event::Tick => self.tick(),
            other => self.act(other),
        }
    }

    /// Whether the last fault was long enough ago.
    fn is_calm(&self) -> bool {
        self.now >= Moment::default() + self.plan.disturbed_for + CALMS_WITHIN
    }
}

fn tell(now: Moment, event: &impl std::fmt::Debug) {
    let mut line = format!("{event:?}");
    line.truncate(line.floor_char_boundary(600));
    eprintln!("{:>12.6} {line}", now.since(Moment::default()).as_secs_f64());
}

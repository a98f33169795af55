//! Nodes of one's own against a gateway's real machines, on simulated time: what an embedder tests their daemon's
//! logic with.
//!
//! The writer, the sessions and the admission are those that a gateway runs; the store is the model of PostgreSQL.
//! Between them are wires that take time and keep order, all from one seed; hours pass in seconds, and equal
//! seeds with equal nodes are one history. There is no thread, no socket and no protobuf here: frames are
//! `gateway_core::frame`'s, so the bounds of bytes, windows and HTTP are not rehearsed, nor what SQL functions do.
//! It has no faults by chance and judges nothing: `World` does that. Which faults strike, and when, the test says.
//!
//! 1. Nothing here reads a clock or draws a number but from the seed.
//! 2. A node has one stream at a time. Of one that is lost, what was on its way to the gateway is lost; what was on
//!    its way to the node comes before the end.
//! 3. A crash forgets all that the gateway knew and writes nothing; its lease runs out, or a successor of the same
//!    host takes it over.
//!
//! See `sim/tests/rehearsal.rs` for a node and what is asked of it.

mod carrying;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gateway_core::admission::Admission;
use gateway_core::close::CloseReason;
use gateway_core::desk::DeskAsk;
use gateway_core::drain::DrainPlan;
use gateway_core::frame::{GatewayFrame, NodeFrame};
use gateway_core::ids::{CommandId, GatewayId, NodeId, SessionKey};
use gateway_core::limits::Limits;
use gateway_core::seam::{ToShard, ToWriter};
use gateway_core::session::Session;
use gateway_core::store::{Job, Outcome, Queue};
use gateway_core::time::{Moment, UnixMillis};
use gateway_core::writer::{Phase, Writer, WriterConfig};

use crate::random::Chance;
use crate::store::{EnqueueRefusal, NewCommand, Store};

/// What the database's clock says when a rehearsal begins.
const BEGINS_AT_MILLIS: i64 = 1_800_000_000_000;
/// No moment has as many events, but where a node's deadline stays in the past.
const AT_ONCE: u32 = 100_000;
/// The host of the gateway: each of its processes knows that the one before is dead.
const HOST: &str = "host/";

/// The logic of a node, without I/O: it is told what happened and when, and asked what it wants.
pub trait NodeLogic {
    /// Its stream is open; the first frame that it gives must be its Hello.
    fn handle_opened(&mut self, now: Moment);
    /// A frame of the gateway.
    fn handle_frame(&mut self, frame: GatewayFrame, now: Moment);
    /// Its stream is over, or was refused.
    fn handle_ended(&mut self, end: &StreamEnd, now: Moment);
    /// The moment of `next_deadline` has come.
    fn handle_time(&mut self, now: Moment);
    /// What it has to say, until there is nothing more. Not asked while it has no stream.
    fn poll_frame(&mut self) -> Option<NodeFrame>;
    /// Whether it wants a stream now; asked while it has none.
    fn wants_stream(&self, now: Moment) -> bool;
    /// When it must be given the time.
    fn next_deadline(&self) -> Option<Moment>;
}

/// How a stream ended, or why it was not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEnd {
    /// The gateway's reason; `None` where the connection was lost, or no gateway was there.
    pub reason: Option<CloseReason>,
}

impl StreamEnd {
    /// How long the node must wait before it dials again, where the gateway says so.
    pub fn pushback(&self) -> Option<Duration> {
        self.reason.as_ref().and_then(CloseReason::pushback)
    }
}

/// What happens, at a moment.
#[derive(Debug)]
enum Event {
    WriterTime { life: u32 },
    SessionTime { life: u32, key: SessionKey },
    NodeTime { node: usize },
    Post { life: u32, message: ToWriter },
    Mail { life: u32, message: ToShard },
    Execute { life: u32, queue: Queue },
    Heard { life: u32, queue: Queue },
    Dial { node: usize },
    Up { link: u64, frame: NodeFrame },
    Down { link: u64, frame: GatewayFrame },
    Ended { link: u64, end: StreamEnd },
    Refused { node: usize, end: StreamEnd },
}

/// What keeps its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wire {
    Post(u32),
    Mail(u32),
    Up(u64),
    Down(u64),
}

#[derive(Debug)]
struct Flight {
    job: Job,
    started: Moment,
    outcome: Option<Outcome>,
}

#[derive(Debug)]
struct Open {
    session: Session,
    link: u64,
    hello_waits: bool,
    timer: Option<Moment>,
}

/// A gateway's process while it lives.
#[derive(Debug)]
struct Gateway {
    writer: Writer,
    timer: Option<Moment>,
    admission: Admission,
    sessions: BTreeMap<SessionKey, Open>,
    flights: BTreeMap<Queue, Flight>,
    /// Why new streams are refused, where they are.
    refuses: Option<CloseReason>,
    next_slot: u32,
}

/// A node's place.
#[derive(Debug)]
struct Seat<N> {
    id: NodeId,
    logic: N,
    link: Option<u64>,
    is_dialling: bool,
    timer: Option<Moment>,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    node: usize,
    life: u32,
    key: SessionKey,
}

/// A gateway on simulated time, with a database in memory and nodes of one's own.
#[derive(Debug)]
pub struct Rehearsal<N> {
    chance: Chance,
    limits: Arc<Limits>,
    now: Moment,
    events: BTreeMap<(Moment, u64), Event>,
    next_event: u64,
    /// Events since time went on.
    at_once: u32,
    wires: BTreeMap<Wire, Moment>,
    store: Store,
    gateway: Option<Gateway>,
    /// Counts the gateway's processes: what belongs to an earlier one is dropped.
    life: u32,
    seats: Vec<Seat<N>>,
    links: BTreeMap<u64, Link>,
    next_link: u64,
}

impl<N: NodeLogic> Rehearsal<N> {
    /// An empty world of this seed, with a gateway that begins at once and has these limits.
    pub fn new(seed: u64, limits: Limits) -> Self {
        let mut rehearsal = Self {
            chance: Chance::new(seed),
            limits: Arc::new(limits),
            now: Moment::default(),
            events: BTreeMap::new(),
            next_event: 0,
            at_once: 0,
            wires: BTreeMap::new(),
            store: Store::default(),
            gateway: None,
            life: 0,
            seats: Vec::new(),
            links: BTreeMap::new(),
            next_link: 0,
        };
        rehearsal.start();
        rehearsal
    }

    /// Registers a node, which dials as it likes from now on; gives its number.
    pub fn add_node(&mut self, id: NodeId, logic: N) -> usize {
        self.store.register_node(id.clone());
        self.seats.push(Seat { id, logic, link: None, is_dialling: false, timer: None });
        let node = self.seats.len() - 1;
        self.ask_node(node);
        node
    }

    /// Enqueues a command, as a client of the database does, and pokes the gateway.
    ///
    /// # Errors
    /// What the database would refuse: nothing is stored.
    pub fn enqueue(&mut self, command: NewCommand) -> Result<CommandId, EnqueueRefusal> {
        let node = command.node.clone();
        let id = self.store.enqueue(command, self.clock())?;
        self.with_writer(|writer, now| writer.handle_poke(Some(&node), now));
        Ok(id)
    }

    /// The gateway's process dies. Streams are lost, and nobody is told; what is in flight to the database is lost.
    pub fn crash(&mut self) {
        self.life += 1;
        self.gateway = None;
        let links: Vec<u64> = self.links.keys().copied().collect();
        for link in links {
            self.down(link, StreamEnd { reason: None });
        }
    }

    /// A process of the same gateway begins on the same host, where none runs.
    pub fn start(&mut self) {
        if self.gateway.is_some() {
            return;
        }
        let id = GatewayId::new("rehearsal").expect("a gateway id");
        let owner = format!("{HOST}{}", self.life);
        let mut config = WriterConfig::alone(id, &owner, Arc::clone(&self.limits));
        config.dead_owner_prefix = Some(HOST.to_owned());
        self.gateway = Some(Gateway {
            writer: Writer::new(config, self.now),
            timer: None,
            admission: Admission::new(&self.limits, self.now),
            sessions: BTreeMap::new(),
            flights: BTreeMap::new(),
            refuses: Some(CloseReason::Fenced),
            next_slot: 0,
        });
        self.pump_writer();
    }

    /// The gateway sends its nodes away over `within`, and refuses new streams with a pushback until `undrain`.
    pub fn drain(&mut self, within: Duration) {
        let plan = DrainPlan { within, grace: Duration::ZERO };
        self.with_writer(|writer, now| drop(writer.handle_ask(DeskAsk::Drain(plan), now)));
    }

    /// It takes new streams again.
    pub fn undrain(&mut self) {
        self.with_writer(|writer, now| drop(writer.handle_ask(DeskAsk::Undrain, now)));
    }

    /// The stream of a node is lost on both sides, if it has one.
    pub fn cut(&mut self, node: usize) {
        let Some(link) = self.seats[node].link else { return };
        // First on its way: what the session says of its end comes too late for a stream that is lost.
        self.down(link, StreamEnd { reason: None });
        if let Some(Link { life, key, .. }) = self.links.get(&link).copied()
            && life == self.life
        {
            self.with_session(key, |session, now| session.handle_close(CloseReason::PeerGone, now));
        }
    }

    /// Lets so much time pass.
    pub fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
        self.now = until;
    }

    /// Lets time pass until something holds, at most so much; whether it does.
    pub fn run_until(&mut self, most: Duration, holds: impl Fn(&Self) -> bool) -> bool {
        let until = self.now + most;
        while !holds(self) {
            if !self.step(until) {
                self.now = until;
                return holds(self);
            }
        }
        true
    }

    /// How much time has passed.
    pub fn now(&self) -> Moment {
        self.now
    }

    /// What the database's clock says.
    pub fn clock(&self) -> UnixMillis {
        UnixMillis(BEGINS_AT_MILLIS).plus(self.now.since(Moment::default()))
    }

    /// The database: what became of commands, events, sessions.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The database, for what its clients do to it: specs, cancellations, revocations.
    pub fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }

    /// A node's logic.
    pub fn node(&self, node: usize) -> &N {
        &self.seats[node].logic
    }

    /// A node's logic, to be told something; it is asked afterwards what it wants.
    pub fn tell(&mut self, node: usize, tell: impl FnOnce(&mut N, Moment)) {
        tell(&mut self.seats[node].logic, self.now);
        self.ask_node(node);
    }

    /// Every node's logic, by its number.
    pub fn nodes(&self) -> impl Iterator<Item = &N> {
        self.seats.iter().map(|seat| &seat.logic)
    }

    /// Sessions with a durable Hello.
    pub fn sessions(&self) -> usize {
        self.gateway.as_ref().map_or(0, |gateway| gateway.writer.sessions())
    }

    /// Where the gateway is in its life; `None` while no process of it runs.
    pub fn phase(&self) -> Option<Phase> {
        self.gateway.as_ref().map(|gateway| gateway.writer.phase())
    }

    /// Lets the next thing happen, if it does by `until`.
    fn step(&mut self, until: Moment) -> bool {
        let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= until) else {
            return false;
        };
        let ((at, _), event) = entry.remove_entry();
        self.at_once = if at == self.now { self.at_once + 1 } else { 0 };
        assert!(self.at_once < AT_ONCE, "time stands still: a node wants something again and again");
        self.now = at;
        self.happen(event);
        true
    }
}

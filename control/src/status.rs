//! What the control thread shows, and whom it asks for it.
//!
//! The gateway implements `Status` over the atomics of its threads; this crate knows only these
//! shapes, so it depends on core alone.
//!
//! 1. A label holds one of our own words or a shard's number: there is no way to put a node or a
//!    tenant into one.
//! 2. `Status` is read for every request and must not wait for a thread of the gateway.

use std::collections::BTreeMap;

use gateway_core::histogram::HistogramReading;
use gateway_core::ids::ShardId;
use gateway_core::store::Queue;
use gateway_core::writer::Phase;
use serde::Serialize;

/// Where the numbers come from.
pub trait Status: Send + Sync + 'static {
    /// What `/v1/health` answers.
    fn health(&self) -> Health;
    /// What `/metrics` answers, beside the process's own numbers.
    fn families(&self) -> Vec<Family>;
}

/// The state of a gateway. Ages and durations are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Health {
    pub gateway: String,
    pub version: &'static str,
    #[serde(serialize_with = "phase_word")]
    pub phase: Phase,
    /// Whether new sessions should come here: the phase is serving, there is room, and no thread stands still.
    pub serving: bool,
    /// Why not, where they should not; each a sentence without its full stop.
    pub reasons: Vec<String>,
    /// The lease was lost and is not held again yet.
    pub fenced: bool,
    pub lease: LeaseHealth,
    pub headroom: Headroom,
    /// Notifications of new commands arrive; where not, the poll finds them.
    pub listening: bool,
    pub uptime_seconds: f64,
    /// Sessions with a durable Hello.
    pub sessions: usize,
    /// Streams that were admitted and are not over, with those whose Hello still waits.
    pub streams: usize,
    /// Of those, the ones whose Hello has no outcome yet.
    pub pending_hellos: usize,
    pub sweeps: SweepHealth,
    pub queues: Vec<QueueHealth>,
    pub loops: Vec<LoopHealth>,
    pub shards: Vec<ShardHealth>,
}

/// The lease of the gateway's id.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LeaseHealth {
    pub held: bool,
    /// Of the lease, while it is held.
    pub epoch: Option<u64>,
    /// Since the last good renewal began; at half the TTL the gateway fences itself.
    pub age_seconds: Option<f64>,
    pub ttl_seconds: f64,
}

/// What is used of what there is, where more is refused or waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Headroom {
    pub streams: Room,
    pub pending_hellos: Room,
    /// Messages of all shards that wait for the writer.
    pub writer_messages: Room,
    /// Messages of the writer that wait for a shard, by shard.
    pub shard_messages: Vec<Room>,
}

/// One bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Room {
    pub used: u64,
    pub of: u64,
}

/// What this gateway's sweeps have done for all gateways, since it started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SweepHealth {
    /// Whether this gateway is the one that sweeps.
    pub leads: bool,
    /// Runs that came to their end.
    pub runs: u64,
    /// When the last one did, in seconds since 1970.
    pub last_run_at: Option<u64>,
    /// Commands whose time had passed.
    pub commands_expired: u64,
    /// Sessions of dead gateways.
    pub sessions_reaped: u64,
}

/// One queue of the writer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueHealth {
    #[serde(serialize_with = "queue_word")]
    pub queue: Queue,
    /// Jobs that committed.
    pub jobs: u64,
    /// Jobs that failed since the last one that did not.
    pub consecutive_failures: u64,
    pub failures: u64,
    /// Kept after later jobs committed.
    pub last_error: Option<String>,
    /// When that was, in seconds since 1970.
    pub last_error_at: Option<f64>,
}

/// One loop: of a queue, of the listener, or the turns of a thread.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoopHealth {
    #[serde(rename = "loop")]
    pub name: String,
    pub clean_runs: u64,
    pub consecutive_failures: u64,
    pub failures: u64,
    /// When the last run ended well, in seconds since 1970.
    pub last_clean_run_at: Option<f64>,
    /// How long the present run has taken; `None` at rest. One that is stuck shows here.
    pub running_seconds: Option<f64>,
    /// Kept after later runs ended well.
    pub last_error: Option<String>,
    /// When that was, in seconds since 1970.
    pub last_error_at: Option<f64>,
}

/// One shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShardHealth {
    pub shard: u16,
    /// `None` where it is not pinned.
    pub cpu: Option<usize>,
    pub counters: BTreeMap<&'static str, u64>,
}

/// One metric with all its points. The name has neither the prefix nor `_total` nor the unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    pub name: &'static str,
    pub help: &'static str,
    pub unit: Option<Unit>,
    pub points: Points,
}

/// A base unit; it becomes the end of the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    Bytes,
}

/// The values of a metric, by its kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Points {
    /// Only rises.
    Counters(Vec<(Vec<Label>, f64)>),
    Gauges(Vec<(Vec<Label>, f64)>),
    Histograms(Vec<(Vec<Label>, Distribution)>),
}

/// A histogram's state.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Distribution {
    pub sum: f64,
    pub count: u64,
    /// Upper bound and how many fell between the bound below and it; the last bound is `f64::INFINITY`.
    pub buckets: Vec<(f64, u64)>,
}

impl From<HistogramReading> for Distribution {
    fn from(HistogramReading { sum, count, buckets }: HistogramReading) -> Self {
        Self { sum, count, buckets }
    }
}

/// A label of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label {
    Shard(ShardId),
    Queue(Queue),
    /// A name and a value out of our own words.
    Word(&'static str, &'static str),
}

impl Family {
    /// One number that only rises.
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, unit: None, points: Points::Counters(vec![(Vec::new(), number(value))]) }
    }

    /// One number that rises and falls.
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, unit: None, points: Points::Gauges(vec![(Vec::new(), number(value))]) }
    }

    /// The same in a unit.
    pub fn in_unit(self, unit: Unit) -> Self {
        Self { unit: Some(unit), ..self }
    }
}

/// A count as Prometheus takes it; exact up to 2^53.
pub fn number(count: u64) -> f64 {
    count as f64
}

/// The word for a phase in health, logs and metrics.
pub const fn phase_label(phase: Phase) -> &'static str {
    match phase {
        Phase::Waiting => "waiting",
        Phase::Serving => "serving",
        Phase::Draining => "draining",
        Phase::Stopping => "stopping",
        Phase::Stopped => "stopped",
    }
}

fn phase_word<S: serde::Serializer>(phase: &Phase, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(phase_label(*phase))
}

fn queue_word<S: serde::Serializer>(queue: &Queue, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(queue.label())
}

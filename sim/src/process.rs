//! A simulated gateway process: the real writer and the real sessions, and what is between them.
//!
//! Owns the machines of one process and what a crash of it forgets. Decides nothing: as the real
//! shells do, it carries what one machine gives to the next.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gateway_core::admission::Admission;
use gateway_core::hooks::HookedKinds;
use gateway_core::ids::{GatewayId, SessionKey, ShardId};
use gateway_core::limits::Limits;
use gateway_core::session::Session;
use gateway_core::store::{GatewayRow, Job, Outcome, Queue};
use gateway_core::time::Moment;
use gateway_core::writer::{Writer, WriterConfig};

use crate::watched::{ProcessWatch, SessionWatch};

/// Shards of a process.
pub(crate) const SHARDS: u16 = 2;
pub(crate) const LEASE_TTL: Duration = Duration::from_secs(4);

/// A job between the writer and the store.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) job: Job,
    pub(crate) started: Moment,
    pub(crate) outcome: Option<Outcome>,
}

#[derive(Debug)]
pub(crate) struct OpenSession {
    pub(crate) session: Session,
    /// Whether admission still counts it among those whose Hello waits.
    pub(crate) hello_waits: bool,
    pub(crate) link: u64,
    pub(crate) timer: Option<Moment>,
    pub(crate) watch: SessionWatch,
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) gateway: GatewayId,
    host: String,
    /// Counts starts; what belongs to an earlier one is dropped.
    pub(crate) incarnation: u32,
    /// `None` while it does not run.
    pub(crate) writer: Option<Writer>,
    pub(crate) writer_timer: Option<Moment>,
    pub(crate) sessions: BTreeMap<SessionKey, OpenSession>,
    pub(crate) serving: [bool; SHARDS as usize],
    pub(crate) flights: BTreeMap<Queue, Flight>,
    pub(crate) posted_bytes: usize,
    pub(crate) released_bytes: usize,
    pub(crate) database_away_until: Moment,
    pub(crate) lease_away_until: Moment,
    /// It stands still until then.
    pub(crate) asleep_until: Moment,
    /// It stands still for so long from its next renewal on.
    pub(crate) sleeps_at_renewal: Option<Duration>,
    /// It stood still, and has not looked at the time since.
    pub(crate) is_dazed: bool,
    /// A queue whose commits take long, until then.
    pub(crate) slow: Option<(Queue, Moment)>,
    /// A queue whose commits do not come at all.
    pub(crate) stuck: Option<Queue>,
    /// A queue whose commits are heard of late, until then.
    pub(crate) slow_answers: Option<(Queue, Moment)>,
    pub(crate) watch: ProcessWatch,
    next_slot: u32,
    pub(crate) limits: Arc<Limits>,
    /// Who may open a session; made anew with each start.
    pub(crate) admission: Admission,
    pub(crate) hooked: HookedKinds,
}

impl Process {
    pub(crate) fn new(gateway: GatewayId, host: &str, hooked: HookedKinds) -> Self {
        let limits = Limits {
            heartbeat_interval: Duration::from_secs(2),
            liveness_write_every: Duration::from_secs(3),
            hello_timeout: Duration::from_secs(3),
            batch_entries: 4,
            streams: 6,
            pending_hellos: 3,
            opens_per_second: 20,
            opens_burst: 8,
            ..Limits::default()
        };
        Self {
            gateway,
            host: host.to_owned(),
            incarnation: 0,
            writer: None,
            writer_timer: None,
            sessions: BTreeMap::new(),
            serving: [false; SHARDS as usize],
            flights: BTreeMap::new(),
            posted_bytes: 0,
            released_bytes: 0,
            database_away_until: Moment::default(),
            lease_away_until: Moment::default(),
            asleep_until: Moment::default(),
            sleeps_at_renewal: None,
            is_dazed: false,
            slow: None,
            stuck: None,
            slow_answers: None,
            watch: ProcessWatch::default(),
            next_slot: 0,
            admission: Admission::new(&limits, Moment::default()),
            limits: Arc::new(limits),
            hooked,
        }
    }

    pub(crate) fn start(&mut self, now: Moment) {
        self.end();
        self.admission = Admission::new(&self.limits, now);
        let config = WriterConfig {
            gateway: self.gateway.clone(),
            owner: self.owner(),
            // Whoever ran on this host before is dead: there is one process a host.
            dead_owner_prefix: Some(format!("{}/", self.host)),
            row: GatewayRow {
                region: "sim".into(),
                internal_url: String::new(),
                version: "sim".into(),
                max_streams: 100,
            },
            shards: SHARDS,
            limits: Arc::clone(&self.limits),
            lease_ttl: LEASE_TTL,
            lease_renew_every: Duration::from_secs(1),
            poll_every: Duration::from_secs(1),
            sweep_every: Duration::from_secs(1),
            spec_sweep_every: Duration::from_secs(2),
            revocation_poll: Duration::from_secs(1),
            revocation_scan: Duration::from_secs(4),
            hooked: self.hooked.clone(),
        };
        self.writer = Some(Writer::new(config, now));
    }

    /// This process instance.
    pub(crate) fn owner(&self) -> String {
        format!("{}/{}", self.host, self.incarnation)
    }

    /// The process is gone, with all that it knew.
    pub(crate) fn end(&mut self) {
        self.incarnation += 1;
        self.writer = None;
        self.writer_timer = None;
        self.sessions.clear();
        self.serving = [false; SHARDS as usize];
        self.flights.clear();
        self.asleep_until = Moment::default();
        self.is_dazed = false;
        self.stuck = None;
        self.watch = ProcessWatch::default();
        (self.posted_bytes, self.released_bytes) = (0, 0);
    }

    /// Opens a session on a shard that serves.
    pub(crate) fn next_key(&mut self, shard: u16) -> SessionKey {
        self.next_slot += 1;
        SessionKey { shard: ShardId(shard), slot: self.next_slot % 8, serial: self.next_slot }
    }
}

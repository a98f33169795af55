//! A simulated gateway process: the real writer and the real sessions, and what is between them.
//!
//! Owns the machines of one process and what a crash of it forgets. Decides nothing: as the real
//! shells do, it carries what one machine gives to the next.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gateway_core::hooks::HookedKinds;
use gateway_core::ids::{GatewayId, SessionKey, ShardId};
use gateway_core::limits::Limits;
use gateway_core::session::Session;
use gateway_core::store::{GatewayRow, Job, Outcome, Queue};
use gateway_core::time::Moment;
use gateway_core::writer::{Writer, WriterConfig};

/// Shards of a process.
pub(crate) const SHARDS: u16 = 2;

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
    pub(crate) link: u64,
    pub(crate) timer: Option<Moment>,
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
    next_slot: u32,
    pub(crate) limits: Arc<Limits>,
    hooked: HookedKinds,
}

impl Process {
    pub(crate) fn new(gateway: GatewayId, host: &str, hooked: HookedKinds) -> Self {
        let limits = Limits {
            heartbeat_interval: Duration::from_secs(2),
            liveness_write_every: Duration::from_secs(3),
            hello_timeout: Duration::from_secs(3),
            batch_entries: 4,
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
            next_slot: 0,
            limits: Arc::new(limits),
            hooked,
        }
    }

    pub(crate) fn start(&mut self, now: Moment) {
        self.end();
        let config = WriterConfig {
            gateway: self.gateway.clone(),
            owner: format!("{}/{}", self.host, self.incarnation),
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
            lease_ttl: Duration::from_secs(4),
            lease_renew_every: Duration::from_secs(1),
            poll_every: Duration::from_secs(1),
            sweep_every: Duration::from_secs(1),
            spec_sweep_every: Duration::from_secs(2),
            hooked: self.hooked.clone(),
        };
        self.writer = Some(Writer::new(config, now));
    }

    /// The process is gone, with all that it knew.
    pub(crate) fn end(&mut self) {
        self.incarnation += 1;
        self.writer = None;
        self.writer_timer = None;
        self.sessions.clear();
        self.serving = [false; SHARDS as usize];
        self.flights.clear();
        (self.posted_bytes, self.released_bytes) = (0, 0);
    }

    /// Opens a session on a shard that serves.
    pub(crate) fn next_key(&mut self, shard: u16) -> SessionKey {
        self.next_slot += 1;
        SessionKey { shard: ShardId(shard), slot: self.next_slot % 8, serial: self.next_slot }
    }
}

//! What a durable Hello gave a session: its epoch, the database's time, the watch over its life.
//!
//! 1. It exists from the grant on and its epoch never changes.
//! 2. Server time is the database's at the Hello plus what the process's clock has run since: no
//!    heartbeat asks the database.

use std::time::Duration;

use super::vitals::Vitals;
use crate::frame::Welcome;
use crate::ids::{EventSeq, JournalId, SessionEpoch, SessionKey};
use crate::limits::Limits;
use crate::time::{Moment, UnixMillis};

#[derive(Debug)]
pub(super) struct Membership {
    pub(super) epoch: SessionEpoch,
    pub(super) vitals: Vitals,
    /// The database's time at `granted_at`.
    server_time: UnixMillis,
    granted_at: Moment,
}

impl Membership {
    /// Granted at `now`.
    pub(super) fn new(
        key: SessionKey,
        epoch: SessionEpoch,
        server_time: UnixMillis,
        limits: &Limits,
        now: Moment,
    ) -> Self {
        Self { epoch, vitals: Vitals::new(key, limits, now), server_time, granted_at: now }
    }

    /// The database's time at `now`.
    pub(super) fn server_time(&self, now: Moment) -> UnixMillis {
        self.server_time.plus(now.since(self.granted_at))
    }

    /// The first frame to the node.
    pub(super) fn welcome(&self, journal: Option<JournalId>, acked: EventSeq, limits: &Limits) -> Welcome {
        Welcome {
            session_epoch: self.epoch,
            heartbeat_interval_ms: millis(limits.heartbeat_interval),
            server_time: self.server_time,
            journal,
            journal_acked: acked,
            frame_bytes: count(limits.frame_bytes),
            result_bytes: count(limits.result_bytes),
            events_per_batch: count(limits.events_per_batch),
            inventory_wanted: Vec::new(),
            features: Vec::new(),
            tunnel_address: limits.tunnels.direct_address.clone(),
        }
    }
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

fn count(bound: usize) -> u32 {
    u32::try_from(bound).unwrap_or(u32::MAX)
}

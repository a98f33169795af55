//! systemd's watchdog, fed only while every shard and the writer turn.
//!
//! Each round rings every shard's mailbox and looks whether it looked into it since the last round;
//! the writer turns at least once a second by itself. Turns count, not commits: a database that is
//! away is no reason to be killed.
//!
//! 1. A thread that did not turn between two rounds is named in the log, and systemd is not fed.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use gateway_core::mail::Post;
use gateway_core::seam::ToShard;
use sd_notify::NotifyState;

use super::readings::Readings;
use crate::error::GatewayError;

/// The writer turns at least once a second.
const SHORTEST_ROUND: Duration = Duration::from_secs(2);

/// Starts feeding where systemd asks for it, until `ended` is closed.
pub(super) fn start(
    readings: &Arc<Readings>,
    bells: Vec<Post<ToShard>>,
    ended: Receiver<()>,
) -> Result<(), GatewayError> {
    let Some(limit) = sd_notify::watchdog_enabled() else { return Ok(()) };
    let round = (limit / 3).max(SHORTEST_ROUND);
    let mut turns = Turns::new(Arc::clone(readings));
    let feed = move || {
        ring(&bells);
        while ended.recv_timeout(round) == Err(RecvTimeoutError::Timeout) {
            let stuck = turns.stuck();
            if stuck.is_empty() {
                notify(&[NotifyState::Watchdog]);
            } else {
                tracing::error!(
                    threads = stuck.join(", "),
                    "these threads do not turn; the watchdog is not fed"
                );
            }
            ring(&bells);
        }
    };
    std::thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(feed)
        .map(drop)
        .map_err(|error| GatewayError::Machine(format!("the thread watchdog can't be started: {error}")))
}

/// Tells systemd something, if it is there.
pub(super) fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "systemd can't be told how this gateway is");
    }
}

fn ring(bells: &[Post<ToShard>]) {
    for bell in bells {
        bell.ring();
    }
}

/// Who turned since the last look.
#[derive(Debug)]
struct Turns {
    readings: Arc<Readings>,
    last: Vec<(String, u64)>,
}

impl Turns {
    fn new(readings: Arc<Readings>) -> Self {
        let last = readings.turns();
        Self { readings, last }
    }

    /// The threads that did not.
    fn stuck(&mut self) -> Vec<String> {
        let now = self.readings.turns();
        let stuck = now.iter().zip(&self.last).filter(|(now, last)| now.1 == last.1);
        let stuck = stuck.map(|((thread, _), _)| thread.clone()).collect();
        self.last = now;
        stuck
    }
}

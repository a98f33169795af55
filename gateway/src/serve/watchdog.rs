//! Watches whether every shard and the writer turn; systemd's watchdog is fed only while they do.
//!
//! Each round rings every shard's mailbox and looks whether it looked into it since the last round;
//! the writer turns at least once a second by itself. Turns count, not commits: a database that is
//! away is no reason to be killed.
//!
//! 1. A thread that did not turn between two rounds is named in the log and in health, and systemd is not fed; after
//!    two such rounds health says that this gateway does not serve, until the thread turns.
//! 2. It watches also where systemd does not ask: who looks at health sees the same everywhere.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use gateway_core::mail::Post;
use gateway_core::seam::ToShard;
use gateway_db_writer::LoopStatus;
use sd_notify::NotifyState;

use super::readings::Readings;
use crate::error::GatewayError;

/// The writer turns at least once a second.
const SHORTEST_ROUND: Duration = Duration::from_secs(2);

/// Where systemd does not say.
const USUAL_ROUND: Duration = Duration::from_secs(10);

/// Starts watching, and feeding where systemd asks for it, until `ended` is closed.
pub(super) fn start(
    readings: &Arc<Readings>,
    bells: Vec<Post<ToShard>>,
    ended: Receiver<()>,
) -> Result<(), GatewayError> {
    let limit = sd_notify::watchdog_enabled();
    let round = limit.map_or(USUAL_ROUND, |limit| (limit / 3).max(SHORTEST_ROUND));
    let mut turns = Turns::new(Arc::clone(readings));
    let feed = move || {
        ring(&bells);
        while ended.recv_timeout(round) == Err(RecvTimeoutError::Timeout) {
            let stuck = turns.stuck();
            if !stuck.is_empty() {
                tracing::error!(
                    threads = stuck.join(", "),
                    "these threads do not turn; the watchdog is not fed"
                );
            } else if limit.is_some() {
                notify(&[NotifyState::Watchdog]);
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
        readings.thread_loops().iter().for_each(LoopStatus::begin);
        Self { readings, last }
    }

    /// The threads that did not. A round is a run of each one's loop.
    fn stuck(&mut self) -> Vec<String> {
        let now = self.readings.turns();
        let mut stuck = Vec::new();
        for (((thread, now), (_, last)), status) in
            now.iter().zip(&self.last).zip(self.readings.thread_loops())
        {
            if now == last {
                status.end(Some("it did not turn for a whole round of the watchdog".to_owned()));
                stuck.push(thread.clone());
            } else {
                status.end(None);
            }
            status.begin();
        }
        self.last = now;
        stuck
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    use gateway_core::admission::Admission;
    use gateway_core::limits::Limits;
    use gateway_core::time::Moment;
    use gateway_core::writer::Phase;
    use gateway_db_writer::WriterStatus;

    use super::*;
    use crate::serve::readings::Origin;
    use gateway_control::Status;

    #[test]
    fn a_gateway_does_not_serve_while_one_of_its_threads_stands_for_two_rounds() {
        let (readings, writer) = readings(0);
        let mut turns = Turns::new(Arc::clone(&readings));
        writer.set_phase(Phase::Serving);
        assert!(readings.health().serving);
        assert_eq!(turns.stuck(), ["db-writer"]);
        assert!(readings.health().serving, "one round may be a busy machine's");
        assert_eq!(turns.stuck(), ["db-writer"]);
        assert!(!readings.health().serving);
        writer.ticks.fetch_add(1, Ordering::Relaxed);
        assert!(turns.stuck().is_empty());
        assert!(readings.health().serving, "it turns again");
    }

    fn readings(shards: usize) -> (Arc<Readings>, Arc<WriterStatus>) {
        let admission = Arc::new(Admission::new(&Limits::default(), Moment::default()));
        let writer: Arc<WriterStatus> = Arc::default();
        let shards = (0..shards).map(|_| (None, Arc::default())).collect();
        let origin = Origin {
            gateway: "g".to_owned(),
            version: "1",
            started: Instant::now(),
            limits: Arc::default(),
            lease_ttl: Duration::from_secs(20),
        };
        let (relays, tunnels) = Default::default();
        let readings = Readings::new(origin, admission, Arc::clone(&writer), relays, tunnels, shards);
        (Arc::new(readings), writer)
    }

    #[test]
    fn a_thread_that_does_not_turn_is_named_and_shows_and_one_that_turns_again_is_clean() {
        let (readings, writer) = readings(1);
        let mut turns = Turns::new(Arc::clone(&readings));
        let shown = |name: &str| {
            let loops = readings.health().loops;
            let shown = loops.into_iter().find(|shown| shown.name == name).expect("the loop is there");
            (shown.clean_runs, shown.consecutive_failures, shown.last_error.is_some())
        };
        // The shard stands still, the writer turns.
        for round in 1..=2 {
            writer.ticks.fetch_add(1, Ordering::Relaxed);
            assert_eq!(turns.stuck(), ["shard-0"]);
            assert_eq!((shown("shard-0"), shown("db-writer")), ((0, round, true), (round, 0, false)));
        }
        assert_eq!(turns.stuck(), ["shard-0", "db-writer"]);
        assert_eq!(shown("db-writer"), (2, 1, true));
        writer.ticks.fetch_add(1, Ordering::Relaxed);
        assert_eq!(turns.stuck(), ["shard-0"]);
        assert_eq!((shown("shard-0"), shown("db-writer")), ((0, 4, true), (3, 0, true)));
    }
}

//! The wait after a failed job of one queue, and what is told about the failures.
//!
//! Owns the time before which the queue's next job must not start. Never decides what is tried again.
//!
//! 1. The wait doubles with each failure in a row, between its two bounds; one success ends it.
//! 2. A database that can't be used (`Fatal`) is tried at the slowest pace, for ever: an operator
//!    may repair it, and until then the fence has closed every session.

use std::time::Duration;

use crate::store::StoreError;
use crate::time::Moment;

/// How a queue is doing; for logs, health and metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueHealth {
    /// Jobs that failed since the last one that committed.
    pub consecutive_failures: u32,
    /// What the last failure said; kept after a success.
    pub last_error: Option<String>,
}

#[derive(Debug)]
pub(super) struct Backoff {
    fastest: Duration,
    slowest: Duration,
    ready_at: Moment,
    health: QueueHealth,
}

impl Backoff {
    pub(super) fn new(fastest: Duration, slowest: Duration) -> Self {
        Self { fastest, slowest, ready_at: Moment::default(), health: QueueHealth::default() }
    }

    /// For the queues whose jobs are tried again by the million: 50 ms to 2 s.
    pub(super) fn for_queue() -> Self {
        Self::new(Duration::from_millis(50), Duration::from_secs(2))
    }

    pub(super) fn handle_failure(&mut self, error: &StoreError, now: Moment) {
        let failures = self.health.consecutive_failures;
        let wait = match error {
            StoreError::Fatal(_) => self.slowest,
            _ => self.fastest.saturating_mul(1 << failures.min(16)).min(self.slowest),
        };
        self.ready_at = now + wait;
        self.health.consecutive_failures = failures.saturating_add(1);
        self.note(error.to_string());
    }

    pub(super) fn handle_success(&mut self) {
        self.health.consecutive_failures = 0;
        self.ready_at = Moment::default();
    }

    /// Remembers a sentence without a failure of the queue as a whole.
    pub(super) fn note(&mut self, sentence: String) {
        self.health.last_error = Some(sentence);
    }

    pub(super) fn is_ready(&self, now: Moment) -> bool {
        now >= self.ready_at
    }

    pub(super) fn ready_at(&self) -> Moment {
        self.ready_at
    }

    pub(super) fn health(&self) -> &QueueHealth {
        &self.health
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_its_bound_and_a_success_ends_it() {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(300));
        let now = Moment::from_nanos(7);
        let retry = StoreError::Retry("away".into());
        let waits: Vec<u128> = (0..5)
            .map(|_| {
                backoff.handle_failure(&retry, now);
                backoff.ready_at().since(now).as_millis()
            })
            .collect();
        assert_eq!(waits, [50, 100, 200, 300, 300]);
        assert_eq!(backoff.health().consecutive_failures, 5);
        backoff.handle_success();
        assert!(backoff.is_ready(now));
        backoff.handle_failure(&StoreError::Fatal("no such table".into()), now);
        assert_eq!(backoff.ready_at().since(now).as_millis(), 300);
    }
}

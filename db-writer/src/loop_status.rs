//! How a loop is doing: the one shape for every loop of a gateway, whether it runs jobs, listens or turns.
//!
//! 1. Its loop alone writes it; readers see each number by itself.
//! 2. A run that began and has not ended is shown as running, so that one that is stuck shows.
//! 3. The lock is held only to swap a text.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is written of a loop. Times are milliseconds since 1970; 0 stands for never.
#[derive(Debug, Default)]
pub struct LoopStatus {
    clean_runs: AtomicU64,
    failures: AtomicU64,
    consecutive_failures: AtomicU64,
    last_clean_at: AtomicU64,
    running_since: AtomicU64,
    last_error_at: AtomicU64,
    last_error: Mutex<Option<String>>,
}

/// What can be read of one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoopReading {
    /// Runs that ended well.
    pub clean_runs: u64,
    /// Runs that did not, in all and since the last that did.
    pub failures: u64,
    pub consecutive_failures: u64,
    /// When the last run ended well, since 1970.
    pub last_clean_run: Option<Duration>,
    /// How long the present run has taken.
    pub running: Option<Duration>,
    /// What the last failed run said; kept after later ones ended well.
    pub last_error: Option<String>,
    /// When that run ended, since 1970.
    pub last_error_at: Option<Duration>,
}

impl LoopStatus {
    /// A run begins.
    pub fn begin(&self) {
        self.running_since.store(now_ms(), Ordering::Relaxed);
    }

    /// The run ended, well or with this error.
    pub fn end(&self, error: Option<String>) {
        self.running_since.store(0, Ordering::Relaxed);
        if let Some(error) = error {
            self.failures.fetch_add(1, Ordering::Relaxed);
            self.consecutive_failures.fetch_add(1, Ordering::Relaxed);
            self.last_error_at.store(now_ms(), Ordering::Relaxed);
            *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            return;
        }
        self.clean_runs.fetch_add(1, Ordering::Relaxed);
        self.consecutive_failures.store(0, Ordering::Relaxed);
        self.last_clean_at.store(now_ms(), Ordering::Relaxed);
    }

    /// How it is doing.
    pub fn read(&self) -> LoopReading {
        let at = |number: &AtomicU64| Some(number.load(Ordering::Relaxed)).filter(|at| *at > 0);
        LoopReading {
            clean_runs: self.clean_runs.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            consecutive_failures: self.consecutive_failures.load(Ordering::Relaxed),
            last_clean_run: at(&self.last_clean_at).map(Duration::from_millis),
            running: at(&self.running_since)
                .map(|since| Duration::from_millis(now_ms().saturating_sub(since))),
            last_error: self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            last_error_at: at(&self.last_error_at).map(Duration::from_millis),
        }
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_fails_or_does_not_come_back_shows() {
        let status = LoopStatus::default();
        assert_eq!(status.read(), LoopReading::default());
        status.begin();
        assert!(status.read().running.is_some());
        status.end(Some("away".to_owned()));
        status.begin();
        status.end(Some("still away".to_owned()));
        let reading = status.read();
        assert_eq!((reading.failures, reading.consecutive_failures, reading.running), (2, 2, None));
        assert_eq!(reading.last_error.as_deref(), Some("still away"));
        assert!(reading.last_error_at.is_some());
        assert_eq!(reading.last_clean_run, None);
        status.end(None);
        let reading = status.read();
        assert_eq!((reading.clean_runs, reading.failures, reading.consecutive_failures), (1, 2, 0));
        assert!(reading.last_clean_run.is_some() && reading.last_error.is_some());
    }
}

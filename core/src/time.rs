//! Time as an argument. Nothing in this crate reads a clock: a shell passes `now` in.
//!
//! 1. `Moment` never runs backwards within a process; it says nothing about the date.
//! 2. `UnixMillis` is the database's clock. It is shown to people and nodes, and never compared
//!    with a `Moment`.

use std::fmt;
use std::ops::Add;
use std::time::{Duration, Instant};

/// A point of the process's monotonic clock, in nanoseconds since an arbitrary start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// `nanos` since the start of the clock.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The moment that `now` is on a clock that started at `start`. Every thread of a process is
    /// given the same `start`, so that their moments compare.
    pub fn on_clock(start: Instant, now: Instant) -> Self {
        Self::default() + now.saturating_duration_since(start)
    }

    /// Nanoseconds since the start of the clock.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero where it is not after it.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(later.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Milliseconds since 1970 by the database's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMillis(pub i64);

impl UnixMillis {
    /// The date `later` after this one.
    pub fn plus(self, later: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(later.as_millis()).unwrap_or(i64::MAX)))
    }

    /// How long after `earlier` this is; zero where it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Display for UnixMillis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

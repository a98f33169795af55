//! How fast a bound makes room, and what was promised of that room.
//!
//! `TokenBucket` is the rate that is allowed, `Throughput` a rate that is measured, `Promises` the
//! queue of those told to come back. Each is one or a few atomics, in nanoseconds of `Moment`.
//!
//! 1. The bucket never gives more than `burst` tokens at once, nor more than one a step in the long run.
//! 2. A promise lies one step after the one before it, so N who are refused together come back over
//!    N steps; none lies further off than `HORIZON`.
//! 3. Who finds the horizon full is spread at random over the later half of the longest delay, and
//!    holds no promise.
//! 4. Jitter only ever delays: nobody comes before the room that was promised.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{MAX_RETRY, MIN_RETRY};
use crate::splitmix::part_of;
use crate::time::Moment;

/// How far ahead room is promised. With its jitter it stays below `MAX_RETRY`.
const HORIZON: Duration = Duration::from_secs(54);
/// Jitter is up to this part of the delay, and `LEAST_JITTER` more.
const JITTER_PART: u32 = 16;
const LEAST_JITTER: Duration = Duration::from_millis(20);
/// How long a throughput is counted before it is measured.
const WINDOW: Duration = Duration::from_millis(250);

/// A token bucket, as the one moment at which it would be full again (GCRA).
#[derive(Debug)]
pub(super) struct TokenBucket {
    full_at: AtomicU64,
    step_nanos: u64,
    depth_nanos: u64,
}

impl TokenBucket {
    /// `per_second` tokens a second, at most `burst` at once, all there at `now`. Zero counts as one.
    pub(super) fn new(per_second: u32, burst: u32, now: Moment) -> Self {
        let step_nanos = 1_000_000_000 / u64::from(per_second.max(1));
        Self {
            full_at: AtomicU64::new(now.as_nanos()),
            step_nanos,
            depth_nanos: step_nanos * u64::from(burst.max(1)),
        }
    }

    /// Takes a token; `Err` says how long until there is one.
    pub(super) fn take(&self, now: Moment) -> Result<(), Duration> {
        let now = now.as_nanos();
        let after = |full_at: u64| full_at.max(now) + self.step_nanos;
        self.full_at
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |full_at| {
                let after = after(full_at);
                (after - now <= self.depth_nanos).then_some(after)
            })
            .map(drop)
            .map_err(|full_at| Duration::from_nanos(after(full_at) - now - self.depth_nanos))
    }

    /// Puts back a token that was taken and not used.
    pub(super) fn give_back(&self) {
        self.full_at.fetch_sub(self.step_nanos, Ordering::AcqRel);
    }

    /// The time in which one token comes.
    pub(super) fn step(&self) -> Duration {
        Duration::from_nanos(self.step_nanos)
    }
}

/// The moments promised to those who were refused.
#[derive(Debug, Default)]
pub(super) struct Promises {
    latest: AtomicU64,
}

impl Promises {
    /// The delay after which one more may come, where room for one is free in `free_in` and for
    /// another each `step` after.
    pub(super) fn promise(&self, free_in: Duration, step: Duration, random: u64, now: Moment) -> Duration {
        let earliest = (now + free_in).as_nanos();
        let horizon = (now + HORIZON).as_nanos();
        let next = |latest: u64| (Moment::from_nanos(latest) + step).as_nanos().max(earliest);
        let promised = self.latest.fetch_update(Ordering::AcqRel, Ordering::Acquire, |latest| {
            Some(next(latest)).filter(|next| *next <= horizon)
        });
        let delay = match promised {
            Ok(latest) => {
                let delay = Moment::from_nanos(next(latest)).since(now);
                delay + part_of(delay / JITTER_PART + LEAST_JITTER, random)
            }
            Err(_) => MAX_RETRY / 2 + part_of(MAX_RETRY / 2, random),
        };
        delay.clamp(MIN_RETRY, MAX_RETRY)
    }
}

/// A measured rate of what is served, as the mean time between two.
#[derive(Debug)]
pub(super) struct Throughput {
    window_started_at: AtomicU64,
    served: AtomicU64,
    /// Zero until the first window was measured.
    measured_nanos: AtomicU64,
    guess_nanos: u64,
}

impl Throughput {
    /// Until it is measured, `guess` is the time between two.
    pub(super) fn new(guess: Duration, now: Moment) -> Self {
        Self {
            window_started_at: AtomicU64::new(now.as_nanos()),
            served: AtomicU64::new(0),
            measured_nanos: AtomicU64::new(0),
            guess_nanos: nanos(guess),
        }
    }

    /// Begins a new window: what went before was idle.
    pub(super) fn restart(&self, now: Moment) {
        self.window_started_at.store(now.as_nanos(), Ordering::Release);
        self.served.store(0, Ordering::Release);
    }

    /// One more was served.
    pub(super) fn handle_served(&self, now: Moment) {
        self.served.fetch_add(1, Ordering::AcqRel);
        let started_at = self.window_started_at.load(Ordering::Acquire);
        let elapsed = now.as_nanos().saturating_sub(started_at);
        if elapsed < nanos(WINDOW) {
            return;
        }
        // One of those who see the window's end closes it.
        let closed = self.window_started_at.compare_exchange(
            started_at,
            now.as_nanos(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if closed.is_ok() {
            let measured = elapsed / self.served.swap(0, Ordering::AcqRel).max(1);
            let before = self.measured_nanos.load(Ordering::Acquire);
            self.measured_nanos.store(mean_pace(before, measured), Ordering::Release);
        }
    }

    /// The time between two, as last measured; or longer, where the open window shows a stall.
    pub(super) fn step(&self, now: Moment) -> Duration {
        let elapsed = now.as_nanos().saturating_sub(self.window_started_at.load(Ordering::Acquire));
        let step = match self.measured_nanos.load(Ordering::Acquire) {
            0 => self.guess_nanos,
            measured => measured,
        };
        if elapsed <= 2 * nanos(WINDOW) {
            return Duration::from_nanos(step);
        }
        let stalled = elapsed / self.served.load(Ordering::Acquire).saturating_add(1);
        Duration::from_nanos(step.max(stalled))
    }
}

/// The step at the mean of two rates; the first counts only if it was measured. Rates are averaged
/// and not steps: the end of a stall is a window of one, and must not outweigh the burst after it.
fn mean_pace(before: u64, measured: u64) -> u64 {
    let measured = measured.max(1);
    if before == 0 {
        return measured;
    }
    let (a, b) = (u128::from(before), u128::from(measured));
    u64::try_from(2 * a * b / (a + b)).unwrap_or(u64::MAX)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

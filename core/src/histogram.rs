//! Histograms that one thread fills and another reads: plain atomics, no lock.
//!
//! Owns the bounds of the buckets. Never knows what is measured, nor reads a clock.
//!
//! 1. A value is in one bucket, the first whose bound it does not pass; the last one has no bound.
//! 2. The number of values is what the buckets hold together, so that a reader never sees them disagree.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const BUCKETS: usize = 16;

/// Upper bounds of durations, in nanoseconds: 100 µs to 10 s.
const DURATIONS: [u64; BUCKETS - 1] = {
    const MICRO: u64 = 1_000;
    const MILLI: u64 = 1_000_000;
    [
        100 * MICRO,
        250 * MICRO,
        500 * MICRO,
        MILLI,
        2_500 * MICRO,
        5 * MILLI,
        10 * MILLI,
        25 * MILLI,
        50 * MILLI,
        100 * MILLI,
        250 * MILLI,
        500 * MILLI,
        1_000 * MILLI,
        2_500 * MILLI,
        10_000 * MILLI,
    ]
};

/// Upper bounds of amounts: 0 to what a batch may hold.
const AMOUNTS: [u64; BUCKETS - 1] = [0, 1, 2, 4, 8, 16, 32, 64, 100, 150, 200, 300, 500, 1_000, 4_096];

/// What a histogram holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HistogramReading {
    pub sum: f64,
    pub count: u64,
    /// Upper bound and how many fell between the bound below and it; the last bound is `f64::INFINITY`.
    pub buckets: Vec<(f64, u64)>,
}

#[derive(Debug, Default)]
struct Buckets {
    sum: AtomicU64,
    counts: [AtomicU64; BUCKETS],
}

impl Buckets {
    fn note(&self, bounds: &[u64; BUCKETS - 1], value: u64) {
        self.sum.fetch_add(value, Relaxed);
        self.counts[bounds.partition_point(|bound| *bound < value)].fetch_add(1, Relaxed);
    }

    fn read(&self, bounds: &[u64; BUCKETS - 1], unit: f64) -> HistogramReading {
        let bounds = bounds.iter().map(|bound| *bound as f64 / unit).chain([f64::INFINITY]);
        let counts = self.counts.iter().map(|count| count.load(Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        HistogramReading { sum: self.sum.load(Relaxed) as f64 / unit, count, buckets }
    }
}

/// Durations.
#[derive(Debug, Default)]
pub struct Latencies(Buckets);

impl Latencies {
    /// One more.
    pub fn note(&self, took: Duration) {
        self.0.note(&DURATIONS, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// In seconds.
    pub fn read(&self) -> HistogramReading {
        self.0.read(&DURATIONS, 1e9)
    }
}

/// Amounts: of entries, of rows.
#[derive(Debug, Default)]
pub struct Amounts(Buckets);

impl Amounts {
    /// One more.
    pub fn note(&self, amount: usize) {
        self.0.note(&AMOUNTS, amount as u64);
    }

    /// As they were noted.
    pub fn read(&self) -> HistogramReading {
        self.0.read(&AMOUNTS, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_in_the_first_bucket_whose_bound_it_does_not_pass() {
        let latencies = Latencies::default();
        let micros = Duration::from_micros;
        for took in [micros(0), micros(100), micros(101), micros(10_000_000), Duration::MAX / 1_000_000] {
            latencies.note(took);
        }
        let filled: Vec<(f64, u64)> =
            latencies.read().buckets.into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(0.0001, 2), (0.00025, 1), (10.0, 1), (f64::INFINITY, 1)]);
    }

    #[test]
    fn the_count_is_what_the_buckets_hold() {
        let amounts = Amounts::default();
        [0, 1, 500, 501, 5_000].into_iter().for_each(|amount| amounts.note(amount));
        let read = amounts.read();
        assert_eq!((read.count, read.sum), (5, 6_002.0));
        assert_eq!(read.buckets.iter().filter(|(_, count)| *count == 1).count(), 5, "{read:?}");
    }

    #[test]
    fn bounds_rise() {
        assert!(DURATIONS.is_sorted_by(|a, b| a < b) && AMOUNTS.is_sorted_by(|a, b| a < b));
    }
}

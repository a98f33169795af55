//! Latencies in a histogram, as the report shows them.
//!
//! 1. Microseconds inside, milliseconds outside.
//! 2. What is longer than the histogram's range (an hour) counts as its longest.

use hdrhistogram::Histogram;
use serde::Serialize;

const LONGEST_US: u64 = 3_600_000_000;

/// Milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

/// Latencies as they come.
#[derive(Debug, Clone)]
pub(crate) struct Latencies {
    histogram: Histogram<u64>,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        let histogram =
            Histogram::new_with_bounds(1, LONGEST_US, 3).expect("the bounds are constant and valid");
        Self { histogram }
    }

    /// Takes nanoseconds.
    pub(crate) fn record_ns(&mut self, nanoseconds: u64) {
        self.histogram.saturating_record((nanoseconds / 1000).max(1));
    }

    /// Takes all of `other` too.
    pub(crate) fn add(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("both have the same bounds");
    }

    /// Points of its distribution, ever closer to the end: quantile and milliseconds.
    pub(crate) fn curve(&self) -> Vec<(f64, f64)> {
        let steps = self.histogram.iter_quantiles(2);
        let points =
            steps.map(|step| (step.quantile_iterated_to(), step.value_iterated_to() as f64 / 1000.0));
        points.filter(|(quantile, _)| *quantile < 1.0).collect()
    }

    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// `None` while there is nothing.
    pub(crate) fn percentiles(&self) -> Option<Percentiles> {
        let at = |quantile| self.histogram.value_at_quantile(quantile) as f64 / 1000.0;
        (self.count() > 0).then(|| Percentiles {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: self.histogram.max() as f64 / 1000.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_in_milliseconds() {
        let mut latencies = Latencies::new();
        assert_eq!((latencies.percentiles(), latencies.curve()), (None, Vec::new()));
        for ms in 1..=1000 {
            latencies.record_ns(ms * 1_000_000);
        }
        let ms = latencies.percentiles().expect("some");
        assert!(
            (ms.p50 - 500.0).abs() < 1.0 && (ms.p99 - 990.0).abs() < 1.0 && (ms.max - 1000.0).abs() < 1.0
        );
        let curve = latencies.curve();
        assert!(curve.len() > 8 && curve.is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1), "{curve:?}");
    }
}

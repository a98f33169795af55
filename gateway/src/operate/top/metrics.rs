//! What a gateway's metrics say, read back: points by name and labels, and what lies between two looks.
//!
//! It knows the form of an exposition and none of its names.
//!
//! 1. What is no point is passed over: a gateway may say more than is known here, or less.
//! 2. A counter that has fallen began anew: all of it has risen since.
//! 3. A quantile is an estimate: within its bucket values count as spread evenly.

use std::collections::BTreeMap;

/// The labels of a point, in order.
type Labels = Vec<(String, String)>;
/// Labels that a point must have.
type With<'a> = &'a [(&'a str, &'a str)];

/// One look.
#[derive(Debug, Default)]
pub(super) struct Metrics(BTreeMap<String, BTreeMap<Labels, f64>>);

impl Metrics {
    pub(super) fn read(text: &str) -> Self {
        let mut metrics = Self::default();
        for (name, labels, value) in text.lines().filter(|line| !line.starts_with('#')).filter_map(point) {
            metrics.0.entry(name.to_owned()).or_default().insert(labels, value);
        }
        metrics
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The sum of the points of this name that have these labels.
    pub(super) fn sum(&self, name: &str, with: With<'_>) -> f64 {
        self.points(name, with).map(|(_, value)| value).sum()
    }

    /// The values of a label among the points of this name.
    pub(super) fn words(&self, name: &str, label: &str) -> Vec<String> {
        let mut words: Vec<String> = self
            .points(name, &[])
            .filter_map(|(labels, _)| value_of(labels, label))
            .map(str::to_owned)
            .collect();
        words.sort_unstable();
        words.dedup();
        words
    }

    fn points<'a>(&'a self, name: &str, with: With<'a>) -> impl Iterator<Item = (&'a Labels, f64)> {
        let has_all =
            move |labels: &Labels| with.iter().all(|(label, value)| value_of(labels, label) == Some(*value));
        let points = self.0.get(name).into_iter().flatten();
        points.filter(move |(labels, _)| has_all(labels)).map(|(labels, value)| (labels, *value))
    }
}

/// Two looks, and the time between them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch<'a> {
    pub(super) before: &'a Metrics,
    pub(super) after: &'a Metrics,
    pub(super) seconds: f64,
}

impl Stretch<'_> {
    /// How much the counters of this name with these labels have risen.
    pub(super) fn risen(&self, name: &str, with: With<'_>) -> f64 {
        self.rises(name, with).map(|(_, risen)| risen).sum()
    }

    /// The same a second.
    pub(super) fn rate(&self, name: &str, with: With<'_>) -> f64 {
        if self.seconds > 0.0 { self.risen(name, with) / self.seconds } else { 0.0 }
    }

    /// The mean of what a histogram was told; `None`: nothing.
    pub(super) fn mean(&self, name: &str, with: With<'_>) -> Option<f64> {
        let count = self.risen(&format!("{name}_count"), with);
        (count > 0.0).then(|| self.risen(&format!("{name}_sum"), with) / count)
    }

    /// What that share of the values of a histogram did not pass; `None`: there were none.
    pub(super) fn quantile(&self, name: &str, with: With<'_>, share: f64) -> Option<f64> {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (labels, risen) in self.rises(&format!("{name}_bucket"), with) {
            let Some(bound) = value_of(labels, "le").and_then(number) else { continue };
            match buckets.iter_mut().find(|(known, _)| known.to_bits() == bound.to_bits()) {
                Some((_, count)) => *count += risen,
                None => buckets.push((bound, risen)),
            }
        }
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        within(&buckets, share)
    }

    fn rises<'a>(&'a self, name: &'a str, with: With<'a>) -> impl Iterator<Item = (&'a Labels, f64)> {
        let before = self.before.0.get(name);
        self.after.points(name, with).map(move |(labels, value)| {
            let known = before.and_then(|points| points.get(labels)).copied().unwrap_or_default();
            (labels, if value >= known { value - known } else { value })
        })
    }
}

/// Where in buckets, whose counts add up from one to the next, that share of all lies.
fn within(buckets: &[(f64, f64)], share: f64) -> Option<f64> {
    let all = buckets.last().map(|(_, count)| *count).filter(|count| *count > 0.0)?;
    let wanted = all * share;
    let (mut lower, mut below) = (0.0, 0.0);
    for (bound, count) in buckets {
        if *count >= wanted && *count > below {
            // Of the last bucket only the lower bound is known.
            let part = (wanted - below) / (count - below);
            return Some(if bound.is_finite() { lower + (bound - lower) * part } else { lower });
        }
        (lower, below) = (*bound, *count);
    }
    Some(lower)
}

fn value_of<'a>(labels: &'a Labels, label: &str) -> Option<&'a str> {
    labels.iter().find(|(name, _)| name == label).map(|(_, value)| value.as_str())
}

/// Name, labels and value of a line.
fn point(line: &str) -> Option<(&str, Labels, f64)> {
    let (head, value) = line.trim_end().rsplit_once(' ')?;
    let value = number(value)?;
    let Some((name, labels)) = head.split_once('{') else { return Some((head, Labels::new(), value)) };
    let labels = labels.strip_suffix('}')?;
    let labels = labels.split(',').filter(|label| !label.is_empty()).map(|label| {
        let (label, value) = label.split_once('=')?;
        Some((label.to_owned(), value.strip_prefix('"')?.strip_suffix('"')?.to_owned()))
    });
    Some((name, labels.collect::<Option<Labels>>()?, value))
}

fn number(text: &str) -> Option<f64> {
    let number: f64 = text.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "\
# HELP gateway_opens Sessions admitted.
gateway_opens_total{shard=\"0\"} 10.0
gateway_opens_total{shard=\"1\"} 5.0
gateway_tunnels 3
gateway_flush_seconds_bucket{queue=\"hellos\",le=\"0.001\"} 100
gateway_flush_seconds_bucket{queue=\"hellos\",le=\"0.002\"} 100
gateway_flush_seconds_bucket{queue=\"hellos\",le=\"+Inf\"} 100
gateway_flush_seconds_sum{queue=\"hellos\"} 1.0
gateway_flush_seconds_count{queue=\"hellos\"} 100
no point at all
# EOF
";
    const AFTER: &str = "\
gateway_opens_total{shard=\"0\"} 30.0
gateway_opens_total{shard=\"1\"} 4.0
gateway_tunnels 1
gateway_flush_seconds_bucket{queue=\"hellos\",le=\"0.001\"} 150
gateway_flush_seconds_bucket{queue=\"hellos\",le=\"0.002\"} 198
gateway_flush_seconds_bucket{queue=\"hellos\",le=\"+Inf\"} 200
gateway_flush_seconds_sum{queue=\"hellos\"} 1.1
gateway_flush_seconds_count{queue=\"hellos\"} 200
";

    #[test]
    fn counters_are_told_by_the_second_and_one_that_fell_began_anew() {
        let (before, after) = (Metrics::read(BEFORE), Metrics::read(AFTER));
        let stretch = Stretch { before: &before, after: &after, seconds: 2.0 };
        assert_eq!(stretch.rate("gateway_opens_total", &[("shard", "0")]), 10.0);
        assert_eq!(
            stretch.rate("gateway_opens_total", &[]),
            12.0,
            "20 of one shard, 4 of one that began anew"
        );
        assert_eq!(after.sum("gateway_tunnels", &[]), 1.0);
        assert_eq!(before.words("gateway_opens_total", "shard"), ["0", "1"]);
        assert_eq!(stretch.rate("gateway_nothing_total", &[]), 0.0);
    }

    #[test]
    fn quantiles_are_of_what_came_between_the_looks() {
        let (before, after) = (Metrics::read(BEFORE), Metrics::read(AFTER));
        let stretch = Stretch { before: &before, after: &after, seconds: 1.0 };
        let with: With<'_> = &[("queue", "hellos")];
        let of = |share| stretch.quantile("gateway_flush_seconds", with, share).expect("there are some");
        assert!((of(0.25) - 0.0005).abs() < 1e-9, "{}", of(0.25));
        assert!((of(0.74) - 0.0015).abs() < 1e-9, "{}", of(0.74));
        assert!(
            (of(0.99) - 0.002).abs() < 1e-9,
            "beyond the last bound only the bound is known: {}",
            of(0.99)
        );
        assert!((stretch.mean("gateway_flush_seconds", with).expect("some") - 0.001).abs() < 1e-9);
        let same = Stretch { before: &after, after: &after, seconds: 1.0 };
        assert_eq!(same.quantile("gateway_flush_seconds", with, 0.5), None);
        assert_eq!(same.mean("gateway_flush_seconds", with), None);
    }

    #[test]
    fn what_is_no_point_is_passed_over() {
        for line in [
            "",
            " ",
            "a",
            "a b",
            "a{x=\"1\" 2",
            "a{x=1} 2",
            "a{x} 2",
            "a NaN",
            "{} ",
            "# TYPE a gauge",
            "é{ 1",
        ] {
            assert!(Metrics::read(line).is_empty(), "{line:?}");
        }
        assert!(!Metrics::read("a 1").is_empty());
    }
}

//! What a report says of hours: each quiet stretch between two faults, and how the last stands to the first.
//!
//! Memory is that of all gateways together, as a kill of one starts it anew. The first stretch warms up and is
//! shown, but the ratios begin at the second where there are more than two.

use serde::Serialize;

use super::row;
use crate::latency::Percentiles;
use crate::sampler::Window;

/// A stretch of load without a fault.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct CalmRow {
    /// Since the run began.
    pub(crate) at_s: f64,
    pub(crate) commands: u64,
    pub(crate) dispatch_ms: Percentiles,
    /// Of all gateways, at its end.
    pub(crate) rss_bytes: u64,
}

/// All of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct SoakShare {
    pub(crate) calm: Vec<CalmRow>,
    pub(crate) faults: usize,
}

impl SoakShare {
    fn ends(&self) -> Option<(&CalmRow, &CalmRow)> {
        match self.calm.as_slice() {
            [first, last] => Some((first, last)),
            [_, first, .., last] => Some((first, last)),
            _ => None,
        }
    }

    /// Memory at the end to that at the begin.
    pub(crate) fn rss_growth_ratio(&self) -> Option<f64> {
        let (first, last) = self.ends()?;
        Some(last.rss_bytes as f64 / first.rss_bytes.max(1) as f64)
    }

    /// Dispatch p99 at the end to that at the begin.
    pub(crate) fn drift(&self) -> Option<f64> {
        let (first, last) = self.ends()?;
        Some(last.dispatch_ms.p99 / first.dispatch_ms.p99)
    }

    /// The stretches that are compared, as windows of the latency over time.
    pub(crate) fn windows(&self) -> Vec<Window> {
        let skipped = usize::from(self.calm.len() > 2);
        let measured = self.calm.iter().skip(skipped);
        let window = |calm: &CalmRow| Window {
            from_s: calm.at_s,
            commands: calm.commands,
            dispatch_ms: calm.dispatch_ms,
        };
        measured.map(window).collect()
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "  {:<34}{:>10}{:>10}{:>10}{:>12}",
            "quiet stretches: dispatch, ms", "p50", "p99", "commands", "RSS, MiB"
        )];
        lines.extend(self.calm.iter().map(|calm| {
            let Percentiles { p50, p99, .. } = calm.dispatch_ms;
            let mib = calm.rss_bytes as f64 / f64::from(1 << 20);
            let at = format!("until second {:.0}", calm.at_s);
            format!("  {at:<34}{p50:>10.3}{p99:>10.3}{:>10}{mib:>12.1}", calm.commands)
        }));
        if let (Some(growth), Some(drift)) = (self.rss_growth_ratio(), self.drift()) {
            lines.push(row(
                "growth and drift",
                &format!("memory x {growth:.3}, dispatch p99 x {drift:.2}, over {} faults", self.faults),
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stretch_that_warms_up_is_no_measure_where_there_is_another() {
        let calm = |rss_bytes, p99| CalmRow {
            rss_bytes,
            dispatch_ms: Percentiles { p99, ..Percentiles::default() },
            ..CalmRow::default()
        };
        let mut share = SoakShare { calm: vec![calm(1, 9.0)], faults: 0 };
        assert_eq!((share.rss_growth_ratio(), share.drift()), (None, None));
        share.calm.push(calm(2, 3.0));
        assert_eq!((share.rss_growth_ratio(), share.drift()), (Some(2.0), Some(3.0 / 9.0)));
        share.calm.push(calm(4, 6.0));
        assert_eq!((share.rss_growth_ratio(), share.drift()), (Some(2.0), Some(2.0)));
    }
}

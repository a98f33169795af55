//! What a report says of growth: the cost of an operation at each point of an axis, and the slope of the line
//! through the logarithms of both.
//!
//! A slope of 0 is a cost that stays; of 1, one that rises as the axis does. A point at which the rate that was
//! asked for was not reached is shown and is no part of the slope.

use serde::Serialize;

use super::row;

/// One point.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct GrowthPoint {
    /// What was asked for, on the axis.
    pub(crate) asked: u64,
    /// What was reached of it.
    pub(crate) x: f64,
    /// The measure: what an operation cost.
    pub(crate) y: f64,
    pub(crate) operations: u64,
    /// Of the gateway, for an operation.
    pub(crate) cpu_us: f64,
    /// Of the gateway, 100 for one core.
    pub(crate) cpu_percent: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_ms: Option<f64>,
    /// Buffers that PostgreSQL touched for an operation, by pg_stat_statements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) buffers: Option<f64>,
    pub(crate) rss_bytes: u64,
    /// Whether what was asked for was not reached.
    pub(crate) is_saturated: bool,
}

/// All of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct GrowthShare {
    pub(crate) axis: &'static str,
    /// What `y` is.
    pub(crate) measure: &'static str,
    pub(crate) points: Vec<GrowthPoint>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slope: Option<f64>,
}

impl GrowthShare {
    /// With the slope of its points.
    pub(crate) fn of(axis: &'static str, measure: &'static str, points: Vec<GrowthPoint>) -> Self {
        let line: Vec<(f64, f64)> =
            points.iter().filter(|point| !point.is_saturated).map(|point| (point.x, point.y)).collect();
        Self { axis, measure, slope: slope(&line), points }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            row("measure", self.measure),
            format!(
                "  {:<14}{:>12}{:>14}{:>12}{:>10}{:>10}{:>10}{:>12}",
                self.axis, "measure", "CPU us an op", "CPU %", "p50 ms", "p99 ms", "buffers", "RSS, MiB"
            ),
        ];
        let shown =
            |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.2}"));
        lines.extend(self.points.iter().map(|point| {
            let mib = point.rss_bytes as f64 / f64::from(1 << 20);
            let note = match point.is_saturated {
                true => format!("  ({} were asked for)", point.asked),
                false => String::new(),
            };
            format!(
                "  {:<14.0}{:>12.2}{:>14.2}{:>12.1}{:>10}{:>10}{:>10}{mib:>12.1}{note}",
                point.x,
                point.y,
                point.cpu_us,
                point.cpu_percent,
                shown(point.p50_ms),
                shown(point.p99_ms),
                shown(point.buffers),
            )
        }));
        if let Some(slope) = self.slope {
            lines.push(row("slope between logarithms", &format!("{slope:.3}")));
        }
        lines
    }
}

/// Of the line through the logarithms that errs least; `None` where there are fewer than two.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let logs: Vec<(f64, f64)> =
        points.iter().filter(|(x, y)| *x > 0.0 && *y > 0.0).map(|(x, y)| (x.ln(), y.ln())).collect();
    let count = logs.len() as f64;
    let (mean_x, mean_y) = (
        logs.iter().map(|point| point.0).sum::<f64>() / count,
        logs.iter().map(|point| point.1).sum::<f64>() / count,
    );
    let spread: f64 = logs.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let together: f64 = logs.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    (logs.len() > 1 && spread > 0.0).then(|| together / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slope_is_the_power_by_which_a_cost_rises() {
        let power = |exponent: f64| {
            let points: Vec<(f64, f64)> = [1.0f64, 10.0, 100.0].map(|x| (x, 3.0 * x.powf(exponent))).to_vec();
            slope(&points).expect("a slope")
        };
        assert!(
            (power(0.0)).abs() < 1e-9 && (power(1.0) - 1.0).abs() < 1e-9 && (power(2.0) - 2.0).abs() < 1e-9
        );
        assert_eq!(slope(&[(1.0, 1.0)]), None);
        assert_eq!(slope(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }

    #[test]
    fn a_rate_that_was_not_reached_bends_no_line() {
        let point = |x, y, is_saturated| GrowthPoint { x, y, is_saturated, ..GrowthPoint::default() };
        let points = vec![point(1.0, 5.0, false), point(10.0, 5.0, false), point(12.0, 900.0, true)];
        assert_eq!(GrowthShare::of("rate", "x", points).slope, Some(0.0));
    }
}

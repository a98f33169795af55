//! What a report says of scraping: the gateway's CPU in stretches with it and without, of one run.
//!
//! 1. A run whose stretches are all of one kind compares nothing, and says so.

use serde::Serialize;

use super::row;

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct ScrapeShare {
    pub(crate) every_s: f64,
    /// Of the last answer.
    pub(crate) bytes: usize,
    /// How long each scrape took.
    pub(crate) ms: Vec<f64>,
    /// Of each stretch, 100 for one core.
    pub(crate) cpu_percent_with: Vec<f64>,
    pub(crate) cpu_percent_without: Vec<f64>,
}

impl ScrapeShare {
    pub(super) fn lines(&self) -> Vec<String> {
        let (Some(with), Some(without)) = (median(&self.cpu_percent_with), median(&self.cpu_percent_without))
        else {
            return vec![row("scraping", "the run was too short to compare")];
        };
        let each = |stretches: &[f64]| {
            let shown: Vec<String> = stretches.iter().map(|cpu| format!("{cpu:.1}")).collect();
            shown.join(", ")
        };
        vec![
            row(
                "gateway CPU, scraped and not",
                &format!(
                    "{with:.2} and {without:.2} % of a core by the median stretch; {:+.2}",
                    with - without
                ),
            ),
            row("  stretches scraped", &each(&self.cpu_percent_with)),
            row("  stretches not scraped", &each(&self.cpu_percent_without)),
            row(
                "a scrape",
                &format!(
                    "{} of them, every {} s, {:.1} kB, {:.2} ms by the median, {:.2} ms at most",
                    self.ms.len(),
                    self.every_s,
                    self.bytes as f64 / 1e3,
                    median(&self.ms).unwrap_or_default(),
                    self.ms.iter().copied().fold(0.0, f64::max),
                ),
            ),
        ]
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        even if even % 2 == 0 => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
        _ => Some(sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_that_of_the_medians() {
        let share = ScrapeShare {
            cpu_percent_with: vec![5.0, 3.0, 40.0],
            cpu_percent_without: vec![2.0, 4.0],
            ..ScrapeShare::default()
        };
        let lines = share.lines();
        assert!(lines[0].ends_with("5.00 and 3.00 % of a core by the median stretch; +2.00"), "{}", lines[0]);
        assert_eq!(ScrapeShare::default().lines().len(), 1);
    }
}

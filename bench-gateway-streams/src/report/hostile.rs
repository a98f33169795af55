//! What a report says of hostile peers: a row for each attack, and what refusing costs.
//!
//! Latencies are the round trips of healthy sessions' heartbeats, on the shard that is attacked. A ratio
//! without both of its figures is absent.

use serde::Serialize;

use super::row;
use crate::latency::Percentiles;

/// One attack.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct HostileRow {
    pub(crate) attack: &'static str,
    /// How the peer ended, and how often.
    pub(crate) ended: String,
    pub(crate) attempts: u64,
    /// What the gateway held more than before, at the most.
    pub(crate) memory_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) quiet_ms: Option<Percentiles>,
    /// With the same peers at another gateway of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) beside_ms: Option<Percentiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disturbed_ms: Option<Percentiles>,
}

impl HostileRow {
    /// Disturbed p99 to what it is where the same peers use the machine and not the gateway.
    pub(crate) fn p99_ratio(&self) -> Option<f64> {
        Some(self.disturbed_ms?.p99 / self.beside_ms?.p99.max(self.quiet_ms?.p99))
    }

    /// The row for people.
    pub(crate) fn line(&self) -> String {
        let ms = |ms: Option<Percentiles>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{:.2}", ms.p99));
        let ratio = self.p99_ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        format!(
            "  {:<16}{:>10}{:>12}{:>12}{:>12}{ratio:>8}{:>10.1}  {}",
            self.attack,
            self.attempts,
            ms(self.quiet_ms),
            ms(self.beside_ms),
            ms(self.disturbed_ms),
            self.memory_bytes as f64 / f64::from(1 << 20),
            self.ended
        )
    }
}

/// Calls for one second of the gateway's CPU.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct AdmissionShare {
    pub(crate) accepted_handshakes_per_core_s: f64,
    pub(crate) refused_handshakes_per_core_s: f64,
    pub(crate) accepted_opens_per_core_s: f64,
    pub(crate) refused_opens_per_core_s: f64,
}

impl AdmissionShare {
    pub(crate) fn lines(&self) -> Vec<String> {
        let line = |what: &str, accepted: f64, refused: f64| {
            row(what, &format!("{accepted:.0} accepted, {refused:.0} refused for a second of CPU"))
        };
        vec![
            line("handshakes", self.accepted_handshakes_per_core_s, self.refused_handshakes_per_core_s),
            line("opens", self.accepted_opens_per_core_s, self.refused_opens_per_core_s),
        ]
    }
}

/// All of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct HostileShare {
    pub(crate) stretch_s: f64,
    pub(crate) rounds: u32,
    pub(crate) rows: Vec<HostileRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admission: Option<AdmissionShare>,
}

impl HostileShare {
    /// The worst of all attacks; `None` where one was not measured.
    pub(crate) fn worst_p99_ratio(&self) -> Option<f64> {
        self.rows.iter().map(HostileRow::p99_ratio).try_fold(0.0f64, |worst, ratio| Some(worst.max(ratio?)))
    }

    /// The most that the gateway held for one attack.
    pub(crate) fn most_memory(&self) -> u64 {
        self.rows.iter().map(|row| row.memory_bytes).max().unwrap_or(0)
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            row(
                "stretches",
                &format!(
                    "{} of {} s: without peers, with them elsewhere, and here",
                    self.rounds, self.stretch_s
                ),
            ),
            format!(
                "  {:<16}{:>10}{:>12}{:>12}{:>12}{:>8}{:>10}  {}",
                "attack", "ended", "quiet p99", "elsewhere", "here p99", "ratio", "MiB more", "how"
            ),
        ];
        lines.extend(self.rows.iter().map(HostileRow::line));
        lines.extend(self.admission.iter().flat_map(AdmissionShare::lines));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row_of(quiet: f64, beside: f64, disturbed: f64) -> HostileRow {
        let ms = |p99| Some(Percentiles { p99, ..Percentiles::default() });
        HostileRow {
            quiet_ms: ms(quiet),
            beside_ms: ms(beside),
            disturbed_ms: ms(disturbed),
            ..HostileRow::default()
        }
    }

    #[test]
    fn the_worst_attack_counts_and_one_without_a_figure_is_no_pass() {
        let mut share = HostileShare {
            rows: vec![row_of(2.0, 1.0, 3.0), row_of(0.5, 1.0, 3.0)],
            ..HostileShare::default()
        };
        assert_eq!(share.worst_p99_ratio(), Some(3.0));
        share.rows.push(HostileRow::default());
        assert_eq!(share.worst_p99_ratio(), None);
    }
}

//! What a report says of faults: how long until the nodes were back.
//!
//! The keys of `StormShare` and `MultiShare` that the harness promises never change their name, unit or
//! meaning; those below the mark are beyond that.

use serde::Serialize;

use super::row;
use crate::latency::Percentiles;

/// All sessions were lost at once.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct StormShare {
    /// From the fault until half of the nodes were back with a durable Hello.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p95_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) all_ms: Option<f64>,
    /// Times that a node was told to come back later.
    pub(crate) refused: u64,
    /// The same clients' mTLS handshakes with a server that does nothing else, until all had theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bare_handshakes_ms: Option<f64>,
    // Beyond the stable part.
    pub(crate) by: &'static str,
    pub(crate) pushbacks_given: u64,
    /// Of those, the ones before whose end the node was not seen to dial.
    pub(crate) pushbacks_kept: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) opens_per_second: Option<u32>,
    /// The same clients' handshakes and HTTP/2 streams, each with one message, with a server that does nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bare_streams_ms: Option<f64>,
}

impl StormShare {
    /// Until all were back, to the bare handshakes.
    pub(crate) fn all_to_bare(&self) -> Option<f64> {
        Some(self.all_ms? / self.bare_handshakes_ms?)
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let ms = |figure: Option<f64>| figure.map_or_else(|| "never".to_owned(), |ms| format!("{ms:.0} ms"));
        let mut lines = vec![row(
            &format!("storm by {}: back", self.by),
            &format!("50 % {}, 95 % {}, all {}", ms(self.p50_ms), ms(self.p95_ms), ms(self.all_ms)),
        )];
        if let (Some(bare), Some(ratio)) = (self.bare_handshakes_ms, self.all_to_bare()) {
            lines.push(row(
                "bare handshakes, same clients",
                &format!("{bare:.0} ms; the storm took x {ratio:.2}"),
            ));
        }
        if let (Some(bare), Some(all)) = (self.bare_streams_ms, self.all_ms) {
            lines.push(row(
                "with a bare stream each",
                &format!("{bare:.0} ms; the storm took x {:.2}", all / bare),
            ));
        }
        let (refused, given, kept) = (self.refused, self.pushbacks_given, self.pushbacks_kept);
        lines.push(row(
            "told to come back later",
            &format!("{refused}; {given} with a delay, {kept} kept it"),
        ));
        lines
    }
}

/// One of several gateways was lost.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct MultiShare {
    /// From the fault until a node of the lost gateway had a durable Hello again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rehome_ms: Option<Percentiles>,
    // Beyond the stable part.
    pub(crate) by: &'static str,
    pub(crate) seed: u64,
    pub(crate) victim: String,
    /// Nodes that were on it.
    pub(crate) rehomed: usize,
    /// Of those, the ones whose session was ended for them: none of a gateway that is drained.
    pub(crate) cut: usize,
    /// From SIGTERM until its process had ended, where it was drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_ms: Option<f64>,
    /// Sessions that ended on the others.
    pub(crate) lost_elsewhere: usize,
    pub(crate) refused: u64,
    /// Sessions on each gateway when all were back, by the rows.
    pub(crate) spread: Vec<(String, i64)>,
}

impl MultiShare {
    pub(super) fn lines(&self) -> Vec<String> {
        let Percentiles { p50, p99, max, .. } = self.rehome_ms.unwrap_or_default();
        let spread = self.spread.iter().map(|(gateway, count)| format!("{gateway} {count}"));
        let mut lines = vec![
            row(
                &format!("{} by {}: re-homed", self.victim, self.by),
                &format!("{} nodes, p50 {p50:.0} ms, p99 {p99:.0} ms, max {max:.0} ms", self.rehomed),
            ),
            row("lost on gateways that live", &self.lost_elsewhere.to_string()),
            row("told to come back later", &self.refused.to_string()),
            row("sessions after it", &spread.collect::<Vec<_>>().join(", ")),
        ];
        if let Some(ms) = self.exit_ms {
            lines.push(row("it ended", &format!("{ms:.0} ms after SIGTERM; {} were cut before", self.cut)));
        }
        lines
    }
}

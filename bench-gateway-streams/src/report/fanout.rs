//! What a report says of a fan-out: each round until every node had its command, and the yardstick.
//!
//! 1. Times of a round count from the moment before COMMIT was sent, so the wait for the disk is in them.
//! 2. The ratio is that of the medians: a round that was disturbed decides nothing, on either side.

use serde::Serialize;

use super::{BareStatements, row};
use crate::latency::Percentiles;

/// One command to every node.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct FanoutRound {
    /// What the one statement took that enqueues all.
    pub(crate) enqueue_ms: f64,
    /// Until a node had it; `max` is until all had it.
    pub(crate) reached_ms: Percentiles,
    /// Until all results were stored.
    pub(crate) done_ms: f64,
    /// CPU of the gateway, where its process is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gateway_cpu_ms: Option<f64>,
}

/// One frame of the same size to each of the same clients, by a server that does nothing else.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct BarePush {
    pub(crate) frame_bytes: usize,
    /// Until a client had it; `max` is until all had it.
    pub(crate) rounds: Vec<Percentiles>,
}

/// All of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct FanoutShare {
    pub(crate) rounds: Vec<FanoutRound>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bare_push: Option<BarePush>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bare_statements: Option<BareStatements>,
    /// Commands that did not reach their node in time.
    pub(crate) missing: u64,
}

fn median(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

impl FanoutShare {
    /// Until all had it, the median round, in milliseconds.
    pub(crate) fn all_ms(&self) -> Option<f64> {
        median(self.rounds.iter().map(|round| round.reached_ms.max))
    }

    fn bare_all_ms(&self) -> Option<f64> {
        median(self.bare_push.iter().flat_map(|bare| &bare.rounds).map(|round| round.max))
    }

    /// Until all had it, to the bare push.
    pub(crate) fn all_to_bare(&self) -> Option<f64> {
        Some(self.all_ms()? / self.bare_all_ms()?)
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let spread = |rounds: &mut dyn Iterator<Item = f64>| {
            let (least, most) =
                rounds.fold((f64::INFINITY, 0.0f64), |(least, most), ms| (least.min(ms), most.max(ms)));
            format!("{least:.1} to {most:.1} ms")
        };
        if let Some(all) = self.all_ms() {
            let all_of = spread(&mut self.rounds.iter().map(|round| round.reached_ms.max));
            let rounds = self.rounds.len();
            lines.push(row("until all have it", &format!("median {all:.1} ms of {rounds} rounds, {all_of}")));
            let enqueue = median(self.rounds.iter().map(|round| round.enqueue_ms)).unwrap_or_default();
            let done = median(self.rounds.iter().map(|round| round.done_ms)).unwrap_or_default();
            lines.push(row(
                "enqueue before, results after",
                &format!("{enqueue:.1} ms, {done:.1} ms (medians)"),
            ));
        }
        if let (Some(bare), Some(all), Some(ratio)) =
            (&self.bare_push, self.bare_all_ms(), self.all_to_bare())
        {
            let all_of = spread(&mut bare.rounds.iter().map(|round| round.max));
            lines.push(row(
                "bare push, same clients",
                &format!("median {all:.1} ms, {all_of}; the fan-out took x {ratio:.2}"),
            ));
        }
        if let (Some(statements), Some(all)) = (self.bare_statements, self.all_ms()) {
            lines.push(statements.line());
            let claims = statements.claims_ms();
            if let Some(push) = self.bare_all_ms() {
                lines.push(row(
                    "all claims alone, then the push",
                    &format!("{claims:.1} + {push:.1} ms; the fan-out took x {:.2}", all / (claims + push)),
                ));
            }
        }
        if self.missing > 0 {
            lines.push(row("NOT REACHED", &self.missing.to_string()));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_disturbed_round_does_not_decide_the_ratio() {
        let reached = |max| FanoutRound {
            reached_ms: Percentiles { max, ..Percentiles::default() },
            ..FanoutRound::default()
        };
        let mut share = FanoutShare {
            rounds: vec![reached(100.0), reached(900.0), reached(110.0)],
            ..FanoutShare::default()
        };
        assert_eq!((share.all_ms(), share.all_to_bare()), (Some(110.0), None));
        let rounds = [50.0, 55.0, 400.0].map(|max| Percentiles { max, ..Percentiles::default() });
        share.bare_push = Some(BarePush { frame_bytes: 1, rounds: rounds.to_vec() });
        assert_eq!(share.all_to_bare(), Some(2.0));
        assert!(share.lines().iter().any(|line| line.contains("x 2.00")), "{:?}", share.lines());
    }
}

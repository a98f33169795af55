//! What a report says of the database's part of a command: the gateway's own statements with nobody else at work.
//!
//! 1. Microseconds a command, on one connection; commits are not in them.

use serde::Serialize;

use super::row;

/// By one connection, over a command to each of so many nodes.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct BareStatements {
    pub(crate) nodes: usize,
    pub(crate) enqueue_us: f64,
    pub(crate) claim_us: f64,
    /// An acceptance and an end, one after the other.
    pub(crate) results_us: f64,
}

impl BareStatements {
    pub(crate) fn all_us(self) -> f64 {
        self.enqueue_us + self.claim_us + self.results_us
    }

    /// What a core that does nothing else takes.
    pub(crate) fn commands_per_s(self) -> f64 {
        1e6 / self.all_us()
    }

    /// All claims, one after the other.
    pub(crate) fn claims_ms(self) -> f64 {
        self.claim_us * self.nodes as f64 / 1000.0
    }

    pub(super) fn line(self) -> String {
        row(
            "the statements alone",
            &format!(
                "{:.0} us to enqueue + {:.0} to claim + {:.0} for the results: {:.0} commands/s a core",
                self.enqueue_us,
                self.claim_us,
                self.results_us,
                self.commands_per_s()
            ),
        )
    }
}

//! What a report says of rates: what went through over sockets, what the writer alone takes, and the ceiling
//! that bare SQL sets on the same database in the same run.
//!
//! The keys of `ThroughputShare` that the harness promises never change their name, unit or meaning; those
//! below the mark are beyond that. A command counts when its result is durable, with two updates before.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{BareStatements, row};

/// How a queue of the writer batched.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct BatchSize {
    pub(crate) commits_per_s: f64,
    pub(crate) entries_per_commit: f64,
    pub(crate) ms_per_commit: f64,
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct ThroughputShare {
    /// Commands from enqueue to the durable result, over sockets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) commands_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) events_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) writer_commands_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) writer_events_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bare_sql_commands_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bare_sql_events_per_s: Option<f64>,
    // Beyond the stable part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sections_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bare_statements: Option<BareStatements>,
    /// By part, then by queue.
    pub(crate) batches: BTreeMap<&'static str, BTreeMap<String, BatchSize>>,
    /// CPU of the gateway by part, 100 for one core.
    pub(crate) gateway_cpu_percent: BTreeMap<&'static str, f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) writer_alone: Option<WriterAlone>,
}

/// What the process of the writer alone tells: each side's best, and all rounds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct WriterAlone {
    pub(crate) nodes: u32,
    pub(crate) batch: usize,
    pub(crate) updates: Sides,
    pub(crate) events: Sides,
}

/// Entries a second, by round.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Sides {
    pub(crate) writer: Vec<f64>,
    pub(crate) bare: Vec<f64>,
}

impl Sides {
    pub(crate) fn best_of_writer(&self) -> f64 {
        self.writer.iter().copied().fold(0.0, f64::max)
    }

    pub(crate) fn best_of_bare(&self) -> f64 {
        self.bare.iter().copied().fold(0.0, f64::max)
    }
}

impl ThroughputShare {
    /// Takes what the writer alone reached; a command is two updates.
    pub(crate) fn take(&mut self, alone: WriterAlone) {
        self.writer_commands_per_s = Some(alone.updates.best_of_writer() / 2.0);
        self.bare_sql_commands_per_s = Some(alone.updates.best_of_bare() / 2.0);
        self.writer_events_per_s = Some(alone.events.best_of_writer());
        self.bare_sql_events_per_s = Some(alone.events.best_of_bare());
        self.writer_alone = Some(alone);
    }

    pub(crate) fn writer_commands_to_bare(&self) -> Option<f64> {
        Some(self.writer_commands_per_s? / self.bare_sql_commands_per_s?)
    }

    pub(crate) fn writer_events_to_bare(&self) -> Option<f64> {
        Some(self.writer_events_per_s? / self.bare_sql_events_per_s?)
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, part, rate) in [
            ("commands/s, end to end durable", "commands", self.commands_per_s),
            ("events/s, end to end durable", "events", self.events_per_s),
            ("sections/s, end to end durable", "sections", self.sections_per_s),
        ] {
            let Some(rate) = rate else { continue };
            let cpu = self.gateway_cpu_percent.get(part).map(|cpu| format!("; gateway {cpu:.0} % of a core"));
            lines.push(row(name, &format!("{rate:.0}{}", cpu.unwrap_or_default())));
            for (queue, size) in self.batches.get(part).into_iter().flatten() {
                let BatchSize { commits_per_s, entries_per_commit, ms_per_commit } = size;
                lines.push(row(
                    &format!("  {queue}"),
                    &format!("{entries_per_commit:.1} a commit, {commits_per_s:.1} commits/s of {ms_per_commit:.2} ms"),
                ));
            }
        }
        lines.extend(self.bare_statements.map(BareStatements::line));
        for (name, writer, bare, ratio) in [
            (
                "the writer alone, commands/s",
                self.writer_commands_per_s,
                self.bare_sql_commands_per_s,
                self.writer_commands_to_bare(),
            ),
            (
                "the writer alone, events/s",
                self.writer_events_per_s,
                self.bare_sql_events_per_s,
                self.writer_events_to_bare(),
            ),
        ] {
            let (Some(writer), Some(bare), Some(ratio)) = (writer, bare, ratio) else { continue };
            lines.push(row(name, &format!("{writer:.0}; bare SQL {bare:.0}: {:.0} % of it", 100.0 * ratio)));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_two_updates_and_the_best_round_counts() {
        let mut share = ThroughputShare::default();
        share.take(WriterAlone {
            updates: Sides { writer: vec![100.0, 120.0], bare: vec![200.0, 150.0] },
            events: Sides { writer: vec![7.0], bare: vec![10.0] },
            ..WriterAlone::default()
        });
        assert_eq!((share.writer_commands_per_s, share.bare_sql_commands_per_s), (Some(60.0), Some(100.0)));
        assert_eq!((share.writer_commands_to_bare(), share.writer_events_to_bare()), (Some(0.6), Some(0.7)));
    }
}

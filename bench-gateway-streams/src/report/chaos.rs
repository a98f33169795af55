//! What a report says of a chaos run: a row for each fault.
//!
//! A recovery that did not come is absent. A row is sound where nothing was lost and nothing that must
//! hold was broken; the report's own `verify` has the same sentences.

use serde::Serialize;

use super::row;

/// One fault.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct ChaosRow {
    pub(crate) fault: &'static str,
    /// Who suffered, and what of it was seen.
    pub(crate) detail: String,
    /// Commands that ended in the second before.
    pub(crate) commands_per_second: u64,
    /// Commands that were enqueued and not acked when it began.
    pub(crate) unacked: u64,
    pub(crate) lasted_ms: f64,
    /// From its end until every node had a durable session and every command enqueued before was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recovery_ms: Option<f64>,
    /// Sessions that ended from its begin to the recovery, by the nodes.
    pub(crate) sessions_lost: u64,
    pub(crate) commands_lost: u64,
    /// What `gateway verify --node-logs` and the fault's own checks found.
    pub(crate) violations: Vec<String>,
}

impl ChaosRow {
    /// The row for people.
    pub(crate) fn line(&self) -> String {
        let Self { fault, detail, commands_per_second, unacked, sessions_lost, commands_lost, .. } = self;
        let recovery =
            self.recovery_ms.map_or_else(|| "never".to_owned(), |ms| format!("{:.2} s", ms / 1000.0));
        let verify = match self.violations.len() {
            0 => "finds nothing".to_owned(),
            count => format!("FINDS {count}"),
        };
        format!(
            "  {fault:<17}{commands_per_second:>7}{unacked:>9}{:>8.1} s{recovery:>11}{sessions_lost:>10}\
             {commands_lost:>10}  {verify:<15}{detail}",
            self.lasted_ms / 1000.0
        )
    }
}

/// All of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct ChaosShare {
    pub(crate) seed: u64,
    pub(crate) lease_ttl_s: f64,
    /// Faults that the caller had no right to bring about.
    pub(crate) refused: Vec<&'static str>,
    pub(crate) rows: Vec<ChaosRow>,
}

impl ChaosShare {
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            row("seed", &self.seed.to_string()),
            row("lease TTL", &format!("{} s", self.lease_ttl_s)),
            format!(
                "  {:<17}{:>7}{:>9}{:>10}{:>11}{:>10}{:>10}  {:<15}{}",
                "fault",
                "cmd/s",
                "unacked",
                "lasted",
                "recovery",
                "sess.lost",
                "cmd.lost",
                "verify",
                "detail"
            ),
        ];
        lines.extend(self.rows.iter().map(ChaosRow::line));
        lines.extend(
            self.refused.iter().map(|fault| format!("  {fault:<17}not brought about: it needs root")),
        );
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_without_recovery_and_a_finding_are_told_as_such() {
        let mut chaos = ChaosRow { fault: "kill", recovery_ms: Some(1234.0), ..ChaosRow::default() };
        assert!(
            chaos.line().contains("1.23 s") && chaos.line().contains("finds nothing"),
            "{}",
            chaos.line()
        );
        chaos.recovery_ms = None;
        chaos.violations.push("fifo".to_owned());
        assert!(chaos.line().contains("never") && chaos.line().contains("FINDS 1"), "{}", chaos.line());
    }
}

//! Holds the nodes' own logs against the database: was every command executed once and stored?
//!
//! 1. Every enqueued command has exactly one row, and it is terminal.
//! 2. Of each (id, attempt) at most one execution started; exactly one of the attempt that
//!    succeeded or failed.
//! 3. What a node saw acked as stored is what is stored.
//! 4. No row exists, and nothing was executed, that nobody enqueued.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use sqlx::PgConnection;
use uuid::Uuid;

use crate::node::{ExecutionLog, LogEvent, LogLine};

/// Violations beyond this many are counted, not spelled out.
const SPELLED_OUT: usize = 50;

/// A command's row, as far as the check needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerRow {
    pub id: Uuid,
    pub state: String,
    pub attempt: u32,
}

/// The outcome of the check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LedgerReport {
    pub enqueued: u64,
    pub by_state: BTreeMap<String, u64>,
    /// Enqueued, and without a terminal row.
    pub lost: u64,
    /// (id, attempt)s of which more than one execution started.
    pub duplicated: u64,
    pub violation_count: u64,
    /// The first of them, as sentences.
    pub violations: Vec<String>,
}

impl LedgerReport {
    /// Whether everything held.
    pub fn is_sound(&self) -> bool {
        self.violation_count == 0
    }

    /// Commands in that state.
    pub fn in_state(&self, state: &str) -> u64 {
        self.by_state.get(state).copied().unwrap_or(0)
    }

    fn violation(&mut self, sentence: String) {
        self.violation_count += 1;
        if self.violations.len() < SPELLED_OUT {
            self.violations.push(sentence);
        }
    }
}

/// Why the check could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("reading the commands: {0}")]
    Sql(#[from] sqlx::Error),
    #[error("reading the execution log {path:?}: {error}")]
    Log { path: PathBuf, error: io::Error },
}

/// Which rows and lines are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerScope {
    /// All of the database: what nobody enqueued is a violation.
    WholeDatabase,
    /// Those of the enqueued commands; others may use the database too.
    OnlyEnqueued,
}

/// Compares what was enqueued, the rows of `commands`, and the nodes' logs (flushed before).
pub async fn check_ledger(
    connection: &mut PgConnection,
    enqueued: &HashSet<Uuid>,
    logs: &[&Path],
    scope: LedgerScope,
) -> Result<LedgerReport, LedgerError> {
    let rows: Vec<(Uuid, String, i32)> =
        sqlx::query_as("SELECT id, state::text, attempt FROM commands").fetch_all(connection).await?;
    let rows = rows.into_iter().map(|(id, state, attempt)| {
        let attempt = u32::try_from(attempt).unwrap_or(0);
        LedgerRow { id, state, attempt }
    });
    let in_scope = |id: &Uuid| scope == LedgerScope::WholeDatabase || enqueued.contains(id);
    let rows: Vec<LedgerRow> = rows.filter(|row| in_scope(&row.id)).collect();
    let mut lines = Vec::new();
    for path in logs {
        let read = ExecutionLog::read(path);
        lines.extend(read.map_err(|error| LedgerError::Log { path: path.to_path_buf(), error })?);
    }
    lines.retain(|line| in_scope(&line.id));
    Ok(judge(enqueued, &rows, &lines))
}

/// The check itself.
pub fn judge(enqueued: &HashSet<Uuid>, rows: &[LedgerRow], lines: &[LogLine]) -> LedgerReport {
    let mut report = LedgerReport { enqueued: enqueued.len() as u64, ..LedgerReport::default() };
    let mut starts: HashMap<(Uuid, u32), u64> = HashMap::new();
    let mut acked: HashMap<Uuid, (u32, &str)> = HashMap::new();
    for line in lines {
        match line.event {
            LogEvent::Started => *starts.entry((line.id, line.attempt)).or_default() += 1,
            LogEvent::Acked => {
                acked.insert(line.id, (line.attempt, line.state.as_deref().unwrap_or_default()));
            }
            LogEvent::Received | LogEvent::Finished => {}
        }
    }
    let mut ids = HashSet::new();
    for row in rows {
        *report.by_state.entry(row.state.clone()).or_default() += 1;
        if !ids.insert(row.id) {
            report.violation(format!("command {} has more than one row", row.id));
        }
        if !enqueued.contains(&row.id) {
            report.violation(format!("command {} was enqueued by nobody", row.id));
        }
        judge_row(&mut report, row, &starts, acked.get(&row.id).copied());
    }
    for id in enqueued.iter().filter(|id| !ids.contains(*id)) {
        report.lost += 1;
        report.violation(format!("command {id} was enqueued and has no row"));
    }
    for ((id, attempt), count) in &starts {
        if *count > 1 {
            report.duplicated += 1;
            report.violation(format!("command {id}, attempt {attempt}: {count} executions started"));
        }
        if !ids.contains(id) {
            report.violation(format!("command {id} was executed and has no row"));
        }
    }
    report
}

fn judge_row(
    report: &mut LedgerReport,
    row: &LedgerRow,
    starts: &HashMap<(Uuid, u32), u64>,
    acked: Option<(u32, &str)>,
) {
    let LedgerRow { id, state, attempt } = row;
    let is_terminal = matches!(state.as_str(), "succeeded" | "failed" | "canceled" | "expired" | "refused");
    if !is_terminal {
        report.lost += 1;
        report.violation(format!("command {id} is {state}, not terminal"));
    }
    let executed = matches!(state.as_str(), "succeeded" | "failed");
    if executed && !starts.contains_key(&(*id, *attempt)) {
        report.violation(format!(
            "command {id} is {state}, and no node's log has a start of attempt {attempt}"
        ));
    }
    if let Some((acked_attempt, acked_state)) = acked
        && acked_attempt == *attempt
        && acked_state != state
    {
        report.violation(format!("command {id} was acked as {acked_state} and is stored as {state}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(event: LogEvent, id: Uuid, state: Option<&str>) -> LogLine {
        LogLine { at_ns: 1, node: "n".into(), event, id, attempt: 1, state: state.map(str::to_owned) }
    }

    fn row(id: Uuid, state: &str) -> LedgerRow {
        LedgerRow { id, state: state.into(), attempt: 1 }
    }

    #[test]
    fn a_clean_run_is_sound() {
        let id = Uuid::from_u128(1);
        let lines = [line(LogEvent::Started, id, None), line(LogEvent::Acked, id, Some("succeeded"))];
        let report = judge(&HashSet::from([id]), &[row(id, "succeeded")], &lines);
        assert!(report.is_sound() && report.in_state("succeeded") == 1, "{report:?}");
    }

    #[test]
    fn every_kind_of_loss_and_doubling_is_seen() {
        let ids: Vec<Uuid> = (0..6).map(Uuid::from_u128).collect();
        let rows =
            [row(ids[0], "succeeded"), row(ids[1], "running"), row(ids[2], "failed"), row(ids[4], "expired")];
        let lines = [
            line(LogEvent::Started, ids[0], None),
            line(LogEvent::Started, ids[0], None),
            line(LogEvent::Acked, ids[0], Some("canceled")),
            line(LogEvent::Started, ids[1], None),
            line(LogEvent::Started, ids[5], None),
        ];
        let report = judge(&ids[..4].iter().copied().collect(), &rows, &lines);
        let all = report.violations.join("\n");
        for (index, what) in [
            (0, "2 executions started"),
            (0, "acked as canceled and is stored as succeeded"),
            (1, "is running, not terminal"),
            (2, "no node's log has a start"),
            (3, "has no row"),
            (4, "enqueued by nobody"),
            (5, "was executed and has no row"),
        ] {
            let id = ids[index].to_string();
            assert!(all.lines().any(|line| line.contains(&id) && line.contains(what)), "{what} in\n{all}");
        }
        assert_eq!((report.lost, report.duplicated, report.violation_count), (2, 1, 7));
    }
}

//! The nodes' own logs of what they executed and what was acked to them, held against the database.
//!
//! A log has one JSON object a line: `node`, `event` (`received`, `started`, `finished` or `acked`), the
//! command's `id`, its `attempt`, and for `acked` the `state` that the ack named. Other fields are left
//! alone. Logs are append-only: a node that was killed leaves at most its last line torn.
//!
//! 1. Of each (id, attempt) at most one execution started; exactly one where the command succeeded or failed.
//! 2. A terminal state that was acked is what is stored.
//! 3. Nothing ran that the database does not know.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use gateway_core::command::CommandState;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::database::Database;
use super::place::usage;
use super::terminal::remark;
use crate::error::GatewayError;

/// Rows of one query.
const PAGE: usize = 1000;
/// Whose rows one query is about: a page sorts all rows of its nodes, so that with all nodes in each the time would rise as
/// the square of the rows.
const NODES_A_QUERY: usize = 50;

/// Names and sentences, in the order in which `check` gives its rows.
pub(super) const LOG_INVARIANTS: [(&str, &str); 4] = [
    ("log-one-start", "By the nodes' logs, at most one execution of each attempt of a command started."),
    (
        "log-ended-was-started",
        "By the nodes' logs, every command that succeeded or failed was started in that attempt.",
    ),
    ("log-acked-is-stored", "Every end that was acked to a node is the one that is stored."),
    ("log-ran-is-known", "Every command that a node's log names is stored for that node."),
];

#[derive(Debug, Deserialize)]
struct Line {
    node: String,
    event: Event,
    id: Uuid,
    attempt: u32,
    #[serde(default)]
    state: Option<String>,
}

#[derive(Debug, Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Event {
    Received,
    Started,
    Finished,
    Acked,
}

/// What logs say, by node and command.
#[derive(Debug, Default)]
pub(super) struct NodeLogs {
    commands: BTreeMap<(String, Uuid), Said>,
}

/// What was said of one command.
#[derive(Debug, Default)]
struct Said {
    /// Executions by attempt.
    starts: BTreeMap<u32, u64>,
    /// The last terminal state that was acked, by attempt.
    acked: BTreeMap<u32, String>,
}

impl NodeLogs {
    /// Reads all of them.
    pub(super) fn read(files: &[PathBuf]) -> Result<Self, GatewayError> {
        let mut logs = Self::default();
        for file in files {
            logs.read_file(file)?;
        }
        Ok(logs)
    }

    fn read_file(&mut self, file: &Path) -> Result<(), GatewayError> {
        let refused = |what: String| usage("--node-logs", format!("{} {what}", file.display()));
        let opened = std::fs::File::open(file).map_err(|error| refused(format!("can't be read: {error}")))?;
        let mut reader = BufReader::new(opened);
        let mut text = Vec::new();
        for number in 1.. {
            text.clear();
            let length = reader
                .read_until(b'\n', &mut text)
                .map_err(|error| refused(format!("can't be read: {error}")))?;
            if length == 0 {
                break;
            }
            match serde_json::from_slice(&text) {
                Ok(line) => self.take(line),
                Err(_) if text.trim_ascii().is_empty() => {}
                Err(_) if text.last() != Some(&b'\n') => {
                    remark(&format!(
                        "{}, line {number}: torn, as a killed node leaves it; left out",
                        file.display()
                    ));
                }
                Err(error) => {
                    let what = format!(
                        "line {number}: is no line of a node's log ({error}); it has node, event, id and attempt"
                    );
                    return Err(refused(what).into());
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, line: Line) {
        let said = self.commands.entry((line.node, line.id)).or_default();
        match (line.event, line.state) {
            (Event::Started, _) => *said.starts.entry(line.attempt).or_default() += 1,
            (Event::Acked, Some(state))
                if CommandState::from_name(&state).is_some_and(CommandState::is_terminal) =>
            {
                said.acked.insert(line.attempt, state);
            }
            _ => {}
        }
    }

    /// The rows that offend, at most `most` of each of `LOG_INVARIANTS`.
    pub(super) async fn check(
        &self,
        database: &mut Database,
        most: usize,
    ) -> Result<[Vec<Value>; 4], GatewayError> {
        let mut found = Found { most, rows: Default::default() };
        for ((node, id), said) in &self.commands {
            for (attempt, starts) in said.starts.iter().filter(|(_, starts)| **starts > 1) {
                found.add(0, json!({ "node_id": node, "id": id, "attempt": attempt, "starts": starts }));
            }
        }
        self.check_stored(database, &mut found).await?;
        self.check_executed(database, &mut found).await?;
        Ok(found.rows)
    }

    /// What the logs name, against its rows.
    async fn check_stored(&self, database: &mut Database, found: &mut Found) -> Result<(), GatewayError> {
        let named: Vec<&(String, Uuid)> = self.commands.keys().collect();
        for page in named.chunks(PAGE) {
            let nodes: Vec<&str> = page.iter().map(|(node, _)| node.as_str()).collect();
            let ids: Vec<Uuid> = page.iter().map(|(_, id)| *id).collect();
            let query =
                sqlx::query_scalar(include_str!("../../queries/node_logs/rows_of.sql")).bind(nodes).bind(ids);
            let rows = database.rows("reading the commands of the logs", query).await?;
            let stored: BTreeMap<(String, Uuid), &Value> =
                rows.iter().filter_map(|row| Some((key(row)?, row))).collect();
            for place in page {
                match (stored.get(*place), self.commands.get(*place)) {
                    (None, _) => found.add(3, json!({ "node_id": place.0, "id": place.1 })),
                    (Some(row), Some(said)) => found.add_lost_end(row, said),
                    (Some(_), None) => {}
                }
            }
        }
        Ok(())
    }

    /// What ran to an end by the rows of these nodes, against the logs.
    async fn check_executed(&self, database: &mut Database, found: &mut Found) -> Result<(), GatewayError> {
        let nodes: Vec<&str> = self
            .commands
            .keys()
            .map(|(node, _)| node.as_str())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        for some in nodes.chunks(NODES_A_QUERY) {
            self.check_executed_by(some, database, found).await?;
        }
        Ok(())
    }

    async fn check_executed_by(
        &self,
        nodes: &[&str],
        database: &mut Database,
        found: &mut Found,
    ) -> Result<(), GatewayError> {
        let mut after = (String::new(), Uuid::nil());
        loop {
            let query = sqlx::query_scalar(include_str!("../../queries/node_logs/executed.sql"))
                .bind(nodes)
                .bind(after.0)
                .bind(after.1)
                .bind(PAGE as i64);
            let rows = database.rows("reading what the nodes executed", query).await?;
            for row in &rows {
                let started = key(row)
                    .and_then(|place| self.commands.get(&place))
                    .is_some_and(|said| said.starts.contains_key(&attempt(row)));
                if !started {
                    found.add(1, row.clone());
                }
            }
            match rows.last().and_then(key) {
                Some(last) if rows.len() == PAGE => after = last,
                _ => return Ok(()),
            }
        }
    }
}

/// Offending rows, as many as are wanted and one more of each.
struct Found {
    most: usize,
    rows: [Vec<Value>; 4],
}

impl Found {
    fn add(&mut self, which: usize, row: Value) {
        if let Some(rows) = self.rows.get_mut(which)
            && rows.len() <= self.most
        {
            rows.push(row);
        }
    }

    /// Whether what was acked in the row's attempt is stored.
    fn add_lost_end(&mut self, row: &Value, said: &Said) {
        let Some(acked) = said.acked.get(&attempt(row)) else { return };
        if row["state"] != acked.as_str() {
            let mut offending = row.clone();
            offending["acked"] = Value::String(acked.clone());
            self.add(2, offending);
        }
    }
}

fn key(row: &Value) -> Option<(String, Uuid)> {
    Some((row["node_id"].as_str()?.to_owned(), row["id"].as_str()?.parse().ok()?))
}

fn attempt(row: &Value) -> u32 {
    row["attempt"].as_u64().and_then(|attempt| u32::try_from(attempt).ok()).unwrap_or(0)
}

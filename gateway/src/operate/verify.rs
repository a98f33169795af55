//! `gateway verify`: holds the database against what must always hold, and names what does not.
//!
//! All checks see one snapshot, and hold nobody up.
//!
//! 1. Exit code 0: everything holds. 1: something does not; the rows are shown, a bounded number.
//!    2: it could not be checked, for whatever reason.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::arguments::VerifyArgs;
use super::database::Database;
use super::invariants::{INVARIANTS, Invariant};
use super::node_logs::{LOG_INVARIANTS, NodeLogs};
use super::place::usage;
use super::terminal::{harmless_within, json_line, remark, write};
use crate::error::GatewayError;

const BROKEN: u8 = 1;
const NOT_CHECKED: u8 = 2;
/// A field of an offending row, for people; JSON has it whole.
const FIELD_WIDTH: usize = 80;

/// What became of one check.
struct Finding {
    name: &'static str,
    sentence: &'static str,
    rows: Vec<Value>,
    /// Whether there are more rows than those.
    more: bool,
}

pub(super) async fn run(arguments: &VerifyArgs) -> Result<ExitCode, GatewayError> {
    match check(arguments).await {
        Ok(findings) => {
            let holds = findings.iter().all(|finding| finding.rows.is_empty());
            write(&if arguments.json { document(&findings) } else { report(&findings) })?;
            Ok(if holds { ExitCode::SUCCESS } else { ExitCode::from(BROKEN) })
        }
        Err(error) => {
            remark(&format!("nothing is said about the database: {error}"));
            Ok(ExitCode::from(NOT_CHECKED))
        }
    }
}

async fn check(arguments: &VerifyArgs) -> Result<Vec<Finding>, GatewayError> {
    let wanted = wanted(&arguments.only)?;
    let logs = NodeLogs::read(&arguments.node_logs)?;
    let mut database = Database::open_for_reading(&arguments.place, arguments.timeout).await?;
    let most = arguments.rows as usize;
    let mut findings = Vec::new();
    for Invariant { name, sentence, query } in wanted {
        let query = sqlx::query_scalar(query).bind(i64::from(arguments.rows) + 1);
        let rows = database.rows(&format!("checking {name}"), query).await?;
        findings.push(finding(name, sentence, rows, most));
    }
    if !arguments.node_logs.is_empty() {
        let found = logs.check(&mut database, most).await?;
        for ((name, sentence), rows) in LOG_INVARIANTS.into_iter().zip(found) {
            findings.push(finding(name, sentence, rows, most));
        }
    }
    database.end().await?;
    Ok(findings)
}

fn finding(name: &'static str, sentence: &'static str, mut rows: Vec<Value>, most: usize) -> Finding {
    let more = rows.len() > most;
    rows.truncate(most);
    Finding { name, sentence, rows, more }
}

fn wanted(only: &[String]) -> Result<Vec<Invariant>, GatewayError> {
    if let Some(stranger) = only.iter().find(|name| INVARIANTS.iter().all(|one| one.name != **name)) {
        let names: Vec<&str> = INVARIANTS.iter().map(|invariant| invariant.name).collect();
        let sentence = format!("there is no invariant {stranger:?}; there are: {}", names.join(", "));
        return Err(usage("--only", sentence).into());
    }
    let is_wanted = |invariant: &Invariant| only.is_empty() || only.iter().any(|name| name == invariant.name);
    Ok(INVARIANTS.into_iter().filter(is_wanted).collect())
}

fn document(findings: &[Finding]) -> String {
    let invariants: Vec<Value> = findings
        .iter()
        .map(|finding| {
            json!({
                "name": finding.name,
                "sentence": finding.sentence,
                "holds": finding.rows.is_empty(),
                "rows": finding.rows,
                "more": finding.more,
            })
        })
        .collect();
    let holds = findings.iter().all(|finding| finding.rows.is_empty());
    json_line(&json!({ "holds": holds, "invariants": invariants }))
}

fn report(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { name, sentence, rows, more } in findings {
        let verdict = if rows.is_empty() { "holds " } else { "BROKEN" };
        text.push_str(&format!("{verdict}  {name}: {sentence}\n"));
        for row in rows {
            let fields = row.as_object().into_iter().flatten();
            let fields: Vec<String> = fields.map(|(name, value)| field(name, value)).collect();
            text.push_str(&format!("          {}\n", fields.join("  ")));
        }
        if *more {
            text.push_str("          … and more; --rows shows more of them\n");
        }
    }
    let broken = findings.iter().filter(|finding| !finding.rows.is_empty()).count();
    match broken {
        0 => text.push_str(&format!("All {} invariants hold.\n", findings.len())),
        _ => text.push_str(&format!("{broken} of {} invariants do not hold.\n", findings.len())),
    }
    text
}

fn field(name: &str, value: &Value) -> String {
    match value {
        Value::String(text) => format!("{name}={}", harmless_within(text, FIELD_WIDTH)),
        other => format!("{name}={other}"),
    }
}

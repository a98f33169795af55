//! `gateway nodes`, `sessions`, `gateways`, `certs list`, `commands`, `specs` and `inventory`: what is stored, as a table or as JSON lines.
//!
//! The queries filter and order; here is only how the rows are shown.
//!
//! 1. A list that was cut by its limit says so.

use std::process::ExitCode;

use serde_json::Value;

use super::arguments::{
    CertsArgs, CommandsArgs, GatewaysArgs, InventoryArgs, NodesArgs, Reading, SessionsArgs, SpecsArgs,
};
use super::database::{Database, RowQuery};
use super::table::{Column, column, table};
use super::terminal::{bytes_as_text, harmless, json_line, remark, write};
use crate::error::GatewayError;

const NODES: [Column; 9] = [
    column("NODE", "node_id", 64),
    column("TENANT", "tenant_id", 16),
    column("CONNECTED", "connected", 9),
    column("GATEWAY", "gateway_id", 20),
    column("EPOCH", "session_epoch", 10),
    column("LAST SEEN", "last_seen_at", 20),
    column("VERSION", "software_version", 16),
    column("PENDING", "pending", 10),
    column("IN FLIGHT", "in_flight", 10),
];

const SESSIONS: [Column; 9] = [
    column("NODE", "node_id", 64),
    column("GATEWAY", "gateway_id", 20),
    column("LIVE", "live", 4),
    column("EPOCH", "session_epoch", 10),
    column("CONNECTED", "connected_at", 20),
    column("LAST SEEN", "last_seen_at", 20),
    column("VERSION", "software_version", 16),
    column("LANES", "lanes", 40),
    column("IN FLIGHT", "in_flight", 10),
];

const GATEWAYS: [Column; 7] = [
    column("GATEWAY", "id", 20),
    column("URL", "internal_url", 48),
    column("VERSION", "version", 16),
    column("LEASE", "lease_held", 5),
    column("DRAINS", "draining", 6),
    column("SESSIONS", "sessions", 10),
    column("LAST WROTE", "age", 16),
];

const CERTS: [Column; 7] = [
    column("NODE", "node_id", 64),
    column("SERIAL", "serial", 40),
    column("ROLE", "role", 16),
    column("EXPIRES", "expires_at", 20),
    column("IN USE", "in_use", 6),
    column("REVOKED", "revoked_at", 20),
    column("WHY", "revoked_reason", 40),
];

const COMMANDS: [Column; 9] = [
    column("ID", "id", 36),
    column("NODE", "node_id", 64),
    column("LANE", "lane", 16),
    column("SEQ", "seq", 12),
    column("KIND", "kind", 20),
    column("STATE", "state", 10),
    column("TRY", "attempt", 5),
    column("ENQUEUED", "enqueued_at", 20),
    column("WAITS FOR, OR WHY IT FAILED", "why", 60),
];

const SPECS: [Column; 7] = [
    column("NODE", "node_id", 64),
    column("SPEC", "name", 24),
    column("GENERATION", "generation", 10),
    column("BYTES", "body_bytes", 8),
    column("SET", "updated_at", 20),
    column("ANSWERED", "applied_generation", 10),
    column("WAITS FOR, OR WHAT CAME OF IT", "state", 60),
];

const SECTIONS: [Column; 5] = [
    column("NODE", "node_id", 64),
    column("SECTION", "section", 64),
    column("BYTES", "bytes", 12),
    column("SHA-256", "sha256", 64),
    column("UPDATED", "updated_at", 20),
];
/// With the body, of one section.
const SECTION: [Column; 4] = [
    column("SECTION", "section", 64),
    column("BYTES", "bytes", 12),
    column("UPDATED", "updated_at", 20),
    column("BODY", "shown", 400),
];

pub(super) async fn nodes(arguments: &NodesArgs) -> Result<ExitCode, GatewayError> {
    let like = arguments
        .like
        .as_ref()
        .map(|pattern| if pattern.contains('%') { pattern.clone() } else { format!("%{pattern}%") });
    let query = sqlx::query_scalar(include_str!("../../queries/operate/nodes.sql"))
        .bind(like)
        .bind(&arguments.tenant)
        .bind(arguments.connected)
        .bind(i64::from(arguments.limit) + 1);
    let rows = read(&arguments.reading, "listing nodes", query).await?;
    answer(&arguments.reading, &NODES, rows, arguments.limit, "node")
}

pub(super) async fn sessions(arguments: &SessionsArgs) -> Result<ExitCode, GatewayError> {
    let query = sqlx::query_scalar(include_str!("../../queries/operate/sessions.sql"))
        .bind(&arguments.node)
        .bind(&arguments.gateway)
        .bind(arguments.ended)
        .bind(i64::from(arguments.limit) + 1);
    let rows = read(&arguments.reading, "listing sessions", query).await?;
    if let Some(stale) = rows.iter().find(|row| row["live"] == true && row["gateway_holds_lease"] == false) {
        let gateway = harmless(stale["gateway_id"].as_str().unwrap_or_default());
        remark(&format!(
            "gateway {gateway} does not hold its lease: its sessions are shown as they were when it last wrote"
        ));
    }
    answer(&arguments.reading, &SESSIONS, rows, arguments.limit, "session")
}

pub(super) async fn gateways(arguments: &GatewaysArgs) -> Result<ExitCode, GatewayError> {
    let query = gateways_query(arguments.serving, arguments.limit);
    let mut rows = read(&arguments.reading, "listing gateways", query).await?;
    if !arguments.reading.json {
        for row in &mut rows {
            let age = row["heartbeat_age_seconds"].as_f64().unwrap_or_default();
            row["age"] = format!("{age:.1} s ago").into();
        }
    }
    answer(&arguments.reading, &GATEWAYS, rows, arguments.limit, "gateway")
}

/// The query that shows gateways.
pub(super) fn gateways_query<'q>(serving: bool, limit: u32) -> RowQuery<'q> {
    sqlx::query_scalar(include_str!("../../queries/operate/gateways.sql"))
        .bind(serving)
        .bind(i64::from(limit) + 1)
}

pub(super) async fn certs(arguments: &CertsArgs) -> Result<ExitCode, GatewayError> {
    let query = sqlx::query_scalar(include_str!("../../queries/operate/certs.sql"))
        .bind(&arguments.node)
        .bind(arguments.revoked)
        .bind(arguments.expires_within.map(|within| within.as_secs_f64()))
        .bind(i64::from(arguments.limit) + 1);
    let rows = read(&arguments.reading, "listing certificates", query).await?;
    answer(&arguments.reading, &CERTS, rows, arguments.limit, "certificate")
}

pub(super) async fn commands(arguments: &CommandsArgs) -> Result<ExitCode, GatewayError> {
    let query = commands_query()
        .bind(&arguments.node)
        .bind(arguments.id)
        .bind((!arguments.state.is_empty()).then_some(&arguments.state))
        .bind(&arguments.lane)
        .bind(arguments.since.map(|since| since.as_secs_f64()))
        .bind(i64::from(arguments.limit) + 1);
    let mut rows = read(&arguments.reading, "listing commands", query).await?;
    if let (Some(id), true) = (arguments.id, rows.is_empty()) {
        let sentence =
            format!("there is no such command: {id}; was it removed by retention, or is the node another?");
        return Err(GatewayError::Database(sentence));
    }
    rows.iter_mut().for_each(|row| bytes_as_text(row, "result"));
    if !arguments.reading.json {
        rows.iter_mut().for_each(add_why);
    }
    answer(&arguments.reading, &COMMANDS, rows, arguments.limit, "command")
}

pub(super) async fn specs(arguments: &SpecsArgs) -> Result<ExitCode, GatewayError> {
    let query = sqlx::query_scalar(include_str!("../../queries/operate/specs.sql"))
        .bind(&arguments.node)
        .bind(&arguments.name)
        .bind(arguments.unanswered)
        .bind(i64::from(arguments.limit) + 1);
    let mut rows = read(&arguments.reading, "listing specs", query).await?;
    rows.iter_mut().for_each(|row| bytes_as_text(row, "body"));
    if !arguments.reading.json {
        for row in &mut rows {
            let state =
                ["waits_for", "outcome"].iter().find_map(|field| row[*field].as_str()).map(str::to_owned);
            row["state"] = state.map_or(Value::Null, Value::String);
        }
    }
    answer(&arguments.reading, &SPECS, rows, arguments.limit, "spec")
}

pub(super) async fn inventory(arguments: &InventoryArgs) -> Result<ExitCode, GatewayError> {
    let query = sqlx::query_scalar(include_str!("../../queries/operate/inventory.sql"))
        .bind(&arguments.node)
        .bind(&arguments.section)
        .bind(i64::from(arguments.limit) + 1);
    let mut rows = read(&arguments.reading, "listing inventories", query).await?;
    rows.iter_mut().for_each(|row| bytes_as_text(row, "body"));
    let of_one = arguments.node.is_some() && arguments.section.is_some();
    if of_one && !arguments.reading.json {
        rows.iter_mut().for_each(add_shown);
        return answer(&arguments.reading, &SECTION, rows, arguments.limit, "section");
    }
    answer(&arguments.reading, &SECTIONS, rows, arguments.limit, "section")
}

/// The body as text, or in hex.
fn add_shown(row: &mut Value) {
    let of = |field: &str| row[field].as_str().map(str::to_owned);
    let shown = of("body").or_else(|| of("body_hex").map(|hex| format!("0x{hex}")));
    row["shown"] = shown.map_or(Value::Null, Value::String);
}

/// The query that shows commands, without its arguments.
pub(super) fn commands_query<'q>() -> RowQuery<'q> {
    sqlx::query_scalar(include_str!("../../queries/operate/commands.sql"))
}

/// What a person wants to know of a command next, in one field.
fn add_why(row: &mut Value) {
    let why = ["waits_for", "error", "refusal", "cancel_reason", "result"]
        .iter()
        .find_map(|field| row[*field].as_str().filter(|text| !text.is_empty()))
        .map(str::to_owned);
    row["why"] = why.map_or(Value::Null, Value::String);
}

async fn read(reading: &Reading, doing: &str, query: RowQuery<'_>) -> Result<Vec<Value>, GatewayError> {
    let mut database = Database::open_for_reading(&reading.place, reading.timeout).await?;
    let rows = database.rows(doing, query).await?;
    database.end().await?;
    Ok(rows)
}

fn answer(
    reading: &Reading,
    columns: &[Column],
    mut rows: Vec<Value>,
    limit: u32,
    what: &str,
) -> Result<ExitCode, GatewayError> {
    let limit = limit as usize;
    let is_cut = rows.len() > limit;
    rows.truncate(limit);
    if reading.json {
        write(&rows.iter().map(json_line).collect::<String>())?;
    } else if rows.is_empty() {
        write(&format!("No {what} fits.\n"))?;
    } else {
        write(&table(columns, &rows))?;
    }
    if is_cut {
        remark(&format!("there are more than {limit} {what}s; narrow the list, or raise --limit"));
    }
    Ok(ExitCode::SUCCESS)
}

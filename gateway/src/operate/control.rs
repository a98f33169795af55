//! `gateway drain`, `undrain`, `dispatch`, `reload-tls`, `health` and `live-sessions`: calls of a gateway's control API.
//!
//! The gateway does it and says what was done; here it is only told.
//!
//! 1. An answer is told as it came with `--json`, else as a sentence or a table.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::callee::{self, Called, client};
use super::control_arguments::{AskArgs, Callee, DispatchArgs, DrainArgs, LiveSessionsArgs};
use super::database::Database;
use super::listings::gateways_query;
use super::table::{Column, column, table};
use super::terminal::{Reader, harmless, json_line, remark, write};
use super::{ENDED_OTHERWISE, NOT_ENDED};
use crate::error::GatewayError;

/// Between looks at how many sessions are left.
const LOOKS_EVERY: Duration = Duration::from_millis(500);
/// What a look at other gateways may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);
/// Gateways that are looked at.
const GATEWAYS: u32 = 1_000;
/// Sessions that one call brings.
const PAGE: u32 = 500;

const LIVE: [Column; 5] = [
    column("NODE", "node_id", 64),
    column("SHARD", "shard", 5),
    column("EPOCH", "epoch", 10),
    column("HEARTBEAT", "heartbeat", 12),
    column("LANES", "lanes", 40),
];

pub(super) async fn drain(arguments: &DrainArgs) -> Result<ExitCode, GatewayError> {
    let gateway = client(&arguments.ask.callee).await?;
    let body = match arguments.within {
        Some(within) => json!({ "within_seconds": within.as_secs_f64() }),
        None => json!({}),
    };
    let mut answer = gateway.post("/v1/drain", &body).await.map_err(|error| gateway.failed(&error))?;
    let mut left = number(&answer, "sessions");
    if let Some(wait) = arguments.wait {
        let deadline = Instant::now() + wait;
        while left > 0 && Instant::now() < deadline {
            tokio::time::sleep(LOOKS_EVERY).await;
            let page = gateway.get("/v1/sessions?limit=1").await.map_err(|error| gateway.failed(&error))?;
            left = number(&page, "in_all");
        }
        answer["sessions"] = left.into();
    }
    let within = answer["within_seconds"].as_f64().unwrap_or_default();
    let began = if answer["began_now"] == true { "drains now" } else { "drains already" };
    let mut sentence = match arguments.wait {
        Some(_) if left == 0 => "It drains, and no session is left.".to_owned(),
        Some(_) => format!("It drains, and {left} sessions are left."),
        None => format!("It {began}: {left} sessions are told to leave within {within} s."),
    };
    if left > 0 && !arguments.ask.json && is_alone(&arguments.ask.callee).await {
        sentence.push_str(" No other gateway serves: its nodes have nowhere to go.");
    }
    sentence.push('\n');
    tell(arguments.ask.json, &answer, &sentence)?;
    let is_waiting = arguments.wait.is_some() && left > 0;
    Ok(if is_waiting { ExitCode::from(NOT_ENDED) } else { ExitCode::SUCCESS })
}

/// Whether the database knows that no other gateway takes sessions.
async fn is_alone(callee: &Callee) -> bool {
    let looking = async {
        let id = callee::id(callee)?;
        let mut database = Database::open_for_reading(&callee.place, LOOK_TIMEOUT).await.ok()?;
        let serving = database.rows("listing gateways", gateways_query(true, GATEWAYS)).await.ok()?;
        Some(serving.iter().all(|gateway| gateway["id"] == *id || gateway["draining"] == true))
    };
    // A database that is away says nothing.
    looking.await.unwrap_or(false)
}

pub(super) async fn undrain(arguments: &AskArgs) -> Result<ExitCode, GatewayError> {
    let answer = post(arguments, "/v1/undrain", &json!({})).await?;
    let sentence = if answer["was_draining"] == true {
        "It takes new sessions again.\n"
    } else {
        "It did not drain: it takes new sessions, if it serves.\n"
    };
    tell(arguments.json, &answer, sentence)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn dispatch(arguments: &DispatchArgs) -> Result<ExitCode, GatewayError> {
    let answer = post(&arguments.ask, "/v1/dispatch", &json!({ "nodes": arguments.nodes })).await?;
    let sentence = if arguments.nodes.is_empty() {
        "It looks for commands of all its nodes.\n".to_owned()
    } else {
        let here = number(&answer, "here");
        format!("It looks for commands of the {here} of {} nodes that it has.\n", arguments.nodes.len())
    };
    tell(arguments.ask.json, &answer, &sentence)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn reload_tls(arguments: &AskArgs) -> Result<ExitCode, GatewayError> {
    let answer = post(arguments, "/v1/tls/reload", &json!({})).await?;
    let sentence = if answer["changed"] == true {
        "The TLS files had changed: new connections get what they hold.\n"
    } else {
        "The TLS files hold what is in use.\n"
    };
    tell(arguments.json, &answer, sentence)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn health(arguments: &AskArgs) -> Result<ExitCode, GatewayError> {
    let gateway = client(&arguments.callee).await?;
    let (serves, health) = gateway.health().await.map_err(|error| gateway.failed(&error))?;
    tell(arguments.json, &health, &told_health(&health))?;
    Ok(if serves { ExitCode::SUCCESS } else { ExitCode::from(ENDED_OTHERWISE) })
}

fn told_health(health: &Value) -> String {
    let text = |name: &str| harmless(health[name].as_str().unwrap_or("?"));
    let mut told = format!(
        "{} {} is {}: {} sessions, {} streams, up for {} s.\n",
        text("gateway"),
        text("version"),
        text("phase"),
        number(health, "sessions"),
        number(health, "streams"),
        health["uptime_seconds"].as_f64().unwrap_or_default().round(),
    );
    for reason in health["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        told.push_str(&format!("It takes no new sessions: {}.\n", harmless(reason)));
    }
    for one in health["loops"].as_array().into_iter().flatten() {
        if one["consecutive_failures"].as_u64().is_some_and(|failures| failures > 0) {
            let (name, why) =
                (one["loop"].as_str().unwrap_or("?"), one["last_error"].as_str().unwrap_or("?"));
            told.push_str(&format!("The loop {} fails: {}.\n", harmless(name), harmless(why)));
        }
    }
    told
}

pub(super) async fn live_sessions(arguments: &LiveSessionsArgs) -> Result<ExitCode, GatewayError> {
    let gateway = client(&arguments.ask.callee).await?;
    let (rows, more) = match &arguments.node {
        Some(node) => {
            let path = format!("/v1/sessions/{}", percent_encoded(node));
            (vec![gateway.get(&path).await.map_err(|error| gateway.failed(&error))?], false)
        }
        None => pages(&gateway, arguments.limit).await?,
    };
    if arguments.ask.json {
        for row in &rows {
            if write(&json_line(row))? == Reader::Gone {
                break;
            }
        }
    } else {
        let rows: Vec<Value> = rows.into_iter().map(with_age).collect();
        write(&table(&LIVE, &rows))?;
    }
    if more {
        remark("there are more; --limit shows them");
    }
    Ok(ExitCode::SUCCESS)
}

/// At most so many sessions, and whether there are more.
async fn pages(gateway: &Called, limit: u32) -> Result<(Vec<Value>, bool), GatewayError> {
    let (mut rows, mut after) = (Vec::new(), String::new());
    loop {
        let wanted = (limit as usize - rows.len()).min(PAGE as usize);
        let path = format!("/v1/sessions?limit={wanted}{after}");
        let mut page = gateway.get(&path).await.map_err(|error| gateway.failed(&error))?;
        rows.extend(page["sessions"].as_array_mut().map(std::mem::take).unwrap_or_default());
        match page["more"].as_str() {
            Some(_) if rows.len() >= limit as usize => return Ok((rows, true)),
            Some(more) => after = format!("&after={more}"),
            None => return Ok((rows, false)),
        }
    }
}

/// For people: how long ago the last heartbeat was.
fn with_age(mut row: Value) -> Value {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let ago = row["last_heartbeat_at"].as_f64().map(|at| (now.as_secs_f64() - at).max(0.0));
    row["heartbeat"] = ago.map_or(Value::Null, |ago| format!("{ago:.1} s ago").into());
    row
}

async fn post(arguments: &AskArgs, path: &str, body: &Value) -> Result<Value, GatewayError> {
    let gateway = client(&arguments.callee).await?;
    gateway.post(path, body).await.map_err(|error| gateway.failed(&error))
}

fn tell(json: bool, answer: &Value, sentence: &str) -> Result<(), GatewayError> {
    write(&if json { json_line(answer) } else { sentence.to_owned() }).map(drop)
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_default()
}

/// As one segment of a path.
pub(super) fn percent_encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encoded = text
        .bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") });
    encoded.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_id_is_one_segment_of_a_path() {
        assert_eq!(percent_encoded("spiffe://a/é?x"), "spiffe%3A%2F%2Fa%2F%C3%A9%3Fx");
    }

    #[test]
    fn health_is_told_with_what_is_wrong() {
        let told = told_health(&json!({
            "gateway": "g1", "version": "1", "phase": "draining", "sessions": 2, "streams": 3,
            "uptime_seconds": 9.6, "reasons": ["it drains"],
            "loops": [{ "loop": "events", "consecutive_failures": 2, "last_error": "away\u{1b}[2J" }],
        }));
        assert_eq!(
            told,
            "g1 1 is draining: 2 sessions, 3 streams, up for 10 s.\nIt takes no new sessions: it drains.\n\
             The loop events fails: away\\u{1b}[2J.\n"
        );
    }
}

//! The calls: what each takes, what it asks of whom, and how the answer is told.
//!
//! It turns JSON into an ask and an answer into JSON; what an ask does is the writer's.
//!
//! 1. Every answer says what was done, and how much of what was named is here.
//! 2. What is named is checked before anybody is asked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use gateway_core::desk::{DeskAnswer, DeskAsk, Found, MAX_NAMED, MAX_SESSIONS_SHOWN, SessionReport};
use gateway_core::drain::DrainPlan;
use gateway_core::ids::{CommandId, NodeId, SessionKey, ShardId};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::body::{Asked, Passed};
use super::desk::{answered, refused};
use super::refusal::{Refusal, RefusalWord};
use super::{ApiState, Caller};
use crate::metrics;
use crate::status::Status;

/// The longest that nodes may be spread over.
const LONGEST_DRAIN: Duration = Duration::from_secs(600);

/// What a poke may name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nodes {
    #[serde(default)]
    nodes: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Commands {
    #[serde(default)]
    commands: Vec<CommandName>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandName {
    node_id: String,
    id: Uuid,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneNode {
    node_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DrainWish {
    within_seconds: Option<f64>,
}

/// A call without anything to say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

pub(crate) fn health(status: &Arc<dyn Status>) -> Response {
    let health = status.health();
    let code = if health.serving { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(health)).into_response()
}

pub(crate) fn scrape(status: &Arc<dyn Status>) -> Response {
    ([(header::CONTENT_TYPE, metrics::MEDIA_TYPE)], metrics::text(status)).into_response()
}

pub(crate) async fn unknown(_: Passed) -> Refusal {
    Refusal::new(RefusalWord::NotFound, "there is no such call; the README lists them under \"Control API\"")
}

pub(crate) async fn wrong_method(_: Passed) -> Refusal {
    Refusal::new(RefusalWord::WrongMethod, "this call has another method: what does something is a POST")
}

pub(crate) async fn dispatch(
    State(state): State<ApiState>,
    Asked(asked): Asked<Nodes>,
) -> Result<Json<Value>, Refusal> {
    looking(&state, DeskAsk::Dispatch(node_ids(&asked.nodes)?)).await
}

pub(crate) async fn specs(
    State(state): State<ApiState>,
    Asked(asked): Asked<Nodes>,
) -> Result<Json<Value>, Refusal> {
    looking(&state, DeskAsk::Specs(node_ids(&asked.nodes)?)).await
}

pub(crate) async fn cancel(
    State(state): State<ApiState>,
    Asked(asked): Asked<Commands>,
) -> Result<Json<Value>, Refusal> {
    bounded(asked.commands.len())?;
    let commands = asked.commands.iter().map(|one| Ok((node_id(&one.node_id)?, CommandId(one.id))));
    let Found { named, here, in_flight } =
        found(&state, DeskAsk::Cancel(commands.collect::<Result<_, Refusal>>()?)).await?;
    Ok(Json(json!({ "looking": true, "named": named, "here": here, "in_flight": in_flight })))
}

pub(crate) async fn revoke(
    State(state): State<ApiState>,
    Asked(asked): Asked<OneNode>,
) -> Result<Json<Value>, Refusal> {
    looking(&state, DeskAsk::Revoke(node_id(&asked.node_id)?)).await
}

pub(crate) async fn drain(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Asked(asked): Asked<DrainWish>,
) -> Result<Json<Value>, Refusal> {
    let within = match asked.within_seconds.map(Duration::try_from_secs_f64) {
        None => state.drain_within,
        Some(Ok(within)) if within <= LONGEST_DRAIN => within,
        Some(_) => {
            let sentence =
                "within_seconds is not within 0 and 600: over how long are the nodes to be spread?";
            return Err(Refusal::new(RefusalWord::InvalidArgument, sentence));
        }
    };
    // Who stays is not cut: the gateway may be undrained yet.
    let plan = DrainPlan { within, grace: Duration::ZERO };
    match answered(state.desk.ask(DeskAsk::Drain(plan))).await? {
        DeskAnswer::Draining { sessions, is_new } => {
            tracing::info!(caller = ?caller.names, sessions, is_new, "a drain was asked for over the control API");
            Ok(Json(json!({
                "draining": true,
                "began_now": is_new,
                "sessions": sessions,
                "within_seconds": within.as_secs_f64(),
            })))
        }
        other => Err(not_done(&other)),
    }
}

pub(crate) async fn undrain(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Asked(Nothing {}): Asked<Nothing>,
) -> Result<Json<Value>, Refusal> {
    match answered(state.desk.ask(DeskAsk::Undrain)).await? {
        DeskAnswer::Undrained { was_draining } => {
            tracing::info!(caller = ?caller.names, was_draining, "an undrain was asked for over the control API");
            Ok(Json(json!({ "draining": false, "was_draining": was_draining })))
        }
        other => Err(not_done(&other)),
    }
}

pub(crate) async fn reload_tls(
    State(state): State<ApiState>,
    Asked(Nothing {}): Asked<Nothing>,
) -> Result<Json<Value>, Refusal> {
    let looked = answered(state.desk.reload_tls()).await?;
    match (looked.nodes, looked.control) {
        (Ok(nodes), Ok(control)) => {
            Ok(Json(json!({ "changed": nodes || control, "nodes": nodes, "control": control })))
        }
        (nodes, control) => {
            let why: Vec<String> = [nodes.err(), control.err()].into_iter().flatten().collect();
            let sentence = format!("what can't be used changes nothing: {}", why.join("; "));
            Err(Refusal::new(RefusalWord::FailedPrecondition, sentence))
        }
    }
}

pub(crate) async fn sessions(
    State(state): State<ApiState>,
    RawQuery(query): RawQuery,
    _: Passed,
) -> Result<Json<Value>, Refusal> {
    let (after, at_most) = page(query.as_deref().unwrap_or_default())
        .map_err(|sentence| Refusal::new(RefusalWord::InvalidArgument, sentence))?;
    match answered(state.desk.ask(DeskAsk::Sessions { after, at_most })).await? {
        DeskAnswer::Sessions { sessions, more, in_all } => {
            let more = more.map(|key| format!("{}.{}.{}", key.shard, key.slot, key.serial));
            let heartbeats = state.shards.heartbeats(&sessions).await;
            let shown: Vec<Value> = sessions.iter().map(|session| shown(session, &heartbeats)).collect();
            Ok(Json(json!({ "sessions": shown, "in_all": in_all, "more": more })))
        }
        other => Err(not_done(&other)),
    }
}

/// Where a page begins, and how many it has: `after=…&limit=…`, neither of which needs an escape.
fn page(query: &str) -> Result<(Option<SessionKey>, usize), &'static str> {
    let (mut after, mut at_most) = (None, 100);
    for part in query.split('&').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some(("after", text)) => {
                after = Some(key(text).ok_or("after is not what an answer gave as more")?);
            }
            Some(("limit", text)) => {
                let limit = text.parse().ok().filter(|limit| (1..=MAX_SESSIONS_SHOWN).contains(limit));
                at_most = limit.ok_or("limit is not within 1 and 500: ask page by page")?;
            }
            _ => return Err("the query may hold after=… and limit=… alone"),
        }
    }
    Ok((after, at_most))
}

pub(crate) async fn session(
    State(state): State<ApiState>,
    node: Result<Path<String>, PathRejection>,
    _: Passed,
) -> Result<Json<Value>, Refusal> {
    let no_text = |_| Refusal::new(RefusalWord::InvalidArgument, "the node in the path is no UTF-8 text");
    let Path(node) = node.map_err(no_text)?;
    match answered(state.desk.ask(DeskAsk::Session(node_id(&node)?))).await? {
        DeskAnswer::Sessions { sessions, .. } => {
            let heartbeats = state.shards.heartbeats(&sessions).await;
            let gone =
                || Refusal::new(RefusalWord::NotFound, "that node has no live session on this gateway");
            sessions.first().map(|one| Json(shown(one, &heartbeats))).ok_or_else(gone)
        }
        other => Err(not_done(&other)),
    }
}

/// Asks for a look, and says how much of what was named is here.
async fn looking(state: &ApiState, ask: DeskAsk) -> Result<Json<Value>, Refusal> {
    let Found { named, here, .. } = found(state, ask).await?;
    Ok(Json(json!({ "looking": true, "named": named, "here": here })))
}

async fn found(state: &ApiState, ask: DeskAsk) -> Result<Found, Refusal> {
    match answered(state.desk.ask(ask)).await? {
        DeskAnswer::Looking(found) => Ok(found),
        other => Err(not_done(&other)),
    }
}

/// What an answer is to a caller who waits for another.
fn not_done(answer: &DeskAnswer) -> Refusal {
    match answer {
        DeskAnswer::Refused(refusal) => refused(*refusal),
        _ => unreachable!("the writer answers an ask with an answer of its kind"),
    }
}

fn shown(session: &SessionReport, heartbeats: &BTreeMap<SessionKey, f64>) -> Value {
    let lanes = session.lanes.iter().map(|lane| {
        json!({ "lane": lane.lane.as_str(), "capacity": lane.capacity.0, "in_flight": lane.in_flight.0 })
    });
    json!({
        "node_id": session.node.as_str(),
        "shard": session.key.shard.0,
        "epoch": session.epoch.0,
        "lanes": lanes.collect::<Vec<_>>(),
        "last_heartbeat_at": heartbeats.get(&session.key),
    })
}

fn node_ids(names: &[String]) -> Result<Vec<NodeId>, Refusal> {
    bounded(names.len())?;
    names.iter().map(|name| node_id(name)).collect()
}

fn node_id(name: &str) -> Result<NodeId, Refusal> {
    let wrong =
        |error: gateway_core::ids::IdError| format!("{error}: a node goes by the URI of its certificate");
    NodeId::new(name).map_err(|error| Refusal::new(RefusalWord::InvalidArgument, wrong(error)))
}

fn bounded(named: usize) -> Result<(), Refusal> {
    if named <= MAX_NAMED {
        return Ok(());
    }
    let sentence = format!("{named} are named, and one call takes {MAX_NAMED}: make several, or name none");
    Err(Refusal::new(RefusalWord::InvalidArgument, sentence))
}

fn key(text: &str) -> Option<SessionKey> {
    let mut parts = text.split('.');
    let key = SessionKey {
        shard: ShardId(parts.next()?.parse().ok()?),
        slot: parts.next()?.parse().ok()?,
        serial: parts.next()?.parse().ok()?,
    };
    parts.next().is_none().then_some(key)
}

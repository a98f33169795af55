//! `POST /v1/tunnels`, whose two bodies are the tunnel, and `POST /v1/tunnels/close`.
//!
//! It turns a request into an open and a tunnel into an answer; what may open is the tunnels' room's to say.
//! The messages stand in `proto/proto/gateway/control/v1/control.proto`.
//!
//! 1. The answer begins when the node has joined, or is a JSON refusal with a fitting status.
//! 2. The first message must come within `FIRST_WITHIN`; at most `MAX_UNSAID` are waited for, and of one name
//!    `MAX_UNSAID_OF_ONE`: one that has gone wild leaves places to others.
//! 3. What a caller does not take of a tunnel that is over for `taken_within` is let go of.
//! 4. A caller that goes away before takes its open back.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use gateway_core::ids::NodeId;
use gateway_core::tunnel::{TunnelBound, TunnelClose, TunnelCode, TunnelId};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::body::Asked;
use super::refusal::{Refusal, RefusalWord};
use super::streams;
use super::{ApiState, Caller, Share};
use crate::tunnel::{CloseWish, Messages, Wanted, broken, wanted};

/// How long a caller may take to say what it wants.
const FIRST_WITHIN: Duration = Duration::from_secs(10);
/// A first message is far below 64 KiB.
pub(crate) const MAX_UNSAID: usize = 512;
pub(crate) const MAX_UNSAID_OF_ONE: usize = 384;
/// The header that names a tunnel which was opened.
const TUNNEL_ID: &str = "gateway-tunnel-id";
const MEDIA_TYPE: &str = "application/grpc+proto";

/// Which tunnels are to be closed: one, or all of a node.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Closing {
    tunnel_id: Option<String>,
    node_id: Option<String>,
    #[serde(default)]
    reason: String,
}

/// Why a tunnel was not opened, as a caller is told.
pub(crate) struct NotOpened(TunnelClose);

impl IntoResponse for NotOpened {
    fn into_response(self) -> Response {
        let (status, word) = match self.0.code() {
            TunnelCode::Ok | TunnelCode::Cancelled => (StatusCode::CONFLICT, "CANCELLED"),
            TunnelCode::InvalidArgument => (StatusCode::BAD_REQUEST, "INVALID_ARGUMENT"),
            TunnelCode::DeadlineExceeded => (StatusCode::GATEWAY_TIMEOUT, "DEADLINE_EXCEEDED"),
            TunnelCode::NotFound => (StatusCode::NOT_FOUND, "NOT_FOUND"),
            TunnelCode::PermissionDenied => (StatusCode::FORBIDDEN, "PERMISSION_DENIED"),
            TunnelCode::ResourceExhausted => (StatusCode::TOO_MANY_REQUESTS, "RESOURCE_EXHAUSTED"),
            TunnelCode::FailedPrecondition => (StatusCode::UNPROCESSABLE_ENTITY, "FAILED_PRECONDITION"),
            TunnelCode::Aborted => (StatusCode::CONFLICT, "ABORTED"),
            TunnelCode::Unimplemented => (StatusCode::NOT_IMPLEMENTED, "UNIMPLEMENTED"),
            TunnelCode::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE"),
            TunnelCode::Unauthenticated => (StatusCode::UNAUTHORIZED, "UNAUTHENTICATED"),
        };
        let body = json!({ "error": self.0.to_string(), "code": word, "reason": self.0.label() });
        (status, Json(body)).into_response()
    }
}

pub(crate) async fn open(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, NotOpened> {
    let door = state.tunnels.ok_or(NotOpened(TunnelClose::NotOffered))?;
    let mut messages = Messages::of(request.into_body());
    let unsaid = unsaid(&state.opens, &caller.share).map_err(NotOpened)?;
    let wanted = first(&mut messages).await.map_err(NotOpened)?;
    drop(unsaid);
    let (id, input, output) = door.open(wanted).await.map_err(NotOpened)?;
    let (stream, taken) = (streams::of_tunnel(), output.taken());
    let patience = door.taken_within;
    drop(tokio::spawn(async move {
        // It ends with the tunnel.
        input.carry(messages).await;
        taken.none_for(patience).await;
        if let Some(stream) = stream {
            stream.reach();
        }
    }));
    let mut response = Response::new(Body::new(output));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    if let Ok(id) = HeaderValue::from_str(&id.to_string()) {
        headers.insert(TUNNEL_ID, id);
    }
    Ok(response)
}

/// A place among those that have not said yet which tunnel they want: of one name, and of all.
fn unsaid<'a>(
    of_all: &'a Semaphore,
    share: &'a Share,
) -> Result<(SemaphorePermit<'a>, SemaphorePermit<'a>), TunnelClose> {
    let full = |bound| move |_| TunnelClose::Full(bound);
    let own = share.opens.try_acquire().map_err(full(TunnelBound::UnsaidOfOne))?;
    Ok((own, of_all.try_acquire().map_err(full(TunnelBound::Unsaid))?))
}

async fn first(messages: &mut Messages) -> Result<Wanted, TunnelClose> {
    match tokio::time::timeout(FIRST_WITHIN, messages.next()).await {
        Ok(Ok(Some(message))) => wanted(message),
        Ok(Ok(None)) => Err(broken("the body is empty; its first message must be TunnelOpen")),
        Ok(Err(close)) => Err(close),
        Err(_) => Err(broken("no TunnelOpen came within 10 s")),
    }
}

pub(crate) async fn close(
    State(state): State<ApiState>,
    Asked(closing): Asked<Closing>,
) -> Result<Json<Value>, Refusal> {
    let wrong = |sentence: &str| Refusal::new(RefusalWord::InvalidArgument, sentence);
    let reason = TunnelClose::asked(&closing.reason);
    let wish = match (closing.tunnel_id, closing.node_id) {
        (Some(id), None) => {
            let id = TunnelId::from_hex(&id).ok_or_else(|| wrong("tunnel_id must be 32 hex digits"))?;
            CloseWish::One(id, reason)
        }
        (None, Some(node)) => {
            let node = NodeId::new(&node).map_err(|error| wrong(&error.to_string()))?;
            CloseWish::OfNode(node, reason)
        }
        _ => return Err(wrong("name either tunnel_id or node_id")),
    };
    let away = |_| Refusal::new(RefusalWord::Unavailable, "the gateway is stopping");
    let door = state
        .tunnels
        .ok_or_else(|| Refusal::new(RefusalWord::FailedPrecondition, "this gateway offers no tunnels"))?;
    let closed = door.close(wish).await.map_err(away)?;
    Ok(Json(json!({ "closed": closed })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_whose_calls_say_nothing_leaves_places_to_others_and_is_told_so() {
        let (all, wild, other) = (Semaphore::new(MAX_UNSAID), Share::default(), Share::default());
        let mut held = Vec::new();
        let mut take_all = |share| {
            let before = held.len();
            loop {
                match unsaid(&all, share) {
                    Ok(place) => held.push(place),
                    Err(close) => break (held.len() - before, close),
                }
            }
        };
        assert_eq!(take_all(&wild), (384, TunnelClose::Full(TunnelBound::UnsaidOfOne)));
        assert_eq!(take_all(&other), (128, TunnelClose::Full(TunnelBound::Unsaid)));
        drop(held);
        assert!(unsaid(&all, &wild).is_ok());
        let sentence = TunnelClose::Full(TunnelBound::UnsaidOfOne).to_string();
        assert!(sentence.contains("TunnelOpen") && !sentence.contains("tunnels.max"), "{sentence}");
    }
}

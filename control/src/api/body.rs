//! What is taken of a request: a small JSON document, within a bounded time.
//!
//! Tunnels read their bodies themselves; everything else comes through `Asked`.
//!
//! 1. A body has at most `MAX_BODY_BYTES` and comes within `BODY_WITHIN`; no body is an empty document.
//! 2. A field that nobody knows is an error: a caller who misspells one must learn it.

use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;

use super::refusal::{Refusal, RefusalWord};

/// A thousand node ids as long as they may be, and some air.
const MAX_BODY_BYTES: usize = 256 << 10;
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// The document of a request's body.
#[derive(Debug)]
pub(crate) struct Asked<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Asked<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        let refusal = |word, sentence: &str| Refusal::new(word, sentence);
        let reading = to_bytes(request.into_body(), MAX_BODY_BYTES);
        let body = match tokio::time::timeout(BODY_WITHIN, reading).await {
            Ok(Ok(body)) => body,
            Ok(Err(_)) => {
                let sentence = "the body is larger than 256 KiB, or was cut off: name fewer nodes in a call";
                return Err(refusal(RefusalWord::TooLarge, sentence));
            }
            Err(_) => {
                let sentence = "the body did not come within 10 s: send it with the request";
                return Err(refusal(RefusalWord::InvalidArgument, sentence));
            }
        };
        let text: &[u8] = if body.is_empty() { b"{}" } else { &body };
        if text.trim_ascii_start().first() != Some(&b'{') {
            return Err(refusal(RefusalWord::InvalidArgument, "the body is no JSON object"));
        }
        serde_json::from_slice(text).map(Self).map_err(|error| {
            // What serde says could repeat a value.
            let (line, column, why) = (error.line(), error.column(), what_is_wrong(&error));
            let sentence = format!(
                "the body is not the JSON that this call takes, at line {line} column {column}: {why}"
            );
            refusal(RefusalWord::InvalidArgument, &sentence)
        })
    }
}

fn what_is_wrong(error: &serde_json::Error) -> &'static str {
    match error.classify() {
        serde_json::error::Category::Data => {
            "a field is unknown, missing, or of another kind; see the README"
        }
        serde_json::error::Category::Eof => "it ends too soon",
        serde_json::error::Category::Syntax | serde_json::error::Category::Io => "it is malformed",
    }
}

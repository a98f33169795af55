//! What is taken of a request: a small JSON document, within a bounded time.
//!
//! Tunnels read their bodies themselves; everything else comes through `Asked`.
//!
//! 1. A body has at most `MAX_BODY_BYTES` and comes within `BODY_WITHIN`; no body is an empty document.
//! 2. Bodies on their way take at most `FREE_BYTES` each and `BUDGET_BYTES` together beyond that. Whoever sends many that
//!    never end finds the gateway busy; a short call, as all that stop and revoke something are, goes through beside them.
//! 3. Who asks for nothing that has a body, or is refused whatever it says, is answered when its body has come, or is too long or
//!    late: an answer before that ends with RST_STREAM, which many clients take for a failure.
//! 4. A field that nobody knows is an error: a caller who misspells one must learn it.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, Request};
use bytes::{Buf, Bytes, BytesMut};
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use super::ApiState;
use super::refusal::{Refusal, RefusalWord};

/// A thousand node ids as long as they may be, and some air.
const MAX_BODY_BYTES: usize = 256 << 10;
const FREE_BYTES: usize = 4 << 10;
const BUDGET_BYTES: usize = 16 << 20;
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// For a body that nobody reads.
const PASSED_WITHIN: Duration = Duration::from_secs(5);

/// The document of a request's body.
#[derive(Debug)]
pub(crate) struct Asked<T>(pub(crate) T);

/// A body that nobody reads has come, and is dropped.
#[derive(Debug)]
pub(crate) struct Passed;

impl<S: Sync> FromRequest<S> for Passed {
    type Rejection = Infallible;

    async fn from_request(request: Request, _: &S) -> Result<Self, Infallible> {
        let (mut body, mut bytes) = (request.into_body(), 0);
        let passing = async {
            while bytes <= MAX_BODY_BYTES
                && let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
            {
                bytes += frame.data_ref().map_or(0, Bytes::len);
            }
        };
        // What does not come in time is not waited for.
        let _ = tokio::time::timeout(PASSED_WITHIN, passing).await;
        Ok(Self)
    }
}

/// What all bodies share that are on their way.
#[derive(Debug)]
pub(crate) struct Bodies(Semaphore);

impl Default for Bodies {
    fn default() -> Self {
        Self(Semaphore::new(BUDGET_BYTES))
    }
}

impl Bodies {
    async fn whole(&self, mut body: Body) -> Result<Bytes, Refusal> {
        let (mut text, mut budget) = (BytesMut::new(), None);
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let cut_off = |_| Refusal::new(RefusalWord::InvalidArgument, "the body was cut off");
            let Ok(mut data) = frame.map_err(cut_off)?.into_data() else { continue };
            let before = text.len();
            if before + data.remaining() > MAX_BODY_BYTES {
                let sentence = "the body is larger than 256 KiB: name fewer nodes in a call";
                return Err(Refusal::new(RefusalWord::TooLarge, sentence));
            }
            text.extend_from_slice(&data.copy_to_bytes(data.remaining()));
            let beyond = text.len().saturating_sub(before.max(FREE_BYTES)) as u32;
            let taken = self.0.try_acquire_many(beyond).map_err(|_| {
                let sentence =
                    "more long bodies are on their way than may be: again in a moment, or name fewer nodes";
                Refusal::new(RefusalWord::Busy, sentence)
            })?;
            match &mut budget {
                None => budget = Some(taken),
                Some(all) => all.merge(taken),
            }
        }
        Ok(text.freeze())
    }
}

impl<T: DeserializeOwned> FromRequest<ApiState> for Asked<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Refusal> {
        let refusal = |word, sentence: &str| Refusal::new(word, sentence);
        let reading = state.bodies.whole(request.into_body());
        let body = tokio::time::timeout(BODY_WITHIN, reading).await.unwrap_or_else(|_| {
            Err(refusal(
                RefusalWord::InvalidArgument,
                "the body did not come within 10 s: send it with the request",
            ))
        })?;
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

fn what_is_wrong(error: &serde_json::Error) -> String {
    match error.classify() {
        serde_json::error::Category::Data => misfit(&error.to_string()),
        serde_json::error::Category::Eof => "it ends too soon".to_owned(),
        serde_json::error::Category::Syntax | serde_json::error::Category::Io => "it is malformed".to_owned(),
    }
}

/// The field that does not fit, where it bears a name that a field could have; of what serde says nothing else.
fn misfit(told: &str) -> String {
    let is_name = |name: &&str| {
        name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
    };
    let named = |begin: &str| told.strip_prefix(begin)?.split('`').next().filter(is_name);
    if let Some(field) = named("unknown field `") {
        return format!("the field {field} is unknown; see the README");
    }
    if let Some(field) = named("missing field `") {
        return format!("the field {field} is missing");
    }
    "a field is unknown, missing, or of another kind; see the README".to_owned()
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use hyper::body::Frame;

    use super::*;

    /// A body that is sent so far and never ends.
    struct Stuck(Option<Bytes>);

    impl HttpBody for Stuck {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0.take().map_or(Poll::Pending, |bytes| Poll::Ready(Some(Ok(Frame::data(bytes)))))
        }
    }

    #[test]
    fn a_field_that_does_not_fit_is_named_and_no_value_is_repeated() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Of {
            #[allow(dead_code)]
            node_id: String,
        }
        let told =
            |text: &str| what_is_wrong(&serde_json::from_str::<Of>(text).expect_err("it does not fit"));
        assert!(
            told(r#"{"nodes": []}"#).contains("the field nodes is unknown"),
            "{}",
            told(r#"{"nodes": []}"#)
        );
        assert!(told("{}").contains("the field node_id is missing"), "{}", told("{}"));
        for hostile in [r#"{"a\u001b[2Jb": 1}"#, r#"{"node_id": ["secret"]}"#] {
            assert!(
                !told(hostile).contains("secret") && !told(hostile).contains('\u{1b}'),
                "{}",
                told(hostile)
            );
            assert!(told(hostile).contains("of another kind"), "{}", told(hostile));
        }
    }

    #[tokio::test]
    async fn bodies_that_never_end_take_no_more_than_the_budget_and_short_ones_pass_beside_them() {
        let bodies = std::sync::Arc::new(Bodies::default());
        let long = || Bytes::from(vec![b' '; MAX_BODY_BYTES]);
        let mut stuck = tokio::task::JoinSet::new();
        for _ in 0..200 {
            let (bodies, body) = (std::sync::Arc::clone(&bodies), Body::new(Stuck(Some(long()))));
            stuck.spawn(async move { bodies.whole(body).await.map(drop) });
        }
        for _ in 0..100 {
            let refusal = stuck.join_next().await.unwrap().unwrap().expect_err("it never ends");
            assert_eq!(refusal.word, RefusalWord::Busy);
        }
        assert_eq!(bodies.whole(Body::from(long())).await.expect_err("full").word, RefusalWord::Busy);
        assert_eq!(bodies.whole(Body::from("{}")).await.expect("it is short"), "{}");
        stuck.shutdown().await;
        assert_eq!(
            bodies.whole(Body::from(long())).await.expect("there is room again").len(),
            MAX_BODY_BYTES
        );
        let larger = Body::from(vec![b' '; MAX_BODY_BYTES + 1]);
        assert_eq!(bodies.whole(larger).await.expect_err("it is larger").word, RefusalWord::TooLarge);
    }
}

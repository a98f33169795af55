//! Clients of control APIs: of one gateway (`GatewayClient`), and of whichever gateway has a node (`Finder`).
//!
//! For services and the CLI. It is no part of a gateway's thread; it runs on its caller's tokio runtime.
//!
//! 1. One connection a gateway, dialled when it is needed and kept while it is good; another where `MOST_ON_ONE` calls and
//!    tunnels are on it already (`lines`).
//! 2. A call has `ANSWERED_WITHIN`, the dial included; a connection that left one unanswered, or an open, is not used again.
//! 3. Calls are such that doing one twice does no harm: one that found its connection gone is made once more.

mod finder;
mod lines;
mod tunnel;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response, StatusCode, header};
use serde_json::Value;

use self::lines::{Line, Lines};
use crate::relay::{UpstreamAddress, UpstreamFiles};

pub use gateway_proto::control::v1::TunnelOpen;

pub use self::finder::{FindError, Finder, Found, OwnerLook, Registry, RegistryAway, RegistryLook};
pub use self::tunnel::{Said, Tunnel, TunnelCut, TunnelReceiver, TunnelSender};

/// Longer than any call of a gateway waits for its threads.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
/// Sessions, health and metrics of a large gateway are far below it.
const LONGEST_ANSWER: usize = 16 << 20;

/// Why a call has no answer that says what was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nobody answers there, or not in time. What was asked for may have been done.
    #[error("the control API at {address} can't be reached: {why}")]
    Unreachable { address: String, why: String },
    /// The gateway says why nothing was done.
    #[error("the gateway at {address} refuses: {sentence} ({code})")]
    Refused { address: String, status: u16, code: String, sentence: String },
    /// What answers is no control API of this kind.
    #[error("what answers at {address} is no control API: {why}")]
    Broken { address: String, why: String },
}

/// A client of one gateway.
pub struct GatewayClient {
    address: UpstreamAddress,
    lines: Lines,
    opened_within: Duration,
}

impl std::fmt::Debug for GatewayClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GatewayClient").field("address", &self.address).finish_non_exhaustive()
    }
}

impl GatewayClient {
    /// Of the gateway whose API is at `url`, as its row in `gateways` has it; nothing is dialled yet. The error says
    /// what is wrong with the URL.
    pub fn new(url: &str, files: UpstreamFiles) -> Result<Self, String> {
        let address = UpstreamAddress::parse(url)?;
        let lines = Lines::new(address.clone(), files);
        Ok(Self { address, lines, opened_within: tunnel::OPENED_WITHIN })
    }

    /// How long an open of a tunnel may have no answer at all, before its connection counts as lost: 75 s, longer than any
    /// takes that fails.
    #[must_use]
    pub fn with_opened_within(self, opened_within: Duration) -> Self {
        Self { opened_within, ..self }
    }

    /// A call that does something; gives what was done.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, CallError> {
        let (status, text) = self.call(http::Method::POST, path, body.to_string().into()).await?;
        self.done(status, &text)
    }

    /// A call that looks.
    pub async fn get(&self, path: &str) -> Result<Value, CallError> {
        let (status, text) = self.call(http::Method::GET, path, Bytes::new()).await?;
        self.done(status, &text)
    }

    /// Whether the gateway takes new sessions, and its health.
    pub async fn health(&self) -> Result<(bool, Value), CallError> {
        let (status, text) = self.call(http::Method::GET, "/v1/health", Bytes::new()).await?;
        match serde_json::from_slice::<Value>(&text) {
            Ok(health) if health.get("serving").is_some() => Ok((status.is_success(), health)),
            _ => self.done(status, &text).map(|health| (true, health)),
        }
    }

    /// Its metrics, as Prometheus reads them.
    pub async fn metrics(&self) -> Result<String, CallError> {
        let (status, text) = self.call(http::Method::GET, "/metrics", Bytes::new()).await?;
        if !status.is_success() {
            return self.done(status, &text).map(|_| String::new());
        }
        String::from_utf8(text.into()).map_err(|_| self.broken("its metrics are no text"))
    }

    /// One exchange, whatever it says: the status and the body.
    pub async fn call(
        &self,
        method: http::Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), CallError> {
        let mut used = None;
        let exchange = async {
            // What stood may have been lost while it was idle.
            match Box::pin(self.exchange(&method, path, body.clone(), &mut used)).await {
                Err(_) => Box::pin(self.exchange(&method, path, body, &mut used)).await,
                answered => answered,
            }
        };
        let outcome = match tokio::time::timeout(ANSWERED_WITHIN, exchange).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(why)) => why,
            Err(_) => {
                used.iter().for_each(Line::renounce);
                format!("no answer within {} s", ANSWERED_WITHIN.as_secs())
            }
        };
        Err(self.unreachable(outcome))
    }

    /// A connection that takes one more request of any kind, such as the open of a tunnel.
    async fn line(&self) -> Result<Line, CallError> {
        let connecting = tokio::time::timeout(ANSWERED_WITHIN, Box::pin(self.lines.line()));
        let outcome = connecting.await.unwrap_or_else(|_| Err("dialling took too long".to_owned()));
        outcome.map_err(|why| self.unreachable(why))
    }

    /// A request of this API with a body to come.
    pub fn request(&self, method: http::Method, path: &str) -> Result<Request<()>, CallError> {
        Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.address))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, concat!("gateway/", env!("CARGO_PKG_VERSION")))
            .body(())
            .map_err(|error| self.broken(&error.to_string()))
    }

    async fn exchange(
        &self,
        method: &http::Method,
        path: &str,
        body: Bytes,
        used: &mut Option<Line>,
    ) -> Result<(StatusCode, Bytes), String> {
        *used = None;
        let line = used.insert(self.lines.line().await?);
        let answer = self.exchange_over(line, method, path, body).await;
        answer.map_err(|error| {
            line.renounce();
            line.why(error)
        })
    }

    async fn exchange_over(
        &self,
        line: &mut Line,
        method: &http::Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), String> {
        let request = self.request(method.clone(), path).map_err(|error| error.to_string())?;
        let is_whole = body.is_empty();
        let (response, mut send) =
            line.requests.send_request(request, is_whole).map_err(|error| format!("the request: {error}"))?;
        if !is_whole {
            send.send_data(body, true).map_err(|error| format!("the request: {error}"))?;
        }
        receive(response.await.map_err(|error| error.to_string())?).await
    }

    fn done(&self, status: StatusCode, text: &[u8]) -> Result<Value, CallError> {
        let said: Value = serde_json::from_slice(text).map_err(|_| self.broken("its answer is no JSON"))?;
        if status.is_success() {
            return Ok(said);
        }
        let field = |name: &str| said.get(name).and_then(Value::as_str).map(str::to_owned);
        match (field("error"), field("code")) {
            (Some(sentence), Some(code)) => Err(CallError::Refused {
                address: self.address.to_string(),
                status: status.as_u16(),
                code,
                sentence,
            }),
            _ => Err(self.broken("its refusal has neither error nor code")),
        }
    }

    /// What a refusal of another kind of call says.
    async fn refusal(&self, response: Response<h2::RecvStream>) -> CallError {
        match receive(response).await {
            Ok((status, text)) => self
                .done(status, &text)
                .map_or_else(|error| error, |_| self.broken("it refuses with a success")),
            Err(why) => self.unreachable(why),
        }
    }

    fn unreachable(&self, why: String) -> CallError {
        CallError::Unreachable { address: self.address.to_string(), why }
    }

    fn broken(&self, why: &str) -> CallError {
        CallError::Broken { address: self.address.to_string(), why: why.to_owned() }
    }
}

async fn receive(response: Response<h2::RecvStream>) -> Result<(StatusCode, Bytes), String> {
    let (head, mut body) = response.into_parts();
    let mut text = BytesMut::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.map_err(|error| format!("the answer: {error}"))?;
        let _ = body.flow_control().release_capacity(chunk.len());
        if text.len() + chunk.len() > LONGEST_ANSWER {
            return Err("the answer is longer than any should be".to_owned());
        }
        text.extend_from_slice(&chunk);
    }
    Ok((head.status, text.freeze()))
}

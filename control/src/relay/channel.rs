//! The connection to a service behind the gateway, and calls over it: gRPC calls of one message, and plain GETs.
//!
//! Owns one connection, dialled when it is needed and kept while it is good. What a call means, and what its
//! failure is to whoever waits for it, is its caller's.
//!
//! 1. A call is sent twice only where the first surely did not reach the service.
//! 2. A connection on which a call had no answer in time is not used again.
//! 3. That a service is away, or keeps a call without an answer, is told once, and once that it is back; never what it said.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use gateway_core::relay::MAX_ANSWER_BYTES;
use gateway_proto::framing::{self, Deframer};
use gateway_proto::{header, status_message};
use h2::Reason;
use h2::client::SendRequest;
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use prost::Message;
use rustls_pki_types::ServerName;
use tokio::sync::Mutex;

use super::tls::UpstreamFiles;
use crate::dial::{Pinged, dial};

/// How long it may take until a connection stands.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
const USER_AGENT: &str = concat!("gateway/", env!("CARGO_PKG_VERSION"));

/// Where a service is: `https://name[:port]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamAddress {
    host: String,
    port: u16,
    server_name: ServerName<'static>,
}

impl UpstreamAddress {
    /// Reads a URL; the error says what is wrong with it.
    pub fn parse(url: &str) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|_| "is no URL: write \"https://name:port\"".to_owned())?;
        if uri.scheme_str() != Some("https") {
            return Err("must begin with https://: services are reached over mutual TLS alone".to_owned());
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err("has a path: gRPC gives it; write \"https://name:port\"".to_owned());
        }
        let authority = uri.authority().ok_or_else(|| "names no host".to_owned())?;
        if authority.as_str().contains('@') {
            return Err("holds a user, which no service is told: write \"https://name:port\"".to_owned());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let server_name = ServerName::try_from(host.clone())
            .map_err(|_| format!("names {host:?}, which is no host name and no address"))?;
        Ok(Self { host, port: authority.port_u16().unwrap_or(443), server_name })
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn server_name(&self) -> ServerName<'static> {
        self.server_name.clone()
    }
}

impl fmt::Display for UpstreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A service and the connection to it.
pub(crate) struct Channel {
    /// A word for the log.
    service: &'static str,
    address: UpstreamAddress,
    files: UpstreamFiles,
    timeout: Duration,
    connection: Mutex<Option<SendRequest<Bytes>>>,
    /// A call on the connection had no answer.
    suspect: AtomicBool,
    failing: AtomicBool,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("service", &self.service)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Why a call has no answer.
pub(crate) enum Failure {
    /// It surely did not reach the service.
    NotSent(String),
    /// It may have.
    Lost(String),
    Status(u32, String, Option<Duration>),
}

impl Channel {
    /// Nothing is dialled before the first call. `timeout` is told to the service.
    pub(crate) fn new(
        service: &'static str,
        address: UpstreamAddress,
        files: UpstreamFiles,
        timeout: Duration,
    ) -> Self {
        Self {
            service,
            address,
            files,
            timeout,
            connection: Mutex::default(),
            suspect: AtomicBool::new(false),
            failing: AtomicBool::new(false),
        }
    }

    /// One unary gRPC call.
    pub(crate) async fn unary<M: Message + Default>(
        &self,
        path: &str,
        request: &impl Message,
    ) -> Result<M, Failure> {
        let wait = Wait { channel: self, begun: Instant::now(), is_over: false };
        let body = framing::encode(request);
        let mut outcome = self.attempt(path, body.clone(), false).await;
        if let Err(Failure::NotSent(_)) = outcome {
            outcome = self.attempt(path, body, true).await;
        }
        wait.end();
        outcome.and_then(|message| {
            M::decode(message).map_err(|_| Failure::Lost("its answer is no message of the call".to_owned()))
        })
    }

    /// What stands at `path`, at most `MAX_ANSWER_BYTES` of it.
    pub(crate) async fn get(&self, path: &str) -> Result<Bytes, String> {
        let reason = |failure| match failure {
            Failure::NotSent(why) | Failure::Lost(why) => why,
            Failure::Status(code, ..) => format!("it answered with the gRPC status {code}"),
        };
        let mut requests = self.connection(false).await.map_err(reason)?;
        let request = Request::get(format!("https://{}{path}", self.address))
            .header(http::header::USER_AGENT, USER_AGENT)
            .body(())
            .map_err(|error| error.to_string())?;
        let watch = Watch { suspect: &self.suspect, is_over: false };
        let text = |error: h2::Error| error.to_string();
        let (response, _) = requests.send_request(request, true).map_err(text)?;
        let (head, mut body) = response.await.map_err(text)?.into_parts();
        if head.status != StatusCode::OK {
            watch.end();
            return Err(format!("it answered with the HTTP status {}", head.status.as_u16()));
        }
        let mut whole = BytesMut::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk.map_err(text)?;
            if whole.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err("its answer is longer than any should be".to_owned());
            }
            body.flow_control().release_capacity(chunk.len()).map_err(text)?;
            whole.extend_from_slice(&chunk);
        }
        watch.end();
        Ok(whole.freeze())
    }

    async fn attempt(&self, path: &str, body: Bytes, anew: bool) -> Result<Bytes, Failure> {
        let mut requests = self.connection(anew).await?;
        let request = self.request(path).map_err(|error| Failure::NotSent(error.to_string()))?;
        let (response, mut send) = requests
            .send_request(request, false)
            .map_err(|error| Failure::NotSent(format!("the request: {error}")))?;
        let watch = Watch { suspect: &self.suspect, is_over: false };
        send.send_data(body, true).map_err(|error| Failure::Lost(format!("the request: {error}")))?;
        let answer = response.await;
        let outcome = match answer {
            Err(error) if error.reason() == Some(Reason::REFUSED_STREAM) => {
                Err(Failure::NotSent("it refused the stream".to_owned()))
            }
            Err(error) => Err(Failure::Lost(error.to_string())),
            Ok(response) => receive(response).await,
        };
        // One that broke finds its connection broken by itself; silence alone needs a mark.
        watch.end();
        outcome
    }

    fn request(&self, path: &str) -> Result<Request<()>, http::Error> {
        Request::post(format!("https://{}{path}", self.address))
            .header(http::header::CONTENT_TYPE, header::CONTENT_TYPE_GRPC)
            .header(http::header::TE, "trailers")
            .header(http::header::USER_AGENT, USER_AGENT)
            .header(header::GRPC_TIMEOUT, format!("{}m", self.timeout.as_millis().min(99_999_999)))
            .body(())
    }

    /// The connection, dialled where there is none that is good.
    async fn connection(&self, anew: bool) -> Result<SendRequest<Bytes>, Failure> {
        let mut held = self.connection.lock().await;
        if anew || self.suspect.swap(false, Ordering::Relaxed) {
            *held = None;
        }
        if let Some(requests) = held.take()
            && let Ok(requests) = requests.ready().await
        {
            *held = Some(requests.clone());
            return Ok(requests);
        }
        let dialled =
            tokio::time::timeout(DIAL_TIMEOUT, Box::pin(dial(&self.address, &self.files, Pinged::No))).await;
        let dialled = dialled.unwrap_or_else(|_| Err("dialling took too long".to_owned()));
        let requests = dialled.map_err(Failure::NotSent)?.requests;
        *held = Some(requests.clone());
        Ok(requests)
    }

    /// Dials where there is no connection, and tells of it where that fails; asks for nothing.
    pub(crate) async fn look(&self) {
        if let Err(Failure::NotSent(why) | Failure::Lost(why)) = self.connection(false).await {
            self.note(Some(&why));
        }
    }

    /// Tells of a change: that the service can't be used, or can.
    pub(crate) fn note(&self, failure: Option<&str>) {
        let was_failing = self.failing.swap(failure.is_some(), Ordering::Relaxed);
        match failure {
            Some(why) if !was_failing => tracing::warn!(
                service = self.service,
                address = %self.address,
                why,
                "a service can't be used; its calls are refused until it can"
            ),
            None if was_failing => {
                tracing::info!(service = self.service, address = %self.address, "a service answers again");
            }
            _ => {}
        }
    }
}

/// Tells of a service that has kept a call until it was given up, at its deadline. A call that is given up
/// early, as at the end of the process or by one that had waited to be sent, says nothing of the service.
struct Wait<'a> {
    channel: &'a Channel,
    begun: Instant,
    is_over: bool,
}

impl Wait<'_> {
    fn end(mut self) {
        self.is_over = true;
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let waited = self.begun.elapsed();
        if !self.is_over && waited >= self.channel.timeout / 2 {
            self.channel.note(Some(&format!("it has not answered a call for {} ms", waited.as_millis())));
        }
    }
}

/// Marks the connection as suspect if a call on it is given up.
struct Watch<'a> {
    suspect: &'a AtomicBool,
    is_over: bool,
}

impl Watch<'_> {
    fn end(mut self) {
        self.is_over = true;
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.suspect.store(true, Ordering::Relaxed);
        }
    }
}

/// The one message of an answer, if its status is good.
async fn receive(response: Response<h2::RecvStream>) -> Result<Bytes, Failure> {
    let (head, mut body) = response.into_parts();
    if head.status != StatusCode::OK {
        return Err(Failure::Lost(format!("it answered with the HTTP status {}", head.status.as_u16())));
    }
    if let Some(status) = status_of(&head.headers) {
        return Err(no_answer(status));
    }
    let lost = |error: h2::Error| Failure::Lost(error.to_string());
    let mut deframer = Deframer::new(MAX_ANSWER_BYTES);
    let mut message = None;
    while let Some(chunk) = body.data().await {
        let chunk = chunk.map_err(lost)?;
        body.flow_control().release_capacity(chunk.len()).map_err(lost)?;
        deframer.push(chunk);
        while let Some(next) = deframer.next().map_err(|error| Failure::Lost(error.to_string()))? {
            message.get_or_insert(next);
        }
    }
    let trailers = body.trailers().await.map_err(lost)?.unwrap_or_default();
    match (status_of(&trailers), message) {
        (Some((0, ..)), Some(message)) => Ok(message),
        (Some(status), _) => Err(no_answer(status)),
        (None, _) => Err(Failure::Lost("its answer ended without a status".to_owned())),
    }
}

fn no_answer((code, sentence, retry_after): (u32, String, Option<Duration>)) -> Failure {
    match code {
        0 => Failure::Lost("its answer holds no message".to_owned()),
        code => Failure::Status(code, sentence, retry_after),
    }
}

fn status_of(map: &HeaderMap) -> Option<(u32, String, Option<Duration>)> {
    let text = |name: &str| map.get(name).and_then(|value| value.to_str().ok());
    let code = text(header::GRPC_STATUS)?.parse().unwrap_or(2);
    let sentence = status_message::decoded(text(header::GRPC_MESSAGE).unwrap_or_default());
    let retry_after =
        text(header::RETRY_PUSHBACK_MS).and_then(|ms| ms.parse().ok()).map(Duration::from_millis);
    Some((code, sentence, retry_after))
}

#[cfg(test)]
mod tests {
    use gateway_proto::{path, v1};

    use super::*;

    #[tokio::test]
    async fn a_service_that_keeps_a_call_until_its_deadline_is_noted_and_one_left_early_is_not() {
        let give_up_after = Duration::from_millis(50);
        for (timeout, is_noted) in [(give_up_after, true), (Duration::from_secs(3600), false)] {
            let file = std::path::PathBuf::from("none");
            let files = UpstreamFiles { ca: file.clone(), certificate: file.clone(), key: file };
            let address = UpstreamAddress::parse("https://a").expect("good");
            let channel = Channel::new("join service", address, files, timeout);
            // Nobody gets to the connection: as if the service took all that it is sent, and said nothing.
            let _held = channel.connection.lock().await;
            let request = v1::JoinRequest::default();
            let call = channel.unary::<v1::JoinResponse>(path::UPSTREAM_JOIN, &request);
            assert!(tokio::time::timeout(give_up_after, call).await.is_err(), "it hangs");
            assert_eq!(channel.failing.load(Ordering::Relaxed), is_noted, "{timeout:?}");
        }
    }

    #[test]
    fn only_a_url_of_a_host_over_tls_is_an_upstream() {
        let good = UpstreamAddress::parse("https://join.internal.example:8443").expect("good");
        assert_eq!(good.to_string(), "join.internal.example:8443");
        assert_eq!(UpstreamAddress::parse("https://[::1]:1/").expect("good").to_string(), "[::1]:1");
        assert_eq!(UpstreamAddress::parse("https://a").expect("good").to_string(), "a:443");
        for (url, why) in [
            ("http://a:1", "https://"),
            ("a:1", "https://"),
            ("https://a/join", "path"),
            ("https://me:secret@a", "a user"),
            ("https://a_b c", "no URL"),
        ] {
            let sentence = UpstreamAddress::parse(url).expect_err(url);
            assert!(sentence.contains(why), "{url}: {sentence}");
            assert!(!sentence.contains("secret"), "{sentence}");
        }
    }

    #[test]
    fn a_status_is_read_with_its_sentence_and_its_delay() {
        let mut map = HeaderMap::new();
        assert_eq!(status_of(&map), None);
        map.insert("grpc-status", "16".parse().expect("a value"));
        map.insert("grpc-message", "100%25 us%C3%A9d%".parse().expect("a value"));
        map.insert("grpc-retry-pushback-ms", "250".parse().expect("a value"));
        let expected = (16, "100% uséd%".to_owned(), Some(Duration::from_millis(250)));
        assert_eq!(status_of(&map), Some(expected));
    }
}

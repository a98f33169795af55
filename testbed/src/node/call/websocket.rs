//! A session or a tunnel over WebSocket on one connection of its own, by a stock library, on TLS that is up.
//!
//! 1. Each message that is queued with gRPC's prefix goes out as one binary message.
//! 2. A half-close is a close frame; what still comes after it is read.
//! 3. The end comes once: a status that refused the upgrade, or a close code, before a transport error.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Sink, Stream};
use gateway_proto::framing::Deframer;
use gateway_proto::http1;
use http::{HeaderMap, Request};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::frame::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{Message, WebSocketConfig};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use super::{Arrival, LONGEST_MESSAGE};
use crate::node::alert::{AlertWatch, SeenAlert};
use crate::node::end::{End, EndKind};

/// Thousands of these live in one process.
const BUFFER_BYTES: usize = 4 << 10;
/// Statuses of gRPC are 0 to 16.
const STATUSES: std::ops::RangeInclusive<u16> = http1::CLOSE_BASE..=http1::CLOSE_BASE + 16;

/// A session, or the stream of a tunnel.
pub(super) struct WebSocketCall {
    socket: WebSocketStream<AlertWatch>,
    alert: SeenAlert,
    outbox: VecDeque<Bytes>,
    outgoing: Deframer,
    half_close: bool,
    end: Option<End>,
}

impl std::fmt::Debug for WebSocketCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebSocketCall").field("queued", &self.outbox.len()).finish_non_exhaustive()
    }
}

impl WebSocketCall {
    /// Asks for the upgrade at `place` on `tls`; `headers` are sent besides those that it needs.
    pub(super) async fn open(
        tls: TlsStream<TcpStream>,
        place: &str,
        headers: HeaderMap,
    ) -> Result<Self, End> {
        let (tls, alert) = AlertWatch::new(tls);
        let mut request = Request::get(format!("wss://gateway{place}"))
            .header("host", "gateway")
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", generate_key())
            .header("sec-websocket-protocol", http1::SUBPROTOCOL)
            .body(())
            .map_err(|error| End::of(EndKind::Transport, format!("the request: {error}")))?;
        request.headers_mut().extend(headers);
        let config = WebSocketConfig::default()
            .read_buffer_size(BUFFER_BYTES)
            .write_buffer_size(0)
            .max_message_size(Some(LONGEST_MESSAGE))
            .max_frame_size(Some(LONGEST_MESSAGE));
        let (socket, _) = client_async_with_config(request, tls, Some(config))
            .await
            .map_err(|error| refusal(&error, &alert))?;
        Ok(Self {
            socket,
            alert,
            outbox: VecDeque::new(),
            outgoing: Deframer::new(usize::MAX),
            half_close: false,
            end: None,
        })
    }

    pub(super) fn queue(&mut self, bytes: Bytes) {
        self.outgoing.push(bytes);
        while let Ok(Some(message)) = self.outgoing.next() {
            self.outbox.push_back(message);
        }
    }

    pub(super) fn half_close(&mut self) {
        self.half_close = true;
    }

    pub(super) fn queued_bytes(&self) -> usize {
        self.outbox.iter().map(Bytes::len).sum()
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>, reads: bool) -> Poll<Arrival> {
        if let Poll::Ready(Err(error)) = self.poll_flush(cx)
            && self.end.is_none()
            && !reads
        {
            self.end = Some(failure("the connection", &error, &self.alert));
        }
        if reads {
            match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(message))) => {
                    // What the reading freed has to reach the peer too.
                    cx.waker().wake_by_ref();
                    return Poll::Ready(Arrival::Message(message));
                }
                Some(Ok(Message::Close(frame))) => {
                    self.end = Some(end_of(frame.as_ref()));
                    // The answer to it, if it can go at once: the connection is dropped next.
                    let _ = Pin::new(&mut self.socket).poll_flush(cx);
                }
                // The library answers pings by itself.
                Some(Ok(_)) => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Some(Err(error)) => self.end = Some(failure("the connection", &error, &self.alert)),
                None => self.end = Some(End::of(EndKind::Transport, "the gateway closed the connection")),
            }
        }
        match &self.end {
            Some(end) => Poll::Ready(Arrival::Ended(end.clone())),
            None => Poll::Pending,
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        while !self.outbox.is_empty() || self.half_close {
            let mut socket = Pin::new(&mut self.socket);
            ready!(socket.as_mut().poll_ready(cx))?;
            match self.outbox.pop_front() {
                Some(message) => socket.start_send(Message::Binary(message))?,
                None => {
                    self.half_close = false;
                    let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
                    socket.start_send(Message::Close(Some(frame)))?;
                }
            }
        }
        Pin::new(&mut self.socket).poll_flush(cx)
    }
}

/// What a close frame says.
fn end_of(frame: Option<&CloseFrame>) -> End {
    let Some(frame) = frame else {
        return End::of(EndKind::Transport, "the gateway closed the WebSocket without a code");
    };
    let code = u16::from(frame.code);
    if !STATUSES.contains(&code) {
        return End::of(EndKind::Transport, format!("the WebSocket was closed with code {code}"));
    }
    let status = u32::from(code - http1::CLOSE_BASE);
    let (sentence, pushback) = http1::read_reason(&frame.reason);
    End { pushback: pushback.map(Duration::from_millis), ..End::of(EndKind::Status(status), sentence) }
}

/// Why there was no upgrade.
fn refusal(error: &Error, alert: &SeenAlert) -> End {
    let Error::Http(answer) = error else { return failure("the upgrade", error, alert) };
    let end = End::from_headers(answer.headers());
    let text = answer.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default();
    let sentence = || format!("the upgrade was answered {}: {}", answer.status(), text.trim());
    let mut end = end.unwrap_or_else(|| End::of(EndKind::Transport, sentence()));
    let retry_after = answer.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
    end.pushback = end.pushback.or(retry_after.map(Duration::from_secs));
    end
}

// The TLS layer knows better than WebSocket why a connection failed.
fn failure(doing: &str, error: &Error, alert: &SeenAlert) -> End {
    let end = match error {
        Error::Io(error) => End::from_io(doing, error),
        error => End::of(EndKind::Transport, format!("{doing}: {error}")),
    };
    match alert.get() {
        Some(alert) => End { kind: EndKind::TlsAlert(alert.clone()), ..end },
        None => end,
    }
}

//! A gRPC call on one connection of its own: HTTP/2 and its framing, on TLS that is up.
//!
//! 1. What is queued is sent as flow control allows; nothing is lost while the call lives.
//! 2. Received bytes give their window back at once, and only when they are read.
//! 3. The end comes once, with the best reason known: a status before a transport error.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use gateway_proto::framing::Deframer;
use gateway_proto::{header, path};
use h2::client::{Connection, ResponseFuture};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Method, Request};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::gathered::{Gathered, Gathering};
use super::{Arrival, LONGEST_MESSAGE};
use crate::node::alert::{AlertWatch, SeenAlert};
use crate::node::end::{End, EndKind};

/// What a call may have waiting, each way.
const WINDOW_BYTES: u32 = 64 << 10;
/// The same for a tunnel, which may carry much.
const TUNNEL_WINDOW_BYTES: u32 = 256 << 10;
/// The largest DATA frame that a tunnel takes: few large ones cost less.
const TUNNEL_FRAME_BYTES: u32 = 64 << 10;
const FRAME_BYTES: u32 = 16 << 10;
/// A message does not leave in smaller parts than this. Gateways have windows of 64 KiB and more.
const SMALLEST_PART: usize = 4 << 10;

/// A gRPC call.
pub(super) struct Http2Call {
    connection: Connection<Gathered<AlertWatch>, Bytes>,
    /// Of a call that carries much.
    gathering: Option<Gathering>,
    alert: SeenAlert,
    connection_end: Option<End>,
    send: SendStream<Bytes>,
    outbox: VecDeque<Bytes>,
    half_close: HalfClose,
    response: Option<ResponseFuture>,
    body: Option<RecvStream>,
    body_over: bool,
    deframer: Deframer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HalfClose {
    No,
    Wanted,
    Done,
}

impl std::fmt::Debug for Http2Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http2Call").field("queued", &self.outbox.len()).finish_non_exhaustive()
    }
}

impl Http2Call {
    /// Starts HTTP/2 on `tls` and opens the call at `path`; `headers` are sent besides gRPC's own
    /// and win over them.
    pub(super) async fn open(tls: TlsStream<TcpStream>, path: &str, headers: HeaderMap) -> Result<Self, End> {
        let (tls, alert) = AlertWatch::new(tls);
        let (tls, gathering) = Gathered::new(tls);
        let carries_much = path == path::TUNNEL;
        let (window, frame) = match carries_much {
            true => (TUNNEL_WINDOW_BYTES, TUNNEL_FRAME_BYTES),
            false => (WINDOW_BYTES, FRAME_BYTES),
        };
        let (mut requests, connection) = h2::client::Builder::new()
            .initial_window_size(window)
            .initial_connection_window_size(window)
            .max_frame_size(frame)
            .max_concurrent_streams(0)
            .header_table_size(0)
            .enable_push(false)
            .max_send_buffer_size(window as usize)
            .handshake(tls)
            .await
            .map_err(|error| failure("starting HTTP/2", &error, &alert))?;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("https://gateway{path}"))
            .header("content-type", header::CONTENT_TYPE_GRPC)
            .header("te", "trailers")
            .header("user-agent", "gateway-testbed")
            .body(())
            .map_err(|error| End::of(EndKind::Transport, format!("the request: {error}")))?;
        request.headers_mut().extend(headers);
        let (response, send) = requests
            .send_request(request, false)
            .map_err(|error| failure("opening the stream", &error, &alert))?;
        Ok(Self {
            connection,
            gathering: carries_much.then_some(gathering),
            alert,
            connection_end: None,
            send,
            outbox: VecDeque::new(),
            half_close: HalfClose::No,
            response: Some(response),
            body: None,
            body_over: false,
            deframer: Deframer::new(LONGEST_MESSAGE),
        })
    }

    /// Queues bytes, normally one message with its prefix. To be followed by a poll.
    pub(super) fn queue(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.outbox.push_back(bytes);
        }
    }

    /// Ends our half once all that is queued was sent.
    pub(super) fn half_close(&mut self) {
        if self.half_close == HalfClose::No {
            self.half_close = HalfClose::Wanted;
        }
    }

    /// Bytes queued and not yet handed to HTTP/2.
    pub(super) fn queued_bytes(&self) -> usize {
        self.outbox.iter().map(Bytes::len).sum()
    }

    /// Sends what can be sent and gives the next arrival. With `reads` off nothing is taken from
    /// the stream, and its window fills.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, reads: bool) -> Poll<Arrival> {
        self.flush(cx);
        if self.connection_end.is_none()
            && let Poll::Ready(ended) = self.poll_connection(cx)
        {
            self.connection_end = Some(match ended {
                Ok(()) => End::of(EndKind::Transport, "the gateway closed the connection"),
                Err(error) => failure("the connection", &error, &self.alert),
            });
        }
        if reads && let Poll::Ready(arrival) = self.poll_stream(cx) {
            // What the reading freed or ended has to reach the peer too.
            cx.waker().wake_by_ref();
            return Poll::Ready(arrival);
        }
        match &self.connection_end {
            Some(end) => Poll::Ready(Arrival::Ended(end.clone())),
            None => Poll::Pending,
        }
    }

    /// What one poll writes goes together, by another.
    fn poll_connection(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        if let Some(gathering) = &self.gathering {
            gathering.store(true, Ordering::Relaxed);
            let gathered = Pin::new(&mut self.connection).poll(cx);
            gathering.store(false, Ordering::Relaxed);
            if gathered.is_ready() {
                return gathered;
            }
        }
        Pin::new(&mut self.connection).poll(cx)
    }

    fn poll_stream(&mut self, cx: &mut Context<'_>) -> Poll<Arrival> {
        if let Some(response) = &mut self.response {
            match Pin::new(response).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return self.stream_failed(&error),
                Poll::Ready(Ok(answer)) => {
                    self.response = None;
                    let (head, body) = answer.into_parts();
                    if let Some(end) = End::from_headers(&head.headers) {
                        return Poll::Ready(Arrival::Ended(end));
                    }
                    self.body = Some(body);
                }
            }
        }
        loop {
            match self.deframer.next() {
                Ok(Some(message)) => return Poll::Ready(Arrival::Message(message)),
                Ok(None) => {}
                Err(error) => {
                    let end = End::of(EndKind::Transport, format!("the gateway's bytes: {error}"));
                    return Poll::Ready(Arrival::Ended(end));
                }
            }
            let Some(body) = &mut self.body else { return Poll::Pending };
            if self.body_over {
                return match body.poll_trailers(cx) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(Ok(trailers)) => {
                        let end = trailers.as_ref().and_then(End::from_headers);
                        let end = end.unwrap_or_else(|| {
                            End::of(EndKind::Transport, "the stream ended without a status")
                        });
                        Poll::Ready(Arrival::Ended(end))
                    }
                    Poll::Ready(Err(error)) => self.stream_failed(&error),
                };
            }
            match body.poll_data(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => self.body_over = true,
                Poll::Ready(Some(Ok(chunk))) => {
                    let _ = body.flow_control().release_capacity(chunk.len());
                    self.deframer.push(chunk);
                }
                Poll::Ready(Some(Err(error))) => return self.stream_failed(&error),
            }
        }
    }

    fn stream_failed(&self, error: &h2::Error) -> Poll<Arrival> {
        Poll::Ready(Arrival::Ended(failure("the stream", error, &self.alert)))
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        while let Some(front) = self.outbox.front_mut() {
            self.send.reserve_capacity(front.len());
            let room = self.send.capacity().min(front.len());
            if room < front.len().min(SMALLEST_PART) {
                match self.send.poll_capacity(cx) {
                    Poll::Ready(Some(Ok(_))) => continue,
                    Poll::Pending => return,
                    // The stream is closed; its end is told by the receiving side.
                    Poll::Ready(_) => return self.outbox.clear(),
                }
            }
            let part = front.split_to(room);
            if self.send.send_data(part, false).is_err() {
                return self.outbox.clear();
            }
            if front.is_empty() {
                self.outbox.pop_front();
            }
        }
        if self.half_close == HalfClose::Wanted {
            self.half_close = HalfClose::Done;
            let _ = self.send.send_data(Bytes::new(), true);
        }
    }
}

// The TLS layer knows better than HTTP/2 why a connection failed.
fn failure(doing: &str, error: &h2::Error, alert: &SeenAlert) -> End {
    let end = End::from_h2(doing, error);
    match alert.get() {
        Some(alert) => End { kind: EndKind::TlsAlert(alert.clone()), ..end },
        None => end,
    }
}

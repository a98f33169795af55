//! A client with no manners: any bytes over TLS, any frames over HTTP/2, any messages on a call.
//! For tests of what a gateway does with hostile peers.
//!
//! 1. It sends what it is told and judges nothing; it reads ends with their status or alert.

mod frames;

use std::io;
use std::time::Duration;

use bytes::Bytes;
use gateway_proto::framing::encode;
use gateway_proto::v1::{GatewayFrame, Hello, Lane, NodeFrame, node_frame::Frame};
use http::{HeaderMap, Request};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

pub use self::frames::*;
use crate::node::{Arrival, Call, End, EndKind, Target};

/// The path of a session.
pub const fn session_path() -> &'static str {
    gateway_proto::path::SESSION
}

/// A Hello with its prefix, of a node that has one lane and takes no command.
pub fn small_hello() -> Bytes {
    let lanes = vec![Lane { name: "default".to_owned(), capacity: 0 }];
    let hello = Hello {
        protocol: 1,
        boot_id: "boot".to_owned(),
        machine: "machine".to_owned(),
        lanes,
        ..Hello::default()
    };
    encode(&NodeFrame { frame: Some(Frame::Hello(hello)) })
}

/// A TLS connection for any bytes.
#[derive(Debug)]
pub struct RawConnection {
    stream: TlsStream<TcpStream>,
}

impl RawConnection {
    /// Opens it. A certificate that is refused shows later, at the first read.
    pub async fn open(target: &Target) -> Result<Self, End> {
        Ok(Self { stream: target.connect().await? })
    }

    /// Sends bytes.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Sends the preface and empty settings.
    pub async fn start_http2(&mut self) -> io::Result<()> {
        self.write(&http2_start()).await
    }

    /// The socket below.
    pub fn tcp(&self) -> &TcpStream {
        self.stream.get_ref().0
    }

    /// What comes next, at least a byte, or how the connection ended; an error too where nothing comes in
    /// that time.
    pub async fn read_some(&mut self, within: Duration) -> Result<Vec<u8>, End> {
        let mut buffer = vec![0u8; 16 << 10];
        match tokio::time::timeout(within, self.stream.read(&mut buffer)).await {
            Ok(Ok(length)) if length > 0 => {
                buffer.truncate(length);
                Ok(buffer)
            }
            Ok(Ok(_)) => Err(End::of(EndKind::Transport, "the gateway closed the connection")),
            Ok(Err(error)) => Err(End::from_io("reading", &error)),
            Err(_) => Err(End::of(EndKind::GatewaySilent, "nothing came")),
        }
    }

    /// Reads until the peer ends the connection; gives what came and how it ended. `None`: it
    /// still stands after `within`.
    pub async fn read_to_end(&mut self, within: Duration) -> (Vec<u8>, Option<End>) {
        let mut received = Vec::new();
        let reading = async {
            let mut buffer = [0u8; 4096];
            loop {
                match self.stream.read(&mut buffer).await {
                    Ok(0) => return End::of(EndKind::Transport, "the gateway closed the connection"),
                    Ok(length) => received.extend(buffer.iter().take(length)),
                    Err(error) => return End::from_io("reading", &error),
                }
            }
        };
        let end = tokio::time::timeout(within, reading).await.ok();
        (received, end)
    }

    /// Sends a request without a body, whatever it asks for; gives the answer's HTTP status and
    /// headers.
    pub async fn request(self, request: Request<()>) -> Result<(u16, HeaderMap), End> {
        let started = h2::client::handshake(self.stream).await;
        let (mut requests, connection) = started.map_err(|error| End::from_h2("starting HTTP/2", &error))?;
        let sent = requests.send_request(request, true);
        let (response, _) = sent.map_err(|error| End::from_h2("opening the stream", &error))?;
        tokio::select! {
            answer = response => {
                let (head, _) = answer.map_err(|error| End::from_h2("the stream", &error))?.into_parts();
                Ok((head.status.as_u16(), head.headers))
            }
            ended = connection => Err(match ended {
                Ok(()) => End::of(EndKind::Transport, "the gateway closed the connection"),
                Err(error) => End::from_h2("the connection", &error),
            }),
        }
    }

    /// Turns it into a well-formed call.
    pub async fn call(self, path: &str, headers: HeaderMap) -> Result<RawCall, End> {
        Ok(RawCall { call: Call::open(self.stream, path, headers).await? })
    }
}

/// A gRPC call for any messages.
#[derive(Debug)]
pub struct RawCall {
    call: Call,
}

impl RawCall {
    /// Opens a connection and a call on it.
    pub async fn open(target: &Target, path: &str, headers: HeaderMap) -> Result<Self, End> {
        Ok(Self { call: target.call(path, headers).await? })
    }

    /// Opens a connection and a session on it, which says nothing yet.
    pub async fn session(target: &Target) -> Result<Self, End> {
        Self::open(target, session_path(), HeaderMap::new()).await
    }

    /// Queues bytes as they are; they go out while the call is awaited.
    pub fn send_bytes(&mut self, bytes: impl Into<Bytes>) {
        self.call.queue(bytes.into());
    }

    /// Queues a well-formed frame.
    pub fn send(&mut self, frame: Frame) {
        self.call.queue(encode(&NodeFrame { frame: Some(frame) }));
    }

    /// Ends our half after what is queued.
    pub fn half_close(&mut self) {
        self.call.half_close();
    }

    /// Bytes queued that flow control has not let out.
    pub fn queued_bytes(&self) -> usize {
        self.call.queued_bytes()
    }

    /// The next arrival; `None` if there is none within that time.
    pub async fn next(&mut self, within: Duration) -> Option<Arrival> {
        let call = &mut self.call;
        tokio::time::timeout(within, std::future::poll_fn(|cx| call.poll(cx, true))).await.ok()
    }

    /// The next frame of the gateway, or how the call ended; `None` if neither came in time.
    pub async fn frame(&mut self, within: Duration) -> Option<Result<GatewayFrame, End>> {
        Some(match self.next(within).await? {
            Arrival::Message(message) => GatewayFrame::decode(message)
                .map_err(|error| End::of(EndKind::Transport, format!("not a GatewayFrame: {error}"))),
            Arrival::Ended(end) => Err(end),
        })
    }

    /// How the call ends; frames before it are passed over. `None`: it goes on after `within`.
    pub async fn end(&mut self, within: Duration) -> Option<End> {
        let deadline = tokio::time::Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            if let Arrival::Ended(end) = self.next(left).await? {
                return Some(end);
            }
        }
    }

    /// Keeps sending and reads nothing, for that long; `Some` if the connection ended in it.
    pub async fn send_only(&mut self, during: Duration) -> Option<End> {
        let call = &mut self.call;
        match tokio::time::timeout(during, std::future::poll_fn(|cx| call.poll(cx, false))).await {
            Ok(Arrival::Ended(end)) => Some(end),
            _ => None,
        }
    }
}

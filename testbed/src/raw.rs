//! A client with no manners: any bytes over TLS, any frames over HTTP/2, any messages on a call.
//! For tests of what a gateway does with hostile peers.
//!
//! 1. It sends what it is told and judges nothing; it reads ends with their status or alert.

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

use crate::node::{Arrival, Call, End, EndKind, Target};

/// What an HTTP/2 client says first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// HTTP/2 frame types.
pub mod frame_type {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// An HTTP/2 frame as bytes.
pub fn http2_frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A header block without compression; names and values under 127 bytes.
pub fn header_block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len().min(126)).unwrap_or(126));
            block.extend(text.as_bytes().iter().take(126));
        }
    }
    block
}

/// The header block of a gRPC call.
pub fn call_headers(path: &str) -> Vec<u8> {
    header_block(&[
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "gateway"),
        (":path", path),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ])
}

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
        let mut bytes = PREFACE.to_vec();
        bytes.extend(http2_frame(frame_type::SETTINGS, 0, 0, &[]));
        self.write(&bytes).await
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

//! A caller's side of a tunnel: opened at one gateway, frames both ways, until it is closed.
//!
//! The messages stand in `proto/proto/gateway/control/v1/control.proto`.
//!
//! 1. What is sent waits for the gateway to take it, so a slow node slows its caller.
//! 2. What is not taken here is not asked of the gateway, so a slow caller slows its node.
//! 3. A tunnel that ends without a word of the gateway was cut: that is an error, never a clean end.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gateway_proto::control::v1::TunnelOpen;
use gateway_proto::framing::{self, Deframer};
use gateway_proto::v1::{self, tunnel_frame::Frame};
use h2::{RecvStream, SendStream};
use http::header;
use prost::Message;

use super::lines::Line;
use super::{CallError, GatewayClient};

/// Longer than any open waits for its node, its keys and the date of its ticket.
pub(super) const OPENED_WITHIN: Duration = Duration::from_secs(75);
const LONGEST_MESSAGE: usize = 128 << 10;
/// Data in one message: with all heads it fits a DATA frame of the gateway's and two records of TLS, and divides windows.
const PIECE_BYTES: usize = (32 << 10) - 128;
/// A message does not leave in smaller parts than this. Gateways have windows of 64 KiB and more.
const SMALLEST_PART: usize = 4 << 10;
const TUNNEL_ID: &str = "gateway-tunnel-id";

/// The gateway, or the way to it, is gone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the tunnel was cut: {0}")]
pub struct TunnelCut(pub String);

/// What comes over a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    Data(Bytes),
    /// No data comes after it.
    HalfClose,
    /// How the node's program has ended.
    Exit {
        code: i32,
        message: String,
    },
    /// The last: a gRPC code and why.
    Closed {
        code: u32,
        message: String,
    },
}

/// An open tunnel.
#[derive(Debug)]
pub struct Tunnel {
    /// As `POST /v1/tunnels/close` takes it.
    pub id: String,
    pub sender: TunnelSender,
    pub receiver: TunnelReceiver,
}

/// The way to the node. When both ways are dropped the gateway sees its caller gone.
#[derive(Debug)]
pub struct TunnelSender {
    body: SendStream<Bytes>,
    _line: Arc<Line>,
}

/// The way from the node.
pub struct TunnelReceiver {
    body: RecvStream,
    deframer: Deframer,
    _line: Arc<Line>,
}

impl std::fmt::Debug for TunnelReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TunnelReceiver")
    }
}

impl GatewayClient {
    /// Opens a tunnel; resolves when its node has joined, or with the gateway's refusal.
    pub async fn open_tunnel(&self, open: &TunnelOpen) -> Result<Tunnel, CallError> {
        let line = Arc::new(self.line().await?);
        let opening = tokio::time::timeout(self.opened_within, Box::pin(self.opened(open, &line)));
        let outcome =
            opening.await.unwrap_or_else(|_| Err(self.unreachable("the open had no answer".to_owned())));
        if matches!(outcome, Err(CallError::Unreachable { .. })) {
            line.renounce();
        }
        outcome
    }

    async fn opened(&self, open: &TunnelOpen, line: &Arc<Line>) -> Result<Tunnel, CallError> {
        let failed = |error: h2::Error| self.unreachable(line.why(error));
        let mut request = self.request(http::Method::POST, "/v1/tunnels")?;
        request
            .headers_mut()
            .insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/grpc+proto"));
        let (response, body) = line.requests.clone().send_request(request, false).map_err(failed)?;
        let mut sender = TunnelSender { body, _line: Arc::clone(line) };
        sender.send(framing::encode(open)).await.map_err(|TunnelCut(why)| self.unreachable(line.why(why)))?;
        let response = response.await.map_err(failed)?;
        if !response.status().is_success() {
            return Err(self.refusal(response).await);
        }
        let id = response.headers().get(TUNNEL_ID).and_then(|id| id.to_str().ok());
        let id = id.unwrap_or_default().to_owned();
        let (body, deframer) = (response.into_body(), Deframer::new(LONGEST_MESSAGE));
        let receiver = TunnelReceiver { body, deframer, _line: Arc::clone(line) };
        Ok(Tunnel { id, sender, receiver })
    }
}

impl TunnelSender {
    /// Sends data, in pieces.
    pub async fn data(&mut self, mut data: Bytes) -> Result<(), TunnelCut> {
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(PIECE_BYTES));
            self.frame(Frame::Data(v1::TunnelData { data: piece })).await?;
        }
        Ok(())
    }

    /// Tells the size of the terminal.
    pub async fn window(&mut self, columns: u32, rows: u32) -> Result<(), TunnelCut> {
        self.frame(Frame::Window(v1::TunnelWindow { columns, rows })).await
    }

    /// No more data comes.
    pub async fn half_close(&mut self) -> Result<(), TunnelCut> {
        self.frame(Frame::HalfClose(v1::TunnelHalfClose {})).await
    }

    async fn frame(&mut self, frame: Frame) -> Result<(), TunnelCut> {
        self.send(framing::encode(&v1::TunnelFrame { frame: Some(frame) })).await
    }

    async fn send(&mut self, mut message: Bytes) -> Result<(), TunnelCut> {
        let cut = |error: h2::Error| TunnelCut(error.to_string());
        while !message.is_empty() {
            self.body.reserve_capacity(message.len());
            if self.body.capacity() < message.len().min(SMALLEST_PART) {
                match poll_fn(|context| self.body.poll_capacity(context)).await {
                    Some(room) => drop(room.map_err(cut)?),
                    None => return Err(TunnelCut("the gateway takes no more".to_owned())),
                }
                continue;
            }
            let part = message.split_to(self.body.capacity().min(message.len()));
            self.body.send_data(part, false).map_err(cut)?;
        }
        Ok(())
    }
}

impl TunnelReceiver {
    /// What comes next. After `Closed` nothing does.
    pub async fn next(&mut self) -> Result<Said, TunnelCut> {
        let cut = |why: &str| TunnelCut(why.to_owned());
        loop {
            while let Some(message) = self.deframer.next().map_err(|error| cut(&error.to_string()))? {
                let frame = v1::TunnelFrame::decode(message).map_err(|error| cut(&error.to_string()))?;
                match frame.frame {
                    Some(Frame::Data(v1::TunnelData { data })) => return Ok(Said::Data(data)),
                    Some(Frame::HalfClose(_)) => return Ok(Said::HalfClose),
                    Some(Frame::Exit(exit)) => {
                        return Ok(Said::Exit { code: exit.code, message: exit.message });
                    }
                    Some(Frame::Closed(closed)) => {
                        return Ok(Said::Closed { code: closed.code, message: closed.message });
                    }
                    Some(Frame::Hello(_) | Frame::Window(_)) | None => {}
                }
            }
            match self.body.data().await {
                Some(Ok(chunk)) => {
                    let _ = self.body.flow_control().release_capacity(chunk.len());
                    self.deframer.push(chunk);
                }
                Some(Err(error)) => return Err(cut(&error.to_string())),
                None => return Err(cut("it ended without a word")),
            }
        }
    }
}

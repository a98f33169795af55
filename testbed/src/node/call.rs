//! One call on one connection of its own, over whichever transport: where it is dialled, what is queued on it,
//! what comes.
//!
//! It is polled by one task, connection and streams together: a node costs one task and no thread.
//!
//! 1. A call says the same over every transport: messages that were queued with gRPC's prefix, a half-close,
//!    and at the end a gRPC status with its sentence and its delay.

mod gathered;
mod http2;
mod local;
mod websocket;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use gateway_proto::{http1, path};
use http::HeaderMap;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use self::http2::Http2Call;
use self::local::InProcess;
use self::websocket::WebSocketCall;
use super::end::End;

pub use self::local::{LocalCall, LocalGateway, Sent};

/// Longest message that a node takes.
pub(super) const LONGEST_MESSAGE: usize = 4 << 20;

/// What carries calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transport {
    /// gRPC over HTTP/2.
    #[default]
    Http2,
    /// HTTP/1.1: WebSocket for a session or a tunnel, a POST for what has one message each way.
    WebSocket,
}

/// Where and how to dial.
#[derive(Debug, Clone)]
pub struct Target {
    pub address: SocketAddr,
    /// The name that the gateway's certificate must carry.
    pub server_name: ServerName<'static>,
    pub tls: Arc<ClientConfig>,
    /// The address to dial from; `None`: the kernel's choice.
    pub source: Option<IpAddr>,
    pub transport: Transport,
}

impl Target {
    /// The gateway at `address`, whose certificate names that address.
    pub fn new(address: SocketAddr, tls: ClientConfig) -> Self {
        Self {
            address,
            server_name: ServerName::from(address.ip()),
            tls: Arc::new(tls),
            source: None,
            transport: Transport::Http2,
        }
    }

    /// The same, over that transport.
    pub fn over(self, transport: Transport) -> Self {
        Self { transport, ..self }
    }

    /// The same, dialled from `source`.
    pub fn from_source(self, source: IpAddr) -> Self {
        Self { source: Some(source), ..self }
    }

    async fn dial(&self) -> io::Result<TcpStream> {
        let Some(source) = self.source else { return TcpStream::connect(self.address).await };
        let socket = if source.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.bind(SocketAddr::new(source, 0))?;
        socket.connect(self.address).await
    }

    /// Opens a TLS connection.
    pub async fn connect(&self) -> Result<TlsStream<TcpStream>, End> {
        let tcp = self
            .dial()
            .await
            .map_err(|error| End::from_io(&format!("connecting to {}", self.address), &error))?;
        let _ = tcp.set_nodelay(true);
        TlsConnector::from(self.tls_of_transport())
            .connect(self.server_name.clone(), tcp)
            .await
            .map_err(|error| End::from_io("the TLS handshake", &error))
    }

    /// The transport is named in the handshake.
    fn tls_of_transport(&self) -> Arc<ClientConfig> {
        match self.transport {
            Transport::Http2 => Arc::clone(&self.tls),
            Transport::WebSocket => {
                let mut tls = ClientConfig::clone(&self.tls);
                tls.alpn_protocols = vec![b"http/1.1".to_vec()];
                Arc::new(tls)
            }
        }
    }

    /// Opens a connection and a call on it. Over WebSocket there are sessions and tunnels: what is no tunnel is a session.
    pub async fn call(&self, path: &str, headers: HeaderMap) -> Result<Call, End> {
        let tls = Box::pin(self.connect()).await?;
        match self.transport {
            Transport::Http2 => Box::pin(Call::open(tls, path, headers)).await,
            Transport::WebSocket => {
                let place = if path == path::TUNNEL { http1::TUNNEL } else { http1::SESSION };
                let call = Box::pin(WebSocketCall::open(tls, place, headers)).await?;
                Ok(Call(Carrier::WebSocket(Box::new(call))))
            }
        }
    }
}

/// What a call has for its owner.
#[derive(Debug)]
pub enum Arrival {
    /// A whole message.
    Message(Bytes),
    /// The call is over.
    Ended(End),
}

/// One call.
#[derive(Debug)]
pub struct Call(Carrier);

#[derive(Debug)]
enum Carrier {
    Http2(Box<Http2Call>),
    WebSocket(Box<WebSocketCall>),
    Local(InProcess),
}

impl Call {
    /// Starts HTTP/2 on `tls` and opens the call at `path`; `headers` are sent besides gRPC's own
    /// and win over them.
    pub async fn open(tls: TlsStream<TcpStream>, path: &str, headers: HeaderMap) -> Result<Self, End> {
        let call = Http2Call::open(tls, path, headers).await?;
        Ok(Self(Carrier::Http2(Box::new(call))))
    }

    /// Opens a session's call at a gateway in this process.
    pub fn within(gateway: &dyn LocalGateway, node: &str) -> Result<Self, End> {
        Ok(Self(Carrier::Local(InProcess::new(gateway.call(node)?))))
    }

    /// Queues bytes, normally one message with its prefix. To be followed by a poll.
    pub fn queue(&mut self, bytes: Bytes) {
        match &mut self.0 {
            Carrier::Http2(call) => call.queue(bytes),
            Carrier::WebSocket(call) => call.queue(bytes),
            Carrier::Local(call) => call.queue(&bytes),
        }
    }

    /// Ends our half once all that is queued was sent.
    pub fn half_close(&mut self) {
        match &mut self.0 {
            Carrier::Http2(call) => call.half_close(),
            Carrier::WebSocket(call) => call.half_close(),
            Carrier::Local(call) => call.half_close(),
        }
    }

    /// Bytes queued and not yet handed to the transport.
    pub fn queued_bytes(&self) -> usize {
        match &self.0 {
            Carrier::Http2(call) => call.queued_bytes(),
            Carrier::WebSocket(call) => call.queued_bytes(),
            Carrier::Local(call) => call.queued_bytes(),
        }
    }

    /// Sends what can be sent and gives the next arrival. With `reads` off nothing is taken from
    /// the stream, and its window fills.
    pub fn poll(&mut self, cx: &mut Context<'_>, reads: bool) -> Poll<Arrival> {
        match &mut self.0 {
            Carrier::Http2(call) => call.poll(cx, reads),
            Carrier::WebSocket(call) => call.poll(cx, reads),
            Carrier::Local(call) => call.poll(cx, reads),
        }
    }
}

//! A node as HTTP/2 sees it: TLS by rustls, streams by h2, frames as the test says.
//!
//! It keeps no rule of the protocol by itself, so a story can break any. Whatever it awaits has a
//! deadline, but for `next_or_wait`. A node that does keep the rules is the testbed's.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use gateway_proto::framing::{Deframer, encode};
use gateway_proto::v1::{self, gateway_frame, node_frame};
use gateway_proto::{header, path};
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use prost::Message;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::pki::NodeCertificate;
use super::soon;

/// A connection.
pub struct Client {
    requests: SendRequest<Bytes>,
    /// Ends with the connection.
    pub over: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

/// A call that was answered or is being answered.
pub struct Call {
    pub send: SendStream<Bytes>,
    pub body: RecvStream,
    pub headers: Response<()>,
    deframer: Deframer,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    pub status: u16,
    pub message: String,
    pub pushback_ms: Option<u64>,
}

pub fn tls_config(roots_pem: &[u8], certificate: Option<&NodeCertificate>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(roots_pem) {
        roots.add(root.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match certificate {
        None => builder.with_no_client_auth(),
        Some(certificate) => {
            builder.with_client_auth_cert(certificate.chain.clone(), certificate.key.clone_key()).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

pub async fn tls(
    addr: SocketAddr,
    roots: &[u8],
    certificate: Option<&NodeCertificate>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(addr).await?;
    tcp.set_nodelay(true)?;
    let connector = TlsConnector::from(tls_config(roots, certificate));
    connector.connect(ServerName::try_from("localhost").unwrap(), tcp).await
}

impl Client {
    pub async fn connect(
        addr: SocketAddr,
        roots: &[u8],
        certificate: Option<&NodeCertificate>,
    ) -> Result<Self, String> {
        Self::connect_with(addr, roots, certificate, &h2::client::Builder::new()).await
    }

    /// The same with HTTP/2 as `builder` says.
    pub async fn connect_with(
        addr: SocketAddr,
        roots: &[u8],
        certificate: Option<&NodeCertificate>,
        builder: &h2::client::Builder,
    ) -> Result<Self, String> {
        let tls = soon(tls(addr, roots, certificate)).await.map_err(|error| error.to_string())?;
        let handshake = builder.handshake(tls);
        let (requests, connection) = soon(handshake).await.map_err(|error| error.to_string())?;
        let requests = soon(requests.ready()).await.map_err(|error| error.to_string())?;
        Ok(Self { requests, over: tokio::task::spawn_local(connection) })
    }

    /// Opens a call; comes back with its headers.
    pub async fn call(&mut self, path: &str) -> Call {
        self.call_with(path, &[]).await
    }

    pub async fn call_with(&mut self, path: &str, headers: &[(&'static str, &'static str)]) -> Call {
        let mut request = Request::post(format!("https://localhost{path}"))
            .header("te", "trailers")
            .header("content-type", header::CONTENT_TYPE_GRPC);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(()).unwrap()).await
    }

    pub async fn send(&mut self, request: Request<()>) -> Call {
        let (response, send) = self.requests.send_request(request, false).unwrap();
        let response = soon(response).await.expect("the call is answered");
        let (head, body) = response.into_parts();
        Call { send, body, headers: Response::from_parts(head, ()), deframer: Deframer::new(4 << 20) }
    }

    /// Whether the gateway answers here at all: with TLS 1.3 a client learns of a refusal only when it reads.
    pub async fn is_answered(&mut self) -> bool {
        let request = Request::post(format!("https://localhost{}", path::JOIN))
            .header("content-type", header::CONTENT_TYPE_GRPC)
            .body(())
            .unwrap();
        match self.requests.send_request(request, true) {
            Ok((response, _)) => soon(response).await.is_ok(),
            Err(_) => false,
        }
    }

    /// Whether the gateway has said that it takes no new stream on this connection.
    pub async fn is_renounced(&self) -> bool {
        soon(self.requests.clone().ready()).await.is_err()
    }

    /// A session that was welcomed.
    pub async fn session(&mut self) -> (Call, v1::Welcome) {
        let mut call = self.call(path::SESSION).await;
        call.frame(node_frame::Frame::Hello(hello()));
        let welcome = match call.next().await {
            Some(gateway_frame::Frame::Welcome(welcome)) => welcome,
            other => panic!("expected Welcome, got {other:?}, then {:?}", call.end().await),
        };
        (call, welcome)
    }
}

impl Call {
    pub fn frame(&mut self, frame: node_frame::Frame) {
        self.raw(encode(&v1::NodeFrame { frame: Some(frame) }));
    }

    pub fn raw(&mut self, bytes: impl Into<Bytes>) {
        self.send.send_data(bytes.into(), false).unwrap();
    }

    pub fn half_close(&mut self) {
        self.send.send_data(Bytes::new(), true).unwrap();
    }

    pub fn heartbeat(&mut self, sequence: u64) {
        self.frame(node_frame::Frame::Heartbeat(v1::Heartbeat { sequence, ..v1::Heartbeat::default() }));
    }

    pub async fn message<M: Message + Default>(&mut self) -> Option<M> {
        loop {
            if let Some(message) = self.deframer.next().unwrap() {
                return Some(M::decode(message).unwrap());
            }
            let chunk = soon(self.body.data()).await?.ok()?;
            self.body.flow_control().release_capacity(chunk.len()).unwrap();
            self.deframer.push(chunk);
        }
    }

    /// The next frame; `None` at the stream's end.
    pub async fn next(&mut self) -> Option<gateway_frame::Frame> {
        self.message::<v1::GatewayFrame>().await.map(|frame| frame.frame.expect("a known arm"))
    }

    /// The next frame, however long it takes.
    pub async fn next_or_wait(&mut self) -> Option<gateway_frame::Frame> {
        loop {
            if let Some(message) = self.deframer.next().unwrap() {
                return v1::GatewayFrame::decode(message).unwrap().frame;
            }
            let chunk = self.body.data().await?.ok()?;
            self.body.flow_control().release_capacity(chunk.len()).unwrap();
            self.deframer.push(chunk);
        }
    }

    /// Reads little by little, for as long as there is something: a part of what the window holds, a pause.
    pub async fn sip(&mut self, pause: std::time::Duration) {
        while let Some(Ok(chunk)) = self.body.data().await {
            tokio::time::sleep(pause).await;
            let _ = self.body.flow_control().release_capacity(chunk.len());
        }
    }

    /// How the call ends, whatever comes before.
    pub async fn end(&mut self) -> End {
        self.try_end().await.expect("the stream ends with a status")
    }

    /// The same; `Err` where the stream is cut without one.
    pub async fn try_end(&mut self) -> Result<End, h2::Error> {
        if self.headers.headers().contains_key(header::GRPC_STATUS) {
            return Ok(End::read(self.headers.headers()));
        }
        while let Some(chunk) = soon(self.body.data()).await {
            let length = chunk?.len();
            self.body.flow_control().release_capacity(length)?;
        }
        let trailers = soon(self.body.trailers()).await?;
        Ok(End::read(&trailers.expect("a stream ends with trailers")))
    }
}

impl End {
    fn read(map: &HeaderMap) -> Self {
        let text = |name: &str| map.get(name).map(|value| value.to_str().unwrap().to_owned());
        Self {
            status: text(header::GRPC_STATUS).expect("a status").parse().unwrap(),
            message: text(header::GRPC_MESSAGE).unwrap_or_default(),
            pushback_ms: text(header::RETRY_PUSHBACK_MS).map(|ms| ms.parse().unwrap()),
        }
    }
}

pub fn hello() -> v1::Hello {
    v1::Hello {
        protocol: 1,
        boot_id: "boot-1".to_owned(),
        machine: "machine-1".to_owned(),
        software_version: "1.0".to_owned(),
        role: "worker".to_owned(),
        lanes: vec![v1::Lane { name: "default".to_owned(), capacity: 16 }],
        ..v1::Hello::default()
    }
}

/// An update of a command that is `number`.
pub fn update(frame_ref: u64, number: u8, result: usize) -> node_frame::Frame {
    node_frame::Frame::CommandUpdate(v1::CommandUpdate {
        r#ref: frame_ref,
        command_id: Bytes::copy_from_slice(&[number; 16]),
        attempt: 1,
        state: v1::CommandState::Succeeded as i32,
        result: vec![7; result].into(),
        ..v1::CommandUpdate::default()
    })
}

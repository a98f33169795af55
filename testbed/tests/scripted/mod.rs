//! A gateway that does what a test tells it, over the same TLS and HTTP/2 that a real one uses.
//! It is there to ask of a node what a well-behaved gateway never would.
//!
//! It decides nothing: it hands a test each session that is opened and each frame that comes, and sends
//! what it is told to, or ends the stream, or cuts the connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gateway_proto::framing::{Deframer, encode};
use gateway_proto::v1::{GatewayFrame, Hello, NodeFrame, Welcome, gateway_frame, node_frame};
use gateway_testbed::pki::Pki;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use prost::Message;
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct ScriptedGateway {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl ScriptedGateway {
    pub(crate) async fn new(pki: &Pki) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(pki.node_ca_pem().as_bytes()).unwrap()).unwrap();
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let identity = pki.server().unwrap();
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_client_cert_verifier(clients.build().unwrap())
            .with_single_cert(vec![identity.certificate().clone()], identity.key())
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { listener, acceptor: TlsAcceptor::from(Arc::new(config)) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// The next session that is opened.
    pub(crate) async fn session(&self) -> ScriptedSession {
        tokio::time::timeout(PATIENCE, async {
            let (tcp, _) = self.listener.accept().await.unwrap();
            let mut connection =
                h2::server::handshake(self.acceptor.accept(tcp).await.unwrap()).await.unwrap();
            let (tell, mut told) = mpsc::channel::<(Request<RecvStream>, SendResponse<Bytes>)>(1);
            let driver = tokio::spawn(async move {
                while let Some(Ok(request)) = connection.accept().await {
                    let _ = tell.send(request).await;
                }
            });
            let (request, answer) = told.recv().await.expect("a call");
            ScriptedSession {
                body: request.into_body(),
                answer: Some(answer),
                send: None,
                deframer: Deframer::new(1 << 20),
                driver,
            }
        })
        .await
        .expect("a session is opened")
    }
}

pub(crate) struct ScriptedSession {
    body: RecvStream,
    answer: Option<SendResponse<Bytes>>,
    send: Option<SendStream<Bytes>>,
    deframer: Deframer,
    driver: JoinHandle<()>,
}

impl ScriptedSession {
    /// The next frame; `None` at the end of the node's half.
    pub(crate) async fn frame(&mut self) -> Option<node_frame::Frame> {
        let next = async {
            loop {
                if let Some(message) = self.deframer.next().unwrap() {
                    return NodeFrame::decode(message).unwrap().frame;
                }
                let chunk = self.body.data().await?.ok()?;
                let _ = self.body.flow_control().release_capacity(chunk.len());
                self.deframer.push(chunk);
            }
        };
        tokio::time::timeout(PATIENCE, next).await.expect("a frame comes")
    }

    pub(crate) async fn hello(&mut self) -> Hello {
        match self.frame().await {
            Some(node_frame::Frame::Hello(hello)) => hello,
            other => panic!("a Hello must come first, not {other:?}"),
        }
    }

    /// The next update; beats before it are passed over.
    pub(crate) async fn update(&mut self) -> gateway_proto::v1::CommandUpdate {
        loop {
            match self.frame().await {
                Some(node_frame::Frame::CommandUpdate(update)) => return update,
                Some(node_frame::Frame::Heartbeat(_)) => {}
                other => panic!("an update must come, not {other:?}"),
            }
        }
    }

    pub(crate) fn send(&mut self, frame: gateway_frame::Frame) {
        if let Some(mut answer) = self.answer.take() {
            let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
            self.send = Some(answer.send_response(head, false).unwrap());
        }
        let frame = encode(&GatewayFrame { frame: Some(frame) });
        self.send.as_mut().unwrap().send_data(frame, false).unwrap();
    }

    pub(crate) fn welcome(&mut self, epoch: u64, heartbeat: Duration) {
        self.send(gateway_frame::Frame::Welcome(Welcome {
            protocol: 1,
            session_epoch: epoch,
            heartbeat_interval_ms: u32::try_from(heartbeat.as_millis()).unwrap(),
            ..Welcome::default()
        }));
    }

    /// Ends the stream with a status.
    pub(crate) fn end(&mut self, status: u32, pushback: Option<Duration>) {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", status.into());
        if let Some(pushback) = pushback {
            let ms = u64::try_from(pushback.as_millis()).unwrap();
            trailers.insert("grpc-retry-pushback-ms", ms.into());
        }
        match self.answer.take() {
            // Trailers-only, as for a stream that is refused.
            Some(mut answer) => {
                let mut head =
                    Response::builder().header("content-type", "application/grpc").body(()).unwrap();
                head.headers_mut().extend(trailers);
                answer.send_response(head, true).unwrap();
            }
            None => self.send.as_mut().unwrap().send_trailers(trailers).unwrap(),
        }
    }

    /// Cuts the connection.
    pub(crate) fn cut(self) {
        self.driver.abort();
    }
}

//! A server that does mutual TLS and nothing else, or HTTP/2 and pushes on top of it, and its clients: what a
//! storm of handshakes, or a frame to everybody, costs on this machine without a gateway.
//!
//! 1. It verifies clients as a gateway does: TLS 1.3, no resumption, a certificate of the node CA.
//! 2. `serve` sends one byte once a client is verified, then waits for its end.
//! 3. `serve_pushes` answers one call of each client, and sends the same frame to all when it is told to.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use gateway_proto::framing;
use gateway_proto::header;
use gateway_proto::v1::{Command, GatewayFrame, gateway_frame};
use h2::server::SendResponse;
use http::{HeaderMap, Response};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::client::TlsStream;

use crate::node::{Arrival, Call, End, EndKind, Target};

/// As many as a gateway's own listener asks for.
const BACKLOG: u32 = 8192;

/// The server.
pub struct BareServer {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl std::fmt::Debug for BareServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BareServer").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl BareServer {
    /// Listens; needs a tokio runtime.
    pub fn bind(listen: SocketAddr, certificate: &Path, key: &Path, node_ca: &Path) -> io::Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(node_ca).map_err(io::Error::other)?)
            .map_err(io::Error::other)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let verifier = verifier.build().map_err(io::Error::other)?;
        let chain = vec![CertificateDer::from_pem_file(certificate).map_err(io::Error::other)?];
        let key = PrivateKeyDer::from_pem_file(key).map_err(io::Error::other)?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(io::Error::other)?;
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![b"h2".to_vec()];
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(listen)?;
        Ok(Self { listener: socket.listen(BACKLOG)?, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    /// Serves for ever. A connection that can't be accepted is the client's loss.
    pub async fn serve(self) {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else { continue };
            let acceptor = self.acceptor.clone();
            tokio::spawn(async move {
                let _ = greet(&acceptor, stream).await;
            });
        }
    }
}

impl BareServer {
    /// Serves for ever: each change of `turns` is a frame with that many bytes of payload to every client.
    pub async fn serve_pushes(self, turns: watch::Receiver<u64>, payload_bytes: usize) {
        let frame = push_frame(payload_bytes);
        loop {
            let Ok((stream, _)) = self.listener.accept().await else { continue };
            let (acceptor, turns, frame) = (self.acceptor.clone(), turns.clone(), frame.clone());
            tokio::spawn(async move {
                let _ = push_to(&acceptor, stream, turns, frame).await;
            });
        }
    }
}

/// What is pushed: a command with that many bytes of payload, as a gateway frames it.
pub fn push_frame(payload_bytes: usize) -> Bytes {
    let command = Command {
        command_id: Bytes::from_static(&[7; 16]),
        kind: "bench".to_owned(),
        lane: "default".to_owned(),
        payload: vec![b'x'; payload_bytes].into(),
        seq: 1,
        attempt: 1,
        ..Command::default()
    };
    framing::encode(&GatewayFrame { frame: Some(gateway_frame::Frame::Command(command)) })
}

async fn push_to(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    mut turns: watch::Receiver<u64>,
    frame: Bytes,
) -> io::Result<()> {
    let _ = stream.set_nodelay(true);
    let stream = acceptor.accept(stream).await?;
    let mut connection = h2::server::handshake(stream).await.map_err(io::Error::other)?;
    let call = connection.accept().await.ok_or(io::ErrorKind::UnexpectedEof)?;
    let (request, mut respond): (_, SendResponse<Bytes>) = call.map_err(io::Error::other)?;
    let mut head = Response::new(());
    head.headers_mut().insert("content-type", http::HeaderValue::from_static(header::CONTENT_TYPE_GRPC));
    let mut send = respond.send_response(head, false).map_err(io::Error::other)?;
    // From here on no turn is missed, and the client is told so by a first frame.
    turns.mark_unchanged();
    send.send_data(frame.clone(), false).map_err(io::Error::other)?;
    loop {
        tokio::select! {
            // Drives the connection; no other call is answered.
            more = connection.accept() => if more.is_none() { break },
            changed = turns.changed() => {
                changed.map_err(io::Error::other)?;
                send.send_data(frame.clone(), false).map_err(io::Error::other)?;
            }
        }
    }
    drop(request);
    Ok(())
}

/// One client of `serve_pushes`, whose call stands.
#[derive(Debug)]
pub struct PushClient(Call);

impl PushClient {
    /// Dials and opens the call; every turn from now on is a frame.
    pub async fn open(target: &Target) -> Result<Self, End> {
        let mut client = Self(target.call("/bare/Push", HeaderMap::new()).await?);
        client.pushed().await?;
        Ok(client)
    }

    /// The next frame.
    pub async fn pushed(&mut self) -> Result<Bytes, End> {
        match std::future::poll_fn(|cx| self.0.poll(cx, true)).await {
            Arrival::Message(message) => Ok(message),
            Arrival::Ended(end) => Err(end),
        }
    }
}

async fn greet(acceptor: &TlsAcceptor, stream: TcpStream) -> io::Result<()> {
    let _ = stream.set_nodelay(true);
    let mut stream = acceptor.accept(stream).await?;
    stream.write_all(b"!").await?;
    stream.flush().await?;
    stream.read(&mut [0]).await.map(drop)
}

/// One client's handshake, until the server's byte.
pub async fn greeting(target: &Target) -> Result<TlsStream<TcpStream>, End> {
    let mut stream = target.connect().await?;
    match stream.read_exact(&mut [0]).await {
        Ok(_) => Ok(stream),
        Err(error) => Err(End {
            kind: EndKind::Transport,
            message: format!("waiting for the bare server: {error}"),
            pushback: None,
            was_welcomed: false,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::Pki;

    #[tokio::test]
    async fn a_node_is_greeted_and_one_without_a_certificate_is_not() {
        let (pki, folder) = (Pki::new().unwrap(), tempfile::tempdir().unwrap());
        let files = pki.write_gateway_files(folder.path()).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let server = BareServer::bind(free, &files.certificate, &files.key, &files.node_ca).unwrap();
        let serving = tokio::spawn(server.serve());
        let node = pki.node("n").unwrap();
        greeting(&Target::new(free, pki.client_config(Some(&node)).unwrap())).await.unwrap();
        greeting(&Target::new(free, pki.client_config(None).unwrap())).await.unwrap_err();
        serving.abort();
    }

    #[tokio::test]
    async fn each_turn_is_a_frame_to_every_client() {
        let (pki, folder) = (Pki::new().unwrap(), tempfile::tempdir().unwrap());
        let files = pki.write_gateway_files(folder.path()).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let server = BareServer::bind(free, &files.certificate, &files.key, &files.node_ca).unwrap();
        let (turn, turns) = watch::channel(0);
        let serving = tokio::spawn(server.serve_pushes(turns, 128));
        let mut clients = Vec::new();
        for name in ["a", "b"] {
            let node = pki.node(name).unwrap();
            let target = Target::new(free, pki.client_config(Some(&node)).unwrap());
            clients.push(PushClient::open(&target).await.unwrap());
        }
        for number in 1..=2 {
            turn.send_replace(number);
            for client in &mut clients {
                let pushed = tokio::time::timeout(std::time::Duration::from_secs(20), client.pushed());
                let message = pushed.await.unwrap().unwrap();
                assert_eq!(message.len() + framing::PREFIX_BYTES, push_frame(128).len());
            }
        }
        serving.abort();
    }
}

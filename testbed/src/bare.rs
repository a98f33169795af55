//! A server that does mutual TLS and nothing else, and its clients: what a storm of handshakes costs on
//! this machine without a gateway.
//!
//! 1. It verifies clients as a gateway does: TLS 1.3, no resumption, a certificate of the node CA.
//! 2. It sends one byte once a client is verified, then waits for its end.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::client::TlsStream;

use crate::node::{End, EndKind, Target};

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
}

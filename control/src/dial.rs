//! A dial to what speaks HTTP/2 with internal mTLS: a service behind the gateway, or a gateway's control API.
//!
//! Owns how a connection is made; who keeps it, and what goes over it, is the caller's.
//!
//! 1. Both sides prove themselves, TLS 1.3, ALPN `h2`; what the files hold now is used.
//! 2. A task of its own drives the connection, until both sides have let go of it.

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::relay::{UpstreamAddress, UpstreamFiles};

/// What a peer may send of one answer before it is taken, and of all together: answers that wait, such as tunnels
/// whose caller is slow, hold up no other.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
/// The largest DATA frame: the data of a tunnel comes in few large ones.
const FRAME_BYTES: u32 = 64 << 10;
/// One read of a socket, where TLS by itself takes 4 KiB.
const READ_BYTES: usize = 64 << 10;

/// A connection that takes requests; the error says where it failed.
pub(crate) async fn dial(
    address: &UpstreamAddress,
    files: &UpstreamFiles,
) -> Result<SendRequest<Bytes>, String> {
    let config = files.client_config().map_err(|error| error.to_string())?;
    let tcp = TcpStream::connect((address.host(), address.port()))
        .await
        .map_err(|error| format!("connecting: {error}"))?;
    // Only latency is lost without it.
    let _ = tcp.set_nodelay(true);
    let tls = TlsConnector::from(config)
        .connect(address.server_name(), BufReader::with_capacity(READ_BYTES, tcp))
        .await
        .map_err(|error| format!("the TLS handshake: {error}"))?;
    if tls.get_ref().1.alpn_protocol() != Some(b"h2") {
        return Err("it speaks no HTTP/2 (ALPN h2)".to_owned());
    }
    let (requests, connection) = h2::client::Builder::new()
        .enable_push(false)
        .header_table_size(0)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .max_header_list_size(16 << 10)
        .handshake(tls)
        .await
        .map_err(|error| format!("starting HTTP/2: {error}"))?;
    tokio::spawn(async move {
        // How it ended is found by the next call.
        let _ = connection.await;
    });
    requests.ready().await.map_err(|error| format!("starting HTTP/2: {error}"))
}

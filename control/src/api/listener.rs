//! The connections of the API: accepted, proved, and bounded.
//!
//! Never looks into a request: what a call does is in `calls`.
//!
//! 1. At most `MAX_CONNECTIONS` at once, in handshake or open; more wait in the backlog. Each has at most
//!    `MAX_STREAMS` calls open, header lists of `MAX_HEADER_BYTES`, and what is sent to it waits in at most
//!    the window of tunnels a call: flow control holds back who sends, and who is sent to.
//! 2. A connection has no longest life, since the body of a call may be a tunnel; one whose peer is gone is
//!    found by a ping within `PING_EVERY + PING_ANSWERED_WITHIN`.
//! 3. A handshake takes at most `HANDSHAKE_WITHIN`.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use super::{ApiConfig, ApiState, ApiTls, Caller, Shards, forbidden, router, tls};
use crate::status::Status;
use crate::tunnel::TunnelDoor;

const MAX_CONNECTIONS: usize = 128;
const MAX_STREAMS: u32 = 256;
const MAX_HEADER_BYTES: u32 = 16 << 10;
/// What a peer may send of one call before it is read, and what may wait to be sent to it, where the window of tunnels
/// is not larger. Of all calls of a connection it may send that of each: those that are not read, as tunnels to
/// slow nodes, hold up no other.
const LEAST_WINDOW_BYTES: u32 = 64 << 10;
/// The largest DATA frame: the data of a tunnel comes in few large ones, yet each is memory that another thread gives
/// back, which the allocator does not soon find again where it is larger.
const FRAME_BYTES: u32 = 32 << 10;
/// One read of a socket, where TLS by itself takes 4 KiB.
const READ_BYTES: usize = 64 << 10;
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_ANSWERED_WITHIN: Duration = Duration::from_secs(20);
/// Between accepts that fail (no descriptor left), so that the thread does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves for ever.
pub(crate) async fn serve(
    listener: TcpListener,
    config: ApiConfig,
    status: Arc<dyn Status>,
    tunnels: Option<TunnelDoor>,
) {
    let ApiConfig { tls, clients, drain_within, desk, to_shards, started, .. } = config;
    let shards = Arc::new(Shards::new(to_shards, started));
    let window_bytes = tunnels.as_ref().map_or(0, TunnelDoor::window_bytes).max(LEAST_WINDOW_BYTES);
    let router = router(ApiState { status, desk, drain_within, shards, tunnels });
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let (clients, router) = (Arc::clone(&clients), router.clone());
                let door = Door { tls: tls.clone(), clients, router, window_bytes };
                drop(tokio::spawn(serve_connection(stream, door, place)));
            }
            Err(error) => {
                tracing::warn!(%error, "control: a connection of the API can't be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// What a connection is served by.
struct Door {
    tls: watch::Receiver<Arc<ApiTls>>,
    clients: Arc<[String]>,
    router: Router,
    window_bytes: u32,
}

async fn serve_connection(stream: TcpStream, door: Door, _place: OwnedSemaphorePermit) {
    // Only latency is lost without it.
    let _ = stream.set_nodelay(true);
    let stream = BufReader::with_capacity(READ_BYTES, stream);
    let acceptor = TlsAcceptor::from(door.tls.borrow().server_config());
    // Who can't prove itself ends its own connection and concerns nobody else; the alert has told it why.
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_WITHIN, acceptor.accept(stream)).await else {
        return;
    };
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let names: Arc<[String]> = shown.map(tls::names).unwrap_or_default().into();
    let may_call = door.clients.is_empty() || names.iter().any(|name| door.clients.contains(name));
    let router = if may_call { door.router } else { forbidden() }.layer(axum::Extension(Caller { names }));
    let connection =
        builder(door.window_bytes).serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let _ = connection.await;
}

fn builder(window_bytes: u32) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .initial_stream_window_size(window_bytes)
        .initial_connection_window_size(MAX_STREAMS * window_bytes)
        .max_frame_size(FRAME_BYTES)
        .max_send_buf_size(window_bytes as usize)
        .header_table_size(0)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_ANSWERED_WITHIN);
    builder
}

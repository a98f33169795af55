//! What tunnels are held against: relays of the same bytes over the same TLS that do nothing else.
//!
//! Each has a source and a sink, as tasks of the caller's runtime, and a relay on a thread of its own. `bare` speaks
//! nothing over TLS: two buffers are all that it has. `over_http2` carries the bytes in DATA frames on both of
//! its ways, which is what any relay of gRPC pays before it does anything of its own.
//!
//! 1. Neither looks into what it carries, checks anything, or leaves its thread.
//! 2. Bytes are counted at the sink, from the first read on.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use super::{PIECE_BYTES, rate, threads};
use crate::support::tunnels::TunnelStage;
use crate::support::{SOON, within};

const SPACE_BYTES: usize = 64 << 10;

/// The TLS of both sides.
#[derive(Clone)]
pub struct Sides {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl Sides {
    pub fn of(stage: &TunnelStage) -> Self {
        Self {
            acceptor: TlsAcceptor::from(Arc::new(stage.world.pki.internal_server_config().unwrap())),
            connector: TlsConnector::from(stage.files.client_config().unwrap()),
        }
    }

    async fn accept(&self, listener: &TcpListener) -> server::TlsStream<TcpStream> {
        let tcp = listener.accept().await.unwrap().0;
        tcp.set_nodelay(true).unwrap();
        self.acceptor.accept(tcp).await.unwrap()
    }

    async fn connect(&self, address: SocketAddr) -> client::TlsStream<TcpStream> {
        let tcp = TcpStream::connect(address).await.unwrap();
        tcp.set_nodelay(true).unwrap();
        self.connector.connect(ServerName::try_from("localhost").unwrap(), tcp).await.unwrap()
    }
}

/// What a relay has done.
#[derive(Debug, Clone, Copy)]
pub struct Carried {
    /// Megabytes a second.
    pub rate: f64,
    /// What its thread has used of a processor for a megabyte, in microseconds.
    pub micros: f64,
}

/// Runs a relay on a thread of its own; gives where it listens, and at its end what the thread has used.
fn relay<F: Future<Output = ()>>(
    serve: impl FnOnce(TcpListener) -> F + Send + 'static,
) -> (SocketAddr, std::thread::JoinHandle<Duration>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::Builder::new().name("yardstick".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move { serve(TcpListener::from_std(listener).unwrap()).await });
        threads::used_here()
    });
    (address, thread.unwrap())
}

/// Through a relay of plain bytes.
pub async fn bare(sides: &Sides, bytes: u64) -> Carried {
    let source = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let source_address = source.local_addr().unwrap();
    let of_source = sides.clone();
    let sourcing = tokio::spawn(async move {
        let mut stream = of_source.accept(&source).await;
        let piece = vec![b'x'; PIECE_BYTES];
        let mut left = bytes;
        while left > 0 {
            let some = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
            stream.write_all(&piece[..some]).await.unwrap();
            left -= some as u64;
        }
        stream.shutdown().await.unwrap();
    });
    let of_relay = sides.clone();
    let (relay_address, relaying) = relay(async move |listener| {
        let mut down = of_relay.accept(&listener).await;
        let mut up = of_relay.connect(source_address).await;
        let mut space = vec![0; SPACE_BYTES];
        loop {
            let some = up.read(&mut space).await.unwrap();
            if some == 0 {
                break;
            }
            down.write_all(&space[..some]).await.unwrap();
        }
        down.shutdown().await.unwrap();
    });
    let mut stream = sides.connect(relay_address).await;
    let sinking = tokio::spawn(async move {
        let (began, mut received) = (Instant::now(), 0u64);
        let mut space = vec![0; SPACE_BYTES];
        while received < bytes {
            received += within(SOON, "data", stream.read(&mut space)).await.unwrap() as u64;
        }
        rate(bytes, began.elapsed())
    });
    let rate = sinking.await.unwrap();
    sourcing.await.unwrap();
    let used = relaying.join().unwrap();
    Carried { rate, micros: used.as_secs_f64() * 1e6 / (bytes as f64 / 1e6) }
}

/// Through a relay whose both ways are HTTP/2, with windows of so many bytes.
pub async fn over_http2(sides: &Sides, bytes: u64, window: u32) -> Carried {
    let source = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let source_address = source.local_addr().unwrap();
    let of_source = sides.clone();
    let sourcing = tokio::spawn(async move {
        let (mut stream, driving) = served(of_source.accept(&source).await, window).await;
        let piece = Bytes::from(vec![b'x'; PIECE_BYTES]);
        let mut left = bytes;
        while left > 0 {
            let some = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
            send(&mut stream, piece.slice(..some)).await;
            left -= some as u64;
        }
        stream.send_data(Bytes::new(), true).unwrap();
        driving.await.unwrap();
    });
    let of_relay = sides.clone();
    let (relay_address, relaying) = relay(async move |listener| {
        let (mut down, driving) = served(of_relay.accept(&listener).await, window).await;
        let mut up = asked(of_relay.connect(source_address).await, window).await;
        while let Some(chunk) = up.data().await {
            let chunk = chunk.unwrap();
            up.flow_control().release_capacity(chunk.len()).unwrap();
            send(&mut down, chunk).await;
        }
        down.send_data(Bytes::new(), true).unwrap();
        drop(up);
        driving.await.unwrap();
    });
    let mut body = asked(sides.connect(relay_address).await, window).await;
    let sinking = tokio::spawn(async move {
        let (began, mut received) = (Instant::now(), 0u64);
        while received < bytes {
            let chunk = within(SOON, "data", body.data()).await.unwrap().unwrap();
            body.flow_control().release_capacity(chunk.len()).unwrap();
            received += chunk.len() as u64;
        }
        rate(bytes, began.elapsed())
    });
    let rate = sinking.await.unwrap();
    sourcing.await.unwrap();
    let used = relaying.join().unwrap();
    Carried { rate, micros: used.as_secs_f64() * 1e6 / (bytes as f64 / 1e6) }
}

/// The answer of the one call that comes over this connection, and what drives it.
async fn served(
    tls: server::TlsStream<TcpStream>,
    window: u32,
) -> (SendStream<Bytes>, tokio::task::JoinHandle<()>) {
    let mut connection = h2::server::Builder::new()
        .initial_window_size(window)
        .initial_connection_window_size(window)
        .max_send_buffer_size(window as usize)
        .handshake::<_, Bytes>(tls)
        .await
        .unwrap();
    let (_request, mut respond) = connection.accept().await.unwrap().unwrap();
    let stream = respond.send_response(http::Response::new(()), false).unwrap();
    // It ends with its peer.
    let driving = tokio::spawn(async move { while let Some(Ok(_)) = connection.accept().await {} });
    (stream, driving)
}

/// The body of the answer to a call over this connection.
async fn asked(tls: client::TlsStream<TcpStream>, window: u32) -> RecvStream {
    let (mut requests, connection) = h2::client::Builder::new()
        .initial_window_size(window)
        .initial_connection_window_size(window)
        .handshake::<_, Bytes>(tls)
        .await
        .unwrap();
    // It ends with the last that is held of it.
    drop(tokio::spawn(async move { drop(connection.await) }));
    let request = http::Request::get("https://localhost/").body(()).unwrap();
    let (response, _) = requests.send_request(request, true).unwrap();
    response.await.unwrap().into_body()
}

async fn send(stream: &mut SendStream<Bytes>, mut data: Bytes) {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = match stream.capacity() {
            0 => poll_fn(|context| stream.poll_capacity(context)).await.unwrap().unwrap(),
            room => room,
        };
        let part = data.split_to(room.min(data.len()));
        if !part.is_empty() {
            stream.send_data(part, false).unwrap();
        }
    }
}

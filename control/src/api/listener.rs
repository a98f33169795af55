//! The connections of the API: accepted, proved, bounded, and ended.
//!
//! Never looks into a request: what a call does is in `calls`. `streams` has what is open on a connection.
//!
//! 1. Who proves itself does so within `HANDSHAKE_WITHIN`; `handshakes` has how many may at once. While none may begin,
//!    nothing is accepted.
//! 2. Only who may call gets a place: `MAX_CONNECTIONS` in all, `MAX_OF_ONE` of one name. Whoever may not, or finds
//!    none, is answered why, once, and has `AWAY_WITHIN`; of those there are `MAX_AWAY`, and one more ends the oldest.
//! 3. Each has at most `MAX_STREAMS` calls open, header lists of `MAX_HEADER_BYTES`, and what is sent to it waits in
//!    at most the window of tunnels a call: flow control holds back who sends, and who is sent to.
//! 4. A connection has no longest life, since the body of a call may be a tunnel. It takes no more calls, and ends with
//!    the last that is open, when none was for `IDLE_FOR`, when its certificate has expired, or when the CA of clients
//!    was replaced by one that does not vouch for it. A peer that is gone is found by a ping within twice
//!    `ApiConfig::ping_every`, and what it had is given back.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::server::Acceptor;
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::AbortHandle;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::handshakes::{self, Handshakes, Peer};
use super::refusal::{Refusal, RefusalWord};
use super::streams::{Patience, Streams};
use super::{ApiConfig, ApiState, ApiTls, Caller, Shards, Share, answers, router, tls, tunnels, turned_away};
use crate::socket::buffered;
use crate::status::Status;
use crate::strangers::Strangers;
use crate::tunnel::TunnelDoor;

const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
const MAX_CONNECTIONS: usize = 128;
/// The others are left for whoever must drain or revoke while one service has gone wild.
const MAX_OF_ONE: usize = 96;
const MAX_AWAY: usize = 32;
const AWAY_WITHIN: Duration = Duration::from_secs(10);
/// Once who is turned away has nothing open.
const AWAY_AFTER: Duration = Duration::from_millis(50);
const IDLE_FOR: Duration = Duration::from_secs(60);
/// A call may take longer than any open of a tunnel that fails.
const PATIENCE: Patience = Patience { call: Duration::from_secs(120), taken: answers::TAKEN_WITHIN };
const MAX_STREAMS: u32 = 256;
const MAX_HEADER_BYTES: u32 = 16 << 10;
/// What a peer may send of one call before it is read, and what may wait to be sent to it, where the window of tunnels
/// is not larger. Of all calls of a connection it may send that of each: those that are not read, as tunnels to
/// slow nodes, hold up no other.
const LEAST_WINDOW_BYTES: u32 = 64 << 10;
/// Descriptors that connections may take, those of strangers among them.
pub const MAX_DESCRIPTORS: usize = MAX_CONNECTIONS + handshakes::MAX_HANDSHAKES + MAX_AWAY;
/// The largest DATA frame: the data of a tunnel comes in few large ones, yet each is memory that another thread gives
/// back, which the allocator does not soon find again where it is larger.
const FRAME_BYTES: u32 = 32 << 10;
/// Between accepts that fail (no descriptor left), so that the thread does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often accepts that fail are told of.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Serves for ever.
pub(crate) async fn serve(
    listener: TcpListener,
    config: ApiConfig,
    status: Arc<dyn Status>,
    tunnels: Option<TunnelDoor>,
) {
    let ApiConfig { tls, clients, drain_within, ping_every, desk, to_shards, started, .. } = config;
    let shards = Arc::new(Shards::new(to_shards, started));
    let window_bytes = tunnels.as_ref().map_or(0, TunnelDoor::window_bytes).max(LEAST_WINDOW_BYTES);
    let (bodies, opens) = (Arc::default(), Arc::new(Semaphore::new(tunnels::MAX_UNSAID)));
    let router = router(ApiState { status, desk, drain_within, shards, bodies, opens, tunnels });
    let wire = Wire { window_bytes, ping_every };
    let mut hall = Hall { tls, clients, router, wire, open: Vec::new(), away: Strangers::new(MAX_AWAY) };
    let (mut handshakes, mut waits) = (Handshakes::new(handshakes::PATIENCE), None);
    let (proved, mut guests) = mpsc::unbounded_channel();
    let mut told_at: Option<Instant> = None;
    loop {
        tokio::select! {
            accepted = listener.accept(), if waits.is_none() => match accepted {
                Ok((stream, _)) => waits = Some(stream),
                Err(error) => {
                    if told_at.is_none_or(|at| at.elapsed() >= TOLD_EVERY) {
                        told_at = Some(Instant::now());
                        tracing::warn!(
                            %error,
                            "control: connections of the API can't be accepted; if files ran out, raise LimitNOFILE"
                        );
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            () = handshakes.place(), if waits.is_some() => if let Some(stream) = waits.take() {
                let (tls, proved) = (hall.tls.borrow().server_config(), proved.clone());
                handshakes.begin(|peer| shake(stream, tls, peer, proved));
            },
            Some(guest) = guests.recv() => hall.take(guest),
        }
    }
}

/// How a connection is served below its calls.
#[derive(Clone, Copy)]
struct Wire {
    window_bytes: u32,
    ping_every: Duration,
}

/// A connection whose peer has proved itself.
struct Guest {
    stream: TlsStream<BufReader<TcpStream>>,
    chain: Vec<CertificateDer<'static>>,
    names: Arc<[String]>,
}

async fn shake(stream: TcpStream, tls: Arc<ServerConfig>, peer: Peer, proved: mpsc::UnboundedSender<Guest>) {
    let shaking = async {
        let begun = LazyConfigAcceptor::new(Acceptor::default(), buffered(stream)).await?;
        peer.has_spoken();
        begun.into_stream(tls).await
    };
    // Who can't prove itself ends its own connection and concerns nobody else; the alert has told it why.
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_WITHIN, shaking).await else { return };
    let chain: Vec<_> = stream
        .get_ref()
        .1
        .peer_certificates()
        .unwrap_or_default()
        .iter()
        .map(|one| one.clone().into_owned())
        .collect();
    let names = chain.first().map(tls::names).unwrap_or_default().into();
    // Only with the listener.
    let _ = proved.send(Guest { stream, chain, names });
}

/// Who is in.
struct Hall {
    tls: watch::Receiver<Arc<ApiTls>>,
    clients: Arc<[String]>,
    router: Router,
    wire: Wire,
    open: Vec<Open>,
    away: Strangers,
}

/// A connection that has a place.
struct Open {
    /// The one that lets it in.
    name: String,
    share: Arc<Share>,
    task: AbortHandle,
}

impl Hall {
    fn take(&mut self, guest: Guest) {
        let Guest { stream, chain, names } = guest;
        match self.place(&names) {
            Ok(name) => {
                let mut of_name = self.open.iter().filter(|one| one.name == name);
                let share = of_name.next().map_or_else(Arc::default, |one| Arc::clone(&one.share));
                let caller = Caller { names, share: Arc::clone(&share) };
                let router = self.router.clone().layer(axum::Extension(caller));
                let (streams, tls, wire) = (Streams::new(PATIENCE), self.tls.clone(), self.wire);
                let task = tokio::spawn(async move {
                    let over = over(&streams, &chain, tls);
                    keep(stream, router, wire, &streams, over).await;
                });
                self.open.push(Open { name, share, task: task.abort_handle() });
            }
            Err(refusal) => {
                let wire = Wire { window_bytes: LEAST_WINDOW_BYTES, ..self.wire };
                self.away.admit(async move {
                    let streams = Streams::new(PATIENCE);
                    // Its answer goes before the GOAWAY.
                    let over = async {
                        streams.first().await;
                        streams.none_for(AWAY_AFTER).await;
                    };
                    let answering = keep(stream, turned_away(refusal), wire, &streams, over);
                    let _ = tokio::time::timeout(AWAY_WITHIN, answering).await;
                });
            }
        }
    }

    /// The name by which a certificate with these has a place.
    fn place(&mut self, names: &[String]) -> Result<String, Refusal> {
        let mut may_call = names.iter().filter(|name| self.clients.contains(name));
        let name = if self.clients.is_empty() { names.first() } else { may_call.next() };
        if name.is_none() && !self.clients.is_empty() {
            let why =
                "the client certificate bears none of the names that control.clients of this gateway lists";
            return Err(Refusal::new(RefusalWord::Forbidden, why));
        }
        let name = name.cloned().unwrap_or_default();
        self.open.retain(|one| !one.task.is_finished());
        let of_one = self.open.iter().filter(|one| one.name == name).count();
        if of_one >= MAX_OF_ONE || self.open.len() >= MAX_CONNECTIONS {
            let why =
                "as many connections are open as may be: use those that are, each takes 256 calls at once";
            return Err(Refusal::new(RefusalWord::Busy, why));
        }
        Ok(name)
    }
}

/// Resolves when a connection is to take no more calls.
async fn over(streams: &Streams, chain: &[CertificateDer<'_>], mut tls: watch::Receiver<Arc<ApiTls>>) {
    let renounced = async {
        loop {
            if tls.changed().await.is_err() {
                // The process ends.
                std::future::pending::<()>().await;
            }
            if !tls.borrow().vouches_for(chain) {
                return;
            }
        }
    };
    tokio::select! {
        () = streams.none_for(IDLE_FOR) => {}
        () = tokio::time::sleep(tls::valid_for(chain)) => {}
        () = renounced => {}
    }
}

/// Serves a connection; from `over` on it takes no more calls, and ends with the last that is open.
async fn keep<S>(stream: S, router: Router, wire: Wire, streams: &Streams, over: impl Future<Output = ()>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = TowerToHyperService::new(router);
    let mut connection = pin!(builder(streams.clone(), wire).serve_connection(TokioIo::new(stream), service));
    // A peer that breaks HTTP or goes away ends its own connection and concerns nobody else.
    tokio::select! {
        // It must have begun to look before the first stream comes.
        biased;
        () = over => {}
        _ = connection.as_mut() => return,
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ = connection => {}
        // HTTP/2 has something left of answers that nobody takes.
        () = streams.none_for(answers::TAKEN_WITHIN) => {}
    }
}

fn builder(streams: Streams, Wire { window_bytes, ping_every }: Wire) -> http2::Builder<Streams> {
    let mut builder = http2::Builder::new(streams);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .initial_stream_window_size(window_bytes)
        .initial_connection_window_size(MAX_STREAMS * window_bytes)
        .max_frame_size(FRAME_BYTES)
        .max_send_buf_size(window_bytes as usize)
        .header_table_size(0)
        .keep_alive_interval(ping_every)
        .keep_alive_timeout(ping_every);
    builder
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::middleware;
    use axum::routing::{get, post};
    use bytes::Bytes;
    use gateway_core::tunnel::TunnelClose;
    use h2::client::SendRequest;
    use http::Request;
    use tokio::io::DuplexStream;
    use tokio::task::JoinHandle;

    use super::super::answers::Answers;
    use super::super::{calls, streams};
    use super::*;
    use crate::tunnel::Messages;

    const QUIET: Duration = Duration::from_millis(500);
    const SOON: Duration = Duration::from_secs(20);
    /// HTTP/2's own.
    const WINDOW_BYTES: u32 = (64 << 10) - 1;

    /// Calls have all the time that they need.
    const LONG: Patience = Patience { call: SOON, taken: SOON };

    /// A client's end of a connection with these calls, which is over when nothing is open for `idle_for`.
    fn served(router: Router, patience: Patience, ping_every: Duration, idle_for: Duration) -> DuplexStream {
        let (near, far) = tokio::io::duplex(64 << 10);
        tokio::spawn(async move {
            let streams = Streams::new(patience);
            let wire = Wire { window_bytes: LEAST_WINDOW_BYTES, ping_every };
            keep(far, router, wire, &streams, streams.none_for(idle_for)).await;
        });
        near
    }

    /// The client at it, which takes so much before it is read; the task ends with the connection.
    async fn client(near: DuplexStream, window_bytes: u32) -> (SendRequest<Bytes>, JoinHandle<()>) {
        let mut builder = h2::client::Builder::new();
        let (requests, connection) = builder.initial_window_size(window_bytes).handshake(near).await.unwrap();
        let ended = tokio::spawn(async move {
            let _ = connection.await;
        });
        (requests.ready().await.unwrap(), ended)
    }

    /// A client of a connection that is over when nothing is open for `QUIET`, and whose calls may take half of that;
    /// the task ends with it.
    async fn connected() -> (SendRequest<Bytes>, JoinHandle<()>) {
        let tunnel = || async {
            let _ = streams::of_tunnel();
            std::future::pending::<&'static str>().await
        };
        let router = Router::new()
            .route("/call", get(|| async { "done" }))
            .route("/slow", get(std::future::pending::<&'static str>))
            .route("/tunnel", get(tunnel));
        let patience = Patience { call: QUIET / 2, taken: QUIET / 2 };
        client(served(router, patience, SOON, QUIET), WINDOW_BYTES).await
    }

    fn request(path: &str) -> Request<()> {
        Request::get(format!("http://api{path}")).body(()).unwrap()
    }

    #[tokio::test]
    async fn a_connection_ends_a_while_after_its_last_call() {
        let (mut requests, ended) = connected().await;
        let (response, _) = requests.send_request(request("/call"), true).unwrap();
        assert_eq!(response.await.unwrap().status(), 200);
        tokio::time::timeout(SOON, ended).await.expect("it ends").unwrap();
    }

    #[tokio::test]
    async fn a_tunnel_keeps_its_connection_and_a_call_that_hangs_does_not() {
        let (mut requests, ended) = connected().await;
        let (tunnel, body) = requests.send_request(request("/tunnel"), true).unwrap();
        let (slow, _) = requests.send_request(request("/slow"), true).unwrap();
        tokio::time::timeout(SOON, slow).await.expect("the call ends").expect_err("without an answer");
        tokio::time::sleep(QUIET * 4).await;
        assert!(!ended.is_finished(), "the tunnel is there");
        drop((tunnel, body));
        tokio::time::timeout(SOON, ended).await.expect("it ends with its tunnel").unwrap();
    }

    fn of_long_answers(answers: &Arc<Answers>, bytes: usize) -> Router {
        let bounded = middleware::from_fn_with_state(Arc::clone(answers), answers::bounded);
        Router::new().route("/long", get(async move || "x".repeat(bytes))).layer(bounded)
    }

    #[tokio::test]
    async fn an_answer_that_nobody_takes_is_let_go_of_and_its_room_comes_back() {
        let answers = Arc::<Answers>::default();
        for window_bytes in [0, 1, 20_000] {
            let patience = Patience { taken: QUIET, ..LONG };
            let near = served(of_long_answers(&answers, 32 << 10), patience, SOON, SOON);
            let (mut requests, _) = client(near, window_bytes).await;
            let (response, _) = requests.send_request(request("/long"), true).unwrap();
            let mut unread = response.await.unwrap().into_body();
            assert!(answers.taken_bytes() > 0);
            let mut end = Ok(());
            while let (Ok(()), Some(said)) = (&end, unread.data().await) {
                end = said.map(drop);
            }
            assert_eq!(end.expect_err("it is cut").reason(), Some(h2::Reason::CANCEL));
            assert_eq!(answers.taken_bytes(), 0);
        }
    }

    #[tokio::test]
    async fn a_long_answer_comes_whole() {
        let answers = Arc::<Answers>::default();
        let near = served(of_long_answers(&answers, 300_000), LONG, SOON, SOON);
        let (mut requests, _) = client(near, WINDOW_BYTES).await;
        let (response, _) = requests.send_request(request("/long"), true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.headers()["content-length"], "300000");
        let (mut body, mut bytes) = (response.into_body(), 0);
        while let Some(said) = body.data().await {
            let said = said.unwrap();
            bytes += said.len();
            body.flow_control().release_capacity(said.len()).unwrap();
        }
        assert_eq!((bytes, answers.taken_bytes()), (300_000, 0));
    }

    #[tokio::test]
    async fn who_is_refused_whatever_it_says_is_answered_when_it_has_said_it() {
        let refusal = || Refusal::new(RefusalWord::Forbidden, "it may not");
        let calls = || {
            let calls = Router::new().route("/call", get(|| async { "done" }));
            calls.method_not_allowed_fallback(calls::wrong_method).fallback(calls::unknown)
        };
        for (router, path, status) in
            [(turned_away(refusal()), "/call", 403), (calls(), "/call", 405), (calls(), "/none", 404)]
        {
            let (mut requests, _) = client(served(router, LONG, SOON, SOON), WINDOW_BYTES).await;
            let call = Request::post(format!("http://api{path}")).body(()).unwrap();
            let (response, mut body) = requests.send_request(call, false).unwrap();
            let mut response = pin!(response);
            tokio::time::timeout(QUIET, response.as_mut()).await.expect_err("its body is on its way");
            body.send_data(Bytes::from_static(b"{}"), true).unwrap();
            let answer = tokio::time::timeout(SOON, response).await.expect("an answer").unwrap();
            assert_eq!(answer.status(), status);
            let mut said = answer.into_body();
            assert!(said.data().await.unwrap().unwrap().starts_with(b"{"));
            assert!(said.data().await.is_none());
        }
    }

    #[tokio::test]
    async fn a_peer_that_answers_no_ping_is_cut_and_what_it_was_saying_is_not_taken_for_the_whole() {
        let (began, mut begun) = mpsc::unbounded_channel();
        let (ends, mut ended) = mpsc::unbounded_channel();
        let read = move |request: Request<Body>| async move {
            began.send(()).unwrap();
            // As the task of a tunnel, which outlives its call.
            tokio::spawn(async move { ends.send(Messages::of(request.into_body()).next().await).unwrap() });
            std::future::pending::<&'static str>().await
        };
        let router = Router::new().route("/read", post(read));
        let near = served(router, LONG, QUIET, SOON);
        let (requests, mut connection) = h2::client::handshake(near).await.unwrap();
        let mut requests = requests.ready().await.unwrap();
        let call = Request::post("http://api/read").body(()).unwrap();
        let (_response, _body) = requests.send_request(call, false).unwrap();
        tokio::select! {
            _ = &mut connection => panic!("it is over"),
            said = begun.recv() => said.unwrap(),
        }
        // From here on nobody drives the connection.
        let end = tokio::time::timeout(SOON, ended.recv()).await.expect("it is found").unwrap();
        assert_eq!(end, Err(TunnelClose::CallerGone));
    }
}

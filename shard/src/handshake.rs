//! From an accepted socket to a connection that is served: TLS, who the peer is, which protocol it speaks,
//! HTTP/2's preface.
//!
//! It runs in a queue of its own with a small share, so that a storm of connects does not hold up
//! the sessions; the connection is served by another task, so that the handshake's state is freed.
//!
//! 1. All of it takes at most `handshake_timeout`, however the peer behaves.
//! 2. The slot is given back when TLS is up: what follows costs next to nothing.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::select;
use gateway_core::time::Moment;
use tokio::io::{AsyncRead as _, ReadBuf};

use crate::accept::{HandshakeSlot, SLOT_PATIENCE};
use crate::bell::Wish;
use crate::connection::{Connection, Http2, Turns};
use crate::executor::{self, Tcp, TcpSocket};
use crate::http1::Http1;
use crate::listener_tls;
use crate::paced::Paced;
use crate::panics;
use crate::place::Place;
use crate::refusals::Shown;
use crate::shard::{ConnectionLease, Shard};
use crate::stream::{Peer, Unproven};
use crate::tls_stream::TlsStream;

/// How long, and how often, a peer that was refused is read on.
const LINGER: Duration = Duration::from_millis(250);
const LINGER_READS: usize = 64;

/// What a peer speaks within TLS, ready to be served.
enum Spoken {
    Http2(Box<Http2>),
    Http1(Box<TlsStream<Tcp>>),
}

/// Shakes hands and has the connection served.
pub(crate) async fn run(shard: Rc<Shard>, tcp: TcpSocket, slot: HandshakeSlot, lease: ConnectionLease) {
    let begun = shard.clock.now();
    let due_at = begun + shard.limits.handshake_timeout;
    let work = secure_and_greet(&shard, tcp, slot, &lease, due_at);
    match contain(work).await {
        Ok(Some((spoken, peer))) => {
            shard.counters.handshakes_ok.one_more();
            shard.counters.handshake_latencies.note(shard.clock.now().since(begun));
            let (on, place) = (Rc::clone(&shard), Place::take(&shard, &peer));
            match spoken {
                Spoken::Http2(http2) => {
                    let connection = Connection::new(&shard, lease, place, *http2, peer);
                    shard.queues.spawn_session(serve(on, connection));
                }
                Spoken::Http1(tls) => {
                    shard.queues.spawn_session(serve(on, Http1::new(&shard, lease, place, *tls, peer)));
                }
            }
        }
        Ok(None) => shard.counters.handshakes_failed.one_more(),
        Err(panic) => {
            panic.report(&shard, "a handshake");
            shard.counters.handshakes_failed.one_more();
        }
    }
}

/// Serves a connection to its end.
pub(crate) async fn serve(shard: Rc<Shard>, connection: Box<impl Turns>) {
    let mut connection = Some(connection);
    poll_fn(|context| {
        let Some(alive) = &mut connection else { return Poll::Ready(()) };
        match panics::contain(|| alive.poll(context.waker())) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(())) => {}
            Err(panic) => {
                panic.report(&shard, "a connection");
            }
        }
        panics::discard(connection.take());
        Poll::Ready(())
    })
    .await;
}

async fn secure_and_greet(
    shard: &Rc<Shard>,
    tcp: TcpSocket,
    mut slot: HandshakeSlot,
    lease: &ConnectionLease,
    due_at: Moment,
) -> Option<(Spoken, Peer)> {
    let tls = {
        let mut passage = shard.turnstile.passage(lease.bell());
        let stage = bounded(shard, lease, due_at, move || passage.may_step(), secure(shard, tcp));
        let mut stage = pin!(stage);
        let mut patience = pin!(executor::sleep(SLOT_PATIENCE));
        let mut patient = true;
        poll_fn(|context| {
            while patient && patience.as_mut().poll(context).is_ready() {
                patient = !slot.step_aside(lease.bell(), shard.clock.now());
                patience.set(executor::sleep(SLOT_PATIENCE));
            }
            stage.as_mut().poll(context)
        })
        .await?
    };
    drop(slot);
    let peer = identify(shard, &tls);
    let protocol = tls.session().alpn_protocol();
    if shard.listener_tls.speaks_http1() && protocol != Some(listener_tls::HTTP2) {
        // Who names no protocol speaks HTTP/1.1: HTTP/2 within TLS is always named.
        return Some((Spoken::Http1(Box::new(tls)), peer));
    }
    let paced = Paced::new(tls, lease.bell().clone(), shard.clock, shard.counters.clone());
    let greeting = async { shard.http2.handshake(paced).await.map_err(|error| error.to_string()) };
    let http2 = bounded(shard, lease, due_at, || true, greeting).await?;
    Some((Spoken::Http2(Box::new(http2)), peer))
}

async fn secure(shard: &Rc<Shard>, tcp: TcpSocket) -> Result<TlsStream<Tcp>, String> {
    let tcp = executor::stream(tcp).map_err(|error| error.to_string())?;
    match TlsStream::accept(shard.listener_tls.config(), tcp).await {
        Ok(tls) => Ok(tls),
        Err((error, tcp)) => {
            count_bad_certificate(shard, &error);
            linger(tcp).await;
            Err(error.to_string())
        }
    }
}

/// Reads on until the peer has gone: a socket that is closed with something unread takes back what was sent, and the
/// peer would never see why it was refused.
async fn linger(mut tcp: Tcp) {
    let mut passed_over = [0; 512];
    let reading = async {
        for _ in 0..LINGER_READS {
            let mut buffer = ReadBuf::new(&mut passed_over);
            let read = poll_fn(|context| Pin::new(&mut tcp).poll_read(context, &mut buffer)).await;
            if read.is_err() || buffer.filled().is_empty() {
                return;
            }
        }
    };
    select(pin!(reading), pin!(executor::sleep(LINGER))).await;
}

fn count_bad_certificate(shard: &Shard, error: &std::io::Error) {
    use rustls::CertificateError as Bad;

    let tls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(why)) = tls else { return };
    match why {
        Bad::Revoked => shard.counters.handshakes_revoked.one_more(),
        Bad::Expired | Bad::ExpiredContext { .. } | Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
            shard.counters.handshakes_expired.one_more();
        }
        _ => {}
    }
}

/// The outcome of `work`, which goes on whenever it `may`, unless it fails, time is up, or the connection is
/// asked to go.
async fn bounded<T>(
    shard: &Rc<Shard>,
    lease: &ConnectionLease,
    due_at: Moment,
    mut may: impl FnMut() -> bool,
    work: impl Future<Output = Result<T, String>>,
) -> Option<T> {
    let mut work = pin!(work);
    let mut time_is_up = pin!(executor::sleep(due_at.since(shard.clock.now())));
    let bell = lease.bell();
    let outcome = poll_fn(|context| {
        bell.begin_turn(context.waker());
        let outcome = if bell.wish() != Wish::Serve {
            Poll::Ready(Err("the shard stops".to_owned()))
        } else if time_is_up.as_mut().poll(context).is_ready() {
            Poll::Ready(Err("it took too long".to_owned()))
        } else if may() {
            work.as_mut().poll(context)
        } else {
            Poll::Pending
        };
        bell.end_turn();
        if outcome.is_pending() && bell.is_over_budget() {
            shard.breather.ring_after_io(bell);
        }
        outcome
    })
    .await;
    outcome.map_err(|why| tracing::debug!(shard = shard.id.0, why = why.as_str(), "a handshake failed")).ok()
}

fn identify(shard: &Shard, tls: &TlsStream<Tcp>) -> Peer {
    match tls.session().peer_certificates().and_then(<[_]>::first) {
        None => Peer::Anonymous,
        Some(leaf) => match shard.identity.read(leaf) {
            Ok(certificate) => Peer::Node(Rc::new(certificate)),
            Err(reason) => Peer::Unproven(Box::new(Unproven { shown: Shown::of(leaf), reason })),
        },
    }
}

/// The outcome of `work`, or the panic that ended it.
async fn contain<T>(work: impl Future<Output = T>) -> Result<T, panics::Panic> {
    let mut work = Box::pin(work);
    let outcome = poll_fn(|context| match panics::contain(|| work.as_mut().poll(context)) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await;
    panics::discard(work);
    outcome
}

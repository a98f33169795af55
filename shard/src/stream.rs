//! From a request to the call that it asks for.
//!
//! It checks that the request is a gRPC call in identity encoding, finds the call by its path, and
//! refuses what needs a certificate from who has none. A refusal is trailers-only.
//!
//! 1. Who is refused cost no admission: the certificate and the stage are looked at before, and the certificate
//!    anew for each call, since a connection may stand longer than what it was opened with counts.
//! 2. `Join` alone is open to who has no certificate.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use gateway_core::close::{AdmissionBound, CloseReason};
use gateway_core::revocation;
use gateway_core::time::Moment;
use gateway_proto::{header, path};
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Method, Request, StatusCode};

use crate::admitted::Admitted;
use crate::bell::Bell;
use crate::health::{HealthCall, HealthIo};
use crate::identity::NodeCertificate;
use crate::refusals::Shown;
use crate::relay_io::{RETRY_RELAY, RelayIo};
use crate::relay_wire::Asking;
use crate::session_io::SessionIo;
use crate::shard::{Shard, Stage};
use crate::status::{self, CallStatus};
use crate::transport::Exchange;
use crate::tunnel_io::TunnelIo;

/// Who is at the other end of a connection.
#[derive(Debug)]
pub(crate) enum Peer {
    Node(Rc<NodeCertificate>),
    /// No certificate was shown.
    Anonymous,
    /// The certificate is of our roots and names nobody.
    Unproven(Box<Unproven>),
}

/// A certificate that names nobody.
#[derive(Debug)]
pub(crate) struct Unproven {
    pub(crate) shown: Shown,
    pub(crate) reason: CloseReason,
}

/// A call that is being served.
pub(crate) enum Stream {
    Session(Box<SessionIo>),
    Health(Box<HealthIo>),
    Relay(Box<RelayIo>),
    Tunnel(Box<TunnelIo>),
}

/// The streams that a connection has already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamCount {
    tunnels: usize,
    others: usize,
}

impl StreamCount {
    pub(crate) fn of(streams: &[Stream]) -> Self {
        let tunnels = streams.iter().filter(|stream| stream.is_tunnel()).count();
        Self { tunnels, others: streams.len() - tunnels }
    }

    /// HTTP/2 bounds both together; here neither takes the place of the other.
    fn check(self, shard: &Shard, path: &str) -> Result<(), CloseReason> {
        let limits = &shard.limits;
        let (bound, is_full) = if path == path::TUNNEL {
            let is_full = limits.tunnels.most > 0 && self.tunnels >= limits.tunnels.per_node;
            (AdmissionBound::Tunnels, is_full)
        } else {
            (AdmissionBound::Streams, self.others >= limits.streams_per_connection as usize)
        };
        if !is_full {
            return Ok(());
        }
        let reason = CloseReason::Refused { bound, retry_after: RETRY_RELAY };
        shard.counters.count_refusal(&reason);
        Err(reason)
    }
}

/// What becomes of the connection after a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Afterwards {
    Serve,
    /// It is of no more use: its peer does not read.
    Close,
}

impl Stream {
    /// Carries what there is to carry. `Ready` when the stream is over.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, now: Moment) -> Poll<Afterwards> {
        match self {
            Self::Session(session) => session.poll(context, now),
            Self::Health(health) => health.poll(context, now),
            Self::Relay(relay) => relay.poll(context, now),
            Self::Tunnel(tunnel) => tunnel.poll(context, now),
        }
    }

    /// When `poll` must be called, though nothing rang.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        match self {
            Self::Session(session) => session.deadline(),
            Self::Health(health) => health.deadline(),
            Self::Relay(relay) => relay.deadline(),
            Self::Tunnel(tunnel) => tunnel.deadline(),
        }
    }

    /// Whether nothing that was said to the peer waits here.
    pub(crate) fn has_said_all(&self) -> bool {
        match self {
            Self::Session(session) => session.has_said_all(),
            Self::Health(_) | Self::Relay(_) | Self::Tunnel(_) => true,
        }
    }

    pub(crate) const fn is_tunnel(&self) -> bool {
        matches!(self, Self::Tunnel(_))
    }

    /// Ends the stream after a panic.
    pub(crate) fn fail(self, reason: CloseReason) {
        match self {
            Self::Session(session) => session.fail(reason),
            Self::Health(health) => health.fail(&reason),
            Self::Relay(relay) => relay.fail(&reason),
            Self::Tunnel(tunnel) => tunnel.fail(&reason),
        }
    }
}

/// Opens the call of a request, or answers it at once.
pub(crate) fn open(
    shard: &Rc<Shard>,
    bell: &Arc<Bell>,
    peer: &Peer,
    count: StreamCount,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Option<Stream> {
    if let Err(status) = check_grpc(&request) {
        // A stream that is gone by now has nobody left to be told; the same below.
        let _ = respond.send_response(status::plain(status), true);
        return None;
    }
    let started =
        count.check(shard, request.uri().path()).and_then(|()| check_encoding(&request)).and_then(|()| {
            let (head, body) = request.into_parts();
            start(shard, bell, peer, head.uri.path(), Exchange::Http2 { body, respond: &mut respond })
        });
    match started {
        Ok(stream) => stream,
        Err(reason) => {
            let _ = respond.send_response(CallStatus::from(&reason).trailers_only(), true);
            None
        }
    }
}

/// Opens the call of this path. `None` where the peer is gone.
pub(crate) fn start(
    shard: &Rc<Shard>,
    bell: &Arc<Bell>,
    peer: &Peer,
    path: &str,
    exchange: Exchange<'_>,
) -> Result<Option<Stream>, CloseReason> {
    match path {
        path::SESSION => open_session(shard, bell, peer, exchange),
        path::HEALTH_CHECK => HealthIo::open(shard, bell, HealthCall::Check, exchange),
        path::HEALTH_WATCH => HealthIo::open(shard, bell, HealthCall::Watch, exchange),
        // Whatever certificate is shown for it, a join is proven by its token alone.
        path::JOIN => RelayIo::open(shard, bell, Asking::Join, exchange),
        path::RENEW => {
            let asking = Asking::Renew(authenticated(shard, peer)?.identity.clone());
            RelayIo::open(shard, bell, asking, exchange)
        }
        path::FETCH_SECRET => {
            let asking = Asking::FetchSecret(authenticated(shard, peer)?.identity.clone());
            RelayIo::open(shard, bell, asking, exchange)
        }
        path::TUNNEL => TunnelIo::open(shard, bell, authenticated(shard, peer)?, exchange),
        _ => {
            Err(CloseReason::Unimplemented("no such call; see the service gateway.v1.NodeGateway".to_owned()))
        }
    }
}

fn open_session(
    shard: &Rc<Shard>,
    bell: &Arc<Bell>,
    peer: &Peer,
    exchange: Exchange<'_>,
) -> Result<Option<Stream>, CloseReason> {
    let certificate = authenticated(shard, peer)?;
    let refuse = |reason| {
        shard.counters.count_refusal(&reason);
        reason
    };
    match shard.stage.get() {
        Stage::Serving => {}
        Stage::Closed => return Err(refuse(CloseReason::Fenced)),
        Stage::Draining(order) => return Err(refuse(order.refusal(shard.random()))),
        Stage::Stopping => return Err(refuse(CloseReason::Stopping)),
    }
    let admitted = Admitted::ask(shard, exchange.is_websocket()).map_err(refuse)?;
    let Some(halves) = exchange.accept() else { return Ok(None) };
    Ok(Some(Stream::Session(SessionIo::new(shard, bell, certificate, admitted, halves))))
}

fn authenticated<'a>(shard: &Shard, peer: &'a Peer) -> Result<&'a Rc<NodeCertificate>, CloseReason> {
    let reason = match peer {
        Peer::Node(certificate) => match outdated(shard, certificate) {
            None => return Ok(certificate),
            Some(reason) => {
                shard.listener_tls.tell_end(certificate, &reason);
                reason
            }
        },
        Peer::Anonymous => CloseReason::BadCertificate(
            "no client certificate was shown; this call needs the node's certificate".to_owned(),
        ),
        Peer::Unproven(unproven) => {
            shard.listener_tls.tell_unnamed(&unproven.shown, &unproven.reason);
            unproven.reason.clone()
        }
    };
    shard.counters.count_refusal(&reason);
    Err(reason)
}

/// Why a certificate that was good for the handshake is not any more.
fn outdated(shard: &Shard, certificate: &NodeCertificate) -> Option<CloseReason> {
    let serial = &certificate.identity.certificate_serial;
    if let Some(verdict) = shard.listener_tls.revoked(certificate.serial) {
        return Some(revocation::refusal(serial, verdict));
    }
    shard.listener_tls.time_left(certificate.ends_at).is_zero().then_some(CloseReason::Expired)
}

/// Whether a request passes what is asked of each before its path is looked at.
#[cfg(feature = "fuzz")]
pub(crate) fn is_call(request: &Request<RecvStream>) -> bool {
    check_grpc(request).is_ok() && check_encoding(request).is_ok()
}

fn check_grpc(request: &Request<RecvStream>) -> Result<(), StatusCode> {
    if request.method() != Method::POST {
        return Err(StatusCode::METHOD_NOT_ALLOWED);
    }
    let kind = request.headers().get(http::header::CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    let rest = kind.and_then(|kind| kind.strip_prefix(header::CONTENT_TYPE_GRPC.as_bytes()));
    match rest {
        Some([] | [b'+' | b';', ..]) => Ok(()),
        _ => Err(StatusCode::UNSUPPORTED_MEDIA_TYPE),
    }
}

fn check_encoding(request: &Request<RecvStream>) -> Result<(), CloseReason> {
    match request.headers().get("grpc-encoding").map(http::HeaderValue::as_bytes) {
        None | Some(b"identity") => Ok(()),
        Some(_) => Err(CloseReason::Unimplemented(
            "compressed frames are not supported; send them with identity encoding".to_owned(),
        )),
    }
}

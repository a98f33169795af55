//! Why a stream ends, and what its node is told. The one place where a reason becomes a status.
//!
//! 1. Every end of a stream has exactly one reason, and every reason one status.
//! 2. `PushBack` reasons carry the delay that the node must keep.

use std::fmt;
use std::time::Duration;

/// The gRPC status codes that a gateway uses, with their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum StatusCode {
    Ok = 0,
    InvalidArgument = 3,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Aborted = 10,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// Why a stream ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CloseReason {
    /// The node said goodbye or closed its half, and its last answers were sent.
    Finished,
    /// The node's side of the connection is gone; nobody is left to be told.
    PeerGone,
    Fenced,
    Stopping,
    Draining {
        reconnect_after: Duration,
    },
    HeartbeatTimeout,
    /// The node did not read what it was sent.
    SlowPeer,
    /// The node sent more of what brings nothing than any use has.
    Flood,
    /// The certificate does not prove who the node is.
    BadCertificate(String),
    /// The certificate is revoked; the sentence says why.
    Revoked(String),
    /// The certificate's time is over.
    Expired,
    /// The database does not know the node or its certificate, or forbids it this session.
    NotPermitted(String),
    /// An admission bound was hit.
    Refused {
        bound: AdmissionBound,
        retry_after: Duration,
    },
    Superseded,
    /// The node broke the protocol; the sentence says how.
    Protocol(String),
    /// A frame is compressed, or a call is not offered.
    Unimplemented(String),
    /// A fault of our own; the id stands in the log too.
    Bug {
        id: u64,
    },
}

/// Which bound refused a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AdmissionBound {
    OpensPerSecond,
    JoinsPerSecond,
    Streams,
    PendingHellos,
    /// Of the calls that are passed on.
    Relays,
    /// Streams for tunnels, of a node or of a shard.
    Tunnels,
}

impl CloseReason {
    /// The status of a stream that ends for this reason.
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::Finished | Self::PeerGone => StatusCode::Ok,
            Self::Fenced
            | Self::Stopping
            | Self::Draining { .. }
            | Self::HeartbeatTimeout
            | Self::SlowPeer => StatusCode::Unavailable,
            Self::BadCertificate(_) | Self::Revoked(_) | Self::Expired => StatusCode::Unauthenticated,
            Self::NotPermitted(_) => StatusCode::PermissionDenied,
            Self::Refused { .. } => StatusCode::ResourceExhausted,
            Self::Superseded => StatusCode::Aborted,
            Self::Protocol(_) | Self::Flood => StatusCode::InvalidArgument,
            Self::Unimplemented(_) => StatusCode::Unimplemented,
            Self::Bug { .. } => StatusCode::Internal,
        }
    }

    /// How long the node must wait before it dials again, where the gateway says so.
    pub const fn pushback(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => Some(*retry_after),
            Self::Draining { reconnect_after } => Some(*reconnect_after),
            _ => None,
        }
    }

    /// What an operator does about it, where it is the node's certificate that is refused.
    pub const fn certificate_advice(&self) -> Option<&'static str> {
        match self {
            Self::BadCertificate(_) => {
                Some("give the node a certificate with its own SPIFFE name, and record it in node_certs")
            }
            Self::Revoked(_) => Some(
                "if the node is to come back, let it join again, or clear revoked_at of the row in node_certs",
            ),
            Self::Expired => Some("let the node join again, and see why it did not renew"),
            // The reason names the statement, or the key, where there is one.
            Self::NotPermitted(_) => Some(
                "do what the reason says; what else counts is the certificate's row in node_certs, and what the node says it is",
            ),
            _ => None,
        }
    }

    /// A short word for logs and metrics; never text of a peer.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::PeerGone => "peer-gone",
            Self::Fenced => "fenced",
            Self::Stopping => "stopping",
            Self::Draining { .. } => "draining",
            Self::HeartbeatTimeout => "heartbeat-timeout",
            Self::SlowPeer => "slow-peer",
            Self::Flood => "flood",
            Self::BadCertificate(_) => "bad-certificate",
            Self::Revoked(_) => "revoked",
            Self::Expired => "expired",
            Self::NotPermitted(_) => "not-permitted",
            Self::Refused { .. } => "refused",
            Self::Superseded => "superseded",
            Self::Protocol(_) => "protocol",
            Self::Unimplemented(_) => "unimplemented",
            Self::Bug { .. } => "bug",
        }
    }
}

/// The sentence that the node reads.
impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished => f.write_str("finished"),
            Self::PeerGone => f.write_str("the peer is gone"),
            Self::Fenced => f.write_str("gateway fenced; reconnect"),
            Self::Stopping => f.write_str("gateway stopping; reconnect"),
            Self::Draining { .. } => f.write_str("gateway draining; reconnect after the given delay"),
            Self::HeartbeatTimeout => f.write_str("no heartbeat for too long; reconnect"),
            Self::SlowPeer => f.write_str("the node did not read what it was sent; reconnect"),
            Self::Flood => {
                f.write_str("the peer floods the connection with control frames, requests or tiny fragments")
            }
            Self::BadCertificate(why)
            | Self::Revoked(why)
            | Self::NotPermitted(why)
            | Self::Protocol(why)
            | Self::Unimplemented(why) => f.write_str(why),
            Self::Refused { bound: AdmissionBound::OpensPerSecond, .. } => {
                f.write_str("too many sessions are being opened; retry after the given delay")
            }
            Self::Refused { bound: AdmissionBound::JoinsPerSecond, .. } => {
                f.write_str("too many machines are joining; retry after the given delay")
            }
            Self::Refused { bound: AdmissionBound::Streams, .. } => {
                f.write_str("the gateway holds as many sessions as it may; retry after the given delay")
            }
            Self::Refused { bound: AdmissionBound::PendingHellos, .. } => {
                f.write_str("too many Hellos wait for the database; retry after the given delay")
            }
            Self::Refused { bound: AdmissionBound::Relays, .. } => {
                f.write_str("too many calls are being passed on; retry after the given delay")
            }
            Self::Refused { bound: AdmissionBound::Tunnels, .. } => {
                f.write_str("as many streams for tunnels are open as may be; retry after the given delay")
            }
            Self::Expired => {
                f.write_str("the node's certificate has expired; reconnect with a renewed one, or join again")
            }
            Self::Superseded => f.write_str("superseded by a newer session of the same node"),
            Self::Bug { id } => write!(f, "internal error {id:016x}; the gateway's log has it"),
        }
    }
}

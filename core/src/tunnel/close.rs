//! Why a tunnel ends or is not opened, and what its two ends are told. The one place where a reason becomes
//! a status.
//!
//! 1. Every end has exactly one reason, and every reason one code, one word and one sentence.
//! 2. What a node or a caller wrote is in a sentence only where it is its reason, cut and on one line.

use std::fmt;

use super::ticket::TicketFault;

/// Longest reason of a node or of whoever closes a tunnel that is passed on.
pub const MAX_REASON_BYTES: usize = 256;

/// gRPC codes with their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum TunnelCode {
    Ok = 0,
    Cancelled = 1,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    Unimplemented = 12,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// Which bound refused an open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TunnelBound {
    Gateway,
    Node,
    /// Callers of one name that have not said which tunnel they want.
    UnsaidOfOne,
    /// Those of all names.
    Unsaid,
}

/// Why a tunnel ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TunnelClose {
    /// The node ended its stream after all that it had to say.
    Finished,
    CallerGone,
    /// The node's stream broke.
    NodeGone,
    NoSession,
    NodeRefused(String),
    /// The node's stream did not come in time.
    NodeLate,
    SessionEnded,
    /// The certificate of the node's stream is revoked.
    Revoked,
    Ticket(TicketFault),
    /// The IAM service does not allow the caller any more.
    NotAllowed,
    /// The IAM service could not be asked for too long.
    IamAway,
    LifeOver,
    /// Someone asked for it, and says why.
    Asked(String),
    Full(TunnelBound),
    /// One of the two broke the protocol; the sentence says how.
    Protocol(String),
    /// No tunnel of that id waits for this node: what a node's stream is told, never more.
    NotKnown,
    /// This gateway offers no tunnels.
    NotOffered,
    Stopping,
}

impl TunnelClose {
    /// The words of `label`, for whoever counts by them.
    pub const LABELS: [&str; 18] = [
        "finished",
        "caller-gone",
        "node-gone",
        "no-session",
        "node-refused",
        "node-late",
        "session-ended",
        "revoked",
        "ticket",
        "not-allowed",
        "iam-away",
        "life-over",
        "asked",
        "full",
        "protocol",
        "not-known",
        "not-offered",
        "stopping",
    ];

    /// With a node's own reason.
    pub fn node_refused(reason: &str) -> Self {
        Self::NodeRefused(plain(reason))
    }

    /// With the reason of whoever asks for it.
    pub fn asked(reason: &str) -> Self {
        Self::Asked(plain(reason))
    }

    pub const fn code(&self) -> TunnelCode {
        match self {
            Self::Finished => TunnelCode::Ok,
            Self::CallerGone => TunnelCode::Cancelled,
            Self::NodeGone | Self::NoSession | Self::SessionEnded | Self::IamAway | Self::Stopping => {
                TunnelCode::Unavailable
            }
            Self::NodeRefused(_) => TunnelCode::FailedPrecondition,
            Self::NodeLate | Self::LifeOver => TunnelCode::DeadlineExceeded,
            Self::Revoked => TunnelCode::Unauthenticated,
            Self::Ticket(fault) => fault.code(),
            Self::NotAllowed => TunnelCode::PermissionDenied,
            Self::Asked(_) => TunnelCode::Aborted,
            Self::Full(_) => TunnelCode::ResourceExhausted,
            Self::Protocol(_) => TunnelCode::InvalidArgument,
            Self::NotKnown => TunnelCode::NotFound,
            Self::NotOffered => TunnelCode::Unimplemented,
        }
    }

    /// A short word for logs and metrics; never text of a peer.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::CallerGone => "caller-gone",
            Self::NodeGone => "node-gone",
            Self::NoSession => "no-session",
            Self::NodeRefused(_) => "node-refused",
            Self::NodeLate => "node-late",
            Self::SessionEnded => "session-ended",
            Self::Revoked => "revoked",
            Self::Ticket(_) => "ticket",
            Self::NotAllowed => "not-allowed",
            Self::IamAway => "iam-away",
            Self::LifeOver => "life-over",
            Self::Asked(_) => "asked",
            Self::Full(_) => "full",
            Self::Protocol(_) => "protocol",
            Self::NotKnown => "not-known",
            Self::NotOffered => "not-offered",
            Self::Stopping => "stopping",
        }
    }
}

/// The sentence that both ends read.
impl fmt::Display for TunnelClose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sentence = match self {
            Self::Finished => "the node has ended the tunnel",
            Self::CallerGone => "the caller is gone",
            Self::NodeGone => "the node's stream broke",
            Self::NoSession => "the node has no session at this gateway that takes tunnels",
            Self::NodeRefused(reason) => return write!(f, "the node refused the tunnel: {reason}"),
            Self::NodeLate => "the node did not open its side of the tunnel in time",
            Self::SessionEnded => "the node's session has ended, and its tunnels with it",
            Self::Revoked => "the node's certificate is revoked",
            Self::Ticket(fault) => return fault.fmt(f),
            Self::NotAllowed => "the IAM service does not allow this tunnel any more",
            Self::IamAway => "the IAM service could not be asked for too long",
            Self::LifeOver => "the tunnel has lasted as long as one may (tunnels.max_life)",
            Self::Asked(reason) if reason.is_empty() => "the tunnel was closed on request",
            Self::Asked(reason) => return write!(f, "the tunnel was closed on request: {reason}"),
            Self::Full(TunnelBound::Gateway) => {
                "the gateway holds as many tunnels as it may (tunnels.max); retry later"
            }
            Self::Full(TunnelBound::Node) => {
                "the node has as many tunnels as one may (tunnels.max_per_node); close one of them"
            }
            Self::Full(TunnelBound::UnsaidOfOne) => {
                "as many calls of your name as may have not said which tunnel they want; send TunnelOpen with each"
            }
            Self::Full(TunnelBound::Unsaid) => {
                "as many calls as may have not said yet which tunnel they want; retry in a moment"
            }
            Self::Protocol(why) => return f.write_str(why),
            Self::NotKnown => "no tunnel of that id waits for this node",
            Self::NotOffered => "tunnels are not offered by this gateway; see [tunnels] in its configuration",
            Self::Stopping => "gateway stopping",
        };
        f.write_str(sentence)
    }
}

fn plain(text: &str) -> String {
    let mut text: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    text.truncate(text.floor_char_boundary(MAX_REASON_BYTES));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<TunnelClose> {
        vec![
            TunnelClose::Finished,
            TunnelClose::CallerGone,
            TunnelClose::NodeGone,
            TunnelClose::NoSession,
            TunnelClose::node_refused("busy"),
            TunnelClose::NodeLate,
            TunnelClose::SessionEnded,
            TunnelClose::Revoked,
            TunnelClose::Ticket(TicketFault::Used),
            TunnelClose::NotAllowed,
            TunnelClose::IamAway,
            TunnelClose::LifeOver,
            TunnelClose::asked("shift is over"),
            TunnelClose::Full(TunnelBound::Node),
            TunnelClose::Protocol("a frame came after its half-close".to_owned()),
            TunnelClose::NotKnown,
            TunnelClose::NotOffered,
            TunnelClose::Stopping,
        ]
    }

    #[test]
    fn every_reason_has_its_code_its_word_and_its_sentence() {
        let mut table = String::new();
        for (close, label) in all().into_iter().zip(TunnelClose::LABELS) {
            assert_eq!(close.label(), label);
            table.push_str(&format!("{label}: {:?}: {close}\n", close.code()));
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn a_reason_of_a_peer_is_cut_and_stays_on_its_line() {
        let sentence = TunnelClose::node_refused(&format!("no\nway {}", "é".repeat(999))).to_string();
        assert!(sentence.starts_with("the node refused the tunnel: no way éé"), "{sentence}");
        assert!(sentence.len() <= MAX_REASON_BYTES + 40);
    }
}

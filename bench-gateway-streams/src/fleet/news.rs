//! What a node tells of what a run counts: in one process as it happens, between processes as one line of JSON.
//!
//! It decides nothing. What no figure needs is not told.

use std::borrow::Cow;
use std::time::Duration;

use gateway_testbed::node::{End, EndKind, NodeEvent, is_terminal, state_name};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What happened at a node. Times are nanoseconds of the monotonic clock, which all processes share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum News {
    Welcome {
        epoch: u64,
        at_ns: u64,
    },
    /// A command was read.
    Received {
        id: Uuid,
        at_ns: u64,
    },
    /// The last update of a command is stored, as `stored`.
    Acked {
        id: Uuid,
        stored: Cow<'static, str>,
        at_ns: u64,
    },
    Beat {
        round_trip_ns: u64,
    },
    /// Its journal is stored up to there.
    Events {
        acked_seq: u64,
    },
    /// A section is stored.
    Section,
    Ended(Ending),
    /// How late the runtime of its process was lately; of no node.
    Lag {
        ns: u64,
    },
}

/// How a session ended, or was not opened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ending {
    pub(super) status: Option<u32>,
    /// `None`: it was asked for.
    pub(super) reason: Option<String>,
    pub(super) is_drop: bool,
    pub(super) was_welcomed: bool,
    pub(super) pushback: Option<Duration>,
    pub(super) at_ns: u64,
}

impl Ending {
    pub(super) fn of(end: End, at_ns: u64) -> Self {
        let (status, is_drop) = (end.status(), end.is_drop());
        let End { kind, message, pushback, was_welcomed } = end;
        let reason = match kind {
            EndKind::Status(code) => Some(format!("status {code}: {message}")),
            EndKind::TlsAlert(alert) => Some(format!("TLS alert {alert}")),
            EndKind::Transport | EndKind::GatewaySilent => Some(message),
            EndKind::Asked => None,
        };
        Self { status, reason, is_drop, was_welcomed, pushback, at_ns }
    }
}

impl News {
    /// What is counted of an event.
    pub(super) fn of(event: NodeEvent) -> Option<Self> {
        Some(match event {
            NodeEvent::Connected { epoch, at_ns } => Self::Welcome { epoch, at_ns },
            NodeEvent::CommandReceived(command) => Self::Received { id: command.id, at_ns: command.at_ns },
            NodeEvent::Acked { id, reported, stored, at_ns, .. } if is_terminal(reported) => {
                Self::Acked { id, stored: Cow::Borrowed(state_name(stored)), at_ns }
            }
            NodeEvent::HeartbeatAcked { round_trip, .. } => {
                Self::Beat { round_trip_ns: u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX) }
            }
            NodeEvent::EventsAcked { acked_seq, .. } => Self::Events { acked_seq },
            NodeEvent::SectionStored { .. } => Self::Section,
            NodeEvent::Ended { end, at_ns, .. } => Self::Ended(Ending::of(end, at_ns)),
            _ => return None,
        })
    }
}

/// What nodes are told to do, by their number among all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// One in `of` is cut, beginning with number `first`.
    Cut { first: usize, of: usize },
    /// A node writes so many events of so many bytes.
    Emit { node: usize, count: usize, bytes: usize },
    /// A section of a node changes to what no section was before.
    Section { node: usize, turn: u64 },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_the_same_on_the_other_side() {
        let end = End {
            kind: EndKind::Status(8),
            message: "later".to_owned(),
            pushback: Some(Duration::from_millis(7)),
            was_welcomed: false,
        };
        let all = [
            News::Acked { id: Uuid::from_u128(1), stored: Cow::Borrowed("succeeded"), at_ns: 3 },
            News::Section,
            News::Ended(Ending::of(end, 9)),
        ];
        for news in all {
            let line = serde_json::to_string(&(7usize, &news)).expect("JSON");
            let (node, back): (usize, News) = serde_json::from_str(&line).expect("news");
            assert_eq!((node, back), (7, news));
        }
    }
}

//! Tunnels: interactive streams between a caller of the control API and a node, relayed by the gateway.
//!
//! Owns what crosses between a shard and the tunnels' room of the control thread, who may open one
//! (`ticket`), which there are and in which state (`registry`, `lifecycle`), how much may be on its way
//! (`flow`), and why one ends (`close`). It never looks into what a tunnel carries.
//!
//! The room owns the registry. To open a tunnel it asks every shard for the node's session, offers it there,
//! and waits for a stream of the node, which any shard may get. From then on frames go by mail, each
//! direction within a window.
//!
//! 1. A tunnel's id is 128 random bits and is bound to one node, one session and one ticket.
//! 2. A shard tells of each of its tunnel streams `Hello` at most once and `Ended` exactly once after it, and
//!    of a session that was offered a tunnel `SessionEnded` once at least.
//! 3. What is on its way of a tunnel is bounded by its windows, so the boxes between the threads are too.
//! 4. Tickets are `Hidden`, and the data of a tunnel is in no `Debug`.

pub mod close;
pub mod flow;
pub mod keys;
pub mod lifecycle;
#[cfg(test)]
mod model;
pub mod registry;
pub mod ticket;

use std::fmt;

use bytes::Bytes;

use crate::ids::{NodeId, SessionEpoch, SessionKey, ShardId};
use crate::mail::Weigh;
use crate::relay::Hidden;

pub use close::{TunnelBound, TunnelClose, TunnelCode};
pub use flow::TunnelFlow;

/// The feature that a node names in its Hello, if it takes tunnels.
pub const TUNNELS_FEATURE: &str = "tunnels";
/// Largest frame of a tunnel on the wire.
pub const MAX_TUNNEL_FRAME_BYTES: usize = 64 << 10;
/// Longest kind of a tunnel, and name and value of a parameter.
pub const MAX_KIND_BYTES: usize = 64;
pub const MAX_PARAMETER_BYTES: usize = 8 << 10;
/// What the parameters of a tunnel may take together, and how many there may be.
pub const MAX_PARAMETERS_BYTES: usize = 16 << 10;
pub const MAX_PARAMETERS: usize = 64;
/// Offers that a session remembers, so that it knows a refusal of the node's from an invention.
pub const MAX_OFFERS_REMEMBERED: usize = 64;
/// Streams of nodes on one shard that wait for their tunnel, beside those that have one.
pub const MAX_UNJOINED_STREAMS: usize = 256;

/// A tunnel, everywhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TunnelId(pub [u8; 16]);

impl TunnelId {
    /// Of the 16 bytes on the wire.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Of the 32 hex digits that `Display` shows.
    pub fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; 16];
        for (byte, at) in bytes.iter_mut().zip((0..32).step_by(2)) {
            *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for TunnelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TunnelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TunnelId({self})")
    }
}

/// A node's stream on a shard. A slot's serial is never used twice in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TunnelKey {
    pub shard: ShardId,
    pub slot: u32,
    pub serial: u32,
}

/// What a tunnel carries.
#[derive(Clone, PartialEq, Eq)]
pub enum TunnelFrame {
    Data(Bytes),
    /// The size of the caller's terminal.
    Window {
        columns: u32,
        rows: u32,
    },
    /// No data comes after it from this side.
    HalfClose,
    /// How the node's program ended.
    Exit {
        code: i32,
        message: String,
    },
}

impl fmt::Debug for TunnelFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(data) => write!(f, "Data({} bytes)", data.len()),
            Self::Window { columns, rows } => write!(f, "Window({columns}x{rows})"),
            Self::HalfClose => f.write_str("HalfClose"),
            Self::Exit { code, .. } => write!(f, "Exit({code})"),
        }
    }
}

/// What a node is told of a tunnel that it may open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenTunnel {
    pub id: TunnelId,
    pub ticket: Hidden<String>,
    pub kind: String,
    pub parameters: Vec<(String, String)>,
    /// Where to dial so as to reach this very gateway; empty: where the node has its session.
    pub direct_address: String,
}

/// A node's refusal of a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelRefused {
    pub id: TunnelId,
    pub reason: String,
}

/// From a shard to the tunnels' room.
#[derive(Debug)]
pub enum ToTunnels {
    /// The answer to `FromTunnels::Seek`: the node's session here, if there is one that takes tunnels.
    Sought { id: TunnelId, shard: ShardId, found: Option<(SessionEpoch, SessionKey)> },
    /// The node of the session refuses.
    Refused { session: SessionKey, refused: TunnelRefused },
    /// A session that was offered a tunnel is over, or was when the offer came.
    SessionEnded { session: SessionKey },
    /// A node's stream says which tunnel it is for.
    Hello { stream: TunnelKey, node: NodeId, id: TunnelId, ticket: Hidden<String> },
    /// The node says something.
    Frame { id: TunnelId, frame: TunnelFrame },
    /// Frames to the node that cost so much have left.
    Grant { id: TunnelId, bytes: usize },
    /// A stream that said `Hello` is over.
    Ended { stream: TunnelKey, id: TunnelId, close: TunnelClose },
}

/// From the tunnels' room to a shard.
#[derive(Debug)]
pub enum FromTunnels {
    /// Whether the node has a session here.
    Seek {
        id: TunnelId,
        node: NodeId,
    },
    /// The session's node may open this tunnel.
    Offer {
        session: SessionKey,
        open: Box<OpenTunnel>,
    },
    /// The stream has its tunnel: frames may go.
    Admit {
        stream: TunnelKey,
    },
    Frame {
        stream: TunnelKey,
        frame: TunnelFrame,
    },
    /// Frames of the node that cost so much were taken.
    Grant {
        stream: TunnelKey,
        bytes: usize,
    },
    /// The stream ends.
    Close {
        stream: TunnelKey,
        close: TunnelClose,
    },
}

impl Weigh for ToTunnels {
    fn weight_bytes(&self) -> usize {
        match self {
            Self::Frame { frame, .. } => flow::cost_bytes(frame),
            Self::Hello { ticket, .. } => ticket.0.len() + 256,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_shown() {
        let id = TunnelId([0xab; 16]);
        assert_eq!(TunnelId::from_hex(&id.to_string()), Some(id));
        for wrong in ["", "ab", &"zz".repeat(16), &"+a".repeat(16)] {
            assert_eq!(TunnelId::from_hex(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn neither_tickets_nor_data_are_in_what_debug_shows() {
        let open = OpenTunnel {
            id: TunnelId([1; 16]),
            ticket: Hidden("t1cket".to_owned()),
            kind: "shell".to_owned(),
            parameters: Vec::new(),
            direct_address: String::new(),
        };
        let frame = TunnelFrame::Data(Bytes::from_static(b"pa55word"));
        let shown = format!("{open:?} {frame:?}");
        assert!(!shown.contains("t1cket") && !shown.contains("pa55"), "{shown}");
    }
}

//! Doors to what of a shard reads bytes of peers, for the fuzzer alone (feature `fuzz`).
//!
//! Each takes bytes and gives what the shard makes of them, by the very code that a connection runs. A
//! gateway that is built by itself has none of them, and nothing here decides.
//!
//! 1. A door adds nothing to what it opens: no check, no default, no repair.

use bytes::Bytes;
use gateway_core::close::CloseReason;
use gateway_core::frame::{GatewayFrame, NodeFrame};
use gateway_core::ids::NodeId;
use gateway_core::limits::Limits;
use gateway_core::time::Moment;
use gateway_proto::framing::FramingError;
use h2::RecvStream;
use http::{HeaderMap, Request};

use crate::flood::{Flood, FrameMeter};
use crate::http1::{Arrived, HeadReader, Incoming};
use crate::identity::IdentityRules;
use crate::status::CallStatus;

/// The frame in a message of a node.
pub fn decode(message: Bytes, limits: &Limits) -> Result<NodeFrame, CloseReason> {
    crate::wire::decode(message, limits)
}

/// Whether a message is one of a tunnel's stream, in form.
pub fn read_tunnel(message: Bytes) -> Result<(), CloseReason> {
    crate::tunnel_wire::decode(message).map(drop)
}

/// A frame for a node, with its prefix.
pub fn encode(frame: GatewayFrame) -> Bytes {
    crate::wire::encode(frame)
}

/// Whether a message asks to join, in form.
pub fn read_join(message: Bytes) -> Result<(), CloseReason> {
    crate::relay_wire::Asking::Join.decode(message).map(drop)
}

/// The node id and the site in a DER certificate.
pub fn read_certificate(rules: &IdentityRules, der: &[u8]) -> Result<(NodeId, String), CloseReason> {
    rules.read(der).map(|certificate| (certificate.identity.node, certificate.identity.site))
}

/// The site in the SPIFFE URI of a node.
pub fn read_uri<'a>(rules: &IdentityRules, uri: &'a str) -> Result<&'a str, CloseReason> {
    rules.match_uri(uri)
}

/// The meter of a connection, with a clock that stands.
#[derive(Debug)]
pub struct Meter(FrameMeter);

impl Default for Meter {
    fn default() -> Self {
        Self(FrameMeter::new(Moment::default()))
    }
}

impl Meter {
    /// Takes plaintext; false once it is a flood.
    pub fn take(&mut self, bytes: &[u8]) -> bool {
        let outcome = self.0.handle_bytes(bytes, Moment::default).map(drop);
        !matches!(outcome, Err(Flood))
    }
}

/// HTTP/2 as a shard speaks it.
pub fn http2(limits: &Limits) -> h2::server::Builder {
    crate::connection::http2(limits)
}

/// Whether a request is a gRPC call that is looked at further.
pub fn is_call(request: &Request<RecvStream>) -> bool {
    crate::stream::is_call(request)
}

/// The frames of a WebSocket, with a clock that stands.
#[derive(Debug)]
pub struct Frames(Incoming);

impl Frames {
    /// For messages of at most `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Self(Incoming::new(max_bytes, Moment::default()))
    }

    /// How many bytes it takes next.
    pub fn wanted(&self) -> usize {
        self.0.wanted()
    }

    /// Takes bytes; a message once one is whole, or why there are no more.
    pub fn take(&mut self, bytes: &mut [u8]) -> Result<Option<Bytes>, String> {
        let arrived = self.0.handle_bytes(bytes, Moment::default);
        match (self.0.too_large(), arrived) {
            (Some((bytes, max)), _) => Err(FramingError::TooLarge { bytes, max }.to_string()),
            (None, Err(fault)) => Err(fault.to_string()),
            (None, Ok(Some(Arrived::Close))) => Err("closed".to_owned()),
            (None, Ok(Some(Arrived::Message(message)))) => Ok(Some(message)),
            (None, Ok(_)) => Ok(None),
        }
    }
}

/// What the head of a request asks for, with what came behind it in the same piece, or why it is refused; `None`:
/// it is not whole.
pub fn read_head<'a>(
    max_bytes: usize,
    pieces: &mut impl Iterator<Item = &'a [u8]>,
) -> Option<Result<(String, Bytes), String>> {
    let mut reader = HeadReader::new(max_bytes);
    pieces.find_map(|piece| match reader.handle_bytes(piece) {
        Ok(read) => read.map(|(request, behind)| Ok((format!("{request:?}"), behind))),
        Err(refused) => Some(Err(refused.sentence.to_owned())),
    })
}

/// What a peer is told of the end of its call.
pub fn trailers(reason: &CloseReason) -> HeaderMap {
    CallStatus::from(reason).trailers()
}

/// What is logged of a panic's message.
pub fn panic_text(message: &str) -> String {
    crate::panics::text(&message.to_owned())
}

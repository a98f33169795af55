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
use h2::RecvStream;
use http::{HeaderMap, Request};

use crate::flood::{Flood, FrameMeter};
use crate::identity::IdentityRules;
use crate::status::CallStatus;

/// The frame in a message of a node.
pub fn decode(message: Bytes, limits: &Limits) -> Result<NodeFrame, CloseReason> {
    crate::wire::decode(message, limits)
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

/// What a peer is told of the end of its call.
pub fn trailers(reason: &CloseReason) -> HeaderMap {
    CallStatus::from(reason).trailers()
}

/// What is logged of a panic's message.
pub fn panic_text(message: &str) -> String {
    crate::panics::text(&message.to_owned())
}

//! The names of what nodes ask for over HTTP/1.1: sessions and tunnels over WebSocket, and calls with one message each
//! way.
//!
//! 1. What ends over WebSocket says a gRPC status as a close code, and where its node is to wait, the delay at the end
//!    of the reason: a close frame has no place for headers.

/// Where a session is asked for, by an upgrade to WebSocket.
pub const SESSION: &str = "/gateway.v1/session";
/// Where the stream of a tunnel is asked for, in the same way, on a connection of its own.
pub const TUNNEL: &str = "/gateway.v1/tunnel";
pub const JOIN: &str = "/gateway.v1/Join";
pub const RENEW: &str = "/gateway.v1/Renew";
pub const FETCH_SECRET: &str = "/gateway.v1/FetchSecret";

/// The subprotocol of both: one frame of `gateway.v1` a binary message.
pub const SUBPROTOCOL: &str = "gateway.v1";
/// The type of bodies.
pub const CONTENT_TYPE: &str = "application/x-protobuf";
/// The close code of what ends with status 0, `OK`; that of any other status is so much larger.
pub const CLOSE_BASE: u16 = 4000;

const HINT: &str = " [grpc-retry-pushback-ms=";

/// What is put behind the sentence of a close whose node must wait.
pub fn pushback_hint(milliseconds: u64) -> String {
    format!("{HINT}{milliseconds}]")
}

/// The sentence in the reason of a close, and how many milliseconds it tells its node to wait.
pub fn read_reason(reason: &str) -> (&str, Option<u64>) {
    let hint = reason.rsplit_once(HINT).and_then(|(sentence, hint)| {
        let milliseconds = hint.strip_suffix(']')?.parse().ok()?;
        Some((sentence, Some(milliseconds)))
    });
    hint.unwrap_or((reason, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_read_from_the_end_of_a_reason_alone() {
        assert_eq!(read_reason(&format!("draining{}", pushback_hint(1500))), ("draining", Some(1500)));
        for reason in ["", "draining", "[grpc-retry-pushback-ms=5]", " [grpc-retry-pushback-ms=5] x"] {
            assert_eq!(read_reason(reason), (reason, None));
        }
    }
}

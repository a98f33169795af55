//! Between the messages of a tunnel's stream and what the core knows of tunnels.
//!
//! It checks form alone: an id's length, a ticket's. What a tunnel carries passes as it is.
//!
//! 1. An arm that is not known is passed over.
//! 2. No sentence repeats what a node sent.

use bytes::Bytes;
use gateway_core::close::CloseReason;
use gateway_core::relay::Hidden;
use gateway_core::tunnel::ticket::MAX_TICKET_BYTES;
use gateway_core::tunnel::{OpenTunnel, TunnelFrame, TunnelId, TunnelRefused};
use gateway_proto::framing;
use gateway_proto::v1::{self, tunnel_frame::Frame as Arm};
use prost::Message;

/// Data up to this size is copied out of the buffer that it came in.
const COPIED_BYTES: usize = 4 << 10;

/// What a node says on its stream.
#[derive(Debug)]
pub(crate) enum Said {
    Hello {
        id: TunnelId,
        ticket: Hidden<String>,
    },
    Frame(TunnelFrame),
    /// Nothing that is known here.
    Other,
}

/// The frame in a message. `Err` ends the stream.
pub(crate) fn decode(message: Bytes) -> Result<Said, CloseReason> {
    let frame = v1::TunnelFrame::decode(message)
        .map_err(|_| CloseReason::Protocol("a frame of the tunnel is no valid protobuf".to_owned()))?;
    Ok(match frame.frame {
        Some(Arm::Hello(hello)) => {
            Said::Hello { id: tunnel_id(&hello.tunnel_id)?, ticket: ticket(hello.ticket)? }
        }
        Some(Arm::Data(v1::TunnelData { data })) => Said::Frame(TunnelFrame::Data(unshared(data))),
        Some(Arm::Window(v1::TunnelWindow { columns, rows })) => {
            Said::Frame(TunnelFrame::Window { columns, rows })
        }
        Some(Arm::HalfClose(_)) => Said::Frame(TunnelFrame::HalfClose),
        Some(Arm::Exit(v1::TunnelExit { code, message })) => Said::Frame(TunnelFrame::Exit { code, message }),
        Some(Arm::Closed(_)) | None => Said::Other,
    })
}

/// A frame for a node, with its prefix.
pub(crate) fn encode(frame: TunnelFrame) -> Bytes {
    let arm = match frame {
        TunnelFrame::Data(data) => Arm::Data(v1::TunnelData { data }),
        TunnelFrame::Window { columns, rows } => Arm::Window(v1::TunnelWindow { columns, rows }),
        TunnelFrame::HalfClose => Arm::HalfClose(v1::TunnelHalfClose {}),
        TunnelFrame::Exit { code, message } => Arm::Exit(v1::TunnelExit { code, message }),
    };
    framing::encode(&v1::TunnelFrame { frame: Some(arm) })
}

/// The arm of a session's frame that offers a tunnel.
pub(crate) fn open_tunnel(open: OpenTunnel) -> v1::OpenTunnel {
    v1::OpenTunnel {
        tunnel_id: Bytes::copy_from_slice(&open.id.0),
        ticket: open.ticket.0,
        kind: open.kind,
        parameters: open.parameters.into_iter().collect(),
        direct_address: open.direct_address,
    }
}

/// A node's refusal on its session; `None` for one of no tunnel that there could be.
pub(crate) fn refusal(refused: v1::TunnelRefused) -> Option<TunnelRefused> {
    let id = TunnelId::from_bytes(&refused.tunnel_id)?;
    Some(TunnelRefused { id, reason: refused.reason })
}

fn tunnel_id(bytes: &[u8]) -> Result<TunnelId, CloseReason> {
    let wrong = || {
        let bytes = bytes.len();
        format!("TunnelHello: tunnel_id is {bytes} bytes long; it must be the 16 of OpenTunnel")
    };
    TunnelId::from_bytes(bytes).ok_or_else(|| CloseReason::Protocol(wrong()))
}

fn ticket(ticket: String) -> Result<Hidden<String>, CloseReason> {
    if ticket.len() <= MAX_TICKET_BYTES {
        return Ok(Hidden(ticket));
    }
    let bytes = ticket.len();
    Err(CloseReason::Protocol(format!(
        "TunnelHello: ticket is {bytes} bytes long; at most {MAX_TICKET_BYTES} are allowed"
    )))
}

fn unshared(data: Bytes) -> Bytes {
    if data.len() <= COPIED_BYTES { Bytes::copy_from_slice(&data) } else { data }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(arm: Arm) -> Bytes {
        v1::TunnelFrame { frame: Some(arm) }.encode_to_vec().into()
    }

    #[test]
    fn what_is_encoded_is_decoded_as_it_was() {
        let frames = [
            TunnelFrame::Data(Bytes::from_static(b"ls\n")),
            TunnelFrame::Data(Bytes::from(vec![3; 20_000])),
            TunnelFrame::Window { columns: 120, rows: 40 },
            TunnelFrame::HalfClose,
            TunnelFrame::Exit { code: -7, message: "killed".to_owned() },
        ];
        for frame in frames {
            let encoded = encode(frame.clone()).slice(framing::PREFIX_BYTES..);
            let Ok(Said::Frame(decoded)) = decode(encoded) else { panic!("{frame:?} is none") };
            assert_eq!(decoded, frame);
        }
    }

    #[test]
    fn a_hello_that_is_none_is_refused_without_repeating_it() {
        let hello = |tunnel_id: &[u8], ticket: String| {
            let hello = v1::TunnelHello { tunnel_id: Bytes::copy_from_slice(tunnel_id), ticket };
            decode(message(Arm::Hello(hello)))
        };
        assert!(matches!(hello(&[1; 16], "t".to_owned()), Ok(Said::Hello { .. })));
        let short = hello(&[1; 15], "t".to_owned()).expect_err("no id").to_string();
        assert_eq!(short, "TunnelHello: tunnel_id is 15 bytes long; it must be the 16 of OpenTunnel");
        let long = hello(&[1; 16], "s3cret".repeat(2000)).expect_err("too long").to_string();
        assert!(!long.contains("s3cret") && long.contains("12000"), "{long}");
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_refused(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
        ) {
            // Neither panics; a frame that came through can be sent on.
            if let Ok(Said::Frame(frame)) = decode(bytes.into()) {
                encode(frame);
            }
        }
    }
}

//! Between the messages of a caller and what the core knows of tunnels.
//!
//! 1. Whatever a caller sends is a message or an error that ends its tunnel; no sentence repeats it.

use bytes::{Bytes, BytesMut};
use gateway_core::ids::NodeId;
use gateway_core::relay::Hidden;
use gateway_core::tunnel::ticket::MAX_TICKET_BYTES;
use gateway_core::tunnel::{
    MAX_KIND_BYTES, MAX_PARAMETER_BYTES, MAX_PARAMETERS, MAX_PARAMETERS_BYTES, TunnelClose, TunnelFrame,
};
use gateway_proto::control::v1 as control;
use gateway_proto::framing;
use gateway_proto::v1::{self, tunnel_frame::Frame as Arm};
use prost::Message;

/// What a caller wants.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) node: NodeId,
    pub(crate) ticket: Hidden<String>,
    pub(crate) kind: String,
    pub(crate) parameters: Vec<(String, String)>,
}

/// A caller's first message.
pub(crate) fn wanted(message: Bytes) -> Result<Wanted, TunnelClose> {
    let open =
        control::TunnelOpen::decode(message).map_err(|_| broken("the first message is no TunnelOpen"))?;
    let node = NodeId::new(&open.node_id).map_err(|error| broken(&error.to_string()))?;
    let plain = |text: &str| !text.chars().any(char::is_control);
    if open.kind.is_empty() || open.kind.len() > MAX_KIND_BYTES || !plain(&open.kind) {
        return Err(broken("kind must be 1 to 64 bytes without control characters, such as \"shell\""));
    }
    if open.ticket.is_empty() || open.ticket.len() > MAX_TICKET_BYTES {
        return Err(broken("ticket must be 1 to 8192 bytes"));
    }
    let all: usize = open.parameters.iter().map(|(name, value)| name.len() + value.len()).sum();
    let longest = open.parameters.iter().map(|(name, value)| name.len().max(value.len())).max();
    if open.parameters.len() > MAX_PARAMETERS
        || all > MAX_PARAMETERS_BYTES
        || longest.is_some_and(|bytes| bytes > MAX_PARAMETER_BYTES)
    {
        return Err(broken("parameters must be 64 at most, of 8 KiB each and 16 KiB together"));
    }
    Ok(Wanted {
        node,
        ticket: Hidden(open.ticket),
        kind: open.kind,
        parameters: open.parameters.into_iter().collect(),
    })
}

/// A later message of a caller; `None` for what is not known here.
pub(crate) fn decode(message: Bytes) -> Result<Option<TunnelFrame>, TunnelClose> {
    let frame =
        v1::TunnelFrame::decode(message).map_err(|_| broken("a message of the tunnel is no TunnelFrame"))?;
    Ok(match frame.frame {
        Some(Arm::Data(v1::TunnelData { data })) => Some(TunnelFrame::Data(data)),
        Some(Arm::Window(v1::TunnelWindow { columns, rows })) => Some(TunnelFrame::Window { columns, rows }),
        Some(Arm::HalfClose(_)) => Some(TunnelFrame::HalfClose),
        Some(Arm::Exit(v1::TunnelExit { code, message })) => Some(TunnelFrame::Exit { code, message }),
        Some(Arm::Hello(_) | Arm::Closed(_)) | None => None,
    })
}

/// Puts a frame for a caller, with its prefix, behind others.
pub(crate) fn encode(frame: TunnelFrame, behind: &mut BytesMut) {
    let arm = match frame {
        TunnelFrame::Data(data) => Arm::Data(v1::TunnelData { data }),
        TunnelFrame::Window { columns, rows } => Arm::Window(v1::TunnelWindow { columns, rows }),
        TunnelFrame::HalfClose => Arm::HalfClose(v1::TunnelHalfClose {}),
        TunnelFrame::Exit { code, message } => Arm::Exit(v1::TunnelExit { code, message }),
    };
    framing::encode_behind(&v1::TunnelFrame { frame: Some(arm) }, behind);
}

/// The last frame for a caller.
pub(crate) fn closed(close: &TunnelClose) -> Bytes {
    let message = if *close == TunnelClose::Finished { String::new() } else { close.to_string() };
    let arm = Arm::Closed(v1::TunnelClosed { code: close.code() as u32, message });
    framing::encode(&v1::TunnelFrame { frame: Some(arm) })
}

pub(crate) fn broken(why: &str) -> TunnelClose {
    TunnelClose::Protocol(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> control::TunnelOpen {
        control::TunnelOpen {
            node_id: "spiffe://a/site/s/node/n".to_owned(),
            ticket: "s3cret".to_owned(),
            kind: "shell".to_owned(),
            parameters: [("command".to_owned(), "ls".to_owned())].into(),
        }
    }

    fn refused(open: &control::TunnelOpen) -> String {
        wanted(open.encode_to_vec().into()).expect_err("refused").to_string()
    }

    #[test]
    fn a_first_message_is_taken_whole_or_refused_with_the_field_that_is_wrong() {
        assert!(wanted(open().encode_to_vec().into()).is_ok());
        let wrong = [
            (control::TunnelOpen { node_id: String::new(), ..open() }, "node id"),
            (control::TunnelOpen { kind: "k".repeat(65), ..open() }, "kind"),
            (control::TunnelOpen { kind: "a\nb".to_owned(), ..open() }, "kind"),
            (control::TunnelOpen { ticket: "s3cret".repeat(2000), ..open() }, "ticket"),
            (
                control::TunnelOpen { parameters: [("a".to_owned(), "b".repeat(9000))].into(), ..open() },
                "parameters",
            ),
        ];
        for (open, field) in wrong {
            let sentence = refused(&open);
            assert!(sentence.contains(field) && !sentence.contains("s3cret"), "{sentence}");
        }
        assert!(wanted(Bytes::from_static(b"\xff\xff")).is_err());
    }
}

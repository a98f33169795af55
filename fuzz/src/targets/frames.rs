//! Frames of nodes: protobuf, and the framing around it.
//!
//! 1. What a stock decoder reads and writes again means the same to the gateway.
//! 2. Messages come out of the framing the same, however the bytes were cut.

use std::sync::LazyLock;

use bytes::Bytes;
use gateway_core::limits::Limits;
use gateway_proto::framing::{Deframer, FramingError, PREFIX_BYTES};
use gateway_proto::v1;
use gateway_shard::doors;
use prost::Message;

use super::check_sentence;

static LIMITS: LazyLock<Limits> = LazyLock::new(Limits::default);

/// A limit for frames that inputs of the framing can pass.
pub(super) const MOST_FRAME_BYTES: usize = 4096;

pub(super) fn frame(input: &[u8]) {
    let message = Bytes::copy_from_slice(input);
    let read = doors::decode(message.clone(), &LIMITS);
    if let Err(reason) = &read {
        check_sentence(&reason.to_string());
    }
    if let Err(reason) = doors::read_tunnel(message.clone()) {
        check_sentence(&reason.to_string());
    }
    // A stock decoder merges an arm that stands there twice, which the gateway need not.
    if let (true, Ok(stock)) = (has_one_field(input), v1::NodeFrame::decode(message)) {
        let again = doors::decode(Bytes::from(stock.encode_to_vec()), &LIMITS);
        assert_eq!(read, again, "read from a node, and from what a stock client makes of the same");
    }
}

pub(super) fn join(input: &[u8]) {
    let message = Bytes::copy_from_slice(input);
    let read = doors::read_join(message.clone());
    if let Err(reason) = &read {
        check_sentence(&reason.to_string());
    }
    match v1::JoinRequest::decode(message) {
        Err(_) => assert!(read.is_err(), "what no stock decoder reads is taken"),
        Ok(stock) => {
            assert_eq!(read, doors::read_join(Bytes::from(stock.encode_to_vec())));
            assert!(read.is_err() || !(stock.token.is_empty() || stock.csr_der.is_empty()));
        }
    }
}

/// Whether a message is a single field of bytes.
fn has_one_field(input: &[u8]) -> bool {
    let mut rest = input;
    let Ok((_, kind)) = prost::encoding::decode_key(&mut rest) else { return false };
    let Ok(length) = prost::encoding::decode_varint(&mut rest) else { return false };
    kind == prost::encoding::WireType::LengthDelimited && length == rest.len() as u64
}

pub(super) fn framing(input: &[u8]) {
    let whole = messages(input, |_| usize::MAX);
    for step in [1, 2, 7] {
        assert_eq!(whole, messages(input, |_| step), "cut every {step} bytes");
    }
    // Cut as the input itself says.
    let by_input = messages(input, |at| usize::from(input[at] % 23) + 1);
    assert_eq!(whole, by_input, "cut by its own bytes");
}

type Messages = (Vec<Bytes>, Option<FramingError>);

fn messages(input: &[u8], step: impl Fn(usize) -> usize) -> Messages {
    let mut deframer = Deframer::new(MOST_FRAME_BYTES);
    let (mut all, mut at) = (Vec::new(), 0);
    while at < input.len() {
        let end = at.saturating_add(step(at)).min(input.len());
        deframer.push(Bytes::copy_from_slice(&input[at..end]));
        let chunk = end - at;
        at = end;
        loop {
            match deframer.next() {
                Ok(Some(message)) => {
                    assert!(message.len() <= MOST_FRAME_BYTES);
                    all.push(message);
                }
                Ok(None) => break,
                Err(error) => {
                    check_sentence(&error.to_string());
                    return (all, Some(error));
                }
            }
        }
        let most = PREFIX_BYTES + MOST_FRAME_BYTES + chunk;
        assert!(deframer.buffered_bytes() <= most, "{} bytes are kept", deframer.buffered_bytes());
    }
    (all, None)
}

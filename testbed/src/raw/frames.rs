//! HTTP/2 frames as bytes, well-formed or not, and back.
//!
//! 1. Whatever is given is written: no length, flag or stream is held to a rule.
//! 2. What comes is cut into frames as far as whole ones came.

use std::ops::Range;

use super::session_path;

/// What an HTTP/2 client says first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// HTTP/2 frame types.
pub mod frame_type {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// The flag of HEADERS without CONTINUATION.
pub const END_HEADERS: u8 = 4;

/// An HTTP/2 frame as bytes.
pub fn http2_frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A header block without compression; names and values under 127 bytes.
pub fn header_block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len().min(126)).unwrap_or(126));
            block.extend(text.as_bytes().iter().take(126));
        }
    }
    block
}

/// The header block of a gRPC call.
pub fn call_headers(path: &str) -> Vec<u8> {
    header_block(&[
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "gateway"),
        (":path", path),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ])
}

/// What a client says first: the preface and empty settings.
pub fn http2_start() -> Vec<u8> {
    [PREFACE, &http2_frame(frame_type::SETTINGS, 0, 0, &[])].concat()
}

/// The HEADERS frame that opens a session on a stream.
pub fn call_on(stream: u32) -> Vec<u8> {
    http2_frame(frame_type::HEADERS, END_HEADERS, stream, &call_headers(session_path()))
}

/// Sessions that are opened and reset at once: the first on stream 1, the second on 3, and so on.
pub fn calls_reset(numbers: Range<u32>) -> Vec<u8> {
    numbers
        .flat_map(|number| {
            let stream = 2 * number + 1;
            let reset = http2_frame(frame_type::RST_STREAM, 0, stream, &[0, 0, 0, 8]);
            [call_on(stream), reset].concat()
        })
        .collect()
}

/// A frame that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedFrame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// The frames in what came, as far as they are whole.
pub fn received_frames(mut bytes: &[u8]) -> Vec<ReceivedFrame> {
    let mut frames = Vec::new();
    while let [a, b, c, kind, flags, s0, s1, s2, s3, rest @ ..] = bytes {
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        let Some(payload) = rest.get(..length) else { break };
        let stream = u32::from_be_bytes([*s0, *s1, *s2, *s3]) & 0x7fff_ffff;
        frames.push(ReceivedFrame { kind: *kind, flags: *flags, stream, payload: payload.to_vec() });
        bytes = &rest[length..];
    }
    frames
}

/// The error code of the last GOAWAY, where one came.
pub fn goaway_code(frames: &[ReceivedFrame]) -> Option<u32> {
    let frame = frames.iter().rev().find(|frame| frame.kind == frame_type::GOAWAY)?;
    Some(u32::from_be_bytes(frame.payload.get(4..8)?.try_into().ok()?))
}

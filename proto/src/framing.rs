//! gRPC's length-prefix framing: one flag byte, four bytes of length, the message.
//!
//! 1. A declared length over the bound is refused before any byte of the message is kept.
//! 2. A compressed frame is refused: no feature of the protocol needs it.
//! 3. What was pushed and not yet taken is at most one partial frame plus the last chunk.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

/// Bytes before a message.
pub const PREFIX_BYTES: usize = 5;

/// Why bytes are no frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    #[error("a frame of {bytes} bytes is over the limit of {max}")]
    TooLarge { bytes: usize, max: usize },
    #[error("compressed frames are not supported; send them with identity encoding")]
    Compressed,
    #[error("the frame's flag byte is {flag}, which is neither 0 nor 1")]
    BadFlag { flag: u8 },
}

/// A message with its prefix, ready to be sent.
pub fn encode(message: &impl Message) -> Bytes {
    let mut frame = BytesMut::new();
    encode_behind(message, &mut frame);
    frame.freeze()
}

/// Puts a message with its prefix behind others, to be sent together.
pub fn encode_behind(message: &impl Message, frames: &mut BytesMut) {
    let length = message.encoded_len();
    frames.reserve(PREFIX_BYTES + length);
    frames.put_u8(0);
    frames.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // Writing into memory that was reserved for it can't fail.
    let _ = message.encode(frames);
}

/// Cuts a stream of chunks into messages.
#[derive(Debug)]
pub struct Deframer {
    max_bytes: usize,
    // What was received and not yet taken. One chunk that holds whole frames is never copied.
    buffered: Bytes,
    partial: BytesMut,
}

impl Deframer {
    /// For messages of at most `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Self { max_bytes, buffered: Bytes::new(), partial: BytesMut::new() }
    }

    /// Sets how large messages from the next on may be; gives what was allowed before.
    pub fn set_max_bytes(&mut self, max_bytes: usize) -> usize {
        std::mem::replace(&mut self.max_bytes, max_bytes)
    }

    /// Takes the next chunk. To be followed by `next` until that gives `None`.
    pub fn push(&mut self, chunk: Bytes) {
        if self.partial.is_empty() && self.buffered.is_empty() {
            self.buffered = chunk;
        } else {
            self.partial.extend_from_slice(&self.buffered);
            self.partial.extend_from_slice(&chunk);
            self.buffered = Bytes::new();
        }
    }

    /// The next whole message, if there is one.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Bytes>, FramingError> {
        let Some(length) = self.declared_length()? else { return Ok(None) };
        if self.partial.is_empty() {
            if self.buffered.len() < PREFIX_BYTES + length {
                self.partial.reserve(PREFIX_BYTES + length);
                self.partial.extend_from_slice(&std::mem::take(&mut self.buffered));
                return Ok(None);
            }
            self.buffered.advance(PREFIX_BYTES);
            return Ok(Some(self.buffered.split_to(length)));
        }
        if self.partial.len() < PREFIX_BYTES + length {
            return Ok(None);
        }
        let mut frame = self.partial.split_to(PREFIX_BYTES + length).freeze();
        frame.advance(PREFIX_BYTES);
        self.buffered = std::mem::take(&mut self.partial).freeze();
        Ok(Some(frame))
    }

    /// The length that the frame at the front declares, once its prefix is there.
    pub fn declared_length(&self) -> Result<Option<usize>, FramingError> {
        let front: &[u8] = if self.partial.is_empty() { &self.buffered } else { &self.partial };
        let Some(&flag) = front.first() else { return Ok(None) };
        match flag {
            0 => {}
            1 => return Err(FramingError::Compressed),
            flag => return Err(FramingError::BadFlag { flag }),
        }
        let Some(length) = front.get(1..PREFIX_BYTES) else { return Ok(None) };
        let bytes = length.iter().fold(0usize, |sum, byte| (sum << 8) | usize::from(*byte));
        if bytes > self.max_bytes {
            return Err(FramingError::TooLarge { bytes, max: self.max_bytes });
        }
        Ok(Some(bytes))
    }

    /// Bytes received and not yet taken.
    pub fn buffered_bytes(&self) -> usize {
        self.buffered.len() + self.partial.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{Heartbeat, NodeFrame, node_frame::Frame};

    fn heartbeat(sequence: u64) -> NodeFrame {
        NodeFrame { frame: Some(Frame::Heartbeat(Heartbeat { sequence, ..Heartbeat::default() })) }
    }

    #[test]
    fn frames_survive_any_cut() {
        let stream: Vec<u8> =
            (1..=3u64).flat_map(|n| encode(&heartbeat(n << (20 * (n - 1)))).to_vec()).collect();
        for step in 1..=stream.len() {
            let mut deframer = Deframer::new(1024);
            let mut seen = Vec::new();
            for chunk in stream.chunks(step) {
                deframer.push(Bytes::copy_from_slice(chunk));
                while let Some(message) = deframer.next().expect("well formed") {
                    seen.push(NodeFrame::decode(message).expect("a frame"));
                }
            }
            assert_eq!(seen, [heartbeat(1), heartbeat(2 << 20), heartbeat(3 << 40)], "chunks of {step}");
            assert_eq!(deframer.buffered_bytes(), 0);
        }
    }

    #[test]
    fn a_large_frame_is_refused_by_its_prefix_alone() {
        let mut deframer = Deframer::new(1 << 20);
        deframer.push(Bytes::from_static(&[0, 0, 0x10, 0, 1]));
        assert_eq!(deframer.next(), Err(FramingError::TooLarge { bytes: (1 << 20) + 1, max: 1 << 20 }));
    }

    #[test]
    fn compressed_and_unknown_flags_are_refused() {
        for (flag, error) in [(1, FramingError::Compressed), (7, FramingError::BadFlag { flag: 7 })] {
            let mut deframer = Deframer::new(1024);
            deframer.push(Bytes::from(vec![flag]));
            assert_eq!(deframer.next(), Err(error));
        }
    }
}

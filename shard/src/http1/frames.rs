//! WebSocket's frames (RFC 6455), as a server reads and writes them. No I/O: bytes in, messages out.
//!
//! It is our own, since a frame must be held back between its head and its payload: the shard's budget is asked
//! for what the head declares before any of it is read, and a session at rest keeps no buffer. `gateway-fuzz`
//! holds it against a stock library.
//!
//! 1. It says how many bytes it takes next, and never needs more: nothing is read ahead of a message.
//! 2. What a message holds is bounded before its bytes are read, over all its fragments.
//! 3. Frames of a client are masked, binary, without extensions; the first that is not ends the connection.
//! 4. Control frames and tiny fragments are counted, and a flood of them is a fault.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use gateway_core::time::Moment;
use gateway_proto::framing::PREFIX_BYTES;

use crate::flood::{Bucket, Flood};
use crate::receive_budget::FREE_BYTES;

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;
const MASK_BYTES: usize = 4;
const LONGEST_HEAD_BYTES: usize = 2 + 8 + MASK_BYTES;
const MAX_CONTROL_BYTES: usize = 125;
/// Lengths that say that the length is in the next two bytes, or eight.
const TWO_MORE: u8 = 126;
const EIGHT_MORE: u8 = 127;
/// A fragment that brings less counts like a control frame.
const TINY_FRAGMENT_BYTES: usize = 1 << 10;

/// Why bytes are no frames of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("a WebSocket frame is not masked; a client masks each")]
    Unmasked,
    #[error("a text message came; each frame of the protocol is one binary message")]
    Text,
    #[error("a WebSocket frame has reserved bits set, and no extension was agreed on")]
    Reserved,
    #[error("a WebSocket frame has opcode {0}, which is unknown")]
    Opcode(u8),
    #[error("a WebSocket control frame is fragmented or longer than 125 bytes")]
    LargeControl,
    #[error("a WebSocket continuation frame continues nothing")]
    NothingToContinue,
    #[error("a WebSocket message began before the one before it was whole")]
    Interleaved,
    #[error("the peer floods the connection with control frames or tiny fragments")]
    Flood,
}

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    Message(Bytes),
    Ping(Bytes),
    Pong,
    Close,
}

/// The frame whose payload is being received.
#[derive(Debug, Clone, Copy)]
struct Frame {
    opcode: u8,
    is_last: bool,
    left: usize,
    mask: [u8; MASK_BYTES],
}

#[derive(Debug)]
pub(crate) struct Incoming {
    max_bytes: usize,
    head: [u8; LONGEST_HEAD_BYTES],
    head_bytes: usize,
    frame: Option<Frame>,
    /// What is here of an unfinished message, and of an unfinished control frame.
    message: BytesMut,
    control: BytesMut,
    is_fragmented: bool,
    /// What a message that is too large would hold.
    too_large: Option<usize>,
    discards: bool,
    /// Whether nothing that could still come means anything: the peer has closed, or broken the framing.
    is_over: bool,
    idle_frames: Bucket,
}

impl Incoming {
    /// For messages of at most `max_bytes`.
    pub(crate) fn new(max_bytes: usize, now: Moment) -> Self {
        Self {
            max_bytes,
            head: [0; LONGEST_HEAD_BYTES],
            head_bytes: 0,
            frame: None,
            message: BytesMut::new(),
            control: BytesMut::new(),
            is_fragmented: false,
            too_large: None,
            discards: false,
            is_over: false,
            idle_frames: Bucket::control(now),
        }
    }

    /// Takes the next bytes, `wanted` at most. The clock is read only where the bucket is empty.
    pub(crate) fn handle_bytes(
        &mut self,
        bytes: &mut [u8],
        now: impl Fn() -> Moment,
    ) -> Result<Option<Arrived>, Fault> {
        assert!(bytes.len() <= self.wanted(), "it was given more than it wants");
        let arrived =
            if self.frame.is_some() { Ok(self.take_payload(bytes)) } else { self.take_head(bytes, now) };
        self.is_over |= matches!(arrived, Ok(Some(Arrived::Close)) | Err(_)) || self.too_large.is_some();
        arrived
    }

    fn take_payload(&mut self, bytes: &mut [u8]) -> Option<Arrived> {
        let frame = self.frame.as_mut()?;
        for (byte, mask) in bytes.iter_mut().zip(frame.mask.iter().cycle()) {
            *byte ^= mask;
        }
        frame.mask.rotate_left(bytes.len() % MASK_BYTES);
        frame.left -= bytes.len();
        let (is_control, left) = (frame.opcode >= CLOSE, frame.left);
        if is_control {
            self.control.extend_from_slice(bytes);
        } else if !self.discards {
            self.message.reserve(bytes.len() + left);
            self.message.extend_from_slice(bytes);
        }
        if left == 0 { self.end_frame() } else { None }
    }

    /// Sets how large messages from the next on may be; gives what was allowed before.
    pub(crate) fn set_max_bytes(&mut self, max_bytes: usize) -> usize {
        std::mem::replace(&mut self.max_bytes, max_bytes)
    }

    /// From now on nothing is kept of messages: their peer was told the end.
    pub(crate) fn discard(&mut self) {
        self.discards = true;
        self.message = BytesMut::new();
    }

    /// How many bytes it takes next.
    pub(crate) fn wanted(&self) -> usize {
        self.frame.map_or_else(|| self.whole_head_bytes() - self.head_bytes, |frame| frame.left)
    }

    /// Bytes that the message at the front takes before it is whole, as far as is known: of one that comes in
    /// fragments and is no small one, all that a message may hold.
    pub(crate) fn unfinished(&self) -> Option<usize> {
        let frame = self.frame.filter(|frame| frame.opcode < CLOSE)?;
        let bytes = self.message.len() + frame.left;
        let has_more = self.is_fragmented || !frame.is_last;
        Some(if has_more && bytes > FREE_BYTES { self.max_bytes } else { bytes })
    }

    /// What a message that is too large declares, with what is allowed.
    pub(crate) fn too_large(&self) -> Option<(usize, usize)> {
        self.too_large.map(|bytes| (bytes, self.max_bytes))
    }

    /// Whether some of a message or of a frame is here.
    pub(crate) fn has_begun(&self) -> bool {
        self.head_bytes > 0 || self.frame.is_some() || self.is_fragmented
    }

    /// Whether nothing that could still come means anything: the peer has closed, or broken the framing.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    fn take_head(&mut self, bytes: &[u8], now: impl Fn() -> Moment) -> Result<Option<Arrived>, Fault> {
        self.head[self.head_bytes..self.head_bytes + bytes.len()].copy_from_slice(bytes);
        self.head_bytes += bytes.len();
        if self.head_bytes == 2 {
            self.check_head()?;
        }
        let whole = self.whole_head_bytes();
        if self.head_bytes < whole {
            return Ok(None);
        }
        self.head_bytes = 0;
        let (opcode, is_last) = (self.head[0] & 0x0f, self.head[0] & FIN != 0);
        let length = &self.head[2..whole - MASK_BYTES];
        let declared = length.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        let short = self.head[1] & !MASKED;
        let declared = if short < TWO_MORE { u64::from(short) } else { declared };
        let left = usize::try_from(declared).unwrap_or(usize::MAX);
        let mut mask = [0; MASK_BYTES];
        mask.copy_from_slice(&self.head[whole - MASK_BYTES..whole]);
        if opcode >= CLOSE {
            self.count_idle_frame(now)?;
        } else {
            if (self.is_fragmented || !is_last) && left < TINY_FRAGMENT_BYTES {
                self.count_idle_frame(now)?;
            }
            let message = self.message.len().saturating_add(left);
            if message > self.max_bytes && !self.discards {
                self.too_large = Some(message);
            }
        }
        self.frame = Some(Frame { opcode, is_last, left, mask });
        Ok(if left == 0 { self.end_frame() } else { None })
    }

    fn check_head(&self) -> Result<(), Fault> {
        let [first, second, ..] = self.head;
        if first & RESERVED != 0 {
            return Err(Fault::Reserved);
        }
        match first & 0x0f {
            CONTINUATION if !self.is_fragmented => return Err(Fault::NothingToContinue),
            BINARY if self.is_fragmented => return Err(Fault::Interleaved),
            CONTINUATION | BINARY => {}
            TEXT => return Err(Fault::Text),
            CLOSE | PING | PONG => {
                if first & FIN == 0 || usize::from(second & !MASKED) > MAX_CONTROL_BYTES {
                    return Err(Fault::LargeControl);
                }
            }
            opcode => return Err(Fault::Opcode(opcode)),
        }
        if second & MASKED == 0 { Err(Fault::Unmasked) } else { Ok(()) }
    }

    fn count_idle_frame(&mut self, now: impl Fn() -> Moment) -> Result<(), Fault> {
        self.idle_frames.take(now).map(drop).map_err(|Flood| Fault::Flood)
    }

    /// How long the head is, by the part of it that is here.
    fn whole_head_bytes(&self) -> usize {
        if self.head_bytes < 2 {
            return 2;
        }
        let length = match self.head[1] & !MASKED {
            TWO_MORE => 2,
            EIGHT_MORE => 8,
            _ => 0,
        };
        2 + length + MASK_BYTES
    }

    fn end_frame(&mut self) -> Option<Arrived> {
        let frame = self.frame.take()?;
        match frame.opcode {
            CLOSE => Some(Arrived::Close),
            PING => Some(Arrived::Ping(std::mem::take(&mut self.control).freeze())),
            PONG => {
                self.control = BytesMut::new();
                Some(Arrived::Pong)
            }
            _ => {
                self.is_fragmented = !frame.is_last;
                frame.is_last.then(|| Arrived::Message(std::mem::take(&mut self.message).freeze()))
            }
        }
    }
}

/// A message that comes with gRPC's prefix, as a frame of a server.
pub(crate) fn message(prefixed: Bytes) -> Bytes {
    let length = prefixed.len() - PREFIX_BYTES;
    if length > usize::from(u16::MAX) {
        let mut frame = BytesMut::with_capacity(2 + 8 + length);
        frame.put_slice(&[FIN | BINARY, EIGHT_MORE]);
        frame.put_u64(length as u64);
        frame.put_slice(&prefixed[PREFIX_BYTES..]);
        return frame.freeze();
    }
    // The head of a frame that is not large fits where the prefix is.
    let mut frame = prefixed.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    let [_, b, c, d, e, ..] = &mut frame[..] else { return Bytes::new() };
    match u8::try_from(length) {
        Ok(short) if short < TWO_MORE => {
            (*d, *e) = (FIN | BINARY, short);
            frame.advance(3);
        }
        _ => {
            let [high, low] = u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes();
            (*b, *c, *d, *e) = (FIN | BINARY, TWO_MORE, high, low);
            frame.advance(1);
        }
    }
    frame.freeze()
}

/// The answer to a ping.
pub(crate) fn pong(payload: &[u8]) -> Bytes {
    control(PONG, payload)
}

/// The end of a connection, with a sentence that fits.
pub(crate) fn close(code: u16, sentence: &str) -> Bytes {
    let mut payload = BytesMut::with_capacity(2 + sentence.len());
    payload.put_u16(code);
    payload.put_slice(sentence.as_bytes());
    control(CLOSE, &payload)
}

fn control(opcode: u8, payload: &[u8]) -> Bytes {
    let payload = &payload[..payload.len().min(MAX_CONTROL_BYTES)];
    let mut frame = BytesMut::with_capacity(2 + payload.len());
    frame.put_u8(FIN | opcode);
    frame.put_u8(u8::try_from(payload.len()).unwrap_or(0));
    frame.put_slice(payload);
    frame.freeze()
}

#[cfg(test)]
mod tests;

//! What waits to be sent on one stream, and how long its peer has not taken any of it.
//!
//! 1. The transport is given only what it has room for, so what waits is here, and is counted.
//! 2. Frames leave whole and in order.
//! 3. Small frames that wait together share a DATA frame: a client's HTTP/2 may take many tiny ones
//!    that it has not read yet for an attack.
//! 4. A stall begins when something waits and nothing can be sent, and ends with the next byte.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use gateway_core::time::Moment;

use crate::bell::Bell;
use crate::status::CallStatus;
use crate::transport::{Gone, Outlet};

/// Below this the session is asked for more frames.
const LOW_WATER_BYTES: usize = 64 << 10;

/// Most that frames sent together take.
const TOGETHER_BYTES: usize = 16 << 10;

pub(crate) struct Outbox {
    outlet: Outlet,
    bell: Arc<Bell>,
    frames: VecDeque<Bytes>,
    bytes: usize,
    stalled_since: Option<Moment>,
    farewell_due_at: Option<Moment>,
}

/// What became of a try to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flush {
    /// Nothing waits.
    Empty,
    /// The peer must take some of it first.
    Stalled,
    /// The stream is gone.
    PeerGone,
}

impl Outbox {
    pub(crate) fn new(outlet: impl Into<Outlet>, bell: &Arc<Bell>) -> Self {
        let outlet = outlet.into();
        Self {
            outlet,
            bell: Arc::clone(bell),
            frames: VecDeque::new(),
            bytes: 0,
            stalled_since: None,
            farewell_due_at: None,
        }
    }

    /// Takes a frame with its prefix; how many bytes it is here, in the form of its transport.
    pub(crate) fn push(&mut self, frame: Bytes) -> usize {
        let bytes = self.outlet.queue(frame, &mut self.frames);
        self.bytes += bytes;
        bytes
    }

    pub(crate) fn wants_more(&self) -> bool {
        self.bytes < LOW_WATER_BYTES
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sends what can be sent.
    pub(crate) fn poll_flush(&mut self, context: &mut Context<'_>, now: Moment) -> Flush {
        // Asked also when nothing waits: it tells that the peer has given the call up.
        if self.outlet.poll_gone(context) == Err(Gone) {
            return Flush::PeerGone;
        }
        while !self.frames.is_empty() {
            let room = match self.outlet.poll_room(context, self.bytes.min(LOW_WATER_BYTES)) {
                Poll::Ready(Ok(room)) => room,
                Poll::Ready(Err(Gone)) => return Flush::PeerGone,
                Poll::Pending => return self.stall(now),
            };
            let part = next_part(&mut self.frames, room);
            self.bytes -= part.len();
            self.stalled_since = None;
            self.bell.mark_data_sent();
            if self.outlet.send(part) == Err(Gone) {
                return Flush::PeerGone;
            }
        }
        if self.frames.capacity() > 16 {
            self.frames = VecDeque::new();
        }
        match self.outlet.poll_sent(context) {
            Poll::Ready(Ok(())) => {
                self.stalled_since = None;
                Flush::Empty
            }
            Poll::Ready(Err(Gone)) => Flush::PeerGone,
            Poll::Pending => self.stall(now),
        }
    }

    fn stall(&mut self, now: Moment) -> Flush {
        if self.outlet.take_took_some() {
            self.stalled_since = None;
        }
        self.stalled_since.get_or_insert(now);
        Flush::Stalled
    }

    /// When a peer that takes nothing has had `patience`.
    pub(crate) fn stall_deadline(&self, patience: Duration) -> Option<Moment> {
        self.stalled_since.map(|since| since + patience)
    }

    /// Nothing more is said: what waits is to be read by then, however steadily its peer reads.
    pub(crate) fn begin_farewell(&mut self, due_at: Moment) {
        self.farewell_due_at = Some(due_at);
    }

    /// Whether the farewell was begun, and its time has passed.
    pub(crate) fn farewell_is_over(&self, now: Moment) -> bool {
        self.farewell_due_at.is_some_and(|due_at| due_at <= now)
    }

    /// When a peer has had `patience`, or the time of its farewell.
    pub(crate) fn deadline(&self, patience: Duration) -> Option<Moment> {
        self.stall_deadline(patience).into_iter().chain(self.farewell_due_at).min()
    }

    /// Forgets what waits.
    pub(crate) fn clear(&mut self) {
        self.frames = VecDeque::new();
        self.bytes = 0;
        self.stalled_since = None;
        self.outlet.forget();
    }

    /// Ends the call.
    pub(crate) fn end(&mut self, status: &CallStatus) {
        self.outlet.end(status);
    }
}

/// The next bytes to send, at most `room`: whole frames that fit together, or a part of one.
fn next_part(frames: &mut VecDeque<Bytes>, room: usize) -> Bytes {
    let together = room.min(TOGETHER_BYTES);
    let mut sum = 0;
    let count = frames.iter().take_while(|frame| {
        sum += frame.len();
        sum <= together
    });
    let count = count.count();
    if count > 1 {
        let mut part = BytesMut::with_capacity(frames.iter().take(count).map(Bytes::len).sum());
        frames.drain(..count).for_each(|frame| part.extend_from_slice(&frame));
        return part.freeze();
    }
    let Some(frame) = frames.front_mut() else { return Bytes::new() };
    let part = frame.split_to(room.min(frame.len()));
    if frame.is_empty() {
        frames.pop_front();
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_frames_go_together_and_large_ones_in_parts_all_in_order() {
        for room in [1, 7, 100, 20_000, 1 << 20] {
            let sizes = [5, 6, 3, 40_000, 1, 9, 16_384, 2];
            let mut frames: VecDeque<Bytes> =
                sizes.iter().zip(b'a'..).map(|(size, byte)| Bytes::from(vec![byte; *size])).collect();
            let expected: Vec<u8> = frames.iter().flatten().copied().collect();
            let (mut sent, mut parts) = (Vec::new(), 0);
            while !frames.is_empty() {
                let part = next_part(&mut frames, room);
                assert!(!part.is_empty() && part.len() <= room);
                sent.extend(part);
                parts += 1;
            }
            assert_eq!(sent, expected);
            if room == 1 << 20 {
                assert_eq!(parts, 5, "three, the large one, two, the one of 16 KiB, the last");
            }
        }
    }
}

//! What waits to be sent on one stream, and how long its peer has not taken any of it.
//!
//! 1. HTTP/2 is given only what it has capacity for, so what waits is here, and is counted.
//! 2. Frames leave whole and in order.
//! 3. A stall begins when something waits and nothing can be sent, and ends with the next byte.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use gateway_core::time::Moment;
use h2::SendStream;

use crate::bell::Bell;
use crate::status::CallStatus;

/// Below this the session is asked for more frames.
const LOW_WATER_BYTES: usize = 64 << 10;

pub(crate) struct Outbox {
    send: SendStream<Bytes>,
    bell: Arc<Bell>,
    frames: VecDeque<Bytes>,
    bytes: usize,
    stalled_since: Option<Moment>,
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
    pub(crate) fn new(send: SendStream<Bytes>, bell: &Arc<Bell>) -> Self {
        Self { send, bell: Arc::clone(bell), frames: VecDeque::new(), bytes: 0, stalled_since: None }
    }

    pub(crate) fn push(&mut self, frame: Bytes) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
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
        // Asked also when nothing waits: it tells that the peer has reset the stream.
        if self.send.poll_reset(context).is_ready() {
            return Flush::PeerGone;
        }
        while let Some(frame) = self.frames.front_mut() {
            if self.send.capacity() == 0 {
                self.send.reserve_capacity(self.bytes.min(LOW_WATER_BYTES));
            }
            if self.send.capacity() == 0 {
                match self.send.poll_capacity(context) {
                    Poll::Ready(Some(Ok(_))) => continue,
                    Poll::Ready(_) => return Flush::PeerGone,
                    Poll::Pending => {
                        self.stalled_since.get_or_insert(now);
                        return Flush::Stalled;
                    }
                }
            }
            let part = frame.split_to(self.send.capacity().min(frame.len()));
            self.bytes -= part.len();
            if frame.is_empty() {
                self.frames.pop_front();
            }
            self.stalled_since = None;
            self.bell.mark_data_sent();
            if self.send.send_data(part, false).is_err() {
                return Flush::PeerGone;
            }
        }
        if self.frames.capacity() > 16 {
            self.frames = VecDeque::new();
        }
        Flush::Empty
    }

    /// When a peer that takes nothing has had `patience`.
    pub(crate) fn stall_deadline(&self, patience: Duration) -> Option<Moment> {
        self.stalled_since.map(|since| since + patience)
    }

    /// Forgets what waits.
    pub(crate) fn clear(&mut self) {
        self.frames = VecDeque::new();
        self.bytes = 0;
        self.stalled_since = None;
        self.send.reserve_capacity(0);
    }

    /// Ends the stream.
    pub(crate) fn end(&mut self, status: &CallStatus) {
        // A stream that is gone by now has nobody left to be told.
        let _ = self.send.send_trailers(status.trailers());
    }
}

//! A session's call to a gateway in this process: no socket, no TLS, no HTTP.
//!
//! What a gateway in memory looks like is said here, since this crate links none; whoever has one implements it.
//!
//! 1. Messages go in order, and the half-close behind them.

use std::collections::VecDeque;
use std::fmt;
use std::task::{Context, Poll};

use bytes::Bytes;
use gateway_proto::framing::PREFIX_BYTES;

use super::super::end::End;
use super::Arrival;

/// A gateway in this process, to a node.
pub trait LocalGateway: Send + Sync {
    /// Opens the call of a session of this node. An error is what a dial that fails gives.
    fn call(&self, node: &str) -> Result<Box<dyn LocalCall>, End>;
}

/// One such call. Messages have no prefix.
pub trait LocalCall: Send + fmt::Debug {
    /// Sends a message; where there is no room it wakes the task when there is.
    fn poll_send(&mut self, message: Bytes, cx: &mut Context<'_>) -> Sent;
    /// Ends our half.
    fn half_close(&mut self);
    /// What came.
    fn poll_arrival(&mut self, cx: &mut Context<'_>) -> Poll<Arrival>;
}

/// What became of a message.
#[derive(Debug)]
pub enum Sent {
    Yes,
    /// Here it is again.
    Later(Bytes),
    /// The call is over; its end comes as an arrival.
    Gone,
}

#[derive(Debug)]
pub(super) struct InProcess {
    call: Box<dyn LocalCall>,
    queued: VecDeque<Bytes>,
    half_close: bool,
}

impl InProcess {
    pub(super) fn new(call: Box<dyn LocalCall>) -> Self {
        Self { call, queued: VecDeque::new(), half_close: false }
    }

    pub(super) fn queue(&mut self, message: &Bytes) {
        self.queued.push_back(message.slice(PREFIX_BYTES.min(message.len())..));
    }

    pub(super) fn half_close(&mut self) {
        self.half_close = true;
    }

    pub(super) fn queued_bytes(&self) -> usize {
        self.queued.iter().map(Bytes::len).sum()
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>, reads: bool) -> Poll<Arrival> {
        while let Some(message) = self.queued.pop_front() {
            match self.call.poll_send(message, cx) {
                Sent::Yes => {}
                Sent::Later(message) => {
                    self.queued.push_front(message);
                    break;
                }
                Sent::Gone => self.queued.clear(),
            }
        }
        if self.queued.is_empty() && std::mem::take(&mut self.half_close) {
            self.call.half_close();
        }
        if reads { self.call.poll_arrival(cx) } else { Poll::Pending }
    }
}

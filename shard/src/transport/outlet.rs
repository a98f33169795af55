//! Where the messages that answer a call go.
//!
//! 1. It takes what it has room for; what waits for room is the outbox's, and is counted there.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::SendStream;

use crate::status::CallStatus;

/// The peer's side of the call is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone;

pub(crate) enum Outlet {
    /// The answer of a gRPC call.
    Http2(SendStream<Bytes>),
}

impl From<SendStream<Bytes>> for Outlet {
    fn from(send: SendStream<Bytes>) -> Self {
        Self::Http2(send)
    }
}

impl Outlet {
    /// Puts a message, which comes with gRPC's prefix, behind the others in the form that goes on the wire; how
    /// many bytes that are.
    pub(crate) fn queue(&self, message: Bytes, waiting: &mut VecDeque<Bytes>) -> usize {
        let bytes = message.len();
        match self {
            Self::Http2(_) => waiting.push_back(message),
        }
        bytes
    }

    /// Whether nobody reads any more, as far as is known.
    pub(crate) fn poll_gone(&mut self, context: &mut Context<'_>) -> Result<(), Gone> {
        match self {
            Self::Http2(send) => match send.poll_reset(context) {
                Poll::Ready(_) => Err(Gone),
                Poll::Pending => Ok(()),
            },
        }
    }

    /// How many bytes can be sent now, of `wanted`.
    pub(crate) fn poll_room(
        &mut self,
        context: &mut Context<'_>,
        wanted: usize,
    ) -> Poll<Result<usize, Gone>> {
        match self {
            Self::Http2(send) => {
                while send.capacity() == 0 {
                    send.reserve_capacity(wanted);
                    match std::task::ready!(send.poll_capacity(context)) {
                        Some(Ok(_)) => {}
                        _ => return Poll::Ready(Err(Gone)),
                    }
                }
                Poll::Ready(Ok(send.capacity()))
            }
        }
    }

    /// Sends a part for which there is room.
    pub(crate) fn send(&mut self, part: Bytes) -> Result<(), Gone> {
        match self {
            Self::Http2(send) => send.send_data(part, false).map_err(|_| Gone),
        }
    }

    /// Nothing waits any more.
    pub(crate) fn forget(&mut self) {
        match self {
            Self::Http2(send) => send.reserve_capacity(0),
        }
    }

    /// Ends the call.
    pub(crate) fn end(&mut self, status: &CallStatus) {
        match self {
            // A stream that is gone by now has nobody left to be told.
            Self::Http2(send) => drop(send.send_trailers(status.trailers())),
        }
    }
}

//! Where the messages of a call come from.
//!
//! 1. Nothing is read but in `poll_more`, so who is not asked for more is held back by its transport.
//! 2. How large an unfinished message is, is told before its bytes are read.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use gateway_proto::framing::{Deframer, FramingError, PREFIX_BYTES};
use h2::RecvStream;

use crate::receive::ReadEnd;

pub(crate) enum Source {
    /// The body of a gRPC call.
    Http2 { body: RecvStream, deframer: Deframer },
}

impl From<RecvStream> for Source {
    fn from(body: RecvStream) -> Self {
        Self::Http2 { body, deframer: Deframer::new(0) }
    }
}

impl Source {
    /// Sets how large messages from the next on may be, which is zero at first; gives what was allowed before.
    pub(crate) fn set_max_bytes(&mut self, max_bytes: usize) -> usize {
        match self {
            Self::Http2 { deframer, .. } => deframer.set_max_bytes(max_bytes),
        }
    }

    /// How many bytes the message at the front takes, where that is known and some are not here yet.
    pub(crate) fn unfinished(&self) -> Result<Option<usize>, FramingError> {
        match self {
            Self::Http2 { deframer, .. } => {
                let missing = |length: &usize| deframer.buffered_bytes() < PREFIX_BYTES + length;
                Ok(deframer.declared_length()?.filter(missing))
            }
        }
    }

    /// The next whole message.
    pub(crate) fn take(&mut self) -> Result<Option<Bytes>, FramingError> {
        match self {
            Self::Http2 { deframer, .. } => deframer.next(),
        }
    }

    /// Whether some of a message is here.
    pub(crate) fn has_begun(&self) -> bool {
        match self {
            Self::Http2 { deframer, .. } => deframer.buffered_bytes() > 0,
        }
    }

    /// Reads some more; `None` when the peer has closed its half.
    pub(crate) fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<(), ReadEnd>>> {
        match self {
            Self::Http2 { body, deframer } => match ready!(body.poll_data(context)) {
                None => Poll::Ready(None),
                Some(Err(_)) => Poll::Ready(Some(Err(ReadEnd::PeerGone))),
                Some(Ok(chunk)) => {
                    let released = body.flow_control().release_capacity(chunk.len());
                    deframer.push(chunk);
                    Poll::Ready(Some(released.map_err(|_| ReadEnd::PeerGone)))
                }
            },
        }
    }
}

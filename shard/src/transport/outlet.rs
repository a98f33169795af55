//! Where the messages that answer a call go.
//!
//! 1. It takes what it has room for; what waits for room is the outbox's, and is counted there.

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use gateway_proto::framing::PREFIX_BYTES;
use h2::SendStream;

use crate::http1::{self, Link};
use crate::local::LocalLink;
use crate::status::CallStatus;

/// The peer's side of the call is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone;

pub(crate) enum Outlet {
    /// The answer of a gRPC call.
    Http2(SendStream<Bytes>),
    /// The messages of a WebSocket.
    WebSocket(Rc<Link>),
    /// The answer of a call over HTTP/1.1: one message, kept until the status is known, since it goes first.
    Unary { link: Rc<Link>, message: Bytes, keep_alive: bool },
    /// The sink of a peer in this process.
    Local(Rc<LocalLink>),
}

impl From<SendStream<Bytes>> for Outlet {
    fn from(send: SendStream<Bytes>) -> Self {
        Self::Http2(send)
    }
}

impl Outlet {
    /// Puts a message, which comes with gRPC's prefix, behind the others in the form that goes on the wire; how
    /// many bytes that are.
    pub(crate) fn queue(&self, mut message: Bytes, waiting: &mut VecDeque<Bytes>) -> usize {
        match self {
            // The prefix tells one from the next where some are sent together.
            Self::Http2(_) | Self::Local(_) => {}
            Self::WebSocket(_) => message = http1::message(message),
            Self::Unary { .. } => message.advance(PREFIX_BYTES),
        }
        let bytes = message.len();
        waiting.push_back(message);
        bytes
    }

    /// Whether nobody reads any more, as far as is known.
    pub(crate) fn poll_gone(&mut self, context: &mut Context<'_>) -> Result<(), Gone> {
        match self {
            Self::Http2(send) => match send.poll_reset(context) {
                Poll::Ready(_) => Err(Gone),
                Poll::Pending => Ok(()),
            },
            Self::WebSocket(link) | Self::Unary { link, .. } => link.check_gone(),
            Self::Local(link) => link.check_gone(),
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
            // A frame goes whole: what is staged ends where a frame does, so that a pong or a close may follow.
            Self::WebSocket(link) => link.poll_sent(context).map_ok(|()| usize::MAX),
            Self::Local(link) => link.poll_sent(context).map_ok(|()| usize::MAX),
            Self::Unary { .. } => Poll::Ready(Ok(usize::MAX)),
        }
    }

    /// Sends a part for which there is room.
    pub(crate) fn send(&mut self, part: Bytes) -> Result<(), Gone> {
        match self {
            Self::Http2(send) => return send.send_data(part, false).map_err(|_| Gone),
            Self::WebSocket(link) => link.stage(part),
            Self::Unary { message, .. } => *message = part,
            Self::Local(link) => link.stage(part),
        }
        Ok(())
    }

    /// `Ready` when nothing that was sent waits before the transport's own buffers.
    pub(crate) fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        match self {
            Self::Http2(_) | Self::Unary { .. } => Poll::Ready(Ok(())),
            Self::WebSocket(link) => link.poll_sent(context),
            Self::Local(link) => link.poll_sent(context),
        }
    }

    /// Whether the peer took something of what waits since this was last asked.
    pub(crate) fn take_took_some(&mut self) -> bool {
        match self {
            Self::Http2(_) | Self::Unary { .. } => false,
            Self::WebSocket(link) => link.take_took_some(),
            Self::Local(link) => link.take_took_some(),
        }
    }

    /// Nothing waits any more.
    pub(crate) fn forget(&mut self) {
        match self {
            Self::Http2(send) => send.reserve_capacity(0),
            Self::WebSocket(_) | Self::Unary { .. } => {}
            Self::Local(link) => link.forget(),
        }
    }

    /// Ends the call.
    pub(crate) fn end(&mut self, status: &CallStatus) {
        match self {
            // A stream that is gone by now has nobody left to be told.
            Self::Http2(send) => drop(send.send_trailers(status.trailers())),
            Self::WebSocket(link) => link.stage_last(http1::close(status)),
            Self::Unary { link, message, keep_alive } => {
                let keep_alive = *keep_alive && status.code() == 0;
                link.set_reusable(keep_alive);
                link.stage_last(http1::ended(status, message, keep_alive));
            }
            Self::Local(link) => link.stage_end(status),
        }
    }
}

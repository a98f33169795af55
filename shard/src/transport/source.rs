//! Where the messages of a call come from.
//!
//! 1. Nothing is read but in `poll_more`, so who is not asked for more is held back by its transport.
//! 2. How large an unfinished message is, is told before its bytes are read.

use std::mem::MaybeUninit;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use gateway_core::close::CloseReason;
use gateway_proto::framing::{Deframer, FramingError, PREFIX_BYTES};
use h2::RecvStream;
use tokio::io::ReadBuf;

use crate::http1::{Arrived, Fault, Frames, Link, PIECE_BYTES};
use crate::local::LocalLink;
use crate::receive::ReadEnd;
use crate::transport::Gone;

pub(crate) enum Source {
    /// The body of a gRPC call.
    Http2 { body: RecvStream, deframer: Deframer },
    /// The messages of a WebSocket.
    WebSocket { link: Rc<Link>, frames: Frames, whole: Option<Bytes> },
    /// The body of a call over HTTP/1.1, which is one message.
    Unary { link: Rc<Link>, body: BytesMut, bytes: usize, max_bytes: usize, is_taken: bool },
    /// The frames of a peer in this process. One counts as unfinished until it may be taken, so that a large one
    /// waits for its grant as over a socket.
    Local { link: Rc<LocalLink>, frame: Option<Bytes>, is_whole: bool, max_bytes: usize },
}

impl From<RecvStream> for Source {
    fn from(body: RecvStream) -> Self {
        Self::Http2 { body, deframer: Deframer::new(0) }
    }
}

impl Source {
    /// The body of a request that declares this length.
    pub(crate) fn unary(link: Rc<Link>, bytes: usize) -> Self {
        Self::Unary { link, body: BytesMut::new(), bytes, max_bytes: 0, is_taken: false }
    }

    /// The frames of a peer in this process.
    pub(crate) fn local(link: Rc<LocalLink>) -> Self {
        Self::Local { link, frame: None, is_whole: false, max_bytes: 0 }
    }

    /// Sets how large messages from the next on may be, which is zero at first; gives what was allowed before.
    pub(crate) fn set_max_bytes(&mut self, max_bytes: usize) -> usize {
        match self {
            Self::Http2 { deframer, .. } => deframer.set_max_bytes(max_bytes),
            Self::WebSocket { frames, .. } => frames.borrow_mut().set_max_bytes(max_bytes),
            Self::Unary { max_bytes: allowed, .. } | Self::Local { max_bytes: allowed, .. } => {
                std::mem::replace(allowed, max_bytes)
            }
        }
    }

    /// How many bytes the message at the front takes, where that is known and some are not here yet.
    pub(crate) fn unfinished(&self) -> Result<Option<usize>, FramingError> {
        match self {
            Self::Http2 { deframer, .. } => {
                let missing = |length: &usize| deframer.buffered_bytes() < PREFIX_BYTES + length;
                Ok(deframer.declared_length()?.filter(missing))
            }
            Self::WebSocket { frames, .. } => {
                let frames = frames.borrow();
                match frames.too_large() {
                    Some((bytes, max)) => Err(FramingError::TooLarge { bytes, max }),
                    None => Ok(frames.unfinished()),
                }
            }
            Self::Unary { bytes, max_bytes, .. } if bytes > max_bytes => {
                Err(FramingError::TooLarge { bytes: *bytes, max: *max_bytes })
            }
            Self::Unary { body, bytes, is_taken, .. } => {
                Ok((!is_taken && body.len() < *bytes).then_some(*bytes))
            }
            Self::Local { frame, is_whole, max_bytes, .. } => match frame.as_ref().map(Bytes::len) {
                Some(bytes) if bytes > *max_bytes => Err(FramingError::TooLarge { bytes, max: *max_bytes }),
                unfinished => Ok(unfinished.filter(|_| !is_whole)),
            },
        }
    }

    /// The next whole message.
    pub(crate) fn take(&mut self) -> Result<Option<Bytes>, FramingError> {
        match self {
            Self::Http2 { deframer, .. } => deframer.next(),
            Self::WebSocket { whole, .. } => Ok(whole.take()),
            Self::Unary { body, bytes, is_taken, .. } => {
                let is_whole = !*is_taken && body.len() == *bytes;
                *is_taken |= is_whole;
                Ok(is_whole.then(|| std::mem::take(body).freeze()))
            }
            Self::Local { frame, is_whole, .. } => {
                Ok(if std::mem::take(is_whole) { frame.take() } else { None })
            }
        }
    }

    /// Whether some of a message is here.
    pub(crate) fn has_begun(&self) -> bool {
        match self {
            Self::Http2 { deframer, .. } => deframer.buffered_bytes() > 0,
            Self::WebSocket { frames, .. } => frames.borrow().has_begun(),
            Self::Unary { body, .. } => !body.is_empty(),
            Self::Local { frame, .. } => frame.is_some(),
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
            Self::WebSocket { link, frames, whole } => {
                let frames = &mut *frames.borrow_mut();
                Poll::Ready(match ready!(link.poll_frame(context, frames)) {
                    Err(Gone) => Some(Err(ReadEnd::PeerGone)),
                    Ok(Err(Fault::Flood)) => Some(Err(ReadEnd::Broken(CloseReason::Flood))),
                    Ok(Err(fault)) => Some(Err(ReadEnd::Broken(CloseReason::Protocol(fault.to_string())))),
                    Ok(Ok(Some(Arrived::Close))) => None,
                    Ok(Ok(Some(Arrived::Message(message)))) => {
                        *whole = Some(message);
                        Some(Ok(()))
                    }
                    Ok(Ok(_)) => Some(Ok(())),
                })
            }
            Self::Unary { is_taken: true, .. } => Poll::Ready(None),
            Self::Local { frame: Some(_), is_whole, .. } => {
                *is_whole = true;
                Poll::Ready(Some(Ok(())))
            }
            Self::Local { link, frame, .. } => Poll::Ready(match ready!(link.poll_frame(context)) {
                Err(Gone) => Some(Err(ReadEnd::PeerGone)),
                Ok(None) => None,
                Ok(Some(arrived)) => {
                    *frame = Some(arrived);
                    Some(Ok(()))
                }
            }),
            Self::Unary { link, body, bytes, .. } => {
                let mut space = [const { MaybeUninit::uninit() }; PIECE_BYTES];
                let wanted = (*bytes - body.len()).min(PIECE_BYTES);
                let mut buffer = ReadBuf::uninit(&mut space[..wanted]);
                let read = ready!(link.poll_read(context, &mut buffer));
                body.extend_from_slice(buffer.filled());
                Poll::Ready(Some(read.map_err(|Gone| ReadEnd::PeerGone)))
            }
        }
    }
}

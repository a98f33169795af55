//! The bytes of a connection that is not HTTP/2: read as far as is asked for, written as the peer takes them.
//!
//! The connection and the call on it share it; both live on one thread, in turns that never overlap.
//!
//! 1. Nothing is read ahead but what comes with a request's head, and that is read first.
//! 2. At most one thing is being written and one waits to be the last; a pong waits for a place between two
//!    frames, and a newer one takes the place of an older.
//! 3. Once the peer is gone it stays gone: reads and writes say so.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frames::{self, Arrived, Fault, Incoming};
use crate::bell::Bell;
use crate::executor::Tcp;
use crate::paced::Paced;
use crate::shard::Shard;
use crate::tls_stream::TlsStream;
use crate::transport::Gone;

/// Most that one read brings.
pub(crate) const PIECE_BYTES: usize = 8 << 10;

pub(crate) struct Link {
    pub(crate) shard: Rc<Shard>,
    inner: RefCell<Inner>,
    /// Whether the connection may carry another request when its call is over.
    reusable: Cell<bool>,
}

struct Inner {
    io: Paced<TlsStream<Tcp>>,
    ahead: Bytes,
    staged: Bytes,
    pong: Bytes,
    last: Bytes,
    unflushed: bool,
    /// Whether the peer took something since this was last asked.
    took_some: bool,
    gone: bool,
}

impl Link {
    pub(crate) fn new(shard: &Rc<Shard>, bell: &Arc<Bell>, tls: TlsStream<Tcp>) -> Rc<Self> {
        let io = Paced::unmetered(tls, Arc::clone(bell), shard.clock, Arc::clone(&shard.counters));
        Rc::new(Self {
            shard: Rc::clone(shard),
            inner: RefCell::new(Inner {
                io,
                ahead: Bytes::new(),
                staged: Bytes::new(),
                pong: Bytes::new(),
                last: Bytes::new(),
                unflushed: false,
                took_some: false,
                gone: false,
            }),
            reusable: Cell::new(false),
        })
    }

    /// Bytes that came with a head and are not of it.
    pub(crate) fn put_back(&self, bytes: Bytes) {
        self.inner.borrow_mut().ahead = bytes;
    }

    /// Reads some bytes, as many as there is room for in `buffer` at most.
    pub(crate) fn poll_read(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), Gone>> {
        let inner = &mut *self.inner.borrow_mut();
        if !inner.ahead.is_empty() {
            buffer.put_slice(&inner.ahead.split_to(buffer.remaining().min(inner.ahead.len())));
            if inner.ahead.is_empty() {
                inner.ahead = Bytes::new();
            }
            return Poll::Ready(Ok(()));
        }
        if inner.gone {
            return Poll::Ready(Err(Gone));
        }
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut inner.io).poll_read(context, buffer));
        if read.is_err() || buffer.filled().len() == before {
            inner.gone = true;
            return Poll::Ready(Err(Gone));
        }
        Poll::Ready(Ok(()))
    }

    /// Reads into a frame; what has come with it, if something is whole.
    pub(crate) fn poll_frame(
        &self,
        context: &mut Context<'_>,
        incoming: &mut Incoming,
    ) -> Poll<Result<Result<Option<Arrived>, Fault>, Gone>> {
        let mut space = [const { std::mem::MaybeUninit::uninit() }; PIECE_BYTES];
        let mut buffer = ReadBuf::uninit(&mut space[..incoming.wanted().min(PIECE_BYTES)]);
        ready!(self.poll_read(context, &mut buffer))?;
        let clock = self.shard.clock;
        let arrived = incoming.handle_bytes(buffer.filled_mut(), || clock.now());
        match &arrived {
            Ok(Some(Arrived::Ping(payload))) => self.inner.borrow_mut().pong = frames::pong(payload),
            Err(Fault::Flood) => self.shard.counters.floods.one_more(),
            _ => {}
        }
        Poll::Ready(Ok(arrived))
    }

    /// Has bytes written, which end where a frame or an answer does; to be called when nothing is staged.
    pub(crate) fn stage(&self, bytes: Bytes) {
        let mut inner = self.inner.borrow_mut();
        debug_assert!(inner.staged.is_empty(), "something is staged already");
        inner.staged = bytes;
    }

    /// Has bytes written behind all others: the answer of a call, or the end of a session.
    pub(crate) fn stage_last(&self, bytes: Bytes) {
        self.inner.borrow_mut().last = bytes;
    }

    /// Writes what is staged. `Ready` when all of it was taken.
    pub(crate) fn poll_sent(&self, context: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        let inner = &mut *self.inner.borrow_mut();
        let sent = inner.poll_sent(context);
        if sent == Poll::Ready(Err(Gone)) {
            inner.gone = true;
            (inner.staged, inner.pong, inner.last) = Default::default();
        }
        sent
    }

    /// Whether the peer took something since this was last asked.
    pub(crate) fn take_took_some(&self) -> bool {
        std::mem::take(&mut self.inner.borrow_mut().took_some)
    }

    pub(crate) fn check_gone(&self) -> Result<(), Gone> {
        if self.inner.borrow().gone { Err(Gone) } else { Ok(()) }
    }

    /// Tells the peer that nothing more comes. `Ready` when it was told.
    pub(crate) fn poll_shutdown(&self, context: &mut Context<'_>) -> Poll<()> {
        // Who is gone needs not be told.
        Pin::new(&mut self.inner.borrow_mut().io).poll_shutdown(context).map(drop)
    }

    pub(crate) fn set_reusable(&self, reusable: bool) {
        self.reusable.set(reusable);
    }

    pub(crate) fn take_reusable(&self) -> bool {
        self.reusable.take()
    }
}

impl Inner {
    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        if self.gone {
            return Poll::Ready(Err(Gone));
        }
        loop {
            if self.staged.is_empty() {
                self.staged = match std::mem::take(&mut self.pong) {
                    pong if pong.is_empty() => std::mem::take(&mut self.last),
                    pong => pong,
                };
            }
            if self.staged.is_empty() {
                break;
            }
            match ready!(Pin::new(&mut self.io).poll_write(context, &self.staged)) {
                Ok(taken) if taken > 0 => {
                    self.staged.advance(taken);
                    (self.took_some, self.unflushed) = (true, true);
                }
                _ => return Poll::Ready(Err(Gone)),
            }
        }
        self.staged = Bytes::new();
        if self.unflushed {
            match Pin::new(&mut self.io).poll_flush(context) {
                Poll::Ready(Ok(())) => self.unflushed = false,
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Gone)),
                // What TLS holds is little, and goes when the socket has room.
                Poll::Pending => {}
            }
        }
        Poll::Ready(Ok(()))
    }
}

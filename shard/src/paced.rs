//! The plaintext side of a connection as its protocol sees it: as fast as fairness allows.
//!
//! A protocol reads until nothing is there, so a peer that never stops sending would keep the thread.
//! Here a turn's share is read and no more, and HTTP/2's frames are metered as they go by.
//!
//! 1. At most `READ_BYTES_PER_TURN` a turn, where frames that make work cost more than their bytes; then the task
//!    is asked for another turn. What is over it is less than `CHUNK_BYTES` of such frames.
//! 2. A flood is an I/O error: it ends this connection, whose bell knows why.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use crate::bell::Bell;
use crate::counters::ShardCounters;
use crate::executor::Clock;
use crate::flood::FrameMeter;

/// HTTP/2 works off whatever a read gives it, so what it is given at once is little; but for the payload of a DATA
/// frame, which makes no work until it is whole.
const CHUNK_BYTES: usize = 2 << 10;

/// What is read through `Paced`.
pub(crate) trait Costs {
    /// The bytes that came beside those that may be read, since this was last asked.
    fn take_cost(&mut self) -> usize;
}

#[derive(Debug)]
pub(crate) struct Paced<T> {
    io: T,
    bell: Arc<Bell>,
    clock: Clock,
    meter: Option<FrameMeter>,
    counters: Arc<ShardCounters>,
}

impl<T> Paced<T> {
    pub(crate) fn new(io: T, bell: Arc<Bell>, clock: Clock, counters: Arc<ShardCounters>) -> Self {
        Self { meter: Some(FrameMeter::new(clock.now())), ..Self::unmetered(io, bell, clock, counters) }
    }

    /// For bytes that are not HTTP/2.
    pub(crate) fn unmetered(io: T, bell: Arc<Bell>, clock: Clock, counters: Arc<ShardCounters>) -> Self {
        Self { io, bell, clock, meter: None, counters }
    }

    fn meter(&mut self, read: &[u8]) -> io::Result<()> {
        let Some(meter) = &mut self.meter else {
            self.bell.spend(read.len());
            return Ok(());
        };
        meter.handle_data_sent(self.bell.take_data_sent());
        meter.handle_tunnels_asked(self.bell.take_tunnels_asked());
        let clock = self.clock;
        let work = meter.handle_bytes(read, || clock.now()).map_err(|_| {
            self.counters.floods.one_more();
            self.bell.mark_flooded();
            io::Error::new(io::ErrorKind::ConnectionAborted, "the peer floods the connection with frames")
        })?;
        self.bell.spend(read.len() + work);
        Ok(())
    }
}

impl<T: AsyncBufRead + Costs + Unpin> AsyncRead for Paced<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.bell.read_bytes_left() == 0 {
            this.bell.mark_over_budget();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let there = std::task::ready!(Pin::new(&mut this.io).poll_fill_buf(context))?;
        let data_left = this.meter.as_ref().map_or(0, FrameMeter::data_left);
        let chunk = &there[..there.len().min(CHUNK_BYTES.max(data_left)).min(buffer.remaining())];
        buffer.put_slice(chunk);
        let taken = chunk.len();
        Pin::new(&mut this.io).consume(taken);
        // Records of one byte are as much work as whole ones.
        this.bell.spend(this.io.take_cost());
        Poll::Ready(this.meter(&buffer.filled()[before..]))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Paced<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

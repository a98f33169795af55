//! What a call's HTTP/2 writes in one turn, sent together: it flushes after each frame, and a system call and a
//! record of TLS for each make a tunnel's data dear.
//!
//! 1. While it gathers, bytes are kept up to `GATHERED_BYTES` and a flush sends nothing; who drives it then flushes it
//!    without gathering.
//! 2. It owns no memory while nothing waits.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Four records of TLS.
const GATHERED_BYTES: usize = 64 << 10;

/// Whether writes are gathered now.
pub(super) type Gathering = Arc<AtomicBool>;

pub(super) struct Gathered<T> {
    io: T,
    waiting: BytesMut,
    gathering: Gathering,
}

impl<T: AsyncWrite + Unpin> Gathered<T> {
    pub(super) fn new(io: T) -> (Self, Gathering) {
        let gathering = Gathering::default();
        (Self { io, waiting: BytesMut::new(), gathering: Arc::clone(&gathering) }, gathering)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.waiting.is_empty() {
            match ready!(Pin::new(&mut self.io).poll_write(cx, &self.waiting))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.waiting.advance(sent),
            }
        }
        self.waiting = BytesMut::new();
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Gathered<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Gathered<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.waiting.is_empty() && !this.gathering.load(Ordering::Relaxed) {
            return Pin::new(&mut this.io).poll_write_vectored(cx, slices);
        }
        if this.waiting.len() >= GATHERED_BYTES {
            ready!(this.poll_send(cx))?;
        }
        let room = GATHERED_BYTES - this.waiting.len();
        let mut taken = 0;
        for slice in slices {
            let some = slice.len().min(room - taken);
            this.waiting.extend_from_slice(&slice[..some]);
            taken += some;
        }
        Poll::Ready(Ok(taken))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.gathering.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn what_is_gathered_leaves_at_the_next_flush_whole_and_in_order() {
        let (here, mut there) = tokio::io::duplex(8 * GATHERED_BYTES);
        let (mut gathered, gathering) = Gathered::new(here);
        gathered.write_all(b"before ").await.expect("there is room");
        gathering.store(true, Ordering::Relaxed);
        let bytes: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8).collect();
        for piece in bytes.chunks(7_000) {
            gathered.write_all(piece).await.expect("there is room");
            gathered.flush().await.expect("it gathers");
        }
        let mut seen = vec![0; 7];
        there.read_exact(&mut seen).await.expect("what was not gathered");
        assert_eq!(seen, b"before ");
        gathering.store(false, Ordering::Relaxed);
        gathered.flush().await.expect("there is room");
        let mut seen = vec![0; bytes.len()];
        there.read_exact(&mut seen).await.expect("all of it");
        assert!(seen == bytes && gathered.waiting.is_empty());
    }
}

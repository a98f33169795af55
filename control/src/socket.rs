//! Streams as this thread uses them: TCP under TLS, whoever has dialled, and TLS under a dialler's HTTP/2.
//!
//! 1. What is written leaves at once, and a read takes what is there.
//! 2. A dialler hears why its peer has closed, also where a write finds that out first.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::net::TcpStream;

/// One read, where TLS by itself takes 4 KiB.
const READ_BYTES: usize = 64 << 10;

/// A socket that is read in large pieces.
pub(crate) fn buffered(socket: TcpStream) -> BufReader<TcpStream> {
    // Only latency is lost without it.
    let _ = socket.set_nodelay(true);
    BufReader::with_capacity(READ_BYTES, socket)
}

/// What is under HTTP/2 at a dialler: a peer that refuses a certificate says so in its last word and closes, and a write that
/// comes later fails as a broken pipe; the error is the last word then.
#[derive(Debug)]
pub(crate) struct Heard<S> {
    stream: S,
    /// Of a write: the peer has closed.
    failed: Option<io::Error>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Heard<S> {
    pub(crate) const fn new(stream: S) -> Self {
        Self { stream, failed: None }
    }

    /// Writes by `write`, whose error is why the peer has closed, where it said so. That may have to be waited for, never for
    /// long: of a connection that is over all has arrived.
    fn poll_heard<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.failed.is_none() {
            match ready!(write(Pin::new(&mut self.stream), cx)) {
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
                {
                    self.failed = Some(error);
                }
                other => return Poll::Ready(other),
            }
        }
        self.poll_last_word(cx).map(Err)
    }

    fn poll_last_word(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let mut bytes = [0; 1024];
        loop {
            let mut said = ReadBuf::new(&mut bytes);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut said)) {
                Ok(()) if !said.filled().is_empty() => {}
                Err(last_word) if last_word.kind() == io::ErrorKind::InvalidData => {
                    return Poll::Ready(last_word);
                }
                _ => return Poll::Ready(self.failed.take().unwrap_or(io::ErrorKind::BrokenPipe.into())),
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Heard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_heard(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_heard(cx, S::poll_flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_heard(cx, |stream, cx| stream.poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// A peer that has closed; it said so, or not, and that arrives at the second look.
    struct Closed(Option<io::Error>, bool);

    impl AsyncRead for Closed {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if !self.1 {
                self.1 = true;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(self.0.take().map_or(Ok(()), Err))
        }
    }

    impl AsyncWrite for Closed {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_write_to_a_peer_that_has_refused_fails_with_what_the_peer_said() {
        let refused =
            || io::Error::new(io::ErrorKind::InvalidData, "received fatal alert: UnsupportedCertificate");
        let error = Heard::new(Closed(Some(refused()), false)).write_all(b"x").await.unwrap_err();
        assert!(error.to_string().contains("UnsupportedCertificate"), "{error}");
        let error = Heard::new(Closed(Some(refused()), false)).flush().await.unwrap_err();
        assert!(error.to_string().contains("UnsupportedCertificate"), "{error}");
        let error = Heard::new(Closed(None, false)).write_all(b"x").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "it said nothing");
    }
}

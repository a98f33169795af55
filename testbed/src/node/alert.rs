//! Keeps the TLS alert that ended a connection: HTTP/2 passes only its text on.
//!
//! 1. Bytes and errors pass unchanged; the first alert that is read is remembered.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// The alert's name, once one was read.
pub(super) type SeenAlert = Arc<OnceLock<String>>;

/// A TLS stream that remembers.
pub(super) struct AlertWatch {
    inner: TlsStream<TcpStream>,
    seen: SeenAlert,
}

impl AlertWatch {
    pub(super) fn new(inner: TlsStream<TcpStream>) -> (Self, SeenAlert) {
        let seen = SeenAlert::default();
        (Self { inner, seen: Arc::clone(&seen) }, seen)
    }

    fn look<T>(&self, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &outcome
            && let Some(alert) = alert_of(error)
        {
            let _ = self.seen.set(alert);
        }
        outcome
    }
}

/// The name of the alert that an I/O error of a TLS stream carries.
pub(super) fn alert_of(error: &io::Error) -> Option<String> {
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::AlertReceived(alert) => Some(format!("{alert:?}")),
        _ => None,
    }
}

impl AsyncRead for AlertWatch {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_read(cx, buffer);
        self.look(outcome)
    }
}

impl AsyncWrite for AlertWatch {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.look(outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_flush(cx);
        self.look(outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.look(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write_vectored(cx, buffers);
        self.look(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

//! TLS over a socket that holds no buffer while nothing moves.
//!
//! Thousands of connections are at rest at any moment, so a buffer of each for what may come is memory for nothing.
//! Here a thread lends one to whoever reads or writes just then, and a connection keeps no more than it has to: a
//! record that has come in part, plaintext that its reader has left, a record that the socket did not take.
//!
//! 1. At rest it owns no heap memory beside the session's keys and state.
//! 2. One read of the socket brings at most the bytes of `RECORDS_AT_ONCE`, and no other is made before its plaintext is
//!    taken; at most so many are sealed at a time, and no other while some of them waits.
//! 3. What must be sent for the session's sake (answers of the handshake, alerts, keys) goes before what is sealed
//!    after it, and with the next write or flush where the socket has no room.
//! 4. An end without `close_notify` is an error, so that nothing is taken for whole that was cut.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use crate::paced::Costs;

/// Most plaintext in one record.
const RECORD_BYTES: usize = 16 << 10;
/// A record's header, its type, its tag, and some room: what more is needed is asked for.
const SEAL_BYTES: usize = 64;
/// Who sends or takes much costs few system calls.
const RECORDS_AT_ONCE: usize = 4;
const SEALED_BYTES: usize = RECORDS_AT_ONCE * RECORD_BYTES;
/// One read of a socket.
const READ_BYTES: usize = RECORDS_AT_ONCE * (RECORD_BYTES + 256);
/// What may wait for its rest: a message of a handshake, which may span records, and one record more.
const MAX_PARTIAL: usize = (64 << 10) + RECORD_BYTES + 256;

thread_local! {
    /// Lent to one connection at a time, for no longer than a call.
    static LENT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Calls with the thread's buffer, which is at least so long. A panic costs it, and the next call makes another.
fn with_lent<R>(length: usize, call: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut buffer = LENT.take();
    if buffer.len() < length {
        buffer.resize(length, 0);
    }
    let result = call(&mut buffer);
    LENT.set(buffer);
    result
}

/// The server's end of a session over `T`.
pub(crate) struct TlsStream<T> {
    io: T,
    session: UnbufferedServerConnection,
    /// Ciphertext whose rest has not come.
    partial: Vec<u8>,
    /// Plaintext, of which so much is taken.
    plaintext: Vec<u8>,
    taken: usize,
    /// Ciphertext for the peer, of which so much is sent.
    outgoing: Vec<u8>,
    sent: usize,
    /// Whether the peer said that nothing more comes.
    peer_closed: bool,
    /// Whether the peer was told that.
    has_ended: bool,
    /// Whether the session is of no use any more: it must not be asked again.
    has_failed: bool,
    /// Bytes off the socket beyond the plaintext that they brought, since this was last asked; below nothing where
    /// plaintext came of bytes that were counted before.
    overhead: isize,
}

/// What a session is to seal when it has taken all that has come.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    Nothing,
    Data(&'a [u8]),
    End,
}

/// A handshake that failed, with what it was made over.
pub(crate) type Failed<T> = (io::Error, T);

impl<T: AsyncRead + AsyncWrite + Unpin> TlsStream<T> {
    /// Shakes hands. A peer that is refused is sent the alert that says why, where its socket has room.
    pub(crate) async fn accept(config: Arc<ServerConfig>, io: T) -> Result<Self, Failed<T>> {
        let session = match UnbufferedServerConnection::new(config) {
            Ok(session) => session,
            Err(error) => return Err((invalid(error), io)),
        };
        let mut stream = Self {
            io,
            session,
            partial: Vec::new(),
            plaintext: Vec::new(),
            taken: 0,
            outgoing: Vec::new(),
            sent: 0,
            peer_closed: false,
            has_ended: false,
            has_failed: false,
            overhead: 0,
        };
        match std::future::poll_fn(|context| stream.poll_handshake(context)).await {
            Ok(()) => Ok(stream),
            Err(error) => Err((error, stream.io)),
        }
    }

    /// The session, for who the peer is and what it speaks.
    pub(crate) fn session(&self) -> &rustls::CommonState {
        &self.session
    }

    fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_send(context))?;
            if !self.session.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_receive(context))?;
        }
    }

    /// Reads once and works off what has come.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let before = self.partial.len();
        with_lent(before + READ_BYTES, |lent| {
            let mut buffer = ReadBuf::new(&mut lent[before..before + READ_BYTES]);
            ready!(Pin::new(&mut self.io).poll_read(context, &mut buffer))?;
            let read = buffer.filled().len();
            if read == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            lent[..before].copy_from_slice(&self.partial);
            let outcome = self.work_off(&mut lent[..before + read], Wanted::Nothing);
            // Nothing was left of plaintext when this read began.
            self.overhead += read.cast_signed() - self.plaintext.len().cast_signed();
            // An alert, or an answer of the session's. What has no room goes with the next write.
            let sent = self.poll_send(context);
            outcome?;
            match sent {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                _ => Poll::Ready(Ok(())),
            }
        })
    }

    /// Has the session take all records that are whole, and then do what is wanted. On an error what tells the
    /// peer waits to be sent.
    ///
    /// Whatever the session has seen in part it must be shown again each time, for it remembers where things stand
    /// in it: so there is no other way to it than this.
    fn work_off(&mut self, incoming: &mut [u8], wanted: Wanted<'_>) -> io::Result<()> {
        if self.has_failed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut done = 0;
        let outcome = loop {
            match self.step(&mut incoming[done..], wanted) {
                (discard, Ok(goes_on)) => {
                    done += discard;
                    if !goes_on {
                        break Ok(());
                    }
                }
                (discard, Err(error)) => {
                    done += discard;
                    break Err(error);
                }
            }
        };
        if let Err(error) = outcome {
            (self.has_failed, self.partial) = (true, Vec::new());
            self.take_alert(&mut incoming[done..]);
            return Err(error);
        }
        let rest = &incoming[done..];
        if rest.len() > MAX_PARTIAL {
            self.has_failed = true;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message of the handshake is too long"));
        }
        // Nothing is read after the peer's end.
        self.partial = if self.peer_closed { Vec::new() } else { rest.to_vec() };
        Ok(())
    }

    /// One step of the session: so many bytes are done with, and whether there may be another.
    fn step(&mut self, incoming: &mut [u8], wanted: Wanted<'_>) -> (usize, io::Result<bool>) {
        let came = incoming.len();
        let UnbufferedStatus { mut discard, state } = self.session.process_tls_records(incoming);
        let outcome = match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
                match traffic.next_record() {
                    None => break Ok(true),
                    Some(Ok(record)) => {
                        discard += record.discard;
                        if self.plaintext.is_empty() {
                            self.plaintext.reserve_exact(came);
                        }
                        self.plaintext.extend_from_slice(record.payload);
                    }
                    Some(Err(error)) => break Err(invalid(error)),
                }
            },
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                append(&mut self.outgoing, SEAL_BYTES, |room| data.encode(room)).map(|()| true)
            }
            // It is in `outgoing`, and nothing overtakes it there.
            Ok(ConnectionState::TransmitTlsData(data)) => {
                data.done();
                Ok(true)
            }
            Ok(ConnectionState::PeerClosed) => {
                self.peer_closed = true;
                Ok(true)
            }
            Ok(ConnectionState::WriteTraffic(mut traffic)) => match wanted {
                Wanted::Nothing => Ok(false),
                Wanted::Data(plaintext) => {
                    let seals = plaintext.len().div_ceil(RECORD_BYTES) * SEAL_BYTES;
                    append(&mut self.outgoing, plaintext.len() + seals, |room| {
                        traffic.encrypt(plaintext, room)
                    })
                    .map(|()| false)
                }
                Wanted::End => {
                    append(&mut self.outgoing, SEAL_BYTES, |room| traffic.queue_close_notify(room))
                        .map(|()| false)
                }
            },
            // In the handshake, or when both have ended: there is no data to be sealed.
            Ok(_) => match wanted {
                Wanted::Data(_) => Err(io::ErrorKind::BrokenPipe.into()),
                Wanted::Nothing | Wanted::End => Ok(false),
            },
            Err(error) => Err(invalid(error)),
        };
        (discard, outcome)
    }

    /// What a session that failed has to say, its alert at last. It is asked no further, for with nothing left to say
    /// it would look at the bytes again.
    fn take_alert(&mut self, rest: &mut [u8]) {
        while self.session.wants_write()
            && let Ok(ConnectionState::EncodeTlsData(mut data)) = self.session.process_tls_records(rest).state
        {
            // What can't be told goes untold: the error that it is about goes to the log.
            let _ = append(&mut self.outgoing, SEAL_BYTES, |room| data.encode(room));
        }
    }

    /// Has something sealed, behind what waits to be sent.
    fn seal(&mut self, wanted: Wanted<'_>) -> io::Result<()> {
        let mut partial = std::mem::take(&mut self.partial);
        self.work_off(&mut partial, wanted)
    }

    /// Sends what waits. `Ready` when nothing does.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.outgoing.len() {
            match ready!(Pin::new(&mut self.io).poll_write(context, &self.outgoing[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        (self.outgoing, self.sent) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }

    /// Takes the plaintext of a few records, if nothing waits before it.
    fn poll_take(&mut self, context: &mut Context<'_>, plaintext: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_send(context))?;
        let plaintext = &plaintext[..plaintext.len().min(SEALED_BYTES)];
        if !plaintext.is_empty() {
            self.seal(Wanted::Data(plaintext))?;
            if let Poll::Ready(Err(error)) = self.poll_send(context) {
                return Poll::Ready(Err(error));
            }
        }
        Poll::Ready(Ok(plaintext.len()))
    }
}

/// What rustls says where it is given too little room to write to.
trait NeedsRoom: std::error::Error {
    fn required(&self) -> Option<usize>;
}

impl NeedsRoom for EncodeError {
    fn required(&self) -> Option<usize> {
        match self {
            Self::InsufficientSize(InsufficientSizeError { required_size }) => Some(*required_size),
            Self::AlreadyEncoded => None,
        }
    }
}

impl NeedsRoom for EncryptError {
    fn required(&self) -> Option<usize> {
        match self {
            Self::InsufficientSize(InsufficientSizeError { required_size }) => Some(*required_size),
            Self::EncryptExhausted => None,
        }
    }
}

/// Has `write` write behind what is there, first into so much room, then into what it asks for.
fn append<E: NeedsRoom + Send + Sync + 'static>(
    bytes: &mut Vec<u8>,
    room: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, E>,
) -> io::Result<()> {
    let before = bytes.len();
    bytes.resize(before + room, 0);
    let mut written = write(&mut bytes[before..]);
    if let Some(required) = written.as_ref().err().and_then(NeedsRoom::required) {
        bytes.resize(before + required, 0);
        written = write(&mut bytes[before..]);
    }
    bytes.truncate(before + written.as_ref().copied().unwrap_or(0));
    written.map(drop).map_err(io::Error::other)
}

/// The error of a session; who takes it finds rustls' own within.
fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl<T> Costs for TlsStream<T> {
    fn take_cost(&mut self) -> usize {
        let cost = self.overhead.max(0);
        self.overhead -= cost;
        cost.cast_unsigned()
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncBufRead for TlsStream<T> {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        while this.plaintext.is_empty() && !this.peer_closed {
            ready!(this.poll_receive(context))?;
        }
        Poll::Ready(Ok(&this.plaintext[this.taken..]))
    }

    fn consume(mut self: Pin<&mut Self>, amount: usize) {
        self.taken += amount;
        if self.taken >= self.plaintext.len() {
            (self.plaintext, self.taken) = (Vec::new(), 0);
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let there = ready!(self.as_mut().poll_fill_buf(context))?;
        let taken = there.len().min(buffer.remaining());
        buffer.put_slice(&there[..taken]);
        self.consume(taken);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_take(context, bytes)
    }

    /// All slices go into one record, or into a few, as far as they fit.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let mut filled = slices.iter().filter(|slice| !slice.is_empty());
        let (first, second) = (filled.next(), filled.next());
        let Some(second) = second else {
            return this.poll_take(context, first.map_or(&[], |slice| slice));
        };
        ready!(this.poll_send(context))?;
        with_lent(SEALED_BYTES, |lent| {
            let mut length = 0;
            for slice in first.into_iter().chain([second]).chain(filled) {
                let taken = slice.len().min(SEALED_BYTES - length);
                lent[length..length + taken].copy_from_slice(&slice[..taken]);
                length += taken;
            }
            this.poll_take(context, &lent[..length])
        })
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(context))?;
        Pin::new(&mut this.io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.has_ended && !this.has_failed {
            this.has_ended = true;
            this.seal(Wanted::End)?;
        }
        ready!(this.poll_send(context))?;
        Pin::new(&mut this.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;

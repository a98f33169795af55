//! Sessions of nodes that live in the gateway's own process: frames in memory, without a socket, TLS or HTTP.
//!
//! A program that embeds a gateway says who its node is, where a certificate would have proven it, and gives a sink
//! for the gateway's frames; it gets a sender for the node's. `visitors` takes such calls on the shard's thread,
//! `connection` serves each with the very machine, admission and bounds of a session over HTTP/2, `link` is what
//! carries it, `pipe` what is between the threads. Nothing here is reached from outside the process.
//!
//! 1. The shard waits for nobody: what a node sends waits in a bounded pipe, what a sink does not take waits in the
//!    session's outbox, where a slow node is cut as every other.
//! 2. Frames are given on the shard's thread alone. A sink is ended exactly once, there or, as the gateway stops, on the
//!    thread of whoever opens a session: with a status, or with none where the
//!    connection was lost.
//! 3. A frame is one message of the protocol as it would be in gRPC, without a prefix.

mod connection;
mod link;
mod pipe;
mod visitors;

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::status::{self, CallStatus};
use pipe::{PipeReceiver, PipeSender, Received, pipe};

pub(crate) use link::LocalLink;
pub(crate) use visitors::run;
pub use visitors::{Refused, Visitors, VisitorsInbox, visitors};

/// Frames of a node that wait for its shard: as many bytes as a stream of HTTP/2 may have on its way.
const UP_FRAMES: usize = 128;
const UP_BYTES: usize = 64 << 10;
/// Frames of the gateway that wait for a `FrameConnection` to be read, likewise.
const DOWN_FRAMES: usize = 128;
const DOWN_BYTES: usize = 64 << 10;

/// Who a node is: what its certificate would have said. What the certificate may be used for (its role, its kinds
/// of commands, whether a tenant controls the machine) is its row in `node_certs`, which the Hello reads as ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPeer {
    /// The node id, which is the whole SPIFFE URI; it must fit `[identity]` as a certificate's must.
    pub node: String,
    /// The serial in hex, as `node_certs` has it.
    pub certificate_serial: String,
    /// The first moment at which the certificate does not count any more.
    pub ends_at: SystemTime,
}

/// What became of a frame that was offered.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// It was taken.
    Yes,
    /// There is no room now: here it is again.
    Later(Bytes),
    /// Nobody takes frames any more.
    Gone,
}

/// Where a gateway's frames for one node go. It is called on the thread of the node's shard, where it must not
/// block: a sink that does holds up every session of the shard. A panic of it ends its own session.
pub trait FrameSink: Send + 'static {
    /// Takes a frame. Where there is no room, gives it back, and wakes the task of `context` when there is; a sink
    /// that has none for `sessions.send_timeout` ends its session as a slow node's.
    fn poll_take(&mut self, frame: Bytes, context: &mut Context<'_>) -> Taken;

    /// The session is over, and nothing more comes.
    fn end(&mut self, end: CallEnd);
}

/// How a session ended, or why it was not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallEnd {
    /// The number of the gRPC status; `None` where the connection was lost, as it is when a gateway dies.
    pub status: Option<u8>,
    /// The gateway's sentence.
    pub message: String,
    /// How long the node must wait before it dials again, where the gateway says so.
    pub pushback: Option<Duration>,
}

impl From<&CallStatus> for CallEnd {
    fn from(status: &CallStatus) -> Self {
        let message = status::cut(status.message()).to_owned();
        Self { status: Some(status.code()), message, pushback: status.pushback() }
    }
}

impl CallEnd {
    fn lost() -> Self {
        Self { status: None, message: "the connection was lost".to_owned(), pushback: None }
    }
}

impl fmt::Display for CallEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "status {status}: {}", self.message)?,
            None => f.write_str(&self.message)?,
        }
        self.pushback.map_or(Ok(()), |pushback| write!(f, "; retry after {pushback:?}"))
    }
}

/// The node has ended its half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HalfClosed;

/// The way of a node's frames to its gateway. Dropped without `finish`, it cuts the connection, as a machine that
/// dies does.
#[derive(Debug)]
pub struct FrameSender(Option<PipeSender<HalfClosed>>);

impl FrameSender {
    /// Sends a frame without waiting. `Later` gives it back while the gateway holds the node back, `Gone` says that
    /// the session is over: the sink has, or gets, its end.
    pub fn try_send(&mut self, frame: Bytes) -> Taken {
        self.0.as_ref().map_or(Taken::Gone, |pipe| pipe.send(frame))
    }

    /// The same; where it is `Later`, the task of `context` is woken when there may be room. One task at a time.
    pub fn poll_send(&mut self, frame: Bytes, context: &mut Context<'_>) -> Taken {
        self.0.as_ref().map_or(Taken::Gone, |pipe| pipe.poll_send(frame, context))
    }

    /// Sends a frame, and waits for room as long as it takes; needs no particular runtime.
    ///
    /// # Errors
    /// `SessionOver` where nobody takes frames any more.
    pub async fn send(&mut self, frame: Bytes) -> Result<(), SessionOver> {
        let mut frame = Some(frame);
        poll_fn(|context| {
            let Some(offered) = frame.take() else { return Poll::Ready(Ok(())) };
            match self.poll_send(offered, context) {
                Taken::Yes => Poll::Ready(Ok(())),
                Taken::Gone => Poll::Ready(Err(SessionOver)),
                Taken::Later(back) => {
                    frame = Some(back);
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Ends the node's half, behind what was sent: the gateway answers that, and ends the session.
    pub fn finish(&mut self) {
        if let Some(pipe) = self.0.take() {
            pipe.end(HalfClosed);
        }
    }
}

/// The session is over: its sink, or the receiving half of its connection, says why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the session is over; its end says why")]
pub struct SessionOver;

/// What comes from the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromGateway {
    Frame(Bytes),
    /// The session is over; nothing more comes.
    Ended(CallEnd),
}

/// The way of a gateway's frames to a node that reads them when it likes. While nothing is read the gateway holds
/// its frames back, and after `sessions.send_timeout` it takes the node for too slow.
#[derive(Debug)]
pub struct FrameReceiver(PipeReceiver<CallEnd>);

impl FrameReceiver {
    /// The next frame, or the end; the end again and again.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<FromGateway> {
        self.0.poll(context).map(|received| match received {
            Received::Frame(frame) => FromGateway::Frame(frame),
            Received::Ended(end) => FromGateway::Ended(end),
            Received::Cut => FromGateway::Ended(CallEnd::lost()),
        })
    }

    /// Waits for the next frame, or the end; needs no particular runtime.
    pub async fn recv(&mut self) -> FromGateway {
        poll_fn(|context| self.poll_recv(context)).await
    }
}

/// Both ways of a session in memory.
#[derive(Debug)]
pub struct FrameConnection {
    pub sender: FrameSender,
    pub receiver: FrameReceiver,
}

/// The sink of a `FrameConnection`.
#[derive(Debug)]
struct PipeSink(Option<PipeSender<CallEnd>>);

impl FrameSink for PipeSink {
    fn poll_take(&mut self, frame: Bytes, context: &mut Context<'_>) -> Taken {
        self.0.as_ref().map_or(Taken::Gone, |pipe| pipe.poll_send(frame, context))
    }

    fn end(&mut self, end: CallEnd) {
        if let Some(pipe) = self.0.take() {
            pipe.end(end);
        }
    }
}

/// A sink, and where what it takes is read.
pub fn pipe_sink() -> (Box<dyn FrameSink>, FrameReceiver) {
    let (sender, receiver) = pipe(DOWN_FRAMES, DOWN_BYTES);
    (Box::new(PipeSink(Some(sender))), FrameReceiver(receiver))
}

//! A caller's side of a tunnel that was joined: what it sends, and what it gets.
//!
//! Both halves end with the tunnel; the caller may let go of either, and the room hears of it.
//!
//! 1. The caller's body is read only while the direction to the node has room.
//! 2. What the caller has taken is given back to the node's stream, in pieces of some size. What waits for it when it
//!    takes more goes together, up to `TOGETHER_BYTES`: bulk costs few frames and few system calls.
//! 3. The last message of the output is `TunnelClosed`, which alone says how the tunnel ended; behind it are the trailers
//!    without which a gRPC client takes an answer for broken. A tunnel that the node has ended gives all that the node
//!    said before; one that is cut gives nothing more.
//! 4. The place of a tunnel is given back with its output; `Taken` tells whether that is still being taken.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::{Bytes, BytesMut};
use gateway_core::seam::ToShard;
use gateway_core::tunnel::flow::cost_bytes;
use gateway_core::tunnel::{
    FromTunnels, MAX_TUNNEL_FRAME_BYTES, TunnelClose, TunnelFlow, TunnelFrame, TunnelId, TunnelKey,
};
use gateway_proto::framing::Deframer;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::body::Frame;
use tokio::sync::{mpsc, oneshot};

use super::{Ask, FromNode, Place, broken, wire};

/// From so much on, frames to a caller that wait wait further. What a DATA frame has room for, if the caller's HTTP/2
/// takes large ones.
const TOGETHER_BYTES: usize = 48 << 10;

/// The messages of a caller's body.
pub(crate) struct Messages {
    body: Body,
    deframer: Deframer,
}

impl Messages {
    pub(crate) fn of(body: Body) -> Self {
        Self { body, deframer: Deframer::new(MAX_TUNNEL_FRAME_BYTES) }
    }

    /// The next message; `None` at the end of the body.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, TunnelClose> {
        loop {
            if let Some(message) = self.deframer.next().map_err(|error| broken(&error.to_string()))? {
                return Ok(Some(message));
            }
            let next = std::future::poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await;
            match next {
                // Cut, as by an unanswered ping; the node must not take it for a caller that has said all.
                None if !self.body.is_end_stream() => return Err(TunnelClose::CallerGone),
                None if self.deframer.buffered_bytes() > 0 => {
                    return Err(broken("the body ended inside a message"));
                }
                None => return Ok(None),
                Some(Err(_)) => return Err(TunnelClose::CallerGone),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.deframer.push(data);
                    }
                }
            }
        }
    }
}

/// What a caller sends.
pub(crate) struct CallerInput {
    id: TunnelId,
    stream: TunnelKey,
    courier: mpsc::UnboundedSender<ToShard>,
    asks: mpsc::UnboundedSender<Ask>,
    grants: mpsc::UnboundedReceiver<usize>,
    flow: TunnelFlow,
}

impl CallerInput {
    pub(super) fn new(
        id: TunnelId,
        stream: TunnelKey,
        courier: mpsc::UnboundedSender<ToShard>,
        asks: mpsc::UnboundedSender<Ask>,
        grants: mpsc::UnboundedReceiver<usize>,
        window_bytes: usize,
    ) -> Self {
        Self { id, stream, courier, asks, grants, flow: TunnelFlow::new(window_bytes) }
    }

    /// Carries the caller's messages until they end, or the tunnel does.
    pub(crate) async fn carry(mut self, mut messages: Messages) {
        if let Err(close) = self.carry_all(&mut messages).await {
            // The room is gone only with its thread.
            let _ = self.asks.send(Ask::Ended(self.id, close));
        }
    }

    async fn carry_all(&mut self, messages: &mut Messages) -> Result<(), TunnelClose> {
        loop {
            let message = tokio::select! {
                message = messages.next() => message?,
                granted = self.grants.recv() => match granted {
                    Some(bytes) => {
                        self.flow.handle_grant(bytes);
                        continue;
                    }
                    None => return Ok(()),
                },
            };
            let frame = match message {
                Some(message) => wire::decode(message)?,
                None if self.flow.is_over() => None,
                None => Some(TunnelFrame::HalfClose),
            };
            let is_end = frame == Some(TunnelFrame::HalfClose);
            if let Some(frame) = frame
                && !self.send(frame).await?
            {
                return Ok(());
            }
            if is_end {
                // Only to know when the tunnel is over: the rest of the body, if any, is not read.
                while self.grants.recv().await.is_some() {}
                return Ok(());
            }
        }
    }

    /// Sends a frame as it fits. Whether the tunnel is still there.
    async fn send(&mut self, frame: TunnelFrame) -> Result<bool, TunnelClose> {
        self.flow.handle_frame(&frame)?;
        let mut waits = Some(frame);
        while let Some(frame) = waits.take() {
            let leaves;
            (leaves, waits) = self.flow.take(frame);
            if let Some(frame) = leaves {
                if frame == TunnelFrame::HalfClose {
                    let _ = self.asks.send(Ask::HalfClosed(self.id));
                }
                let word = FromTunnels::Frame { stream: self.stream, frame };
                if self.courier.send(ToShard::Tunnel(word)).is_err() {
                    return Ok(false);
                }
            } else {
                match self.grants.recv().await {
                    Some(bytes) => self.flow.handle_grant(bytes),
                    None => return Ok(false),
                }
            }
        }
        Ok(true)
    }
}

/// What a caller gets, as the body of its answer.
pub(crate) struct CallerOutput {
    _place: Place,
    taken: Arc<AtomicU64>,
    stream: TunnelKey,
    courier: mpsc::UnboundedSender<ToShard>,
    frames: mpsc::UnboundedReceiver<FromNode>,
    cut: Option<oneshot::Receiver<TunnelClose>>,
    ungranted: usize,
    grant_at: usize,
    is_over: bool,
    has_trailed: bool,
}

impl CallerOutput {
    pub(super) fn new(
        place: Place,
        stream: TunnelKey,
        courier: mpsc::UnboundedSender<ToShard>,
        frames: mpsc::UnboundedReceiver<FromNode>,
        cut: oneshot::Receiver<TunnelClose>,
        window_bytes: usize,
    ) -> Self {
        let grant_at = window_bytes / 2;
        Self {
            _place: place,
            taken: Arc::default(),
            stream,
            courier,
            frames,
            cut: Some(cut),
            ungranted: 0,
            grant_at,
            is_over: false,
            has_trailed: false,
        }
    }

    /// What tells whether it is being taken.
    pub(crate) fn taken(&self) -> Taken {
        Taken(Arc::downgrade(&self.taken))
    }

    fn grant(&mut self) {
        if self.ungranted > 0 {
            let bytes = std::mem::take(&mut self.ungranted);
            let word = FromTunnels::Grant { stream: self.stream, bytes };
            // It ends with its shard, whose streams have ended then.
            let _ = self.courier.send(ToShard::Tunnel(word));
        }
    }

    fn end(&mut self, close: &TunnelClose) -> Bytes {
        self.is_over = true;
        self.cut = None;
        wire::closed(close)
    }

    fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if let Some(cut) = &mut self.cut
            && let Poll::Ready(close) = Pin::new(cut).poll(context)
        {
            match close {
                Ok(close) => return Poll::Ready(Some(self.end(&close))),
                // The node has ended it: what it said comes first.
                Err(_) => self.cut = None,
            }
        }
        let mut together = BytesMut::new();
        loop {
            let next = match self.frames.poll_recv(context) {
                Poll::Ready(next) => next,
                Poll::Pending if together.is_empty() => {
                    self.grant();
                    return Poll::Pending;
                }
                Poll::Pending => break,
            };
            let end = match next {
                Some(FromNode::Frame(frame)) => {
                    self.ungranted += cost_bytes(&frame);
                    self.make_room(&mut together, &frame);
                    wire::encode(frame, &mut together);
                    if together.len() >= TOGETHER_BYTES {
                        break;
                    }
                    continue;
                }
                Some(FromNode::Finished) => TunnelClose::Finished,
                // Only with the room.
                None => TunnelClose::Stopping,
            };
            together.extend_from_slice(&self.end(&end));
            return Poll::Ready(Some(together.freeze()));
        }
        if self.ungranted >= self.grant_at {
            self.grant();
        }
        Poll::Ready(Some(together.freeze()))
    }

    /// Reserves memory for all that goes together at once, where more than this frame does.
    fn make_room(&self, together: &mut BytesMut, frame: &TunnelFrame) {
        if together.is_empty() && !self.frames.is_empty() {
            let waiting = cost_bytes(frame) * (1 + self.frames.len());
            together.reserve(waiting.min(TOGETHER_BYTES + cost_bytes(frame)));
        }
    }
}

impl HttpBody for CallerOutput {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.taken.fetch_add(1, Relaxed);
        let Poll::Ready(bytes) = self.poll_bytes(context) else { return Poll::Pending };
        Poll::Ready(match bytes {
            Some(bytes) => Some(Ok(Frame::data(bytes))),
            None if std::mem::replace(&mut self.has_trailed, true) => None,
            None => {
                let ok = (HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"));
                Some(Ok(Frame::trailers(HeaderMap::from_iter([ok]))))
            }
        })
    }
}

/// How much of an output was asked for, as long as it is there.
pub(crate) struct Taken(Weak<AtomicU64>);

impl Taken {
    /// Resolves when nothing was for so long, or the output is gone.
    pub(crate) async fn none_for(self, time: Duration) {
        let so_far = || self.0.upgrade().map(|taken| taken.load(Relaxed));
        let mut before = so_far();
        while before.is_some() {
            tokio::time::sleep(time).await;
            let now = so_far();
            if now == before {
                return;
            }
            before = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use gateway_core::ids::ShardId;

    use super::*;

    #[test]
    fn what_waits_for_a_caller_goes_together_and_its_end_comes_last() {
        let (to_shard, mut couriered) = mpsc::unbounded_channel();
        let (asks, _asked) = mpsc::unbounded_channel();
        let (frames, of_node) = mpsc::unbounded_channel();
        let (_cut, is_cut) = oneshot::channel();
        let stream = TunnelKey { shard: ShardId(0), slot: 1, serial: 2 };
        let window = 64 << 10;
        let mut output = CallerOutput::new(
            Place { id: TunnelId([1; 16]), asks },
            stream,
            to_shard,
            of_node,
            is_cut,
            window,
        );
        let mut context = Context::from_waker(std::task::Waker::noop());
        let data = |at: u8| TunnelFrame::Data(Bytes::from(vec![at; 16_000]));
        for at in 0..6 {
            assert!(frames.send(FromNode::Frame(data(at))).is_ok());
        }
        assert!(frames.send(FromNode::Finished).is_ok());
        let (mut parts, mut deframer, mut seen) = (0, Deframer::new(MAX_TUNNEL_FRAME_BYTES), Vec::new());
        let mut trailers = None;
        while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut output).poll_frame(&mut context) {
            assert_eq!(trailers, None, "nothing comes behind them");
            let bytes = match frame.into_data() {
                Ok(bytes) => bytes,
                Err(frame) => {
                    trailers = frame.into_trailers().ok();
                    continue;
                }
            };
            assert!(bytes.len() < TOGETHER_BYTES + 16_100);
            parts += 1;
            deframer.push(bytes);
            while let Some(message) = deframer.next().expect("well formed") {
                seen.push(wire::decode(message).expect("a frame"));
            }
        }
        assert_eq!(parts, 2, "four frames, then two and the end");
        assert_eq!(trailers.expect("gRPC ends with them")["grpc-status"], "0");
        let mut expected: Vec<_> = (0..6).map(|at| Some(data(at))).collect();
        // `TunnelClosed`, which nobody sends to a gateway.
        expected.push(None);
        assert_eq!(seen, expected);
        let mut granted = 0;
        while let Ok(ToShard::Tunnel(FromTunnels::Grant { bytes, .. })) = couriered.try_recv() {
            granted += bytes;
        }
        assert_eq!(granted, 4 * cost_bytes(&data(0)), "what is less than half a window is given back later");
    }
}

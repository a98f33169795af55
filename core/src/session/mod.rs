//! One session of one node, as a sans-IO machine.
//!
//! (Skeleton: the machine is still to be built.)

use std::sync::Arc;

use crate::close::CloseReason;
use crate::frame::{GatewayFrame, NodeFrame};
use crate::ids::{SessionEpoch, SessionKey};
use crate::limits::Limits;
use crate::seam::{Identity, SessionNews, ToWriter};
use crate::time::Moment;

/// A session, from the opening of its stream to its end.
#[derive(Debug)]
pub struct Session {}

impl Session {
    /// A stream was admitted; its first frame must be a Hello.
    pub fn new(_key: SessionKey, _identity: Identity, _limits: Arc<Limits>, _now: Moment) -> Self {
        todo!()
    }

    /// The node sent a frame that took `bytes` on the wire.
    pub fn handle_frame(&mut self, _frame: NodeFrame, _bytes: usize, _now: Moment) {
        todo!()
    }

    /// The node closed its half of the stream: acks in flight are finished, then `Finished`.
    pub fn handle_half_close(&mut self, _now: Moment) {
        todo!()
    }

    /// The writer has news for this session.
    pub fn handle_news(&mut self, _news: SessionNews, _now: Moment) {
        todo!()
    }

    /// The session must end: a malformed frame, the peer gone or slow, the gateway fenced or stopping.
    pub fn handle_close(&mut self, _reason: CloseReason, _now: Moment) {
        todo!()
    }

    /// Time has passed; to be called at `next_deadline` or later.
    pub fn handle_time(&mut self, _now: Moment) {
        todo!()
    }

    /// What must be posted to the writer, in order. `Closed` is the last, and comes only for a
    /// session whose Hello was posted.
    pub fn poll_to_writer(&mut self) -> Option<ToWriter> {
        todo!()
    }

    /// What must be sent to the node, in order.
    pub fn poll_frame(&mut self) -> Option<GatewayFrame> {
        todo!()
    }

    /// The end of the stream, once, after the last frame was polled.
    pub fn poll_end(&mut self) -> Option<CloseReason> {
        todo!()
    }

    /// Whether more of the node's bytes should be read now.
    pub fn wants_read(&self) -> bool {
        todo!()
    }

    /// When `handle_time` must be called next; it may move with each input.
    pub fn next_deadline(&self) -> Option<Moment> {
        todo!()
    }

    /// Whether the Hello still waits for its outcome (for `Admission::handle_hello_done`).
    pub fn hello_is_pending(&self) -> bool {
        todo!()
    }

    /// The session's epoch, once its Hello is durable.
    pub fn epoch(&self) -> Option<SessionEpoch> {
        todo!()
    }

    /// The session's address.
    pub fn key(&self) -> SessionKey {
        todo!()
    }
}

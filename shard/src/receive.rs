//! From what a peer sends to whole messages, under what they may cost.
//!
//! 1. More is read only when the call is to be read: who is not read is held back by the transport.
//! 2. A large message is received only under a grant of the shard's budget.
//! 3. A message that began must be whole after `WHOLE_FRAME_SHARE` send time-outs of being read.
//! 4. Before a session's first message there is no trust to spend: it may be as large as a Hello, and if it is
//!    large its grant is in the node's name, of which there is one at a time on a shard.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use gateway_core::close::CloseReason;
use gateway_core::ids::NodeId;
use gateway_core::time::Moment;
use gateway_proto::framing::FramingError;

use crate::bell::Bell;
use crate::counters::ShardCounters;
use crate::receive_budget::{Claim, FREE_BYTES, ReceiveBudget};
use crate::shard::Shard;
use crate::transport::Source;

/// How many send time-outs a message may take from its first byte to its last.
const WHOLE_FRAME_SHARE: u32 = 3;

pub(crate) struct FrameReader {
    source: Source,
    budget: Rc<ReceiveBudget>,
    counters: Arc<ShardCounters>,
    bell: Arc<Bell>,
    claim: Option<Claim>,
    whole_within: Duration,
    /// When the first byte of the unfinished message came.
    begun_at: Option<Moment>,
    /// The key of the configuration that says how large a message may be, if one does.
    key: Option<&'static str>,
    /// Until the first message of a session is whole.
    hello: Option<Box<AwaitedHello>>,
}

/// What is different before a session's first message.
struct AwaitedHello {
    node: NodeId,
    /// What later messages may hold.
    later_bytes: usize,
}

/// Why there is no next message.
#[derive(Debug)]
pub(crate) enum ReadEnd {
    HalfClosed,
    PeerGone,
    Broken(CloseReason),
}

impl FrameReader {
    /// For messages of at most `max_bytes`.
    pub(crate) fn new(source: impl Into<Source>, max_bytes: usize, shard: &Shard, bell: &Arc<Bell>) -> Self {
        let mut source = source.into();
        source.set_max_bytes(max_bytes);
        Self {
            source,
            budget: Rc::clone(&shard.receive_budget),
            counters: Arc::clone(&shard.counters),
            bell: Arc::clone(bell),
            claim: None,
            whole_within: shard.limits.send_timeout * WHOLE_FRAME_SHARE,
            begun_at: None,
            key: None,
            hello: None,
        }
    }

    /// How large a message may be is for this key of the configuration to say.
    pub(crate) fn bounded_by(mut self, key: &'static str) -> Self {
        self.key = Some(key);
        self
    }

    /// The first message is the Hello of this node.
    pub(crate) fn awaiting_hello(mut self, node: NodeId, most_bytes: usize) -> Self {
        let later_bytes = self.source.set_max_bytes(most_bytes);
        self.hello = Some(Box::new(AwaitedHello { node, later_bytes }));
        self
    }

    /// The next whole message.
    pub(crate) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
        now: Moment,
    ) -> Poll<Result<Bytes, ReadEnd>> {
        loop {
            let unfinished =
                self.source.unfinished().map_err(|error| self.broken(error, self.hello.is_some()))?;
            if unfinished.is_some_and(|length| !self.is_granted(length, now)) {
                return Poll::Pending;
            }
            if let Some(message) = self.source.take().map_err(|error| self.broken(error, false))? {
                self.claim = None;
                if let Some(hello) = self.hello.take() {
                    self.source.set_max_bytes(hello.later_bytes);
                }
                self.begun_at = self.source.has_begun().then_some(now);
                return Poll::Ready(Ok(message));
            }
            match self.source.poll_more(context) {
                Poll::Ready(Some(Ok(()))) => {
                    if self.source.has_begun() {
                        self.begun_at.get_or_insert(now);
                    }
                }
                Poll::Ready(Some(Err(end))) => return Poll::Ready(Err(end)),
                Poll::Ready(None) if self.source.has_begun() => {
                    let why = "the stream ended inside a frame".to_owned();
                    return Poll::Ready(Err(ReadEnd::Broken(CloseReason::Protocol(why))));
                }
                Poll::Ready(None) => return Poll::Ready(Err(ReadEnd::HalfClosed)),
                Poll::Pending if self.deadline().is_some_and(|deadline| deadline <= now) => {
                    return Poll::Ready(Err(self.too_slow()));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Reading goes on after a pause: the time that we did not read is not the node's.
    pub(crate) fn resume(&mut self, now: Moment) {
        self.begun_at = self.begun_at.map(|_| now);
    }

    /// Whether a large frame waits for its grant, so that nothing is read.
    pub(crate) fn is_held_back(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| !claim.is_granted())
    }

    /// When `poll_frame` must be asked again, though nothing came.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        self.begun_at.map(|begun_at| begun_at + self.whole_within)
    }

    fn too_slow(&self) -> ReadEnd {
        ReadEnd::Broken(CloseReason::Protocol(format!(
            "a frame was not received whole within {:?} ({WHOLE_FRAME_SHARE} times sessions.send_timeout)",
            self.whole_within
        )))
    }

    fn is_granted(&mut self, length: usize, now: Moment) -> bool {
        if length <= FREE_BYTES {
            return true;
        }
        let was_waiting = self.claim.is_some();
        let node = self.hello.as_ref().map(|hello| &hello.node);
        let claim = self.claim.get_or_insert_with(|| self.budget.claim(length, node, &self.bell));
        let granted = claim.is_granted();
        if !was_waiting && !granted {
            self.counters.receive_budget_waits.one_more();
        }
        if !granted {
            self.resume(now);
        }
        granted
    }

    fn broken(&self, error: FramingError, is_hello: bool) -> ReadEnd {
        ReadEnd::Broken(match (&error, self.key) {
            (FramingError::Compressed, _) => CloseReason::Unimplemented(error.to_string()),
            (FramingError::TooLarge { .. }, _) if is_hello => CloseReason::Protocol(format!(
                "{error} for a Hello, which comes first (it follows from sessions.known_commands and its like)"
            )),
            (FramingError::TooLarge { .. }, Some(key)) => CloseReason::Protocol(format!("{error} ({key})")),
            (FramingError::TooLarge { .. } | FramingError::BadFlag { .. }, _) => {
                CloseReason::Protocol(error.to_string())
            }
        })
    }
}

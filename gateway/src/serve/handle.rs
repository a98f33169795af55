//! What a program may ask of the gateway that it embeds, from any thread and for as long as it likes.
//!
//! The same questions as of the control API, put to the same desk of the writer; and sessions of nodes that live in
//! the program itself. It waits for no socket and needs no particular async runtime.
//!
//! 1. A handle keeps no gateway alive: once that has stopped or crashed, every question says so.
//! 2. Nothing here decides: who may open a session, and what a drain is, is decided where it is for every node.

use std::sync::Arc;
use std::time::Duration;

use gateway_control::{Health, Status as _};
use gateway_core::desk::{DeskAnswer, DeskAsk, DeskRefusal, MAX_SESSIONS_SHOWN, SessionReport};
use gateway_core::drain::DrainPlan;
use gateway_core::ids::NodeId;
use gateway_db_writer::{DeskError, DeskPost};
use gateway_shard::local::{FrameConnection, FrameSender, FrameSink, LocalPeer, Refused, Visitors};

use super::readings::Readings;
use super::running::Stopper;

/// A gateway, to be asked from any thread; cheap to clone.
#[derive(Debug, Clone)]
pub struct GatewayHandle(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    readings: Arc<Readings>,
    desk: DeskPost,
    visitors: Visitors,
    stopper: Stopper,
}

/// Why a gateway did not do what it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// As many questions wait as may; ask again in a moment.
    #[error("as many questions wait for the gateway as may; ask again in a moment")]
    Busy,
    /// The lease is not held: there is no session here, and there is nothing to drain.
    #[error("the gateway does not hold its lease now: no session is here")]
    NoLease,
    /// It drains towards its stop, or stops, which is not taken back.
    #[error("the gateway is stopping")]
    Stopping,
    /// It has stopped, or crashed.
    #[error("the gateway has stopped")]
    Stopped,
}

/// What a drain began with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Sessions that were told to leave.
    pub sessions: usize,
    /// Whether this call began it; a later one changes nothing.
    pub is_new: bool,
}

impl GatewayHandle {
    pub(super) fn new(readings: Arc<Readings>, desk: DeskPost, visitors: Visitors, stopper: Stopper) -> Self {
        Self(Arc::new(Parts { readings, desk, visitors, stopper }))
    }

    /// The gateway as `GET /v1/health` shows it: phase, lease, headroom, queues, loops, shards. It reads counters
    /// alone, so it answers at once whatever the threads do, and also when they have ended; what was just answered
    /// to another question may be in it a moment later.
    pub fn status(&self) -> Health {
        self.0.readings.health()
    }

    /// All live sessions, each with its shard, epoch and lanes, in the order of their keys. They are asked for in
    /// pages: one that begins or ends meanwhile may be there or not.
    ///
    /// # Errors
    /// `Busy`, or `Stopped`. While the lease is not held there is no session, and that is no error.
    pub async fn sessions(&self) -> Result<Vec<SessionReport>, AskError> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            match self.ask(DeskAsk::Sessions { after, at_most: MAX_SESSIONS_SHOWN }).await? {
                DeskAnswer::Sessions { sessions, more, .. } => {
                    all.extend(sessions);
                    after = more;
                }
                other => return refusal_of(&other).map_or(Ok(all), Err),
            }
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    /// The live session of one node, if it is here.
    ///
    /// # Errors
    /// `Busy`, or `Stopped`.
    pub async fn session(&self, node: NodeId) -> Result<Option<SessionReport>, AskError> {
        match self.ask(DeskAsk::Session(node)).await? {
            DeskAnswer::Sessions { sessions, .. } => Ok(sessions.into_iter().next()),
            other => refusal_of(&other).map_or(Ok(None), Err),
        }
    }

    /// Sends the nodes away, each at a moment of its own over `within`, and refuses new sessions with a pushback,
    /// until `undrain`; it stops nothing and cuts nobody. As `POST /v1/drain`. To drain and then stop, see
    /// `RunningGateway::drain_and_stop`.
    ///
    /// # Errors
    /// `Busy` or `Stopped`: then nobody was told anything. During the drain before a stop it changes nothing, and
    /// says so by `is_new`.
    pub async fn drain(&self, within: Duration) -> Result<Drained, AskError> {
        match self.ask(DeskAsk::Drain(DrainPlan { within, grace: Duration::ZERO })).await? {
            DeskAnswer::Draining { sessions, is_new } => Ok(Drained { sessions, is_new }),
            other => Err(refusal_of(&other).unwrap_or(AskError::Stopping)),
        }
    }

    /// Takes new sessions again; whether it drained. As `POST /v1/undrain`.
    ///
    /// # Errors
    /// `Stopping`: the drain before a stop is not taken back. `Busy` or `Stopped`.
    pub async fn undrain(&self) -> Result<bool, AskError> {
        match self.ask(DeskAsk::Undrain).await? {
            DeskAnswer::Undrained { was_draining } => Ok(was_draining),
            other => Err(refusal_of(&other).unwrap_or(AskError::Stopping)),
        }
    }

    /// Asks it to stop well, as `Stopper::stop`: sessions end `UNAVAILABLE`, what is owed is written, the lease is
    /// released. Its owner waits for the end with `RunningGateway::join`.
    pub fn stop(&self) {
        self.0.stopper.stop();
    }

    /// Opens a session of a node that lives in this process, without a socket. The first frame to send is its Hello;
    /// `sink` is given the gateway's frames on a shard's thread, and, once, how the session ended: there, or on the
    /// thread of anyone who opens a session as the gateway stops, even before `open` returns. So hold no lock over
    /// `open` that the sink's end takes.
    ///
    /// Admission, the revoked set, the bounds and time-outs of `[admission]` and `[sessions]`, the Hello's
    /// transaction with the certificate's row, fencing and drains are those of a session over a socket, and so are
    /// the statuses and pushbacks of their refusals, which come to `sink` as its end.
    ///
    /// # Errors
    /// `Busy` where too many sessions wait to be opened, `Stopped`; `sink` is then dropped, and told nothing.
    pub fn open(&self, peer: LocalPeer, sink: impl FrameSink) -> Result<FrameSender, Refused> {
        self.0.visitors.open(peer, Box::new(sink))
    }

    /// The same as a connection whose frames are read when its owner likes.
    ///
    /// # Errors
    /// As `open`.
    pub fn connect(&self, peer: LocalPeer) -> Result<FrameConnection, Refused> {
        self.0.visitors.connect(peer)
    }

    /// Every shard ends at once; the writer's thread must have been told before.
    pub(super) fn crash_shards(&self) {
        self.0.visitors.crash();
    }

    async fn ask(&self, ask: DeskAsk) -> Result<DeskAnswer, AskError> {
        self.0.desk.ask(ask).await.map_err(|error| match error {
            DeskError::Full => AskError::Busy,
            DeskError::Gone => AskError::Stopped,
        })
    }
}

/// Why nothing was done, where the answer says so.
const fn refusal_of(answer: &DeskAnswer) -> Option<AskError> {
    match answer {
        DeskAnswer::Refused(DeskRefusal::NoLease) => Some(AskError::NoLease),
        DeskAnswer::Refused(DeskRefusal::Stopping) => Some(AskError::Stopping),
        _ => None,
    }
}

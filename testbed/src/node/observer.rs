//! What a node tells those who watch it.
//!
//! 1. Events of one node come in the order in which they happened.
//! 2. An observer is called on the node's task: it must not block.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gateway_proto::v1::{CommandState, RejectCode};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::end::End;
use super::memory::Verdict;

/// Something that happened at a node. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeEvent {
    /// `Welcome` came.
    Connected { epoch: u64, at_ns: u64 },
    /// A command was read.
    CommandReceived(Box<ReceivedCommand>),
    /// The execution starts.
    Started { id: Uuid, attempt: u32 },
    /// An update was acked; `stored` is the state that the database has.
    Acked { id: Uuid, attempt: u32, reported: CommandState, stored: CommandState, at_ns: u64 },
    /// An update was rejected.
    Rejected { id: Uuid, attempt: u32, code: RejectCode, message: String },
    /// Events up to that seq of its journal are stored, by `Welcome` or by an `EventAck`.
    EventsAcked { journal: String, acked_seq: u64, at_ns: u64 },
    /// A batch of events was rejected, or a tombstone stands for one of it.
    EventRejected { code: RejectCode, message: String },
    /// A spec came.
    SpecReceived { name: String, generation: u64, body: Bytes, at_ns: u64 },
    /// What it said of a spec is stored.
    SpecAcked { name: String, generation: u64, ok: bool },
    /// What it said of a spec was rejected.
    SpecRejected { name: String, generation: u64, code: RejectCode, message: String },
    /// A status is stored.
    StatusAcked { id: String },
    /// A status was rejected; the node keeps it no longer.
    StatusRejected { id: String, code: RejectCode, message: String },
    /// A section of its inventory was acked.
    SectionStored { section: String, at_ns: u64 },
    /// A section was rejected.
    SectionRejected { section: String, code: RejectCode, message: String },
    /// The gateway wants these sections, by `Welcome` or after a heartbeat.
    SectionsWanted { sections: Vec<String> },
    /// `CancelCommand` came.
    CancelAsked { id: Uuid },
    /// A heartbeat was acked.
    HeartbeatAcked { sequence: u64, round_trip: Duration },
    /// `RevocationNotice` came.
    RevocationNoticed { reason: String, serials: Vec<String> },
    /// `Drain` came.
    DrainAsked { reconnect_after: Duration },
    /// It has a new certificate, with this serial.
    Renewed { serial: String },
    /// Its certificate could not be renewed.
    RenewalFailed { end: End },
    /// A tunnel was offered and refused.
    TunnelRefused { reason: String },
    /// Its side of a tunnel ended; `received` is the data that came.
    TunnelEnded { kind: String, end: End, received: u64 },
    /// A session ended or was not opened; `redial_after` is `None` where the node stops.
    Ended { end: End, redial_after: Option<Duration>, at_ns: u64 },
}

/// A command as it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedCommand {
    pub id: Uuid,
    pub attempt: u32,
    pub lane: String,
    pub seq: u64,
    pub kind: String,
    pub payload: Bytes,
    pub session_epoch: u64,
    pub verdict: Verdict,
    pub at_ns: u64,
}

/// Watches nodes.
pub trait Observer: Send + Sync {
    /// `node` is the name that the node was started with.
    fn on_event(&self, node: &Arc<str>, event: NodeEvent);
}

/// Looks away.
#[derive(Debug, Clone, Copy)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn on_event(&self, _node: &Arc<str>, _event: NodeEvent) {}
}

/// An event and whose it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    pub node: Arc<str>,
    pub event: NodeEvent,
}

impl Observer for mpsc::UnboundedSender<Observed> {
    fn on_event(&self, node: &Arc<str>, event: NodeEvent) {
        // A watcher that went away misses nothing that it wants.
        let _ = self.send(Observed { node: Arc::clone(node), event });
    }
}

/// Nothing of the kind happened in time; tells what did.
#[derive(Debug, thiserror::Error)]
#[error("not seen within {within:?}; what was seen instead: {seen:#?}")]
pub struct NotSeen {
    pub within: Duration,
    pub seen: Vec<Observed>,
}

/// Events of any number of nodes, for one who awaits them.
#[derive(Debug)]
pub struct NodeEvents {
    events: mpsc::UnboundedReceiver<Observed>,
}

impl NodeEvents {
    /// An observer, to be given to nodes, and what it sees.
    pub fn channel() -> (Arc<dyn Observer>, Self) {
        let (sender, events) = mpsc::unbounded_channel();
        (Arc::new(sender), Self { events })
    }

    /// The next event; `None` once all nodes are gone.
    pub async fn next(&mut self) -> Option<Observed> {
        self.events.recv().await
    }

    /// Passes over events until `pick` takes one.
    pub async fn wait_for<T>(
        &mut self,
        within: Duration,
        mut pick: impl FnMut(&Observed) -> Option<T>,
    ) -> Result<T, NotSeen> {
        let mut seen = Vec::new();
        let search = async {
            while let Some(observed) = self.events.recv().await {
                if let Some(found) = pick(&observed) {
                    return Some(found);
                }
                seen.push(observed);
            }
            None
        };
        match tokio::time::timeout(within, search).await {
            Ok(Some(found)) => Ok(found),
            _ => Err(NotSeen { within, seen }),
        }
    }

    /// Awaits the next `Welcome` of `node`; gives its epoch.
    pub async fn connected(&mut self, node: &str, within: Duration) -> Result<u64, NotSeen> {
        self.wait_for(within, |seen| match &seen.event {
            NodeEvent::Connected { epoch, .. } if &*seen.node == node => Some(*epoch),
            _ => None,
        })
        .await
    }

    /// Awaits the next end of a session of `node`.
    pub async fn ended(&mut self, node: &str, within: Duration) -> Result<End, NotSeen> {
        self.wait_for(within, |seen| match &seen.event {
            NodeEvent::Ended { end, .. } if &*seen.node == node => Some(end.clone()),
            _ => None,
        })
        .await
    }

    /// Awaits the next command that a node reads.
    pub async fn command(&mut self, within: Duration) -> Result<ReceivedCommand, NotSeen> {
        self.wait_for(within, |seen| match &seen.event {
            NodeEvent::CommandReceived(command) => Some((**command).clone()),
            _ => None,
        })
        .await
    }

    /// Awaits that a terminal report of command `id` was acked; gives the stored state.
    pub async fn settled(&mut self, id: Uuid, within: Duration) -> Result<CommandState, NotSeen> {
        self.wait_for(within, |seen| match &seen.event {
            NodeEvent::Acked { id: acked, reported, stored, .. }
                if *acked == id && super::memory::is_terminal(*reported) =>
            {
                Some(*stored)
            }
            _ => None,
        })
        .await
    }
}

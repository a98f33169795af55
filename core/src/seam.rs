//! What crosses between a shard and the writer. The only two message types between those threads; what
//! crosses between a shard and the relays is in `relay`, what of tunnels in `tunnel`.
//!
//! 1. A shard never waits for the writer: it posts, goes on, and meets the answer in its mailbox.
//! 2. For one session the order of messages is the order of what happened, both ways.
//! 3. A session has at most one durable frame with the writer, or updates each of which leads to the next
//!    (`Headway::leads_to`); `Stored`, `EventsStored` or `NotStored` answers each, in their order. Sections of
//!    its inventory are beside that, a bounded number; `SectionStored` or `SectionNotStored` answers each by
//!    its ref, in the order in which they become known. At most one look at its inventory is out;
//!    `InventoryWanted` or `InventoryNotLooked` answers it.
//! 4. After `Closed` of a key nothing more is posted about that key by its shard; what the writer
//!    still posts to it finds another serial in the slot and is dropped.

use std::sync::Arc;

use bytes::Bytes;

use crate::close::CloseReason;
use crate::command::CommandState;
use crate::desk::VitalsAsk;
use crate::drain::DrainOrder;
use crate::frame::{
    Attested, CancelCommand, Command, CommandUpdate, CreditChange, Event, EventBatch, Hello, RefusedEvent,
    RejectCode, Spec, SpecGeneration, Status,
};
use crate::ids::{
    EventSeq, FrameRef, Generation, JournalId, NodeId, SectionName, SessionEpoch, SessionKey, ShardId,
    SpecName,
};
use crate::inventory::{BodyHash, SectionHash};
use crate::mail::Weigh;
use crate::relay::RelayAnswer;
use crate::revocation::{Revocation, RevokedSet};
use crate::time::UnixMillis;
use crate::tunnel::FromTunnels;

/// What a spec weighs beside its body; the stores count the same.
pub const SPEC_HEAD_BYTES: usize = 256;

/// Who a peer is, from its certificate alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub node: NodeId,
    /// The `site/…` part of the SPIFFE URI.
    pub site: String,
    /// Upper-case hex, no separators.
    pub certificate_serial: String,
}

/// From a shard to the writer.
#[derive(Debug)]
pub enum ToWriter {
    Hello(Box<HelloRequest>),
    Update(Box<UpdateRequest>),
    Events(EventsRequest),
    SpecApplied(Box<SpecAnswer>),
    /// Specs of this weight, given to the session before, have left for the node.
    SpecsSent {
        key: SessionKey,
        bytes: usize,
    },
    Status(Box<StatusRequest>),
    Section(Arc<SectionRequest>),
    InventoryLook(Arc<LookRequest>),
    Credit {
        key: SessionKey,
        node: NodeId,
        change: CreditChange,
    },
    /// The node is alive; sent at most once per `sessions.liveness_write_every` and session.
    Alive {
        key: SessionKey,
        node: NodeId,
        epoch: SessionEpoch,
    },
    /// The session is over, for whatever reason, whose label goes along. The last message of this key.
    Closed {
        key: SessionKey,
        node: NodeId,
        reason: &'static str,
    },
    /// The shard has closed its listener and all its sessions. The last message of a shard.
    ShardStopped {
        shard: ShardId,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelloRequest {
    pub key: SessionKey,
    pub identity: Identity,
    pub hello: Hello,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateRequest {
    pub key: SessionKey,
    pub node: NodeId,
    pub update: CommandUpdate,
}

impl UpdateRequest {
    /// Whether it goes on from the earlier one, so that one write of the row stores both.
    pub fn goes_on_from(&self, earlier: &Self) -> bool {
        self.node == earlier.node
            && earlier.update.headway().is_some_and(|headway| headway.leads_to(&self.update))
    }
}

/// A run of a journal to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventsRequest {
    pub key: SessionKey,
    pub node: NodeId,
    /// Without a gap; shared, since a job is kept until its outcome is known.
    pub batch: Arc<EventBatch>,
}

/// What a node says of a spec, to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecAnswer {
    pub key: SessionKey,
    pub node: NodeId,
    pub name: SpecName,
    pub generation: Generation,
    /// Why the node could not apply it; `None` where it did.
    pub error: Option<String>,
}

/// A status to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusRequest {
    pub key: SessionKey,
    pub node: NodeId,
    /// As the session's Hello said.
    pub boot_id: Arc<str>,
    pub status: Status,
}

/// A section of a node's inventory to be stored. Shared, since a job is kept until its outcome is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SectionRequest {
    pub key: SessionKey,
    pub node: NodeId,
    /// Of the session: what an older session sent never replaces what a newer one did.
    pub epoch: SessionEpoch,
    pub frame_ref: FrameRef,
    pub section: SectionName,
    /// Of this very body.
    pub hash: BodyHash,
    pub body: Bytes,
}

/// The sections that a node has, each once, to be held against what is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookRequest {
    pub key: SessionKey,
    pub node: NodeId,
    pub list: Box<[SectionHash]>,
}

/// From the writer to a shard, from the relays, the tunnels' room and the control API.
#[derive(Debug)]
pub enum ToShard {
    /// For one session of the shard.
    Session { key: SessionKey, news: SessionNews },
    /// Whether new sessions may be opened. `false` before the lease is held, fenced, stopping; `true` also takes a
    /// drain back.
    Serving(bool),
    /// Every session ends for this reason (fenced); the listener stays.
    CloseAll(CloseReason),
    /// What is revoked from now on, whole, and what of it was not before: sessions of those end.
    Revoked { set: Arc<RevokedSet>, added: Arc<[Revocation]> },
    /// Every session is told to leave, new ones are refused until `Serving(true)`.
    Drain(DrainOrder),
    /// The drain is over: sessions that have not left are cut.
    Cut(DrainOrder),
    /// The answer to a call that was passed on.
    Relayed(Box<RelayAnswer>),
    /// Of the tunnels' room.
    Tunnel(FromTunnels),
    /// The control API asks when sessions were heard.
    Vitals(Box<VitalsAsk>),
    /// Close the listener, end every session as `Stopping`, post what is owed, then `ShardStopped`.
    Stop,
}

/// What the writer has to say to one session.
#[derive(Debug)]
pub enum SessionNews {
    /// The Hello is durable.
    Granted(Box<Granted>),
    /// The durable frame with the writer is stored; of an update, the state of the command's row now.
    Stored {
        state: Option<CommandState>,
    },
    /// The events with the writer are stored, as far as they join on to what was there.
    EventsStored {
        journal: JournalId,
        /// The highest contiguous seq that is stored now.
        acked: EventSeq,
        /// The first of them that is a tombstone.
        refused: Option<(EventSeq, RefusedEvent)>,
    },
    /// The durable frame with the writer was not stored.
    NotStored {
        code: RejectCode,
        message: String,
        retryable: bool,
    },
    /// A section is stored.
    SectionStored {
        frame_ref: FrameRef,
    },
    /// A section was not stored.
    SectionNotStored {
        frame_ref: FrameRef,
        message: String,
    },
    /// Of the inventory that was looked at these are not stored as the node has them; none where all are.
    InventoryWanted(Vec<SectionName>),
    /// The look at the inventory came to nothing.
    InventoryNotLooked,
    Commands(Vec<Command>),
    Cancel(CancelCommand),
    Specs(Vec<Spec>),
    /// The session ends; also the answer to a Hello that was not granted.
    Close(CloseReason),
}

/// What a durable Hello brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    pub epoch: SessionEpoch,
    pub server_time: UnixMillis,
    pub journal_acked: EventSeq,
    /// In order of seq, with the new epoch; sent right after `Welcome`.
    pub replays: Vec<Command>,
    /// Commands that someone wants canceled and that are not terminal.
    pub cancels: Vec<CancelCommand>,
    /// Sections that the Hello lists and that are not stored so.
    pub inventory_wanted: Vec<SectionName>,
}

impl Weigh for ToWriter {
    fn weight_bytes(&self) -> usize {
        match self {
            Self::Hello(request) => request.weight_bytes(),
            Self::Update(request) => request.weight_bytes(),
            Self::Events(request) => request.weight_bytes(),
            Self::Section(request) => request.weight_bytes(),
            Self::InventoryLook(request) => request.weight_bytes(),
            Self::SpecApplied(answer) => answer.weight_bytes(),
            Self::Status(request) => request.weight_bytes(),
            Self::SpecsSent { .. }
            | Self::Credit { .. }
            | Self::Alive { .. }
            | Self::Closed { .. }
            | Self::ShardStopped { .. } => 0,
        }
    }
}

impl Weigh for HelloRequest {
    fn weight_bytes(&self) -> usize {
        let hello = &self.hello;
        let texts = [&hello.boot_id, &hello.machine, &hello.software_version, &hello.role];
        let text_bytes: usize = texts.into_iter().chain(&hello.features).map(|text| text.len() + 24).sum();
        let spec_bytes = |spec: &SpecGeneration| size_of_val(spec) + spec.name.as_str().len();
        let specs: usize = hello.specs.iter().map(spec_bytes).sum();
        let listed = size_of_val(&hello.known_commands[..]) + list_bytes(&hello.inventory) + specs;
        hello.lanes.len() * 96 + listed + text_bytes + 512
    }
}

impl Weigh for UpdateRequest {
    fn weight_bytes(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        self.update.result.len() + text(&self.update.progress) + text(&self.update.error) + 256
    }
}

impl Weigh for EventsRequest {
    fn weight_bytes(&self) -> usize {
        let envelope =
            |attested: &Attested| attested.body.len() + attested.kid.len() + attested.signature.len();
        let event = |event: &Event| {
            let refused = event.refused.as_ref().map_or(0, |refused| refused.message.len());
            event.body.len() + event.kind.len() + event.attested.as_ref().map_or(0, envelope) + refused
        };
        let events = &self.batch.events;
        size_of_val(&events[..]) + events.iter().map(event).sum::<usize>() + self.batch.boot_id.len() + 256
    }
}

impl Weigh for SpecAnswer {
    fn weight_bytes(&self) -> usize {
        self.error.as_ref().map_or(0, String::len) + 256
    }
}

impl Weigh for Spec {
    fn weight_bytes(&self) -> usize {
        self.body.len() + SPEC_HEAD_BYTES
    }
}

impl Weigh for StatusRequest {
    fn weight_bytes(&self) -> usize {
        let Status { id, kind, body, .. } = &self.status;
        id.len() + kind.len() + body.len() + self.boot_id.len() + 256
    }
}

impl Weigh for SectionRequest {
    fn weight_bytes(&self) -> usize {
        self.body.len() + self.section.as_str().len() + 256
    }
}

impl Weigh for LookRequest {
    fn weight_bytes(&self) -> usize {
        list_bytes(&self.list) + 256
    }
}

fn list_bytes(list: &[SectionHash]) -> usize {
    size_of_val(list) + list.iter().map(|entry| entry.section.as_str().len() + 16).sum::<usize>()
}

impl Weigh for ToShard {
    // What goes down is bounded by credits, Hellos, acks in flight, `SpecsSent`, relays in flight and
    // the windows of tunnels, not by this box.
    fn weight_bytes(&self) -> usize {
        0
    }
}

//! The frames of a session, as decisions see them: parsed, typed, free of the wire.
//!
//! The shard turns protobuf into these and back; an arm or a field that the wire does not know
//! never gets here. Bodies are `Bytes`: slices of what was received, never copied on the way.

use bytes::Bytes;

use crate::command::CommandState;
use crate::ids::{
    Attempt, CommandId, Credits, EventSeq, FrameRef, Generation, JournalId, LaneName, LaneSeq, SectionName,
    SessionEpoch, SpecName,
};
use crate::inventory::SectionHash;
use crate::time::UnixMillis;
use crate::tunnel::{OpenTunnel, TunnelRefused};

/// The protocol number spoken by this gateway.
pub const PROTOCOL: u32 = 1;

/// What a node sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeFrame {
    Hello(Box<Hello>),
    Heartbeat(Heartbeat),
    CommandUpdate(CommandUpdate),
    EventBatch(Box<EventBatch>),
    SpecApplied(Box<SpecApplied>),
    Status(Box<Status>),
    InventorySection(Box<InventorySection>),
    Credit(CreditChange),
    TunnelRefused(TunnelRefused),
    Goodbye(Goodbye),
    /// A durable frame of a kind that this gateway does not store; answered `Rejected`.
    Unsupported(FrameRef),
    /// A frame without an arm that this gateway knows, or one that asks for no answer.
    Ignored,
}

impl NodeFrame {
    /// The kinds, for metrics.
    pub const KINDS: [&str; 12] = [
        "hello",
        "heartbeat",
        "command-update",
        "event-batch",
        "spec-applied",
        "status",
        "inventory-section",
        "credit",
        "goodbye",
        "unsupported",
        "ignored",
        "tunnel-refused",
    ];

    /// Which of them this is.
    pub const fn kind(&self) -> usize {
        match self {
            Self::Hello(_) => 0,
            Self::Heartbeat(_) => 1,
            Self::CommandUpdate(_) => 2,
            Self::EventBatch(_) => 3,
            Self::SpecApplied(_) => 4,
            Self::Status(_) => 5,
            Self::InventorySection(_) => 6,
            Self::Credit(_) => 7,
            Self::Goodbye(_) => 8,
            Self::Unsupported(_) => 9,
            Self::Ignored => 10,
            Self::TunnelRefused(_) => 11,
        }
    }
}

/// The first frame of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    pub protocol: u32,
    pub features: Vec<String>,
    pub boot_id: String,
    pub machine: String,
    pub software_version: String,
    pub role: String,
    pub lanes: Vec<LaneCapacity>,
    pub journal: Option<JournalId>,
    pub known_commands: Vec<KnownCommand>,
    /// The specs that the node has applied.
    pub specs: Vec<SpecGeneration>,
    /// What the node has; from the session on, each section once.
    pub inventory: Vec<SectionHash>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneCapacity {
    pub lane: LaneName,
    pub capacity: Credits,
}

/// A command that the node has and whose terminal state was not acked to it yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownCommand {
    pub id: CommandId,
    pub attempt: Attempt,
    pub state: CommandState,
}

/// A spec, at a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecGeneration {
    pub name: SpecName,
    pub generation: Generation,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heartbeat {
    pub sequence: u64,
    /// What the node has; mostly empty.
    pub inventory: Box<[SectionHash]>,
}

/// What a node reports of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandUpdate {
    pub frame_ref: FrameRef,
    pub id: CommandId,
    pub attempt: Attempt,
    /// Accepted, Running, Succeeded, Failed, Canceled or Refused.
    pub state: CommandState,
    pub progress: Option<String>,
    pub result: Bytes,
    pub error: Option<String>,
    pub refusal: Option<Refusal>,
}

/// How far an attempt has come, told by an update that says no more than that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headway {
    pub id: CommandId,
    pub attempt: Attempt,
    /// Accepted or Running.
    pub state: CommandState,
}

impl CommandUpdate {
    /// What the update tells, where that is headway and nothing else. A result counts with an end alone.
    pub fn headway(&self) -> Option<Headway> {
        let says_more = self.progress.is_some() || self.error.is_some() || self.refusal.is_some();
        let goes_on = matches!(self.state, CommandState::Accepted | CommandState::Running);
        (goes_on && !says_more).then_some(Headway { id: self.id, attempt: self.attempt, state: self.state })
    }
}

impl Headway {
    /// Whether `then` goes on from here, so that one write of the row stores both. A cancellation and a refusal don't:
    /// what becomes of those hangs on more than how far the row is.
    pub fn leads_to(&self, then: &CommandUpdate) -> bool {
        matches!(then.state, CommandState::Running | CommandState::Succeeded | CommandState::Failed)
            && self.state < then.state
            && (self.id, self.attempt) == (then.id, then.attempt)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub reason: RefusalReason,
    /// Whether the same command may be sent again later.
    pub retryable: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    Unspecified,
    LaneFull,
    UnknownKind,
    Expired,
    StaleEpoch,
}

/// A run of a node's journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventBatch {
    pub frame_ref: FrameRef,
    pub journal: JournalId,
    pub boot_id: String,
    /// Ascending; from the session on, without a gap.
    pub events: Vec<Event>,
}

/// One entry of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub seq: EventSeq,
    pub kind: String,
    pub body: Bytes,
    pub attested: Option<Attested>,
    /// Why it is not stored as it came. A tombstone takes its place, so that the cursor moves on.
    pub refused: Option<RefusedEvent>,
}

/// A signed envelope, kept as received: no gateway verifies it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attested {
    pub body: Bytes,
    pub kid: String,
    pub signature: Bytes,
}

/// Why an event became a tombstone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedEvent {
    pub code: RejectCode,
    /// One sentence.
    pub message: String,
}

impl Event {
    /// Leaves of the event only its place in the journal and why it is refused.
    pub fn refuse(&mut self, code: RejectCode, message: String) {
        *self = Self {
            seq: self.seq,
            kind: String::new(),
            body: Bytes::new(),
            attested: None,
            refused: Some(RefusedEvent { code, message }),
        };
    }
}

/// What became of a spec at its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecApplied {
    pub frame_ref: FrameRef,
    /// As it came: one that names no spec is rejected alone.
    pub name: String,
    pub generation: Generation,
    /// Why it could not be applied; `None` where it was.
    pub error: Option<String>,
}

/// Something that a node wants known, outside of any journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub frame_ref: FrameRef,
    /// The node's own name for it: the same id again is the same status.
    pub id: String,
    pub kind: String,
    pub body: Bytes,
}

/// A part of a node's inventory, as it came: name and hash are checked by the session, so that a bad one
/// is rejected alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InventorySection {
    pub frame_ref: FrameRef,
    pub section: String,
    pub hash: Bytes,
    pub body: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreditChange {
    pub lane: LaneName,
    pub capacity: Credits,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Goodbye {
    pub reason: String,
}

/// What a gateway sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayFrame {
    Welcome(Box<Welcome>),
    Command(Box<Command>),
    CancelCommand(CancelCommand),
    Ack(Ack),
    EventAck(EventAck),
    Rejected(Rejected),
    Spec(Box<Spec>),
    OpenTunnel(Box<OpenTunnel>),
    /// These sections are not stored as the node has them.
    InventoryWanted(Vec<SectionName>),
    Drain {
        reconnect_after_ms: u32,
    },
    /// These certificates are revoked; the session ends after it.
    RevocationNotice {
        reason: String,
        serials: Vec<String>,
    },
    HeartbeatAck {
        sequence: u64,
        server_time: UnixMillis,
    },
}

impl GatewayFrame {
    /// The kinds, for metrics.
    pub const KINDS: [&str; 12] = [
        "welcome",
        "command",
        "cancel-command",
        "ack",
        "event-ack",
        "rejected",
        "spec",
        "inventory-wanted",
        "drain",
        "revocation-notice",
        "heartbeat-ack",
        "open-tunnel",
    ];

    /// Which of them this is.
    pub const fn kind(&self) -> usize {
        match self {
            Self::Welcome(_) => 0,
            Self::Command(_) => 1,
            Self::CancelCommand(_) => 2,
            Self::Ack(_) => 3,
            Self::EventAck(_) => 4,
            Self::Rejected(_) => 5,
            Self::Spec(_) => 6,
            Self::InventoryWanted(_) => 7,
            Self::Drain { .. } => 8,
            Self::RevocationNotice { .. } => 9,
            Self::HeartbeatAck { .. } => 10,
            Self::OpenTunnel(_) => 11,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    pub session_epoch: SessionEpoch,
    pub heartbeat_interval_ms: u32,
    pub server_time: UnixMillis,
    pub journal: Option<JournalId>,
    pub journal_acked: EventSeq,
    pub frame_bytes: u32,
    pub result_bytes: u32,
    pub events_per_batch: u32,
    pub inventory_wanted: Vec<SectionName>,
    /// Features that both sides named.
    pub features: Vec<&'static str>,
    /// Where `Tunnel` may be dialled, besides the session's connection.
    pub tunnel_address: Option<String>,
}

/// A command as it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    pub id: CommandId,
    pub attempt: Attempt,
    pub lane: LaneName,
    pub seq: LaneSeq,
    pub kind: String,
    pub payload: Bytes,
    pub not_after: Option<UnixMillis>,
    pub session_epoch: SessionEpoch,
}

/// Desired state, as it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    pub name: SpecName,
    pub generation: Generation,
    pub body: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelCommand {
    pub id: CommandId,
    pub reason: String,
}

/// The answer to a stored frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    pub frame_ref: FrameRef,
    /// The state that is stored now, where the frame was an update of a command.
    pub state: Option<CommandState>,
}

/// The answer to a batch of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventAck {
    pub frame_ref: FrameRef,
    pub journal: JournalId,
    /// The highest contiguous seq that is stored.
    pub acked: EventSeq,
}

/// The answer to a frame that was not stored. Of a batch of events it tells of a tombstone, and
/// the `EventAck` follows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    pub frame_ref: FrameRef,
    pub code: RejectCode,
    /// One sentence.
    pub message: String,
    pub retryable: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectCode {
    UnknownCommand,
    OldAttempt,
    Invalid,
    NotStorable,
    Unsupported,
    /// The node has no such spec, or the spec no such generation yet.
    UnknownSpec,
}

//! Between the messages of `gateway.v1` and the frames that decisions see.
//!
//! It checks form alone: a UUID's length, a name's characters, an enum's number. What a field may
//! hold beyond that is the session's to say.
//!
//! 1. Decoding costs memory in proportion to the bytes received: the entries of a Hello, of events and of
//!    a heartbeat are counted before they are built.
//! 2. A small body is copied out of the buffer that it came in, so it does not keep that alive.
//! 3. An arm that is not known is `Ignored`; a field that is not known is passed over.
//! 4. No sentence repeats text of the node.

use bytes::Bytes;
use gateway_core::close::CloseReason;
use gateway_core::command::CommandState;
use gateway_core::frame::{
    Attested, CommandUpdate, CreditChange, Event, EventBatch, GatewayFrame, Goodbye, Heartbeat, Hello,
    InventorySection, KnownCommand, LaneCapacity, NodeFrame, PROTOCOL, Refusal, RefusalReason, RejectCode,
    SpecApplied, SpecGeneration, Status,
};
use gateway_core::ids::{
    Attempt, CommandId, Credits, EventSeq, FrameRef, Generation, JournalId, LaneName, SectionName, SpecName,
};
use gateway_core::inventory::{BodyHash, SectionHash};
use gateway_core::limits::{Limits, MAX_FEATURES};
use gateway_proto::framing;
use gateway_proto::v1;
use prost::Message;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use uuid::Uuid;

use crate::tunnel_wire;

/// Bodies up to this size are copied.
const COPIED_BYTES: usize = 4 << 10;
/// Fields of a Hello that stand there once.
const OTHER_HELLO_FIELDS: usize = 4096;

/// Fields of a heartbeat that stand there once, and those to come.
const OTHER_HEARTBEAT_FIELDS: usize = 64;

/// Fields of a batch of events that stand there once, and as many events too many as are answered.
const OTHER_BATCH_FIELDS: usize = 64;

/// `v1.NodeFrame` with its arms left as they came.
#[derive(Clone, PartialEq, Message)]
struct Arms {
    #[prost(bytes = "bytes", optional, tag = "1")]
    hello: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    heartbeat: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    command_update: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    event_batch: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "5")]
    status: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "6")]
    inventory_section: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "7")]
    credit: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "8")]
    spec_applied: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "9")]
    tunnel_refused: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "10")]
    goodbye: Option<Bytes>,
}

/// What is read of a heartbeat.
#[derive(Clone, PartialEq, Message)]
struct Beat {
    #[prost(uint64, tag = "1")]
    sequence: u64,
    #[prost(message, repeated, tag = "3")]
    inventory: Vec<v1::SectionHash>,
}

/// The frame in a message of a node. `Err` ends its stream.
pub(crate) fn decode(message: Bytes, limits: &Limits) -> Result<NodeFrame, CloseReason> {
    decode_frame(message, limits).map_err(CloseReason::Protocol)
}

fn decode_frame(message: Bytes, limits: &Limits) -> Result<NodeFrame, String> {
    let arms: Arms = parse(message, "frame")?;
    let known = [
        arms.hello,
        arms.heartbeat,
        arms.command_update,
        arms.event_batch,
        arms.credit,
        arms.goodbye,
        arms.spec_applied,
        arms.status,
        arms.inventory_section,
    ];

    let others = known.iter().flatten().count();
    if others + usize::from(arms.tunnel_refused.is_some()) > 1 {
        return Err("a frame holds more than one message; send each in a frame of its own".to_owned());
    }
    if let Some(refused) = arms.tunnel_refused {
        let refused = tunnel_wire::refusal(parse(refused, "TunnelRefused")?);
        return Ok(refused.map_or(NodeFrame::Ignored, NodeFrame::TunnelRefused));
    }
    match known {
        [Some(hello), ..] => decode_hello(hello, limits),
        [_, Some(heartbeat), ..] => decode_heartbeat(heartbeat, limits),
        [_, _, Some(update), ..] => decode_update(update),
        [_, _, _, Some(batch), ..] => decode_events(batch, limits),
        [_, _, _, _, Some(credit), ..] => decode_credit(credit),
        [_, _, _, _, _, Some(goodbye), ..] => {
            let v1::Goodbye { reason } = parse(goodbye, "Goodbye")?;
            Ok(NodeFrame::Goodbye(Goodbye { reason }))
        }
        [.., Some(applied), _, _] => {
            let v1::SpecApplied { r#ref, name, generation, ok, error } = parse(applied, "SpecApplied")?;
            let error = (!ok).then_some(error);
            let (frame_ref, generation) = (FrameRef(r#ref), Generation(generation));
            Ok(NodeFrame::SpecApplied(Box::new(SpecApplied { frame_ref, name, generation, error })))
        }
        [.., Some(status), _] => {
            let v1::Status { r#ref, id, kind, body } = parse(status, "Status")?;
            let (frame_ref, body) = (FrameRef(r#ref), unshared(body));
            Ok(NodeFrame::Status(Box::new(Status { frame_ref, id, kind, body })))
        }
        [.., Some(section)] => decode_section(section),
        [None, None, None, None, None, None, None, None, None] => Ok(NodeFrame::Ignored),
    }
}

fn decode_hello(bytes: Bytes, limits: &Limits) -> Result<NodeFrame, String> {
    let lists = limits.known_commands
        + limits.lanes_per_node
        + limits.sections_per_node
        + limits.specs_per_node
        + MAX_FEATURES;
    let most = lists + OTHER_HELLO_FIELDS;
    check_entries(&bytes, most, "Hello")?;
    let hello: v1::Hello = parse(bytes, "Hello")?;
    let journal = match hello.journal_id.as_str() {
        "" => None,
        id => Some(JournalId::new(id).map_err(|error| format!("Hello: {error}"))?),
    };
    Ok(NodeFrame::Hello(Box::new(Hello {
        protocol: hello.protocol,
        features: hello.features,
        boot_id: hello.boot_id,
        machine: hello.machine,
        software_version: hello.software_version,
        role: hello.role,
        lanes: hello.lanes.iter().map(decode_lane).collect::<Result<_, _>>()?,
        journal,
        known_commands: hello.known_commands.iter().map(decode_known).collect::<Result<_, _>>()?,
        specs: hello.specs.iter().map(decode_spec).collect::<Result<_, _>>()?,
        inventory: decode_list(&hello.inventory, "Hello")?,
    })))
}

fn decode_heartbeat(bytes: Bytes, limits: &Limits) -> Result<NodeFrame, String> {
    check_entries(&bytes, limits.sections_per_node + OTHER_HEARTBEAT_FIELDS, "Heartbeat")?;
    let Beat { sequence, inventory } = parse(bytes, "Heartbeat")?;
    let inventory = decode_list(&inventory, "Heartbeat")?.into();
    Ok(NodeFrame::Heartbeat(Heartbeat { sequence, inventory }))
}

fn decode_list(list: &[v1::SectionHash], whose: &str) -> Result<Vec<SectionHash>, String> {
    let entry = |entry: &v1::SectionHash| {
        let section = SectionName::new(&entry.section).map_err(|error| format!("{whose}: {error}"))?;
        let bytes = entry.hash.len();
        let hash = BodyHash::from_bytes(&entry.hash).ok_or_else(|| {
            format!("{whose}: the hash of a section is {bytes} bytes long; it must be the 32 of a SHA-256")
        })?;
        Ok(SectionHash { section, hash })
    };
    list.iter().map(entry).collect()
}

fn decode_section(bytes: Bytes) -> Result<NodeFrame, String> {
    let section: v1::InventorySection = parse(bytes, "InventorySection")?;
    Ok(NodeFrame::InventorySection(Box::new(InventorySection {
        frame_ref: FrameRef(section.r#ref),
        section: section.section,
        hash: unshared(section.hash),
        body: unshared(section.body),
    })))
}

/// Counts the fields of a message, nested ones not included.
fn check_entries(mut bytes: &[u8], most: usize, what: &str) -> Result<(), String> {
    let malformed = |error| format!("{what} is no valid protobuf: {error}");
    let mut entries = 0;
    while !bytes.is_empty() {
        let (tag, kind) = decode_key(&mut bytes).map_err(malformed)?;
        skip_field(kind, tag, &mut bytes, DecodeContext::default()).map_err(malformed)?;
        entries += 1;
        if entries > most {
            return Err(format!("{what} holds more than {most} fields and entries"));
        }
    }
    Ok(())
}

fn decode_lane(lane: &v1::Lane) -> Result<LaneCapacity, String> {
    let name = LaneName::new(&lane.name).map_err(|error| format!("Hello: {error}"))?;
    Ok(LaneCapacity { lane: name, capacity: Credits(lane.capacity) })
}

fn decode_known(known: &v1::KnownCommand) -> Result<KnownCommand, String> {
    let id = decode_id(&known.command_id, "Hello: a known command")?;
    let state = decode_state(known.state)
        .ok_or_else(|| format!("Hello: the state of known command {id} is none of CommandState"))?;
    Ok(KnownCommand { id, attempt: Attempt(known.attempt), state })
}

fn decode_spec(spec: &v1::SpecGeneration) -> Result<SpecGeneration, String> {
    let name = SpecName::new(&spec.name).map_err(|error| format!("Hello: {error}"))?;
    Ok(SpecGeneration { name, generation: Generation(spec.generation) })
}

fn decode_update(bytes: Bytes) -> Result<NodeFrame, String> {
    let update: v1::CommandUpdate = parse(bytes, "CommandUpdate")?;
    let id = decode_id(&update.command_id, "CommandUpdate")?;
    let state = decode_state(update.state)
        .ok_or_else(|| format!("CommandUpdate: the state of command {id} is none of CommandState"))?;
    Ok(NodeFrame::CommandUpdate(CommandUpdate {
        frame_ref: FrameRef(update.r#ref),
        id,
        attempt: Attempt(update.attempt),
        state,
        progress: Some(update.progress).filter(|text| !text.is_empty()),
        result: unshared(update.result),
        error: Some(update.error).filter(|text| !text.is_empty()),
        refusal: update.refusal.map(|refusal| Refusal {
            reason: decode_refusal(refusal.reason()),
            retryable: refusal.retryable,
        }),
    }))
}

fn decode_events(bytes: Bytes, limits: &Limits) -> Result<NodeFrame, String> {
    // A few more than are allowed get through, to be rejected with their ref.
    check_entries(&bytes, limits.events_per_batch + OTHER_BATCH_FIELDS, "EventBatch")?;
    let batch: v1::EventBatch = parse(bytes, "EventBatch")?;
    let journal = JournalId::new(&batch.journal_id).map_err(|error| format!("EventBatch: {error}"))?;
    let events = batch.events.into_iter().map(decode_event).collect();
    let frame_ref = FrameRef(batch.r#ref);
    Ok(NodeFrame::EventBatch(Box::new(EventBatch { frame_ref, journal, boot_id: batch.boot_id, events })))
}

fn decode_event(event: v1::Event) -> Event {
    let envelope = |attested: v1::SignedEnvelope| Attested {
        body: unshared(attested.body),
        kid: attested.kid,
        signature: unshared(attested.signature),
    };
    Event {
        seq: EventSeq(event.seq),
        kind: event.kind,
        body: unshared(event.body),
        attested: event.attested.map(envelope),
        refused: None,
    }
}

fn decode_credit(bytes: Bytes) -> Result<NodeFrame, String> {
    let credit: v1::Credit = parse(bytes, "Credit")?;
    let lane = LaneName::new(&credit.lane).map_err(|error| format!("Credit: {error}"))?;
    Ok(NodeFrame::Credit(CreditChange { lane, capacity: Credits(credit.capacity) }))
}

fn parse<M: Message + Default>(bytes: Bytes, what: &str) -> Result<M, String> {
    M::decode(bytes).map_err(|error| format!("a {what} is no valid protobuf: {error}"))
}

fn decode_id(bytes: &[u8], whose: &str) -> Result<CommandId, String> {
    let id: [u8; 16] = bytes.try_into().map_err(|_| {
        format!("{whose}: command_id is {} bytes long; it must be the 16 of a UUID", bytes.len())
    })?;
    Ok(CommandId(Uuid::from_bytes(id)))
}

fn decode_state(state: i32) -> Option<CommandState> {
    use v1::CommandState as Wire;
    Some(match Wire::try_from(state).ok()? {
        Wire::Unspecified => return None,
        Wire::Pending => CommandState::Pending,
        Wire::Dispatched => CommandState::Dispatched,
        Wire::Accepted => CommandState::Accepted,
        Wire::Running => CommandState::Running,
        Wire::Succeeded => CommandState::Succeeded,
        Wire::Failed => CommandState::Failed,
        Wire::Canceled => CommandState::Canceled,
        Wire::Expired => CommandState::Expired,
        Wire::Refused => CommandState::Refused,
    })
}

fn encode_state(state: CommandState) -> i32 {
    use v1::CommandState as Wire;
    let wire = match state {
        CommandState::Pending => Wire::Pending,
        CommandState::Dispatched => Wire::Dispatched,
        CommandState::Accepted => Wire::Accepted,
        CommandState::Running => Wire::Running,
        CommandState::Succeeded => Wire::Succeeded,
        CommandState::Failed => Wire::Failed,
        CommandState::Canceled => Wire::Canceled,
        CommandState::Expired => Wire::Expired,
        CommandState::Refused => Wire::Refused,
    };
    wire as i32
}

fn decode_refusal(reason: v1::RefusalReason) -> RefusalReason {
    match reason {
        v1::RefusalReason::Unspecified => RefusalReason::Unspecified,
        v1::RefusalReason::LaneFull => RefusalReason::LaneFull,
        v1::RefusalReason::UnknownKind => RefusalReason::UnknownKind,
        v1::RefusalReason::Expired => RefusalReason::Expired,
        v1::RefusalReason::StaleEpoch => RefusalReason::StaleEpoch,
    }
}

fn encode_reject(code: RejectCode) -> i32 {
    let wire = match code {
        RejectCode::UnknownCommand => v1::RejectCode::UnknownCommand,
        RejectCode::OldAttempt => v1::RejectCode::OldAttempt,
        RejectCode::Invalid => v1::RejectCode::Invalid,
        RejectCode::NotStorable => v1::RejectCode::NotStorable,
        RejectCode::Unsupported => v1::RejectCode::Unsupported,
        RejectCode::UnknownSpec => v1::RejectCode::UnknownSpec,
    };
    wire as i32
}

/// A body that pins at most a few times its own size.
fn unshared(body: Bytes) -> Bytes {
    if body.len() <= COPIED_BYTES { Bytes::copy_from_slice(&body) } else { body }
}

/// A frame for a node, with its prefix.
pub(crate) fn encode(frame: GatewayFrame) -> Bytes {
    framing::encode(&v1::GatewayFrame { frame: Some(encode_arm(frame)) })
}

fn encode_arm(frame: GatewayFrame) -> v1::gateway_frame::Frame {
    use v1::gateway_frame::Frame as Arm;
    let id_bytes = |id: CommandId| Bytes::copy_from_slice(id.0.as_bytes());
    match frame {
        GatewayFrame::Welcome(welcome) => Arm::Welcome(v1::Welcome {
            protocol: PROTOCOL,
            session_epoch: welcome.session_epoch.0,
            heartbeat_interval_ms: welcome.heartbeat_interval_ms,
            server_unix_ms: welcome.server_time.0,
            journal_id: welcome.journal.map(|id| id.as_str().to_owned()).unwrap_or_default(),
            journal_acked_seq: welcome.journal_acked.0,
            limits: Some(v1::Limits {
                frame_bytes: welcome.frame_bytes,
                result_bytes: welcome.result_bytes,
                events_per_batch: welcome.events_per_batch,
            }),
            inventory_wanted: names(&welcome.inventory_wanted),
            features: welcome.features.into_iter().map(str::to_owned).collect(),
            tunnel_addresses: welcome.tunnel_address.into_iter().collect(),
        }),
        GatewayFrame::Command(command) => Arm::Command(v1::Command {
            command_id: id_bytes(command.id),
            attempt: command.attempt.0,
            lane: command.lane.as_str().to_owned(),
            seq: command.seq.0,
            kind: command.kind,
            payload: command.payload,
            not_after_unix_ms: command.not_after.map_or(0, |at| at.0),
            session_epoch: command.session_epoch.0,
        }),
        GatewayFrame::CancelCommand(cancel) => {
            Arm::CancelCommand(v1::CancelCommand { command_id: id_bytes(cancel.id), reason: cancel.reason })
        }
        GatewayFrame::Ack(ack) => {
            let state = ack.state.map_or(v1::CommandState::Unspecified as i32, encode_state);
            Arm::Ack(v1::Ack { r#ref: ack.frame_ref.0, state })
        }
        GatewayFrame::EventAck(ack) => Arm::EventAck(v1::EventAck {
            r#ref: ack.frame_ref.0,
            journal_id: ack.journal.as_str().to_owned(),
            acked_seq: ack.acked.0,
        }),
        GatewayFrame::Rejected(rejected) => Arm::Rejected(v1::Rejected {
            r#ref: rejected.frame_ref.0,
            code: encode_reject(rejected.code),
            message: rejected.message,
            retryable: rejected.retryable,
        }),
        GatewayFrame::Spec(spec) => Arm::Spec(v1::Spec {
            name: spec.name.as_str().to_owned(),
            generation: spec.generation.0,
            body: spec.body,
        }),
        GatewayFrame::OpenTunnel(open) => Arm::OpenTunnel(tunnel_wire::open_tunnel(*open)),
        GatewayFrame::InventoryWanted(wanted) => {
            Arm::InventoryWanted(v1::InventoryWanted { sections: names(&wanted) })
        }
        GatewayFrame::Drain { reconnect_after_ms } => Arm::Drain(v1::Drain { reconnect_after_ms }),
        GatewayFrame::RevocationNotice { reason, serials } => {
            Arm::RevocationNotice(v1::RevocationNotice { reason, serials })
        }
        GatewayFrame::HeartbeatAck { sequence, server_time } => {
            Arm::HeartbeatAck(v1::HeartbeatAck { sequence, server_unix_ms: server_time.0 })
        }
    }
}

fn names(sections: &[SectionName]) -> Vec<String> {
    sections.iter().map(|section| section.as_str().to_owned()).collect()
}

#[cfg(test)]
mod tests;

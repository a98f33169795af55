//! What is wrong with what a node sent, before anyone else sees it.
//!
//! It looks at one frame alone: what depends on the database (unknown command, old attempt) is the
//! writer's. A bad Hello ends its stream; a bad update or section is rejected alone; a bad event
//! becomes a tombstone in its journal.
//!
//! 1. What passes can be stored: every text is short and free of NUL, every number fits its column.
//! 2. A sentence names the field, what it holds, what is allowed, and the limit's key if it has one.
//! 3. No sentence repeats text of the node.

use bytes::Bytes;

use crate::command::CommandState;
use crate::frame::{
    CommandUpdate, Event, EventBatch, Hello, InventorySection, KnownCommand, PROTOCOL, RejectCode,
    SpecApplied, SpecGeneration, Status,
};
use crate::ids::{Attempt, Credits, FrameRef, Generation, SectionName, SpecName};
use crate::inventory::{BodyHash, SectionHash};
use crate::limits::{
    Limits, MAX_EVENT_BODY_BYTES, MAX_EVENT_TEXT_BYTES, MAX_FEATURE_BYTES, MAX_FEATURES, MAX_LANE_CAPACITY,
    MAX_SIGNATURE_BYTES, MAX_STATUS_BODY_BYTES, MAX_STATUS_TEXT_BYTES, MAX_TEXT_BYTES,
};

/// The highest seq that its column holds, with one to come after it.
const MAX_EVENT_SEQ: u64 = i64::MAX as u64 - 1;
/// The highest generation that its column holds.
const MAX_GENERATION: u64 = i64::MAX as u64;
/// The highest attempt that its column holds.
const MAX_ATTEMPT: u32 = i32::MAX as u32;

/// Checks a Hello and brings its capacities within bounds. `Err` is the sentence for the node.
pub(super) fn admit_hello(hello: &mut Hello, limits: &Limits) -> Result<(), String> {
    if hello.protocol != PROTOCOL {
        return Err(format!(
            "Hello: this gateway speaks protocol {PROTOCOL}, the node speaks {}",
            hello.protocol
        ));
    }
    for (field, text) in [
        ("boot_id", &hello.boot_id),
        ("machine", &hello.machine),
        ("software_version", &hello.software_version),
        ("role", &hello.role),
    ] {
        check_text(field, text, MAX_TEXT_BYTES).map_err(|why| format!("Hello: {why}"))?;
    }
    check_count("features", hello.features.len(), MAX_FEATURES, None)?;
    for feature in &hello.features {
        check_text("features", feature, MAX_FEATURE_BYTES).map_err(|why| format!("Hello: {why}"))?;
    }
    admit_lanes(hello, limits)?;
    check_list(&hello.inventory, limits).map_err(|why| format!("Hello: {why}"))?;
    check_known_commands(&hello.known_commands, limits)?;
    check_specs(&hello.specs, limits)
}

fn admit_lanes(hello: &mut Hello, limits: &Limits) -> Result<(), String> {
    check_count("lanes", hello.lanes.len(), limits.lanes_per_node, Some("sessions.lanes_per_node"))?;
    for (index, lane) in hello.lanes.iter().enumerate() {
        if hello.lanes[..index].iter().any(|earlier| earlier.lane == lane.lane) {
            return Err(format!("Hello: lane {index} has the name of an earlier one; name each lane once"));
        }
    }
    for lane in &mut hello.lanes {
        lane.capacity = clamp_capacity(lane.capacity);
    }
    Ok(())
}

/// Checks a list of what a node has.
pub(super) fn check_list(list: &[SectionHash], limits: &Limits) -> Result<(), String> {
    if list.len() > limits.sections_per_node {
        return Err(format!(
            "inventory holds {} entries; at most {} are allowed (sessions.sections_per_node)",
            list.len(),
            limits.sections_per_node
        ));
    }
    let mut names: Vec<&str> = list.iter().map(|entry| entry.section.as_str()).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("inventory names a section twice; name each section once".to_owned());
    }
    Ok(())
}

fn check_known_commands(known: &[KnownCommand], limits: &Limits) -> Result<(), String> {
    check_count("known_commands", known.len(), limits.known_commands, Some("sessions.known_commands"))?;
    for command in known {
        check_attempt(command.attempt)
            .map_err(|why| format!("Hello: known command {}: {why}", command.id))?;
        if command.state == CommandState::Pending {
            return Err(format!(
                "Hello: known command {} is pending; a node knows only what was dispatched to it",
                command.id
            ));
        }
    }
    // One id may stand here with two attempts: a refused one that was never acked, and the next.
    let mut keys: Vec<_> = known.iter().map(|command| (command.id, command.attempt)).collect();
    keys.sort_unstable();
    match keys.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!(
            "Hello: command {} attempt {} is listed twice; list each attempt once",
            pair[0].0, pair[0].1
        )),
        None => Ok(()),
    }
}

fn check_specs(specs: &[SpecGeneration], limits: &Limits) -> Result<(), String> {
    check_count("specs", specs.len(), limits.specs_per_node, Some("sessions.specs_per_node"))?;
    for (index, spec) in specs.iter().enumerate() {
        check_generation(spec.generation).map_err(|why| format!("Hello: spec {index}: {why}"))?;
        if specs[..index].iter().any(|earlier| earlier.name == spec.name) {
            return Err(format!("Hello: spec {index} has the name of an earlier one; list each spec once"));
        }
    }
    Ok(())
}

/// Checks what a node says of a spec: its name, its generation, and why it failed, brought within
/// bounds. `Err` is the sentence of its `Rejected`.
pub(super) fn admit_spec_applied(
    applied: SpecApplied,
) -> Result<(SpecName, Generation, Option<String>), String> {
    let name = SpecName::new(&applied.name).map_err(|error| error.to_string())?;
    check_generation(applied.generation)?;
    // An outcome that is told must be kept, whatever stands in its sentence.
    let error = applied.error.map(|error| {
        let mut error = error.replace('\0', "\u{FFFD}");
        error.truncate(error.floor_char_boundary(MAX_TEXT_BYTES));
        error
    });
    Ok((name, applied.generation, error))
}

/// Checks an update. `Err` is the sentence of its `Rejected`.
pub(super) fn check_update(update: &CommandUpdate, limits: &Limits) -> Result<(), String> {
    if !update.state.is_reportable() {
        return Err(format!("a node can't report the state {}", update.state));
    }
    check_attempt(update.attempt)?;
    if update.result.len() > limits.result_bytes {
        return Err(format!(
            "result is {} bytes long; at most {} are allowed (sessions.result_bytes)",
            update.result.len(),
            limits.result_bytes
        ));
    }
    for (field, text) in [("progress", &update.progress), ("error", &update.error)] {
        if let Some(text) = text {
            check_text(field, text, MAX_TEXT_BYTES)?;
        }
    }
    Ok(())
}

/// A section that can be stored.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) frame_ref: FrameRef,
    pub(super) name: SectionName,
    pub(super) hash: BodyHash,
    pub(super) body: Bytes,
}

/// Checks a section: its name, and that the hash is its body's. `Err` is the sentence of its `Rejected`.
pub(super) fn admit_section(section: InventorySection) -> Result<Section, String> {
    let InventorySection { frame_ref, section, hash, body } = section;
    let name = SectionName::new(&section).map_err(|error| error.to_string())?;
    let claimed = BodyHash::from_bytes(&hash).ok_or_else(|| wrong_length(hash.len()))?;
    if BodyHash::of(&body) != claimed {
        return Err("hash is not the SHA-256 of the body; one of the two is corrupt".to_owned());
    }
    Ok(Section { frame_ref, name, hash: claimed, body })
}

fn wrong_length(bytes: usize) -> String {
    format!("hash is {bytes} bytes long; it must be the {} of the body's SHA-256", BodyHash::BYTES)
}

/// Checks a batch of events, and leaves of it a run without a gap. What can't be stored of a single
/// event makes it a tombstone. `Err` is the sentence of the batch's `Rejected`.
pub(super) fn admit_events(batch: &mut EventBatch, limits: &Limits) -> Result<(), String> {
    let count = batch.events.len();
    if count > limits.events_per_batch {
        return Err(format!(
            "events holds {count} entries; at most {} are allowed (sessions.events_per_batch)",
            limits.events_per_batch
        ));
    }
    check_text("boot_id", &batch.boot_id, MAX_TEXT_BYTES)?;
    let (Some(first), Some(last)) = (batch.events.first(), batch.events.last()) else {
        return Err("events is empty; send one at least".to_owned());
    };
    if first.seq.0 == 0 || last.seq.0 > MAX_EVENT_SEQ {
        return Err(format!("events holds seq {} to {}; a journal counts from 1", first.seq, last.seq));
    }
    if let Some(pair) = batch.events.windows(2).find(|pair| pair[1].seq <= pair[0].seq) {
        return Err(format!("event {} stands behind event {}; seqs must ascend", pair[1].seq, pair[0].seq));
    }
    // Behind a gap nothing can be acked, so nothing is stored.
    if let Some(gap) = batch.events.windows(2).position(|pair| pair[1].seq.0 != pair[0].seq.0 + 1) {
        batch.events.truncate(gap + 1);
    }
    for event in &mut batch.events {
        if let Err(message) = check_event(event) {
            event.refuse(RejectCode::Invalid, message);
        }
    }
    Ok(())
}

fn check_event(event: &Event) -> Result<(), String> {
    if event.kind.is_empty() {
        return Err("kind is empty; it names what the event is".to_owned());
    }
    check_text("kind", &event.kind, MAX_EVENT_TEXT_BYTES)?;
    check_size("body", event.body.len(), MAX_EVENT_BODY_BYTES)?;
    let Some(attested) = &event.attested else { return Ok(()) };
    check_text("attested.kid", &attested.kid, MAX_EVENT_TEXT_BYTES)?;
    check_size("attested.body", attested.body.len(), MAX_EVENT_BODY_BYTES)?;
    check_size("attested.signature", attested.signature.len(), MAX_SIGNATURE_BYTES)
}

/// Checks a status. `Err` is the sentence of its `Rejected`.
pub(super) fn check_status(status: &Status) -> Result<(), String> {
    for (field, text, what) in [
        ("id", &status.id, "it tells a status that is sent again from a new one"),
        ("kind", &status.kind, "it names what the status is"),
    ] {
        if text.is_empty() {
            return Err(format!("{field} is empty; {what}"));
        }
        check_text(field, text, MAX_STATUS_TEXT_BYTES)?;
    }
    check_size("body", status.body.len(), MAX_STATUS_BODY_BYTES)
}

/// What counts of a capacity.
pub(super) fn clamp_capacity(capacity: Credits) -> Credits {
    capacity.min(Credits(MAX_LANE_CAPACITY))
}

fn check_count(field: &str, count: usize, max: usize, key: Option<&str>) -> Result<(), String> {
    if count <= max {
        return Ok(());
    }
    let key = key.map(|key| format!(" ({key})")).unwrap_or_default();
    Err(format!("Hello: {field} holds {count} entries; at most {max} are allowed{key}"))
}

fn check_text(field: &str, text: &str, max: usize) -> Result<(), String> {
    if text.len() > max {
        return Err(format!("{field} is {} bytes long; at most {max} are allowed", text.len()));
    }
    match text.find('\0') {
        Some(at) => Err(format!("{field} holds a NUL at byte {at}; no text may hold one")),
        None => Ok(()),
    }
}

fn check_size(field: &str, bytes: usize, max: usize) -> Result<(), String> {
    if bytes <= max {
        return Ok(());
    }
    Err(format!("{field} is {bytes} bytes long; at most {max} are allowed"))
}

fn check_generation(generation: Generation) -> Result<(), String> {
    if (1..=MAX_GENERATION).contains(&generation.0) {
        return Ok(());
    }
    Err(format!("generation is {generation}; it counts from 1 to {MAX_GENERATION}"))
}

fn check_attempt(attempt: Attempt) -> Result<(), String> {
    if (1..=MAX_ATTEMPT).contains(&attempt.0) {
        return Ok(());
    }
    Err(format!("attempt is {attempt}; it counts from 1 to {MAX_ATTEMPT}"))
}

//! Small makers of ids and messages for the tests of this room.
//!
//! They hold no state and assert nothing but that a name is valid. What a story says about its store is
//! in the story.

use std::time::Duration;

use uuid::Uuid;

use crate::frame::{Event, EventBatch, Hello, LaneCapacity};
use crate::ids::{
    CommandId, Credits, EventSeq, FrameRef, JournalId, LaneName, NodeId, SectionName, SessionEpoch,
    SessionKey, ShardId,
};
use crate::inventory::{BodyHash, SectionHash};
use crate::seam::{HelloRequest, Identity, SectionRequest};
use crate::store::StoreError;
use crate::time::Moment;

pub(crate) fn at(millis: u64) -> Moment {
    Moment::default() + Duration::from_millis(millis)
}

pub(crate) fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("a node id")
}

pub(crate) fn lane(name: &str) -> LaneName {
    LaneName::new(name).expect("a lane name")
}

pub(crate) fn key(slot: u32) -> SessionKey {
    SessionKey { shard: ShardId((slot % 2) as u16), slot, serial: 1 }
}

pub(crate) fn command_id(number: u128) -> CommandId {
    CommandId(Uuid::from_u128(number))
}

pub(crate) fn away() -> StoreError {
    StoreError::Retry("the database is away".into())
}

pub(crate) fn events_batch(seqs: std::ops::Range<u64>) -> EventBatch {
    let event = |seq| Event {
        seq: EventSeq(seq),
        kind: "kind".into(),
        body: "body".into(),
        attested: None,
        refused: None,
    };
    EventBatch {
        frame_ref: FrameRef(1),
        journal: JournalId::new("journal").expect("a journal id"),
        boot_id: "boot".into(),
        events: seqs.map(event).collect(),
    }
}

/// A section of the node's first session.
pub(crate) fn section(name: &str, slot: u32, frame_ref: u64, of: &str, body: &str) -> SectionRequest {
    SectionRequest {
        key: key(slot),
        node: node(name),
        epoch: SessionEpoch(1),
        frame_ref: FrameRef(frame_ref),
        section: SectionName::new(of).expect("a section name"),
        hash: BodyHash::of(body.as_bytes()),
        body: body.to_owned().into(),
    }
}

pub(crate) fn list_of(pairs: &[(&str, &str)]) -> Box<[SectionHash]> {
    let entry = |(of, body): &(&str, &str)| SectionHash {
        section: SectionName::new(of).expect("a section name"),
        hash: BodyHash::of(body.as_bytes()),
    };
    pairs.iter().map(entry).collect()
}

pub(crate) fn hello(name: &str, slot: u32, lanes: &[(&str, u32)]) -> HelloRequest {
    let identity =
        Identity { node: node(name), site: "test".into(), certificate_serial: format!("{slot:04X}") };
    let lanes = lanes
        .iter()
        .map(|(name, capacity)| LaneCapacity { lane: lane(name), capacity: Credits(*capacity) })
        .collect();
    let hello = Hello {
        protocol: 1,
        features: Vec::new(),
        boot_id: "boot".into(),
        machine: "machine".into(),
        software_version: "1".into(),
        role: "node".into(),
        lanes,
        journal: None,
        known_commands: Vec::new(),
        specs: Vec::new(),
        inventory: Vec::new(),
    };
    HelloRequest { key: key(slot), identity, hello }
}

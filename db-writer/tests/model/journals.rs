//! Runs of journals, as the model conformance tests make them up, and what is stored of them as lines.
//!
//! A run is placed by where the journal's cursor is: before it (a resend), across it, upon it, or
//! behind a gap. Several runs of one journal come in one batch, of two boots that tell different bodies
//! of the same event, so that it shows whose was stored.
//!
//! 1. A run is what a session lets through: at least one event, ascending, without a gap in itself.

use std::sync::Arc;

use bytes::Bytes;
use gateway_core::frame::{Attested, Event, EventBatch, RejectCode};
use gateway_core::ids::{EventSeq, FrameRef, JournalId, NodeId, SessionKey, ShardId};
use gateway_core::seam::EventsRequest;
use gateway_sim::store::EventRow;
use proptest::prelude::*;

use super::operations::NODES;

const JOURNALS: u8 = 3;

/// A run of one journal.
#[derive(Debug, Clone)]
pub struct Stretch {
    pub node: u8,
    pub journal: u8,
    /// Where it begins, from the cursor on: 1 is the next event, 2 leaves a gap.
    pub start: i8,
    pub length: u8,
    /// 0 is none.
    pub boot: u8,
    /// Which of its events are tombstones, and which are signed, by number.
    pub refused: Option<u8>,
    pub signed: Option<u8>,
}

pub fn batch() -> impl Strategy<Value = Vec<Stretch>> {
    prop::collection::vec(stretch(), 1..6)
}

fn stretch() -> impl Strategy<Value = Stretch> {
    // Mostly of one journal, so that runs of a batch meet; events of an unknown node are stored too.
    let node = prop_oneof![6 => Just(0u8), 2 => 0..NODES, 1 => Just(NODES)];
    let journal = prop_oneof![4 => Just(0u8), 1 => 0..JOURNALS];
    let start = prop_oneof![3 => Just(1i8), 3 => -3..7i8];
    let which = || prop::option::weighted(0.3, 0..4u8);
    (node, journal, start, 1..5u8, 0..3u8, which(), which()).prop_map(
        |(node, journal, start, length, boot, refused, signed)| Stretch {
            node,
            journal,
            start,
            length,
            boot,
            refused,
            signed,
        },
    )
}

impl Stretch {
    pub fn journal(&self) -> JournalId {
        JournalId::new(&format!("j{}", self.journal)).unwrap()
    }

    /// The run, where the journal's cursor is at `acked`.
    pub fn request(&self, node: NodeId, acked: EventSeq) -> EventsRequest {
        let first = acked.0.saturating_add_signed(i64::from(self.start)).max(1);
        let boot_id = if self.boot == 0 { String::new() } else { format!("boot{}", self.boot) };
        let events = (0..self.length).map(|place| self.event(place, first + u64::from(place))).collect();
        EventsRequest {
            key: SessionKey { shard: ShardId(0), slot: 1, serial: 1 },
            node,
            batch: Arc::new(EventBatch { frame_ref: FrameRef(1), journal: self.journal(), boot_id, events }),
        }
    }

    fn event(&self, place: u8, seq: u64) -> Event {
        let mut event = Event {
            seq: EventSeq(seq),
            kind: format!("kind{}", seq % 3),
            body: Bytes::from(format!("body {seq} of boot {}", self.boot)),
            attested: (self.signed == Some(place)).then(|| Attested {
                body: "signed".into(),
                kid: format!("key{seq}"),
                signature: "signature".into(),
            }),
            refused: None,
        };
        if self.refused == Some(place) {
            event.refuse(RejectCode::Invalid, format!("no {seq}"));
        }
        event
    }
}

/// All that both sides keep of an event; see `EVENTS` of the PostgreSQL side.
pub fn event_line(row: &EventRow) -> String {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    let event = &row.event;
    let mut line = format!("'{}' '{}'", event.kind, text(&event.body));
    if !row.boot_id.is_empty() {
        line.push_str(&format!(" boot {}", row.boot_id));
    }
    if let Some(signed) = &event.attested {
        line.push_str(&format!(" signed {} {} {}", text(&signed.body), signed.kid, text(&signed.signature)));
    }
    if let Some(refused) = &event.refused {
        line.push_str(&format!(" rejected {}", refused.message));
    }
    line
}

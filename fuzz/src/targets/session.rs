//! A whole session: bytes of a node through framing and frames into the machine, whose writer stores
//! everything at once.
//!
//! 1. `Welcome` is the first frame, a durable frame is with the writer alone, and every session ends once.
//! 2. What the machine keeps is bounded, which the hunt holds.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use gateway_core::close::CloseReason;
use gateway_core::frame::GatewayFrame;
use gateway_core::ids::{EventSeq, NodeId, SessionEpoch, SessionKey, ShardId};
use gateway_core::limits::Limits;
use gateway_core::seam::{Granted, Identity, SessionNews, ToWriter};
use gateway_core::session::Session;
use gateway_core::time::{Moment, UnixMillis};
use gateway_proto::framing::{Deframer, PREFIX_BYTES};
use gateway_shard::doors;

use super::check_sentence;

static LIMITS: LazyLock<Arc<Limits>> = LazyLock::new(Arc::default);

struct Played {
    session: Session,
    now: Moment,
    welcomed: bool,
    closed: bool,
}

pub(super) fn session(input: &[u8]) {
    let identity = Identity {
        node: NodeId::new("spiffe://fuzz/site/a/node/b").expect("an id"),
        site: "a".to_owned(),
        certificate_serial: "01".to_owned(),
    };
    let key = SessionKey { shard: ShardId(0), slot: 0, serial: 0 };
    let now = Moment::default();
    let mut played = Played {
        session: Session::new(key, identity, Arc::clone(&LIMITS), now),
        now,
        welcomed: false,
        closed: false,
    };
    let mut deframer = Deframer::new(LIMITS.frame_bytes);
    deframer.push(Bytes::copy_from_slice(input));
    while played.session.wants_read() {
        let next = deframer.next().map_err(|error| CloseReason::Protocol(error.to_string()));
        let (bytes, frame) = match next {
            Ok(None) => break,
            Ok(Some(message)) => (PREFIX_BYTES + message.len(), doors::decode(message, &LIMITS)),
            Err(reason) => (0, Err(reason)),
        };
        match frame {
            Ok(frame) => played.session.handle_frame(frame, bytes, played.now),
            Err(reason) => played.session.handle_close(reason, played.now),
        }
        played.turn();
        if played.closed {
            return;
        }
    }
    played.session.handle_half_close(played.now);
    for _ in 0..4 {
        played.turn();
        if played.closed {
            return;
        }
        // A Hello that never came is waited for.
        played.now = played.now + Duration::from_secs(60);
        played.session.handle_time(played.now);
    }
    panic!("a session whose node has gone does not end: {:?}", played.session);
}

impl Played {
    fn turn(&mut self) {
        loop {
            let mut went_on = false;
            while let Some(message) = self.session.poll_to_writer() {
                went_on = true;
                self.answer(message);
            }
            while let Some(frame) = self.session.poll_frame() {
                went_on = true;
                assert_eq!(self.welcomed, !matches!(frame, GatewayFrame::Welcome(_)), "{frame:?}");
                self.welcomed = true;
                drop(doors::encode(frame));
            }
            self.session.handle_all_sent();
            if !went_on {
                break;
            }
        }
        if let Some(reason) = self.session.poll_end() {
            check_sentence(&reason.to_string());
            self.closed = true;
            while let Some(message) = self.session.poll_to_writer() {
                assert!(matches!(message, ToWriter::Closed { .. }), "{message:?} after the end");
            }
            assert_eq!(self.session.poll_frame(), None);
        }
    }

    fn answer(&mut self, message: ToWriter) {
        let news = match message {
            ToWriter::Hello(_) => SessionNews::Granted(Box::new(Granted {
                epoch: SessionEpoch(1),
                server_time: UnixMillis(0),
                journal_acked: EventSeq(0),
                replays: Vec::new(),
                cancels: Vec::new(),
                inventory_wanted: Vec::new(),
            })),
            ToWriter::Update(_) | ToWriter::SpecApplied(_) | ToWriter::Status(_) => {
                SessionNews::Stored { state: None }
            }
            ToWriter::Events(request) => {
                let events = &request.batch.events;
                assert!(
                    !events.is_empty() && events.windows(2).all(|pair| pair[0].seq.0 + 1 == pair[1].seq.0)
                );
                let acked = events.last().map_or(EventSeq(0), |event| event.seq);
                SessionNews::EventsStored { journal: request.batch.journal.clone(), acked, refused: None }
            }
            ToWriter::Section(request) => SessionNews::SectionStored { frame_ref: request.frame_ref },
            ToWriter::InventoryLook(_) => SessionNews::InventoryWanted(Vec::new()),
            ToWriter::SpecsSent { .. } | ToWriter::Credit { .. } | ToWriter::Alive { .. } => return,
            ToWriter::Closed { .. } => return,
            ToWriter::ShardStopped { .. } => panic!("a session stops no shard"),
        };
        self.session.handle_news(news, self.now);
    }
}

//! Whatever a node, a writer and a driver do in whatever order: the invariants of a session.
//!
//! The world below plays all three. The node and the driver may do anything; the writer keeps the
//! seam's rules, as it knows them: it answers what was posted to it, also when the session has
//! ended and it does not know yet.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::stories::events::{events, journal};
use super::stories::inventory::{list, name, section};
use super::stories::statuses::status;
use super::stories::{command, hello, identity, update};
use super::*;
use crate::command::CommandState;
use crate::frame::{
    CancelCommand, CommandUpdate, CreditChange, EventAck, Goodbye, Heartbeat, Spec, SpecApplied,
};
use crate::ids::{CommandId, Credits, EventSeq, Generation, SessionEpoch, ShardId, SpecName};
use crate::limits::MAX_SECTIONS_WITH_WRITER;
use crate::time::UnixMillis;

#[derive(Debug, Clone)]
enum Op {
    Hello { valid: bool },
    Heartbeat { list: Option<u8> },
    Update { bad: bool, bytes: usize, goes_on: bool },
    Events { bad: bool, bytes: usize },
    SpecApplied { bad: bool, bytes: usize },
    Status { bad: bool, bytes: usize },
    Section { bad: bool, bytes: usize },
    Unsupported,
    Credit { declared: bool },
    Ignored,
    Goodbye,
    HalfClose,
    WriterGrants { replays: u64 },
    WriterAnswers { stored: bool },
    WriterAnswersSection { which: usize, stored: bool },
    WriterLooked { wanted: Option<bool> },
    WriterCommands { count: u64 },
    WriterCancels,
    WriterSpecs { bytes: usize },
    WriterCloses,
    DriverCloses,
    DriverPolls { writer: usize, frames: usize },
    DriverHasSent,
    TimePasses { millis: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => (0..4u8).prop_map(|kind| Op::Hello { valid: kind > 0 }),
        4 => prop::option::of(0..3u8).prop_map(|list| Op::Heartbeat { list }),
        12 => (prop::bool::weighted(0.2), 0..60usize, any::<bool>())
            .prop_map(|(bad, bytes, goes_on)| Op::Update { bad, bytes, goes_on }),
        6 => (prop::bool::weighted(0.2), 0..60usize).prop_map(|(bad, bytes)| Op::Events { bad, bytes }),
        4 => (prop::bool::weighted(0.2), 0..60usize).prop_map(|(bad, bytes)| Op::SpecApplied { bad, bytes }),
        4 => (prop::bool::weighted(0.2), 0..60usize).prop_map(|(bad, bytes)| Op::Status { bad, bytes }),
        6 => (prop::bool::weighted(0.2), 0..60usize).prop_map(|(bad, bytes)| Op::Section { bad, bytes }),
        2 => Just(Op::Unsupported),
        4 => any::<bool>().prop_map(|declared| Op::Credit { declared }),
        1 => Just(Op::Ignored),
        1 => Just(Op::Goodbye),
        1 => Just(Op::HalfClose),
        6 => (0..4u64).prop_map(|replays| Op::WriterGrants { replays }),
        12 => prop::bool::weighted(0.8).prop_map(|stored| Op::WriterAnswers { stored }),
        8 => (0..4usize, prop::bool::weighted(0.8))
            .prop_map(|(which, stored)| Op::WriterAnswersSection { which, stored }),
        4 => prop::option::of(any::<bool>()).prop_map(|wanted| Op::WriterLooked { wanted }),
        4 => (0..4u64).prop_map(|count| Op::WriterCommands { count }),
        1 => Just(Op::WriterCancels),
        2 => (0..900usize).prop_map(|bytes| Op::WriterSpecs { bytes }),
        2 => Just(Op::DriverHasSent),
        1 => prop::bool::weighted(0.2).prop_map(|closes| if closes { Op::WriterCloses } else { Op::Ignored }),
        1 => prop::bool::weighted(0.2).prop_map(|closes| if closes { Op::DriverCloses } else { Op::Ignored }),
        12 => (0..4usize, 0..4usize).prop_map(|(writer, frames)| Op::DriverPolls { writer, frames }),
        4 => (1..15_000u64).prop_map(|millis| Op::TimePasses { millis }),
    ]
}

/// What the writer must be handed, in the order in which the node sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handed {
    Update(FrameRef),
    Events(FrameRef),
    SpecApplied,
    Status(FrameRef),
    Credit(Credits),
}

#[derive(Debug)]
struct World {
    session: Session,
    now: Moment,
    next_number: u64,
    hello_came: bool,
    // What the node sent while it could, and what came back.
    input_over: bool,
    durable_refs: Vec<FrameRef>,
    /// The last good update.
    told: Option<CommandUpdate>,
    answered_refs: Vec<FrameRef>,
    sections: BTreeSet<FrameRef>,
    heartbeats: VecDeque<u64>,
    frames_seen: usize,
    last_seq: u64,
    // What the writer knows.
    to_hand: VecDeque<Handed>,
    sections_to_hand: VecDeque<FrameRef>,
    sections_with_writer: Vec<FrameRef>,
    look_out: bool,
    hello_posted: bool,
    granted: bool,
    with_writer: VecDeque<Handed>,
    /// The last of those that are with the writer, if it is an update.
    with_writer_last: Option<CommandUpdate>,
    closed_posted: usize,
    // The weight of specs: given, and told to have left.
    specs_given: usize,
    specs_told: usize,
    // How it ended.
    end: Option<CloseReason>,
}

fn small_limits() -> Arc<Limits> {
    Arc::new(Limits {
        session_inbox_frames: 4,
        session_inbox_bytes: 150,
        heartbeat_interval: Duration::from_secs(10),
        ..Limits::default()
    })
}

impl World {
    fn new() -> Self {
        let now = Moment::from_nanos(1_000);
        let key = SessionKey { shard: ShardId(0), slot: 3, serial: 9 };
        Self {
            session: Session::new(key, identity(), small_limits(), now),
            now,
            next_number: 1,
            hello_came: false,
            input_over: false,
            durable_refs: Vec::new(),
            told: None,
            answered_refs: Vec::new(),
            sections: BTreeSet::new(),
            heartbeats: VecDeque::new(),
            frames_seen: 0,
            last_seq: 0,
            to_hand: VecDeque::new(),
            sections_to_hand: VecDeque::new(),
            sections_with_writer: Vec::new(),
            look_out: false,
            hello_posted: false,
            granted: false,
            with_writer: VecDeque::new(),
            with_writer_last: None,
            closed_posted: 0,
            specs_given: 0,
            specs_told: 0,
            end: None,
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::WriterGrants { .. }
            | Op::WriterAnswers { .. }
            | Op::WriterAnswersSection { .. }
            | Op::WriterLooked { .. }
            | Op::WriterCommands { .. }
            | Op::WriterCancels
            | Op::WriterSpecs { .. }
            | Op::WriterCloses => self.run_writer(op),
            Op::DriverCloses => {
                self.session.handle_close(CloseReason::Fenced, self.now);
                assert_eq!(self.session.poll_frame(), None, "5: nothing is sent after the end");
            }
            Op::DriverPolls { writer, frames } => self.poll(writer, frames),
            Op::DriverHasSent => self.session.handle_all_sent(),
            Op::TimePasses { millis } => {
                self.now = self.now + Duration::from_millis(millis);
                if self.session.next_deadline().is_some_and(|deadline| deadline <= self.now) {
                    self.session.handle_time(self.now);
                    assert!(
                        self.session.next_deadline().is_none_or(|deadline| deadline > self.now),
                        "a deadline that stays in the past spins its shard"
                    );
                }
            }
            _ => self.run_node(op),
        }
        self.check();
    }

    fn run_node(&mut self, op: Op) {
        if matches!(op, Op::HalfClose) {
            self.session.handle_half_close(self.now);
            self.input_over = true;
            return;
        }
        if !self.session.wants_read() {
            return; // The driver does not read, so the frame waits in the network.
        }
        let frame_ref = FrameRef(self.number());
        let (frame, bytes) = match op {
            Op::Hello { valid } => {
                let mut hello = hello(&["default"]);
                hello.protocol = if valid { 1 } else { 2 };
                (NodeFrame::Hello(Box::new(hello)), 40)
            }
            Op::Heartbeat { list: of } => {
                let of = of.map(|of| list(&[("cpu", ["1", "2", "3"][usize::from(of)])])).unwrap_or_default();
                (NodeFrame::Heartbeat(Heartbeat { sequence: frame_ref.0, inventory: of.into() }), 4)
            }
            Op::Update { bad, bytes, goes_on } => {
                let mut update = update(frame_ref.0, CommandState::Accepted);
                if goes_on && let Some(told) = &self.told {
                    update.id = told.id;
                    update.state = match told.state {
                        CommandState::Accepted => CommandState::Running,
                        _ => CommandState::Succeeded,
                    };
                }
                update.attempt.0 = u32::from(!bad);
                if !bad {
                    self.told = Some(update.clone());
                }
                (NodeFrame::CommandUpdate(update), bytes)
            }
            Op::Events { bad, bytes } => {
                (NodeFrame::EventBatch(Box::new(events(frame_ref.0, u64::from(!bad)..3))), bytes)
            }
            Op::SpecApplied { bad, bytes } => {
                let name = if bad { String::new() } else { "spec".to_owned() };
                let applied = SpecApplied { frame_ref, name, generation: Generation(1), error: None };
                (NodeFrame::SpecApplied(Box::new(applied)), bytes)
            }

            Op::Status { bad, bytes } => {
                let mut status = status(frame_ref.0);
                if bad {
                    status.id.clear();
                }
                (NodeFrame::Status(Box::new(status)), bytes)
            }

            Op::Section { bad, bytes } => {
                let section = section(frame_ref.0, if bad { "" } else { "cpu" }, "body");
                (NodeFrame::InventorySection(Box::new(section)), bytes)
            }
            Op::Unsupported => (NodeFrame::Unsupported(frame_ref), 9),
            Op::Credit { declared } => {
                let lane = LaneName::new(if declared { "default" } else { "other" }).expect("a lane name");
                let capacity = Credits(u32::try_from(frame_ref.0).expect("a small number"));
                (NodeFrame::Credit(CreditChange { lane, capacity }), 9)
            }
            Op::Goodbye => (NodeFrame::Goodbye(Goodbye { reason: String::new() }), 2),
            _ => (NodeFrame::Ignored, 2),
        };
        if !self.input_over && self.hello_came {
            match &frame {
                NodeFrame::CommandUpdate(update) => {
                    self.durable_refs.push(frame_ref);
                    if update.attempt.0 > 0 {
                        self.to_hand.push_back(Handed::Update(frame_ref));
                    }
                }
                NodeFrame::EventBatch(batch) => {
                    self.durable_refs.push(frame_ref);
                    if batch.events[0].seq.0 > 0 {
                        self.to_hand.push_back(Handed::Events(frame_ref));
                    }
                }
                NodeFrame::SpecApplied(applied) => {
                    self.durable_refs.push(frame_ref);
                    if !applied.name.is_empty() {
                        self.to_hand.push_back(Handed::SpecApplied);
                    }
                }

                NodeFrame::Status(status) => {
                    self.durable_refs.push(frame_ref);
                    if !status.id.is_empty() {
                        self.to_hand.push_back(Handed::Status(frame_ref));
                    }
                }

                NodeFrame::InventorySection(section) => {
                    self.sections.insert(frame_ref);
                    if !section.section.is_empty() {
                        self.sections_to_hand.push_back(frame_ref);
                    }
                }
                NodeFrame::Unsupported(_) => self.durable_refs.push(frame_ref),
                NodeFrame::Credit(change) if change.lane.as_str() == "default" => {
                    self.to_hand.push_back(Handed::Credit(change.capacity));
                }
                NodeFrame::Heartbeat(heartbeat) => self.heartbeats.push_back(heartbeat.sequence),
                _ => {}
            }
        }
        self.hello_came |= matches!(frame, NodeFrame::Hello(_));
        self.input_over |= matches!(frame, NodeFrame::Goodbye(_));
        self.session.handle_frame(frame, bytes, self.now);
    }

    fn run_writer(&mut self, op: Op) {
        if !self.hello_posted || self.closed_posted > 0 {
            return;
        }
        let news = match op {
            Op::WriterGrants { replays } if !self.granted => {
                self.granted = true;
                let replays = (0..replays).map(|_| command(self.number())).collect();
                SessionNews::Granted(Box::new(Granted {
                    epoch: SessionEpoch(4),
                    server_time: UnixMillis(1_000),
                    journal_acked: EventSeq(0),
                    replays,
                    cancels: Vec::new(),
                    inventory_wanted: Vec::new(),
                }))
            }
            Op::WriterAnswers { stored } if !self.with_writer.is_empty() => {
                let frame = self.with_writer.pop_front();
                if stored && matches!(frame, Some(Handed::Events(_))) {
                    SessionNews::EventsStored { journal: journal(), acked: EventSeq(2), refused: None }
                } else if stored && matches!(frame, Some(Handed::Status(_))) {
                    SessionNews::Stored { state: None }
                } else if stored {
                    SessionNews::Stored { state: Some(CommandState::Running) }
                } else {
                    let message = "no such command".to_owned();
                    SessionNews::NotStored { code: RejectCode::UnknownCommand, message, retryable: false }
                }
            }
            Op::WriterAnswersSection { which, stored } if !self.sections_with_writer.is_empty() => {
                let which = which % self.sections_with_writer.len();
                let frame_ref = self.sections_with_writer.remove(which);
                if stored {
                    SessionNews::SectionStored { frame_ref }
                } else {
                    SessionNews::SectionNotStored { frame_ref, message: "no such node".to_owned() }
                }
            }
            Op::WriterLooked { wanted } if self.look_out => {
                self.look_out = false;
                match wanted {
                    None => SessionNews::InventoryNotLooked,
                    Some(false) => SessionNews::InventoryWanted(Vec::new()),
                    Some(true) => SessionNews::InventoryWanted(vec![name("cpu")]),
                }
            }
            Op::WriterCommands { count } if self.granted => {
                SessionNews::Commands((0..count).map(|_| command(self.number())).collect())
            }
            Op::WriterCancels if self.granted => SessionNews::Cancel(CancelCommand {
                id: CommandId(uuid::Uuid::nil()),
                reason: "changed my mind".to_owned(),
            }),
            Op::WriterSpecs { bytes } if self.granted => {
                let name = SpecName::new("spec").expect("a spec name");
                let body = vec![7; bytes].into();
                let spec = Spec { name, generation: Generation(self.number()), body };
                self.specs_given += spec.weight_bytes();
                SessionNews::Specs(vec![spec])
            }
            Op::WriterCloses => SessionNews::Close(CloseReason::Superseded),
            _ => return,
        };
        self.session.handle_news(news, self.now);
    }

    fn poll(&mut self, writer: usize, frames: usize) {
        for _ in 0..writer {
            if let Some(message) = self.session.poll_to_writer() {
                self.see_message(&message);
            }
        }
        for _ in 0..frames {
            if let Some(frame) = self.session.poll_frame() {
                self.see_frame(&frame);
            }
        }
        if let Some(reason) = self.session.poll_end() {
            assert_eq!(self.end, None, "5: one end");
            assert_eq!(self.session.poll_frame(), None, "5: the end is last");
            self.end = Some(reason);
        }
    }

    fn see_message(&mut self, message: &ToWriter) {
        assert_eq!(self.closed_posted, 0, "5: Closed is last, then came {message:?}");
        match message {
            ToWriter::Hello(_) => {
                assert!(!self.hello_posted, "one Hello");
                self.hello_posted = true;
                return;
            }
            ToWriter::Update(request) => {
                assert!(self.granted, "1: the Hello is durable first");
                self.see_durable(Handed::Update(request.update.frame_ref), Some(&request.update));
            }
            ToWriter::Events(request) => {
                assert!(self.granted, "1: the Hello is durable first");
                self.see_durable(Handed::Events(request.batch.frame_ref), None);
            }
            ToWriter::SpecApplied(_) => {
                assert!(self.granted, "1: the Hello is durable first");
                self.see_durable(Handed::SpecApplied, None);
            }
            ToWriter::SpecsSent { bytes, .. } => {
                self.specs_told += *bytes;
                assert!(self.specs_told <= self.specs_given, "what was not given can't have left");
            }

            ToWriter::Status(request) => {
                assert!(self.granted, "1: the Hello is durable first");
                self.see_durable(Handed::Status(request.status.frame_ref), None);
            }

            ToWriter::Section(request) => {
                assert!(self.granted, "1: the Hello is durable first");
                assert_eq!(self.sections_to_hand.pop_front(), Some(request.frame_ref), "sections in order");
                self.sections_with_writer.push(request.frame_ref);
                assert!(self.sections_with_writer.len() <= MAX_SECTIONS_WITH_WRITER, "6: bounded");
            }
            ToWriter::InventoryLook(_) => {
                assert!(!self.look_out, "one look at a time");
                self.look_out = true;
            }
            ToWriter::Credit { change, .. } => {
                let due = self.to_hand.pop_front();
                assert_eq!(due, Some(Handed::Credit(change.capacity)), "credits keep their place");
            }
            ToWriter::Alive { epoch, .. } => assert_eq!(*epoch, SessionEpoch(4)),
            ToWriter::Closed { .. } => self.closed_posted += 1,
            ToWriter::ShardStopped { .. } => panic!("a session does not stop its shard"),
        }
        assert!(self.hello_posted, "the Hello is first, but came {message:?}");
    }

    fn see_durable(&mut self, handed: Handed, update: Option<&CommandUpdate>) {
        let goes_on = self.with_writer_last.as_ref().zip(update).is_some_and(|(before, update)| {
            (before.id, before.attempt) == (update.id, update.attempt) && before.state < update.state
        });
        assert!(
            self.with_writer.is_empty() || goes_on,
            "2: one durable frame with the writer, not {handed:?}"
        );
        self.with_writer.push_back(handed);
        self.with_writer_last = update.cloned();
        assert_eq!(self.to_hand.pop_front(), Some(handed), "3: in order of arrival");
    }

    fn see_frame(&mut self, frame: &GatewayFrame) {
        assert_eq!(self.end, None, "5: nothing after the end, but came {frame:?}");
        let is_welcome = matches!(frame, GatewayFrame::Welcome(_));
        assert_eq!(is_welcome, self.frames_seen == 0, "1: Welcome is first, and once; came {frame:?}");
        self.frames_seen += 1;
        match frame {
            GatewayFrame::Ack(Ack { frame_ref, .. }) | GatewayFrame::Rejected(Rejected { frame_ref, .. })
                if self.sections.contains(frame_ref) =>
            {
                self.sections.remove(frame_ref);
            }
            GatewayFrame::Ack(Ack { frame_ref, .. })
            | GatewayFrame::EventAck(EventAck { frame_ref, .. })
            | GatewayFrame::Rejected(Rejected { frame_ref, .. }) => {
                self.answered_refs.push(*frame_ref);
            }
            GatewayFrame::HeartbeatAck { sequence, .. } => {
                assert_eq!(self.heartbeats.pop_front(), Some(*sequence), "4: each heartbeat, in order");
            }
            GatewayFrame::Command(command) => {
                assert!(command.seq.0 > self.last_seq, "commands in order");
                self.last_seq = command.seq.0;
            }
            _ => {}
        }
    }

    fn check(&self) {
        let limits = small_limits();
        assert!(
            self.durable_refs.starts_with(&self.answered_refs),
            "3: {:?} were answered, of {:?}",
            self.answered_refs,
            self.durable_refs
        );
        if self.session.inbox_frames() == 0 {
            assert_eq!(self.session.inbox_bytes(), 0, "6: an empty inbox counts no bytes");
        }
        if self.session.phase == Phase::Ended {
            assert_eq!(self.session.inbox_frames(), 0, "5: what waited is dropped at the end");
            assert_eq!(self.session.queued_frames(), 0);
        }
        assert!(self.session.inbox_frames() <= limits.session_inbox_frames, "6: bounded");
        // What may be answered while nothing is read: frames, sections and a look.
        let most_at_once = 2 * limits.session_inbox_frames + MAX_SECTIONS_WITH_WRITER + 1;
        assert!(self.session.waiting_answers() <= MAX_WAITING_ANSWERS + most_at_once);
        let most_sections = limits.session_inbox_frames + MAX_SECTIONS_WITH_WRITER;
        assert!(self.session.sections_on_their_way() <= most_sections, "6: bounded");
        let at_bound = self.session.inventory.is_full(&limits)
            || self.session.inbox_frames() >= limits.session_inbox_frames
            || self.session.inbox_bytes() >= limits.session_inbox_bytes
            || self.session.waiting_answers() >= MAX_WAITING_ANSWERS;
        assert!(
            self.session.wants_read() || at_bound || self.session.phase == Phase::Ended,
            "6: reading stops only at a bound"
        );
    }

    /// The node has nothing more to say, the writer and the driver do their work: all ends well.
    fn finish_in_order(&mut self) {
        self.run(Op::HalfClose);
        for _ in 0..1_000 {
            self.run(Op::DriverPolls { writer: 8, frames: 64 });
            self.run(Op::WriterGrants { replays: 1 });
            self.run(Op::WriterAnswers { stored: true });
            self.run(Op::WriterAnswersSection { which: 0, stored: true });
        }
        let end = self.end.clone().expect("a half-closed session ends");
        if end == CloseReason::Finished && self.hello_posted {
            assert_eq!(self.answered_refs, self.durable_refs, "3: all is answered before the end");
            assert_eq!(self.to_hand, [], "all was handed to the writer");
            assert!(self.sections.is_empty(), "3: all sections are answered before the end");
            assert_eq!(self.heartbeats, [], "4: all heartbeats were answered");
        }
    }

    fn finish_by_force(&mut self) {
        self.session.handle_close(CloseReason::PeerGone, self.now);
        self.poll(1_000, 1_000);
        assert!(self.end.is_some(), "a closed session ends");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_inputs_breaks_a_session(
        greets in prop::bool::weighted(0.95),
        ops in prop::collection::vec(op(), 1..200),
        in_order in any::<bool>(),
    ) {
        let mut world = World::new();
        if greets {
            world.run(Op::Hello { valid: true });
            world.run(Op::DriverPolls { writer: 1, frames: 0 });
        }
        for op in ops {
            world.run(op);
        }
        if in_order {
            world.finish_in_order();
        } else {
            world.finish_by_force();
        }
        prop_assert_eq!(world.closed_posted, usize::from(world.hello_posted), "5: Closed iff Hello, once");
        prop_assert_eq!(world.session.next_deadline(), None);
        prop_assert!(!world.session.wants_read());
        prop_assert!(!world.session.hello_is_pending());
    }
}

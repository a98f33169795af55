//! Others with a node's certificate: a machine that was cloned, and clients that break the protocol.
//!
//! Owns what they do. Nobody acts on what a gateway sends them; whether one lives on is up to the gateway.
//!
//! 1. What a twin reported on may have another end than its node knows: such commands are noted.
//! 2. Who breaks the protocol must be over soon.
//! 3. Two machines that take the session from each other in turn go on until the certificate is quarantined, or
//!    their time has passed.

use std::time::Duration;

use bytes::Bytes;
use gateway_core::command::CommandState;
use gateway_core::frame::{
    self, CommandUpdate, EventBatch, Goodbye, Heartbeat, NodeFrame, Refusal, RefusalReason, Status,
};
use gateway_core::ids::{Attempt, CommandId, EventSeq, FrameRef, JournalId};
use gateway_core::seam::HelloRequest;
use gateway_core::store::Queue;

use super::{Event, Link, Wire, World};
use crate::node::TWIN;
use crate::store::CommandRow;

/// How a client of the node's certificate breaks the protocol.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rudeness {
    NoHello,
    WrongFirstFrame,
    TwoHellos,
    HangsUpBeforeHello,
    GoesOnAfterGoodbye,
    /// The same, once its session lives.
    GoesOnLater,
    /// It reports on a command of another node.
    AnothersCommand,
    /// It reports whatever it likes on commands of its own node.
    Meddles,
    /// The same, on those that wait and that nobody was sent.
    Foretells,
}

/// Events of a journal whose first ones nobody ever sent.
fn behind_a_gap() -> NodeFrame {
    let event = |seq| frame::Event {
        seq: EventSeq(seq),
        kind: "event".to_owned(),
        body: Bytes::from_static(b"behind a gap"),
        attested: None,
        refused: None,
    };
    NodeFrame::EventBatch(Box::new(EventBatch {
        frame_ref: FrameRef(2),
        journal: JournalId::new("of-a-twin").expect("a journal's id"),
        boot_id: TWIN.to_owned(),
        events: vec![event(3), event(4)],
    }))
}

impl World {
    /// Another machine with the node's certificate opens a session for a while.
    pub(super) fn twin(&mut self, node: usize, long: Duration) {
        let hello = self.nodes[node].hello_of_twin();
        let Some(link) = self.open_link(node, true) else { return };
        self.note_fault("duplicate identity");
        self.along(Wire::Up(link), Event::Up { link, frame: NodeFrame::Hello(Box::new(hello)) });
        self.at(Duration::from_millis(900), Event::TwinBeats { link, sequence: 1 });
        self.at(long, Event::TwinEnds { link });
    }

    /// Streams that nobody uses are opened faster than they may be.
    pub(super) fn herd(&mut self, node: usize) {
        self.note_fault("a herd of strangers");
        let process = self.chance.within(0..self.processes.len() as u64) as usize;
        for _ in 0..self.chance.within(6..11) {
            if let Some(link) = self.open_link_to(process, node, true) {
                let wait = Duration::from_millis(self.chance.within(1..400));
                self.at(wait, Event::UpEnds { link, half_close: true });
            }
        }
    }

    /// As long as it is let in, another machine takes the session back from the node.
    pub(super) fn duel(&mut self, node: usize, rounds: u32) {
        if rounds == 0 || !self.is_disturbed() || self.is_quarantined(node) {
            return;
        }
        self.note_fault("two machines in turn");
        let long = self.chance.within(200..2_000);
        self.twin(node, Duration::from_millis(long));
        let wait = Duration::from_millis(self.chance.within(300..1_500));
        self.at(wait, Event::TakesAgain { node, rounds: rounds - 1 });
    }

    /// Whether the node has no certificate that is let in.
    pub(super) fn is_quarantined(&self, node: usize) -> bool {
        self.store.is_quarantined(&self.nodes[node].id)
    }

    /// A twin lists nothing: what its node runs, or has on its way, has expired by that, if its time had passed, and
    /// the credit is free.
    pub(super) fn note_forgotten(&mut self, entry: &HelloRequest) {
        let node = &entry.identity.node;
        let Some(number) = self.number_of(node).filter(|_| entry.hello.machine == TWIN) else { return };
        let is_over = |id| self.store.commands().get(&id).is_some_and(|row| row.state.is_terminal());
        let expired =
            |row: &CommandRow| row.node == *node && row.dispatched && row.state == CommandState::Expired;
        if self.nodes[number].running().any(is_over) || self.store.commands().values().any(expired) {
            self.nodes[number].is_meddled_with = true;
        }
    }

    pub(super) fn twin_beats(&mut self, link: u64, sequence: u64) {
        let Some(Link { process, incarnation, key, .. }) = self.links.get(&link).copied() else { return };
        if self.runs(process, incarnation) && self.processes[process].sessions.contains_key(&key) {
            let heartbeat = NodeFrame::Heartbeat(Heartbeat { sequence, ..Heartbeat::default() });
            self.along(Wire::Up(link), Event::Up { link, frame: heartbeat });
            self.at(Duration::from_millis(900), Event::TwinBeats { link, sequence: sequence + 1 });
        }
    }

    pub(super) fn rude(&mut self, node: usize, how: Rudeness) {
        let hello = NodeFrame::Hello(Box::new(self.nodes[node].hello_of_twin()));
        let Some(link) = self.open_link(node, true) else { return };
        self.note_fault("protocol broken");
        let heartbeat = NodeFrame::Heartbeat(Heartbeat::default());
        let goodbye = NodeFrame::Goodbye(Goodbye { reason: String::new() });
        let status = |id: &str| Status {
            frame_ref: FrameRef(1),
            id: id.to_owned(),
            kind: "status".into(),
            body: Bytes::new(),
        };
        let mut later = Vec::new();
        let frames = match how {
            Rudeness::NoHello => Vec::new(),
            Rudeness::WrongFirstFrame if self.chance.percent(50) => vec![goodbye, hello],
            Rudeness::WrongFirstFrame => vec![heartbeat, hello],
            Rudeness::TwoHellos if self.chance.percent(50) => {
                later = vec![hello.clone()];
                vec![hello]
            }
            Rudeness::TwoHellos => vec![hello.clone(), hello],
            Rudeness::HangsUpBeforeHello => {
                return self.along(Wire::Up(link), Event::UpEnds { link, half_close: true });
            }
            Rudeness::GoesOnAfterGoodbye => vec![hello.clone(), goodbye.clone(), heartbeat, hello, goodbye],
            Rudeness::GoesOnLater => {
                let status = NodeFrame::Status(Box::new(status("twin")));
                later = vec![status, behind_a_gap(), goodbye.clone(), heartbeat, hello.clone(), goodbye];
                vec![hello]
            }
            Rudeness::AnothersCommand => {
                let update = self.report_on_another(node);
                [hello].into_iter().chain(update).collect()
            }
            Rudeness::Meddles => {
                let updates = self.meddle(node, |_| true);
                [hello].into_iter().chain(updates).collect()
            }
            Rudeness::Foretells => {
                // Often on what a pass has claimed of which its writer has not heard yet.
                if let Some(process) = self.links.get(&link).map(|link| link.process)
                    && self.chance.percent(70)
                {
                    self.slow_answers(process, Queue::Dispatch, Duration::from_secs(1));
                }
                let updates = self.meddle(node, |state| state == CommandState::Pending);
                [hello].into_iter().chain(updates).collect()
            }
        };
        for frame in frames {
            self.along(Wire::Up(link), Event::Up { link, frame });
        }
        if matches!(how, Rudeness::GoesOnAfterGoodbye) {
            self.along(Wire::Up(link), Event::UpEnds { link, half_close: true });
        }
        let wait = Duration::from_millis(self.chance.within(300..1_200));
        for frame in later {
            self.at(wait, Event::Up { link, frame });
        }
        if matches!(how, Rudeness::GoesOnLater) {
            self.at(wait, Event::UpEnds { link, half_close: true });
        }
        let is_cut = !matches!(how, Rudeness::AnothersCommand | Rudeness::Meddles | Rudeness::Foretells);
        if let Some(over) = self.links.get(&link).copied().filter(|_| is_cut) {
            // It says nothing more: a Hello that does not come is late by then, a silent session over.
            let why = "who breaks the protocol is cut";
            let event = Event::MustBeOver {
                process: over.process,
                incarnation: over.incarnation,
                keys: vec![over.key],
                why,
            };
            self.at(Duration::from_secs(10), event);
        }
    }

    fn report_on_another(&self, node: usize) -> Option<NodeFrame> {
        let own = &self.nodes[node].id;
        let mut others = self.store.commands().iter();
        let (id, row) = others.find(|(_, row)| row.node != *own && !row.state.is_terminal())?;
        Some(report(1, *id, row.attempt, CommandState::Succeeded, None))
    }

    /// Reports of any state on any commands of the node, by somebody who has run none of them.
    fn meddle(&mut self, node: usize, on: impl Fn(CommandState) -> bool) -> Vec<NodeFrame> {
        let own = self.nodes[node].id.clone();
        let rows = self.store.commands().iter().filter(|(_, row)| row.node == own && on(row.state));
        // More often on what has ended in a way that few come to.
        let times = |state| match state {
            CommandState::Expired => 16,
            CommandState::Refused | CommandState::Canceled => 4,
            _ => 1,
        };
        let each = rows.flat_map(|(id, row)| std::iter::repeat_n((*id, row.attempt), times(row.state)));
        let rows: Vec<(CommandId, Attempt)> = each.collect();
        if rows.is_empty() {
            return Vec::new();
        }
        self.nodes[node].is_meddled_with = true;
        let states: Vec<CommandState> =
            CommandState::ALL.into_iter().filter(|state| state.is_reportable()).collect();
        let mut reports = Vec::new();
        for frame_ref in 1..25 {
            let (id, attempt) = *self.chance.pick(&rows);
            let state = *self.chance.pick(&states);
            let retryable = self.chance.percent(50);
            let refusal = (state == CommandState::Refused)
                .then_some(Refusal { reason: RefusalReason::LaneFull, retryable });
            reports.push(report(frame_ref, id, attempt, state, refusal));
            self.meddled.insert(id);
        }
        reports
    }
}

fn report(
    frame_ref: u64,
    id: CommandId,
    attempt: Attempt,
    state: CommandState,
    refusal: Option<Refusal>,
) -> NodeFrame {
    NodeFrame::CommandUpdate(CommandUpdate {
        frame_ref: FrameRef(frame_ref),
        id,
        attempt,
        state,
        progress: None,
        result: Bytes::from_static(b"of a twin"),
        error: None,
        refusal,
    })
}

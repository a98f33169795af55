//! Gateways that send their nodes away: to stop, or because the control API asks for it, which takes that back.
//!
//! Owns when it is asked for, and what must hold of the answers. The control API asks for other things at the same
//! time: nothing of that may do any harm.
//!
//! 1. A drain leads to the stop in its time, whoever stays.
//! 2. One that the control API asked for is taken back, unless the gateway is on its way out by then; no shard stays
//!    shut, and nobody drains any more.

use std::time::Duration;

use gateway_core::desk::{DeskAnswer, DeskAsk, DeskRefusal};
use gateway_core::drain::DrainPlan;
use gateway_core::writer::{Phase, Writer};

use super::faults::{Cut, Fault};
use super::impostors::Rudeness;
use super::{Event, Wire, World};
use crate::check::must;
use crate::random::Chance;

/// A drain is over so long after its nodes and their grace, at the latest.
const DRAIN_IS_SEEN_OVER: Duration = Duration::from_millis(50);

/// What is asked of a gateway.
#[derive(Debug, Clone, Copy)]
pub(super) enum DrainWish {
    ToStop,
    /// Until `Undone`.
    Standing,
    Undone,
}

impl World {
    /// By a chance apart, so that seeds without one live as they did before there were any.
    pub(super) fn plan_standing_drain(&mut self, seed: u64) {
        let mut apart = Chance::new(!seed);
        if apart.percent(25) {
            let process = apart.within(0..self.processes.len() as u64) as usize;
            let at = Duration::from_millis(apart.within(100..self.plan.disturbed_for.as_millis() as u64));
            self.at(at, Event::Fault(Fault::StandingDrain { process }));
        }
    }

    /// Most often it comes while somebody says its Hello or goes.
    pub(super) fn drain(&mut self, process: usize) {
        if self.processes[process].writer.is_none() {
            return;
        }
        self.note_fault("drain of a gateway");
        let hosted = (0..self.nodes.len()).find(|number| self.host_of(*number) == Some(process));
        match (self.chance.within(0..4), hosted) {
            (0, Some(node)) => self.cut(node, Cut::HalfClose),
            (1 | 2, _) => {
                let node = self.chance.within(0..self.nodes.len() as u64) as usize;
                self.rude(node, Rudeness::GoesOnAfterGoodbye);
            }
            _ => {}
        }
        let incarnation = self.processes[process].incarnation;
        let wait = Duration::from_micros(self.chance.within(0..8_000));
        self.at(wait, Event::Drain { process, incarnation, wish: DrainWish::ToStop });
    }

    /// The control API asks for a drain, and takes it back while the world is still disturbed or soon after.
    pub(super) fn stand(&mut self, process: usize) {
        let gateway = &self.processes[process];
        if gateway.writer.is_none() {
            return;
        }
        let incarnation = gateway.incarnation;
        self.at(Duration::ZERO, Event::Drain { process, incarnation, wish: DrainWish::Standing });
        let long = Duration::from_millis(self.chance.within(1..3_000));
        self.at(long, Event::Drain { process, incarnation, wish: DrainWish::Undone });
    }

    pub(super) fn wish(&mut self, process: usize, incarnation: u32, wish: DrainWish) {
        if self.runs(process, incarnation) {
            match wish {
                DrainWish::ToStop => self.begin_drain(process, incarnation),
                DrainWish::Standing => self.begin_standing(process),
                DrainWish::Undone => self.undrain(process),
            }
        }
    }

    fn begin_drain(&mut self, process: usize, incarnation: u32) {
        let within = Duration::from_millis(self.chance.within(0..3_000));
        let grace = Duration::from_millis(self.chance.within(0..1_000));
        let watch = &mut self.processes[process].watch;
        let leaves_already = watch.leaves_since.is_some() && !watch.stands;
        watch.stands = false;
        self.with_writer(process, |writer, now| writer.handle_drain(DrainPlan { within, grace }, now));
        // The first plan to the stop stands.
        if leaves_already {
            return;
        }
        self.at(within + grace + DRAIN_IS_SEEN_OVER, Event::DrainIsOver { process, incarnation });
    }

    fn begin_standing(&mut self, process: usize) {
        self.ask_idly(process);
        let within = Duration::from_millis(self.chance.within(0..3_000));
        let plan = DrainPlan { within, grace: Duration::ZERO };
        let watch = &mut self.processes[process].watch;
        let leaves = watch.leaves_since.is_some();
        (watch.stands, watch.has_stood) = (watch.stands || !leaves, true);
        match self.ask(process, DeskAsk::Drain(plan)) {
            Some(DeskAnswer::Draining { is_new, .. }) => {
                must("a drain is new where there was none", is_new != leaves, || format!("{process}"));
                self.note_fault("drain that the control API asks for");
            }
            Some(DeskAnswer::Refused(DeskRefusal::Stopping)) => {
                must("only who stops refuses to drain", leaves, || format!("{process}"));
            }
            Some(other) => unreachable!("{other:?}"),
            None => {}
        }
    }

    fn undrain(&mut self, process: usize) {
        self.ask_idly(process);
        let gateway = &mut self.processes[process];
        let stops = gateway
            .writer
            .as_ref()
            .is_some_and(|writer| matches!(writer.phase(), Phase::Stopping | Phase::Stopped));
        let watch = &mut gateway.watch;
        let stood = std::mem::take(&mut watch.stands) && !stops;
        if stood {
            watch.leaves_since = None;
        }
        let is_right = match self.ask(process, DeskAsk::Undrain) {
            Some(DeskAnswer::Undrained { was_draining }) => {
                self.note_fault("drain taken back");
                was_draining == stood
            }
            Some(DeskAnswer::Refused(DeskRefusal::Stopping)) => !stood,
            Some(_) => false,
            None => true,
        };
        must("a drain is taken back unless it leads to the stop", is_right, || format!("{process}"));
    }

    /// Asks for what changes nothing: pokes of some or of all, and looks at sessions.
    fn ask_idly(&mut self, process: usize) {
        let node = self.chance.within(0..self.nodes.len() as u64) as usize;
        let node = self.nodes[node].id.clone();
        let some = if self.chance.percent(50) { vec![node.clone()] } else { Vec::new() };
        let at_most = self.chance.within(1..4) as usize;
        for ask in [
            DeskAsk::Dispatch(some.clone()),
            DeskAsk::Specs(some),
            DeskAsk::Cancel(Vec::new()),
            DeskAsk::Revoke(node.clone()),
            DeskAsk::Session(node),
        ] {
            self.ask(process, ask);
        }
        let (mut after, mut seen) = (None, 0);
        while let Some(DeskAnswer::Sessions { sessions, more, in_all }) =
            self.ask(process, DeskAsk::Sessions { after, at_most })
        {
            seen += sessions.len();
            let is_whole = more.is_some() || seen == in_all;
            must("pages show every session once", is_whole && sessions.len() <= at_most, || {
                format!("{seen} of {in_all}")
            });
            let Some(more) = more else { break };
            after = Some(more);
        }
    }

    fn ask(&mut self, process: usize, ask: DeskAsk) -> Option<DeskAnswer> {
        if matches!(&ask, DeskAsk::Specs(nodes) if nodes.is_empty()) {
            self.processes[process].watch.handle_spec_sweep();
        }
        let mut answer = None;
        self.with_writer(process, |writer, now| answer = Some(writer.handle_ask(ask, now)));
        answer
    }

    /// Whoever stays is cut then, and the stop begins.
    pub(super) fn check_drain(&self, process: usize, incarnation: u32) {
        if !self.runs(process, incarnation) {
            return;
        }
        let gateway = &self.processes[process];
        let Some(writer) = gateway.writer.as_ref().filter(|_| !gateway.is_dazed) else { return };
        let is_over = matches!(writer.phase(), Phase::Stopping | Phase::Stopped);
        must("a drain leads to the stop in its time", is_over, || format!("{:?}", writer.phase()));
    }

    /// In the calm nobody drains but who is sent away, and whose drain was taken back is open again.
    pub(super) fn check_taken_back(&self) {
        for (process, gateway) in self.processes.iter().enumerate() {
            let Some(phase) = gateway.writer.as_ref().map(Writer::phase) else { continue };
            let drains = phase == Phase::Draining && gateway.watch.leaves_since.is_none();
            must("nobody drains whose drain was taken back", !drains, || format!("{process}"));
            let is_open = gateway.serving.iter().all(|serving| *serving);
            must("who serves has all its shards open", phase != Phase::Serving || is_open, || {
                format!("{process}: {:?}", gateway.serving)
            });
        }
    }

    /// A node was told to go elsewhere, and the time has come. Some have done so before they leave.
    pub(super) fn leave(&mut self, number: usize, link: u64) {
        if self.nodes[number].link != Some(link) {
            return;
        }
        self.note_fault("a node leaves a gateway that drains");
        if self.chance.percent(50) {
            return self.dial(number);
        }
        self.along(Wire::Up(link), Event::UpEnds { link, half_close: false });
        self.node_ended(number);
    }
}

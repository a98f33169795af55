//! What only a gateway can do that lost nothing: asked for when all is calm and everything has ended.
//!
//! Owns the stages of that and their times. Faults are over; each probe asks through the doors that clients
//! and nodes have, and says by when what must have come of it.
//!
//! 1. What waits although nothing is in its way is begun within `WAITS_AT_MOST`; a node that dials is let in
//!    within `LET_IN_WITHIN`; no gateway that lives is taken for dead.
//! 2. Every lane takes as many commands as its capacity, and no more: no credit was lost or made up. One that is
//!    poked takes its first at once, one that is not at the next poll, and a Hello finds what waits. A poke brings
//!    all specs of a node.
//! 3. A cancellation reaches its node. What is held goes on and ends.
//! 4. A node that leaves is written as disconnected, by its gateway or, where that died, by a sweep. A gateway that
//!    is told to stop does so in time and leaves nothing behind; where it can't write all, it gives its lease back.

use std::collections::BTreeMap;
use std::time::Duration;

use gateway_core::command::CommandState;
use gateway_core::ids::{Attempt, CommandId, LaneName, SpecName};
use gateway_core::store::Queue;
use gateway_core::time::Moment;
use gateway_core::writer::Writer;

use super::faults::{Cut, Fault};
use super::{Event, TICK, World};
use crate::check::must;

/// So long after the last fault connections that were lost have been made anew; a queue that finds that out later
/// would wait far into the calm.
const CONNECTS_WITHIN: Duration = Duration::from_secs(4);
const WAITS_AT_MOST: Duration = Duration::from_secs(4);
/// Nodes finish what they took, and dial; retries and waits run out.
const ENDS_WITHIN: Duration = Duration::from_secs(45);
const LET_IN_WITHIN: Duration = Duration::from_secs(15);
/// A poke goes through a dispatch pass at once.
const POKED_WITHIN: Duration = Duration::from_millis(150);
/// A poll comes every second, and a pass may be under way.
const POLLED_WITHIN: Duration = Duration::from_millis(1_300);
const CREDIT_TAKES: Duration = Duration::from_secs(3);
/// A poke brings them without a sweep, which comes each 1.5 s at most.
const SPECS_TAKE: Duration = Duration::from_millis(1_000);
const PROBE: &str = "probe-";
const CANCEL_TAKES: Duration = Duration::from_secs(3);
const RELEASE_TAKES: Duration = Duration::from_secs(15);
const DISCONNECT_TAKES: Duration = Duration::from_secs(3);
/// The lead of the sweeps and the lease run out, then a sweep finds it.
const REAP_TAKES: Duration = Duration::from_secs(12);
const STOP_TAKES: Duration = Duration::from_secs(4);
/// Of these: until the process has ended.
const STOPS_WITHIN: Duration = Duration::from_secs(2);
/// The same where something can't be written: that is waited for, and then only the lease is given back.
const STUCK_STOPS_WITHIN: Duration = Duration::from_millis(6_500);
/// Nodes report on what they were just sent before that.
const STUCK_BEFORE_THE_STOP: Duration = Duration::from_millis(1_500);
const RETURN_TAKES: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Everything comes to its end.
    Settle,
    Credit,
    Cancel,
    Release,
    /// Nodes leave, or their gateway does; the time is when that must be written.
    Part,
    Return,
    Over,
}

/// How far the probes have come.
#[derive(Debug)]
pub(super) struct Probes {
    are_begun: bool,
    stage: Stage,
    since: Moment,
    specs_are_checked: bool,
    /// The first command of each lane, and whether it was poked.
    firsts: BTreeMap<CommandId, bool>,
    canceled: Vec<CommandId>,
    /// Nodes that are away.
    away: Vec<usize>,
    /// What waits for them.
    waiting: Vec<(usize, CommandId)>,
    /// A process, as it was started, that must have ended by then.
    stops: Option<(usize, u32, Moment)>,
    not_live_since: BTreeMap<usize, Moment>,
    /// Until when nodes were told to wait; a herd before them makes that long.
    pub(super) told_until: BTreeMap<usize, Moment>,
}

impl Default for Probes {
    fn default() -> Self {
        Self {
            are_begun: false,
            stage: Stage::Settle,
            since: Moment::default(),
            specs_are_checked: false,
            firsts: BTreeMap::new(),
            canceled: Vec::new(),
            away: Vec::new(),
            waiting: Vec::new(),
            stops: None,
            not_live_since: BTreeMap::new(),
            told_until: BTreeMap::new(),
        }
    }
}

impl Probes {
    pub(super) fn are_over(&self) -> bool {
        self.stage == Stage::Over
    }
}

impl World {
    pub(super) fn tick(&mut self) {
        self.check_silence();
        if self.now >= Moment::default() + self.plan.disturbed_for + CONNECTS_WITHIN {
            self.clear_weather();
        }
        if self.is_calm() {
            if !std::mem::replace(&mut self.probes.are_begun, true) {
                self.settle_meddled();
            }
            self.check_progress();
            self.check_dialing();
            self.check_leftovers();
            self.probe();
        }
        if !self.probes.are_over() {
            self.at(TICK, Event::Tick);
        }
    }

    /// What somebody else said to have begun, its node has never heard of: the next Hello finds that out.
    fn settle_meddled(&mut self) {
        for number in 0..self.nodes.len() {
            if self.nodes[number].is_meddled_with {
                self.cut(number, Cut::Clean);
            }
        }
    }

    fn go_on_to(&mut self, stage: Stage) {
        self.probes.stage = stage;
        self.probes.since = self.now;
    }

    fn probe(&mut self) {
        let long = self.now.since(self.probes.since);
        match self.probes.stage {
            Stage::Settle => {
                let end = Moment::default() + self.plan.disturbed_for + self.plan.settles_within;
                must("all comes to its end", self.now <= end, || self.what_is_left());
                self.check_late();
                if self.all_has_ended() {
                    self.check_taken_back();
                    self.ask_for_credit();
                }
            }
            Stage::Credit if long >= CREDIT_TAKES => {
                self.check_credit();
                self.ask_for_cancels();
            }
            Stage::Cancel if long >= CANCEL_TAKES => {
                self.check_canceled();
                for number in 0..self.nodes.len() {
                    self.nodes[number].release(self.now);
                    self.pump_node(number);
                }
                self.go_on_to(Stage::Release);
            }
            Stage::Release | Stage::Return => {
                let most = if self.probes.stage == Stage::Release { RELEASE_TAKES } else { RETURN_TAKES };
                must("all comes to its end", long <= most, || self.what_is_left());
                if self.all_has_ended() {
                    match self.probes.stage {
                        Stage::Release => self.part(),
                        _ => {
                            self.check_found();
                            self.go_on_to(Stage::Over);
                        }
                    }
                }
            }
            Stage::Credit if long >= SPECS_TAKE && !self.probes.specs_are_checked => {
                self.check_specs_answered()
            }
            Stage::Part => self.probe_parting(long),
            Stage::Credit | Stage::Cancel | Stage::Over => {}
        }
    }

    /// What became pending when its time was over is found by the look at all, once a minute; all else is over
    /// before.
    fn check_late(&self) {
        if self.now < Moment::default() + self.plan.disturbed_for + ENDS_WITHIN {
            return;
        }
        let now = self.clock();
        let others = self.store.commands().iter().find(|(_, row)| {
            let is_late = row.state == CommandState::Pending && row.not_after.is_some_and(|end| end <= now);
            !row.state.is_terminal() && !is_late && !self.is_out(&row.node)
        });
        must("what is not late ends soon", others.is_none(), || {
            format!("{others:?}: {}", self.what_is_left())
        });
    }

    // -- progress --------------------------------------------------------------------------------

    /// Nothing that may go waits for long.
    fn check_progress(&mut self) {
        let now = self.clock();
        let mut waits = Vec::new();
        for (id, row) in self.store.commands() {
            let due =
                row.not_before.is_none_or(|due| due <= now) && row.not_after.is_none_or(|end| end > now);
            if row.state != CommandState::Pending || !due {
                continue;
            }
            let Some(number) = self.number_of(&row.node).filter(|of| !self.is_quarantined(*of)) else {
                continue;
            };
            let lane = self.nodes[number].lanes.iter().find(|lane| lane.lane == row.lane);
            let free = lane.is_some_and(|lane| self.in_flight(number, &lane.lane) < lane.capacity.0 as usize);
            let session = self.store.sessions().get(&row.node);
            let live = session.is_some_and(|session| {
                session.connected && Some(session.epoch) == self.nodes[number].epoch()
            });
            if free && live {
                waits.push(*id);
            }
        }
        self.waits_since.retain(|id, _| waits.contains(id));
        for id in waits {
            let since = *self.waits_since.entry(id).or_insert(self.now);
            let long = self.now.since(since);
            must("what waits for nothing is dispatched", long <= WAITS_AT_MOST, || {
                format!("{id} since {since:?}: {}", self.what_is_left())
            });
        }
    }

    fn in_flight(&self, number: usize, lane: &LaneName) -> usize {
        let of_lane =
            self.store.commands().values().filter(|row| {
                row.node == self.nodes[number].id && row.lane == *lane && row.state.is_in_flight()
            });
        of_lane.count()
    }

    fn check_dialing(&mut self) {
        for number in 0..self.nodes.len() {
            let node = &self.nodes[number];
            let waits_until = self.probes.told_until.get(&number).copied().unwrap_or_default();
            let waits = self.now < node.away_until.max(waits_until);
            if node.is_live() || waits || self.is_quarantined(number) {
                self.probes.not_live_since.remove(&number);
                continue;
            }
            let since = *self.probes.not_live_since.entry(number).or_insert(self.now);
            let long = self.now.since(since);
            must("a node that dials is let in", long <= LET_IN_WITHIN, || self.what_is_left());
        }
    }

    /// A node gives its gateway up.
    pub(super) fn check_is_dead(&self, number: usize) {
        let link = self.nodes[number].link.and_then(|link| self.links.get(&link));
        let lives = link.is_some_and(|link| {
            let process = &self.processes[link.process];
            self.runs(link.process, link.incarnation) && process.sessions.contains_key(&link.key)
        });
        must("a gateway that lives is not taken for dead", !(self.is_calm() && lives), || {
            format!("node {number}: {link:?}")
        });
    }

    // -- credit ----------------------------------------------------------------------------------

    /// More on each lane than it can take, and nodes that hold what they take.
    fn ask_for_credit(&mut self) {
        let members: Vec<usize> = self.members().collect();
        for number in members {
            self.nodes[number].holds = true;
            let lanes = self.nodes[number].lanes.clone();
            let poked = self.chance.percent(50);
            for lane in lanes {
                for place in 0..lane.capacity.0 + 2 {
                    let id = self.enqueue_one(number, lane.lane.clone(), None, None);
                    if place == 0 {
                        self.probes.firsts.insert(id, poked);
                    }
                }
            }
            if poked {
                self.at(Duration::from_millis(1), Event::Poke { node: number });
            }
            self.ask_for_specs(number);
        }
        self.go_on_to(Stage::Credit);
    }

    /// More than may be on their way to a node at once, and one poke.
    fn ask_for_specs(&mut self, number: usize) {
        for place in 0..6 {
            let name = SpecName::new(&format!("{PROBE}{place}")).expect("a spec name");
            self.put_spec(number, name, 300_000);
        }
        self.at(Duration::from_millis(1), Event::PokeSpecs { node: number });
    }

    fn check_specs_answered(&mut self) {
        self.probes.specs_are_checked = true;
        let mut rows = self.store.specs().iter();
        let left = rows.find(|((node, name), row)| {
            name.as_str().starts_with(PROBE) && !row.is_answered() && !self.is_out(node)
        });
        must("a poke brings all specs of its node", left.is_none(), || {
            format!("{:?}", left.map(|(key, row)| (key, row.generation, &row.answer)))
        });
    }

    fn check_credit(&mut self) {
        for number in self.members() {
            for lane in &self.nodes[number].lanes {
                let taken = self.in_flight(number, &lane.lane);
                must("a lane takes what its capacity is", taken == lane.capacity.0 as usize, || {
                    format!("{taken} on {lane:?} of node {number}: {}", self.what_is_left())
                });
            }
        }
        for (id, poked) in std::mem::take(&mut self.probes.firsts) {
            let came = self.read_at(id).map(|at| at.since(self.probes.since));
            let within = if poked { POKED_WITHIN } else { POLLED_WITHIN };
            must(
                "a poke is heard, and a poll makes up for none",
                came.is_some_and(|came| came <= within),
                || format!("{id}, poked: {poked}, came after {came:?}"),
            );
        }
    }

    fn ask_for_cancels(&mut self) {
        let members: Vec<usize> = self.members().collect();
        for number in members {
            let node = self.nodes[number].id.clone();
            let held =
                self.store.commands().iter().find(|(_, row)| row.node == node && row.state.is_in_flight());
            if let Some(id) = held.map(|(id, _)| *id) {
                self.store.cancel(&node, id, "a probe");
                self.flush();
                self.probes.canceled.push(id);
            }
        }
        self.go_on_to(Stage::Cancel);
    }

    fn check_canceled(&mut self) {
        for id in std::mem::take(&mut self.probes.canceled) {
            let state = self.store.commands().get(&id).map(|row| row.state);
            must("a cancellation reaches its node", state == Some(CommandState::Canceled), || {
                format!("{id} is {state:?}")
            });
        }
    }

    // -- parting ---------------------------------------------------------------------------------

    /// The process that has a node's session.
    pub(super) fn host_of(&self, number: usize) -> Option<usize> {
        let link = self.nodes[number].link?;
        self.links.get(&link).map(|link| link.process)
    }

    fn part(&mut self) {
        self.go_on_to(Stage::Part);
        let first = self.members().find_map(|number| Some((number, self.host_of(number)?)));
        let Some((first, host)) = first else { return };
        let hosted: Vec<usize> =
            self.members().filter(|number| self.host_of(*number) == Some(host)).collect();
        match self.chance.within(0..4) {
            0 => {
                self.nodes[first].away_until = self.now + DISCONNECT_TAKES;
                let how = if self.chance.percent(50) { Cut::Clean } else { Cut::HalfClose };
                self.cut(first, how);
                self.probes.away = vec![first];
            }
            1 => {
                for number in &hosted {
                    self.nodes[*number].away_until = self.now + REAP_TAKES;
                }
                self.probes.away = hosted;
                self.end_process(host);
                self.at(REAP_TAKES, Event::Start { process: host });
            }
            2 => {
                for number in &hosted {
                    self.nodes[*number].away_until = self.now + STOP_TAKES;
                }
                self.probes.away = hosted;
                self.must_stop_within(host, STOPS_WITHIN);
                self.with_writer(host, Writer::handle_stop);
            }
            _ => self.part_stuck(host, hosted),
        }
    }

    /// The gateway is told to stop while one of its queues can't write.
    fn part_stuck(&mut self, host: usize, hosted: Vec<usize>) {
        let queue = *self.chance.pick(&[Queue::Updates, Queue::Presence]);
        self.processes[host].stuck = Some(queue);
        for number in &hosted {
            self.nodes[*number].away_until =
                self.now + STUCK_BEFORE_THE_STOP + STUCK_STOPS_WITHIN + REAP_TAKES;
            let lane = self.nodes[*number].lanes[0].lane.clone();
            self.enqueue_one(*number, lane, None, None);
            self.at(Duration::from_millis(1), Event::Poke { node: *number });
        }
        self.probes.away = hosted;
        self.must_stop_within(host, STUCK_BEFORE_THE_STOP + STUCK_STOPS_WITHIN);
        self.at(STUCK_BEFORE_THE_STOP, Event::Fault(Fault::Stop { process: host }));
    }

    fn must_stop_within(&mut self, process: usize, long: Duration) {
        self.probes.stops = Some((process, self.processes[process].incarnation, self.now + long));
    }

    fn check_stops(&mut self) {
        let Some((process, incarnation, _)) = self.probes.stops.filter(|(.., end)| self.now >= *end) else {
            return;
        };
        self.probes.stops = None;
        must("a stop is over in its time", !self.runs(process, incarnation), || {
            format!("{:?}", self.processes[process])
        });
    }

    fn probe_parting(&mut self, long: Duration) {
        self.check_stops();
        let Some(number) = self.probes.away.first().copied() else { return self.go_on_to(Stage::Return) };
        let end = self.nodes[number].away_until;
        if self.now + TICK < end {
            return;
        }
        for number in std::mem::take(&mut self.probes.away) {
            let row = self.store.sessions().get(&self.nodes[number].id);
            must("who left is written as disconnected", row.is_some_and(|row| !row.connected), || {
                format!("node {number} after {long:?}: {row:?}")
            });
            // What it held when it was cut, or refused, goes first.
            let id = &self.nodes[number].id;
            let mut left = self.store.commands().values().filter(|row| !row.state.is_terminal());
            let is_idle = left.all(|row| row.node != *id);
            let free = self.nodes[number].lanes.first().filter(|_| is_idle);
            if let Some(lane) = free.map(|lane| lane.lane.clone()) {
                let id = self.enqueue_one(number, lane, None, None);
                self.probes.waiting.push((number, id));
            }
        }
        self.go_on_to(Stage::Return);
    }

    /// A Hello finds what waits for its node: no poll is needed.
    fn check_found(&mut self) {
        for (number, id) in std::mem::take(&mut self.probes.waiting) {
            let (came, welcomed) = (self.read_at(id), self.nodes[number].welcomed_at);
            let found = came.is_some_and(|came| came >= welcomed && came.since(welcomed) <= POKED_WITHIN);
            must("a Hello finds what waits", found, || format!("{id} at {came:?}, welcomed at {welcomed:?}"));
        }
    }

    /// When a command was read first.
    fn read_at(&self, id: CommandId) -> Option<Moment> {
        let first = self.read.range((id, Attempt(0))..).next();
        first.filter(|((of, _), _)| *of == id).map(|(_, at)| *at)
    }
}

//! What goes wrong in a world, and what that does to whom.
//!
//! Owns the plan of faults and what befalls processes and links; the database's troubles are `weather`'s, what
//! others do with a node's certificate `impostors`', drains are in `drains`. Faults strike only while the world is disturbed.
//!
//! 1. A fault is counted where it meets what it is meant for.
//! 2. A process that stands still gets what came meanwhile when it goes on, in order, with its timers late.

use std::time::Duration;

use gateway_core::frame::{Goodbye, NodeFrame};
use gateway_core::ids::Credits;
use gateway_core::store::Queue;
use gateway_core::time::Moment;
use gateway_core::writer::Writer;

use super::impostors::Rudeness;
use super::{Event, Wire, World};

/// How a connection comes to its end.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cut {
    /// Both sides see it, and what was on its way arrives before.
    Clean,
    /// Both sides see it, and what was on its way is lost.
    Lossy,
    /// The node sees it, the gateway does not.
    GatewayHalfOpen,
    /// The gateway sees it, the node does not.
    NodeHalfOpen,
    /// The node closes its half only.
    HalfClose,
    /// The node says goodbye.
    Goodbye,
}

/// A fault.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    Crash {
        process: usize,
    },
    Stop {
        process: usize,
    },
    Drain {
        process: usize,
    },
    /// By the control API, which takes it back.
    StandingDrain {
        process: usize,
    },
    Pause {
        process: usize,
        millis: u64,
    },
    /// As soon as it renews its lease, and the answer is on its way.
    PauseAtRenewal {
        process: usize,
        millis: u64,
    },
    DatabaseAway {
        process: usize,
        millis: u64,
    },
    LeaseAway {
        process: usize,
        millis: u64,
    },
    DatabaseDown {
        millis: u64,
    },
    DatabaseCrash,
    Slow {
        process: usize,
        queue: Queue,
        millis: u64,
    },
    SlowAnswers {
        process: usize,
        queue: Queue,
        millis: u64,
    },
    ClockJump {
        millis: i64,
    },
    /// The node dials anew beside its session, which is left to whoever notices.
    Redial {
        node: usize,
    },
    Cut {
        node: usize,
        how: Cut,
    },
    BlackHole {
        node: usize,
        millis: u64,
    },
    Storm,
    /// Strangers open streams all at once, and say nothing.
    Herd {
        node: usize,
    },
    Twin {
        node: usize,
        millis: u64,
    },
    /// Another machine takes the session again and again.
    Duel {
        node: usize,
        rounds: u32,
    },
    Rude {
        node: usize,
        how: Rudeness,
    },
    /// Its certificate is revoked, and that is cleared later.
    Revoke {
        node: usize,
        millis: u64,
    },
    Clear {
        node: usize,
    },
    Capacity {
        node: usize,
    },
}

/// Every kind of fault that histories must come to, as it is counted.
pub const FAULTS: [&str; 44] = [
    "crash of a gateway",
    "stop of a gateway",
    "drain of a gateway",
    "drain that the control API asks for",
    "drain taken back",
    "a node leaves a gateway that drains",
    "a gateway stands still",
    "a gateway stands still past its lease",
    "database away for one gateway",
    "database away for the lease alone",
    "database away for all",
    "database crash",
    "database crash loses marks",
    "a job of a dead process commits",
    "slow commits of a queue",
    "a slow commit",
    "slow answers of a queue",
    "commit fails: retry",
    "commit fails: rejected",
    "commit fails: fatal",
    "commit with unknown outcome: done",
    "commit with unknown outcome: not done",
    "clock jumps ahead",
    "clock jumps ahead past a lease",
    "clock jumps back",
    "a node dials beside its session",
    "link cut clean",
    "link cut with frames lost",
    "half-open at the gateway",
    "half-open at the node",
    "node closes its half",
    "node says goodbye",
    "black hole",
    "reconnect storm",
    "a herd of strangers",
    "duplicate identity",
    "two machines in turn",
    "certificate quarantined",
    "certificate revoked",
    "protocol broken",
    "capacity changed",
    "lease taken over",
    "gateway taken for dead",
    "a stream refused",
];

impl World {
    pub(super) fn plan_faults(&mut self) {
        let processes = self.processes.len() as u64;
        for _ in 0..self.chance.within(4..18) {
            let at = self.some_time();
            let process = self.chance.within(0..processes) as usize;
            let node = self.chance.within(0..self.nodes.len() as u64) as usize;
            let chance = &mut self.chance;
            let fault = match chance.within(0..30) {
                0 => Fault::Crash { process },
                1 => Fault::Stop { process },
                2 => Fault::Pause { process, millis: chance.within(200..9_000) },
                3 => Fault::PauseAtRenewal { process, millis: chance.within(1_500..8_000) },
                4 => Fault::DatabaseAway { process, millis: chance.within(50..4_000) },
                5 | 6 => Fault::LeaseAway { process, millis: chance.within(500..6_000) },
                7 => Fault::DatabaseDown { millis: chance.within(50..4_000) },
                8 | 9 => Fault::DatabaseCrash,
                10 => {
                    let queue = *chance.pick(&Queue::ALL);
                    Fault::Slow { process, queue, millis: chance.within(500..5_000) }
                }
                11 => Fault::ClockJump { millis: chance.within(0..12_000) as i64 - 6_000 },
                12 => Fault::Capacity { node },
                13 | 14 => Fault::Cut { node, how: Cut::Clean },
                15 => Fault::Cut { node, how: Cut::Lossy },
                16 => {
                    let how = *chance.pick(&[
                        Cut::GatewayHalfOpen,
                        Cut::NodeHalfOpen,
                        Cut::HalfClose,
                        Cut::Goodbye,
                    ]);
                    Fault::Cut { node, how }
                }
                17 => Fault::BlackHole { node, millis: chance.within(100..9_000) },
                18 => Fault::Storm,
                19 | 20 => Fault::Twin { node, millis: chance.within(20..25_000) },
                21 => Fault::Drain { process },
                22 | 23 => {
                    // What a Hello or a pass found is what other queues overtake.
                    let routes = [Queue::Hellos, Queue::Dispatch];
                    let queue =
                        *if chance.percent(70) { chance.pick(&routes) } else { chance.pick(&Queue::ALL) };
                    Fault::SlowAnswers { process, queue, millis: chance.within(500..5_000) }
                }
                24 | 25 => Fault::Redial { node },
                26 => Fault::Herd { node },
                _ => {
                    let how = *chance.pick(&[
                        Rudeness::NoHello,
                        Rudeness::WrongFirstFrame,
                        Rudeness::TwoHellos,
                        Rudeness::HangsUpBeforeHello,
                        Rudeness::GoesOnAfterGoodbye,
                        Rudeness::GoesOnLater,
                        Rudeness::AnothersCommand,
                        Rudeness::Foretells,
                        Rudeness::Foretells,
                        Rudeness::Meddles,
                        Rudeness::Meddles,
                        Rudeness::Meddles,
                        Rudeness::Meddles,
                    ]);
                    Fault::Rude { node, how }
                }
            };
            self.at(at, Event::Fault(fault));
        }
        if self.chance.percent(30) {
            let node = self.chance.within(0..self.nodes.len() as u64) as usize;
            let duel = Fault::Duel { node, rounds: self.chance.within(2..9) as u32 };
            let at = Duration::from_millis(self.chance.within(500..4_000));
            self.at(at, Event::Fault(duel));
        }
        if self.chance.percent(25) {
            let node = self.chance.within(0..self.nodes.len() as u64) as usize;
            let revoke = Fault::Revoke { node, millis: self.chance.within(200..5_000) };
            let at = self.some_time();
            self.at(at, Event::Fault(revoke));
        }
    }

    pub(super) fn some_time(&mut self) -> Duration {
        Duration::from_millis(self.chance.within(100..self.plan.disturbed_for.as_millis() as u64))
    }

    pub(super) fn is_disturbed(&self) -> bool {
        self.now < Moment::default() + self.plan.disturbed_for
    }

    pub(super) fn note_fault(&mut self, fault: &'static str) {
        self.story.faults += 1;
        self.coverage.note_fault(fault);
    }

    pub(super) fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Crash { process } => self.crash(process),
            Fault::Stop { process } => {
                if self.processes[process].writer.is_some() {
                    self.note_fault("stop of a gateway");
                }
                self.with_writer(process, Writer::handle_stop);
            }
            Fault::Drain { process } => self.drain(process),
            Fault::StandingDrain { process } => self.stand(process),
            Fault::Clear { node } => self.clear(node),
            Fault::Revoke { node, millis } => self.revoke(node, Duration::from_millis(millis)),
            Fault::Pause { process, millis } => self.pause(process, Duration::from_millis(millis)),
            Fault::PauseAtRenewal { process, millis } => {
                self.processes[process].sleeps_at_renewal = Some(Duration::from_millis(millis));
            }
            Fault::DatabaseAway { process, millis } => {
                self.note_fault("database away for one gateway");
                self.processes[process].database_away_until = self.now + Duration::from_millis(millis);
            }
            Fault::LeaseAway { process, millis } => {
                self.note_fault("database away for the lease alone");
                self.processes[process].lease_away_until = self.now + Duration::from_millis(millis);
            }
            Fault::DatabaseDown { millis } => {
                self.note_fault("database away for all");
                self.weather.down_until = self.now + Duration::from_millis(millis);
            }
            Fault::DatabaseCrash if self.chance.percent(50) => self.database_crash(),
            Fault::DatabaseCrash => self.weather.crash_is_near = true,
            Fault::Slow { process, queue, millis } => {
                self.note_fault("slow commits of a queue");
                self.processes[process].slow = Some((queue, self.now + Duration::from_millis(millis)));
            }
            Fault::SlowAnswers { process, queue, millis } => {
                let long = Duration::from_millis(millis);
                self.slow_answers(process, queue, long);
            }
            Fault::ClockJump { millis } => self.clock_jump(millis),
            Fault::Redial { node } => self.redial(node),
            Fault::Cut { node, how } => self.cut(node, how),
            Fault::BlackHole { node, millis } => self.black_hole(node, Duration::from_millis(millis)),
            Fault::Storm => {
                self.note_fault("reconnect storm");
                for node in 0..self.nodes.len() {
                    self.cut(node, Cut::Lossy);
                    let wait = Duration::from_micros(self.chance.within(1_000..5_000));
                    self.nodes[node].handle_ended(wait, self.now);
                    self.pump_node(node);
                }
            }
            Fault::Herd { node } => self.herd(node),
            Fault::Twin { node, millis } => self.twin(node, Duration::from_millis(millis)),
            Fault::Duel { node, rounds } => self.duel(node, rounds),
            Fault::Rude { node, how } => self.rude(node, how),
            Fault::Capacity { node } => {
                self.note_fault("capacity changed");
                let lane = self.chance.within(0..self.nodes[node].lanes.len() as u64) as usize;
                let capacity = Credits(self.chance.within(1..5) as u32);
                self.nodes[node].handle_capacity(lane, capacity);
                self.pump_node(node);
            }
        }
    }

    // -- gateways --------------------------------------------------------------------------------

    pub(super) fn crash(&mut self, process: usize) {
        if self.processes[process].writer.is_none() {
            return;
        }
        self.note_fault("crash of a gateway");
        let flights = std::mem::take(&mut self.processes[process].flights);
        for flight in flights.into_values().filter(|flight| flight.outcome.is_none()) {
            if self.chance.percent(50) {
                let wait = Duration::from_millis(self.chance.within(1..1_500));
                self.at(wait, Event::Straggler { flight: Box::new(flight) });
            }
        }
        self.end_process(process);
        let wait = Duration::from_millis(self.chance.within(100..3_000));
        self.at(wait, Event::Start { process });
    }

    pub(super) fn pause(&mut self, process: usize, long: Duration) {
        let gateway = &mut self.processes[process];
        if gateway.writer.is_none() || self.now < gateway.asleep_until {
            return;
        }
        gateway.asleep_until = self.now + long;
        gateway.is_dazed = true;
        self.note_fault("a gateway stands still");
        if long > Duration::from_secs(4) {
            self.note_fault("a gateway stands still past its lease");
        }
    }

    pub(super) fn slow_answers(&mut self, process: usize, queue: Queue, long: Duration) {
        self.note_fault("slow answers of a queue");
        self.processes[process].slow_answers = Some((queue, self.now + long));
    }

    // -- links -----------------------------------------------------------------------------------

    /// Often its Hello is heard of late, so that what its older session still tells overtakes that.
    fn redial(&mut self, number: usize) {
        if !self.nodes[number].is_live() {
            return;
        }
        self.note_fault("a node dials beside its session");
        self.dial(number);
        self.pump_node(number);
        if let Some(process) = self.host_of(number).filter(|_| self.chance.percent(50)) {
            self.slow_answers(process, Queue::Hellos, Duration::from_secs(1));
        }
    }

    pub(super) fn cut(&mut self, number: usize, how: Cut) {
        let Some(link) = self.nodes[number].link else { return };
        let Some(of) = self.links.get_mut(&link) else { return };
        match how {
            Cut::Clean => {
                self.note_fault("link cut clean");
                self.along(Wire::Up(link), Event::UpEnds { link, half_close: false });
                self.node_ended(number);
            }
            Cut::Lossy => {
                of.up_is_lost = true;
                self.note_fault("link cut with frames lost");
                self.at(Duration::from_millis(1), Event::UpEnds { link, half_close: false });
                self.node_ended(number);
            }
            Cut::GatewayHalfOpen => {
                of.up_is_lost = true;
                self.note_fault("half-open at the gateway");
                self.node_ended(number);
            }
            Cut::NodeHalfOpen => {
                (of.up_is_lost, of.down_is_lost) = (true, true);
                self.note_fault("half-open at the node");
                self.at(Duration::from_millis(1), Event::UpEnds { link, half_close: false });
            }
            Cut::HalfClose => {
                self.note_fault("node closes its half");
                self.along(Wire::Up(link), Event::UpEnds { link, half_close: true });
                if self.chance.percent(50) {
                    self.node_ended(number);
                }
            }
            Cut::Goodbye => {
                self.note_fault("node says goodbye");
                let frame = NodeFrame::Goodbye(Goodbye { reason: "on purpose".into() });
                self.along(Wire::Up(link), Event::Up { link, frame });
            }
        }
    }

    fn black_hole(&mut self, number: usize, long: Duration) {
        let Some(link) = self.nodes[number].link else { return };
        self.note_fault("black hole");
        for wire in [Wire::Up(link), Wire::Down(link)] {
            let until = self.now + long;
            let last = self.wires.entry(wire).or_default();
            *last = until.max(*last);
        }
    }
}

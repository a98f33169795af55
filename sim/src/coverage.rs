//! What histories came to: each state and event of the machines' tables, and each kind of fault.
//!
//! Owns the counts and how they are shown. It is told from outside what a machine was in and what it was
//! given, so no machine counts anything for it, and no history goes otherwise for being counted.
//!
//! 1. A cell of a table that no history can come to stands in `out_of_reach`, with the reason.
//! 2. A fault is counted when it meets what it is meant for: a cut link that was open, a crash of a process
//!    that ran.

use std::collections::BTreeMap;
use std::fmt;

use gateway_core::command::CommandState;
use gateway_core::seam::SessionNews;
use gateway_core::session::{Phase, SessionEvent};
use gateway_core::writer::{LeaseEvent, LeaseState};

/// How often each event came in each state of one machine.
#[derive(Debug, Clone)]
struct Table {
    states: Vec<String>,
    events: Vec<String>,
    hits: Vec<u64>,
}

/// As they are named in the sources.
fn named<T: fmt::Debug>(all: &[T]) -> Vec<String> {
    all.iter().map(|one| format!("{one:?}")).collect()
}

impl Table {
    fn new(states: Vec<String>, events: Vec<String>) -> Self {
        let hits = vec![0; states.len() * events.len()];
        Self { states, events, hits }
    }

    fn note(&mut self, state: usize, event: usize) {
        self.hits[state * self.events.len() + event] += 1;
    }

    fn add(&mut self, other: &Self) {
        self.hits.iter_mut().zip(&other.hits).for_each(|(sum, more)| *sum += more);
    }

    fn cells(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        let place = |(place, hits): (usize, &u64)| {
            let (state, event) = (place / self.events.len(), place % self.events.len());
            (self.states[state].as_str(), self.events[event].as_str(), *hits)
        };
        self.hits.iter().enumerate().map(place)
    }
}

/// What one history came to, or many together.
#[derive(Debug, Clone)]
pub struct Coverage {
    session: Table,
    lease: Table,
    command: Table,
    faults: BTreeMap<&'static str, u64>,
}

impl Default for Coverage {
    fn default() -> Self {
        let states: Vec<String> = CommandState::ALL.iter().map(ToString::to_string).collect();
        Self {
            session: Table::new(named(&Phase::ALL), named(&SessionEvent::ALL)),
            lease: Table::new(named(&LeaseState::ALL), named(&LeaseEvent::ALL)),
            command: Table::new(states.clone(), states),
            faults: BTreeMap::new(),
        }
    }
}

impl Coverage {
    pub(crate) fn note_session(&mut self, phase: Phase, event: SessionEvent) {
        self.session.note(phase as usize, event as usize);
    }

    pub(crate) fn note_lease(&mut self, state: LeaseState, event: LeaseEvent) {
        self.lease.note(state as usize, event as usize);
    }

    /// An update that reports one state met a row in another.
    pub(crate) fn note_command(&mut self, stored: CommandState, reported: CommandState) {
        self.command.note(stored as usize, reported as usize);
    }

    pub(crate) fn note_fault(&mut self, fault: &'static str) {
        *self.faults.entry(fault).or_default() += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.session.add(&other.session);
        self.lease.add(&other.lease);
        self.command.add(&other.command);
        for (fault, times) in &other.faults {
            *self.faults.entry(fault).or_default() += times;
        }
    }

    /// How often each kind of fault came.
    pub fn faults(&self) -> &BTreeMap<&'static str, u64> {
        &self.faults
    }

    /// Cells that no history came to though one can, as `machine: state + event`.
    pub fn missed(&self) -> Vec<String> {
        let cells = self.cells().filter(|cell| cell.3 == 0 && out_of_reach(cell.0, cell.1, cell.2).is_none());
        cells.map(|(machine, state, event, _)| format!("{machine}: {state} + {event}")).collect()
    }

    /// Cells that a history came to though they are said to be out of reach.
    pub fn wrongly_out_of_reach(&self) -> Vec<String> {
        let cells = self.cells().filter(|cell| cell.3 > 0 && out_of_reach(cell.0, cell.1, cell.2).is_some());
        cells.map(|(machine, state, event, _)| format!("{machine}: {state} + {event}")).collect()
    }

    fn cells(&self) -> impl Iterator<Item = (&'static str, &str, &str, u64)> {
        let named = [("session", &self.session), ("lease", &self.lease), ("command", &self.command)];
        named.into_iter().flat_map(|(machine, table)| {
            table.cells().map(move |(state, event, hits)| (machine, state, event, hits))
        })
    }
}

/// What news of the writer is to a session.
pub(crate) fn event_of(news: &SessionNews) -> SessionEvent {
    match news {
        SessionNews::Granted(_) => SessionEvent::Granted,
        SessionNews::Stored { .. }
        | SessionNews::EventsStored { .. }
        | SessionNews::NotStored { .. }
        | SessionNews::SectionStored { .. }
        | SessionNews::SectionNotStored { .. } => SessionEvent::Answer,
        SessionNews::InventoryWanted(_)
        | SessionNews::InventoryNotLooked
        | SessionNews::Commands(_)
        | SessionNews::Cancel(_)
        | SessionNews::Specs(_) => SessionEvent::Order,
        SessionNews::Close(_) => SessionEvent::Close,
    }
}

/// Why no history comes to a cell; `None` where one must.
fn out_of_reach(machine: &str, state: &str, event: &str) -> Option<&'static str> {
    const STRAY: &str = "only a fault of our own: the machine asserts against it";
    const BY_ITSELF: &str = "a step that a session takes by itself, where it leads on";
    const TAKEN_AT_ONCE: &str = "a simulated driver takes what is left at once";
    const GONE: &str = "a session that ended is gone";
    const NOT_ASKED: &str = "no lease job is under way there";
    const NOT_BEGUN: &str = "none is begun there";
    const NOT_REPORTABLE: &str = "no session lets a node report it";
    match (machine, state, event) {
        ("session", "Ended", _) => Some(GONE),
        ("session", "Finishing", "AllAnswered") | ("session", "Farewell", "AllTaken") => None,
        ("session", "Opening", "HelloLate") | ("session", "Live", "Silence") => None,
        ("session", _, "AllAnswered" | "AllTaken" | "HelloLate" | "Silence") => Some(BY_ITSELF),
        ("session", "Farewell", _) => Some(TAKEN_AT_ONCE),
        ("session", "Opening", "Granted" | "Answer" | "Order") => Some(STRAY),
        ("session", "Greeting" | "GreetingLast", "Answer" | "Order") => Some(STRAY),
        ("session", "Live" | "Finishing", "Granted") => Some(STRAY),
        ("lease", "Held" | "Renewing", "Overdue" | "RoutingRefused") => None,
        ("lease", _, "Overdue" | "RoutingRefused") => Some("it counts only while the lease is held"),
        ("lease", "Unheld" | "Held", "AttemptTaken") | ("lease", "Held" | "Parting", "ReleaseTaken") => None,
        ("lease", _, "AttemptTaken" | "ReleaseTaken") => Some(NOT_BEGUN),
        ("lease", "Releasing", "Released" | "NotCommitted") => None,
        ("lease", "Releasing", _) => Some("a release has no such answer"),
        ("lease", "Acquiring" | "Renewing" | "Fenced", "Released") => Some("only a release has that answer"),
        ("lease", "Unheld" | "Held" | "Parting" | "Released", _) => Some(NOT_ASKED),
        ("command", _, "pending" | "dispatched" | "expired") => Some(NOT_REPORTABLE),
        _ => None,
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (machine, state, event, hits) in self.cells() {
            match out_of_reach(machine, state, event) {
                Some(why) if hits == 0 => {
                    writeln!(f, "{machine:8} {state:13} {event:15} {:>10}  {why}", "-")?
                }
                _ => writeln!(f, "{machine:8} {state:13} {event:15} {hits:>10}")?,
            }
        }
        for (fault, times) in &self.faults {
            writeln!(f, "fault    {fault:29} {times:>10}")?;
        }
        Ok(())
    }
}

//! What happens to a running gateway, in one queue: threads that end, phases, signals.
//!
//! A thread of its own waits for each of the gateway's threads and says how it ended, so that nobody
//! polls and nothing is missed.
//!
//! 1. Every thread that was started is reported ended exactly once, also one that can't be waited for.
//! 2. An end that nobody asked for is a fault, whatever its outcome.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crossbeam_channel::Sender;
use gateway_core::writer::Phase;

use crate::error::GatewayError;

/// The name of the thread whose end ends the shards too.
pub(super) const WRITER_THREAD: &str = "db-writer";
/// Enough for a thread that only waits for another.
const WATCHER_STACK_BYTES: usize = 128 << 10;

/// Something that the gateway's owner must know.
#[derive(Debug)]
pub(super) enum Event {
    /// A thread has ended.
    Ended { thread: String, end: End },
    /// The writer is in another phase.
    Phase(Phase),
    /// The process was sent this signal.
    Signal(i32),
}

/// How a thread ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    Done,
    /// The sentence says why.
    Failed(String),
    /// It can't go on without the writer, whose own end is the cause and is reported too.
    Orphaned,
}

impl<E: std::fmt::Display> From<Result<(), E>> for End {
    fn from(outcome: Result<(), E>) -> Self {
        outcome.map_or_else(|error| Self::Failed(error.to_string()), |()| Self::Done)
    }
}

/// Waits for a thread's end on a thread of its own, and says how it was.
pub(super) fn watch(
    thread: String,
    events: &Sender<Event>,
    join: impl FnOnce() -> End + Send + 'static,
) -> Result<(), GatewayError> {
    let events = events.clone();
    let watcher = format!("watch {thread}");
    let wait = move || {
        let waited = catch_unwind(AssertUnwindSafe(join));
        let end =
            waited.unwrap_or_else(|_| End::Failed("how it ended can't be told; see the log".to_owned()));
        // Nobody listens any more when the gateway was given up.
        let _ = events.send(Event::Ended { thread, end });
    };
    std::thread::Builder::new()
        .name(watcher)
        .stack_size(WATCHER_STACK_BYTES)
        .spawn(wait)
        .map(drop)
        .map_err(|error| GatewayError::Machine(format!("a thread can't be started: {error}")))
}

/// Who still runs, and whether what ends was asked to.
#[derive(Debug, Default)]
pub(super) struct Supervision {
    running: BTreeSet<String>,
    drain_asked: bool,
    stop_asked: bool,
    fault: Option<String>,
}

/// What a thread's end means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Others still run, as they should.
    GoOn,
    /// All have ended as asked.
    AllEnded,
    /// A gateway that was not asked to stop can't go on; the sentence says why.
    Fault(String),
}

impl Supervision {
    /// A thread was started.
    pub(super) fn handle_started(&mut self, thread: String) {
        self.running.insert(thread);
    }

    /// What ends well from now on may have been asked to, by the stop that follows the drain: its phase is
    /// told by another thread, and may come later.
    pub(super) fn handle_drain_asked(&mut self) {
        self.drain_asked = true;
    }

    /// What ends from now on was asked to.
    pub(super) fn handle_stop_asked(&mut self) {
        self.stop_asked = true;
    }

    /// A thread has ended.
    pub(super) fn handle_ended(&mut self, thread: &str, end: End) -> Meaning {
        self.running.remove(thread);
        self.stop_asked |= self.drain_asked && end == End::Done;
        match end {
            // The cause is on its way: the fault must name it, and not what follows from it.
            End::Orphaned if self.running.contains(WRITER_THREAD) => return Meaning::GoOn,
            End::Failed(why) if !self.stop_asked => {
                return Meaning::Fault(format!("the thread {thread} has failed: {why}"));
            }
            End::Done | End::Orphaned if !self.stop_asked => {
                return Meaning::Fault(format!("the thread {thread} has ended unasked"));
            }
            // The first fault of a stop is its cause; others follow from it.
            End::Failed(why) if self.fault.is_none() => {
                self.fault = Some(format!("while stopping, the thread {thread} has failed: {why}"));
            }
            End::Done | End::Orphaned | End::Failed(_) => {}
        }
        match (self.running.is_empty(), self.fault.take()) {
            (true, Some(fault)) => Meaning::Fault(fault),
            (true, None) => Meaning::AllEnded,
            (false, fault) => {
                self.fault = fault;
                Meaning::GoOn
            }
        }
    }

    /// Whether a drain or a stop was asked for.
    pub(super) const fn is_leaving(&self) -> bool {
        self.drain_asked || self.stop_asked
    }

    /// Whether a stop was asked for.
    pub(super) const fn is_stopping(&self) -> bool {
        self.stop_asked
    }

    /// Whether a thread still runs.
    pub(super) fn somebody_runs(&self) -> bool {
        !self.running.is_empty()
    }

    /// Whether only the control thread still runs.
    pub(super) fn only_runs(&self, thread: &str) -> bool {
        self.running.iter().all(|running| running == thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the gateway's owner makes of the end of a real thread named `shard-0`.
    fn meaning_of(join: impl FnOnce() -> End + Send + 'static) -> Meaning {
        let (sender, events) = crossbeam_channel::unbounded();
        watch("shard-0".to_owned(), &sender, join).expect("a thread");
        match events.recv().expect("its end is told") {
            Event::Ended { thread, end } => started().handle_ended(&thread, end),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_real_thread_that_panics_ends_the_gateway_with_what_it_said() {
        let thread = std::thread::spawn(|| {
            let rows: Vec<u32> = Vec::new();
            assert!(!rows.is_empty(), "row 7 is odd");
        });
        let meaning = meaning_of(move || match thread.join() {
            Ok(()) => End::Done,
            Err(panic) => End::Failed(panic.downcast_ref::<&str>().copied().unwrap_or("no text").to_owned()),
        });
        assert_eq!(meaning, Meaning::Fault("the thread shard-0 has failed: row 7 is odd".to_owned()));
    }

    #[test]
    fn a_thread_that_can_not_be_waited_for_ends_the_gateway_too() {
        let meaning = meaning_of(|| panic!("no outcome"));
        assert!(matches!(&meaning, Meaning::Fault(why) if why.contains("shard-0")), "{meaning:?}");
    }

    fn started() -> Supervision {
        let mut supervision = Supervision::default();
        for thread in ["shard-0", "db-writer"] {
            supervision.handle_started(thread.to_owned());
        }
        supervision
    }

    #[test]
    fn a_thread_that_ends_unasked_ends_the_gateway() {
        let fault = started().handle_ended("shard-0", End::Done);
        assert_eq!(fault, Meaning::Fault("the thread shard-0 has ended unasked".to_owned()));
        let fault = started().handle_ended("db-writer", End::Failed("it panicked".to_owned()));
        assert_eq!(fault, Meaning::Fault("the thread db-writer has failed: it panicked".to_owned()));
    }

    #[test]
    fn the_fault_names_the_writer_and_not_the_shard_that_lost_it() {
        let mut supervision = started();
        assert_eq!(supervision.handle_ended("shard-0", End::Orphaned), Meaning::GoOn);
        let fault = supervision.handle_ended(WRITER_THREAD, End::Failed("run `gateway migrate`".to_owned()));
        assert_eq!(
            fault,
            Meaning::Fault("the thread db-writer has failed: run `gateway migrate`".to_owned())
        );
    }

    #[test]
    fn a_thread_that_fails_during_a_drain_is_a_fault_and_one_that_ends_well_is_not() {
        let mut supervision = started();
        supervision.handle_drain_asked();
        assert!(supervision.is_leaving() && !supervision.is_stopping());
        let fault = supervision.handle_ended("shard-0", End::Failed("it panicked".to_owned()));
        assert_eq!(fault, Meaning::Fault("the thread shard-0 has failed: it panicked".to_owned()));

        let mut supervision = started();
        supervision.handle_drain_asked();
        assert_eq!(supervision.handle_ended("shard-0", End::Done), Meaning::GoOn);
        assert!(supervision.is_stopping(), "that was the stop");
        assert_eq!(supervision.handle_ended("db-writer", End::Done), Meaning::AllEnded);
    }

    #[test]
    fn a_stop_is_over_when_all_have_ended() {
        let mut supervision = started();
        supervision.handle_stop_asked();
        assert_eq!(supervision.handle_ended("shard-0", End::Done), Meaning::GoOn);
        assert_eq!(supervision.handle_ended("db-writer", End::Done), Meaning::AllEnded);
    }

    #[test]
    fn a_fault_while_stopping_is_told_at_the_end_with_its_first_cause() {
        let mut supervision = started();
        supervision.handle_stop_asked();
        assert_eq!(supervision.handle_ended("db-writer", End::Failed("no".to_owned())), Meaning::GoOn);
        assert_eq!(
            supervision.handle_ended("shard-0", End::Failed("the writer is gone".to_owned())),
            Meaning::Fault("while stopping, the thread db-writer has failed: no".to_owned())
        );
    }
}

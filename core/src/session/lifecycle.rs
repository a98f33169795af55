//! The life of a session, as a table: what each event does in each phase.
//!
//! It decides what becomes of the session, never what an event carries: the machine reads the
//! step and does the rest.
//!
//! 1. `Ended` is final: nothing leads out of it.
//! 2. Only `Granted` leads out of the two phases that wait for the Hello's outcome, but for an end.
//! 3. What a node may cause is `Drop` or an end. `Stray` marks what only a fault of our own can
//!    cause; it is ignored, and asserted against in debug builds.

use crate::close::CloseReason;
use crate::limits::Limits;

/// Where a session is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The stream is open; the Hello has not come.
    Opening,
    /// The Hello waits for its outcome; what the node sends meanwhile is queued.
    Greeting,
    /// As `Greeting`, and the node sends nothing more.
    GreetingLast,
    /// `Welcome` was given; frames flow both ways.
    Live,
    /// The node sends nothing more; what it sent is still being stored.
    Finishing,
    /// All that the node sent has its answer; the last answers wait to be taken.
    Farewell,
    Ended,
}

impl Phase {
    /// In the order of a life.
    pub const ALL: [Self; 7] = [
        Self::Opening,
        Self::Greeting,
        Self::GreetingLast,
        Self::Live,
        Self::Finishing,
        Self::Farewell,
        Self::Ended,
    ];
}

/// What can happen to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Hello,
    /// Any frame but Hello and Goodbye.
    Frame,
    Goodbye,
    HalfClose,
    /// The writer made the Hello durable.
    Granted,
    /// The writer has the outcome of the durable frame.
    Answer,
    /// The writer has a command or a cancellation for the node.
    Order,
    /// Nothing that the node sent waits for an answer.
    AllAnswered,
    /// Every answer was taken by the driver.
    AllTaken,
    /// The Hello did not come in time.
    HelloLate,
    /// The node was silent for too long.
    Silence,
    /// The gateway drains.
    Drain,
    /// Someone else ends the session, with a reason.
    Close,
}

impl Event {
    /// In the order of the enum.
    pub const ALL: [Self; 13] = [
        Self::Hello,
        Self::Frame,
        Self::Goodbye,
        Self::HalfClose,
        Self::Granted,
        Self::Answer,
        Self::Order,
        Self::AllAnswered,
        Self::AllTaken,
        Self::HelloLate,
        Self::Silence,
        Self::Drain,
        Self::Close,
    ];
}

/// What an event does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The event is taken and the phase stays.
    Stay,
    To(Phase),
    End(Ending),
    /// The event comes too late to matter; it is ignored.
    Drop,
    /// The event cannot happen here, unless by a fault of our own.
    Stray,
}

/// Why the table ends a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Finished,
    WrongFirstFrame,
    SecondHello,
    NoHello,
    Silence,
    /// For the reason that came with the event.
    AsGiven,
}

impl Ending {
    /// What the node is told; `None` where the reason came with the event.
    pub(super) fn reason(self, limits: &Limits) -> Option<CloseReason> {
        let sentence = match self {
            Self::AsGiven => return None,
            Self::Finished => return Some(CloseReason::Finished),
            Self::Silence => return Some(CloseReason::HeartbeatTimeout),
            Self::WrongFirstFrame => "the first frame of a session must be Hello".to_owned(),
            Self::SecondHello => "a session has one Hello; this is the second".to_owned(),
            Self::NoHello => format!(
                "no Hello came within {:?} of the stream's opening (sessions.hello_timeout)",
                limits.hello_timeout
            ),
        };
        Some(CloseReason::Protocol(sentence))
    }
}

impl Phase {
    /// What `event` does in this phase.
    pub(super) const fn on(self, event: Event) -> Step {
        use Event as E;
        use Step::{Drop, End, Stay, Stray, To};
        match (self, event) {
            (Self::Ended, _) => Drop,
            (_, E::Close) => End(Ending::AsGiven),

            (Self::Opening, E::Hello) => To(Self::Greeting),
            (Self::Opening, E::Frame | E::Goodbye) => End(Ending::WrongFirstFrame),
            (Self::Opening, E::HalfClose) => End(Ending::Finished),
            (Self::Opening, E::HelloLate) => End(Ending::NoHello),

            (Self::Greeting | Self::Live, E::Hello) => End(Ending::SecondHello),
            (Self::Greeting | Self::Live, E::Frame) => Stay,
            (Self::Greeting, E::Goodbye | E::HalfClose) => To(Self::GreetingLast),
            (Self::Live, E::Goodbye | E::HalfClose) => To(Self::Finishing),
            (
                Self::GreetingLast | Self::Finishing | Self::Farewell,
                E::Hello | E::Frame | E::Goodbye | E::HalfClose,
            ) => Drop,

            (Self::Greeting, E::Granted) => To(Self::Live),
            (Self::GreetingLast, E::Granted) => To(Self::Finishing),
            (Self::Live | Self::Finishing, E::Answer) => Stay,
            (Self::Live, E::Order) => Stay,
            // The node could not report on it here; its next Hello brings it again.
            (Self::Finishing | Self::Farewell, E::Order) => Drop,
            (_, E::Granted | E::Answer | E::Order) => Stray,

            (Self::Opening | Self::Greeting | Self::GreetingLast, E::Drain) => End(Ending::AsGiven),
            (Self::Live, E::Drain) => Stay,
            (Self::Finishing | Self::Farewell, E::Drain) => Drop,

            (Self::Finishing, E::AllAnswered) => To(Self::Farewell),
            (Self::Farewell, E::AllTaken) => End(Ending::Finished),
            (Self::Live, E::Silence) => End(Ending::Silence),
            (_, E::AllAnswered | E::AllTaken | E::HelloLate | E::Silence) => Stay,
        }
    }

    /// Whether the Hello has neither an outcome nor lost the chance of one.
    pub(super) const fn awaits_hello_outcome(self) -> bool {
        matches!(self, Self::Opening | Self::Greeting | Self::GreetingLast)
    }

    /// Whether queued frames may go to the writer.
    pub(super) const fn stores(self) -> bool {
        matches!(self, Self::Live | Self::Finishing)
    }

    /// Whether the writer is owed the session's `Closed`, where it knows of the session.
    pub(super) const fn is_over_for_writer(self) -> bool {
        matches!(self, Self::Farewell | Self::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_and_event_has_its_step() {
        let mut table = String::new();
        for phase in Phase::ALL {
            for event in Event::ALL {
                table.push_str(&format!("{phase:?} + {event:?} = {:?}\n", phase.on(event)));
            }
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn nothing_leads_out_of_the_end() {
        for event in Event::ALL {
            assert_eq!(Phase::Ended.on(event), Step::Drop);
        }
    }

    #[test]
    fn what_a_node_sends_is_never_taken_for_a_fault_of_ours() {
        for phase in Phase::ALL {
            for event in [Event::Hello, Event::Frame, Event::Goodbye, Event::HalfClose] {
                assert_ne!(phase.on(event), Step::Stray, "{phase:?} + {event:?}");
            }
        }
    }
}

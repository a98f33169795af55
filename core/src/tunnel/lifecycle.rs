//! The life of a tunnel, as a table: what each event does in each phase.
//!
//! It decides what becomes of the tunnel, never what an event carries: the registry reads the step and does
//! the rest. A tunnel that is over is not in the registry any more, so no phase stands for it.
//!
//! 1. A tunnel is joined once, and only after it was offered.
//! 2. Each side closes its half once; the tunnel goes on until the node's stream ends.
//! 3. Before it is joined nothing but an end can come from either side.

/// Where a tunnel is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The shards are asked for the node's session.
    Sought,
    /// The node was told; its stream has not come.
    Offered,
    /// Frames flow both ways.
    Open,
    /// The caller has closed its half.
    CallerDone,
    /// The node has closed its half.
    NodeDone,
    /// Both have; the exit status may still come.
    BothDone,
}

impl Phase {
    /// In the order of a life.
    pub const ALL: [Self; 6] =
        [Self::Sought, Self::Offered, Self::Open, Self::CallerDone, Self::NodeDone, Self::BothDone];
}

/// What can happen to a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The node's session was found.
    Found,
    /// No shard has one.
    NotFound,
    /// The node refuses.
    Refused,
    /// The node's stream came.
    Joined,
    CallerHalfClose,
    NodeHalfClose,
    /// The node's stream is over.
    NodeEnded,
    /// The open has taken too long.
    OpenLate,
    /// It is time to ask whether the caller is still allowed.
    AskIam,
    /// Anything else ends it, with a reason.
    Close,
}

impl Event {
    /// In the order of the enum.
    pub const ALL: [Self; 10] = [
        Self::Found,
        Self::NotFound,
        Self::Refused,
        Self::Joined,
        Self::CallerHalfClose,
        Self::NodeHalfClose,
        Self::NodeEnded,
        Self::OpenLate,
        Self::AskIam,
        Self::Close,
    ];
}

/// What an event does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The event is taken and the phase stays.
    Stay,
    To(Phase),
    /// The tunnel is over.
    End,
    /// The event comes too late, or is of no matter here; it is ignored.
    Drop,
    /// A peer did what it may not: it is refused, and the tunnel stays as it is.
    Refuse,
}

impl Phase {
    /// What `event` does in this phase.
    pub const fn on(self, event: Event) -> Step {
        use Event as E;
        use Step::{Drop, End, Refuse, Stay, To};
        match (self, event) {
            (_, E::Close) => End,

            (Self::Sought, E::Found) => To(Self::Offered),
            (Self::Sought, E::NotFound) => End,
            (_, E::Found | E::NotFound) => Drop,

            (Self::Offered, E::Refused) => End,
            (_, E::Refused) => Drop,

            (Self::Offered, E::Joined) => To(Self::Open),
            (_, E::Joined) => Refuse,

            (Self::Sought | Self::Offered, E::OpenLate) => End,
            (_, E::OpenLate) => Drop,

            (Self::Open, E::CallerHalfClose) => To(Self::CallerDone),
            (Self::NodeDone, E::CallerHalfClose) => To(Self::BothDone),
            (_, E::CallerHalfClose) => Drop,

            (Self::Open, E::NodeHalfClose) => To(Self::NodeDone),
            (Self::CallerDone, E::NodeHalfClose) => To(Self::BothDone),
            (_, E::NodeHalfClose) => Drop,

            (Self::Sought | Self::Offered, E::NodeEnded) => Drop,
            (_, E::NodeEnded) => End,

            (Self::Sought | Self::Offered, E::AskIam) => Drop,
            (_, E::AskIam) => Stay,
        }
    }

    /// Whether the node's stream is there.
    pub const fn is_joined(self) -> bool {
        !matches!(self, Self::Sought | Self::Offered)
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
    fn a_tunnel_is_joined_once_and_only_when_it_was_offered() {
        let joins: Vec<Phase> =
            Phase::ALL.into_iter().filter(|phase| phase.on(Event::Joined) != Step::Refuse).collect();
        assert_eq!(joins, [Phase::Offered]);
    }
}

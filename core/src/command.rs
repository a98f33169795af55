//! The life of a command: its states and which of them an update may lead to.
//!
//! The database decides (under the row's lock) with the same table; the model conformance tests
//! hold the two together.
//!
//! 1. A terminal state never changes; but a `Canceled` or `Expired` that was set while the mark of a
//!    dispatch was lost (a crash of the database) yields to what the node then shows to have begun.
//! 2. What a node knows of a command wins over what the database forgot: an update of a row that
//!    looks `Pending` adopts it.
//! 3. A state never goes back, but for a retryable refusal, which makes a new attempt.

use std::fmt;

/// Where a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CommandState {
    Pending,
    Dispatched,
    Accepted,
    Running,
    Succeeded,
    Failed,
    Canceled,
    Expired,
    Refused,
}

/// What an update does to a row of the same attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// The row takes the reported state.
    Apply,
    /// The row has that state, or a later one that is not terminal; nothing changes.
    Repeat,
    /// The row is terminal in another state, which stays.
    Conflict,
}

impl CommandState {
    /// All states, in the order of a life.
    pub const ALL: [Self; 9] = [
        Self::Pending,
        Self::Dispatched,
        Self::Accepted,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::Canceled,
        Self::Expired,
        Self::Refused,
    ];

    /// The state's name in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Dispatched => "dispatched",
            Self::Accepted => "accepted",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
            Self::Expired => "expired",
            Self::Refused => "refused",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Whether the command's life has ended.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Canceled | Self::Expired | Self::Refused)
    }

    /// Whether the command takes one of its lane's credits.
    pub const fn is_in_flight(self) -> bool {
        matches!(self, Self::Dispatched | Self::Accepted | Self::Running)
    }

    /// Whether a node may report this state.
    pub const fn is_reportable(self) -> bool {
        matches!(
            self,
            Self::Accepted | Self::Running | Self::Succeeded | Self::Failed | Self::Canceled | Self::Refused
        )
    }

    /// Whether this end, of a row whose attempt has no mark of a dispatch, yields to a node that has the
    /// command in `reported`: the mark was lost, and the command has begun.
    pub const fn yields_to(self, reported: Self) -> bool {
        matches!(self, Self::Canceled | Self::Expired)
            && (reported.is_in_flight() || matches!(reported, Self::Succeeded | Self::Failed))
    }

    /// What a report of `reported` does to a row in this state.
    pub const fn on_report(self, reported: Self) -> Transition {
        if self.is_terminal() {
            return if self as u8 == reported as u8 { Transition::Repeat } else { Transition::Conflict };
        }
        if reported.is_terminal() || (reported as u8) > (self as u8) {
            Transition::Apply
        } else {
            Transition::Repeat
        }
    }
}

impl fmt::Display for CommandState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_and_report_has_its_transition() {
        let mut table = String::new();
        for stored in CommandState::ALL {
            for reported in CommandState::ALL.into_iter().filter(|state| state.is_reportable()) {
                table.push_str(&format!("{stored} + {reported} = {:?}\n", stored.on_report(reported)));
            }
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn a_terminal_state_never_changes() {
        for stored in CommandState::ALL.into_iter().filter(|state| state.is_terminal()) {
            for reported in CommandState::ALL {
                assert_ne!(stored.on_report(reported), Transition::Apply);
            }
        }
    }
}

//! What a Hello means for one command that the node may have.
//!
//! 1. A terminal row stays as it is.
//! 2. What the node lists, of the current attempt or a later one, it has: it is not sent again, and
//!    a row that lags behind takes over what the node knows. A listed end is not stored: its result
//!    comes with the update that the node still owes.
//! 3. What is in flight and not listed is sent again, unless its time has passed.

use gateway_core::command::CommandState;
use gateway_core::frame::KnownCommand;
use gateway_core::ids::Attempt;

/// What becomes of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is not in flight, and the Hello changes nothing.
    Rest,
    /// The node has it. The row takes this state and attempt, where they differ.
    Adopt { state: CommandState, attempt: Attempt },
    /// It is sent again.
    Replay,
    /// It is in flight, the node does not have it, and its time has passed.
    Expire,
}

/// The fate of a row in `state` of `attempt`, of which the node lists `known`.
pub(super) fn fate(
    state: CommandState,
    attempt: Attempt,
    too_late: bool,
    known: Option<&KnownCommand>,
) -> Fate {
    if state.is_terminal() {
        return Fate::Rest;
    }
    match known {
        Some(known) if known.attempt >= attempt => {
            let evidence = if known.state.is_in_flight() { known.state } else { CommandState::Dispatched };
            let state = if known.attempt > attempt { evidence } else { state.max(evidence) };
            Fate::Adopt { state, attempt: known.attempt }
        }
        _ if state == CommandState::Pending => Fate::Rest,
        _ if too_late => Fate::Expire,
        _ => Fate::Replay,
    }
}

#[cfg(test)]
mod tests {
    use gateway_core::ids::CommandId;
    use uuid::Uuid;

    use super::*;

    fn known(state: CommandState, attempt: u32) -> KnownCommand {
        KnownCommand { id: CommandId(Uuid::nil()), attempt: Attempt(attempt), state }
    }

    #[test]
    fn an_end_is_never_undone_by_a_hello() {
        for state in CommandState::ALL.into_iter().filter(|state| state.is_terminal()) {
            for listed in CommandState::ALL {
                assert_eq!(fate(state, Attempt(1), true, Some(&known(listed, 1))), Fate::Rest);
            }
        }
    }

    #[test]
    fn a_row_that_lost_its_mark_is_adopted() {
        let adopted = fate(CommandState::Pending, Attempt(1), false, Some(&known(CommandState::Running, 1)));
        assert_eq!(adopted, Fate::Adopt { state: CommandState::Running, attempt: Attempt(1) });
        let ended = fate(CommandState::Pending, Attempt(1), false, Some(&known(CommandState::Succeeded, 1)));
        assert_eq!(ended, Fate::Adopt { state: CommandState::Dispatched, attempt: Attempt(1) });
    }

    #[test]
    fn a_state_never_goes_back_by_what_a_node_lists() {
        let same = fate(CommandState::Running, Attempt(2), true, Some(&known(CommandState::Accepted, 2)));
        assert_eq!(same, Fate::Adopt { state: CommandState::Running, attempt: Attempt(2) });
    }

    #[test]
    fn an_older_attempt_is_no_reason_not_to_send_the_current_one() {
        let older = known(CommandState::Running, 1);
        assert_eq!(fate(CommandState::Dispatched, Attempt(2), false, Some(&older)), Fate::Replay);
        assert_eq!(fate(CommandState::Dispatched, Attempt(2), true, Some(&older)), Fate::Expire);
        assert_eq!(fate(CommandState::Pending, Attempt(2), false, Some(&older)), Fate::Rest);
    }
}

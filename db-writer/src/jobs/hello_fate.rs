//! What a Hello means for one command that the node may have.
//!
//! 1. A terminal row stays as it is, but for one that was canceled or expired while the mark of its
//!    dispatch was lost: if the node has the command, it is adopted.
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

/// What a row says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) state: CommandState,
    pub(super) attempt: Attempt,
    /// Whether the attempt has the mark of a dispatch.
    pub(super) marked: bool,
    pub(super) too_late: bool,
}

/// The fate of a row of which the node lists `known`.
pub(super) fn fate(row: Row, known: Option<&KnownCommand>) -> Fate {
    let Row { state, attempt, marked, too_late } = row;
    if state.is_terminal() {
        return match known {
            Some(known) if !marked && known.attempt >= attempt && state.yields_to(known.state) => {
                let state = if known.state.is_in_flight() { known.state } else { CommandState::Dispatched };
                Fate::Adopt { state, attempt: known.attempt }
            }
            _ => Fate::Rest,
        };
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

    fn row(state: CommandState, attempt: u32, too_late: bool) -> Row {
        Row { state, attempt: Attempt(attempt), marked: true, too_late }
    }

    fn known(state: CommandState, attempt: u32) -> KnownCommand {
        KnownCommand { id: CommandId(Uuid::nil()), attempt: Attempt(attempt), state }
    }

    #[test]
    fn an_end_is_never_undone_by_a_hello() {
        for state in CommandState::ALL.into_iter().filter(|state| state.is_terminal()) {
            for listed in CommandState::ALL {
                assert_eq!(fate(row(state, 1, true), Some(&known(listed, 1))), Fate::Rest);
            }
        }
    }

    #[test]
    fn an_end_set_while_the_mark_was_lost_yields_to_a_node_that_has_the_command() {
        for state in CommandState::ALL.into_iter().filter(|state| state.is_terminal()) {
            let unmarked = Row { marked: false, ..row(state, 1, true) };
            let decided = fate(unmarked, Some(&known(CommandState::Running, 1)));
            let yields = matches!(state, CommandState::Canceled | CommandState::Expired);
            let adopted = Fate::Adopt { state: CommandState::Running, attempt: Attempt(1) };
            assert_eq!(decided, if yields { adopted } else { Fate::Rest }, "{state}");
            assert_eq!(fate(unmarked, None), Fate::Rest);
            assert_eq!(fate(unmarked, Some(&known(CommandState::Canceled, 1))), Fate::Rest);
        }
    }

    #[test]
    fn a_row_that_lost_its_mark_is_adopted() {
        let adopted = fate(row(CommandState::Pending, 1, false), Some(&known(CommandState::Running, 1)));
        assert_eq!(adopted, Fate::Adopt { state: CommandState::Running, attempt: Attempt(1) });
        let ended = fate(row(CommandState::Pending, 1, false), Some(&known(CommandState::Succeeded, 1)));
        assert_eq!(ended, Fate::Adopt { state: CommandState::Dispatched, attempt: Attempt(1) });
    }

    #[test]
    fn a_state_never_goes_back_by_what_a_node_lists() {
        let same = fate(row(CommandState::Running, 2, true), Some(&known(CommandState::Accepted, 2)));
        assert_eq!(same, Fate::Adopt { state: CommandState::Running, attempt: Attempt(2) });
    }

    #[test]
    fn an_older_attempt_is_no_reason_not_to_send_the_current_one() {
        let older = known(CommandState::Running, 1);
        assert_eq!(fate(row(CommandState::Dispatched, 2, false), Some(&older)), Fate::Replay);
        assert_eq!(fate(row(CommandState::Dispatched, 2, true), Some(&older)), Fate::Expire);
        assert_eq!(fate(row(CommandState::Pending, 2, false), Some(&older)), Fate::Rest);
    }
}

//! What a node keeps about commands, over sessions: pure bookkeeping, no I/O.
//!
//! 1. A command is known from its arrival until its terminal state was acked; it is known once,
//!    by (id, attempt), and executed once.
//! 2. What was not acked is reported again in the next session; of the states of one command only
//!    the latest is.
//! 3. A terminal state never changes.
//! 4. A command of an older session, past its time, or over its lane's capacity is refused.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use gateway_proto::v1::{Command, CommandState, CommandUpdate, KnownCommand, Lane, Refusal, RefusalReason};
use uuid::Uuid;

/// An execution that goes on.
pub(super) struct Running {
    pub(super) id: Uuid,
    pub(super) attempt: u32,
    pub(super) result: Bytes,
}

/// What a node must do with a command that it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// New: to be executed.
    Execute,
    /// Known already: reported again, not executed again.
    Duplicate,
    /// Refused, for this reason.
    Refuse(RefusalReason),
    /// An attempt older than the known one, or an id that is none.
    Ignore,
}

/// An answered update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    pub id: Uuid,
    pub attempt: u32,
    pub reported: CommandState,
    /// Whether the command is now forgotten.
    pub forgotten: bool,
}

#[derive(Debug)]
struct Known {
    attempt: u32,
    lane: String,
    state: CommandState,
    acked: Option<CommandState>,
    result: Bytes,
    error: String,
    refusal: Option<Refusal>,
}

/// The commands and lanes of one node.
#[derive(Debug, Default)]
pub struct Memory {
    lanes: Vec<Lane>,
    known: BTreeMap<Uuid, Known>,
    awaiting: HashMap<u64, (Uuid, u32, CommandState)>,
    last_ref: u64,
}

/// Whether a command in this state is over.
pub fn is_terminal(state: CommandState) -> bool {
    use CommandState::{Canceled, Expired, Failed, Refused, Succeeded};
    matches!(state, Succeeded | Failed | Canceled | Expired | Refused)
}

/// The state's name, as the database has it.
pub fn state_name(state: CommandState) -> &'static str {
    match state {
        CommandState::Unspecified => "unspecified",
        CommandState::Pending => "pending",
        CommandState::Dispatched => "dispatched",
        CommandState::Accepted => "accepted",
        CommandState::Running => "running",
        CommandState::Succeeded => "succeeded",
        CommandState::Failed => "failed",
        CommandState::Canceled => "canceled",
        CommandState::Expired => "expired",
        CommandState::Refused => "refused",
    }
}

impl Memory {
    pub fn new(lanes: Vec<Lane>) -> Self {
        Self { lanes, ..Self::default() }
    }

    /// The lanes as `Hello` declares them.
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// Sets a lane's capacity; a lane that was not there is added.
    pub fn set_capacity(&mut self, lane: &str, capacity: u32) {
        match self.lanes.iter_mut().find(|known| known.name == lane) {
            Some(known) => known.capacity = capacity,
            None => self.lanes.push(Lane { name: lane.to_owned(), capacity }),
        }
    }

    /// What `Hello` lists.
    pub fn listed(&self) -> Vec<KnownCommand> {
        let known = self.known.iter().map(|(id, known)| KnownCommand {
            command_id: id_bytes(*id),
            attempt: known.attempt,
            state: known.state.into(),
        });
        known.collect()
    }

    /// Answers to older sessions' frames won't come any more.
    pub fn start_session(&mut self) {
        self.awaiting.clear();
    }

    /// A command arrived. `server_now_ms` is the server's clock as the node estimates it.
    pub fn handle_command(&mut self, command: &Command, session_epoch: u64, server_now_ms: i64) -> Verdict {
        let Ok(id) = Uuid::from_slice(&command.command_id) else { return Verdict::Ignore };
        if let Some(known) = self.known.get(&id) {
            if known.attempt == command.attempt {
                return Verdict::Duplicate;
            }
            if known.attempt > command.attempt {
                return Verdict::Ignore;
            }
        }
        let expired = command.not_after_unix_ms != 0 && server_now_ms > command.not_after_unix_ms;
        let refusal = if command.session_epoch < session_epoch {
            Some((RefusalReason::StaleEpoch, true))
        } else if expired {
            Some((RefusalReason::Expired, false))
        } else if self.running_in(&command.lane) >= self.capacity_of(&command.lane) {
            Some((RefusalReason::LaneFull, true))
        } else {
            None
        };
        let known = Known {
            attempt: command.attempt,
            lane: command.lane.clone(),
            state: CommandState::Accepted,
            acked: None,
            result: Bytes::new(),
            error: String::new(),
            refusal: None,
        };
        self.known.insert(id, known);
        match refusal {
            None => Verdict::Execute,
            Some((reason, retryable)) => {
                self.refuse(id, command.attempt, reason, retryable);
                Verdict::Refuse(reason)
            }
        }
    }

    /// Turns a known command into a refused one.
    pub fn refuse(&mut self, id: Uuid, attempt: u32, reason: RefusalReason, retryable: bool) {
        let refusal = Refusal { reason: reason.into(), retryable };
        if let Some(known) = self.live(id, attempt) {
            known.state = CommandState::Refused;
            known.refusal = Some(refusal);
        }
    }

    /// The command's state changed here. False where the command is not known or is over already.
    pub fn advance(
        &mut self,
        id: Uuid,
        attempt: u32,
        state: CommandState,
        result: Bytes,
        error: &str,
    ) -> bool {
        let Some(known) = self.live(id, attempt) else { return false };
        known.state = state;
        known.result = result;
        known.error = error.to_owned();
        true
    }

    /// A cancellation was asked for. Gives the attempt whose execution must stop, if one runs.
    /// The update to send is then that of `update_of`.
    pub fn handle_cancel(&mut self, id: Uuid) -> Option<u32> {
        match self.known.get_mut(&id) {
            Some(known) if is_terminal(known.state) => None,
            Some(known) => {
                known.state = CommandState::Canceled;
                Some(known.attempt)
            }
            None => {
                let known = Known {
                    attempt: 0,
                    lane: String::new(),
                    state: CommandState::Canceled,
                    acked: None,
                    result: Bytes::new(),
                    error: String::new(),
                    refusal: None,
                };
                self.known.insert(id, known);
                None
            }
        }
    }

    /// The update that tells a command's present state, under a new ref.
    pub fn update_of(&mut self, id: Uuid) -> Option<CommandUpdate> {
        let known = self.known.get(&id)?;
        self.last_ref += 1;
        self.awaiting.insert(self.last_ref, (id, known.attempt, known.state));
        Some(CommandUpdate {
            r#ref: self.last_ref,
            command_id: id_bytes(id),
            attempt: known.attempt,
            state: known.state.into(),
            progress: String::new(),
            result: known.result.clone(),
            error: known.error.clone(),
            refusal: known.refusal,
        })
    }

    /// The commands whose present state was neither acked nor is on its way.
    pub fn unreported(&self) -> Vec<Uuid> {
        let on_its_way =
            |id: &Uuid, state| self.awaiting.values().any(|sent| sent.0 == *id && sent.2 == state);
        let open = self
            .known
            .iter()
            .filter(|(id, known)| known.acked != Some(known.state) && !on_its_way(id, known.state));
        open.map(|(id, _)| *id).collect()
    }

    /// An update was acked: it is stored.
    pub fn handle_ack(&mut self, reference: u64) -> Option<Settled> {
        let (id, attempt, reported) = self.awaiting.remove(&reference)?;
        let forgotten = is_terminal(reported) && self.forget(id, attempt);
        if let Some(known) = self.known.get_mut(&id).filter(|known| known.attempt == attempt) {
            known.acked = Some(reported);
        }
        Some(Settled { id, attempt, reported, forgotten })
    }

    /// An update was rejected. One that may be retried stays to be reported again.
    pub fn handle_rejected(&mut self, reference: u64, retryable: bool) -> Option<Settled> {
        let (id, attempt, reported) = self.awaiting.remove(&reference)?;
        let forgotten = !retryable && self.forget(id, attempt);
        Some(Settled { id, attempt, reported, forgotten })
    }

    /// How many commands are known.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether no command is known.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    fn forget(&mut self, id: Uuid, attempt: u32) -> bool {
        let same = self.known.get(&id).is_some_and(|known| known.attempt == attempt);
        same && self.known.remove(&id).is_some()
    }

    fn live(&mut self, id: Uuid, attempt: u32) -> Option<&mut Known> {
        self.known.get_mut(&id).filter(|known| known.attempt == attempt && !is_terminal(known.state))
    }

    fn running_in(&self, lane: &str) -> usize {
        self.known.values().filter(|known| known.lane == lane && !is_terminal(known.state)).count()
    }

    fn capacity_of(&self, lane: &str) -> usize {
        self.lanes.iter().find(|known| known.name == lane).map_or(0, |known| known.capacity as usize)
    }
}

fn id_bytes(id: Uuid) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Memory {
        Memory::new(vec![Lane { name: "default".into(), capacity: 2 }])
    }

    fn command(id: u128, attempt: u32) -> Command {
        Command {
            command_id: id_bytes(Uuid::from_u128(id)),
            attempt,
            lane: "default".into(),
            session_epoch: 5,
            ..Command::default()
        }
    }

    #[test]
    fn a_command_sent_twice_is_executed_once_until_its_end_was_acked() {
        let (mut memory, id) = (memory(), Uuid::from_u128(1));
        assert_eq!(memory.handle_command(&command(1, 1), 5, 0), Verdict::Execute);
        assert_eq!(memory.handle_command(&command(1, 1), 5, 0), Verdict::Duplicate);
        assert!(memory.advance(id, 1, CommandState::Succeeded, Bytes::from_static(b"r"), ""));
        let update = memory.update_of(id).unwrap();
        assert_eq!(update.result, "r");
        assert_eq!(memory.handle_command(&command(1, 1), 5, 0), Verdict::Duplicate);
        assert!(memory.handle_ack(update.r#ref).unwrap().forgotten);
        assert!(memory.is_empty());
    }

    #[test]
    fn what_was_not_acked_is_listed_and_reported_in_the_next_session() {
        let (mut memory, id) = (memory(), Uuid::from_u128(1));
        memory.handle_command(&command(1, 1), 5, 0);
        let accepted = memory.update_of(id).unwrap();
        assert!(memory.unreported().is_empty(), "it is on its way");
        memory.advance(id, 1, CommandState::Succeeded, Bytes::new(), "");
        assert_eq!(memory.unreported(), [id]);
        memory.start_session();
        let listed = memory.listed();
        assert_eq!((listed.len(), listed[0].state()), (1, CommandState::Succeeded));
        assert_eq!(memory.unreported(), [id]);
        assert_eq!(memory.handle_ack(accepted.r#ref), None, "an answer of an older session");
        assert_eq!(memory.update_of(id).unwrap().state(), CommandState::Succeeded);
    }

    #[test]
    fn stale_late_and_surplus_commands_are_refused() {
        let mut memory = memory();
        assert_eq!(memory.handle_command(&command(1, 1), 6, 0), Verdict::Refuse(RefusalReason::StaleEpoch));
        let late = Command { not_after_unix_ms: 1000, ..command(2, 1) };
        assert_eq!(memory.handle_command(&late, 5, 1001), Verdict::Refuse(RefusalReason::Expired));
        assert!(!memory.update_of(Uuid::from_u128(2)).unwrap().refusal.unwrap().retryable);
        assert_eq!(memory.handle_command(&command(3, 1), 5, 0), Verdict::Execute);
        assert_eq!(memory.handle_command(&command(4, 1), 5, 0), Verdict::Execute);
        assert_eq!(memory.handle_command(&command(5, 1), 5, 0), Verdict::Refuse(RefusalReason::LaneFull));
        let elsewhere = Command { lane: "undeclared".into(), ..command(6, 1) };
        assert_eq!(memory.handle_command(&elsewhere, 5, 0), Verdict::Refuse(RefusalReason::LaneFull));
    }

    #[test]
    fn a_newer_attempt_replaces_and_an_older_is_ignored() {
        let mut memory = memory();
        memory.handle_command(&command(1, 2), 5, 0);
        assert_eq!(memory.handle_command(&command(1, 1), 5, 0), Verdict::Ignore);
        assert_eq!(memory.handle_command(&command(1, 3), 5, 0), Verdict::Execute);
    }

    #[test]
    fn a_cancel_stops_what_runs_and_answers_for_what_is_unknown() {
        let (mut memory, running, unknown) = (memory(), Uuid::from_u128(1), Uuid::from_u128(9));
        memory.handle_command(&command(1, 4), 5, 0);
        assert_eq!(memory.handle_cancel(running), Some(4));
        assert!(!memory.advance(running, 4, CommandState::Succeeded, Bytes::new(), ""), "too late");
        assert_eq!(memory.handle_cancel(unknown), None);
        let update = memory.update_of(unknown).unwrap();
        assert_eq!(update.state(), CommandState::Canceled);
        assert!(memory.handle_ack(update.r#ref).unwrap().forgotten);
    }

    #[test]
    fn a_rejected_update_is_kept_only_where_it_may_be_retried() {
        let (mut memory, id) = (memory(), Uuid::from_u128(1));
        memory.handle_command(&command(1, 1), 5, 0);
        let first = memory.update_of(id).unwrap();
        assert!(!memory.handle_rejected(first.r#ref, true).unwrap().forgotten);
        assert_eq!(memory.unreported(), [id]);
        let second = memory.update_of(id).unwrap();
        assert!(memory.handle_rejected(second.r#ref, false).unwrap().forgotten);
        assert!(memory.is_empty());
    }
}

//! What is wrong with the database: its clock, its connections, its disk, and how long it takes.
//!
//! Owns the state of that, and carries jobs out or fails them.
//!
//! 1. A crash of the database takes the marks of dispatches that nothing durable followed, if dispatches don't
//!    wait for the disk, and every connection: what was under way on one has an unknown outcome.
//! 2. The database's clock may jump either way; time itself never does.
//! 3. When all is calm no job fails.

use std::collections::BTreeSet;
use std::time::Duration;

use gateway_core::ids::{Attempt, CommandId};
use gateway_core::store::{HelloOutcome, Job, Outcome, Queue, Routed, StoreError};
use gateway_core::time::{Moment, UnixMillis};

use super::World;
use crate::random::Chance;

/// What the database's clock says when the world begins.
const BEGINNING: i64 = 1_800_000_000_000;

const LONGER_THAN_ANY_HISTORY: Duration = Duration::from_secs(3_600);

/// What is wrong now.
#[derive(Debug)]
pub(super) struct Weather {
    /// The database's clock is so far ahead of time itself.
    clock_ahead: i64,
    pub(super) jumped_ahead_at: Option<Moment>,
    /// Whether dispatches don't wait for the disk.
    asynchronous: bool,
    /// Marks that no commit has brought to the disk yet.
    unflushed: Vec<(CommandId, Attempt)>,
    /// The database crashes right after the next claim.
    pub(super) crash_is_near: bool,
    pub(super) down_until: Moment,
    /// Connections that a crash of the database took, and whose owner does not know it yet.
    gone: BTreeSet<(usize, u32, Queue)>,
}

impl Weather {
    pub(super) fn new(chance: &mut Chance) -> Self {
        Self {
            clock_ahead: BEGINNING,
            jumped_ahead_at: None,
            asynchronous: chance.percent(60),
            unflushed: Vec::new(),
            crash_is_near: false,
            down_until: Moment::default(),
            gone: BTreeSet::new(),
        }
    }
}

impl World {
    pub(super) fn clock(&self) -> UnixMillis {
        UnixMillis(self.weather.clock_ahead + (self.now.as_nanos() / 1_000_000) as i64)
    }

    /// Carries a job out, and holds what it did against the account.
    pub(super) fn commit(&mut self, job: &Job) -> Outcome {
        let now = self.clock();
        let outcome = self.store.commit(job, now);
        if let Job::Updates { entries } = job {
            let commands: BTreeSet<CommandId> = entries.iter().map(|entry| entry.update.id).collect();
            self.story.joined += (entries.len() - commands.len()) as u64;
        }
        if self.plan.told {
            super::tell(self.now, &(job, &outcome));
        }
        self.oracle.handle_commit(job, &outcome, &self.store, now);
        for (stored, reported) in self.oracle.take_reports() {
            self.coverage.note_command(stored, reported);
        }
        if let (Job::Hellos { entries, .. }, Outcome::Hellos(Ok(Routed::Committed(outcomes)))) =
            (job, &outcome)
        {
            self.check_revoked(entries, outcomes);
            entries.iter().for_each(|entry| self.note_forgotten(entry));
            let judged = |outcome: &&HelloOutcome| matches!(outcome, HelloOutcome::Quarantined(_));
            for _ in outcomes.iter().filter(judged) {
                self.note_fault("certificate quarantined");
            }
        }
        self.note_outcome(&outcome);
        self.note_flush(job, &outcome);
        outcome
    }

    /// What a commit of dispatches leaves in memory, and what any other brings to the disk.
    fn note_flush(&mut self, job: &Job, outcome: &Outcome) {
        let unflushed = &mut self.weather.unflushed;
        match (job, outcome) {
            (Job::Dispatch { .. }, Outcome::Dispatch(Ok(Routed::Committed(claims)))) => {
                if self.weather.asynchronous {
                    unflushed.extend(claims.iter().map(|claim| (claim.command.id, claim.command.attempt)));
                }
                if self.weather.crash_is_near && !claims.is_empty() && self.is_disturbed() {
                    self.weather.crash_is_near = false;
                    self.database_crash();
                }
            }
            (Job::ReadLanes { lanes, .. }, Outcome::LanesRead(Ok(Routed::Committed(_)))) => {
                if self.weather.asynchronous {
                    unflushed.extend(lanes.iter().flat_map(|lane| &lane.sent));
                }
            }
            (
                Job::Cancels { .. }
                | Job::SpecsDue { .. }
                | Job::Revocations(_)
                | Job::Dispatch { .. }
                | Job::ReadLanes { .. },
                _,
            ) => {}
            _ => unflushed.clear(),
        }
    }

    /// What a client's commit brings to the disk.
    pub(super) fn flush(&mut self) {
        self.weather.unflushed.clear();
        self.oracle.handle_clients(&self.store);
    }

    pub(super) fn database_crash(&mut self) {
        self.note_fault("database crash");
        let unflushed = std::mem::take(&mut self.weather.unflushed);
        let lost = self.store.forget_marks(&unflushed);
        if !lost.is_empty() {
            self.note_fault("database crash loses marks");
        }
        self.oracle.handle_marks_lost(&lost, &self.store);
        self.weather.down_until = self.now + Duration::from_millis(self.chance.within(100..2_500));
        for process in 0..self.processes.len() {
            let incarnation = self.processes[process].incarnation;
            if self.processes[process].writer.is_none() {
                continue;
            }
            for queue in Queue::ALL {
                let flight = self.processes[process].flights.get_mut(&queue);
                match flight {
                    // The answer may have left before.
                    Some(flight) if flight.outcome.is_some() && self.chance.percent(50) => {
                        flight.outcome = Some(Outcome::failed(&flight.job, lost_connection()));
                    }
                    // What is asked and not carried out yet finds its connection gone too.
                    _ => {
                        self.weather.gone.insert((process, incarnation, queue));
                    }
                }
            }
        }
    }

    /// Connections that nobody has used since they were lost have been made anew.
    pub(super) fn clear_weather(&mut self) {
        self.weather.gone.clear();
    }

    pub(super) fn clock_jump(&mut self, millis: i64) {
        self.weather.clock_ahead += millis;
        if millis < 0 {
            return self.note_fault("clock jumps back");
        }
        self.weather.jumped_ahead_at = Some(self.now);
        self.note_fault("clock jumps ahead");
        if millis > 4_000 {
            self.note_fault("clock jumps ahead past a lease");
        }
    }

    /// What is wrong with this job, if anything is. True where it is committed all the same.
    pub(super) fn failure_of(&mut self, process: usize, job: &Job) -> Option<(StoreError, bool)> {
        let gateway = &self.processes[process];
        let queue = job.queue();
        if self.weather.gone.remove(&(process, gateway.incarnation, queue)) {
            return Some((lost_connection(), false));
        }
        let away = self.now < gateway.database_away_until.max(self.weather.down_until)
            || (queue == Queue::Lease && self.now < gateway.lease_away_until);
        if away {
            return Some((StoreError::Retry("away".into()), false));
        }
        if !self.is_disturbed() {
            return None;
        }
        let (error, is_done, fault) = match self.chance.within(0..1_000) {
            0..25 => (StoreError::Retry("a deadlock".into()), false, "commit fails: retry"),
            25..45 => (lost_connection(), true, "commit with unknown outcome: done"),
            45..65 => (lost_connection(), false, "commit with unknown outcome: not done"),
            65..75 if holds_several(job) => {
                (StoreError::Rejected("one of these".into()), false, "commit fails: rejected")
            }
            75..80 => (StoreError::Fatal("no such table".into()), false, "commit fails: fatal"),
            _ => return None,
        };
        self.note_fault(fault);
        Some((error, is_done))
    }

    pub(super) fn job_takes(&mut self, process: usize, queue: Queue) -> Duration {
        if self.processes[process].stuck == Some(queue) {
            return LONGER_THAN_ANY_HISTORY;
        }
        let is_slow = self.processes[process]
            .slow
            .is_some_and(|(slow, until)| slow == queue && self.now < until && self.is_disturbed());
        if is_slow {
            return Duration::from_millis(self.chance.within(300..3_000));
        }
        let hangs = self.is_disturbed() && self.chance.percent(2);
        if hangs {
            self.note_fault("a slow commit");
        }
        Duration::from_micros(if hangs {
            self.chance.within(10_000..2_500_000)
        } else {
            self.chance.within(100..4_000)
        })
    }

    /// From the commit until its writer hears of it. One that takes long is overtaken by those of other queues.
    pub(super) fn answer_takes(&mut self, process: usize, queue: Queue) -> Duration {
        let is_slow = self.processes[process]
            .slow_answers
            .is_some_and(|(slow, until)| slow == queue && self.now < until);
        Duration::from_micros(match self.is_disturbed() {
            true if is_slow => self.chance.within(20_000..1_500_000),
            true if self.chance.percent(4) => self.chance.within(100..1_200_000),
            _ => self.chance.within(100..4_000),
        })
    }
}

fn lost_connection() -> StoreError {
    StoreError::OutcomeUnknown("the connection is lost".into())
}

/// Whether it can be halved: a bad one among good ones is looked for.
fn holds_several(job: &Job) -> bool {
    let entries = match job {
        Job::Hellos { entries, .. } => entries.len(),
        Job::Dispatch { wants, .. } => wants.len(),
        Job::Updates { entries } => entries.len(),
        Job::Events { entries } => entries.len(),
        Job::Statuses { entries } => entries.len(),
        Job::Presence { entries, .. } => entries.len(),
        Job::Inventory { entries, .. } => entries.len(),
        Job::SpecsApplied { entries } => entries.len(),
        Job::SpecsDue { looks, .. } => looks.len(),
        Job::Lease(_) | Job::ReadLanes { .. } | Job::Cancels { .. } | Job::Sweep(_) | Job::Revocations(_) => {
            0
        }
    };
    entries > 1
}

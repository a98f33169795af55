//! What other threads may read of the writer: counters and gauges, each a plain atomic.
//!
//! 1. Only the writer's thread writes them; readers see each by itself, not all at one moment.
//! 2. A lock is held only to swap a text or to note that the phase changed, never across a wait.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gateway_core::histogram::{Amounts, Latencies};
use gateway_core::store::{Claim, Queue, StoreError};
use gateway_core::writer::{Phase, WriterCounts};

use crate::loop_status::LoopStatus;

/// Of one queue, since the thread began.
#[derive(Debug, Default)]
pub struct QueueStatus {
    /// Jobs that committed.
    pub jobs: AtomicU64,
    /// Entries of those: Hellos, updates, lanes asked for, presence entries, events, sections, sessions whose
    /// specs were looked at.
    pub entries: AtomicU64,
    /// Nanoseconds from handing a job over until its outcome, of those.
    pub nanos: AtomicU64,
    /// The same, each by itself; and how many entries each had.
    pub latencies: Latencies,
    pub sizes: Amounts,
    /// Gauge: entries that wait for a batch; of dispatch, lanes that wait for a pass.
    pub waiting: AtomicU64,
    /// The longest of them.
    pub longest_nanos: AtomicU64,
    /// Its jobs as runs of a loop: those that failed, and the one in flight.
    pub runs: LoopStatus,
}

/// The writer's state for health, metrics and a watchdog.
#[derive(Debug, Default)]
pub struct WriterStatus {
    phase: AtomicU8,
    phase_lock: Mutex<()>,
    phase_changed: Condvar,
    /// Turns of the loop; at least one a second while the thread lives.
    pub ticks: AtomicU64,
    /// Sessions with a durable Hello.
    pub sessions: AtomicU64,
    /// Gauge: messages of shards that waited at the last turn.
    pub messages_waiting: AtomicU64,
    /// When the last good attempt at the lease began, on the process's clock, in nanoseconds; 0 while it is not held.
    pub lease_good_since: AtomicU64,
    pub lease_epoch: AtomicU64,
    /// Times that a command took the last free credit of its lane.
    pub credits_exhausted: AtomicU64,
    /// From a command's enqueue until it was given to its shard; rows that a pass claimed.
    pub dispatch_latencies: Latencies,
    pub pass_rows: Amounts,
    /// Messages taken from shards, and given to them.
    pub messages_taken: AtomicU64,
    pub messages_given: AtomicU64,
    /// Notifications heard.
    pub pokes: AtomicU64,
    /// What the control API asked.
    pub asks: AtomicU64,
    /// The loop that listens: each connection whose probe came back is a clean run.
    pub listener: LoopStatus,
    /// Whether notifications are heard: the probe came back.
    pub listening: AtomicBool,
    pub hellos_granted: AtomicU64,
    pub hellos_refused: AtomicU64,
    pub sessions_superseded: AtomicU64,
    pub certificates_quarantined: AtomicU64,
    /// Sessions granted to certificates that node_certs does not have: no revocation can be set for them.
    pub hellos_of_unknown_certificates: AtomicU64,
    /// Certificates that shards refuse, and how many more are revoked than fit.
    pub revoked_certificates: AtomicU64,
    pub revocations_left_out: AtomicU64,
    pub dispatch_passes: AtomicU64,
    pub commands_claimed: AtomicU64,
    pub updates_stored: AtomicU64,
    pub update_conflicts: AtomicU64,
    pub updates_not_stored: AtomicU64,
    pub fences: AtomicU64,
    pub event_batches_stored: AtomicU64,
    pub events_refused: AtomicU64,
    pub statuses_stored: AtomicU64,
    /// Hooks that ran in transactions that committed, and how many of those failed.
    pub hooks_run: AtomicU64,
    pub hooks_failed: AtomicU64,
    pub sections_stored: AtomicU64,
    pub sections_refused: AtomicU64,
    /// Commands that the sweeps of this gateway made expired.
    pub commands_expired: AtomicU64,
    /// Sessions of dead gateways that they marked disconnected.
    pub sessions_reaped: AtomicU64,
    /// Runs of the sweeps that ended, and when the last one did, in seconds since 1970; 0 before.
    pub sweeps: AtomicU64,
    pub last_sweep_at: AtomicU64,
    /// Specs given to sessions, and what nodes said of specs, stored or refused.
    pub specs_pushed: AtomicU64,
    pub spec_answers_stored: AtomicU64,
    pub spec_answers_refused: AtomicU64,
    /// Whether this gateway is the one that sweeps for all.
    pub leads_sweeps: AtomicBool,
    queues: [QueueStatus; Queue::ALL.len()],
}

impl WriterStatus {
    /// Where the writer is in its life.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Waiting,
            1 => Phase::Serving,
            2 => Phase::Draining,
            3 => Phase::Stopping,
            _ => Phase::Stopped,
        }
    }

    /// Waits, on the caller's thread, until the phase is another than `from`, at most until
    /// `deadline`; gives the phase then.
    pub fn wait_for_phase_change(&self, from: Phase, deadline: Instant) -> Phase {
        let mut held = self.phase_lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let phase = self.phase();
            let left = deadline.saturating_duration_since(Instant::now());
            if phase != from || left.is_zero() {
                return phase;
            }
            let waited = self.phase_changed.wait_timeout(held, left);
            held = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The counters of one queue.
    pub fn queue(&self, queue: Queue) -> &QueueStatus {
        &self.queues[queue as usize]
    }

    /// The writer is in this phase. Its thread alone says so.
    pub fn set_phase(&self, phase: Phase) {
        let number = match phase {
            Phase::Waiting => 0,
            Phase::Serving => 1,
            Phase::Draining => 2,
            Phase::Stopping => 3,
            Phase::Stopped => 4,
        };
        let held = self.phase_lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.phase.store(number, Ordering::Release);
        drop(held);
        self.phase_changed.notify_all();
    }

    pub(crate) fn set_counts(&self, counts: &WriterCounts) {
        let pairs = [
            (&self.hellos_granted, counts.hellos_granted),
            (&self.hellos_refused, counts.hellos_refused),
            (&self.sessions_superseded, counts.sessions_superseded),
            (&self.certificates_quarantined, counts.certificates_quarantined),
            (&self.hellos_of_unknown_certificates, counts.hellos_of_unknown_certificates),
            (&self.dispatch_passes, counts.dispatch_passes),
            (&self.commands_claimed, counts.commands_claimed),
            (&self.credits_exhausted, counts.credits_exhausted),
            (&self.updates_stored, counts.updates_stored),
            (&self.update_conflicts, counts.update_conflicts),
            (&self.updates_not_stored, counts.updates_not_stored),
            (&self.fences, counts.fences),
            (&self.event_batches_stored, counts.event_batches_stored),
            (&self.events_refused, counts.events_refused),
            (&self.statuses_stored, counts.statuses_stored),
            (&self.sections_stored, counts.sections_stored),
            (&self.sections_refused, counts.sections_refused),
            (&self.commands_expired, counts.commands_expired),
            (&self.sessions_reaped, counts.sessions_reaped),
            (&self.specs_pushed, counts.specs_pushed),
            (&self.spec_answers_stored, counts.spec_answers_stored),
            (&self.spec_answers_refused, counts.spec_answers_refused),
        ];
        for (shown, counted) in pairs {
            shown.store(counted, Ordering::Relaxed);
        }
        if self.sweeps.swap(counts.sweeps, Ordering::Relaxed) != counts.sweeps {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.last_sweep_at.store(now.as_secs(), Ordering::Relaxed);
        }
    }

    /// What a dispatch pass claimed, `took` after it was handed over.
    pub(crate) fn note_claims(&self, claims: &[Claim], took: Duration) {
        self.pass_rows.note(claims.len());
        for claim in claims {
            self.dispatch_latencies.note(claim.waited + took);
        }
    }

    pub(crate) fn note_job(&self, queue: Queue, entries: usize, took: Duration, error: Option<&StoreError>) {
        let status = self.queue(queue);
        status.runs.end(error.map(ToString::to_string));
        if error.is_some() {
            return;
        }
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        status.jobs.fetch_add(1, Ordering::Relaxed);
        status.entries.fetch_add(entries as u64, Ordering::Relaxed);
        status.nanos.fetch_add(nanos, Ordering::Relaxed);
        status.latencies.note(took);
        status.sizes.note(entries);
        status.longest_nanos.fetch_max(nanos, Ordering::Relaxed);
    }
}

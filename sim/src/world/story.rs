//! How large a world is, and what its history came to, in numbers.
//!
//! Owns the plan and the counts. What must hold is not here: a history that ends has held.

use std::time::Duration;

/// How large a world is, and for how long it is disturbed.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub nodes: usize,
    pub commands: usize,
    /// Clients and faults act until then.
    pub disturbed_for: Duration,
    /// All must have ended so long after.
    pub settles_within: Duration,
    /// Whether each event is told on stderr.
    pub told: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            nodes: 4,
            commands: 30,
            disturbed_for: Duration::from_secs(12),
            // What became pending after its time is found by the look at all, once a minute. That a lane whose
            // credit stays spent is read anew by then hides nothing: probes and progress are looked at before.
            settles_within: Duration::from_secs(75),
            told: false,
        }
    }
}

/// What a history came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Story {
    /// Of every event and outcome, in order and with its content: equal for equal histories.
    pub digest: u64,
    pub events: u64,
    /// Faults that met what they were meant for.
    pub faults: u64,
    /// Jobs that the stores carried out or failed.
    pub jobs: u64,
    pub executions: u64,
    pub fences: u64,
    pub superseded: u64,
    pub rejected: u64,
    pub conflicts: u64,
    /// Updates that a store was given together with what they led to.
    pub joined: u64,
    /// Events of journals that are stored, and how many of them are tombstones.
    pub journaled: u64,
    pub tombstones: u64,
    /// Sections of inventories that were acked.
    pub sections: u64,
    /// Commands that a sweep made expired, and sessions of dead gateways that one ended.
    pub expired: u64,
    pub reaped: u64,
    /// Changes of specs, those that were answered as failed in the end, and how often a node was sent one.
    pub spec_changes: u64,
    pub specs_failed: u64,
    pub specs_read: u64,
    pub simulated: Duration,
}

impl Story {
    /// Adds what another history came to; digests are folded together.
    pub fn add(&mut self, other: &Self) {
        self.digest ^= other.digest;
        let mine = [
            &mut self.events,
            &mut self.faults,
            &mut self.jobs,
            &mut self.executions,
            &mut self.fences,
            &mut self.superseded,
            &mut self.rejected,
            &mut self.conflicts,
            &mut self.joined,
            &mut self.journaled,
            &mut self.tombstones,
            &mut self.sections,
            &mut self.expired,
            &mut self.reaped,
            &mut self.spec_changes,
            &mut self.specs_failed,
            &mut self.specs_read,
        ];
        let others = [
            other.events,
            other.faults,
            other.jobs,
            other.executions,
            other.fences,
            other.superseded,
            other.rejected,
            other.conflicts,
            other.joined,
            other.journaled,
            other.tombstones,
            other.sections,
            other.expired,
            other.reaped,
            other.spec_changes,
            other.specs_failed,
            other.specs_read,
        ];
        mine.into_iter().zip(others).for_each(|(sum, more)| *sum += more);
        self.simulated += other.simulated;
    }
}

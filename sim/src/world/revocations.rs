//! An operator who revokes a node's certificate, and clears that after a while.
//!
//! Owns when, and what must hold then. How a gateway comes to know of it is its own affair: by a poke, or by its
//! looks alone.
//!
//! 1. While it is revoked no Hello of it is granted.
//! 2. A shard that was told of it keeps no session of it.

use std::time::Duration;

use gateway_core::ids::{SessionKey, ShardId};
use gateway_core::seam::HelloRequest;
use gateway_core::store::HelloOutcome;

use super::faults::Fault;
use super::{Event, World};
use crate::check::must;

/// The serial of a node's certificate, which whoever clones the node has too.
pub(super) fn serial_of(number: usize) -> String {
    format!("{number:04X}")
}

impl World {
    pub(super) fn revoke(&mut self, node: usize, long: Duration) {
        let serial = serial_of(node);
        if self.store.certificates().get(&serial).is_none_or(|row| row.record.revoked.is_some()) {
            return;
        }
        self.note_fault("certificate revoked");
        self.was_revoked.insert(self.nodes[node].id.clone());
        self.set_revoked(&serial, Some("stolen"));
        self.at(long, Event::Fault(Fault::Clear { node }));
    }

    pub(super) fn clear(&mut self, node: usize) {
        let serial = serial_of(node);
        let row = self.store.certificates().get(&serial);
        // Two machines may have been found to use it since.
        if row.is_some_and(|row| row.record.revoked.as_deref() == Some("stolen")) {
            self.set_revoked(&serial, None);
        }
    }

    fn set_revoked(&mut self, serial: &str, reason: Option<&str>) {
        let now = self.clock();
        self.store.set_revoked(serial, reason, now);
        self.flush();
        for process in 0..self.processes.len() {
            let (awake, heard) = (self.now >= self.processes[process].asleep_until, self.chance.percent(50));
            if awake && heard {
                self.with_writer(process, |writer, now| writer.handle_certificates_poke(now));
            }
        }
    }

    /// Sessions of a shard under this certificate.
    pub(super) fn of_certificate(&self, process: usize, shard: ShardId, serial: &str) -> Vec<SessionKey> {
        let is_its = |node: usize| serial_of(node) == serial;
        let sessions = self.processes[process].sessions.iter();
        let of = sessions.filter(|(key, open)| {
            key.shard == shard && self.number_of(open.session.node()).is_some_and(is_its)
        });
        of.map(|(key, _)| *key).collect()
    }

    pub(super) fn check_revoked(&self, entries: &[HelloRequest], outcomes: &[HelloOutcome]) {
        for (entry, outcome) in entries.iter().zip(outcomes) {
            let row = self.store.certificates().get(&entry.identity.certificate_serial);
            let revoked = row.is_some_and(|row| row.record.revoked.is_some());
            let granted = matches!(outcome, HelloOutcome::Granted(_));
            must("no Hello of a revoked certificate is granted", !(revoked && granted), || {
                format!("{entry:?}: {row:?}")
            });
        }
    }
}

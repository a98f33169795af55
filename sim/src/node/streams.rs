//! How a simulated node begins a stream and what it keeps of one that is over.
//!
//! Owns its Hello, and that of whoever else has its certificate. Never decides when to dial: the world does.
//!
//! 1. The Hello goes first, and lists all that the node persists.
//! 2. With a stream goes what was sent on it and not answered: all that is owed goes again.
//! 3. The time that a gateway tells begins with that of `Welcome` and goes on as time itself does.

use std::time::Duration;

use gateway_core::frame::{Hello, KnownCommand, NodeFrame, PROTOCOL};
use gateway_core::ids::CommandId;
use gateway_core::time::{Moment, UnixMillis};

use super::{HEARTBEAT_EVERY, Held, SimNode, millis};
use crate::check::must;

/// The machine that somebody else with a node's certificate says it is.
pub(crate) const TWIN: &str = "twin";

impl SimNode {
    /// The stream is open; the Hello goes first.
    pub(crate) fn handle_connected(&mut self, link: u64, now: Moment) {
        self.link = Some(link);
        self.connected_at = now;
        self.awaited.clear();
        self.redial_at = None;
        self.epoch = None;
        self.sent = 0;
        self.outbox.clear();
        self.journal.handle_connected();
        let specs = self.specs.handle_connected();
        self.statuses.handle_connected();
        self.inventory.handle_connected();
        let known = |(id, held): (&CommandId, &Held)| KnownCommand {
            id: *id,
            attempt: held.attempt,
            state: held.state,
        };
        self.outbox.push(NodeFrame::Hello(Box::new(Hello {
            protocol: PROTOCOL,
            features: Vec::new(),
            boot_id: "boot".into(),
            machine: self.id.to_string(),
            software_version: "sim".into(),
            role: "node".into(),
            lanes: self.lanes.clone(),
            journal: Some(self.journal.id.clone()),
            known_commands: self.known.iter().map(known).collect(),
            specs,
            inventory: self.inventory.list(),
        })));
    }

    /// Held against what has passed since the Hello at most, and since that heartbeat was sent at least.
    pub(super) fn check_time(&self, sequence: u64, told: UnixMillis, now: Moment) {
        let welcomed = self.server_ahead + millis(self.welcomed_at);
        let most = welcomed + millis(now) - millis(self.connected_at) + 1;
        let since_sent = HEARTBEAT_EVERY.as_millis() as i128 + millis(now) - millis(self.heartbeat_at);
        let sent_after = millis(now) - since_sent - millis(self.welcomed_at);
        let least = if sequence == self.heartbeats { welcomed + sent_after.max(0) - 1 } else { welcomed };
        must("a heartbeat is told the time", (least..=most).contains(&i128::from(told.0)), || {
            format!("{told} is not within {least} and {most}")
        });
    }

    /// What another machine says that has the node's certificate, and nothing else of it.
    pub(crate) fn hello_of_twin(&self) -> Hello {
        Hello {
            protocol: PROTOCOL,
            features: Vec::new(),
            boot_id: "boot of the twin".into(),
            machine: TWIN.into(),
            software_version: "sim".into(),
            role: "node".into(),
            lanes: self.lanes.clone(),
            journal: None,
            known_commands: Vec::new(),
            specs: Vec::new(),
            inventory: Vec::new(),
        }
    }

    /// The stream is over, or was never opened.
    pub(crate) fn handle_ended(&mut self, wait: Duration, now: Moment) {
        self.link = None;
        self.epoch = None;
        self.sent = 0;
        self.outbox.clear();
        self.redial_at = Some(now + wait);
    }
}

//! What the control API asks, answered of what the writer knows.
//!
//! Owns the answers. What an ask sets off is the other rooms': a poke is the same input as a notification.
//!
//! 1. An ask costs no more than what it names, or than the page that it asks for; it waits for nothing.
//! 2. Without the lease there is nothing to hasten: who asks is told.

use super::Writer;
use super::directory::LiveSession;
use crate::desk::{DeskAnswer, DeskAsk, DeskRefusal, Found, LaneReport, MAX_SESSIONS_SHOWN, SessionReport};
use crate::ids::{CommandId, NodeId, SessionKey};
use crate::time::Moment;

impl Writer {
    /// The control API asks this.
    pub fn handle_ask(&mut self, ask: DeskAsk, now: Moment) -> DeskAnswer {
        self.observe_time(now);
        let is_poke =
            matches!(ask, DeskAsk::Dispatch(_) | DeskAsk::Specs(_) | DeskAsk::Cancel(_) | DeskAsk::Revoke(_));
        if is_poke && self.stop.is_begun() {
            return DeskAnswer::Refused(DeskRefusal::Stopping);
        }
        if is_poke && !self.may_route() {
            return DeskAnswer::Refused(DeskRefusal::NoLease);
        }
        match ask {
            DeskAsk::Dispatch(nodes) => {
                for_each_or_all(&nodes, |node| self.handle_poke(node, now));
                DeskAnswer::Looking(self.found(&nodes))
            }
            DeskAsk::Specs(nodes) => {
                for_each_or_all(&nodes, |node| self.handle_specs_poke(node, now));
                DeskAnswer::Looking(self.found(&nodes))
            }
            DeskAsk::Cancel(commands) => {
                self.cancels.want_look();
                DeskAnswer::Looking(self.found_commands(&commands))
            }
            DeskAsk::Revoke(node) => {
                self.handle_certificates_poke(now);
                DeskAnswer::Looking(self.found(&[node]))
            }
            DeskAsk::Drain(plan) => self.take_drain_ask(plan, now),
            DeskAsk::Undrain => self.take_undrain_ask(),
            DeskAsk::Session(node) => {
                let session = self.directory.of_node(&node).map(|session| self.report(session));
                let (sessions, in_all) = (session.into_iter().collect(), self.directory.len());
                DeskAnswer::Sessions { sessions, more: None, in_all }
            }
            DeskAsk::Sessions { after, at_most } => self.page(after, at_most.min(MAX_SESSIONS_SHOWN)),
        }
    }

    fn found(&self, nodes: &[NodeId]) -> Found {
        let here = nodes.iter().filter(|node| self.directory.of_node(node).is_some()).count();
        Found { named: nodes.len(), here, in_flight: 0 }
    }

    fn found_commands(&self, commands: &[(NodeId, CommandId)]) -> Found {
        let mut found = Found { named: commands.len(), ..Found::default() };
        for (node, command) in commands {
            let Some(session) = self.directory.of_node(node) else { continue };
            found.here += 1;
            found.in_flight += usize::from(self.ledger.is_in_flight(&session.lanes, *command));
        }
        found
    }

    fn page(&self, after: Option<SessionKey>, at_most: usize) -> DeskAnswer {
        let mut sessions = Vec::new();
        let mut last = after;
        while sessions.len() < at_most
            && let Some(session) = self.directory.following(last)
        {
            last = Some(session.key);
            sessions.push(self.report(session));
        }
        let more = last.filter(|_| self.directory.following(last).is_some());
        DeskAnswer::Sessions { sessions, more, in_all: self.directory.len() }
    }

    fn report(&self, session: &LiveSession) -> SessionReport {
        let lanes = session.lanes.iter().filter_map(|id| self.ledger.get(*id)).map(|lane| LaneReport {
            lane: lane.name.clone(),
            capacity: lane.capacity(),
            in_flight: lane.in_flight(),
        });
        SessionReport {
            node: session.node.clone(),
            key: session.key,
            epoch: session.epoch,
            lanes: lanes.collect(),
        }
    }
}

/// Calls with each node, or, where none is named, once for all.
fn for_each_or_all(nodes: &[NodeId], mut poke: impl FnMut(Option<&NodeId>)) {
    match nodes {
        [] => poke(None),
        nodes => nodes.iter().for_each(|node| poke(Some(node))),
    }
}

//! What a Hello does: the session's new epoch, and the fate of every command that the node may have.
//!
//! 1. Terminal rows rest. What the node lists, of the current attempt or a later one, is adopted.
//! 2. What a certificate allows is `gateway_core::certificate`'s to say. One that two machines use in turn is revoked,
//!    by `gateway_core::duplicate`.
//! 3. What is in flight and not listed is sent again by seq, or expires if its time has passed.

use std::collections::BTreeMap;

use gateway_core::certificate;
use gateway_core::command::CommandState;
use gateway_core::duplicate::{self, DUPLICATE_IDENTITY, DuplicateRule, Judgement, Moves, Place};
use gateway_core::frame::{CancelCommand, KnownCommand};
use gateway_core::ids::{CommandId, EventSeq, GatewayId, LaneName, LaneSeq, NodeId};
use gateway_core::seam::HelloRequest;
use gateway_core::store::{HelloGrant, HelloOutcome, InFlight};
use gateway_core::time::UnixMillis;

use super::certificates::Certificates;
use super::{CommandRow, SessionRow, Store, unknown_node};

impl Store {
    pub(super) fn hello(
        &mut self,
        gateway: &GatewayId,
        entry: &HelloRequest,
        now: UnixMillis,
    ) -> HelloOutcome {
        let node = &entry.identity.node;
        let Some(session) = self.sessions.get_mut(node) else {
            return HelloOutcome::Refused(unknown_node(node));
        };
        if let Some(outcome) =
            Self::admit(session, &mut self.certificates, &mut self.moves, &self.duplicates, entry, now)
        {
            return outcome;
        }
        session.epoch.0 += 1;
        session.gateway = Some(gateway.clone());
        session.lease_epoch = self.leases.get(gateway).map(|row| row.epoch).unwrap_or_default();
        session.connected = true;
        let epoch = session.epoch;
        let listed = listed(&entry.hello.known_commands);
        let mut grant = HelloGrant {
            epoch,
            server_time: now,
            journal_acked: EventSeq(0),
            replays: Vec::new(),
            in_flight: Vec::new(),
            cancels: Vec::new(),
            cursors: entry.hello.lanes.iter().map(|lane| self.cursor(node, &lane.lane)).collect(),
            has_pending: false,
            inventory_wanted: self.wanted(node, &entry.hello.inventory),
            is_recorded: self.certificates.rows().contains_key(&entry.identity.certificate_serial),
        };
        if let Some(journal) = &entry.hello.journal {
            grant.journal_acked = self.journal_acked(node, journal);
        }
        let ids: Vec<CommandId> = self.rows_of(node).map(|(id, _)| id).collect();
        for id in ids {
            let Some(row) = self.commands.get_mut(&id) else { continue };
            let permitted = self.certificates.permits(&entry.identity.certificate_serial, &row.kind);
            let Some(replay) = settle(row, listed.get(&id), permitted, now) else { continue };
            if replay {
                grant.replays.push(row.send_in(id, epoch));
            }
            grant.in_flight.push(InFlight { lane: row.lane.clone(), id, attempt: row.attempt });
            if row.cancel_requested {
                grant.cancels.push(CancelCommand { id, reason: row.cancel_reason.clone() });
            }
        }
        let declared = |lane: &LaneName| entry.hello.lanes.iter().any(|declared| declared.lane == *lane);
        let pending =
            |(_, row): (CommandId, &CommandRow)| row.state == CommandState::Pending && declared(&row.lane);
        grant.has_pending = self.rows_of(node).any(pending);
        HelloOutcome::Granted(Box::new(grant))
    }

    /// Notes where the Hello comes from; its outcome where it is not granted.
    fn admit(
        session: &mut SessionRow,
        certificates: &mut Certificates,
        all_moves: &mut BTreeMap<NodeId, (String, Moves)>,
        rule: &DuplicateRule,
        entry: &HelloRequest,
        now: UnixMillis,
    ) -> Option<HelloOutcome> {
        let (node, serial) = (&entry.identity.node, &entry.identity.certificate_serial);
        let record = certificates.record(serial);
        let allowed = certificate::admit(certificates.unknown, &entry.identity, &entry.hello, record);
        if let Err(reason) = allowed {
            return Some(HelloOutcome::Refused(reason));
        }
        let here = Place::of(&entry.hello.machine, &entry.hello.boot_id);
        let before = session.came_from.as_ref().filter(|(of, _)| of == serial).map(|(_, place)| *place);
        let known = all_moves.get(node).filter(|(of, _)| of == serial);
        let known = known.map(|(_, moves)| moves.clone()).unwrap_or_default();
        match before.and_then(|before| duplicate::judge(rule, before, &known, here, now)) {
            Some(Judgement::Duplicate) => {
                certificates.revoke(serial, node, DUPLICATE_IDENTITY, now);
                all_moves.insert(node.clone(), (serial.clone(), Moves::default()));
                session.epoch.0 += 1;
                session.connected = false;
                return Some(HelloOutcome::Quarantined(Box::new(entry.identity.clone())));
            }
            Some(Judgement::Moved(moves)) => {
                all_moves.insert(node.clone(), (serial.clone(), moves));
            }
            None => {}
        }
        session.came_from = Some((serial.clone(), here));
        None
    }

    /// The last first attempt that was dispatched: seq order is the order of dispatch.
    pub(super) fn cursor(&self, node: &NodeId, lane: &LaneName) -> LaneSeq {
        self.rows_of(node)
            .filter(|(_, row)| row.lane == *lane && row.dispatched && !row.deferred)
            .map(|(_, row)| row.seq)
            .max()
            .unwrap_or_default()
    }
}

/// Of several attempts that a node lists, the latest.
fn listed(known: &[KnownCommand]) -> BTreeMap<CommandId, KnownCommand> {
    let mut latest: BTreeMap<CommandId, KnownCommand> = BTreeMap::new();
    for command in known {
        let kept = latest.entry(command.id).or_insert(*command);
        if command.attempt > kept.attempt {
            *kept = *command;
        }
    }
    latest
}

/// Changes the row as the Hello demands. `Some` while it is in flight; true where it is sent again.
fn settle(
    row: &mut CommandRow,
    known: Option<&KnownCommand>,
    permitted: bool,
    now: UnixMillis,
) -> Option<bool> {
    let has_begun = |known: &KnownCommand| known.attempt >= row.attempt && row.state.yields_to(known.state);
    if !row.dispatched && known.is_some_and(has_begun) {
        row.reopen();
    }
    if row.state.is_terminal() {
        return None;
    }
    match known {
        Some(known) if known.attempt >= row.attempt => {
            let evidence = if known.state.is_in_flight() { known.state } else { CommandState::Dispatched };
            let state = if known.attempt > row.attempt { evidence } else { row.state.max(evidence) };
            row.deferred |= row.state == CommandState::Pending;
            row.dispatched = true;
            row.attempt = known.attempt;
            row.set_state(state);
            Some(false)
        }
        _ if row.state == CommandState::Pending => None,
        _ if row.is_too_late(now) => {
            row.set_state(CommandState::Expired);
            None
        }
        _ if !permitted => {
            row.refuse_kind();
            None
        }
        _ => Some(true),
    }
}

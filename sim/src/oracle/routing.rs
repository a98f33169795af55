//! What Hellos, passes and readings of lanes may do to rows, and what they must answer.
//!
//! It works out for each command of a node what its Hello makes of it, for each claim whether it was the
//! lane's turn and within its credit, and holds rows and answers against that.
//!
//! 1. A Hello bumps its node's epoch by one. What the node lists is adopted, what is in flight and not listed
//!    is sent again by seq or has expired, all else rests.
//! 2. A pass claims for the live session alone, what is due, within what was asked, first attempts in order
//!    of seq with none passed over, and never past `not_after`.
//! 3. A reading sets marks again that were lost, of what its session was sent, and nothing else.
//! 4. A cursor hides no first attempt that is left.

use std::collections::{BTreeMap, BTreeSet};

use gateway_core::command::CommandState;
use gateway_core::frame::{Command, Hello, KnownCommand};
use gateway_core::ids::{Attempt, CommandId, LaneName, LaneSeq, NodeId, SessionEpoch};
use gateway_core::seam::HelloRequest;
use gateway_core::store::{Claim, HelloGrant, HelloOutcome, LaneRead, LaneState, LaneWant, LeaseProof};
use gateway_core::time::UnixMillis;

use super::updates::{is_end, is_undone, takes_credit};
use super::{Oracle, Row, SessionFact};
use crate::check::must;
use crate::store::{CommandRow, Store};

type Rows = BTreeMap<CommandId, Row>;

impl Oracle {
    pub(super) fn judge_hellos(
        &mut self,
        proof: &LeaseProof,
        entries: &[HelloRequest],
        outcomes: &[HelloOutcome],
        before: &Rows,
        store: &Store,
        now: UnixMillis,
    ) -> BTreeSet<CommandId> {
        let mut allowed = BTreeSet::new();
        must("an outcome for each entry", entries.len() == outcomes.len(), || format!("{outcomes:?}"));
        for (entry, outcome) in entries.iter().zip(outcomes) {
            let node = &entry.identity.node;
            self.identities.judge(entry, outcome);
            if let HelloOutcome::Quarantined(_) = outcome {
                // Whatever session it had is fenced.
                let fact = self.sessions.entry(node.clone()).or_default();
                fact.epoch.0 += 1;
                fact.connected = false;
            }
            let HelloOutcome::Granted(grant) = outcome else { continue };
            let fact = self.sessions.entry(node.clone()).or_default();
            let expected = SessionEpoch(fact.epoch.0 + 1);
            must("a Hello bumps the epoch by one", grant.epoch == expected, || {
                format!("{node}: {}", grant.epoch)
            });
            *fact = SessionFact { gateway: Some(proof.gateway.clone()), epoch: expected, connected: true };
            allowed.extend(self.judge_fates(node, &entry.hello, grant, before, store, now));
            check_grant(node, &entry.hello, grant, store, (now, self.latest));
        }
        allowed
    }

    /// What became of each of the node's commands.
    fn judge_fates(
        &mut self,
        node: &NodeId,
        hello: &Hello,
        grant: &HelloGrant,
        before: &Rows,
        store: &Store,
        now: UnixMillis,
    ) -> Vec<CommandId> {
        let (mut replays, mut in_flight, mut cancels) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        let mut ids = Vec::new();
        for (id, is) in store.commands().iter().filter(|(_, row)| row.node == *node) {
            let Some(was) = before.get(id) else { continue };
            ids.push(*id);
            let listed = hello.known_commands.iter().filter(|known| known.id == *id);
            let known = listed.max_by_key(|known| known.attempt).filter(|known| known.attempt >= was.attempt);
            let adopted = known.filter(|known| !is_end(was.state) || is_undone(was, known.state));
            let late = is.not_after.is_some_and(|end| end <= now);
            let right = match adopted {
                Some(known) => is_adopted(was, is, known),
                None if takes_credit(was.state) && late => is.state == CommandState::Expired,
                None => Row::of(is) == *was,
            };
            must("a Hello does to a row what it may", right, || {
                format!("{id}: {was:?} to {is:?}, listed {known:?} at {now}")
            });
            if takes_credit(is.state) {
                in_flight.insert((*id, is.attempt, is.lane.clone()));
                if is.cancel_requested {
                    cancels.insert(*id);
                }
                if adopted.is_none() {
                    replays.push((is.seq, *id, is.attempt));
                }
            }
        }
        replays.sort();
        let sent: Vec<_> = grant.replays.iter().map(|sent| (sent.seq, sent.id, sent.attempt)).collect();
        must("what the node does not list is sent again, by seq", sent == replays, || {
            format!("{sent:?}, not {replays:?}, to {node}")
        });
        for sent in &grant.replays {
            check_sent(sent, grant.epoch, store);
            self.given.insert((sent.id, sent.attempt));
        }
        let found: BTreeSet<_> =
            grant.in_flight.iter().map(|held| (held.id, held.attempt, held.lane.clone())).collect();
        must("a Hello finds all that takes credit", found == in_flight, || {
            format!("{found:?}, not {in_flight:?}, of {node}")
        });
        let told: BTreeSet<CommandId> = grant.cancels.iter().map(|cancel| cancel.id).collect();
        must("a Hello tells what is to be canceled", told == cancels, || {
            format!("{told:?}, not {cancels:?}")
        });
        ids
    }

    pub(super) fn judge_claims(
        &mut self,
        proof: &LeaseProof,
        wants: &[LaneWant],
        claims: &[Claim],
        before: &Rows,
        store: &Store,
        now: UnixMillis,
    ) -> BTreeSet<CommandId> {
        let mut claimed = BTreeSet::new();
        for Claim { node, command, .. } in claims {
            let want = wants.iter().find(|want| want.node == *node && want.lane == command.lane);
            let fact = self.sessions.get(node);
            let is_live = fact.zip(want).is_some_and(|(fact, want)| {
                fact.connected
                    && fact.epoch == want.epoch
                    && fact.gateway.as_ref() == Some(&proof.gateway)
                    && command.session_epoch == want.epoch
            });
            must("a claim is for the live session alone", is_live, || {
                format!("{command:?} of {node} for {want:?}, but {fact:?}")
            });
            check_sent(command, command.session_epoch, store);
            let (was, row) = (before.get(&command.id), store.commands().get(&command.id));
            let was_pending = was.is_some_and(|was| was.state == CommandState::Pending);
            let is_marked = row.is_some_and(|row| row.state == CommandState::Dispatched && row.dispatched);
            must("a claim marks a pending row", was_pending && is_marked, || format!("{was:?} to {row:?}"));
            let late = command.not_after.is_some_and(|end| end <= now);
            let early = was.and_then(|was| was.not_before).is_some_and(|due| due > now);
            must("nothing is sent before or after its time", !late && !early, || {
                format!("{command:?} at {now}")
            });
            must("a row is claimed once", claimed.insert(command.id), || format!("{command:?}"));
            let again = self.given.contains(&(command.id, command.attempt));
            must("an attempt is dispatched once", !again || self.marks_lost.contains(&command.id), || {
                format!("{command:?}")
            });
        }
        self.given.extend(claims.iter().map(|claim| (claim.command.id, claim.command.attempt)));
        for want in wants {
            self.check_asked_cursor(want, before, store);
            self.check_lane(want, claims, before, store);
        }
        claimed
    }

    /// Whoever asks has passed over no first attempt, but for those whose mark a crash took.
    fn check_asked_cursor(&self, want: &LaneWant, before: &Rows, store: &Store) {
        let fact = self.sessions.get(&want.node);
        if fact.is_none_or(|fact| !fact.connected || fact.epoch != want.epoch) {
            return;
        }
        let hidden = before.iter().find(|(id, was)| {
            let row = store.commands().get(id).filter(|row| row.node == want.node && row.lane == want.lane);
            was.state == CommandState::Pending
                && !was.deferred
                && !self.marks_lost.contains(id)
                && row.is_some_and(|row| {
                    row.seq <= want.cursor && row.not_after.is_none_or(|end| end > self.latest)
                })
        });
        must("a cursor hides nothing", hidden.is_none(), || format!("{want:?} hides {hidden:?}"));
    }

    pub(super) fn judge_readings(
        &mut self,
        proof: &LeaseProof,
        lanes: &[LaneRead],
        states: &[LaneState],
        before: &Rows,
        store: &Store,
    ) -> BTreeSet<CommandId> {
        let mut allowed = BTreeSet::new();
        must("an outcome for each entry", lanes.len() == states.len(), || format!("{states:?}"));
        for (lane, state) in lanes.iter().zip(states) {
            let fact = self.sessions.get(&lane.node);
            let own = fact.is_some_and(|fact| {
                fact.epoch == lane.epoch && fact.gateway.as_ref() == Some(&proof.gateway)
            });
            let lives = own && fact.is_some_and(|fact| fact.connected);
            must("a reading knows whether its session lives", state.is_live == lives, || {
                format!("{lane:?}: {state:?}")
            });
            for (id, attempt) in &lane.sent {
                let row = before.get(id).zip(store.commands().get(id));
                let Some((was, is)) = row.filter(|(_, row)| row.node == lane.node) else { continue };
                let lost = was.state == CommandState::Pending && was.attempt == *attempt;
                if own && lost {
                    let is_marked = is.state == CommandState::Dispatched && is.dispatched;
                    must("a mark that was lost is set again", is_marked, || format!("{was:?} to {is:?}"));
                    let has_lost = self.marks_lost.contains(id);
                    must("only lost marks are set again", has_lost, || format!("{id}: {was:?} to {is:?}"));
                    allowed.insert(*id);
                }
            }
            let held = |(_, row): &(&CommandId, &CommandRow)| {
                row.node == lane.node && row.lane == lane.lane && takes_credit(row.state)
            };
            let held: BTreeSet<(CommandId, Attempt)> =
                store.commands().iter().filter(held).map(|(id, row)| (*id, row.attempt)).collect();
            let read = state.in_flight.iter().map(|command| (command.id, command.attempt)).collect();
            must("a reading finds all that takes credit", held == read, || {
                format!("{state:?}, not {held:?}")
            });
            check_cursor(&lane.node, &lane.lane, state.cursor, store, self.latest);
            self.given.extend(read);
        }
        allowed
    }

    /// One lane of a pass: its order, its credit, and that nothing due was passed over.
    fn check_lane(&self, want: &LaneWant, claims: &[Claim], before: &Rows, store: &Store) {
        let of_lane = |node: &NodeId, lane: &LaneName| *node == want.node && *lane == want.lane;
        let mine: Vec<&Command> = claims
            .iter()
            .filter(|claim| of_lane(&claim.node, &claim.command.lane))
            .map(|claim| &claim.command)
            .collect();
        let within = mine.len() <= want.free.0 as usize;
        must("a pass claims of a lane what it asked for at most", within, || {
            format!("{mine:?} for {want:?}")
        });
        let rows = || store.commands().iter().filter(|(_, row)| of_lane(&row.node, &row.lane));
        let held = rows().filter(|(id, row)| takes_credit(row.state) && !self.foretold.contains(*id)).count();
        must(
            "no lane has more in flight than its capacity",
            mine.is_empty() || held <= want.capacity.0 as usize,
            || format!("{held} for {want:?}"),
        );
        let is_first = |id: &CommandId| before.get(id).is_some_and(|was| !was.deferred);
        let last = mine.iter().filter(|command| is_first(&command.id)).map(|command| command.seq).max();
        let passed_over = rows().find(|(id, row)| {
            let was_left = row.state == CommandState::Pending && is_first(id);
            was_left
                && row.not_after.is_none_or(|end| end > self.latest)
                && last.is_some_and(|last| row.seq < last)
        });
        must("first attempts go in order of seq", passed_over.is_none(), || {
            format!("{passed_over:?} was passed over by {last:?}")
        });
    }
}

fn is_adopted(was: &Row, is: &CommandRow, known: &KnownCommand) -> bool {
    let shown = if takes_credit(known.state) { known.state } else { CommandState::Dispatched };
    let is_later = known.attempt > was.attempt;
    let forward = is_later || is_undone(was, known.state) || is.state as u8 >= was.state as u8;
    is.attempt == known.attempt
        && is.dispatched
        && takes_credit(is.state)
        && is.state as u8 >= shown as u8
        && forward
}

/// What a Hello answers beside the commands.
fn check_grant(
    node: &NodeId,
    hello: &Hello,
    grant: &HelloGrant,
    store: &Store,
    (now, latest): (UnixMillis, UnixMillis),
) {
    must("a Hello tells the database's time", grant.server_time == now, || format!("{}", grant.server_time));
    let acked = hello.journal.as_ref().map_or(0, |journal| store.journal(node, journal).len() as u64);
    must("a Hello tells the journal's cursor", grant.journal_acked.0 == acked, || {
        format!("{}, not {acked}, of {node}", grant.journal_acked)
    });
    let stored = |entry: &&gateway_core::inventory::SectionHash| {
        store.section(node, &entry.section).is_some_and(|row| row.hash == entry.hash)
    };
    let wanted: Vec<_> =
        hello.inventory.iter().filter(|entry| !stored(entry)).map(|entry| &entry.section).collect();
    let told: Vec<_> = grant.inventory_wanted.iter().collect();
    must("a Hello tells what of the inventory is wanted", told == wanted, || {
        format!("{told:?}, not {wanted:?}")
    });
    must("a cursor for each lane", grant.cursors.len() == hello.lanes.len(), || format!("{grant:?}"));
    for (lane, cursor) in hello.lanes.iter().zip(&grant.cursors) {
        check_cursor(node, &lane.lane, *cursor, store, latest);
    }
    let declared = |lane: &LaneName| hello.lanes.iter().any(|declared| declared.lane == *lane);
    let waits = store
        .commands()
        .values()
        .any(|row| row.node == *node && row.state == CommandState::Pending && declared(&row.lane));
    must("a Hello tells that commands wait", grant.has_pending || !waits, || format!("{node}"));
}

/// No first attempt is left at or below the cursor.
fn check_cursor(node: &NodeId, lane: &LaneName, cursor: LaneSeq, store: &Store, latest: UnixMillis) {
    let hidden = store.commands().values().find(|row| {
        let of_lane = row.node == *node && row.lane == *lane;
        let left = row.state == CommandState::Pending && row.not_after.is_none_or(|end| end > latest);
        of_lane && left && !row.deferred && row.seq <= cursor
    });
    must("a cursor hides nothing", hidden.is_none(), || format!("{cursor} of {lane} hides {hidden:?}"));
}

/// What is sent of a command is what is stored of it.
fn check_sent(sent: &Command, epoch: SessionEpoch, store: &Store) {
    let same = store.commands().get(&sent.id).is_some_and(|row| {
        (row.attempt, row.seq, row.not_after) == (sent.attempt, sent.seq, sent.not_after)
            && (&row.lane, &row.kind, &row.payload) == (&sent.lane, &sent.kind, &sent.payload)
    });
    must("a command is sent as it is stored", same && sent.session_epoch == epoch, || format!("{sent:?}"));
}

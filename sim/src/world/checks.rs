//! What must hold between nodes and the store, after every step and at the end.
//!
//! It keeps notes of what was seen and never changes what happens. A check that fails ends the
//! history, and its seed repeats it.
//!
//! 1. First attempts of a lane reach their node in the order of `seq`, but for deferred ones. A node reads only
//!    what a commit gave it, and a cancellation only of what it has read.
//! 2. What is acked was committed before, and its end is what is stored.
//! 3. Of an acked journal every event is stored, once, in its place and as it was written, or as a
//!    tombstone if the store refuses it.
//! 4. A status that was acked is stored as it was told; each hook of a kind ran once for each that is stored,
//!    and not for tombstones.
//! 5. An outcome of a spec that was acked is stored, or a later one is. At the end each spec is answered at its
//!    last generation, and a node runs with what it is said to have applied.
//! 6. Of a section of an inventory, what is stored is never older than what was acked; at the end it is
//!    what the node has.
//! 7. At the end every command has ended, every node is idle with all its events acked, every session is the one
//!    of its node, and all bytes were released.

use gateway_core::frame::{Command, Event};
use gateway_core::ids::{Attempt, CommandId, JournalId, NodeId, SpecName};
use gateway_core::inventory::{BodyHash, SectionHash};

use super::{FAILS, SimNode, WORKS, World};
use crate::check::must;
use crate::node::POISON;
use crate::store::Store;

impl World {
    pub(super) fn check_command(&mut self, node: usize, command: &Command) {
        let given = self.oracle.was_given(command.id, command.attempt);
        must("a node reads what a commit gave it", given, || format!("{command:?}"));
        let row = self.store.commands().get(&command.id).expect("a command that was enqueued");
        must("a node reads its own commands", row.node == self.nodes[node].id, || format!("{command:?}"));
        if command.attempt != Attempt(1) || !self.seen.insert(command.id) || row.deferred {
            return;
        }
        let last = self.first_seen.entry((node, command.lane.clone())).or_default();
        let seq = command.seq;
        must("first attempts reach their node in order", seq > *last, || {
            format!("{seq} after {last}: {command:?}")
        });
        *last = seq;
    }

    /// A cancellation follows its command.
    pub(super) fn check_cancel(&self, node: usize, id: CommandId) {
        let known = self.read.range((id, Attempt(0))..).next().is_some_and(|((of, _), _)| *of == id);
        // A report that is stored proves to a gateway that its node has the command, whoever made it.
        let meddled = self.meddled.contains(&id) && self.oracle.was_reported(id);
        must("a cancellation follows its command", known || meddled, || format!("{id} at node {node}"));
        let wanted = self.store.commands().get(&id).is_some_and(|row| row.cancel_requested);
        must("a cancellation was asked for", wanted, || format!("{id} at node {node}"));
    }

    pub(super) fn check_acks(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let (acked, rejected) = (std::mem::take(&mut node.acked), std::mem::take(&mut node.rejected));
        for ack in acked {
            self.oracle.check_ack(&self.nodes[number].id, ack.id, ack.attempt, ack.reported);
            let stored = self.store.commands().get(&ack.id).map(|row| row.state);
            let is_end = ack.stored.is_terminal();
            must("an end that was acked is stored", !is_end || stored == Some(ack.stored), || {
                format!("{ack:?}, is {stored:?}")
            });
            let ends = ack.reported.is_terminal();
            // Refused and to be tried again, it is pending anew, or further.
            let settled = is_end || ack.reported == gateway_core::command::CommandState::Refused;
            must("the ack of an end tells an end", !ends || settled, || format!("{ack:?}"));
        }
        for (id, attempt) in rejected {
            let current = self.store.commands().get(&id).map(|row| row.attempt);
            must("a report is refused for a reason that it has", current > Some(attempt), || {
                format!("{id}: attempt {attempt}, is at {current:?}")
            });
        }
    }

    pub(super) fn check_events(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        if !std::mem::take(&mut node.cursor_told) {
            return;
        }
        let stored = self.store.journal(&node.id, &node.journal.id).len();
        let acked = node.journal.acked.0 as usize;
        must("events that are acked are stored", stored >= acked, || {
            format!("{stored} of {acked} of {}", node.id)
        });
        check_journal(&self.store, node, &node.journal.id, &node.journal.events);
    }

    pub(super) fn check_spec_answers(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        for acked in std::mem::take(&mut node.specs.acked) {
            let name = SpecName::new(&acked.name).expect("a spec name");
            let row = self.store.specs().get(&(node.id.clone(), name));
            let stored = row.and_then(|row| row.answer.as_ref()).map(|(generation, _)| *generation);
            must("an answer to a spec that is acked is stored", stored >= Some(acked.generation), || {
                format!("{acked:?} of {}: {row:?}", node.id)
            });
        }
    }

    fn check_what_runs(&self) {
        for ((node, name), row) in self.store.specs() {
            let Some((generation, None)) = &row.answer else { continue };
            // What a node that is out goes on to do, nobody is told.
            if self.is_out(node) {
                continue;
            }
            let number = self.number_of(node).expect("a node of this world");
            let runs = self.nodes[number].specs.applied.get(name);
            let is_it = runs.is_some_and(|spec| spec.generation == *generation && spec.body == row.body);
            let runs = runs.map(|spec| spec.generation);
            must("what is said to be applied runs", is_it, || {
                format!("{name} of {node} is applied at {generation}, but {runs:?} runs")
            });
        }
    }

    pub(super) fn check_statuses(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        for acked in std::mem::take(&mut node.statuses.acked) {
            let row = self.store.statuses().get(&(node.id.clone(), acked.id.clone()));
            let is_it = row.is_some_and(|row| (&row.kind, &row.body) == (&acked.kind, &acked.body));
            must("a status that is acked is stored as it was told", is_it, || format!("{acked:?}: {row:?}"));
        }
    }

    /// Each hook ran once for each event and status that is stored and that it is for.
    fn check_hooks(&self) {
        let events = self.store.journals().flat_map(|((node, journal), rows)| {
            let told = rows.iter().filter(|row| row.event.refused.is_none() && row.event.kind == "event");
            told.map(move |row| format!("{node} {journal} {}", row.event.seq))
        });
        let statuses = self.store.statuses().keys().map(|(node, id)| format!("{node} {id}"));
        let expected: Vec<String> = events.chain(statuses).collect();
        let hooks = self.store.hooks();
        let works = WORKS.iter().map(|name| (*name, hooks.worked()));
        for (name, came) in works.chain([(FAILS, hooks.failed())]) {
            for subject in &expected {
                let times = came.get(&(name.to_owned(), subject.clone()));
                must("a hook runs once for what is stored", times == Some(&1), || {
                    format!("{name} ran {times:?} times for {subject}")
                });
            }
            let all = came.keys().filter(|(of, _)| of == name).count();
            must("a hook runs once for what is stored", all == expected.len(), || format!("{name}: {all}"));
        }
    }

    pub(super) fn check_sections(&mut self, node: usize) {
        for (section, place) in std::mem::take(&mut self.nodes[node].inventory.acked) {
            self.story.sections += 1;
            let node = &self.nodes[node];
            let held = &node.inventory.held[&section];
            let row = self.store.section(&node.id, &section);
            // It may have been there before, and be there again.
            let last = row.and_then(|row| held.iter().rposition(|body| *body == row.body));
            let own_hash = row.is_some_and(|row| row.hash == BodyHash::of(&row.body));
            must(
                "a section that is acked is stored, or a later one is",
                last >= Some(place) && own_hash,
                || format!("{section} of {}: number {place} was acked, number {last:?} is stored", node.id),
            );
        }
    }

    /// Of nodes that are let in. What was begun on others waits for a certificate.
    pub(super) fn members(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|number| !self.is_quarantined(*number))
    }

    pub(super) fn is_out(&self, node: &NodeId) -> bool {
        self.store.is_quarantined(node)
    }

    fn inventory_is_stored(&self, node: &SimNode) -> bool {
        let is_stored = |entry: &SectionHash| {
            let row = self.store.section(&node.id, &entry.section);
            row.is_some_and(|row| row.hash == entry.hash)
        };
        node.inventory.list().iter().all(is_stored) && self.store.inventory_work().any(|of| *of == node.id)
    }

    /// Every open session is the live one of its node.
    fn sessions_are_live(&self) -> bool {
        self.processes.iter().all(|process| {
            process.sessions.iter().all(|(_, open)| {
                let row = self.store.sessions().get(open.session.node());
                // Its Hello will be refused.
                let knocks = open.session.epoch().is_none() && self.is_out(open.session.node());
                let is_its = row.is_some_and(|row| row.connected && Some(row.epoch) == open.session.epoch());
                knocks || (is_its && self.nodes.iter().any(|node| node.link == Some(open.link)))
            })
        })
    }

    pub(super) fn all_has_ended(&self) -> bool {
        self.store.commands().len() as u64 == self.enqueued
            && self.enqueued >= self.plan.commands as u64
            && self.store.commands().values().all(|row| row.state.is_terminal() || self.is_out(&row.node))
            && self.store.specs().iter().all(|((node, _), row)| row.is_answered() || self.is_out(node))
            && self
                .members()
                .map(|number| &self.nodes[number])
                .all(|node| node.is_live() && node.is_idle() && self.inventory_is_stored(node))
            && self.processes.iter().all(|process| process.posted_bytes == process.released_bytes)
            && self.sessions_are_live()
    }

    /// When a history has come to its end.
    pub(super) fn check_end(&self) {
        self.check_what_runs();
        self.check_hooks();
        for node in &self.nodes {
            check_journal(&self.store, node, &node.journal.id, &node.journal.events);
            for (journal, events) in &node.journal.past {
                check_journal(&self.store, node, journal, events);
                let stored = self.store.journal(&node.id, journal).len();
                must("events that are acked are stored", stored == events.len(), || {
                    format!("{journal}: {stored}")
                });
            }
        }
        for (id, row) in self.store.commands() {
            let ran = self.nodes.iter().any(|node| node.executions.contains(&(*id, row.attempt)));
            let says_so = matches!(row.state.as_str(), "succeeded" | "failed") && !self.meddled.contains(id);
            must("what is said to have run has run", !says_so || ran, || format!("{id}: {row:?}"));
        }
    }

    pub(super) fn what_is_left(&self) -> String {
        let rows = self.store.commands().values().filter(|row| !row.state.is_terminal());
        let rows: Vec<String> =
            rows.map(|row| format!("{} {} {} {}", row.node, row.lane, row.seq, row.state)).collect();
        let nodes: Vec<String> = self
            .nodes
            .iter()
            .filter(|node| !node.is_live() || !node.is_idle() || !self.inventory_is_stored(node))
            .map(|node| format!("{node:?}"))
            .collect();
        let bytes: Vec<String> = self
            .processes
            .iter()
            .map(|process| format!("{} posted, {} released", process.posted_bytes, process.released_bytes))
            .collect();
        let unanswered = self.store.specs().iter().filter(|(_, row)| !row.is_answered());
        let specs: Vec<_> = unanswered.map(|(key, row)| (key, row.generation, &row.answer)).collect();
        let sessions = self.store.sessions();
        let lanes: Vec<_> = self.nodes.iter().map(|node| (node.epoch(), &node.lanes)).collect();
        let open: Vec<_> = self.processes.iter().map(|process| process.sessions.len()).collect();
        format!(
            "at {:?}: commands {rows:#?}, specs {specs:?}, sessions {sessions:?}, {open:?} open, lanes {lanes:?}, \
             nodes {nodes:#?}, bytes {bytes:?}, {:?}, story {:?}",
            self.now, self.probes, self.story
        )
    }
}

/// Holds what is stored of a journal against what its node wrote.
fn check_journal(store: &Store, node: &SimNode, journal: &JournalId, written: &[Event]) {
    let stored = store.journal(&node.id, journal);
    for (row, event) in stored.iter().zip(written) {
        let refused = event.kind == POISON;
        let is_it = row.event == *event || (refused && row.event.refused.is_some());
        must("an event is stored as it was written", row.event.seq == event.seq && is_it, || {
            format!("{event:?} of {} is stored as {row:?}", node.id)
        });
    }
    must("no event is stored that nobody wrote", stored.len() <= written.len(), || format!("{stored:?}"));
}

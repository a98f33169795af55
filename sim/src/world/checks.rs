//! What must hold in a world after every step, and at its end.
//!
//! It keeps notes of what was seen and never changes what happens. A check that fails ends the
//! history, and its seed repeats it.
//!
//! 1. At most one process believes that it holds a gateway's lease.
//! 2. First attempts of a lane reach its node in the order of `seq`, but for deferred ones.
//! 3. An end that was acked is what is stored.
//! 4. Of an acked journal every event is stored, once, in its place and as it was written, or as a
//!    tombstone if the store refuses it.
//! 5. An attempt that a sweep expired is read by no node, before or after.
//! 6. A status that was acked is stored; each hook of a kind ran once for each that is stored, and not for
//!    tombstones.
//! 7. An outcome of a spec that was acked is stored, or a later one is. At the end each spec is answered at its
//!    last generation, and a node runs with what it is said to have applied.
//! 8. Of a section of an inventory, what is stored is never older than what was acked; at the end it is
//!    what the node has.
//! 7. At the end every command has ended, every node is idle with all its events acked, and all bytes were released.

use gateway_core::ids::{Attempt, CommandId, LaneName, LaneSeq, SpecName};
use gateway_core::inventory::{BodyHash, SectionHash};

use super::{FAILS, SimNode, WORKS, World};
use crate::node::POISON;
use crate::store::SpecRow;

impl World {
    pub(super) fn check_leases(&mut self) {
        for gateway in ["ga", "gb"] {
            let holders = self.processes.iter().filter(|process| {
                process.gateway.as_str() == gateway
                    && process.writer.as_ref().is_some_and(|writer| writer.lease_epoch().is_some())
            });
            assert!(holders.count() <= 1, "two processes believe that they hold {gateway}");
        }
    }

    pub(super) fn check_order(
        &mut self,
        node: usize,
        id: CommandId,
        attempt: Attempt,
        lane: &LaneName,
        seq: LaneSeq,
    ) {
        let row = self.store.commands().get(&id).expect("a command that was enqueued");
        if attempt != Attempt(1) || !self.seen.insert(id) || row.deferred {
            return;
        }
        let last = self.first_seen.entry((node, lane.clone())).or_default();
        assert!(seq > *last, "seq {seq} reached node {node} after {last} on {lane}");
        *last = seq;
    }

    /// Whatever a sweep expired was pending, and so no node ever read that attempt.
    pub(super) fn check_swept(&self) {
        for (id, attempt) in self.store.swept() {
            assert!(
                !self.read.contains(&(*id, *attempt)),
                "{id}, attempt {attempt}, was read and is expired"
            );
        }
    }

    pub(super) fn check_acks(&mut self, node: usize) {
        for (id, state) in std::mem::take(&mut self.nodes[node].acked) {
            let stored = self.store.commands().get(&id).map(|row| row.state);
            assert!(!state.is_terminal() || stored == Some(state), "{id} was acked {state}, is {stored:?}");
        }
    }

    pub(super) fn check_events(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        if !std::mem::take(&mut node.cursor_told) {
            return;
        }
        let (written, acked) = (&node.journal.events, node.journal.acked.0 as usize);
        let stored = self.store.journal(&node.id, &node.journal.id);
        assert!(stored.len() >= acked, "{} has {} events of {acked} acked", node.id, stored.len());
        for (row, event) in stored.iter().zip(written) {
            let refused = event.kind == POISON;
            let is_it = row.event == *event || (refused && row.event.refused.is_some());
            assert!(row.event.seq == event.seq && is_it, "{event:?} of {} is stored as {row:?}", node.id);
        }
        assert!(stored.len() <= written.len(), "{} has events that nobody wrote: {stored:?}", node.id);
    }

    pub(super) fn check_spec_answers(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        for acked in std::mem::take(&mut node.specs.acked) {
            let name = SpecName::new(&acked.name).expect("a spec name");
            let row = self.store.specs().get(&(node.id.clone(), name));
            let stored = row.and_then(|row| row.answer.as_ref()).map(|(generation, _)| *generation);
            assert!(stored >= Some(acked.generation), "{acked:?} of {} was acked, is {row:?}", node.id);
        }
    }

    /// To be called when all specs are answered.
    pub(super) fn check_what_runs(&self) {
        for ((node, name), row) in self.store.specs() {
            let Some((generation, None)) = &row.answer else { continue };
            let number = self.number_of(node).expect("a node of this world");
            let runs = self.nodes[number].specs.applied.get(name);
            let is_it = runs.is_some_and(|spec| spec.generation == *generation && spec.body == row.body);
            let runs = runs.map(|spec| spec.generation);
            assert!(is_it, "{name} of {node} is applied at {generation}, but {runs:?} runs");
        }
    }

    pub(super) fn check_statuses(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        for id in std::mem::take(&mut node.statuses.acked) {
            assert!(
                self.store.statuses().contains_key(&(node.id.clone(), id.clone())),
                "{id} is acked and lost"
            );
        }
    }

    /// Each hook ran once for each event and status that is stored and that it is for.
    pub(super) fn check_hooks(&self) {
        let events = self.store.journals().flat_map(|((node, journal), rows)| {
            let told = rows.iter().filter(|row| row.event.refused.is_none() && row.event.kind == "event");
            told.map(move |row| format!("{node} {journal} {}", row.event.seq))
        });
        let statuses = self.store.statuses().keys().map(|(node, id)| format!("{node} {id}"));
        let expected: Vec<String> = events.chain(statuses).collect();
        let hooks = self.store.hooks();
        for (name, came) in [(WORKS, hooks.worked()), (FAILS, hooks.failed())] {
            assert_eq!(came.len(), expected.len(), "{name}: {came:?}");
            for subject in &expected {
                let times = came.get(&(name.to_owned(), subject.clone()));
                assert_eq!(times, Some(&1), "the hook that {name} ran {times:?} times for {subject}");
            }
        }
    }

    pub(super) fn check_sections(&mut self, node: usize) {
        for (section, place) in std::mem::take(&mut self.nodes[node].inventory.acked) {
            self.story.sections += 1;
            let node = &self.nodes[node];
            let held = &node.inventory.held[&section];
            let stored = self.store.section(&node.id, &section);
            let stored =
                stored.unwrap_or_else(|| panic!("{section} of {} was acked and is not there", node.id));
            // It may have been there before, and be there again.
            let last = held.iter().rposition(|body| *body == stored.body);
            assert!(
                last.is_some_and(|last| last >= place) && stored.hash == BodyHash::of(&stored.body),
                "{section} of {}: number {place} was acked, number {last:?} is stored",
                node.id
            );
        }
    }

    fn inventory_is_stored(&self, node: &SimNode) -> bool {
        let is_stored = |entry: &SectionHash| {
            let row = self.store.section(&node.id, &entry.section);
            row.is_some_and(|row| row.hash == entry.hash)
        };
        node.inventory.list().iter().all(is_stored) && self.store.inventory_work().any(|of| *of == node.id)
    }

    pub(super) fn all_has_ended(&self) -> bool {
        self.store.commands().len() == self.plan.commands
            && self.store.commands().values().all(|row| row.state.is_terminal())
            && self.store.specs().values().all(SpecRow::is_answered)
            && self
                .nodes
                .iter()
                .all(|node| node.is_live() && node.is_idle() && self.inventory_is_stored(node))
            && self.processes.iter().all(|process| process.posted_bytes == process.released_bytes)
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
        format!(
            "commands {rows:#?}, specs {specs:?}, sessions {sessions:?}, lanes {lanes:?}, nodes {nodes:#?}, bytes {bytes:?}, story {:?}",
            self.story
        )
    }
}

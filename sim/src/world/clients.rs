//! Clients: what is enqueued, canceled and set from outside, and who hears of it.
//!
//! Owns the plan of that, and the nodes and processes of a world. Clients act only while the world is
//! disturbed; after that everything must come to its end.

use std::time::Duration;

use bytes::Bytes;
use gateway_core::frame::LaneCapacity;
use gateway_core::ids::{CommandId, Credits, LaneName, NodeId, SpecName};
use gateway_core::time::{Moment, UnixMillis};
use gateway_core::writer::Writer;
use uuid::Uuid;

use super::revocations::serial_of;
use super::{Event, Wire, World};
use crate::node::SimNode;
use crate::store::{CertificateRow, NewCommand};

/// How often specs are set in a history.
const SPEC_CHANGES: usize = 25;
/// Bodies of specs are the first bytes of it, so that each length is a body of its own.
static BODY: [u8; 300_003] = [7; 300_003];

impl World {
    pub(super) fn add_node(&mut self, number: usize) {
        let id = NodeId::new(&format!("spiffe://sim/node/{number}")).expect("a node id");
        let lanes = (0..self.chance.within(1..3))
            .map(|lane| LaneCapacity {
                lane: LaneName::new(&format!("lane-{lane}")).expect("a lane name"),
                capacity: Credits(self.chance.within(1..4) as u32),
            })
            .collect();
        self.store.register_node(id.clone());
        self.store.record_certificate(&serial_of(number), CertificateRow::of(&id));
        let poisons = self.chance.percent(20);
        self.nodes.push(SimNode::new(id, lanes, poisons));
        self.node_timers[number] = Some(self.now + Duration::from_millis(1));
        self.at(Duration::from_millis(1), Event::NodeTime { node: number });
    }

    pub(super) fn plan_clients(&mut self) {
        for number in 0..self.plan.commands as u64 {
            let at = self.some_time();
            self.at(at, Event::Enqueue { number });
        }
        for _ in 0..SPEC_CHANGES {
            let at = self.some_time();
            self.at(at, Event::SetSpec);
        }
    }

    /// What clients do.
    pub(super) fn act(&mut self, event: Event) {
        match event {
            Event::Enqueue { number } => self.enqueue(number),
            Event::Cancel { id } => {
                let of = self.store.commands().get(&id).map(|row| row.node.clone());
                let node = of.as_ref().and_then(|node| self.number_of(node));
                if let Some(of) = &of {
                    self.store.cancel(of, id, "");
                    self.flush();
                }
                if let Some(node) = node.filter(|_| self.chance.percent(50)) {
                    self.at(Duration::from_millis(1), Event::Poke { node });
                }
            }
            Event::Poke { node } => {
                let id = self.nodes[node].id.clone();
                self.with_owners(&id, |writer, now| writer.handle_poke(Some(&id), now));
            }
            Event::SetSpec => self.set_spec(),
            Event::PokeSpecs { node } => {
                let id = self.nodes[node].id.clone();
                self.with_owners(&id, |writer, now| writer.handle_specs_poke(Some(&id), now));
            }
            _ => {}
        }
    }

    /// What a notification to the gateway of a node's session reaches.
    fn with_owners(&mut self, node: &NodeId, input: impl Fn(&mut Writer, Moment)) {
        let owner = self.store.sessions().get(node).and_then(|row| row.gateway.clone());
        for process in 0..self.processes.len() {
            let gateway = &self.processes[process];
            // Whoever stands still does not hear it in time; a poll makes up for that.
            if Some(&gateway.gateway) == owner.as_ref() && self.now >= gateway.asleep_until {
                self.with_writer(process, &input);
            }
        }
    }

    /// A platform engineer changes a spec, or sets it to what it is.
    fn set_spec(&mut self) {
        let node = self.chance.within(0..self.nodes.len() as u64) as usize;
        let name = SpecName::new(&format!("spec-{}", self.chance.within(0..4))).expect("a spec name");
        // Several of the large ones do not go to a node at once.
        let large = self.chance.percent(40);
        let bytes = self.chance.within(if large { 300_000..300_003 } else { 0..3 }) as usize;
        self.put_spec(node, name, bytes);
        if self.chance.percent(60) {
            let wait = Duration::from_micros(self.chance.within(100..3_000));
            self.at(wait, Event::PokeSpecs { node });
        }
    }

    pub(super) fn put_spec(&mut self, node: usize, name: SpecName, bytes: usize) {
        let id = self.nodes[node].id.clone();
        let generation = self.store.set_spec(&id, &name, Bytes::from_static(&BODY[..bytes]));
        let generation = generation.expect("a registered node");
        self.nodes[node].specs.set.insert((name, generation), bytes);
        self.flush();
    }

    pub(super) fn enqueue(&mut self, number: u64) {
        let node = self.chance.within(0..self.nodes.len() as u64) as usize;
        let lane = self.chance.pick(&self.nodes[node].lane_names()).clone();
        let now = self.clock();
        let mut soon = |percent: u64, least: u64| {
            let wait = Duration::from_millis(self.chance.within(least..4_000));
            self.chance.percent(percent).then(|| now.plus(wait))
        };
        let (not_before, not_after) = (soon(20, 1), soon(15, 500));
        let not_after = not_after.filter(|end| not_before.is_none_or(|due| due < *end));
        let id = self.enqueue_one(node, lane, not_before, not_after);
        debug_assert!(number < self.plan.commands as u64);
        if self.chance.percent(70) {
            let wait = Duration::from_micros(self.chance.within(100..3_000));
            self.at(wait, Event::Poke { node });
        }
        if self.chance.percent(15) {
            let wait = Duration::from_millis(self.chance.within(1..3_000));
            self.at(wait, Event::Cancel { id });
        }
    }

    pub(super) fn enqueue_one(
        &mut self,
        node: usize,
        lane: LaneName,
        not_before: Option<UnixMillis>,
        not_after: Option<UnixMillis>,
    ) -> CommandId {
        self.enqueued += 1;
        let id = CommandId(Uuid::from_u128(u128::from(self.enqueued)));
        let command = NewCommand {
            id,
            node: self.nodes[node].id.clone(),
            lane,
            kind: "echo".into(),
            payload: Bytes::from_static(b"payload"),
            idempotency_key: None,
            not_before,
            not_after,
            max_attempts: 3,
        };
        let now = self.clock();
        self.store.enqueue(command, now).expect("a command that can be delivered");
        self.flush();
        id
    }

    pub(super) fn start(&mut self, process: usize) {
        if self.processes[process].writer.is_none() {
            self.processes[process].start(self.now);
            self.pump_writer(process);
        }
    }

    /// Takes over what a writer counted, before it is gone.
    pub(super) fn count(&mut self, process: usize) {
        if let Some(writer) = &self.processes[process].writer {
            let counts = writer.counts();
            self.story.fences += counts.fences;
            self.story.superseded += counts.sessions_superseded;
            self.story.rejected += counts.updates_not_stored;
            self.story.conflicts += counts.update_conflicts;
        }
    }

    pub(super) fn end_process(&mut self, process: usize) {
        self.count(process);
        let links: Vec<u64> = self.processes[process].sessions.values().map(|open| open.link).collect();
        self.processes[process].end();
        for link in links {
            self.along(Wire::Down(link), Event::DownEnds { link });
        }
    }
}

//! Operation sequences against a tiny store: whatever the order of messages, outcomes and faults,
//! the writer keeps its promises. The simulator does the same at full size with real sessions.
//!
//! The promises: credit holds, each durable frame is answered once, and all work ends when faults do.
//! Single stories, told in order, are in `tests`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::testing::{at, command_id, events_batch, hello, lane, list_of, node, section};
use super::tests::config;
use super::*;
use crate::command::CommandState;
use crate::frame::{Command, CommandUpdate, Event, Spec, Status};
use crate::ids::{Attempt, EventSeq, FrameRef, Generation, LaneSeq, SectionName, SpecName};
use crate::inventory::BodyHash;
use crate::seam::{EventsRequest, LookRequest, SectionRequest, SpecAnswer, StatusRequest};
use crate::store::{
    Claim, EventsOutcome, ExpiryPass, HelloGrant, HelloOutcome, InFlight, InventoryOutcome, Job, LaneState,
    LeaseOutcome, PresenceOutcome, Queue, RevocationsFound, Routed, SpecAppliedOutcome, SpecsFound,
    SpecsLook, StatusOutcome, StoreError, SweepJob, SweepOutcome, UpdateOutcome,
};
use crate::time::UnixMillis;

const NODES: usize = 4;

#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    Retry,
    UnknownCommitted,
    UnknownLost,
    Rejected,
}

#[derive(Debug, Clone)]
enum Op {
    Hello { node: usize, capacity: u32 },
    Close { session: usize },
    Enqueue { node: usize, poke: bool },
    Report { session: usize, end: bool },
    ReportAll { session: usize },
    Emit { session: usize, count: u64 },
    SetSpec { node: usize, poke: bool },
    Answer { session: usize },
    Tell { session: usize, id: u8 },
    Section { session: usize, of: usize },
    Look { session: usize },
    Execute { queue: usize, fault: Fault },
    Deliver { queue: usize },
    Pass { millis: u64 },
    Steal,
    GiveBack,
}

fn op() -> impl Strategy<Value = Op> {
    let fault = prop_oneof![
        12 => Just(Fault::None),
        2 => Just(Fault::Retry),
        1 => Just(Fault::UnknownCommitted),
        1 => Just(Fault::UnknownLost),
        1 => Just(Fault::Rejected),
    ];
    prop_oneof![
        3 => (0..NODES, 1..4_u32).prop_map(|(node, capacity)| Op::Hello { node, capacity }),
        1 => (0..8_usize).prop_map(|session| Op::Close { session }),
        4 => (0..NODES, any::<bool>()).prop_map(|(node, poke)| Op::Enqueue { node, poke }),
        5 => (0..8_usize, any::<bool>()).prop_map(|(session, end)| Op::Report { session, end }),
        3 => (0..8_usize).prop_map(|session| Op::ReportAll { session }),
        3 => (0..8_usize, 1..6_u64).prop_map(|(session, count)| Op::Emit { session, count }),
        2 => (0..NODES, any::<bool>()).prop_map(|(node, poke)| Op::SetSpec { node, poke }),
        3 => (0..8_usize).prop_map(|session| Op::Answer { session }),
        2 => (0..8_usize, 0..4_u8).prop_map(|(session, id)| Op::Tell { session, id }),
        3 => (0..8_usize, 0..2_usize).prop_map(|(session, of)| Op::Section { session, of }),
        1 => (0..8_usize).prop_map(|session| Op::Look { session }),
        12 => (0..Queue::ALL.len(), fault).prop_map(|(queue, fault)| Op::Execute { queue, fault }),
        12 => (0..Queue::ALL.len()).prop_map(|queue| Op::Deliver { queue }),
        3 => (1..2_500_u64).prop_map(|millis| Op::Pass { millis }),
        1 => Just(Op::Steal),
        2 => Just(Op::GiveBack),
    ]
}

#[derive(Debug)]
struct Row {
    node: usize,
    state: CommandState,
}

/// What a shard and its node know of a session.
#[derive(Debug, Default)]
struct Client {
    node: usize,
    granted: Option<SessionEpoch>,
    /// Durable frames that are not answered yet.
    waits: usize,
    known: Vec<u128>,
    /// The generation of the spec that the session was sent, and whether the node has answered it.
    spec: u64,
    answered: bool,
    /// Sections that are not answered yet.
    sections: BTreeSet<FrameRef>,
    looks: bool,
}

#[derive(Debug)]
enum Flight {
    Taken(Box<Job>, Moment),
    Done(Box<Outcome>, Moment),
}

struct World {
    writer: Writer,
    now: Moment,
    rows: Vec<Row>,
    epochs: [u64; NODES],
    /// What each node's one journal holds, and how much of it the node knows to be stored.
    journals: [Vec<Event>; NODES],
    acked: [u64; NODES],
    /// Of each node's one spec: its generation, and the one that was answered last.
    specs: [(u64, u64); NODES],
    statuses: BTreeSet<(NodeId, String)>,
    /// What is stored of each node's inventory, with the epoch and the ref that it came with.
    inventory: BTreeMap<(NodeId, SectionName), (SessionEpoch, FrameRef)>,
    stolen: bool,
    clients: BTreeMap<SessionKey, Client>,
    next_slot: u32,
    next_ref: u64,
    flights: BTreeMap<Queue, Flight>,
    serving: bool,
    posted: usize,
    released: usize,
}

fn name(number: usize) -> String {
    format!("node-{number}")
}

fn number_of(node: &NodeId) -> usize {
    node.as_str()["node-".len()..].parse().expect("a node of this world")
}

impl World {
    fn new() -> Self {
        Self {
            writer: Writer::new(
                WriterConfig {
                    sweep_every: Duration::from_secs(2),
                    spec_sweep_every: Duration::from_secs(2),
                    ..config()
                },
                at(0),
            ),
            now: at(0),
            rows: Vec::new(),
            epochs: [0; NODES],
            journals: Default::default(),
            acked: [0; NODES],
            specs: [(0, 0); NODES],
            statuses: BTreeSet::new(),
            inventory: BTreeMap::new(),
            stolen: false,
            clients: BTreeMap::new(),
            next_slot: 0,
            next_ref: 0,
            flights: BTreeMap::new(),
            serving: false,
            posted: 0,
            released: 0,
        }
    }

    fn post(&mut self, message: ToWriter) {
        self.posted += message.weight_bytes();
        self.writer.handle_message(message, self.now);
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Hello { node, capacity } => self.say_hello(node, capacity),
            Op::Close { session } => {
                if let Some(key) = self.clients.keys().nth(session).copied() {
                    self.close(key);
                }
            }
            Op::Enqueue { node: number, poke } => {
                self.rows.push(Row { node: number, state: CommandState::Pending });
                if poke {
                    self.writer.handle_poke(Some(&node(&name(number))), self.now);
                }
            }
            Op::Report { session, end: false } => self.report(session, &[CommandState::Running]),
            Op::Report { session, end: true } => self.report(session, &[CommandState::Succeeded]),
            Op::ReportAll { session } => {
                let life = [CommandState::Accepted, CommandState::Running, CommandState::Succeeded];
                self.report(session, &life);
            }
            Op::Emit { session, count } => self.emit(session, count),
            Op::SetSpec { node: number, poke } => {
                self.specs[number].0 += 1;
                if poke {
                    self.writer.handle_specs_poke(Some(&node(&name(number))), self.now);
                }
            }
            Op::Answer { session } => self.answer_spec(session),
            Op::Tell { session, id } => self.tell(session, id),
            Op::Section { session, of } => self.send_section(session, of),
            Op::Look { session } => self.ask_for_look(session),
            Op::Execute { queue, fault } => self.execute(Queue::ALL[queue], fault),
            Op::Deliver { queue } => self.deliver(Queue::ALL[queue]),
            Op::Pass { millis } => {
                let until = self.now + Duration::from_millis(millis);
                while let Some(due) = self.writer.next_deadline().filter(|due| *due <= until) {
                    self.now = self.now.max(due);
                    self.writer.handle_time(self.now);
                    let before = self.flights.len();
                    self.turn();
                    if self.flights.len() == before && self.writer.next_deadline() == Some(due) {
                        break;
                    }
                }
                self.now = until;
                self.writer.handle_time(self.now);
            }
            Op::Steal => self.stolen = true,
            Op::GiveBack => self.stolen = false,
        }
        self.turn();
    }

    fn say_hello(&mut self, node: usize, capacity: u32) {
        if !self.serving {
            return;
        }
        let request = hello(&name(node), self.next_slot, &[("main", capacity)]);
        self.next_slot += 1;
        self.clients.insert(request.key, Client { node, ..Client::default() });
        self.post(ToWriter::Hello(Box::new(request)));
    }

    fn close(&mut self, key: SessionKey) {
        if let Some(client) = self.clients.remove(&key) {
            self.post(ToWriter::Closed { key, node: node(&name(client.node)), reason: "peer-gone" });
        }
    }

    /// A node tells these in one go: each leads to the next.
    fn report(&mut self, session: usize, told: &[CommandState]) {
        let Some((key, client)) = self.clients.iter_mut().nth(session) else { return };
        if client.waits > 0 || client.granted.is_none() {
            return;
        }
        let Some(id) = client.known.first().copied() else { return };
        if told.last().is_some_and(|state| state.is_terminal()) {
            client.known.remove(0);
        }
        client.waits = told.len();
        let (key, reporter) = (*key, node(&name(client.node)));
        for state in told {
            let update = CommandUpdate {
                frame_ref: FrameRef(1),
                id: command_id(id),
                attempt: Attempt(1),
                state: *state,
                progress: None,
                result: Bytes::from_static(b"r"),
                error: None,
                refusal: None,
            };
            let request = UpdateRequest { key, node: reporter.clone(), update };
            self.post(ToWriter::Update(Box::new(request)));
        }
    }

    /// The node sends what was not acked to it, and some more.
    fn emit(&mut self, session: usize, count: u64) {
        let Some((key, client)) = self.clients.iter_mut().nth(session) else { return };
        if client.waits > 0 || client.granted.is_none() {
            return;
        }
        client.waits = 1;
        let acked = self.acked[client.node];
        let (key, sender) = (*key, node(&name(client.node)));
        let batch = Arc::new(events_batch(acked + 1..acked + 1 + count));
        self.post(ToWriter::Events(EventsRequest { key, node: sender, batch }));
    }

    /// The node answers the spec that it was sent.
    fn answer_spec(&mut self, session: usize) {
        let Some((key, client)) = self.clients.iter_mut().nth(session) else { return };
        if client.waits > 0 || client.granted.is_none() || client.answered || client.spec == 0 {
            return;
        }
        client.waits = 1;
        client.answered = true;
        let (key, sender) = (*key, node(&name(client.node)));
        let answer = SpecAnswer {
            key,
            node: sender,
            name: SpecName::new("spec").expect("a spec name"),
            generation: Generation(client.spec),
            error: None,
        };
        self.post(ToWriter::SpecApplied(Box::new(answer)));
    }

    /// The node tells something, which it may have told before.
    fn tell(&mut self, session: usize, id: u8) {
        let Some((key, client)) = self.clients.iter_mut().nth(session) else { return };
        if client.waits > 0 || client.granted.is_none() {
            return;
        }
        client.waits = 1;
        let (key, sender) = (*key, node(&name(client.node)));
        let status =
            Status { frame_ref: FrameRef(1), id: id.to_string(), kind: "kind".into(), body: Bytes::new() };
        let request = StatusRequest { key, node: sender, boot_id: "boot".into(), status };
        self.post(ToWriter::Status(Box::new(request)));
    }

    /// Sections are not awaited: a session has any number of them out.
    fn send_section(&mut self, session: usize, of: usize) {
        let Some((key, client)) = self.clients.iter_mut().nth(session) else { return };
        let Some(epoch) = client.granted else { return };
        self.next_ref += 1;
        client.sections.insert(FrameRef(self.next_ref));
        let of = ["cpu", "disk"][of];
        let mut request = section(&name(client.node), 0, self.next_ref, of, "body");
        (request.key, request.epoch) = (*key, epoch);
        self.post(ToWriter::Section(Arc::new(request)));
    }

    fn ask_for_look(&mut self, session: usize) {
        let Some((key, client)) = self.clients.iter_mut().nth(session) else { return };
        if client.looks || client.granted.is_none() {
            return;
        }
        client.looks = true;
        let (key, node) = (*key, node(&name(client.node)));
        let list = list_of(&[("cpu", "body"), ("disk", "other")]);
        self.post(ToWriter::InventoryLook(Arc::new(LookRequest { key, node, list })));
    }

    fn say_alive(&mut self) {
        let alive = |(key, client): (&SessionKey, &Client)| {
            Some(ToWriter::Alive { key: *key, node: node(&name(client.node)), epoch: client.granted? })
        };
        let messages: Vec<_> = self.clients.iter().filter_map(alive).collect();
        messages.into_iter().for_each(|message| self.post(message));
        self.turn();
    }

    /// What a shell does after each input.
    fn turn(&mut self) {
        loop {
            while let Some(job) = self.writer.poll_job(self.now) {
                let before = self.flights.insert(job.queue(), Flight::Taken(Box::new(job), self.now));
                assert!(before.is_none(), "one job of a queue at a time");
            }
            let Some((shard, message)) = self.writer.poll_to_shard() else { break };
            match message {
                ToShard::Serving(serving) => self.serving = serving,
                ToShard::CloseAll(_) => {
                    let keys: Vec<_> =
                        self.clients.keys().copied().filter(|key| key.shard == shard).collect();
                    keys.into_iter().for_each(|key| self.close(key));
                }
                ToShard::Session { key, news } => self.hear(key, news),
                ToShard::Revoked { .. } => unreachable!("nothing is revoked in this world"),
                ToShard::Drain(_) | ToShard::Cut(_) | ToShard::Stop => {
                    unreachable!("nobody stops this world")
                }
                ToShard::Relayed(_) | ToShard::Vitals(_) | ToShard::Tunnel(_) => {
                    unreachable!("these are not the writer's")
                }
            }
        }
        self.released += self.writer.poll_released_bytes();
        assert!(self.released <= self.posted);
    }

    fn hear(&mut self, key: SessionKey, news: SessionNews) {
        let close = matches!(news, SessionNews::Close(_));
        assert!(self.serving || close, "a fenced gateway has no news but ends: {news:?}");
        let Some(client) = self.clients.get_mut(&key) else { return };
        match news {
            SessionNews::Granted(granted) => {
                assert!(client.granted.is_none(), "a Hello is answered once");
                client.granted = Some(granted.epoch);
                client.known.extend(granted.replays.iter().map(|command| command.id.0.as_u128()));
            }
            SessionNews::Stored { .. } | SessionNews::NotStored { .. } => {
                client.waits = client.waits.checked_sub(1).expect("an update is answered once");
            }
            SessionNews::EventsStored { acked, .. } => {
                client.waits = client.waits.checked_sub(1).expect("a batch is answered once");
                assert!(acked.0 <= self.journals[client.node].len() as u64, "no ack before the commit");
                let known = &mut self.acked[client.node];
                *known = (*known).max(acked.0);
            }
            SessionNews::SectionStored { frame_ref } | SessionNews::SectionNotStored { frame_ref, .. } => {
                assert!(client.sections.remove(&frame_ref), "a section is answered once, by its ref");
            }
            SessionNews::InventoryWanted(_) | SessionNews::InventoryNotLooked => {
                assert!(std::mem::take(&mut client.looks), "a look is answered once");
            }
            SessionNews::Commands(commands) => {
                assert!(client.granted.is_some());
                for command in commands {
                    let id = command.id.0.as_u128();
                    assert!(!client.known.contains(&id), "a command is sent once to a session");
                    client.known.push(id);
                }
            }
            SessionNews::Cancel(_) => {}
            SessionNews::Specs(specs) => {
                assert!(client.granted.is_some());
                let mut bytes = 0;
                for spec in specs {
                    assert!(spec.generation.0 >= client.spec, "a session is never sent an older generation");
                    client.answered = false;
                    client.spec = spec.generation.0;
                    bytes += spec.weight_bytes();
                }
                self.post(ToWriter::SpecsSent { key, bytes });
            }
            SessionNews::Close(_) => self.close(key),
        }
    }

    fn execute(&mut self, queue: Queue, fault: Fault) {
        let Some(Flight::Taken(job, started)) = self.flights.get(&queue) else { return };
        let (job, started) = (job.as_ref().clone(), *started);
        let outcome = match fault {
            Fault::None => self.commit(&job),
            Fault::Retry => Outcome::failed(&job, StoreError::Retry("away".into())),
            Fault::Rejected => Outcome::failed(&job, StoreError::Rejected("bad".into())),
            Fault::UnknownLost => Outcome::failed(&job, StoreError::OutcomeUnknown("cut".into())),
            Fault::UnknownCommitted => {
                self.commit(&job);
                Outcome::failed(&job, StoreError::OutcomeUnknown("cut".into()))
            }
        };
        self.flights.insert(queue, Flight::Done(Box::new(outcome), started));
    }

    fn deliver(&mut self, queue: Queue) {
        match self.flights.remove(&queue) {
            Some(Flight::Done(outcome, started)) => {
                self.writer.handle_outcome(*outcome, started, self.now);
            }
            Some(taken) => {
                self.flights.insert(queue, taken);
            }
            None => {}
        }
    }

    // -- the tiny store --------------------------------------------------------------------------

    fn commit(&mut self, job: &Job) -> Outcome {
        match job {
            Job::Lease(_) if self.stolen => {
                let expires_in = Duration::from_secs(1);
                Outcome::Lease(Ok(LeaseOutcome::HeldByOther { owner: "other".into(), expires_in }))
            }
            Job::Lease(_) => Outcome::Lease(Ok(LeaseOutcome::Held { epoch: LeaseEpoch(1) })),
            Job::Hellos { .. } if self.stolen => Outcome::Hellos(Ok(Routed::LeaseLost)),
            Job::Hellos { entries, .. } => {
                let nodes: BTreeSet<_> = entries.iter().map(|entry| entry.identity.node.clone()).collect();
                assert_eq!(nodes.len(), entries.len(), "at most one Hello of a node in a batch");
                let grants = entries.iter().map(|entry| self.grant(number_of(&entry.identity.node)));
                Outcome::Hellos(Ok(Routed::Committed(grants.collect())))
            }
            Job::Dispatch { .. } if self.stolen => Outcome::Dispatch(Ok(Routed::LeaseLost)),
            Job::Dispatch { wants, .. } => {
                let mut claims = Vec::new();
                for want in wants {
                    self.claim(want, &mut claims);
                }
                Outcome::Dispatch(Ok(Routed::Committed(claims)))
            }
            Job::ReadLanes { .. } if self.stolen => Outcome::LanesRead(Ok(Routed::LeaseLost)),
            Job::ReadLanes { lanes, .. } => {
                let read = |number: usize| LaneState {
                    is_live: true,
                    in_flight: self.in_flight(number).map(|id| self.command(id)).collect(),
                    cursor: LaneSeq(0),
                };
                let states = lanes.iter().map(|lane| read(number_of(&lane.node))).collect();
                Outcome::LanesRead(Ok(Routed::Committed(states)))
            }
            Job::Updates { entries } => {
                Outcome::Updates(Ok(entries.iter().map(|entry| self.store(entry)).collect()))
            }
            Job::Presence { entries, .. } => {
                let outcome = |entry: &PresenceEntry| {
                    let live = SessionEpoch(self.epochs[number_of(entry.node())]);
                    if entry.epoch() == live { PresenceOutcome::Written } else { PresenceOutcome::Superseded }
                };
                Outcome::Presence(Ok(entries.iter().map(outcome).collect()))
            }
            Job::Cancels { .. } => Outcome::Cancels(Ok(Vec::new())),
            Job::Revocations(_) => Outcome::Revocations(Ok(RevocationsFound {
                certificates: Vec::new(),
                more_changes: None,
                more_after: None,
                now_micros: 0,
            })),
            Job::Events { entries } => {
                Outcome::Events(Ok(entries.iter().map(|entry| self.append(entry)).collect()))
            }
            Job::Statuses { entries } => {
                let keys: BTreeSet<_> =
                    entries.iter().map(|entry| (entry.node.clone(), entry.status.id.clone())).collect();
                assert_eq!(keys.len(), entries.len(), "at most one status of an id in a batch");
                let stored = keys.into_iter().map(|key| self.statuses.insert(key));
                Outcome::Statuses(Ok(stored.map(|is_new| StatusOutcome { is_new }).collect()))
            }

            Job::Inventory { entries, .. } => {
                Outcome::Inventory(Ok(entries.iter().map(|entry| self.take_inventory(entry)).collect()))
            }
            Job::Sweep(job) => Outcome::Sweep(Ok(self.sweep(job))),
            Job::SpecsDue { looks, .. } => {
                Outcome::SpecsDue(Ok(looks.iter().map(|look| self.due(look)).collect()))
            }
            Job::SpecsApplied { entries } => {
                let names: BTreeSet<_> = entries.iter().map(|entry| (&entry.node, &entry.name)).collect();
                assert_eq!(names.len(), entries.len(), "a spec of a node stands once in a batch");
                Outcome::SpecsApplied(Ok(entries.iter().map(|entry| self.note_answer(entry)).collect()))
            }
        }
    }

    fn due(&self, look: &SpecsLook) -> SpecsFound {
        let number = number_of(&look.node);
        let (generation, answered) = self.specs[number];
        let known = look.known.first().map_or(0, |known| known.generation.0);
        if look.epoch != SessionEpoch(self.epochs[number])
            || generation <= known
            || (generation == answered && !look.answered_too)
        {
            return SpecsFound::default();
        }
        let name = SpecName::new("spec").expect("a spec name");
        let spec = Spec { name, generation: Generation(generation), body: Bytes::from_static(b"body") };
        SpecsFound { specs: vec![spec], more: false }
    }

    fn note_answer(&mut self, entry: &SpecAnswer) -> SpecAppliedOutcome {
        let (current, answered) = &mut self.specs[number_of(&entry.node)];
        assert!(entry.generation.0 <= *current, "a node answers what it was sent");
        *answered = (*answered).max(entry.generation.0);
        SpecAppliedOutcome::Stored
    }

    fn take_inventory(&mut self, entry: &InventoryEntry) -> InventoryOutcome {
        let request: &SectionRequest = match entry {
            InventoryEntry::Section(request) => request,
            InventoryEntry::Look(look) => {
                let is_wanted = |of: &&crate::inventory::SectionHash| {
                    !self.inventory.contains_key(&(look.node.clone(), of.section.clone()))
                        || of.hash != BodyHash::of(b"body")
                };
                let wanted = look.list.iter().filter(is_wanted).map(|of| of.section.clone());
                return InventoryOutcome::Wanted(wanted.collect());
            }
        };
        if request.epoch < SessionEpoch(self.epochs[number_of(&request.node)]) {
            return InventoryOutcome::Superseded;
        }
        let place = (request.node.clone(), request.section.clone());
        let now = (request.epoch, request.frame_ref);
        let before = self.inventory.insert(place, now);
        assert!(before.is_none_or(|before| before <= now), "an older section is stored over a newer one");
        InventoryOutcome::Stored
    }

    fn sweep(&self, job: &SweepJob) -> SweepOutcome {
        match job {
            SweepJob::Resign { .. } => SweepOutcome::Resigned,
            SweepJob::Lead { .. } if self.stolen => {
                SweepOutcome::LedByOther { expires_in: Duration::from_secs(1) }
            }
            SweepJob::Lead { .. } => SweepOutcome::Leads { epoch: LeaseEpoch(1) },
            _ if self.stolen => SweepOutcome::LeadLost,
            SweepJob::Expire { from, .. } => SweepOutcome::Expired(ExpiryPass {
                expired: 1,
                is_full: from.0 % 2 == 0,
                next: UnixMillis(from.0 + 1),
                skipped: None,
            }),
            SweepJob::FindDead { .. } => SweepOutcome::Dead(Vec::new()),
            SweepJob::Reap { .. } => panic!("nobody is dead"),
        }
    }

    fn grant(&mut self, number: usize) -> HelloOutcome {
        self.epochs[number] += 1;
        let ids: Vec<usize> = self.in_flight(number).collect();
        let in_flight =
            |id: &usize| InFlight { lane: lane("main"), id: command_id(*id as u128), attempt: Attempt(1) };
        HelloOutcome::Granted(Box::new(HelloGrant {
            epoch: SessionEpoch(self.epochs[number]),
            server_time: UnixMillis(0),
            journal_acked: EventSeq(0),
            replays: ids.iter().map(|id| self.command(*id)).collect(),
            in_flight: ids.iter().map(in_flight).collect(),
            cancels: Vec::new(),
            cursors: vec![LaneSeq(0)],
            has_pending: self.rows.iter().any(|row| row.node == number && row.state == CommandState::Pending),
            inventory_wanted: Vec::new(),
            is_recorded: true,
        }))
    }

    fn claim(&mut self, want: &crate::store::LaneWant, claims: &mut Vec<Claim>) {
        let number = number_of(&want.node);
        if want.epoch != SessionEpoch(self.epochs[number]) {
            return;
        }
        for id in 0..self.rows.len() {
            let row = &mut self.rows[id];
            if row.node != number || row.state != CommandState::Pending || claims.len() > 10_000 {
                continue;
            }
            let claimed = claims.iter().filter(|claim| claim.node == want.node).count();
            if claimed == want.free.0 as usize {
                break;
            }
            row.state = CommandState::Dispatched;
            let command = self.command(id);
            claims.push(Claim {
                node: want.node.clone(),
                command,
                moves_cursor: true,
                floor: LaneSeq(0),
                waited: Duration::ZERO,
            });
        }
        let in_flight = self.in_flight(number).count();
        assert!(in_flight <= want.capacity.0 as usize || claims.iter().all(|claim| claim.node != want.node));
    }

    fn store(&mut self, entry: &UpdateRequest) -> UpdateOutcome {
        let row = &mut self.rows[entry.update.id.0.as_u128() as usize];
        let transition = row.state.on_report(entry.update.state);
        if transition == crate::command::Transition::Apply {
            row.state = entry.update.state;
        }
        UpdateOutcome::Stored { state: row.state, lane: lane("main"), conflict: false }
    }

    fn append(&mut self, entry: &EventsRequest) -> EventsOutcome {
        let journal = &mut self.journals[number_of(&entry.node)];
        for event in &entry.batch.events {
            if event.seq.0 == journal.len() as u64 + 1 {
                journal.push(event.clone());
            }
        }
        EventsOutcome { acked: EventSeq(journal.len() as u64) }
    }

    fn in_flight(&self, number: usize) -> impl Iterator<Item = usize> + '_ {
        let mine = move |(_, row): &(usize, &Row)| row.node == number && row.state.is_in_flight();
        self.rows.iter().enumerate().filter(mine).map(|(id, _)| id)
    }

    fn command(&self, id: usize) -> Command {
        Command {
            id: command_id(id as u128),
            attempt: Attempt(1),
            lane: lane("main"),
            seq: LaneSeq(id as u64),
            kind: "echo".into(),
            payload: Bytes::new(),
            not_after: None,
            session_epoch: SessionEpoch(self.epochs[self.rows[id].node]),
        }
    }

    /// No more faults; every node dials in again and works until nothing is left.
    fn settle(&mut self) {
        self.stolen = false;
        for round in 0..400 {
            for queue in Queue::ALL {
                self.execute(queue, Fault::None);
                self.deliver(queue);
                self.turn();
            }
            for number in 0..NODES {
                if !self.clients.values().any(|client| client.node == number) {
                    self.say_hello(number, 1);
                    self.turn();
                }
            }
            for session in 0..self.clients.len() {
                self.report(session, &[CommandState::Succeeded]);
                self.answer_spec(session);
                self.turn();
            }
            self.say_alive();
            self.apply(Op::Pass { millis: 300 });
            let all_done = self.rows.iter().all(|row| row.state.is_terminal());
            let all_answered = self.specs.iter().all(|(generation, answered)| generation == answered);
            if round > 20 && all_done && all_answered && self.posted == self.released {
                return;
            }
        }
        panic!(
            "not all is done: {:?}, specs {:?}, {} bytes posted, {} released, clients {:?}",
            self.rows, self.specs, self.posted, self.released, self.clients
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_credit_holds_answers_come_once_and_all_work_ends(
        ops in prop::collection::vec(op(), 1..250)
    ) {
        let mut world = World::new();
        world.turn();
        world.execute(Queue::Lease, Fault::None);
        world.deliver(Queue::Lease);
        world.turn();
        for op in ops {
            world.apply(op);
        }
        world.settle();
    }
}

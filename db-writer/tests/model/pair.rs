//! PostgreSQL and the model, taken through one sequence side by side.
//!
//! 1. What an operation means is worked out once, from what the model holds before it, and then
//!    asked of both; both see the same clock.
//! 2. Outcomes must be equal slot for slot, but for the sentences in them; the rows at the end too.
//! 3. A want keeps the writer's side of the contract: never more than a lane has free, and never a
//!    cursor that hides a first attempt.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use gateway_core::close::CloseReason;
use gateway_core::command::CommandState;
use gateway_core::frame::{Event, EventBatch, KnownCommand, Refusal, RefusalReason, SpecGeneration, Status};
use gateway_core::ids::*;
use gateway_core::inventory::{BodyHash, SectionHash};
use gateway_core::seam::{
    EventsRequest, HelloRequest, LookRequest, SectionRequest, SpecAnswer, StatusRequest, UpdateRequest,
};
use gateway_core::store::*;
use gateway_core::time::UnixMillis;
use gateway_sim::store::{CommandRow, HookRules, NewCommand, Store};
use uuid::Uuid;

use super::certificates::{COMMAND_KINDS, ROLES, certificate_line};
use super::journals::{Stretch, event_line};
use super::operations::*;
use super::postgres::{DUPLICATES, HOOKS, Postgres};
use super::support::{TTL, acquire, hello, lane, update};
use super::sweeps::{Sweep, Sweeper, owner_name};

/// Both stores, and what a writer would remember.
pub struct Pair<'a> {
    postgres: &'a mut Postgres,
    model: Store,
    /// Of the names of this sequence.
    prefix: String,
    number: u64,
    now: UnixMillis,
    enqueued: Vec<(NodeId, CommandId)>,
    epochs: BTreeMap<(u8, u8), LeaseEpoch>,
    claimed: BTreeMap<CommandId, Attempt>,
    sweeper: Sweeper,
}

/// Where the two differ.
#[derive(Debug)]
pub struct Difference {
    pub step: usize,
    pub what: String,
}

impl<'a> Pair<'a> {
    /// Fresh nodes and gateways, told from all others by `number`.
    pub async fn new(postgres: &'a mut Postgres, number: u64) -> Self {
        let prefix = format!("s{number}-");
        let now = UnixMillis(1_700_000_000_000);
        let mut model = Store::default()
            .with_hooks(hook_rules())
            .with_duplicates(DUPLICATES)
            .with_destructive_kinds(&COMMAND_KINDS[1..]);
        postgres.empty().await;
        postgres.set_clock(now).await;
        for index in 0..NODES {
            let node = NodeId::new(&format!("{prefix}n{index}")).unwrap();
            postgres.register(&node).await;
            model.register_node(node);
        }
        Self {
            postgres,
            model,
            prefix,
            number,
            now,
            enqueued: Vec::new(),
            epochs: BTreeMap::new(),
            claimed: BTreeMap::new(),
            sweeper: Sweeper::default(),
        }
    }

    /// Takes both through the sequence, then compares all rows.
    pub async fn live(mut self, sequence: &[Op]) -> Result<(), Difference> {
        for (step, operation) in sequence.iter().enumerate() {
            self.apply(operation).await.map_err(|what| Difference { step, what })?;
        }
        let (stored, expected) = (self.postgres.rows(&self.prefix).await, self.rows());
        same(&stored, &expected).map_err(|what| Difference { step: sequence.len(), what })
    }

    async fn apply(&mut self, operation: &Op) -> Result<(), String> {
        match operation {
            Op::Tick(millis) => {
                self.now.0 += i64::from(*millis);
                self.postgres.set_clock(self.now).await;
                Ok(())
            }
            Op::Enqueue { .. } => self.enqueue(operation).await,
            Op::Cancel { command, other_node, reason } => {
                let (node, id) = self.command(*command, *other_node);
                let reason = format!("reason{reason}");
                let stored = self.postgres.cancel(&node, id, &reason).await;
                let expected = self.model.cancel(&node, id, &reason).map(|state| state.to_string());
                same(&stored, &expected)
            }
            Op::SetSpec { node, spec, body } => {
                let (node, name, body) = (self.node(*node), spec_of(*spec), spec_body(*body));
                let stored = self.postgres.set_spec(&node, &name, &body).await;
                same(&stored, &self.model.set_spec(&node, &name, body.into()))
            }
            Op::LoseMarks { node, lane } => {
                let node = self.node(*node);
                let lost = self.model.lose_marks(&node, &lane_of(*lane));
                self.postgres.lose_marks(&node, &lost).await;
                Ok(())
            }
            Op::Certificates(what) => {
                self.certify(what).await;
                match self.look_at_certificates(what) {
                    Some(look) => self.commit(&Job::Revocations(look)).await,
                    None => Ok(()),
                }
            }
            Op::Sweeps(sweeps) => {
                for sweep in sweeps {
                    if let Some(job) = self.sweep(sweep) {
                        self.commit(&job).await?;
                    }
                }
                Ok(())
            }
            job => match self.job(job) {
                Some(job) => self.commit(&job).await,
                None => Ok(()),
            },
        }
    }

    async fn commit(&mut self, job: &Job) -> Result<(), String> {
        let stored = self.postgres.commit(job).await;
        let mut expected = self.model.commit(job, self.now);
        self.remember(job, &expected);
        allow_hint(&stored, &mut expected);
        same(&plain(stored), &plain(expected))
    }

    fn sweep(&self, sweep: &Sweep) -> Option<Job> {
        let lease = |gateway| {
            let name = self.gateway(gateway);
            let epoch = self.model.lease_epoch(&name).unwrap_or_default();
            (name, epoch)
        };
        let end = |place| {
            let rows = self.model.commands().values();
            let pending = rows.filter(|row| row.state == CommandState::Pending);
            let ends = pending.filter_map(|row| row.not_after);
            ends.filter(|end| *end <= self.now).nth(usize::from(place))
        };
        self.sweeper.job(sweep, self.now, lease, end)
    }

    async fn enqueue(&mut self, operation: &Op) -> Result<(), String> {
        let Op::Enqueue { node, lane: on, key, not_before, not_after, attempts, same_id } = operation else {
            return Ok(());
        };
        let after = |millis: i32| UnixMillis(self.now.0 + i64::from(millis));
        // No two end at the same instant: which of them a full pass of the sweeps takes is nobody's promise.
        let mut end = not_after.map(after);
        while end.is_some() && self.model.commands().values().any(|row| row.not_after == end) {
            end = end.map(|UnixMillis(end)| UnixMillis(end + 1));
        }
        let fresh = (u128::from(self.number) << 64) | (self.enqueued.len() as u128 + 1);
        let known = self.enqueued.last().filter(|_| *same_id).cloned();
        let (node, id) = known.unwrap_or_else(|| (self.node(*node), CommandId(Uuid::from_u128(fresh))));
        let new = NewCommand {
            id,
            node,
            lane: lane_of(*on),
            kind: COMMAND_KINDS[usize::from(attempts % 4 == 3)].to_owned(),
            payload: Bytes::from_static(b"payload"),
            idempotency_key: key.map(|key| format!("key{key}")),
            not_before: not_before.map(after),
            not_after: end,
            max_attempts: u32::from(*attempts),
        };
        let stored = self.postgres.enqueue(&new).await;
        let expected = self.model.enqueue(new.clone(), self.now);
        if expected == Ok(id) && !self.enqueued.iter().any(|(_, known)| *known == id) {
            self.enqueued.push((new.node, id));
        }
        same(&stored, &expected)
    }

    /// What is asked of a store; `None` where there is nothing to ask.
    fn job(&self, operation: &Op) -> Option<Job> {
        Some(match operation {
            Op::Acquire { gateway, owner, dead } => {
                let dead = dead.map(|dead| if dead == OWNERS { String::new() } else { owner_name(dead) });
                let name = self.gateway(*gateway);
                acquire(name.as_str(), &owner_name(*owner), dead.as_deref())
            }
            Op::Renew(proof) => Job::Lease(LeaseJob::Renew {
                proof: self.proof(*proof),
                ttl: TTL,
                sessions: 3,
                draining: false,
            }),
            Op::Release(proof) => Job::Lease(LeaseJob::Release { proof: self.proof(*proof) }),
            Op::Hello { proof, hellos } => {
                let mut entries: Vec<HelloRequest> = hellos.iter().map(|hi| self.hello(hi)).collect();
                entries.sort_by(|a, b| a.identity.node.cmp(&b.identity.node));
                entries.dedup_by(|a, b| a.identity.node == b.identity.node);
                Job::Hellos { proof: self.proof(*proof), entries }
            }
            Op::Dispatch { proof, wants } => {
                let mut wants: Vec<LaneWant> = wants.iter().filter_map(|want| self.want(want)).collect();
                wants.sort_by(|a, b| (&a.node, &a.lane).cmp(&(&b.node, &b.lane)));
                wants.dedup_by(|a, b| (&a.node, &a.lane) == (&b.node, &b.lane));
                if wants.is_empty() {
                    return None;
                }
                Job::Dispatch { proof: self.proof(*proof), wants }
            }
            Op::ReadLanes { proof, lanes } => {
                let read = |(node, lane): &(u8, u8)| {
                    let node = self.node(*node);
                    let lane = lane_of(*lane);
                    LaneRead {
                        epoch: self.epoch(&node, Epoch::Current),
                        sent: self.sent(&node, &lane),
                        node,
                        lane,
                    }
                };
                Job::ReadLanes { proof: self.proof(*proof), lanes: lanes.iter().map(read).collect() }
            }
            Op::Updates(words) => {
                Job::Updates { entries: words.iter().map(|word| self.word(word)).collect() }
            }
            Op::Presence { gateway, entries } => {
                let entry = |sign: &Sign| {
                    let node = self.node(sign.node);
                    let epoch = self.epoch(&node, sign.epoch);
                    match sign.gone {
                        true => PresenceEntry::Disconnected { node, epoch, reason: "peer-gone" },
                        false => PresenceEntry::Alive { node, epoch },
                    }
                };
                let entries = entries.iter().map(entry).collect();
                Job::Presence { gateway: self.gateway(*gateway), entries }
            }
            Op::LookAtSpecs { gateway, looks, room } => Job::SpecsDue {
                gateway: self.gateway(*gateway),
                looks: looks.iter().map(|look| self.look(look)).collect(),
                at_most_bytes: spec_room(*room),
            },
            Op::SpecsApplied(said) => {
                let mut entries: Vec<SpecAnswer> = said.iter().map(|said| self.said(said)).collect();
                entries.sort_by(|a, b| (&a.node, &a.name).cmp(&(&b.node, &b.name)));
                entries.dedup_by(|a, b| (&a.node, &a.name) == (&b.node, &b.name));
                Job::SpecsApplied { entries }
            }

            Op::Reports(runs) => Job::Events { entries: runs.iter().map(|run| self.reports(run)).collect() },
            Op::Statuses(words) => {
                let mut entries: Vec<StatusRequest> = words.iter().map(|word| self.status(word)).collect();
                entries.sort_by(|a, b| (&a.node, &a.status.id).cmp(&(&b.node, &b.status.id)));
                entries.dedup_by(|a, b| (&a.node, &a.status.id) == (&b.node, &b.status.id));
                Job::Statuses { entries }
            }

            Op::Inventory(parts) => {
                let mut named = BTreeSet::new();
                // A section of a node is in a batch once.
                let alone = parts.iter().filter(|part| part.look || named.insert((part.node, part.section)));
                let entries = alone.map(|part| self.part(part)).collect();
                Job::Inventory { entries, most: usize::from(SECTIONS) - 1 }
            }
            Op::Cancels { gateway } => Job::Cancels { gateway: self.gateway(*gateway) },
            Op::Events(stretches) => {
                let run = |stretch: &Stretch| {
                    let node = self.node(stretch.node);
                    let acked = self.model.journal_acked(&node, &stretch.journal());
                    stretch.request(node, acked)
                };
                Job::Events { entries: stretches.iter().map(run).collect() }
            }
            Op::Tick(_)
            | Op::Enqueue { .. }
            | Op::Cancel { .. }
            | Op::SetSpec { .. }
            | Op::LoseMarks { .. }
            | Op::Certificates(_)
            | Op::Sweeps(_) => return None,
        })
    }

    /// A process keeps the epoch that it was given, whoever holds the lease now.
    fn remember(&mut self, job: &Job, outcome: &Outcome) {
        if let Outcome::Dispatch(Ok(Routed::Committed(claims))) = outcome {
            self.claimed.extend(claims.iter().map(|claim| (claim.command.id, claim.command.attempt)));
        }
        self.sweeper.remember(job, outcome);
        let Job::Lease(LeaseJob::Acquire { gateway, owner, .. }) = job else { return };
        let Outcome::Lease(Ok(LeaseOutcome::Held { epoch })) = outcome else { return };
        for which in 0..GATEWAYS {
            for who in 0..OWNERS {
                if self.gateway(which) == *gateway && owner_name(who) == *owner {
                    self.epochs.insert((which, who), *epoch);
                }
            }
        }
    }

    // -- what the numbers of an operation stand for -----------------------------------------------

    pub fn now(&self) -> UnixMillis {
        self.now
    }

    pub fn model_mut(&mut self) -> &mut Store {
        &mut self.model
    }

    /// A client's statement.
    pub async fn run(&mut self, statement: &str) {
        self.postgres.run(statement).await;
    }

    /// Of the node's certificate.
    pub fn serial(&self, node: u8) -> String {
        format!("{:X}{node:02X}", self.number + 1)
    }

    pub fn node(&self, index: u8) -> NodeId {
        NodeId::new(&format!("{}n{index}", self.prefix)).unwrap()
    }

    fn gateway(&self, index: u8) -> GatewayId {
        GatewayId::new(&format!("{}g{index}", self.prefix)).unwrap()
    }

    fn proof(&self, Proof { gateway, owner }: Proof) -> LeaseProof {
        let epoch = self.epochs.get(&(gateway, owner)).copied().unwrap_or(LeaseEpoch(1));
        LeaseProof { gateway: self.gateway(gateway), owner: owner_name(owner), epoch }
    }

    /// Counted from the latest; beyond the first there is an unknown one.
    fn command(&self, back: u8, other_node: bool) -> (NodeId, CommandId) {
        let place = self.enqueued.len().checked_sub(usize::from(back) + 1);
        let unknown = || (self.node(0), CommandId(Uuid::from_u128(u128::from(self.number) << 64)));
        let (node, id) = place.and_then(|place| self.enqueued.get(place).cloned()).unwrap_or_else(unknown);
        if !other_node {
            return (node, id);
        }
        let others = (0..NODES).map(|index| self.node(index));
        (others.into_iter().find(|other| *other != node).unwrap(), id)
    }

    fn row(&self, id: CommandId) -> Option<&CommandRow> {
        self.model.commands().get(&id)
    }

    /// What was claimed of a lane, whatever became of it.
    fn sent(&self, node: &NodeId, lane: &LaneName) -> Vec<(CommandId, Attempt)> {
        let of_lane = |id| self.row(id).is_some_and(|row| row.node == *node && row.lane == *lane);
        self.claimed.iter().filter(|(id, _)| of_lane(**id)).map(|(id, attempt)| (*id, *attempt)).collect()
    }

    fn attempt(&self, id: CommandId, which: Try) -> Attempt {
        let current = self.row(id).map_or(1, |row| row.attempt.0);
        Attempt(match which {
            Try::Before => current.saturating_sub(1),
            Try::Current => current,
            Try::After => current + 1,
        })
    }

    fn epoch(&self, node: &NodeId, which: Epoch) -> SessionEpoch {
        let current = self.model.sessions().get(node).map_or(0, |row| row.epoch.0);
        SessionEpoch(match which {
            Epoch::Current => current,
            Epoch::Older => current.saturating_sub(1),
        })
    }

    fn hello(&self, hi: &Hi) -> HelloRequest {
        let lanes: Vec<(String, u32)> = (0..)
            .zip(&hi.capacities)
            .map(|(index, capacity)| (lane_of(index).to_string(), u32::from(*capacity)))
            .collect();
        let lanes: Vec<(&str, u32)> =
            lanes.iter().map(|(name, capacity)| (name.as_str(), *capacity)).collect();
        let mut request = hello(self.node(hi.node).as_str(), &lanes, &[]);
        request.identity.certificate_serial = self.serial(hi.node);
        request.hello.role = ROLES[usize::from(hi.role)].to_owned();
        // Two clones with one fingerprint, and another machine.
        (request.hello.machine, request.hello.boot_id) =
            (format!("machine{}", hi.machine / 2), format!("boot{}", hi.machine));
        let known = |knows: &Knows| {
            let (_, id) = self.command(knows.command, false);
            KnownCommand { id, attempt: self.attempt(id, knows.attempt), state: knows.state }
        };
        request.hello.known_commands = hi.knows.iter().map(known).collect();
        let listed: BTreeMap<u8, u8> = hi.lists.iter().copied().collect();
        request.hello.inventory = listed.into_iter().map(|(of, body)| section_hash(of, body)).collect();
        request
    }

    fn want(&self, want: &Want) -> Option<LaneWant> {
        let (node, lane) = (self.node(want.node), lane_of(want.lane));
        let rows = || self.model.commands().values().filter(|row| row.node == node && row.lane == lane);
        let in_flight = rows().filter(|row| row.state.is_in_flight()).count() as u32;
        let cursor = rows().filter(|row| row.dispatched && !row.deferred).map(|row| row.seq).max();
        // Any bound below which nothing is in flight: a floor may be old.
        let held = rows().filter(|row| row.state.is_in_flight() && !row.deferred).map(|row| row.seq).min();
        Some(LaneWant {
            floor: held.or(cursor).filter(|_| want.knows_cursor).unwrap_or_default(),
            epoch: self.epoch(&node, want.epoch),
            free: Credits(u32::from(want.free)),
            cursor: cursor.filter(|_| want.knows_cursor).unwrap_or_default(),
            capacity: Credits(in_flight + u32::from(want.free)),
            in_flight: Credits(in_flight),
            node,
            lane,
        })
    }

    fn word(&self, word: &Word) -> UpdateRequest {
        let (node, id) = self.command(word.command, word.other_node);
        let attempt = self.attempt(id, word.attempt);
        let mut request = update(node.as_str(), id, attempt.0, word.state);
        request.update.progress = word.progress.map(|text| format!("p{text}"));
        request.update.error = word.error.map(|text| format!("e{text}"));
        request.update.refusal = (word.state == CommandState::Refused)
            .then_some(Refusal { reason: RefusalReason::LaneFull, retryable: word.retryable });
        request
    }

    fn look(&self, look: &Look) -> SpecsLook {
        let node = self.node(look.node);
        let has = (0..).zip(&look.has).filter(|(_, generation)| **generation > 0);
        let known = has.map(|(index, generation)| SpecGeneration {
            name: spec_of(index),
            generation: Generation(u64::from(*generation)),
        });
        SpecsLook {
            epoch: self.epoch(&node, look.epoch),
            known: known.collect(),
            answered_too: look.answered_too,
            room: spec_room(look.room),
            node,
        }
    }

    fn said(&self, said: &Said) -> SpecAnswer {
        SpecAnswer {
            key: SessionKey { shard: ShardId(0), slot: 1, serial: 1 },
            node: self.node(said.node),
            name: spec_of(said.spec),
            generation: Generation(u64::from(said.generation)),
            error: said.error.map(|error| format!("e{error}")),
        }
    }

    fn reports(&self, run: &ReportRun) -> EventsRequest {
        let (node, journal) = (self.node(run.node), JournalId::new("reports").unwrap());
        let acked = self.model.journal_acked(&node, &journal).0;
        let first = acked.saturating_sub(u64::from(run.again)) + 1;
        // What a seq holds is the same whenever it is sent: two runs of a batch may hold it.
        let event = |seq: u64| Event {
            seq: EventSeq(seq),
            kind: KINDS[(seq % KINDS.len() as u64) as usize].to_owned(),
            body: Bytes::from(format!("body {seq}")),
            attested: None,
            refused: None,
        };
        let events = (first..first + u64::from(run.count)).map(event).collect();
        let batch = EventBatch { frame_ref: FrameRef(1), journal, boot_id: "boot".to_owned(), events };
        let key = SessionKey { shard: ShardId(0), slot: 1, serial: 1 };
        EventsRequest { key, node, batch: Arc::new(batch) }
    }

    fn status(&self, word: &StatusWord) -> StatusRequest {
        let status = Status {
            frame_ref: FrameRef(1),
            id: format!("status{}", word.id),
            kind: KINDS[usize::from(word.kind)].to_owned(),
            body: Bytes::from(format!("{} of {}", word.kind, word.id)),
        };
        let key = SessionKey { shard: ShardId(0), slot: 1, serial: 1 };
        StatusRequest { key, node: self.node(word.node), boot_id: "boot".into(), status }
    }

    fn part(&self, part: &Part) -> InventoryEntry {
        let node = self.node(part.node);
        let key = SessionKey { shard: ShardId(0), slot: 1, serial: 1 };
        let SectionHash { section, hash } = section_hash(part.section, part.body);
        if part.look {
            let list = (0..=part.section).map(|of| section_hash(of, part.body)).collect();
            return InventoryEntry::Look(Arc::new(LookRequest { key, node, list }));
        }
        InventoryEntry::Section(Arc::new(SectionRequest {
            key,
            epoch: self.epoch(&node, part.epoch),
            node,
            frame_ref: FrameRef(1),
            section,
            hash,
            body: body_text(part.body).into(),
        }))
    }

    // -- the model's rows --------------------------------------------------------------------------

    fn rows(&self) -> BTreeMap<String, String> {
        let commands = self.model.commands().iter();
        let sessions = self.model.sessions().iter().map(|(node, row)| {
            let gateway = row.gateway.as_ref().map(|gateway| format!("{gateway} "));
            let connected = if row.connected { " connected" } else { "" };
            (node.to_string(), format!("{}{}{connected}", gateway.unwrap_or_default(), row.epoch))
        });
        let leases = self.model.leases().iter().map(|(gateway, row)| {
            (format!("gateway:{gateway}"), format!("{} {} {}", row.owner, row.epoch, row.expires))
        });
        let specs = self.model.specs().iter().map(|((node, name), row)| {
            let answer = match &row.answer {
                None => String::new(),
                Some((generation, None)) => format!(" answered {generation} applied"),
                Some((generation, Some(error))) => format!(" answered {generation} failed: {error}"),
            };
            let body = String::from_utf8_lossy(&row.body).into_owned();
            (format!("{node} {name}"), format!("{} {body}{answer}", row.generation))
        });
        let statuses = self.model.statuses().iter().map(|((node, id), row)| {
            let body = String::from_utf8_lossy(&row.body);
            (format!("status {node} {id}"), format!("{} {body} {}", row.kind, row.boot_id))
        });
        let hooks = self.model.hooks();
        let came = |word: &'static str, came: &BTreeMap<(String, String), u32>| {
            let line = |((hook, subject), times): (&(String, String), &u32)| {
                (format!("{word} {hook} {subject}"), times.to_string())
            };
            came.iter().map(line).collect::<Vec<_>>()
        };
        let certificates = self.model.certificates().iter();
        let certificates =
            certificates.map(|(serial, row)| (format!("certificate {serial}"), certificate_line(row)));
        let moves = self.model.moves().iter().map(|(node, (serial, moves))| {
            let left = moves.left.iter().map(|(place, at)| format!("{} {} {at}", place.machine, place.boot));
            let left = left.collect::<Vec<_>>().join(", ");
            let returned = moves.returned.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            (format!("moves {node}"), format!("{serial}: {left}; {returned}"))
        });
        let gateways = self.model.leases().keys().map(|gateway| {
            let (below, at) = self.model.looked_through(gateway);
            let at = at.map(|at| format!(" through {at}")).unwrap_or_default();
            (format!("reaped {gateway}"), format!("below {below}{at}"))
        });
        let lead = self.model.leader().map(|(owner, epoch, expires)| {
            ("leader:sweeps".to_owned(), format!("{owner} {epoch} {expires}"))
        });
        let journals = self.model.journals();
        let events = journals.clone().flat_map(|((node, journal), rows)| {
            let name = move |seq| format!("event {node} {journal} {seq}");
            (1..).zip(rows).map(move |(seq, row): (u64, _)| (name(seq), event_line(row)))
        });
        let cursors = journals
            .map(|((node, journal), rows)| (format!("journal {node} {journal}"), rows.len().to_string()));
        commands
            .map(|(id, row)| (format!("{} {id}", row.node), command_line(row)))
            .chain(specs)
            .chain(sessions)
            .chain(leases)
            .chain(statuses)
            .chain(came("worked", hooks.worked()))
            .chain(came("failed", hooks.failed()))
            .chain(gateways)
            .chain(certificates)
            .chain(moves)
            .chain(lead)
            .chain(events)
            .chain(cursors)
            .chain(self.model.sections().map(|(node, section, row)| {
                let body = String::from_utf8_lossy(&row.body).into_owned();
                (format!("{node} {section}"), format!("{body} {} true", row.epoch))
            }))
            .chain(self.model.inventory_work().map(|node| (format!("inventory {node}"), String::new())))
            .collect()
    }
}

/// The hooks that `Postgres` has as SQL functions.
fn hook_rules() -> HookRules {
    let mut rules = HookRules::default();
    for (kind, hook, fails) in HOOKS {
        rules.add(kind, hook, fails);
    }
    rules
}

fn command_line(row: &CommandRow) -> String {
    let mut line =
        format!("{} on {} {} attempt {} of {}", row.seq, row.lane, row.state, row.attempt, row.max_attempts);
    let mut add = |word: &str, value: Option<String>| {
        if let Some(value) = value {
            line.push_str(&format!(" {word}{value}"));
        }
    };
    add("deferred", row.deferred.then(String::new));
    add("dispatched", row.dispatched.then(String::new));
    add("enqueued ", Some(row.enqueued.to_string()));
    add("before ", row.not_before.map(|date| date.to_string()));
    add("after ", row.not_after.map(|date| date.to_string()));
    add("key ", row.idempotency_key.clone());
    add("cancel ", row.cancel_requested.then(|| row.cancel_reason.clone()));
    add("progress ", row.report.progress.clone());
    add("result ", row.report.result.as_ref().map(|result| String::from_utf8_lossy(result).into_owned()));
    add("error ", row.report.error.clone());
    add("refusal ", row.report.refusal.map(|_| "lane-full".to_owned()));
    line
}

fn section_hash(section: u8, body: u8) -> SectionHash {
    SectionHash {
        section: SectionName::new(&format!("section{section}")).unwrap(),
        hash: BodyHash::of(body_text(body).as_bytes()),
    }
}

fn body_text(body: u8) -> String {
    format!("body{body}")
}

fn lane_of(index: u8) -> LaneName {
    lane(&format!("lane{index}"))
}

fn spec_of(index: u8) -> SpecName {
    SpecName::new(&format!("spec{index}")).unwrap()
}

/// Of three sizes, so that room is used up at different places.
fn spec_body(index: u8) -> String {
    "b".repeat(1 + 100 * usize::from(index))
}

fn spec_room(bodies: u8) -> usize {
    usize::from(bodies) * 400
}

/// Without the sentences, which are for people, and in the order of the contract.
fn plain(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Hellos(Ok(Routed::Committed(mut outcomes))) => {
            for outcome in &mut outcomes {
                if let HelloOutcome::Refused(CloseReason::NotPermitted(sentence)) = outcome {
                    sentence.clear();
                }
            }
            Outcome::Hellos(Ok(Routed::Committed(outcomes)))
        }
        Outcome::Cancels(Ok(mut wanted)) => {
            wanted.sort_by(|a, b| (&a.node, a.cancel.id).cmp(&(&b.node, b.cancel.id)));
            Outcome::Cancels(Ok(wanted))
        }
        other => other,
    }
}

/// `has_pending` may be true where the same Hello adopted all that was pending: it costs a look.
fn allow_hint(stored: &Outcome, expected: &mut Outcome) {
    let (Outcome::Hellos(Ok(Routed::Committed(stored))), Outcome::Hellos(Ok(Routed::Committed(expected)))) =
        (stored, expected)
    else {
        return;
    };
    for pair in stored.iter().zip(expected) {
        if let (HelloOutcome::Granted(stored), HelloOutcome::Granted(expected)) = pair {
            expected.has_pending |= stored.has_pending && !expected.in_flight.is_empty();
        }
    }
}

fn same<T: PartialEq + Debug>(stored: &T, expected: &T) -> Result<(), String> {
    if stored == expected {
        return Ok(());
    }
    Err(format!("PostgreSQL: {stored:#?}\nthe model: {expected:#?}"))
}

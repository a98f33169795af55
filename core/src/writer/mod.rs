//! The writer's decisions: which jobs go to the database, and what their outcomes mean for whom.
//!
//! Owns the lease, the directory of live sessions, the ledger of credits and the queues of group
//! commits, each a room of its own; this file is the way in and the way out. What outcomes mean is
//! in `outcomes`, how it ends in `stop`.
//!
//! 1. No answer before its commit; every durable frame that was taken is answered once, unless its
//!    session is over or a fence came between.
//! 2. At most one job of a queue is in flight; its outcome is waited for even after a fence, and
//!    then means nothing but that the queue is free again (a Hello that was granted all the same
//!    is written as disconnected).
//! 3. Routing jobs leave only while the lease is held. A fence forgets sessions, credits and what
//!    is not acked, and tells every shard.
//! 4. To one session, messages are in the order of what happened.
//! 5. Bytes of a message are released when its outcome is known or it is dropped, once.

mod backoff;
mod batch;
mod cancels;
mod desk;
mod directory;
mod dispatch;
mod drain;
mod events;
mod hellos;
mod hook_pace;
mod inventory;
mod jobs;
mod lanes;
mod lease;
mod outcomes;
mod presence;
mod revocations;
#[cfg(test)]
mod sequences;
mod settlement;
mod spec_places;
mod specs;
mod statuses;
mod stop;
mod suspects;
mod sweeps;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod updates;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

pub use self::backoff::QueueHealth;
use self::batch::GroupQueue;
use self::cancels::CancelFeed;
use self::directory::{Directory, LiveSession};
use self::dispatch::Dispatch;
use self::drain::Drain;
use self::events::EventsQueue;
use self::hellos::{HelloClosed, Hellos};
use self::lanes::{Ledger, Look};
use self::lease::{Lease, LeaseChange};
pub use self::lease::{LeaseEvent, LeaseState};
use self::presence::Presence;
use self::revocations::RevocationFeed;
use self::specs::Specs;
use self::statuses::StatusQueue;
use self::stop::Stop;
use self::sweeps::Sweeps;
use crate::close::CloseReason;
use crate::frame::CreditChange;
use crate::hooks::HookedKinds;
use crate::ids::{GatewayId, LeaseEpoch, NodeId, SessionEpoch, SessionKey, ShardId};
use crate::limits::Limits;
use crate::mail::Weigh;
use crate::seam::{HelloRequest, SessionNews, ToShard, ToWriter, UpdateRequest};
use crate::store::{GatewayRow, InventoryEntry, Outcome, PresenceEntry, Queue};
use crate::time::Moment;

/// What the writer needs to know of its gateway.
#[derive(Debug, Clone)]
pub struct WriterConfig {
    pub gateway: GatewayId,
    /// This process instance; no other process ever has the same.
    pub owner: String,
    /// Owners whose text begins so are proven dead; see `LeaseJob::Acquire`.
    pub dead_owner_prefix: Option<String>,
    pub row: GatewayRow,
    pub shards: u16,
    pub limits: Arc<Limits>,
    pub lease_ttl: Duration,
    pub lease_renew_every: Duration,
    pub poll_every: Duration,
    /// How often the gateway that leads the sweeps looks for what is due.
    pub sweep_every: Duration,
    /// How often each gateway looks for specs that its sessions have not answered.
    pub spec_sweep_every: Duration,
    /// How often what changed among the revoked certificates is looked at, where nobody pokes.
    pub revocation_poll: Duration,
    /// How often all that are revoked are read.
    pub revocation_scan: Duration,
    /// What the store runs hooks for.
    pub hooked: HookedKinds,
}

impl WriterConfig {
    /// A gateway that nobody else looks for: one shard, no hooks, a row that says nothing, and the times that the
    /// gateway's configuration has by default.
    pub fn alone(gateway: GatewayId, owner: &str, limits: Arc<Limits>) -> Self {
        Self {
            gateway,
            owner: owner.to_owned(),
            dead_owner_prefix: None,
            row: GatewayRow {
                region: String::new(),
                internal_url: String::new(),
                version: String::new(),
                max_streams: u32::try_from(limits.streams).unwrap_or(u32::MAX),
            },
            shards: 1,
            limits,
            lease_ttl: Duration::from_secs(20),
            lease_renew_every: Duration::from_secs(5),
            poll_every: Duration::from_secs(1),
            sweep_every: Duration::from_secs(5),
            spec_sweep_every: Duration::from_secs(30),
            revocation_poll: Duration::from_secs(1),
            revocation_scan: Duration::from_secs(60),
            hooked: HookedKinds::default(),
        }
    }
}

/// Where the writer is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// No lease yet, or fenced; every stream is refused.
    Waiting,
    /// The lease is held.
    Serving,
    /// It is held, nodes are told to leave and new sessions are refused; what is there is served.
    Draining,
    /// Shards close their sessions; disconnects are written, then the lease is released.
    Stopping,
    /// All is written; the thread may end.
    Stopped,
}

/// What the writer has counted since it began; for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriterCounts {
    pub hellos_granted: u64,
    pub hellos_refused: u64,
    pub sessions_superseded: u64,
    /// Certificates that two machines used in turn.
    pub certificates_quarantined: u64,
    /// Sessions granted to certificates that the database does not know, so that none can be revoked by its row.
    pub hellos_of_unknown_certificates: u64,
    pub dispatch_passes: u64,
    pub commands_claimed: u64,
    /// Times that a command took the last free credit of its lane.
    pub credits_exhausted: u64,
    pub updates_stored: u64,
    /// A terminal state was reported after another one had been stored.
    pub update_conflicts: u64,
    pub updates_not_stored: u64,
    pub fences: u64,
    pub event_batches_stored: u64,
    /// Events in whose place a tombstone stands.
    pub events_refused: u64,
    /// Statuses that were stored for the first time.
    pub statuses_stored: u64,
    pub sections_stored: u64,
    /// Sections of inventories that the database refused.
    pub sections_refused: u64,
    /// Commands that this gateway's sweeps made expired.
    pub commands_expired: u64,
    /// Sessions of dead gateways that they marked disconnected.
    pub sessions_reaped: u64,
    /// Runs of the sweeps that came to their end.
    pub sweeps: u64,
    /// Specs given to sessions.
    pub specs_pushed: u64,
    /// What nodes said of specs, stored or refused.
    pub spec_answers_stored: u64,
    pub spec_answers_refused: u64,
}

/// The machine of the writer's thread.
#[derive(Debug)]
pub struct Writer {
    config: WriterConfig,
    lease: Lease,
    directory: Directory,
    ledger: Ledger,
    hellos: Hellos,
    dispatch: Dispatch,
    updates: GroupQueue<UpdateRequest>,
    events: EventsQueue,
    statuses: StatusQueue,
    inventory: GroupQueue<InventoryEntry>,
    presence: Presence,
    cancels: CancelFeed,
    revocations: RevocationFeed,
    sweeps: Sweeps,
    specs: Specs,
    drain: Drain,
    stop: Stop,
    next_poll: Option<Moment>,
    to_shard: VecDeque<(ShardId, ToShard)>,
    released_bytes: usize,
    counts: WriterCounts,
}

impl Writer {
    /// A writer that holds no lease yet; its first job is to acquire it.
    pub fn new(config: WriterConfig, now: Moment) -> Self {
        Self {
            lease: Lease::new(config.lease_ttl, config.lease_renew_every, now),
            directory: Directory::default(),
            ledger: Ledger::default(),
            hellos: Hellos::new(),
            dispatch: Dispatch::new(),
            updates: GroupQueue::new(),
            events: EventsQueue::new(config.hooked.clone()),
            statuses: StatusQueue::new(config.hooked.clone()),
            inventory: GroupQueue::new(),
            presence: Presence::new(),
            cancels: CancelFeed::new(),
            revocations: RevocationFeed::new(config.revocation_poll, config.revocation_scan),
            sweeps: Sweeps::new(&config),
            specs: Specs::new(&config),
            drain: Drain::default(),
            stop: Stop::new(config.shards),
            next_poll: None,
            to_shard: VecDeque::new(),
            released_bytes: 0,
            counts: WriterCounts::default(),
            config,
        }
    }

    /// A shard posted this.
    pub fn handle_message(&mut self, message: ToWriter, now: Moment) {
        self.observe_time(now);
        match message {
            ToWriter::Hello(request) => self.take_hello(*request),
            ToWriter::Update(request) => self.take_update(*request),
            ToWriter::Events(request) => self.take_events(request),
            ToWriter::SpecApplied(answer) => self.take_spec_applied(*answer),
            ToWriter::SpecsSent { key, bytes } => self.specs.handle_sent(key, bytes, now),
            ToWriter::Status(request) => self.take_status(*request),
            ToWriter::Section(request) => self.take_section(request),
            ToWriter::InventoryLook(request) => self.take_look(request),
            ToWriter::Credit { key, change, .. } => self.take_credit(key, change),
            ToWriter::Alive { key, node, epoch } => self.take_alive(key, node, epoch),
            ToWriter::Closed { key, reason, .. } => self.take_closed(key, reason),
            ToWriter::ShardStopped { shard } => self.stop.handle_shard_stopped(shard),
        }
        self.advance_stop(now);
    }

    /// A job's outcome. `started` is when the job was handed to the store.
    pub fn handle_outcome(&mut self, outcome: Outcome, started: Moment, now: Moment) {
        // The lease's own outcome first: it may be the renewal that the look at the time misses.
        if let Outcome::Lease(outcome) = outcome {
            let change = self.lease.handle_outcome(outcome, started, now);
            self.follow_lease(change, now);
            self.observe_time(now);
        } else {
            self.observe_time(now);
            self.take_outcome(outcome, started, now);
        }
        self.advance_stop(now);
    }

    /// A notification: these nodes have new commands or cancellations (`None`: look at all).
    pub fn handle_poke(&mut self, node: Option<&NodeId>, now: Moment) {
        self.observe_time(now);
        match node {
            None => {
                self.ledger.mark_all();
                self.cancels.want_look();
            }
            Some(node) => {
                self.hellos.handle_poke(node);
                if let Some(session) = self.directory.of_node(node) {
                    for lane in &session.lanes {
                        self.ledger.mark(*lane, Look::Urgent);
                    }
                    self.cancels.want_look();
                }
            }
        }
        self.advance_stop(now);
    }

    /// Time has passed; to be called at `next_deadline` or later.
    pub fn handle_time(&mut self, now: Moment) {
        self.observe_time(now);
        if self.next_poll.is_some_and(|due| now >= due) {
            self.ledger.mark_all();
            self.dispatch.want_reading(self.ledger.freeze_spent());
            self.cancels.want_look();
            self.presence.handle_due();
            self.next_poll = (self.directory.len() > 0).then(|| now + self.config.poll_every);
        }
        self.advance_stop(now);
    }

    /// The process must end in good order.
    pub fn handle_stop(&mut self, now: Moment) {
        self.observe_time(now);
        self.begin_stop(now);
        self.advance_stop(now);
    }

    /// The next message for a shard, in order.
    pub fn poll_to_shard(&mut self) -> Option<(ShardId, ToShard)> {
        self.to_shard.pop_front()
    }

    /// Bytes of messages that are done with since the last call, to be released to their box.
    pub fn poll_released_bytes(&mut self) -> usize {
        std::mem::take(&mut self.released_bytes)
    }

    /// Whether more messages of the shards should be taken now.
    pub fn wants_messages(&self) -> bool {
        let queues = [Queue::Hellos, Queue::Updates, Queue::Events, Queue::Statuses, Queue::Inventory];
        let entries = queues.map(|queue| self.queue_len(queue)).iter().sum::<usize>();
        // Of specs only the answers: a session that stands in line for a look is no message, and may wait
        // for one (`SpecsSent`).
        entries + self.specs.answers().len() < self.config.limits.to_writer_messages
    }

    /// Where the writer is in its life.
    pub fn phase(&self) -> Phase {
        match (&self.stop, self.lease.is_held()) {
            (stop, _) if stop.is_over() => Phase::Stopped,
            (stop, _) if stop.is_begun() => Phase::Stopping,
            _ if self.drain.leads_to_stop() => Phase::Draining,
            (_, true) if self.drain.is_begun() => Phase::Draining,
            (_, true) => Phase::Serving,
            (_, false) => Phase::Waiting,
        }
    }

    /// Sessions with a durable Hello.
    pub fn sessions(&self) -> usize {
        self.directory.len()
    }

    /// The epoch of the lease, while it is held.
    pub fn lease_epoch(&self) -> Option<LeaseEpoch> {
        self.lease.epoch()
    }

    /// When the last good attempt at the lease began, while it is held.
    pub fn lease_good_since(&self) -> Option<Moment> {
        self.lease.is_held().then(|| self.lease.good_since())
    }

    /// Where the lease is in its life.
    pub fn lease_state(&self) -> LeaseState {
        self.lease.state()
    }

    /// What was counted since the writer began.
    pub fn counts(&self) -> WriterCounts {
        WriterCounts { credits_exhausted: self.ledger.exhausted(), ..self.counts }
    }

    // -- messages ------------------------------------------------------------------------------------

    fn take_hello(&mut self, request: HelloRequest) {
        if self.may_route() {
            self.hellos.push(request);
            return;
        }
        // Its shard has been told to close it; this is for one that slipped through between.
        let reason = if self.stop.is_begun() { CloseReason::Stopping } else { CloseReason::Fenced };
        self.released_bytes += request.weight_bytes();
        self.tell(request.key, SessionNews::Close(reason));
    }

    /// Whether what came, of that many bytes, may wait to be stored; if not, it is forgotten. Of a session that was
    /// superseded too: what its node tells is as true, and storing it is idempotent or fenced by its epoch.
    fn may_store(&mut self, bytes: usize) -> bool {
        let may = self.lease.is_held();
        if !may {
            self.released_bytes += bytes;
        }
        may
    }

    fn take_update(&mut self, request: UpdateRequest) {
        if self.may_store(request.weight_bytes()) {
            self.updates.push(request);
        }
    }

    fn take_credit(&mut self, key: SessionKey, change: CreditChange) {
        let Some(session) = self.directory.get(key) else { return };
        // A lane that the Hello did not declare has no commands, whatever its credit.
        if let Some(lane) = self.ledger.find(&session.lanes, &change.lane) {
            self.ledger.set_capacity(lane, change.capacity);
        }
    }

    fn take_alive(&mut self, key: SessionKey, node: NodeId, epoch: SessionEpoch) {
        if self.directory.get(key).is_some_and(|session| session.epoch == epoch) {
            self.presence.push(PresenceEntry::Alive { node, epoch });
        }
    }

    fn take_closed(&mut self, key: SessionKey, reason: &'static str) {
        match self.hellos.handle_closed(key) {
            HelloClosed::Dropped(bytes) => self.released_bytes += bytes,
            HelloClosed::Awaited => {}
            HelloClosed::Unknown => {
                if let Some(session) = self.directory.remove(key) {
                    self.part_from(session, reason);
                }
            }
        }
    }

    /// A session that left the directory for no newer one: its lanes close, and it is written.
    fn part_from(&mut self, session: LiveSession, reason: &'static str) {
        self.ledger.close(&session.lanes);
        self.specs.forget(session.key);
        let LiveSession { node, epoch, .. } = session;
        self.presence.push(PresenceEntry::Disconnected { node, epoch, reason });
    }

    // -- the lease -----------------------------------------------------------------------------------

    /// Whether new sessions and commands may be routed.
    fn may_route(&self) -> bool {
        self.lease.is_held() && !self.stop.is_begun()
    }

    fn observe_time(&mut self, now: Moment) {
        let change = self.lease.handle_time(now);
        self.follow_lease(change, now);
    }

    fn follow_lease(&mut self, change: LeaseChange, now: Moment) {
        match change {
            LeaseChange::Nothing => {}
            LeaseChange::Serve if self.stop.is_begun() => {}
            LeaseChange::Serve => {
                self.revocations.handle_serving(now);
                for shard in self.shards() {
                    self.to_shard.push_back((shard, self.drain.opening()));
                }
            }
            LeaseChange::Fence => self.fence(),
        }
    }

    fn fence(&mut self) {
        self.counts.fences += 1;
        for shard in self.shards() {
            self.to_shard.push_back((shard, ToShard::Serving(false)));
            self.to_shard.push_back((shard, ToShard::CloseAll(CloseReason::Fenced)));
        }
        for session in self.directory.take_all() {
            self.part_from(session, CloseReason::Fenced.label());
        }
        self.released_bytes += self.hellos.forsake();
        self.released_bytes += self.updates.forsake().iter().map(Weigh::weight_bytes).sum::<usize>();
        self.released_bytes += self.events.forsake();
        self.released_bytes += self.statuses.forsake();
        self.forsake_inventory();
        self.dispatch.forsake();
        self.cancels.forsake();
        self.sweeps.forsake();
        self.released_bytes += self.specs.forsake();
        self.next_poll = None;
    }

    fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.config.shards).map(ShardId)
    }

    fn tell(&mut self, key: SessionKey, news: SessionNews) {
        self.to_shard.push_back((key.shard, ToShard::Session { key, news }));
    }
}

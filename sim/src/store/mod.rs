//! The reference store: what every job does to the database, in memory, one job after the other.
//!
//! It is the model that PostgreSQL's store must agree with, outcome for outcome. Owns the rows and
//! their rules. Never decides for the writer, and knows no connection: faults are the world's.
//!
//! 1. A job commits whole at one instant; jobs never interleave. What PostgreSQL reaches by locks
//!    is here by construction, so a difference in an outcome is a fault of the locks or of SQL.
//! 2. Routing jobs commit only under the lease of their proof, unexpired.
//! 3. A terminal row never changes (but see `CommandState::yields_to`); epochs only rise; in flight after a pass that claimed is at
//!    most the capacity that the pass stated, but for what was reported before it was sent. These are asserted here, at
//!    each commit.
//! 4. Time is the database's clock, in milliseconds, and comes as an argument.

mod certificates;
mod clients;
mod commands;
mod events;
mod hellos;
mod inventory;
mod specs;
mod statuses;
mod sweeps;

use std::collections::{BTreeMap, BTreeSet};

use gateway_core::certificate::KIND_NOT_ALLOWED;
use gateway_core::close::CloseReason;
use gateway_core::command::CommandState;
use gateway_core::duplicate::{DuplicateRule, Moves, Place};
use gateway_core::frame::{CancelCommand, Command, RefusalReason};
use gateway_core::ids::{
    Attempt, CommandId, GatewayId, JournalId, LaneName, LaneSeq, LeaseEpoch, NodeId, SectionName,
    SessionEpoch, SpecName,
};
use gateway_core::store::{
    Job, LeaseJob, LeaseOutcome, LeaseProof, Outcome, PresenceEntry, PresenceOutcome, Routed, StoreError,
    WantedCancel,
};
use gateway_core::time::UnixMillis;

use bytes::Bytes;

pub use self::certificates::CertificateRow;
pub use self::clients::{EnqueueRefusal, NewCommand};
pub use self::events::EventRow;
pub use self::inventory::SectionRow;
pub use self::specs::SpecRow;
pub use self::statuses::{HookRules, StatusRow};

/// A row of `commands`.
#[derive(Debug, Clone)]
pub struct CommandRow {
    pub node: NodeId,
    pub lane: LaneName,
    pub seq: LaneSeq,
    pub kind: String,
    pub payload: Bytes,
    pub idempotency_key: Option<String>,
    pub state: CommandState,
    pub attempt: Attempt,
    pub max_attempts: u32,
    /// Out of the row of first attempts that is served by seq. Never unset.
    pub deferred: bool,
    pub enqueued: UnixMillis,
    pub not_before: Option<UnixMillis>,
    pub not_after: Option<UnixMillis>,
    /// Whether the current attempt was dispatched or adopted.
    pub dispatched: bool,
    pub cancel_requested: bool,
    pub cancel_reason: String,
    pub report: Report,
}

/// What the node has said about a command beside its state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    pub progress: Option<String>,
    /// Of the terminal state.
    pub result: Option<Bytes>,
    pub error: Option<String>,
    pub refusal: Option<RefusalReason>,
}

/// A row of `node_sessions`.
#[derive(Debug, Clone, Default)]
pub struct SessionRow {
    pub gateway: Option<GatewayId>,
    pub epoch: SessionEpoch,
    /// Of the gateway's lease, when the session was opened.
    pub lease_epoch: LeaseEpoch,
    pub connected: bool,
    /// The certificate of the last Hello, and where that came from.
    pub came_from: Option<(String, Place)>,
}

/// A row of `leases`.
#[derive(Debug, Clone)]
pub struct LeaseRow {
    pub owner: String,
    pub epoch: LeaseEpoch,
    pub expires: UnixMillis,
}

/// The database.
#[derive(Debug, Default)]
pub struct Store {
    leases: BTreeMap<GatewayId, LeaseRow>,
    sessions: BTreeMap<NodeId, SessionRow>,
    commands: BTreeMap<CommandId, CommandRow>,
    of_node: BTreeMap<NodeId, BTreeMap<LaneSeq, CommandId>>,
    events: BTreeMap<(NodeId, JournalId), Vec<EventRow>>,
    statuses: BTreeMap<(NodeId, String), StatusRow>,
    hooks: HookRules,
    sections: BTreeMap<(NodeId, SectionName), SectionRow>,
    inventory_work: BTreeSet<NodeId>,
    poison: Option<String>,
    sweeps: sweeps::SweepTables,
    /// The latest that the clock ever said: what was too late once is passed over for good.
    latest: UnixMillis,
    specs: BTreeMap<(NodeId, SpecName), SpecRow>,
    /// Commands that were pending when a report on them was stored: a pass that is under way counts them not.
    foretold: BTreeSet<CommandId>,
    duplicates: DuplicateRule,
    moves: BTreeMap<NodeId, (String, Moves)>,
    certificates: certificates::Certificates,
}

impl Store {
    /// An empty database, which refuses any batch that holds an update with this progress text, an event
    /// or a status of this kind, or a section of this body: what PostgreSQL does with an entry that
    /// validation did not foresee.
    pub fn poisoned_by(progress: &str) -> Self {
        Self { poison: Some(progress.to_owned()), ..Self::default() }
    }

    /// The same database, with hooks.
    #[must_use]
    pub fn with_hooks(mut self, hooks: HookRules) -> Self {
        self.hooks = hooks;
        self
    }

    /// The same database, with another rule of when a certificate is quarantined.
    #[must_use]
    pub fn with_duplicates(mut self, rule: DuplicateRule) -> Self {
        self.duplicates = rule;
        self
    }

    /// Registers a node.
    pub fn register_node(&mut self, node: NodeId) {
        self.sessions.entry(node).or_default();
    }

    /// Commits a job, or says why nothing was committed.
    pub fn commit(&mut self, job: &Job, now: UnixMillis) -> Outcome {
        self.latest = self.latest.max(now);
        match job {
            Job::Lease(job) => Outcome::Lease(Ok(self.lease(job, now))),
            Job::Hellos { proof, entries } => Outcome::Hellos(Ok(self.routed(proof, now, |store| {
                entries.iter().map(|entry| store.hello(&proof.gateway, entry, now)).collect()
            }))),
            Job::Dispatch { proof, wants } => Outcome::Dispatch(Ok(self.routed(proof, now, |store| {
                let mut claims = Vec::new();
                for want in wants {
                    store.claim(&proof.gateway, want, now, &mut claims);
                }
                claims.sort_by(|a, b| (&a.node, a.command.seq).cmp(&(&b.node, b.command.seq)));
                claims
            }))),
            Job::ReadLanes { proof, lanes } => Outcome::LanesRead(Ok(self.routed(proof, now, |store| {
                lanes.iter().map(|lane| store.read_lane(&proof.gateway, lane)).collect()
            }))),
            Job::Updates { entries } => {
                let poisoned = |entry: &gateway_core::seam::UpdateRequest| {
                    self.poison.is_some() && entry.update.progress == self.poison
                };
                if entries.iter().any(poisoned) {
                    return Outcome::Updates(Err(StoreError::Rejected("the progress is poisoned".into())));
                }
                Outcome::Updates(Ok(entries.iter().map(|entry| self.update(entry, now)).collect()))
            }
            Job::Presence { gateway, entries } => Outcome::Presence(Ok(self.presence(gateway, entries))),
            Job::Events { entries } => self.append(entries),
            Job::Statuses { entries } => self.store_statuses(entries),
            Job::Inventory { entries, most } => self.inventory(entries, *most),
            Job::Cancels { gateway } => Outcome::Cancels(Ok(self.wanted_cancels(gateway))),
            Job::SpecsDue { gateway, looks, at_most_bytes } => {
                Outcome::SpecsDue(Ok(self.specs_due(gateway, looks, *at_most_bytes)))
            }
            Job::SpecsApplied { entries } => {
                Outcome::SpecsApplied(Ok(entries.iter().map(|entry| self.spec_applied(entry)).collect()))
            }
            Job::Sweep(job) => Outcome::Sweep(Ok(self.sweep(job, now))),
            Job::Revocations(look) => Outcome::Revocations(Ok(self.certificates.look(look, now))),
        }
    }

    // -- the lease -------------------------------------------------------------------------------

    fn lease(&mut self, job: &LeaseJob, now: UnixMillis) -> LeaseOutcome {
        match job {
            LeaseJob::Acquire { gateway, owner, dead_owner_prefix, ttl, .. } => {
                let row = self.leases.entry(gateway.clone()).or_insert(LeaseRow {
                    owner: String::new(),
                    epoch: LeaseEpoch(0),
                    expires: UnixMillis(i64::MIN),
                });
                // An empty text would prove every owner dead, and so proves none.
                let dead = dead_owner_prefix
                    .as_ref()
                    .is_some_and(|prefix| !prefix.is_empty() && row.owner.starts_with(prefix));
                if row.owner != *owner && row.expires > now && !dead {
                    return held_by_other(row, now);
                }
                if row.owner != *owner {
                    row.epoch.0 += 1;
                    row.owner.clone_from(owner);
                }
                row.expires = now.plus(*ttl);
                LeaseOutcome::Held { epoch: row.epoch }
            }
            LeaseJob::Renew { proof, ttl, .. } => match self.leases.get_mut(&proof.gateway) {
                Some(row) if row.owner == proof.owner && row.epoch == proof.epoch => {
                    row.expires = now.plus(*ttl);
                    LeaseOutcome::Held { epoch: row.epoch }
                }
                Some(row) => held_by_other(row, now),
                None => LeaseOutcome::HeldByOther { owner: String::new(), expires_in: Default::default() },
            },
            LeaseJob::Release { proof } => {
                if let Some(row) = self.leases.get_mut(&proof.gateway)
                    && row.owner == proof.owner
                    && row.epoch == proof.epoch
                {
                    row.expires = now;
                }
                LeaseOutcome::Released
            }
        }
    }

    fn routed<T>(
        &mut self,
        proof: &LeaseProof,
        now: UnixMillis,
        commit: impl FnOnce(&mut Self) -> T,
    ) -> Routed<T> {
        let held = self
            .leases
            .get(&proof.gateway)
            .is_some_and(|row| row.owner == proof.owner && row.epoch == proof.epoch && row.expires > now);
        if held { Routed::Committed(commit(self)) } else { Routed::LeaseLost }
    }

    // -- presence and feed -----------------------------------------------------------------------

    /// Each entry meets what was there before the batch.
    fn presence(&mut self, gateway: &GatewayId, entries: &[PresenceEntry]) -> Vec<PresenceOutcome> {
        let matches = |entry: &PresenceEntry| {
            let row = self.sessions.get(entry.node());
            row.is_some_and(|row| {
                let is_its = row.epoch == entry.epoch() && row.gateway.as_ref() == Some(gateway);
                // A sweep took its gateway for dead: it does not live on.
                is_its && (row.connected || matches!(entry, PresenceEntry::Disconnected { .. }))
            })
        };
        let outcomes: Vec<PresenceOutcome> = entries
            .iter()
            .map(|entry| if matches(entry) { PresenceOutcome::Written } else { PresenceOutcome::Superseded })
            .collect();
        for (entry, outcome) in entries.iter().zip(&outcomes) {
            let ends =
                matches!(entry, PresenceEntry::Disconnected { .. }) && *outcome == PresenceOutcome::Written;
            if let Some(row) = self.sessions.get_mut(entry.node()).filter(|_| ends) {
                row.connected = false;
            }
        }
        outcomes
    }

    fn wanted_cancels(&self, gateway: &GatewayId) -> Vec<WantedCancel> {
        let wanted = |(id, row): (&CommandId, &CommandRow)| {
            let session = self.sessions.get(&row.node)?;
            let live = session.connected && session.gateway.as_ref() == Some(gateway);
            (live && row.cancel_requested && row.state.is_in_flight()).then(|| WantedCancel {
                node: row.node.clone(),
                epoch: session.epoch,
                cancel: CancelCommand { id: *id, reason: row.cancel_reason.clone() },
            })
        };
        self.commands.iter().filter_map(wanted).collect()
    }

    // -- getters ---------------------------------------------------------------------------------

    /// Every command, by id.
    pub fn commands(&self) -> &BTreeMap<CommandId, CommandRow> {
        &self.commands
    }

    /// Every node's session, by node.
    pub fn sessions(&self) -> &BTreeMap<NodeId, SessionRow> {
        &self.sessions
    }

    /// Every gateway's lease, by gateway.
    pub fn leases(&self) -> &BTreeMap<GatewayId, LeaseRow> {
        &self.leases
    }

    /// Every certificate that is recorded, by serial.
    pub fn certificates(&self) -> &BTreeMap<String, CertificateRow> {
        self.certificates.rows()
    }

    /// What is remembered of nodes' moves, each under a certificate.
    pub fn moves(&self) -> &BTreeMap<NodeId, (String, Moves)> {
        &self.moves
    }

    /// Every spec, by node and name.
    pub fn specs(&self) -> &BTreeMap<(NodeId, SpecName), SpecRow> {
        &self.specs
    }

    /// The epoch of a gateway's lease.
    pub fn lease_epoch(&self, gateway: &GatewayId) -> Option<LeaseEpoch> {
        self.leases.get(gateway).map(|row| row.epoch)
    }

    fn rows_of(&self, node: &NodeId) -> impl Iterator<Item = (CommandId, &CommandRow)> {
        let ids = self.of_node.get(node).into_iter().flat_map(BTreeMap::values);
        ids.filter_map(|id| Some((*id, self.commands.get(id)?)))
    }
}

impl CommandRow {
    fn is_too_late(&self, now: UnixMillis) -> bool {
        self.not_after.is_some_and(|end| end <= now)
    }

    /// It was canceled or expired while the mark of its dispatch was lost, and had begun.
    fn reopen(&mut self) {
        assert!(self.state.is_terminal() && !self.dispatched, "only an end that nobody was sent is undone");
        self.state = CommandState::Pending;
    }

    /// The certificate of its node does not allow its kind.
    fn refuse_kind(&mut self) {
        self.set_state(CommandState::Refused);
        self.report.error = Some(KIND_NOT_ALLOWED.to_owned());
    }

    fn set_state(&mut self, state: CommandState) {
        assert!(!self.state.is_terminal(), "a terminal row never changes: {} to {state}", self.state);
        self.state = state;
    }

    fn send_in(&self, id: CommandId, epoch: SessionEpoch) -> Command {
        Command {
            id,
            attempt: self.attempt,
            lane: self.lane.clone(),
            seq: self.seq,
            kind: self.kind.clone(),
            payload: self.payload.clone(),
            not_after: self.not_after,
            session_epoch: epoch,
        }
    }
}

fn held_by_other(row: &LeaseRow, now: UnixMillis) -> LeaseOutcome {
    let millis = u64::try_from(row.expires.0.saturating_sub(now.0)).unwrap_or(0);
    LeaseOutcome::HeldByOther {
        owner: row.owner.clone(),
        expires_in: std::time::Duration::from_millis(millis),
    }
}

fn unknown_node(node: &NodeId) -> CloseReason {
    CloseReason::NotPermitted(format!("node {node} is not registered"))
}

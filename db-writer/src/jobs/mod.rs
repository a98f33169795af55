//! Carries out the writer's jobs: one file of this folder for each kind.
//!
//! A `QueueRunner` owns one queue's connection. It takes a job, gives its outcome, and decides
//! nothing in between but what an error means.
//!
//! 1. The number of round trips of a job does not depend on how many entries it has.
//! 2. A job that fails leaves no transaction open behind it.
//! 3. A job that hangs ends by itself, with what is true of it then.

use std::sync::Arc;
use std::time::Duration;

use gateway_core::certificate::UnknownSerial;
use gateway_core::duplicate::DuplicateRule;
use gateway_core::ids::GatewayId;
use gateway_core::store::{Job, Outcome, Queue, StoreError};
use sqlx::postgres::PgConnectOptions;

use crate::connection::{Connector, Link, Patience};
use crate::failure::{Failure, Stage};
use crate::hooks::Hooks;
use crate::status::WriterStatus;

mod cancels;
mod dispatch;
mod events;
mod hello;
mod hello_fate;
mod hello_sessions;
mod hook_breakers;
mod hook_slots;
mod hooks;
mod inventory;
mod known_cursors;
mod lanes;
mod lease;
mod presence;
mod revocations;
mod specs;
mod statuses;
mod stored;
mod sweeps;
mod updates;

/// One queue's connection and its jobs.
#[derive(Debug)]
pub struct QueueRunner {
    connector: Connector,
    queue: Queue,
    state: State,
}

/// What a runner keeps from job to job, beside its connection.
#[derive(Debug)]
struct State {
    rules: HelloRules,
    hooks: hooks::HookRunner,
    cursors: known_cursors::KnownCursors,
}

/// By what Hellos are granted, and commands sent.
#[derive(Debug, Clone, Default)]
struct HelloRules {
    duplicates: DuplicateRule,
    unknown_serial: UnknownSerial,
    /// Kinds of commands that go to no machine that its tenant controls.
    destructive_kinds: Arc<[String]>,
}

/// Why a job failed: by the database, or by what it holds.
#[derive(Debug)]
enum JobError {
    Sql(sqlx::Error),
    /// Found before anything was committed; the transaction is rolled back.
    Store(StoreError),
}

impl From<sqlx::Error> for JobError {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl QueueRunner {
    /// A runner that will connect with its first job. `wait_for_disk` is about dispatches alone.
    pub fn new(
        options: &PgConnectOptions,
        gateway: &GatewayId,
        queue: Queue,
        synchronous_dispatch: bool,
    ) -> Self {
        let wait_for_disk = synchronous_dispatch || queue != Queue::Dispatch;
        let connector = Connector::new(options, gateway, queue, wait_for_disk);
        let hooks = hooks::HookRunner::new(Arc::default(), Arc::default());
        let cursors = known_cursors::KnownCursors::default();
        Self { connector, queue, state: State { rules: HelloRules::default(), hooks, cursors } }
    }

    /// The same runner with this rule of when a certificate is quarantined.
    #[must_use]
    pub fn with_duplicates(mut self, rule: DuplicateRule) -> Self {
        self.state.rules.duplicates = rule;
        self
    }

    /// The same runner, which does this with certificates that `node_certs` does not have.
    #[must_use]
    pub fn with_unknown_serial(mut self, unknown: UnknownSerial) -> Self {
        self.state.rules.unknown_serial = unknown;
        self
    }

    /// The same runner, which sends these kinds of commands to no machine that its tenant controls.
    #[must_use]
    pub fn with_destructive_kinds(mut self, kinds: Arc<[String]>) -> Self {
        self.state.rules.destructive_kinds = kinds;
        self
    }

    /// The same runner, which runs these hooks for what it stores and counts them in `status`.
    #[must_use]
    pub fn with_hooks(mut self, hooks: Arc<Hooks>, status: Arc<WriterStatus>) -> Self {
        self.state.hooks = hooks::HookRunner::new(hooks, status);
        self
    }

    /// Takes the connection for lost, as after a job whose future was dropped. What it still runs is
    /// ended before the next job.
    pub fn forget_connection(&mut self) {
        self.connector.drop_link();
        self.state.cursors.forget_all();
    }

    /// Carries out one job of this runner's queue.
    pub async fn run(&mut self, job: &Job) -> Outcome {
        debug_assert_eq!(job.queue(), self.queue, "a job goes to its own queue");
        let limit = Patience::of(self.queue).job.saturating_add(self.state.hooks.hooks().patience(job));
        let link = match self.connector.ready().await {
            Ok(link) => link,
            Err(error) => return Outcome::failed(job, error),
        };
        link.stage = Stage::Safe;
        let failure = match tokio::time::timeout(limit, execute(link, job, &mut self.state)).await {
            Ok(Ok(outcome)) => return outcome,
            Ok(Err(JobError::Sql(error))) => Failure::from_sqlx(&error, link.stage),
            Ok(Err(JobError::Store(error))) => Failure { error, connection_lost: false },
            Err(_) => Failure::lost(&format!("no answer within {} s", limit.as_secs()), link.stage),
        };
        if failure.connection_lost || end_transaction(link).await.is_err() {
            self.connector.drop_link();
        }
        self.state.cursors.forget_all();
        Outcome::failed(job, failure.error)
    }
}

/// A transaction that a failed job left open must not keep its locks.
async fn end_transaction(link: &mut Link) -> Result<(), sqlx::Error> {
    match tokio::time::timeout(Duration::from_secs(2), link.roll_back()).await {
        Ok(result) => result,
        Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
    }
}

async fn execute(link: &mut Link, job: &Job, state: &mut State) -> Result<Outcome, JobError> {
    let State { rules, hooks, cursors } = state;
    Ok(match job {
        Job::Lease(job) => Outcome::Lease(Ok(lease::execute(link, job).await?)),
        Job::Hellos { proof, entries } => {
            Outcome::Hellos(Ok(hello::execute(link, proof, entries, rules).await?))
        }
        Job::Dispatch { proof, wants } => {
            Outcome::Dispatch(Ok(dispatch::execute(link, proof, wants, &rules.destructive_kinds).await?))
        }
        Job::ReadLanes { proof, lanes } => Outcome::LanesRead(Ok(lanes::execute(link, proof, lanes).await?)),
        Job::Updates { entries } => Outcome::Updates(Ok(updates::execute(link, entries).await?)),
        Job::Presence { gateway, entries } => {
            Outcome::Presence(Ok(presence::execute(link, gateway, entries).await?))
        }
        Job::Events { entries } => Outcome::Events(Ok(events::execute(link, entries, hooks, cursors).await?)),
        Job::Statuses { entries } => Outcome::Statuses(Ok(statuses::execute(link, entries, hooks).await?)),
        Job::Inventory { entries, most } => {
            Outcome::Inventory(Ok(inventory::execute(link, entries, *most).await?))
        }
        Job::Cancels { gateway } => Outcome::Cancels(Ok(cancels::execute(link, gateway).await?)),
        Job::SpecsDue { gateway, looks, at_most_bytes } => {
            Outcome::SpecsDue(Ok(specs::look(link, gateway, looks, *at_most_bytes).await?))
        }
        Job::SpecsApplied { entries } => Outcome::SpecsApplied(Ok(specs::store(link, entries).await?)),
        Job::Revocations(look) => Outcome::Revocations(Ok(revocations::execute(link, look).await?)),
        Job::Sweep(job) => Outcome::Sweep(Ok(sweeps::execute(link, job).await?)),
    })
}

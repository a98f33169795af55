//! Hooks of what a job has stored: run in its transaction, each under a savepoint of its own.
//!
//! SQL functions run in one call a batch, in PL/pgSQL that sets the savepoints; what an embedder wrote in
//! Rust runs after them, one by one. Which events and statuses are new is the job's to say.
//!
//! 1. A transaction without a hooked kind never comes here.
//! 2. Hooks are given the planner's settings of their database, not those of the gateway's own statements.
//! 3. A call begins no hook when one may be past its time, and each call runs one at least. So a hook has
//!    its time-out at least and twice that at most, and the calls end.
//! 4. Only a failure of the transaction itself fails the job; then nothing of it is stored.
//! 5. What hooks set (the path, the role, whether commits wait for the disk) ends with them.
//! 6. A hook that takes the connection along is found and left out: see `hook_breakers`.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use gateway_core::frame::Status;
use gateway_core::ids::NodeId;
use gateway_core::seam::StatusRequest;
use gateway_core::store::StoreError;
use tokio::time::Instant;

use super::JobError;
use super::hook_breakers::Breakers;
use super::hook_slots::{Slot, StoredEvent, Told, call, publish};
use super::stored::corrupt;
use crate::connection::{Link, PLANNER_SETTINGS};
use crate::failure::Failure;
use crate::hooks::{HookError, HookTransaction, Hooks, Report, StatusReport};
use crate::loops::panic_text;
use crate::status::WriterStatus;

/// What is published of a hook that is not run any more.
const LEFT_OUT: &str =
    "what it is told could not be stored together with it, several times, and is stored without it";

/// How often at most it is said that hooks fail: each failure is published.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// How many hooks ran, and how many of those failed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    run: u64,
    failed: u64,
}

/// Runs the hooks of one queue.
#[derive(Debug)]
pub(super) struct HookRunner {
    hooks: Arc<Hooks>,
    status: Arc<WriterStatus>,
    told_at: Option<Instant>,
    failed_since: u64,
    breakers: Breakers,
    /// Whether all hooks of the transaction are told the same.
    is_lone: bool,
}

impl HookRunner {
    pub(super) fn new(hooks: Arc<Hooks>, status: Arc<WriterStatus>) -> Self {
        Self { hooks, status, told_at: None, failed_since: 0, breakers: Breakers::default(), is_lone: false }
    }

    pub(super) fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    /// Whether something runs when an event of this kind is stored.
    pub(super) fn is_report(&self, kind: &str) -> bool {
        !self.hooks.report_functions(kind).is_empty() || !self.hooks.embedded_reports(kind).is_empty()
    }

    /// Whether something runs when this status is stored.
    pub(super) fn has_handler(&self, status: &Status) -> bool {
        let kind = &status.kind;
        !self.hooks.status_functions(kind).is_empty() || !self.hooks.embedded_statuses(kind).is_empty()
    }

    /// Commits what hooks have run in.
    pub(super) async fn commit(&mut self, link: &mut Link, tally: Tally) -> Result<(), JobError> {
        let error = match link.commit().await {
            Ok(()) => {
                self.note(tally);
                return Ok(());
            }
            Err(error) => error,
        };
        let what = match Failure::from_sqlx(&error, link.stage).error {
            StoreError::Rejected(what) | StoreError::Fatal(what) if tally.run > 0 => what,
            _ => return Err(error.into()),
        };
        // What hooks left for the commit to check. It is narrowed down to one of what they were told, which is
        // then stored without them.
        Err(JobError::Store(if self.breakers.handle_refused_commit() {
            StoreError::Retry(format!("hooks fail the commit of what they are told: {what}"))
        } else {
            StoreError::Rejected(what)
        }))
    }

    /// Counts what has run in a transaction that committed.
    fn note(&mut self, tally: Tally) {
        if tally.run > 0 {
            self.breakers.handle_commit();
        }
        self.status.hooks_run.fetch_add(tally.run, Ordering::Relaxed);
        self.status.hooks_failed.fetch_add(tally.failed, Ordering::Relaxed);
        self.failed_since += tally.failed;
        if self.failed_since > 0 && self.told_at.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
            tracing::warn!(
                failed = self.failed_since,
                "hooks fail; see node.report-failed in the table outbox"
            );
            self.told_at = Some(Instant::now());
            self.failed_since = 0;
        }
    }

    /// Runs all that hang on stored events, which are in the order of locks.
    pub(super) async fn run_reports(
        &mut self,
        link: &mut Link,
        stored: &[StoredEvent<'_>],
    ) -> Result<Tally, JobError> {
        let mut tally = Tally::default();
        if stored.is_empty() {
            return Ok(tally);
        }
        self.open(link).await?;
        let hooks = Arc::clone(&self.hooks);
        let slots: Vec<Slot<'_>> = stored
            .iter()
            .flat_map(|stored| {
                let functions = hooks.report_functions(&stored.event.kind);
                functions.iter().map(|function| Slot { hook: &function.name, told: stored.told() })
            })
            .collect();
        self.is_lone = stored.len() == 1;
        self.run_functions(link, &slots, &mut tally).await?;
        let embedded = |stored: &&StoredEvent<'_>| !hooks.embedded_reports(&stored.event.kind).is_empty();
        let embedded: Vec<&StoredEvent<'_>> = stored.iter().filter(embedded).collect();
        let tenants = tenants(link, embedded.iter().map(|stored| stored.node)).await?;
        for stored in embedded {
            let StoredEvent { node, batch, event } = *stored;
            let tenant = tenants.get(node).map_or("", String::as_str);
            for hook in hooks.embedded_reports(&event.kind) {
                let report = Report { node, tenant, journal: &batch.journal, boot_id: &batch.boot_id, event };
                let slot = Slot { hook: hook.name(), told: stored.told() };
                let run =
                    async |transaction: &mut HookTransaction<'_>| hook.on_report(report, transaction).await;
                self.run_embedded(link, &slot, &mut tally, run).await?;
            }
        }
        link.settle().await?;
        Ok(tally)
    }

    /// Runs all that hang on stored statuses, which are in the order of locks.
    pub(super) async fn run_statuses(
        &mut self,
        link: &mut Link,
        stored: &[&StatusRequest],
    ) -> Result<Tally, JobError> {
        let mut tally = Tally::default();
        if stored.is_empty() {
            return Ok(tally);
        }
        self.open(link).await?;
        let hooks = Arc::clone(&self.hooks);
        let slots: Vec<Slot<'_>> = stored
            .iter()
            .flat_map(|request| {
                let functions = hooks.status_functions(&request.status.kind);
                functions.iter().map(|function| Slot { hook: &function.name, told: Told::of_status(request) })
            })
            .collect();
        self.run_functions(link, &slots, &mut tally).await?;
        let embedded = |request: &&&StatusRequest| !hooks.embedded_statuses(&request.status.kind).is_empty();
        let embedded: Vec<&StatusRequest> = stored.iter().filter(embedded).copied().collect();
        let tenants = tenants(link, embedded.iter().map(|request| &request.node)).await?;
        for request in embedded {
            let StatusRequest { node, boot_id, status, .. } = request;
            let tenant = tenants.get(node).map_or("", String::as_str);
            for hook in hooks.embedded_statuses(&status.kind) {
                let report = StatusReport { node, tenant, boot_id, status };
                let slot = Slot { hook: hook.name(), told: Told::of_status(request) };
                let run =
                    async |transaction: &mut HookTransaction<'_>| hook.on_status(report, transaction).await;
                self.run_embedded(link, &slot, &mut tally, run).await?;
            }
        }
        link.settle().await?;
        Ok(tally)
    }

    /// Runs the SQL functions of slots, in order and in as few calls as may be.
    async fn run_functions(
        &mut self,
        link: &mut Link,
        slots: &[Slot<'_>],
        tally: &mut Tally,
    ) -> Result<(), JobError> {
        let mut rest = slots;
        while let Some(next) = rest.first() {
            let runs_alone = self.breakers.runs_alone();
            if self.breakers.is_out(&next.place()) {
                publish(link, next, &HookError::new(LEFT_OUT)).await?;
                tally.take_one(true);
                rest = &rest[1..];
                continue;
            }
            let called = if runs_alone { &rest[..1] } else { rest };
            self.breakers.handle_call(runs_alone.then(|| next.place()));
            let (done, failed) = call(link, called, self.patience_ms()).await?;
            self.breakers.handle_return();
            if self.is_lone {
                called.iter().for_each(|slot| self.breakers.handle_lone(slot.place()));
            }
            rest = &rest[tally.take(done, failed)?.min(called.len())..];
        }
        Ok(())
    }

    /// Runs a hook of an embedder, and publishes its failure.
    async fn run_embedded(
        &mut self,
        link: &mut Link,
        slot: &Slot<'_>,
        tally: &mut Tally,
        hook: impl AsyncFnOnce(&mut HookTransaction<'_>) -> Result<(), HookError>,
    ) -> Result<(), JobError> {
        let failure = if self.breakers.is_out(&slot.place()) {
            Some(HookError::new(LEFT_OUT))
        } else {
            self.breakers.handle_call(Some(slot.place()));
            let failure = self.guarded(link, hook).await?;
            self.breakers.handle_return();
            if self.is_lone {
                self.breakers.handle_lone(slot.place());
            }
            failure
        };
        if let Some(failure) = &failure {
            publish(link, slot, failure).await?;
        }
        tally.take_one(failure.is_some());
        Ok(())
    }

    /// From here to its end the transaction is the hooks': their time, and the database's own planning.
    async fn open(&mut self, link: &mut Link) -> Result<(), JobError> {
        self.breakers.handle_begin();
        let timeout = self.patience_ms();
        let mut settings =
            format!("SET LOCAL statement_timeout = {}; SET LOCAL lock_timeout = {timeout}", timeout * 2);
        for (name, _) in PLANNER_SETTINGS {
            settings.push_str("; SET LOCAL ");
            settings.push_str(name);
            settings.push_str(" TO DEFAULT");
        }
        Ok(link.steer(settings).await?)
    }

    fn patience_ms(&self) -> i32 {
        i32::try_from(self.hooks.timeout().as_millis()).unwrap_or(i32::MAX / 2).min(i32::MAX / 2)
    }

    /// Runs a hook of an embedder. The inner error is the hook's own, and what it did is taken back.
    async fn guarded(
        &self,
        link: &mut Link,
        hook: impl AsyncFnOnce(&mut HookTransaction<'_>) -> Result<(), HookError>,
    ) -> Result<Option<HookError>, JobError> {
        let timeout = self.patience_ms();
        let begin = format!(
            "SAVEPOINT gateway_hook; SET LOCAL statement_timeout = {timeout}; SET CONSTRAINTS ALL DEFERRED"
        );
        link.steer(begin).await?;
        let mut transaction = HookTransaction::new(link.within());
        let limit = self.hooks.timeout();
        let ended = tokio::time::timeout(limit, caught(Box::pin(hook(&mut transaction)))).await;
        // A query that the hook gave up on is read to its end by the next statement; the server ends it.
        let failure = match ended {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => Some(HookError::new(format!("it did not end within {limit:?}"))),
        };
        let failure = match failure {
            Some(failure) => failure,
            None => {
                let release = "SET CONSTRAINTS ALL IMMEDIATE; RELEASE SAVEPOINT gateway_hook";
                match link.steer(release).await {
                    Ok(()) => return Ok(None),
                    // A deferred constraint, or an error that the hook passed over.
                    Err(error @ sqlx::Error::Database(_)) => HookError::from(error),
                    Err(error) => return Err(error.into()),
                }
            }
        };
        let take_back = "ROLLBACK TO SAVEPOINT gateway_hook; RELEASE SAVEPOINT gateway_hook";
        // The first answer may be the error of a query that the hook gave up on, and which was read to its end.
        match link.steer(take_back).await {
            Err(sqlx::Error::Database(_)) => link.steer(take_back).await?,
            taken_back => taken_back?,
        }
        Ok(Some(failure))
    }
}

impl Tally {
    /// A call's answer; gives how many slots it came to.
    fn take(&mut self, done: i32, failed: i32) -> Result<usize, JobError> {
        let (slots, failures) = (usize::try_from(done).unwrap_or(0), u64::try_from(failed).unwrap_or(0));
        if slots == 0 {
            return Err(corrupt("a call of hooks ran none"));
        }
        self.run += slots as u64;
        self.failed += failures;
        Ok(slots)
    }

    fn take_one(&mut self, failed: bool) {
        self.run += 1;
        self.failed += u64::from(failed);
    }
}

/// The tenants of nodes; asked only where there are nodes.
async fn tenants<'a>(
    link: &mut Link,
    nodes: impl Iterator<Item = &'a NodeId>,
) -> Result<BTreeMap<NodeId, String>, JobError> {
    let nodes: Vec<&NodeId> = nodes.collect();
    if nodes.is_empty() {
        return Ok(BTreeMap::new());
    }
    let names: Vec<&str> = nodes.iter().map(|node| node.as_str()).collect();
    let rows =
        sqlx::query_file!("queries/hooks_tenants.sql", &names as &[&str]).fetch_all(link.within()).await?;
    Ok(nodes.into_iter().cloned().zip(rows.into_iter().map(|row| row.tenant_id)).collect())
}

/// A hook's future whose panic is an error of it.
async fn caught<F: Future<Output = Result<(), HookError>>>(mut hook: Pin<Box<F>>) -> Result<(), HookError> {
    std::future::poll_fn(move |context| {
        // A hook that panicked is not polled again, and its savepoint is rolled back.
        match catch_unwind(AssertUnwindSafe(|| hook.as_mut().poll(context))) {
            Ok(poll) => poll,
            Err(panic) => {
                Poll::Ready(Err(HookError::new(format!("it panicked: {}", panic_text(panic.as_ref())))))
            }
        }
    })
    .await
}

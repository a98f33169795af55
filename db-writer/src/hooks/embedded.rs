//! Hooks that an embedder writes in Rust.
//!
//! Owns the traits, what a hook is told, and the transaction that it is lent. Never runs one.
//!
//! 1. A hook runs on the writer's thread: it awaits, and never blocks. Its time is that of all hooks.
//! 2. It runs between a savepoint and its release. It never commits nor rolls back by itself.
//! 3. An error or a panic of it is a failing hook, and nothing worse.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use gateway_core::frame::{Event, Status};
use gateway_core::ids::{JournalId, NodeId};
use sqlx::PgConnection;

/// What a hook does. It stays on the writer's thread; it is `Send` all the same, as every other future of a job
/// is, so that whoever embeds a job may drive it from any task.
pub type HookFuture<'a> = Pin<Box<dyn Future<Output = Result<(), HookError>> + Send + 'a>>;

/// Runs for events of a kind.
pub trait ReportHook: Send + Sync {
    /// How it is called where it fails.
    fn name(&self) -> &str;

    /// The event is stored with what this does in the transaction, or neither is.
    fn on_report<'a>(
        &'a self,
        report: Report<'a>,
        transaction: &'a mut HookTransaction<'_>,
    ) -> HookFuture<'a>;
}

/// Runs for statuses of a kind.
pub trait StatusHook: Send + Sync {
    /// How it is called where it fails.
    fn name(&self) -> &str;

    /// The status is stored with what this does in the transaction, or neither is.
    fn on_status<'a>(
        &'a self,
        status: StatusReport<'a>,
        transaction: &'a mut HookTransaction<'_>,
    ) -> HookFuture<'a>;
}

/// An event that is being stored, and whose it is.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a> {
    pub node: &'a NodeId,
    /// Of the node; empty where the node is not registered.
    pub tenant: &'a str,
    pub journal: &'a JournalId,
    pub boot_id: &'a str,
    /// With its envelope as received, where the node signed it: nobody has verified it.
    pub event: &'a Event,
}

/// A status that is being stored, and whose it is.
#[derive(Debug, Clone, Copy)]
pub struct StatusReport<'a> {
    pub node: &'a NodeId,
    /// Of the node; empty where the node is not registered.
    pub tenant: &'a str,
    pub boot_id: &'a str,
    pub status: &'a Status,
}

/// The transaction in which something is stored, lent to a hook.
#[derive(Debug)]
pub struct HookTransaction<'c> {
    sql: &'c mut PgConnection,
}

impl<'c> HookTransaction<'c> {
    pub(crate) fn new(sql: &'c mut PgConnection) -> Self {
        Self { sql }
    }

    /// The connection, within the transaction. Never `COMMIT` or `ROLLBACK` on it.
    pub fn connection(&mut self) -> &mut PgConnection {
        self.sql
    }

    /// Makes sure that work of this kind and key waits for its worker; whether it is new. `payload` is JSON.
    pub async fn enqueue_work(&mut self, kind: &str, key: &str, payload: &str) -> Result<bool, sqlx::Error> {
        sqlx::query_scalar("SELECT enqueue_work($1, $2, $3::jsonb)")
            .bind(kind)
            .bind(key)
            .bind(payload)
            .fetch_one(&mut *self.sql)
            .await
    }
}

/// Why a hook failed; it is published. Made of any error with `?`, or of a sentence with `new`.
pub struct HookError {
    pub(crate) sentence: String,
    pub(crate) sqlstate: Option<String>,
}

impl HookError {
    /// A failure that is no error of another's.
    pub fn new(sentence: impl fmt::Display) -> Self {
        Self { sentence: sentence.to_string(), sqlstate: None }
    }
}

impl fmt::Debug for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl<E: std::error::Error + 'static> From<E> for HookError {
    fn from(error: E) -> Self {
        let of_database = (&error as &dyn Any).downcast_ref::<sqlx::Error>();
        let code = of_database.and_then(sqlx::Error::as_database_error).and_then(|error| error.code());
        Self { sqlstate: code.map(|code| code.into_owned()), sentence: error.to_string() }
    }
}

/// The hooks of an embedder, by kind.
#[derive(Clone, Default)]
pub struct EmbeddedHooks {
    pub(super) reports: BTreeMap<String, Vec<Arc<dyn ReportHook>>>,
    pub(super) statuses: BTreeMap<String, Vec<Arc<dyn StatusHook>>>,
}

impl EmbeddedHooks {
    /// Runs `hook` for events of this kind, behind those that run for it already.
    #[must_use]
    pub fn on_report(mut self, kind: &str, hook: impl ReportHook + 'static) -> Self {
        self.reports.entry(kind.to_owned()).or_default().push(Arc::new(hook));
        self
    }

    /// Runs `hook` for statuses of this kind, behind those that run for it already.
    #[must_use]
    pub fn on_status(mut self, kind: &str, hook: impl StatusHook + 'static) -> Self {
        self.statuses.entry(kind.to_owned()).or_default().push(Arc::new(hook));
        self
    }
}

impl fmt::Debug for EmbeddedHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reports = self.reports.iter().map(|(kind, hooks)| (kind, hooks.len()));
        let statuses = self.statuses.iter().map(|(kind, hooks)| (kind, hooks.len()));
        f.debug_map().entries(reports.chain(statuses)).finish()
    }
}

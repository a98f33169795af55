//! Hooks and what each is told, as PostgreSQL is asked to run them.
//!
//! Owns the columns that go there, and what is published of a failure. Decides nothing: which hooks run, one by
//! one or together, is `hooks`.

use gateway_core::frame::{Event, EventBatch};
use gateway_core::ids::NodeId;
use gateway_core::seam::StatusRequest;

use super::JobError;
use super::hook_breakers::Place;
use super::stored::{bigint, corrupt};
use crate::connection::Link;
use crate::hooks::HookError;

/// An event that the transaction stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredEvent<'a> {
    pub(super) node: &'a NodeId,
    pub(super) batch: &'a EventBatch,
    pub(super) event: &'a Event,
}

/// A hook, and what it is told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot<'a> {
    pub(super) hook: &'a str,
    pub(super) told: Told<'a>,
}

/// What a hook is told: an event, or a status.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told<'a> {
    node: &'a NodeId,
    subject: Subject<'a>,
    kind: &'a str,
}

#[derive(Debug, Clone, Copy)]
enum Subject<'a> {
    Event { journal: &'a str, seq: i64 },
    Status { id: &'a str },
}

impl StoredEvent<'_> {
    pub(super) fn told(&self) -> Told<'_> {
        let subject = Subject::Event { journal: self.batch.journal.as_str(), seq: bigint(self.event.seq.0) };
        Told { node: self.node, subject, kind: &self.event.kind }
    }
}

impl<'a> Told<'a> {
    pub(super) fn of_status(request: &'a StatusRequest) -> Self {
        let StatusRequest { node, status, .. } = request;
        Self { node, subject: Subject::Status { id: &status.id }, kind: &status.kind }
    }
}

impl<'a> Subject<'a> {
    /// The journal, or the status's id.
    const fn name(&self) -> &'a str {
        match self {
            Self::Event { journal, .. } => journal,
            Self::Status { id } => id,
        }
    }

    /// Of an event; nought of a status.
    const fn seq(&self) -> i64 {
        match self {
            Self::Event { seq, .. } => *seq,
            Self::Status { .. } => 0,
        }
    }
}

impl Slot<'_> {
    pub(super) fn place(&self) -> Place {
        let subject = (self.told.subject.name().to_owned(), self.told.subject.seq());
        Place { hook: self.hook.to_owned(), node: self.told.node.as_str().to_owned(), subject }
    }
}

/// Calls the SQL functions of slots, which are all of one sort; gives to how many it came, and how many failed.
pub(super) async fn call(
    link: &mut Link,
    slots: &[Slot<'_>],
    patience_ms: i32,
) -> Result<(i32, i32), JobError> {
    let functions: Vec<&str> = slots.iter().map(|slot| slot.hook).collect();
    let nodes: Vec<&str> = slots.iter().map(|slot| slot.told.node.as_str()).collect();
    let names: Vec<&str> = slots.iter().map(|slot| slot.told.subject.name()).collect();
    let answer =
        if matches!(slots.first(), Some(Slot { told: Told { subject: Subject::Event { .. }, .. }, .. })) {
            let seqs: Vec<i64> = slots.iter().map(|slot| slot.told.subject.seq()).collect();
            let query = sqlx::query_file!(
                "queries/hooks_reports.sql",
                &functions as &[&str],
                &nodes as &[&str],
                &names as &[&str],
                &seqs,
                patience_ms
            );
            query.fetch_all(link.within()).await?.first().map(|row| (row.done, row.failed))
        } else {
            let query = sqlx::query_file!(
                "queries/hooks_statuses.sql",
                &functions as &[&str],
                &nodes as &[&str],
                &names as &[&str],
                patience_ms
            );
            query.fetch_all(link.within()).await?.first().map(|row| (row.done, row.failed))
        };
    answer.ok_or_else(|| corrupt("no answer of hooks"))
}

/// Publishes a failure.
pub(super) async fn publish(link: &mut Link, slot: &Slot<'_>, failure: &HookError) -> Result<(), JobError> {
    // No text of PostgreSQL holds a NUL.
    let sentence = failure.sentence.replace('\0', "");
    let Told { node, subject, kind } = slot.told;
    let (journal, seq, status) = match subject {
        Subject::Event { journal, seq } => (Some(journal), Some(seq), None),
        Subject::Status { id } => (None, None, Some(id)),
    };
    sqlx::query_file!(
        "queries/hooks_publish.sql",
        node.as_str(),
        journal,
        seq,
        status,
        kind,
        slot.hook,
        failure.sqlstate,
        sentence
    )
    .fetch_all(link.within())
    .await?;
    Ok(())
}

//! A batch of statuses: one statement, or a transaction where one of them has a handler.
//!
//! 1. Within a batch an id of a node stands once: the core sees to it.
//! 2. What was there is not stored again, and no handler runs for it again.

use std::collections::HashSet;

use gateway_core::seam::StatusRequest;
use gateway_core::store::StatusOutcome;
use sqlx::PgConnection;

use super::JobError;
use super::hooks::HookRunner;
use crate::connection::Link;

pub(super) async fn execute(
    link: &mut Link,
    entries: &[StatusRequest],
    hooks: &mut HookRunner,
) -> Result<Vec<StatusOutcome>, JobError> {
    if !entries.iter().any(|entry| hooks.has_handler(&entry.status)) {
        return write(link.autocommit(), entries).await;
    }
    link.begin().await?;
    let outcomes = write(link.within(), entries).await?;
    let is_told = |(entry, outcome): &(&StatusRequest, &StatusOutcome)| {
        outcome.is_new && hooks.has_handler(&entry.status)
    };
    let mut new: Vec<&StatusRequest> =
        entries.iter().zip(&outcomes).filter(is_told).map(|(entry, _)| entry).collect();
    new.sort_by(|a, b| (&a.node, &a.status.id).cmp(&(&b.node, &b.status.id)));
    let tally = hooks.run_statuses(link, &new).await?;
    hooks.commit(link, tally).await?;
    Ok(outcomes)
}

async fn write(sql: &mut PgConnection, entries: &[StatusRequest]) -> Result<Vec<StatusOutcome>, JobError> {
    let nodes: Vec<&str> = entries.iter().map(|entry| entry.node.as_str()).collect();
    let ids: Vec<&str> = entries.iter().map(|entry| entry.status.id.as_str()).collect();
    let kinds: Vec<&str> = entries.iter().map(|entry| entry.status.kind.as_str()).collect();
    let bodies: Vec<&[u8]> = entries.iter().map(|entry| entry.status.body.as_ref()).collect();
    let boots: Vec<&str> = entries.iter().map(|entry| &*entry.boot_id).collect();
    let rows = sqlx::query_file!(
        "queries/statuses_write.sql",
        &nodes as &[&str],
        &ids as &[&str],
        &kinds as &[&str],
        &bodies as &[&[u8]],
        &boots as &[&str]
    )
    .fetch_all(sql)
    .await?;
    let stored: HashSet<(&str, &str)> =
        rows.iter().map(|row| (row.node_id.as_str(), row.id.as_str())).collect();
    let is_new = |entry: &StatusRequest| stored.contains(&(entry.node.as_str(), entry.status.id.as_str()));
    Ok(entries.iter().map(|entry| StatusOutcome { is_new: is_new(entry) }).collect())
}

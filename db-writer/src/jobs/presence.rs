//! Liveness and disconnects: one statement, one round trip.
//!
//! 1. An entry counts for its epoch alone; one that does not match any more is `Superseded`.
//! 2. Liveness locks no session, so a dispatch never waits for it.

use gateway_core::ids::GatewayId;
use gateway_core::store::{PresenceEntry, PresenceOutcome};

use super::JobError;
use super::stored::{bigint, corrupt};
use crate::connection::Link;

pub(super) async fn execute(
    link: &mut Link,
    gateway: &GatewayId,
    entries: &[PresenceEntry],
) -> Result<Vec<PresenceOutcome>, JobError> {
    let (mut nodes, mut epochs, mut ended) = (Vec::new(), Vec::new(), Vec::new());
    for entry in entries {
        let (node, epoch, reason) = match entry {
            PresenceEntry::Alive { node, epoch } => (node, epoch, None),
            PresenceEntry::Disconnected { node, epoch, reason } => (node, epoch, Some(*reason)),
        };
        nodes.push(node.as_str());
        epochs.push(bigint(epoch.0));
        ended.push(reason);
    }
    let rows = sqlx::query_file!(
        "queries/presence.sql",
        gateway.as_str(),
        &nodes as &[&str],
        &epochs,
        &ended as &[Option<&str>]
    )
    .fetch_all(link.autocommit())
    .await?;
    if rows.len() != entries.len() {
        return Err(corrupt("a presence entry without an answer"));
    }
    Ok(rows
        .into_iter()
        .map(|row| if row.written { PresenceOutcome::Written } else { PresenceOutcome::Superseded })
        .collect())
}

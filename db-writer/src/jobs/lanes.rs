//! Reads lanes anew after an unknown outcome.
//!
//! 1. What is read is final: the lost connection's backend has ended by then (see `connection`), and
//!    the locks taken here wait for any other dispatch.
//! 2. It changes nothing but marks that were lost, and may be repeated: whatever fails goes again.

use gateway_core::ids::{LaneSeq, SessionEpoch};
use gateway_core::store::{LaneRead, LaneState, LeaseProof, Routed};
use uuid::Uuid;

use super::JobError;
use super::stored::{StoredCommand, bigint, corrupt, counter, integer};
use crate::connection::Link;

pub(super) async fn execute(
    link: &mut Link,
    proof: &LeaseProof,
    lanes: &[LaneRead],
) -> Result<Routed<Vec<LaneState>>, JobError> {
    let nodes: Vec<&str> = lanes.iter().map(|lane| lane.node.as_str()).collect();
    let names: Vec<&str> = lanes.iter().map(|lane| lane.lane.as_str()).collect();
    link.begin().await?;
    let locked = sqlx::query_file!(
        "queries/lanes_lock.sql",
        proof.gateway.as_str(),
        proof.owner,
        bigint(proof.epoch.0),
        &nodes as &[&str]
    )
    .fetch_all(link.within())
    .await?;
    if !locked.first().ok_or_else(|| corrupt("no answer to a lock"))?.held {
        link.roll_back().await?;
        return Ok(Routed::LeaseLost);
    }
    let remarked = remark(link, proof, lanes).await?;
    let epochs: Vec<i64> = lanes.iter().map(|lane| bigint(lane.epoch.0)).collect();
    let rows = sqlx::query_file!(
        "queries/lanes_read.sql",
        &nodes as &[&str],
        &names as &[&str],
        &epochs,
        proof.gateway.as_str()
    )
    .fetch_all(link.within())
    .await?;
    if remarked > 0 {
        link.commit().await?;
        tracing::warn!(commands = remarked, "the database had lost marks of dispatches; they are set again");
    } else {
        link.roll_back().await?;
    }
    let mut states =
        vec![LaneState { is_live: false, in_flight: Vec::new(), cursor: LaneSeq(0) }; lanes.len()];
    for row in rows {
        let slot = usize::try_from(row.slot - 1).map_err(corrupt)?;
        let (Some(state), Some(lane)) = (states.get_mut(slot), lanes.get(slot)) else {
            return Err(corrupt("a slot that was not asked for"));
        };
        state.is_live = row.is_live;
        state.cursor = LaneSeq(counter(row.cursor));
        let Some(id) = row.id else { continue };
        let command = StoredCommand {
            id,
            attempt: row.attempt.unwrap_or_default(),
            lane: lane.lane.clone(),
            seq: row.seq.unwrap_or_default(),
            kind: row.kind.unwrap_or_default(),
            payload: row.payload.unwrap_or_default(),
            not_after: row.not_after,
        };
        state.in_flight.push(command.send_in(SessionEpoch(lane.epoch.0)));
    }
    Ok(Routed::Committed(states))
}

/// Sets marks of dispatches again that a crash lost; gives how many.
async fn remark(link: &mut Link, proof: &LeaseProof, lanes: &[LaneRead]) -> Result<u64, JobError> {
    let sent = || lanes.iter().flat_map(|lane| lane.sent.iter().map(move |sent| (lane, sent)));
    let nodes: Vec<&str> = sent().map(|(lane, _)| lane.node.as_str()).collect();
    if nodes.is_empty() {
        return Ok(0);
    }
    let epochs: Vec<i64> = sent().map(|(lane, _)| bigint(lane.epoch.0)).collect();
    let ids: Vec<Uuid> = sent().map(|(_, (id, _))| id.0).collect();
    let attempts: Vec<i32> = sent().map(|(_, (_, attempt))| integer(attempt.0)).collect();
    let done = sqlx::query_file!(
        "queries/lanes_remark.sql",
        proof.gateway.as_str(),
        bigint(proof.epoch.0),
        &nodes as &[&str],
        &epochs,
        &ids,
        &attempts
    )
    .execute(link.within())
    .await?;
    Ok(done.rows_affected())
}

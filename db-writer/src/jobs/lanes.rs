//! Reads lanes anew after an unknown outcome.
//!
//! 1. What is read is final: the lost connection's backend has ended by then (see `connection`), and
//!    the locks taken here wait for any other dispatch.
//! 2. It changes nothing, so losing its connection is no unknown outcome.

use gateway_core::ids::{LaneSeq, SessionEpoch};
use gateway_core::store::{LaneRead, LaneState, LeaseProof, Routed};

use super::JobError;
use super::stored::{StoredCommand, bigint, corrupt, counter};
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
    let rows = sqlx::query_file!("queries/lanes_read.sql", &nodes as &[&str], &names as &[&str])
        .fetch_all(link.within())
        .await?;
    // It only read: a lost connection at its end is no unknown outcome.
    link.roll_back().await?;
    let mut states = vec![LaneState { in_flight: Vec::new(), cursor: LaneSeq(0) }; lanes.len()];
    for row in rows {
        let slot = usize::try_from(row.slot - 1).map_err(corrupt)?;
        let (Some(state), Some(lane)) = (states.get_mut(slot), lanes.get(slot)) else {
            return Err(corrupt("a slot that was not asked for"));
        };
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

//! A dispatch pass: one statement, one round trip, whatever it claims.
//!
//! Which lanes ask for how much is the core's; who gets it is decided in `queries/dispatch.sql`,
//! under locks.
//!
//! 1. The statement commits by itself: a connection lost while it runs is an unknown outcome.

use std::time::Duration;

use gateway_core::certificate::KIND_NOT_ALLOWED;
use gateway_core::ids::{LaneSeq, SessionEpoch};
use gateway_core::limits::MAX_CLAIMS_PER_PASS;
use gateway_core::store::{Claim, LaneWant, LeaseProof, Routed};

use super::JobError;
use super::stored::{StoredCommand, bigint, corrupt, counter, integer, lane_name, node_id};
use crate::connection::Link;

pub(super) async fn execute(
    link: &mut Link,
    proof: &LeaseProof,
    wants: &[LaneWant],
    destructive_kinds: &[String],
) -> Result<Routed<Vec<Claim>>, JobError> {
    let nodes: Vec<&str> = wants.iter().map(|want| want.node.as_str()).collect();
    let epochs: Vec<i64> = wants.iter().map(|want| bigint(want.epoch.0)).collect();
    let lanes: Vec<&str> = wants.iter().map(|want| want.lane.as_str()).collect();
    let free: Vec<i32> = wants.iter().map(|want| integer(want.free.0)).collect();
    let cursors: Vec<i64> = wants.iter().map(|want| bigint(want.cursor.0)).collect();
    let floors: Vec<i64> = wants.iter().map(|want| bigint(want.floor.0)).collect();
    let capacities: Vec<i32> = wants.iter().map(|want| integer(want.capacity.0)).collect();
    let in_flight: Vec<i32> = wants.iter().map(|want| integer(want.in_flight.0)).collect();
    let rows = sqlx::query_file!(
        "queries/dispatch.sql",
        proof.gateway.as_str(),
        proof.owner,
        bigint(proof.epoch.0),
        &nodes as &[&str],
        &epochs,
        &lanes as &[&str],
        &free,
        &cursors,
        &capacities,
        &in_flight,
        bigint(MAX_CLAIMS_PER_PASS as u64),
        destructive_kinds,
        KIND_NOT_ALLOWED,
        &floors
    )
    .fetch_all(link.autocommit())
    .await?;
    if !rows.first().ok_or_else(|| corrupt("no answer to a dispatch"))?.held {
        return Ok(Routed::LeaseLost);
    }
    let mut claims = Vec::with_capacity(rows.len());
    for row in rows {
        // The one row that only says that the lease is held has no command.
        let (Some(node), Some(id), Some(lane)) = (row.node_id, row.id, row.lane) else { continue };
        let command = StoredCommand {
            id,
            attempt: row.attempt.unwrap_or_default(),
            lane: lane_name(&lane)?,
            seq: row.seq.unwrap_or_default(),
            kind: row.kind.unwrap_or_default(),
            payload: row.payload.unwrap_or_default(),
            not_after: row.not_after,
        };
        claims.push(Claim {
            node: node_id(&node)?,
            command: command.send_in(SessionEpoch(counter(row.session_epoch.unwrap_or_default()))),
            moves_cursor: row.moves_cursor.unwrap_or_default(),
            floor: LaneSeq(counter(row.lane_floor.unwrap_or_default())),
            waited: Duration::from_micros(counter(row.waited_micros.unwrap_or_default())),
        });
    }
    Ok(Routed::Committed(claims))
}

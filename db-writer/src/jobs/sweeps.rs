//! The sweeps: each job one statement, one round trip.
//!
//! What is swept is decided in `queries/sweep_*.sql`, under locks and by the database's clock. Nothing
//! here decides, or remembers how far a sweep has come.
//!
//! 1. Every statement commits by itself, and waits for no row that another transaction holds (but for
//!    the lease, when it is taken over).

use std::time::Duration;

use gateway_core::ids::{GatewayId, LeaseEpoch};
use gateway_core::store::{DeadGateway, ExpiryPass, LeaderProof, ReapPass, SweepJob, SweepOutcome};
use gateway_core::time::UnixMillis;

use super::JobError;
use super::stored::{bigint, corrupt, counter, millis, node_id};
use crate::connection::Link;

pub(super) async fn execute(link: &mut Link, job: &SweepJob) -> Result<SweepOutcome, JobError> {
    match job {
        SweepJob::Lead { owner, dead_owner_prefix, ttl } => {
            let rows = sqlx::query_file!(
                "queries/sweep_lead.sql",
                owner,
                dead_owner_prefix.as_deref(),
                millis(*ttl)
            )
            .fetch_all(link.autocommit())
            .await?;
            let row = rows.first().ok_or_else(|| corrupt("no answer to who leads"))?;
            Ok(match row.epoch {
                Some(epoch) => SweepOutcome::Leads { epoch: LeaseEpoch(counter(epoch)) },
                None => {
                    SweepOutcome::LedByOther { expires_in: Duration::from_millis(counter(row.expires_in_ms)) }
                }
            })
        }
        SweepJob::Expire { proof, from, at_most } => expire(link, proof, *from, *at_most).await,
        SweepJob::FindDead { proof } => find_dead(link, proof).await,
        SweepJob::Reap { .. } => reap(link, job).await,
        SweepJob::Resign { proof } => {
            sqlx::query_file!("queries/sweep_resign.sql", proof.owner, bigint(proof.epoch.0))
                .execute(link.autocommit())
                .await?;
            Ok(SweepOutcome::Resigned)
        }
    }
}

async fn expire(
    link: &mut Link,
    proof: &LeaderProof,
    from: UnixMillis,
    at_most: u32,
) -> Result<SweepOutcome, JobError> {
    let rows = sqlx::query_file!(
        "queries/sweep_expire.sql",
        proof.owner,
        bigint(proof.epoch.0),
        from.0,
        i64::from(at_most)
    )
    .fetch_all(link.autocommit())
    .await?;
    let row = rows.first().ok_or_else(|| corrupt("no answer to an expiry"))?;
    if !row.held {
        return Ok(SweepOutcome::LeadLost);
    }
    let is_full = row.found >= i64::from(at_most);
    Ok(SweepOutcome::Expired(ExpiryPass {
        expired: u32::try_from(row.expired).unwrap_or(u32::MAX),
        is_full,
        next: UnixMillis(row.last.filter(|_| is_full).unwrap_or(row.now)),
        skipped: row.skipped.map(UnixMillis),
    }))
}

async fn find_dead(link: &mut Link, proof: &LeaderProof) -> Result<SweepOutcome, JobError> {
    let rows = sqlx::query_file!("queries/sweep_dead.sql", proof.owner, bigint(proof.epoch.0))
        .fetch_all(link.autocommit())
        .await?;
    if !rows.first().ok_or_else(|| corrupt("no answer to who is dead"))?.held {
        return Ok(SweepOutcome::LeadLost);
    }
    rows.into_iter()
        // The one row that only says that the lead is held names nobody.
        .filter_map(|row| Some((row.gateway?, row.epoch?, row.is_expired?)))
        .map(|(name, epoch, is_expired)| {
            let gateway = GatewayId::new(&name).map_err(corrupt)?;
            Ok(DeadGateway { gateway, epoch: LeaseEpoch(counter(epoch)), is_expired })
        })
        .collect::<Result<_, _>>()
        .map(SweepOutcome::Dead)
}

async fn reap(link: &mut Link, job: &SweepJob) -> Result<SweepOutcome, JobError> {
    let SweepJob::Reap { proof, dead, after, since, skipped, at_most } = job else {
        return Err(corrupt("not a look through sessions"));
    };
    let rows = sqlx::query_file!(
        "queries/sweep_reap.sql",
        proof.owner,
        bigint(proof.epoch.0),
        dead.gateway.as_str(),
        bigint(dead.epoch.0),
        dead.is_expired,
        after.as_ref().map_or("", |node| node.as_str()),
        since.map(|since| since.0),
        *skipped,
        i64::from(*at_most)
    )
    .fetch_all(link.autocommit())
    .await?;
    let row = rows.first().ok_or_else(|| corrupt("no answer to a look through sessions"))?;
    if !row.led {
        return Ok(SweepOutcome::LeadLost);
    }
    let more = row.last.as_deref().filter(|_| row.looked_at >= i64::from(*at_most));
    Ok(SweepOutcome::Reaped(ReapPass {
        is_dead: row.is_dead,
        reaped: u32::try_from(row.reaped).unwrap_or(u32::MAX),
        skipped: row.skipped,
        next: more.map(node_id).transpose()?,
        now: UnixMillis(row.now),
    }))
}

//! The lease of a gateway: acquired, renewed, released.
//!
//! 1. Taking it waits for every routing transaction of the owner until then, and reads the clock
//!    only after that wait: what was dispatched under an epoch is older than the next epoch.
//! 2. A renewal waits for nobody who routes.

use std::time::Duration;

use gateway_core::ids::LeaseEpoch;
use gateway_core::store::{LeaseJob, LeaseOutcome};

use super::JobError;
use super::stored::{bigint, corrupt, counter, integer, millis};
use crate::connection::Link;

pub(super) async fn execute(link: &mut Link, job: &LeaseJob) -> Result<LeaseOutcome, JobError> {
    match job {
        LeaseJob::Acquire { .. } => acquire(link, job).await,
        LeaseJob::Renew { .. } => renew(link, job).await,
        LeaseJob::Release { proof } => {
            sqlx::query_file!(
                "queries/lease_release.sql",
                proof.gateway.as_str(),
                proof.owner,
                bigint(proof.epoch.0)
            )
            .execute(link.autocommit())
            .await?;
            Ok(LeaseOutcome::Released)
        }
    }
}

async fn acquire(link: &mut Link, job: &LeaseJob) -> Result<LeaseOutcome, JobError> {
    let LeaseJob::Acquire { gateway, owner, dead_owner_prefix, ttl, row } = job else {
        return Err(corrupt("not an acquire"));
    };
    link.begin().await?;
    sqlx::query_file!("queries/lease_seed.sql", gateway.as_str()).execute(link.within()).await?;
    sqlx::query_file!("queries/lease_lock.sql", gateway.as_str()).fetch_all(link.within()).await?;
    let rows = sqlx::query_file!(
        "queries/lease_take.sql",
        gateway.as_str(),
        owner,
        dead_owner_prefix.as_deref(),
        millis(*ttl),
        row.region,
        row.internal_url,
        row.version,
        integer(row.max_streams)
    )
    .fetch_all(link.within())
    .await?;
    let row = rows.into_iter().next().ok_or_else(|| corrupt("the lease's row is gone"))?;
    link.commit().await?;
    Ok(match row.epoch {
        Some(epoch) => LeaseOutcome::Held { epoch: LeaseEpoch(counter(epoch)) },
        None => held_by_other(row.owner, row.expires_in_ms),
    })
}

async fn renew(link: &mut Link, job: &LeaseJob) -> Result<LeaseOutcome, JobError> {
    let LeaseJob::Renew { proof, ttl, sessions, draining } = job else {
        return Err(corrupt("not a renewal"));
    };
    let rows = sqlx::query_file!(
        "queries/lease_renew.sql",
        proof.gateway.as_str(),
        proof.owner,
        bigint(proof.epoch.0),
        millis(*ttl),
        integer(*sessions),
        *draining
    )
    .fetch_all(link.autocommit())
    .await?;
    let row = rows.into_iter().next().ok_or_else(|| corrupt("no answer to a renewal"))?;
    Ok(if row.held {
        LeaseOutcome::Held { epoch: proof.epoch }
    } else {
        held_by_other(row.owner.unwrap_or_default(), row.expires_in_ms.unwrap_or(0))
    })
}

fn held_by_other(owner: String, expires_in_ms: i64) -> LeaseOutcome {
    LeaseOutcome::HeldByOther { owner, expires_in: Duration::from_millis(counter(expires_in_ms)) }
}

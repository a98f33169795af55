//! The yardstick of dispatch: a bare INSERT + NOTIFY -> LISTEN + claim on the same cluster, in the
//! same run, measured with the same clock in the same way (see sql/floor.sql).
//!
//! 1. One connection pair, each on a thread of its own.
//! 2. The best of three rounds counts: a yardstick must not profit from noise.

use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context;
use gateway_testbed::clock::monotonic_ns;
use sqlx::postgres::PgListener;
use sqlx::{Connection, Executor, PgConnection};
use tokio::runtime::Builder;
use uuid::Uuid;

use crate::latency::{Latencies, Percentiles};

const FILE: &str = include_str!("../sql/floor.sql");
const ROUNDS: usize = 3;

/// Commit of the INSERT to the claim's return.
#[derive(Debug, Clone)]
pub(crate) struct FloorPlan {
    pub(crate) database_url: String,
    pub(crate) per_second: f64,
    pub(crate) round: Duration,
    pub(crate) payload_bytes: usize,
}

/// Measures it; runs beside the caller's runtime.
pub(crate) async fn measure(plan: FloorPlan) -> anyhow::Result<Percentiles> {
    let (tell, told) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("floor".to_owned());
    thread.spawn(move || tell.send(all_rounds(&plan))).context("starting a thread")?;
    told.await.context("the floor's thread ended")?
}

fn all_rounds(plan: &FloorPlan) -> anyhow::Result<Percentiles> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut connection = runtime.block_on(PgConnection::connect(&plan.database_url))?;
    runtime.block_on(connection.execute(statement("prepare")?))?;
    let mut best: Option<Percentiles> = None;
    for _ in 0..ROUNDS {
        let round = one_round(plan, &runtime, &mut connection)?;
        if best.is_none_or(|best| round.p99 < best.p99) {
            best = Some(round);
        }
    }
    runtime.block_on(connection.execute(statement("remove")?))?;
    best.context("the floor has no samples")
}

fn one_round(
    plan: &FloorPlan,
    runtime: &tokio::runtime::Runtime,
    connection: &mut PgConnection,
) -> anyhow::Result<Percentiles> {
    let count = (plan.round.as_secs_f64() * plan.per_second).ceil() as usize;
    let (listening, is_listening) = mpsc::channel();
    let url = plan.database_url.clone();
    let claimer = std::thread::Builder::new().name("floor-claimer".to_owned());
    let claimer = claimer.spawn(move || claim(&url, count, &listening))?;
    is_listening.recv_timeout(Duration::from_secs(30)).context("the claimer does not listen")?;
    let enqueue = statement("enqueue")?;
    let payload = vec![b'x'; plan.payload_bytes];
    let (start, period_ns) = (monotonic_ns() + 10_000_000, 1e9 / plan.per_second);
    let mut commits = Vec::with_capacity(count);
    for index in 0..count {
        let intended = start + (index as f64 * period_ns) as u64;
        std::thread::sleep(Duration::from_nanos(intended.saturating_sub(monotonic_ns())));
        let (id, late) = (Uuid::now_v7(), monotonic_ns().saturating_sub(intended));
        runtime.block_on(sqlx::query(enqueue).bind(id).bind(&payload).execute(&mut *connection))?;
        commits.push((id, monotonic_ns(), late));
    }
    let claims = claimer.join().map_err(|_| anyhow::anyhow!("the floor's claimer panicked"))??;
    let mut latencies = Latencies::new();
    for (id, committed, late) in commits {
        let claimed = claims.iter().find(|claim| claim.0 == id).context("a command of the floor was lost")?.1;
        latencies.record_ns(claimed.saturating_sub(committed) + late);
    }
    latencies.percentiles().context("the floor has no samples")
}

fn claim(url: &str, count: usize, listening: &mpsc::Sender<()>) -> anyhow::Result<Vec<(Uuid, u64)>> {
    let claim = statement("claim")?;
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut listener = PgListener::connect(url).await?;
        listener.listen("bench_floor").await?;
        let _ = listening.send(());
        let mut claims = Vec::with_capacity(count);
        while claims.len() < count {
            let notification = tokio::time::timeout(Duration::from_secs(30), listener.recv()).await;
            let notification = notification.context("no notification came")??;
            let id: Uuid = notification.payload().parse().context("a notification without an id")?;
            sqlx::query(claim).bind(id).fetch_one(&mut listener).await?;
            claims.push((id, monotonic_ns()));
        }
        Ok(claims)
    })
}

fn statement(name: &str) -> anyhow::Result<&'static str> {
    let mark = format!("-- name: {name}\n");
    let rest = FILE.split_once(&mark).map(|(_, rest)| rest);
    let rest = rest.with_context(|| format!("sql/floor.sql has no statement {name}"))?;
    Ok(rest.split("\n-- name:").next().unwrap_or(rest).trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_each_statement_alone() {
        for (name, begin) in
            [("prepare", "CREATE TABLE"), ("enqueue", "WITH stored"), ("claim", "UPDATE"), ("remove", "DROP")]
        {
            let text = statement(name).expect(name);
            assert!(text.starts_with(begin) && text.matches(';').count() == 1, "{text}");
        }
        assert!(statement("nothing").is_err());
    }
}

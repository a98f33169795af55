//! `bloat`: what `steady` does, while another transaction is open that lets no vacuum clean up.
//!
//! 1. The transaction has a snapshot and an id of its own from before the first command: nothing that dies
//!    meanwhile can be removed. That it held to the end is read from the server, not assumed.
//! 2. Latency is told by windows of a minute; the gate is the last one's p99 to that of the first.

use anyhow::Context;
use sqlx::PgConnection;

use super::steady;
use crate::arguments::BloatArguments;
use crate::progress::say;
use crate::report::BloatShare;
use crate::world::World;

/// Runs it; true if its gate held.
pub(crate) async fn run(arguments: Box<BloatArguments>) -> anyhow::Result<bool> {
    let plan = arguments.plan()?;
    Box::pin(steady::perform("bloat", &plan, &arguments.gateway)).await
}

/// An open transaction.
pub(super) struct Pin {
    connection: PgConnection,
    xmin: String,
}

impl Pin {
    pub(super) async fn set(world: &World) -> anyhow::Result<Self> {
        let mut connection = world.connect().await?;
        sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ").execute(&mut connection).await?;
        sqlx::query("SELECT pg_current_xact_id()::text").execute(&mut connection).await?;
        let xmin = sqlx::query_scalar("SELECT pg_snapshot_xmin(pg_current_snapshot())::text");
        let xmin: String = xmin.fetch_one(&mut connection).await?;
        say(&format!("the horizon of vacuum is pinned at transaction {xmin}"));
        Ok(Self { connection, xmin })
    }

    /// Ends it; what it kept.
    pub(super) async fn lift(mut self, world: &World) -> anyhow::Result<BloatShare> {
        let now = sqlx::query_scalar("SELECT pg_snapshot_xmin(pg_current_snapshot())::text");
        let now: String =
            now.fetch_one(&mut self.connection).await.context("the pinned transaction is gone")?;
        anyhow::ensure!(now == self.xmin, "the horizon was pinned at {} and is at {now}", self.xmin);
        let mut look = world.connect().await?;
        let age =
            "SELECT max(age(backend_xmin))::bigint FROM pg_stat_activity WHERE datname = current_database()";
        let horizon_age: Option<i64> = sqlx::query_scalar(age).fetch_one(&mut look).await?;
        let dead = "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables";
        let dead_rows: i64 = sqlx::query_scalar(dead).fetch_one(&mut look).await?;
        sqlx::raw_sql("ROLLBACK").execute(&mut self.connection).await?;
        Ok(BloatShare { horizon_age: horizon_age.unwrap_or_default(), dead_rows })
    }
}

//! What a chaos run reads of the database, over a connection that it opens anew when the fault took it.
//!
//! 1. Nothing is written here.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::{Connection, PgConnection};

/// A hung server must not hang the run.
const PATIENCE: Duration = Duration::from_secs(5);

/// The live sessions by the rows: node and epoch. `None` while the database does not answer.
pub(super) async fn sessions(url: &str) -> Option<HashMap<String, i64>> {
    let statement = "SELECT node_id, session_epoch FROM node_sessions WHERE disconnected_at IS NULL";
    let asking = async {
        let mut connection = PgConnection::connect(url).await?;
        sqlx::query_as::<_, (String, i64)>(statement).fetch_all(&mut connection).await
    };
    let rows = tokio::time::timeout(PATIENCE, asking).await.ok()?.ok()?;
    Some(rows.into_iter().collect())
}

/// The commands that are not over. `None` while the database does not answer.
pub(super) async fn open_commands(url: &str) -> Option<i64> {
    let asking = async {
        let mut connection = PgConnection::connect(url).await?;
        let statement = "SELECT count(*) FROM commands WHERE phase <> 't'";
        sqlx::query_scalar::<_, i64>(statement).fetch_one(&mut connection).await
    };
    tokio::time::timeout(PATIENCE, asking).await.ok()?.ok()
}

/// How many live sessions each gateway has. `None` while the database does not answer.
pub(super) async fn sessions_by_gateway(url: &str) -> Option<HashMap<String, usize>> {
    let statement = "SELECT gateway_id, count(*) FROM node_sessions \
                     WHERE disconnected_at IS NULL AND gateway_id IS NOT NULL GROUP BY gateway_id";
    let asking = async {
        let mut connection = PgConnection::connect(url).await?;
        sqlx::query_as::<_, (String, i64)>(statement).fetch_all(&mut connection).await
    };
    let rows = tokio::time::timeout(PATIENCE, asking).await.ok()?.ok()?;
    Some(rows.into_iter().map(|(gateway, count)| (gateway, usize::try_from(count).unwrap_or(0))).collect())
}

//! What PostgreSQL says about a run: its settings, commits and statements.
//!
//! 1. Durability settings are read, not assumed.
//! 2. Counts cover the measured phase, and the harness's own enqueues are among them.

use serde::Serialize;
use sqlx::PgConnection;

use crate::progress::say;

/// Settings that decide what the figures mean.
pub(crate) const SETTINGS: [&str; 9] = [
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_sync_method",
    "commit_delay",
    "shared_buffers",
    "max_connections",
    "jit",
];

/// Names and values of `SETTINGS`.
pub(crate) async fn settings(connection: &mut PgConnection) -> Result<Vec<(String, String)>, sqlx::Error> {
    let statement = "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY ($1) ORDER BY name";
    sqlx::query_as(statement).bind(SETTINGS.map(str::to_owned).to_vec()).fetch_all(connection).await
}

/// Tells the settings, whatever becomes of the run.
pub(crate) async fn say_settings(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    say(&format!("PostgreSQL: {}", settings_line(&settings(connection).await?)));
    Ok(())
}

/// Settings as one line.
pub(crate) fn settings_line(settings: &[(String, String)]) -> String {
    settings.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// One statement's share.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct StatementShare {
    pub(crate) statement: String,
    pub(crate) calls: i64,
    pub(crate) rows: i64,
    pub(crate) mean_ms: f64,
    pub(crate) total_ms: f64,
}

/// The measured phase as the database saw it.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct DatabaseShare {
    pub(crate) commits: i64,
    pub(crate) commits_per_s: f64,
    pub(crate) statements: Option<i64>,
    pub(crate) statements_per_command: Option<f64>,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) top: Vec<StatementShare>,
}

/// Where the counts of the measured phase begin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Baseline {
    commits: i64,
    with_statements: bool,
}

/// Starts the counts.
pub(crate) async fn begin(connection: &mut PgConnection) -> Result<Baseline, sqlx::Error> {
    let with_statements = has_statements(connection).await?;
    if with_statements {
        sqlx::query("SELECT pg_stat_statements_reset()").execute(&mut *connection).await?;
    }
    Ok(Baseline { commits: commits(connection).await?, with_statements })
}

/// Ends the counts.
pub(crate) async fn end(
    connection: &mut PgConnection,
    baseline: Baseline,
    seconds: f64,
    commands: u64,
) -> Result<DatabaseShare, sqlx::Error> {
    let commits = commits(connection).await? - baseline.commits;
    let mut share = DatabaseShare {
        commits,
        commits_per_s: commits as f64 / seconds,
        settings: settings(connection).await?,
        ..DatabaseShare::default()
    };
    if baseline.with_statements {
        let statement = "SELECT regexp_replace(left(query, 200), '\\s+', ' ', 'g'), calls, rows, \
                         mean_exec_time, total_exec_time FROM pg_stat_statements \
                         WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) \
                         ORDER BY calls DESC";
        let all: Vec<(String, i64, i64, f64, f64)> = sqlx::query_as(statement).fetch_all(connection).await?;
        let statements = all.iter().map(|row| row.1).sum();
        share.statements = Some(statements);
        share.statements_per_command = (commands > 0).then(|| statements as f64 / commands as f64);
        let top = all.into_iter().take(16).map(|(statement, calls, rows, mean_ms, total_ms)| {
            StatementShare { statement, calls, rows, mean_ms, total_ms }
        });
        share.top = top.collect();
    }
    Ok(share)
}

/// Counts buffers from now on, where the server can.
pub(crate) async fn restart_buffers(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    if has_statements(connection).await? {
        sqlx::query("SELECT pg_stat_statements_reset()").execute(connection).await?;
    }
    Ok(())
}

/// Buffers that all statements of this database touched since then; `None` where the server can't tell.
pub(crate) async fn buffers(connection: &mut PgConnection) -> Result<Option<f64>, sqlx::Error> {
    if !has_statements(connection).await? {
        return Ok(None);
    }
    let statement = "SELECT coalesce(sum(shared_blks_hit + shared_blks_read), 0)::float8 FROM pg_stat_statements \
                     WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())";
    sqlx::query_scalar(statement).fetch_one(connection).await.map(Some)
}

async fn has_statements(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let has = "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_stat_statements')";
    sqlx::query_scalar(has).fetch_one(connection).await
}

async fn commits(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    let statement = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
    let (commits,) = sqlx::query_as(statement).fetch_one(connection).await?;
    Ok(commits)
}

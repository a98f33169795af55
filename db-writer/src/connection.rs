//! One queue's connection: how it is set up, and how it comes back after it was lost.
//!
//! 1. A connection whose statement may still run is never left behind: before the next one is
//!    used, the server is told to end its backend, and that end is awaited. So nothing of a lost
//!    job commits after the answer to a later one.
//! 2. Each connection plans once and for large tables: what is cached while a table is small must
//!    not scan it when it has grown.
//! 3. Only the dispatch may skip the wait for the disk, and only if it is told to; what hooks set is taken
//!    back before their transaction commits.

use std::sync::Arc;
use std::time::Duration;

use gateway_core::ids::GatewayId;
use gateway_core::store::{Queue, StoreError};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection, Row};
use tokio::time::Instant;

use crate::failure::{Failure, Stage};

/// How long it may take until a connection stands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_BACK_OFF: Duration = Duration::from_millis(50);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(1);

/// A connection that stands, and how far its job has come.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) sql: PgConnection,
    pub(crate) stage: Stage,
    in_transaction: bool,
    /// What its own statements rely on.
    settings: Arc<str>,
    backend: Backend,
}

/// A server process, told from a later one with the same pid.
#[derive(Debug, Clone)]
struct Backend {
    pid: i32,
    started: String,
}

impl Link {
    /// Opens a transaction.
    pub(crate) async fn begin(&mut self) -> Result<(), sqlx::Error> {
        self.stage = Stage::Safe;
        self.in_transaction = true;
        sqlx::raw_sql("BEGIN").execute(&mut self.sql).await.map(drop)
    }

    /// Takes back what hooks may have set, for the transaction or for good: whom the connection acts as, where
    /// it looks, and above all whether its commit waits for the disk.
    pub(crate) async fn settle(&mut self) -> Result<(), sqlx::Error> {
        let steps = format!(
            "RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; SELECT pg_catalog.pg_advisory_unlock_all(); {}",
            self.settings
        );
        self.steer(steps).await
    }

    /// Commits it. A failure from here on may have committed.
    pub(crate) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        self.stage = Stage::Committing;
        sqlx::raw_sql("COMMIT").execute(&mut self.sql).await?;
        self.in_transaction = false;
        Ok(())
    }

    /// Gives it up. Where none is open it only asks whether the connection still answers.
    pub(crate) async fn roll_back(&mut self) -> Result<(), sqlx::Error> {
        self.stage = Stage::Safe;
        if self.in_transaction {
            sqlx::raw_sql("ROLLBACK").execute(&mut self.sql).await?;
            self.in_transaction = false;
            return Ok(());
        }
        self.sql.ping().await
    }

    /// Steers the transaction that is open: settings and savepoints, which no file of statements holds since
    /// they read and write no row.
    pub(crate) async fn steer(&mut self, steps: impl Into<String>) -> Result<(), sqlx::Error> {
        self.stage = Stage::Safe;
        sqlx::raw_sql(sqlx::AssertSqlSafe(steps.into())).execute(&mut self.sql).await.map(drop)
    }

    /// The connection for one statement that commits by itself.
    pub(crate) fn autocommit(&mut self) -> &mut PgConnection {
        self.stage = Stage::Committing;
        &mut self.sql
    }

    /// The connection for a statement that changes nothing by itself: a read, or one of a
    /// transaction.
    pub(crate) fn within(&mut self) -> &mut PgConnection {
        self.stage = Stage::Safe;
        &mut self.sql
    }
}

/// Makes and remakes the connection of one queue.
#[derive(Debug)]
pub(crate) struct Connector {
    options: PgConnectOptions,
    queue: Queue,
    settings: Arc<str>,
    link: Option<Link>,
    lost: Vec<Backend>,
    failures: u32,
    not_before: Option<Instant>,
}

impl Connector {
    pub(crate) fn new(
        options: &PgConnectOptions,
        gateway: &GatewayId,
        queue: Queue,
        wait_for_disk: bool,
    ) -> Self {
        // An application name holds 63 bytes; a gateway id at most 48.
        let name = format!("gateway {gateway} {}", queue.label());
        Self {
            options: options.clone().application_name(&name).disable_statement_logging(),
            queue,
            settings: settings(queue, wait_for_disk).into(),
            link: None,
            lost: Vec::new(),
            failures: 0,
            not_before: None,
        }
    }

    /// The connection, made anew where it was lost; waits out the back-off of earlier failures.
    pub(crate) async fn ready(&mut self) -> Result<&mut Link, StoreError> {
        if self.link.is_none() {
            if let Some(not_before) = self.not_before {
                tokio::time::sleep_until(not_before).await;
            }
            match self.connect().await {
                Ok(link) => {
                    self.failures = 0;
                    self.not_before = None;
                    self.link = Some(link);
                }
                Err(error) => {
                    let delay = FIRST_BACK_OFF.saturating_mul(1 << self.failures.min(10));
                    self.failures = self.failures.saturating_add(1);
                    self.not_before = Some(Instant::now() + delay.min(LONGEST_BACK_OFF));
                    return Err(error);
                }
            }
        }
        self.link.as_mut().ok_or_else(|| StoreError::Retry("no connection".to_owned()))
    }

    /// The connection can't be used any more; what it still runs is ended before the next is used.
    pub(crate) fn drop_link(&mut self) {
        if let Some(link) = self.link.take() {
            self.lost.push(link.backend);
        }
    }

    async fn connect(&mut self) -> Result<Link, StoreError> {
        let attempt = async {
            let mut sql = PgConnection::connect_with(&self.options).await?;
            sqlx::raw_sql(sqlx::AssertSqlSafe(self.settings.to_string())).execute(&mut sql).await?;
            let backend = own_backend(&mut sql).await?;
            end_backends(&mut sql, &mut self.lost).await?;
            let settings = Arc::clone(&self.settings);
            Ok::<_, sqlx::Error>(Link { sql, stage: Stage::Safe, in_transaction: false, settings, backend })
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, attempt).await {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(error)) => Err(not_connected(&error)),
            Err(_) => Err(StoreError::Retry(format!(
                "no connection of the {} queue within {} s",
                self.queue.label(),
                CONNECT_TIMEOUT.as_secs()
            ))),
        }
    }
}

/// Nothing was sent, so nothing was committed; wrong names, passwords and rights stay fatal.
fn not_connected(error: &sqlx::Error) -> StoreError {
    match Failure::from_sqlx(error, Stage::Safe).error {
        StoreError::Rejected(what) | StoreError::OutcomeUnknown(what) => StoreError::Retry(what),
        other => other,
    }
}

async fn own_backend(sql: &mut PgConnection) -> Result<Backend, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT a.pid, a.backend_start::text FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()",
    )
    .fetch_all(sql)
    .await?;
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    Ok(Backend { pid: row.try_get(0)?, started: row.try_get(1)? })
}

/// Ends the backends of lost connections and waits until they are gone.
async fn end_backends(sql: &mut PgConnection, lost: &mut Vec<Backend>) -> Result<(), sqlx::Error> {
    while let Some(backend) = lost.last() {
        let ended = sqlx::query(
            "SELECT pg_terminate_backend(a.pid, 3000) FROM pg_stat_activity a \
             WHERE a.pid = $1 AND a.backend_start::text = $2",
        )
        .bind(backend.pid)
        .bind(&backend.started)
        .fetch_all(&mut *sql)
        .await?;
        if let Some(row) = ended.first()
            && !row.try_get::<bool, _>(0)?
        {
            let what = format!("the backend {} of a lost connection does not end", backend.pid);
            return Err(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, what)));
        }
        lost.pop();
    }
    Ok(())
}

/// How long a queue waits, for a lock, for a statement, and in all for a job without hooks: a little more than
/// for a statement, since that ends what only the network holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    lock: Duration,
    statement: Duration,
    pub(crate) job: Duration,
}

impl Patience {
    pub(crate) const fn of(queue: Queue) -> Self {
        let (lock, statement, job) = match queue {
            Queue::Lease => (4, 5, 6),
            Queue::Dispatch => (2, 8, 10),
            Queue::Hellos
            | Queue::Updates
            | Queue::Presence
            | Queue::Feed
            | Queue::Events
            | Queue::Statuses
            | Queue::Inventory
            | Queue::Sweeps
            | Queue::Specs
            | Queue::Revocations => (4, 15, 20),
        };
        Self {
            lock: Duration::from_secs(lock),
            statement: Duration::from_secs(statement),
            job: Duration::from_secs(job),
        }
    }
}

/// What a connection's own statements are planned with. Costs count tuples above all, and whole-table plans
/// are off: a plan that was cached over an empty table must still be right over a large one.
pub(crate) const PLANNER_SETTINGS: [(&str, &str); 12] = [
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("max_parallel_workers_per_gather", "0"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_mergejoin", "off"),
    ("enable_hashjoin", "off"),
    ("random_page_cost", "0.1"),
    ("seq_page_cost", "0.1"),
    ("cpu_tuple_cost", "1"),
    ("cpu_index_tuple_cost", "1"),
    ("cpu_operator_cost", "0.1"),
];

/// The session's settings. Temporary tables are looked for last, so that one that a hook has made hides none
/// of ours.
fn settings(queue: Queue, wait_for_disk: bool) -> String {
    let patience = Patience::of(queue);
    let durability = if wait_for_disk {
        "SELECT set_config('synchronous_commit', 'on', false) \
         WHERE current_setting('synchronous_commit') = 'off'"
    } else {
        "SET synchronous_commit = off"
    };
    // A hook may run for long, and hold rows: not for a gateway that is gone.
    let watches_client = match queue {
        Queue::Events | Queue::Statuses => "SET client_connection_check_interval = 1000;",
        _ => "",
    };
    let planner: String =
        PLANNER_SETTINGS.iter().map(|(name, value)| format!("SET {name} = {value};\n         ")).collect();
    format!(
        "SET default_transaction_isolation = 'read committed';
         SET lock_timeout = {};
         SET statement_timeout = {};
         SET idle_in_transaction_session_timeout = 10000;
         {planner}
         SELECT set_config('search_path', concat_ws(', ', nullif(current_setting('search_path'), ''), 'pg_temp'), false)
         WHERE current_setting('search_path') !~ 'pg_temp';
         {watches_client}
         {durability}",
        patience.lock.as_millis(),
        patience.statement.as_millis()
    )
}

//! What a client of the database does, for tests and benchmarks: register nodes, enqueue, cancel,
//! await ends. Through the functions and views that the schema offers to everybody.
//!
//! 1. Nothing here writes to a table that the gateway owns, but for the registration in bulk.

use std::time::{Duration, Instant};

use sqlx::postgres::PgListener;
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

/// The channel on which the end of a command enqueued with `notify` is told.
pub const DONE_CHANNEL: &str = "gateway_command_done";

/// Makes nodes known, those that are already stay as they are. Any number, in one statement.
pub async fn register_nodes(connection: &mut PgConnection, node_ids: &[String]) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO nodes (node_id) SELECT * FROM unnest($1::text[]) ON CONFLICT DO NOTHING")
        .bind(node_ids)
        .execute(connection)
        .await?;
    Ok(())
}

/// Makes certificates known, by serial.
pub async fn register_certificates(
    connection: &mut PgConnection,
    node_ids: &[String],
    serials: &[String],
) -> Result<(), sqlx::Error> {
    let statement = "INSERT INTO node_certs (serial, node_id) \
                     SELECT * FROM unnest($1::text[], $2::text[]) ON CONFLICT DO NOTHING";
    sqlx::query(statement).bind(serials).bind(node_ids).execute(connection).await?;
    Ok(())
}

/// A command to enqueue.
#[derive(Debug, Clone)]
pub struct NewCommand<'a> {
    pub node_id: &'a str,
    pub kind: &'a str,
    pub payload: &'a [u8],
    pub lane: &'a str,
    /// Whether its end is told on `DONE_CHANNEL`.
    pub notify: bool,
}

impl<'a> NewCommand<'a> {
    /// On the lane `default`, with its end told.
    pub fn new(node_id: &'a str, payload: &'a [u8]) -> Self {
        Self { node_id, kind: "test", payload, lane: "default", notify: true }
    }
}

/// Enqueues one command; gives its id once it is committed.
pub async fn enqueue(connection: &mut PgConnection, command: &NewCommand<'_>) -> Result<Uuid, sqlx::Error> {
    let statement =
        "SELECT enqueue_command(node_id => $1, kind => $2, payload => $3, lane => $4, notify => $5)";
    let (id,) = sqlx::query_as(statement)
        .bind(command.node_id)
        .bind(command.kind)
        .bind(command.payload)
        .bind(command.lane)
        .bind(command.notify)
        .fetch_one(connection)
        .await?;
    Ok(id)
}

/// Enqueues one command a node id, all in one transaction; gives the ids in the same order.
pub async fn enqueue_many(
    connection: &mut PgConnection,
    node_ids: &[String],
    payload: &[u8],
) -> Result<Vec<Uuid>, sqlx::Error> {
    let statement = "SELECT command_id FROM enqueue_commands(node_ids => $1, kinds => ARRAY['test'], \
                     payloads => ARRAY[$2::bytea]) ORDER BY slot";
    let rows: Vec<(Uuid,)> =
        sqlx::query_as(statement).bind(node_ids).bind(payload).fetch_all(connection).await?;
    Ok(rows.into_iter().map(|(id,)| id).collect())
}

/// Asks that a command be canceled; gives the state it then has.
pub async fn cancel(
    connection: &mut PgConnection,
    node_id: &str,
    id: Uuid,
    reason: &str,
) -> Result<String, sqlx::Error> {
    let statement = "SELECT cancel_command(node_id => $1, id => $2, reason => $3)";
    let (state,) =
        sqlx::query_as(statement).bind(node_id).bind(id).bind(reason).fetch_one(connection).await?;
    Ok(state)
}

/// A command as a waiter sees it.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct CommandRow {
    pub state: String,
    pub done: bool,
    pub attempt: i32,
    pub seq: i64,
    pub result: Option<Vec<u8>>,
    pub error: Option<String>,
    pub refusal: Option<String>,
    pub waits_for: Option<String>,
}

/// Reads a command's row of `command_status`.
pub async fn command(
    connection: &mut PgConnection,
    node_id: &str,
    id: Uuid,
) -> Result<CommandRow, sqlx::Error> {
    let statement = "SELECT state::text AS state, done, attempt, seq, result, error, refusal, waits_for \
                     FROM command_status WHERE node_id = $1 AND id = $2";
    sqlx::query_as(statement).bind(node_id).bind(id).fetch_one(connection).await
}

/// Something did not come in time.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    #[error("{what} did not come within {within:?}; now: {now}")]
    TooLate { what: String, within: Duration, now: String },
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
}

/// Awaits the end of commands that were enqueued with `notify`.
#[derive(Debug)]
pub struct DoneWaiter {
    listener: PgListener,
}

impl DoneWaiter {
    /// Listens from now on.
    pub async fn new(url: &str) -> Result<Self, sqlx::Error> {
        let mut listener = PgListener::connect(url).await?;
        listener.listen(DONE_CHANNEL).await?;
        Ok(Self { listener })
    }

    /// Waits until the command is over; gives its row.
    pub async fn wait(
        &mut self,
        connection: &mut PgConnection,
        node_id: &str,
        id: Uuid,
        within: Duration,
    ) -> Result<CommandRow, WaitError> {
        let deadline = tokio::time::Instant::now() + within;
        loop {
            // The row first: its end may have been told before we asked.
            let row = command(connection, node_id, id).await?;
            if row.done {
                return Ok(row);
            }
            match tokio::time::timeout_at(deadline, self.listener.recv()).await {
                Ok(notification) => drop(notification?),
                Err(_) => {
                    let what = format!("the end of command {id}");
                    return Err(WaitError::TooLate { what, within, now: format!("{row:?}") });
                }
            }
        }
    }
}

/// Waits until no command is open. There is no notification for "all", so this asks every 50 ms.
pub async fn await_all_done(connection: &mut PgConnection, within: Duration) -> Result<(), WaitError> {
    let started = Instant::now();
    loop {
        let statement = "SELECT count(*) FROM commands WHERE phase <> 't'";
        let (open,): (i64,) = sqlx::query_as(statement).fetch_one(&mut *connection).await?;
        if open == 0 {
            return Ok(());
        }
        if started.elapsed() > within {
            let what = "the end of all commands".to_owned();
            return Err(WaitError::TooLate { what, within, now: format!("{open} are open") });
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

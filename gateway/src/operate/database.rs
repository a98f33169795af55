//! A connection of an operator's command: checked, bounded in time, read-only where it only reads.
//!
//! It knows no table. Statements come from `gateway/queries`, and each row is one JSON text.
//!
//! 1. What only reads does so within a read-only transaction, `begin_reading` to `end`, under a statement
//!    timeout.
//! 2. Dates come in UTC. It works through a pooler of transactions: no prepared statement outlives one.
//! 3. A schema that this binary does not serve is refused before anything is asked.

use std::time::Duration;

use gateway_db_writer::schema_version;
use serde_json::Value;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection};
use sqlx::query::QueryScalar;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Postgres};

use super::failure::{away, no_schema, refused};
use super::place::Place;
use crate::config::DatabaseUrl;
use crate::error::GatewayError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// What a command that writes may take: an enqueue waits for others of its node.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// A statement whose rows are JSON texts.
pub(super) type RowQuery<'q> = QueryScalar<'q, Postgres, String, PgArguments>;

/// The connection.
pub(super) struct Database {
    url: DatabaseUrl,
    timeout: Duration,
    sql: PgConnection,
}

impl Database {
    /// Connects, and makes sure of the schema. No statement takes longer than `timeout`.
    pub(super) async fn open(url: &DatabaseUrl, timeout: Duration) -> Result<Self, GatewayError> {
        let options: PgConnectOptions =
            url.reveal().parse().map_err(|error| refused("reading the URL", url, timeout, &error))?;
        let options = options
            .application_name("gateway operator")
            .statement_cache_capacity(0)
            .disable_statement_logging();
        let connecting = async {
            schema_version(&options).await.map_err(|error| no_schema(url, timeout, &error))?;
            PgConnection::connect_with(&options)
                .await
                .map_err(|error| refused("connecting", url, timeout, &error))
        };
        let sql = match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(connected) => connected?,
            Err(_) => {
                let why = format!("no answer within {} s", CONNECT_TIMEOUT.as_secs());
                return Err(away(url, &why));
            }
        };
        Ok(Self { url: url.clone(), timeout, sql })
    }

    /// Opens the database of a command that only reads, and begins its transaction.
    pub(super) async fn open_for_reading(place: &Place, timeout: Duration) -> Result<Self, GatewayError> {
        let mut database = Self::open(&place.urls_or_default()?.database, timeout).await?;
        database.begin_reading().await?;
        Ok(database)
    }

    /// Begins a read-only transaction in which all statements see the same.
    pub(super) async fn begin_reading(&mut self) -> Result<(), GatewayError> {
        self.begin("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await
    }

    /// Begins a transaction that may write.
    pub(super) async fn begin_writing(&mut self) -> Result<(), GatewayError> {
        self.begin("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await
    }

    /// Ends it. What was written is durable then.
    pub(super) async fn end(&mut self) -> Result<(), GatewayError> {
        self.run("committing", "COMMIT".to_owned()).await
    }

    /// The rows of a statement within the transaction.
    pub(super) async fn rows(
        &mut self,
        doing: &str,
        query: RowQuery<'_>,
    ) -> Result<Vec<Value>, GatewayError> {
        let texts = self.texts(doing, query).await?;
        texts.iter().map(|text| self.row(doing, text)).collect()
    }

    /// A row of such a statement.
    pub(super) fn row(&self, doing: &str, text: &str) -> Result<Value, GatewayError> {
        serde_json::from_str(text).map_err(|error| {
            GatewayError::Database(format!("{doing} failed at {}: a row is no JSON: {error}", self.url))
        })
    }

    /// The same where a row is no JSON.
    pub(super) async fn texts(
        &mut self,
        doing: &str,
        query: RowQuery<'_>,
    ) -> Result<Vec<String>, GatewayError> {
        self.asked(query).await.map_err(|error| self.refused(doing, &error))
    }

    /// The same for who tells errors apart; `refused` makes a sentence of one.
    pub(super) async fn asked(&mut self, query: RowQuery<'_>) -> Result<Vec<String>, sqlx::Error> {
        query.fetch_all(&mut self.sql).await
    }

    /// Any statement of ours, and what it gave; for what `rows` does not fit.
    pub(super) fn connection(&mut self) -> &mut PgConnection {
        &mut self.sql
    }

    /// An error of `connection` as a sentence.
    pub(super) fn refused(&self, doing: &str, error: &sqlx::Error) -> GatewayError {
        refused(doing, &self.url, self.timeout, error)
    }

    async fn begin(&mut self, mode: &str) -> Result<(), GatewayError> {
        // 0 would mean no limit at all.
        let milliseconds = self.timeout.as_millis().clamp(1, i32::MAX as u128);
        let statement = format!(
            "{mode}; SET LOCAL statement_timeout = {milliseconds}; SET LOCAL TimeZone = 'UTC'; SET LOCAL jit = off"
        );
        self.run("beginning a transaction", statement).await
    }

    async fn run(&mut self, doing: &str, statement: String) -> Result<(), GatewayError> {
        let done = sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut self.sql).await;
        done.map(drop).map_err(|error| refused(doing, &self.url, self.timeout, &error))
    }
}

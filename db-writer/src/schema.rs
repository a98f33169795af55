//! The schema of the database: its migrations, and which versions this binary serves.
//!
//! 1. Migrations are embedded. They expand first and contract a release later, so a binary serves
//!    the newest schema that it knows and that of the release before.
//! 2. A binary refuses any other schema, with the command to run.
//! 3. A database in another encoding than UTF8 is refused: it could not hold what nodes send.

use gateway_core::store::StoreError;
use sqlx::migrate::Migrator;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection};

use crate::failure::{Failure, Stage};

/// The embedded migrations.
pub static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// What a migration run did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationReport {
    /// The schema's version before; 0 where there was none.
    pub from: i64,
    /// The schema's version now.
    pub to: i64,
}

/// Why the schema can't be used or brought up to date; the sentence says what to do.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error("no connection to the database: {0}")]
    NotConnected(#[source] sqlx::Error),
    #[error("the database's schema could not be read: {0}")]
    NotRead(#[source] sqlx::Error),
    #[error("the migration failed, and what it did was rolled back: {0}")]
    NotMigrated(#[source] sqlx::migrate::MigrateError),
    #[error(
        "the database has schema {found}, this binary serves {oldest} to {newest}; run `gateway migrate`"
    )]
    TooOld { found: i64, oldest: i64, newest: i64 },
    #[error(
        "the database has schema {found}, this binary serves {oldest} to {newest}; install the release that \
         the database was migrated with"
    )]
    TooNew { found: i64, oldest: i64, newest: i64 },
    #[error(
        "the database is in encoding {found}, the gateway needs UTF8; an encoding can't be changed: make another \
         database with `CREATE DATABASE gateway ENCODING 'UTF8' TEMPLATE template0`, run `gateway migrate` there, \
         and name it in the configuration"
    )]
    NotUtf8 { found: String },
}

impl SchemaError {
    /// What the caller must do about it.
    pub fn to_store_error(&self) -> StoreError {
        match self {
            Self::NotConnected(error) | Self::NotRead(error) => Failure::from_sqlx(error, Stage::Safe).error,
            Self::NotMigrated(_) | Self::TooOld { .. } | Self::TooNew { .. } | Self::NotUtf8 { .. } => {
                StoreError::Fatal(self.to_string())
            }
        }
    }
}

/// The newest schema that this binary knows.
pub fn newest_version() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// The oldest schema that this binary serves: that of the release before, so that gateways can be
/// upgraded one at a time around a migration. A release may hold several migrations. There has been no
/// release yet, so it is the newest; it is raised once a release, after the release.
pub const OLDEST_SERVED: i64 = 11;

/// Brings the database at `url` up to the newest schema. Safe to run twice, and from several
/// processes at once: a lock of the database lets one go first.
pub async fn migrate(url: &str) -> Result<MigrationReport, SchemaError> {
    let options: PgConnectOptions = url.parse().map_err(SchemaError::NotConnected)?;
    let mut sql = connect(&options, "gateway migrate").await?;
    check_encoding(&mut sql).await?;
    let from = version(&mut sql).await?;
    check(from, 0)?;
    MIGRATIONS.run(&mut sql).await.map_err(SchemaError::NotMigrated)?;
    let to = version(&mut sql).await?;
    sql.close().await.map_err(SchemaError::NotRead)?;
    Ok(MigrationReport { from, to })
}

/// The database's schema version, if this binary serves it.
pub async fn schema_version(options: &PgConnectOptions) -> Result<i64, SchemaError> {
    let mut sql = connect(options, "gateway schema check").await?;
    check_encoding(&mut sql).await?;
    let found = version(&mut sql).await?;
    sql.close().await.map_err(SchemaError::NotRead)?;
    check(found, OLDEST_SERVED)?;
    Ok(found)
}

fn check(found: i64, oldest: i64) -> Result<(), SchemaError> {
    let newest = newest_version();
    if found < oldest {
        Err(SchemaError::TooOld { found, oldest, newest })
    } else if found > newest {
        Err(SchemaError::TooNew { found, oldest, newest })
    } else {
        Ok(())
    }
}

async fn connect(options: &PgConnectOptions, name: &str) -> Result<PgConnection, SchemaError> {
    PgConnection::connect_with(&options.clone().application_name(name).disable_statement_logging())
        .await
        .map_err(SchemaError::NotConnected)
}

async fn check_encoding(sql: &mut PgConnection) -> Result<(), SchemaError> {
    let asked = sqlx::query_scalar("SHOW server_encoding").fetch_one(sql).await;
    let found: String = asked.map_err(SchemaError::NotRead)?;
    if found == "UTF8" { Ok(()) } else { Err(SchemaError::NotUtf8 { found }) }
}

/// 0 where no migration ever ran.
async fn version(sql: &mut PgConnection) -> Result<i64, SchemaError> {
    let rows = sqlx::query_file!("queries/schema_version.sql").fetch_all(sql).await;
    match rows {
        Ok(rows) => Ok(rows.first().map_or(0, |row| row.version)),
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("42P01") => Ok(0),
        Err(error) => Err(SchemaError::NotRead(error)),
    }
}

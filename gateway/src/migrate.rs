//! `gateway migrate`: the schema brought up to date, from a thread without a runtime.
//!
//! 1. It may run while gateways serve: migrations only add; the release after next takes away.

use gateway_db_writer::MigrationReport;

use crate::config::DatabaseUrl;
use crate::error::GatewayError;

/// Brings the schema of the database up to date. Not to be called within a tokio runtime.
pub fn migrate(url: &DatabaseUrl) -> Result<MigrationReport, GatewayError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| GatewayError::Machine(format!("no runtime for the database: {error}")))?;
    runtime
        .block_on(gateway_db_writer::migrate(url.reveal()))
        .map_err(|error| GatewayError::Database(format!("{url} can't be migrated: {error}")))
}

//! Reads the row of one certificate, for calls that are passed on for its node.
//!
//! Owns a connection of its own, which is made when it is first needed, on the thread that asks; so it is
//! no part of the writer's thread and holds none of its queues up. It writes nothing.
//!
//! 1. A row is read for each question: nothing is cached that a revocation would have to find.
//! 2. A database that does not answer in time is away; the next question dials anew.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gateway_core::certificate::CertificateRecord;
use gateway_core::ids::GatewayId;
use gateway_core::revocation;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::Mutex;

/// How long a question may take, the dial included.
const PATIENCE: Duration = Duration::from_secs(3);

/// The database did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the database did not answer about a certificate")]
pub struct CertificatesAway;

/// The reader.
#[derive(Debug)]
pub struct CertificateReader {
    options: PgConnectOptions,
    connection: Mutex<Option<PgConnection>>,
    failing: AtomicBool,
}

impl CertificateReader {
    /// Nothing is dialled yet. An error where the URL is none.
    pub fn new(database_url: &str, gateway: &GatewayId) -> Result<Self, sqlx::Error> {
        let options: PgConnectOptions = database_url.parse()?;
        let options =
            options.application_name(&format!("gateway {gateway} certs")).disable_statement_logging();
        Ok(Self { options, connection: Mutex::default(), failing: AtomicBool::new(false) })
    }

    /// The row of a serial, in upper-case hex; `None` where there is none.
    pub async fn look(&self, serial: &str) -> Result<Option<CertificateRecord>, CertificatesAway> {
        let asked = tokio::time::timeout(PATIENCE, self.ask(serial)).await;
        let (answer, failure) = match asked {
            Ok(Ok(row)) => (Ok(row), None),
            Ok(Err(error)) => (Err(CertificatesAway), Some(error.to_string())),
            Err(_) => (Err(CertificatesAway), Some(format!("no answer within {PATIENCE:?}"))),
        };
        let was_failing = self.failing.swap(failure.is_some(), Ordering::Relaxed);
        match failure {
            Some(error) if !was_failing => {
                tracing::warn!(
                    error,
                    "certificates can't be looked up: Renew and FetchSecret are refused until then"
                );
            }
            None if was_failing => tracing::info!("certificates can be looked up again"),
            _ => {}
        }
        answer
    }

    async fn ask(&self, serial: &str) -> Result<Option<CertificateRecord>, sqlx::Error> {
        let mut held = self.connection.lock().await;
        // Kept again only after an answer: what a time-out leaves half done is not used any more.
        let mut connection = match held.take() {
            Some(connection) => connection,
            None => PgConnection::connect_with(&self.options).await?,
        };
        let row = match self.read(&mut connection, serial).await {
            Err(sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::Database(_)) => {
                // It may have been lost while it was idle.
                connection = PgConnection::connect_with(&self.options).await?;
                self.read(&mut connection, serial).await?
            }
            outcome => outcome?,
        };
        *held = Some(connection);
        Ok(row)
    }

    async fn read(
        &self,
        connection: &mut PgConnection,
        serial: &str,
    ) -> Result<Option<CertificateRecord>, sqlx::Error> {
        let row =
            sqlx::query_file!("queries/certificate_look.sql", serial).fetch_optional(connection).await?;
        Ok(row.map(|row| CertificateRecord {
            node: row.node_id,
            role: row.role,
            allowed_kinds: row.allowed_kinds,
            tenant_controlled: row.tenant_controlled,
            revoked: revocation::why(row.revoked, row.revoked_reason),
        }))
    }
}

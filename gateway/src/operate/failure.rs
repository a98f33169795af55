//! What the database's errors mean to the person at the command line.
//!
//! 1. Every sentence says what was wrong, at which database, and what to do about it.
//! 2. No password is shown, and no sign that a terminal would obey.

use std::time::Duration;

use gateway_db_writer::SchemaError;
use sqlx::postgres::PgDatabaseError;

use super::terminal::harmless;
use crate::config::DatabaseUrl;
use crate::error::GatewayError;

/// An error while `doing` something, such as "listing nodes".
pub(super) fn refused(
    doing: &str,
    url: &DatabaseUrl,
    timeout: Duration,
    error: &sqlx::Error,
) -> GatewayError {
    let sentence = match error {
        sqlx::Error::Database(error) => match error.try_downcast_ref::<PgDatabaseError>() {
            Some(error) if IS_AWAY.contains(&error.code()) => {
                return GatewayError::DatabaseAway(harmless(&told(doing, url, timeout, error)));
            }
            Some(error) => told(doing, url, timeout, error),
            None => format!("{doing} failed at {url}: {error}"),
        },
        sqlx::Error::Io(error) => return away(url, &error.to_string()),
        error => format!("{doing} failed at {url}: {error}"),
    };
    GatewayError::Database(harmless(&sentence))
}

/// What a server says when it ends connections or takes none: it shuts down, has crashed, starts, is full.
const IS_AWAY: [&str; 5] = ["57P01", "57P02", "57P03", "53300", "08006"];

/// Whether a statement was refused since the node it names is not registered.
pub(super) fn is_unknown_node(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    // foreign_key_violation, which `raise_unknown_node` of the schema gives.
    error.code().as_deref() == Some("23503")
}

/// The schema is not one that this binary works with, or there is no way to see it.
pub(super) fn no_schema(url: &DatabaseUrl, timeout: Duration, error: &SchemaError) -> GatewayError {
    match error {
        SchemaError::NotConnected(error) => refused("connecting", url, timeout, error),
        SchemaError::NotRead(error) => refused("reading the schema's version", url, timeout, error),
        error => GatewayError::Database(harmless(&format!("{url} can't be worked with: {error}"))),
    }
}

/// Nobody answers there.
pub(super) fn away(url: &DatabaseUrl, why: &str) -> GatewayError {
    GatewayError::DatabaseAway(harmless(&format!(
        "there is no connection to the database {url}: {why}; is PostgreSQL up there, and is the URL the right one? \
         (--database-url, or the [database] section of the file that --config names)"
    )))
}

fn told(doing: &str, url: &DatabaseUrl, timeout: Duration, error: &PgDatabaseError) -> String {
    let message = error.message();
    let advice = match error.code() {
        "57014" => {
            return format!(
                "{doing} took longer than {} at {url} and was ended; ask for less, or allow more time with --timeout \
                 where the command has it",
                humantime::format_duration(timeout)
            );
        }
        "28P01" | "28000" => "give the right user and password, or let pg_hba.conf admit this host",
        "3D000" => "create it in UTF8 and run `gateway migrate`",
        "42P01" | "42883" | "42703" => "its schema is not the gateway's: run `gateway migrate`",
        "42501" => "use the role that owns the schema, or let the owner GRANT this one what it needs",
        "53300" | "57P03" | "57P01" | "57P02" => "try again when the server takes connections",
        "22007" | "22008" => "write the time as 2026-12-24T18:00:00Z",
        _ => error.hint().unwrap_or_default(),
    };
    let (message, advice) = (message.trim_end_matches('.'), advice.trim_end_matches('.'));
    match advice {
        "" => format!("{doing} failed at {url}: {message}"),
        advice => format!("{doing} failed at {url}: {message}. {}", capitalized(advice)),
    }
}

fn capitalized(sentence: &str) -> String {
    let mut signs = sentence.chars();
    signs.next().map_or_else(String::new, |first| first.to_uppercase().chain(signs).collect())
}

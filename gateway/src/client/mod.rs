//! For services that work with gateways: clients of their control APIs, the finder of a node's gateway, and the
//! notifier that pokes a gateway when a transaction commits.
//!
//! `gateway_control::client` has the clients; here is what asks the database.
//!
//! 1. Nothing depends on a poke or a call: a gateway finds by itself, a little later, what they hasten.
//! 2. A database that does not answer in time is away; the next question dials anew.

use std::str::FromStr as _;
use std::time::Duration;

use gateway_control::client::{OwnerLook, Registry, RegistryAway, RegistryLook};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::sync::Mutex;

pub use gateway_control::client::{CallError, FindError, Finder, Found, GatewayClient};
pub use gateway_control::relay::UpstreamFiles as InternalFiles;

/// How long a question may take, the dial included.
const PATIENCE: Duration = Duration::from_secs(5);

/// Pokes whoever listens on `channel`, when the transaction that `connection` is in commits; at once where it is in
/// none. `gw:<gateway id>` pokes a gateway for commands, `gws:<gateway id>` for specs: of one node, or of all.
pub async fn publish(
    connection: &mut PgConnection,
    channel: &str,
    node: Option<&str>,
) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT pg_notify($1, $2)")
        .bind(channel)
        .bind(node.unwrap_or_default())
        .execute(connection)
        .await
        .map(drop)
}

/// What `node_sessions` and `gateways` say, over a connection of its own that is made when it is needed.
#[derive(Debug)]
pub struct DatabaseRegistry {
    options: PgConnectOptions,
    connection: Mutex<Option<PgConnection>>,
}

impl DatabaseRegistry {
    /// Nothing is dialled yet. An error where the URL is none.
    pub fn new(database_url: &str) -> Result<Self, sqlx::Error> {
        let options = PgConnectOptions::from_str(database_url)?
            .application_name("gateway finder")
            .statement_cache_capacity(0)
            .disable_statement_logging();
        Ok(Self { options, connection: Mutex::default() })
    }

    async fn text(&self, statement: &'static str, name: &str) -> Result<Option<String>, RegistryAway> {
        let asking = async {
            let mut held = self.connection.lock().await;
            // Kept again only after an answer: what a time-out leaves half done is not used any more.
            if let Some(mut connection) = held.take()
                && let Ok(found) = ask(&mut connection, statement, name).await
            {
                *held = Some(connection);
                return Ok(found);
            }
            let mut connection = PgConnection::connect_with(&self.options).await?;
            let found = ask(&mut connection, statement, name).await?;
            *held = Some(connection);
            Ok::<_, sqlx::Error>(found)
        };
        match tokio::time::timeout(PATIENCE, asking).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => Err(RegistryAway(error.to_string())),
            Err(_) => Err(RegistryAway(format!("no answer within {} s", PATIENCE.as_secs()))),
        }
    }
}

async fn ask(
    connection: &mut PgConnection,
    statement: &'static str,
    name: &str,
) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar(statement).bind(name).fetch_optional(connection).await
}

impl Registry for DatabaseRegistry {
    fn owner<'a>(&'a self, node: &'a str) -> OwnerLook<'a> {
        Box::pin(self.text(include_str!("../../queries/client/owner_of_node.sql"), node))
    }

    fn url<'a>(&'a self, gateway: &'a str) -> RegistryLook<'a, Option<String>> {
        Box::pin(self.text(include_str!("../../queries/client/url_of_gateway.sql"), gateway))
    }
}

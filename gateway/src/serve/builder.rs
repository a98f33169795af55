//! How a program puts a gateway together: a configuration, and what it brings along in Rust.
//!
//! Owns nothing that runs. What is wrong with the parts is said when it is started.
//!
//! 1. What is not given is as the configuration says, or left out: a builder with a configuration alone starts what
//!    `gateway serve` does.

use std::path::Path;
use std::time::Duration;

use gateway_db_writer::hooks::EmbeddedHooks;

use super::embedded::Embedded;
use super::relays::EmbeddedRelays;
use super::running::RunningGateway;
use super::start::Gateway;
use super::tunnels::EmbeddedTunnels;
use crate::config::{Config, ConfigError, DatabaseUrl, Lines};
use crate::error::GatewayError;

/// A gateway that is being put together: see `Gateway::builder`.
#[derive(Debug)]
#[must_use = "nothing runs before `start`"]
pub struct GatewayBuilder {
    config: Config,
    /// Or what is wrong with it, without the URL: a password may stand in it.
    database: Option<Result<DatabaseUrl, String>>,
    embedded: Embedded,
}

impl Gateway {
    /// Begins with a configuration, as `Config::load` or `Config::parse` gives it, or as it is made by hand.
    pub fn builder(config: Config) -> GatewayBuilder {
        GatewayBuilder { config, database: None, embedded: Embedded::default() }
    }

    /// Begins with the configuration of a TOML file.
    ///
    /// # Errors
    /// `GatewayError::Config`, with every problem's line and key.
    pub fn builder_from_file(file: impl AsRef<Path>) -> Result<GatewayBuilder, GatewayError> {
        Ok(Self::builder(Config::load(file.as_ref())?))
    }
}

impl GatewayBuilder {
    /// Changes the configuration, before anything is checked.
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// The store: the database at this URL, in place of `database.url` and `database.url_file`. A password may stand
    /// in it, which is never logged. It must have the schema of this version, as `gateway::migrate` makes it.
    ///
    /// PostgreSQL is the one store that a gateway's writer speaks with. Its model in memory is the simulator's, which
    /// runs the same machines without threads (`gateway-sim`).
    pub fn database(mut self, url: impl Into<String>) -> Self {
        self.database = Some(DatabaseUrl::new(&url.into()));
        self
    }

    /// Hooks on reports and statuses, beside those of `[hooks]`: see [`crate::hooks`].
    pub fn hooks(mut self, hooks: EmbeddedHooks) -> Self {
        self.embedded.hooks = hooks;
        self
    }

    /// Services for joins, renewals and secrets, in place of those of `[upstream]`: see [`crate::relays`].
    pub fn relays(mut self, relays: EmbeddedRelays) -> Self {
        self.embedded.relays = relays;
        self
    }

    /// Services for tunnels, in place of those of `[tunnels]`: see [`crate::tunnels`].
    pub fn tunnels(mut self, tunnels: EmbeddedTunnels) -> Self {
        self.embedded.tunnels = tunnels;
        self
    }

    /// Starts all threads; sessions are refused until the lease is held: see `Gateway::start`.
    ///
    /// # Errors
    /// What is wrong with the configuration, the placement, the machine or a file, or that another process acts as
    /// this gateway; what had been started by then is asked to end, and does within seconds.
    pub fn start(mut self) -> Result<RunningGateway, GatewayError> {
        if let Some(url) = self.database.take() {
            let url = url.map_err(|sentence| ConfigError {
                file: None,
                problems: vec![Lines::default().problem("database.url", sentence)],
            })?;
            self.embedded.database = Some(url);
        }
        Gateway::start_with(&self.config, self.embedded)
    }

    /// Starts it, and waits until sessions may be opened; at most `timeout`. Blocks the thread.
    ///
    /// # Errors
    /// As `start`, and `GatewayError::Database` where the lease was not had in time, `GatewayError::ThreadEnded`
    /// where a thread failed, of a schema that does not fit above all. What runs by then is stopped, and has ended.
    pub fn serve(self, timeout: Duration) -> Result<RunningGateway, GatewayError> {
        let mut running = self.start()?;
        match running.wait_until_serving(timeout) {
            Ok(()) => Ok(running),
            Err(error) => {
                running.stop();
                // What it says follows from the first error.
                let _ = running.join();
                Err(error)
            }
        }
    }
}

//! What an embedder brings along: hooks and services that are written in Rust.
//!
//! 1. Nothing of it need be given; each part has its own words in `crate::hooks`, `crate::relays` and
//!    `crate::tunnels`.

use gateway_db_writer::hooks::EmbeddedHooks;

use super::relays::EmbeddedRelays;
use super::tunnels::EmbeddedTunnels;
use crate::config::DatabaseUrl;

/// For `Gateway::start_with`; `EmbeddedHooks`, `EmbeddedRelays` or `EmbeddedTunnels` alone will do.
#[derive(Debug, Default)]
pub struct Embedded {
    pub hooks: EmbeddedHooks,
    pub relays: EmbeddedRelays,
    pub tunnels: EmbeddedTunnels,
    /// The database, in place of the configuration's.
    pub database: Option<DatabaseUrl>,
}

impl From<EmbeddedHooks> for Embedded {
    fn from(hooks: EmbeddedHooks) -> Self {
        Self { hooks, ..Self::default() }
    }
}

impl From<EmbeddedTunnels> for Embedded {
    fn from(tunnels: EmbeddedTunnels) -> Self {
        Self { tunnels, ..Self::default() }
    }
}

impl From<EmbeddedRelays> for Embedded {
    fn from(relays: EmbeddedRelays) -> Self {
        Self { relays, ..Self::default() }
    }
}

//! What an embedder brings along: hooks and services that are written in Rust.
//!
//! 1. Nothing of it need be given; each part has its own words in `crate::hooks` and `crate::relays`.

use gateway_db_writer::hooks::EmbeddedHooks;

use super::relays::EmbeddedRelays;

/// For `Gateway::start_with`; `EmbeddedHooks` or `EmbeddedRelays` alone will do.
#[derive(Debug, Default)]
pub struct Embedded {
    pub hooks: EmbeddedHooks,
    pub relays: EmbeddedRelays,
}

impl From<EmbeddedHooks> for Embedded {
    fn from(hooks: EmbeddedHooks) -> Self {
        Self { hooks, relays: EmbeddedRelays::default() }
    }
}

impl From<EmbeddedRelays> for Embedded {
    fn from(relays: EmbeddedRelays) -> Self {
        Self { hooks: EmbeddedHooks::default(), relays }
    }
}

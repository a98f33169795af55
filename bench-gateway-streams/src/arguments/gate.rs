//! The section `[gate]` of a plan: bounds that a run must keep, beyond those of the contract.
//!
//! It owns the names and units of the keys. What is not named is the contract's bound, or none; a key that
//! nobody knows is an error.

use bytesize::ByteSize;
use serde::Deserialize;

use crate::gate::GateBounds;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct GateFile {
    storm_all_ms: Option<f64>,
    storm_all_to_bare: Option<f64>,
    rehome_p99_ms: Option<f64>,
    dispatch_p50_ms: Option<f64>,
    dispatch_p99_ms: Option<f64>,
    dispatch_p99_to_floor: Option<f64>,
    drops: Option<u64>,
    rss: Option<ByteSize>,
    rss_per_session: Option<ByteSize>,
    rss_growth_ratio: Option<f64>,
    cpu_percent: Option<f64>,
    hostile_p99_ratio: Option<f64>,
    hostile_memory: Option<ByteSize>,
    fanout_all_to_bare: Option<f64>,
    /// At least.
    commands_per_s: Option<f64>,
    /// At least.
    writer_commands_to_bare: Option<f64>,
    /// At least.
    writer_events_to_bare: Option<f64>,
    window_p99_ratio: Option<f64>,
    growth_slope: Option<f64>,
}

impl GateFile {
    // What is not named is the contract's bound, or none.
    pub(super) fn over(self, contract: GateBounds) -> GateBounds {
        GateBounds {
            storm_all_ms: self.storm_all_ms.or(contract.storm_all_ms),
            storm_all_to_bare: self.storm_all_to_bare.or(contract.storm_all_to_bare),
            rehome_p99_ms: self.rehome_p99_ms.or(contract.rehome_p99_ms),
            dispatch_p50_ms: self.dispatch_p50_ms,
            dispatch_p99_ms: self.dispatch_p99_ms.or(contract.dispatch_p99_ms),
            dispatch_p99_to_floor: self.dispatch_p99_to_floor,
            drops: self.drops.or(contract.drops),
            rss_bytes: self.rss.map_or(contract.rss_bytes, |size| size.as_u64()),
            rss_per_session_bytes: self.rss_per_session.map(|size| size.as_u64()),
            rss_growth_ratio: self.rss_growth_ratio,
            cpu_percent: self.cpu_percent,
            hostile_p99_ratio: self.hostile_p99_ratio,
            hostile_memory_bytes: self.hostile_memory.map(|size| size.as_u64()),
            fanout_all_to_bare: self.fanout_all_to_bare,
            commands_per_s: self.commands_per_s,
            writer_commands_to_bare: self.writer_commands_to_bare,
            writer_events_to_bare: self.writer_events_to_bare,
            growth_slope: self.growth_slope,
            window_p99_ratio: self.window_p99_ratio.or(contract.window_p99_ratio),
        }
    }
}

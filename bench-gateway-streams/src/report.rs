//! The report of a run: one JSON file for programs, a table for people.
//!
//! 1. The keys of the stable part never change their name, unit or meaning.
//! 2. What was not measured is absent, never zero.

mod chaos;
mod fanout;
mod faults;
mod growth;
mod hostile;
mod scrape;
mod soak;
mod statements;
mod throughput;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use crate::arguments::NodeTransport;
use crate::gate::Check;
use crate::host::Machine;
use crate::latency::Percentiles;
use crate::progress::print;
use crate::sampler::{Sample, Window};
use crate::statistics::{DatabaseShare, settings_line};

pub(crate) use self::chaos::{ChaosRow, ChaosShare};
pub(crate) use self::fanout::{BarePush, FanoutRound, FanoutShare};
pub(crate) use self::faults::{MultiShare, StormShare};
pub(crate) use self::growth::{GrowthPoint, GrowthShare};
pub(crate) use self::hostile::{AdmissionShare, HostileRow, HostileShare};
pub(crate) use self::scrape::ScrapeShare;
pub(crate) use self::soak::{CalmRow, SoakShare};
pub(crate) use self::statements::BareStatements;
pub(crate) use self::throughput::{BatchSize, Sides, ThroughputShare, WriterAlone};

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Commands {
    pub(crate) enqueued: u64,
    pub(crate) succeeded: u64,
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct GatewayShare {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rss_bytes_idle: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rss_bytes_max: Option<u64>,
    /// (settled with all sessions - with none) / sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rss_per_session_bytes: Option<f64>,
    /// RSS at the end of the measured phase to that at its beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rss_growth_ratio: Option<f64>,
    /// Over the measured phase; 100 is one core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) threads: Option<u32>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct LoadShare {
    pub(crate) cpu_percent: f64,
    /// The worse of the two below.
    pub(crate) lag_ms_p99: f64,
    /// How late commands were sent.
    pub(crate) enqueuer_lag_ms_p99: f64,
    /// How late the nodes' runtime was.
    pub(crate) nodes_lag_ms_p99: f64,
    /// Of this process: nodes, enqueuer and all.
    pub(crate) rss_bytes: u64,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Verify {
    pub(crate) ok: bool,
    pub(crate) violations: Vec<String>,
}

impl Default for Verify {
    fn default() -> Self {
        Self { ok: true, violations: Vec::new() }
    }
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Gate {
    pub(crate) held: bool,
    pub(crate) missed: Vec<String>,
    /// Every bound of the run with its figure, held or not.
    pub(crate) checks: Vec<Check>,
}

/// What a transaction that never ends kept from vacuum.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct BloatShare {
    /// Transactions since the oldest that is still seen, at the end.
    pub(crate) horizon_age: i64,
    /// Dead rows in the tables, at the end.
    pub(crate) dead_rows: i64,
}

/// Points of a distribution: quantile and milliseconds.
pub(crate) type Curve = Vec<(f64, f64)>;

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) scenario: &'static str,
    pub(crate) commit: String,
    pub(crate) machine: Machine,
    pub(crate) sessions: usize,
    /// What the nodes spoke.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) transport: Option<NodeTransport>,
    pub(crate) duration_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dispatch_ms: Option<Percentiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) completion_ms: Option<Percentiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fanout_ms: Option<Percentiles>,
    pub(crate) drops: u64,
    pub(crate) commands: Commands,
    pub(crate) gateway: GatewayShare,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) storm: Option<StormShare>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) throughput: Option<ThroughputShare>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) multi: Option<MultiShare>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) chaos: Option<ChaosShare>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hostile: Option<HostileShare>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) load: Option<LoadShare>,
    pub(crate) verify: Verify,
    pub(crate) gate: Gate,
    // Beyond the stable part.
    pub(crate) commands_per_second: f64,
    pub(crate) heartbeat_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dispatch_from_intended_ms: Option<Percentiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) enqueue_ms: Option<Percentiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) heartbeat_ms: Option<Percentiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) floor_ms: Option<Percentiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) injected_stall_ms: Option<f64>,
    pub(crate) heartbeats_acked: u64,
    pub(crate) session_ends: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fanout: Option<FanoutShare>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bloat: Option<BloatShare>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) soak: Option<SoakShare>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) growth: Option<GrowthShare>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scrape: Option<ScrapeShare>,
    pub(crate) database: DatabaseShare,
    pub(crate) series: Vec<Sample>,
    /// Dispatch latency over longer stretches.
    pub(crate) windows: Vec<Window>,
    /// Distributions by name, for the plot of percentiles.
    pub(crate) curves: BTreeMap<&'static str, Curve>,
}

impl Report {
    /// Dispatch p99 to the p99 of the bare floor of the same run.
    pub(crate) fn dispatch_p99_to_floor(&self) -> Option<f64> {
        Some(self.dispatch_ms?.p99 / self.floor_ms?.p99)
    }

    /// Dispatch p99 of the last window to that of the first.
    pub(crate) fn window_p99_ratio(&self) -> Option<f64> {
        let [first, .., last] = self.windows.as_slice() else { return None };
        Some(last.dispatch_ms.p99 / first.dispatch_ms.p99)
    }

    /// Writes the JSON file.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let mut value = serde_json::to_value(self)?;
        let ratios = [
            ("dispatch_p99_to_floor", self.dispatch_p99_to_floor()),
            ("window_p99_ratio", self.window_p99_ratio()),
            ("storm_all_to_bare", self.storm.as_ref().and_then(StormShare::all_to_bare)),
            ("fanout_all_to_bare", self.fanout.as_ref().and_then(FanoutShare::all_to_bare)),
            (
                "writer_commands_to_bare",
                self.throughput.as_ref().and_then(ThroughputShare::writer_commands_to_bare),
            ),
            (
                "writer_events_to_bare",
                self.throughput.as_ref().and_then(ThroughputShare::writer_events_to_bare),
            ),
        ];
        if let Some(object) = value.as_object_mut() {
            let known = ratios.into_iter().filter_map(|(name, ratio)| Some((name.to_owned(), ratio?.into())));
            object.extend(known);
        }
        let text = serde_json::to_string_pretty(&value)?;
        fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
    }

    /// Prints the table.
    pub(crate) fn print(&self) {
        for line in self.lines() {
            print(&line);
        }
    }

    fn lines(&self) -> Vec<String> {
        let machine = &self.machine;
        let mut lines = vec![
            format!(
                "{} at {}",
                self.scenario,
                if self.commit.is_empty() { "an unknown commit" } else { &self.commit }
            ),
            row("machine", &format!("{} x {}, Linux {}", machine.cpus, machine.model, machine.kernel)),
            row(
                "load",
                &format!(
                    "{} sessions{}, heartbeat {} s, {} commands/s for {:.0} s",
                    self.sessions,
                    if self.transport == Some(NodeTransport::WebSocket) { " over WebSocket" } else { "" },
                    self.heartbeat_s,
                    self.commands_per_second,
                    self.duration_s
                ),
            ),
        ];
        lines.push(row("PostgreSQL", &settings_line(&self.database.settings)));
        lines.push(String::new());
        lines.extend(self.latencies());
        lines.extend(self.fanout.iter().flat_map(FanoutShare::lines));
        lines.extend(self.throughput.iter().flat_map(ThroughputShare::lines));
        lines.extend(self.over_time());
        lines.extend(self.soak.iter().flat_map(SoakShare::lines));
        lines.extend(self.growth.iter().flat_map(GrowthShare::lines));
        lines.extend(self.storm.iter().flat_map(StormShare::lines));
        lines.extend(self.multi.iter().flat_map(MultiShare::lines));
        lines.extend(self.chaos.iter().flat_map(ChaosShare::lines));
        lines.extend(self.hostile.iter().flat_map(HostileShare::lines));
        lines.extend(self.scrape.iter().flat_map(ScrapeShare::lines));
        lines.push(String::new());
        lines.extend(self.counts());
        lines
    }

    fn latencies(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, percentiles) in [
            ("dispatch: commit -> node has it", self.dispatch_ms),
            ("completion: commit -> durable", self.completion_ms),
            ("dispatch from intended start", self.dispatch_from_intended_ms),
            ("the enqueue itself", self.enqueue_ms),
            ("heartbeat round trip", self.heartbeat_ms),
            ("fan-out: commit -> a node has it", self.fanout_ms),
            ("bare floor (no gateway)", self.floor_ms),
        ] {
            let Some(ms) = percentiles else { continue };
            if lines.is_empty() {
                lines.push(format!(
                    "  {:<34}{:>10}{:>10}{:>10}{:>10}{:>10}",
                    "milliseconds", "p50", "p90", "p99", "p99.9", "max"
                ));
            }
            let Percentiles { p50, p90, p99, p999, max } = ms;
            lines.push(format!("  {name:<34}{p50:>10.3}{p90:>10.3}{p99:>10.3}{p999:>10.3}{max:>10.3}"));
        }
        if let Some(ratio) = self.dispatch_p99_to_floor() {
            lines.push(row("dispatch p99 to the floor's", &format!("{ratio:.2}")));
        }
        lines
    }

    fn over_time(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.windows.len() > 1 {
            lines.push(format!(
                "  {:<34}{:>10}{:>10}{:>10}{:>10}",
                "dispatch over time, ms", "p50", "p99", "max", "commands"
            ));
            lines.extend(self.windows.iter().map(|window| {
                let Percentiles { p50, p99, max, .. } = window.dispatch_ms;
                let from = format!("from second {:.0}", window.from_s);
                format!("  {from:<34}{p50:>10.3}{p99:>10.3}{max:>10.3}{:>10}", window.commands)
            }));
        }
        if let Some(ratio) = self.window_p99_ratio() {
            lines.push(row("last p99 to the first", &format!("x {ratio:.2}")));
        }
        if let Some(BloatShare { horizon_age, dead_rows }) = self.bloat {
            lines.push(row(
                "kept from vacuum",
                &format!("{dead_rows} dead rows, {horizon_age} transactions behind the horizon"),
            ));
        }
        lines
    }

    fn counts(&self) -> Vec<String> {
        let Commands { enqueued, succeeded, lost, duplicated } = self.commands;
        let mut lines = vec![
            row(
                "commands",
                &format!("{enqueued} enqueued, {succeeded} succeeded, {lost} lost, {duplicated} doubled"),
            ),
            row("drops (counted by the nodes)", &self.drops.to_string()),
        ];
        for (reason, count) in &self.session_ends {
            lines.push(row("  ended", &format!("{count} x {reason}")));
        }
        let gateway = &self.gateway;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let memory = [
            gateway.rss_bytes_idle.map(|bytes| format!("{:.1} MiB idle", mib(bytes))),
            gateway.rss_bytes_max.map(|bytes| format!("{:.1} MiB at most", mib(bytes))),
            gateway.rss_per_session_bytes.map(|bytes| format!("{:.1} KiB a session", bytes / 1024.0)),
            gateway.rss_growth_ratio.map(|ratio| format!("x {ratio:.4} over the run")),
        ];
        let memory: Vec<String> = memory.into_iter().flatten().collect();
        if !memory.is_empty() {
            lines.push(row("gateway memory", &memory.join(", ")));
        }
        if let Some(cpu) = gateway.cpu_percent {
            lines.push(row("gateway CPU", &format!("{cpu:.1} % of a core")));
        }
        if let Some(load) = &self.load {
            lines.push(row(
                "load generator",
                &format!(
                    "{:.1} % of a core, {:.1} MiB; late by p99 {:.3} ms (enqueuer), {:.3} ms (nodes)",
                    load.cpu_percent,
                    mib(load.rss_bytes),
                    load.enqueuer_lag_ms_p99,
                    load.nodes_lag_ms_p99
                ),
            ));
            let database = &self.database;
            let statements =
                database.statements_per_command.map(|ratio| format!(", {ratio:.2} statements a command"));
            lines.push(row(
                "database",
                &format!("{:.1} commits/s{}", database.commits_per_s, statements.unwrap_or_default()),
            ));
        }
        let verify = match self.verify.ok {
            true => "sound: one terminal row and one execution each, no invariant broken".to_owned(),
            false => format!("{} violations", self.verify.violations.len()),
        };
        lines.push(row("verify", &verify));
        lines.extend(self.verify.violations.iter().take(10).map(|violation| row("  violated", violation)));
        lines.push(row("gate", if self.gate.held { "held" } else { "MISSED" }));
        lines.extend(self.gate.missed.iter().map(|sentence| row("  missed", sentence)));
        lines
    }
}

fn row(name: &str, value: &str) -> String {
    format!("  {name:<34}{value}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stable_keys_are_there_and_what_was_not_measured_is_not() {
        let report = Report {
            dispatch_ms: Some(Percentiles::default()),
            load: Some(LoadShare::default()),
            storm: Some(StormShare {
                all_ms: Some(1.0),
                bare_handshakes_ms: Some(1.0),
                ..StormShare::default()
            }),
            fanout_ms: Some(Percentiles::default()),
            throughput: Some(ThroughputShare {
                commands_per_s: Some(1.0),
                events_per_s: Some(1.0),
                writer_commands_per_s: Some(1.0),
                writer_events_per_s: Some(1.0),
                bare_sql_commands_per_s: Some(1.0),
                bare_sql_events_per_s: Some(1.0),
                ..ThroughputShare::default()
            }),
            gateway: GatewayShare {
                rss_bytes_idle: Some(1),
                rss_per_session_bytes: Some(1.0),
                rss_growth_ratio: Some(1.0),
                cpu_percent: Some(1.0),
                ..GatewayShare::default()
            },
            multi: Some(MultiShare { rehome_ms: Some(Percentiles::default()), ..MultiShare::default() }),
            ..Report::default()
        };
        let value = serde_json::to_value(&report).expect("json");
        for pointer in [
            "/scenario",
            "/commit",
            "/machine",
            "/sessions",
            "/duration_s",
            "/dispatch_ms/p50",
            "/dispatch_ms/p90",
            "/dispatch_ms/p99",
            "/dispatch_ms/p999",
            "/dispatch_ms/max",
            "/fanout_ms/p50",
            "/fanout_ms/p99",
            "/fanout_ms/max",
            "/throughput/commands_per_s",
            "/throughput/events_per_s",
            "/throughput/writer_commands_per_s",
            "/throughput/writer_events_per_s",
            "/throughput/bare_sql_commands_per_s",
            "/throughput/bare_sql_events_per_s",
            "/gateway/rss_bytes_idle",
            "/gateway/rss_per_session_bytes",
            "/gateway/rss_growth_ratio",
            "/gateway/cpu_percent",
            "/drops",
            "/commands/enqueued",
            "/commands/succeeded",
            "/commands/lost",
            "/commands/duplicated",
            "/storm/all_ms",
            "/storm/refused",
            "/storm/bare_handshakes_ms",
            "/multi/rehome_ms/p50",
            "/multi/rehome_ms/p99",
            "/multi/rehome_ms/max",
            "/load/cpu_percent",
            "/load/lag_ms_p99",
            "/verify/ok",
            "/verify/violations",
            "/gate/held",
            "/gate/missed",
        ] {
            assert!(value.pointer(pointer).is_some(), "{pointer} is missing");
        }
        assert!(value.pointer("/completion_ms").is_none() && value.pointer("/storm/p50_ms").is_none());
        assert!(value.pointer("/gateway/rss_bytes_max").is_none());
    }
}

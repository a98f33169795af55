//! What `storm`, `multi` and `chaos` have in common on the command line and in the section `[load]` of a
//! plan: how many sessions, what they are given to do, and where the report goes.
//!
//! 1. Each scenario has defaults of its own; a flag wins over the file, the file over the default.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::duration_of;

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct LoadArguments {
    /// Node sessions, one TLS connection each
    #[arg(long)]
    pub(crate) sessions: Option<usize>,
    /// Time between the heartbeats of a node [default: 10s]
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) heartbeat: Option<Duration>,
    /// Commands enqueued a second, over all nodes
    #[arg(long)]
    pub(crate) commands_per_second: Option<f64>,
    /// How long commands are enqueued before the fault, and again when all is back [default: 5s]
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// Sessions opened a second before the run [default: 400]
    #[arg(long)]
    pub(crate) connect_rate: Option<f64>,
    /// Where the JSON report is written
    #[arg(long)]
    pub(crate) report: Option<PathBuf>,
    /// A TOML file with [load], [gate] and the scenario's own section; see configs/bench/
    #[arg(long)]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LoadFile {
    sessions: Option<usize>,
    heartbeat: Option<String>,
    commands_per_second: Option<f64>,
    duration: Option<String>,
    connect_rate: Option<f64>,
}

/// The load of a run, all settled.
#[derive(Debug, Clone)]
pub(crate) struct LoadPlan {
    pub(crate) sessions: usize,
    pub(crate) heartbeat: Duration,
    pub(crate) commands_per_second: f64,
    pub(crate) duration: Duration,
    pub(crate) connect_rate: f64,
    pub(crate) report: Option<PathBuf>,
}

impl LoadArguments {
    /// Settles flags, file, and what the scenario takes where neither says anything.
    pub(super) fn plan(&self, file: LoadFile, default: LoadPlan) -> anyhow::Result<LoadPlan> {
        let heartbeat = duration_of("load.heartbeat", file.heartbeat)?;
        let duration = duration_of("load.duration", file.duration)?;
        let plan = LoadPlan {
            sessions: self.sessions.or(file.sessions).unwrap_or(default.sessions),
            heartbeat: self.heartbeat.or(heartbeat).unwrap_or(default.heartbeat),
            commands_per_second: self
                .commands_per_second
                .or(file.commands_per_second)
                .unwrap_or(default.commands_per_second),
            duration: self.duration.or(duration).unwrap_or(default.duration),
            connect_rate: self.connect_rate.or(file.connect_rate).unwrap_or(default.connect_rate),
            report: self.report.clone(),
        };
        let positive = |number: f64| number.is_finite() && number > 0.0;
        anyhow::ensure!(plan.sessions > 0, "--sessions must be at least 1");
        anyhow::ensure!(positive(plan.commands_per_second), "--commands-per-second must be above 0");
        anyhow::ensure!(positive(plan.connect_rate), "--connect-rate must be above 0");
        anyhow::ensure!(plan.heartbeat >= Duration::from_millis(100), "--heartbeat must be at least 100ms");
        Ok(plan)
    }
}

impl LoadPlan {
    /// So many sessions with heartbeats of 10 s and so many commands a second.
    pub(super) fn of(sessions: usize, commands_per_second: f64) -> Self {
        Self {
            sessions,
            heartbeat: Duration::from_secs(10),
            commands_per_second,
            duration: Duration::from_secs(5),
            connect_rate: 400.0,
            report: None,
        }
    }
}

/// Reads a plan; none: all defaults.
pub(super) fn plan_file<T: DeserializeOwned + Default>(path: Option<&Path>) -> anyhow::Result<T> {
    let Some(path) = path else { return Ok(T::default()) };
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    toml::from_str(&text).with_context(|| path.display().to_string())
}

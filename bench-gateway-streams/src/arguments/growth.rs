//! The command line of `growth`, and its plan.
//!
//! A flag wins over the plan's file, the file over the default of the axis.
//!
//! 1. Points rise, and there are at least two: a slope needs that.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Deserialize;

use super::load::plan_file;
use super::{GateFile, GatewayArguments, duration_of};
use crate::gate::GateBounds;

/// What grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Axis {
    /// Sessions that only beat; the gateway's CPU and memory are measured.
    Sessions,
    /// Commands a second; the gateway's CPU for a command.
    Rate,
    /// Nodes that each have one command waiting; the gateway's CPU until all have theirs.
    Backlog,
    /// Finished commands in the table; buffers that PostgreSQL touches for a command.
    Table,
}

impl Axis {
    /// Its name, as on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sessions => "sessions",
            Self::Rate => "rate",
            Self::Backlog => "backlog",
            Self::Table => "table",
        }
    }

    fn points(self) -> Vec<u64> {
        match self {
            Self::Sessions => vec![1000, 2000, 4000, 8000, 15_000],
            Self::Rate => vec![10, 30, 100, 300, 1000, 3000, 10_000],
            Self::Backlog => vec![1, 10, 100, 1000, 5000],
            Self::Table => vec![10_000, 100_000, 1_000_000, 10_000_000],
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct GrowthArguments {
    /// What grows
    #[arg(long)]
    pub(crate) axis: Option<Axis>,
    /// Its values, with commas between them
    #[arg(long, value_delimiter = ',')]
    pub(crate) points: Vec<u64>,
    /// Sessions, where they are not what grows [default: 1000; for backlog, its last point]
    #[arg(long)]
    pub(crate) sessions: Option<usize>,
    /// Time between the heartbeats of a node [default: 10s]
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) heartbeat: Option<Duration>,
    /// How long each point is measured [default: 15s]
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// Sessions opened a second [default: 400]
    #[arg(long)]
    pub(crate) connect_rate: Option<f64>,
    /// Where the JSON report is written, and its plot beside it
    #[arg(long)]
    pub(crate) report: Option<PathBuf>,
    /// A TOML file with [growth]; see configs/bench/
    #[arg(long)]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) gateway: GatewayArguments,
}

/// What `growth` does, all settled.
#[derive(Debug)]
pub(crate) struct GrowthPlan {
    pub(crate) axis: Axis,
    pub(crate) points: Vec<u64>,
    pub(crate) sessions: usize,
    pub(crate) heartbeat: Duration,
    pub(crate) duration: Duration,
    pub(crate) connect_rate: f64,
    pub(crate) gate: GateBounds,
    pub(crate) report: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PlanFile {
    growth: GrowthFile,
    gate: GateFile,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct GrowthFile {
    axis: Option<Axis>,
    points: Vec<u64>,
    sessions: Option<usize>,
    heartbeat: Option<String>,
    duration: Option<String>,
    connect_rate: Option<f64>,
}

impl GrowthArguments {
    /// Settles flags, file and defaults.
    pub(crate) fn plan(&self) -> anyhow::Result<GrowthPlan> {
        let PlanFile { growth: file, gate } = plan_file(self.config.as_deref())?;
        let axis = self.axis.or(file.axis);
        let axis =
            axis.ok_or_else(|| anyhow::anyhow!("--axis says what grows: sessions, rate, backlog or table"))?;
        let named = if self.points.is_empty() { file.points } else { self.points.clone() };
        let points = if named.is_empty() { axis.points() } else { named };
        anyhow::ensure!(
            points.len() >= 2 && points.first() > Some(&0) && points.is_sorted_by(|a, b| a < b),
            "--points must be at least two, above 0, and rise"
        );
        let most = usize::try_from(points.last().copied().unwrap_or(1))?;
        let sessions = self.sessions.or(file.sessions);
        let sessions = match axis {
            Axis::Sessions => most,
            Axis::Backlog => sessions.unwrap_or(most).max(most),
            Axis::Rate | Axis::Table => sessions.unwrap_or(1000),
        };
        let heartbeat = duration_of("growth.heartbeat", file.heartbeat)?;
        let duration = duration_of("growth.duration", file.duration)?;
        let plan = GrowthPlan {
            axis,
            points,
            sessions,
            heartbeat: self.heartbeat.or(heartbeat).unwrap_or(Duration::from_secs(10)),
            duration: self.duration.or(duration).unwrap_or(Duration::from_secs(15)),
            connect_rate: self.connect_rate.or(file.connect_rate).unwrap_or(400.0),
            gate: gate.over(GateBounds { dispatch_p99_ms: None, ..GateBounds::contract() }),
            report: self.report.clone(),
        };
        anyhow::ensure!(plan.sessions > 0, "--sessions must be at least 1");
        anyhow::ensure!(plan.duration >= Duration::from_secs(1), "--duration must be at least 1s");
        anyhow::ensure!(plan.heartbeat >= Duration::from_millis(100), "--heartbeat must be at least 100ms");
        anyhow::ensure!(
            plan.connect_rate.is_finite() && plan.connect_rate > 0.0,
            "--connect-rate must be above 0"
        );
        anyhow::ensure!(
            self.gateway.attach.is_none(),
            "growth measures a gateway of its own; --attach is not for it"
        );
        Ok(plan)
    }
}

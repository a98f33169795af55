//! The command line of `steady`, and its plan; `bloat` measures by the same plan.
//!
//! A flag wins over the plan's file, the file over the default. An idle run is bound by what it can show:
//! no command, no latency to bound and nothing to compare.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gateway_testbed::node::Transport;
use serde::{Deserialize, Serialize};

use super::load::plan_file;
use super::{GateFile, GatewayArguments, duration_of};
use crate::gate::GateBounds;
use crate::sampler::WindowPlan;

#[derive(Debug, Args)]
pub(crate) struct SteadyArguments {
    /// Node sessions, one TLS connection each [default: 5000]
    #[arg(long)]
    pub(crate) sessions: Option<usize>,
    /// Time between the heartbeats of a node [default: 10s]
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) heartbeat: Option<Duration>,
    /// Commands enqueued a second, over all nodes; 0 leaves the sessions idle [default: 50]
    #[arg(long)]
    pub(crate) commands_per_second: Option<f64>,
    /// How long is measured [default: 120s]
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// Where the JSON report is written
    #[arg(long)]
    pub(crate) report: Option<PathBuf>,
    /// A TOML file with [steady] and [gate]; see configs/bench/
    #[arg(long)]
    pub(crate) config: Option<PathBuf>,
    /// How long sessions settle before memory is measured [default: 20s]
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) settle: Option<Duration>,
    /// Sessions opened a second [default: 400]
    #[arg(long)]
    pub(crate) connect_rate: Option<f64>,
    /// Bytes of each command's payload [default: 128]
    #[arg(long)]
    pub(crate) payload: Option<usize>,
    /// Stops the gateway once for that long, in the middle: the figures must show it
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) inject_stall: Option<Duration>,
    /// When memory's growth begins to count [default: when all sessions have settled]
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) growth_from: Option<Duration>,
    /// What nodes speak: h2 (gRPC) or websocket [default: h2]
    #[arg(long)]
    pub(crate) transport: Option<NodeTransport>,
    /// Reads the gateway's metrics at this pace in every other stretch of the run, and compares its CPU
    #[arg(long, value_name = "EVERY", value_parser = humantime::parse_duration)]
    pub(crate) scrape: Option<Duration>,
    /// Leaves out the yardstick, a bare INSERT + NOTIFY -> LISTEN + claim on the same cluster
    #[arg(long)]
    pub(crate) no_floor: bool,
    #[command(flatten)]
    pub(crate) gateway: GatewayArguments,
}

/// What nodes speak.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NodeTransport {
    #[default]
    H2,
    #[value(name = "websocket")]
    WebSocket,
}

impl NodeTransport {
    /// As it is written on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::H2 => "h2",
            Self::WebSocket => "websocket",
        }
    }
}

impl From<NodeTransport> for Transport {
    fn from(transport: NodeTransport) -> Self {
        match transport {
            NodeTransport::H2 => Self::Http2,
            NodeTransport::WebSocket => Self::WebSocket,
        }
    }
}

/// What `steady` does, all settled.
#[derive(Debug, Clone)]
pub(crate) struct SteadyPlan {
    pub(crate) sessions: usize,
    pub(crate) heartbeat: Duration,
    pub(crate) commands_per_second: f64,
    pub(crate) duration: Duration,
    pub(crate) settle: Duration,
    pub(crate) connect_rate: f64,
    pub(crate) payload_bytes: usize,
    pub(crate) inject_stall: Option<Duration>,
    pub(crate) transport: NodeTransport,
    pub(crate) with_floor: bool,
    pub(crate) report: Option<PathBuf>,
    pub(crate) gate: GateBounds,
    pub(crate) windows: WindowPlan,
    /// Memory's growth counts from then on; `None`: from the moment when all sessions had settled.
    pub(crate) growth_from: Option<Duration>,
    /// How often the gateway is scraped in every other stretch; `None`: never.
    pub(crate) scrape: Option<Duration>,
    /// Whether a transaction stays open that lets no vacuum clean up.
    pub(crate) pins_the_horizon: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PlanFile {
    steady: SteadyFile,
    gate: GateFile,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SteadyFile {
    sessions: Option<usize>,
    heartbeat: Option<String>,
    commands_per_second: Option<f64>,
    duration: Option<String>,
    settle: Option<String>,
    connect_rate: Option<f64>,
    payload: Option<usize>,
    growth_from: Option<String>,
    transport: Option<NodeTransport>,
}

impl SteadyArguments {
    /// Settles flags, file and defaults.
    pub(crate) fn plan(&self) -> anyhow::Result<SteadyPlan> {
        let PlanFile { steady: file, gate } = plan_file(self.config.as_deref())?;
        let second = Duration::from_secs(1);
        let mut plan = SteadyPlan {
            sessions: self.sessions.or(file.sessions).unwrap_or(5000),
            heartbeat: self
                .heartbeat
                .or(duration_of("steady.heartbeat", file.heartbeat)?)
                .unwrap_or(10 * second),
            commands_per_second: self.commands_per_second.or(file.commands_per_second).unwrap_or(50.0),
            duration: self
                .duration
                .or(duration_of("steady.duration", file.duration)?)
                .unwrap_or(120 * second),
            settle: self.settle.or(duration_of("steady.settle", file.settle)?).unwrap_or(20 * second),
            connect_rate: self.connect_rate.or(file.connect_rate).unwrap_or(400.0),
            payload_bytes: self.payload.or(file.payload).unwrap_or(128),
            inject_stall: self.inject_stall,
            transport: self.transport.or(file.transport).unwrap_or_default(),
            with_floor: !self.no_floor,
            report: self.report.clone(),
            gate: gate.over(GateBounds::contract()),
            windows: WindowPlan::default(),
            growth_from: self.growth_from.or(duration_of("steady.growth_from", file.growth_from)?),
            scrape: self.scrape,
            pins_the_horizon: false,
        };
        plan.check()?;
        if plan.is_idle() {
            // No command, no latency to bound and nothing to compare.
            plan.gate.dispatch_p99_ms = None;
            plan.with_floor = false;
        }
        Ok(plan)
    }
}

impl SteadyPlan {
    /// Whether sessions only stand and beat.
    pub(crate) fn is_idle(&self) -> bool {
        self.commands_per_second == 0.0
    }

    fn check(&self) -> anyhow::Result<()> {
        let positive = |number: f64| number.is_finite() && number > 0.0;
        anyhow::ensure!(self.sessions > 0, "--sessions must be at least 1");
        anyhow::ensure!(
            self.is_idle() || positive(self.commands_per_second),
            "--commands-per-second must be 0 or more"
        );
        anyhow::ensure!(
            !(self.is_idle() && self.inject_stall.is_some()),
            "--inject-stall needs commands whose latency can show it; --commands-per-second is 0"
        );
        anyhow::ensure!(positive(self.connect_rate), "--connect-rate must be above 0");
        anyhow::ensure!(self.payload_bytes <= 512 << 10, "--payload must be at most 512 KiB (524288)");
        anyhow::ensure!(self.duration >= Duration::from_secs(1), "--duration must be at least 1s");
        anyhow::ensure!(
            self.scrape.is_none_or(|every| every >= Duration::from_millis(10)),
            "--scrape must be at least 10ms"
        );
        anyhow::ensure!(self.heartbeat >= Duration::from_millis(100), "--heartbeat must be at least 100ms");
        Ok(())
    }
}

//! The command line of `bloat`, and its plan: that of `steady`, with windows of a minute and the horizon of
//! vacuum pinned.
//!
//! A flag wins over the plan's file, the file over the default: 500 sessions that are given 240 commands a
//! second for seven minutes, a hundred thousand in all.

use std::time::Duration;

use clap::Args;
use serde::Deserialize;

use super::load::{LoadArguments, LoadFile, LoadPlan, plan_file};
use super::{GateFile, GatewayArguments, NodeTransport, SteadyPlan, duration_of};
use crate::gate::GateBounds;
use crate::sampler::WindowPlan;

#[derive(Debug, Args)]
pub(crate) struct BloatArguments {
    #[command(flatten)]
    pub(crate) load: LoadArguments,
    /// Length of a window of the latency over time [default: 1m]
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) window: Option<Duration>,
    /// Load before the first window, which warms all up [default: 10s]
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) warm_up: Option<Duration>,
    #[command(flatten)]
    pub(crate) gateway: GatewayArguments,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PlanFile {
    load: LoadFile,
    bloat: BloatFile,
    gate: GateFile,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct BloatFile {
    window: Option<String>,
    warm_up: Option<String>,
}

impl BloatArguments {
    /// Settles flags, file and defaults.
    pub(crate) fn plan(&self) -> anyhow::Result<SteadyPlan> {
        let file: PlanFile = plan_file(self.load.config.as_deref())?;
        let window = duration_of("bloat.window", file.bloat.window)?;
        let warm_up = duration_of("bloat.warm_up", file.bloat.warm_up)?;
        let default = LoadPlan { duration: Duration::from_secs(420), ..LoadPlan::of(500, 240.0) };
        let load = self.load.plan(file.load, default)?;
        let windows = WindowPlan {
            from: self.warm_up.or(warm_up).unwrap_or(Duration::from_secs(10)),
            every: self.window.or(window).unwrap_or(Duration::from_secs(60)),
        };
        anyhow::ensure!(
            windows.every >= Duration::from_secs(1) && load.duration >= 2 * windows.every,
            "--window must be at least 1s, and --duration at least two of it: there is a first and a last"
        );
        let gate = GateBounds { window_p99_ratio: Some(1.5), ..GateBounds::contract() };
        Ok(SteadyPlan {
            sessions: load.sessions,
            heartbeat: load.heartbeat,
            commands_per_second: load.commands_per_second,
            duration: load.duration + windows.from,
            settle: Duration::from_secs(1),
            connect_rate: load.connect_rate,
            payload_bytes: 128,
            inject_stall: None,
            transport: NodeTransport::default(),
            with_floor: false,
            report: load.report,
            gate: file.gate.over(gate),
            windows,
            growth_from: None,
            scrape: None,
            pins_the_horizon: true,
        })
    }
}

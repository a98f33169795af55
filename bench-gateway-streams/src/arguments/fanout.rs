//! The command line of `fanout`, and its plan.
//!
//! A flag wins over the plan's file, the file over the default. Its load is the rounds themselves: there
//! are no commands beside them.

use std::time::Duration;

use clap::Args;
use serde::Deserialize;

use super::load::{LoadArguments, LoadFile, LoadPlan, plan_file};
use super::{GateFile, GatewayArguments, duration_of};
use crate::gate::GateBounds;

#[derive(Debug, Args)]
pub(crate) struct FanoutArguments {
    #[command(flatten)]
    pub(crate) load: LoadArguments,
    /// How often one command goes to every node, and how often the yardstick is taken [default: 10]
    #[arg(long)]
    pub(crate) rounds: Option<u32>,
    /// Bytes of each command's payload [default: 128]
    #[arg(long)]
    pub(crate) payload: Option<usize>,
    /// Quiet between two rounds [default: 1s]
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) pause: Option<Duration>,
    /// Leaves out the yardstick, a bare push of a frame to each of the same clients
    #[arg(long)]
    pub(crate) no_bare_push: bool,
    #[command(flatten)]
    pub(crate) gateway: GatewayArguments,
}

/// What `fanout` does, all settled.
#[derive(Debug)]
pub(crate) struct FanoutPlan {
    pub(crate) load: LoadPlan,
    pub(crate) rounds: u32,
    pub(crate) payload_bytes: usize,
    pub(crate) pause: Duration,
    pub(crate) with_bare_push: bool,
    pub(crate) gate: GateBounds,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PlanFile {
    load: LoadFile,
    fanout: FanoutFile,
    gate: GateFile,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FanoutFile {
    rounds: Option<u32>,
    payload: Option<usize>,
    pause: Option<String>,
}

impl FanoutArguments {
    /// Settles flags, file and defaults.
    pub(crate) fn plan(&self) -> anyhow::Result<FanoutPlan> {
        let file: PlanFile = plan_file(self.load.config.as_deref())?;
        let pause = duration_of("fanout.pause", file.fanout.pause)?;
        let gate = GateBounds { dispatch_p99_ms: None, ..GateBounds::contract() };
        let plan = FanoutPlan {
            load: self.load.plan(file.load, LoadPlan::of(5000, 1.0))?,
            rounds: self.rounds.or(file.fanout.rounds).unwrap_or(10),
            payload_bytes: self.payload.or(file.fanout.payload).unwrap_or(128),
            pause: self.pause.or(pause).unwrap_or(Duration::from_secs(1)),
            with_bare_push: !self.no_bare_push,
            gate: file.gate.over(gate),
        };
        anyhow::ensure!(plan.rounds > 0, "--rounds must be at least 1");
        anyhow::ensure!(plan.payload_bytes <= 16 << 10, "--payload must be at most 16 KiB (16384)");
        Ok(plan)
    }
}

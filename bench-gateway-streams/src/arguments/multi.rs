//! The command line of `multi`, and its plan.
//!
//! A flag wins over the plan's file, the file over the default. The contract's bound holds where the plan
//! names no gate: of the nodes of a gateway that was killed, 99 of 100 are at home again within a second, and of
//! one that is drained within a second of the time over which they were spread.

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Deserialize;

use super::load::{LoadArguments, LoadFile, LoadPlan, plan_file};
use super::{GateFile, GatewayArguments, duration_of};
use crate::gate::GateBounds;

/// What becomes of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MultiBy {
    /// One of three is killed and stays down.
    Kill,
    /// One of three is killed and started again at once.
    Restart,
    /// One of three is told to stop, and sends its nodes away before.
    Drain,
}

impl MultiBy {
    /// As it is written.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Restart => "restart",
            Self::Drain => "drain",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct MultiArguments {
    #[command(flatten)]
    pub(crate) load: LoadArguments,
    /// What becomes of one of the three gateways [default: kill]
    #[arg(long)]
    pub(crate) by: Option<MultiBy>,
    /// With `--by drain`: over how long its nodes are spread [default: 10s]
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) drain: Option<Duration>,
    /// Sessions that each gateway lets in a second, with a burst of as many [default: 2000]
    #[arg(long)]
    pub(crate) opens_per_second: Option<u32>,
    /// Picks the gateway that it is [default: a random number, which is printed]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) gateway: GatewayArguments,
}

/// What `multi` does, all settled.
#[derive(Debug)]
pub(crate) struct MultiPlan {
    pub(crate) load: LoadPlan,
    pub(crate) by: MultiBy,
    pub(crate) drain: Duration,
    pub(crate) opens_per_second: u32,
    pub(crate) seed: u64,
    pub(crate) gate: GateBounds,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PlanFile {
    load: LoadFile,
    multi: MultiFile,
    gate: GateFile,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct MultiFile {
    by: Option<MultiBy>,
    drain: Option<String>,
    opens_per_second: Option<u32>,
}

impl MultiArguments {
    /// Settles flags, file and defaults.
    pub(crate) fn plan(&self) -> anyhow::Result<MultiPlan> {
        let file: PlanFile = plan_file(self.load.config.as_deref())?;
        let opens_per_second = self.opens_per_second.or(file.multi.opens_per_second).unwrap_or(2000);
        anyhow::ensure!(opens_per_second > 0, "--opens-per-second must be above 0");
        anyhow::ensure!(
            self.gateway.attach.is_none(),
            "multi ends a gateway, so it starts its own; --attach is not for it"
        );
        let by = self.by.or(file.multi.by).unwrap_or(MultiBy::Kill);
        let drain = self.drain.or(duration_of("multi.drain", file.multi.drain)?);
        let drain = drain.unwrap_or(Duration::from_secs(10));
        let spread = if by == MultiBy::Drain { drain } else { Duration::ZERO };
        let rehome_p99_ms = Some(1000.0 + spread.as_secs_f64() * 1000.0);
        Ok(MultiPlan {
            load: self.load.plan(file.load, LoadPlan::of(1000, 50.0))?,
            by,
            drain,
            opens_per_second,
            seed: self.seed.unwrap_or_else(rand::random),
            gate: file.gate.over(GateBounds { rehome_p99_ms, ..GateBounds::of_a_fault() }),
        })
    }
}

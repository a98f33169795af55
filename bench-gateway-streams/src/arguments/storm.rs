//! The command line of `storm`, and its plan.
//!
//! A flag wins over the plan's file, the file over the default. The contract's bound holds where the plan
//! names no gate: 39 s until all are back.

use clap::{Args, ValueEnum};
use serde::Deserialize;

use super::load::{LoadArguments, LoadFile, LoadPlan, plan_file};
use super::{GateFile, GatewayArguments};
use crate::gate::GateBounds;

/// What brings the storm about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StormBy {
    /// Every connection is cut at once, by the nodes' side.
    Cut,
    /// The gateway is killed and started again at once.
    Kill,
}

#[derive(Debug, Args)]
pub(crate) struct StormArguments {
    #[command(flatten)]
    pub(crate) load: LoadArguments,
    /// What brings the storm about [default: cut]
    #[arg(long)]
    pub(crate) by: Option<StormBy>,
    /// Sessions that the gateway lets in a second, with a burst of as many [default: admission wide open]
    #[arg(long)]
    pub(crate) opens_per_second: Option<u32>,
    /// Leaves out the yardstick, the bare mTLS handshakes of the same clients with a server that does no more
    #[arg(long)]
    pub(crate) no_bare_handshakes: bool,
    #[command(flatten)]
    pub(crate) gateway: GatewayArguments,
}

/// What `storm` does, all settled.
#[derive(Debug)]
pub(crate) struct StormPlan {
    pub(crate) load: LoadPlan,
    pub(crate) by: StormBy,
    pub(crate) opens_per_second: Option<u32>,
    pub(crate) with_bare_handshakes: bool,
    pub(crate) gate: GateBounds,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PlanFile {
    load: LoadFile,
    storm: StormFile,
    gate: GateFile,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StormFile {
    by: Option<StormBy>,
    opens_per_second: Option<u32>,
}

impl StormArguments {
    /// Settles flags, file and defaults.
    pub(crate) fn plan(&self) -> anyhow::Result<StormPlan> {
        let file: PlanFile = plan_file(self.load.config.as_deref())?;
        let mut load = self.load.plan(file.load, LoadPlan::of(5000, 50.0))?;
        let opens_per_second = self.opens_per_second.or(file.storm.opens_per_second);
        anyhow::ensure!(opens_per_second != Some(0), "--opens-per-second must be above 0");
        if let Some(opens) = opens_per_second {
            // The sessions that stand before the storm must not use up its tokens.
            load.connect_rate = load.connect_rate.min(0.9 * f64::from(opens));
        }
        Ok(StormPlan {
            load,
            by: self.by.or(file.storm.by).unwrap_or(StormBy::Cut),
            opens_per_second,
            with_bare_handshakes: !self.no_bare_handshakes,
            gate: file.gate.over(GateBounds { storm_all_ms: Some(39_000.0), ..GateBounds::of_a_fault() }),
        })
    }
}

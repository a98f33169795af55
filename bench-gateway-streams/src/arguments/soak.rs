//! The command line of `soak`, and its plan: that of `chaos`, with quiet stretches between the faults and an
//! end by time.
//!
//! A flag wins over the plan's file, the file over the default. The sections `[load]` and `[chaos]` of a plan
//! mean what they mean for `chaos`.

use std::time::Duration;

use clap::Args;
use serde::Deserialize;

use super::chaos::{ChaosArguments, ChaosFile};
use super::load::{LoadFile, plan_file};
use super::{ChaosPlan, GateFile, duration_of};
use crate::gate::GateBounds;

#[derive(Debug, Args)]
pub(crate) struct SoakArguments {
    #[command(flatten)]
    pub(crate) chaos: ChaosArguments,
    /// How long it goes on in all [default: 4h]
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) length: Option<Duration>,
    /// Load without a fault before each fault, which is what is measured [default: 5m]
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) calm: Option<Duration>,
}

/// What `soak` does, all settled.
#[derive(Debug)]
pub(crate) struct SoakPlan {
    pub(crate) chaos: ChaosPlan,
    pub(crate) length: Duration,
    pub(crate) calm: Duration,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PlanFile {
    load: LoadFile,
    chaos: ChaosFile,
    soak: SoakFile,
    gate: GateFile,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SoakFile {
    #[serde(rename = "for")]
    length: Option<String>,
    calm: Option<String>,
}

impl SoakArguments {
    /// Settles flags, file and defaults.
    pub(crate) fn plan(&self) -> anyhow::Result<SoakPlan> {
        let file: PlanFile = plan_file(self.chaos.load.config.as_deref())?;
        let length = duration_of("soak.for", file.soak.length)?;
        let calm = duration_of("soak.calm", file.soak.calm)?;
        let plan = SoakPlan {
            chaos: self.chaos.plan_of(file.load, file.chaos, file.gate.over(GateBounds::of_a_fault()))?,
            length: self.length.or(length).unwrap_or(Duration::from_secs(4 * 3600)),
            calm: self.calm.or(calm).unwrap_or(Duration::from_secs(300)),
        };
        anyhow::ensure!(plan.calm >= Duration::from_secs(2), "--calm must be at least 2s");
        anyhow::ensure!(plan.length >= plan.calm, "--for must be at least as long as --calm");
        Ok(plan)
    }
}

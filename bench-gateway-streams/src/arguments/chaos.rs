//! The command line of `chaos`, and its plan.
//!
//! A flag wins over the plan's file, the file over the default. A fault that needs more rights than the
//! caller has is refused where it was asked for by name, and told where it is one of all.

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Deserialize;

use super::load::{LoadArguments, LoadFile, LoadPlan, plan_file};
use super::{GateFile, GatewayArguments, duration_of};
use crate::gate::GateBounds;

/// What is done to the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fault {
    /// SIGKILL of one gateway; it is started again once its nodes are at home elsewhere.
    Kill,
    /// SIGSTOP of one gateway past its lease's time to live, a process of the same id takes over, SIGCONT.
    Zombie,
    /// PostgreSQL ends as in a crash (`immediate`), and is started again.
    DatabaseKilled,
    /// SIGSTOP of all of PostgreSQL's processes for longer than a gateway's fence, SIGCONT.
    DatabaseFrozen,
    /// Every connection of the database is cut (`pg_terminate_backend`).
    ConnectionsCut,
    /// The disk of the database is full for a while.
    DiskFull,
    /// Others hold all connections that the database takes; the gateways lose theirs.
    ConnectionLimit,
    /// Packets of a tenth of the nodes vanish both ways: no FIN, no RST.
    BlackHole,
    /// Thousands of sockets are opened that say nothing, while a third of the nodes has to dial anew.
    HalfOpen,
}

impl Fault {
    /// Its name, as on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Zombie => "zombie",
            Self::DatabaseKilled => "database-killed",
            Self::DatabaseFrozen => "database-frozen",
            Self::ConnectionsCut => "connections-cut",
            Self::DiskFull => "disk-full",
            Self::ConnectionLimit => "connection-limit",
            Self::BlackHole => "black-hole",
            Self::HalfOpen => "half-open",
        }
    }

    /// Whether it needs a mount or addresses of the run's own, which only root can have.
    pub(crate) const fn needs_root(self) -> bool {
        matches!(self, Self::DiskFull | Self::BlackHole)
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ChaosArguments {
    #[command(flatten)]
    pub(crate) load: LoadArguments,
    /// Decides order, victims and times [default: a random number, which is printed]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Only these faults, with commas between them [default: all that the caller has the rights for]
    #[arg(long, value_delimiter = ',')]
    pub(crate) faults: Vec<Fault>,
    /// How often each fault is brought about [default: 1]
    #[arg(long)]
    pub(crate) rounds: Option<u32>,
    /// Time to live of the gateways' leases, which zombies are slept through and fences count by [default: 6s]
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) lease_ttl: Option<Duration>,
    /// Longest recovery that is waited for [default: 90s]
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) recover_within: Option<Duration>,
    #[command(flatten)]
    pub(crate) gateway: GatewayArguments,
}

/// What `chaos` does, all settled.
#[derive(Debug)]
pub(crate) struct ChaosPlan {
    pub(crate) load: LoadPlan,
    pub(crate) seed: u64,
    /// Empty: all.
    pub(crate) faults: Vec<Fault>,
    pub(crate) rounds: u32,
    pub(crate) lease_ttl: Duration,
    pub(crate) recover_within: Duration,
    pub(crate) gate: GateBounds,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PlanFile {
    load: LoadFile,
    chaos: ChaosFile,
    gate: GateFile,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ChaosFile {
    faults: Vec<Fault>,
    rounds: Option<u32>,
    lease_ttl: Option<String>,
    recover_within: Option<String>,
}

impl ChaosArguments {
    /// Settles flags, file and defaults.
    pub(crate) fn plan(&self) -> anyhow::Result<ChaosPlan> {
        let file: PlanFile = plan_file(self.load.config.as_deref())?;
        self.plan_of(file.load, file.chaos, file.gate.over(GateBounds::of_a_fault()))
    }

    /// Settles flags, what a file says, and defaults.
    pub(super) fn plan_of(
        &self,
        load: LoadFile,
        file: ChaosFile,
        gate: GateBounds,
    ) -> anyhow::Result<ChaosPlan> {
        let lease_ttl = duration_of("chaos.lease_ttl", file.lease_ttl)?;
        let recover_within = duration_of("chaos.recover_within", file.recover_within)?;
        anyhow::ensure!(
            self.gateway.attach.is_none(),
            "chaos kills what it started itself; --attach is not for it"
        );
        anyhow::ensure!(
            self.gateway.load_processes == 1,
            "the nodes of chaos are in one process, which some faults are done to; --load-processes is not for it"
        );
        // A node that can't be reached is given up after three heartbeats, which bounds a fault.
        let default = LoadPlan { heartbeat: Duration::from_secs(2), ..LoadPlan::of(300, 250.0) };
        let plan = ChaosPlan {
            load: self.load.plan(load, default)?,
            seed: self.seed.unwrap_or_else(rand::random),
            faults: if self.faults.is_empty() { file.faults } else { self.faults.clone() },
            rounds: self.rounds.or(file.rounds).unwrap_or(1),
            lease_ttl: self.lease_ttl.or(lease_ttl).unwrap_or(Duration::from_secs(6)),
            recover_within: self.recover_within.or(recover_within).unwrap_or(Duration::from_secs(90)),
            gate,
        };
        anyhow::ensure!(plan.lease_ttl >= Duration::from_secs(2), "--lease-ttl must be at least 2s");
        anyhow::ensure!(plan.rounds > 0, "--rounds must be at least 1");
        anyhow::ensure!(plan.load.sessions >= 30, "--sessions must be at least 30, to be spread over three");
        Ok(plan)
    }
}

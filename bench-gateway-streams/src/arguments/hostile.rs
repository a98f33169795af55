//! The command line of `hostile`, its plan, and what its peers are given in their own process.
//!
//! A flag wins over the plan's file, the file over the default. Peers are hidden from the help: a run starts
//! them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Deserialize;

use super::load::{LoadArguments, LoadFile, LoadPlan, plan_file};
use super::{GateFile, GatewayArguments, duration_of};
use crate::gate::GateBounds;

/// What a peer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Attack {
    /// Streams that are opened and reset at once.
    RapidReset,
    /// A header block without an end.
    Continuation,
    /// SETTINGS without an end.
    Settings,
    /// PINGs without an end.
    Ping,
    /// Window updates without an end.
    WindowUpdate,
    /// A few bytes of HPACK that stand for a list of a megabyte.
    HeaderBomb,
    /// Empty DATA without an end.
    EmptyData,
    /// TCP is opened and nothing is said.
    SilentTcp,
    /// A ClientHello that comes byte by byte.
    DripTls,
    /// A preface that comes byte by byte.
    DripPreface,
    /// A header block that comes byte by byte.
    DripHeaders,
    /// A Hello that comes byte by byte.
    DripFrame,
    /// Half a Hello of the largest size, on as many streams as one may have.
    HalfHellos,
    /// Two thousand TCP connections that stand there.
    IdleTcp,
    /// Connections that are reset at each stage.
    ResetAnywhere,
    /// Frames of bytes that mean nothing.
    Garbage,
    /// Heartbeats whose acks are not read.
    Unread,
}

impl Attack {
    /// Its name, as on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RapidReset => "rapid-reset",
            Self::Continuation => "continuation",
            Self::Settings => "settings",
            Self::Ping => "ping",
            Self::WindowUpdate => "window-update",
            Self::HeaderBomb => "header-bomb",
            Self::EmptyData => "empty-data",
            Self::SilentTcp => "silent-tcp",
            Self::DripTls => "drip-tls",
            Self::DripPreface => "drip-preface",
            Self::DripHeaders => "drip-headers",
            Self::DripFrame => "drip-frame",
            Self::HalfHellos => "half-hellos",
            Self::IdleTcp => "idle-tcp",
            Self::ResetAnywhere => "reset-anywhere",
            Self::Garbage => "garbage",
            Self::Unread => "unread",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct HostileArguments {
    #[command(flatten)]
    pub(crate) load: LoadArguments,
    /// Only these, with commas between them [default: all]
    #[arg(long, value_delimiter = ',')]
    pub(crate) attacks: Vec<Attack>,
    /// How long each undisturbed and each disturbed stretch is [default: 5s]
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) stretch: Option<Duration>,
    /// Stretches of each kind for each attack [default: 3]
    #[arg(long)]
    pub(crate) rounds: Option<u32>,
    /// Leaves out what a refusal costs against an admission
    #[arg(long)]
    pub(crate) no_admission: bool,
    #[command(flatten)]
    pub(crate) gateway: GatewayArguments,
}

#[derive(Debug, Args)]
pub(crate) struct HostilePeerArguments {
    /// What the peer does; none: what `--calls` says
    #[arg(long)]
    pub(crate) attack: Option<Attack>,
    /// Handshakes, or opens of a session, one after the other
    #[arg(long)]
    pub(crate) calls: Option<Calls>,
    #[arg(long)]
    pub(crate) connect: SocketAddr,
    #[arg(long)]
    pub(crate) server_ca: PathBuf,
    #[arg(long)]
    pub(crate) certificate: PathBuf,
    #[arg(long)]
    pub(crate) key: PathBuf,
}

/// What is counted, to tell what it costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Calls {
    Handshakes,
    Opens,
}

impl Calls {
    /// Its name, as on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Handshakes => "handshakes",
            Self::Opens => "opens",
        }
    }
}

/// What `hostile` does, all settled.
#[derive(Debug)]
pub(crate) struct HostilePlan {
    pub(crate) load: LoadPlan,
    /// All, where none were named.
    pub(crate) attacks: Vec<Attack>,
    pub(crate) stretch: Duration,
    pub(crate) rounds: u32,
    pub(crate) with_admission: bool,
    pub(crate) gate: GateBounds,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PlanFile {
    load: LoadFile,
    hostile: HostileFile,
    gate: GateFile,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct HostileFile {
    attacks: Vec<Attack>,
    stretch: Option<String>,
    rounds: Option<u32>,
}

impl HostileArguments {
    /// Settles flags, file and defaults.
    pub(crate) fn plan(&self) -> anyhow::Result<HostilePlan> {
        let file: PlanFile = plan_file(self.load.config.as_deref())?;
        let stretch = duration_of("hostile.stretch", file.hostile.stretch)?;
        anyhow::ensure!(
            self.gateway.attach.is_none(),
            "hostile peers are sent to a gateway that the run started itself; --attach is not for it"
        );
        // Heartbeats are what is measured: many of them, of few nodes.
        let load =
            LoadPlan { heartbeat: Duration::from_secs(1), connect_rate: 100.0, ..LoadPlan::of(300, 20.0) };
        let named = if self.attacks.is_empty() { file.hostile.attacks } else { self.attacks.clone() };
        let plan = HostilePlan {
            load: self.load.plan(file.load, load)?,
            attacks: if named.is_empty() { Attack::value_variants().to_vec() } else { named },
            stretch: self.stretch.or(stretch).unwrap_or(Duration::from_secs(5)),
            rounds: self.rounds.or(file.hostile.rounds).unwrap_or(3),
            with_admission: !self.no_admission,
            gate: file.gate.over(GateBounds { drops: Some(0), ..GateBounds::of_a_fault() }),
        };
        anyhow::ensure!(plan.rounds > 0, "--rounds must be at least 1");
        anyhow::ensure!(plan.stretch >= Duration::from_millis(500), "--stretch must be at least 500ms");
        Ok(plan)
    }
}

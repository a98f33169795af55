//! The command line, and the TOML file that can stand in for it.
//!
//! 1. A flag wins over the file, the file over the default.
//! 2. An unknown key of the file is an error that names it.

mod chaos;
mod hostile;
mod load;
mod multi;
mod storm;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand, ValueEnum};
use gateway_testbed::node::Transport;
use serde::{Deserialize, Serialize};

use crate::gate::GateBounds;

pub(crate) use self::chaos::{ChaosArguments, ChaosPlan, Fault};
pub(crate) use self::hostile::{Attack, Calls, HostileArguments, HostilePeerArguments, HostilePlan};
pub(crate) use self::load::LoadPlan;
pub(crate) use self::multi::{MultiArguments, MultiBy};
pub(crate) use self::storm::{StormArguments, StormBy, StormPlan};

/// Proves what a gateway does, over real sockets, on this machine.
#[derive(Debug, Parser)]
#[command(name = "bench-gateway-streams", version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) scenario: Scenario,
}

const EXAMPLES: &str = "Examples:
  bench-gateway-streams steady --sessions 5000 --commands-per-second 50 --duration 120s --report steady.json
  bench-gateway-streams steady --config configs/bench/steady.toml --shards 4
  bench-gateway-streams steady --config configs/bench/idle.toml --transport websocket
  bench-gateway-streams storm --config configs/bench/storm.toml
  bench-gateway-streams multi --sessions 1000 --by restart
  bench-gateway-streams multi --sessions 1000 --by drain --drain 10s
  bench-gateway-streams chaos --faults kill,zombie --seed 7
  bench-gateway-streams hostile --attacks rapid-reset,ping --stretch 2s
  bench-gateway-streams demo --keep

Exit code 0: the run was sound and its gate held; 1: a gate missed; 2: the run failed.";

#[derive(Debug, Subcommand)]
pub(crate) enum Scenario {
    /// N sessions with heartbeats, R commands a second through PostgreSQL, for a time T.
    Steady(Box<SteadyArguments>),
    /// All sessions are lost at once: how long until 50, 95 and 100 of 100 are back with a durable Hello.
    Storm(Box<StormArguments>),
    /// Three gateways behind HAProxy, of which one is killed: how long until its nodes are at home elsewhere.
    Multi(Box<MultiArguments>),
    /// One fault after the other on real processes under load, each followed by `gateway verify`.
    Chaos(Box<ChaosArguments>),
    /// Peers that break every rule, beside healthy sessions on the same shard: what they cost those.
    Hostile(Box<HostileArguments>),
    /// A short live view of the main job; with --keep it stays up for a node of your own.
    Demo(DemoArguments),
    /// The server of a yardstick: it does mTLS handshakes and nothing else. Started by `storm`.
    #[command(hide = true)]
    BareServer(BareServerArguments),
    /// Hostile peers, until standard input is closed. Started by `hostile`.
    #[command(hide = true)]
    HostilePeer(Box<HostilePeerArguments>),
}

#[derive(Debug, Args)]
pub(crate) struct BareServerArguments {
    #[arg(long)]
    pub(crate) listen: std::net::SocketAddr,
    #[arg(long)]
    pub(crate) certificate: PathBuf,
    #[arg(long)]
    pub(crate) key: PathBuf,
    #[arg(long)]
    pub(crate) node_ca: PathBuf,
}

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
    /// What nodes speak: h2 (gRPC) or websocket [default: h2]
    #[arg(long)]
    pub(crate) transport: Option<NodeTransport>,
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

impl From<NodeTransport> for Transport {
    fn from(transport: NodeTransport) -> Self {
        match transport {
            NodeTransport::H2 => Self::Http2,
            NodeTransport::WebSocket => Self::WebSocket,
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct GatewayArguments {
    /// The gateway's binary [default: `gateway` beside this program]
    #[arg(long)]
    pub(crate) gateway_bin: Option<PathBuf>,
    /// Shards of the gateway [default: the gateway's own choice]
    #[arg(long)]
    pub(crate) shards: Option<u16>,
    /// Further TOML for the gateway's configuration, merged over what the harness writes
    #[arg(long)]
    pub(crate) gateway_toml: Option<PathBuf>,
    /// Address and port of a running gateway, instead of starting one; needs --database-url and --pki
    #[arg(long, requires = "database_url", requires = "pki")]
    pub(crate) attach: Option<std::net::SocketAddr>,
    /// The running gateway's database, which the harness enqueues into and reads
    #[arg(long)]
    pub(crate) database_url: Option<String>,
    /// Folder with node-ca.crt, node-ca.key, server-ca.crt and server-ca.key that the running gateway trusts
    #[arg(long)]
    pub(crate) pki: Option<PathBuf>,
    /// Process id of the running gateway, to measure its memory and CPU
    #[arg(long)]
    pub(crate) gateway_pid: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// Stays up until Ctrl-C and prints how to connect a node of your own
    #[arg(long)]
    pub(crate) keep: bool,
    /// Folder for cluster, certificates and gateway; a second run uses it again
    #[arg(long, default_value = ".quickstart")]
    pub(crate) dir: PathBuf,
    /// Simulated nodes
    #[arg(long, default_value_t = 200)]
    pub(crate) sessions: usize,
    /// Commands enqueued a second
    #[arg(long, default_value_t = 20.0)]
    pub(crate) commands_per_second: f64,
    /// How long commands are enqueued, where --keep is not given
    #[arg(long, value_parser = humantime::parse_duration, default_value = "20s")]
    pub(crate) duration: Duration,
    /// Where the gateway listens for nodes [default: 127.0.0.1:7443, or a free port if that is taken]
    #[arg(long)]
    pub(crate) listen: Option<std::net::SocketAddr>,
    /// Shards of the gateway [default: the gateway's own choice]
    #[arg(long)]
    pub(crate) shards: Option<u16>,
    /// The gateway's binary [default: `gateway` beside this program]
    #[arg(long)]
    pub(crate) gateway_bin: Option<PathBuf>,
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
    pub(crate) with_floor: bool,
    pub(crate) transport: NodeTransport,
    pub(crate) report: Option<PathBuf>,
    pub(crate) gate: GateBounds,
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
    transport: Option<NodeTransport>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct GateFile {
    storm_all_ms: Option<f64>,
    storm_all_to_bare: Option<f64>,
    rehome_p99_ms: Option<f64>,
    dispatch_p50_ms: Option<f64>,
    dispatch_p99_ms: Option<f64>,
    dispatch_p99_to_floor: Option<f64>,
    drops: Option<u64>,
    rss: Option<ByteSize>,
    rss_per_session: Option<ByteSize>,
    rss_growth_ratio: Option<f64>,
    cpu_percent: Option<f64>,
    hostile_p99_ratio: Option<f64>,
    hostile_memory: Option<ByteSize>,
}

fn duration_of(key: &str, text: Option<String>) -> anyhow::Result<Option<Duration>> {
    text.map(|text| humantime::parse_duration(&text).with_context(|| format!("{key} = {text:?}"))).transpose()
}

impl SteadyArguments {
    /// Settles flags, file and defaults.
    pub(crate) fn plan(&self) -> anyhow::Result<SteadyPlan> {
        let PlanFile { steady: file, gate } = load::plan_file(self.config.as_deref())?;
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
            with_floor: !self.no_floor,
            transport: self.transport.or(file.transport).unwrap_or_default(),
            report: self.report.clone(),
            gate: gate.over(GateBounds::contract()),
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
        anyhow::ensure!(self.heartbeat >= Duration::from_millis(100), "--heartbeat must be at least 100ms");
        Ok(())
    }
}

impl GateFile {
    // What is not named is the contract's bound, or none.
    fn over(self, contract: GateBounds) -> GateBounds {
        GateBounds {
            storm_all_ms: self.storm_all_ms.or(contract.storm_all_ms),
            storm_all_to_bare: self.storm_all_to_bare.or(contract.storm_all_to_bare),
            rehome_p99_ms: self.rehome_p99_ms.or(contract.rehome_p99_ms),
            dispatch_p50_ms: self.dispatch_p50_ms,
            dispatch_p99_ms: self.dispatch_p99_ms.or(contract.dispatch_p99_ms),
            dispatch_p99_to_floor: self.dispatch_p99_to_floor,
            drops: self.drops.or(contract.drops),
            rss_bytes: self.rss.map_or(contract.rss_bytes, |size| size.as_u64()),
            rss_per_session_bytes: self.rss_per_session.map(|size| size.as_u64()),
            rss_growth_ratio: self.rss_growth_ratio,
            cpu_percent: self.cpu_percent,
            hostile_p99_ratio: self.hostile_p99_ratio,
            hostile_memory_bytes: self.hostile_memory.map(|size| size.as_u64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn steady(flags: &[&str]) -> Box<SteadyArguments> {
        let all = ["bench-gateway-streams", "steady"].iter().chain(flags);
        match Arguments::try_parse_from(all).expect("flags").scenario {
            Scenario::Steady(arguments) => arguments,
            _ => unreachable!("steady was named"),
        }
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("plan.toml");
        fs::write(&file, "[steady]\nsessions = 7\nheartbeat = \"3s\"\n[gate]\nrss = \"1MiB\"\n")
            .expect("written");
        let file = file.to_str().expect("text");
        let plan = steady(&["--config", file, "--sessions", "9"]).plan().expect("a plan");
        assert_eq!(
            (plan.sessions, plan.heartbeat, plan.transport),
            (9, Duration::from_secs(3), NodeTransport::H2)
        );
        let plan = steady(&["--config", file, "--transport", "websocket"]).plan().expect("a plan");
        assert_eq!(plan.transport, NodeTransport::WebSocket);
        assert_eq!((plan.commands_per_second, plan.gate.rss_bytes), (50.0, 1 << 20));
    }

    #[test]
    fn an_idle_run_is_bound_by_what_it_can_show() {
        let plan = steady(&["--commands-per-second", "0"]).plan().expect("a plan");
        assert_eq!((plan.gate.dispatch_p99_ms, plan.with_floor), (None, false));
        let stall = steady(&["--commands-per-second", "0", "--inject-stall", "1s"]).plan();
        assert!(stall.expect_err("refused").to_string().contains("--inject-stall"));
    }

    #[test]
    fn an_unknown_key_and_a_bare_number_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("plan.toml");
        for (text, named) in
            [("[steady]\nsesions = 7\n", "sesions"), ("[steady]\nduration = \"20\"\n", "duration")]
        {
            fs::write(&file, text).expect("written");
            let error = steady(&["--config", file.to_str().expect("text")]).plan().expect_err("refused");
            assert!(format!("{error:#}").contains(named), "{error:#}");
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_committed_plans_can_be_read() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/bench");
        let mut seen = 0;
        for entry in fs::read_dir(folder).expect("configs/bench") {
            let path = entry.expect("an entry").path();
            let path = path.to_str().expect("text");
            let text = fs::read_to_string(path).expect("a plan");
            let table: toml::Table = text.parse().expect("TOML");
            let scenario =
                ["storm", "multi", "chaos", "hostile"].into_iter().find(|name| table.contains_key(*name));
            let flags = ["bench-gateway-streams", scenario.unwrap_or("steady"), "--config", path];
            let planned = match Arguments::try_parse_from(flags).expect("flags").scenario {
                Scenario::Steady(arguments) => arguments.plan().map(drop),
                Scenario::Storm(arguments) => arguments.plan().map(drop),
                Scenario::Multi(arguments) => arguments.plan().map(drop),
                Scenario::Chaos(arguments) => arguments.plan().map(drop),
                Scenario::Hostile(arguments) => arguments.plan().map(drop),
                _ => unreachable!("one of these was named"),
            };
            planned.unwrap_or_else(|error| panic!("{path}: {error:#}"));
            seen += 1;
        }
        assert!(seen > 0);
    }
}

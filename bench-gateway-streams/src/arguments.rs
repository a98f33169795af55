//! The command line, and the TOML file that can stand in for it.
//!
//! 1. A flag wins over the file, the file over the default.
//! 2. An unknown key of the file is an error that names it.

mod bloat;
mod chaos;
mod fanout;
mod gate;
mod growth;
mod hostile;
mod load;
mod micro;
mod multi;
mod processes;
mod reports;
mod soak;
mod steady;
mod storm;
mod throughput;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};

use self::gate::GateFile;

pub(crate) use self::bloat::BloatArguments;
pub(crate) use self::chaos::{ChaosArguments, ChaosPlan, Fault};
pub(crate) use self::fanout::FanoutArguments;
pub(crate) use self::growth::{Axis, GrowthArguments, GrowthPlan};
pub(crate) use self::hostile::{Attack, Calls, HostileArguments, HostilePeerArguments, HostilePlan};
pub(crate) use self::load::LoadPlan;
pub(crate) use self::micro::{MicroArguments, MicroOperation};
pub(crate) use self::multi::{MultiArguments, MultiBy};
pub(crate) use self::processes::{BareServerArguments, LoadProcessArguments, WriterAloneArguments};
pub(crate) use self::reports::{CompareArguments, TableArguments};
pub(crate) use self::soak::SoakArguments;
pub(crate) use self::steady::{NodeTransport, SteadyArguments, SteadyPlan};
pub(crate) use self::storm::{StormArguments, StormBy, StormPlan};
pub(crate) use self::throughput::{Part, ThroughputArguments, ThroughputPlan};

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
  bench-gateway-streams fanout --config configs/bench/fanout.toml --report fanout.json
  bench-gateway-streams growth --axis backlog --report growth.json
  bench-gateway-streams compare before.json after.json --fail-over 1.2
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
    /// One command to every node at once: how long until all have it, beside a bare push to the same clients.
    Fanout(Box<FanoutArguments>),
    /// As many commands, events and sections as go through, beside the writer alone and bare SQL.
    Throughput(Box<ThroughputArguments>),
    /// `steady` while another transaction lets no vacuum clean up: dispatch latency minute by minute.
    Bloat(Box<BloatArguments>),
    /// Hours of load with a fault now and then: growth, drift, and what must always hold.
    Soak(Box<SoakArguments>),
    /// What an operation costs as something else grows: points, and the slope between their logarithms.
    Growth(Box<GrowthArguments>),
    /// What the core's own work costs, in instructions, counted by valgrind.
    Micro(MicroArguments),
    /// Holds two reports against each other.
    Compare(CompareArguments),
    /// One table of the gates out of a folder of reports. What `scripts/bench` ends with.
    Table(TableArguments),
    /// A short live view of the main job; with --keep it stays up for a node of your own.
    Demo(DemoArguments),
    /// The server of a yardstick: mTLS handshakes, or pushes, and nothing else. Started by `storm` and `fanout`.
    #[command(hide = true)]
    BareServer(BareServerArguments),
    /// Some of the nodes of a run, until standard input is closed. Started where --load-processes asks for it.
    #[command(hide = true)]
    LoadProcess(Box<LoadProcessArguments>),
    /// The writer's thread fed from memory, beside bare SQL. Started by `throughput`.
    #[command(hide = true)]
    WriterAlone(WriterAloneArguments),
    /// Hostile peers, until standard input is closed. Started by `hostile`.
    #[command(hide = true)]
    HostilePeer(Box<HostilePeerArguments>),
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
    /// URL of a running gateway, such as https://127.0.0.1:7443, instead of starting one; needs --database-url
    /// and --pki
    #[arg(long, value_name = "URL", value_parser = address_of, requires = "database_url", requires = "pki")]
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
    /// Processes that the nodes are spread over: one has no more files than its limit, and one core
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) load_processes: u16,
    /// Addresses of 127.0.0.0/8 that the nodes dial from in turn; one has about 28,000 ports
    /// [default: one for each 10,000 sessions]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) source_addresses: Option<u16>,
}

impl GatewayArguments {
    /// A gateway of the harness's own, and one load process.
    pub(crate) fn of(gateway_bin: Option<PathBuf>, shards: Option<u16>) -> Self {
        Self {
            gateway_bin,
            shards,
            gateway_toml: None,
            attach: None,
            database_url: None,
            pki: None,
            gateway_pid: None,
            load_processes: 1,
            source_addresses: None,
        }
    }
}

/// The address in a URL; its scheme may be left out, and names are looked up.
fn address_of(url: &str) -> Result<std::net::SocketAddr, String> {
    use std::net::ToSocketAddrs;
    let rest = match url.split_once("://") {
        Some(("https", rest)) => rest,
        Some((scheme, _)) => return Err(format!("a gateway speaks https, not {scheme}")),
        None => url,
    };
    let place = rest.trim_end_matches('/');
    let found = place.to_socket_addrs().map_err(|error| format!("{place} is no host:port: {error}"))?;
    // Certificates and listeners of the harness are for IPv4.
    let mut found: Vec<_> = found.collect();
    found.sort_by_key(|address| !address.is_ipv4());
    found.first().copied().ok_or_else(|| format!("{place} has no address"))
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

fn duration_of(key: &str, text: Option<String>) -> anyhow::Result<Option<Duration>> {
    text.map(|text| humantime::parse_duration(&text).with_context(|| format!("{key} = {text:?}"))).transpose()
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
    fn a_running_gateway_is_named_by_its_url() {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 7443));
        for url in ["https://127.0.0.1:7443", "https://127.0.0.1:7443/", "127.0.0.1:7443"] {
            assert_eq!(address_of(url), Ok(address), "{url}");
        }
        assert!(address_of("http://127.0.0.1:7443").expect_err("refused").contains("https"));
        assert!(address_of("nowhere").expect_err("refused").contains("host:port"));
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
            // A baseline stands beside the plans.
            if path.ends_with("micro.json") {
                continue;
            }
            let text = fs::read_to_string(path).expect("a plan");
            let table: toml::Table = text.parse().expect("TOML");
            let scenario =
                ["storm", "multi", "chaos", "hostile", "fanout", "throughput", "bloat", "soak", "growth"]
                    .into_iter()
                    .find(|name| table.contains_key(*name));
            let flags = ["bench-gateway-streams", scenario.unwrap_or("steady"), "--config", path];
            let planned = match Arguments::try_parse_from(flags).expect("flags").scenario {
                Scenario::Steady(arguments) => arguments.plan().map(drop),
                Scenario::Storm(arguments) => arguments.plan().map(drop),
                Scenario::Multi(arguments) => arguments.plan().map(drop),
                Scenario::Chaos(arguments) => arguments.plan().map(drop),
                Scenario::Hostile(arguments) => arguments.plan().map(drop),
                Scenario::Fanout(arguments) => arguments.plan().map(drop),
                Scenario::Throughput(arguments) => arguments.plan().map(drop),
                Scenario::Bloat(arguments) => arguments.plan().map(drop),
                Scenario::Soak(arguments) => arguments.plan().map(drop),
                Scenario::Growth(arguments) => arguments.plan().map(drop),
                _ => unreachable!("one of these was named"),
            };
            planned.unwrap_or_else(|error| panic!("{path}: {error:#}"));
            seen += 1;
        }
        assert!(seen > 0);
    }
}

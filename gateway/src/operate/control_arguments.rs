//! The command line of what an operator asks of a running gateway, over its control API.
//!
//! It parses and explains; it opens nothing.
//!
//! 1. Every command names its gateway, and what it proves itself by, in the same way.
//! 2. Every command takes `--json`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::arguments::duration;
use super::place::Place;
pub use super::top::TopArgs;

/// The commands of an operator over the control API.
#[derive(Debug, Subcommand)]
pub enum ControlCommand {
    /// Send a gateway's nodes to other gateways, and refuse new ones, until undrain.
    #[command(after_help = "\
The gateway goes on running, for those that stay: SIGTERM stops it. Each node is told a random delay of its own.

Exit codes: 0 it drains, with --wait: no session is left; 4 with --wait: some are left; 1, 2 as always.

JSON (one document): {\"draining\", \"began_now\", \"sessions\" (left), \"within_seconds\"}

Examples:
  gateway drain --gateway g1 --wait 2m && ssh g1 systemctl restart gateway
  gateway drain --url https://g1.internal.example:7481 --within 10s")]
    Drain(DrainArgs),
    /// Have a drained gateway take new sessions again.
    #[command(after_help = "\
JSON (one document): {\"draining\": false, \"was_draining\"}

Example:
  gateway undrain --gateway g1")]
    Undrain(AskArgs),
    /// Revoke a node's certificates: in the database, and then at once on the gateway that has its session.
    #[command(after_help = "\
The row is what counts: every gateway finds it within about a second by itself. The call only hastens that, so a
gateway that can't be called is a remark on stderr and no failure.

Exit codes: 0 they are revoked; 3 there is nothing to revoke; 1, 2 as always.

JSON (one document): {\"node_id\", \"revoked\" (serials), \"gateway\" (of its session, null where it has none),
  \"hastened\"}

Examples:
  gateway revoke spiffe://fleet.example/site/lab/node/n1 --reason 'key leaked'
  gateway revoke \"$NODE\" --serial 4F0A11")]
    Revoke(RevokeArgs),
    /// Have a gateway look for commands now, of some nodes or of all.
    #[command(after_help = "\
JSON (one document): {\"looking\", \"named\", \"here\" (nodes named that have their session there)}

Example:
  gateway dispatch --gateway g1 spiffe://fleet.example/site/lab/node/n1")]
    Dispatch(DispatchArgs),
    /// Have a gateway look at its TLS files now.
    #[command(after_help = "\
Exit codes: 0 what they hold is in use; 1 they can't be used, and what was read before stays; 2 as always.

JSON (one document): {\"changed\", \"nodes\", \"control\"}: whether those of the nodes' listener, of the control API, were new

Example:
  gateway reload-tls --gateway g1")]
    ReloadTls(AskArgs),
    /// Show how a gateway is doing.
    #[command(
        visible_alias = "status",
        after_help = "\
Exit codes: 0 it takes new sessions; 3 it does not, and the reasons are shown; 1, 2 as always.

JSON (one document): as GET /v1/health

Examples:
  gateway health --gateway g1
  gateway health --gateway g1 --json | jq '.loops[] | select(.consecutive_failures > 0)'"
    )]
    Health(AskArgs),
    /// List the sessions that a gateway has now, as it knows them itself.
    #[command(after_help = "\
`gateway sessions` lists what the database knows, of all gateways.

JSON (a line a session): node_id, shard, epoch, lanes ([{lane, capacity, in_flight}]), last_heartbeat_at (seconds
  since 1970, null before the first)

Examples:
  gateway live-sessions --gateway g1 --limit 20
  gateway live-sessions --gateway g1 --node spiffe://fleet.example/site/lab/node/n1 --json")]
    LiveSessions(LiveSessionsArgs),
    /// Watch a gateway: sessions, rates, latencies and queues, look after look.
    #[command(after_help = "\
On a terminal it draws over itself until Ctrl-C; elsewhere each look is a line. Rates and latencies are of the time
since the look before; latencies are estimates from the buckets of histograms.

Exit codes: 0 it was ended, or --once was shown; 1 the gateway does not answer at first, or with --once; 2 as always.

JSON (a line a look): gateway, version, phase, takes_sessions, reasons, draining, uptime_seconds, over_seconds, lease,
  sessions, sessions_by_transport, streams, pending_hellos, writer_messages ({used, of}), tunnels, opens_per_second,
  refusals_per_second, refusals_by_reason, frames_in_per_second, frames_out_per_second, bytes_in_per_second,
  bytes_out_per_second, commits_per_second, dispatch ({sent_per_second, latency_p50_seconds, latency_p99_seconds}),
  shards, queues, loops_in_trouble, cpu_cores, resident_bytes

Examples:
  gateway top --gateway g1
  gateway top --gateway g1 --once --interval 10s
  gateway top --url https://g1.internal.example:7481 --json | jq -c '[.sessions, .dispatch.latency_p99_seconds]'")]
    Top(TopArgs),
}

/// Which gateway is called, and as whom.
#[derive(Debug, Clone, Args)]
pub struct Callee {
    /// The gateway, by its id; where it is stands in the table gateways. Else that of --config.
    #[arg(long, value_name = "ID", conflicts_with = "url", help_heading = "Gateway")]
    pub gateway: Option<String>,
    /// The URL of its control API; no database is asked then.
    #[arg(long, value_name = "URL", help_heading = "Gateway")]
    pub url: Option<String>,
    /// The CA that its certificate must chain to. Else control.client_ca of the configuration.
    #[arg(long, value_name = "FILE", env = "GATEWAY_CONTROL_CA", help_heading = "Gateway")]
    pub ca: Option<PathBuf>,
    /// The certificate to show, leaf first. Else that of [upstream], [control] or [tls] of the configuration, the first that is
    /// named there.
    #[arg(
        long,
        value_name = "FILE",
        env = "GATEWAY_CONTROL_CERTIFICATE",
        requires = "key",
        help_heading = "Gateway"
    )]
    pub certificate: Option<PathBuf>,
    /// Its private key.
    #[arg(
        long,
        value_name = "FILE",
        env = "GATEWAY_CONTROL_KEY",
        requires = "certificate",
        help_heading = "Gateway"
    )]
    pub key: Option<PathBuf>,
    #[command(flatten)]
    pub place: Place,
}

#[derive(Debug, Args)]
pub struct AskArgs {
    #[command(flatten)]
    pub callee: Callee,
    /// As JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Over how long its nodes are spread, at most "10m". Else its gateway.drain.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub within: Option<Duration>,
    /// Wait until no session is left, at most so long.
    #[arg(long, value_name = "TIMEOUT", value_parser = duration)]
    pub wait: Option<Duration>,
    #[command(flatten)]
    pub ask: AskArgs,
}

#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// The node whose certificates are to be revoked.
    pub node: String,
    /// Only this one, by its serial in upper-case hex.
    #[arg(long, value_name = "HEX")]
    pub serial: Option<String>,
    /// Why; the node is told.
    #[arg(long, default_value = "revoked by an operator")]
    pub reason: String,
    #[command(flatten)]
    pub ask: AskArgs,
}

#[derive(Debug, Args)]
pub struct DispatchArgs {
    /// Nodes; none: all that it has.
    #[arg(value_name = "NODE")]
    pub nodes: Vec<String>,
    #[command(flatten)]
    pub ask: AskArgs,
}

#[derive(Debug, Args)]
pub struct LiveSessionsArgs {
    /// Only this node's.
    #[arg(long)]
    pub node: Option<String>,
    /// At most so many.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
    #[command(flatten)]
    pub ask: AskArgs,
}

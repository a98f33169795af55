//! The command line of the operator's commands: options, their kinds, and the help with its examples.
//!
//! It parses and explains; it opens nothing.
//!
//! 1. Every duration has a unit; every list has a limit.
//! 2. Every command takes `--json` and names its database in the same way.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use uuid::Uuid;

use super::place::Place;
pub use super::tunnel::TunnelArgs;

/// The commands of an operator over the database.
#[derive(Debug, Subcommand)]
pub enum OperatorCommand {
    /// Enqueue a command for a node, and wait for its end if asked to.
    #[command(after_help = "\
Exit codes:
  0  it is enqueued; with --wait: it succeeded
  1  it was not enqueued, or can't be followed; stderr says why
  2  the command line or the configuration is wrong
  3  with --wait: it failed, or was canceled, expired or refused
  4  with --wait TIMEOUT: it has not ended yet, and goes on

JSON (one document):
  {\"node_id\", \"id\", \"known\"}: known is true where the idempotency key was used before.
  With --wait these, \"timed_out\", and the fields of `gateway commands --id`.

Examples:
  gateway enqueue spiffe://fleet.example/site/lab/node/n1 echo --payload hello --wait 30s
  gateway enqueue \"$NODE\" firmware --payload @plan.json --lane slow --not-before 10m --idempotency-key fw-7
  tar c etc | gateway enqueue \"$NODE\" unpack --payload - --json | jq -r .id")]
    Enqueue(EnqueueArgs),
    /// Cancel a command: at once while it is pending, by a request to its node after that.
    #[command(after_help = "\
Exit codes: 0 it is canceled, or its node is asked to; 3 it had ended in another state before; 1, 2 as always.

JSON (one document): {\"node_id\", \"id\", \"state\", \"asked\"}: asked is true where its node has still to answer.

Example:
  gateway cancel spiffe://fleet.example/site/lab/node/n1 019b0a5e-7c1d-7d3e-8c4f-0123456789ab --reason 'wrong node'")]
    Cancel(CancelArgs),
    /// List nodes, connected or not, with what is open for them.
    #[command(after_help = "\
JSON (a line a node): node_id, tenant_id, registered_at, connected, gateway_id, session_epoch, connected_at,
  disconnected_at, last_seen_at, software_version, machine, role, pending and in_flight (commands)

Examples:
  gateway nodes --connected
  gateway nodes --like '%/site/lab/%' --json | jq -r 'select(.pending > 0) | .node_id'")]
    Nodes(NodesArgs),
    /// List live sessions: node, gateway, epochs, lanes.
    #[command(after_help = "\
JSON (a line a session): node_id, gateway_id, live, gateway_holds_lease, session_epoch, lease_epoch, connected_at,
  disconnected_at, last_seen_at, boot_id, machine, software_version, role, certificate_serial,
  lanes ([{lane, capacity}]), in_flight (commands)

Examples:
  gateway sessions --gateway g1
  gateway sessions --json | jq -s 'group_by(.gateway_id) | map({(.[0].gateway_id): length}) | add'")]
    Sessions(SessionsArgs),
    /// List gateways: where each is called, and whether it holds its lease.
    #[command(after_help = "\
JSON (a line a gateway): id, internal_url, version, region, lease_held, draining, sessions, max_streams, started_at,
  heartbeat_at, heartbeat_age_seconds. Of one that holds no lease all else is as it was when it last wrote.

Examples:
  gateway gateways
  gateway gateways --serving --json | jq -r .internal_url")]
    Gateways(GatewaysArgs),
    /// Look at the certificates of nodes that the database knows.
    #[command(subcommand)]
    Certs(CertsCommand),
    /// List commands, the newest first, each with what it waits for.
    #[command(after_help = "\
JSON (a line a command): node_id, id, lane, seq, kind, state, done, attempt, max_attempts, waits_for (a sentence,
  null when done), enqueued_at, not_before, not_after, dispatched_at, accepted_at, started_at, finished_at, progress,
  error, refusal, cancel_requested_at, cancel_reason, result_bytes; with --id also result (text), or result_hex where
  it is not UTF-8

Examples:
  gateway commands --node spiffe://fleet.example/site/lab/node/n1
  gateway commands --state pending,running --since 1h
  gateway commands --id 019b0a5e-7c1d-7d3e-8c4f-0123456789ab --json | jq -r .result")]
    Commands(CommandsArgs),
    /// Show the events that nodes have sent, the newest last, and go on with those to come if asked to.
    #[command(after_help = "\
JSON (a line an event): node_id, journal_id, seq, kind, stored_at, boot_id, rejected (why the gateway refused it),
  signed, signed_kid, body (text), or body_hex where it is not UTF-8

Examples:
  gateway events --node spiffe://fleet.example/site/lab/node/n1 --limit 20
  gateway events --kind gpu.xid --follow --json | jq -c '{node_id, body}'")]
    Events(EventsArgs),
    /// List specs: at which generation each is, and what its node said of it.
    #[command(after_help = "\
JSON (a line a spec): node_id, name, generation, body_bytes, updated_at, answered, applied_generation, outcome
  (\"applied\", or \"failed: \" and why), applied_at, waits_for (a sentence, null when answered); with --node and
  --name also body (text), or body_hex where it is not UTF-8

Examples:
  gateway specs --node spiffe://fleet.example/site/lab/node/n1
  gateway specs --unanswered --json | jq -r 'select(.waits_for | contains(\"not connected\") | not) | .node_id'")]
    Specs(SpecsArgs),
    /// List the sections of nodes' inventories; with a node and a section named, with the body.
    #[command(after_help = "\
JSON (a line a section): node_id, section, bytes, sha256, updated_at, session_epoch (of the session that brought it);
  with --node and --section also body (text), or body_hex where it is not UTF-8

Examples:
  gateway inventory --node spiffe://fleet.example/site/lab/node/n1
  gateway inventory --section firmware --json | jq -r '[.node_id, .sha256] | @tsv'
  gateway inventory --node \"$NODE\" --section cpu --json | jq -r .body")]
    Inventory(InventoryArgs),
    /// Open a shell at a node, or run a command there, over a tunnel.
    #[command(after_help = "\
The gateway that has the node is found in the database, unless --url names it; it is called with a client certificate
of the internal CA: --ca, --certificate and --key, or those of [upstream] in the file that --config names. The ticket
is a token for this node that your platform's api has signed; it is good once, for a minute at most.

Exit codes:
  that of the node's program (128 and the signal where one has ended it), 0 where it has none
  255  there is no tunnel, or it was cut; stderr says why
  1, 2  the gateway can't be found; the command line or the configuration is wrong

Examples:
  gateway tunnel spiffe://fleet.example/site/lab/node/n1 --config gateway.toml --ticket-file ticket
  GATEWAY_TICKET=\"$(api ticket n1)\" gateway tunnel \"$NODE\" --config gateway.toml -- uptime
  tar c etc | gateway tunnel \"$NODE\" --ticket-file ticket --url https://g1.internal.example:7481 \\
    --ca ca.pem --certificate me.pem --key me.key -- tar x -C /tmp")]
    Tunnel(TunnelArgs),
    /// Check in the database what must always hold, whatever has failed before.
    #[command(after_help = "\
Reads whole tables, in one read-only snapshot; it holds nobody up. A broken invariant is a bug of the gateway, or a
table that someone else wrote to: keep the rows that it shows, and report them.

Exit codes: 0 everything holds; 1 something does not, the rows are shown; 2 it could not be checked.

JSON (one document): {\"holds\", \"invariants\": [{\"name\", \"sentence\", \"holds\", \"rows\": [...], \"more\"}]}

Examples:
  gateway verify --config /etc/gateway/gateway.toml
  gateway verify --json | jq '.invariants[] | select(.holds | not)'
  gateway verify --node-logs logs/*.jsonl")]
    Verify(VerifyArgs),
}

/// What can be asked of certificates.
#[derive(Debug, Subcommand)]
pub enum CertsCommand {
    /// List certificates: node, serial, role, when they expire, and whether they are revoked.
    #[command(after_help = "\
JSON (a line a certificate): node_id, serial, role, expires_at (null where whoever recorded it did not say), expired,
  revoked_at, revoked_reason, tenant_controlled, allowed_kinds (null: all), in_use (by a live session)

A certificate is recorded by whoever issues it, with INSERT INTO node_certs (serial, node_id, not_after) VALUES (…);
`gateway revoke` revokes it.

Examples:
  gateway certs list --node spiffe://fleet.example/site/lab/node/n1
  gateway certs list --revoked
  gateway certs list --expires-within 7d --json | jq -r 'select(.in_use) | .node_id'")]
    List(CertsArgs),
}

#[derive(Debug, Args)]
pub struct CertsArgs {
    /// Only this node's.
    #[arg(long)]
    pub node: Option<String>,
    /// Only those that are revoked.
    #[arg(long)]
    pub revoked: bool,
    /// Only those that have expired, or will within this time, such as "7d".
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub expires_within: Option<Duration>,
    /// At most so many.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
    #[command(flatten)]
    pub reading: Reading,
}

/// How a reading command answers.
#[derive(Debug, Clone, Args)]
pub struct Reading {
    #[command(flatten)]
    pub place: Place,
    /// As JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// The longest that one statement may take, such as "30s".
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub timeout: Duration,
}

#[derive(Debug, Args)]
pub struct EnqueueArgs {
    /// The node's id, such as spiffe://fleet.example/site/lab/node/n1.
    pub node: String,
    /// What kind of command it is, as the node knows it.
    pub kind: String,
    /// The payload: text as it is, @FILE for the bytes of a file, - for stdin. At most 512 KiB.
    #[arg(long, value_name = "TEXT|@FILE|-", allow_hyphen_values = true)]
    pub payload: Option<String>,
    /// The lane; commands of a lane are sent in order.
    #[arg(long, default_value = "default")]
    pub lane: String,
    /// Not before this time, such as 2026-12-24T18:00:00Z, or a duration from now, such as "10m".
    #[arg(long, value_name = "TIME", value_parser = when)]
    pub not_before: Option<When>,
    /// Never after this time, or a duration from now; what is not sent by then expires.
    #[arg(long, value_name = "TIME", value_parser = when)]
    pub not_after: Option<When>,
    /// How often a node may refuse it before it stays refused.
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(i32).range(1..))]
    pub attempts: i32,
    /// Enqueues nothing where the node has a command with this key, and answers with that one.
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    /// Wait for its end, at most so long, such as "30s"; without a time, for as long as it takes.
    #[arg(long, value_name = "TIMEOUT", num_args = 0..=1, value_parser = duration)]
    pub wait: Option<Option<Duration>>,
    #[command(flatten)]
    pub place: Place,
    /// As JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CancelArgs {
    /// The node that the command was enqueued for.
    pub node: String,
    /// The command's id.
    #[arg(value_parser = command_id)]
    pub id: Uuid,
    /// Why; the node is told.
    #[arg(long, default_value = "")]
    pub reason: String,
    #[command(flatten)]
    pub place: Place,
    /// As JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct NodesArgs {
    /// Only those with a live session.
    #[arg(long)]
    pub connected: bool,
    /// Only those of a tenant.
    #[arg(long)]
    pub tenant: Option<String>,
    /// Only those whose id fits a pattern of SQL's LIKE; a text without % may stand anywhere in the id.
    #[arg(long, value_name = "PATTERN", value_parser = like_pattern)]
    pub like: Option<String>,
    /// At most so many.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
    #[command(flatten)]
    pub reading: Reading,
}

#[derive(Debug, Args)]
pub struct GatewaysArgs {
    /// Only those that hold their lease.
    #[arg(long)]
    pub serving: bool,
    /// At most so many.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
    #[command(flatten)]
    pub reading: Reading,
}

#[derive(Debug, Args)]
pub struct SessionsArgs {
    /// Only this node's.
    #[arg(long)]
    pub node: Option<String>,
    /// Only those on a gateway.
    #[arg(long, value_name = "ID")]
    pub gateway: Option<String>,
    /// The last session of a node too, where it has ended.
    #[arg(long)]
    pub ended: bool,
    /// At most so many.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
    #[command(flatten)]
    pub reading: Reading,
}

/// The states of a command, in the order of a life.
pub const STATES: [&str; 9] =
    ["pending", "dispatched", "accepted", "running", "succeeded", "failed", "canceled", "expired", "refused"];

#[derive(Debug, Args)]
pub struct CommandsArgs {
    /// Only this node's. In a large fleet always name one: all others are read too otherwise.
    #[arg(long)]
    pub node: Option<String>,
    /// Only this one, with its result.
    #[arg(long, value_parser = command_id)]
    pub id: Option<Uuid>,
    /// Only those in these states, such as pending,running.
    #[arg(long, value_delimiter = ',', value_parser = STATES)]
    pub state: Vec<String>,
    /// Only those of a lane.
    #[arg(long)]
    pub lane: Option<String>,
    /// Only those enqueued within a duration, such as "1h".
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub since: Option<Duration>,
    /// At most so many.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
    #[command(flatten)]
    pub reading: Reading,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Only this node's. In a large fleet always name one: all others are read too otherwise.
    #[arg(long)]
    pub node: Option<String>,
    /// Only those of a journal.
    #[arg(long, value_name = "ID")]
    pub journal: Option<String>,
    /// Only those of a kind.
    #[arg(long)]
    pub kind: Option<String>,
    /// At most so many of those that are stored already.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub limit: u32,
    /// Go on with events as they are stored, until Ctrl-C; it looks every second.
    #[arg(long, short)]
    pub follow: bool,
    #[command(flatten)]
    pub reading: Reading,
}

#[derive(Debug, Args)]
pub struct SpecsArgs {
    /// Only this node's. In a large fleet always name one: all others are read too otherwise.
    #[arg(long)]
    pub node: Option<String>,
    /// Only those of this name.
    #[arg(long)]
    pub name: Option<String>,
    /// Only those that their nodes have not answered as they are now.
    #[arg(long)]
    pub unanswered: bool,
    /// At most so many.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
    #[command(flatten)]
    pub reading: Reading,
}

#[derive(Debug, Args)]
pub struct InventoryArgs {
    /// Only this node's. In a large fleet always name one: all others are read too otherwise.
    #[arg(long)]
    pub node: Option<String>,
    /// Only those of this name.
    #[arg(long, value_name = "NAME")]
    pub section: Option<String>,
    /// At most so many.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
    #[command(flatten)]
    pub reading: Reading,
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Only these invariants, by name.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Hold the nodes' own logs against the database too: files of JSON lines with node, event (received,
    /// started, finished or acked), id, attempt, and the acked state. Give all of a node's logs since the
    /// oldest command that is still stored, and none of commands that retention has removed.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub node_logs: Vec<PathBuf>,
    /// Show at most so many rows of a broken invariant.
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rows: u32,
    #[command(flatten)]
    pub place: Place,
    /// As JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// The longest that one check may take, such as "10m".
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10m")]
    pub timeout: Duration,
}

/// A date, or a duration from now by the database's clock.
#[derive(Debug, Clone, PartialEq)]
pub enum When {
    /// As PostgreSQL reads it, with its time zone.
    At(String),
    In(Duration),
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text)
        .map_err(|_| "expected a duration such as \"30s\", \"250ms\" or \"1h 30m\"".to_owned())?;
    if duration > Duration::from_secs(100 * 365 * 24 * 3600) {
        return Err("longer than a hundred years".to_owned());
    }
    Ok(duration)
}

fn when(text: &str) -> Result<When, String> {
    if let Ok(duration) = duration(text) {
        return Ok(When::In(duration));
    }
    // RFC 3339, in outline; whether there is such a day the database says.
    let (date, rest) = text.split_once(['T', ' ']).unwrap_or((text, ""));
    let is_date = date.len() == 10 && date.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    let zoned = rest.ends_with('Z') || rest.contains(['+', '-']);
    let is_time = rest.bytes().all(|byte| byte.is_ascii_digit() || b":.+-Z".contains(&byte));
    if is_date && zoned && is_time {
        Ok(When::At(text.to_owned()))
    } else {
        Err("expected a time with its zone, such as 2026-12-24T18:00:00Z, or a duration from now, such as \"10m\""
            .to_owned())
    }
}

fn command_id(text: &str) -> Result<Uuid, String> {
    text.parse().map_err(|_| {
        "a command's id is a UUID such as 019b0a5e-7c1d-7d3e-8c4f-0123456789ab; `gateway commands` lists them"
            .to_owned()
    })
}

/// A pattern of LIKE that PostgreSQL takes: its `\\` is followed by the sign that it stands before.
fn like_pattern(text: &str) -> Result<String, String> {
    let backslashes = text.len() - text.trim_end_matches('\\').len();
    if backslashes % 2 == 1 {
        return Err(r"it ends with \, which takes the next sign as it is, and there is none; a \ itself is written \\".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_zone_or_is_a_duration() {
        assert_eq!(when("10m"), Ok(When::In(Duration::from_secs(600))));
        for text in ["2026-12-24T18:00:00Z", "2026-12-24 18:00:00+01:00", "2026-12-24T18:00:00.5-03"] {
            assert_eq!(when(text), Ok(When::At(text.to_owned())));
        }
        for text in ["tomorrow", "2026-12-24", "2026-12-24T18:00:00", "18:00Z", "", "2026-12-24T'; --Z", "5"]
        {
            assert!(when(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_pattern_does_not_end_in_the_middle_of_a_sign() {
        for pattern in ["%/site/lab/%", "n1", r"a\_b", r"%\\", ""] {
            assert_eq!(like_pattern(pattern).as_deref(), Ok(pattern));
        }
        for pattern in [r"%\", r"\", r"n\\\"] {
            assert!(like_pattern(pattern).is_err_and(|sentence| sentence.contains(r"\\")), "{pattern}");
        }
    }

    #[test]
    fn a_wrong_id_says_what_an_id_looks_like() {
        assert!(command_id("17").is_err_and(|sentence| sentence.contains("UUID such as")));
    }
}

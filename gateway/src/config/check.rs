//! What must hold of values and between them, beyond their kind.
//!
//! The relations between the bounds are core's (`Limits::check`); here is what concerns the file:
//! addresses, URLs, passwords, the lease, zeros.
//!
//! 1. Every sentence says what to write instead.

use std::net::SocketAddr;
use std::time::Duration;

use gateway_control::relay::UpstreamAddress;
use gateway_core::ids::GatewayId;
use gateway_core::limits::{MAX_EVENT_TEXT_BYTES, MAX_HOOKS_OF_A_KIND, MAX_STATUS_TEXT_BYTES};
use gateway_shard::IdentityRules;

use super::database_url::{DatabaseUrl, LOCAL_DATABASE};
use super::problem::{Lines, Problem};
use super::sections::Config;
use super::units::FunctionNames;

/// What may be under way to a service, and what may wait for it.
const MAX_UPSTREAM_CALLS: usize = 1000;

pub(super) fn check(config: &Config, lines: &Lines) -> Vec<Problem> {
    let mut problems = Vec::new();
    check_names(config, lines, &mut problems);
    check_addresses(config, lines, &mut problems);
    check_database(config, lines, &mut problems);
    check_numbers(config, lines, &mut problems);
    check_times(config, lines, &mut problems);
    check_identity(config, lines, &mut problems);
    check_hooks(config, lines, &mut problems);
    check_upstream(config, lines, &mut problems);
    super::tunnels::check(config, lines, &mut problems);
    check_api(config, lines, &mut problems);
    if problems.is_empty()
        && let Err(error) = config.limits().check()
    {
        problems.push(Problem { line: None, key: String::new(), sentence: error.0 });
    }
    problems
}

fn check_names(config: &Config, lines: &Lines, problems: &mut Vec<Problem>) {
    if let Err(error) = GatewayId::new(&config.gateway.id) {
        problems.push(lines.problem("gateway.id", error.to_string()));
    } else if config.gateway.id.contains('/') {
        problems.push(
            lines.problem("gateway.id", "holds a slash; it names a file too: use letters, digits, dashes"),
        );
    }
    if let Some(domain) = &config.tls.trust_domain {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
        if domain.is_empty() || !domain.bytes().all(fits) {
            let sentence = "is no trust domain: lower-case letters, digits, dots, dashes and underscores, without \
                            \"spiffe://\"";
            problems.push(lines.problem("tls.trust_domain", sentence));
        }
    }
    if IdentityRules::new(None, &config.identity.uri_path).is_err() {
        let sentence = "must begin with a slash and hold {site} and {node} once each, as whole segments, as in \
                        \"/site/{site}/node/{node}\"";
        problems.push(lines.problem("identity.uri_path", sentence));
    }
    if let Err(error) = tracing_subscriber::EnvFilter::try_new(&config.log.level) {
        let sentence = format!("is no log level: {error}; write error, warn, info, debug or trace");
        problems.push(lines.problem("log.level", sentence));
    }
}

fn check_addresses(config: &Config, lines: &Lines, problems: &mut Vec<Problem>) {
    if !config.control.listen.ip().is_loopback() {
        let sentence = format!(
            "{} is not a loopback address, and what it serves is not encrypted: write \"127.0.0.1:{}\"; \
             control.api_listen serves the same to other machines",
            config.control.listen,
            config.control.listen.port()
        );
        problems.push(lines.problem("control.listen", sentence));
    }
    let addresses = [
        ("listen.address", Some(config.listen.address)),
        ("control.listen", Some(config.control.listen)),
        ("control.api_listen", config.control.api_listen),
    ];
    for (place, (key, address)) in addresses.iter().enumerate() {
        let Some(address) = address.filter(|address| address.port() != 0) else { continue };
        let takes = |earlier: &SocketAddr| {
            let unspecified = earlier.ip().is_unspecified() || address.ip().is_unspecified();
            earlier.port() == address.port() && (earlier.ip() == address.ip() || unspecified)
        };
        for (earlier_key, earlier) in &addresses[..place] {
            if let Some(earlier) = earlier.filter(&takes) {
                problems.push(lines.problem(key, format!("takes the port of {earlier_key}, {earlier}")));
            }
        }
    }
}

fn check_api(config: &Config, lines: &Lines, problems: &mut Vec<Problem>) {
    let control = &config.control;
    if let Some(listen) = control.api_listen {
        if control.client_ca.is_none() {
            let sentence = "needs control.client_ca, the CA that its clients' certificates must chain to";
            problems.push(lines.problem("control.api_listen", sentence));
        }
        if listen.ip().is_unspecified() && config.gateway.internal_url.is_none() {
            let sentence = format!(
                "{listen} is every address of this machine: say with gateway.internal_url where others reach it"
            );
            problems.push(lines.problem("control.api_listen", sentence));
        }
    }
    if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&control.ping_every.0) {
        problems.push(lines.problem("control.ping_every", "must be \"100ms\" to \"60s\""));
    }
    for (given, missing) in [("certificate", "key"), ("key", "certificate")] {
        let of = |name| if name == "key" { &control.key } else { &control.certificate };
        if of(given).is_some() && of(missing).is_none() {
            let sentence = format!("needs control.{missing}, or leave both out for those of [tls]");
            problems.push(lines.problem(&format!("control.{given}"), sentence));
        }
    }
    if let Some(name) =
        control.clients.iter().find(|name| name.is_empty() || name.contains(char::is_whitespace))
    {
        let sentence =
            format!("{name:?} is no name of a certificate: write a DNS name or a URI as it stands there");
        problems.push(lines.problem("control.clients", sentence));
    }
}

fn check_database(config: &Config, lines: &Lines, problems: &mut Vec<Problem>) {
    let database = &config.database;
    for (key, url, file) in [
        ("database.url", &database.url, &database.url_file),
        ("database.listen_url", &database.listen_url, &database.listen_url_file),
    ] {
        let Some(url) = url else { continue };
        if file.is_some() {
            problems.push(lines.problem(key, format!("is given together with {key}_file: keep one of them")));
        }
        match DatabaseUrl::new(url) {
            Err(sentence) => problems.push(lines.problem(key, sentence)),
            Ok(url) if url.holds_password() => {
                let sentence = format!(
                    "holds a password, which must not stand in this file: write the URL into a file that only the \
                     gateway's user can read and name it with {key}_file, or leave the password to a ~/.pgpass"
                );
                problems.push(lines.problem(key, sentence));
            }
            Ok(_) => {}
        }
    }
}

fn check_numbers(config: &Config, lines: &Lines, problems: &mut Vec<Problem>) {
    let sessions = &config.sessions;
    let zeros = [
        ("listen.backlog", config.listen.backlog == 0),
        ("shards.count", config.shards.count == Some(0)),
        ("shards.cpus", config.shards.cpus.as_ref().is_some_and(|cpus| cpus.0.is_empty())),
        ("shards.queue_messages", config.shards.queue_messages == 0),
        ("db_writer.queue_messages", config.db_writer.queue_messages == 0),
        ("admission.opens_per_second", config.admission.opens_per_second == 0),
        ("admission.opens_burst", config.admission.opens_burst == 0),
        ("admission.joins_per_second", config.admission.joins_per_second == 0),
        ("admission.joins_burst", config.admission.joins_burst == 0),
        ("admission.max_streams", config.admission.max_streams == 0),
        ("admission.max_pending_hellos", config.admission.max_pending_hellos == 0),
        ("admission.connections_per_certificate", config.admission.connections_per_certificate == 0),
        ("admission.anonymous_connections", config.admission.anonymous_connections == 0),
        ("admission.handshakes_at_once", config.admission.handshakes_at_once == 0),
        ("sessions.events_per_batch", sessions.events_per_batch == 0),
        ("sessions.lanes_per_node", sessions.lanes_per_node == 0),
        ("sessions.known_commands", sessions.known_commands == 0),
        ("sessions.sections_per_node", sessions.sections_per_node == 0),
        ("sessions.streams_per_connection", sessions.streams_per_connection == 0),
        ("sessions.inbox_frames", sessions.inbox_frames == 0),
        ("sessions.missed_heartbeats", sessions.missed_heartbeats == 0),
        ("sessions.handshake_timeout", sessions.handshake_timeout.0.is_zero()),
        ("sessions.hello_timeout", sessions.hello_timeout.0.is_zero()),
        ("sessions.streamless_timeout", sessions.streamless_timeout.0.is_zero()),
        ("sessions.heartbeat_interval", sessions.heartbeat_interval.0.is_zero()),
        ("sessions.send_timeout", sessions.send_timeout.0.is_zero()),
        ("sessions.liveness_write_every", sessions.liveness_write_every.0.is_zero()),
        ("sessions.duplicate_window", sessions.duplicate_window.0.is_zero()),
    ];
    for (key, _) in zeros.iter().filter(|(_, is_zero)| *is_zero) {
        problems.push(lines.problem(key, "is nothing: leave it out for the default, or write more"));
    }
    if !(1 << 10..=1 << 20).contains(&sessions.header_list_bytes.0) {
        problems.push(lines.problem("sessions.header_list_bytes", "must be \"1KiB\" to \"1MiB\""));
    }
    if sessions.frame_bytes.0 > 64 << 20 {
        problems.push(lines.problem("sessions.frame_bytes", "must be at most \"64MiB\""));
    }
}

fn check_times(config: &Config, lines: &Lines, problems: &mut Vec<Problem>) {
    let (ttl, renew) = (config.lease.ttl, config.lease.renew_every);
    if ttl.0 < Duration::from_secs(2) {
        problems.push(
            lines.problem("lease.ttl", format!("{ttl} is too short to be kept: write at least \"2s\"")),
        );
    } else if renew.0.is_zero() || renew.0 * 4 > ttl.0 {
        let sentence = format!(
            "{renew} does not fit lease.ttl of {ttl}: the gateway fences itself at half of it, and at least one \
             renewal must be able to fail before that; write at most a quarter of it"
        );
        problems.push(lines.problem("lease.renew_every", sentence));
    }
    for (key, span) in
        [("gateway.drain", config.gateway.drain), ("gateway.drain_grace", config.gateway.drain_grace)]
    {
        if span.0 > Duration::from_secs(600) {
            problems.push(lines.problem(key, format!("{span} is too long to wait: write at most \"10m\"")));
        }
    }
    let poll = config.dispatch.poll_every;
    if !(Duration::from_millis(10)..=Duration::from_secs(60)).contains(&poll.0) {
        problems
            .push(lines.problem("dispatch.poll_every", format!("{poll} is not within \"10ms\" and \"60s\"")));
    }
    let sweep = config.sweeps.every;
    if !(Duration::from_millis(100)..=Duration::from_secs(300)).contains(&sweep.0) {
        problems.push(lines.problem("sweeps.every", format!("{sweep} is not within \"100ms\" and \"300s\"")));
    }
    let specs = config.specs.sweep_every;
    if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&specs.0) {
        problems
            .push(lines.problem("specs.sweep_every", format!("{specs} is not within \"100ms\" and \"1h\"")));
    }
    if config.shards.spin.0 > Duration::from_millis(10) {
        problems.push(lines.problem("shards.spin", "is too long: spinning beyond \"10ms\" only burns a cpu"));
    }
    if config.shards.doze.0 > Duration::from_secs(1) {
        problems.push(
            lines.problem("shards.doze", "is too long: at \"1s\" a shard takes ten heartbeats a session"),
        );
    }
}

fn check_identity(config: &Config, lines: &Lines, problems: &mut Vec<Problem>) {
    let identity = &config.identity;
    let millis = Duration::from_millis;
    if let Some(kind) = identity.destructive_kinds.iter().find(|kind| !is_command_kind(kind)) {
        let sentence = format!("{kind:?} is no kind of a command: 1 to 128 bytes without control characters");
        problems.push(lines.problem("identity.destructive_kinds", sentence));
    }
    for (key, span, shortest, longest, within) in [
        ("tls.reload_every", config.tls.reload_every, millis(1_000), 3600, "\"1s\" and \"1h\""),
        ("identity.clock_skew", identity.clock_skew, millis(0), 600, "\"0s\" and \"10m\""),
        ("identity.revocation_poll", identity.revocation_poll, millis(100), 60, "\"100ms\" and \"60s\""),
        ("identity.revocation_scan", identity.revocation_scan, millis(1_000), 3600, "\"1s\" and \"1h\""),
    ] {
        if !(shortest..=Duration::from_secs(longest)).contains(&span.0) {
            problems.push(lines.problem(key, format!("{span} is not within {within}")));
        }
    }
}

/// As `enqueue_command` takes it.
fn is_command_kind(kind: &str) -> bool {
    (1..=128).contains(&kind.len()) && !kind.chars().any(char::is_control)
}

fn check_hooks(config: &Config, lines: &Lines, problems: &mut Vec<Problem>) {
    let hooks = &config.hooks;
    if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&hooks.timeout.0) {
        let sentence = format!("{} is not within \"100ms\" and \"60s\"", hooks.timeout);
        problems.push(lines.problem("hooks.timeout", sentence));
    }
    if hooks.attested_bindings && !hooks.builtin {
        let sentence =
            "is about the built-in hooks, which hooks.builtin = false turns off: leave one of them out";
        problems.push(lines.problem("hooks.attested_bindings", sentence));
    }
    for (key, kinds, longest) in [
        ("hooks.reports", &hooks.reports, MAX_EVENT_TEXT_BYTES),
        ("hooks.statuses", &hooks.statuses, MAX_STATUS_TEXT_BYTES),
    ] {
        for (kind, functions) in kinds {
            if let Err(sentence) = check_hooks_of_kind(kind, functions, longest) {
                problems.push(lines.problem(key, sentence));
            }
        }
    }
}

fn check_upstream(config: &Config, lines: &Lines, problems: &mut Vec<Problem>) {
    let upstream = &config.upstream;
    let urls = [
        ("upstream.join_url", &upstream.join_url),
        ("upstream.renew_url", &upstream.renew_url),
        ("upstream.secret_url", &upstream.secret_url),
    ];
    for (key, url) in urls {
        if let Some(Err(sentence)) = url.as_deref().map(UpstreamAddress::parse) {
            problems.push(lines.problem(key, sentence));
        }
    }
    if let Some((key, _)) = urls.iter().find(|(_, url)| url.is_some())
        && upstream.ca.is_none()
    {
        let sentence = "needs upstream.ca, the CA that the service's certificate must chain to";
        problems.push(lines.problem(key, sentence));
    }
    for (given, missing) in [("certificate", "key"), ("key", "certificate")] {
        let of = |name| if name == "key" { &upstream.key } else { &upstream.certificate };
        if of(given).is_some() && of(missing).is_none() {
            let sentence = format!("needs upstream.{missing}, or leave both out for those of [tls]");
            problems.push(lines.problem(&format!("upstream.{given}"), sentence));
        }
    }
    let timeout = upstream.timeout;
    if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&timeout.0) {
        let sentence = format!("{timeout} is not within \"100ms\" and \"60s\"");
        problems.push(lines.problem("upstream.timeout", sentence));
    }
    if !(1..=MAX_UPSTREAM_CALLS).contains(&upstream.max_in_flight) {
        problems.push(lines.problem("upstream.max_in_flight", "must be 1 to 1000"));
    }
    if upstream.max_waiting > MAX_UPSTREAM_CALLS {
        problems.push(lines.problem("upstream.max_waiting", "must be 0 to 1000"));
    }
}

fn check_hooks_of_kind(kind: &str, functions: &FunctionNames, longest: usize) -> Result<(), String> {
    if kind.is_empty() || kind.len() > longest || kind.contains('\0') {
        return Err(format!("{kind:?} is no kind that a node can send: 1 to {longest} bytes without a NUL"));
    }
    let names = &functions.0;
    if names.is_empty() || names.len() > MAX_HOOKS_OF_A_KIND {
        return Err(format!(
            "the kind {kind:?} has {} functions: name 1 to {MAX_HOOKS_OF_A_KIND}, or leave the kind out",
            names.len()
        ));
    }
    if let Some(name) = names.iter().find(|name| !is_function_name(name)) {
        return Err(format!(
            "{name:?} of the kind {kind:?} is no name of a function: write it as in \"acme.on_door\", schema and name \
             (or the name alone) of lower-case letters, digits and underscores, without parentheses"
        ));
    }
    match names.iter().enumerate().find(|(place, name)| names[..*place].contains(name)) {
        Some((_, name)) => Err(format!("{name:?} of the kind {kind:?} is named twice: it would run twice")),
        None => Ok(()),
    }
}

/// A name that PostgreSQL takes without quotes: no two spellings of one function.
fn is_function_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let starts = part.starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        starts && part.len() <= 63 && part.bytes().all(fits)
    };
    name.split('.').count() <= 2 && name.split('.').all(is_part)
}

impl Config {
    /// The URL of the database, with its password where a file gave one.
    pub fn database_url(&self) -> Result<DatabaseUrl, Problem> {
        let database = &self.database;
        let (key, url) = match (&database.url_file, &database.url) {
            (Some(file), _) => ("database.url_file", DatabaseUrl::from_file(file)),
            (None, Some(url)) => ("database.url", DatabaseUrl::new(url)),
            (None, None) => ("database.url", DatabaseUrl::new(LOCAL_DATABASE)),
        };
        url.map_err(|sentence| Lines::default().problem(key, sentence))
    }

    /// The URL of the direct connection for LISTEN, where one is given.
    pub fn listen_url(&self) -> Result<Option<DatabaseUrl>, Problem> {
        let database = &self.database;
        let (key, url) = match (&database.listen_url_file, &database.listen_url) {
            (Some(file), _) => ("database.listen_url_file", DatabaseUrl::from_file(file)),
            (None, Some(url)) => ("database.listen_url", DatabaseUrl::new(url)),
            (None, None) => return Ok(None),
        };
        url.map(Some).map_err(|sentence| Lines::default().problem(key, sentence))
    }
}

//! The configuration of a gateway: one TOML file, read, checked and turned into what the threads take.
//!
//! `configs/gateway.toml` has every key with its words; `sections` has the values; `check` has the
//! relations. Nothing here opens a socket or starts a thread; files are read for the database URL.
//!
//! 1. A file that passes `Config::load` names only keys that exist, values of the right kind, and
//!    relations that hold; what the machine allows (pins, descriptors, files) is for `serve`.
//! 2. No password is ever printed: URLs from files are kept in `DatabaseUrl`, which shows none.

mod catalog;
mod check;
mod database_url;
mod inside;
mod problem;
mod sections;
mod show;
mod tunnels;
mod units;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gateway_core::certificate::UnknownSerial;
use gateway_core::drain::DrainPlan;
use gateway_core::duplicate::DuplicateRule;
use gateway_core::limits::Limits;
use toml::de::{DeTable, DeValue};

pub use catalog::{ANNOTATED, KeyNote, catalog};
pub use database_url::DatabaseUrl;
pub use inside::{ControlSection, UpstreamSection};
pub use problem::{ConfigError, Lines, Problem};
pub use sections::*;
pub use show::{show_json, show_toml};
pub use tunnels::TunnelsSection;
pub use units::{CpuList, FunctionNames, Size, Span};

use problem::line_of;

impl Config {
    /// Reads, checks, and makes relative paths start at the file's folder.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let located = |problems| ConfigError { file: Some(file.to_owned()), problems };
        let text = std::fs::read_to_string(file).map_err(|error| {
            let sentence = format!("can't be read: {error}; name the right file with --config");
            located(vec![Problem { line: None, key: String::new(), sentence }])
        })?;
        let (mut config, lines) = Self::parse(&text).map_err(located)?;
        let problems = config.check(&lines);
        if !problems.is_empty() {
            return Err(located(problems));
        }
        config
            .resolve_paths(file.parent().unwrap_or(Path::new("")))
            .map_err(|problem| located(vec![problem]))?;
        Ok(config)
    }

    /// Reads a text; keys and kinds of values are right then, relations are for `check`.
    pub fn parse(text: &str) -> Result<(Self, Lines), Vec<Problem>> {
        let syntax = |error: &toml::de::Error| {
            let line = error.span().map(|span| line_of(text, span.start));
            vec![Problem { line, key: String::new(), sentence: format!("is not TOML: {}", error.message()) }]
        };
        let table = DeTable::parse(text).map_err(|error| syntax(&error))?;
        let lines = known_keys(text, table.get_ref())?;
        if !lines.holds("gateway.id") {
            let sentence = "must be given: the name of this gateway, unique in the fleet";
            return Err(vec![lines.problem("gateway.id", sentence)]);
        }
        let deserializer = toml::de::Deserializer::parse(text).map_err(|error| syntax(&error))?;
        let config = serde_path_to_error::deserialize(deserializer).map_err(|error| {
            let key = error.path().to_string();
            vec![lines.problem(&key, value_sentence(&key, error.inner().message()))]
        })?;
        Ok((config, lines))
    }

    /// The relations between keys, and what a single value must hold. Empty when all is well.
    pub fn check(&self, lines: &Lines) -> Vec<Problem> {
        check::check(self, lines)
    }

    /// The bounds that the threads work with.
    pub fn limits(&self) -> Limits {
        let (sessions, admission) = (&self.sessions, &self.admission);
        Limits {
            frame_bytes: sessions.frame_bytes.0,
            result_bytes: sessions.result_bytes.0,
            events_per_batch: sessions.events_per_batch,
            lanes_per_node: sessions.lanes_per_node,
            known_commands: sessions.known_commands,
            specs_per_node: sessions.specs_per_node,
            sections_per_node: sessions.sections_per_node,
            header_list_bytes: u32::try_from(sessions.header_list_bytes.0).unwrap_or(u32::MAX),
            streams_per_connection: sessions.streams_per_connection,
            handshake_timeout: sessions.handshake_timeout.0,
            hello_timeout: sessions.hello_timeout.0,
            streamless_timeout: sessions.streamless_timeout.0,
            heartbeat_interval: sessions.heartbeat_interval.0,
            missed_heartbeats: sessions.missed_heartbeats,
            send_timeout: sessions.send_timeout.0,
            liveness_write_every: sessions.liveness_write_every.0,
            duplicates: DuplicateRule {
                flips: sessions.duplicate_flips,
                within: sessions.duplicate_window.0,
            },
            unknown_serial: match self.identity.unknown_serial {
                UnknownSerials::Refuse => UnknownSerial::Refuse,
                UnknownSerials::Accept => UnknownSerial::Accept,
            },
            session_inbox_frames: sessions.inbox_frames,
            session_inbox_bytes: sessions.inbox_bytes.0,
            session_outbox_bytes: sessions.outbox_bytes.0,
            tunnels: Arc::new(self.tunnel_limits(self.names_tunnels())),
            receive_bytes_per_shard: self.shards.receive_bytes.0,
            to_writer_messages: self.db_writer.queue_messages,
            to_writer_bytes: self.db_writer.queue_bytes.0,
            to_shard_messages: self.shards.queue_messages,
            handshakes_at_once: admission.handshakes_at_once,
            streams: admission.max_streams,
            pending_hellos: admission.max_pending_hellos,
            connections_per_certificate: admission.connections_per_certificate,
            anonymous_connections: admission.anonymous_connections,
            opens_per_second: admission.opens_per_second,
            opens_burst: admission.opens_burst,
            joins_per_second: admission.joins_per_second,
            joins_burst: admission.joins_burst,
            batch_entries: self.group_commit.batch_entries,
            batch_bytes: self.group_commit.batch_bytes.0,
            relays_in_flight: self.upstream.max_in_flight,
            relays_waiting: self.upstream.max_waiting,
            relay_timeout: self.upstream.timeout.0,
        }
    }

    /// How SIGTERM drains; `None` where it stops at once.
    pub fn drain_plan(&self) -> Option<DrainPlan> {
        let (within, grace) = (self.gateway.drain.0, self.gateway.drain_grace.0);
        (!within.is_zero()).then_some(DrainPlan { within, grace })
    }

    /// `limits`, shared.
    pub fn shared_limits(&self) -> Arc<Limits> {
        Arc::new(self.limits())
    }

    /// Makes every path start at `folder`, or at the folder of systemd's credentials.
    fn resolve_paths(&mut self, folder: &Path) -> Result<(), Problem> {
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
        let paths = [
            ("gateway.state_dir", Some(&mut self.gateway.state_dir)),
            ("tls.certificate", Some(&mut self.tls.certificate)),
            ("tls.key", Some(&mut self.tls.key)),
            ("tls.node_ca", Some(&mut self.tls.node_ca)),
            ("database.url_file", self.database.url_file.as_mut()),
            ("database.listen_url_file", self.database.listen_url_file.as_mut()),
            ("control.certificate", self.control.certificate.as_mut()),
            ("control.key", self.control.key.as_mut()),
            ("control.client_ca", self.control.client_ca.as_mut()),
            ("upstream.ca", self.upstream.ca.as_mut()),
            ("upstream.certificate", self.upstream.certificate.as_mut()),
            ("upstream.key", self.upstream.key.as_mut()),
            ("tunnels.jwks_file", self.tunnels.jwks_file.as_mut()),
        ];
        for (key, path) in paths {
            let Some(path) = path else { continue };
            *path = resolve_path(path, folder, credentials.as_deref())
                .map_err(|sentence| Lines::default().problem(key, sentence))?;
        }
        Ok(())
    }
}

fn resolve_path(path: &Path, folder: &Path, credentials: Option<&Path>) -> Result<PathBuf, String> {
    let Some(name) = path.to_str().and_then(|path| path.strip_prefix("credential:")) else {
        return Ok(folder.join(path));
    };
    match credentials {
        Some(credentials) => Ok(credentials.join(name)),
        None => Err(format!(
            "names the systemd credential {name:?}, but $CREDENTIALS_DIRECTORY is not set: start the gateway by \
             its unit, with LoadCredential={name}:/path, or name a file"
        )),
    }
}

/// The lines of all keys, or a problem for each that does not exist.
fn known_keys(text: &str, table: &DeTable<'_>) -> Result<Lines, Vec<Problem>> {
    let notes = catalog();
    let (mut lines, mut problems) = (Lines::default(), Vec::new());
    for (section, value) in table {
        let name = section.get_ref().to_string();
        lines.note(name.clone(), text, section.span().start);
        if !notes.iter().any(|note| note.section == name) {
            let sentence = format!("there is no such section{}", catalog::suggest_section(&notes, &name));
            problems.push(lines.problem(&name, sentence));
            continue;
        }
        let DeValue::Table(keys) = value.get_ref() else {
            problems
                .push(lines.problem(&name, format!("is a section: write [{name}] and its keys below it")));
            continue;
        };
        for key in keys.keys() {
            let full = format!("{name}.{}", key.get_ref());
            lines.note(full.clone(), text, key.span().start);
            if !notes.iter().any(|note| note.section == name && note.key == *key.get_ref()) {
                let near = catalog::suggest_key(&notes, &name, key.get_ref());
                problems.push(lines.problem(&full, format!("there is no such key{near}")));
            }
        }
    }
    problems.sort_by_key(|problem| problem.line);
    if problems.is_empty() { Ok(lines) } else { Err(problems) }
}

/// What is wrong with a value, with what the key takes where the message does not say it.
fn value_sentence(key: &str, message: &str) -> String {
    let note = catalog().into_iter().find(|note| format!("{}.{}", note.section, note.key) == key);
    match note {
        Some(note) if !message.starts_with("expected") => {
            let message = message.replace('`', "\"");
            let message = message.split(", expected").next().unwrap_or(&message);
            format!("{message}; it takes: {}, such as {}", note.unit, note.value)
        }
        _ => message.to_owned(),
    }
}

#[cfg(test)]
mod tests;

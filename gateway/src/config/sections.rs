//! The sections of the TOML, one struct each, with their defaults.
//!
//! The comments that an operator reads stand in `configs/gateway.toml`; a test holds that file and
//! these structs to the same keys and values.
//!
//! 1. Every key but `gateway.id` has a default, and every section may be left out but `gateway`.
//! 2. An unknown key is an error, here and in the check that names the nearest right one.
//! 3. No field holds a password: those come from files.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use gateway_core::limits::Limits;
use serde::{Deserialize, Serialize};

use super::inside::{ControlSection, UpstreamSection};
use super::tunnels::TunnelsSection;
use super::units::{CpuList, FunctionNames, Size, Span};

/// The whole configuration of a gateway, as written. Paths are as written too: see `Loaded`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub gateway: GatewaySection,
    #[serde(default)]
    pub listen: ListenSection,
    #[serde(default)]
    pub tls: TlsSection,
    #[serde(default)]
    pub identity: IdentitySection,
    #[serde(default)]
    pub shards: ShardsSection,
    #[serde(default)]
    pub db_writer: DbWriterSection,
    #[serde(default)]
    pub database: DatabaseSection,
    #[serde(default)]
    pub admission: AdmissionSection,
    #[serde(default)]
    pub sessions: SessionsSection,
    #[serde(default)]
    pub dispatch: DispatchSection,
    #[serde(default)]
    pub group_commit: GroupCommitSection,
    #[serde(default)]
    pub lease: LeaseSection,
    #[serde(default)]
    pub sweeps: SweepsSection,
    #[serde(default)]
    pub specs: SpecsSection,
    #[serde(default)]
    pub hooks: HooksSection,
    #[serde(default)]
    pub control: ControlSection,
    #[serde(default)]
    pub upstream: UpstreamSection,
    #[serde(default)]
    pub tunnels: TunnelsSection,
    #[serde(default)]
    pub log: LogSection,
}

/// `[gateway]`: who this gateway is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewaySection {
    /// Required: no default could be right for two gateways.
    pub id: String,
    #[serde(default)]
    pub region: String,
    #[serde(default = "default_state_dir")]
    pub state_dir: PathBuf,
    #[serde(default)]
    pub internal_url: Option<String>,
    #[serde(default = "default_drain")]
    pub drain: Span,
    #[serde(default = "default_drain_grace")]
    pub drain_grace: Span,
    #[serde(default = "default_stop_timeout")]
    pub stop_timeout: Span,
}

fn default_drain() -> Span {
    Span::seconds(60)
}

fn default_drain_grace() -> Span {
    Span::seconds(10)
}

fn default_state_dir() -> PathBuf {
    PathBuf::from("/var/lib/gateway")
}

fn default_stop_timeout() -> Span {
    Span::seconds(25)
}

impl Default for GatewaySection {
    fn default() -> Self {
        Self {
            id: "gateway-1".to_owned(),
            region: String::new(),
            state_dir: default_state_dir(),
            internal_url: None,
            drain: default_drain(),
            drain_grace: default_drain_grace(),
            stop_timeout: default_stop_timeout(),
        }
    }
}

/// `[listen]`: where nodes connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListenSection {
    pub address: SocketAddr,
    pub backlog: u32,
    pub websocket: bool,
}

impl Default for ListenSection {
    fn default() -> Self {
        Self { address: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7443)), backlog: 8192, websocket: true }
    }
}

/// `[tls]`: what the gateway proves to nodes, and how nodes prove themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsSection {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub node_ca: PathBuf,
    pub trust_domain: Option<String>,
    pub reload_every: Span,
}

impl Default for TlsSection {
    fn default() -> Self {
        Self {
            certificate: PathBuf::from("/etc/gateway/tls/gateway.pem"),
            key: PathBuf::from("/etc/gateway/tls/gateway.key"),
            node_ca: PathBuf::from("/etc/gateway/tls/node-ca.pem"),
            trust_domain: None,
            reload_every: Span::seconds(60),
        }
    }
}

/// What becomes of a certificate that the database does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownSerials {
    Refuse,
    Accept,
}

/// `[identity]`: how a certificate names its node, and what it may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IdentitySection {
    pub uri_path: String,
    pub unknown_serial: UnknownSerials,
    pub clock_skew: Span,
    pub revocation_poll: Span,
    pub revocation_scan: Span,
    pub destructive_kinds: Vec<String>,
}

impl Default for IdentitySection {
    fn default() -> Self {
        Self {
            uri_path: gateway_shard::DEFAULT_PATH.to_owned(),
            unknown_serial: UnknownSerials::Refuse,
            clock_skew: Span::seconds(0),
            revocation_poll: Span::seconds(1),
            revocation_scan: Span::seconds(60),
            destructive_kinds: Vec::new(),
        }
    }
}

/// `[shards]`: the threads that own the sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShardsSection {
    pub cpus: Option<CpuList>,
    pub count: Option<u16>,
    pub pin: Option<bool>,
    pub spin: Span,
    pub doze: Span,
    pub receive_bytes: Size,
    pub queue_messages: usize,
}

impl Default for ShardsSection {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            cpus: None,
            count: None,
            pin: None,
            spin: Span::seconds(0),
            doze: Span(Duration::from_millis(100)),
            receive_bytes: Size(limits.receive_bytes_per_shard),
            queue_messages: limits.to_shard_messages,
        }
    }
}

/// `[db_writer]`: the thread between the shards and PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DbWriterSection {
    pub cpu: Option<usize>,
    pub queue_messages: usize,
    pub queue_bytes: Size,
}

impl Default for DbWriterSection {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            cpu: None,
            queue_messages: limits.to_writer_messages,
            queue_bytes: Size(limits.to_writer_bytes),
        }
    }
}

/// `[database]`: how PostgreSQL is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DatabaseSection {
    pub url: Option<String>,
    pub url_file: Option<PathBuf>,
    pub listen_url: Option<String>,
    pub listen_url_file: Option<PathBuf>,
    pub notify: bool,
}

impl Default for DatabaseSection {
    fn default() -> Self {
        Self { url: None, url_file: None, listen_url: None, listen_url_file: None, notify: true }
    }
}

/// `[admission]`: who may open a session or join, and how many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdmissionSection {
    pub opens_per_second: u32,
    pub opens_burst: u32,
    pub joins_per_second: u32,
    pub joins_burst: u32,
    pub max_streams: usize,
    pub max_pending_hellos: usize,
    pub connections_per_certificate: u32,
    pub anonymous_connections: usize,
    pub handshakes_at_once: usize,
}

impl Default for AdmissionSection {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            opens_per_second: limits.opens_per_second,
            opens_burst: limits.opens_burst,
            joins_per_second: limits.joins_per_second,
            joins_burst: limits.joins_burst,
            max_streams: limits.streams,
            max_pending_hellos: limits.pending_hellos,
            connections_per_certificate: limits.connections_per_certificate,
            anonymous_connections: limits.anonymous_connections,
            handshakes_at_once: limits.handshakes_at_once,
        }
    }
}

/// `[sessions]`: what one node may cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SessionsSection {
    pub frame_bytes: Size,
    pub result_bytes: Size,
    pub events_per_batch: usize,
    pub lanes_per_node: usize,
    pub known_commands: usize,
    pub specs_per_node: usize,
    pub sections_per_node: usize,
    pub header_list_bytes: Size,
    pub streams_per_connection: u32,
    pub inbox_frames: usize,
    pub inbox_bytes: Size,
    pub outbox_bytes: Size,
    pub handshake_timeout: Span,
    pub hello_timeout: Span,
    pub streamless_timeout: Span,
    pub heartbeat_interval: Span,
    pub missed_heartbeats: u32,
    pub send_timeout: Span,
    pub liveness_write_every: Span,
    pub duplicate_flips: u32,
    pub duplicate_window: Span,
}

impl Default for SessionsSection {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            frame_bytes: Size(limits.frame_bytes),
            result_bytes: Size(limits.result_bytes),
            events_per_batch: limits.events_per_batch,
            lanes_per_node: limits.lanes_per_node,
            known_commands: limits.known_commands,
            specs_per_node: limits.specs_per_node,
            sections_per_node: limits.sections_per_node,
            header_list_bytes: Size(limits.header_list_bytes as usize),
            streams_per_connection: limits.streams_per_connection,
            inbox_frames: limits.session_inbox_frames,
            inbox_bytes: Size(limits.session_inbox_bytes),
            outbox_bytes: Size(limits.session_outbox_bytes),
            handshake_timeout: Span(limits.handshake_timeout),
            hello_timeout: Span(limits.hello_timeout),
            streamless_timeout: Span(limits.streamless_timeout),
            heartbeat_interval: Span(limits.heartbeat_interval),
            missed_heartbeats: limits.missed_heartbeats,
            send_timeout: Span(limits.send_timeout),
            liveness_write_every: Span(limits.liveness_write_every),
            duplicate_flips: limits.duplicates.flips,
            duplicate_window: Span(limits.duplicates.within),
        }
    }
}

/// Whether a commit waits for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    Synchronous,
    Asynchronous,
}

/// `[dispatch]`: how commands find their nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DispatchSection {
    pub poll_every: Span,
    pub durability: Durability,
}

impl Default for DispatchSection {
    fn default() -> Self {
        Self { poll_every: Span::seconds(1), durability: Durability::Asynchronous }
    }
}

/// `[group_commit]`: how much shares a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GroupCommitSection {
    pub batch_entries: usize,
    pub batch_bytes: Size,
}

impl Default for GroupCommitSection {
    fn default() -> Self {
        let limits = Limits::default();
        Self { batch_entries: limits.batch_entries, batch_bytes: Size(limits.batch_bytes) }
    }
}

/// `[lease]`: the right to act as this gateway id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LeaseSection {
    pub ttl: Span,
    pub renew_every: Span,
}

impl Default for LeaseSection {
    fn default() -> Self {
        Self { ttl: Span::seconds(20), renew_every: Span::seconds(5) }
    }
}

/// `[sweeps]`: what one gateway does for all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SweepsSection {
    pub every: Span,
}

impl Default for SweepsSection {
    fn default() -> Self {
        Self { every: Span::seconds(5) }
    }
}

/// `[specs]`: desired state, and how it gets to nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpecsSection {
    pub sweep_every: Span,
}

impl Default for SpecsSection {
    fn default() -> Self {
        Self { sweep_every: Span::seconds(30) }
    }
}

/// `[hooks]`: what runs in the database when a node reports something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HooksSection {
    pub timeout: Span,
    pub builtin: bool,
    pub attested_bindings: bool,
    /// Kinds of events, each with its SQL functions.
    pub reports: BTreeMap<String, FunctionNames>,
    /// Kinds of statuses, each with its SQL functions.
    pub statuses: BTreeMap<String, FunctionNames>,
}

impl Default for HooksSection {
    fn default() -> Self {
        Self {
            timeout: Span::seconds(5),
            builtin: true,
            attested_bindings: false,
            reports: BTreeMap::new(),
            statuses: BTreeMap::new(),
        }
    }
}

/// How a log line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Human,
    Json,
}

/// `[log]`: what is written to stderr.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogSection {
    pub format: LogFormat,
    pub level: String,
}

impl Default for LogSection {
    fn default() -> Self {
        Self { format: LogFormat::Human, level: "info".to_owned() }
    }
}

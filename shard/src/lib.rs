//! The side of a gateway that nodes see: one glommio executor a shard, with its own listener, its
//! own TLS connections, HTTP/2 or HTTP/1.1 and WebSocket, and the sessions on them.
//!
//! Bytes come in through `accept` → `handshake` → `connection` or `http1` → `stream` → `session_io`, which
//! drives the machine of `gateway_core::session` over either, or over memory (`local`), by the seam `transport`; `wire` turns protobuf into its frames. What the
//! machine has for the writer leaves through `outbound`, what the writer has to say comes in
//! through `mailbox`. Calls that are passed on go through `relay_io` to the relays, another thread, and come
//! back as mail too; so do the frames of tunnels, through `tunnel_io` and `tunnel_desk`. `executor` alone knows which runtime this is.
//!
//! It never decides about credit, leases, order or admission, and never waits for the writer.
//!
//! 1. One task a connection; a panic in it ends that connection alone.
//! 2. Whatever a peer can make grow is bounded: windows, header lists, partly received frames,
//!    what waits to be sent, handshakes, streams.
//! 3. A session's admission is given back once, and the writer learns its end once, on every way
//!    out, a panic's too.
//! 4. No task and no listener outlives the shard.

mod accept;
mod admitted;
mod backlog;
mod bell;
mod breather;
mod connection;
mod counters;
#[cfg(feature = "fuzz")]
pub mod doors;
mod executor;
mod flood;
mod handshake;
mod health;
mod http1;
mod identity;
mod listener;
mod listener_tls;
pub mod local;
mod mailbox;
mod metronome;
mod outbound;
mod outbox;
mod paced;
mod panics;
mod place;
mod preflight;
mod receive;
mod receive_budget;
mod refusals;
mod relay_io;
mod relay_wire;
mod rest;
mod session_io;
mod shard;
mod sleeper;
mod status;
mod stopping;
mod stream;
mod timers;
pub mod tls;
mod tls_stream;
mod told;
mod transport;
mod tunnel_desk;
mod tunnel_io;
mod tunnel_wire;
mod turnstile;
mod verifier;
mod wire;

use std::sync::Arc;
use std::time::{Duration, Instant};

use gateway_core::admission::Admission;
use gateway_core::ids::ShardId;
use gateway_core::limits::Limits;
use gateway_core::mail::{Inbox, Post};
use gateway_core::relay::RelayRequest;
use gateway_core::seam::{ToShard, ToWriter};
use gateway_core::tunnel::ToTunnels;
use local::VisitorsInbox;
use tls::TlsMaterial;

pub use accept::MAX_ASIDE;
pub use counters::{CloseCounts, Counter, KindCounts, ShardCounters, TransportCounts};
pub use executor::{ShardError, ShardHandle, spawn};
pub use identity::{DEFAULT_PATH, IdentityRules, IdentityRulesError};
pub use listener::{DEFAULT_BACKLOG, bind_reuse_port};
pub use listener_tls::TlsNews;
pub use preflight::{PreflightError, preflight};

/// All that a shard is given.
#[derive(Debug)]
pub struct ShardConfig {
    pub shard: ShardId,
    /// The cpu that its thread is pinned to; `None` leaves it to the kernel.
    pub cpu: Option<usize>,
    /// The start of the process's clock; every thread of a gateway is given the same.
    pub started: Instant,
    pub limits: Arc<Limits>,
    /// The bounds over all shards of the gateway.
    pub admission: Arc<Admission>,
    /// What its listener shows and accepts at first, and what takes its place later.
    pub tls: Arc<TlsMaterial>,
    pub tls_news: Inbox<TlsNews>,
    /// Whether HTTP/1.1 is spoken beside HTTP/2, for WebSocket and calls with one message each way.
    pub websocket: bool,
    /// How a certificate names its node.
    pub identity: Arc<IdentityRules>,
    /// From `bind_reuse_port`; the shard closes it when it stops.
    pub listener: std::net::TcpListener,
    pub writer: Post<ToWriter>,
    pub inbox: Inbox<ToShard>,
    /// To whoever passes calls on; their answers come to `inbox`.
    pub relays: Post<RelayRequest>,
    /// To whoever opens tunnels to nodes; what it says comes to `inbox`.
    pub tunnels: Post<ToTunnels>,
    /// Sessions of nodes in this process, and the word that the gateway is to die.
    pub visitors: VisitorsInbox,
    pub counters: Arc<ShardCounters>,
    /// How long the thread looks for work before it sleeps. Zero on shared cores.
    pub spin: Duration,
    /// How long a shard that gets nothing but heartbeats waits for more of them after each look at its
    /// sockets. Zero answers each at once; a shard that spins never waits.
    pub doze: Duration,
}

//! A gateway as a library: what the binary is made of, and what an embedder starts.
//!
//! `config` reads the TOML, `placement` plans the threads, `serve` wires and supervises them, `operate`
//! is the operator's view of the database, `cli` the command line over all. It decides nothing about sessions or commands.
//!
//! ```no_run
//! let mut running =
//!     gateway::Gateway::builder_from_file("gateway.toml")?.serve(std::time::Duration::from_secs(30))?;
//! println!("nodes connect to {}, {} do", running.address(), running.handle().status().sessions);
//! running.stop();
//! running.join()?;
//! # Ok::<(), gateway::GatewayError>(())
//! ```

pub mod cli;
pub mod client;
pub mod config;
mod error;
pub mod lock_file;
pub mod logging;
mod migrate;
pub mod operate;
pub mod placement;
pub mod serve;

/// Hooks that are written in Rust: what an embedder runs when a node's report or status is stored, in the
/// transaction that stores it.
///
/// ```no_run
/// use gateway::hooks::{EmbeddedHooks, HookFuture, HookTransaction, Report, ReportHook, sqlx};
///
/// struct DoorLog;
///
/// impl ReportHook for DoorLog {
///     fn name(&self) -> &str {
///         "door-log"
///     }
///
///     fn on_report<'a>(&'a self, report: Report<'a>, transaction: &'a mut HookTransaction<'_>) -> HookFuture<'a> {
///         Box::pin(async move {
///             sqlx::query("INSERT INTO doors (node_id, seq, body) VALUES ($1, $2, $3)")
///                 .bind(report.node.as_str())
///                 .bind(report.event.seq.0 as i64)
///                 .bind(&report.event.body[..])
///                 .execute(&mut *transaction.connection())
///                 .await?;
///             transaction.enqueue_work("door.look", report.node.as_str(), "{}").await?;
///             Ok(())
///         })
///     }
/// }
///
/// let config = gateway::config::Config::load("gateway.toml".as_ref())?;
/// let hooks = EmbeddedHooks::default().on_report("door.opened", DoorLog);
/// let running = gateway::Gateway::start_with(&config, hooks)?;
/// running.join()?;
/// # Ok::<(), gateway::GatewayError>(())
/// ```
pub mod hooks {
    pub use gateway_core::frame::{Attested, Event, Status};
    pub use gateway_core::ids::{EventSeq, JournalId, NodeId};
    pub use gateway_db_writer::hooks::{
        EmbeddedHooks, HookError, HookFuture, HookTransaction, Report, ReportHook, StatusHook, StatusReport,
    };
    pub use sqlx;
}

/// Services that are written in Rust, in place of those that `[upstream]` names: who gives machines their
/// certificates, and nodes their secrets.
///
/// ```no_run
/// use gateway::relays::{Caller, EmbeddedRelays, FetchSecret, Hidden, Refusal, RefusalCode, RelayFuture, Secret, SecretBroker};
///
/// struct Motd;
///
/// impl SecretBroker for Motd {
///     fn fetch_secret(&self, caller: Caller, fetch: FetchSecret) -> RelayFuture<'_, Secret> {
///         Box::pin(async move {
///             if fetch.name != "motd" {
///                 return Err(Refusal::new(RefusalCode::NotFound, "there is no such secret"));
///             }
///             let value = Hidden(format!("hello, {}", caller.identity.site).into());
///             Ok(Secret { value, version: "1".to_owned(), expires_at_unix_ms: 0 })
///         })
///     }
/// }
///
/// let config = gateway::config::Config::load("gateway.toml".as_ref())?;
/// let relays = EmbeddedRelays::default().on_fetch_secret(Motd);
/// let running = gateway::Gateway::start_with(&config, relays)?;
/// running.join()?;
/// # Ok::<(), gateway::GatewayError>(())
/// ```
pub mod relays {
    pub use crate::serve::EmbeddedRelays;
    pub use gateway_control::relay::{JoinService, RelayFuture, RenewalService, SecretBroker};
    pub use gateway_core::relay::{
        Caller, FetchSecret, Hidden, Issued, Join, Refusal, RefusalCode, Renew, Secret,
    };
    pub use gateway_core::seam::Identity;
}

/// Services that are written in Rust, in place of those that `[tunnels]` names: where the keys of tickets are
/// published, and who says whether a caller may still have its tunnel.
pub mod tunnels {
    pub use crate::serve::EmbeddedTunnels;
    pub use gateway_control::tunnel::{IamFuture, JwksFuture, TicketKeys, TunnelIam};
    pub use gateway_core::tunnel::TunnelId;
    pub use gateway_core::tunnel::registry::{IamQuestion, IamVerdict};
}

/// Sessions of nodes that live in the program itself: frames in memory, without a socket, TLS or HTTP.
///
/// A node's frames are messages of `gateway.v1` (`NodeFrame`, `GatewayFrame`), encoded and without a prefix. Who it
/// is, which a certificate would have proven, the program says: the node id, the certificate's serial and its end.
/// All the rest is as over a socket: see [`GatewayHandle::open`](crate::GatewayHandle::open), and
/// `gateway/examples/embedded.rs` for a whole program.
///
/// ```no_run
/// use gateway::local::{FromGateway, LocalPeer};
///
/// # async fn node(gateway: gateway::GatewayHandle, hello: bytes::Bytes) -> Result<(), Box<dyn std::error::Error>> {
/// let mut connection = gateway.connect(LocalPeer {
///     node: "spiffe://fleet.example/site/ams1/node/n-7".to_owned(),
///     certificate_serial: "5F00A1".to_owned(),
///     ends_at: std::time::SystemTime::now() + std::time::Duration::from_secs(3600),
/// })?;
/// connection.sender.send(hello).await?;
/// loop {
///     match connection.receiver.recv().await {
///         FromGateway::Frame(frame) => println!("{} bytes", frame.len()),
///         // With its status, its sentence, and how long to wait before the next try.
///         FromGateway::Ended(end) => return Ok(println!("{end}")),
///     }
/// }
/// # }
/// ```
pub mod local {
    pub use gateway_shard::local::{
        CallEnd, FrameConnection, FrameReceiver, FrameSender, FrameSink, FromGateway, LocalPeer, Refused,
        SessionOver, Taken,
    };
}

/// What a program is told of its gateway and its sessions.
pub mod report {
    pub use crate::serve::{AskError, Drained};
    pub use gateway_control::{
        Headroom, Health, LeaseHealth, LoopHealth, QueueHealth, Room, ShardHealth, SweepHealth,
    };
    pub use gateway_core::desk::{LaneReport, SessionReport};
    pub use gateway_core::drain::DrainPlan;
    pub use gateway_core::ids::{NodeId, SessionKey};
    pub use gateway_core::writer::Phase;
}

pub use error::GatewayError;
pub use migrate::migrate;
pub use serve::{Embedded, Gateway, GatewayBuilder, GatewayHandle, RunningGateway, Stopper};

//! A gateway as a library: what the binary is made of, and what an embedder starts.
//!
//! `config` reads the TOML, `placement` plans the threads, `serve` wires and supervises them, `operate`
//! is the operator's view of the database, `cli` the command line over all. It decides nothing about sessions or commands.
//!
//! ```no_run
//! let config = gateway::config::Config::load("gateway.toml".as_ref())?;
//! let mut running = gateway::Gateway::start(&config)?;
//! running.wait_until_serving(std::time::Duration::from_secs(30))?;
//! println!("nodes connect to {}", running.address());
//! running.stop();
//! running.join()?;
//! # Ok::<(), gateway::GatewayError>(())
//! ```

pub mod cli;
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

pub use error::GatewayError;
pub use migrate::migrate;
pub use serve::{Gateway, RunningGateway, Stopper};

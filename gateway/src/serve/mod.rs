//! A gateway that runs: its threads wired, watched and ended in good order.
//!
//! `start` builds what the threads share and starts them; `supervision` learns of every end; `run` is
//! the life of the binary around it: readiness, signals, the watchdog, the exit code.
//!
//! 1. No thread ends unnoticed: a shard or a writer that ends unasked ends the gateway.
//! 2. Readiness is told when the lease is held and every listener is up, not before.
//! 3. A clean stop is the writer's to carry out: it tells the shards, writes, releases the lease.

mod api;
mod builder;
mod embedded;
mod files;
mod handle;
mod health;
mod hooks;
mod latencies;
mod limits;
mod loops;
mod mail;
mod readings;
mod relays;
mod run;
mod running;
mod signals;
mod start;
mod supervision;
mod tls_watch;
mod tunnels;
mod watchdog;

pub use builder::GatewayBuilder;
pub use embedded::Embedded;
pub use files::check_files;
pub use handle::{AskError, Drained, GatewayHandle};
pub(crate) use loops::is_thread;
pub use readings::Readings;
pub use relays::EmbeddedRelays;
pub use run::run;
pub use running::{RunningGateway, Stopper};
pub use start::Gateway;
pub use tunnels::EmbeddedTunnels;

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

pub use error::GatewayError;
pub use migrate::migrate;
pub use serve::{Gateway, RunningGateway, Stopper};

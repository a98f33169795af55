//! A gateway as a library: what the binary is made of, and what an embedder starts.
//!
//! `config` reads the TOML, `placement` plans the threads, `serve` wires and supervises them, `cli` is
//! the command line over them.

pub mod cli;
pub mod config;
pub mod error;
pub mod lock_file;
pub mod logging;
pub mod placement;
pub mod serve;

pub use error::GatewayError;
pub fn migrate(_u: &config::DatabaseUrl) -> Result<(), GatewayError> {
    Ok(())
}

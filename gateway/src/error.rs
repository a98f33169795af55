//! Why a gateway did not start or ended, split by what its exit code says.
//!
//! 1. Every error is a sentence for the person who reads it: what, where, what to do.
//! 2. Configuration and placement end with 2, everything else with 1.

use crate::config::ConfigError;
use crate::placement::PlacementError;

/// What ends a command with another code than 0.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The configuration is wrong; nothing was started.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The pins can't be had on this machine; nothing was started.
    #[error("{0}")]
    Placement(#[from] PlacementError),
    /// The machine does not give what is needed: limits, files, ports, threads.
    #[error("{0}")]
    Machine(String),
    /// Another process acts as this gateway.
    #[error("{0}")]
    AlreadyRunning(String),
    /// The database can't be worked with.
    #[error("{0}")]
    Database(String),
    /// The database does not answer now; it may later.
    #[error("{0}")]
    DatabaseAway(String),
    /// A running gateway can't be asked, or does not do what it was asked for.
    #[error("{0}")]
    Control(String),
    /// A thread that a gateway can't live without has ended.
    #[error("{0}")]
    ThreadEnded(String),
    /// The clean stop took too long or was cut short.
    #[error("{0}")]
    Stop(String),
}

impl GatewayError {
    /// The exit code of a process that ends for this reason.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Placement(_) => 2,
            _ => 1,
        }
    }
}

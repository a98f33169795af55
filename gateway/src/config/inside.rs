//! The sections about what is spoken behind the gateway: the control API, and the services that calls are passed on to.
//!
//! As in `sections`, the comments that an operator reads stand in `configs/gateway.toml`.
//!
//! 1. Both prove themselves by the files of `[tls]` where they have none of their own.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use gateway_core::limits::Limits;
use serde::{Deserialize, Serialize};

use super::units::Span;

/// `[control]`: health and metrics, and the control API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ControlSection {
    pub listen: SocketAddr,
    /// Where the control API is; nowhere where it is not given.
    pub api_listen: Option<SocketAddr>,
    /// Those of `[tls]` where none are given.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub client_ca: Option<PathBuf>,
    /// Empty: whoever the CA vouches for.
    pub clients: Vec<String>,
    pub ping_every: Span,
    pub cpu: Option<usize>,
}

impl Default for ControlSection {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7480)),
            api_listen: None,
            certificate: None,
            key: None,
            client_ca: None,
            clients: Vec::new(),
            ping_every: Span::seconds(20),
            cpu: None,
        }
    }
}

/// `[upstream]`: the services that calls of nodes are passed on to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamSection {
    pub join_url: Option<String>,
    pub renew_url: Option<String>,
    pub secret_url: Option<String>,
    pub ca: Option<PathBuf>,
    /// Those of `[tls]` where none are given.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub timeout: Span,
    pub max_in_flight: usize,
    pub max_waiting: usize,
}

impl Default for UpstreamSection {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            join_url: None,
            renew_url: None,
            secret_url: None,
            ca: None,
            certificate: None,
            key: None,
            timeout: Span(limits.relay_timeout),
            max_in_flight: limits.relays_in_flight,
            max_waiting: limits.relays_waiting,
        }
    }
}

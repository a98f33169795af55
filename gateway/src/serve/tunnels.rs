//! What tunnels need of a gateway: the keys of tickets and the IAM service, of its configuration or an embedder's.
//!
//! It only puts them together; what is opened, and for whom, is the tunnels' room's.
//!
//! 1. An embedder's service takes the place of the one that the configuration names.
//! 2. Tunnels are offered where there are keys, an IAM service and a control API; else nodes are not even told
//!    of them.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use gateway_control::relay::UpstreamAddress;
use gateway_control::tunnel::{
    JwksFile, JwksUrl, TicketKeys, TunnelConfig, TunnelIam, TunnelStatus, UpstreamIam,
};
use gateway_core::limits::{Limits, TunnelLimits};
use gateway_core::mail::{Inbox, Post};
use gateway_core::seam::ToShard;
use gateway_core::tunnel::ToTunnels;

use super::files;
use crate::config::{Config, ConfigError, Lines};

/// Services that are written in Rust, in place of those of `[tunnels]`. See [`crate::tunnels`].
#[derive(Clone, Default)]
pub struct EmbeddedTunnels {
    keys: Option<Arc<dyn TicketKeys>>,
    iam: Option<Arc<dyn TunnelIam>>,
}

impl fmt::Debug for EmbeddedTunnels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedTunnels")
            .field("keys", &self.keys.is_some())
            .field("iam", &self.iam.is_some())
            .finish()
    }
}

impl EmbeddedTunnels {
    /// The keys of tickets are had from here.
    #[must_use]
    pub fn with_keys(self, keys: impl TicketKeys) -> Self {
        Self { keys: Some(Arc::new(keys)), ..self }
    }

    /// Callers are asked about here.
    #[must_use]
    pub fn with_iam(self, iam: impl TunnelIam) -> Self {
        Self { iam: Some(Arc::new(iam)), ..self }
    }
}

/// What there is for tunnels.
pub(super) struct TunnelServices {
    keys: Option<Arc<dyn TicketKeys>>,
    iam: Option<Arc<dyn TunnelIam>>,
}

impl TunnelServices {
    /// What the embedder and the configuration give.
    pub(super) fn of(config: &Config, embedded: EmbeddedTunnels) -> Result<Self, ConfigError> {
        let (section, timeout) = (&config.tunnels, config.upstream.timeout.0);
        let upstream = files::upstream_files(config)?;
        let keys: Option<Arc<dyn TicketKeys>> = match (&section.jwks_file, &section.jwks_url, &upstream) {
            (Some(file), ..) => Some(Arc::new(JwksFile(file.clone()))),
            (None, Some(url), Some(files)) => {
                let url =
                    JwksUrl::new(url, files.clone(), timeout).map_err(|why| refused("jwks_url", why))?;
                Some(Arc::new(url))
            }
            _ => None,
        };
        let iam: Option<Arc<dyn TunnelIam>> = match (&section.iam_url, upstream) {
            (Some(url), Some(files)) => {
                let address = UpstreamAddress::parse(url).map_err(|why| refused("iam_url", why))?;
                Some(Arc::new(UpstreamIam::new(address, files, config.gateway.id.clone(), timeout)))
            }
            _ => None,
        };
        Ok(Self { keys: embedded.keys.or(keys), iam: embedded.iam.or(iam) })
    }

    /// The bounds of the gateway, in which tunnels are offered only where they can be.
    pub(super) fn limits(&self, config: &Config) -> Arc<Limits> {
        let are_offered = self.keys.is_some() && self.iam.is_some() && config.control.api_listen.is_some();
        let tunnels: Arc<TunnelLimits> = Arc::new(config.tunnel_limits(are_offered));
        Arc::new(Limits { tunnels, ..config.limits() })
    }

    /// What the room is given.
    pub(super) fn room(
        self,
        config: &Config,
        limits: &Limits,
        inbox: Inbox<ToTunnels>,
        to_shards: Vec<Post<ToShard>>,
        started: Instant,
        status: Arc<TunnelStatus>,
    ) -> TunnelConfig {
        TunnelConfig {
            inbox,
            to_shards,
            limits: Arc::clone(&limits.tunnels),
            started,
            keys: self.keys,
            iam: self.iam,
            audience: config.tunnels.audience.clone(),
            keys_max_age: config.tunnels.jwks_max_age.0,
            keys_timeout: config.upstream.timeout.0,
            taken_within: limits.send_timeout,
            status,
        }
    }
}

fn refused(key: &str, why: String) -> ConfigError {
    ConfigError { file: None, problems: vec![Lines::default().problem(&format!("tunnels.{key}"), why)] }
}

//! The relays of a gateway: the services of its configuration, and those that an embedder has written.
//!
//! It only puts them together, and lets the relays read rows of certificates; what is passed on, and to
//! whom, is theirs.
//!
//! 1. An embedder's service takes the place of the one that the configuration names.

use std::fmt;
use std::sync::Arc;

use gateway_control::relay::{
    CertificateLook, Certificates, CertificatesAway, JoinService, RelayServices, RenewalService,
    SecretBroker, Upstream, UpstreamAddress, UpstreamFiles,
};
use gateway_core::ids::GatewayId;
use gateway_core::relay::RelayKind;
use gateway_db_writer::CertificateReader;

use super::files;
use crate::config::{Config, ConfigError, DatabaseUrl, Lines};

/// Services that are written in Rust, in place of those of `[upstream]`. See [`crate::relays`].
#[derive(Clone, Default)]
pub struct EmbeddedRelays {
    join: Option<Arc<dyn JoinService>>,
    renewal: Option<Arc<dyn RenewalService>>,
    secrets: Option<Arc<dyn SecretBroker>>,
}

impl fmt::Debug for EmbeddedRelays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedRelays")
            .field("join", &self.join.is_some())
            .field("renewal", &self.renewal.is_some())
            .field("secrets", &self.secrets.is_some())
            .finish()
    }
}

impl EmbeddedRelays {
    /// Joins go to this service.
    #[must_use]
    pub fn on_join(self, service: impl JoinService) -> Self {
        Self { join: Some(Arc::new(service)), ..self }
    }

    /// Renewals go to this service.
    #[must_use]
    pub fn on_renew(self, service: impl RenewalService) -> Self {
        Self { renewal: Some(Arc::new(service)), ..self }
    }

    /// Secrets are asked of this service.
    #[must_use]
    pub fn on_fetch_secret(self, service: impl SecretBroker) -> Self {
        Self { secrets: Some(Arc::new(service)), ..self }
    }
}

/// Who answers which call.
pub(super) fn services(
    config: &Config,
    embedded: EmbeddedRelays,
    database: &DatabaseUrl,
) -> Result<RelayServices, ConfigError> {
    let upstream = &config.upstream;
    let files = files::upstream_files(config)?;
    let named = |kind, url: &Option<String>| named(config, kind, url.as_deref(), files.as_ref());
    let join = named(RelayKind::Join, &upstream.join_url)?;
    let renewal = named(RelayKind::Renew, &upstream.renew_url)?;
    let secrets = named(RelayKind::FetchSecret, &upstream.secret_url)?;
    let refused = |key: &str, sentence: String| ConfigError {
        file: None,
        problems: vec![Lines::default().problem(key, sentence)],
    };
    let gateway =
        GatewayId::new(&config.gateway.id).map_err(|error| refused("gateway.id", error.to_string()))?;
    let reader = CertificateReader::new(database.reveal(), &gateway)
        .map_err(|_| refused("database.url", "is no URL of a PostgreSQL database".to_owned()))?;
    Ok(RelayServices {
        join: embedded.join.or_else(|| join.map(|service| Arc::new(service) as _)),
        renewal: embedded.renewal.or_else(|| renewal.map(|service| Arc::new(service) as _)),
        secrets: embedded.secrets.or_else(|| secrets.map(|service| Arc::new(service) as _)),
        certificates: Arc::new(Rows(reader)),
    })
}

fn named(
    config: &Config,
    kind: RelayKind,
    url: Option<&str>,
    files: Option<&UpstreamFiles>,
) -> Result<Option<Upstream>, ConfigError> {
    let (Some(url), Some(files)) = (url, files) else { return Ok(None) };
    let address = UpstreamAddress::parse(url).map_err(|sentence| ConfigError {
        file: None,
        problems: vec![Lines::default().problem("upstream", sentence)],
    })?;
    let (id, timeout) = (config.gateway.id.clone(), config.upstream.timeout.0);
    Ok(Some(Upstream::new(kind, address, files.clone(), id, timeout)))
}

/// The rows of certificates in the gateway's database.
struct Rows(CertificateReader);

impl Certificates for Rows {
    fn look<'a>(&'a self, serial: &'a str) -> CertificateLook<'a> {
        Box::pin(async move { self.0.look(serial).await.map_err(|_| CertificatesAway) })
    }
}

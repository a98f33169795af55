//! The TLS side of the listeners: what a gateway shows of itself and what it accepts of nodes.
//!
//! 1. TLS 1.3 alone, one provider (`ring`); HTTP/2, and HTTP/1.1 where it is wanted.
//! 2. A client certificate is optional in the handshake (Join needs none), and if one is shown it chains to one of
//!    the node roots, is valid now, has the clientAuth usage and is not revoked, or the handshake fails.
//! 3. No tickets, no resumption, no early data: every connection proves itself anew.

use std::sync::Arc;
use std::time::Duration;

use gateway_core::revocation::RevokedSet;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

use crate::identity::serial_hex;
use crate::refusals::Refusals;
use crate::verifier::NodeVerifier;

/// Which of the PEM files is wrong, and how.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{file} is not readable as PEM: {why}")]
    NotPem { file: &'static str, why: String },
    #[error("{file} holds no certificate")]
    NoCertificate { file: &'static str },
    #[error("the serving key holds no private key (PKCS#8, PKCS#1 or SEC1 PEM)")]
    NoKey,
    #[error("certificate {position} of the node roots can't be a root: {why}")]
    BadRoot { position: usize, why: String },
    #[error("the serving key is no key that can be used: {0}")]
    BadKey(String),
    #[error("the serving key does not belong to the first certificate of the serving chain")]
    KeyMismatch,
    #[error("the serving chain or its key can't be used: {0}")]
    BadServing(String),
    #[error("the serving certificate counts from {from} to {until}, now is {now}; no node would accept it")]
    ServingOutOfTime { from: String, until: String, now: String },
    #[error("the serving certificate is not for servers: its extended key usage lacks serverAuth")]
    ServingNotForServers,
    #[error("the serving certificate names no host (subject alternative name); no node would accept it")]
    ServingNamesNobody,
    #[error("the node roots can't be used: {0}")]
    BadRoots(String),
}

const SERVING_CHAIN: &str = "the serving certificate chain";
const NODE_ROOTS: &str = "the file of node roots";

/// What listeners show of the gateway and accept of nodes. What is revoked comes on top: see `server_config`.
#[derive(Debug)]
pub struct TlsMaterial {
    provider: Arc<CryptoProvider>,
    shown: Arc<dyn ResolvesServerCert>,
    chains: Arc<dyn ClientCertVerifier>,
    leeway: Duration,
    serving: Serving,
    /// Here, since a verifier lives no longer than one set of what is revoked.
    refusals: Arc<Refusals>,
}

/// What an operator wants to know of the serving certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serving {
    /// Upper-case hex.
    pub serial: String,
    /// As text, with the date's zone.
    pub until: String,
    /// Since 1970.
    pub ends_at: Duration,
}

impl TlsMaterial {
    /// From three PEM texts: the serving chain (leaf first), its key, and the certificates that node certificates
    /// must chain to. `leeway` is how far a certificate may be out of its time, since clocks differ.
    pub fn new(
        cert_chain_pem: &[u8],
        key_pem: &[u8],
        node_roots_pem: &[u8],
        leeway: Duration,
    ) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = certificates(cert_chain_pem, SERVING_CHAIN)?;
        let serving = serving(chain.first().map_or(&[], |leaf| leaf.as_ref()), leeway)?;
        let key = private_key(key_pem)?;
        let loaded = provider.key_provider.load_private_key(key.clone_key());
        loaded.map_err(|error| TlsError::BadKey(error.to_string()))?;
        let roots = Arc::new(node_roots(node_roots_pem)?);
        let chains = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .allow_unauthenticated()
            // The hints would only tell strangers the names of the operator's authorities.
            .clear_root_hint_subjects()
            .build()
            .map_err(|error| TlsError::BadRoots(error.to_string()))?;
        let shown = CertifiedKey::from_der(chain, key, &provider).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => TlsError::KeyMismatch,
            other => TlsError::BadServing(other.to_string()),
        })?;
        Ok(Self {
            provider,
            shown: Arc::new(SingleCertAndKey::from(shown)),
            chains,
            leeway,
            serving,
            refusals: Arc::default(),
        })
    }

    /// The certificate that nodes are shown.
    pub fn serving(&self) -> &Serving {
        &self.serving
    }

    /// How far a certificate may be out of its time.
    pub fn leeway(&self) -> Duration {
        self.leeway
    }

    /// What the log was told of refused certificates.
    pub(crate) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// The configuration of listeners that refuse what is revoked and speak these protocols, by ALPN.
    pub(crate) fn server_config(&self, revoked: &Arc<RevokedSet>, protocols: &[&[u8]]) -> Arc<ServerConfig> {
        let verifier = NodeVerifier {
            chains: Arc::clone(&self.chains),
            leeway: self.leeway,
            revoked: Arc::clone(revoked),
            refusals: Arc::clone(&self.refusals),
        };
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("ring speaks TLS 1.3")
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(Arc::clone(&self.shown));
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Arc::new(config)
    }
}

/// What a leaf says of itself, if nodes would take it for a server's now.
fn serving(leaf: &[u8], leeway: Duration) -> Result<Serving, TlsError> {
    let (_, parsed) =
        X509Certificate::from_der(leaf).map_err(|_| TlsError::BadServing("it is malformed".to_owned()))?;
    let unreadable = |_| TlsError::BadServing("it has an extension that can't be read".to_owned());
    if let Some(usage) = parsed.extended_key_usage().map_err(unreadable)?
        && !usage.value.server_auth
        && !usage.value.any
    {
        return Err(TlsError::ServingNotForServers);
    }
    if parsed.subject_alternative_name().map_err(unreadable)?.is_none() {
        return Err(TlsError::ServingNamesNobody);
    }
    let (time, now) = (parsed.validity(), ASN1Time::now());
    let leeway = i64::try_from(leeway.as_secs()).unwrap_or(i64::MAX);
    let (from, until) = (time.not_before.timestamp(), time.not_after.timestamp());
    if !(from.saturating_sub(leeway)..=until.saturating_add(leeway)).contains(&now.timestamp()) {
        let (from, until) = (time.not_before.to_string(), time.not_after.to_string());
        return Err(TlsError::ServingOutOfTime { from, until, now: now.to_string() });
    }
    let ends_at = Duration::from_secs(u64::try_from(until).unwrap_or_default());
    let serial = serial_hex(parsed.raw_serial());
    Ok(Serving { serial, until: time.not_after.to_string(), ends_at })
}

fn certificates(pem: &[u8], file: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| TlsError::NotPem { file, why: what_is_wrong(&error).to_owned() })?;
    if found.is_empty() { Err(TlsError::NoCertificate { file }) } else { Ok(found) }
}

/// Of a text that is no PEM; without its bytes, which may be many.
fn what_is_wrong(error: &rustls_pki_types::pem::Error) -> &'static str {
    use rustls_pki_types::pem::Error;

    match error {
        Error::MissingSectionEnd { .. } => "a section has no END line",
        Error::IllegalSectionStart { .. } => "a BEGIN line does not end as it must",
        Error::Base64Decode(_) => "a section is not base64",
        Error::NoItemsFound => "it holds no section",
        _ => "a section is malformed",
    }
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        rustls_pki_types::pem::Error::NoItemsFound => TlsError::NoKey,
        // The text of other errors could repeat a line of the key.
        _ => TlsError::NotPem { file: "the serving key", why: "a section is malformed".to_owned() },
    })
}

/// Whether it may sign others; one that can't be read is refused as what it is, elsewhere.
fn is_authority(certificate: &[u8]) -> bool {
    X509Certificate::from_der(certificate).map_or(true, |(_, parsed)| parsed.is_ca())
}

fn node_roots(pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for (index, certificate) in certificates(pem, NODE_ROOTS)?.into_iter().enumerate() {
        if !is_authority(&certificate) {
            let why = "it is no authority's: basicConstraints lacks CA:TRUE".to_owned();
            return Err(TlsError::BadRoot { position: index + 1, why });
        }
        roots
            .add(certificate)
            .map_err(|error| TlsError::BadRoot { position: index + 1, why: error.to_string() })?;
    }
    Ok(roots)
}

//! The TLS of the API's listener: internal mTLS, and the names that a client's certificate bears.
//!
//! 1. TLS 1.3 alone, one provider (`ring`), HTTP/2 alone; no tickets, no resumption.
//! 2. A client shows a certificate of the CA that is named for clients, with the clientAuth usage, or the
//!    handshake fails.
//! 3. No error repeats what stands in a file.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// One of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiFile {
    Certificate,
    Key,
    ClientCa,
}

/// Which file can't be used, and why.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct ApiTlsError {
    pub file: ApiFile,
    pub why: String,
}

/// What new connections get.
#[derive(Debug)]
pub struct ApiTls {
    config: Arc<ServerConfig>,
    clients: Arc<dyn ClientCertVerifier>,
}

impl ApiTls {
    /// From three PEM texts: the chain that is shown (leaf first), its key, and the CA of clients.
    pub fn new(chain_pem: &[u8], key_pem: &[u8], client_ca_pem: &[u8]) -> Result<Self, ApiTlsError> {
        let unusable = |file, why: String| ApiTlsError { file, why };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = certificates(chain_pem, ApiFile::Certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(|_| {
            unusable(ApiFile::Key, "holds no private key (PKCS#8, PKCS#1 or SEC1 PEM)".to_owned())
        })?;
        let mut roots = RootCertStore::empty();
        for root in certificates(client_ca_pem, ApiFile::ClientCa)? {
            roots
                .add(root)
                .map_err(|error| unusable(ApiFile::ClientCa, format!("can't be a root: {error}")))?;
        }
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|error| unusable(ApiFile::ClientCa, error.to_string()))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unusable(ApiFile::Certificate, error.to_string()))?
            .with_client_cert_verifier(Arc::clone(&clients))
            .with_single_cert(chain, key)
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    unusable(ApiFile::Key, "does not belong to the first certificate of the chain".to_owned())
                }
                other => unusable(ApiFile::Certificate, other.to_string()),
            })?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self { config: Arc::new(config), clients })
    }

    pub(crate) fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Whether a client that shows this chain now would come through the handshake.
    pub(crate) fn vouches_for(&self, chain: &[CertificateDer<'_>]) -> bool {
        let Some((leaf, rest)) = chain.split_first() else { return false };
        self.clients.verify_client_cert(leaf, rest, UnixTime::now()).is_ok()
    }
}

/// How long a chain goes on to be valid by the dates of its leaf; not at all where they can't be read.
pub(crate) fn valid_for(chain: &[CertificateDer<'_>]) -> Duration {
    let parsed = chain.first().and_then(|leaf| X509Certificate::from_der(leaf).ok());
    let ends_at = parsed.and_then(|(_, leaf)| u64::try_from(leaf.validity().not_after.timestamp()).ok());
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_secs(ends_at.unwrap_or_default()).saturating_sub(since_1970)
}

/// The names of a client's certificate, each a DNS name or a URI; none where it can't be read.
pub(crate) fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(names)) = parsed.subject_alternative_name() else { return Vec::new() };
    let text = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) => Some((*name).to_owned()),
        _ => None,
    };
    names.value.general_names.iter().filter_map(text).collect()
}

fn certificates(pem: &[u8], file: ApiFile) -> Result<Vec<CertificateDer<'static>>, ApiTlsError> {
    let unusable = |why: &str| ApiTlsError { file, why: why.to_owned() };
    let found = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        // The text of the error could repeat the file, however long it is.
        .map_err(|_| unusable("is not readable as PEM"))?;
    if found.is_empty() { Err(unusable("holds no certificate")) } else { Ok(found) }
}

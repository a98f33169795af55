//! How the gateway proves itself to the services behind it, and they to it: internal mTLS.
//!
//! The files are read at each dial, so that renewed ones are used from the next connection on; a
//! connection that stands keeps what it was made with.
//!
//! 1. TLS 1.3 alone, one provider (`ring`), HTTP/2 alone; both sides show a certificate.
//! 2. A service's certificate must chain to the CA that is named for services, and carry the name dialled.
//! 3. No error repeats what stands in a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::small_file;

/// PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamFiles {
    /// The CA certificates that services' certificates must chain to.
    pub ca: PathBuf,
    /// The gateway's own chain, leaf first, with the clientAuth usage.
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Which file can't be used, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", .file.display())]
pub struct UpstreamTlsError {
    pub file: PathBuf,
    pub why: String,
}

impl UpstreamFiles {
    /// What a dial uses, of what the files hold now.
    pub fn client_config(&self) -> Result<Arc<ClientConfig>, UpstreamTlsError> {
        let mut roots = RootCertStore::empty();
        for root in certificates(&self.ca)? {
            roots.add(root).map_err(|error| unusable(&self.ca, &error.to_string()))?;
        }
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&read(&self.key)?)
            .map_err(|_| unusable(&self.key, "holds no private key (PKCS#8, PKCS#1 or SEC1 PEM)"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unusable(&self.certificate, &error.to_string()))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| unusable(&self.key, &error.to_string()))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, UpstreamTlsError> {
    let pem = read(file)?;
    let found = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<Vec<_>, _>>()
        // The text of the error could repeat the file, however long it is.
        .map_err(|_| unusable(file, "is not readable as PEM"))?;
    if found.is_empty() { Err(unusable(file, "holds no certificate")) } else { Ok(found) }
}

fn read(file: &Path) -> Result<Vec<u8>, UpstreamTlsError> {
    small_file::read(file).map_err(|error| unusable(file, &error.to_string()))
}

fn unusable(file: &Path, why: &str) -> UpstreamTlsError {
    UpstreamTlsError { file: file.to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_file_repeats_nothing_of_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let ca = folder.path().join("ca.pem");
        std::fs::write(&ca, format!("-----BEGIN s3cret{}", "3".repeat(10_000))).expect("written");
        let files = UpstreamFiles { ca: ca.clone(), certificate: ca.clone(), key: ca.clone() };
        let error = files.client_config().expect_err("no PEM");
        assert_eq!(error.to_string(), format!("{}: is not readable as PEM", ca.display()));
    }
}

//! What signs CSRs for an authority of the testbed, what its services prove themselves with, and what a
//! client of a gateway makes its TLS of.
//!
//! 1. A certificate is for the identity that its issuer was told, whatever the CSR asks for.
//! 2. A CSR that its own key has not signed is refused.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateSigningRequestParams, ExtendedKeyUsagePurpose, SanType};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer};

use super::{
    Authority, CERTIFICATE_LIFE, CONTROL_CLIENT, ControlFiles, Identity, Pki, PkiError, SITE, finish,
    hex_serial, new_key, node_params, node_uri, provider, write_file,
};

/// How much earlier than now a short-lived certificate begins: times in certificates are whole seconds.
const BACKDATED: Duration = Duration::from_secs(1);

/// Signs CSRs of nodes. Cheap to clone; outlives its PKI.
#[derive(Clone)]
pub struct NodeIssuer {
    nodes: Arc<Authority>,
    trust_domain: String,
    servers_pem: String,
}

impl fmt::Debug for NodeIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeIssuer").field("trust_domain", &self.trust_domain).finish_non_exhaustive()
    }
}

/// What came of a CSR.
#[derive(Debug, Clone)]
pub struct IssuedCertificate {
    pub chain_pem: String,
    /// As `node_certs` has it.
    pub serial: String,
    pub not_after: SystemTime,
}

impl NodeIssuer {
    /// The id of the node that goes by `node`.
    pub fn node_id(&self, node: &str) -> String {
        node_uri(&self.trust_domain, SITE, node)
    }

    /// The roots of gateways.
    pub fn server_ca_pem(&self) -> &str {
        &self.servers_pem
    }

    /// A certificate for `node_id` over the key of a CSR, valid from now on for `life`.
    pub fn issue(
        &self,
        csr_der: &[u8],
        node_id: &str,
        life: Duration,
    ) -> Result<IssuedCertificate, PkiError> {
        let csr = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(csr_der))?;
        let mut params = node_params(&[node_id.to_owned()])?;
        let now = SystemTime::now();
        params.not_before = (now - BACKDATED).into();
        params.not_after = (now + life).into();
        let certificate = params.signed_by(&csr.public_key, &self.nodes.0)?;
        let serial = params.serial_number.as_ref().map(rcgen::SerialNumber::to_bytes).unwrap_or_default();
        Ok(IssuedCertificate {
            chain_pem: certificate.pem(),
            serial: hex_serial(&serial),
            not_after: now + life,
        })
    }
}

/// What a client of a gateway makes its TLS of, whatever certificate it shows.
#[derive(Debug, Clone)]
pub struct ClientTls(Arc<WebPkiServerVerifier>);

impl ClientTls {
    /// With what it shows, if anything. TLS 1.3 alone, no resumption, ALPN `h2`.
    pub fn config(
        &self,
        shown: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    ) -> Result<ClientConfig, PkiError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_webpki_verifier(Arc::clone(&self.0));
        let mut config = match shown {
            Some((chain, key)) => builder.with_client_auth_cert(chain, key)?,
            None => builder.with_no_client_auth(),
        };
        config.resumption = Resumption::disabled();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

/// What a client uses whose certificate, key and roots of the gateway lie in PEM files; otherwise as
/// `Pki::client_config` gives. For a process that is not the PKI's own.
pub fn client_config_of(server_ca: &Path, certificate: &Path, key: &Path) -> Result<ClientConfig, PkiError> {
    let unreadable = |path: &Path, error: rustls_pki_types::pem::Error| PkiError::Unreadable {
        path: path.to_owned(),
        why: error.to_string(),
    };
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(server_ca).map_err(|error| unreadable(server_ca, error))?)?;
    let chain = CertificateDer::from_pem_file(certificate).map_err(|error| unreadable(certificate, error))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, error))?;
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    ClientTls(verifier).config(Some((vec![chain], private)))
}

impl Pki {
    /// What signs CSRs of nodes.
    pub fn node_issuer(&self) -> NodeIssuer {
        NodeIssuer {
            nodes: Arc::clone(&self.nodes),
            trust_domain: self.trust_domain.clone(),
            servers_pem: self.servers_pem.clone(),
        }
    }

    /// What clients of gateways make their TLS of.
    pub fn client_tls(&self) -> ClientTls {
        ClientTls(Arc::clone(&self.verifier))
    }

    /// What a gateway shows to services.
    pub fn internal_client(&self) -> Result<Identity, PkiError> {
        self.internal_identity("gateway", ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// The TLS of a service behind gateways: for `localhost`, 127.0.0.1 and ::1; a client must show a
    /// certificate of the internal authority.
    pub fn internal_server_config(&self) -> Result<ServerConfig, PkiError> {
        let identity = self.internal_identity("service", ExtendedKeyUsagePurpose::ServerAuth)?;
        let root = CertificateDer::from_pem_slice(self.internal_pem.as_bytes()).map_err(|error| {
            PkiError::Unreadable { path: "internal-ca.crt".into(), why: error.to_string() }
        })?;
        let mut roots = RootCertStore::empty();
        roots.add(root)?;
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![identity.certificate().clone()], identity.key())?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    /// What a client of control APIs shows: it bears this URI alone.
    pub fn control_client(&self, name: &str) -> Result<Identity, PkiError> {
        self.control_client_until(name, SystemTime::now() + CERTIFICATE_LIFE)
    }

    /// The same, until then.
    pub fn control_client_until(&self, name: &str, ends_at: SystemTime) -> Result<Identity, PkiError> {
        let mut params = rcgen::CertificateParams::new(Vec::new())?;
        params.subject_alt_names = vec![SanType::URI(name.try_into()?)];
        finish(&mut params, "client", ExtendedKeyUsagePurpose::ClientAuth);
        params.not_after = ends_at.into();
        self.internal.issue(&params, new_key()?)
    }

    /// Writes what a control API and its client name into `folder`.
    pub fn write_control_files(&self, folder: &Path) -> Result<ControlFiles, PkiError> {
        fs::create_dir_all(folder)
            .map_err(|error| PkiError::Io { doing: format!("making {}", folder.display()), error })?;
        let shown = self.internal_identity("control", ExtendedKeyUsagePurpose::ServerAuth)?;
        let (certificate, key) = shown.write(folder, "control")?;
        let client = self.control_client(CONTROL_CLIENT)?;
        let (client_certificate, client_key) = client.write(folder, "control-client")?;
        let ca = folder.join("control-ca.crt");
        write_file(&ca, &self.internal_pem, 0o644)?;
        Ok(ControlFiles { certificate, key, ca, client_certificate, client_key })
    }

    fn internal_identity(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> Result<Identity, PkiError> {
        let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let mut params = rcgen::CertificateParams::new(names)?;
        finish(&mut params, name, usage);
        self.internal.issue(&params, new_key()?)
    }
}

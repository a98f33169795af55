//! A throw-away PKI: an authority for nodes, one for servers, one for what is spoken behind the gateways,
//! and certificates of each kind, the wrong kinds too.
//!
//! All keys are ECDSA P-256. A node's certificate carries one URI SAN,
//! `spiffe://<trust-domain>/site/<site>/node/<node>`, and the clientAuth usage.
//!
//! 1. Every certificate has a serial of its own, also where a key is shared.
//! 2. Keys go to disk readable by their owner alone.
//! 3. Nothing here is for production: the authorities' keys lie beside their certificates.

mod issuing;
mod wrong;

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
};
use rustls::client::WebPkiServerVerifier;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

pub use self::issuing::{ClientTls, IssuedCertificate, NodeIssuer, client_config_of};
pub use self::wrong::WrongCertificate;

/// The trust domain of every testbed PKI.
pub const TRUST_DOMAIN: &str = "testbed.gateway";
/// The site that nodes are at where nothing else is said.
pub const SITE: &str = "lab";

const CERTIFICATE_LIFE: Duration = Duration::from_secs(30 * 24 * 3600);
const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
// Clocks of containers and hosts may differ a little.
const BACKDATED: Duration = Duration::from_secs(3600);

/// Why a certificate could not be made, read or used.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("making a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("a TLS configuration: {0}")]
    Tls(#[from] rustls::Error),
    #[error("{doing}: {error}")]
    Io { doing: String, error: io::Error },
    #[error("{path:?} holds no usable PEM ({why}); delete its folder to get new authorities")]
    Unreadable { path: PathBuf, why: String },
}

/// A certificate with its key.
#[derive(Clone)]
pub struct Identity {
    certificate: Arc<rcgen::Certificate>,
    /// PKCS#8. Shared by identities that were made with one key.
    key: Arc<KeyPair>,
    /// The serial, as upper-case hex without leading zeros: as `node_certs` has it.
    pub serial: String,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("serial", &self.serial).finish_non_exhaustive()
    }
}

impl Identity {
    /// The certificate; its authority is a root, so the chain ends with it.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        self.certificate.der()
    }

    /// The private key.
    pub fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()))
    }

    /// The certificate as PEM.
    pub fn certificate_pem(&self) -> String {
        self.certificate.pem()
    }

    /// The private key as PEM.
    pub fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// Writes `<name>.crt` and `<name>.key` into `folder`; gives both paths.
    pub fn write(&self, folder: &Path, name: &str) -> Result<(PathBuf, PathBuf), PkiError> {
        let certificate = folder.join(format!("{name}.crt"));
        let key = folder.join(format!("{name}.key"));
        write_file(&certificate, &self.certificate_pem(), 0o644)?;
        write_file(&key, &self.key_pem(), 0o600)?;
        Ok((certificate, key))
    }
}

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Result<Self, PkiError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        Ok(Self(CertifiedIssuer::self_signed(authority_params(name), key)?))
    }

    fn issue(&self, params: &CertificateParams, key: Arc<KeyPair>) -> Result<Identity, PkiError> {
        let certificate = params.signed_by(&*key, &self.0)?;
        let serial = params.serial_number.as_ref().map(SerialNumber::to_bytes).unwrap_or_default();
        Ok(Identity { certificate: Arc::new(certificate), key, serial: hex_serial(&serial) })
    }
}

/// Authorities for nodes, for servers and for the inside, and what they sign.
pub struct Pki {
    nodes: Arc<Authority>,
    // Of the node authority: after a second start, its certificate is the stored one.
    nodes_pem: String,
    servers: Authority,
    servers_pem: String,
    internal: Authority,
    internal_pem: String,
    trust_domain: String,
    verifier: Arc<WebPkiServerVerifier>,
}

impl fmt::Debug for Pki {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pki").field("trust_domain", &self.trust_domain).finish_non_exhaustive()
    }
}

impl Pki {
    /// New authorities, in memory.
    pub fn new() -> Result<Self, PkiError> {
        let new = |name| {
            Authority::new(name).map(|authority| {
                let pem = authority.0.pem();
                (authority, pem)
            })
        };
        Self::with(new("testbed node CA")?, new("testbed server CA")?, new("testbed internal CA")?)
    }

    /// The authorities kept in `folder`, which gets new ones where it has none.
    pub fn open(folder: &Path) -> Result<Self, PkiError> {
        fs::create_dir_all(folder)
            .map_err(|error| PkiError::Io { doing: format!("making {}", folder.display()), error })?;
        Self::with(
            stored_authority(folder, "node-ca", "testbed node CA")?,
            stored_authority(folder, "server-ca", "testbed server CA")?,
            stored_authority(folder, "internal-ca", "testbed internal CA")?,
        )
    }

    fn with(
        (nodes, nodes_pem): (Authority, String),
        (servers, servers_pem): (Authority, String),
        (internal, internal_pem): (Authority, String),
    ) -> Result<Self, PkiError> {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(servers_pem.as_bytes())
            .map_err(|error| PkiError::Unreadable { path: "server-ca.crt".into(), why: error.to_string() })?;
        roots.add(root)?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        let (nodes, trust_domain) = (Arc::new(nodes), TRUST_DOMAIN.to_owned());
        Ok(Self { nodes, nodes_pem, servers, servers_pem, internal, internal_pem, trust_domain, verifier })
    }

    /// The trust domain of the nodes' URIs.
    pub fn trust_domain(&self) -> &str {
        &self.trust_domain
    }

    /// The id of the node whose certificate `node` makes: the URI in it.
    pub fn node_id(&self, node: &str) -> String {
        node_uri(&self.trust_domain, SITE, node)
    }

    /// The certificate that a gateway checks nodes with.
    pub fn node_ca_pem(&self) -> &str {
        &self.nodes_pem
    }

    /// The certificate that a node checks the gateway with.
    pub fn server_ca_pem(&self) -> &str {
        &self.servers_pem
    }

    /// A gateway's certificate, for `localhost`, 127.0.0.1 and ::1.
    pub fn server(&self) -> Result<Identity, PkiError> {
        let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let mut params = CertificateParams::new(names)?;
        finish(&mut params, "gateway", ExtendedKeyUsagePurpose::ServerAuth);
        self.servers.issue(&params, new_key()?)
    }

    /// A node's certificate, with a key of its own.
    pub fn node(&self, node: &str) -> Result<Identity, PkiError> {
        self.node_with_key(node, new_key()?)
    }

    /// Certificates for many nodes, all with one key: minting costs one signature each.
    pub fn nodes<'a>(&self, nodes: impl IntoIterator<Item = &'a str>) -> Result<Vec<Identity>, PkiError> {
        let key = new_key()?;
        nodes.into_iter().map(|node| self.node_with_key(node, Arc::clone(&key))).collect()
    }

    fn node_with_key(&self, node: &str, key: Arc<KeyPair>) -> Result<Identity, PkiError> {
        self.nodes.issue(&node_params(&[self.node_id(node)])?, key)
    }

    /// A certificate that a gateway must refuse, otherwise like that of `node`.
    pub fn wrong(&self, node: &str, wrong: WrongCertificate) -> Result<Identity, PkiError> {
        wrong::issue(self, node, wrong)
    }

    /// What a client of the gateway uses; without an identity it shows no certificate. TLS 1.3
    /// alone, no resumption, ALPN `h2`.
    pub fn client_config(&self, identity: Option<&Identity>) -> Result<ClientConfig, PkiError> {
        let shown = identity.map(|identity| (vec![identity.certificate().clone()], identity.key()));
        self.client_tls().config(shown)
    }

    /// Writes what a gateway's configuration names into `folder`.
    pub fn write_gateway_files(&self, folder: &Path) -> Result<GatewayFiles, PkiError> {
        fs::create_dir_all(folder)
            .map_err(|error| PkiError::Io { doing: format!("making {}", folder.display()), error })?;
        let (certificate, key) = self.server()?.write(folder, "gateway")?;
        let (node_ca, server_ca) = (folder.join("node-ca.crt"), folder.join("server-ca.crt"));
        write_file(&node_ca, &self.nodes_pem, 0o644)?;
        write_file(&server_ca, &self.servers_pem, 0o644)?;
        let (internal_certificate, internal_key) = self.internal_client()?.write(folder, "internal")?;
        let internal_ca = folder.join("internal-ca.crt");
        write_file(&internal_ca, &self.internal_pem, 0o644)?;
        Ok(GatewayFiles {
            certificate,
            key,
            node_ca,
            server_ca,
            internal_ca,
            internal_certificate,
            internal_key,
        })
    }
}

/// The name in the certificate of a client of control APIs.
pub const CONTROL_CLIENT: &str = "spiffe://testbed.gateway/service/api";

/// PEM files for a gateway's control API and for its clients, all of the internal authority.
#[derive(Debug, Clone)]
pub struct ControlFiles {
    /// What the API shows.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// What both sides check each other with.
    pub ca: PathBuf,
    /// What a client shows that bears the name `CONTROL_CLIENT`.
    pub client_certificate: PathBuf,
    pub client_key: PathBuf,
}

/// PEM files for a gateway and for those who check it.
#[derive(Debug, Clone)]
pub struct GatewayFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// For `[tls] node_ca`.
    pub node_ca: PathBuf,
    /// For nodes: the roots of the gateway's certificate.
    pub server_ca: PathBuf,
    /// For `[upstream]`: the roots of services, and what the gateway shows to them.
    pub internal_ca: PathBuf,
    pub internal_certificate: PathBuf,
    pub internal_key: PathBuf,
}

/// The URI that names a node.
pub fn node_uri(trust_domain: &str, site: &str, node: &str) -> String {
    format!("spiffe://{trust_domain}/site/{site}/node/{node}")
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn new_key() -> Result<Arc<KeyPair>, PkiError> {
    Ok(Arc::new(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?))
}

fn node_params(uris: &[String]) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.subject_alt_names = uris
        .iter()
        .map(|uri| Ok(SanType::URI(uri.as_str().try_into()?)))
        .collect::<Result<_, rcgen::Error>>()?;
    finish(&mut params, "node", ExtendedKeyUsagePurpose::ClientAuth);
    Ok(params)
}

fn finish(params: &mut CertificateParams, name: &str, usage: ExtendedKeyUsagePurpose) {
    params.distinguished_name = named(name);
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.serial_number = Some(new_serial());
    params.use_authority_key_identifier_extension = true;
    let now = SystemTime::now();
    params.not_before = (now - BACKDATED).into();
    params.not_after = (now + CERTIFICATE_LIFE).into();
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.serial_number = Some(new_serial());
    let now = SystemTime::now();
    params.not_before = (now - BACKDATED).into();
    params.not_after = (now + AUTHORITY_LIFE).into();
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

// Positive and never zero, as RFC 5280 wants it.
fn new_serial() -> SerialNumber {
    let mut bytes = uuid::Uuid::new_v4().into_bytes();
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    SerialNumber::from_slice(&bytes)
}

fn hex_serial(bytes: &[u8]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
    hex.trim_start_matches('0').to_owned()
}

fn write_file(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    let failed = |error| PkiError::Io { doing: format!("writing {}", path.display()), error };
    // A file that is there keeps its mode when opened; a key must not.
    let _ = fs::remove_file(path);
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(failed)?;
    io::Write::write_all(&mut file, text.as_bytes()).map_err(failed)
}

fn stored_authority(folder: &Path, file: &str, name: &str) -> Result<(Authority, String), PkiError> {
    let (certificate, key) = (folder.join(format!("{file}.crt")), folder.join(format!("{file}.key")));
    let (Ok(certificate_pem), Ok(key_pem)) = (fs::read_to_string(&certificate), fs::read_to_string(&key))
    else {
        let authority = Authority::new(name)?;
        let pem = authority.0.pem();
        write_file(&key, &authority.0.key().serialize_pem(), 0o600)?;
        write_file(&certificate, &pem, 0o644)?;
        return Ok((authority, pem));
    };
    let unreadable = |path: &Path, why: String| PkiError::Unreadable { path: path.to_owned(), why };
    let key_pair = KeyPair::from_pem(&key_pem).map_err(|error| unreadable(&key, error.to_string()))?;
    CertificateDer::from_pem_slice(certificate_pem.as_bytes())
        .map_err(|error| unreadable(&certificate, error.to_string()))?;
    // The same name and key: what this signs, the stored certificate vouches for.
    let authority = Authority(CertifiedIssuer::self_signed(authority_params(name), key_pair)?);
    Ok((authority, certificate_pem))
}

#[cfg(test)]
mod tests;

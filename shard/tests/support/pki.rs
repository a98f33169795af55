//! A throw-away authority and what it signs.
//!
//! This crate keeps its own, small one, so that its tests need no testbed. Its keys live in memory, or
//! in a folder that a story names for another process; a gateway is given the roots and its own key,
//! never the authority's.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

pub struct Pki {
    authority: Issuer<'static, KeyPair>,
    pub roots: Vec<u8>,
    pub server_chain: Vec<u8>,
    pub server_key: Vec<u8>,
}

pub struct NodeCertificate {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl Pki {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let roots = params.self_signed(&key).unwrap().pem().into_bytes();
        let authority = Issuer::new(params, key);
        let mut server = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let server_key = KeyPair::generate().unwrap();
        let server_chain = server.signed_by(&server_key, &authority).unwrap().pem().into_bytes();
        Self { authority, roots, server_chain, server_key: server_key.serialize_pem().into_bytes() }
    }

    /// An authority below this one, which signs nodes; its certificate goes with theirs.
    pub fn intermediate(&self) -> Intermediate {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(rcgen::DnType::CommonName, "intermediate");
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap().der().clone();
        Intermediate { authority: Issuer::new(params, key), certificate }
    }

    /// A server's chain and key, as PEM, other than those that this began with.
    pub fn another_server(&self) -> (Vec<u8>, Vec<u8>) {
        self.server(|_| {})
    }

    /// The same, of which something is otherwise.
    pub fn server(&self, change: impl FnOnce(&mut CertificateParams)) -> (Vec<u8>, Vec<u8>) {
        let mut server = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        change(&mut server);
        let key = KeyPair::generate().unwrap();
        let chain = server.signed_by(&key, &self.authority).unwrap().pem().into_bytes();
        (chain, key.serialize_pem().into_bytes())
    }

    /// Writes the roots and that many nodes for another process.
    pub fn write_nodes(&self, dir: &Path, count: usize) {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join("roots"), &self.roots).unwrap();
        for n in 0..count {
            let node = self.node(&format!("n-{n}"));
            std::fs::write(dir.join(format!("{n}.crt")), &node.chain[0]).unwrap();
            std::fs::write(dir.join(format!("{n}.key")), node.key.secret_der()).unwrap();
        }
    }

    /// What `write_nodes` wrote.
    pub fn read_nodes(dir: &Path) -> Vec<(Vec<u8>, NodeCertificate)> {
        let roots = std::fs::read(dir.join("roots")).unwrap();
        let read = |name: String| std::fs::read(dir.join(name)).ok();
        (0..)
            .map_while(|n| {
                let chain = vec![CertificateDer::from(read(format!("{n}.crt"))?)];
                let key = PrivateKeyDer::Pkcs8(read(format!("{n}.key"))?.into());
                Some((roots.clone(), NodeCertificate { chain, key }))
            })
            .collect()
    }

    /// The certificate of a node of the test's trust domain.
    pub fn node(&self, name: &str) -> NodeCertificate {
        self.node_with_uris(&[&format!("spiffe://test.example/site/lab/node/{name}")])
    }

    pub fn node_with_uris(&self, uris: &[&str]) -> NodeCertificate {
        self.sign(uris, ExtendedKeyUsagePurpose::ClientAuth, |_| {})
    }

    pub fn sign(
        &self,
        uris: &[&str],
        usage: ExtendedKeyUsagePurpose,
        adjust: impl Fn(&mut CertificateParams),
    ) -> NodeCertificate {
        signed(&self.authority, uris, usage, adjust)
    }
}

/// An authority that is no root.
pub struct Intermediate {
    authority: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl Intermediate {
    pub fn node(&self, name: &str) -> NodeCertificate {
        let uri = format!("spiffe://test.example/site/lab/node/{name}");
        let mut node = signed(&self.authority, &[&uri], ExtendedKeyUsagePurpose::ClientAuth, |_| {});
        node.chain.push(self.certificate.clone());
        node
    }
}

fn signed(
    authority: &Issuer<'static, KeyPair>,
    uris: &[&str],
    usage: ExtendedKeyUsagePurpose,
    adjust: impl Fn(&mut CertificateParams),
) -> NodeCertificate {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.subject_alt_names = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())).collect();
    params.extended_key_usages = vec![usage];
    params.serial_number = Some(vec![0x0a, 0xbc, 0x01].into());
    adjust(&mut params);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    NodeCertificate {
        chain: vec![certificate.der().clone()],
        key: PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
    }
}

//! Certificates that a gateway must refuse, each wrong in one way alone.
//!
//! It owns the list of wrongs and how each is made. Some fail in TLS's handshake, others (the URIs) only
//! a gateway can refuse; which is which is for the tests to say.

use std::time::{Duration, SystemTime};

use rcgen::ExtendedKeyUsagePurpose;

use super::{Authority, Identity, Pki, PkiError, SITE, new_key, node_params, node_uri};

/// What is wrong with a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrongCertificate {
    /// Signed by an authority that nobody trusts.
    OtherAuthority,
    /// Its time is over.
    Expired,
    /// Its time has not come.
    NotYetValid,
    /// No URI says who the node is.
    NoUri,
    /// Two URIs say it.
    TwoUris,
    /// The URI is of another trust domain.
    OtherTrustDomain,
    /// The URI is not of a node.
    OtherPath,
    /// It is a server's certificate.
    ServerUsage,
}

impl WrongCertificate {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::OtherAuthority,
        Self::Expired,
        Self::NotYetValid,
        Self::NoUri,
        Self::TwoUris,
        Self::OtherTrustDomain,
        Self::OtherPath,
        Self::ServerUsage,
    ];
}

pub(super) fn issue(pki: &Pki, node: &str, wrong: WrongCertificate) -> Result<Identity, PkiError> {
    let uri = node_uri(pki.trust_domain(), SITE, node);
    let uris = match wrong {
        WrongCertificate::NoUri => Vec::new(),
        WrongCertificate::TwoUris => vec![uri, node_uri(pki.trust_domain(), SITE, "another-node")],
        WrongCertificate::OtherTrustDomain => vec![node_uri("elsewhere.example", SITE, node)],
        WrongCertificate::OtherPath => vec![format!("spiffe://{}/workload/{node}", pki.trust_domain())],
        _ => vec![uri],
    };
    let mut params = node_params(&uris)?;
    let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
    match wrong {
        WrongCertificate::Expired => {
            params.not_before = (now - 48 * hour).into();
            params.not_after = (now - hour).into();
        }
        WrongCertificate::NotYetValid => params.not_before = (now + 24 * hour).into(),
        WrongCertificate::ServerUsage => {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        }
        _ => {}
    }
    match wrong {
        // The same name as the trusted one: only the key tells them apart.
        WrongCertificate::OtherAuthority => Authority::new("testbed node CA")?.issue(&params, new_key()?),
        _ => pki.nodes.issue(&params, new_key()?),
    }
}

//! Who a peer is: the one SPIFFE URI of its certificate, and nothing else of it.
//!
//! The chain, the dates and the usage were checked by rustls before. This never looks at a common
//! name, a DNS name, or anything that the peer says elsewhere.
//!
//! 1. Exactly one URI among the subject alternative names, or the certificate names nobody.
//! 2. The path of the URI fits the pattern segment by segment; `{site}` and `{node}` take one each.
//! 3. The node id is the whole URI, as it stands there: nodes of two sites may have one name.
//! 4. No sentence repeats text of the certificate.

use std::time::Duration;

use gateway_core::close::CloseReason;
use gateway_core::ids::NodeId;
use gateway_core::revocation::SerialKey;
use gateway_core::seam::Identity;
use rustls::CertificateError;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// The path of a node's SPIFFE URI, where no other is configured.
pub const DEFAULT_PATH: &str = "/site/{site}/node/{node}";

/// How the URI of a node's certificate is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityRules {
    trust_domain: Option<String>,
    path: Vec<Segment>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Literal(String),
    Site,
    Node,
}

/// What a certificate says of its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeCertificate {
    pub(crate) identity: Identity,
    /// Its serial, as the set of revoked ones has it.
    pub(crate) serial: SerialKey,
    /// The first moment at which it does not count any more, since 1970.
    pub(crate) ends_at: Duration,
}

/// Why rules can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityRulesError {
    #[error("a trust domain is made of a-z, 0-9, '.', '-' and '_'")]
    TrustDomain,
    #[error("the path of node identities must start with '/' and hold {{site}} and {{node}} once each")]
    Path,
}

impl Default for IdentityRules {
    /// Any trust domain, the usual path.
    fn default() -> Self {
        Self::new(None, DEFAULT_PATH).expect("the default path fits its own rules")
    }
}

impl IdentityRules {
    /// With the one trust domain that is accepted (`None`: any), and the path as in `DEFAULT_PATH`.
    pub fn new(trust_domain: Option<&str>, path: &str) -> Result<Self, IdentityRulesError> {
        if trust_domain.is_some_and(|domain| !is_trust_domain(domain)) {
            return Err(IdentityRulesError::TrustDomain);
        }
        let segments = path.strip_prefix('/').ok_or(IdentityRulesError::Path)?;
        let path: Vec<Segment> = segments.split('/').map(Segment::parse).collect::<Result<_, _>>()?;
        let once = |wanted: &Segment| path.iter().filter(|segment| *segment == wanted).count() == 1;
        if !once(&Segment::Site) || !once(&Segment::Node) {
            return Err(IdentityRulesError::Path);
        }
        Ok(Self { trust_domain: trust_domain.map(str::to_owned), path })
    }

    /// What a DER certificate says.
    pub(crate) fn read(&self, certificate: &[u8]) -> Result<NodeCertificate, CloseReason> {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| bad("is malformed"))?;
        let names = parsed
            .subject_alternative_name()
            .map_err(|_| bad("has malformed or repeated subject alternative names"))?;
        let mut uris =
            names.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
                GeneralName::URI(uri) => Some(*uri),
                _ => None,
            });
        let (Some(uri), None) = (uris.next(), uris.next()) else {
            return Err(bad("must have exactly one URI among its subject alternative names"));
        };
        let not_after = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
        // Its last second is one in which it counts.
        let ends_at = Duration::from_secs(not_after.saturating_add(1));
        self.certificate(uri, serial_hex(parsed.raw_serial()), ends_at)
    }

    /// What a peer of this process says of itself, in place of a certificate.
    pub(crate) fn claimed(
        &self,
        uri: &str,
        serial: &str,
        ends_at: Duration,
    ) -> Result<NodeCertificate, CloseReason> {
        if serial.is_empty() || !serial.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(bad("has a serial that is not hex"));
        }
        let digits = serial.trim_start_matches('0').to_ascii_uppercase();
        self.certificate(uri, if digits.is_empty() { "0".to_owned() } else { digits }, ends_at)
    }

    fn certificate(
        &self,
        uri: &str,
        certificate_serial: String,
        ends_at: Duration,
    ) -> Result<NodeCertificate, CloseReason> {
        let site = self.match_uri(uri)?;
        let node = NodeId::new(uri)
            .map_err(|error| CloseReason::BadCertificate(format!("the client certificate: {error}")))?;
        Ok(NodeCertificate {
            serial: SerialKey::of(&certificate_serial),
            identity: Identity { node, site: site.to_owned(), certificate_serial },
            ends_at,
        })
    }

    /// The site in the SPIFFE URI of a node.
    pub(crate) fn match_uri<'a>(&self, uri: &'a str) -> Result<&'a str, CloseReason> {
        let rest = uri.strip_prefix("spiffe://").ok_or_else(|| bad("names no SPIFFE identity"))?;
        let (domain, path) = rest.split_once('/').ok_or_else(|| bad("names no node, only a trust domain"))?;
        if !is_trust_domain(domain) {
            return Err(bad("names a malformed trust domain"));
        }
        if self.trust_domain.as_deref().is_some_and(|expected| expected != domain) {
            return Err(bad("is of another trust domain than this gateway's"));
        }
        let mut site = "";
        let mut segments = path.split('/');
        for wanted in &self.path {
            let segment = segments.next().filter(|segment| is_segment(segment));
            let segment = segment.ok_or_else(|| bad(DOES_NOT_FIT))?;
            match wanted {
                Segment::Literal(literal) if literal != segment => return Err(bad(DOES_NOT_FIT)),
                Segment::Literal(_) | Segment::Node => {}
                Segment::Site => site = segment,
            }
        }
        if segments.next().is_some() { Err(bad(DOES_NOT_FIT)) } else { Ok(site) }
    }
}

const DOES_NOT_FIT: &str = "has a SPIFFE path that names no site and node as this gateway expects them";

impl Segment {
    fn parse(text: &str) -> Result<Self, IdentityRulesError> {
        match text {
            "{site}" => Ok(Self::Site),
            "{node}" => Ok(Self::Node),
            literal if is_segment(literal) => Ok(Self::Literal(literal.to_owned())),
            _ => Err(IdentityRulesError::Path),
        }
    }
}

/// What a DER certificate claims, proven or not: its serial, as `node_certs` has it, and the first URI that it names.
/// For the log alone. `None` where it is no certificate.
pub(crate) fn claims_of(certificate: &[u8]) -> Option<(String, Option<String>)> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let names = parsed.subject_alternative_name().ok().flatten();
    let mut names = names.iter().flat_map(|names| &names.value.general_names);
    let uri = names.find_map(|name| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    });
    Some((serial_hex(parsed.raw_serial()), uri))
}

/// The same of one that says itself that it is for clients (clientAuth, or any usage): what says nothing was made
/// for something else.
pub(crate) fn serial_of_client(certificate: &[u8]) -> Result<String, CertificateError> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let usage = parsed.extended_key_usage().ok().flatten();
    match usage.is_some_and(|usage| usage.value.client_auth || usage.value.any) {
        true => Ok(serial_hex(parsed.raw_serial())),
        false => Err(CertificateError::InvalidPurpose),
    }
}

fn bad(what: &str) -> CloseReason {
    CloseReason::BadCertificate(format!("the client certificate {what}"))
}

fn is_trust_domain(text: &str) -> bool {
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_');
    !text.is_empty() && text.len() <= 255 && text.bytes().all(allowed)
}

fn is_segment(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !text.is_empty() && text != "." && text != ".." && text.bytes().all(allowed)
}

/// Upper-case hex without separators and without leading zeros, as `node_certs` has it.
pub(crate) fn serial_hex(raw: &[u8]) -> String {
    use std::fmt::Write as _;

    let mut hex = raw.iter().fold(String::with_capacity(2 * raw.len()), |mut hex, byte| {
        // Writing into a String can't fail.
        let _ = write!(hex, "{byte:02X}");
        hex
    });
    let zeros = hex.bytes().take_while(|digit| *digit == b'0').count().min(hex.len().saturating_sub(1));
    hex.drain(..zeros);
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(rules: &IdentityRules, uri: &str) -> String {
        rules.match_uri(uri).expect_err("not an identity").to_string()
    }

    #[test]
    fn the_site_is_read_from_the_path_of_the_uri() {
        let rules = IdentityRules::default();
        assert_eq!(rules.match_uri("spiffe://fleet.example/site/ams1/node/n-7"), Ok("ams1"));
        let rules = IdentityRules::new(Some("a.example"), "/dc/{site}/{node}").expect("usable");
        assert_eq!(rules.match_uri("spiffe://a.example/dc/ams/x"), Ok("ams"));
    }

    #[test]
    fn what_only_looks_like_an_identity_names_nobody() {
        let rules = IdentityRules::new(Some("fleet.example"), DEFAULT_PATH).expect("usable");
        for uri in [
            "https://fleet.example/site/a/node/b",
            "spiffe://fleet.example",
            "spiffe://fleet.example/site/a/node/",
            "spiffe://fleet.example/site/a/node/b/",
            "spiffe://fleet.example/site/a/node/b/c",
            "spiffe://fleet.example/site/../node/b",
            "spiffe://fleet.example/site/a/node/b?x=1",
            "spiffe://fleet.example/site/a/node/b%2fc",
            "spiffe://fleet.example//site/a/node/b",
            "spiffe://user@fleet.example/site/a/node/b",
            "spiffe://fleet.example:443/site/a/node/b",
        ] {
            assert!(rules.match_uri(uri).is_err(), "{uri}");
        }
        assert!(sentence(&rules, "spiffe://other.example/site/a/node/b").contains("another trust domain"));
    }

    #[test]
    fn a_peer_of_this_process_is_held_to_the_rules_of_certificates() {
        let rules = IdentityRules::new(Some("fleet.example"), DEFAULT_PATH).expect("usable");
        let uri = "spiffe://fleet.example/site/a/node/b";
        let claimed = rules.claimed(uri, "00af8", Duration::from_secs(9)).expect("fits");
        assert_eq!((claimed.identity.site.as_str(), claimed.identity.node.as_str()), ("a", uri));
        assert_eq!(claimed.identity.certificate_serial, "AF8");
        assert_eq!(claimed.serial, SerialKey::of("AF8"));
        for (uri, serial) in [(uri, ""), (uri, "0x1"), ("spiffe://other.example/site/a/node/b", "1")] {
            assert!(rules.claimed(uri, serial, Duration::ZERO).is_err(), "{uri} {serial}");
        }
    }

    #[test]
    fn rules_that_could_match_nothing_are_refused() {
        assert_eq!(IdentityRules::new(Some("Upper"), DEFAULT_PATH), Err(IdentityRulesError::TrustDomain));
        for path in ["site/{site}/node/{node}", "/{site}", "/{site}/{site}/{node}", "//{site}/{node}"] {
            assert_eq!(IdentityRules::new(None, path), Err(IdentityRulesError::Path), "{path}");
        }
    }

    #[test]
    fn serials_are_upper_hex_without_padding() {
        assert_eq!(serial_hex(&[0, 0x8f, 0x0a]), "8F0A");
        assert_eq!(serial_hex(&[0x0a, 0xf8]), "AF8");
        assert_eq!(serial_hex(&[5]), "5");
        assert_eq!(serial_hex(&[0]), "0");
    }
}

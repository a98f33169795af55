//! Who a peer is, and the PEM files of an operator.
//!
//! 1. A certificate that names a node names it by a URI that, read alone, gives the same site.
//! 2. A node id is printable ASCII, so that a line of a log shows it as it is.

use std::sync::LazyLock;
use std::time::Duration;

use gateway_shard::tls::{TlsError, TlsMaterial};
use gateway_shard::{DEFAULT_PATH, IdentityRules, doors};
use gateway_testbed::pki::Pki;

use super::check_sentence;

static ANY: LazyLock<IdentityRules> = LazyLock::new(IdentityRules::default);

pub(super) fn certificate(input: &[u8]) {
    match doors::read_certificate(&ANY, input) {
        Ok((node, site)) => {
            assert_eq!(doors::read_uri(&ANY, node.as_str()), Ok(site.as_str()));
            assert!(node.as_str().bytes().all(|byte| byte.is_ascii_graphic()), "{node:?}");
        }
        Err(reason) => check_sentence(&reason.to_string()),
    }
}

pub(super) fn spiffe_id(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (uri, pattern) = text.split_once('\n').unwrap_or((&text, DEFAULT_PATH));
    let rules = match IdentityRules::new(None, pattern) {
        Ok(rules) => rules,
        Err(error) => {
            check_sentence(&error.to_string());
            return;
        }
    };
    match doors::read_uri(&rules, uri) {
        Ok(site) => {
            assert!(!site.is_empty() && uri.contains(site));
            assert!(uri.bytes().all(|byte| byte.is_ascii_graphic()), "{uri:?}");
            let domain = uri.strip_prefix("spiffe://").and_then(|rest| rest.split('/').next());
            let own = IdentityRules::new(domain, pattern).expect("a domain that was read is one");
            assert_eq!(doors::read_uri(&own, uri), Ok(site), "with its own trust domain");
            let other = IdentityRules::new(Some("other.invalid"), pattern).expect("a trust domain");
            assert_eq!(doors::read_uri(&other, uri).is_ok(), domain == Some("other.invalid"));
        }
        Err(reason) => check_sentence(&reason.to_string()),
    }
}

/// A set of files that belong together.
struct Files {
    chain: String,
    key: String,
    roots: String,
}

static FILES: LazyLock<Files> = LazyLock::new(|| {
    let pki = Pki::new().expect("an authority");
    let server = pki.server().expect("a serving certificate");
    Files { chain: server.certificate_pem(), key: server.key_pem(), roots: pki.node_ca_pem().to_owned() }
});

pub(super) fn pem(input: &[u8]) {
    let Files { chain, key, roots } = &*FILES;
    let (chain, key, roots) = (chain.as_bytes(), key.as_bytes(), roots.as_bytes());
    for outcome in [material(input, key, roots), material(chain, input, roots), material(chain, key, input)] {
        if let Err(error) = outcome {
            check_sentence(&error.to_string());
        }
    }
}

fn material(chain: &[u8], key: &[u8], roots: &[u8]) -> Result<TlsMaterial, TlsError> {
    TlsMaterial::new(chain, key, roots, Duration::ZERO)
}

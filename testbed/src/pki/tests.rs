//! What the PKI makes, as rustls judges it.
//!
//! The judge is the same verifier that a gateway uses, not a reading of our own. What TLS lets pass and
//! a gateway must refuse is told in `gateway/tests/hostile_peers/certificates.rs`.

use super::*;
use rustls::pki_types::UnixTime;
use rustls::server::WebPkiClientVerifier;

fn judge(pki: &Pki, identity: &Identity) -> Result<(), rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pki.node_ca_pem().as_bytes()).unwrap()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build().unwrap();
    verifier.verify_client_cert(identity.certificate(), &[], UnixTime::now()).map(|_| ())
}

#[test]
fn a_nodes_certificate_chains_to_the_node_authority() {
    let pki = Pki::new().unwrap();
    judge(&pki, &pki.node("node-1").unwrap()).unwrap();
    assert!(judge(&Pki::new().unwrap(), &pki.node("node-1").unwrap()).is_err());
}

#[test]
fn what_the_handshake_can_refuse_is_refused_and_the_rest_is_left_to_the_gateway() {
    let pki = Pki::new().unwrap();
    for wrong in WrongCertificate::ALL {
        let judged = judge(&pki, &pki.wrong("node-1", wrong).unwrap());
        let by_chain = matches!(
            wrong,
            WrongCertificate::OtherAuthority
                | WrongCertificate::Expired
                | WrongCertificate::NotYetValid
                | WrongCertificate::ServerUsage
        );
        assert_eq!(judged.is_err(), by_chain, "{wrong:?}: {judged:?}");
    }
}

#[test]
fn kept_authorities_vouch_for_what_they_sign_later() {
    let folder = tempfile::tempdir().unwrap();
    let first = Pki::open(folder.path()).unwrap();
    let early = first.node("node-1").unwrap();
    let second = Pki::open(folder.path()).unwrap();
    assert_eq!(first.node_ca_pem(), second.node_ca_pem());
    judge(&second, &early).unwrap();
    judge(&first, &second.node("node-2").unwrap()).unwrap();
    fs::write(folder.path().join("node-ca.key"), "garbage").unwrap();
    assert!(matches!(Pki::open(folder.path()), Err(PkiError::Unreadable { .. })));
}

#[test]
fn keys_on_disk_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let pki = Pki::new().unwrap();
    let files = pki.write_gateway_files(folder.path()).unwrap();
    assert_eq!(fs::metadata(&files.key).unwrap().permissions().mode() & 0o777, 0o600);
    let read = CertificateDer::from_pem_file(&files.certificate).unwrap();
    assert!(!read.is_empty());
    assert!(PrivateKeyDer::from_pem_file(&files.key).is_ok());
}

#[test]
fn pem_text_reads_back_as_the_same_certificate() {
    let identity = Pki::new().unwrap().node("node-1").unwrap();
    let read = CertificateDer::from_pem_slice(identity.certificate_pem().as_bytes()).unwrap();
    assert_eq!(&read, identity.certificate());
}

#[test]
fn certificates_for_five_thousand_nodes_are_distinct_and_quick() {
    let pki = Pki::new().unwrap();
    let names: Vec<String> = (0..5000).map(|n| format!("node-{n}")).collect();
    let started = std::time::Instant::now();
    let identities = pki.nodes(names.iter().map(String::as_str)).unwrap();
    let took = started.elapsed();
    let serials: std::collections::BTreeSet<&str> =
        identities.iter().map(|one| one.serial.as_str()).collect();
    assert_eq!(serials.len(), 5000);
    // About 0.5 s on one busy core; the bound only tells signing from generating RSA keys.
    assert!(took < Duration::from_secs(20), "{took:?}");
}

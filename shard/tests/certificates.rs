//! Certificates over real TLS: authorities of every shape, clocks that differ, revocations, expiry, and files that
//! are renewed while sessions last.
//!
//! Who revokes what, and when files change, is said by the story; how a gateway learns it is told elsewhere.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use gateway_core::limits::Limits;
use gateway_core::revocation::{Revocation, RevokedSet, SerialKey};
use gateway_core::seam::ToShard;
use gateway_proto::path;
use gateway_proto::v1::gateway_frame::Frame;
use gateway_shard::TlsNews;
use gateway_shard::tls::TlsMaterial;
use rcgen::ExtendedKeyUsagePurpose;
use support::client::{Client, tls};
use support::pki::{NodeCertificate, Pki};
use support::{Gateway, soon, story, until};

const UNAUTHENTICATED: u16 = 16;
const PERMISSION_DENIED: u16 = 7;
const MINUTE: Duration = Duration::from_secs(60);

/// A node's certificate with this serial that counts from `from` to `to`.
fn certificate(pki: &Pki, name: &str, serial: &[u8], from: SystemTime, to: SystemTime) -> NodeCertificate {
    let uri = format!("spiffe://test.example/site/lab/node/{name}");
    pki.sign(&[&uri], ExtendedKeyUsagePurpose::ClientAuth, |params| {
        params.serial_number = Some(serial.to_vec().into());
        params.not_before = from.into();
        params.not_after = to.into();
    })
}

fn usual(pki: &Pki, name: &str, serial: &[u8]) -> NodeCertificate {
    certificate(pki, name, serial, SystemTime::now() - MINUTE, SystemTime::now() + 60 * MINUTE)
}

/// Whether a certificate gets through the handshake.
async fn is_let_in(gateway: &Gateway, certificate: &NodeCertificate) -> bool {
    let Ok(mut node) = Client::connect(gateway.addr, &gateway.pki.roots, Some(certificate)).await else {
        return false;
    };
    node.is_answered().await
}

/// These are revoked, all others are not; what is new is told.
async fn revoke(gateway: &Gateway, revoked: &[(&str, &str)], new: &[(&str, &str)]) {
    let revocation = |(serial, reason): &(&str, &str)| Revocation {
        serial: (*serial).to_owned(),
        reason: (*reason).to_owned(),
    };
    let all = revoked.iter().map(revocation);
    let held: BTreeMap<_, _> = all.map(|one| (SerialKey::of(&one.serial), one.verdict())).collect();
    let set = Arc::new(RevokedSet::of(&held));
    let added: Arc<[Revocation]> = new.iter().map(revocation).collect();
    let message = || ToShard::Revoked { set: Arc::clone(&set), added: Arc::clone(&added) };
    gateway.tell_all_and_wait(message).await;
}

#[test]
fn a_revoked_certificate_ends_its_session_and_fails_in_the_handshake_until_it_is_cleared() {
    story(async {
        let gateway = Gateway::start_shards(Limits::default(), 2);
        let stolen = usual(&gateway.pki, "stolen", &[0x5a, 1]);
        let mut node = gateway.connect(Some(&stolen)).await;
        let (mut session, _) = node.session().await;
        let mut neighbour = gateway.connect(Some(&usual(&gateway.pki, "other", &[0x5a, 2]))).await;
        let (mut other, _) = neighbour.session().await;
        let revoked = [("5A01", "key leaked")];
        revoke(&gateway, &revoked, &revoked).await;

        let Some(Frame::RevocationNotice(notice)) = session.next().await else { panic!("no notice") };
        assert_eq!((notice.reason.as_str(), &notice.serials[..]), ("key leaked", &["5A01".to_owned()][..]));
        let end = session.end().await;
        let sentence = "certificate 5A01 is revoked: key leaked; reconnect with another one";
        assert_eq!((end.status, end.message.as_str()), (UNAUTHENTICATED, sentence));
        // The connection stands, and is of no more use.
        let again = node.call(path::SESSION).await.end().await;
        assert_eq!(again.status, UNAUTHENTICATED);
        assert!(again.message.contains("is revoked"), "{}", again.message);
        assert!(!is_let_in(&gateway, &stolen).await);
        until("that is counted", || gateway.sum(|of| of.handshakes_revoked.get()) > 0).await;
        assert_eq!(gateway.sum(|counters| counters.closes.get("revoked")), 1);

        other.heartbeat(1);
        let Some(Frame::HeartbeatAck(_)) = other.next().await else { panic!("the neighbour is gone") };
        revoke(&gateway, &[], &[]).await;
        assert!(is_let_in(&gateway, &stolen).await);
    });
}

#[test]
fn a_quarantined_certificate_is_told_so_where_it_opens_a_session() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let cloned = usual(&gateway.pki, "cloned", &[0x5a, 3]);
        let quarantined = [("5A03", "duplicate-identity")];
        revoke(&gateway, &quarantined, &quarantined).await;
        let mut node = gateway.connect(Some(&cloned)).await;
        let end = node.call(path::SESSION).await.end().await;
        assert_eq!(end.status, PERMISSION_DENIED, "its node stops: {}", end.message);
        assert!(end.message.contains("is quarantined"), "{}", end.message);
    });
}

#[test]
fn a_session_ends_when_its_certificate_does_though_it_is_heard() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let now = SystemTime::now();
        let short =
            certificate(&gateway.pki, "short", &[0x5a, 4], now - MINUTE, now + Duration::from_secs(3));
        let mut node = gateway.connect(Some(&short)).await;
        let (mut session, _) = node.session().await;
        session.heartbeat(1);
        let Some(Frame::HeartbeatAck(_)) = session.next().await else { panic!("no ack") };
        let end = session.end().await;
        assert_eq!(end.status, UNAUTHENTICATED);
        assert!(
            end.message.contains("certificate has expired; reconnect with a renewed one"),
            "{}",
            end.message
        );
        assert!(SystemTime::now() >= now + Duration::from_secs(2), "the certificate has whole seconds");
        assert_eq!(gateway.sum(|counters| counters.closes.get("expired")), 1);
        // On the connection that stands, and on a new one.
        assert_eq!(node.call(path::SESSION).await.end().await.status, UNAUTHENTICATED);
        assert!(!is_let_in(&gateway, &short).await);
        until("that is counted", || gateway.sum(|of| of.handshakes_expired.get()) > 0).await;
    });
}

#[test]
fn a_leeway_lets_in_what_is_out_of_its_time_by_less_and_nothing_else_that_is_wrong() {
    story(async {
        let gateway = Gateway::start_with(Limits::default(), 1, MINUTE, &[]);
        let now = SystemTime::now();
        let (half, two) = (MINUTE / 2, 2 * MINUTE);
        let of = |from, to| certificate(&gateway.pki, "n", &[0x5a, 5], from, to);
        assert!(is_let_in(&gateway, &of(now - two, now - half)).await, "it has just expired");
        assert!(is_let_in(&gateway, &of(now + half, now + two)).await, "it will count soon");
        assert!(!is_let_in(&gateway, &of(now - two * 2, now - two)).await, "it expired long ago");
        assert!(!is_let_in(&gateway, &of(now + two, now + two * 2)).await, "it will not count for long");
        let stranger = Pki::new();
        let strange = certificate(&stranger, "n", &[0x5a, 5], now - two, now - half);
        assert!(!is_let_in(&gateway, &strange).await, "of another authority");
        let server = gateway.pki.sign(
            &["spiffe://test.example/site/lab/node/n"],
            ExtendedKeyUsagePurpose::ServerAuth,
            |params| params.not_after = (now - half).into(),
        );
        assert!(!is_let_in(&gateway, &server).await, "of another usage");
        // A session of it has what is left of the leeway.
        let mut node = gateway.connect(Some(&of(now - two, now - half))).await;
        let (mut session, _) = node.session().await;
        session.heartbeat(1);
        assert!(matches!(session.next().await, Some(Frame::HeartbeatAck(_))));

        let strict = Gateway::start(Limits::default());
        let mine = |from, to| certificate(&strict.pki, "n", &[0x5a, 5], from, to);
        assert!(!is_let_in(&strict, &mine(now - two, now - half)).await, "without a leeway");
        assert!(!is_let_in(&strict, &mine(now + half, now + two)).await, "without a leeway");
    });
}

#[test]
fn nodes_of_several_authorities_and_of_those_below_them_are_let_in() {
    story(async {
        let (second, third) = (Pki::new(), Pki::new());
        let gateway = Gateway::start_with(Limits::default(), 1, Duration::ZERO, &second.roots);
        assert!(is_let_in(&gateway, &gateway.pki.node("first")).await);
        assert!(is_let_in(&gateway, &second.node("second")).await, "of the second root of the bundle");
        assert!(!is_let_in(&gateway, &third.node("third")).await, "of a root that is not in it");
        let below = gateway.pki.intermediate();
        let node = below.node("below");
        assert!(is_let_in(&gateway, &node).await, "by an intermediate that it brings along");
        let alone = NodeCertificate { chain: vec![node.chain[0].clone()], key: node.key.clone_key() };
        assert!(!is_let_in(&gateway, &alone).await, "the chain has a hole");
        let (mut session, _) = gateway.connect(Some(&node)).await.session().await;
        session.heartbeat(1);
        assert!(matches!(session.next().await, Some(Frame::HeartbeatAck(_))));
    });
}

#[test]
fn renewed_files_reach_new_handshakes_while_sessions_last_and_revocations_stay() {
    story(async {
        let gateway = Gateway::start_shards(Limits::default(), 2);
        let mut node = gateway.node("old").await;
        let (mut session, _) = node.session().await;
        let stolen = usual(&gateway.pki, "stolen", &[0x5a, 6]);
        revoke(&gateway, &[("5A06", "key leaked")], &[]).await;

        let (chain, key) = gateway.pki.another_server();
        let second = Pki::new();
        let roots = [&gateway.pki.roots[..], &second.roots].concat();
        let material = Arc::new(TlsMaterial::new(&chain, &key, &roots, Duration::ZERO).unwrap());
        for post in &gateway.tls_posts {
            post.post(TlsNews(Arc::clone(&material))).unwrap();
            post.ring();
        }
        until("both shards have it", || gateway.sum(|counters| counters.tls_renewals.get()) == 2).await;

        for name in ["a", "b", "c"] {
            let shown = soon(tls(gateway.addr, &gateway.pki.roots, Some(&second.node(name)))).await.unwrap();
            let certificates = shown.get_ref().1.peer_certificates().unwrap().to_vec();
            let expected = rustls_pki_types::pem::PemObject::from_pem_slice(&chain).unwrap();
            assert_eq!(certificates, [expected], "the new certificate is shown");
        }
        assert!(is_let_in(&gateway, &second.node("new")).await, "of the root that came");
        assert!(!is_let_in(&gateway, &stolen).await, "what was revoked before is revoked after");
        session.heartbeat(1);
        assert!(matches!(session.next().await, Some(Frame::HeartbeatAck(_))), "the old session lasts");
    });
}

#[test]
fn a_serving_certificate_that_no_node_would_accept_is_refused() {
    use gateway_shard::tls::{TlsError, TlsMaterial};

    let pki = Pki::new();
    let (now, day) = (SystemTime::now(), 24 * 60 * MINUTE);
    let made = |change: &dyn Fn(&mut rcgen::CertificateParams), leeway| {
        let (chain, key) = pki.server(change);
        TlsMaterial::new(&chain, &key, &pki.roots, leeway)
    };
    let expired = |params: &mut rcgen::CertificateParams| {
        params.not_before = (now - 2 * day).into();
        params.not_after = (now - MINUTE).into();
    };
    let error = made(&expired, Duration::ZERO).expect_err("it has expired");
    assert!(matches!(error, TlsError::ServingOutOfTime { .. }), "{error}");
    made(&expired, 2 * MINUTE).expect("within the leeway");
    let error = made(&|params| params.not_before = (now + day).into(), Duration::ZERO);
    assert!(matches!(error, Err(TlsError::ServingOutOfTime { .. })), "{error:?}");
    let for_clients = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let error = made(&|params| params.extended_key_usages.clone_from(&for_clients), Duration::ZERO);
    assert!(matches!(error, Err(TlsError::ServingNotForServers)), "{error:?}");
    let error = made(&|params| params.subject_alt_names.clear(), Duration::ZERO);
    assert!(matches!(error, Err(TlsError::ServingNamesNobody)), "{error:?}");

    let usual = made(&|params| params.serial_number = Some(vec![0x0A, 0xBC].into()), Duration::ZERO);
    let usual = usual.expect("a good one");
    assert_eq!(usual.serving().serial, "ABC");
    assert!(usual.serving().ends_at > now.duration_since(SystemTime::UNIX_EPOCH).unwrap());
}

#[test]
fn a_root_that_is_no_authority_is_refused() {
    use gateway_shard::tls::{TlsError, TlsMaterial};

    let pki = Pki::new();
    let roots = [&pki.roots[..], &pki.server_chain[..]].concat();
    let made = TlsMaterial::new(&pki.server_chain, &pki.server_key, &roots, Duration::ZERO);
    assert!(matches!(made, Err(TlsError::BadRoot { position: 2, .. })), "{made:?}");
}

#[test]
fn a_certificate_that_does_not_say_what_it_is_for_is_no_nodes() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let silent = gateway.pki.sign(
            &["spiffe://test.example/site/lab/node/n1"],
            ExtendedKeyUsagePurpose::ClientAuth,
            |params| params.extended_key_usages.clear(),
        );
        assert!(!is_let_in(&gateway, &silent).await);
        assert!(is_let_in(&gateway, &usual(&gateway.pki, "n1", &[7])).await);
    });
}

//! Certificates that prove nothing, and peers that don't speak TLS: an alert in the handshake where TLS
//! can see it, `UNAUTHENTICATED` where only the gateway can.
//!
//! 1. A certificate that a chain or a date speaks against never gets to a call.

use gateway_testbed::node::{EndKind, Target};
use gateway_testbed::pki::WrongCertificate;
use gateway_testbed::raw::RawConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::stage::{Stage, UNAUTHENTICATED, end_of, ends, hello, opened, welcomed};
use crate::support::health::get;
use crate::support::{SOON, World, asked_until, within};

const ONE_URI: &str = "the client certificate must have exactly one URI among its subject alternative names";
const OTHER_DOMAIN: &str = "the client certificate is of another trust domain than this gateway's";
const OTHER_PATH: &str =
    "the client certificate has a SPIFFE path that names no site and node as this gateway expects them";

pub async fn stories(stage: &Stage) {
    stage.peer("imposter").await;
    stage.story("certificates fail in the handshake", alerts(stage)).await;
    stage.story("certificates name nobody", unauthenticated(stage)).await;
    stage.story("a certificate is revoked, or another node's", revoked(stage)).await;
    let before = stage.counter("handshakes_failed").await;
    let garbage = stage.story("garbage comes in the place of TLS", no_tls(stage)).await;
    stage.counted("handshakes_failed", before + garbage).await;
}

fn wrong_target(world: &World, stage: &Stage, wrong: WrongCertificate) -> Target {
    let identity = world.pki.wrong("imposter", wrong).unwrap();
    Target::new(stage.gateway.address(), world.pki.client_config(Some(&identity)).unwrap())
}

async fn alerts(stage: &Stage) {
    for (wrong, alert) in [
        // Of an authority with the name of ours: only the signature tells them apart.
        (WrongCertificate::OtherAuthority, "DecryptError"),
        (WrongCertificate::Expired, "CertificateExpired"),
        (WrongCertificate::NotYetValid, "CertificateExpired"),
        (WrongCertificate::ServerUsage, "UnsupportedCertificate"),
    ] {
        let target = wrong_target(&stage.world, stage, wrong);
        assert_eq!(refusal(&target).await, EndKind::TlsAlert(alert.to_owned()), "{wrong:?}");
    }
}

/// How the gateway refuses a certificate. In TLS 1.3 the client is done before its certificate is
/// looked at: the alert comes after.
async fn refusal(target: &Target) -> EndKind {
    match within(SOON, "a connection", RawConnection::open(target)).await {
        Ok(mut connection) => connection.read_to_end(SOON).await.1.expect("the connection ends").kind,
        Err(end) => end.kind,
    }
}

async fn unauthenticated(stage: &Stage) {
    for (wrong, sentence) in [
        (WrongCertificate::NoUri, ONE_URI),
        (WrongCertificate::TwoUris, ONE_URI),
        (WrongCertificate::OtherTrustDomain, OTHER_DOMAIN),
        (WrongCertificate::OtherPath, OTHER_PATH),
    ] {
        let mut call = opened(&wrong_target(&stage.world, stage, wrong)).await;
        ends(&mut call, UNAUTHENTICATED, sentence).await;
    }
}

async fn revoked(stage: &Stage) {
    let mut database = stage.world.connect().await;
    let identity = stage.world.register("revoked").await;
    sqlx::query(
        "UPDATE node_certs SET revoked_at = compute_now(), revoked_reason = 'key leaked' WHERE serial = $1",
    )
    .bind(&identity.serial)
    .execute(&mut database)
    .await
    .unwrap();
    asked_until(SOON, "the gateway knows of it", async || {
        get(&stage.control, "/metrics").await.1.contains("gateway_revoked_certificates 1").then_some(())
    })
    .await;
    let target = stage.world.target("g", &identity);
    assert_eq!(refusal(&target).await, EndKind::TlsAlert("CertificateRevoked".to_owned()));
    stage.counted("handshakes_revoked", 1).await;

    // The serial of one node on the name of another.
    let identity = stage.world.register("borrower").await;
    sqlx::query("UPDATE node_certs SET node_id = $2 WHERE serial = $1")
        .bind(&identity.serial)
        .bind(stage.world.id("good"))
        .execute(&mut database)
        .await
        .unwrap();
    let mut call = opened(&stage.world.target("g", &identity)).await;
    call.send(gateway_proto::v1::node_frame::Frame::Hello(hello()));
    let end = end_of(&mut call).await;
    assert_eq!(end.status(), Some(UNAUTHENTICATED), "{end:?}");
    assert!(end.message.contains("was issued to another node"), "{end:?}");

    // The right certificate of the imposter's name is let in.
    let (mut call, _) = welcomed(&stage.peer("imposter").await, hello()).await;
    call.half_close();
    ends(&mut call, 0, "").await;
}

/// Bytes that are no TLS; how many connections.
async fn no_tls(stage: &Stage) -> u64 {
    let garbage: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nhost: gateway\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &[0xff; 2000],
        // A handshake record of a type that is no ClientHello.
        &[22, 3, 1, 0, 4, 99, 0, 0, 0],
        // A record that claims to be longer than any may be.
        &[22, 3, 1, 0xff, 0xff, 1, 2, 3],
    ];
    for bytes in garbage {
        let mut tcp = TcpStream::connect(stage.gateway.address()).await.unwrap();
        tcp.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        // An alert may come first; the connection's end may be a reset, since bytes were left unread.
        let _ = within(SOON, "what is no TLS is cut at once", tcp.read_to_end(&mut answer)).await;
        assert!(answer.is_empty() || answer[0] == 21, "an alert or nothing: {answer:?}");
    }
    garbage.len() as u64
}

/// The alert to a ClientHello is lost: it would be the first thing written to the socket, and the
/// socket is dropped before it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "known fault: who is refused for its ClientHello gets a reset in the place of the alert"]
async fn who_speaks_no_protocol_of_ours_is_told_so_within_tls() {
    let stage = Stage::open("alpn", "").await;
    let mut tls = stage.world.pki.client_config(None).unwrap();
    tls.alpn_protocols = vec![b"acme-tls/1".to_vec()];
    let target = Target::new(stage.gateway.address(), tls);
    assert_eq!(refusal(&target).await, EndKind::TlsAlert("NoApplicationProtocol".to_owned()));
    stage.close().await;
}

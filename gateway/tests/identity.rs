//! Certificates on real processes: revocations that reach live sessions, through outages too; certificates that the
//! database does not know; files that are renewed under load.
//!
//! What TLS makes of a certificate is told in `shard/tests/certificates.rs` and `hostile_peers`, what a Hello may by its
//! row in `db-writer/tests/certificates.rs`.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gateway_proto::path;
use gateway_proto::v1::{Hello, node_frame::Frame};
use gateway_testbed::clock::monotonic_ns;
use gateway_testbed::cluster::StopMode;
use gateway_testbed::gateway_process::GatewayProcess;
use gateway_testbed::node::{EndKind, Target};
use gateway_testbed::pki::{GatewayFiles, Identity, WrongCertificate};
use gateway_testbed::raw::RawCall;
use http::HeaderMap;
use rustix::process::Signal;
use rustls_pki_types::CertificateDer;
use serde_json::Value;
use sqlx::PgConnection;
use support::health::{control_address, get, health};
use support::{SOON, World, asked_until, measured, within};

const UNAUTHENTICATED: u32 = 16;
/// So slow that what comes in time came by a notification.
const BY_NOTIFICATION: &str = "[identity]\nrevocation_poll = '60s'\n";
const BY_POLL: &str = "[database]\nnotify = false\n";

async fn revoke(database: &mut PgConnection, serial: &str, reason: &str) {
    let statement = "UPDATE node_certs SET revoked_at = compute_now(), revoked_reason = $2 WHERE serial = $1";
    let done = sqlx::query(statement).bind(serial).bind(reason).execute(database).await.unwrap();
    assert_eq!(done.rows_affected(), 1);
}

async fn clear(database: &mut PgConnection, serial: &str) {
    let statement = "UPDATE node_certs SET revoked_at = NULL, revoked_reason = NULL WHERE serial = $1";
    sqlx::query(statement).bind(serial).execute(database).await.unwrap();
}

fn is_alert(kind: &EndKind) -> bool {
    *kind == EndKind::TlsAlert("CertificateRevoked".to_owned())
}

/// A live session is told, ends, and comes back neither over a new connection nor to another gateway, until the
/// revocation is cleared.
async fn a_revocation_reaches_everybody(world: &World, within_seconds: f64) {
    let mut database = world.connect().await;
    let identity = world.register("stolen").await;
    let mut options = world.node_options("stolen", &identity, "one");
    options.elsewhere = vec![world.target("two", &identity)];
    let node = gateway_testbed::node::Node::start(options);
    world.watch.connected_after(node.name(), 0).await;
    let good = world.node("good", "one", |_| {}).await;

    let (begun, begun_ns) = (Instant::now(), monotonic_ns());
    revoke(&mut database, &identity.serial, "key leaked").await;
    let name = node.name().to_owned();
    let end = world
        .watch
        .until(SOON, "the session ends", |seen| seen.drops().find(|one| *one.node == *name).cloned())
        .await;
    let took = (end.at_ns - begun_ns) as f64 / 1e9;
    measured("from the revocation until the node knew that its session had ended", format!("{took:.3} s"));
    assert!(took < within_seconds, "{took} s");
    assert_eq!(end.end.status(), Some(UNAUTHENTICATED), "{end:?}");
    let sentence =
        format!("certificate {} is revoked: key leaked; reconnect with another one", identity.serial);
    assert_eq!(end.end.message, sentence);
    world.watch.look(|seen| {
        let notices: Vec<_> = seen.revocations.iter().filter(|(of, ..)| **of == *name).collect();
        assert_eq!(notices.len(), 1, "{notices:?}");
        assert_eq!(
            (notices[0].1.as_str(), &notices[0].2[..]),
            ("key leaked", &[identity.serial.clone()][..])
        );
    });
    world
        .watch
        .until(SOON, "both gateways refuse it in the handshake", |seen| {
            let refused = seen.ended.iter().filter(|one| *one.node == *name && is_alert(&one.end.kind));
            (refused.count() >= 6).then_some(())
        })
        .await;
    measured("until it had been refused six times", support::seconds(begun));
    let epoch = world.watch.epoch_of(&name);
    clear(&mut database, &identity.serial).await;
    world.watch.connected_after(&name, epoch).await;
    let drops = world.watch.look(|seen| seen.drops().filter(|one| *one.node == *good.name()).count());
    assert_eq!(drops, 0, "its neighbour was left alone");
}

#[tokio::test]
async fn a_revocation_is_heard_of_at_once_and_so_is_its_end() {
    let world = World::new("revoked_at_once").await;
    let _one = world.gateway("one", BY_NOTIFICATION).await;
    let _two = world.gateway("two", BY_NOTIFICATION).await;
    a_revocation_reaches_everybody(&world, 1.0).await;
}

#[tokio::test]
async fn a_revocation_that_nobody_is_told_of_is_found_by_the_poll() {
    let world = World::new("revoked_by_poll").await;
    let _one = world.gateway("one", BY_POLL).await;
    let _two = world.gateway("two", BY_POLL).await;
    // A poll each second, and what a busy machine takes besides.
    a_revocation_reaches_everybody(&world, 2.0).await;
}

fn named_loop(health: &Value, name: &str) -> Value {
    let loops = health["loops"].as_array().expect("loops");
    loops.iter().find(|one| one["loop"] == name).unwrap_or_else(|| panic!("no loop {name}: {health}")).clone()
}

#[tokio::test]
async fn what_is_known_to_be_revoked_is_refused_while_the_database_is_away() {
    let mut world = World::with_own_cluster("revoked_in_an_outage").await;
    let _gateway = world.gateway("g", "").await;
    let mut database = world.connect().await;
    let control = control_address(&mut database, "g").await;
    let identity = world.register("stolen").await;
    let node = gateway_testbed::node::Node::start(world.node_options("stolen", &identity, "g"));
    let epoch = world.watch.connected_after(node.name(), 0).await;
    revoke(&mut database, &identity.serial, "key leaked").await;
    let alerts = |world: &World| {
        world.watch.look(|seen| seen.ended.iter().filter(|one| is_alert(&one.end.kind)).count())
    };
    asked_until(SOON, "it is refused in the handshake", async || (alerts(&world) > 0).then_some(())).await;

    drop(database);
    world.cluster().stop(StopMode::Immediate).unwrap();
    let before = alerts(&world);
    asked_until(SOON, "it is refused without the database", async || {
        (alerts(&world) > before + 3).then_some(())
    })
    .await;
    asked_until(SOON, "the feed says that it can't look", async || {
        let shown = named_loop(&health(&control).await.1, "revocations");
        (shown["consecutive_failures"].as_u64() > Some(0) && shown["last_error"].is_string()).then_some(())
    })
    .await;
    assert_eq!(world.watch.epoch_of(node.name()), epoch, "it was let in nowhere");
    world.cluster().start_again().unwrap();
    asked_until(SOON, "the feed looks again", async || {
        (named_loop(&health(&control).await.1, "revocations")["consecutive_failures"] == 0).then_some(())
    })
    .await;
    let metrics = get(&control, "/metrics").await.1;
    assert!(metrics.contains("gateway_revoked_certificates 1"), "{metrics}");
    clear(&mut world.connect().await, &identity.serial).await;
    world.watch.connected_after(node.name(), epoch).await;
}

/// How a Hello under this certificate ends, if it is not welcomed.
async fn refusal(world: &World, identity: &Identity) -> Option<(Option<u32>, String)> {
    let target = world.target("g", identity);
    let opening = RawCall::open(&target, path::SESSION, HeaderMap::new());
    let mut call = within(SOON, "a stream is opened", opening).await.unwrap();
    call.send(Frame::Hello(Hello { protocol: 1, boot_id: "b".to_owned(), ..Hello::default() }));
    match call.frame(SOON).await.expect("an answer") {
        Ok(_) => None,
        Err(end) => Some((end.status(), end.message)),
    }
}

#[tokio::test]
async fn a_certificate_that_the_database_does_not_know_is_refused_unless_that_is_allowed() {
    let world = World::new("unknown_serial").await;
    let gateway = world.gateway("g", "").await;
    let mut database = world.connect().await;
    world.register("known").await;
    let unknown = world.pki.node("known").unwrap();
    let (status, sentence) = refusal(&world, &unknown).await.expect("it is refused");
    assert_eq!(status, Some(UNAUTHENTICATED), "{sentence}");
    let advice = sentence.split("with ").nth(1).expect("what to do");
    assert!(advice.starts_with("INSERT INTO node_certs"), "{sentence}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(advice.to_owned())).execute(&mut database).await.unwrap();
    assert_eq!(refusal(&world, &unknown).await, None, "the advice helps");
    drop(gateway);

    let _gateway = world.gateway("g", "[identity]\nunknown_serial = 'accept'\n").await;
    let control = control_address(&mut database, "g").await;
    let another = world.pki.node("known").unwrap();
    assert_eq!(refusal(&world, &another).await, None);
    let metrics = get(&control, "/metrics").await.1;
    assert!(metrics.contains("gateway_hellos_of_unknown_certificates_total 1"), "{metrics}");
}

/// The one line of the log with this serial, of a certificate that was refused.
async fn line_of(gateway: &GatewayProcess, serial: &str) -> String {
    let log = gateway.logged(serial).await;
    let lines: Vec<&str> =
        log.lines().filter(|line| line.contains(serial) && line.contains("is refused")).collect();
    let [line] = &lines[..] else { panic!("one line names {serial}: {lines:?}\n{log}") };
    (*line).to_owned()
}

/// What a dial under this certificate comes to is told elsewhere; this one is over when it is refused.
async fn dial(world: &World, identity: &Identity) {
    let target = world.target("g", identity);
    // In TLS 1.3 the client is done before its certificate is looked at: the alert may come with the call.
    let Ok(mut call) = within(SOON, "a dial", RawCall::open(&target, path::SESSION, HeaderMap::new())).await
    else {
        return;
    };
    call.send(Frame::Hello(Hello {
        protocol: 1,
        boot_id: "b".to_owned(),
        role: "storage".to_owned(),
        ..Hello::default()
    }));
    let end = call.frame(SOON).await.expect("an answer").expect_err("it is refused");
    assert_ne!(end.status(), Some(0), "{end:?}");
}

#[tokio::test]
async fn a_node_whose_certificate_is_refused_is_named_in_the_log_with_why_and_what_to_do() {
    let world = World::new("refused_in_the_log").await;
    let gateway = world.gateway("g", "").await;
    let mut database = world.connect().await;
    let control = control_address(&mut database, "g").await;

    let stolen = world.register("stolen").await;
    revoke(&mut database, &stolen.serial, "key leaked").await;
    asked_until(SOON, "the gateway knows of it", async || {
        get(&control, "/metrics").await.1.contains("gateway_revoked_certificates 1").then_some(())
    })
    .await;
    for _ in 0..5 {
        dial(&world, &stolen).await;
    }
    let line = line_of(&gateway, &stolen.serial).await;
    assert!(line.contains(&world.id("stolen")) && line.contains("it is revoked"), "{line}");
    assert!(line.contains("What to do") && line.contains("WARN"), "{line}");

    // Nothing speaks against this one but what its Hello says.
    let other_role = world.register("other-role").await;
    dial(&world, &other_role).await;
    let line = line_of(&gateway, &other_role.serial).await;
    assert!(line.contains(&world.id("other-role")) && line.contains("another role than node"), "{line}");

    for (wrong, why) in [
        (WrongCertificate::Expired, "is out of its time: it expired at"),
        (WrongCertificate::OtherTrustDomain, "of another trust domain"),
        (WrongCertificate::NoUri, "exactly one URI"),
        (WrongCertificate::ServerUsage, "not for clients"),
        (WrongCertificate::OtherAuthority, "its authority"),
    ] {
        let identity = world.pki.wrong("imposter", wrong).unwrap();
        dial(&world, &identity).await;
        let line = line_of(&gateway, &identity.serial).await;
        assert!(line.contains(why) && line.contains("What to do"), "{wrong:?}: {line}");
    }
}

/// The TLS files of a gateway in a folder that a symlink names, as kubelet and cert-manager swap them.
struct Mounted {
    folder: PathBuf,
    version: u32,
}

impl Mounted {
    fn new(world: &World, folder: &Path) -> Self {
        let mut mounted = Self { folder: folder.to_owned(), version: 0 };
        mounted.swap(|to| drop(world.pki.write_gateway_files(to).unwrap()));
        mounted
    }

    fn files(&self) -> GatewayFiles {
        let at = |name: &str| self.folder.join("data").join(name);
        GatewayFiles {
            certificate: at("gateway.crt"),
            key: at("gateway.key"),
            node_ca: at("node-ca.crt"),
            server_ca: at("server-ca.crt"),
            internal_ca: at("internal-ca.crt"),
            internal_certificate: at("internal.crt"),
            internal_key: at("internal.key"),
        }
    }

    /// Another folder, which `write` fills, takes the place of the present one in one step.
    fn swap(&mut self, write: impl FnOnce(&Path)) {
        self.version += 1;
        let name = format!("v{}", self.version);
        let to = self.folder.join(&name);
        std::fs::create_dir_all(&to).unwrap();
        write(&to);
        let link = self.folder.join("next");
        std::os::unix::fs::symlink(&name, &link).unwrap();
        std::fs::rename(&link, self.folder.join("data")).unwrap();
    }

    fn certificate(&self) -> CertificateDer<'static> {
        rustls_pki_types::pem::PemObject::from_pem_file(self.files().certificate).unwrap()
    }
}

async fn shown(target: &Target) -> CertificateDer<'static> {
    let tls = within(SOON, "a handshake", target.connect()).await.unwrap();
    tls.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

/// Renews the files under sessions; gives how long it took until new handshakes showed the new certificate.
async fn renew_under(world: &World, sessions: usize, opens: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut mounted = Mounted::new(world, folder.path());
    let mut options = world.options("g", opens);
    options.files = mounted.files();
    let mut gateway = world.start(options).await;
    let control = control_address(&mut world.connect().await, "g").await;
    let nodes =
        world.nodes("node", sessions, "g", |options| options.heartbeat = Some(Duration::from_secs(2))).await;
    let target = world.target("g", &world.register("looker").await);
    assert_eq!(shown(&target).await, mounted.certificate());

    // By a signal, by the look at the interval, and again, so that a set is not taken for the first one alone.
    for by_signal in [true, false, true] {
        mounted.swap(|to| drop(world.pki.write_gateway_files(to).unwrap()));
        let begun = Instant::now();
        if by_signal {
            gateway.signal(Signal::HUP).unwrap();
        }
        asked_until(SOON, "new handshakes show the new certificate", async || {
            (shown(&target).await == mounted.certificate()).then_some(())
        })
        .await;
        measured("until a new handshake showed the new certificate", support::seconds(begun));
    }
    // A key that does not match: nothing changes, and that is told.
    let good = mounted.certificate();
    mounted.swap(|to| {
        world.pki.write_gateway_files(to).unwrap();
        world.pki.server().unwrap().write(&to.join(".."), "stray").unwrap();
        std::fs::copy(to.join("../stray.key"), to.join("gateway.key")).unwrap();
    });
    gateway.signal(Signal::HUP).unwrap();
    asked_until(SOON, "the broken set is told of", async || {
        let shown = named_loop(&health(&control).await.1, "tls-files");
        let told = shown["last_error"].as_str().is_some_and(|error| error.contains("tls.key"));
        (shown["consecutive_failures"].as_u64() > Some(0) && told).then_some(())
    })
    .await;
    assert_eq!(shown(&target).await, good, "it changed nothing");
    let log = gateway.logged("can't be used").await;
    assert!(log.contains("can't be used"), "{log}");
    // Whoever asks again is told again.
    gateway.signal(Signal::HUP).unwrap();
    asked_until(SOON, "the second look is answered too", async || {
        (gateway.log_tail(100).matches("can't be used").count() >= 2).then_some(())
    })
    .await;
    // No roots at all, then good files again.
    mounted.swap(|to| {
        world.pki.write_gateway_files(to).unwrap();
        std::fs::write(to.join("node-ca.crt"), "").unwrap();
    });
    gateway.signal(Signal::HUP).unwrap();
    asked_until(SOON, "the empty set of roots is told of", async || {
        let shown = named_loop(&health(&control).await.1, "tls-files");
        shown["last_error"].as_str().is_some_and(|error| error.contains("tls.node_ca")).then_some(())
    })
    .await;
    assert_eq!(shown(&target).await, good, "it changed nothing");
    mounted.swap(|to| drop(world.pki.write_gateway_files(to).unwrap()));
    asked_until(SOON, "good files are taken", async || {
        let clean = named_loop(&health(&control).await.1, "tls-files")["consecutive_failures"] == 0;
        (clean && shown(&target).await == mounted.certificate()).then_some(())
    })
    .await;
    let metrics = get(&control, "/metrics").await.1;
    assert!(metrics.contains("gateway_tls_reloads_total 4"), "{metrics}");

    let beats = world.watch.look(|seen| seen.beats.len());
    world
        .watch
        .until(SOON, "every session is heard after all that", |seen| {
            let heard: std::collections::HashSet<&str> =
                seen.beats[beats..].iter().map(|(node, ..)| &**node).collect();
            (heard.len() >= nodes.len()).then_some(())
        })
        .await;
    let lost = world.watch.look(|seen| seen.drops().count());
    measured(&format!("sessions lost of {sessions}"), lost);
    assert_eq!(lost, 0);
}

#[tokio::test]
async fn files_that_are_renewed_reach_new_handshakes_and_cost_no_session() {
    let world = World::new("tls_files").await;
    renew_under(
        &world,
        200,
        "[tls]\nreload_every = '1s'\n[admission]\nopens_per_second = 1000\nopens_burst = 1000\n",
    )
    .await;
}

/// `GATEWAY_SESSIONS=5000 cargo test --release -p gateway --test identity -- --ignored --nocapture renewed_under_many`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "five thousand sessions; see its command"]
async fn files_renewed_under_many_sessions() {
    let world = World::new("tls_files_many").await;
    let many = sessions(5_000);
    let admission = format!(
        "[tls]\nreload_every = '1s'\n[admission]\nopens_per_second = 10000\nopens_burst = 10000\nmax_streams = {}\n\
         max_pending_hellos = {}\n",
        many + 100,
        many + 100
    );
    renew_under(&world, many, &admission).await;
}

fn sessions(usually: usize) -> usize {
    std::env::var("GATEWAY_SESSIONS").ok().map_or(usually, |count| count.parse().expect("a number"))
}

/// The figure: each of a thousand sessions' certificates is revoked by a statement of its own, one after the other.
///
/// `cargo test --release -p gateway --test identity -- --ignored --nocapture closes_of_revoked`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a thousand sessions; see its command"]
async fn closes_of_revoked_sessions_by_percentile() {
    let world = World::new("revoked_many").await;
    let many = sessions(1_000);
    let admission = "[admission]\nopens_per_second = 10000\nopens_burst = 10000\n";
    let _gateway = world.gateway("g", admission).await;
    let mut database = world.connect().await;
    let names: Vec<String> = (0..many).map(|index| format!("node-{index:05}")).collect();
    let identities = world.register_all(&names).await;
    let nodes: Vec<_> = names
        .iter()
        .zip(&identities)
        .map(|(name, identity)| {
            let mut options = world.node_options(name, identity, "g");
            options.redial.max = Duration::from_secs(600);
            options.redial.first = options.redial.max;
            gateway_testbed::node::Node::start(options)
        })
        .collect();
    let welcomed = "every node has its Welcome";
    world.watch.until(SOON * 3, welcomed, |seen| (seen.connected.len() >= many).then_some(())).await;
    let mut begun = std::collections::HashMap::new();
    for (node, identity) in nodes.iter().zip(&identities) {
        begun.insert(node.name().to_owned(), monotonic_ns());
        revoke(&mut database, &identity.serial, "measured").await;
    }
    world
        .watch
        .until(SOON * 3, "every session ends", |seen| (seen.drops().count() >= many).then_some(()))
        .await;
    let mut took: Vec<f64> = world
        .watch
        .look(|seen| seen.drops().map(|one| (one.at_ns - begun[&*one.node]) as f64 / 1e6).collect());
    took.sort_by(f64::total_cmp);
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize];
    measured(
        &format!("from the statement until the node knew that its session had ended, {many} sessions, ms"),
        format!("p50 {:.1}, p90 {:.1}, p99 {:.1}, max {:.1}", at(0.5), at(0.9), at(0.99), at(1.0)),
    );
    assert!(at(0.99) < 1_000.0, "within about a second");
}

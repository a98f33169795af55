//! Join, Renew and FetchSecret through a real gateway, to a real authority over internal mTLS.
//!
//! The authority is the testbed's (`gateway_testbed::authority`); it issues certificates, writes their rows,
//! and can be told to hang, to fail or to be gone. What a node does with its certificates is here too.
//!
//! Stories: joining, renewing, secrets and who gets none, services that are away, slow or of an embedder.

#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gateway::Gateway;
use gateway::config::Config;
use gateway::relays::{
    Caller, EmbeddedRelays, FetchSecret, Hidden, Refusal, RefusalCode, RelayFuture, Secret, SecretBroker,
};
use gateway_proto::path;
use gateway_proto::v1::{FetchSecretRequest, FetchSecretResponse, JoinRequest, JoinResponse};
use gateway_testbed::authority::{Authority, Mood, Received, Status};
use gateway_testbed::database::{NewCommand, enqueue};
use gateway_testbed::gateway_process::GatewayProcess;
use gateway_testbed::node::{End, EndKind, Enrolment, Node, NodeOptions, Target, unary};
use gateway_testbed::pki::Identity;
use support::health::{control_address, get};
use support::{QUICK_REDIAL, RESOURCE_EXHAUSTED, SOON, UNAVAILABLE, World, asked_until, within};

const INVALID_ARGUMENT: u32 = 3;
const NOT_FOUND: u32 = 5;
const PERMISSION_DENIED: u32 = 7;
const UNAUTHENTICATED: u32 = 16;

const LONG: Duration = Duration::from_secs(3600);
const HOUR: Duration = LONG;

/// A world with an authority behind its gateway.
struct Stage {
    world: World,
    authority: Authority,
    gateway: GatewayProcess,
}

impl Stage {
    async fn new(story: &str, extra: &str) -> Self {
        let world = World::new(story).await;
        let authority = authority(&world, any_port()).await;
        let mut options = world.options("g1", extra);
        options.upstream_url = Some(authority.url());
        let gateway = world.start(options).await;
        Self { world, authority, gateway }
    }

    fn target(&self, identity: Option<&Identity>) -> Target {
        let tls = self.world.pki.client_config(identity).unwrap();
        Target::new(self.gateway.address(), tls)
    }

    fn enrolment(&self, token: &str) -> Arc<Enrolment> {
        Enrolment::new(self.world.pki.client_tls(), "machine-1", token)
    }

    /// A node that has nothing but its enrolment.
    fn node_options(&self, name: &str, enrolment: &Arc<Enrolment>) -> NodeOptions {
        let mut options = NodeOptions::new(&self.world.id(name), self.target(None));
        options.enrolment = Some(Arc::clone(enrolment));
        options.observer = Arc::clone(&self.world.watch) as _;
        options.redial = QUICK_REDIAL;
        options
    }

    async fn revoke(&self, serial: &str) {
        let statement = "UPDATE node_certs SET revoked_at = now(), revoked_reason = 'test' WHERE serial = $1";
        sqlx::query(statement).bind(serial).execute(&mut self.world.connect().await).await.unwrap();
    }

    async fn serves_commands(&self, name: &str) {
        let mut connection = self.world.connect().await;
        let node = self.world.id(name);
        let id = enqueue(&mut connection, &NewCommand::new(&node, b"x")).await.unwrap();
        self.world.watch.all_settled(&[id], SOON).await;
    }

    /// The log, once it has this text.
    async fn log(&self, text: &str) -> String {
        self.gateway.logged(text).await
    }
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

async fn authority(world: &World, listen: SocketAddr) -> Authority {
    Authority::start(&world.pki, listen, &world.url, HOUR).await.unwrap()
}

async fn join(target: &Target, token: &str, csr_der: &'static [u8]) -> Result<JoinResponse, End> {
    let request = JoinRequest {
        token: token.to_owned(),
        csr_der: Bytes::from_static(csr_der),
        ..JoinRequest::default()
    };
    within(SOON, "an answer to Join", unary(target, path::JOIN, &request)).await
}

async fn fetch(target: &Target, name: &str) -> Result<FetchSecretResponse, End> {
    let request = FetchSecretRequest { name: name.to_owned(), version: String::new() };
    within(SOON, "an answer to FetchSecret", unary(target, path::FETCH_SECRET, &request)).await
}

fn refused<T: std::fmt::Debug>(outcome: Result<T, End>, code: u32, sentence: &str) -> End {
    let end = outcome.expect_err("refused");
    assert_eq!(end.status(), Some(code), "{end:?}");
    assert!(end.message.contains(sentence), "{sentence:?} is not in {:?}", end.message);
    end
}

#[tokio::test]
async fn a_node_starts_from_a_join_token_alone_and_renews_without_losing_its_session() {
    let stage = Stage::new("join_and_renew", "").await;
    stage.authority.set_certificate_life(Duration::from_secs(6));
    let token = stage.authority.mint_token("n1", LONG);
    let enrolment = stage.enrolment(&token);
    let node = Node::start(stage.node_options("n1", &enrolment));
    let watch = Arc::clone(&stage.world.watch);
    watch.connected_after(node.name(), 0).await;
    let first = enrolment.credential().unwrap();
    stage.serves_commands("n1").await;

    stage.authority.set_certificate_life(HOUR);
    let second = watch.until(SOON, "a renewal", |seen| seen.renewals.first().cloned()).await.1;
    assert!(!first.has_expired(), "it renews at two thirds");
    assert_ne!(second, first.serial);
    watch
        .until(SOON, "a session with the new certificate", |seen| (seen.connected.len() >= 2).then_some(()))
        .await;
    // Until the old certificate is over: the session that goes by it is gone before.
    let left = first.not_after.duration_since(std::time::SystemTime::now()).unwrap_or_default();
    tokio::time::sleep(left + Duration::from_secs(1)).await;
    stage.serves_commands("n1").await;
    watch.look(|seen| assert_eq!(seen.drops().count(), 0, "{:?}", seen.ended));

    let mut connection = stage.world.connect().await;
    let session: (String,) =
        sqlx::query_as("SELECT certificate_serial FROM node_sessions WHERE node_id = $1")
            .bind(node.name())
            .fetch_one(&mut connection)
            .await
            .unwrap();
    assert_eq!(session.0, second, "the session is of the new certificate");
    let rows: Vec<(String,)> = sqlx::query_as("SELECT serial FROM node_certs WHERE node_id = $1")
        .bind(node.name())
        .fetch_all(&mut connection)
        .await
        .unwrap();
    assert_eq!(rows.len(), 2, "each certificate has its row");
    let received = stage.authority.received();
    let Some(Received::Renew(call)) = received.iter().find(|call| matches!(call, Received::Renew(_))) else {
        panic!("no renewal among {received:?}")
    };
    let caller = call.caller.clone().unwrap();
    assert_eq!((caller.node_id.as_str(), caller.site.as_str()), (node.name(), "lab"));
    assert_eq!((caller.certificate_serial, caller.role.as_str()), (first.serial.clone(), "node"));
    assert_eq!(call.gateway_id, "g1");
    node.goodbye().await;
}

#[tokio::test]
async fn a_join_token_is_good_for_one_certificate_and_what_is_none_for_nothing() {
    let stage = Stage::new("join_tokens", "").await;
    let machine = stage.target(None);
    let enrolment = stage.enrolment(&stage.authority.mint_token("n1", LONG));
    let token = {
        let used = stage.authority.mint_token("n2", LONG);
        stage.enrolment(&used).join(&machine).await.unwrap();
        used
    };
    enrolment.join(&machine).await.unwrap();
    let again = stage.enrolment(&token).join(&machine).await;
    refused(again, UNAUTHENTICATED, "was used before");
    refused(join(&machine, "no-such-token", b"csr").await, UNAUTHENTICATED, "is not known");
    let old = stage.authority.mint_token("n3", Duration::ZERO);
    refused(join(&machine, &old, b"csr").await, UNAUTHENTICATED, "too old");
    // A CSR that can't be signed costs no token.
    let token = stage.authority.mint_token("n3", LONG);
    refused(join(&machine, &token, b"no csr").await, INVALID_ARGUMENT, "CSR");
    stage.enrolment(&token).join(&machine).await.unwrap();
    // A node with a used token never gets a session, and one that gets another does.
    let stuck = stage.enrolment("used-or-wrong");
    let node = Node::start(stage.node_options("n4", &stuck));
    let ended =
        stage.world.watch.until(SOON, "its join is refused", |seen| seen.ended.first().cloned()).await;
    assert_eq!(ended.end.kind, EndKind::Status(UNAUTHENTICATED));
    assert_eq!(stage.world.watch.epoch_of(node.name()), 0);
}

#[tokio::test]
async fn a_node_whose_certificate_expired_must_join_again() {
    let stage = Stage::new("expired", "").await;
    stage.authority.set_certificate_life(Duration::from_secs(2));
    let enrolment = stage.enrolment(&stage.authority.mint_token("n1", LONG));
    let target = stage.target(None);
    let first = enrolment.join(&target).await.unwrap();
    let shown = enrolment.dressed(&target).await.unwrap();
    let left = first.not_after.duration_since(std::time::SystemTime::now()).unwrap_or_default();
    tokio::time::sleep(left + Duration::from_millis(1100)).await;
    let end = fetch(&shown, "db").await.expect_err("expired");
    assert_eq!(end.kind, EndKind::TlsAlert("CertificateExpired".to_owned()), "{end:?}");
    let renewal = enrolment.renew(&target).await.expect_err("expired");
    assert!(matches!(renewal.kind, EndKind::TlsAlert(_)), "{renewal:?}");
    // With no token left it does not dial; with one it joins and has its session.
    stage.authority.set_certificate_life(HOUR);
    let node = Node::start(stage.node_options("n1", &enrolment));
    let ended = stage.world.watch.until(SOON, "it can't dial", |seen| seen.ended.first().cloned()).await;
    assert!(ended.end.message.contains("no join token"), "{:?}", ended.end);
    enrolment.give_token(&stage.authority.mint_token("n1", LONG));
    stage.world.watch.connected_after(node.name(), 0).await;
    assert_ne!(enrolment.credential().unwrap().serial, first.serial);
}

#[tokio::test]
async fn secrets_are_for_known_certificates_that_no_tenant_controls_and_nobody_revoked() {
    let stage = Stage::new("secrets", "").await;
    stage.authority.keep_secret("db", "1", "old");
    stage.authority.keep_secret("db", "2", vec![7u8; 200_000]);
    let enrolment = stage.enrolment(&stage.authority.mint_token("n1", LONG));
    let target = stage.target(None);
    let credential = enrolment.join(&target).await.unwrap();
    let newest = enrolment.fetch_secret(&target, "db", "").await.unwrap();
    assert_eq!((newest.version.as_str(), newest.value.len()), ("2", 200_000));
    let old = enrolment.fetch_secret(&target, "db", "1").await.unwrap();
    assert_eq!(&old.value[..], b"old");
    refused(enrolment.fetch_secret(&target, "other", "").await, NOT_FOUND, "no such secret");

    let asked = stage.authority.received().len();
    let mut connection = stage.world.connect().await;
    let tenant = stage.world.register("tenant").await;
    sqlx::query("UPDATE node_certs SET tenant_controlled = true WHERE serial = $1")
        .bind(&tenant.serial)
        .execute(&mut connection)
        .await
        .unwrap();
    let of_tenant = stage.target(Some(&tenant));
    refused(fetch(&of_tenant, "db").await, PERMISSION_DENIED, "tenant-controlled");
    let unknown = stage.world.pki.node("stranger").unwrap();
    refused(fetch(&stage.target(Some(&unknown)), "db").await, PERMISSION_DENIED, "not known");
    refused(fetch(&target, "db").await, UNAUTHENTICATED, "no client certificate");
    stage.revoke(&credential.serial).await;
    revoked(enrolment.fetch_secret(&target, "db", "").await);
    revoked(enrolment.renew(&target).await);
    assert_eq!(stage.authority.received().len(), asked, "the broker was asked for none of these");

    // A tenant's node may renew, and its service is told.
    let end = renew_as(&of_tenant).await;
    assert_eq!(end.status(), Some(INVALID_ARGUMENT), "{end:?}");
    let Some(Received::Renew(call)) = stage.authority.received().pop() else { panic!("no renewal") };
    assert!(call.caller.unwrap().tenant_controlled);
}

/// The handshake refuses it as soon as its shard knows; until then the call does, by what the database says.
fn revoked<T: std::fmt::Debug>(outcome: Result<T, End>) {
    let end = outcome.expect_err("a revoked certificate");
    let by_alert = matches!(&end.kind, EndKind::TlsAlert(alert) if alert == "CertificateRevoked");
    assert!(
        by_alert || (end.status() == Some(UNAUTHENTICATED) && end.message.contains("revoked")),
        "{end:?}"
    );
}

#[tokio::test]
async fn a_node_does_not_shed_its_limits_by_renewing() {
    let stage = Stage::new("limits_renewed", "").await;
    stage.authority.keep_secret("db", "1", "old");
    let enrolment = stage.enrolment(&stage.authority.mint_token("n1", LONG));
    let target = stage.target(None);
    let first = enrolment.join(&target).await.unwrap();
    let mut connection = stage.world.connect().await;
    let limit = "UPDATE node_certs SET tenant_controlled = true, allowed_kinds = '{echo}' WHERE serial = $1";
    sqlx::query(limit).bind(&first.serial).execute(&mut connection).await.unwrap();
    let second = enrolment.renew(&target).await.unwrap();
    assert_ne!(second.serial, first.serial);
    let dressed = enrolment.dressed(&target).await.unwrap();
    refused(fetch(&dressed, "db").await, PERMISSION_DENIED, "tenant-controlled");
    let limits = "SELECT allowed_kinds FROM node_certs WHERE serial = $1 AND tenant_controlled";
    let kinds: Vec<String> =
        sqlx::query_scalar(limits).bind(&second.serial).fetch_one(&mut connection).await.unwrap();
    assert_eq!(kinds, ["echo"]);
}

/// A renewal with a CSR that is none.
async fn renew_as(target: &Target) -> End {
    let request = gateway_proto::v1::RenewRequest { csr_der: Bytes::from_static(b"none") };
    let answer: Result<gateway_proto::v1::RenewResponse, End> = unary(target, path::RENEW, &request).await;
    answer.expect_err("no CSR")
}

#[tokio::test]
async fn a_service_that_is_away_is_unavailable_and_found_again_when_it_is_back() {
    let stage = Stage::new("service_away", "").await;
    let token = stage.authority.mint_token("n1", LONG);
    let machine = stage.target(None);
    stage.enrolment(&token).join(&machine).await.unwrap();
    let address = stage.authority.address();
    let Stage { world, authority: gone, gateway } = stage;
    drop(gone);
    let away = asked_until(SOON, "the service is away", async || {
        let end = join(&machine, "t", b"csr").await.expect_err("away");
        (end.status() == Some(UNAVAILABLE)).then_some(end)
    })
    .await;
    assert!(away.message.contains("the join service can't be reached"), "{}", away.message);
    let back = authority(&world, address).await;
    let stage = Stage { world, authority: back, gateway };
    let enrolment = stage.enrolment(&stage.authority.mint_token("n2", LONG));
    asked_until(SOON, "a join works again", async || enrolment.join(&machine).await.ok()).await;
    let control = control_address(&mut stage.world.connect().await, "g1").await;
    let (_, metrics) = get(&control, "/metrics").await;
    let count = |outcome: &str| {
        let name = format!("gateway_relays_total{{call=\"join\",outcome=\"{outcome}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
        line.and_then(|value| value.parse::<f64>().ok()).unwrap_or_else(|| panic!("no {name} in {metrics}"))
    };
    assert!(count("answered") >= 2.0 && count("unavailable") >= 1.0, "{metrics}");
    assert!(metrics.contains("gateway_relay_seconds_bucket{le=\"0.1\",call=\"join\"}"), "{metrics}");
    let log = stage.log("a service answers again").await;
    assert_eq!(log.matches("a service can't be used").count(), 1, "told once: {log}");
    assert!(log.contains("a service answers again"), "{log}");
}

#[tokio::test]
async fn a_service_that_proves_nothing_is_told_nothing() {
    let world = World::new("false_service").await;
    // As the real one, but of an authority that the gateway does not know.
    let stranger = gateway_testbed::pki::Pki::new().unwrap();
    let authority = Authority::start(&stranger, any_port(), &world.url, HOUR).await.unwrap();
    let mut options = world.options("g1", "");
    options.upstream_url = Some(authority.url());
    let gateway = world.start(options).await;
    let machine = Target::new(gateway.address(), world.pki.client_config(None).unwrap());
    let token = authority.mint_token("n1", LONG);
    refused(join(&machine, &token, b"csr").await, UNAVAILABLE, "the join service can't be reached");
    assert_eq!(authority.received(), []);
    let log = gateway.logged("a service can't be used").await;
    assert!(log.contains("a service can't be used") && log.contains("the TLS handshake"), "{log}");
}

#[tokio::test]
async fn a_service_that_hangs_holds_up_no_session_and_no_other_service() {
    let extra = "[upstream]\ntimeout = \"3s\"\nmax_in_flight = 2\nmax_waiting = 1\n[shards]\ncount = 1\n";
    let stage = Stage::new("service_hangs", extra).await;
    let _node = stage.world.node("steady", "g1", |_| {}).await;
    stage.authority.set_mood(Mood::Silent);
    let machine = stage.target(None);
    let begun = Instant::now();
    let calls = (0..4).map(|n| {
        let machine = machine.clone();
        tokio::spawn(async move { join(&machine, &format!("t{n}"), b"csr").await.expect_err("no answer") })
    });
    let calls: Vec<_> = calls.collect();
    // Meanwhile commands go on as ever.
    stage.serves_commands("steady").await;
    let mut codes = Vec::new();
    for call in calls {
        let end = call.await.unwrap();
        assert!(end.pushback.is_some() == (end.status() == Some(RESOURCE_EXHAUSTED)), "{end:?}");
        codes.push(end.status().unwrap());
    }
    codes.sort_unstable();
    assert_eq!(codes, [RESOURCE_EXHAUSTED, UNAVAILABLE, UNAVAILABLE, UNAVAILABLE], "{:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let log = stage.log("it has not answered a call for").await;
    assert!(
        log.contains("a service can't be used") && log.contains("it has not answered a call for"),
        "{log}"
    );
    // Another kind of call is not behind them: it is refused by what its own service says.
    stage.authority.set_mood(Mood::Well);
    let enrolment = stage.enrolment(&stage.authority.mint_token("n1", LONG));
    asked_until(SOON, "joins work again", async || enrolment.join(&machine).await.ok()).await;
}

#[tokio::test]
async fn what_a_service_says_of_the_call_reaches_the_node_and_what_it_says_of_itself_does_not() {
    let stage = Stage::new("service_status", "").await;
    let machine = stage.target(None);
    let say = |code, message: &str, retry_after| {
        let status = Status { code, message: message.to_owned(), retry_after };
        stage.authority.set_mood(Mood::Failing(status));
    };
    say(9, "the site is closed, 100%\n", None);
    refused(join(&machine, "t", b"csr").await, 9, "the site is closed, 100% ");
    say(8, "busy", Some(Duration::from_millis(1500)));
    let end = refused(join(&machine, "t", b"csr").await, RESOURCE_EXHAUSTED, "busy");
    assert_eq!(end.pushback, Some(Duration::from_millis(1500)));
    say(13, "panicked at line 7 with token t", None);
    let end = refused(join(&machine, "t", b"csr").await, UNAVAILABLE, "the join service can't answer now");
    assert!(!end.message.contains("panicked"), "{}", end.message);
    say(12, "no such call", None);
    refused(join(&machine, "t", b"csr").await, UNAVAILABLE, "the join service");
    assert!(!stage.log("ready; health at").await.contains("panicked"), "what a service says is in no log");
}

#[tokio::test]
async fn a_gateway_without_services_says_so() {
    let world = World::new("no_services").await;
    let gateway = world.gateway("g1", "").await;
    let machine = Target::new(gateway.address(), world.pki.client_config(None).unwrap());
    refused(join(&machine, "t", b"csr").await, UNAVAILABLE, "Join is not offered by this gateway");
    let node = world.register("n1").await;
    let node = Target::new(gateway.address(), world.pki.client_config(Some(&node)).unwrap());
    refused(fetch(&node, "db").await, UNAVAILABLE, "FetchSecret is not offered by this gateway");
}

/// Knows one secret, and tells who asked.
struct Motd;

impl SecretBroker for Motd {
    fn fetch_secret(&self, caller: Caller, fetch: FetchSecret) -> RelayFuture<'_, Secret> {
        Box::pin(async move {
            match fetch.name.as_str() {
                "motd" => {
                    let value = Hidden(format!("hello, {}", caller.identity.node.as_str()).into());
                    Ok(Secret { value, version: "1".to_owned(), expires_at_unix_ms: 0 })
                }
                "panic" => panic!("a fault of the embedder"),
                _ => Err(Refusal::new(RefusalCode::NotFound, "there is no such secret")),
            }
        })
    }
}

#[tokio::test]
async fn an_embedders_service_takes_the_place_of_an_upstream_and_its_panic_ends_one_call() {
    let world = World::new("embedded_relays").await;
    let identity = world.register("n1").await;
    let options = world.options("embedded", "[shards]\ncount = 1\n");
    options.write().unwrap();
    let config = Config::load(&options.config_path()).unwrap();
    let running = tokio::task::spawn_blocking(move || {
        let relays = EmbeddedRelays::default().on_fetch_secret(Motd);
        let mut running = Gateway::start_with(&config, relays).unwrap();
        running.wait_until_serving(SOON).unwrap();
        running
    });
    let mut running = running.await.unwrap();
    let target = Target::new(running.address(), world.pki.client_config(Some(&identity)).unwrap());
    let secret = fetch(&target, "motd").await.unwrap();
    assert_eq!(&secret.value[..], format!("hello, {}", world.id("n1")).as_bytes());
    refused(fetch(&target, "other").await, NOT_FOUND, "there is no such secret");
    refused(fetch(&target, "panic").await, 13, "the secret broker has failed");
    assert!(fetch(&target, "motd").await.is_ok(), "and the next call is served");
    running.stop();
    tokio::task::spawn_blocking(move || running.join()).await.unwrap().unwrap();
}

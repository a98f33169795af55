//! Sessions over WebSocket, on real processes: all that holds over HTTP/2 holds here, since only what carries the
//! frames is another.
//!
//! Hostile peers of WebSocket are in `hostile_peers/websocket.rs`; other stories that ask for nothing of gRPC run over it
//! too with `GATEWAY_TRANSPORT=websocket`.
//!
//! 1. How a session ends is told by a close code, 4000 and the gRPC status, with the sentence as its reason.
//! 2. Who is refused before the upgrade is told by HTTP, with both headers of a delay.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use gateway_proto::v1::{CommandState, CommandUpdate, Hello, Lane, gateway_frame, node_frame::Frame};
use gateway_proto::{http1, path};
use gateway_testbed::authority::Authority;
use gateway_testbed::database::{self, NewCommand};
use gateway_testbed::node::{Behaviour, EndKind, Enrolment, Execution, Node, NodeOptions, Target, Transport};
use gateway_testbed::pki::Identity;
use gateway_testbed::raw::{RawCall, RawConnection};
use http::HeaderMap;
use rustix::process::Signal;
use support::health::{control_address, get};
use support::{ABORTED, RESOURCE_EXHAUSTED, SOON, UNAVAILABLE, World, asked_until, within};
use uuid::Uuid;

const OK: u32 = 0;
const INVALID_ARGUMENT: u32 = 3;
const UNAUTHENTICATED: u32 = 16;
const HOUR: Duration = Duration::from_secs(3600);

fn websocket(world: &World, place: &str, identity: &Identity) -> Target {
    world.target(place, identity).over(Transport::WebSocket)
}

fn over_websocket(options: &mut NodeOptions) {
    options.target.transport = Transport::WebSocket;
}

async fn opened(target: &Target) -> RawCall {
    within(SOON, "an upgrade", RawCall::open(target, path::SESSION, HeaderMap::new())).await.unwrap()
}

async fn welcomed(target: &Target) -> (RawCall, u64) {
    let mut call = opened(target).await;
    call.send(Frame::Hello(Hello {
        protocol: 1,
        boot_id: Uuid::new_v4().to_string(),
        lanes: vec![Lane { name: "default".to_owned(), capacity: 4 }],
        ..Hello::default()
    }));
    match call.frame(SOON).await.expect("an answer").expect("it is welcomed").frame {
        Some(gateway_frame::Frame::Welcome(welcome)) => (call, welcome.session_epoch),
        other => panic!("the first frame is {other:?}, not a Welcome"),
    }
}

async fn ends(call: &mut RawCall, status: u32, sentence: &str) -> Option<Duration> {
    let end = call.end(2 * SOON).await.expect("the session ends");
    assert_eq!(end.status(), Some(status), "{end:?}");
    assert!(end.message.contains(sentence), "{sentence:?} is not in {end:?}");
    end.pushback
}

#[tokio::test]
async fn a_node_over_websocket_does_all_that_a_node_does() {
    let world = World::new("websocket").await;
    let _gateway = world.gateway("g", "[shards]\ncount = 2\n").await;
    let mut database = world.connect().await;
    let node = world
        .node("n", "g", |options| {
            over_websocket(options);
            options.heartbeat = Some(Duration::from_secs(1));
            options.sections = vec![("disks".to_owned(), Bytes::from(vec![7; 300_000]))];
        })
        .await;
    let name = node.name().to_owned();
    // Payloads around each border of WebSocket's lengths, and of what needs a grant of the shard.
    let mut ids = Vec::new();
    for bytes in [0, 100, 126, 3000, 65_535, 65_536, 400_000] {
        let payload = vec![b'x'; bytes];
        ids.push(database::enqueue(&mut database, &NewCommand::new(&name, &payload)).await.unwrap());
    }
    for seq in 0..50u32 {
        node.emit("kind", Bytes::from(vec![seq as u8; 2000]));
    }
    node.tell_status("status-1", "kind", Bytes::from_static(b"well"));
    let control = control_address(&mut database, "g").await;
    let metrics = get(&control, "/metrics").await.1;
    let over = |transport: &str| -> f64 {
        let label = format!("transport=\"{transport}\"}} ");
        let of_transport = |line: &&str| line.starts_with("gateway_sessions_by_transport{");
        let points = metrics.lines().filter(of_transport).filter_map(|line| line.split_once(&label));
        points.map(|(_, value)| value.parse::<f64>().unwrap()).sum()
    };
    assert_eq!(
        (over("h2"), over("websocket")),
        (0.0, 1.0),
        "its session is counted by its transport: {metrics}"
    );
    let watch = &world.watch;
    watch.all_settled(&ids, SOON).await;
    watch
        .until(SOON, "events, status, section and heartbeats are acked", |seen| {
            let beats = seen.beats.len() > 1;
            let stored = seen.statuses.len() == 1 && seen.sections_stored.len() == 1;
            (seen.events_acked_to(&name) == 50 && stored && beats).then_some(())
        })
        .await;
    let report = world.ledger(&mut database, &ids).await;
    assert_eq!(report.in_state("succeeded"), ids.len() as u64, "{report:?}");
    let (results,): (i64,) = sqlx::query_as("SELECT sum(octet_length(result))::bigint FROM commands")
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert_eq!(results, 100 + 126 + 3000 + 65_535 + 65_536 + 400_000, "each result came back whole");
    watch.look(|seen| assert_eq!(seen.drops().count(), 0));
    node.goodbye().await;
    world.watch.until(SOON, "it left well", |seen| seen.ended.last().map(|one| one.end.clone())).await;
    world.watch.look(|seen| assert_eq!(seen.ended.last().unwrap().end.kind, EndKind::Asked));
}

#[tokio::test]
async fn commands_are_replayed_after_a_cut_and_events_go_on_from_the_cursor() {
    let world = World::new("websocket_replay").await;
    let _gateway = world.gateway("g", "").await;
    let mut database = world.connect().await;
    let held = Behaviour { execution: Execution::Held, ..Behaviour::default() };
    let node = world
        .node("n", "g", |options| {
            over_websocket(options);
            options.behaviour = held.clone();
        })
        .await;
    let epoch = world.watch.epoch_of(node.name());
    let command = NewCommand::new(node.name(), b"held");
    let id = database::enqueue(&mut database, &command).await.unwrap();
    assert_eq!(world.watch.received(id, SOON).await.session_epoch, epoch);
    node.emit("kind", Bytes::from_static(b"before"));
    world
        .watch
        .until(SOON, "an event is acked", |seen| (seen.events_acked_to(node.name()) == 1).then_some(()))
        .await;
    node.cut();
    let again = world.watch.connected_after(node.name(), epoch).await;
    node.emit("kind", Bytes::from_static(b"after"));
    node.release(None);
    world.watch.all_settled(&[id], SOON).await;
    world
        .watch
        .until(SOON, "both are acked", |seen| (seen.events_acked_to(node.name()) == 2).then_some(()))
        .await;
    assert!(again > epoch);
    let report = world.ledger(&mut database, &[id]).await;
    assert_eq!(report.in_state("succeeded"), 1, "{report:?}");
}

/// The whole answer to an upgrade to a session, as text.
async fn asked_for_upgrade(target: &Target) -> String {
    asked_for_upgrade_at(target, http1::SESSION).await
}

async fn asked_for_upgrade_at(target: &Target, place: &str) -> String {
    let mut connection = within(SOON, "a connection", RawConnection::open(target)).await.unwrap();
    let request = format!(
        "GET {place} HTTP/1.1\r\nhost: g\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: gateway.v1\r\n\r\n"
    );
    connection.write(request.as_bytes()).await.unwrap();
    let (answer, end) = connection.read_to_end(SOON).await;
    assert!(end.is_some(), "a refusal ends the connection: {:?}", String::from_utf8_lossy(&answer));
    String::from_utf8(answer).unwrap()
}

fn header<'a>(answer: &'a str, name: &str) -> &'a str {
    let found = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    found.unwrap_or_else(|| panic!("no {name} in {answer}"))
}

#[tokio::test]
async fn a_refused_upgrade_is_429_with_both_delays_and_nodes_keep_it() {
    let world = World::new("websocket_admission").await;
    let _gateway = world.gateway("g", "[admission]\nopens_per_second = 1\nopens_burst = 1\n").await;
    let identity = world.register("raw").await;
    let target = websocket(&world, "g", &identity);
    let (session, _) = welcomed(&target).await;
    let answer = asked_for_upgrade(&target).await;
    delay_of(&answer);
    assert!(answer.ends_with("\r\n\r\ntoo many sessions are being opened; retry after the given delay\n"));
    drop(session);

    // Nodes that come at once: each is let in, after exactly what it was told.
    let names: Vec<String> = (0..4).map(|index| format!("crowd-{index}")).collect();
    let identities = world.register_all(&names).await;
    let nodes: Vec<Node> = names
        .iter()
        .zip(&identities)
        .map(|(name, identity)| {
            let mut options = world.node_options(name, identity, "g");
            over_websocket(&mut options);
            Node::start(options)
        })
        .collect();
    let all =
        |seen: &support::watch::Seen| nodes.iter().all(|node| seen.epoch_of(node.name()) > 0).then_some(());
    world.watch.until(2 * SOON, "every node is let in", all).await;
    world.watch.look(|seen| {
        let mut refusals = 0;
        for ended in &seen.ended {
            assert_eq!(ended.end.status(), Some(RESOURCE_EXHAUSTED), "{ended:?}");
            let delay = ended.end.pushback.expect("a refusal has a delay");
            let ends = seen.ended.iter().filter(|one| one.node == ended.node).map(|one| one.at_ns);
            let opens = seen.connected.iter().filter(|one| one.node == ended.node).map(|one| one.at_ns);
            let next = ends.chain(opens).filter(|at_ns| *at_ns > ended.at_ns).min().expect("it came again");
            let waited = Duration::from_nanos(next - ended.at_ns);
            assert!(waited >= delay, "told {delay:?}, waited {waited:?}");
            refusals += 1;
        }
        assert!(refusals >= 2, "with one open a second, some of four nodes are refused: {refusals}");
    });
}

/// Both delays of a 429, which say the same.
fn delay_of(answer: &str) -> u64 {
    assert!(answer.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{answer}");
    assert_eq!(header(answer, "grpc-status"), "8");
    let milliseconds: u64 = header(answer, "grpc-retry-pushback-ms").parse().unwrap();
    let seconds: u64 = header(answer, "retry-after").parse().unwrap();
    assert_eq!(seconds, milliseconds.div_ceil(1000), "{answer}");
    milliseconds
}

#[tokio::test]
async fn who_finds_no_place_is_told_when_to_come_by_both_headers() {
    let world = World::new("websocket_places").await;
    let bounds = "[admission]\nmax_streams = 1\nmax_pending_hellos = 1\nconnections_per_certificate = 2\n\
                  [shards]\ncount = 1\n";
    let _gateway = world.gateway("g", bounds).await;
    let first = websocket(&world, "g", &world.register("first").await);
    let second = websocket(&world, "g", &world.register("second").await);
    let (session, _) = welcomed(&first).await;
    let answer = asked_for_upgrade(&second).await;
    assert!(delay_of(&answer) > 0 && answer.contains("holds as many sessions as it may"), "{answer}");
    // Of the first one's connections the session has one, and one that asks for nothing the other.
    let idle = within(SOON, "a connection", RawConnection::open(&first)).await.unwrap();
    let answer = asked_until(SOON, "the places of a certificate are out", async || {
        let answer = asked_for_upgrade(&first).await;
        answer.contains("too many connections of this certificate").then_some(answer)
    })
    .await;
    assert!((1000..=2000).contains(&delay_of(&answer)), "{answer}");
    drop(idle);
    drop(session);
    asked_until(SOON, "who left makes room", async || {
        let call = RawCall::open(&second, path::SESSION, HeaderMap::new()).await;
        call.ok().map(drop)
    })
    .await;
}

#[tokio::test]
async fn what_is_no_upgrade_of_ours_is_told_so() {
    let world = World::new("websocket_requests").await;
    let gateway = world.gateway("g", "").await;
    let identity = world.register("n").await;
    let target = websocket(&world, "g", &identity);
    let upgrade =
        "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for (request, status, sentence) in [
        ("GET / HTTP/1.1\r\nhost: g\r\n\r\n".to_owned(), "404 Not Found", "GET /gateway.v1/session"),
        ("GET /gateway.v1/session HTTP/1.1\r\nhost: g\r\n\r\n".to_owned(), "426 Upgrade Required", "upgrade"),
        (
            format!(
                "GET /gateway.v1/session HTTP/1.1\r\nhost: g\r\n{upgrade}sec-websocket-version: 8\r\n\r\n"
            ),
            "426 Upgrade Required",
            "version 13",
        ),
        (
            format!(
                "GET /gateway.v1/session HTTP/1.1\r\nhost: g\r\n{upgrade}sec-websocket-version: 13\r\n\r\n"
            ),
            "400 Bad Request",
            "subprotocol gateway.v1",
        ),
        ("DELETE / HTTP/1.1\r\nhost: g\r\n\r\n".to_owned(), "405 Method Not Allowed", "GET and POST"),
        (
            "POST /gateway.v1/Join HTTP/1.1\r\nhost: g\r\n\r\n".to_owned(),
            "411 Length Required",
            "content-length",
        ),
        ("nonsense\r\n\r\n".to_owned(), "400 Bad Request", "no valid HTTP/1.1"),
    ] {
        let mut connection = within(SOON, "a connection", RawConnection::open(&target)).await.unwrap();
        connection.write(request.as_bytes()).await.unwrap();
        let (answer, end) = connection.read_to_end(SOON).await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request:?}: {answer}");
        assert!(answer.contains(sentence) && end.is_some(), "{request:?}: {answer}");
    }
    // Who shows no certificate is refused before it costs anything.
    let anonymous = Target::new(gateway.address(), world.pki.client_config(None).unwrap());
    let anonymous = anonymous.over(Transport::WebSocket);
    for place in [http1::SESSION, http1::TUNNEL] {
        let answer = asked_for_upgrade_at(&anonymous, place).await;
        assert!(answer.starts_with("HTTP/1.1 401 Unauthorized\r\n"), "{answer}");
        assert_eq!(header(&answer, "grpc-status"), "16");
    }
    let answer = asked_for_upgrade_at(&target, http1::TUNNEL).await;
    assert!(answer.starts_with("HTTP/1.1 501 Not Implemented\r\n"), "this gateway offers none: {answer}");
    assert_eq!(header(&answer, "grpc-status"), "12");
    // Who names no protocol in the handshake speaks HTTP/1.1.
    let mut tls = world.pki.client_config(Some(&identity)).unwrap();
    tls.alpn_protocols.clear();
    let answer = {
        let mut connection = RawConnection::open(&Target::new(gateway.address(), tls)).await.unwrap();
        connection.write(b"GET / HTTP/1.1\r\nhost: g\r\n\r\n").await.unwrap();
        String::from_utf8(connection.read_to_end(SOON).await.0).unwrap()
    };
    assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{answer}");
}

#[tokio::test]
async fn a_gateway_that_was_told_to_speaks_no_http1() {
    let world = World::new("websocket_off").await;
    let _gateway = world.gateway("g", "[listen]\nwebsocket = false\n").await;
    let identity = world.register("n").await;
    let target = websocket(&world, "g", &identity);
    let refused = within(SOON, "a handshake", RawConnection::open(&target)).await;
    assert!(refused.is_err(), "there is no protocol in common");
    let (_session, _) = welcomed(&world.target("g", &identity).over(Transport::Http2)).await;
}

#[tokio::test]
async fn every_end_of_a_session_has_its_close_code_and_sentence() {
    let world = World::new("websocket_ends").await;
    let times = "[sessions]\nheartbeat_interval = '1s'\nmissed_heartbeats = 3\nhello_timeout = '700ms'\n\
                 [gateway]\ndrain = '300ms'\ndrain_grace = '500ms'\n";
    let mut gateway = world.gateway("g", times).await;
    let mut database = world.connect().await;
    let identity = world.register("n").await;
    let target = websocket(&world, "g", &identity);

    let (mut closes, _) = welcomed(&target).await;
    closes.half_close();
    assert_eq!(ends(&mut closes, OK, "").await, None);

    let (mut old, _) = welcomed(&target).await;
    let (mut new, _) = welcomed(&target).await;
    assert_eq!(ends(&mut old, ABORTED, "superseded by a newer session").await, None);

    let unknown = CommandUpdate { command_id: Bytes::from_static(b"short"), ..CommandUpdate::default() };
    new.send(Frame::CommandUpdate(CommandUpdate { state: CommandState::Accepted as i32, ..unknown }));
    ends(&mut new, INVALID_ARGUMENT, "command_id is 5 bytes long").await;

    let mut mute = opened(&target).await;
    ends(&mut mute, INVALID_ARGUMENT, "Hello").await;
    let (mut silent, _) = welcomed(&target).await;
    ends(&mut silent, UNAVAILABLE, "no heartbeat for too long").await;

    let (mut revoked, _) = welcomed(&websocket(&world, "g", &world.register("stolen").await)).await;
    let statement = "UPDATE node_certs SET revoked_at = compute_now(), revoked_reason = 'key leaked' \
                     WHERE node_id = $1";
    sqlx::query(statement).bind(world.id("stolen")).execute(&mut database).await.unwrap();
    ends(&mut revoked, UNAUTHENTICATED, "is revoked: key leaked").await;

    let (mut stays, _) = welcomed(&target).await;
    gateway.signal(Signal::TERM).unwrap();
    let delay = ends(&mut stays, UNAVAILABLE, "gateway draining; reconnect after the given delay").await;
    assert!(delay.is_some(), "who is cut is told when to come");
    assert_eq!(within(SOON, "the gateway stops", gateway.wait()).await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn a_certificate_that_runs_out_ends_its_session() {
    let world = World::new("websocket_expiry").await;
    let authority = Authority::start(&world.pki, ([127, 0, 0, 1], 0).into(), &world.url, HOUR).await.unwrap();
    authority.set_certificate_life(Duration::from_secs(4));
    authority.keep_secret("wifi", "1", "swordfish");
    let mut options = world.options("g", "");
    options.upstream_url = Some(authority.url());
    let gateway = world.start(options).await;
    // It joins, fetches and renews by POST, on the same listener.
    let enrolment = Enrolment::new(world.pki.client_tls(), "machine", &authority.mint_token("n", HOUR));
    let anonymous = Target::new(gateway.address(), world.pki.client_config(None).unwrap());
    let mut options = NodeOptions::new(&world.id("n"), anonymous.clone().over(Transport::WebSocket));
    options.enrolment = Some(enrolment.clone());
    options.observer = std::sync::Arc::clone(&world.watch) as _;
    let node = Node::start(options);
    world.watch.connected_after(node.name(), 0).await;
    let renewed = world.watch.until(SOON, "a renewal", |seen| seen.renewals.first().cloned()).await;
    assert_eq!(&*renewed.0, node.name());
    let over_post = anonymous.clone().over(Transport::WebSocket);
    let secret = within(SOON, "a secret", enrolment.fetch_secret(&over_post, "wifi", "")).await.unwrap();
    assert_eq!(&secret.value[..], b"swordfish");
    let missing =
        within(SOON, "a refusal", enrolment.fetch_secret(&over_post, "none", "")).await.unwrap_err();
    let over_h2 =
        within(SOON, "a refusal", enrolment.fetch_secret(&anonymous, "none", "")).await.unwrap_err();
    assert_eq!((missing.status(), &missing.message), (over_h2.status(), &over_h2.message));
    drop(node);

    // A session that nobody renews.
    let token = authority.mint_token("left", HOUR);
    let lasting = Enrolment::new(world.pki.client_tls(), "machine", &token);
    within(SOON, "a join", lasting.join(&over_post)).await.unwrap();
    let target = within(SOON, "a target", lasting.dressed(&over_post)).await.unwrap();
    let (mut call, _) = welcomed(&target).await;
    ends(&mut call, UNAUTHENTICATED, "certificate has expired").await;
}

#[tokio::test]
async fn a_drained_gateway_hands_its_websocket_nodes_over() {
    let world = World::new("websocket_drain").await;
    let mut old = world.gateway("old", "[gateway]\ndrain = '2s'\ndrain_grace = '30s'\n").await;
    let _new = world.gateway("new", "").await;
    let names: Vec<String> = (0..20).map(|index| format!("node-{index}")).collect();
    let identities = world.register_all(&names).await;
    let nodes: Vec<Node> = names
        .iter()
        .zip(&identities)
        .map(|(name, identity)| {
            let mut options = world.node_options(name, identity, "old");
            over_websocket(&mut options);
            options.elsewhere = vec![websocket(&world, "new", identity)];
            Node::start(options)
        })
        .collect();
    let on = |epoch| {
        move |seen: &support::watch::Seen, nodes: &[Node]| {
            nodes.iter().all(|node| seen.epoch_of(node.name()) == epoch).then_some(())
        }
    };
    world.watch.until(SOON, "every node has its Welcome", |seen| on(1)(seen, &nodes)).await;
    old.signal(Signal::TERM).unwrap();
    world.watch.until(SOON, "every node is elsewhere", |seen| on(2)(seen, &nodes)).await;
    assert_eq!(within(SOON, "the drained gateway stops", old.wait()).await.unwrap().code(), Some(0));
    world.watch.look(|seen| {
        assert_eq!(
            (seen.drains.len(), seen.drops().count()),
            (nodes.len(), 0),
            "each is told, nobody is cut"
        );
    });
}

#[tokio::test]
async fn renewed_tls_files_reach_the_next_upgrade_and_end_no_session() {
    let world = World::new("websocket_reload").await;
    let folder = tempfile::tempdir().unwrap();
    let mut options = world.options("g", "");
    options.files = world.pki.write_gateway_files(folder.path()).unwrap();
    let mut gateway = world.start(options).await;
    let control = control_address(&mut world.connect().await, "g").await;
    let target = websocket(&world, "g", &world.register("raw").await);
    let shown = async || {
        let tls = within(SOON, "a handshake", target.connect()).await.unwrap();
        assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        tls.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
    };
    let node = world
        .node("n", "g", |options| {
            over_websocket(options);
            options.heartbeat = Some(Duration::from_millis(200));
        })
        .await;
    let first = shown().await;
    world.pki.write_gateway_files(folder.path()).unwrap();
    let begun = Instant::now();
    gateway.signal(Signal::HUP).unwrap();
    asked_until(SOON, "another certificate is shown", async || (shown().await != first).then_some(())).await;
    support::measured("until an upgrade showed the new certificate", support::seconds(begun));
    let (_later, _) = welcomed(&target).await;
    let beats = world.watch.look(|seen| seen.beats.len());
    world.watch.until(SOON, "the session goes on", |seen| (seen.beats.len() > beats + 2).then_some(())).await;
    assert_eq!(world.watch.epoch_of(node.name()), 1, "in its first session");
    assert!(get(&control, "/metrics").await.1.contains("gateway_tls_reloads_total 1"));
}

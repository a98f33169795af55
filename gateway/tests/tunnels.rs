//! Tunnels through a real gateway: a caller of its control API over HTTP/2 and internal mTLS, a node over its own
//! TLS, tickets of a real authority, and a shell on a real terminal.
//!
//! Stories: opening and what refuses it, bytes both ways and half-closes, who is slow, and every end; each ends
//! with nothing left, by the gateway's own numbers. Those of `over_both` are told twice, over HTTP/2 and over WebSocket.

#![allow(clippy::unwrap_used)]

mod support;

use std::slice::from_ref;
use std::time::Duration;

use bytes::Bytes;
use gateway_control::client::{Said, TunnelOpen};
use gateway_proto::framing::encode;
use gateway_proto::path;
use gateway_proto::v1::{self, gateway_frame, node_frame};
use gateway_testbed::authority::{Mood, Received};
use gateway_testbed::database::{NewCommand, enqueue, register_certificates};
use gateway_testbed::node::{Transport, TunnelTaker};
use gateway_testbed::raw::RawCall;
use gateway_testbed::tickets::{TicketSpec, claims};
use http::HeaderMap;
use serde_json::json;
use support::tunnels::{
    SHORT_FAREWELL, TunnelStage, data_until, node_end, offered, over_both, raw_session, rest_of, say,
};
use support::{SOON, World, asked_until, within};

const ABORTED: u32 = 10;
const UNAVAILABLE: u32 = 14;
const PERMISSION_DENIED: u32 = 7;
const DEADLINE_EXCEEDED: u32 = 4;
const UNAUTHENTICATED: u32 = 16;

over_both! {
    a_shell_at_a_node_has_a_terminal_of_the_callers_size_and_tells_its_exit_status
    bytes_come_as_they_were_both_ways_and_each_half_closes_by_itself
    who_is_slow_holds_up_the_other_side_and_nothing_grows
    an_open_that_nobody_answers_ends_with_its_reason
    a_tunnel_ends_with_its_life_its_session_its_certificate_and_on_request
    the_node_hears_why_its_side_ended
}

/// Everything quick that stories wait for.
const QUICK: &str = "[tunnels]\nreauthorize_every = \"200ms\"\niam_patience = \"1s\"\n";

async fn a_shell_at_a_node_has_a_terminal_of_the_callers_size_and_tells_its_exit_status(
    transport: Transport,
) {
    let stage = TunnelStage::over(transport, "tunnel_shell", "[shards]\ncount = 3\n").await;
    let _node = stage.node("n1").await;
    let mut tunnel = stage.open("n1", "shell").await;
    assert_eq!(stage.number("tunnels_joined").await, 1.0);
    tunnel.sender.window(97, 31).await.unwrap();
    say(&mut tunnel, "stty -echo; stty size\n").await;
    data_until(&mut tunnel, "31 97").await;
    tunnel.sender.window(120, 40).await.unwrap();
    say(&mut tunnel, "stty size\n").await;
    data_until(&mut tunnel, "40 120").await;
    say(&mut tunnel, "exit 7\n").await;
    let (_, exit, code, message) = rest_of(&mut tunnel).await;
    assert_eq!((exit, code), (Some(7), 0), "{message}");
    stage.at_rest().await;
}

#[tokio::test]
async fn a_ticket_that_is_wrong_in_any_way_opens_nothing_and_a_good_one_opens_once() {
    let stage = TunnelStage::new("tunnel_tickets", "").await;
    let _node = stage.node("n1").await;
    let mint = stage.authority.mint();
    let id = stage.world.id("n1");
    let good = TicketSpec::new(&id);
    let wish = |ticket: String| TunnelOpen { ticket, ..stage.wish("n1", "echo") };
    let spec = |spec: TicketSpec| mint.mint_as(&spec);
    let header = json!({ "alg": "ES256", "kid": "no-such-key" });
    let mut later = claims(&good);
    later["nbf"] = json!(later["iat"].as_f64().unwrap() + 20.0);
    let wrong: Vec<(&str, String, &str)> = vec![
        (
            "another audience",
            spec(TicketSpec { audience: json!("api"), ..good.clone() }),
            "PERMISSION_DENIED",
        ),
        (
            "another node",
            spec(TicketSpec { node: stage.world.id("n2"), ..good.clone() }),
            "PERMISSION_DENIED",
        ),
        (
            "expired",
            spec(TicketSpec { expires_in: -1.0, issued_in: -20.0, ..good.clone() }),
            "UNAUTHENTICATED",
        ),
        ("too long", spec(TicketSpec { expires_in: 90.0, ..good.clone() }), "UNAUTHENTICATED"),
        ("of the future", spec(TicketSpec { issued_in: 20.0, ..good.clone() }), "UNAUTHENTICATED"),
        ("good later", mint.mint_with(&key_header(&mint.mint(&id)), &later), "UNAUTHENTICATED"),
        ("an unknown key", mint.mint_with(&header, &claims(&good)), "UNAUTHENTICATED"),
        ("no key", mint.mint_with(&json!({ "alg": "ES256" }), &claims(&good)), "INVALID_ARGUMENT"),
        ("no algorithm", mint.mint_with(&json!({ "alg": "none" }), &claims(&good)), "INVALID_ARGUMENT"),
        ("no id", mint.mint_with(&key_header(&mint.mint(&id)), &json!({ "sub": "ada" })), "INVALID_ARGUMENT"),
        ("no token", "not.a.token".to_owned(), "INVALID_ARGUMENT"),
        ("a flipped claim", flipped(&mint.mint(&id)), "UNAUTHENTICATED"),
        ("of another mint", gateway_testbed::tickets::TicketMint::default().mint(&id), "UNAUTHENTICATED"),
    ];
    for (what, ticket, expected) in wrong {
        let (code, sentence) = stage.refused(&wish(ticket.clone())).await;
        assert_eq!(code, expected, "{what}: {sentence}");
        assert!(!sentence.contains(&ticket), "{what}");
    }
    let ticket = mint.mint(&id);
    let mut tunnel = stage.opened(&wish(ticket.clone())).await;
    let (code, sentence) = stage.refused(&wish(ticket.clone())).await;
    assert_eq!(code, "UNAUTHENTICATED");
    assert!(sentence.contains("used before"), "{sentence}");
    tunnel.sender.half_close().await.unwrap();
    rest_of(&mut tunnel).await;
    let log = std::fs::read_to_string(stage.gateway.options().log_path()).unwrap();
    assert!(!log.contains(&ticket), "a ticket is in the log");
    stage.at_rest().await;
}

/// The header of a ticket, whose key is known.
fn key_header(ticket: &str) -> serde_json::Value {
    use base64::Engine as _;
    let header = ticket.split('.').next().unwrap();
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(header).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// The ticket with one bit of its signature changed.
fn flipped(ticket: &str) -> String {
    let at = ticket.len() - 20;
    let other = if ticket.as_bytes()[at] == b'A' { "B" } else { "A" };
    format!("{}{other}{}", &ticket[..at], &ticket[at + 1..])
}

#[tokio::test]
async fn rotated_keys_are_found_and_retired_ones_do_not_count() {
    let stage = TunnelStage::new("tunnel_keys", "[tunnels]\njwks_max_age = \"1s\"\n").await;
    let _node = stage.node("n1").await;
    let mint = stage.authority.mint();
    let fetched = || stage.authority.received().iter().filter(|call| **call == Received::Jwks).count();
    drop(stage.open("n1", "echo").await);
    drop(stage.open("n1", "echo").await);
    assert_eq!(fetched(), 1, "they are kept");
    let of_old_key = stage.wish("n1", "echo");
    mint.rotate();
    mint.retire_old();
    asked_until(SOON, "a ticket of the new key is taken", async || {
        stage.client.open_tunnel(&stage.wish("n1", "echo")).await.ok().map(drop)
    })
    .await;
    assert_eq!(stage.refused(&of_old_key).await.0, "UNAUTHENTICATED");
    stage.at_rest().await;
}

async fn bytes_come_as_they_were_both_ways_and_each_half_closes_by_itself(transport: Transport) {
    let stage = TunnelStage::over(transport, "tunnel_bytes", "").await;
    let _node = stage.node("n1").await;
    let mut tunnel = stage.open("n1", "echo").await;
    let data: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let sent = Bytes::from(data.clone());
    let (mut sender, mut receiver) = (tunnel.sender, tunnel.receiver);
    let sending = tokio::spawn(async move {
        for piece in sent.chunks(50_000) {
            sender.data(Bytes::copy_from_slice(piece)).await.unwrap();
        }
        sender.half_close().await.unwrap();
        sender
    });
    let mut received = Vec::new();
    let (exit, closed) = within(SOON * 2, "all of it", async {
        let mut exit = None;
        loop {
            match receiver.next().await.unwrap() {
                Said::Data(data) => received.extend_from_slice(&data),
                Said::HalfClose => {}
                Said::Exit { code, .. } => exit = Some(code),
                Said::Closed { code, message } => break (exit, (code, message)),
            }
        }
    })
    .await;
    drop(sending.await.unwrap());
    assert_eq!((exit, closed), (Some(0), (0, String::new())));
    assert!(received == data, "{} bytes of {}", received.len(), data.len());
    // The node's half closes first: `source` says all, while the caller says nothing at all.
    let mut wish = stage.wish("n1", "source");
    wish.parameters.insert("bytes".to_owned(), "700000".to_owned());
    tunnel = stage.opened(&wish).await;
    let (data, exit, code, _) = rest_of(&mut tunnel).await;
    assert_eq!((data.len(), exit, code), (700_000, Some(0), 0));
    stage.at_rest().await;
}

async fn who_is_slow_holds_up_the_other_side_and_nothing_grows(transport: Transport) {
    let stage = TunnelStage::over(transport, "tunnel_slow", SHORT_FAREWELL).await;
    let node = stage.node("n1").await;
    // The node reads nothing: the caller is stopped after the windows on the way are full.
    let mut stalled = stage.open("n1", "stall").await;
    let mut taken = 0usize;
    let filling = async {
        loop {
            stalled.sender.data(Bytes::from(vec![1; 16 << 10])).await.unwrap();
            taken += 16 << 10;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(2), filling).await.is_err(), "it took all");
    // Over WebSocket the kernel's buffers of the two sockets hold some too.
    let most = if transport == Transport::WebSocket { 12 << 20 } else { 2 << 20 };
    assert!((64 << 10..most).contains(&taken), "{taken} bytes are on their way");
    // The caller reads nothing: the node is stopped.
    let mut wish = stage.wish("n1", "source");
    wish.parameters.insert("bytes".to_owned(), "100000000".to_owned());
    let unread = stage.opened(&wish).await;
    let carried = asked_until(SOON, "it comes to a stop", async || {
        let before = stage.number("tunnel_bytes_in_total").await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let after = stage.number("tunnel_bytes_in_total").await;
        (before == after && after > 0.0).then_some(after)
    })
    .await;
    assert!(carried < 4e6, "{carried} bytes are on their way");
    // Meanwhile the node's session goes on as ever: commands run, heartbeats are acked.
    let mut connection = stage.world.connect().await;
    for _ in 0..20 {
        let id = enqueue(&mut connection, &NewCommand::new(node.name(), b"x")).await.unwrap();
        stage.world.watch.all_settled(&[id], SOON).await;
    }
    drop((stalled, unread));
    stage.at_rest().await;
}

async fn an_open_that_nobody_answers_ends_with_its_reason(transport: Transport) {
    let stage = TunnelStage::over(
        transport,
        "tunnel_opens",
        "[tunnels]\nopen_timeout = \"300ms\"\nmax_per_node = 2\n",
    )
    .await;
    let (code, sentence) = stage.refused(&stage.wish("nobody", "echo")).await;
    assert_eq!((code.as_str(), sentence.contains("no session")), ("UNAVAILABLE", true), "{sentence}");
    let _silent = stage.node_as("silent", |options| options.tunnels = None).await;
    assert_eq!(stage.refused(&stage.wish("silent", "echo")).await.0, "UNAVAILABLE");
    let refusing = TunnelTaker::refusing("no shells\nhere");
    let _refusing = stage.node_as("refusing", |options| options.tunnels = Some(refusing)).await;
    let (code, sentence) = stage.refused(&stage.wish("refusing", "echo")).await;
    assert_eq!(code, "FAILED_PRECONDITION");
    assert_eq!(sentence, "the node refused the tunnel: no shells here");
    let ignoring = TunnelTaker::ignoring();
    let _ignoring = stage.node_as("ignoring", |options| options.tunnels = Some(ignoring)).await;
    assert_eq!(stage.refused(&stage.wish("ignoring", "echo")).await.0, "DEADLINE_EXCEEDED");
    let _node = stage.node("n1").await;
    let held = [stage.open("n1", "echo").await, stage.open("n1", "echo").await];
    assert_eq!(stage.refused(&stage.wish("n1", "echo")).await.0, "RESOURCE_EXHAUSTED");
    drop(held);
    stage.at_rest().await;
    drop(stage.open("n1", "echo").await);
    stage.at_rest().await;
}

#[tokio::test]
async fn a_caller_that_is_not_allowed_any_more_loses_its_tunnel() {
    let stage = TunnelStage::new("tunnel_iam", QUICK).await;
    let _node = stage.node("n1").await;
    let mut tunnel = stage.open("n1", "echo").await;
    let asked = |stage: &TunnelStage| {
        let received = stage.authority.received();
        received.into_iter().filter(|call| matches!(call, Received::Reauthorize(_))).count()
    };
    asked_until(SOON, "it is asked three times", async || (asked(&stage) >= 3).then_some(())).await;
    say(&mut tunnel, "still here").await;
    data_until(&mut tunnel, "still here").await;
    stage.authority.forbid("ada");
    let (_, _, code, message) = rest_of(&mut tunnel).await;
    assert_eq!(code, PERMISSION_DENIED, "{message}");
    stage.at_rest().await;
}

#[tokio::test]
async fn an_iam_service_that_is_away_for_too_long_ends_tunnels_and_not_before() {
    let stage = TunnelStage::new("tunnel_iam_away", QUICK).await;
    let _node = stage.node("n1").await;
    let mut tunnel = stage.open("n1", "echo").await;
    stage.authority.set_iam_mood(Mood::Failing(gateway_testbed::authority::Status::new(13, "broken")));
    let began = std::time::Instant::now();
    tokio::time::sleep(Duration::from_millis(500)).await;
    say(&mut tunnel, "still here").await;
    data_until(&mut tunnel, "still here").await;
    let (_, _, code, message) = rest_of(&mut tunnel).await;
    assert_eq!(code, UNAVAILABLE);
    assert!(message.contains("IAM"), "{message}");
    assert!(began.elapsed() >= Duration::from_millis(900), "{:?}", began.elapsed());
    stage.at_rest().await;
}

async fn a_tunnel_ends_with_its_life_its_session_its_certificate_and_on_request(transport: Transport) {
    let stage = TunnelStage::over(transport, "tunnel_ends", "[tunnels]\nmax_life = \"3s\"\n").await;
    let node = stage.node("n1").await;
    let mut lived = stage.open("n1", "echo").await;
    let (_, _, code, _) = rest_of(&mut lived).await;
    assert_eq!(code, DEADLINE_EXCEEDED);

    let mut asked = stage.open("n1", "echo").await;
    assert_eq!(stage.close("tunnel_id", &asked.id).await, 1);
    let (_, _, code, message) = rest_of(&mut asked).await;
    assert_eq!((code, message.contains("of the story")), (ABORTED, true), "{message}");
    assert_eq!(stage.close("tunnel_id", &asked.id).await, 0, "it is closed");
    let mut two = [stage.open("n1", "echo").await, stage.open("n1", "stall").await];
    assert_eq!(stage.close("node_id", node.name()).await, 2);
    for tunnel in &mut two {
        assert_eq!(rest_of(tunnel).await.2, ABORTED);
    }

    let mut of_session = stage.open("n1", "echo").await;
    let epoch = stage.world.watch.epoch_of(node.name());
    node.cut();
    let (_, _, code, message) = rest_of(&mut of_session).await;
    assert_eq!(code, UNAVAILABLE, "{message}");
    stage.world.watch.connected_after(node.name(), epoch).await;

    let mut of_certificate = stage.open("n1", "echo").await;
    let statement = "UPDATE node_certs SET revoked_at = now(), revoked_reason = 'story' WHERE node_id = $1";
    sqlx::query(statement).bind(node.name()).execute(&mut stage.world.connect().await).await.unwrap();
    assert_ne!(rest_of(&mut of_certificate).await.2, 0);
    stage.at_rest().await;
}

async fn the_node_hears_why_its_side_ended(transport: Transport) {
    let stage = TunnelStage::over(transport, "tunnel_node_side", "").await;
    let (_node, mut events) = stage.watched_node("n1").await;
    let mut tunnel = stage.open("n1", "sink").await;
    say(&mut tunnel, "12345").await;
    drop(tunnel);
    let (end, received) = node_end(&mut events).await;
    assert_eq!(end.status(), Some(1), "CANCELLED: {end:?}");
    assert!(received <= 5);
    stage.at_rest().await;
}

#[tokio::test]
async fn a_nodes_stream_may_come_to_another_shard_than_its_session() {
    let stage = TunnelStage::new("tunnel_shards", "[shards]\ncount = 3\n").await;
    let node = stage.node("n1").await;
    let path = format!("/v1/sessions/{}", node.name().replace('/', "%2F"));
    let home = stage.client.get(&path).await.unwrap()["shard"].as_u64().unwrap();
    let at_home = format!("gateway_tunnel_streams{{shard=\"{home}\"}} 0");
    // The kernel spreads connections as it likes: half a dozen opens, as a rule, are more than enough.
    for _ in 0..100 {
        let mut tunnel = stage.open("n1", "echo").await;
        let is_elsewhere = stage.client.metrics().await.unwrap().contains(&at_home);
        say(&mut tunnel, "there").await;
        data_until(&mut tunnel, "there").await;
        drop(tunnel);
        stage.at_rest().await;
        if is_elsewhere {
            return;
        }
    }
    panic!("a hundred streams came to the session's shard");
}

/// A session, and a `Tunnel` stream under another certificate of the same node: what is revoked ends, and nothing else.
#[tokio::test]
async fn a_revocation_ends_the_stream_of_its_certificate_and_leaves_the_session_of_another() {
    let stage = TunnelStage::new("tunnel_two_certs", "[tunnels]\nopen_timeout = \"60s\"\n").await;
    let (first, second) = (stage.world.register("n1").await, stage.world.pki.node("n1").unwrap());
    let id = stage.world.id("n1");
    let mut database = stage.world.connect().await;
    register_certificates(&mut database, from_ref(&id), from_ref(&second.serial)).await.unwrap();
    let mut session = raw_session(&stage.world.target("g1", &first)).await;
    let wish = stage.wish("n1", "any");
    let client = std::sync::Arc::clone(&stage.client);
    let opening = tokio::spawn(async move { client.open_tunnel(&wish).await });
    let hello = offered(&mut session).await;
    let target = stage.world.target("g1", &second).over(Transport::Http2);
    let mut stream = RawCall::open(&target, path::TUNNEL, HeaderMap::new()).await.unwrap();
    stream.send_bytes(encode(&v1::TunnelFrame { frame: Some(v1::tunnel_frame::Frame::Hello(hello)) }));
    let (opened, _) = tokio::join!(opening, stream.next(Duration::from_secs(2)));
    let mut tunnel = opened.unwrap().unwrap();
    let statement = "UPDATE node_certs SET revoked_at = now(), revoked_reason = 'story' WHERE serial = $1";
    sqlx::query(statement).bind(&second.serial).execute(&mut database).await.unwrap();
    stage.client.post("/v1/revoke", &json!({ "node_id": id })).await.unwrap();
    let (end, (_, _, code, why)) = tokio::join!(stream.end(SOON), rest_of(&mut tunnel));
    assert_eq!(end.expect("it ends").status(), Some(UNAUTHENTICATED));
    assert_eq!(code, UNAUTHENTICATED, "{why}");
    session.send(node_frame::Frame::Heartbeat(v1::Heartbeat { sequence: 1, ..v1::Heartbeat::default() }));
    loop {
        match session.frame(SOON).await.expect("an answer").expect("the session goes on").frame {
            Some(gateway_frame::Frame::HeartbeatAck(_)) => break,
            _ => continue,
        }
    }
    stage.at_rest().await;
}

#[tokio::test]
async fn an_iam_service_that_is_not_there_is_told_of_at_the_start_before_anybody_needs_it() {
    let world = World::new("tunnels_no_iam").await;
    let authority = support::tunnels::authority(&world).await;
    // Nobody listens there.
    let nowhere = world.address_of("nowhere");
    let mut options = support::tunnels::tunnel_options(&world, &authority, "g1", "");
    let named = |address: &str| format!("iam_url = \"{address}\"");
    options.extra = options.extra.replace(&named(&authority.url()), &named(&format!("https://{nowhere}")));
    let gateway = world.start(options).await;
    let log = gateway.logged("IAM service").await;
    assert!(log.contains("a service can't be used") && log.contains(&nowhere.to_string()), "{log}");
}

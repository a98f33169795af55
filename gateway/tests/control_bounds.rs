//! Who may hold up the control API, and whom it holds up: silent sockets, strangers, a service that has gone wild,
//! callers that do not read or have lost their network, and nodes that open streams for nothing.
//!
//! 1. Beside each of them others are served.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, SystemTime};

use gateway::client::{CallError, GatewayClient};
use gateway_proto::path;
use gateway_testbed::node::EndKind;
use gateway_testbed::raw::RawCall;
use http::HeaderMap;
use support::api::{client, client_as};
use support::health::control_address;
use support::tunnels::{TunnelStage, data_until, node_end, say};
use support::wire::Wire;
use support::{RESOURCE_EXHAUSTED, SOON, World, asked_until, within};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const OTHER: &str = "spiffe://testbed.gateway/service/other";

fn code_of(outcome: Result<(bool, serde_json::Value), CallError>) -> String {
    match outcome {
        Ok(_) => "OK".to_owned(),
        Err(CallError::Refused { code, .. }) => code,
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn a_thousand_sockets_that_say_nothing_shut_no_door() {
    let world = World::new("bounds_silent").await;
    let gateway = world.start(world.options_with_api("g", "")).await;
    let address = control_address(&mut world.connect().await, "g").await;
    let mut connecting = JoinSet::new();
    for _ in 0..1_000 {
        connecting.spawn(TcpStream::connect(address.clone()));
    }
    let silent = within(SOON, "a thousand sockets", connecting.join_all()).await;
    assert!(client(&world, &gateway).await.health().await.unwrap().0, "a call is answered beside them");
    drop(silent);
}

#[tokio::test]
async fn strangers_are_told_why_once_and_take_no_place() {
    let world = World::new("bounds_strangers").await;
    let gateway = world.start(world.options_with_api("g", "")).await;
    let other = world.pki.control_client(OTHER).unwrap();
    let mut strangers = Vec::new();
    for _ in 0..150 {
        let stranger = client_as(&world, &gateway, "other", &other).await;
        assert_eq!(code_of(stranger.health().await), "FORBIDDEN");
        strangers.push(stranger);
    }
    assert_eq!(code_of(strangers[149].health().await), "FORBIDDEN", "and over another connection as before");
    assert!(client(&world, &gateway).await.health().await.unwrap().0);
}

#[tokio::test]
async fn a_service_that_has_gone_wild_leaves_places_to_others() {
    let world = World::new("bounds_of_one").await;
    let gateway = world.start(world.options_with_api("g", "[control]\nclients = []\n")).await;
    let other = world.pki.control_client(OTHER).unwrap();
    let mut held: Vec<GatewayClient> = Vec::new();
    let refused = loop {
        let one = client_as(&world, &gateway, "other", &other).await;
        match code_of(one.health().await).as_str() {
            "OK" => held.push(one),
            code => break code.to_owned(),
        }
        assert!(held.len() < 200, "it has every place that there is");
    };
    assert_eq!((refused.as_str(), held.len()), ("BUSY", 96));
    assert!(client(&world, &gateway).await.health().await.unwrap().0, "others have theirs");
    held.truncate(90);
    let again = client_as(&world, &gateway, "other", &other).await;
    asked_until(SOON, "its places are given back", async || {
        (code_of(again.health().await) == "OK").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_connection_takes_no_more_calls_when_its_certificate_has_expired() {
    let world = World::new("bounds_expiry").await;
    let gateway = world.start(world.options_with_api("g", "")).await;
    let ends_at = SystemTime::now() + Duration::from_secs(5);
    let brief = world.pki.control_client_until(gateway_testbed::pki::CONTROL_CLIENT, ends_at).unwrap();
    let brief = client_as(&world, &gateway, "brief", &brief).await;
    assert!(brief.health().await.unwrap().0);
    // Asked so often that it is never idle; a new connection is refused in the handshake.
    let ended =
        asked_until(SOON, "its calls end with its certificate", async || brief.health().await.err()).await;
    assert!(matches!(ended, CallError::Unreachable { .. }), "{ended}");
    assert!(SystemTime::now() >= ends_at - Duration::from_secs(1));
    assert!(client(&world, &gateway).await.health().await.unwrap().0);
}

#[tokio::test]
async fn a_tunnel_that_is_over_has_its_place_until_its_caller_has_read_it_and_no_longer_than_it_may() {
    let extra = "[sessions]\nsend_timeout = \"4s\"\n[tunnels]\nmax = 1\n";
    let stage = TunnelStage::new("bounds_unread", extra).await;
    let _node = stage.node("n1").await;
    let mut wish = stage.wish("n1", "source");
    wish.parameters.insert("bytes".to_owned(), "100000000".to_owned());
    let unread = stage.opened(&wish).await;
    asked_until(SOON, "the windows on the way are full", async || {
        let before = stage.number("tunnel_bytes_in_total").await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        (before > 0.0 && before == stage.number("tunnel_bytes_in_total").await).then_some(())
    })
    .await;
    assert_eq!(stage.close("tunnel_id", &unread.id).await, 1);
    assert_eq!((stage.number("tunnels").await, stage.number("tunnels_leaving").await), (0.0, 1.0));
    assert_eq!(stage.refused(&stage.wish("n1", "echo")).await.0, "RESOURCE_EXHAUSTED");
    asked_until(SOON, "the rest is let go of", async || {
        (stage.number("tunnels_leaving").await == 0.0).then_some(())
    })
    .await;
    let mut next = stage.open("n1", "echo").await;
    say(&mut next, "there").await;
    data_until(&mut next, "there").await;
    drop((unread, next));
    stage.at_rest().await;
}

#[tokio::test]
async fn a_node_that_opens_streams_for_nothing_takes_no_place_of_others() {
    let stage =
        TunnelStage::new("bounds_streams", "[shards]\ncount = 1\n[tunnels]\nmax_per_node = 1\n").await;
    let _good = stage.node("good").await;
    let hog = stage.world.register("hog").await;
    let target = stage.world.target("g1", &hog);
    let mut streams = JoinSet::new();
    for _ in 0..3 {
        let call = within(SOON, "a stream", RawCall::open(&target, path::TUNNEL, HeaderMap::new())).await;
        let mut call = call.unwrap();
        streams.spawn(async move { call.end(SOON).await });
    }
    let end = streams.join_next().await.unwrap().unwrap().expect("one is refused");
    assert_eq!(end.kind, EndKind::Status(RESOURCE_EXHAUSTED), "{end:?}");
    let mut tunnel = stage.open("good", "echo").await;
    say(&mut tunnel, "there").await;
    data_until(&mut tunnel, "there").await;
}

#[tokio::test]
async fn one_client_has_more_tunnels_than_a_connection_takes_and_its_calls_go_on_beside_them() {
    let stage = TunnelStage::new("bounds_client", "[tunnels]\nmax_per_node = 30\n").await;
    let (mut nodes, mut tunnels) = (Vec::new(), Vec::new());
    for number in 0..9 {
        let name = format!("n{number}");
        nodes.push(stage.node(&name).await);
        for _ in 0..30 {
            tunnels.push(stage.open(&name, "echo").await);
        }
    }
    assert_eq!(stage.number("tunnels_joined").await, 270.0);
    let last = tunnels.last_mut().unwrap();
    say(last, "there").await;
    data_until(last, "there").await;
    drop(tunnels);
    stage.at_rest().await;
}

#[tokio::test]
async fn a_caller_whose_network_is_gone_is_let_go_of_and_its_places_come_back() {
    let extra = "[control]\nping_every = \"500ms\"\n[tunnels]\nmax = 1\n";
    let stage = TunnelStage::new("bounds_half_open", extra).await;
    let (_node, mut events) = stage.watched_node("n1").await;
    let wire = Wire::to(control_address(&mut stage.world.connect().await, "g1").await).await;
    let over_wire = || GatewayClient::new(&format!("https://{}", wire.address), stage.files.clone()).unwrap();
    let caller = over_wire();
    let mut tunnel = within(SOON, "a tunnel", caller.open_tunnel(&stage.wish("n1", "echo"))).await.unwrap();
    say(&mut tunnel, "there").await;
    data_until(&mut tunnel, "there").await;
    assert_eq!(stage.number("tunnels_joined").await, 1.0);
    // With this one and that of the stage it has all the connections that one name may have.
    let mut idle = Vec::new();
    let refused = loop {
        let one = over_wire();
        match code_of(one.health().await).as_str() {
            "OK" => idle.push(one),
            code => break code.to_owned(),
        }
    };
    assert_eq!((refused.as_str(), idle.len()), ("BUSY", 94));
    assert_eq!(stage.refused(&stage.wish("n1", "echo")).await.0, "RESOURCE_EXHAUSTED");
    // Who answers pings stays.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    say(&mut tunnel, "still there").await;
    data_until(&mut tunnel, "still there").await;

    wire.fall_silent();
    let (end, _) = node_end(&mut events).await;
    assert_eq!(end.status(), Some(1), "CANCELLED: {end:?}");
    stage.at_rest().await;
    drop(within(SOON, "its place", stage.open("n1", "echo")).await);
    let again = GatewayClient::new(&stage.url, stage.files.clone()).unwrap();
    asked_until(SOON, "its connections are given back", async || {
        (code_of(again.health().await) == "OK").then_some(())
    })
    .await;
    // So far it has not heard that it is gone.
    drop((tunnel, idle));
}

#[tokio::test]
async fn a_client_leaves_a_connection_on_which_an_open_had_no_answer() {
    let stage = TunnelStage::new("bounds_open_silent", "").await;
    let _node = stage.node("n1").await;
    let wire = Wire::to(control_address(&mut stage.world.connect().await, "g1").await).await;
    let client = GatewayClient::new(&format!("https://{}", wire.address), stage.files.clone()).unwrap();
    let client = client.with_opened_within(Duration::from_secs(1));
    assert!(client.health().await.unwrap().0);
    wire.fall_silent();
    let open = within(SOON, "its time-out", client.open_tunnel(&stage.wish("n1", "echo"))).await;
    assert!(
        matches!(&open, Err(CallError::Unreachable { why, .. }) if why == "the open had no answer"),
        "{open:?}"
    );
    assert_eq!(wire.dialled(), 1, "it knew of no other");
    // The next call does not wait on it.
    assert!(client.health().await.unwrap().0);
    assert_eq!(wire.dialled(), 2);
    let mut tunnel = within(SOON, "a tunnel", client.open_tunnel(&stage.wish("n1", "echo"))).await.unwrap();
    say(&mut tunnel, "there").await;
    data_until(&mut tunnel, "there").await;
    assert_eq!(wire.dialled(), 2);
    drop(tunnel);
    stage.at_rest().await;
}

//! Tunnels when something dies or is slow: a node, the process of a caller, a gateway that drains; each over HTTP/2 and
//! over WebSocket.
//!
//! 1. Each story ends with nothing of any tunnel left, by the gateway's own numbers.
//! 2. Both ends of a tunnel read the same word of its end.

#![allow(clippy::unwrap_used)]

mod support;

use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use gateway_control::client::Tunnel;
use gateway_testbed::node::{Node, Transport, TunnelTaker};
use serde_json::json;
use support::tunnels::{
    SHORT_FAREWELL, TunnelStage, client_of, data_until, node_end, over_both, rest_of, say, tunnel_options,
};
use support::{SOON, asked_until, within};
use tokio::io::AsyncReadExt;

const OK: u32 = 0;
const CANCELLED: u32 = 1;
const DEADLINE_EXCEEDED: u32 = 4;
const PERMISSION_DENIED: u32 = 7;
const ABORTED: u32 = 10;
const UNAVAILABLE: u32 = 14;
const UNAUTHENTICATED: u32 = 16;

over_both! {
    a_node_that_is_killed_takes_its_tunnels_with_it_and_comes_back
    a_caller_whose_process_is_killed_leaves_nothing
    a_drained_gateway_ends_a_tunnel_when_its_node_has_moved
    a_stalled_tunnel_ends_at_once_whatever_ends_it
    both_ends_read_the_same_word_of_a_tunnels_end
    what_was_said_before_a_tunnels_end_is_still_read
}

/// A tunnel whose node says more than its caller will ever read.
async fn unread(stage: &TunnelStage, name: &str) -> Tunnel {
    let mut wish = stage.wish(name, "source");
    wish.parameters.insert("bytes".to_owned(), "1000000000".to_owned());
    let tunnel = stage.opened(&wish).await;
    comes_to_a_stop(stage, "tunnel_bytes_in_total").await;
    tunnel
}

/// One whose node reads nothing, and whose caller has said all that there is room for.
async fn unheard(stage: &TunnelStage, name: &str) -> Tunnel {
    let mut tunnel = stage.open(name, "stall").await;
    let filling = async {
        loop {
            tunnel.sender.data(Bytes::from(vec![1; 16 << 10])).await.unwrap();
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(1), filling).await.is_err(), "it took all");
    tunnel
}

async fn comes_to_a_stop(stage: &TunnelStage, counter: &str) {
    asked_until(SOON, "it comes to a stop", async || {
        let before = stage.number(counter).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        (before > 0.0 && before == stage.number(counter).await).then_some(())
    })
    .await;
}

async fn a_node_that_is_killed_takes_its_tunnels_with_it_and_comes_back(transport: Transport) {
    let stage = TunnelStage::over(transport, "chaos_node", SHORT_FAREWELL).await;
    let identity = stage.world.register("n1").await;
    let start = || {
        let mut options = stage.world.node_options("n1", &identity, "g1");
        options.target.transport = transport;
        options.tunnels = Some(TunnelTaker::of(stage.authority.mint()));
        Node::start(options)
    };
    let node = start();
    let epoch = stage.world.watch.connected_after(node.name(), 0).await;
    let mut open =
        vec![stage.open("n1", "echo").await, unread(&stage, "n1").await, unheard(&stage, "n1").await];
    say(&mut open[0], "hello").await;
    data_until(&mut open[0], "hello").await;
    drop(node);
    for tunnel in &mut open {
        let (_, _, code, message) = rest_of(tunnel).await;
        assert_eq!(code, UNAVAILABLE, "{message}");
    }
    stage.at_rest().await;
    let node = start();
    stage.world.watch.connected_after(node.name(), epoch).await;
    let mut again = stage.open("n1", "echo").await;
    say(&mut again, "back").await;
    data_until(&mut again, "back").await;
    drop(again);
    stage.at_rest().await;
}

async fn a_caller_whose_process_is_killed_leaves_nothing(transport: Transport) {
    let stage = TunnelStage::over(transport, "chaos_caller", SHORT_FAREWELL).await;
    let (node, mut events) = stage.watched_node("n1").await;
    for parameters in [&["--kind", "source", "--parameter", "bytes=1000000000"][..], &["--kind", "echo"]] {
        let file = |path: &std::path::Path| path.display().to_string();
        let mut caller = tokio::process::Command::new(env!("CARGO_BIN_EXE_gateway"))
            .args(["tunnel", node.name(), "--url", &stage.url, "--ca", &file(&stage.files.ca)])
            .args(["--certificate", &file(&stage.files.certificate), "--key", &file(&stage.files.key)])
            .args(parameters)
            .env("GATEWAY_TICKET", stage.authority.mint().mint(node.name()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let joined = async || (stage.number("tunnels_joined").await == 1.0).then_some(());
        asked_until(SOON, "the tunnel is open", joined).await;
        if parameters.contains(&"source") {
            // It is in the middle of its work, and nobody reads what it writes.
            let mut some = [0; 1000];
            let reading = caller.stdout.as_mut().unwrap().read_exact(&mut some);
            within(SOON, "some of the data", reading).await.unwrap();
        }
        caller.start_kill().unwrap();
        let (end, _) = node_end(&mut events).await;
        assert_eq!(end.status(), Some(CANCELLED), "{end:?}");
        stage.at_rest().await;
    }
}

async fn a_drained_gateway_ends_a_tunnel_when_its_node_has_moved(transport: Transport) {
    let stage = TunnelStage::over(transport, "chaos_drain", "").await;
    let second = tunnel_options(&stage.world, &stage.authority, "g2", "");
    let files = support::tunnels::client_files(&second);
    let _second = stage.world.start(second).await;
    let other = client_of(&stage.world, "g2", &files).await;
    let identity = stage.world.register("n1").await;
    let mut options = stage.world.node_options("n1", &identity, "g1");
    options.target.transport = transport;
    options.elsewhere = vec![stage.world.target("g2", &identity).over(transport)];
    options.tunnels = Some(TunnelTaker::of(stage.authority.mint()));
    let node = Node::start(options);
    let epoch = stage.world.watch.connected_after(node.name(), 0).await;
    let mut tunnel = stage.open("n1", "echo").await;
    say(&mut tunnel, "before").await;
    data_until(&mut tunnel, "before").await;
    stage.client.post("/v1/drain", &json!({ "within_seconds": 0 })).await.unwrap();
    stage.world.watch.connected_after(node.name(), epoch).await;
    let (_, _, code, message) = rest_of(&mut tunnel).await;
    assert_eq!(code, UNAVAILABLE);
    assert!(message.contains("session has ended"), "{message}");
    // This gateway goes on, empty; the other one has the node.
    stage.at_rest().await;
    assert_eq!(stage.refused(&stage.wish("n1", "echo")).await.0, "UNAVAILABLE");
    let mut tunnel = within(SOON, "a tunnel", other.open_tunnel(&stage.wish("n1", "echo"))).await.unwrap();
    say(&mut tunnel, "after").await;
    data_until(&mut tunnel, "after").await;
}

async fn a_stalled_tunnel_ends_at_once_whatever_ends_it(transport: Transport) {
    let stage = TunnelStage::over(transport, "chaos_stalled", SHORT_FAREWELL).await;
    for (stalled, name) in [("caller", "c"), ("node", "n")] {
        let open = async |name: &str| match stalled {
            "caller" => unread(&stage, name).await,
            _ => unheard(&stage, name).await,
        };
        let (asked, cut, revoked) = (format!("{name}1"), format!("{name}2"), format!("{name}3"));
        let node = stage.node(&asked).await;
        let tunnel = open(&asked).await;
        assert_eq!(stage.close("tunnel_id", &tunnel.id).await, 1, "the {stalled} is slow");
        ends_with(tunnel, &[ABORTED]).await;
        drop(open(&asked).await);
        let gone = async || (stage.number("tunnels").await == 0.0).then_some(());
        asked_until(SOON, "a caller that is gone is noticed", gone).await;
        drop(node);

        let node = stage.node(&cut).await;
        let tunnel = open(&cut).await;
        node.cut();
        ends_with(tunnel, &[UNAVAILABLE]).await;
        drop(node);

        let node = stage.node(&revoked).await;
        let tunnel = open(&revoked).await;
        let statement =
            "UPDATE node_certs SET revoked_at = now(), revoked_reason = 'story' WHERE node_id = $1";
        sqlx::query(statement).bind(node.name()).execute(&mut stage.world.connect().await).await.unwrap();
        // The session and the stream are told at once, whichever comes first.
        ends_with(tunnel, &[UNAUTHENTICATED, UNAVAILABLE]).await;
        drop(node);
        stage.at_rest().await;
    }
}

async fn ends_with(mut tunnel: Tunnel, codes: &[u32]) {
    let (_, _, code, message) = rest_of(&mut tunnel).await;
    assert!(codes.contains(&code), "{code}: {message}");
}

async fn both_ends_read_the_same_word_of_a_tunnels_end(transport: Transport) {
    let extra = "[tunnels]\nmax_life = \"4s\"\nreauthorize_every = \"200ms\"\n";
    let stage = TunnelStage::over(transport, "chaos_farewell", extra).await;
    let (node, mut events) = stage.watched_node("n1").await;
    let mut same = async |mut tunnel: Tunnel, code: u32, sentence: &str| {
        let (_, _, to_caller, to_caller_why) = rest_of(&mut tunnel).await;
        let (end, _) = node_end(&mut events).await;
        assert_eq!((to_caller, end.status()), (code, Some(code)), "{to_caller_why:?}, {end:?}");
        assert!(to_caller_why.contains(sentence), "{to_caller_why:?}");
        assert_eq!(to_caller_why, end.message);
    };
    let mut wish = stage.wish("n1", "source");
    wish.parameters.insert("bytes".to_owned(), "10".to_owned());
    same(stage.opened(&wish).await, OK, "").await;
    let tunnel = stage.open("n1", "echo").await;
    stage.close("tunnel_id", &tunnel.id).await;
    same(tunnel, ABORTED, "closed on request: of the story").await;
    same(stage.open("n1", "echo").await, DEADLINE_EXCEEDED, "as long as one may").await;
    let mut tunnel = stage.open("n1", "echo").await;
    say(&mut tunnel, "allowed").await;
    data_until(&mut tunnel, "allowed").await;
    stage.authority.forbid("ada");
    same(tunnel, PERMISSION_DENIED, "does not allow this tunnel any more").await;
    stage.at_rest().await;
    drop(node);
}

async fn what_was_said_before_a_tunnels_end_is_still_read(transport: Transport) {
    let stage = TunnelStage::over(transport, "chaos_last_words", "").await;
    let (_node, mut events) = stage.watched_node("n1").await;
    // The node says all, and ends; the caller begins to read when it has.
    let mut wish = stage.wish("n1", "source");
    wish.parameters.insert("bytes".to_owned(), "60000".to_owned());
    let mut tunnel = stage.opened(&wish).await;
    let (end, _) = node_end(&mut events).await;
    assert_eq!(end.status(), Some(OK), "{end:?}");
    let (data, exit, code, _) = rest_of(&mut tunnel).await;
    assert_eq!((data.len(), exit, code), (60_000, Some(0), OK));
    // The caller says all, and half-closes; the node reads it to the end, and answers with its own.
    let mut tunnel = stage.open("n1", "sink").await;
    for _ in 0..100 {
        within(SOON, "it takes data", tunnel.sender.data(Bytes::from(vec![5; 10_000]))).await.unwrap();
    }
    tunnel.sender.half_close().await.unwrap();
    let (end, received) = node_end(&mut events).await;
    assert_eq!((end.status(), received), (Some(OK), 1_000_000), "{end:?}");
    assert_eq!(rest_of(&mut tunnel).await.2, OK);
    stage.at_rest().await;
}

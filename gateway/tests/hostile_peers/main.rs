//! Peers that break every rule, against the real gateway: each gets its status, and a well-behaved
//! node on the same shard goes on meanwhile.
//!
//! `stage` holds what the stories share: a gateway with one shard, the node that behaves, the check
//! that nothing was left behind. `frames`, `hellos` and `updates` break the protocol, `calls` gRPC,
//! `certificates` TLS, `http2` HTTP/2, `websocket` WebSocket; `silence` says nothing or too little, `unread` never reads,
//! `crowds` comes in numbers.

#![allow(unreachable_pub, clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod calls;
mod certificates;
mod crowds;
mod frames;
mod hellos;
mod http2;
mod silence;
mod stage;
mod unread;
mod updates;
mod websocket;

use stage::Stage;

/// The stories that need no limits of their own share one gateway.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_breaks_the_protocol_is_told_how_and_nobody_else_notices() {
    let stage = Stage::open("protocol", "").await;
    Box::pin(calls::stories(&stage)).await;
    Box::pin(certificates::stories(&stage)).await;
    Box::pin(frames::stories(&stage)).await;
    Box::pin(hellos::stories(&stage)).await;
    Box::pin(updates::stories(&stage)).await;
    stage.close().await;
}

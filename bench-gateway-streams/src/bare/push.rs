//! The yardstick of a fan-out: a frame of the same size to each of the same clients, by a server that holds
//! their HTTP/2 streams and does nothing else, in a process of its own as the gateway is, in the same run.
//!
//! 1. Every client's call stands, and it was sent a frame, before the first round.
//! 2. A round counts from the moment before the server is told, on the clock that the clients read too.
//! 3. A client takes a frame as a node does: by TLS, HTTP/2 and gRPC's framing, in a task of its own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use gateway_testbed::bare::{PushClient, push_frame};
use gateway_testbed::clock::monotonic_ns;
use gateway_testbed::node::Target;
use gateway_testbed::pki::{GatewayFiles, Pki};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::{await_listening, push_server, targets_of};
use crate::latency::{Latencies, Percentiles};
use crate::progress::say;
use crate::report::BarePush;
use crate::world::fixed_address;

/// Handshakes at once, while the clients connect.
const AT_ONCE: usize = 64;
const CONNECT_WITHIN: Duration = Duration::from_secs(120);
const ROUND_WITHIN: Duration = Duration::from_secs(60);
/// One round warms all up and is not told.
const WARM_UP: u32 = 1;

/// Takes the yardstick `rounds` times.
pub(crate) async fn measure(
    names: &[String],
    pki: &Pki,
    files: &GatewayFiles,
    rounds: u32,
    payload_bytes: usize,
) -> anyhow::Result<BarePush> {
    let address = fixed_address()?;
    let (mut server, mut turns) = push_server(address, files, payload_bytes)?;
    await_listening(address, || Ok(server.try_wait()?.is_some())).await?;
    say(&format!("bare push: connecting {} clients …", names.len()));
    let (tell, mut told) = mpsc::unbounded_channel();
    let connecting = connect(targets_of(address, names, pki)?, tell);
    // Its tasks end with it.
    let clients = tokio::time::timeout(CONNECT_WITHIN, connecting).await;
    let _clients = clients.context("the clients of the bare push took too long")??;
    let mut pushes = BarePush { frame_bytes: push_frame(payload_bytes).len(), rounds: Vec::new() };
    for number in 0..rounds + WARM_UP {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let started = monotonic_ns();
        turns.write_all(b"\n").await?;
        let round = tokio::time::timeout(ROUND_WITHIN, round(names.len(), started, &mut told)).await;
        let round = round.context("a bare push did not reach all clients in time")??;
        if number >= WARM_UP {
            pushes.rounds.push(round);
        }
    }
    let best = pushes.rounds.iter().map(|round| round.max).fold(f64::INFINITY, f64::min);
    say(&format!("bare push to {} clients: {best:.1} ms until all had it (best of {rounds})", names.len()));
    Ok(pushes)
}

async fn round(
    clients: usize,
    started: u64,
    told: &mut mpsc::UnboundedReceiver<u64>,
) -> anyhow::Result<Percentiles> {
    let mut latencies = Latencies::new();
    for _ in 0..clients {
        let at = told.recv().await.context("the clients of the bare push ended")?;
        latencies.record_ns(at.saturating_sub(started));
    }
    latencies.percentiles().context("a bare push without clients")
}

// Each client tells the time at which it had a frame.
async fn connect(targets: Vec<Target>, tell: mpsc::UnboundedSender<u64>) -> anyhow::Result<JoinSet<()>> {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let (connected, mut are_connected) = mpsc::unbounded_channel();
    let mut clients = JoinSet::new();
    let count = targets.len();
    for target in targets {
        let (room, tell, connected) = (Arc::clone(&room), tell.clone(), connected.clone());
        clients.spawn(async move {
            let permit = room.acquire_owned().await;
            let opened = Box::pin(PushClient::open(&target)).await;
            drop(permit);
            let mut client = match opened {
                Ok(client) => client,
                Err(end) => return drop(connected.send(Err(end.message))),
            };
            let _ = connected.send(Ok(()));
            while client.pushed().await.is_ok() {
                let _ = tell.send(monotonic_ns());
            }
        });
    }
    for _ in 0..count {
        let opened = are_connected.recv().await.context("a client of the bare push ended")?;
        opened.map_err(|message| anyhow::anyhow!("a client of the bare push: {message}"))?;
    }
    Ok(clients)
}

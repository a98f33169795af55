//! What tunnels cost, measured: bytes a second both ways against relays of the same bytes in one run (`yardsticks`), what
//! threads use for them (`threads`), the memory of a thousand tunnels at once, and what stalled tunnels do to the sessions
//! beside them. Figures are printed, not judged: a test has no bars of time.
//!
//! `cargo test --release -p gateway --test tunnel_figures -- --ignored --nocapture`
//!
//! 1. All relays carry the same bytes, in turn. `GATEWAY_TUNNEL_MB` says how many, `GATEWAY_TUNNEL_WINDOW` the
//!    tunnels' window; `GATEWAY_TUNNEL_ALONE` leaves the yardsticks out, for a profile.
//! 2. What a thousand tunnels must do is judged: each gives back what it gets, and nothing of them is left.

#![allow(unreachable_pub, clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod threads;
mod yardsticks;

use std::time::{Duration, Instant};

use bytes::Bytes;
use gateway_control::client::{GatewayClient, Said, Tunnel};
use gateway_testbed::database::{NewCommand, enqueue};
use gateway_testbed::node::{Node, NodeEvents, NodeOptions, TunnelTaker};
use sqlx::PgConnection;
use support::tunnels::{TunnelStage, data_until, node_end, say};
use support::{SOON, asked_until, measured, within};
use threads::Usage;
use yardsticks::{Carried, Sides};

/// The ends have the allocator of the gateway's binary: that of the system gives memory back to it all the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PIECE_BYTES: usize = 32 << 10;
const ROUNDS: usize = 3;

fn megabytes() -> u64 {
    std::env::var("GATEWAY_TUNNEL_MB").ok().and_then(|text| text.parse().ok()).unwrap_or(200)
}

/// Bytes a second, in MB.
fn rate(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / 1e6 / took.as_secs_f64()
}

async fn through_a_tunnel(stage: &TunnelStage, events: &mut NodeEvents, bytes: u64) -> f64 {
    let mut wish = stage.wish("n1", "source");
    wish.parameters.insert("bytes".to_owned(), bytes.to_string());
    let mut tunnel = stage.opened(&wish).await;
    let receiving = tokio::spawn(async move {
        let (began, mut received) = (Instant::now(), 0);
        while received < bytes {
            match within(SOON * 3, "data", tunnel.receiver.next()).await.unwrap() {
                Said::Data(data) => received += data.len() as u64,
                other => panic!("{other:?} after {received} bytes"),
            }
        }
        rate(bytes, began.elapsed())
    });
    let rate = receiving.await.unwrap();
    node_end(events).await;
    rate
}

/// The other way: the caller sends, the node takes.
async fn towards_the_node(stage: &TunnelStage, events: &mut NodeEvents, bytes: u64) -> f64 {
    let mut tunnel = stage.open("n1", "sink").await;
    let began = Instant::now();
    let sending = tokio::spawn(async move {
        let piece = Bytes::from(vec![b'x'; 256 << 10]);
        let mut left = bytes;
        while left > 0 {
            let some = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
            within(SOON, "it takes data", tunnel.sender.data(piece.slice(..some))).await.unwrap();
            left -= some as u64;
        }
        tunnel.sender.half_close().await.unwrap();
        tunnel
    });
    let (_, received) = node_end(events).await;
    drop(sending.await.unwrap());
    assert_eq!(received, bytes);
    rate(bytes, began.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: with --release, on a quiet machine"]
async fn throughput_against_a_bare_relay() {
    let window = std::env::var("GATEWAY_TUNNEL_WINDOW").unwrap_or_else(|_| "256KiB".to_owned());
    let stage =
        TunnelStage::new("tunnel_throughput", &format!("[tunnels]\nwindow_bytes = \"{window}\"\n")).await;
    let (_node, mut events) = stage.watched_node("n1").await;
    let sides = Sides::of(&stage);
    let bytes = megabytes() * 1_000_000;
    let with_yardsticks = std::env::var_os("GATEWAY_TUNNEL_ALONE").is_none();
    let (gateway, ends) = (stage.gateway.pid(), std::process::id());
    let mut relays: [(&str, Vec<Carried>); 3] = [
        ("bare TLS relay", Vec::new()),
        ("HTTP/2 relay, windows of 64 KiB", Vec::new()),
        ("HTTP/2 relay, windows of 1 MiB", Vec::new()),
    ];
    let mut tunnels: [(&str, Vec<f64>); 2] =
        [("tunnel, node to caller", Vec::new()), ("tunnel, caller to node", Vec::new())];
    let mut costs = Vec::new();
    for _ in 0..ROUNDS {
        if with_yardsticks {
            relays[0].1.push(yardsticks::bare(&sides, bytes).await);
            relays[1].1.push(yardsticks::over_http2(&sides, bytes, 64 << 10).await);
            relays[2].1.push(yardsticks::over_http2(&sides, bytes, 1 << 20).await);
        }
        let before = [Usage::of(gateway), Usage::of(ends)];
        tunnels[0].1.push(through_a_tunnel(&stage, &mut events, bytes).await);
        let between = [Usage::of(gateway), Usage::of(ends)];
        tunnels[1].1.push(towards_the_node(&stage, &mut events, bytes).await);
        let after = [Usage::of(gateway), Usage::of(ends)];
        costs = vec![(before, between.clone()), (between, after)];
    }
    let best = |rates: &[f64]| rates.iter().copied().fold(0.0, f64::max);
    for (what, carried) in &relays {
        let rates: Vec<f64> = carried.iter().map(|carried| carried.rate).collect();
        let micros: Vec<f64> = carried.iter().map(|carried| carried.micros).collect();
        measured(&format!("{what}, MB/s by round"), format!("{rates:.0?}"));
        measured(&format!("{what}, its thread a MB, us by round"), format!("{micros:.0?}"));
    }
    for ((what, rates), (before, after)) in tunnels.iter().zip(&costs) {
        measured(&format!("{what}, MB/s by round"), format!("{rates:.0?}"));
        for (at, whose) in ["the gateway's", "the ends'"].into_iter().enumerate() {
            let used = after[at].since(&before[at], bytes as f64 / 1e6);
            measured(&format!("{what}, {whose} threads a MB, last round"), used);
        }
    }
    for (what, rates) in &tunnels {
        for (relay, carried) in relays.iter().filter(|_| with_yardsticks) {
            let bare: Vec<f64> = carried.iter().map(|carried| carried.rate).collect();
            let share = 100.0 * best(rates) / best(&bare);
            measured(&format!("{what}, against {relay}, best rounds"), format!("{share:.0} %"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: with --release, on a quiet machine"]
async fn a_thousand_tunnels_at_once() {
    const NODES: usize = 50;
    const EACH: usize = 20;
    let stage = TunnelStage::new("tunnel_thousand", "[tunnels]\nmax = 1200\nmax_per_node = 32\n").await;
    let mint = stage.authority.mint();
    let shape = |options: &mut NodeOptions| options.tunnels = Some(TunnelTaker::of(mint));
    let nodes: Vec<Node> = stage.world.nodes("t", NODES, "g1", shape).await;
    let clients: Vec<GatewayClient> =
        (0..8).map(|_| GatewayClient::new(&stage.url, stage.files.clone()).unwrap()).collect();
    let resident = |stage: &TunnelStage| stage.gateway.usage().unwrap().rss_bytes as f64 / 1e6;
    let before = resident(&stage);
    let began = Instant::now();
    let mut tunnels = Vec::new();
    for round in 0..EACH {
        let wishes: Vec<_> = (0..nodes.len())
            .map(|at| (stage.wish(&format!("t-{at:03}"), "echo"), &clients[(round + at) % clients.len()]))
            .collect();
        let opening = wishes.iter().map(|(wish, client)| client.open_tunnel(wish));
        for tunnel in futures_util::future::join_all(opening).await {
            tunnels.push(tunnel.unwrap());
        }
    }
    measured("tunnels at once", tunnels.len());
    measured("opening them", support::seconds(began));
    measured("resident memory before and with them, MB", format!("{before:.1}, {:.1}", resident(&stage)));
    let per_tunnel = (resident(&stage) - before) * 1e3 / tunnels.len() as f64;
    measured("a tunnel at rest, kB of the gateway's memory", format!("{per_tunnel:.1}"));
    let began = Instant::now();
    let mut longest = Duration::ZERO;
    for tunnel in &mut tunnels {
        let asked = Instant::now();
        say(tunnel, "hello").await;
        data_until(tunnel, "hello").await;
        longest = longest.max(asked.elapsed());
    }
    measured("an echo over each, one after the other", support::seconds(began));
    measured("the longest of them", format!("{longest:?}"));
    // All at once, each a window's worth and more.
    let began = Instant::now();
    let filling = tunnels.iter_mut().map(async |tunnel| {
        let piece = Bytes::from(vec![7; 100_000]);
        let sending = tunnel.sender.data(piece);
        let receiving = async {
            let mut left = 100_000usize;
            while left > 0 {
                let Said::Data(data) = tunnel.receiver.next().await.unwrap() else { panic!("no data") };
                left -= data.len();
            }
        };
        let (sent, ()) = tokio::join!(sending, receiving);
        sent.unwrap();
    });
    within(SOON * 6, "an echo of 100 kB over all", futures_util::future::join_all(filling)).await;
    let rate = rate(100_000 * tunnels.len() as u64, began.elapsed());
    measured(
        "100 kB there and back over all at once",
        format!("{} ({rate:.0} MB/s each way)", support::seconds(began)),
    );
    measured("resident memory after it, MB", format!("{:.1}", resident(&stage)));
    drop(tunnels);
    stage.at_rest().await;
    measured("resident memory at rest again, MB", format!("{:.1}", resident(&stage)));
    // The allocator gives pages back after a while, when its threads ask for others.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for at in 0..nodes.len() {
        let mut tunnel = stage.open(&format!("t-{at:03}"), "echo").await;
        say(&mut tunnel, "hello").await;
        data_until(&mut tunnel, "hello").await;
    }
    stage.at_rest().await;
    measured("resident memory after some more tunnels, MB", format!("{:.1}", resident(&stage)));
}

/// Command round trips of one node in one state of the gateway: from the enqueue to the durable end.
const ROUND_TRIPS: usize = 200;

/// The median and the 99th of a hundred, in milliseconds.
async fn round_trips(stage: &TunnelStage, database: &mut PgConnection, node: &str) -> (f64, f64) {
    let mut took = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let began = Instant::now();
        let id = enqueue(database, &NewCommand::new(node, b"x")).await.unwrap();
        stage.world.watch.all_settled(&[id], SOON).await;
        took.push(began.elapsed().as_secs_f64() * 1e3);
    }
    took.sort_by(f64::total_cmp);
    (took[ROUND_TRIPS / 2], took[ROUND_TRIPS * 99 / 100])
}

/// The shard that has the node's session.
async fn shard_of(stage: &TunnelStage, node: &str) -> u64 {
    let segment: String =
        node.bytes()
            .map(|byte| {
                if byte.is_ascii_alphanumeric() {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            })
            .collect();
    let row = stage.client.get(&format!("/v1/sessions/{segment}")).await.unwrap();
    row["shard"].as_u64().unwrap()
}

/// Opens so many tunnels that nobody reads, over all these nodes in turn.
async fn stalled(
    stage: &TunnelStage,
    clients: &[GatewayClient],
    names: &[String],
    count: usize,
) -> Vec<Tunnel> {
    let mut tunnels = Vec::new();
    for round in 0..count.div_ceil(names.len()) {
        let left = count - round * names.len();
        let wishes = names.iter().take(left).enumerate().map(|(at, name)| {
            let mut wish = stage.wish(name, "source");
            wish.parameters.insert("bytes".to_owned(), "1000000000".to_owned());
            (wish, &clients[(round + at) % clients.len()])
        });
        let wishes: Vec<_> = wishes.collect();
        let opening = wishes.iter().map(|(wish, client)| client.open_tunnel(wish));
        for tunnel in futures_util::future::join_all(opening).await {
            tunnels.push(tunnel.unwrap());
        }
    }
    // They are stalled when nothing moves any more.
    asked_until(SOON * 3, "the tunnels come to a stop", async || {
        let before = stage.number("tunnel_bytes_in_total").await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        (before == stage.number("tunnel_bytes_in_total").await).then_some(())
    })
    .await;
    tunnels
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: with --release, on a quiet machine"]
async fn sessions_beside_stalled_tunnels() {
    const NODES: usize = 50;
    let extra = "[shards]\ncount = 2\n[tunnels]\nmax = 1200\nmax_per_node = 32\n";
    let stage = TunnelStage::new("tunnel_stalled", extra).await;
    let mint = stage.authority.mint();
    let shape = |options: &mut NodeOptions| options.tunnels = Some(TunnelTaker::of(mint));
    let nodes: Vec<Node> = stage.world.nodes("t", NODES, "g1", shape).await;
    let names: Vec<String> = (0..NODES).map(|at| format!("t-{at:03}")).collect();
    let mut shards = Vec::new();
    for node in &nodes {
        shards.push(shard_of(&stage, node.name()).await);
    }
    let first = nodes[0].name();
    let beside = (1..NODES).find(|at| shards[*at] == shards[0]).expect("a node on the same shard");
    let apart = (1..NODES).find(|at| shards[*at] != shards[0]).expect("a node on the other shard");
    let clients: Vec<GatewayClient> =
        (0..8).map(|_| GatewayClient::new(&stage.url, stage.files.clone()).unwrap()).collect();
    let mut database = stage.world.connect().await;
    // The first one warms up.
    round_trips(&stage, &mut database, first).await;
    let mut table = format!(
        "{:<40}{:>20}{:>20}{:>20}\n",
        "command round trip, ms: p50 / p99", "the tunnels' node", "its shard's", "the other shard's"
    );
    let rows = [
        ("none", 0, 1),
        ("1 of the node", 1, 1),
        ("20 of the node", 20, 1),
        ("1,000, 20 of each node", 1000, NODES),
        ("none again", 0, 1),
    ];
    for (what, count, over) in rows {
        let open = stalled(&stage, &clients, &names[..over], count).await;
        let mut line = format!("{:<40}", format!("stalled tunnels: {what}"));
        for node in [first, nodes[beside].name(), nodes[apart].name()] {
            let (p50, p99) = round_trips(&stage, &mut database, node).await;
            line.push_str(&format!("{:>20}", format!("{p50:.2} / {p99:.2}")));
        }
        table.push_str(&line);
        table.push('\n');
        drop(open);
        stage.at_rest().await;
    }
    eprintln!("{table}");
}

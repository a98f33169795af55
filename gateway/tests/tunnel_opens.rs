//! Opens of tunnels that fail, or that are given up, in every way there is: nothing of them is left.
//!
//! A short form is told over HTTP/2 and over WebSocket; the long one is ten thousand opens, after which the memory of the
//! gateway's process is looked at too.
//!
//! `cargo test --release -p gateway --test tunnel_opens -- --ignored --nocapture`
//!
//! 1. Each way ends as it must, each time: an open that should fail and does not is a failure of the story.
//! 2. What is left is judged by the gateway's own numbers and by what the kernel says of its process, once the
//!    tickets that were used have expired.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gateway::client::GatewayClient;
use gateway_control::client::{Tunnel, TunnelOpen};
use gateway_testbed::gateway_process::GatewayProcess;
use gateway_testbed::node::{Node, Transport, TunnelTaker};
use gateway_testbed::tickets::TicketSpec;
use support::tunnels::{TunnelStage, data_until, over_both, say};
use support::{SOON, measured, within};

over_both! {
    opens_that_fail_or_are_given_up_leave_nothing_behind
}

/// How long a ticket is good: when the used ones have expired nothing of them is remembered.
const TICKET_SECONDS: f64 = 10.0;
/// What the process may keep in memory after the last thousands that it had not after the first.
const MOST_GROWTH_BYTES: u64 = 4 << 20;
/// Descriptors beside those of before: connections to services come and go by themselves.
const MOST_DESCRIPTORS: usize = 4;
/// What the process has of gauges once nothing is under way.
const GAUGES: [&str; 7] =
    ["tunnels", "tunnels_joined", "tunnel_streams", "connections", "sessions", "streams", "mail_waiting"];

/// The ways in which an open comes to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    NoTicket,
    TicketForAnotherNode,
    ReplayedTicket,
    UnknownNode,
    NodeWithoutTunnels,
    NodeRefuses,
    NodeIsSilent,
    GivenUpBeforeTheNode,
    GivenUpAsTheNodeJoins,
    HungUpAfterTheNode,
}

const WAYS: [Way; 10] = [
    Way::NoTicket,
    Way::TicketForAnotherNode,
    Way::ReplayedTicket,
    Way::UnknownNode,
    Way::NodeWithoutTunnels,
    Way::NodeRefuses,
    Way::NodeIsSilent,
    Way::GivenUpBeforeTheNode,
    Way::GivenUpAsTheNodeJoins,
    Way::HungUpAfterTheNode,
];

struct Opens {
    stage: TunnelStage,
    clients: Vec<GatewayClient>,
    /// A ticket that has opened a tunnel.
    used: TunnelOpen,
    _nodes: Vec<Node>,
}

impl Opens {
    async fn new(story: &str, transport: Transport) -> Self {
        let extra = "[tunnels]\nopen_timeout = \"200ms\"\nmax_per_node = 64\n";
        let stage = TunnelStage::over(transport, story, extra).await;
        let takers = [
            ("refusing", Some(TunnelTaker::refusing("no"))),
            ("silent", Some(TunnelTaker::ignoring())),
            ("without", None),
        ];
        let mut nodes = vec![stage.node("n1").await];
        for (name, taker) in takers {
            nodes.push(stage.node_as(name, |options| options.tunnels = taker).await);
        }
        let clients = (0..4).map(|_| GatewayClient::new(&stage.url, stage.files.clone()).unwrap()).collect();
        let used = stage.wish("n1", "echo");
        let mut opens = Self { stage, clients, used, _nodes: nodes };
        opens.renew_used().await;
        opens
    }

    fn wish(&self, name: &str) -> TunnelOpen {
        let wish = self.stage.wish(name, "echo");
        let spec = TicketSpec { expires_in: TICKET_SECONDS, ..TicketSpec::new(&wish.node_id) };
        TunnelOpen { ticket: self.stage.authority.mint().mint_as(&spec), ..wish }
    }

    async fn opened(&self, client: &GatewayClient, wish: &TunnelOpen) -> Tunnel {
        within(SOON, "a tunnel", client.open_tunnel(wish)).await.expect("a tunnel")
    }

    /// Uses a ticket, which is then a used one while it is good.
    async fn renew_used(&mut self) {
        self.used = self.wish("n1");
        drop(self.opened(&self.stage.client, &self.used).await);
    }

    /// One open, in one way; `turn` varies when a caller hangs up.
    async fn come_to_nothing(&self, way: Way, turn: usize) {
        let client = &self.clients[turn % self.clients.len()];
        let refused = async |wish: TunnelOpen| {
            let answer = within(SOON, "a refusal", client.open_tunnel(&wish)).await;
            assert!(answer.is_err(), "{way:?} has opened a tunnel");
        };
        let given_up = async |name: &str, after: u64| {
            let wish = self.wish(name);
            let opening = client.open_tunnel(&wish);
            drop(tokio::time::timeout(Duration::from_millis(after), opening).await);
        };
        match way {
            Way::NoTicket => refused(TunnelOpen { ticket: "x".to_owned(), ..self.wish("n1") }).await,
            Way::TicketForAnotherNode => {
                refused(TunnelOpen { ticket: self.wish("silent").ticket, ..self.wish("n1") }).await;
            }
            Way::ReplayedTicket => refused(self.used.clone()).await,
            Way::UnknownNode => refused(self.wish("nobody")).await,
            Way::NodeWithoutTunnels => refused(self.wish("without")).await,
            Way::NodeRefuses => refused(self.wish("refusing")).await,
            Way::NodeIsSilent => refused(self.wish("silent")).await,
            Way::GivenUpBeforeTheNode => given_up("silent", 20 + 10 * (turn as u64 % 10)).await,
            Way::GivenUpAsTheNodeJoins => given_up("n1", turn as u64 % 12).await,
            Way::HungUpAfterTheNode => {
                let mut tunnel = self.opened(client, &self.wish("n1")).await;
                if turn.is_multiple_of(2) {
                    say(&mut tunnel, "hello").await;
                }
            }
        }
    }

    /// So many opens at least, a few of each way at once; gives how many of each way there were.
    async fn many(&mut self, count: usize) -> BTreeMap<Way, usize> {
        let (mut done, mut by_way) = (0, BTreeMap::new());
        while done < count {
            self.renew_used().await;
            let ways = || WAYS.iter().cycle().take(4 * WAYS.len()).enumerate();
            let opens = ways().map(|(at, way)| self.come_to_nothing(*way, done + at));
            futures_util::future::join_all(opens).await;
            ways().for_each(|(_, way)| *by_way.entry(*way).or_default() += 1);
            done += 4 * WAYS.len();
        }
        by_way
    }

    /// Waits until nothing is under way; then only the ticket of a last open is remembered.
    async fn at_rest(&self) {
        self.stage.at_rest().await;
        // Nothing tells that a ticket has expired; those that have are forgotten when the next is used.
        tokio::time::sleep(Duration::from_secs_f64(TICKET_SECONDS + 1.0)).await;
        drop(self.opened(&self.stage.client, &self.wish("n1")).await);
        self.stage.at_rest().await;
        assert_eq!(self.stage.number("tunnel_tickets_remembered").await, 1.0, "used tickets");
    }

    async fn gauges(&self) -> BTreeMap<&'static str, f64> {
        let mut gauges = BTreeMap::new();
        for name in GAUGES {
            gauges.insert(name, self.stage.number(name).await);
        }
        gauges
    }
}

fn descriptors(gateway: &GatewayProcess) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", gateway.pid())).unwrap().count()
}

async fn opens_that_fail_or_are_given_up_leave_nothing_behind(transport: Transport) {
    let mut opens = Opens::new("opens_short", transport).await;
    opens.many(120).await;
    opens.stage.at_rest().await;
    // And it still works.
    let mut tunnel = opens.opened(&opens.stage.client, &opens.wish("n1")).await;
    say(&mut tunnel, "hello").await;
    data_until(&mut tunnel, "hello").await;
    drop(tunnel);
    opens.stage.at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: GATEWAY_TUNNEL_OPENS, 10000 by default"]
async fn ten_thousand_opens_that_come_to_nothing_leave_nothing_behind() {
    let count = std::env::var("GATEWAY_TUNNEL_OPENS").ok().and_then(|count| count.parse().ok());
    let count: usize = count.unwrap_or(10_000);
    let mut opens = Opens::new("opens_long", support::transport()).await;
    let looked = async |opens: &Opens| {
        opens.at_rest().await;
        let gateway = &opens.stage.gateway;
        (opens.gauges().await, descriptors(gateway), gateway.usage().unwrap().rss_bytes)
    };
    // The first ones bring memory that stays: connections, tables at their size.
    opens.many(count / 5).await;
    let before = looked(&opens).await;
    let began = Instant::now();
    let by_way = opens.many(count).await;
    let took = began.elapsed();
    let after = looked(&opens).await;
    measured("opens that came to nothing, by way", format!("{by_way:?}"));
    measured("they took", format!("{:.1} s", took.as_secs_f64()));
    measured("gauges before", format!("{:?}", before.0));
    measured("gauges after", format!("{:?}", after.0));
    measured("descriptors before and after", format!("{}, {}", before.1, after.1));
    measured("resident memory before and after, kB", format!("{}, {}", before.2 / 1000, after.2 / 1000));
    let metrics = opens.stage.client.metrics().await.unwrap();
    for line in metrics.lines().filter(|line| {
        ["gateway_tunnel_opens_failed_total", "gateway_tunnel_ends_total", "gateway_tunnel_joins_total"]
            .iter()
            .any(|name| line.starts_with(name))
            && !line.ends_with(" 0.0")
    }) {
        measured("counter", line);
    }
    for name in ["tunnels", "tunnels_joined", "tunnel_streams"] {
        assert_eq!(after.0[name], 0.0, "{name}");
    }
    assert_eq!(after.0, before.0, "gauges");
    assert!(after.1 <= before.1 + MOST_DESCRIPTORS, "descriptors: {} and {}", before.1, after.1);
    let grown = after.2.saturating_sub(before.2);
    assert!(grown <= MOST_GROWTH_BYTES, "the gateway has {grown} bytes more");
}

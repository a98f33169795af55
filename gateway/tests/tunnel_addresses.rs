//! Where a node dials for its side of a tunnel, behind a balancer that sends each new connection to another gateway.
//!
//! 1. The balancer is a plain relay of bytes that takes the gateways in turn, so that each story knows what it does.

#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;

use gateway_proto::v1::gateway_frame;
use gateway_testbed::gateway_process::GatewayOptions;
use gateway_testbed::node::{Node, NodeEvents, Target, Transport, TunnelTaker};
use support::tunnels::{
    authority, client_files, client_of, data_until, node_end, over_both, raw_hello, say, tunnel_options,
};
use support::{SOON, World, within};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const NOT_FOUND: u32 = 5;

over_both! {
    a_node_behind_a_balancer_dials_the_direct_address
    without_a_direct_address_a_stream_may_come_to_a_gateway_that_knows_nothing_of_it
}

/// A balancer in front of these: the first connection goes to the first, the next to the next, and so on.
async fn in_turn(behind: Vec<SocketAddr>) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        for to in behind.iter().cycle() {
            let Ok((mut from, _)) = listener.accept().await else { return };
            let Ok(mut to) = TcpStream::connect(to).await else { return };
            connections.spawn(async move {
                let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
            });
        }
    });
    (address, tasks)
}

struct Pair {
    world: World,
    authority: gateway_testbed::authority::Authority,
    first: GatewayOptions,
    _gateways: [gateway_testbed::gateway_process::GatewayProcess; 2],
    node: Node,
    events: NodeEvents,
    _balancer: JoinSet<()>,
}

/// Two gateways behind a balancer, and a node whose session the first one has.
async fn pair(story: &str, transport: Transport, is_direct: bool) -> Pair {
    let world = World::new(story).await;
    let authority = authority(&world).await;
    let extra = "[tunnels]\nopen_timeout = \"3s\"\n";
    let mut options = ["g1", "g2"].map(|id| tunnel_options(&world, &authority, id, extra));
    if !is_direct {
        for options in &mut options {
            let line = format!("direct_address = \"{}\"\n", options.listen);
            assert!(options.extra.contains(&line));
            options.extra = options.extra.replace(&line, "");
        }
    }
    let first = options[0].clone();
    let [one, other] = options;
    let gateways = [world.start(one).await, world.start(other).await];
    let (address, balancer) = in_turn(gateways.iter().map(|gateway| gateway.address()).collect()).await;
    let identity = world.register("n1").await;
    let mut options = world.node_options("n1", &identity, "g1");
    options.target = Target { address, transport, ..options.target };
    options.tunnels = Some(TunnelTaker::of(authority.mint()));
    let (observer, mut events) = NodeEvents::channel();
    options.observer = observer;
    let node = Node::start(options);
    events.connected(node.name(), SOON).await.unwrap();
    Pair { world, authority, first, _gateways: gateways, node, events, _balancer: balancer }
}

impl Pair {
    fn wish(&self) -> gateway_control::client::TunnelOpen {
        gateway_control::client::TunnelOpen {
            node_id: self.node.name().to_owned(),
            ticket: self.authority.mint().mint(self.node.name()),
            kind: "echo".to_owned(),
            parameters: [].into(),
        }
    }
}

async fn a_node_behind_a_balancer_dials_the_direct_address(transport: Transport) {
    let pair = pair("tunnel_direct", transport, true).await;
    let client = client_of(&pair.world, "g1", &client_files(&pair.first)).await;
    for _ in 0..3 {
        let mut tunnel = within(SOON, "a tunnel", client.open_tunnel(&pair.wish())).await.unwrap();
        say(&mut tunnel, "hello").await;
        data_until(&mut tunnel, "hello").await;
    }
    // A node may know it before there is a tunnel: Welcome has it, for who takes tunnels.
    for (features, expected) in
        [(vec!["tunnels".to_owned()], vec![pair.first.listen.clone()]), (vec![], vec![])]
    {
        let identity = pair.world.register(&format!("raw-{}", features.len())).await;
        let target = pair.world.target("g1", &identity).over(transport);
        let mut call = raw_hello(&target, features).await;
        match call.frame(SOON).await.unwrap().unwrap().frame {
            Some(gateway_frame::Frame::Welcome(welcome)) => assert_eq!(welcome.tunnel_addresses, expected),
            other => panic!("{other:?}"),
        }
    }
}

async fn without_a_direct_address_a_stream_may_come_to_a_gateway_that_knows_nothing_of_it(
    transport: Transport,
) {
    let mut pair = pair("tunnel_indirect", transport, false).await;
    let client = client_of(&pair.world, "g1", &client_files(&pair.first)).await;
    let wish = pair.wish();
    let opening = tokio::spawn(async move { client.open_tunnel(&wish).await.map(drop) });
    let (end, _) = node_end(&mut pair.events).await;
    assert_eq!(end.status(), Some(NOT_FOUND), "the other gateway ends it, and says no more: {end:?}");
    let refused = within(SOON, "the open ends", opening).await.unwrap();
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("did not open its side of the tunnel in time"), "{refused}");
    // The next connection comes to the first gateway again.
    let client = client_of(&pair.world, "g1", &client_files(&pair.first)).await;
    let mut tunnel = within(SOON, "a tunnel", client.open_tunnel(&pair.wish())).await.unwrap();
    say(&mut tunnel, "hello").await;
    data_until(&mut tunnel, "hello").await;
}

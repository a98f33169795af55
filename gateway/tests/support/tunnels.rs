//! A world with tunnels: an authority that mints tickets and is asked about callers, a gateway with a control
//! API, nodes that take tunnels, and a caller.
//!
//! 1. `at_rest` is what a story ends with: nothing of any tunnel is left, by the gateway's own numbers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gateway::client::{CallError, GatewayClient, InternalFiles};
use gateway_control::client::{Said, Tunnel, TunnelOpen};
use gateway_proto::v1::{self, gateway_frame, node_frame};
use gateway_testbed::authority::Authority;
use gateway_testbed::gateway_process::{GatewayOptions, GatewayProcess};
use gateway_testbed::node::{End, Node, NodeEvent, NodeEvents, NodeOptions, Target, Transport, TunnelTaker};
use gateway_testbed::raw::RawCall;

use super::health::control_url;
use super::{SOON, World, asked_until, transport, within};

/// Over WebSocket the end of a tunnel waits so long for a node that reads nothing; over HTTP/2 it needs no room.
pub const SHORT_FAREWELL: &str = "[sessions]\nsend_timeout = \"1s\"\n";

/// Tells each story twice, with nodes that speak HTTP/2 and with nodes that speak WebSocket.
#[allow(unused_macros)]
macro_rules! over_both {
    ($($story:ident)*) => {
        mod over_http2 {
            $(#[tokio::test]
            async fn $story() {
                super::$story(gateway_testbed::node::Transport::Http2).await;
            })*
        }
        mod over_websocket {
            $(#[tokio::test]
            async fn $story() {
                super::$story(gateway_testbed::node::Transport::WebSocket).await;
            })*
        }
    };
}
#[allow(unused_imports)]
pub(crate) use over_both;

/// A session that stands, of a node that takes tunnels by hand.
pub async fn raw_session(target: &Target) -> RawCall {
    let mut session = raw_hello(target, vec!["tunnels".to_owned()]).await;
    assert!(session.frame(SOON).await.unwrap().is_ok(), "it is welcomed");
    session
}

/// One that has said Hello, with these features.
pub async fn raw_hello(target: &Target, features: Vec<String>) -> RawCall {
    let mut session = RawCall::session(target).await.unwrap();
    session.send(node_frame::Frame::Hello(v1::Hello {
        protocol: 1,
        features,
        boot_id: "boot".to_owned(),
        lanes: vec![v1::Lane { name: "default".to_owned(), capacity: 1 }],
        ..v1::Hello::default()
    }));
    session
}

/// What the node is told of the next tunnel, as its stream has to show it.
pub async fn offered(session: &mut RawCall) -> v1::TunnelHello {
    loop {
        if let Some(gateway_frame::Frame::OpenTunnel(offer)) =
            session.frame(SOON).await.expect("an offer").unwrap().frame
        {
            return v1::TunnelHello { tunnel_id: offer.tunnel_id, ticket: offer.ticket };
        }
    }
}

pub struct TunnelStage {
    pub world: World,
    pub authority: Authority,
    pub gateway: GatewayProcess,
    pub client: Arc<GatewayClient>,
    pub files: InternalFiles,
    pub url: String,
    /// What its nodes speak.
    transport: Transport,
}

impl TunnelStage {
    /// With further TOML; `[tunnels]` may be among it.
    pub async fn new(story: &str, extra: &str) -> Self {
        Self::over(transport(), story, extra).await
    }

    /// The same with nodes that speak `transport`.
    pub async fn over(transport: Transport, story: &str, extra: &str) -> Self {
        let world = World::new(story).await;
        let authority = authority(&world).await;
        let options = tunnel_options(&world, &authority, "g1", extra);
        let files = client_files(&options);
        let gateway = world.start(options).await;
        let client = client_of(&world, "g1", &files).await;
        let url = control_url(&mut world.connect().await, "g1").await;
        Self { world, authority, gateway, client, files, url, transport }
    }

    /// A node that takes tunnels, and checks their tickets.
    pub async fn node(&self, name: &str) -> Node {
        self.node_as(name, |_| {}).await
    }

    pub async fn node_as(&self, name: &str, shape: impl FnOnce(&mut NodeOptions)) -> Node {
        let taker = TunnelTaker::of(self.authority.mint());
        self.world
            .node(name, "g1", |options| {
                options.tunnels = Some(taker);
                options.target.transport = self.transport;
                shape(options);
            })
            .await
    }

    /// The same, with what it sees.
    pub async fn watched_node(&self, name: &str) -> (Node, NodeEvents) {
        let (observer, mut events) = NodeEvents::channel();
        let identity = self.world.register(name).await;
        let mut options = self.world.node_options(name, &identity, "g1");
        options.tunnels = Some(TunnelTaker::of(self.authority.mint()));
        options.target.transport = self.transport;
        options.observer = observer;
        let node = Node::start(options);
        events.connected(node.name(), SOON).await.expect("a Welcome");
        (node, events)
    }

    /// What a caller asks for, with a good ticket.
    pub fn wish(&self, name: &str, kind: &str) -> TunnelOpen {
        let node = self.world.id(name);
        TunnelOpen {
            ticket: self.authority.mint().mint(&node),
            node_id: node,
            kind: kind.to_owned(),
            parameters: [].into(),
        }
    }

    pub async fn open(&self, name: &str, kind: &str) -> Tunnel {
        self.opened(&self.wish(name, kind)).await
    }

    pub async fn opened(&self, wish: &TunnelOpen) -> Tunnel {
        within(SOON, "a tunnel", self.client.open_tunnel(wish)).await.expect("a tunnel")
    }

    /// The word of the refusal, and its sentence.
    pub async fn refused(&self, wish: &TunnelOpen) -> (String, String) {
        match within(SOON, "a refusal", self.client.open_tunnel(wish)).await {
            Err(CallError::Refused { code, sentence, .. }) => (code, sentence),
            other => panic!("{other:?} in the place of a refusal"),
        }
    }

    /// A number of the gateway, summed over its labels.
    pub async fn number(&self, name: &str) -> f64 {
        let metrics = self.client.metrics().await.expect("metrics");
        let name = format!("gateway_{name}");
        let of = |line: &str| {
            let rest = line.strip_prefix(&name)?;
            let value = match rest.as_bytes().first()? {
                b' ' => rest,
                b'{' => rest.split_once('}')?.1,
                _ => return None,
            };
            value.trim().parse::<f64>().ok()
        };
        let found: Vec<f64> = metrics.lines().filter_map(of).collect();
        assert!(!found.is_empty(), "no {name} in {metrics}");
        found.into_iter().sum()
    }

    /// Waits until nothing of any tunnel is left.
    pub async fn at_rest(&self) {
        for name in ["tunnels", "tunnels_joined", "tunnels_leaving", "tunnel_streams"] {
            asked_until(SOON, name, async || (self.number(name).await == 0.0).then_some(())).await;
        }
    }

    pub async fn close(&self, field: &str, value: &str) -> u64 {
        let body = serde_json::json!({ field: value, "reason": "of the story" });
        let answer = self.client.post("/v1/tunnels/close", &body).await.expect("an answer");
        answer["closed"].as_u64().expect("a count")
    }
}

pub async fn authority(world: &World) -> Authority {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    Authority::start(&world.pki, any, &world.url, Duration::from_secs(3600)).await.expect("an authority")
}

/// A gateway that offers tunnels.
pub fn tunnel_options(world: &World, authority: &Authority, id: &str, extra: &str) -> GatewayOptions {
    let mut options = world.options_with_api(id, "");
    options.upstream_url = Some(authority.url());
    let tunnels = format!(
        "jwks_url = \"{}\"\niam_url = \"{}\"\ndirect_address = \"{}\"\n",
        authority.jwks_url(),
        authority.url(),
        options.listen
    );
    options.extra = match extra.split_once("[tunnels]\n") {
        Some((before, after)) => format!("{before}[tunnels]\n{tunnels}{after}"),
        None => format!("{extra}\n[tunnels]\n{tunnels}"),
    };
    options
}

pub fn client_files(options: &GatewayOptions) -> InternalFiles {
    let api = options.api.as_ref().expect("it has a control API");
    InternalFiles {
        ca: api.ca.clone(),
        certificate: api.client_certificate.clone(),
        key: api.client_key.clone(),
    }
}

pub async fn client_of(world: &World, gateway: &str, files: &InternalFiles) -> Arc<GatewayClient> {
    let url = control_url(&mut world.connect().await, gateway).await;
    Arc::new(GatewayClient::new(&url, files.clone()).expect("a URL"))
}

/// Takes what comes until the tunnel is closed: the data, the exit status, the code and why.
pub async fn rest_of(tunnel: &mut Tunnel) -> (Vec<u8>, Option<i32>, u32, String) {
    let (mut data, mut exit) = (Vec::new(), None);
    loop {
        match within(SOON, "the rest of a tunnel", tunnel.receiver.next()).await.expect("it is not cut") {
            Said::Data(more) => data.extend_from_slice(&more),
            Said::HalfClose => {}
            Said::Exit { code, .. } => exit = Some(code),
            Said::Closed { code, message } => return (data, exit, code, message),
        }
    }
}

/// How the next tunnel to end has ended for its node, and how many bytes of data had come.
pub async fn node_end(events: &mut NodeEvents) -> (End, u64) {
    let ended = events.wait_for(SOON, |seen| match &seen.event {
        NodeEvent::TunnelEnded { end, received, .. } => Some((end.clone(), *received)),
        _ => None,
    });
    ended.await.expect("the tunnel ends for its node")
}

/// Takes data until it holds `text`.
pub async fn data_until(tunnel: &mut Tunnel, text: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(text) {
        match within(SOON, text, tunnel.receiver.next()).await.expect("it is not cut") {
            Said::Data(data) => seen.push_str(&String::from_utf8_lossy(&data)),
            other => panic!("{other:?} before {text:?}; seen {seen:?}"),
        }
    }
    seen
}

pub async fn say(tunnel: &mut Tunnel, text: &str) {
    let saying = tunnel.sender.data(Bytes::copy_from_slice(text.as_bytes()));
    within(SOON, "the tunnel takes data", saying).await.expect("it is not cut");
}

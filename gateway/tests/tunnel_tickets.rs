//! Tickets in the wrong hands, over real sockets: stolen by another node, shown by its own node twice, or by its caller, or
//! shown again to a gateway that has started anew.
//!
//! 1. Whoever is refused, the tunnel that the ticket has opened goes on.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use bytes::Bytes;
use gateway_control::client::{Tunnel, TunnelOpen};
use gateway_proto::framing::encode;
use gateway_proto::path;
use gateway_proto::v1::{self, tunnel_frame};
use gateway_testbed::node::{Arrival, Target, Transport};
use gateway_testbed::pki::Identity;
use gateway_testbed::raw::RawCall;
use gateway_testbed::tickets::TicketSpec;
use http::HeaderMap;
use prost::Message;
use support::tunnels::{TunnelStage, client_of, data_until, offered, raw_session, say};
use support::{SOON, within};

const NOT_FOUND: u32 = 5;

/// A node that is told of tunnels, and takes none by itself.
struct Lookout {
    target: Target,
    session: RawCall,
}

impl Lookout {
    async fn new(stage: &TunnelStage, identity: &Identity, transport: Transport) -> Self {
        let target = stage.world.target("g1", identity).over(transport);
        let session = raw_session(&target).await;
        Self { target, session }
    }

    /// A `Tunnel` stream of this node that shows id and ticket, whosever they are.
    async fn show(&self, shown: &v1::TunnelHello) -> RawCall {
        let mut stream = RawCall::open(&self.target, path::TUNNEL, HeaderMap::new()).await.unwrap();
        stream.send_bytes(frame(tunnel_frame::Frame::Hello(shown.clone())));
        stream
    }

    async fn is_refused(&self, shown: &v1::TunnelHello) {
        let end = self.show(shown).await.end(SOON).await.expect("it is refused");
        assert_eq!(end.status(), Some(NOT_FOUND), "{end:?}");
    }
}

fn frame(frame: tunnel_frame::Frame) -> Bytes {
    encode(&v1::TunnelFrame { frame: Some(frame) })
}

/// The caller hears from its node, and the node from its caller.
async fn both_are_heard(tunnel: &mut Tunnel, stream: &mut RawCall, word: &str) {
    say(tunnel, word).await;
    let heard = loop {
        let arrival = stream.next(SOON).await.expect("what the caller says");
        let Arrival::Message(message) = arrival else { panic!("{arrival:?}") };
        if let Some(tunnel_frame::Frame::Data(data)) = v1::TunnelFrame::decode(message).unwrap().frame {
            break data.data;
        }
    };
    assert_eq!(heard, word);
    stream.send_bytes(frame(tunnel_frame::Frame::Data(v1::TunnelData { data: heard })));
    tokio::select! {
        _ = data_until(tunnel, word) => {}
        arrival = stream.next(SOON) => panic!("{arrival:?}"),
    }
}

#[tokio::test]
async fn a_stolen_or_repeated_ticket_joins_nothing_and_the_true_nodes_tunnel_goes_on() {
    for transport in [Transport::Http2, Transport::WebSocket] {
        stolen_or_repeated(transport).await;
    }
}

async fn stolen_or_repeated(transport: Transport) {
    let extra = "[tunnels]\nopen_timeout = \"60s\"\n";
    let stage = TunnelStage::over(transport, "tickets_stolen", extra).await;
    let (own, other) = (stage.world.register("n1").await, stage.world.register("thief").await);
    let mut node = Lookout::new(&stage, &own, transport).await;
    let thief = Lookout::new(&stage, &other, transport).await;
    let wish = stage.wish("n1", "any");
    let (client, wished) = (Arc::clone(&stage.client), wish.clone());
    let opening = tokio::spawn(async move { client.open_tunnel(&wished).await });
    let offer = offered(&mut node.session).await;
    assert_eq!(offer.ticket, wish.ticket);

    // Before its own node has come, and after.
    thief.is_refused(&offer).await;
    node.is_refused(&v1::TunnelHello { ticket: stage.wish("n1", "any").ticket, ..offer.clone() }).await;
    let mut stream = node.show(&offer).await;
    let mut tunnel = tokio::select! {
        opened = opening => opened.unwrap().expect("the true node's stream is taken"),
        arrival = stream.next(SOON) => panic!("{arrival:?}"),
    };
    both_are_heard(&mut tunnel, &mut stream, "one").await;
    thief.is_refused(&offer).await;
    node.is_refused(&offer).await;
    both_are_heard(&mut tunnel, &mut stream, "two").await;

    // Whoever has the ticket can't open another tunnel with it, to its node or to the thief.
    for to in ["n1", "thief"] {
        let again = TunnelOpen { node_id: stage.world.id(to), ..wish.clone() };
        let (code, sentence) = stage.refused(&again).await;
        let expected = if to == "n1" { "UNAUTHENTICATED" } else { "PERMISSION_DENIED" };
        assert_eq!(code, expected, "{sentence}");
    }
    both_are_heard(&mut tunnel, &mut stream, "three").await;
    assert_eq!(stage.number("tunnels_joined").await, 1.0);
    drop((tunnel, stream));
    within(SOON, "nothing is left", stage.at_rest()).await;
    // Nor when the tunnel is over.
    node.is_refused(&offer).await;
    assert_eq!(stage.refused(&wish).await.0, "UNAUTHENTICATED");
}

#[tokio::test]
async fn a_gateway_that_starts_anew_takes_no_ticket_from_before() {
    let mut stage = TunnelStage::new("tickets_restart", "").await;
    let node = stage.node("n1").await;
    let used = stage.wish("n1", "echo");
    drop(stage.opened(&used).await);
    let unused = stage.wish("n1", "echo");
    // Of an issuer whose clock is ahead: it is taken when its date has come, and not before.
    let spec = TicketSpec { issued_in: 3.0, ..TicketSpec::new(node.name()) };
    let ahead = TunnelOpen { ticket: stage.authority.mint().mint_as(&spec), ..used.clone() };
    drop(stage.opened(&ahead).await);

    let epoch = stage.world.watch.epoch_of(node.name());
    let options = stage.gateway.kill().unwrap();
    stage.gateway = stage.world.start(options).await;
    stage.client = client_of(&stage.world, "g1", &stage.files).await;
    stage.world.watch.connected_after(node.name(), epoch).await;
    for wish in [&used, &unused, &ahead] {
        let (code, sentence) = stage.refused(wish).await;
        assert_eq!(code, "UNAUTHENTICATED", "{sentence}");
        assert!(sentence.contains("older than this gateway's process"), "{sentence}");
        assert!(sentence.contains("get a new one"), "{sentence}");
    }
    let mut tunnel = stage.open("n1", "echo").await;
    say(&mut tunnel, "there").await;
    data_until(&mut tunnel, "there").await;
    drop(tunnel);
    stage.at_rest().await;
}

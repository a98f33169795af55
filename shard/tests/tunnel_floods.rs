//! How many tunnels callers open is not their node's doing: what it was asked for is no flood, on whichever
//! connection of the node it comes; what nobody asked for is, and is told as one.
//!
//! The story stands in for the tunnels' room: it offers, and admits.
#![allow(clippy::unwrap_used)]

mod support;

use std::future::poll_fn;

use bytes::Bytes;
use gateway_core::ids::SessionKey;
use gateway_core::limits::{Limits, TunnelLimits};
use gateway_core::relay::Hidden;
use gateway_core::seam::ToShard;
use gateway_core::tunnel::{FromTunnels, OpenTunnel, TUNNELS_FEATURE, ToTunnels, TunnelClose, TunnelId};
use gateway_proto::framing::encode;
use gateway_proto::path;
use gateway_proto::v1::gateway_frame::Frame;
use gateway_proto::v1::{self, node_frame, tunnel_frame};
use support::client::{Call, Client, hello};
use support::{Gateway, soon, story};

/// More than a burst of requests and what some seconds allow beside.
const TUNNELS: u16 = 1_000;

#[test]
fn a_node_that_opens_the_tunnels_that_it_was_offered_floods_nothing() {
    story(async {
        let mut gateway = offering();
        let mut node = gateway.node("n-1").await;
        let (mut session, key) = taking(&mut gateway, &mut node).await;
        for number in 0..TUNNELS {
            offer(&gateway, key, number);
            assert!(matches!(session.next().await, Some(Frame::OpenTunnel(_))), "tunnel {number}");
            // Its caller has gone, say: the room never hears of it.
            node.call(path::TUNNEL).await.send.send_reset(h2::Reason::CANCEL);
        }
        session.heartbeat(1);
        assert!(matches!(session.next().await, Some(Frame::HeartbeatAck(_))));
        assert_eq!(gateway.counters[0].floods.get(), 0);
    });
}

#[test]
fn nor_does_one_whose_streams_come_over_a_connection_of_their_own() {
    story(async {
        let mut gateway = offering();
        let mut node = gateway.node("n-1").await;
        let mut streams = gateway.node("n-1").await;
        let (mut session, key) = taking(&mut gateway, &mut node).await;
        for number in 0..TUNNELS {
            offer(&gateway, key, number);
            assert!(matches!(session.next().await, Some(Frame::OpenTunnel(_))), "tunnel {number}");
            let mut call = streams.call(path::TUNNEL).await;
            let tunnel_id = Bytes::copy_from_slice(&id(number).0);
            let said = tunnel_frame::Frame::Hello(v1::TunnelHello { tunnel_id, ticket: "t".to_owned() });
            call.raw(encode(&v1::TunnelFrame { frame: Some(said) }));
            let stream = joining(&gateway).await;
            tell(&gateway, FromTunnels::Admit { stream });
            tell(&gateway, FromTunnels::Close { stream, close: TunnelClose::Finished });
            assert_eq!(call.end().await.status, 0, "tunnel {number}");
        }
        assert_eq!(gateway.counters[0].floods.get(), 0);
    });
}

#[test]
fn a_node_that_opens_what_nobody_asked_for_is_cut_for_its_flood() {
    story(async {
        let mut gateway = offering();
        let mut node = gateway.node("n-1").await;
        let (mut session, key) = taking(&mut gateway, &mut node).await;
        let flood = async {
            while !node.over.is_finished() {
                if !node.is_answered().await {
                    break;
                }
            }
        };
        soon(flood).await;
        assert!(session.try_end().await.is_err(), "it is cut");
        assert_eq!(gateway.writer.closed_because().await, (key, "flood"));
        assert_eq!(gateway.counters[0].floods.get(), 1);
        assert_eq!(gateway.counters[0].closes.get("flood"), 1);
    });
}

fn offering() -> Gateway {
    let tunnels = TunnelLimits { most: 64, ..TunnelLimits::default() };
    Gateway::start(Limits { tunnels: tunnels.into(), ..Limits::default() })
}

/// A session that takes tunnels.
async fn taking(gateway: &mut Gateway, node: &mut Client) -> (Call, SessionKey) {
    let mut session = node.call(path::SESSION).await;
    let features = vec![TUNNELS_FEATURE.to_owned()];
    session.frame(node_frame::Frame::Hello(v1::Hello { features, ..hello() }));
    assert!(matches!(session.next().await, Some(Frame::Welcome(_))));
    (session, gateway.writer.hello().await.key)
}

fn id(number: u16) -> TunnelId {
    let mut id = [7; 16];
    id[..2].copy_from_slice(&number.to_be_bytes());
    TunnelId(id)
}

fn offer(gateway: &Gateway, session: SessionKey, number: u16) {
    let open = Box::new(OpenTunnel {
        id: id(number),
        ticket: Hidden("t".to_owned()),
        kind: "echo".to_owned(),
        parameters: Vec::new(),
        direct_address: String::new(),
    });
    tell(gateway, FromTunnels::Offer { session, open });
}

fn tell(gateway: &Gateway, word: FromTunnels) {
    gateway.posts[0].post(ToShard::Tunnel(word)).unwrap();
    gateway.posts[0].ring();
}

/// The next stream that says which tunnel it is for.
async fn joining(gateway: &Gateway) -> gateway_core::tunnel::TunnelKey {
    loop {
        let said = soon(poll_fn(|context| gateway.tunnels.poll_take(context))).await.unwrap();
        gateway.tunnels.release_bytes(gateway_core::mail::Weigh::weight_bytes(&said));
        gateway.tunnels.announce_space();
        if let ToTunnels::Hello { stream, .. } = said {
            return stream;
        }
    }
}

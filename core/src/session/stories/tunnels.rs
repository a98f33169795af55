//! Stories of a session and tunnels: who is offered one, and whose refusals count.
//!
//! What becomes of a tunnel is the registry's; here stands what its node's session does about it.

use std::sync::Arc;

use super::*;
use crate::limits::TunnelLimits;
use crate::relay::Hidden;
use crate::tunnel::{MAX_OFFERS_REMEMBERED, OpenTunnel, TUNNELS_FEATURE, TunnelId, TunnelRefused};

fn offering() -> Limits {
    let direct_address = Some("g1:7443".to_owned());
    let tunnels = Arc::new(TunnelLimits { most: 10, direct_address, ..TunnelLimits::default() });
    Limits { tunnels, ..Limits::default() }
}

fn open(number: u8) -> OpenTunnel {
    OpenTunnel {
        id: TunnelId([number; 16]),
        ticket: Hidden("ticket".to_owned()),
        kind: "shell".to_owned(),
        parameters: Vec::new(),
        direct_address: String::new(),
    }
}

fn refusal(number: u8) -> NodeFrame {
    NodeFrame::TunnelRefused(TunnelRefused { id: TunnelId([number; 16]), reason: "é".repeat(1000) })
}

fn session_of(features: &[&str], limits: Limits) -> Session {
    let mut session = opened_with(limits);
    let mut hello = hello(&["default"]);
    hello.features = features.iter().map(|feature| (*feature).to_owned()).collect();
    session.handle_frame(NodeFrame::Hello(Box::new(hello)), 100, at(0));
    assert!(matches!(session.poll_to_writer(), Some(ToWriter::Hello(_))));
    session.handle_news(granted(), at(0));
    session
}

#[test]
fn only_a_node_that_named_the_feature_is_offered_a_tunnel() {
    let mut takes = session_of(&["x", TUNNELS_FEATURE], offering());
    let Some(GatewayFrame::Welcome(welcome)) = takes.poll_frame() else { panic!("no Welcome") };
    assert_eq!(welcome.features, [TUNNELS_FEATURE]);
    assert_eq!(welcome.tunnel_address.as_deref(), Some("g1:7443"));
    assert!(takes.handle_offer(open(1), at(1)));
    assert_eq!(takes.poll_frame(), Some(GatewayFrame::OpenTunnel(Box::new(open(1)))));

    for (features, limits) in [(&["x"][..], offering()), (&[TUNNELS_FEATURE][..], Limits::default())] {
        let mut silent = session_of(features, limits);
        let Some(GatewayFrame::Welcome(welcome)) = silent.poll_frame() else { panic!("no Welcome") };
        assert!(welcome.features.is_empty() && welcome.tunnel_address.is_none());
        assert!(!silent.handle_offer(open(1), at(1)));
        assert_eq!(silent.poll_frame(), None);
    }
}

#[test]
fn a_refusal_counts_once_and_only_of_what_was_offered() {
    let mut session = session_of(&[TUNNELS_FEATURE], offering());
    session.handle_frame(refusal(1), 10, at(1));
    assert_eq!(session.poll_to_tunnels(), None, "nothing was offered");
    assert!(session.handle_offer(open(1), at(1)));
    for _ in 0..3 {
        session.handle_frame(refusal(1), 10, at(1));
    }
    let refused = session.poll_to_tunnels().expect("it was offered");
    assert!(refused.reason.len() <= 256);
    assert_eq!(session.poll_to_tunnels(), None);
    // A node that never answers makes nothing grow.
    for number in 0..=u8::try_from(MAX_OFFERS_REMEMBERED).expect("few") {
        assert!(session.handle_offer(open(number), at(1)));
    }
    session.handle_frame(refusal(0), 10, at(1));
    assert_eq!(session.poll_to_tunnels(), None, "the oldest is forgotten");
}

#[test]
fn a_session_that_is_leaving_is_offered_none() {
    let mut session = session_of(&[TUNNELS_FEATURE], offering());
    session.handle_half_close(at(1));
    assert!(!session.handle_offer(open(1), at(1)));
}

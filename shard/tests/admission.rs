//! The bounds of admission are the gateway's, not each shard's: what one shard lets in, another can't.
//!
//! Two shards on one port; each story knows which connection the kernel gave to which shard, asks on both in
//! turn, and so sees that neither has a bound of its own.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Instant;

use gateway_core::limits::{Limits, TunnelLimits};
use gateway_proto::path;
use gateway_proto::v1::gateway_frame::Frame;
use gateway_proto::v1::node_frame;
use support::client::{Call, Client, hello};
use support::{Gateway, story, until};

const RESOURCE_EXHAUSTED: u16 = 8;

/// Two shards, and as many connections to each.
struct Both {
    gateway: Gateway,
    connections: [Vec<Client>; 2],
}

impl Both {
    async fn start(limits: Limits, each: usize) -> Self {
        let gateway = Gateway::start_shards(limits, 2);
        let mut connections = [Vec::new(), Vec::new()];
        let mut number = 0;
        while connections.iter().any(|of_shard| of_shard.len() < each) {
            let before = gateway.counters[0].connections.get();
            let all = gateway.sum(|counters| counters.connections.get());
            let client = gateway.node(&format!("n-{number}")).await;
            number += 1;
            until("it is accepted", || gateway.sum(|counters| counters.connections.get()) == all + 1).await;
            let shard = usize::from(gateway.counters[0].connections.get() == before);
            connections[shard].push(client);
        }
        Self { gateway, connections }
    }

    /// Opens a stream on a connection of this shard.
    async fn open(&mut self, shard: usize, index: usize) -> Result<Call, u64> {
        let mut call = self.connections[shard][index].call(path::SESSION).await;
        if call.headers.headers().contains_key("grpc-status") {
            let end = call.end().await;
            assert_eq!(end.status, RESOURCE_EXHAUSTED, "{}", end.message);
            return Err(end.pushback_ms.expect("a refusal says when to come back"));
        }
        Ok(call)
    }

    fn opens(&self) -> [u64; 2] {
        [0, 1].map(|shard: usize| self.gateway.counters[shard].opens.get())
    }
}

#[test]
fn streams_on_two_shards_are_bounded_together() {
    story(async {
        let limits = Limits { streams: 6, pending_hellos: 6, ..Limits::default() };
        let mut both = Both::start(limits, 4).await;
        let mut calls = Vec::new();
        for index in 0..3 {
            for shard in [0, 1] {
                let mut call = both.open(shard, index).await.expect("there is room");
                call.frame(node_frame::Frame::Hello(hello()));
                assert!(matches!(call.next().await, Some(Frame::Welcome(_))));
                calls.push(call);
            }
        }
        assert_eq!(both.opens(), [3, 3]);
        for shard in [0, 1] {
            assert!(both.open(shard, 3).await.is_err(), "shard {shard} has a bound of its own");
        }
        // A place that is given back on one shard is taken on the other.
        calls[0].half_close();
        calls[0].end().await;
        until("the place is given back", || both.gateway.admission.streams() == 5).await;
        let _entered = both.open(1, 3).await.expect("a place was given back");
        assert!(both.open(0, 3).await.is_err());
    });
}

#[test]
fn hellos_that_wait_on_two_shards_are_bounded_together() {
    story(async {
        let limits = Limits { streams: 100, pending_hellos: 4, ..Limits::default() };
        let mut both = Both::start(limits, 3).await;
        let mut owing = Vec::new();
        for index in 0..2 {
            for shard in [0, 1] {
                owing.push(both.open(shard, index).await.expect("there is room"));
            }
        }
        assert_eq!((both.opens(), both.gateway.admission.pending_hellos()), ([2, 2], 4));
        for shard in [0, 1] {
            assert!(both.open(shard, 2).await.is_err(), "shard {shard} has a bound of its own");
        }
        owing[0].frame(node_frame::Frame::Hello(hello()));
        assert!(matches!(owing[0].next().await, Some(Frame::Welcome(_))));
        let _entered = both.open(1, 2).await.expect("one Hello waits no more");
        assert!(both.open(0, 2).await.is_err());
    });
}

#[test]
fn opens_on_two_shards_take_from_one_bucket() {
    story(async {
        const BURST: usize = 4;
        let limits = Limits { opens_per_second: 1, opens_burst: 4, ..Limits::default() };
        let begun = Instant::now();
        let mut both = Both::start(limits, 10).await;
        let mut entered = Vec::new();
        for index in 0..10 {
            for shard in [0, 1] {
                entered.extend(both.open(shard, index).await);
            }
        }
        // The bucket fills while the story runs; two buckets would let in eight at least.
        let most = BURST + usize::try_from(begun.elapsed().as_secs()).unwrap() + 1;
        assert!((BURST..=most).contains(&entered.len()), "{} of at most {most} got in", entered.len());
        assert!(both.opens().iter().all(|opens| *opens >= 2), "{:?}", both.opens());
    });
}

#[test]
fn a_tunnel_stream_too_many_is_told_that_it_is_for_tunnels_and_costs_no_session_its_place() {
    story(async {
        let tunnels = TunnelLimits { most: 8, per_node: 2, ..TunnelLimits::default() };
        let gateway = Gateway::start(Limits { tunnels: tunnels.into(), ..Limits::default() });
        let mut node = gateway.node("n-1").await;
        let _open = [node.call(path::TUNNEL).await, node.call(path::TUNNEL).await];
        let end = node.call(path::TUNNEL).await.end().await;
        assert_eq!(end.status, RESOURCE_EXHAUSTED, "{}", end.message);
        assert!(end.message.contains("streams for tunnels"), "{}", end.message);
        assert!(end.pushback_ms.is_some(), "it says when to come back");
        let counters = &gateway.counters[0];
        assert_eq!((counters.refused_tunnels.get(), counters.refused_streams.get()), (1, 0));
        node.session().await;
    });
}

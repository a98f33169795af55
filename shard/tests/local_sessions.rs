//! Sessions in memory: frames between this process and a shard's thread, with a stand-in for the writer.
//!
//! The same stories as over sockets where the same must hold (admission, certificates, bounds, ends), and those
//! that only memory has: pipes that are full, sinks that are slow, gone or broken, and a gateway that dies.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use gateway_core::close::CloseReason;
use gateway_core::limits::Limits;
use gateway_core::revocation::{Revocation, RevokedSet, SerialKey};
use gateway_core::seam::{SessionNews, ToShard, ToWriter};
use gateway_proto::v1::gateway_frame::Frame;
use gateway_proto::v1::{self, node_frame};
use gateway_shard::local::{
    CallEnd, FrameConnection, FrameSink, FromGateway, LocalPeer, Refused, SessionOver, Taken,
};
use prost::Message;
use support::client::{hello, update};
use support::{Gateway, soon, story, until};

const RESOURCE_EXHAUSTED: Option<u8> = Some(8);
const UNAVAILABLE: Option<u8> = Some(14);
const UNAUTHENTICATED: Option<u8> = Some(16);

fn encoded(frame: node_frame::Frame) -> Bytes {
    v1::NodeFrame { frame: Some(frame) }.encode_to_vec().into()
}

fn heartbeat(sequence: u64) -> Bytes {
    encoded(node_frame::Frame::Heartbeat(v1::Heartbeat { sequence, ..Default::default() }))
}

/// A node in this process.
struct Node(FrameConnection);

impl Node {
    /// One that has sent its Hello.
    async fn dial(gateway: &Gateway, peer: LocalPeer) -> Self {
        let mut node = Self(gateway.visitors.connect(peer).unwrap());
        // Whoever is refused may have been by now.
        let _ = node.0.sender.send(encoded(node_frame::Frame::Hello(hello()))).await;
        node
    }

    async fn welcomed(gateway: &Gateway, name: &str) -> (Self, v1::Welcome) {
        let mut node = Self::dial(gateway, gateway.peer(name)).await;
        let Frame::Welcome(welcome) = node.next().await else { panic!("no Welcome") };
        (node, welcome)
    }

    async fn send(&mut self, frame: node_frame::Frame) {
        soon(self.0.sender.send(encoded(frame))).await.unwrap();
    }

    async fn next(&mut self) -> Frame {
        match soon(self.0.receiver.recv()).await {
            FromGateway::Frame(frame) => v1::GatewayFrame::decode(frame).unwrap().frame.unwrap(),
            FromGateway::Ended(end) => panic!("it ended: {end}"),
        }
    }

    /// Passes over what comes before the end.
    async fn end(&mut self) -> CallEnd {
        loop {
            if let FromGateway::Ended(end) = soon(self.0.receiver.recv()).await {
                return end;
            }
        }
    }
}

#[test]
fn a_node_in_this_process_is_welcomed_heard_and_acked_until_it_closes_its_half() {
    story(async {
        let mut gateway = Gateway::start(Limits::default());
        let (mut node, welcome) = Node::welcomed(&gateway, "n-1").await;
        assert_eq!((welcome.protocol, welcome.session_epoch), (1, 1));
        let request = gateway.writer.hello().await;
        assert_eq!(request.identity.node.as_str(), "spiffe://test.example/site/lab/node/n-1");
        assert_eq!(request.identity.site, "lab");
        assert_eq!(request.identity.certificate_serial, "ABC01");
        assert_eq!(gateway.counters[0].connections.get(), 1);

        // Two at once, whose answers the gateway may put together.
        for sequence in [7, 8] {
            node.0.sender.send(heartbeat(sequence)).await.unwrap();
        }
        for sequence in [7, 8] {
            let Frame::HeartbeatAck(ack) = node.next().await else { panic!("no ack") };
            assert_eq!(ack.sequence, sequence);
        }
        node.send(update(41, 9, 100)).await;
        let Frame::Ack(ack) = node.next().await else { panic!("no ack") };
        assert_eq!((ack.r#ref, ack.state()), (41, v1::CommandState::Succeeded));

        node.send(update(42, 9, 100)).await;
        node.0.sender.finish();
        assert_eq!(node.0.sender.send(heartbeat(9)).await, Err(SessionOver));
        // What was sent before is answered first.
        let Frame::Ack(ack) = node.next().await else { panic!("no ack") };
        assert_eq!(ack.r#ref, 42);
        let end = CallEnd { status: Some(0), message: String::new(), pushback: None };
        assert_eq!((node.end().await, node.end().await), (end.clone(), end));
        assert_eq!(gateway.writer.closed().await, request.key);
        until("admission is given back", || gateway.admission.streams() == 0).await;
        until("the connection is counted out", || gateway.counters[0].connections.get() == 0).await;
        assert!(gateway.writer.rest().is_empty(), "nothing follows `Closed`");
        assert_eq!(gateway.counters[0].closes.get("finished"), 1);
    });
}

#[test]
fn nodes_in_this_process_take_turns_through_the_shards() {
    story(async {
        let gateway = Gateway::start_shards(Limits::default(), 3);
        let mut nodes = Vec::new();
        for number in 0..6 {
            nodes.push(Node::welcomed(&gateway, &format!("n-{number}")).await);
        }
        let of_each: Vec<u64> = gateway.counters.iter().map(|counters| counters.sessions.get()).collect();
        assert_eq!(of_each, [2, 2, 2]);
    });
}

#[test]
fn who_is_not_whom_it_says_or_is_out_of_time_or_revoked_is_refused_as_with_a_certificate() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let good = gateway.peer("n-1");
        let stranger = LocalPeer { node: "spiffe://other.example/site/a/node/b".to_owned(), ..good.clone() };
        let unnumbered = LocalPeer { certificate_serial: "12-34".to_owned(), ..good.clone() };
        let expired = LocalPeer { ends_at: SystemTime::now() - Duration::from_secs(1), ..good.clone() };
        for (peer, sentence) in [
            (stranger, "another trust domain"),
            (unnumbered, "serial that is not hex"),
            (expired, "has expired"),
        ] {
            let end = Node::dial(&gateway, peer).await.end().await;
            assert_eq!(end.status, UNAUTHENTICATED, "{end}");
            assert!(end.message.contains(sentence), "{end}");
        }
        let (mut node, _) = Node::welcomed(&gateway, "n-1").await;
        let revoked = Revocation { serial: "ABC01".to_owned(), reason: "key leaked".to_owned() };
        let held = BTreeMap::from([(SerialKey::of("ABC01"), revoked.verdict())]);
        let (set, added) = (Arc::new(RevokedSet::of(&held)), Arc::from([revoked]));
        gateway
            .tell_all_and_wait(|| ToShard::Revoked { set: Arc::clone(&set), added: Arc::clone(&added) })
            .await;
        let Frame::RevocationNotice(notice) = node.next().await else { panic!("no notice") };
        assert_eq!((notice.reason.as_str(), &notice.serials[..]), ("key leaked", &["ABC01".to_owned()][..]));
        assert_eq!(node.end().await.status, UNAUTHENTICATED);
        // With leading zeros, as some print it.
        let again = LocalPeer { certificate_serial: "00abc01".to_owned(), ..good };
        assert_eq!(Node::dial(&gateway, again).await.end().await.status, UNAUTHENTICATED);
        assert_eq!(gateway.admission.streams(), 0);
    });
}

#[test]
fn a_refusal_carries_its_pushback_and_so_does_the_end_of_a_drain() {
    story(async {
        let limits = Limits { streams: 1, ..Limits::default() };
        let gateway = Gateway::start_shards(limits, 2);
        let (mut node, _) = Node::welcomed(&gateway, "n-1").await;
        let end = Node::dial(&gateway, gateway.peer("n-2")).await.end().await;
        assert_eq!(end.status, RESOURCE_EXHAUSTED, "{end}");
        assert!(end.pushback.is_some_and(|pushback| pushback > Duration::ZERO), "{end}");

        let order = gateway_core::drain::DrainOrder { within: Duration::from_secs(60), seed: 7 };
        gateway.tell_all_and_wait(|| ToShard::Drain(order)).await;
        assert!(matches!(node.next().await, Frame::Drain(_)));
        let end = Node::dial(&gateway, gateway.peer("n-3")).await.end().await;
        assert!(end.status == UNAVAILABLE && end.pushback.is_some(), "{end}");
        gateway.tell_all_and_wait(|| ToShard::Cut(order)).await;
        let end = node.end().await;
        assert!(end.status == UNAVAILABLE && end.pushback.is_some(), "{end}");
        gateway.tell_all_and_wait(|| ToShard::Serving(false)).await;
        let end = Node::dial(&gateway, gateway.peer("n-4")).await.end().await;
        assert_eq!((end.status, end.pushback), (UNAVAILABLE, None), "{end}");
    });
}

#[test]
fn a_certificate_has_as_many_connections_as_it_may_in_memory_and_over_sockets_together() {
    story(async {
        let gateway = Gateway::start(Limits { connections_per_certificate: 2, ..Limits::default() });
        let mut over_tls = gateway.node("n-1").await;
        let (_session, _) = over_tls.session().await;
        let (_node, _) = Node::welcomed(&gateway, "n-1").await;
        let end = Node::dial(&gateway, gateway.peer("n-1")).await.end().await;
        assert!(end.status == RESOURCE_EXHAUSTED && end.pushback.is_some(), "{end}");
        assert_eq!(gateway.counters[0].refused_connections.get(), 1);
    });
}

#[test]
fn a_large_frame_passes_a_small_pipe_and_one_that_is_too_large_ends_the_session() {
    story(async {
        let mut gateway = Gateway::start(Limits { result_bytes: (1 << 20) - 1, ..Limits::default() });
        let (mut node, _) = Node::welcomed(&gateway, "n-1").await;
        node.send(update(1, 1, (1 << 20) - 64)).await;
        let Frame::Ack(ack) = node.next().await else { panic!("no ack") };
        assert_eq!(ack.r#ref, 1);
        gateway.writer.hello().await;
        let ToWriter::Update(request) = gateway.writer.next().await else { panic!("no update") };
        assert_eq!(request.update.result.len(), (1 << 20) - 64);
        node.send(update(2, 1, 1 << 20)).await;
        let end = node.end().await;
        assert_eq!(end.status, Some(3), "{end}");
        assert!(end.message.contains("sessions.frame_bytes"), "{end}");

        // What is no message of the protocol ends its session alone.
        let (mut node, _) = Node::welcomed(&gateway, "n-2").await;
        node.0.sender.send(Bytes::from_static(b"\xff\xff\xff")).await.unwrap();
        assert_eq!(node.end().await.status, Some(3));
    });
}

#[test]
fn a_writer_that_takes_nothing_holds_the_node_back_and_nothing_is_lost() {
    story(async {
        let limits = Limits { to_writer_messages: 1, session_inbox_frames: 2, ..Limits::default() };
        let mut gateway = Gateway::start(limits);
        let (mut node, _) = Node::welcomed(&gateway, "n-1").await;
        gateway.writer.hello().await;
        gateway.writer.pause();
        let frame = |number: u64| update(number, 1, 1000);
        let mut sent = 0;
        // Until all between here and the writer is full; the shard may still be taking what it can.
        let back = loop {
            sent += 1;
            match node.0.sender.try_send(encoded(frame(sent))) {
                Taken::Yes => tokio::task::yield_now().await,
                Taken::Later(back) => break back,
                Taken::Gone => panic!("the session is over"),
            }
            assert!(sent < 10_000, "nothing holds it back");
        };
        gateway.writer.resume();
        soon(node.0.sender.send(back)).await.unwrap();
        for expected in 1..=sent {
            let Frame::Ack(ack) = node.next().await else { panic!("no ack") };
            assert_eq!(ack.r#ref, expected);
        }
    });
}

#[test]
fn a_node_that_does_not_read_is_cut_and_one_that_goes_away_is_gone() {
    story(async {
        let limits = Limits { send_timeout: Duration::from_millis(300), ..Limits::default() };
        let mut gateway = Gateway::start(limits);
        let (mut node, _) = Node::welcomed(&gateway, "n-1").await;
        let key = gateway.writer.hello().await.key;
        // More than the pipe to it holds.
        for sequence in 1..1000 {
            if node.0.sender.send(heartbeat(sequence)).await.is_err() {
                break;
            }
        }
        assert_eq!(gateway.writer.closed().await, key);
        let end = node.end().await;
        assert_eq!((end.status, gateway.counters[0].closes.get("slow-peer")), (UNAVAILABLE, 1), "{end}");

        let (node, _) = Node::welcomed(&gateway, "n-2").await;
        let key = gateway.writer.hello().await.key;
        drop(node);
        assert_eq!(gateway.writer.closed().await, key);
        until("admission is given back", || gateway.admission.streams() == 0).await;
        assert_eq!(gateway.counters[0].closes.get("peer-gone"), 1);
    });
}

/// Tells all that it is given, and panics at a frame where it is to.
struct Told {
    told: tokio::sync::mpsc::UnboundedSender<FromGateway>,
    panics: bool,
}

impl FrameSink for Told {
    fn poll_take(&mut self, frame: Bytes, _context: &mut Context<'_>) -> Taken {
        assert!(!self.panics, "a fault of the embedder");
        self.told.send(FromGateway::Frame(frame)).map_or(Taken::Gone, |()| Taken::Yes)
    }

    fn end(&mut self, end: CallEnd) {
        let _ = self.told.send(FromGateway::Ended(end));
    }
}

#[test]
fn a_sink_of_ones_own_is_given_frames_and_one_end_and_its_panic_ends_its_own_session() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let (mut bystander, _) = Node::welcomed(&gateway, "n-1").await;
        for panics in [false, true] {
            let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
            let sink = Box::new(Told { told, panics });
            let mut sender = gateway.visitors.open(gateway.peer("n-2"), sink).unwrap();
            sender.send(encoded(node_frame::Frame::Hello(hello()))).await.unwrap();
            if !panics {
                assert!(matches!(soon(heard.recv()).await, Some(FromGateway::Frame(_))));
                sender.finish();
            }
            let Some(FromGateway::Ended(end)) = soon(heard.recv()).await else { panic!("no end") };
            assert_eq!(end.status, Some(if panics { 13 } else { 0 }), "{end}");
            assert_eq!(soon(heard.recv()).await, None, "nothing comes behind the end");
        }
        bystander.0.sender.send(heartbeat(1)).await.unwrap();
        assert!(matches!(bystander.next().await, Frame::HeartbeatAck(_)));
        assert_eq!(gateway.counters[0].panics.get(), 1);
    });
}

#[test]
fn a_superseded_session_ends_aborted_and_a_stop_tells_everyone() {
    story(async {
        let mut gateway = Gateway::start(Limits::default());
        let (mut first, _) = Node::welcomed(&gateway, "n-1").await;
        let (mut second, _) = Node::welcomed(&gateway, "n-1").await;
        let key = gateway.writer.hello().await.key;
        gateway.tell_all(|| ToShard::Session { key, news: SessionNews::Close(CloseReason::Superseded) });
        assert_eq!(first.end().await.status, Some(10));
        let visitors = Arc::clone(&gateway.visitors);
        let peer = gateway.peer("n-2");
        let (outcomes, _writer) = gateway.stop().await;
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        let end = second.end().await;
        assert_eq!((end.status, end.message.as_str()), (UNAVAILABLE, "gateway stopping; reconnect"));
        assert_eq!(visitors.connect(peer).unwrap_err(), Refused::Stopped);
    });
}

#[test]
fn a_gateway_that_dies_tells_nobody_anything() {
    story(async {
        let mut gateway = Gateway::start_shards(Limits::default(), 2);
        let mut nodes = Vec::new();
        for number in 0..4 {
            nodes.push(Node::welcomed(&gateway, &format!("n-{number}")).await.0);
        }
        let mut over_tls = gateway.node("n-9").await;
        let (mut session, _) = over_tls.session().await;
        let outcomes = gateway.crash().await;
        assert!(outcomes.len() == 2 && outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        for node in &mut nodes {
            let end = node.end().await;
            assert_eq!((end.status, end.pushback), (None, None), "{end}");
            assert_eq!(node.0.sender.try_send(heartbeat(1)), Taken::Gone);
        }
        // No trailers: the connection is gone, as a process that was killed leaves it.
        assert!(soon(session.body.data()).await.is_none_or(|data| data.is_err()));
        let told = gateway.writer.rest();
        assert!(
            !told.iter().any(|message| matches!(message, ToWriter::ShardStopped { .. })),
            "a shard that dies hands nothing over: {told:?}"
        );
        let connected = gateway.visitors.connect(gateway.peer("n-5"));
        assert_eq!(connected.unwrap_err(), Refused::Stopped);
    });
}

#[test]
fn as_many_calls_wait_for_a_shard_as_may_and_one_more_is_given_back() {
    // Nobody takes them.
    let (visitors, inboxes) = gateway_shard::local::visitors(2);
    let peer =
        LocalPeer { node: "n".to_owned(), certificate_serial: "1".to_owned(), ends_at: SystemTime::now() };
    let mut waiting = Vec::new();
    let refused = loop {
        match visitors.connect(peer.clone()) {
            Ok(connection) => waiting.push(connection),
            Err(refused) => break refused,
        }
    };
    assert_eq!((refused, waiting.len()), (Refused::Busy, 2 * 1024));
    // The shards end without a look at them.
    drop(inboxes);
    let context = &mut Context::from_waker(Waker::noop());
    for mut connection in waiting {
        let end = connection.receiver.poll_recv(context).map(|from| match from {
            FromGateway::Ended(end) => end.status,
            FromGateway::Frame(_) => panic!("nobody said anything"),
        });
        assert_eq!(end, std::task::Poll::Ready(UNAVAILABLE));
    }
    assert_eq!(visitors.connect(peer).unwrap_err(), Refused::Stopped);
}

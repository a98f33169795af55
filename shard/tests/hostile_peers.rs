//! What peers may try, and what becomes of them; and that others on the shard do not notice.
//!
//! Real sockets and shards, with a stand-in for the writer: each peer's connection or stream ends in
//! the way that is due, and a well-behaved one beside it is served. The same against a whole gateway and
//! its database is in `gateway/tests/hostile_peers/`.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use gateway_core::close::CloseReason;
use gateway_core::frame::Command;
use gateway_core::ids::{Attempt, CommandId, LaneName, LaneSeq, SessionEpoch};
use gateway_core::limits::{Limits, TunnelLimits};
use gateway_core::seam::{SessionNews, ToShard};
use gateway_proto::path;
use gateway_proto::v1::gateway_frame::Frame;
use gateway_proto::v1::{self, node_frame};
use http::Request;
use rcgen::ExtendedKeyUsagePurpose;
use support::client::{self, Client, hello, update};
use support::pki::Pki;
use support::{Gateway, soon, story, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A message's prefix.
fn prefix(flag: u8, length: u32) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(flag);
    bytes.put_u32(length);
    bytes.freeze()
}

/// Opens a session with these bytes in place of a Hello; how it ends.
async fn opened_with(gateway: &Gateway, bytes: impl Into<Bytes>) -> client::End {
    let mut node = gateway.node("n-1").await;
    let mut session = node.call(path::SESSION).await;
    session.raw(bytes);
    session.end().await
}

#[test]
fn a_wrong_first_frame_ends_the_stream_alone() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let mut node = gateway.node("n-1").await;
        let mut wrong = node.call(path::SESSION).await;
        wrong.heartbeat(1);
        assert_eq!(wrong.end().await.status, 3);
        let (mut twice, _) = node.session().await;
        twice.frame(node_frame::Frame::Hello(hello()));
        assert_eq!(twice.end().await.status, 3);
        node.session().await;
    });
}

#[test]
fn garbage_is_invalid_with_a_sentence() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let mut garbage = BytesMut::from(&prefix(0, 8)[..]);
        garbage.put_slice(&[0xff; 8]);
        let end = opened_with(&gateway, garbage).await;
        assert_eq!(end.status, 3);
        assert!(end.message.contains("no valid protobuf"), "{}", end.message);
        let end = opened_with(&gateway, vec![9, 0, 0, 0, 1, 2]).await;
        assert_eq!(end.status, 3);
        assert!(end.message.contains("flag byte"), "{}", end.message);
    });
}

#[test]
fn a_frame_over_the_limit_is_refused_by_its_prefix() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let mut node = gateway.node("n-1").await;
        let (mut session, _) = node.session().await;
        session.raw(prefix(0, (1 << 20) + 1));
        let end = session.end().await;
        assert_eq!(end.status, 3);
        assert!(
            end.message.contains("1048577") && end.message.contains("sessions.frame_bytes"),
            "{}",
            end.message
        );
        // What comes first may be as large as a Hello.
        let most = Limits::default().hello_bytes();
        let end = opened_with(&gateway, prefix(0, u32::try_from(most).unwrap() + 1)).await;
        assert_eq!(end.status, 3);
        assert!(end.message.contains(&format!("{most} for a Hello")), "{}", end.message);
        // Of other calls no key of the configuration says how large a frame may be, and none is named.
        let tunnels = TunnelLimits { most: 8, ..TunnelLimits::default() };
        let gateway = Gateway::start(Limits { tunnels: tunnels.into(), ..Limits::default() });
        let mut node = gateway.node("n-1").await;
        for (path, limit) in [(path::TUNNEL, 65_536), (path::JOIN, 32_768)] {
            let mut call = node.call(path).await;
            call.raw(prefix(0, 70_000));
            let end = call.end().await;
            let sentence = format!("a frame of 70000 bytes is over the limit of {limit}");
            assert_eq!((end.status, end.message), (3, sentence));
        }
    });
}

#[test]
fn one_certificate_holds_one_half_hello_and_others_large_frames_go_on() {
    story(async {
        let limits = Limits {
            receive_bytes_per_shard: 1 << 20,
            // Who waits for the hog to be cut waits in vain.
            hello_timeout: Duration::from_secs(300),
            ..Limits::default()
        };
        let most = u32::try_from(limits.hello_bytes()).unwrap();
        let gateway = Gateway::start(limits);
        let mut hogs = Vec::new();
        for _ in 0..8 {
            let mut node = gateway.node("hog").await;
            let mut session = node.call(path::SESSION).await;
            let mut half = BytesMut::from(&prefix(0, most)[..]);
            half.resize(100 << 10, 0);
            session.raw(half);
            hogs.push((node, session));
        }
        until("seven of eight wait", || gateway.counters[0].receive_budget_waits.get() == 7).await;
        // A large Hello of another, and then a large frame of it.
        let mut node = gateway.node("n-1").await;
        let mut session = node.call(path::SESSION).await;
        let known = v1::KnownCommand { command_id: vec![7; 16].into(), attempt: 1, state: 4 };
        let known_commands = (0..4096u32)
            .map(|n| {
                let id = [&n.to_be_bytes()[..], &[7; 12]].concat();
                v1::KnownCommand { command_id: id.into(), ..known.clone() }
            })
            .collect();
        session.frame(node_frame::Frame::Hello(v1::Hello { known_commands, ..hello() }));
        assert!(matches!(session.next().await, Some(Frame::Welcome(_))), "its Hello waits behind the hog's");
        session.frame(update(1, 4, 500 << 10));
        assert!(matches!(session.next().await, Some(Frame::Ack(_))), "its frame waits behind the hog's");
        // Each that goes gives its turn to the next, and the last leaves nothing.
        drop(hogs);
        until("the hog has gone", || gateway.admission.streams() == 1).await;
        session.frame(update(2, 5, 500 << 10));
        assert!(matches!(session.next().await, Some(Frame::Ack(_))));
    });
}

#[test]
fn compressed_frames_are_unimplemented() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        assert_eq!(opened_with(&gateway, prefix(1, 10)).await.status, 12);
        let mut node = gateway.node("n-1").await;
        let mut call = node.call_with(path::SESSION, &[("grpc-encoding", "gzip")]).await;
        assert_eq!(call.end().await.status, 12);
        assert_eq!(gateway.counters[0].opens.get(), 1, "a refused call opens nothing");
    });
}

#[test]
fn a_stream_that_ends_inside_a_frame_is_invalid() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let mut node = gateway.node("n-1").await;
        let mut session = node.call(path::SESSION).await;
        session.raw(prefix(0, 100));
        session.half_close();
        let end = session.end().await;
        assert_eq!(end.status, 3);
        assert!(end.message.contains("inside a frame"), "{}", end.message);
    });
}

#[test]
fn what_is_no_grpc_call_gets_a_plain_status() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let mut node = gateway.node("n-1").await;
        let request = |method: &str, kind: &str| {
            Request::builder()
                .method(method)
                .uri("https://localhost/gateway.v1.NodeGateway/Session")
                .header("content-type", kind)
                .body(())
                .unwrap()
        };
        assert_eq!(node.send(request("GET", "application/grpc")).await.headers.status(), 405);
        assert_eq!(node.send(request("POST", "application/json")).await.headers.status(), 415);
        assert_eq!(node.send(request("POST", "application/grpc-web")).await.headers.status(), 415);
        assert_eq!(node.call("/no.such/Call").await.end().await.status, 12);
        let proto = node.send(request("POST", "application/grpc+proto")).await;
        assert!(!proto.headers.headers().contains_key("grpc-status"), "a session");
    });
}

#[test]
fn who_has_no_certificate_may_only_join() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let mut anyone = gateway.connect(None).await;
        for call in [path::SESSION, path::RENEW, path::FETCH_SECRET, path::TUNNEL] {
            let end = anyone.call(call).await.end().await;
            assert_eq!(end.status, 16, "{call}");
            assert!(end.message.contains("no client certificate"), "{}", end.message);
        }
        let mut join = anyone.call(path::JOIN).await;
        join.half_close();
        let end = join.end().await;
        assert_eq!((end.status, end.message.as_str()), (3, "the call ended without a request"));
        assert_eq!(gateway.admission.streams(), 0);
    });
}

#[test]
fn a_certificate_that_names_nobody_is_unauthenticated() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let ok = "spiffe://test.example/site/lab/node/n-1";
        for (uris, why) in [
            (vec![], "exactly one URI"),
            (vec![ok, "spiffe://test.example/site/lab/node/n-2"], "exactly one URI"),
            (vec!["spiffe://other.example/site/lab/node/n-1"], "another trust domain"),
            (vec!["spiffe://test.example/site/lab"], "SPIFFE path"),
        ] {
            let certificate = gateway.pki.node_with_uris(&uris);
            let mut node = gateway.connect(Some(&certificate)).await;
            let end = node.call(path::SESSION).await.end().await;
            assert_eq!(end.status, 16, "{uris:?}");
            assert!(end.message.contains(why), "{uris:?}: {}", end.message);
        }
    });
}

/// Whether a node with this certificate gets through the handshake.
async fn is_let_in(gateway: &Gateway, certificate: &support::pki::NodeCertificate) -> bool {
    let Ok(mut node) = Client::connect(gateway.addr, &gateway.pki.roots, Some(certificate)).await else {
        return false;
    };
    // With TLS 1.3 a client learns of the refusal only when it reads.
    let over = &mut node.over;
    tokio::time::timeout(Duration::from_millis(300), over).await.is_err()
}

#[test]
fn certificates_that_prove_nothing_fail_in_the_handshake() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let uri = "spiffe://test.example/site/lab/node/n-1";
        let other_authority = Pki::new().node("n-1");
        let server_usage = gateway.pki.sign(&[uri], ExtendedKeyUsagePurpose::ServerAuth, |_| {});
        let expired = gateway.pki.sign(&[uri], ExtendedKeyUsagePurpose::ClientAuth, |params| {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2020, 1, 2);
        });
        assert!(!is_let_in(&gateway, &other_authority).await, "another authority");
        assert!(!is_let_in(&gateway, &server_usage).await, "no clientAuth usage");
        assert!(!is_let_in(&gateway, &expired).await, "expired");
        assert!(is_let_in(&gateway, &gateway.pki.node("n-1")).await);
        until("they are counted", || gateway.counters[0].handshakes_failed.get() == 3).await;
    });
}

#[test]
fn a_connection_without_a_stream_is_closed() {
    story(async {
        let limits = Limits { streamless_timeout: Duration::from_millis(200), ..Limits::default() };
        let gateway = Gateway::start(limits);
        let begun = Instant::now();
        let node = gateway.node("n-1").await;
        let _ = soon(node.over).await;
        assert!(begun.elapsed() >= Duration::from_millis(200));
        until("it is counted out", || gateway.counters[0].connections.get() == 0).await;
        // With a stream it stays.
        let mut node = gateway.node("n-1").await;
        let (mut session, _) = node.session().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        session.heartbeat(1);
        assert!(matches!(session.next().await, Some(Frame::HeartbeatAck(_))));
    });
}

#[test]
fn silent_sockets_neither_stay_nor_keep_others_out() {
    story(async {
        let limits =
            Limits { handshakes_at_once: 2, handshake_timeout: Duration::from_secs(2), ..Limits::default() };
        let gateway = Gateway::start(limits);
        let mut silent = Vec::new();
        for _ in 0..8 {
            silent.push(TcpStream::connect(gateway.addr).await.unwrap());
        }
        // Behind a whole TLS handshake, without HTTP/2's preface.
        let mut quiet = soon(client::tls(gateway.addr, &gateway.pki.roots, None)).await.unwrap();
        let begun = Instant::now();
        gateway.node("n-1").await.session().await;
        assert!(begun.elapsed() < Duration::from_millis(1900), "{:?}", begun.elapsed());
        for mut socket in silent {
            let _ = soon(socket.read(&mut [0; 16])).await;
        }
        let mut last = Vec::new();
        let _ = soon(quiet.read_to_end(&mut last)).await;
        until("they are counted", || gateway.counters[0].handshakes_failed.get() == 9).await;
    });
}

fn command(number: u64, payload: usize) -> Command {
    Command {
        id: CommandId(uuid::Uuid::from_u128(u128::from(number))),
        attempt: Attempt(1),
        lane: LaneName::new("default").unwrap(),
        seq: LaneSeq(number),
        kind: "noop".to_owned(),
        payload: vec![1; payload].into(),
        not_after: None,
        session_epoch: SessionEpoch(1),
    }
}

#[test]
fn a_node_that_does_not_read_is_cut_and_others_are_served() {
    story(async {
        let limits = Limits { send_timeout: Duration::from_millis(300), ..Limits::default() };
        let mut gateway = Gateway::start(limits);
        let mut slow = gateway.node("slow").await;
        let (mut deaf, _) = slow.session().await;
        let key = gateway.writer.hello().await.key;
        let commands = || (0..4).map(|n| command(n, 512 << 10)).collect();
        gateway.tell_all(|| ToShard::Session { key, news: SessionNews::Commands(commands()) });
        let mut other = gateway.node("other").await;
        let (mut session, _) = other.session().await;
        for n in 0..20 {
            session.heartbeat(n);
            assert!(matches!(session.next().await, Some(Frame::HeartbeatAck(_))));
        }
        until("it is cut", || gateway.counters[0].closes.get("slow-peer") == 1).await;
        assert_eq!(deaf.end().await.status, 14);
        assert_eq!(gateway.writer.closed().await, key);
        until("its connection goes", || gateway.counters[0].connections.get() == 1).await;
    });
}

/// A peer that reads a kilobyte each tenth of a second: never so slow that it stalls.
async fn sipper(gateway: &Gateway) -> Client {
    let mut http2 = h2::client::Builder::new();
    http2.initial_window_size(1024);
    let node = gateway.pki.node("sipper");
    Client::connect_with(gateway.addr, &gateway.pki.roots, Some(&node), &http2).await.unwrap()
}

const SIP: Duration = Duration::from_millis(100);

#[test]
fn a_session_that_ended_is_over_however_busily_its_node_reads_what_is_left() {
    story(async {
        let limits = Limits { send_timeout: Duration::from_secs(2), ..Limits::default() };
        let mut gateway = Gateway::start(limits);
        let mut node = sipper(&gateway).await;
        let (mut session, _) = node.session().await;
        let key = gateway.writer.hello().await.key;
        let commands = || vec![command(1, 512 << 10)];
        gateway.tell_all_and_wait(|| ToShard::Session { key, news: SessionNews::Commands(commands()) }).await;
        until("some of it is sent", || gateway.counters[0].frames_out.get() >= 2).await;
        gateway
            .tell_all_and_wait(|| ToShard::Session { key, news: SessionNews::Close(CloseReason::Superseded) })
            .await;
        let sipping = session.sip(SIP);
        let over = async {
            until("its place is given back", || gateway.admission.streams() == 0).await;
            assert_eq!(gateway.counters[0].connections.get(), 1, "while the farewell is still being read");
            until("its connection goes", || gateway.counters[0].connections.get() == 0).await;
        };
        let ((), ()) = futures_util::future::join(sipping, over).await;
        assert_eq!(session.end().await.status, 10, "it is told why");
        assert_eq!(gateway.writer.closed().await, key);
    });
}

#[test]
fn more_commands_than_a_node_may_have_waiting_cut_it() {
    story(async {
        let limits = Limits { session_outbox_bytes: 1 << 20, ..Limits::default() };
        let mut gateway = Gateway::start(limits);
        let mut node = gateway.node("n-1").await;
        let (mut session, _) = node.session().await;
        let key = gateway.writer.hello().await.key;
        let commands = || (0..3).map(|n| command(n, 512 << 10)).collect();
        gateway.tell_all(|| ToShard::Session { key, news: SessionNews::Commands(commands()) });
        assert_eq!(session.end().await.status, 14);
        assert_eq!(gateway.counters[0].closes.get("slow-peer"), 1);
    });
}

#[test]
fn a_panic_ends_its_connection_alone() {
    story(async {
        let mut gateway = Gateway::start(Limits::default());
        let mut other = gateway.node("other").await;
        let (mut well, _) = other.session().await;
        gateway.writer.hello().await;
        let mut node = gateway.node("n-1").await;
        let (mut sibling, _) = node.session().await;
        let (mut session, _) = node.session().await;
        gateway.writer.hello().await;
        let key = gateway.writer.hello().await.key;
        let reason = "fault-injection: panic".to_owned();
        session.frame(node_frame::Frame::Goodbye(v1::Goodbye { reason }));
        let end = session.end().await;
        assert_eq!(end.status, 13);
        assert!(end.message.starts_with("internal error "), "{}", end.message);
        assert_eq!(gateway.writer.closed().await, key);
        assert_eq!(gateway.counters[0].panics.get(), 1);
        let _ = sibling.try_end().await;
        let _ = soon(node.over).await;
        until("the connection's sessions are counted out", || gateway.admission.streams() == 1).await;
        well.heartbeat(1);
        assert!(matches!(well.next().await, Some(Frame::HeartbeatAck(_))));
        let (outcomes, _writer) = gateway.stop().await;
        assert!(outcomes[0].is_ok(), "{outcomes:?}");
    });
}

#[test]
fn a_flood_of_pings_ends_its_connection_alone() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let mut other = gateway.node("other").await;
        let (mut well, _) = other.session().await;
        let mut raw = soon(client::tls(gateway.addr, &gateway.pki.roots, None)).await.unwrap();
        raw.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let pings = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8].repeat(1000);
        let flood = async {
            let (mut read, mut write) = tokio::io::split(raw);
            let drain = tokio::task::spawn_local(async move {
                let mut bytes = vec![0; 64 << 10];
                while read.read(&mut bytes).await.is_ok_and(|read| read > 0) {}
            });
            while write.write_all(&pings).await.is_ok() {}
            drain.abort();
        };
        soon(flood).await;
        assert_eq!(gateway.counters[0].floods.get(), 1);
        well.heartbeat(1);
        assert!(matches!(well.next().await, Some(Frame::HeartbeatAck(_))));
    });
}

#[test]
fn rapid_resets_end_their_connection_alone() {
    story(async {
        let gateway = Gateway::start(Limits { opens_burst: 10_000, ..Limits::default() });
        let mut other = gateway.node("other").await;
        let (mut well, _) = other.session().await;
        let tls = soon(client::tls(gateway.addr, &gateway.pki.roots, Some(&gateway.pki.node("n-1"))))
            .await
            .unwrap();
        let (mut requests, connection) = soon(h2::client::handshake(tls)).await.unwrap();
        let over = tokio::task::spawn_local(connection);
        let mut sent = 0;
        while sent < 5_000 {
            let Ok(ready) = soon(requests.clone().ready()).await else { break };
            requests = ready;
            let request = Request::post(format!("https://localhost{}", path::SESSION))
                .header("content-type", "application/grpc")
                .body(())
                .unwrap();
            let Ok((_, mut stream)) = requests.send_request(request, false) else { break };
            stream.send_reset(h2::Reason::CANCEL);
            sent += 1;
            tokio::task::yield_now().await;
        }
        assert!(sent < 5_000, "the connection was ended");
        let _ = soon(over).await;
        until("nothing is left of it", || gateway.admission.streams() == 1).await;
        well.heartbeat(1);
        assert!(matches!(well.next().await, Some(Frame::HeartbeatAck(_))));
    });
}

#[test]
fn large_frames_wait_for_the_shards_memory_and_all_arrive() {
    story(async {
        let limits = Limits { receive_bytes_per_shard: 1 << 20, ..Limits::default() };
        let gateway = Gateway::start(limits);
        let frame =
            |n| gateway_proto::framing::encode(&v1::NodeFrame { frame: Some(update(n, 4, 400 << 10)) });
        let mut nodes = Vec::new();
        for n in 0..6 {
            let mut node = gateway.node(&format!("n-{n}")).await;
            let (mut session, _) = node.session().await;
            let mut whole = frame(n);
            // More than the prefix, less than the frame: each asks for its share.
            session.raw(whole.split_to(100 << 10));
            nodes.push((node, session, whole));
        }
        until("some must wait", || gateway.counters[0].receive_budget_waits.get() >= 4).await;
        for (_, session, rest) in &mut nodes {
            session.raw(std::mem::take(rest));
        }
        for (_, session, _) in &mut nodes {
            let Some(Frame::Ack(ack)) = session.next().await else { panic!("no ack") };
            assert_eq!(ack.state(), v1::CommandState::Succeeded);
        }
    });
}

#[test]
fn a_frame_that_trickles_in_ends_its_stream() {
    story(async {
        let limits = Limits { send_timeout: Duration::from_millis(150), ..Limits::default() };
        let gateway = Gateway::start(limits);
        let mut node = gateway.node("n-1").await;
        let (mut trickle, _) = node.session().await;
        let begun = Instant::now();
        trickle.raw(prefix(0, 1000));
        let drip = async {
            while begun.elapsed() < support::SOON {
                if trickle.send.send_data(Bytes::from_static(&[10]), false).is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        drip.await;
        assert!(begun.elapsed() >= Duration::from_millis(450), "{:?}", begun.elapsed());
        let end = trickle.end().await;
        assert_eq!(end.status, 3);
        assert!(end.message.contains("whole"), "{}", end.message);
    });
}

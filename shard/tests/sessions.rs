//! Sessions over real sockets: TLS, HTTP/2, gRPC, a shard's threads, with a stand-in for the writer.
//!
//! From Hello to trailers, through backpressure, superseding, fences and the stop, on one shard and on
//! several. What the writer would decide is said by the story; decisions are tested in the core.
#![allow(clippy::unwrap_used)]

mod support;

use gateway_core::close::CloseReason;
use gateway_core::limits::Limits;
use gateway_core::seam::{SessionNews, ToShard, ToWriter};
use gateway_proto::path;
use gateway_proto::v1::gateway_frame::Frame;
use gateway_proto::v1::{self, node_frame};
use support::client::update;
use support::{Gateway, soon, story, until};

#[test]
fn a_node_is_welcomed_heard_and_acked_until_it_closes_its_half() {
    story(async {
        let mut gateway = Gateway::start(Limits::default());
        let mut node = gateway.node("n-1").await;
        let (mut session, welcome) = node.session().await;
        assert_eq!((welcome.protocol, welcome.session_epoch), (1, 1));
        assert_eq!(welcome.limits.unwrap().frame_bytes, 1 << 20);
        let request = gateway.writer.hello().await;
        assert_eq!(request.identity.node.as_str(), "spiffe://test.example/site/lab/node/n-1");
        assert_eq!(request.identity.site, "lab");
        assert_eq!(request.identity.certificate_serial, "ABC01");

        session.heartbeat(7);
        let Some(Frame::HeartbeatAck(ack)) = session.next().await else { panic!("no ack") };
        assert_eq!(ack.sequence, 7);
        session.frame(update(41, 9, 100));
        let Some(Frame::Ack(ack)) = session.next().await else { panic!("no ack") };
        assert_eq!((ack.r#ref, ack.state()), (41, v1::CommandState::Succeeded));

        session.half_close();
        let end = session.end().await;
        assert_eq!((end.status, end.message.as_str()), (0, ""));
        assert_eq!(gateway.writer.closed().await, request.key);
        until("admission is given back", || gateway.admission.streams() == 0).await;
        assert_eq!(gateway.admission.pending_hellos(), 0);
        assert!(gateway.writer.rest().is_empty(), "nothing follows `Closed`");
        assert_eq!(gateway.counters[0].closes.get("finished"), 1);
    });
}

#[test]
fn a_frame_of_the_largest_size_passes_small_windows() {
    story(async {
        let mut gateway = Gateway::start(Limits { result_bytes: (1 << 20) - 1, ..Limits::default() });
        let mut node = gateway.node("n-1").await;
        let (mut session, _) = node.session().await;
        session.frame(update(1, 1, (1 << 20) - 64));
        let Some(Frame::Ack(ack)) = session.next().await else { panic!("no ack") };
        assert_eq!(ack.r#ref, 1);
        gateway.writer.hello().await;
        let ToWriter::Update(request) = gateway.writer.next().await else { panic!("no update") };
        assert_eq!(request.update.result.len(), (1 << 20) - 64);
    });
}

#[test]
fn events_and_statuses_are_acked_and_what_names_no_spec_is_rejected_alone() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let mut node = gateway.node("n-1").await;
        let (mut session, _) = node.session().await;
        let events = (3..6).map(|seq| v1::Event { seq, kind: "k".into(), ..Default::default() }).collect();
        session.frame(node_frame::Frame::EventBatch(v1::EventBatch {
            r#ref: 4,
            journal_id: "j".into(),
            events,
            ..Default::default()
        }));
        let status = v1::Status { id: "i".into(), kind: "k".into(), ..Default::default() };
        session.frame(node_frame::Frame::Status(v1::Status { r#ref: 5, ..status }));
        session.frame(node_frame::Frame::SpecApplied(v1::SpecApplied { r#ref: 6, ..Default::default() }));
        let Some(Frame::EventAck(ack)) = session.next().await else { panic!("no answer") };
        assert_eq!((ack.r#ref, &*ack.journal_id, ack.acked_seq), (4, "j", 5));
        let Some(Frame::Ack(ack)) = session.next().await else { panic!("no answer") };
        assert_eq!((ack.r#ref, ack.state()), (5, v1::CommandState::Unspecified));
        let Some(Frame::Rejected(rejected)) = session.next().await else { panic!("no answer") };
        assert_eq!((rejected.r#ref, rejected.code()), (6, v1::RejectCode::Invalid));
        session.heartbeat(1);
        assert!(matches!(session.next().await, Some(Frame::HeartbeatAck(_))));
        drop(gateway);
    });
}

#[test]
fn a_connection_that_is_gone_closes_its_sessions_once() {
    story(async {
        let mut gateway = Gateway::start(Limits::default());
        let mut node = gateway.node("n-1").await;
        let (session, _) = node.session().await;
        let key = gateway.writer.hello().await.key;
        node.over.abort();
        drop((node, session));
        assert_eq!(gateway.writer.closed_because().await, (key, "peer-gone"));
        until("admission is given back", || gateway.admission.streams() == 0).await;
        until("the connection is counted out", || gateway.counters[0].connections.get() == 0).await;
        assert!(gateway.writer.rest().is_empty());
        assert_eq!(gateway.counters[0].closes.get("peer-gone"), 1);
    });
}

#[test]
fn a_node_that_resets_its_stream_is_gone() {
    story(async {
        let mut gateway = Gateway::start(Limits::default());
        let mut node = gateway.node("n-1").await;
        let (mut session, _) = node.session().await;
        let key = gateway.writer.hello().await.key;
        session.send.send_reset(h2::Reason::CANCEL);
        assert_eq!(gateway.writer.closed().await, key);
        let (_again, welcome) = node.session().await;
        assert_eq!(welcome.session_epoch, 2, "the connection is as good as before");
    });
}

#[test]
fn a_superseded_session_ends_aborted() {
    story(async {
        let mut gateway = Gateway::start(Limits::default());
        let mut node = gateway.node("n-1").await;
        let (mut session, _) = node.session().await;
        let key = gateway.writer.hello().await.key;
        gateway.tell_all(|| ToShard::Session { key, news: SessionNews::Close(CloseReason::Superseded) });
        assert_eq!(session.end().await.status, 10);
        assert_eq!(gateway.writer.closed_because().await, (key, "superseded"));
    });
}

#[test]
fn a_fenced_gateway_ends_its_sessions_and_refuses_new_ones_until_it_serves() {
    story(async {
        let mut gateway = Gateway::start(Limits::default());
        let mut node = gateway.node("n-1").await;
        let (mut session, _) = node.session().await;
        gateway.tell_all(|| ToShard::Serving(false));
        gateway.tell_all(|| ToShard::CloseAll(CloseReason::Fenced));
        let end = session.end().await;
        assert_eq!((end.status, end.message.as_str()), (14, "gateway fenced; reconnect"));
        gateway.writer.closed().await;
        let end = node.call(path::SESSION).await.end().await;
        assert_eq!(end.status, 14);
        assert_eq!(gateway.counters[0].refused_not_serving.get(), 1);
        gateway.tell_all_and_wait(|| ToShard::Serving(true)).await;
        node.session().await;
    });
}

#[test]
fn a_draining_gateway_tells_its_sessions_takes_no_new_stream_and_serves_until_it_cuts() {
    use gateway_core::drain::DrainOrder;
    story(async {
        let order = DrainOrder { within: std::time::Duration::from_secs(60), seed: 1 };
        let mut gateway = Gateway::start(Limits::default());
        let (mut leaves, mut stays) = (gateway.node("n-1").await, gateway.node("n-2").await);
        let (mut leaving, _) = leaves.session().await;
        let leaving_key = gateway.writer.hello().await.key;
        let (mut staying, _) = stays.session().await;
        let staying_key = gateway.writer.hello().await.key;
        gateway.tell_all(|| ToShard::Drain(order));
        for (session, key) in [(&mut leaving, leaving_key), (&mut staying, staying_key)] {
            let Some(Frame::Drain(drain)) = session.next().await else { panic!("not told") };
            assert_eq!(u128::from(drain.reconnect_after_ms), order.delay_of(key).as_millis());
        }
        for connection in [&leaves, &stays] {
            while !connection.is_renounced().await {
                tokio::task::yield_now().await;
            }
        }
        let mut late = gateway.node("n-3").await;
        let end = late.call(path::SESSION).await.end().await;
        assert_eq!(end.status, 14);
        assert!(end.pushback_ms.is_some_and(|delay| (500..=10_000).contains(&delay)), "{end:?}");

        for session in [&mut leaving, &mut staying] {
            session.frame(update(1, 3, 10));
            assert!(matches!(session.next().await, Some(Frame::Ack(_))), "who is there is served");
        }
        leaving.half_close();
        assert_eq!(leaving.end().await.status, 0);
        assert_eq!(gateway.writer.closed().await, leaving_key);
        gateway.tell_all(|| ToShard::Cut(order));
        let end = staying.end().await;
        assert_eq!((end.status, end.pushback_ms.is_some()), (14, true), "{end:?}");
        assert_eq!(gateway.writer.closed().await, staying_key);
        assert_eq!(gateway.counters[0].closes.get("draining"), 1);
    });
}

#[test]
fn a_herd_is_refused_with_a_delay_in_trailers_only() {
    story(async {
        let gateway = Gateway::start(Limits { opens_per_second: 1, opens_burst: 1, ..Limits::default() });
        let mut node = gateway.node("n-1").await;
        let _served = node.session().await;
        let mut refused = node.call(path::SESSION).await;
        assert!(refused.headers.headers().contains_key("grpc-status"), "trailers-only");
        let end = refused.end().await;
        assert_eq!(end.status, 8);
        let pushback = end.pushback_ms.expect("a delay");
        assert!((1..=60_000).contains(&pushback), "{pushback}");
        assert_eq!(gateway.counters[0].refused_opens_per_second.get(), 1);
        assert_eq!(gateway.admission.streams(), 1);
    });
}

#[test]
fn a_session_without_heartbeats_ends_unavailable() {
    story(async {
        let limits = Limits {
            heartbeat_interval: std::time::Duration::from_millis(60),
            missed_heartbeats: 3,
            ..Limits::default()
        };
        let mut gateway = Gateway::start(limits);
        let mut node = gateway.node("n-1").await;
        let begun = std::time::Instant::now();
        let (mut session, welcome) = node.session().await;
        assert_eq!(welcome.heartbeat_interval_ms, 60);
        assert_eq!(session.end().await.status, 14);
        assert!(begun.elapsed() >= std::time::Duration::from_millis(180));
        gateway.writer.closed().await;
        assert_eq!(gateway.counters[0].heartbeat_timeouts.get(), 1);
    });
}

#[test]
fn a_stopped_shard_says_farewell_and_owes_nothing() {
    story(async {
        let mut gateway = Gateway::start(Limits::default());
        let mut nodes = Vec::new();
        for n in 0..5 {
            let mut node = gateway.node(&format!("n-{n}")).await;
            let (session, _) = node.session().await;
            gateway.writer.hello().await;
            nodes.push((node, session));
        }
        let addr = gateway.addr;
        let (outcomes, mut writer) = gateway.stop().await;
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        for _ in 0..5 {
            assert!(matches!(writer.next().await, ToWriter::Closed { .. }));
        }
        assert!(matches!(writer.next().await, ToWriter::ShardStopped { .. }));
        assert!(writer.rest().is_empty());
        for (node, mut session) in nodes {
            let end = session.end().await;
            assert_eq!((end.status, end.message.as_str()), (14, "gateway stopping; reconnect"));
            let _ = soon(node.over).await;
        }
        let refused = tokio::net::TcpStream::connect(addr).await.expect_err("nobody listens");
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn four_unpinned_shards_share_a_port() {
    story(async {
        let mut gateway = Gateway::start_shards(Limits::default(), 4);
        let mut sessions = Vec::new();
        let mut shards = std::collections::BTreeSet::new();
        for n in 0..64 {
            let mut node = gateway.node(&format!("n-{n}")).await;
            let (session, _) = node.session().await;
            shards.insert(gateway.writer.hello().await.key.shard);
            sessions.push((node, session));
        }
        assert_eq!(shards.len(), 4, "64 connections reach every shard");
        let (outcomes, _writer) = gateway.stop().await;
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    });
}

#[test]
fn eight_shards_fit_the_usual_locked_memory() {
    story(async {
        let gateway = Gateway::start_shards(Limits::default(), 8);
        gateway.node("n-1").await.session().await;
        let (outcomes, _writer) = gateway.stop().await;
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    });
}

#[test]
fn a_full_writer_holds_nodes_back_and_loses_nothing() {
    story(async {
        let limits = Limits { to_writer_messages: 2, ..Limits::default() };
        let mut gateway = Gateway::start(limits);
        let mut nodes = Vec::new();
        for n in 0..8 {
            let mut node = gateway.node(&format!("n-{n}")).await;
            let (session, _) = node.session().await;
            gateway.writer.hello().await;
            nodes.push((node, session));
        }
        gateway.writer.pause();
        for (_, session) in &mut nodes {
            for frame in 1..=40 {
                session.frame(update(frame, 3, 200));
            }
        }
        until("the mailbox was full", || gateway.counters[0].writer_full_waits.get() > 0).await;
        gateway.writer.resume();
        for (_, session) in &mut nodes {
            for frame in 1..=40 {
                let Some(Frame::Ack(ack)) = session.next().await else { panic!("no ack") };
                assert_eq!(ack.r#ref, frame, "in order of arrival");
            }
        }
    });
}

#[test]
fn a_node_with_many_small_updates_rides_out_a_writer_that_stands_still() {
    story(async {
        let gateway = Gateway::start(Limits { to_writer_messages: 1, ..Limits::default() });
        let mut node = gateway.node("n-1").await;
        let (mut session, _) = node.session().await;
        gateway.writer.pause();
        for frame in 1..=3000 {
            session.frame(update(frame, 3, 0));
        }
        // Long enough for all that the windows let through to arrive and wait unread.
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        gateway.writer.resume();
        for frame in 1..=3000 {
            let Some(Frame::Ack(ack)) = session.next().await else { panic!("no ack of {frame}") };
            assert_eq!(ack.r#ref, frame);
        }
    });
}

#[test]
fn a_stream_without_a_hello_ends_and_gives_its_place_back() {
    story(async {
        let limits = Limits { hello_timeout: std::time::Duration::from_millis(100), ..Limits::default() };
        let mut gateway = Gateway::start(limits);
        let mut node = gateway.node("n-1").await;
        let mut session = node.call(path::SESSION).await;
        assert_eq!(session.end().await.status, 3);
        until("admission is given back", || gateway.admission.streams() == 0).await;
        assert_eq!(gateway.admission.pending_hellos(), 0);
        assert!(gateway.writer.rest().is_empty(), "the writer never knew of it");
    });
}

#[test]
fn health_follows_the_stage_and_needs_no_certificate() {
    use gateway_proto::health::{HealthCheckRequest, HealthCheckResponse};
    story(async {
        let gateway = Gateway::start(Limits::default());
        let mut anyone = gateway.connect(None).await;
        let ask = |service: &str| {
            gateway_proto::framing::encode(&HealthCheckRequest { service: service.to_owned() })
        };
        let mut check = anyone.call(path::HEALTH_CHECK).await;
        check.raw(ask(""));
        check.half_close();
        assert_eq!(check.message::<HealthCheckResponse>().await.unwrap().status, 1);
        assert_eq!(check.end().await.status, 0);
        let mut unknown = anyone.call(path::HEALTH_CHECK).await;
        unknown.raw(ask("no.such.Service"));
        assert_eq!(unknown.end().await.status, 5);

        let mut watch = anyone.call(path::HEALTH_WATCH).await;
        watch.raw(ask("gateway.v1.NodeGateway"));
        assert_eq!(watch.message::<HealthCheckResponse>().await.unwrap().status, 1);
        gateway.tell_all(|| ToShard::Serving(false));
        assert_eq!(watch.message::<HealthCheckResponse>().await.unwrap().status, 2);
        gateway.tell_all(|| ToShard::Serving(true));
        assert_eq!(watch.message::<HealthCheckResponse>().await.unwrap().status, 1);
        let (outcomes, _writer) = gateway.stop().await;
        assert!(outcomes[0].is_ok());
        assert_eq!(watch.end().await.status, 14);
    });
}

#[test]
fn health_says_not_serving_while_fenced_and_while_draining_to_check_and_to_watch() {
    use gateway_core::drain::DrainOrder;
    use gateway_proto::health::{HealthCheckRequest, HealthCheckResponse};

    const SERVING: i32 = 1;
    const NOT_SERVING: i32 = 2;
    story(async {
        let gateway = Gateway::start(Limits::default());
        let mut anyone = gateway.connect(None).await;
        let request = gateway_proto::framing::encode(&HealthCheckRequest::default());
        let mut watch = anyone.call(path::HEALTH_WATCH).await;
        watch.raw(request.clone());
        watch.half_close();
        assert_eq!(watch.message::<HealthCheckResponse>().await.unwrap().status, SERVING);
        for (message, told) in [
            (ToShard::Serving(false), NOT_SERVING),
            (ToShard::Serving(true), SERVING),
            (ToShard::Drain(DrainOrder { within: std::time::Duration::from_secs(60), seed: 1 }), NOT_SERVING),
        ] {
            let what = format!("{message:?}");
            gateway.posts[0].post(message).unwrap();
            gateway.posts[0].ring();
            assert_eq!(watch.message::<HealthCheckResponse>().await.unwrap().status, told, "{what}");
            // A new connection, as a balancer has: the old one was told to open nothing more.
            let mut check = gateway.connect(None).await.call(path::HEALTH_CHECK).await;
            check.raw(request.clone());
            check.half_close();
            assert_eq!(check.message::<HealthCheckResponse>().await.unwrap().status, told, "{what}");
            assert_eq!(check.end().await.status, 0);
        }
    });
}

#[test]
fn a_watch_of_a_service_that_is_not_there_says_so_and_stays_and_more_than_may_watch_come_back() {
    use gateway_proto::health::{HealthCheckRequest, HealthCheckResponse};

    const SERVICE_UNKNOWN: i32 = 3;
    story(async {
        let gateway = Gateway::start(Limits { streams_per_connection: 100, ..Limits::default() });
        let mut anyone = gateway.connect(None).await;
        let mut watches = Vec::new();
        for _ in 0..64 {
            let request = HealthCheckRequest { service: "no.such.Service".to_owned() };
            let mut watch = anyone.call(path::HEALTH_WATCH).await;
            watch.raw(gateway_proto::framing::encode(&request));
            assert_eq!(watch.message::<HealthCheckResponse>().await.unwrap().status, SERVICE_UNKNOWN);
            watches.push(watch);
        }
        let end = anyone.call(path::HEALTH_WATCH).await.end().await;
        assert_eq!((end.status, end.pushback_ms), (8, Some(5000)));
        watches.pop().unwrap().send.send_reset(h2::Reason::CANCEL);
        loop {
            let mut watch = anyone.call(path::HEALTH_WATCH).await;
            // The reset may be read after this.
            if watch.headers.headers().contains_key("grpc-status") {
                continue;
            }
            watch.raw(gateway_proto::framing::encode(&HealthCheckRequest::default()));
            assert_eq!(watch.message::<HealthCheckResponse>().await.unwrap().status, 1);
            break;
        }
    });
}

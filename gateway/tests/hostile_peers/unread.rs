//! A node that never reads: it is cut as slow, the gateway's memory stays within its bounds, and what
//! it was sent comes again in its next session.
//!
//! 1. Every command arrives once it is read, once, in the order in which it was enqueued.

use std::time::Duration;

use gateway_proto::v1::gateway_frame::Frame as Answer;
use gateway_proto::v1::{CommandState, CommandUpdate, Hello, Lane, NodeFrame, node_frame::Frame};
use gateway_testbed::database::{NewCommand, enqueue, enqueue_many};
use gateway_testbed::raw::{RawConnection, ReceivedFrame, call_on, frame_type, http2_frame, received_frames};
use tokio::time::Instant;
use uuid::Uuid;

use crate::stage::{Stage, answer, end_of, hello, welcomed};
use crate::support::{SOON, UNAVAILABLE, measured, within};

const TIMES: &str = "
[sessions]
send_timeout = '1s'
heartbeat_interval = '5s'
outbox_bytes = '4MiB'
";
const COMMANDS: usize = 96;
const PAYLOAD_BYTES: usize = 256 << 10;
/// What the gateway may grow by: the commands of one pass through the writer and the shard, twice,
/// and what its allocator keeps.
const GROWTH_BYTES: u64 = 96 << 20;
const SLOW: &str = "the node did not read what it was sent; reconnect";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_never_reads_is_cut_and_gets_its_commands_again() {
    let stage = Stage::open("unread", TIMES).await;
    let before = stage.gateway.usage().unwrap().rss_bytes;
    stage.story("a node gives no window at all", no_window(&stage)).await;
    let ids = stage.story("commands pile up for a node that never reads", pile_up(&stage)).await;
    stage.story("the node comes back and reads", comes_back(&stage, &ids)).await;
    let peak = stage.gateway.usage().unwrap().rss_peak_bytes;
    measured("growth at the peak", format!("{:.1} MiB", (peak - before) as f64 / f64::from(1 << 20)));
    assert!(peak - before < GROWTH_BYTES, "from {before} to {peak} bytes");
    stage.close().await;
}

/// With a window of nothing not even `Welcome` can be sent.
async fn no_window(stage: &Stage) {
    let peer = stage.peer("windowless").await;
    let mut connection = within(SOON, "a connection", RawConnection::open(&peer)).await.unwrap();
    connection.start_http2().await.unwrap();
    let mut bytes = http2_frame(frame_type::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    bytes.extend(call_on(1));
    let greeting = gateway_proto::framing::encode(&NodeFrame { frame: Some(Frame::Hello(hello())) });
    bytes.extend(http2_frame(frame_type::DATA, 0, 1, &greeting));
    let since = Instant::now();
    connection.write(&bytes).await.unwrap();
    let (received, end) = connection.read_to_end(2 * SOON).await;
    assert!(end.is_some(), "a peer without a window stays connected");
    assert!(since.elapsed() >= Duration::from_millis(900), "it had its time: {:?}", since.elapsed());
    // Trailers need no window: the stream ends with a status all the same.
    let is_trailers =
        |frame: &ReceivedFrame| (frame.stream, frame.kind, frame.flags & 1) == (1, frame_type::HEADERS, 1);
    let has_trailers = received_frames(&received).iter().any(is_trailers);
    assert!(has_trailers, "the stream ends with trailers: {:?}", String::from_utf8_lossy(&received));
}

fn greedy() -> Hello {
    Hello { lanes: vec![Lane { name: "default".to_owned(), capacity: 1024 }], ..hello() }
}

async fn pile_up(stage: &Stage) -> Vec<Uuid> {
    let peer = stage.peer("deaf").await;
    let node = stage.world.id("deaf");
    let (mut call, _) = welcomed(&peer, greedy()).await;
    let mut database = stage.world.connect().await;
    let payload = vec![7; PAYLOAD_BYTES];
    let mut ids = Vec::new();
    let enqueueing = async {
        for _ in 0..COMMANDS {
            ids.push(enqueue(&mut database, &NewCommand::new(&node, &payload)).await.unwrap());
        }
    };
    // It keeps its connection alive and takes nothing from its stream.
    let reading_nothing = async {
        let begun = Instant::now();
        let ended = call.send_only(Duration::from_secs(3)).await;
        (ended, begun.elapsed())
    };
    let ((), (ended, took)) = tokio::join!(enqueueing, reading_nothing);
    measured("a node that never reads: the connection's end", format!("{ended:?} after {took:?}"));
    let end = end_of(&mut call).await;
    assert_eq!((end.status(), end.message.as_str()), (Some(UNAVAILABLE), SLOW), "{end:?}");
    ids
}

async fn comes_back(stage: &Stage, ids: &[Uuid]) {
    let identity = stage.world.register("deaf").await;
    let target = stage.world.target("g", &identity);
    // With less credit than is in flight already: what is new comes as what is old is done.
    let modest = Hello { lanes: vec![Lane { name: "default".to_owned(), capacity: 8 }], ..hello() };
    let (mut call, welcome) = welcomed(&target, modest).await;
    let mut got = Vec::new();
    let mut acks = 0;
    while acks < ids.len() {
        match answer(&mut call).await {
            Answer::Command(command) => {
                assert_eq!((command.attempt, command.session_epoch), (1, welcome.session_epoch));
                assert_eq!(command.payload.len(), PAYLOAD_BYTES);
                got.push(Uuid::from_slice(&command.command_id).unwrap());
                call.send(Frame::CommandUpdate(CommandUpdate {
                    r#ref: got.len() as u64,
                    command_id: command.command_id,
                    attempt: 1,
                    state: CommandState::Succeeded.into(),
                    ..CommandUpdate::default()
                }));
            }
            Answer::Ack(ack) => {
                acks += 1;
                assert_eq!((ack.r#ref, ack.state()), (acks as u64, CommandState::Succeeded));
            }
            other => panic!("{other:?} in the place of a command or an ack"),
        }
    }
    assert_eq!(got, ids, "each once, in the order in which they were enqueued");
    call.half_close();
    assert_eq!(end_of(&mut call).await.status(), Some(0));
}

/// Its credit is worth more than `sessions.outbox_bytes`: it gets as much at once as fits, and more as
/// it reports.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_as_fast_as_it_can_is_not_slow_whatever_its_credit() {
    let stage = Stage::open("reads_all", TIMES).await;
    let peer = stage.peer("eager").await;
    let node = stage.world.id("eager");
    let mut database = stage.world.connect().await;
    let nodes = vec![node; COMMANDS];
    enqueue_many(&mut database, &nodes, &vec![7; PAYLOAD_BYTES]).await.unwrap();
    let (mut call, _) = welcomed(&peer, greedy()).await;
    let (mut commands, mut acks) = (0, 0);
    while acks < COMMANDS {
        match answer(&mut call).await {
            Answer::Command(command) => {
                commands += 1;
                call.send(Frame::CommandUpdate(CommandUpdate {
                    r#ref: commands,
                    command_id: command.command_id,
                    attempt: 1,
                    state: CommandState::Accepted.into(),
                    ..CommandUpdate::default()
                }));
            }
            Answer::Ack(_) => acks += 1,
            other => panic!("{other:?} in the place of a command or an ack"),
        }
    }
    drop(call);
    stage.close().await;
}

//! Peers that say nothing, or too little too slowly: each is cut when its time is up, no earlier and
//! not much later.
//!
//! The stories wait side by side: what is waited for is time.

use std::time::Duration;

use bytes::Bytes;
use gateway_proto::framing::encode;
use gateway_proto::v1::gateway_frame::Frame as Answer;
use gateway_proto::v1::{CommandState, CommandUpdate, NodeFrame, node_frame::Frame};
use gateway_testbed::node::Target;
use gateway_testbed::raw::{RawConnection, call_on, frame_type, http2_frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::stage::{INVALID_ARGUMENT, Stage, end_of, hello, opened, prefix, welcomed};
use crate::support::{SOON, UNAVAILABLE, within};

/// Short times, so that the stories are; what is tested is that each is kept.
const SHORT_TIMES: &str = "
[sessions]
handshake_timeout = '1500ms'
hello_timeout = '1200ms'
streamless_timeout = '1s'
heartbeat_interval = '1s'
missed_heartbeats = 4
send_timeout = '1s'
[shards]
receive_bytes = '1MiB'
";
const HANDSHAKE: Duration = Duration::from_millis(1500);
const HELLO: Duration = Duration::from_millis(1200);
const STREAMLESS: Duration = Duration::from_secs(1);
const HEARTBEATS: Duration = Duration::from_secs(4);
const WHOLE_FRAME: Duration = Duration::from_secs(3);
/// How much later than due a cut may come, on a machine that others use too.
const LATE: Duration = Duration::from_secs(3);
const DRIP: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_says_nothing_is_cut_when_its_time_is_up() {
    let stage = Stage::open("silence", SHORT_TIMES).await;
    let (mute, dead, slow) = (stage.peer("mute").await, stage.peer("dead").await, stage.peer("slow").await);
    let stage = &stage;
    tokio::join!(
        stage.story("a client opens TCP and says nothing", silent_tcp(stage)),
        stage.story("a ClientHello comes byte by byte", dripping_tls(stage)),
        stage.story("TLS is up and nothing follows", silent_tls(&mute)),
        stage.story("a preface comes byte by byte", dripping_preface(&mute)),
        stage.story("a connection has no stream", streamless(&mute)),
        stage.story("headers come byte by byte", dripping_headers(&mute)),
        stage.story("a stream says nothing", silent_stream(&mute)),
        stage.story("a Hello comes byte by byte", dripping_hello(&mute)),
        stage.story("a node has no heartbeat", no_heartbeat(&dead)),
        stage.story("a frame comes byte by byte", dripping_frame(&slow)),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_silent_leaves_nothing_behind() {
    let stage = Stage::open("silence_left", SHORT_TIMES).await;
    let (mute, dead) = (stage.peer("mute").await, stage.peer("dead").await);
    let hogs = [stage.peer("hog-0").await, stage.peer("hog-1").await, stage.peer("hog-2").await];
    let honest = stage.peer("honest").await;
    tokio::join!(
        stage.story("clients open TCP and say nothing", silent_tcp(&stage)),
        stage.story("streams say nothing", silent_stream(&mute)),
        stage.story("a node has no heartbeat", no_heartbeat(&dead)),
        stage.story("hogs hold the memory for large frames", behind_hogs(&hogs, &honest)),
    );
    stage.close().await;
}

/// It ended when `due` was over, measured from `since`.
fn in_time(what: &str, due: Duration, since: Instant) {
    let took = since.elapsed();
    assert!(took + Duration::from_millis(50) >= due, "{what}: cut after {took:?}, due after {due:?}");
    assert!(took < due + LATE, "{what}: cut after {took:?}, due after {due:?}");
}

async fn closed(mut tcp: TcpStream, what: &str) {
    let mut answer = Vec::new();
    // The end may be a reset, where bytes of ours were left unread.
    let _ = within(SOON, what, tcp.read_to_end(&mut answer)).await;
}

async fn silent_tcp(stage: &Stage) {
    let since = Instant::now();
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(stage.gateway.address()).await.unwrap());
    }
    for tcp in silent {
        closed(tcp, "a silent socket is closed").await;
        in_time("a silent socket", HANDSHAKE, since);
    }
}

async fn dripping_tls(stage: &Stage) {
    let since = Instant::now();
    let tcp = TcpStream::connect(stage.gateway.address()).await.unwrap();
    let (mut read, mut write) = tcp.into_split();
    let drip = async {
        // A record of 512 bytes that holds the begin of a ClientHello.
        for byte in [22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3].into_iter().chain(std::iter::repeat(7)) {
            if write.write_all(&[byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(DRIP).await;
        }
    };
    let mut rest = Vec::new();
    tokio::select! {
        () = drip => {}
        _ = read.read_to_end(&mut rest) => {}
        () = tokio::time::sleep(SOON) => panic!("a dripping ClientHello is never cut"),
    }
    in_time("a dripping ClientHello", HANDSHAKE, since);
}

async fn silent_tls(peer: &Target) {
    let since = Instant::now();
    let mut connection = RawConnection::open(peer).await.unwrap();
    assert!(connection.read_to_end(SOON).await.1.is_some(), "a silent TLS connection stays open");
    in_time("a silent TLS connection", HANDSHAKE, since);
}

/// Sends `bytes`, a byte at a time, until the connection ends.
async fn drip(connection: &mut RawConnection, bytes: impl Iterator<Item = u8>) {
    let begun = Instant::now();
    for byte in bytes {
        assert!(begun.elapsed() < SOON, "what drips is never cut");
        if connection.write(&[byte]).await.is_err() {
            return;
        }
        if connection.read_to_end(DRIP).await.1.is_some() {
            return;
        }
    }
    panic!("all bytes were taken");
}

async fn dripping_preface(peer: &Target) {
    let since = Instant::now();
    let mut connection = RawConnection::open(peer).await.unwrap();
    drip(&mut connection, gateway_testbed::raw::PREFACE.iter().copied()).await;
    in_time("a dripping preface", HANDSHAKE, since);
}

async fn streamless(peer: &Target) {
    let mut connection = RawConnection::open(peer).await.unwrap();
    let since = Instant::now();
    connection.start_http2().await.unwrap();
    // PINGs do not keep it.
    connection.write(&http2_frame(frame_type::PING, 0, 0, b"12345678")).await.unwrap();
    let (bytes, end) = connection.read_to_end(SOON).await;
    assert!(end.is_some(), "a connection without a stream stays open");
    in_time("a connection without a stream", STREAMLESS, since);
    // The last 17 bytes are a GOAWAY without an error.
    let goaway = &bytes[bytes.len() - 17..];
    assert_eq!((goaway[3], &goaway[13..17]), (frame_type::GOAWAY, &[0, 0, 0, 0][..]), "{bytes:?}");
}

async fn dripping_headers(peer: &Target) {
    let mut connection = RawConnection::open(peer).await.unwrap();
    let since = Instant::now();
    connection.start_http2().await.unwrap();
    let headers = call_on(1);
    drip(&mut connection, headers.into_iter()).await;
    in_time("dripping headers", STREAMLESS, since);
}

const NO_HELLO: &str = "no Hello came within 1.2s of the stream's opening (sessions.hello_timeout)";

async fn silent_stream(peer: &Target) {
    let mut call = opened(peer).await;
    let since = Instant::now();
    let end = end_of(&mut call).await;
    assert_eq!((end.status(), end.message.as_str()), (Some(INVALID_ARGUMENT), NO_HELLO));
    in_time("a silent stream", HELLO - Duration::from_millis(100), since);
}

async fn dripping_hello(peer: &Target) {
    let mut call = opened(peer).await;
    let since = Instant::now();
    call.send_bytes(prefix(0, 1000).to_vec());
    let end = loop {
        call.send_bytes(&b"\x0a"[..]);
        match call.end(DRIP).await {
            Some(end) => break end,
            None => assert!(since.elapsed() < SOON, "a dripping Hello is never cut"),
        }
    };
    assert_eq!((end.status(), end.message.as_str()), (Some(INVALID_ARGUMENT), NO_HELLO));
    in_time("a dripping Hello", HELLO - Duration::from_millis(100), since);
}

async fn no_heartbeat(peer: &Target) {
    let (mut call, _) = welcomed(peer, hello()).await;
    let since = Instant::now();
    let end = end_of(&mut call).await;
    assert_eq!(end.status(), Some(UNAVAILABLE), "{end:?}");
    assert_eq!(end.message, "no heartbeat for too long; reconnect");
    in_time("a node without a heartbeat", HEARTBEATS, since);
}

/// Declares a frame of `length`, sends a byte of it now and then, until it is cut.
async fn drip_frame(peer: &Target, length: u32) -> Instant {
    let (mut call, _) = welcomed(peer, hello()).await;
    let since = Instant::now();
    call.send_bytes(prefix(0, length).to_vec());
    let end = loop {
        call.send_bytes(&b"\x0a"[..]);
        match call.end(DRIP).await {
            Some(end) => break end,
            None => assert!(since.elapsed() < 3 * SOON, "a dripping frame is never cut"),
        }
    };
    assert_eq!(end.status(), Some(INVALID_ARGUMENT), "{end:?}");
    let sentence = "a frame was not received whole within 3s (3 times sessions.send_timeout)";
    assert_eq!(end.message, sentence);
    since
}

async fn dripping_frame(peer: &Target) {
    for length in [60, 1 << 20] {
        let since = drip_frame(peer, length).await;
        in_time("a dripping frame", WHOLE_FRAME - Duration::from_millis(100), since);
    }
}

/// Three nodes, one after the other, hold all the memory for large frames for as long as they may.
/// One that waits behind them is held back by us: it must not count as silent, and its result is
/// stored in the end.
async fn behind_hogs(hogs: &[Target; 3], honest: &Target) {
    let (mut call, _) = welcomed(honest, hello()).await;
    let hold = async {
        tokio::join!(
            drip_frame(&hogs[0], 1 << 20),
            drip_frame(&hogs[1], 1 << 20),
            drip_frame(&hogs[2], 1 << 20)
        )
    };
    let report = async {
        // Behind all of them.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let result: Bytes = vec![7; 300_000].into();
        let update = CommandUpdate {
            r#ref: 1,
            command_id: Bytes::from_static(&[9; 16]),
            attempt: 1,
            state: CommandState::Succeeded.into(),
            result,
            ..CommandUpdate::default()
        };
        call.send_bytes(encode(&NodeFrame { frame: Some(Frame::CommandUpdate(update)) }));
        let end_or_answer = within(2 * SOON, "the result behind the hogs is answered", async {
            loop {
                if let Some(frame) = call.frame(SOON).await {
                    return frame;
                }
            }
        })
        .await;
        match end_or_answer {
            Ok(frame) => match frame.frame {
                Some(Answer::Rejected(rejected)) => assert_eq!(rejected.r#ref, 1),
                other => panic!("{other:?} in the place of an answer"),
            },
            Err(end) => panic!("a node that we held back was cut: {end:?}"),
        }
        call.half_close();
        assert_eq!(end_of(&mut call).await.status(), Some(0));
    };
    tokio::join!(hold, report);
}

//! Peers that break WebSocket and HTTP/1.1, or say too little too slowly in them: each gets its close code or its
//! answer, or is cut when its time is up, and a node on the same shard goes on.
//!
//! What comes too slowly waits side by side: what is waited for is time.

use std::time::Duration;

use gateway_proto::http1;
use gateway_proto::v1::{Hello, Lane, NodeFrame, gateway_frame, node_frame::Frame};
use gateway_testbed::database::{NewCommand, enqueue};
use gateway_testbed::node::{Target, Transport};
use gateway_testbed::raw::RawConnection;
use prost::Message;
use tokio::time::Instant;

use crate::stage::{INVALID_ARGUMENT, Stage, hello};
use crate::support::{SOON, UNAVAILABLE, within};

const LIMITS: &str = "
[sessions]
frame_bytes = '768KiB'
hello_timeout = '1200ms'
streamless_timeout = '1s'
send_timeout = '1s'
heartbeat_interval = '5s'
";
const FRAME_BYTES: usize = 768 << 10;
const FIN: u8 = 0x80;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const DRIP: Duration = Duration::from_millis(50);
/// A peer may read its answer for so long; see `LEAVE_TIMEOUT` of the shard.
const LEAVING: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_breaks_websocket_is_told_how_and_nobody_else_notices() {
    let stage = Stage::open("websocket", LIMITS).await;
    let peer = stage.peer("hostile").await.over(Transport::WebSocket);
    stage.story("frames are no frames of a client", bad_frames(&peer)).await;
    stage.story("a message is too large", too_large(&peer)).await;
    stage.story("a message has no end", endless_fragments(&peer)).await;
    stage.story("a session is fragmented as far as it may be", many_fragments(&peer)).await;
    let floods = stage.counter("floods").await;
    stage.story("pings come and come", ping_flood(&peer)).await;
    stage.story("tiny fragments come and come", tiny_fragments(&peer)).await;
    stage.counted("floods", floods + 2).await;
    stage.story("pings are answered", answered_pings(&peer)).await;
    stage.story("a peer is gone without a word", gone(&peer)).await;
    stage.story("a peer never reads", never_reads(&stage, &peer)).await;
    stage.story("heads and bodies are too large or not what they say", bad_requests(&peer)).await;
    let stage_ref = &stage;
    tokio::join!(
        stage_ref.story("half a head and then nothing", half_a_head(&peer)),
        stage_ref.story("a head comes byte by byte", dripping_head(&peer)),
        stage_ref.story("nothing comes at all", silent(&peer)),
        stage_ref.story("a body does not come", silent_body(&peer)),
        stage_ref.story("a session says nothing", silent_session(&peer)),
        stage_ref.story("a frame comes byte by byte", dripping_frame(&peer)),
        stage_ref.story("the end is not answered", unanswered_end(&peer)),
    );
    stage.close().await;
}

fn upgrade() -> String {
    format!(
        "GET {} HTTP/1.1\r\nhost: g\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: gateway.v1\r\n\r\n",
        http1::SESSION
    )
}

/// A masked frame.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = head(first, payload.len());
    bytes.extend(payload.iter().zip([1u8, 2, 3, 4].iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

/// The head of a masked frame.
fn head(first: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![first, FIN | 127];
    bytes.extend((length as u64).to_be_bytes());
    if length < 126 {
        bytes.truncate(1);
        bytes.push(FIN | length as u8);
    }
    bytes.extend([1, 2, 3, 4]);
    bytes
}

fn hello_message() -> Vec<u8> {
    NodeFrame { frame: Some(Frame::Hello(hello())) }.encode_to_vec()
}

/// A session of any bytes, with what came and was not looked at yet.
struct Raw {
    connection: RawConnection,
    received: Vec<u8>,
}

impl Raw {
    async fn connect(target: &Target) -> Self {
        let connection = within(SOON, "a connection", RawConnection::open(target)).await.unwrap();
        Self { connection, received: Vec::new() }
    }

    /// An upgraded connection.
    async fn open(target: &Target) -> Self {
        let mut raw = Self::connect(target).await;
        raw.write(upgrade().as_bytes()).await;
        let head = raw.until(|received| {
            let end = received.windows(4).position(|window| window == b"\r\n\r\n")?;
            Some(end + 4)
        });
        let head = head.await;
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        raw
    }

    /// A session that was welcomed.
    async fn welcomed(target: &Target) -> Self {
        let mut raw = Self::open(target).await;
        raw.write(&frame(FIN | BINARY, &hello_message())).await;
        let (opcode, message) = raw.frame().await;
        let welcome = gateway_proto::v1::GatewayFrame::decode(&message[..]).unwrap().frame;
        assert!(opcode == BINARY && matches!(welcome, Some(gateway_frame::Frame::Welcome(_))), "{welcome:?}");
        raw
    }

    async fn write(&mut self, bytes: &[u8]) {
        within(SOON, "bytes are taken", self.connection.write(bytes)).await.unwrap();
    }

    /// Reads until `whole` says how many bytes are one thing.
    async fn until(&mut self, whole: impl Fn(&[u8]) -> Option<usize>) -> Vec<u8> {
        loop {
            if let Some(length) = whole(&self.received) {
                return self.received.drain(..length).collect();
            }
            let more = self.connection.read_some(SOON).await;
            self.received.extend(more.unwrap_or_else(|end| panic!("{end:?} after {:?}", self.received)));
        }
    }

    /// The next frame of the gateway: opcode and payload.
    async fn frame(&mut self) -> (u8, Vec<u8>) {
        let bytes = self
            .until(|received| {
                let (at, length) = payload_of(received)?;
                (received.len() >= at + length).then_some(at + length)
            })
            .await;
        let (at, _) = payload_of(&bytes).unwrap();
        assert_eq!(bytes[0] & 0xf0, FIN, "whole frames without reserved bits");
        (bytes[0] & 0x0f, bytes[at..].to_vec())
    }

    /// The session ends with this status and sentence, and the connection once that is answered.
    async fn closes(mut self, status: u32, sentence: &str) {
        self.is_told(status, sentence).await;
        self.write(&frame(FIN | CLOSE, b"")).await;
        self.must_end().await;
    }

    /// Closes, and is answered.
    async fn close(mut self) {
        self.write(&frame(FIN | CLOSE, b"\x03\xe8bye")).await;
        self.is_told(0, "").await;
        self.must_end().await;
    }

    async fn is_told(&mut self, status: u32, sentence: &str) {
        loop {
            let (opcode, payload) = self.frame().await;
            if opcode == CLOSE {
                let code = u16::from_be_bytes([payload[0], payload[1]]);
                let reason = std::str::from_utf8(&payload[2..]).unwrap();
                assert_eq!(u32::from(code), u32::from(http1::CLOSE_BASE) + status, "{reason}");
                assert!(reason.contains(sentence), "{sentence:?} is not in {reason:?}");
                return;
            }
        }
    }

    async fn must_end(mut self) {
        let (rest, end) = self.connection.read_to_end(LEAVING / 2).await;
        assert!(end.is_some() && rest.is_empty(), "an answered close ends the connection at once: {rest:?}");
    }

    /// The connection ends by itself, when it is due.
    async fn must_be_cut(mut self, what: &str, due: Duration, since: Instant) -> Vec<u8> {
        let (received, end) = self.connection.read_to_end(SOON).await;
        assert!(end.is_some(), "{what}: it still stands");
        let took = since.elapsed();
        let in_time = took + Duration::from_millis(50) >= due && took < due + Duration::from_secs(3);
        assert!(in_time, "{what}: cut after {took:?}, due after {due:?}");
        received
    }
}

/// Where the payload of a frame that is not masked begins, and its length.
fn payload_of(bytes: &[u8]) -> Option<(usize, usize)> {
    match *bytes.get(1)? {
        126 => Some((4, usize::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?)))),
        127 => Some((10, u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?) as usize)),
        short => Some((2, usize::from(short))),
    }
}

async fn bad_frames(peer: &Target) {
    let mut interleaved = frame(BINARY, b"a");
    interleaved.extend(frame(FIN | BINARY, b"b"));
    for (bytes, sentence) in [
        (vec![FIN | BINARY, 2, b'h', b'i'], "not masked"),
        (frame(FIN | TEXT, b"hello"), "text message"),
        (frame(FIN | BINARY | 0x40, b"compressed"), "reserved bits"),
        (frame(FIN | 3, b""), "opcode 3"),
        (frame(PING, b""), "control frame is fragmented"),
        (frame(FIN | PING, &[0; 126]), "longer than 125 bytes"),
        (frame(FIN, b""), "continues nothing"),
        (interleaved, "before the one before it was whole"),
        (frame(FIN | BINARY, b"\xff\xff\xff"), "no valid protobuf"),
        ([frame(BINARY, b"half"), frame(FIN | CLOSE, b"")].concat(), "inside a frame"),
    ] {
        let mut raw = Raw::open(peer).await;
        raw.write(&bytes).await;
        raw.closes(INVALID_ARGUMENT, sentence).await;
    }
}

async fn too_large(peer: &Target) {
    let mut raw = Raw::open(peer).await;
    raw.write(&head(FIN | BINARY, FRAME_BYTES)).await;
    raw.closes(INVALID_ARGUMENT, "for a Hello, which comes first").await;
    let mut raw = Raw::welcomed(peer).await;
    raw.write(&head(FIN | BINARY, FRAME_BYTES + 1)).await;
    raw.closes(INVALID_ARGUMENT, "a frame of 786433 bytes is over the limit of 786432").await;
    let mut raw = Raw::welcomed(peer).await;
    raw.write(&head(FIN | BINARY, usize::MAX)).await;
    raw.closes(INVALID_ARGUMENT, "is over the limit").await;
}

async fn endless_fragments(peer: &Target) {
    let mut raw = Raw::welcomed(peer).await;
    let fragment = vec![0; 64 << 10];
    raw.write(&frame(BINARY, &fragment)).await;
    for _ in 1..FRAME_BYTES / fragment.len() {
        raw.write(&frame(0, &fragment)).await;
    }
    raw.write(&head(0, 1)).await;
    raw.closes(INVALID_ARGUMENT, "is over the limit").await;
}

/// A message may come in pieces, with pings between them.
async fn many_fragments(peer: &Target) {
    let mut raw = Raw::open(peer).await;
    let hello = hello_message();
    let (first, rest) = hello.split_at(1);
    raw.write(&frame(BINARY, first)).await;
    for byte in rest {
        raw.write(&[frame(0, &[*byte]), frame(FIN | PING, b"!")].concat()).await;
    }
    raw.write(&frame(FIN, b"")).await;
    loop {
        match raw.frame().await {
            (PONG, payload) => assert_eq!(payload, b"!"),
            (opcode, _) => {
                assert_eq!(opcode, BINARY, "it is welcomed");
                break;
            }
        }
    }
    raw.close().await;
}

async fn ping_flood(peer: &Target) {
    let mut raw = Raw::welcomed(peer).await;
    let pings: Vec<u8> = (0..3000).flat_map(|_| frame(FIN | PING, b"x")).collect();
    raw.write(&pings).await;
    raw.closes(INVALID_ARGUMENT, "floods").await;
}

async fn tiny_fragments(peer: &Target) {
    let mut raw = Raw::welcomed(peer).await;
    let fragments: Vec<u8> = (0..3000).flat_map(|_| frame(0, b"")).collect();
    raw.write(&[frame(BINARY, b""), fragments].concat()).await;
    raw.closes(INVALID_ARGUMENT, "floods").await;
}

async fn answered_pings(peer: &Target) {
    let mut raw = Raw::welcomed(peer).await;
    for payload in [&b""[..], b"are you there?", &[7; 125]] {
        raw.write(&frame(FIN | PING, payload)).await;
        assert_eq!(raw.frame().await, (PONG, payload.to_vec()));
    }
    raw.write(&frame(FIN | PONG, b"unasked")).await;
    raw.close().await;
}

async fn gone(peer: &Target) {
    for bytes in [vec![], frame(FIN | BINARY, &hello_message()), head(FIN | BINARY, 100)] {
        let mut raw = Raw::open(peer).await;
        raw.write(&bytes).await;
        drop(raw);
    }
}

/// Commands come, and nobody reads them: the session is cut as slow, and who begins to read then is told so.
async fn never_reads(stage: &Stage, peer: &Target) {
    let mut raw = Raw::open(peer).await;
    // Or the sockets would hold all that is sent ahead.
    socket2::SockRef::from(raw.connection.tcp()).set_recv_buffer_size(16 << 10).unwrap();
    let lanes = vec![Lane { name: "default".to_owned(), capacity: 1024 }];
    let greedy = NodeFrame { frame: Some(Frame::Hello(Hello { lanes, ..hello() })) }.encode_to_vec();
    raw.write(&frame(FIN | BINARY, &greedy)).await;
    let (node, mut database) = (stage.world.id("hostile"), stage.world.connect().await);
    let payload = vec![7; 256 << 10];
    for _ in 0..64 {
        enqueue(&mut database, &NewCommand::new(&node, &payload)).await.unwrap();
    }
    stage.closed("slow-peer", 1).await;
    raw.closes(UNAVAILABLE, "the node did not read what it was sent; reconnect").await;
}

async fn bad_requests(peer: &Target) {
    let long = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(20_000));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(100));
    let post = |length: &str| format!("POST /gateway.v1/Join HTTP/1.1\r\nhost: g\r\n{length}\r\n");
    for (request, status) in [
        (long, "431"),
        (many, "431"),
        (post("content-length: 10000000\r\n"), "400"),
        (post("content-length: 5\r\ncontent-length: 6\r\n"), "400"),
        (post("transfer-encoding: chunked\r\n"), "411"),
        (post("content-length: 3\r\n") + "\u{7f}\u{7f}\u{7f}", "400"),
        (post("content-length: 0\r\n"), "400"),
    ] {
        let mut raw = Raw::connect(peer).await;
        raw.write(request.as_bytes()).await;
        let (answer, end) = raw.connection.read_to_end(SOON).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:.100}: {answer}");
        assert!(end.is_some());
    }
}

async fn half_a_head(peer: &Target) {
    let since = Instant::now();
    let mut raw = Raw::connect(peer).await;
    raw.write(b"GET /gateway.v1/session HTTP/1.1\r\nhost").await;
    let answer = raw.must_be_cut("half a head", Duration::from_secs(1), since).await;
    assert!(answer.starts_with(b"HTTP/1.1 408 "), "{}", String::from_utf8_lossy(&answer));
}

async fn dripping_head(peer: &Target) {
    let since = Instant::now();
    let mut raw = Raw::connect(peer).await;
    for byte in upgrade().into_bytes() {
        if raw.connection.write(&[byte]).await.is_err() || since.elapsed() > SOON {
            break;
        }
        tokio::time::sleep(DRIP).await;
    }
    // The answer, then the time that a peer has to read it.
    assert!(
        since.elapsed() < Duration::from_secs(1) + LEAVING + Duration::from_secs(4),
        "{:?}",
        since.elapsed()
    );
    drop(raw);
}

async fn silent(peer: &Target) {
    let since = Instant::now();
    let raw = Raw::connect(peer).await;
    assert!(raw.must_be_cut("a silent connection", Duration::from_secs(1), since).await.is_empty());
}

async fn silent_body(peer: &Target) {
    let since = Instant::now();
    let mut raw = Raw::connect(peer).await;
    raw.write(b"POST /gateway.v1/Join HTTP/1.1\r\nhost: g\r\ncontent-length: 5\r\n\r\nab").await;
    let answer = raw.must_be_cut("half a body", Duration::from_millis(1200), since).await;
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&answer));
}

async fn silent_session(peer: &Target) {
    let since = Instant::now();
    let raw = Raw::open(peer).await;
    raw.closes(INVALID_ARGUMENT, "Hello").await;
    assert!(since.elapsed() >= Duration::from_millis(1150), "{:?}", since.elapsed());
}

async fn dripping_frame(peer: &Target) {
    let mut raw = Raw::open(peer).await;
    let since = Instant::now();
    for byte in head(FIN | BINARY, 1000).into_iter().chain(std::iter::repeat_n(7, 1000)) {
        if raw.connection.write(&[byte]).await.is_err() || since.elapsed() > Duration::from_secs(2) {
            break;
        }
        tokio::time::sleep(DRIP).await;
    }
    // A close of ours would be a part of the frame that never ends.
    raw.is_told(INVALID_ARGUMENT, "").await;
}

/// A peer that does not answer the end is left after a while.
async fn unanswered_end(peer: &Target) {
    let mut raw = Raw::open(peer).await;
    let since = Instant::now();
    raw.write(&frame(FIN | BINARY, b"\xff\xff\xff")).await;
    let (opcode, _) = raw.frame().await;
    assert_eq!(opcode, CLOSE);
    raw.must_be_cut("an unanswered close", LEAVING, since).await;
}

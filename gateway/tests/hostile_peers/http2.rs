//! HTTP/2 that floods, lies or is none: the connection ends, and only that.
//!
//! 1. A flood goes on until it is cut, and what it could send until then is bounded.
//! 2. What is allowed (some PINGs, 16 streams) stands beside what is not.

use std::time::Duration;

use gateway_proto::path;
use gateway_testbed::node::Target;
use gateway_testbed::raw::{
    END_HEADERS, RawConnection, ReceivedFrame, call_headers, call_on, calls_reset, frame_type, goaway_code,
    header_block, http2_frame, received_frames,
};

use crate::stage::{Stage, hello, welcomed};
use crate::support::{SOON, measured, within};

const ACK: u8 = 1;
const PRIORITY: u8 = 2;
const UNKNOWN: u8 = 0xbb;

const PROTOCOL_ERROR: u32 = 1;
const FRAME_SIZE_ERROR: u32 = 6;
const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

/// What a flood may cost before it is cut, kernel buffers of both sides included.
const FLOOD_BYTES: usize = 32 << 20;
const STREAMS: u32 = 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_that_floods_or_lies_ends_its_connection_alone() {
    let stage = Stage::open("http2", "[admission]\nopens_per_second = 5000\nopens_burst = 5000").await;
    let peer = stage.peer("flooder").await;
    stage.story("garbage comes in the place of HTTP/2", no_http2(&peer)).await;
    stage.story("one connection opens too many streams", too_many_streams(&peer)).await;
    stage.story("a client keeps itself alive by PINGs", patient_pings(&peer)).await;

    let floods = stage.counter("floods").await;
    let metered = control_floods();
    for (what, opening, chunk) in &metered {
        stage.story(what, flood(&peer, what, opening, chunk)).await;
    }
    stage.counted("floods", floods + metered.len() as u64).await;
    stage.story("CONTINUATION without an end", continuation_flood(&peer)).await;
    stage.story("streams are opened and reset at once", rapid_reset(&stage, &peer)).await;
    stage.story("empty DATA without an end", empty_data(&peer)).await;
    stage.close().await;
}

async fn connected(peer: &Target) -> RawConnection {
    within(SOON, "a connection", RawConnection::open(peer)).await.unwrap()
}

/// HTTP/2 is up, and we have seen the gateway's settings.
async fn started(peer: &Target) -> RawConnection {
    let mut connection = connected(peer).await;
    connection.start_http2().await.unwrap();
    connection
}

/// Reads until the gateway ends the connection; what came.
async fn cut(mut connection: RawConnection, what: &str) -> Vec<ReceivedFrame> {
    let (bytes, end) = connection.read_to_end(SOON).await;
    assert!(end.is_some(), "{what}: the connection still stands after {SOON:?}");
    received_frames(&bytes)
}

async fn no_http2(peer: &Target) {
    for bytes in [&b"GET / HTTP/1.1\r\nhost: gateway\r\n\r\n"[..], &[0xff; 200], &[0; 200]] {
        let mut connection = connected(peer).await;
        connection.write(bytes).await.unwrap();
        cut(connection, "garbage for a preface").await;
    }
    // A good preface, then what no connection may hold; each with the code that says so.
    let headers = |block: &[u8]| http2_frame(frame_type::HEADERS, END_HEADERS, 1, block);
    let broken: [(&str, Vec<u8>, u32); 7] = [
        ("DATA on stream 0", http2_frame(frame_type::DATA, 0, 0, b"x"), PROTOCOL_ERROR),
        ("DATA on an idle stream", http2_frame(frame_type::DATA, 0, 5, b"x"), PROTOCOL_ERROR),
        (
            "a stream of the server's",
            http2_frame(frame_type::HEADERS, END_HEADERS, 2, &call_headers("/")),
            PROTOCOL_ERROR,
        ),
        // RFC 9113 asks for FRAME_SIZE_ERROR here and COMPRESSION_ERROR at HPACK; h2 says this, and
        // ends the connection as it must.
        ("a PING of 3 bytes", http2_frame(frame_type::PING, 0, 0, b"abc"), PROTOCOL_ERROR),
        ("CONTINUATION without HEADERS", http2_frame(frame_type::CONTINUATION, 0, 1, b"x"), PROTOCOL_ERROR),
        ("HPACK that refers to nothing", headers(&[0xfe]), PROTOCOL_ERROR),
        ("a frame over 16 KiB", http2_frame(frame_type::DATA, 0, 1, &[0; (16 << 10) + 1]), FRAME_SIZE_ERROR),
    ];
    for (what, bytes, code) in broken {
        let mut connection = started(peer).await;
        connection.write(&bytes).await.unwrap();
        let frames = cut(connection, what).await;
        assert_eq!(goaway_code(&frames), Some(code), "{what}: {frames:?}");
    }
}

async fn too_many_streams(peer: &Target) {
    let mut connection = started(peer).await;
    let opening: Vec<u8> = (0..STREAMS + 2).flat_map(|index| call_on(2 * index + 1)).collect();
    connection.write(&opening).await.unwrap();
    // Half-closing those within the bound brings their ends: trailers with the status OK.
    let closing: Vec<u8> =
        (0..STREAMS).flat_map(|index| http2_frame(frame_type::DATA, 1, 2 * index + 1, b"")).collect();
    connection.write(&closing).await.unwrap();
    let (bytes, _) = connection.read_to_end(Duration::from_secs(1)).await;
    let frames = received_frames(&bytes);
    let refused: Vec<(u32, u32)> = frames
        .iter()
        .filter(|frame| frame.kind == frame_type::RST_STREAM)
        .map(|frame| (frame.stream, u32::from_be_bytes(frame.payload[..4].try_into().unwrap())))
        .collect();
    assert_eq!(
        refused[..2],
        [(2 * STREAMS + 1, REFUSED_STREAM), (2 * STREAMS + 3, REFUSED_STREAM)],
        "{frames:?}"
    );
    for index in 0..STREAMS {
        let ended = frames.iter().any(|frame| {
            frame.kind == frame_type::HEADERS && frame.stream == 2 * index + 1 && frame.flags & 1 == 1
        });
        assert!(ended, "stream {} was served to its end: {frames:?}", 2 * index + 1);
    }
    assert_eq!(goaway_code(&frames), None, "the connection is not at fault");
}

async fn patient_pings(peer: &Target) {
    let mut connection = started(peer).await;
    let pings: Vec<u8> = (0..200).flat_map(|_| http2_frame(frame_type::PING, 0, 0, b"12345678")).collect();
    connection.write(&pings).await.unwrap();
    let (bytes, end) = connection.read_to_end(Duration::from_millis(500)).await;
    assert_eq!(end, None, "some PINGs are no flood");
    let acks = received_frames(&bytes)
        .iter()
        .filter(|frame| frame.kind == frame_type::PING && frame.flags == ACK)
        .count();
    assert_eq!(acks, 200);
}

/// Floods that the gateway itself meters: what they are, what goes before, what is repeated.
fn control_floods() -> Vec<(&'static str, Vec<u8>, Vec<u8>)> {
    let many = |frame: Vec<u8>| frame.repeat(200);
    let nothing = Vec::new;
    vec![
        ("PINGs flood", nothing(), many(http2_frame(frame_type::PING, 0, 0, b"12345678"))),
        ("acks of PINGs flood", nothing(), many(http2_frame(frame_type::PING, ACK, 0, b"12345678"))),
        ("SETTINGS flood", nothing(), many(http2_frame(frame_type::SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]))),
        ("empty SETTINGS flood", nothing(), many(http2_frame(frame_type::SETTINGS, 0, 0, &[]))),
        (
            "window updates flood",
            call_on(1),
            many(http2_frame(frame_type::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])),
        ),
        ("priorities flood", nothing(), many(http2_frame(PRIORITY, 0, 3, &[0, 0, 0, 0, 1]))),
        ("frames of no known kind flood", nothing(), many(http2_frame(UNKNOWN, 0, 0, b""))),
    ]
}

/// Sends `chunk` again and again until the connection ends; what came.
async fn flood(peer: &Target, what: &str, opening: &[u8], chunk: &[u8]) -> Vec<ReceivedFrame> {
    let mut connection = started(peer).await;
    connection.write(opening).await.unwrap();
    let mut sent = 0;
    let pouring = async {
        while sent < FLOOD_BYTES && connection.write(chunk).await.is_ok() {
            sent += chunk.len();
        }
    };
    within(SOON, &format!("{what}: the flood is cut"), pouring).await;
    assert!(sent < FLOOD_BYTES, "{what}: {sent} bytes were taken");
    measured(what, format!("{sent} bytes until the cut"));
    cut(connection, what).await
}

async fn continuation_flood(peer: &Target) {
    let opening = http2_frame(frame_type::HEADERS, 0, 1, &call_headers(path::SESSION));
    let chunk =
        http2_frame(frame_type::CONTINUATION, 0, 1, &header_block(&[("x-more", "and more")])).repeat(50);
    let frames = flood(peer, "CONTINUATION without an end", &opening, &chunk).await;
    if let Some(code) = goaway_code(&frames) {
        assert_eq!(code, ENHANCE_YOUR_CALM, "{frames:?}");
    }
}

async fn rapid_reset(stage: &Stage, peer: &Target) {
    let mut connection = started(peer).await;
    let mut sent = 0u32;
    let pouring = async {
        while sent < 100_000 {
            if connection.write(&calls_reset(sent..sent + 50)).await.is_err() {
                break;
            }
            sent += 50;
        }
    };
    within(SOON, "rapid resets are cut", pouring).await;
    assert!(sent < 100_000, "{sent} streams were opened and reset on one connection");
    measured("rapid resets", format!("{sent} streams until the cut"));
    let frames = cut(connection, "rapid resets").await;
    if let Some(code) = goaway_code(&frames) {
        assert_eq!(code, ENHANCE_YOUR_CALM, "{frames:?}");
    }
    // The one who did it may come back as soon as it behaves.
    let (mut call, _) = welcomed(peer, hello()).await;
    call.half_close();
    crate::stage::ends(&mut call, 0, "").await;
    assert_eq!(stage.counter("panics").await, 0);
}

async fn empty_data(peer: &Target) {
    let chunk = http2_frame(frame_type::DATA, 0, 1, b"").repeat(200);
    let frames = flood(peer, "empty DATA without an end", &call_on(1), &chunk).await;
    if let Some(code) = goaway_code(&frames) {
        assert_eq!(code, ENHANCE_YOUR_CALM, "{frames:?}");
    }
}

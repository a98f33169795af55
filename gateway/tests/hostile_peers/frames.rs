//! Frames that are none, are too large, too short, compressed, or of the wrong kind: the stream ends
//! with a sentence that says what was wrong, and its node may come back at once.
//!
//! 1. Each sentence is compared as a whole: it is what an operator of nodes reads.

use bytes::{BufMut, Bytes, BytesMut};
use gateway_proto::framing::encode;
use gateway_proto::v1::gateway_frame::Frame as Answer;
use gateway_proto::v1::{EventBatch, Goodbye, Heartbeat, NodeFrame, TunnelRefused, node_frame::Frame};
use gateway_testbed::node::Target;
use prost::Message;

use crate::stage::{
    INVALID_ARGUMENT, OK, Stage, UNIMPLEMENTED, answer, end_of, ends, hello, opened, prefix, still_stands,
    welcomed,
};

const WRONG_FIRST: &str = "the first frame of a session must be Hello";
const COMPRESSED: &str = "compressed frames are not supported; send them with identity encoding";
const FRAME_BYTES: usize = 1 << 20;

pub async fn stories(stage: &Stage) {
    let peer = stage.peer("scribbler").await;
    stage.story("first frames are wrong", wrong_first_frames(&peer)).await;
    stage.story("bytes are no frames", garbage(&peer)).await;
    stage.story("frames are too large", too_large(&peer)).await;
    stage.story("streams end early", ends_early(&peer)).await;
    stage.story("frames are of no use", harmless(&peer)).await;
}

fn framed(frame: Frame) -> Bytes {
    encode(&NodeFrame { frame: Some(frame) })
}

/// A whole message of these bytes.
fn message(bytes: &[u8]) -> Bytes {
    let length = u32::try_from(bytes.len()).unwrap();
    [&prefix(0, length)[..], bytes].concat().into()
}

async fn wrong_first_frames(peer: &Target) {
    let beat = Frame::Heartbeat(Heartbeat { sequence: 1, ..Heartbeat::default() });
    let first: [Bytes; 5] = [
        framed(beat),
        framed(Frame::Goodbye(Goodbye::default())),
        framed(Frame::EventBatch(EventBatch {
            r#ref: 1,
            journal_id: "journal".to_owned(),
            ..EventBatch::default()
        })),
        framed(Frame::TunnelRefused(TunnelRefused::default())),
        // No arm at all, or one that this gateway does not know.
        message(b""),
    ];
    for bytes in first {
        let mut call = opened(peer).await;
        call.send_bytes(bytes);
        ends(&mut call, INVALID_ARGUMENT, WRONG_FIRST).await;
    }
    let (mut call, _) = welcomed(peer, hello()).await;
    call.send(Frame::Hello(hello()));
    ends(&mut call, INVALID_ARGUMENT, "a session has one Hello; this is the second").await;
    // The second comes before the first has its outcome.
    let mut call = opened(peer).await;
    call.send(Frame::Hello(hello()));
    call.send(Frame::Hello(hello()));
    ends(&mut call, INVALID_ARGUMENT, "a session has one Hello; this is the second").await;
}

async fn garbage(peer: &Target) {
    // Whole messages that are no protobuf, before and after the Welcome.
    for bytes in [&[0xff; 40][..], &[0x0a, 0x7f, 1, 2], b"\x0a\x02\x2a\xff"] {
        let mut call = opened(peer).await;
        call.send_bytes(message(bytes));
        let end = end_of(&mut call).await;
        assert_eq!(end.status(), Some(INVALID_ARGUMENT), "{bytes:?}: {end:?}");
        assert!(end.message.contains("is no valid protobuf"), "{bytes:?}: {end:?}");

        let (mut call, _) = welcomed(peer, hello()).await;
        call.send_bytes(message(bytes));
        let end = end_of(&mut call).await;
        assert_eq!(end.status(), Some(INVALID_ARGUMENT), "{bytes:?}: {end:?}");
    }
    // Bytes that have no frame's prefix.
    let not_framed = "the frame's flag byte is 71, which is neither 0 nor 1";
    let mut call = opened(peer).await;
    call.send_bytes("GET / HTTP/1.1\r\n\r\n");
    ends(&mut call, INVALID_ARGUMENT, not_framed).await;
    let (mut call, _) = welcomed(peer, hello()).await;
    call.send_bytes("GET / HTTP/1.1\r\n\r\n");
    ends(&mut call, INVALID_ARGUMENT, not_framed).await;
    // Two frames in the place of one.
    let mut call = opened(peer).await;
    let both = [
        NodeFrame { frame: Some(Frame::Hello(hello())) }.encode_to_vec(),
        NodeFrame { frame: Some(Frame::Heartbeat(Heartbeat::default())) }.encode_to_vec(),
    ];
    call.send_bytes(message(&both.concat()));
    let twice = "a frame holds more than one message; send each in a frame of its own";
    ends(&mut call, INVALID_ARGUMENT, twice).await;
    // Compressed, before and after the Welcome; the rest of the frame need not come.
    let mut call = opened(peer).await;
    call.send_bytes(prefix(1, 10).to_vec());
    ends(&mut call, UNIMPLEMENTED, COMPRESSED).await;
    let (mut call, _) = welcomed(peer, hello()).await;
    call.send_bytes(prefix(1, 10).to_vec());
    ends(&mut call, UNIMPLEMENTED, COMPRESSED).await;
}

async fn too_large(peer: &Target) {
    for (length, shown) in [(FRAME_BYTES as u32 + 1, "1048577"), (u32::MAX, "4294967295")] {
        let sentence =
            format!("a frame of {shown} bytes is over the limit of 1048576 (sessions.frame_bytes)");
        // The prefix is enough: nothing of the frame is taken. What comes first is a Hello, or too much.
        let first = format!(
            "a frame of {shown} bytes is over the limit of 296960 for a Hello, which comes first (it follows \
             from sessions.known_commands and its like)"
        );
        let mut call = opened(peer).await;
        call.send_bytes(prefix(0, length).to_vec());
        ends(&mut call, INVALID_ARGUMENT, &first).await;
        let (mut call, _) = welcomed(peer, hello()).await;
        call.send_bytes([&prefix(0, length)[..], &[0; 4096]].concat());
        ends(&mut call, INVALID_ARGUMENT, &sentence).await;
    }
    // One byte less is allowed: a field that nobody knows fills it.
    let (mut call, _) = welcomed(peer, hello()).await;
    call.send_bytes(message(&unknown_field(FRAME_BYTES)));
    still_stands(&mut call, 1).await;
    call.half_close();
    ends(&mut call, OK, "").await;
}

async fn ends_early(peer: &Target) {
    let inside = "the stream ended inside a frame";
    let whole = framed(Frame::Hello(hello()));
    for cut in [1, 4, 5, whole.len() - 1] {
        let mut call = opened(peer).await;
        call.send_bytes(whole.slice(..cut));
        call.half_close();
        ends(&mut call, INVALID_ARGUMENT, inside).await;
    }
    let (mut call, _) = welcomed(peer, hello()).await;
    call.send_bytes(prefix(0, 300_000).to_vec());
    call.half_close();
    ends(&mut call, INVALID_ARGUMENT, inside).await;
    // Without a word: nothing was wrong.
    let mut call = opened(peer).await;
    call.half_close();
    ends(&mut call, OK, "").await;
    // What follows a Goodbye is not looked at.
    let (mut call, _) = welcomed(peer, hello()).await;
    call.send(Frame::Goodbye(Goodbye::default()));
    call.send(Frame::Hello(hello()));
    ends(&mut call, OK, "").await;
}

async fn harmless(peer: &Target) {
    let (mut call, _) = welcomed(peer, hello()).await;
    call.send_bytes(message(b""));
    call.send_bytes(message(&unknown_field(100)));
    call.send(Frame::TunnelRefused(TunnelRefused::default()));
    still_stands(&mut call, 1).await;
    // As many heartbeats as go: each has its ack, in order.
    for round in 0..40u64 {
        let sequences = round * 200..(round + 1) * 200;
        let beats: BytesMut = sequences
            .clone()
            .flat_map(|sequence| framed(Frame::Heartbeat(Heartbeat { sequence, ..Heartbeat::default() })))
            .collect();
        call.send_bytes(beats.freeze());
        for sequence in sequences {
            match answer(&mut call).await {
                Answer::HeartbeatAck(ack) => assert_eq!(ack.sequence, sequence),
                other => panic!("heartbeat {sequence} was answered by {other:?}"),
            }
        }
    }
    call.half_close();
    ends(&mut call, OK, "").await;
}

/// Field 2000, which no frame has, of `bytes` in all.
fn unknown_field(bytes: usize) -> Vec<u8> {
    let mut field = Vec::with_capacity(bytes);
    prost::encoding::encode_key(2000, prost::encoding::WireType::LengthDelimited, &mut field);
    // The length of the length depends on what is left: try.
    let body = (0..bytes)
        .rev()
        .find(|body| field.len() + prost::encoding::encoded_len_varint(*body as u64) + body == bytes)
        .unwrap();
    prost::encoding::encode_varint(body as u64, &mut field);
    field.put_bytes(b'x', body);
    assert_eq!(field.len(), bytes);
    field
}

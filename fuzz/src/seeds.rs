//! The seeds of the corpora, by the real encoders: messages of the protocol, certificates of an authority
//! that is thrown away, frames of HTTP/2, the annotated configuration.
//!
//! 1. A seed is small: mutations make it large.
//! 2. No private key is written.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use bytes::Bytes;
use gateway_proto::framing::encode;
use gateway_proto::v1::node_frame::Frame;
use gateway_proto::v1::{
    CommandState, CommandUpdate, Credit, Event, EventBatch, Goodbye, Heartbeat, Hello, InventorySection,
    JoinRequest, KnownCommand, Lane, Load, NodeFrame, Refusal, RefusalReason, SectionHash, SignedEnvelope,
    SpecApplied, SpecGeneration, Status, TunnelRefused,
};
use gateway_proto::{http1, path};
use gateway_testbed::pki::Pki;
use gateway_testbed::raw::{END_HEADERS, PREFACE, call_headers, call_on, frame_type, http2_frame};
use prost::Message;

/// Writes all seeds below `folder`; files of other names stay.
pub fn write(folder: &Path) -> anyhow::Result<usize> {
    let mut count = 0;
    for (target, name, bytes) in all()? {
        let own = folder.join(target);
        fs::create_dir_all(&own).with_context(|| own.display().to_string())?;
        fs::write(own.join(name), bytes).with_context(|| own.display().to_string())?;
        count += 1;
    }
    Ok(count)
}

type Seed = (&'static str, String, Vec<u8>);

fn all() -> anyhow::Result<Vec<Seed>> {
    let mut seeds = Vec::new();
    let mut add = |target, name: &str, bytes: Vec<u8>| seeds.push((target, name.to_owned(), bytes));
    let frames = frames();
    for (name, frame) in &frames {
        let message = NodeFrame { frame: Some(frame.clone()) };
        add("frame", name, message.encode_to_vec());
        add("framing", name, encode(&message).to_vec());
    }
    let framed = |frame: &Frame| encode(&NodeFrame { frame: Some(frame.clone()) }).to_vec();
    let whole: Vec<u8> = frames.iter().flat_map(|(_, frame)| framed(frame)).collect();
    add("session", "every-kind", whole.clone());
    for (name, frame) in frames.iter().skip(1) {
        add("session", name, [framed(&frames[0].1), framed(frame)].concat());
    }
    add("framing", "every-kind", whole);
    let join = JoinRequest {
        token: "token".to_owned(),
        csr_der: Bytes::from_static(&[0x30, 3, 2, 1, 7]),
        machine: "machine".to_owned(),
        software_version: "1".to_owned(),
    };
    add("join", "whole", join.encode_to_vec());
    add("join", "token-alone", JoinRequest { csr_der: Bytes::new(), ..join }.encode_to_vec());
    let pki = Pki::new()?;
    add("certificate", "node", pki.node("node-1")?.certificate().to_vec());
    add("certificate", "server", pki.server()?.certificate().to_vec());
    add("pem", "node-ca", pki.node_ca_pem().into());
    add("pem", "server", pki.server()?.certificate_pem().into_bytes());
    add("spiffe-id", "default", b"spiffe://fleet.example/site/ams1/node/n-7".to_vec());
    add("spiffe-id", "own-pattern", b"spiffe://a.example/dc/ams/x\n/dc/{site}/{node}".to_vec());
    for (name, bytes) in connections() {
        add("flood", name, bytes.clone());
        add("http2", name, bytes);
    }
    for (name, bytes) in websockets() {
        add("websocket", name, bytes);
    }
    for (name, text) in heads() {
        add("http1-head", name, text.into());
    }
    for (name, text) in [("plain", "default"), ("accents", "ünïcode"), ("escape", "a\u{1b}[2Jb\u{202e}c\n")]
    {
        for target in ["names", "status", "terminal"] {
            add(target, name, text.into());
        }
    }
    add("configuration", "annotated", gateway::config::ANNOTATED.into());
    let small = "[gateway]\nid = 'g'\n[sessions]\nframe_bytes = '1MiB'\nhello_timeout = '10s'\n[shards]\npin = [0, 1]\n";
    add("configuration", "small", small.into());
    Ok(seeds)
}

/// A frame of each kind, the Hello first.
fn frames() -> Vec<(&'static str, Frame)> {
    let id = Bytes::from_static(&[7; 16]);
    let hash = SectionHash { section: "disks".to_owned(), hash: Bytes::from_static(&[3; 32]) };
    let event = |seq, attested| Event { seq, kind: "k".to_owned(), body: Bytes::from_static(b"b"), attested };
    let envelope = SignedEnvelope {
        body: Bytes::from_static(b"e"),
        kid: "kid".to_owned(),
        signature: Bytes::from_static(b"s"),
    };
    vec![
        (
            "a-hello",
            Frame::Hello(Hello {
                protocol: 1,
                features: vec!["feature".to_owned()],
                boot_id: "boot".to_owned(),
                machine: "machine".to_owned(),
                software_version: "1".to_owned(),
                role: String::new(),
                lanes: vec![Lane { name: "default".to_owned(), capacity: 4 }],
                journal_id: "journal".to_owned(),
                journal_last_seq: 9,
                known_commands: vec![KnownCommand { command_id: id.clone(), attempt: 1, state: 4 }],
                inventory: vec![hash.clone()],
                specs: vec![SpecGeneration { name: "spec".to_owned(), generation: 2 }],
            }),
        ),
        (
            "heartbeat",
            Frame::Heartbeat(Heartbeat {
                sequence: 1,
                node_unix_ms: -1,
                inventory: vec![hash],
                load: Some(Load { cpu_millis: 1, memory_used_bytes: 2, running_commands: 3 }),
            }),
        ),
        (
            "update",
            Frame::CommandUpdate(CommandUpdate {
                r#ref: 1,
                command_id: id,
                attempt: 1,
                state: CommandState::Refused.into(),
                progress: String::new(),
                result: Bytes::from_static(b"result"),
                error: "error".to_owned(),
                refusal: Some(Refusal { reason: RefusalReason::LaneFull.into(), retryable: true }),
            }),
        ),
        (
            "events",
            Frame::EventBatch(EventBatch {
                r#ref: 2,
                journal_id: "journal".to_owned(),
                boot_id: "boot".to_owned(),
                events: vec![event(1, None), event(2, Some(envelope))],
            }),
        ),
        (
            "status",
            Frame::Status(Status {
                r#ref: 3,
                id: "id".to_owned(),
                kind: "gpu.xid".to_owned(),
                body: Bytes::from_static(b"{}"),
            }),
        ),
        (
            "section",
            Frame::InventorySection(InventorySection {
                r#ref: 4,
                section: "disks".to_owned(),
                hash: Bytes::from_static(&[3; 32]),
                body: Bytes::from_static(b"body"),
            }),
        ),
        ("credit", Frame::Credit(Credit { lane: "default".to_owned(), capacity: 9 })),
        (
            "spec",
            Frame::SpecApplied(SpecApplied {
                r#ref: 5,
                name: "spec".to_owned(),
                generation: 3,
                ok: false,
                error: "why".to_owned(),
            }),
        ),
        (
            "tunnel",
            Frame::TunnelRefused(TunnelRefused {
                tunnel_id: Bytes::from_static(&[1; 16]),
                reason: "no".to_owned(),
            }),
        ),
        ("z-goodbye", Frame::Goodbye(Goodbye { reason: "bye".to_owned() })),
    ]
}

/// Frames of WebSocket as clients send them, with a mask of nothing.
fn websockets() -> Vec<(&'static str, Vec<u8>)> {
    let frame = |first: u8, payload: &[u8]| {
        let length = u8::try_from(payload.len()).expect("a short payload");
        [&[first, 0x80 | length, 0, 0, 0, 0][..], payload].concat()
    };
    let masked = [&[0x82, 0x83, 1, 2, 3, 4][..], b"abc"].concat();
    let long = [&[0x82, 0xfe, 1, 0, 9, 9, 9, 9][..], &[7; 256]].concat();
    let longest = [&[0x82, 0xff, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0][..], b"abc"].concat();
    let pieces = [frame(0x02, b"a"), frame(0x89, b"ping"), frame(0x00, b"b"), frame(0x80, b"c")].concat();
    let end = frame(0x88, b"\x03\xe8bye");
    let every = [&masked[..], &long, &longest, &pieces, &frame(0x8a, b""), &end].concat();
    vec![("masked", masked), ("long", long), ("pieces", pieces), ("end", end), ("every-kind", every)]
}

/// Heads of requests.
fn heads() -> Vec<(&'static str, String)> {
    let upgrade = format!(
        "GET {} HTTP/1.1\r\nHost: g\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {}\r\n\r\n",
        http1::SESSION,
        http1::SUBPROTOCOL
    );
    let call = |path| format!("POST {path} HTTP/1.1\r\nHost: g\r\nContent-Length: 3\r\n\r\nabc");
    vec![("upgrade", upgrade), ("join", call(http1::JOIN)), ("secret", call(http1::FETCH_SECRET))]
}

/// The client's side of connections.
fn connections() -> Vec<(&'static str, Vec<u8>)> {
    let start = [PREFACE, &http2_frame(frame_type::SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0])].concat();
    let call = call_on(1);
    let ping = http2_frame(frame_type::PING, 0, 0, b"12345678");
    let data = http2_frame(frame_type::DATA, 1, 1, &[0, 0, 0, 0, 0]);
    let reset = http2_frame(frame_type::RST_STREAM, 0, 1, &[0, 0, 0, 8]);
    let window = http2_frame(frame_type::WINDOW_UPDATE, 0, 1, &[0, 0, 1, 0]);
    let more = http2_frame(frame_type::CONTINUATION, END_HEADERS, 1, &call_headers(path::SESSION));
    let half = http2_frame(frame_type::HEADERS, 0, 1, &call_headers(path::SESSION));
    let goaway = http2_frame(frame_type::GOAWAY, 0, 0, &[0; 8]);
    vec![
        ("call", [&start[..], &call, &data].concat()),
        ("reset", [&start[..], &call, &reset].concat()),
        ("continued", [&start[..], &half, &more].concat()),
        ("control", [&start[..], &ping, &window, &goaway].concat()),
        ("every-kind", [&start[..], &call, &window, &ping, &data, &reset].concat()),
    ]
}

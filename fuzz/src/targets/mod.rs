//! The targets: one function for each parser, with what its input may cost.
//!
//! `frames` has the frames of nodes, their framing and a whole session; `certificates` who a peer is and the
//! operator's PEM files; `http2` and `websocket` what is
//! below; `texts` ids, sentences and escapes; `configuration` the TOML.
//!
//! 1. A target panics where a property does not hold, and only there.
//! 2. What refuses says so in a sentence: printable, short, without text of the input.

mod certificates;
mod configuration;
mod frames;
mod http2;
mod session;
mod texts;
mod websocket;

use crate::mutate::Shape;

/// A parser that is fuzzed.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    pub name: &'static str,
    /// What reads the bytes, for people.
    pub what: &'static str,
    pub run: fn(&[u8]),
    pub shape: Shape,
    /// Words that the parser knows.
    pub words: &'static [&'static str],
    pub longest: usize,
    memory: Memory,
}

/// Bytes that an input may make a target allocate: so many, and so many for each of its own.
#[derive(Debug, Clone, Copy)]
struct Memory {
    fixed: usize,
    per_byte: usize,
}

impl Target {
    /// Bytes that an input of this length may make it allocate.
    pub const fn most_memory(&self, length: usize) -> usize {
        self.memory.fixed + self.memory.per_byte * length
    }
}

const KIB: usize = 1 << 10;

/// All of them.
pub const ALL: [Target; 15] = [
    Target {
        name: "frame",
        what: "a frame of a node: protobuf to what decisions see",
        run: frames::frame,
        shape: Shape::Protobuf,
        words: &[],
        longest: 64 * KIB,
        // A Hello's lists may hold some thousand entries of two bytes each.
        memory: Memory { fixed: 2048 * KIB, per_byte: 16 },
    },
    Target {
        name: "join",
        what: "a machine's request to join, before it has a certificate",
        run: frames::join,
        shape: Shape::Protobuf,
        words: &[],
        longest: 32 * KIB,
        memory: Memory { fixed: 64 * KIB, per_byte: 8 },
    },
    Target {
        name: "framing",
        what: "gRPC's length-prefix framing, however it is cut",
        run: frames::framing,
        shape: Shape::Grpc,
        words: &[],
        longest: 16 * KIB,
        // A declared length reserves what it declares, up to the limit.
        memory: Memory { fixed: 8 * frames::MOST_FRAME_BYTES, per_byte: 64 },
    },
    Target {
        name: "session",
        what: "a whole session: framing, frames, and the machine behind",
        run: session::session,
        shape: Shape::Grpc,
        words: &[],
        longest: 16 * KIB,
        memory: Memory { fixed: 4096 * KIB, per_byte: 64 },
    },
    Target {
        name: "certificate",
        what: "a node's certificate",
        run: certificates::certificate,
        shape: Shape::Der,
        words: &["spiffe://", "/site/", "/node/"],
        longest: 8 * KIB,
        memory: Memory { fixed: 64 * KIB, per_byte: 64 },
    },
    Target {
        name: "spiffe-id",
        what: "the URI in a node's certificate, and the operator's pattern for it",
        run: certificates::spiffe_id,
        shape: Shape::Text,
        words: &["spiffe://", "/site/", "/node/", "{site}", "{node}", "..", "%2f", "\u{202e}", "//"],
        longest: KIB,
        memory: Memory { fixed: 64 * KIB, per_byte: 64 },
    },
    Target {
        name: "pem",
        what: "the operator's PEM files",
        run: certificates::pem,
        shape: Shape::Text,
        words: &[
            "-----BEGIN CERTIFICATE-----\n",
            "-----END CERTIFICATE-----\n",
            "-----BEGIN PRIVATE KEY-----\n",
        ],
        longest: 8 * KIB,
        memory: Memory { fixed: 1024 * KIB, per_byte: 64 },
    },
    Target {
        name: "flood",
        what: "the meter of HTTP/2 frames, however they are cut",
        run: http2::flood,
        shape: Shape::Http2,
        words: &["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
        longest: 64 * KIB,
        memory: Memory { fixed: 64 * KIB, per_byte: 2 },
    },
    Target {
        name: "http2",
        what: "a connection of HTTP/2 with our bounds, and the heads of its requests",
        run: http2::connection,
        shape: Shape::Http2,
        words: &["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "POST", "/gateway.v1.NodeGateway/Session"],
        longest: 64 * KIB,
        memory: Memory { fixed: 2048 * KIB, per_byte: 16 },
    },
    Target {
        name: "http1-head",
        what: "the head of an HTTP/1.1 request, however it is cut",
        run: websocket::head,
        shape: Shape::Text,
        words: &[
            "GET /gateway.v1/session HTTP/1.1\r\n",
            "POST /gateway.v1/Join HTTP/1.1\r\n",
            "\r\n\r\n",
            "content-length: 18446744073709551616\r\n",
            "transfer-encoding: chunked\r\n",
            "sec-websocket-protocol: a, gateway.v1\r\n",
        ],
        longest: 16 * KIB,
        memory: Memory { fixed: 128 * KIB, per_byte: 32 },
    },
    Target {
        name: "websocket",
        what: "the frames of a WebSocket, however they are cut, beside a stock library",
        run: websocket::frames,
        shape: Shape::WebSocket,
        words: &[],
        longest: 16 * KIB,
        // A declared length reserves what it declares, up to the limit.
        memory: Memory { fixed: 16 * websocket::MOST_MESSAGE_BYTES, per_byte: 64 },
    },
    Target {
        name: "names",
        what: "ids of nodes, lanes, journals, specs and sections",
        run: texts::names,
        shape: Shape::Text,
        words: &["\0", "\u{85}", "\u{202e}", "\u{feff}"],
        longest: KIB,
        memory: Memory { fixed: 64 * KIB, per_byte: 16 },
    },
    Target {
        name: "status",
        what: "sentences on their way into a header, and panics on theirs into the log",
        run: texts::status,
        shape: Shape::Text,
        words: &["%", "\n", "\u{202e}", "\u{1b}[2J"],
        longest: 8 * KIB,
        memory: Memory { fixed: 64 * KIB, per_byte: 16 },
    },
    Target {
        name: "terminal",
        what: "strings of nodes on their way to a terminal",
        run: texts::terminal,
        shape: Shape::Text,
        words: &["\u{1b}[31m", "\u{9b}", "\u{202e}", "\\u{1b}", "\r\n", "\u{7f}", "\u{2028}", "\""],
        longest: 8 * KIB,
        memory: Memory { fixed: 64 * KIB, per_byte: 256 },
    },
    Target {
        name: "configuration",
        what: "the TOML of a gateway",
        run: configuration::configuration,
        shape: Shape::Text,
        words: &[
            "[sessions]\n",
            "[gateway]\n",
            "= '10s'\n",
            "'1MiB'",
            "-1",
            "18446744073709551616",
            "nan",
            "\u{1b}[2J",
            "\u{202e}",
            "\"\\u001b\" = 1\n",
            "'''",
        ],
        longest: 32 * KIB,
        memory: Memory { fixed: 4096 * KIB, per_byte: 512 },
    },
];

/// The target of this name; `planted` ones break on purpose, for the tests of the hunt.
pub fn of_name(name: &str) -> Option<Target> {
    ALL.into_iter().chain(PLANTED).find(|target| target.name == name)
}

/// Targets that break at inputs which begin with a high byte.
const PLANTED: [Target; 3] = [
    planted("planted-panic", |_| panic!("planted")),
    planted("planted-memory", hoard),
    planted("planted-death", die),
];

const fn planted(name: &'static str, run: fn(&[u8])) -> Target {
    let memory = Memory { fixed: 64 * KIB, per_byte: 16 };
    Target { name, what: "breaks on purpose", run, shape: Shape::Protobuf, words: &[], longest: KIB, memory }
}

fn hoard(input: &[u8]) {
    if input.first().is_some_and(|first| *first > 200) {
        drop(std::hint::black_box(vec![1u8; 1024 * KIB]));
    }
}

fn die(input: &[u8]) {
    if input.first().is_some_and(|first| *first > 200) {
        std::process::abort();
    }
}

/// Holds what a peer or an operator is told to rule 2.
#[track_caller]
fn check_sentence(sentence: &str) {
    assert!(!sentence.is_empty() && sentence.len() <= 400, "a sentence of {} bytes", sentence.len());
    assert!(sentence.chars().all(is_printable), "a sentence holds what no terminal should get: {sentence:?}");
}

/// Whether a sign stands for itself in a line of a log.
fn is_printable(sign: char) -> bool {
    matches!(sign, '"' | '\'' | '\\') || sign.escape_debug().next() == Some(sign)
}

//! What comes over HTTP/1.1: the heads of requests, and the frames of WebSocket.
//!
//! 1. Both mean the same, however the bytes were cut, and neither keeps more than it may.
//! 2. Messages are those that a stock library reads, as far as both go.

use std::io::{self, Read, Write};

use bytes::Bytes;
use gateway_shard::doors::{self, Frames};
use tungstenite::protocol::{Role, WebSocketConfig};
use tungstenite::{Error, Message, WebSocket};

use super::check_sentence;

const MOST_HEAD_BYTES: usize = 4096;
/// A limit that inputs can pass.
pub(super) const MOST_MESSAGE_BYTES: usize = 4096;

pub(super) fn head(input: &[u8]) {
    let whole = read_head(input, usize::MAX);
    for step in [1, 3, 7, 64] {
        assert_eq!(whole, read_head(input, step), "cut every {step} bytes");
    }
    match whole {
        Some(Err(sentence)) => check_sentence(&sentence),
        Some(Ok((_, behind))) => assert!(input.ends_with(&behind), "what is behind a head came with it"),
        None => assert!(input.len() < MOST_HEAD_BYTES, "a head without end is read for ever"),
    }
}

/// What is asked for, with what is behind the head; `None`: it is not whole.
fn read_head(input: &[u8], step: usize) -> Option<Result<(String, Vec<u8>), String>> {
    let mut chunks = input.chunks(step);
    let outcome = doors::read_head(MOST_HEAD_BYTES, &mut chunks)?;
    Some(outcome.map(|(request, behind)| {
        (request, behind.iter().copied().chain(chunks.flatten().copied()).collect())
    }))
}

/// What came of bytes.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    messages: Vec<Bytes>,
    /// Why there are no more, where that is not for want of bytes.
    end: Option<String>,
}

pub(super) fn frames(input: &[u8]) {
    let whole = read(input, usize::MAX);
    for step in [1, 2, 7] {
        assert_eq!(whole, read(input, step), "cut every {step} bytes");
    }
    if let Some(sentence) = &whole.end {
        check_sentence(sentence);
    }
    let (stock, stock_failed) = stock_messages(input);
    for (own, theirs) in whole.messages.iter().zip(&stock) {
        assert_eq!(own, theirs, "a stock library reads another message");
    }
    if whole.end.is_none() && !stock_failed {
        assert_eq!(whole.messages.len(), stock.len(), "a stock library reads more, or fewer");
    }
}

fn read(input: &[u8], step: usize) -> Outcome {
    let mut frames = Frames::new(MOST_MESSAGE_BYTES);
    let (mut messages, mut rest) = (Vec::new(), input);
    while !rest.is_empty() {
        assert!(frames.wanted() > 0, "it wants nothing, and more comes");
        let (now, later) = rest.split_at(frames.wanted().min(step).min(rest.len()));
        match frames.take(&mut now.to_vec()) {
            Ok(None) => {}
            Ok(Some(message)) => {
                assert!(message.len() <= MOST_MESSAGE_BYTES);
                messages.push(message);
            }
            Err(sentence) => return Outcome { messages, end: Some(sentence) },
        }
        rest = later;
    }
    Outcome { messages, end: None }
}

/// Bytes that came, after which nothing comes; what is written goes nowhere.
struct Peer<'a>(&'a [u8]);

impl Read for Peer<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.0.read(into)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            read => Ok(read),
        }
    }
}

impl Write for Peer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The binary messages that a stock library reads, and whether it found something wrong.
fn stock_messages(input: &[u8]) -> (Vec<Bytes>, bool) {
    let config = WebSocketConfig::default()
        .read_buffer_size(4096)
        .write_buffer_size(0)
        .max_message_size(Some(MOST_MESSAGE_BYTES))
        .max_frame_size(Some(MOST_MESSAGE_BYTES));
    let mut socket = WebSocket::from_raw_socket(Peer(input), Role::Server, Some(config));
    let mut messages = Vec::new();
    loop {
        match socket.read() {
            Ok(Message::Binary(message)) => messages.push(message),
            Ok(_) => {}
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => return (messages, false),
            Err(_) => return (messages, true),
        }
    }
}

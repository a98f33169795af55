//! What runs at the node's end of a tunnel.
//!
//! `shell` is a program on a terminal (see `shell`). The others need no process: `echo` gives back what it
//! gets, `sink` takes all, `source` gives as many bytes as the parameter `bytes` says, `stall` reads nothing.
//!
//! 1. Each ends with an exit status; those without a process end when the caller's half does, or all is said.

use std::collections::{HashMap, VecDeque};
use std::task::{Context, Poll};

use bytes::Bytes;

use super::shell::Shell;

/// What `source` says at once: with all heads four fit a tunnel's window of 64 KiB, and each a DATA frame of any
/// peer's, which is then passed on without a copy.
const PIECE_BYTES: usize = (16 << 10) - 128;

/// What a program has for the caller.
#[derive(Debug)]
pub(super) enum Output {
    Data(Bytes),
    /// The last of it, with its status where it has one.
    Exit(Option<i32>),
}

pub(super) enum Program {
    Shell(Box<Shell>),
    Echo {
        waiting: VecDeque<Bytes>,
        input_over: bool,
    },
    Sink {
        input_over: bool,
    },
    Source {
        piece: Bytes,
        left: u64,
    },
    Stall,
    /// Ends with any status at all, or with none, as a node may that has no shell's.
    Ends(Option<i32>),
    Over,
}

impl Program {
    pub(super) fn start(kind: &str, parameters: &HashMap<String, String>) -> Result<Self, String> {
        Ok(match kind {
            "shell" => Self::Shell(Box::new(Shell::start(parameters)?)),
            "echo" => Self::Echo { waiting: VecDeque::new(), input_over: false },
            "sink" => Self::Sink { input_over: false },
            "source" => {
                let left = parameters.get("bytes").and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
                Self::Source { piece: Bytes::from(vec![b'x'; PIECE_BYTES]), left }
            }
            "stall" => Self::Stall,
            "ends" => Self::Ends(parameters.get("code").and_then(|code| code.parse().ok())),
            other => return Err(format!("this node knows no tunnel of the kind {other:?}")),
        })
    }

    /// Whether more of the caller's data may come.
    pub(super) fn wants_input(&self) -> bool {
        match self {
            Self::Shell(shell) => shell.wants_input(),
            Self::Echo { waiting, .. } => waiting.len() < 4,
            Self::Sink { .. } | Self::Source { .. } | Self::Ends(_) | Self::Over => true,
            Self::Stall => false,
        }
    }

    pub(super) fn take_input(&mut self, data: Bytes) {
        match self {
            Self::Shell(shell) => shell.take_input(data),
            Self::Echo { waiting, .. } => waiting.push_back(data),
            _ => {}
        }
    }

    pub(super) fn end_input(&mut self) {
        match self {
            Self::Shell(shell) => shell.end_input(),
            Self::Echo { input_over, .. } | Self::Sink { input_over } => *input_over = true,
            _ => {}
        }
    }

    pub(super) fn resize(&mut self, columns: u32, rows: u32) {
        if let Self::Shell(shell) = self {
            shell.resize(columns, rows);
        }
    }

    pub(super) fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<Output> {
        let output = match self {
            Self::Shell(shell) => match shell.poll_output(cx) {
                Poll::Ready(output) => output,
                Poll::Pending => return Poll::Pending,
            },
            Self::Echo { waiting, input_over } => match waiting.pop_front() {
                Some(data) => Output::Data(data),
                None if *input_over => Output::Exit(Some(0)),
                None => return Poll::Pending,
            },
            Self::Sink { input_over: true } | Self::Source { left: 0, .. } => Output::Exit(Some(0)),
            Self::Ends(code) => Output::Exit(*code),
            Self::Source { piece, left } => {
                let bytes = usize::try_from(*left).unwrap_or(usize::MAX).min(piece.len());
                *left -= bytes as u64;
                Output::Data(piece.slice(..bytes))
            }
            Self::Sink { .. } | Self::Stall | Self::Over => return Poll::Pending,
        };
        if let Output::Exit(_) = output {
            *self = Self::Over;
        }
        Poll::Ready(output)
    }
}

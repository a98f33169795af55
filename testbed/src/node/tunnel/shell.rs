//! A program on a real pseudo-terminal: the caller's shell.
//!
//! 1. The terminal is read until it hangs up, then the program's status is told: 128 and the signal where one
//!    has ended it, as shells say it.
//! 2. The program is killed when the tunnel ends before it does.

use std::collections::HashMap;
use std::future::Future;
use std::os::unix::process::ExitStatusExt;
use std::pin::Pin;
use std::process::ExitStatus;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use pty_process::{Command, OwnedReadPty, OwnedWritePty, Size};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::program::Output;

const READ_BYTES: usize = 16 << 10;
/// What a terminal takes for the end of the input.
const END_OF_INPUT: &[u8] = b"\x04";

type Waiting = Pin<Box<dyn Future<Output = std::io::Result<ExitStatus>> + Send>>;

pub(super) struct Shell {
    reader: OwnedReadPty,
    writer: OwnedWritePty,
    waiting: Waiting,
    input: Bytes,
    hung_up: bool,
}

impl Shell {
    /// Runs `command` with `sh -c`, or an interactive `sh`.
    pub(super) fn start(parameters: &HashMap<String, String>) -> Result<Self, String> {
        let failed = |error: pty_process::Error| format!("the shell can't be started: {error}");
        let (pty, pts) = pty_process::open().map_err(failed)?;
        let number = |name: &str, usual| {
            parameters.get(name).and_then(|text| text.parse::<u16>().ok()).unwrap_or(usual)
        };
        pty.resize(Size::new(number("rows", 24), number("columns", 80))).map_err(failed)?;
        let term = parameters.get("term").map_or("dumb", String::as_str);
        let command = Command::new("/bin/sh").env("PS1", "$ ").env("TERM", term).kill_on_drop(true);
        let command = match parameters.get("command") {
            Some(line) => command.args(["-c", line]),
            None => command.arg("-i"),
        };
        let mut child = command.spawn(pts).map_err(failed)?;
        let (reader, writer) = pty.into_split();
        let waiting = Box::pin(async move { child.wait().await });
        Ok(Self { reader, writer, waiting, input: Bytes::new(), hung_up: false })
    }

    pub(super) fn wants_input(&self) -> bool {
        self.input.is_empty()
    }

    pub(super) fn take_input(&mut self, data: Bytes) {
        self.input = data;
    }

    pub(super) fn end_input(&mut self) {
        self.input = Bytes::from_static(END_OF_INPUT);
    }

    pub(super) fn resize(&mut self, columns: u32, rows: u32) {
        let bounded = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
        // A terminal that hung up has no size.
        let _ = self.writer.resize(Size::new(bounded(rows), bounded(columns)));
    }

    pub(super) fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<Output> {
        while !self.input.is_empty() {
            match Pin::new(&mut self.writer).poll_write(cx, &self.input) {
                Poll::Ready(Ok(bytes)) => self.input.advance(bytes),
                Poll::Ready(Err(_)) => self.input = Bytes::new(),
                Poll::Pending => break,
            }
        }
        if !self.hung_up {
            let mut space = [0; READ_BYTES];
            let mut buffer = ReadBuf::new(&mut space);
            match Pin::new(&mut self.reader).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    return Poll::Ready(Output::Data(Bytes::copy_from_slice(buffer.filled())));
                }
                Poll::Pending => return Poll::Pending,
                // Linux says EIO when the last program has let go of the terminal.
                Poll::Ready(_) => self.hung_up = true,
            }
        }
        self.waiting.as_mut().poll(cx).map(|status| Output::Exit(Some(status.map_or(255, code))))
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

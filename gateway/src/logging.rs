//! Log lines on stderr, where journald or a person reads them.
//!
//! One line for what an operator would act on. Colours only where a terminal shows them. Who logs puts its line into
//! a bounded queue; a thread of its own, `log`, writes what is in it.
//!
//! 1. Started once a process, by the binary and never by an embedder's `Gateway::start`.
//! 2. Nobody waits for the log: a line that the queue has no room for, or that can't be written, is lost and counted.
//!    When lines are written again, one says how many were lost. What a full disk took a part of stays a line of its
//!    own: the next begins a new one.
//! 3. What is queued at the process's end is written, and so is why it ends, for at most `LAST_WORDS`; a panic's text
//!    goes the same way, whatever the level.
//! 4. Libraries tell their errors alone, unless the filter names them: what strangers send makes no lines of theirs.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, LogSection};
use crate::error::GatewayError;

/// Lines that wait to be written.
const QUEUED_LINES: usize = 4096;
/// Their bytes, together.
const QUEUED_BYTES: usize = 4 << 20;
/// How long the end of the process waits for what is queued.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// At most once in this time it is told that lines were lost, while there are always more to write.
const TOLD_EVERY: Duration = Duration::from_secs(1);
const LOG_STACK_BYTES: usize = 256 << 10;

static LOG: OnceLock<Log> = OnceLock::new();
static LOST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether this thread writes the lines: it can't wait for itself.
    static WRITES: Cell<bool> = const { Cell::new(false) };
}

/// Lines that were lost since the process began.
pub fn lines_lost() -> u64 {
    LOST.load(Relaxed)
}

/// Starts writing lines as the `[log]` section says. A second call in a process does nothing.
pub fn start(section: &LogSection) -> Result<(), GatewayError> {
    let failed = |error: io::Error| GatewayError::Machine(format!("the log can't be started: {error}"));
    // Not through `Stderr`: its lock would be held for as long as nobody reads.
    let stderr = File::from(io::stderr().as_fd().try_clone_to_owned().map_err(failed)?);
    let (sender, queue) = bounded(QUEUED_LINES);
    let log = Log { queue: sender, bytes: AtomicUsize::new(0), stderr, torn: AtomicBool::new(false) };
    if LOG.set(log).is_err() {
        tracing::debug!("lines are written already");
        return Ok(());
    }
    let Some(log) = LOG.get() else { unreachable!("it was set just now") };
    std::thread::Builder::new()
        .name("log".to_owned())
        .stack_size(LOG_STACK_BYTES)
        .spawn(move || log.write_all_of(&queue))
        .map_err(failed)?;
    std::panic::set_hook(Box::new(|panic| log.put(panic_text(panic).into_bytes())));

    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter(&section.level))
        .with_writer(move || Line(log))
        // It would be told on stderr as well, by `eprintln!`, which waits and panics there.
        .log_internal_errors(false);
    let started = match section.format {
        LogFormat::Human => lines.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    if let Err(error) = started {
        tracing::debug!(%error, "an embedder's log is in use");
    }
    Ok(())
}

/// Says why the process ends, where there is why, after all that was logged.
pub fn end(why: Option<&str>) {
    let why = why.map(|why| format!("gateway: {why}\n"));
    match (LOG.get(), why) {
        (Some(log), why) => log.end(why.map(String::into_bytes)),
        // Nothing was logged yet, or ever is: an operator's command.
        (None, Some(why)) => {
            let _ = io::stderr().write_all(why.as_bytes());
        }
        (None, None) => {}
    }
}

/// A level that stands alone is of the gateway's own lines; libraries are at `error` then, or off too.
fn filter(level: &str) -> EnvFilter {
    let parts = level.split(',').map(|part| match part.trim().parse::<LevelFilter>() {
        Ok(own) if !part.trim().is_empty() => format!("{},gateway={own}", own.min(LevelFilter::ERROR)),
        _ => part.to_owned(),
    });
    let parts: Vec<String> = parts.collect();
    // `Config::check` has refused filters that can't be read.
    EnvFilter::try_new(parts.join(",")).unwrap_or_else(|_| EnvFilter::new("error,gateway=info"))
}

fn panic_text(panic: &std::panic::PanicHookInfo<'_>) -> String {
    use std::backtrace::{Backtrace, BacktraceStatus};

    let thread = std::thread::current();
    let trace = Backtrace::capture();
    let trace = match trace.status() {
        BacktraceStatus::Captured => format!("stack backtrace:\n{trace}"),
        _ => String::new(),
    };
    format!("thread '{}' {panic}\n{trace}", thread.name().unwrap_or("without a name"))
}

enum Item {
    Line(Vec<u8>),
    /// All before it is written: tells so.
    Mark(Sender<()>),
}

/// The queue of lines and where they go.
struct Log {
    queue: Sender<Item>,
    /// Of the lines in the queue.
    bytes: AtomicUsize,
    stderr: File,
    /// Whether a part of a line is the last that stderr took.
    torn: AtomicBool,
}

impl Log {
    /// Queues a line, or counts it as lost.
    fn put(&self, line: Vec<u8>) {
        if WRITES.get() {
            self.write(&line);
            return;
        }
        let length = line.len();
        let fits = self.bytes.fetch_add(length, Relaxed).saturating_add(length) <= QUEUED_BYTES;
        if !fits || self.queue.try_send(Item::Line(line)).is_err() {
            self.bytes.fetch_sub(length, Relaxed);
            LOST.fetch_add(1, Relaxed);
        }
    }

    fn write(&self, line: &[u8]) -> bool {
        let mut torn = self.torn.load(Relaxed);
        let is_written = write_line(&self.stderr, line, &mut torn).is_ok();
        self.torn.store(torn, Relaxed);
        if !is_written {
            LOST.fetch_add(1, Relaxed);
        }
        is_written
    }

    fn write_all_of(&self, queue: &Receiver<Item>) {
        WRITES.set(true);
        let (mut told, mut told_at) = (0, Instant::now());
        for item in queue {
            let is_time = match &item {
                Item::Line(line) => {
                    let is_written = self.write(line);
                    self.bytes.fetch_sub(line.len(), Relaxed);
                    is_written && (queue.is_empty() || told_at.elapsed() >= TOLD_EVERY)
                }
                Item::Mark(_) => true,
            };
            let lost = lines_lost();
            if is_time && lost > told {
                let lines = lost - told;
                (told, told_at) = (lost, Instant::now());
                // Straight to stderr, since this thread writes it.
                tracing::error!(lines, "log lines were lost: stderr took them too slowly, or not at all");
            }
            if let Item::Mark(reached) = item {
                // Who asked may have left.
                let _ = reached.try_send(());
            }
        }
    }

    fn end(&self, why: Option<Vec<u8>>) {
        let deadline = Instant::now() + LAST_WORDS;
        if let Some(why) = why {
            self.bytes.fetch_add(why.len(), Relaxed);
            let _ = self.queue.send_deadline(Item::Line(why), deadline);
        }
        let (reached, mark) = bounded(1);
        if self.queue.send_deadline(Item::Mark(reached), deadline).is_ok() {
            // Nobody reads, then: there is nothing more to do for it.
            let _ = mark.recv_deadline(deadline);
        }
    }
}

/// Writes a line; a new one, where a part of the one before is the last that was taken.
fn write_line(mut out: impl Write, line: &[u8], torn: &mut bool) -> io::Result<()> {
    let mended;
    let mut rest = line;
    if *torn {
        mended = [b"\n", line].concat();
        rest = &mended;
    }
    while !rest.is_empty() {
        match out.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(taken) => {
                *torn = rest[taken - 1] != b'\n';
                rest = &rest[taken..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// One line; `tracing` writes it in one piece.
struct Line(&'static Log);

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.put(line.to_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with so much room.
    struct Disk {
        room: usize,
        holds: Vec<u8>,
    }

    impl Write for &mut Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.room);
            if taken == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= taken;
            self.holds.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_line_is_glued_to_one_that_a_full_disk_tore() {
        let (mut disk, mut torn) = (Disk { room: 10, holds: Vec::new() }, false);
        write_line(&mut disk, b"first\n", &mut torn).expect("there is room");
        assert!(write_line(&mut disk, b"second\n", &mut torn).is_err() && torn);
        assert!(write_line(&mut disk, b"third\n", &mut torn).is_err() && torn);
        disk.room = 1;
        assert!(write_line(&mut disk, b"fourth\n", &mut torn).is_err() && !torn, "a whole end of a line");
        disk.room = 100;
        write_line(&mut disk, b"fifth\n", &mut torn).expect("there is room");
        write_line(&mut disk, b"sixth\n", &mut torn).expect("there is room");
        assert_eq!(String::from_utf8_lossy(&disk.holds), "first\nseco\nfifth\nsixth\n");
    }

    #[test]
    fn libraries_tell_errors_alone_unless_they_are_named() {
        let shown = |level: &str| {
            let filter = filter(level).to_string();
            let mut parts: Vec<String> = filter.split(',').map(str::to_owned).collect();
            parts.sort_unstable();
            parts
        };
        assert_eq!(shown("info"), ["error", "gateway=info"]);
        assert_eq!(shown("TRACE"), ["error", "gateway=trace"]);
        assert_eq!(shown("off"), ["gateway=off", "off"]);
        assert_eq!(shown("warn,h2=debug"), ["error", "gateway=warn", "h2=debug"]);
        assert_eq!(shown("info,gateway_shard=debug"), ["error", "gateway=info", "gateway_shard=debug"]);
        assert_eq!(shown("h2=info"), ["h2=info"]);
    }
}

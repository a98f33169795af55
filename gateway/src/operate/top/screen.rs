//! How `gateway top` looks: all of it on a screen, or the most of it on a line; and the terminal that it is drawn on.
//!
//! 1. What a gateway says is made harmless before a terminal gets it.
//! 2. A frame is drawn over the one before, cut to the terminal's size: nothing scrolls, nothing flickers.
//! 3. A terminal is left as it was found, on every way out that a process hears of (Ctrl-Z and SIGKILL are none).

use std::io::{self, IsTerminal as _};

use rustix::termios;
use serde_json::{Value, json};

use super::view::{Room, View};
use crate::error::GatewayError;
use crate::operate::table::{Column, column, table};
use crate::operate::terminal::{Reader, harmless, write};
use crate::serve::is_thread;

const SHARDS: [Column; 9] = [
    column("SHARD", "shard", 5),
    column("CPU", "cpu", 5),
    column("SESSIONS", "sessions", 12),
    column("CONNECTIONS", "connections", 12),
    column("OPENS/S", "opens", 12),
    column("REFUSALS/S", "refusals", 12),
    column("FRAMES IN/S", "frames_in", 12),
    column("OUT/S", "frames_out", 12),
    column("MAIL", "mail", 12),
];

const QUEUES: [Column; 6] = [
    column("QUEUE", "queue", 16),
    column("WAITING", "waiting", 12),
    column("COMMITS/S", "commits", 12),
    column("ENTRIES EACH", "entries", 12),
    column("P50", "p50", 12),
    column("P99", "p99", 12),
];

/// Between the parts of a line.
const SEPARATOR: &str = " · ";
/// Another screen of the terminal, without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_REST: &str = "\x1b[J";

/// A terminal that is drawn on, until this is dropped.
pub(super) struct Screen(());

impl Screen {
    /// `None` where stdout is no terminal.
    pub(super) fn enter() -> Result<Option<Self>, GatewayError> {
        if !io::stdout().is_terminal() {
            return Ok(None);
        }
        let screen = Self(());
        write(ENTER)?;
        Ok(Some(screen))
    }

    pub(super) fn draw(&self, text: &str) -> Result<Reader, GatewayError> {
        let size = termios::tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        let (columns, rows) = size.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()));
        write(&frame(text, columns, rows))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = write(LEAVE);
    }
}

/// What draws `text` over whatever is there.
fn frame(text: &str, columns: usize, rows: usize) -> String {
    let lines = text.lines().flat_map(|line| wrapped(line, columns));
    let lines: Vec<String> = lines.take(rows).map(|line| line.chars().take(columns).collect()).collect();
    // The last line has no end, or the terminal would scroll.
    HOME.to_owned() + &lines.join(&format!("{CLEAR_LINE}\r\n")) + CLEAR_LINE + CLEAR_REST
}

/// A line that has parts goes on in the next where they do not fit.
fn wrapped(line: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in line.split(SEPARATOR) {
        match lines.last_mut() {
            Some(last)
                if last.chars().count() + SEPARATOR.chars().count() + part.chars().count() <= columns =>
            {
                last.push_str(SEPARATOR);
                last.push_str(part);
            }
            _ => lines.push(part.to_owned()),
        }
    }
    lines
}

/// All of it.
pub(super) fn whole(view: &View) -> String {
    let mut text = format!("{}\n{}\n{}\n{}\n", state(view), sessions(view), traffic(view), dispatch(view));
    for reason in &view.reasons {
        text.push_str(&format!("It takes no new sessions: {}.\n", harmless(reason)));
    }
    for one in &view.loops_in_trouble {
        let name = harmless(&one.name);
        let long = one
            .running_seconds
            .filter(|_| !is_thread(&one.name))
            .map(|seconds| format!("its run takes {seconds:.0} s"));
        let why = one.last_error.as_deref().filter(|_| one.consecutive_failures > 0);
        let fails =
            why.map(|why| format!("it fails, {} in a row: {}", one.consecutive_failures, harmless(why)));
        let told: Vec<String> = fails.into_iter().chain(long).collect();
        text.push_str(&format!("The loop {name} is in trouble: {}.\n", told.join("; ")));
    }
    let refusals: Vec<String> = view
        .refusals_by_reason
        .iter()
        .map(|(reason, rate)| format!("{} {rate:.1}/s", harmless(reason)))
        .collect();
    if !refusals.is_empty() {
        text.push_str(&format!("Refused: {}\n", refusals.join(", ")));
    }
    text.push('\n');
    text.push_str(&table(&SHARDS, &shards(view)));
    text.push('\n');
    text.push_str(&table(&QUEUES, &queues(view)));
    text
}

fn state(view: &View) -> String {
    let uptime = std::time::Duration::from_secs(view.uptime_seconds as u64);
    format!(
        "{} {} · {} · up {} · lease {} · {:.2} cores · {:.0} MB",
        harmless(&view.gateway),
        harmless(&view.version),
        harmless(&view.phase),
        humantime::format_duration(uptime),
        lease(view),
        view.cpu_cores,
        view.resident_bytes as f64 / 1e6,
    )
}

fn lease(view: &View) -> String {
    let lease = &view.lease;
    match (lease.epoch, lease.age_seconds) {
        (Some(epoch), Some(age)) if lease.held => {
            format!("epoch {epoch}, {age:.1} of {:.0} s", lease.ttl_seconds)
        }
        _ => "not held".to_owned(),
    }
}

fn sessions(view: &View) -> String {
    let transports: Vec<String> = view
        .sessions_by_transport
        .iter()
        .map(|(transport, sessions)| format!("{} {sessions}", harmless(transport)))
        .collect();
    format!(
        "sessions {} ({}) · streams {} · hellos waiting {} · writer's mail {} · tunnels {}",
        view.sessions,
        transports.join(", "),
        room(view.streams),
        room(view.pending_hellos),
        room(view.writer_messages),
        view.tunnels,
    )
}

fn room(room: Room) -> String {
    format!("{} of {}", room.used, room.of)
}

fn traffic(view: &View) -> String {
    format!(
        "opens {:.1}/s · refusals {:.1}/s · frames in {:.1}/s, out {:.1}/s · kB in {:.1}/s, out {:.1}/s",
        view.opens_per_second,
        view.refusals_per_second,
        view.frames_in_per_second,
        view.frames_out_per_second,
        view.bytes_in_per_second / 1e3,
        view.bytes_out_per_second / 1e3,
    )
}

fn dispatch(view: &View) -> String {
    let dispatch = &view.dispatch;
    format!(
        "commands sent {:.1}/s · dispatch p50 {}, p99 {} · commits {:.1}/s",
        dispatch.sent_per_second,
        latency(dispatch.latency_p50_seconds),
        latency(dispatch.latency_p99_seconds),
        view.commits_per_second,
    )
}

/// The most of it, on one line, with the time of the look.
pub(super) fn line(view: &View, at: std::time::SystemTime) -> String {
    let trouble: Vec<String> = view.loops_in_trouble.iter().map(|one| harmless(&one.name)).collect();
    let trouble =
        if trouble.is_empty() { String::new() } else { format!(" · in trouble: {}", trouble.join(", ")) };
    format!(
        "{} {} {} · sessions {} · {} · {} · hellos waiting {} · writer's mail {} · lease {}{trouble}\n",
        humantime::format_rfc3339_seconds(at),
        harmless(&view.gateway),
        harmless(&view.phase),
        view.sessions,
        traffic(view),
        dispatch(view),
        view.pending_hellos.used,
        view.writer_messages.used,
        lease(view),
    )
}

fn shards(view: &View) -> Vec<Value> {
    let row = |shard: &super::view::Shard| {
        json!({
            "shard": shard.shard,
            "cpu": shard.cpu,
            "sessions": shard.sessions,
            "connections": shard.connections,
            "opens": tenths(shard.opens_per_second),
            "refusals": tenths(shard.refusals_per_second),
            "frames_in": tenths(shard.frames_in_per_second),
            "frames_out": tenths(shard.frames_out_per_second),
            "mail": shard.mail_waiting,
        })
    };
    view.shards.iter().map(row).collect()
}

fn queues(view: &View) -> Vec<Value> {
    let row = |queue: &super::view::Queue| {
        json!({
            "queue": queue.queue,
            "waiting": queue.waiting,
            "commits": tenths(queue.commits_per_second),
            "entries": queue.entries_per_commit.map(tenths),
            "p50": latency(queue.flush_p50_seconds),
            "p99": latency(queue.flush_p99_seconds),
        })
    };
    view.queues.iter().map(row).collect()
}

fn tenths(value: f64) -> String {
    format!("{value:.1}")
}

fn latency(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        Some(seconds) => format!("{seconds:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_fits_its_terminal_and_does_not_scroll_it() {
        let drawn = frame("a long line\nb\nc\n", 6, 2);
        assert_eq!(drawn, "\x1b[Ha long\x1b[K\r\nb\x1b[K\x1b[J");
    }

    #[test]
    fn a_line_goes_on_in_the_next_between_its_parts() {
        let line = "sessions 1 · hellos waiting 0 of 512 · tunnels 0";
        assert_eq!(wrapped(line, 80), [line]);
        assert_eq!(wrapped(line, 38), ["sessions 1 · hellos waiting 0 of 512", "tunnels 0"]);
        assert_eq!(wrapped(line, 5), ["sessions 1", "hellos waiting 0 of 512", "tunnels 0"]);
        assert_eq!(wrapped("", 5), [""]);
    }

    #[test]
    fn a_latency_of_which_there_was_none_is_no_number() {
        assert_eq!(latency(None), "-");
        assert_eq!((latency(Some(0.0012)).as_str(), latency(Some(2.0)).as_str()), ("1.2 ms", "2.0 s"));
    }
}

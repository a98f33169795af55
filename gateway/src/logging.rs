//! Log lines on stderr, where journald or a person reads them.
//!
//! One line for what an operator would act on. Colours only where a terminal shows them.
//!
//! 1. Started once a process, by the binary and never by an embedder's `Gateway::start`.
//! 2. A line that can't be written is lost, and nothing else: a full disk under the log ends nobody.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, LogSection};

/// Starts writing lines as the `[log]` section says. A second call in a process does nothing.
pub fn start(section: &LogSection) {
    // `Config::check` has refused filters that can't be read.
    let filter = EnvFilter::try_new(&section.level).unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // It would be told on stderr as well, by `eprintln!`, which panics there.
        .log_internal_errors(false);
    let started = match section.format {
        LogFormat::Human => lines.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    if let Err(error) = started {
        tracing::debug!(%error, "lines are written already");
    }
}

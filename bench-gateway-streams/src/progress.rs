//! What people see while a run goes on: a bar on a terminal, plain lines elsewhere.
//!
//! 1. Standard output carries the report alone; progress goes to standard error.
//! 2. Elsewhere than on a terminal, a step says at most one line every few seconds.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

const LINE_EVERY: Duration = Duration::from_secs(5);

/// Writes a line of the report.
pub(crate) fn print(line: &str) {
    // A reader that went away wants no more.
    let _ = writeln!(io::stdout(), "{line}");
}

/// Tells what happens now.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Tells why the run failed.
pub(crate) fn say_error(line: &str) {
    let _ = writeln!(io::stderr(), "error: {line}");
}

/// One step that counts towards a total.
#[derive(Debug)]
pub(crate) struct Step {
    name: &'static str,
    total: u64,
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl Step {
    pub(crate) fn new(name: &'static str, total: u64) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let style = "{prefix:>22} {wide_bar} {pos}/{len} {msg}";
            let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(total).with_style(style).with_prefix(name)
        });
        if bar.is_none() {
            say(&format!("{name} …"));
        }
        Self { name, total, bar, last_line: Instant::now() }
    }

    /// So far; `more` is said beside it.
    pub(crate) fn at(&mut self, position: u64, more: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_position(position.min(self.total));
                bar.set_message(more.to_owned());
            }
            None if self.last_line.elapsed() >= LINE_EVERY => {
                self.last_line = Instant::now();
                say(&format!("{} {position}/{} {more}", self.name, self.total));
            }
            None => {}
        }
    }

    /// The step is over.
    pub(crate) fn done(self, how: &str) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        say(&format!("{}: {how}", self.name));
    }
}

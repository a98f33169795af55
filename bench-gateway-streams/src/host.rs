//! The machine that a run was made on, and the limits it sets.
//!
//! It owns what a report says of its machine (cores, memory, kernel, commit) and the one limit that a
//! run raises: open files. What can't be read is left empty, for a report is worth having without it;
//! a limit that can't be raised is an error that names the remedy.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

/// What a reader of a report has to know of the machine.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpus: usize,
    pub(crate) model: String,
    pub(crate) memory_bytes: u64,
    pub(crate) kernel: String,
}

impl Machine {
    pub(crate) fn this() -> Self {
        let value_of = |file: &str, key: &str| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
            line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let memory = value_of("/proc/meminfo", "MemTotal");
        let kib: u64 = memory.split_ascii_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0);
        Self {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            model: value_of("/proc/cpuinfo", "model name"),
            memory_bytes: kib * 1024,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        }
    }
}

/// The commit that the program's folder is checked out at, or the folder that it is run in, where that is a
/// checkout of the project; empty elsewhere.
pub(crate) fn commit() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.parent().unwrap_or_else(|| Path::new("."));
    let here = Path::new("configs/bench").is_dir().then(|| Path::new("."));
    let found = std::iter::once(beside).chain(here).map(commit_of).find(|commit| !commit.is_empty());
    found.unwrap_or_default()
}

fn commit_of(folder: &Path) -> String {
    let git = Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .output();
    match git {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => String::new(),
    }
}

/// Lets this process, and the gateway after it, open that many files.
pub(crate) fn allow_files(needed: u64) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|soft| soft < needed) {
        let allowed = limit.maximum.map_or(needed, |hard| hard.min(needed));
        let raised = Rlimit { current: Some(allowed), maximum: limit.maximum };
        setrlimit(Resource::Nofile, raised).context("raising the limit of open files")?;
        anyhow::ensure!(
            allowed >= needed,
            "{needed} open files are needed and the hard limit is {allowed}; raise it with `ulimit -Hn`, \
             or LimitNOFILE in a unit, or ask for fewer --sessions"
        );
    }
    Ok(())
}

//! The nodes' append-only execution log: what a node saw and did, in the order it did it, as one
//! JSON object a line. `verify` compares it with the database.
//!
//! `{"t":<CLOCK_MONOTONIC ns>,"node":"…","event":"received|started|finished|acked","id":"…","attempt":1,"state":"…"}`
//! (`state` only where the event has one: what finished with, what the gateway acked as stored).
//!
//! 1. Lines are only ever appended, each whole.
//! 2. `started` is written before the execution, `acked` when the answer was read.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::clock::monotonic_ns;

/// What a line tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogEvent {
    Received,
    Started,
    Finished,
    Acked,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    #[serde(rename = "t")]
    pub at_ns: u64,
    pub node: String,
    pub event: LogEvent,
    pub id: Uuid,
    pub attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// An execution log that any number of nodes of this process write.
#[derive(Debug)]
pub struct ExecutionLog {
    path: PathBuf,
    file: Mutex<BufWriter<File>>,
}

impl ExecutionLog {
    /// Appends to the file at `path`, which is made where it is missing.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { path: path.to_owned(), file: Mutex::new(BufWriter::new(file)) })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a line. A full disk must not pass for a missing execution, so it ends the process.
    pub(crate) fn append(&self, node: &str, event: LogEvent, id: Uuid, attempt: u32, state: Option<&str>) {
        let line = LogLine {
            at_ns: monotonic_ns(),
            node: node.to_owned(),
            event,
            id,
            attempt,
            state: state.map(str::to_owned),
        };
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let written = serde_json::to_writer(&mut *file, &line).map_err(io::Error::from);
        written.and_then(|()| file.write_all(b"\n")).expect("the execution log can be written");
    }

    /// Hands everything to the operating system.
    pub fn flush(&self) -> io::Result<()> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }

    /// Reads a log back.
    pub fn read(path: &Path) -> io::Result<Vec<LogLine>> {
        let lines = BufReader::new(File::open(path)?).lines();
        lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_back_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let log = ExecutionLog::open(&folder.path().join("nodes.jsonl")).unwrap();
        let id = Uuid::new_v4();
        log.append("node \"1\"", LogEvent::Started, id, 2, None);
        log.append("node \"1\"", LogEvent::Acked, id, 2, Some("succeeded"));
        log.flush().unwrap();
        let read = ExecutionLog::read(log.path()).unwrap();
        assert_eq!(read.len(), 2);
        assert!(read[0].at_ns <= read[1].at_ns && read[0].node == "node \"1\"");
        assert_eq!((read[1].event, read[1].state.as_deref()), (LogEvent::Acked, Some("succeeded")));
    }
}

//! What is wrong with a configuration, in sentences: where, what, and what would be right.
//!
//! 1. Every problem names its key where there is one, and its line where the key stands in the file.
//! 2. Unknown keys are reported together, and so are broken relations; a wrong value is reported alone.
//! 3. What is repeated of the file is harmless to a terminal, on one line, and cut where it is long.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use crate::operate::terminal::harmless;

/// Signs of a key, and of a sentence, that are shown.
const MAX_KEY_SIGNS: usize = 200;
const MAX_SENTENCE_SIGNS: usize = 800;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// From 1; `None` where the key is not in the file.
    pub line: Option<usize>,
    /// `section.key`, or the section alone; empty where the file as such is wrong.
    pub key: String,
    pub sentence: String,
}

/// A configuration that can't be used. Exit code 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, where there is one.
    pub file: Option<PathBuf>,
    /// At least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", shown(&self.key, MAX_KEY_SIGNS))?;
        }
        f.write_str(&shown(&self.sentence, MAX_SENTENCE_SIGNS))
    }
}

/// Text that may hold the file's own words.
fn shown(text: &str, most: usize) -> String {
    let text = harmless(&text.replace('\n', ", "));
    match text.char_indices().nth(most) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            if let Some(file) = &self.file {
                write!(f, "{}: ", file.display())?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// Where each key of a file stands: `section.key` and `section` to lines, from 1.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lines(BTreeMap<String, usize>);

impl Lines {
    /// Notes that `key` stands at the byte `offset` of `text`.
    pub(super) fn note(&mut self, key: String, text: &str, offset: usize) {
        self.0.insert(key, line_of(text, offset));
    }

    /// A problem with `key`, at its line.
    pub fn problem(&self, key: &str, sentence: impl Into<String>) -> Problem {
        Problem { line: self.0.get(key).copied(), key: key.to_owned(), sentence: sentence.into() }
    }

    /// Whether `key` stands in the file.
    pub fn holds(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }
}

/// The line, from 1, of the byte `offset`.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

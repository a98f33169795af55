//! The files that mutations start from: `fuzz/corpus/<target>/`, one input each.
//!
//! Seeds come from the real encoders (`gateway-fuzz --write-seeds`); what was once found stays beside them
//! under a name that says what it was. Nothing here is written during a hunt.
//!
//! 1. Inputs are in the order of their names, so that numbers mean the same on every machine.
//! 2. A corpus is never empty: without files it is one empty input.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The corpora of this repository.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The inputs of a target below `folder`, with their names.
pub fn read(folder: &Path, target: &str) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut inputs = Vec::new();
    let own = folder.join(target);
    if own.is_dir() {
        for entry in fs::read_dir(own)? {
            let entry = entry?;
            inputs.push((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?));
        }
    }
    inputs.sort();
    if inputs.is_empty() {
        inputs.push(("nothing".to_owned(), Vec::new()));
    }
    Ok(inputs)
}

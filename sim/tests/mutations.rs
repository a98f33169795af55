//! The mutations that the simulator must find (`scripts/mutations`) still fit the sources.
//!
//! It applies none and builds nothing: whether each is found takes longer than a test may.
//!
//! 1. Each is a file `sim/mutations/<name>.patch` whose first line says in a sentence what it breaks.
//! 2. Each changes core or the model, and applies to the sources as they are.

use std::path::{Path, PathBuf};
use std::process::Command;

/// So many are there at least.
const AT_LEAST: usize = 80;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the checkout")
}

fn mutations() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("sim/mutations")).expect("sim/mutations");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

#[test]
fn every_mutation_says_what_it_breaks_and_breaks_core_or_the_model() {
    let mutations = mutations();
    assert!(mutations.len() >= AT_LEAST, "{} mutations", mutations.len());
    for file in mutations {
        let text = std::fs::read_to_string(&file).expect("a patch");
        let (title, patch) = text.split_once('\n').expect("a sentence, then a patch");
        assert!(title.len() > 15 && title.ends_with('.'), "{}: {title:?}", file.display());
        let targets: Vec<&str> = patch.lines().filter_map(|line| line.strip_prefix("+++ b/")).collect();
        let fits = |target: &&str| target.starts_with("core/src/") || target.starts_with("sim/src/store/");
        assert!(!targets.is_empty() && targets.iter().all(fits), "{}: {targets:?}", file.display());
        assert_eq!(file.extension().and_then(|end| end.to_str()), Some("patch"), "{}", file.display());
    }
}

#[test]
fn every_mutation_applies_to_the_sources_as_they_are() {
    let mut outdated = Vec::new();
    for file in mutations() {
        let checked = Command::new("git").args(["apply", "--check"]).arg(&file).current_dir(root()).output();
        let checked = checked.expect("git is there, as for every checkout");
        if !checked.status.success() {
            outdated.push(format!("{}: {}", file.display(), String::from_utf8_lossy(&checked.stderr)));
        }
    }
    assert!(
        outdated.is_empty(),
        "make these anew against the sources, as `git diff` prints them:\n{}",
        outdated.join("\n")
    );
}

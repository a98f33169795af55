//! The mutations that the simulator must find (`scripts/mutations`) still fit the sources.
//!
//! It applies none and builds nothing: whether each is found takes longer than a test may.
//!
//! 1. Each is a file `sim/mutations/<name>.patch` whose first line says in a sentence what it breaks.
//! 2. Each changes core or the model, and applies to the sources as they are.
//! 3. `docs/mutations.md`, which the script writes, has each as it is, with the check that found it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// So many are there at least.
const AT_LEAST: usize = 130;
/// So many of them were tried, and found.
const FOUND_AT_LEAST: usize = 30;

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

#[test]
fn every_mutation_stands_in_the_table_and_whatever_was_tried_was_found() {
    let mut found = 0;
    let page = std::fs::read_to_string(root().join("docs/mutations.md")).expect("docs/mutations.md");
    let mut rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    let again = "run `scripts/mutations --table docs/mutations.md NAME`";
    for file in mutations() {
        let text = std::fs::read_to_string(&file).expect("a patch");
        let name = file.file_stem().and_then(|name| name.to_str()).expect("a name");
        let title = text.lines().next().expect("a sentence");
        let place = rows.iter().position(|row| row[0] == format!("`{name}`"));
        let row = rows.swap_remove(place.unwrap_or_else(|| panic!("{name} is not in the table; {again}")));
        assert_eq!(row[1], title, "{name}; {again}");
        // A whole run takes an hour, so a new one may still be due.
        if row[2..] == ["not tried"] {
            continue;
        }
        let [after, check] = row[2..] else { panic!("{row:?}; {again}") };
        let is_found = after.parse::<u64>().is_ok_and(|after| after > 0) && check != "not found";
        assert!(is_found, "{row:?}: a mutation that no check finds shows what the simulator does not see");
        found += 1;
    }
    assert!(found >= FOUND_AT_LEAST, "{found} were tried; {again}");
    assert!(rows.is_empty(), "these are no more: {rows:?}");
}

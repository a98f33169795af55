//! What every source file of this repository looks like, held as a test.
//!
//! It reads the files as text and lists every offender at once, with what to do about it.
//!
//! 1. Every file opens with a `//!` of 3 to 25 lines: what it owns, what it never does.
//! 2. A file has at most 500 lines without its tests. Files of tests may be longer.
//! 3. No module is called util, common, manager or helper: such a name says nothing.

use std::path::{Path, PathBuf};

const MAX_LINES: usize = 500;
const HEADER_LINES: std::ops::RangeInclusive<usize> = 3..=25;
const BANNED_NAMES: [&str; 4] = ["util", "common", "manager", "helper"];

#[test]
fn every_file_opens_with_what_it_is_about() {
    let mut offenders = Vec::new();
    for file in source_files() {
        let text = std::fs::read_to_string(&file).expect("a source file");
        let lines = text.lines().take_while(|line| line.starts_with("//!")).count();
        if !HEADER_LINES.contains(&lines) {
            offenders.push(format!("{}: its //! has {lines} lines, not 3 to 25", shown(&file)));
        }
    }
    assert!(offenders.is_empty(), "\n{}\n", offenders.join("\n"));
}

#[test]
fn no_file_outgrows_what_one_can_read() {
    let mut offenders = Vec::new();
    for file in source_files().into_iter().filter(|file| !is_of_tests(file)) {
        let text = std::fs::read_to_string(&file).expect("a source file");
        let lines = lines_without_tests(&text);
        if lines > MAX_LINES {
            offenders
                .push(format!("{}: {lines} lines without its tests, more than {MAX_LINES}", shown(&file)));
        }
    }
    assert!(offenders.is_empty(), "\n{}\n", offenders.join("\n"));
}

#[test]
fn no_module_has_a_name_that_says_nothing() {
    let mut offenders = Vec::new();
    for file in source_files() {
        for part in file.strip_prefix(root()).expect("below the root").iter() {
            let name = part.to_string_lossy();
            let words: Vec<&str> = name.trim_end_matches(".rs").split(['_', '-']).collect();
            for banned in BANNED_NAMES {
                if words.iter().any(|word| *word == banned || *word == format!("{banned}s")) {
                    offenders.push(format!("{}: {banned} names no thing; name what it owns", shown(&file)));
                }
            }
        }
    }
    assert!(offenders.is_empty(), "\n{}\n", offenders.join("\n"));
}

#[test]
fn the_part_of_tests_is_told_from_the_rest() {
    let text = "//! x\nfn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n#[cfg(test)]\nmod stories;\n";
    assert_eq!(lines_without_tests(text), 3);
}

/// Lines outside `#[cfg(test)]` items, as rustfmt lays them out: an item ends at the first line that
/// closes it at its own indentation, or with its own line where it has no body.
fn lines_without_tests(text: &str) -> usize {
    let mut count = 0;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            count += 1;
            continue;
        }
        let indentation = line.len() - line.trim_start().len();
        for line in lines.by_ref() {
            let own = line.len() - line.trim_start().len() == indentation && !line.trim().is_empty();
            let item = line.trim();
            if own && (item.starts_with('}') || item.ends_with(';') || item.ends_with('}')) {
                break;
            }
        }
    }
    count
}

/// Files that hold nothing but tests: those of `tests/` folders, and modules that are compiled for
/// tests alone.
fn is_of_tests(file: &Path) -> bool {
    if file.iter().any(|part| part == "tests") {
        return true;
    }
    let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let folder = file.parent().expect("a file has a folder");
    let parents =
        [folder.join("mod.rs"), folder.join("lib.rs"), folder.join("main.rs"), folder.with_extension("rs")];
    parents.iter().filter_map(|parent| std::fs::read_to_string(parent).ok()).any(|text| {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        lines.windows(2).any(|pair| pair[0] == "#[cfg(test)]" && pair[1] == format!("mod {stem};"))
    })
}

fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("a crate lies in the workspace").to_owned()
}

fn shown(file: &Path) -> String {
    file.strip_prefix(root()).unwrap_or(file).display().to_string()
}

/// Every `.rs` file of the workspace, in order.
fn source_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the workspace") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if name.ends_with(".rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    assert!(files.len() > 20, "the sources were not found below {}", root().display());
    files
}

//! `docs/rules.md` held against the sources: each rule has a test that exists, or says why it has none.
//!
//! It reads the page and the files that it names as text. That a test fails when its rule is broken is for
//! whoever writes it to show; that it is there, and runs, is shown here.
//!
//! 1. Rules are numbered without gap or repetition, the D, the B and the T each from 1.
//! 2. A test is named by its file and its function, which is marked as a test and not ignored. A story of
//!    the Python client counts as one.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::Duration;

struct Rule {
    id: String,
    sentence: String,
    held_by: String,
}

#[test]
fn every_rule_has_a_test_that_exists_or_says_why_not() {
    let mut offenders = Vec::new();
    for Rule { id, sentence, held_by } in rules() {
        if sentence.is_empty() || !sentence.ends_with('.') {
            offenders.push(format!("{id}: it is no sentence: {sentence:?}"));
        }
        if let Some(why) = held_by.strip_prefix("not built") {
            if why.trim_start_matches(':').trim().is_empty() {
                offenders.push(format!("{id}: it is not built, and nobody says what is missing"));
            }
            continue;
        }
        let tests: Vec<&str> = held_by.split('`').skip(1).step_by(2).collect();
        if tests.is_empty() {
            offenders.push(format!("{id}: no test is named"));
        }
        offenders.extend(tests.into_iter().filter_map(|test| Some(format!("{id}: {}", missing(test)?))));
    }
    assert!(offenders.is_empty(), "docs/rules.md:\n{}\n", offenders.join("\n"));
}

#[test]
fn rules_are_numbered_without_gap_or_repetition() {
    for letter in ["D", "B", "T"] {
        let numbers: Vec<String> =
            rules().into_iter().map(|rule| rule.id).filter(|id| id.starts_with(letter)).collect();
        let expected: Vec<String> = (1..=numbers.len()).map(|number| format!("{letter}{number}")).collect();
        assert_eq!(numbers, expected);
        assert!(numbers.len() >= 10, "the rules {letter} were not found");
    }
}

#[test]
fn the_check_would_see_what_is_missing() {
    assert_eq!(missing("gateway/tests/rules.rs::the_check_would_see_what_is_missing"), None);
    for wrong in [
        "gateway/tests/rules.rs",
        "gateway/tests/no_such_file.rs::x",
        "gateway/tests/rules.rs::no_such_test",
        // There, and no test.
        "gateway/tests/rules.rs::missing",
        // A test that nobody runs unasked.
        "db-writer/tests/model.rs::many_seeds",
    ] {
        assert!(missing(wrong).is_some(), "{wrong}");
    }
}

#[test]
fn the_lease_lasts_as_long_as_the_rules_say() {
    let file = std::fs::read_to_string(root().join("configs/gateway.toml")).unwrap();
    let lease = toml::from_str::<toml::Table>(&file).unwrap()["lease"].clone();
    let seconds = |key: &str| {
        let text = lease[key].as_str().unwrap().strip_suffix('s').unwrap().to_owned();
        Duration::from_secs(text.parse().unwrap())
    };
    // That the file says what a gateway does without it is held by the configuration's own tests.
    assert_eq!(seconds("ttl"), Duration::from_secs(20));
    assert_eq!(seconds("renew_every"), Duration::from_secs(5));
}

/// The macros that read a statement from a file and check it against the committed descriptions.
const CHECKED: [&str; 3] = ["query_file!", "query_file_as!", "query_file_scalar!"];

#[test]
fn statements_are_in_files_that_the_build_checks() {
    let (mut checked, mut offenders) = (0, Vec::new());
    for entry in std::fs::read_dir(root().join("db-writer/src/jobs")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        checked += CHECKED.iter().map(|read| text.matches(read).count()).sum::<usize>();
        for unchecked in ["sqlx::query(", "sqlx::query_as(", "sqlx::query_scalar(", "raw_sql("] {
            if text.contains(unchecked) {
                offenders
                    .push(format!("{}: {unchecked} takes a statement that no build checks", path.display()));
            }
        }
    }
    let described = std::fs::read_dir(root().join("db-writer/.sqlx")).unwrap().count();
    assert!(offenders.is_empty(), "{}", offenders.join("\n"));
    assert!(checked > 10 && described > 10, "{checked} statements, {described} descriptions");
}

// -- reading the page ----------------------------------------------------------------------------

fn rules() -> Vec<Rule> {
    let page = std::fs::read_to_string(root().join("docs/rules.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.filter_map(|row| {
        let mut cells = row.splitn(3, " | ").map(str::trim);
        let id = cells.next().filter(|id| {
            id.starts_with(['D', 'B', 'T'])
                && id.len() > 1
                && id[1..].chars().all(|digit| digit.is_ascii_digit())
        })?;
        let (sentence, held_by) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
        Some(Rule { id: id.to_owned(), sentence: sentence.to_owned(), held_by: held_by.to_owned() })
    })
    .collect()
}

/// Why there is no such test; `None` where there is.
fn missing(test: &str) -> Option<String> {
    let Some((file, name)) = test.split_once("::") else {
        return Some(format!("{test} names no test of a file"));
    };
    let Ok(text) = std::fs::read_to_string(root().join(file)) else {
        return Some(format!("there is no file {file}"));
    };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_python = Path::new(file).extension().is_some_and(|extension| extension == "py");
    let heads = [format!("fn {name}("), format!("async fn {name}("), format!("def {name}(")];
    let Some(at) = lines.iter().position(|line| heads.iter().any(|head| line.starts_with(head.as_str())))
    else {
        return Some(format!("{file} has no {name}"));
    };
    let marks: Vec<&str> =
        lines[..at].iter().rev().take_while(|line| line.starts_with(['#', '@'])).copied().collect();
    let is_marked = match is_python {
        true => marks.contains(&"@story"),
        false => marks.iter().any(|mark| mark.starts_with("#[test]") || mark.starts_with("#[tokio::test")),
    };
    if !is_marked {
        return Some(format!("{file}::{name} is no test"));
    }
    marks.iter().any(|mark| mark.starts_with("#[ignore")).then(|| format!("{file}::{name} is ignored"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

//! The TOML of a gateway.
//!
//! 1. A configuration that is printed reads back as itself.
//! 2. One without a problem has limits whose relations hold.
//! 3. What is wrong is said in sentences that a terminal can be given.

use gateway::config::{Config, show_toml};

use super::is_printable;

pub(super) fn configuration(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    match Config::parse(&text) {
        Ok((config, lines)) => {
            let problems = config.check(&lines);
            problems.iter().for_each(|problem| check_problem(&problem.to_string()));
            if problems.is_empty() {
                assert_eq!(config.limits().check(), Ok(()), "what passed the check breaks a relation");
            }
            let shown = show_toml(&config);
            let again = Config::parse(&shown).map(|(config, _)| config);
            assert_eq!(again.as_ref(), Ok(&config), "printed, it reads as another");
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            problems.iter().for_each(|problem| check_problem(&problem.to_string()));
        }
    }
}

/// A problem repeats the operator's own words, so it may be longer than other sentences.
#[track_caller]
fn check_problem(sentence: &str) {
    assert!(sentence.chars().all(is_printable), "a problem holds what no terminal should get: {sentence:?}");
    assert!(sentence.len() <= 2000, "a problem of {} bytes", sentence.len());
}

//! A configuration as it is in use, for people and for machines.
//!
//! 1. What `show_toml` prints reads back as the same configuration.
//! 2. A URL is printed as it stands in the file, which holds no password.

use std::fmt::Write as _;

use super::catalog::catalog;
use super::sections::Config;

/// Every key with its value in use, its unit and what it does, as TOML. Keys without a value are
/// printed as comments, with an example.
pub fn show_toml(config: &Config) -> String {
    let values = toml::Table::try_from(config).expect("every key of ours can be written as TOML");
    let defaults =
        toml::Table::try_from(Config::default()).expect("every key of ours can be written as TOML");
    let value_of = |table: &toml::Table, section: &str, key: &str| {
        table.get(section).and_then(|section| section.get(key)).map(toml::Value::to_string)
    };
    let mut text = String::new();
    let mut section = String::new();
    for note in catalog() {
        if note.section != section {
            let gap = if section.is_empty() { "" } else { "\n" };
            section.clone_from(&note.section);
            writeln!(text, "{gap}[{section}]").expect("writing to a string does not fail");
        }
        for line in &note.comment {
            writeln!(text, "# {line}").expect("writing to a string does not fail");
        }
        let default = value_of(&defaults, &section, &note.key).unwrap_or_else(|| "none".to_owned());
        writeln!(text, "# Unit: {}. Default: {default}.", note.unit)
            .expect("writing to a string does not fail");
        let line = match value_of(&values, &section, &note.key) {
            Some(value) => format!("{} = {value}", note.key),
            None => format!("#{} = {}", note.key, note.value),
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Every key with its value in use; `null` where it has none.
pub fn show_json(config: &Config) -> String {
    serde_json::to_string_pretty(config).expect("every key of ours can be written as JSON")
}

//! What an operator is told of every key: `configs/gateway.toml`, taken apart.
//!
//! The file is embedded, so that `gateway config show` prints the comments that stand in it, and
//! an unknown key finds its nearest right one.
//!
//! 1. One place holds the words: the file. One place holds the values: the structs. Tests hold both
//!    to the same keys and defaults.

use std::fmt::Write as _;

/// The annotated file, with every key.
pub const ANNOTATED: &str = include_str!("../../../configs/gateway.toml");

/// One key of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyNote {
    pub section: String,
    pub key: String,
    /// The value that stands in the annotated file, as TOML: the default, or an example.
    pub value: String,
    /// Whether it has no value by default.
    pub optional: bool,
    /// What it does, line by line, without the comment sign.
    pub comment: Vec<String>,
    /// What it is counted in.
    pub unit: String,
}

/// Every key, in the order of the annotated file.
pub fn catalog() -> Vec<KeyNote> {
    let mut notes = Vec::new();
    let (mut section, mut comment, mut unit) = (String::new(), Vec::new(), String::new());
    for line in ANNOTATED.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name.to_owned();
            comment.clear();
        } else if let Some(text) = line.strip_prefix("# Unit: ") {
            unit = text.trim_end_matches('.').to_owned();
        } else if let Some(text) = line.strip_prefix("# ") {
            comment.push(text.to_owned());
        } else if let Some((key, value)) = line.split_once(" = ") {
            let optional = key.starts_with('#');
            notes.push(KeyNote {
                section: section.clone(),
                key: key.trim_start_matches('#').to_owned(),
                value: value.to_owned(),
                optional,
                comment: std::mem::take(&mut comment),
                unit: std::mem::take(&mut unit),
            });
        }
    }
    notes
}

/// Every section, in order.
pub(super) fn section_names(notes: &[KeyNote]) -> Vec<&str> {
    let mut names: Vec<&str> = notes.iter().map(|note| note.section.as_str()).collect();
    names.dedup();
    names
}

/// What an unknown `section.key` was probably meant to be: a sentence to append, or nothing.
pub(super) fn suggest_key(notes: &[KeyNote], section: &str, key: &str) -> String {
    if let Some(note) = notes.iter().find(|note| note.key == key && note.section != section) {
        return format!("; did you mean {key} of [{}]?", note.section);
    }
    let same_section = notes.iter().filter(|note| note.section == section).map(|note| note.key.as_str());
    let mut sentence = String::new();
    match nearest(key, same_section.clone()) {
        Some(near) => write!(sentence, "; did you mean {near}?"),
        None => {
            let known: Vec<&str> = same_section.collect();
            write!(sentence, "; [{section}] has {}", known.join(", "))
        }
    }
    .expect("writing to a string does not fail");
    sentence
}

/// What an unknown section was probably meant to be.
pub(super) fn suggest_section(notes: &[KeyNote], section: &str) -> String {
    let names = section_names(notes);
    if let Some(note) = notes.iter().find(|note| note.key == section) {
        return format!("; did you mean {section} of [{}]?", note.section);
    }
    match nearest(section, names.iter().copied()) {
        Some(near) => format!("; did you mean [{near}]?"),
        None => format!("; the sections are {}", names.join(", ")),
    }
}

/// The candidate with the smallest edit distance, if that is small for the word's length.
fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (word.len() / 3).clamp(1, 4);
    candidates
        .map(|candidate| (edit_distance(word, candidate), candidate))
        .filter(|(distance, candidate)| {
            *distance <= allowed
                || (word.len() >= 4 && (candidate.contains(word) || word.contains(candidate)))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(rows[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_comment_and_a_unit() {
        for note in catalog() {
            assert!(!note.comment.is_empty(), "{}.{} has no comment", note.section, note.key);
            assert!(!note.unit.is_empty(), "{}.{} has no unit", note.section, note.key);
        }
    }

    #[test]
    fn an_unknown_key_finds_the_nearest_right_one() {
        let notes = catalog();
        assert_eq!(suggest_key(&notes, "lease", "tttl"), "; did you mean ttl?");
        assert_eq!(suggest_key(&notes, "admission", "max_stream"), "; did you mean max_streams?");
        assert_eq!(suggest_key(&notes, "admission", "opens_per_sceond"), "; did you mean opens_per_second?");
        assert_eq!(
            suggest_key(&notes, "sessions", "max_streams"),
            "; did you mean max_streams of [admission]?"
        );
        assert_eq!(suggest_key(&notes, "lease", "zebra"), "; [lease] has ttl, renew_every");
        assert_eq!(suggest_section(&notes, "shard"), "; did you mean [shards]?");
        assert_eq!(suggest_section(&notes, "trust_domain"), "; did you mean trust_domain of [tls]?");
        assert!(suggest_section(&notes, "zebra").starts_with("; the sections are gateway, listen, tls"));
    }

    #[test]
    fn a_swap_of_neighbours_is_one_edit() {
        assert_eq!(edit_distance("ttl", "tlt"), 1);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("cpu", "cpus"), 1);
    }
}

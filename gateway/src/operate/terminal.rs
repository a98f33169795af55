//! What a terminal or a program is given: strings made harmless, and whether anybody still reads.
//!
//! 1. Strings of nodes and clients are hostile: control and format characters (escape sequences,
//!    line breaks, reversed writing) come out as escapes, in tables and in JSON alike.
//! 2. A reader that went away (`| head`) is no failure; it ends what would go on.

use std::io::Write as _;

use serde_json::Value;

use crate::error::GatewayError;

/// Whether somebody still reads what we write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    There,
    Gone,
}

/// Writes to stdout, at once.
pub(super) fn write(text: &str) -> Result<Reader, GatewayError> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(GatewayError::Machine(format!("stdout can't be written: {error}"))),
    }
}

/// A remark for people, beside the answer.
pub(super) fn remark(sentence: &str) {
    // Nobody to tell is no reason to fail.
    let _ = writeln!(std::io::stderr(), "gateway: {sentence}");
}

/// `text` on one line, with what a terminal would obey written as escapes.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().flat_map(|sign| harmless_sign(sign, false)).collect()
}

/// The same, at most `width` signs; what is cut ends in `…`.
pub(super) fn harmless_within(text: &str, width: usize) -> String {
    // What is cut off is not looked at: a node's text may be long.
    let shown: Vec<char> =
        text.chars().take(width + 1).flat_map(|sign| harmless_sign(sign, true)).take(width + 1).collect();
    if shown.len() <= width {
        return shown.into_iter().collect();
    }
    let kept = shown.into_iter().take(width.saturating_sub(1));
    kept.chain(std::iter::once('…')).collect()
}

/// A cell escapes the backslash too, so that an escape is never taken for the text itself.
fn harmless_sign(sign: char, is_cell: bool) -> Vec<char> {
    match sign {
        '"' | '\'' => vec![sign],
        '\\' if !is_cell => vec![sign],
        _ => sign.escape_debug().collect(),
    }
}

/// One line of JSON, in which nothing is left that a terminal would obey.
pub(super) fn json_line(value: &Value) -> String {
    let text = value.to_string();
    let mut line = String::with_capacity(text.len() + 1);
    for sign in text.chars() {
        // Outside strings JSON is ASCII, so such a sign stands in a string, where \u is the same.
        let is_plain = sign.is_ascii() && sign != '\u{7f}';
        if is_plain || sign.escape_debug().next() == Some(sign) {
            line.push(sign);
        } else {
            let mut units = [0; 2];
            for unit in sign.encode_utf16(&mut units) {
                line.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    line.push('\n');
    line
}

/// Bytes that came as `<name>_hex` become text under `name` where they are UTF-8.
pub(super) fn bytes_as_text(row: &mut Value, name: &str) {
    let Some(object) = row.as_object_mut() else { return };
    let hex = format!("{name}_hex");
    let Some(Value::String(digits)) = object.get(&hex) else {
        object.remove(&hex);
        return;
    };
    let bytes: Option<Vec<u8>> = digits
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect();
    if let Some(Ok(text)) = bytes.map(String::from_utf8) {
        object.remove(&hex);
        object.insert(name.to_owned(), Value::String(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const HOSTILE: &str = "a\u{1b}[2Jb\nc\u{202e}d\u{9b}31me\u{7f}";

    fn obeyed(text: &str) -> bool {
        text.chars().any(|sign| sign.is_control() || ('\u{200b}'..='\u{202e}').contains(&sign))
    }

    #[test]
    fn no_escape_sequence_of_a_node_reaches_the_terminal() {
        for shown in [harmless(HOSTILE), harmless_within(HOSTILE, 100)] {
            assert!(!obeyed(&shown), "{shown:?}");
        }
        let line = json_line(&json!({ HOSTILE: HOSTILE }));
        assert!(!obeyed(line.trim_end()), "{line:?}");
        let again: Value = serde_json::from_str(&line).expect("still JSON");
        assert_eq!(again, json!({ HOSTILE: HOSTILE }), "and it says the same");
    }

    #[test]
    fn what_people_write_is_left_as_it_is() {
        for text in ["spiffe://fleet/site/köln/node/1", "it's \"so\"", "日本"] {
            assert_eq!(harmless_within(text, 100), text);
        }
        assert!(json_line(&json!("köln 日本")).contains("köln 日本"));
    }

    #[test]
    fn a_long_text_is_cut_and_shows_that_it_was() {
        assert_eq!(harmless_within("abcdef", 6), "abcdef");
        assert_eq!(harmless_within("abcdefg", 6), "abcde…");
        assert_eq!(harmless_within("\u{1b}\u{1b}\u{1b}", 6), "\\u{1b…");
    }

    #[test]
    fn bytes_are_text_where_they_can_be() {
        let mut row = json!({ "body_hex": "68690a" });
        bytes_as_text(&mut row, "body");
        assert_eq!(row, json!({ "body": "hi\n" }));
        let mut row = json!({ "body_hex": "ff00" });
        bytes_as_text(&mut row, "body");
        assert_eq!(row, json!({ "body_hex": "ff00" }));
        let mut row = json!({ "body_hex": null });
        bytes_as_text(&mut row, "body");
        assert_eq!(row, json!({}));
    }
}

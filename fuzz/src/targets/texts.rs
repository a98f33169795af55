//! Ids, and strings of nodes on their way to a header, a log or a terminal.
//!
//! 1. What became an id becomes the same id again, and holds no control character.
//! 2. Nothing that a terminal would obey is left of a string that was made harmless.

use gateway_core::close::CloseReason;
use gateway_core::ids::{GatewayId, IdError, JournalId, LaneName, NodeId, SectionName, SpecName};
use gateway_operate::{harmless, harmless_within, json_line};
use gateway_shard::doors;
use serde_json::Value;

use super::{check_sentence, is_printable};

use gateway::operate::doors as gateway_operate;

pub(super) fn names(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let outcomes: [(Result<String, IdError>, usize); 6] = [
        (NodeId::new(&text).map(|id| id.as_str().to_owned()), NodeId::MAX_BYTES),
        (GatewayId::new(&text).map(|id| id.as_str().to_owned()), GatewayId::MAX_BYTES),
        (LaneName::new(&text).map(|id| id.as_str().to_owned()), LaneName::MAX_BYTES),
        (JournalId::new(&text).map(|id| id.as_str().to_owned()), JournalId::MAX_BYTES),
        (SpecName::new(&text).map(|id| id.as_str().to_owned()), SpecName::MAX_BYTES),
        (SectionName::new(&text).map(|id| id.as_str().to_owned()), SectionName::MAX_BYTES),
    ];
    for (outcome, longest) in outcomes {
        match outcome {
            Ok(id) => {
                assert_eq!(id, text);
                assert!((1..=longest).contains(&id.len()) && !id.chars().any(char::is_control), "{id:?}");
            }
            Err(error) => check_sentence(&error.to_string()),
        }
    }
}

pub(super) fn status(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let trailers = doors::trailers(&CloseReason::Protocol(text.clone().into_owned()));
    assert_eq!(trailers.get("grpc-status").map(|code| code.as_bytes()), Some(&b"3"[..]));
    let message = trailers.get("grpc-message").map(|message| message.as_bytes().to_vec());
    assert_eq!(message.is_none(), text.is_empty());
    if let Some(message) = message {
        assert!(message.iter().all(|byte| (b' '..=b'~').contains(byte)) && message.len() <= 3072);
        let decoded = percent_decoded(&message);
        assert!(text.as_bytes().starts_with(&decoded), "it says something else");
        assert!(decoded.len() >= text.len().min(1021), "{} bytes of it are left", decoded.len());
    }
    let logged = doors::panic_text(&text);
    assert!(logged.chars().all(is_printable) && logged.len() <= 3000, "{logged:?}");
}

fn percent_decoded(message: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    let mut rest = message;
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'%', [high, low, tail @ ..]) => {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).expect("ASCII");
                decoded.push(u8::from_str_radix(digits, 16).expect("two hex digits follow a percent sign"));
                rest = tail;
            }
            _ => {
                decoded.push(*first);
                rest = tail;
            }
        }
    }
    decoded
}

pub(super) fn terminal(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    for line in [harmless(&text), harmless_within(&text, 40)] {
        assert!(line.chars().all(|sign| is_printable(sign) || sign == '…'), "{line:?}");
    }
    assert!(harmless_within(&text, 40).chars().count() <= 40);
    let line = json_line(&Value::String(text.clone().into_owned()));
    assert!(line.trim_end_matches('\n').chars().all(is_printable), "{line:?}");
    assert_eq!(serde_json::from_str::<Value>(&line).ok(), Some(Value::String(text.into_owned())));
}

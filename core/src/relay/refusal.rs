//! What a node is told when it does not get what it asked a relay for.
//!
//! Owns the codes that may reach a node by this way, and which of a service's own codes go through. A
//! service that is away, slow or broken is `Unavailable` to the node, which then tries again; what a
//! service says about the call itself (a used token, an unknown secret) goes through with its sentence.
//!
//! 1. A sentence has at most `MAX_SENTENCE_BYTES`, and no control character.
//! 2. `ResourceExhausted` always carries a delay, within `MIN_DELAY` and `MAX_DELAY`.

use std::time::Duration;

use super::RelayKind;
use crate::close::{CloseReason, StatusCode};

/// Longest sentence of a service that goes through.
pub const MAX_SENTENCE_BYTES: usize = 512;
const MIN_DELAY: Duration = Duration::from_millis(5);
const MAX_DELAY: Duration = Duration::from_secs(60);
/// Where a service names none.
const USUAL_DELAY: Duration = Duration::from_secs(1);

/// gRPC codes with their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum RefusalCode {
    InvalidArgument = 3,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
    Unimplemented = 12,
}

/// The end of a call that has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct Refusal {
    pub code: RefusalCode,
    pub sentence: String,
    /// How long the node must wait before it asks again, where that is told.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// With a sentence of one's own, which is cut if it must be.
    pub fn new(code: RefusalCode, sentence: impl AsRef<str>) -> Self {
        let retry_after = (code == RefusalCode::ResourceExhausted).then_some(USUAL_DELAY);
        Self { code, sentence: plain(sentence.as_ref()), retry_after }
    }

    /// The service can't be asked; `why` is of our own words.
    pub fn unavailable(kind: RelayKind, why: &str) -> Self {
        Self::new(RefusalCode::Unavailable, format!("the {} {why}", kind.service()))
    }

    /// No service of that kind is known.
    pub fn not_configured(kind: RelayKind) -> Self {
        Self::new(
            RefusalCode::Unavailable,
            format!("{} is not offered by this gateway: it knows no {}", kind.call(), kind.service()),
        )
    }

    /// More calls are under way and wait than may.
    pub fn too_many(kind: RelayKind) -> Self {
        Self::new(
            RefusalCode::ResourceExhausted,
            format!("too many calls wait for the {}; retry after the given delay", kind.service()),
        )
    }

    /// What a node is told of a status that a service ended its call with. `code` is never `OK`.
    pub fn of_service(kind: RelayKind, code: u32, sentence: &str, retry_after: Option<Duration>) -> Self {
        let through = match code {
            3 => RefusalCode::InvalidArgument,
            5 => RefusalCode::NotFound,
            6 => RefusalCode::AlreadyExists,
            7 => RefusalCode::PermissionDenied,
            8 => RefusalCode::ResourceExhausted,
            9 => RefusalCode::FailedPrecondition,
            10 => RefusalCode::Aborted,
            16 => RefusalCode::Unauthenticated,
            // Nothing about the call, but about the service; what it says of itself is its own log's.
            _ => {
                let mut away = Self::unavailable(kind, "can't answer now; retry");
                away.retry_after = retry_after.map(bounded);
                return away;
            }
        };
        let mut refusal = Self::new(through, sentence);
        if refusal.sentence.is_empty() {
            refusal.sentence = format!("the {} refused the call", kind.service());
        }
        if let Some(delay) = retry_after {
            refusal.retry_after = Some(bounded(delay));
        }
        refusal
    }
}

impl From<CloseReason> for Refusal {
    fn from(reason: CloseReason) -> Self {
        let code = match reason.status() {
            StatusCode::InvalidArgument => RefusalCode::InvalidArgument,
            StatusCode::PermissionDenied => RefusalCode::PermissionDenied,
            StatusCode::ResourceExhausted => RefusalCode::ResourceExhausted,
            StatusCode::Aborted => RefusalCode::Aborted,
            StatusCode::Unimplemented => RefusalCode::Unimplemented,
            StatusCode::Unauthenticated => RefusalCode::Unauthenticated,
            StatusCode::Internal => RefusalCode::Internal,
            StatusCode::Unavailable | StatusCode::Ok => RefusalCode::Unavailable,
        };
        let mut refusal = Self::new(code, reason.to_string());
        refusal.retry_after = reason.pushback().or(refusal.retry_after);
        refusal
    }
}

fn bounded(delay: Duration) -> Duration {
    delay.clamp(MIN_DELAY, MAX_DELAY)
}

fn plain(sentence: &str) -> String {
    let mut text: String = sentence.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    text.truncate(text.floor_char_boundary(MAX_SENTENCE_BYTES));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_service_says_of_the_call_goes_through_and_what_it_says_of_itself_does_not() {
        let refusal = Refusal::of_service(RelayKind::Join, 16, "the token was used", None);
        assert_eq!(refusal, Refusal::new(RefusalCode::Unauthenticated, "the token was used"));
        for code in [1, 2, 4, 11, 12, 13, 14, 15, 99] {
            let refusal = Refusal::of_service(RelayKind::Renew, code, "stack trace", None);
            assert_eq!(refusal.code, RefusalCode::Unavailable, "{code}");
            assert!(!refusal.sentence.contains("stack"), "{}", refusal.sentence);
            assert!(refusal.sentence.contains("renewal service"));
        }
        let silent = Refusal::of_service(RelayKind::FetchSecret, 5, "", None);
        assert_eq!(silent.sentence, "the secret broker refused the call");
    }

    #[test]
    fn sentences_are_cut_and_have_no_control_characters() {
        let refusal =
            Refusal::of_service(RelayKind::Join, 3, &format!("a\nb\u{1b}[0m{}", "é".repeat(999)), None);
        assert!(refusal.sentence.starts_with("a b [0mé"));
        assert!(refusal.sentence.len() <= MAX_SENTENCE_BYTES);
    }

    #[test]
    fn an_exhausted_service_always_gives_a_delay_that_makes_sense() {
        let of = |delay| Refusal::of_service(RelayKind::Join, 8, "busy", delay).retry_after;
        assert_eq!(of(None), Some(USUAL_DELAY));
        assert_eq!(of(Some(Duration::ZERO)), Some(MIN_DELAY));
        assert_eq!(of(Some(Duration::from_secs(9999))), Some(MAX_DELAY));
        assert_eq!(Refusal::too_many(RelayKind::Join).retry_after, Some(USUAL_DELAY));
    }
}

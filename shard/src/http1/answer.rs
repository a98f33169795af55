//! How answers look in HTTP/1.1 and how a session's end looks in WebSocket. What the status is was decided by
//! `CloseReason` or `Refusal`.
//!
//! 1. Every status of a call has one status of HTTP, and its own in `grpc-status` beside it.
//! 2. A delay is in `grpc-retry-pushback-ms`, and in `retry-after` in whole seconds, both rounded up; in a close
//!    frame, which has no headers, at the end of the sentence.
//! 3. The reason of a close frame is at most 123 bytes of UTF-8, and a delay in it is always whole.

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use gateway_core::close::StatusCode;
use gateway_proto::{header, http1, status_message};

use super::frames;
use super::head::Refused;
use crate::status::{CallStatus, cut, whole_millis};

/// What is left of a close frame for its reason.
const MAX_REASON_BYTES: usize = 123;

/// The upgrade to WebSocket.
pub(crate) fn upgraded(accept: &str) -> Bytes {
    let protocol = http1::SUBPROTOCOL;
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
         sec-websocket-accept: {accept}\r\nsec-websocket-protocol: {protocol}\r\n\r\n"
    )
    .into()
}

/// That a body may come.
pub(crate) fn go_on() -> Bytes {
    Bytes::from_static(b"HTTP/1.1 100 Continue\r\n\r\n")
}

/// The answer to what is no request of ours; the connection ends with it.
pub(crate) fn refused(refused: &Refused) -> Bytes {
    let mut headers = String::new();
    if let Some((name, value)) = refused.header {
        field(&mut headers, name, value);
    }
    if let Some(pushback) = refused.pushback {
        field(&mut headers, header::GRPC_STATUS, StatusCode::ResourceExhausted as u8);
        delay(&mut headers, pushback);
    }
    whole(refused.status.as_u16(), &headers, Body::Sentence(refused.sentence), false)
}

/// The end of a call: its message where it is good, else why it is not. `keep_alive`: whether the connection
/// goes on.
pub(crate) fn ended(status: &CallStatus, message: &[u8], keep_alive: bool) -> Bytes {
    let mut headers = String::new();
    field(&mut headers, header::GRPC_STATUS, status.code());
    if status.code() == 0 {
        return whole(200, &headers, Body::Message(message), keep_alive);
    }
    let sentence = cut(status.message());
    field(&mut headers, header::GRPC_MESSAGE, status_message::encoded(sentence));
    if let Some(pushback) = status.pushback() {
        delay(&mut headers, pushback);
    }
    whole(http_status(status.code()), &headers, Body::Sentence(sentence), keep_alive)
}

/// The end of a session.
pub(crate) fn close(status: &CallStatus) -> Bytes {
    let hint = status.pushback().map(|delay| http1::pushback_hint(whole_millis(delay))).unwrap_or_default();
    let sentence = status.message();
    let room = MAX_REASON_BYTES - hint.len();
    let reason = format!("{}{hint}", &sentence[..sentence.floor_char_boundary(room)]);
    frames::close(http1::CLOSE_BASE + u16::from(status.code()), &reason)
}

enum Body<'a> {
    Message(&'a [u8]),
    Sentence(&'a str),
}

fn whole(status: u16, headers: &str, body: Body<'_>, keep_alive: bool) -> Bytes {
    let (kind, body, end) = match body {
        Body::Message(message) => (http1::CONTENT_TYPE, message, &b""[..]),
        Body::Sentence(sentence) => ("text/plain; charset=utf-8", sentence.as_bytes(), &b"\n"[..]),
    };
    let reason = http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    let connection = if keep_alive { "keep-alive" } else { "close" };
    let head = format!(
        "HTTP/1.1 {status} {}\r\n{headers}content-type: {kind}\r\ncontent-length: {}\r\nconnection: {connection}\r\n\r\n",
        reason.unwrap_or_default(),
        body.len() + end.len(),
    );
    [head.as_bytes(), body, end].concat().into()
}

fn field(headers: &mut String, name: &str, value: impl std::fmt::Display) {
    // Writing to a string can't fail.
    let _ = write!(headers, "{name}: {value}\r\n");
}

fn delay(headers: &mut String, pushback: Duration) {
    field(headers, header::RETRY_PUSHBACK_MS, whole_millis(pushback));
    field(headers, "retry-after", whole_seconds(pushback));
}

fn whole_seconds(delay: Duration) -> u128 {
    delay.as_nanos().div_ceil(1_000_000_000)
}

/// The status of HTTP that says nearest what a status of gRPC does.
fn http_status(code: u8) -> u16 {
    match code {
        0 => 200,
        // CANCELLED has none of its own.
        1 => 499,
        // INVALID_ARGUMENT, FAILED_PRECONDITION, OUT_OF_RANGE
        3 | 9 | 11 => 400,
        // DEADLINE_EXCEEDED
        4 => 504,
        // NOT_FOUND
        5 => 404,
        // ALREADY_EXISTS, ABORTED
        6 | 10 => 409,
        // PERMISSION_DENIED
        7 => 403,
        // RESOURCE_EXHAUSTED
        8 => 429,
        // UNIMPLEMENTED
        12 => 501,
        // UNAVAILABLE
        14 => 503,
        // UNAUTHENTICATED
        16 => 401,
        // UNKNOWN, INTERNAL, DATA_LOSS
        _ => 500,
    }
}

#[cfg(test)]
mod tests {
    use gateway_core::close::{AdmissionBound, CloseReason};

    use super::*;

    fn text(bytes: &Bytes) -> String {
        String::from_utf8(bytes.to_vec()).expect("is text")
    }

    fn refusal(retry_after: Duration) -> CallStatus {
        (&CloseReason::Refused { bound: AdmissionBound::OpensPerSecond, retry_after }).into()
    }

    #[test]
    fn a_refusal_of_admission_is_429_with_both_delays_rounded_up() {
        let answer = text(&ended(&refusal(Duration::from_micros(1_500_001)), b"", false));
        assert!(answer.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{answer}");
        for header in ["grpc-retry-pushback-ms: 1501\r\n", "retry-after: 2\r\n", "grpc-status: 8\r\n"] {
            assert!(answer.contains(header), "{header} in {answer}");
        }
        assert!(
            answer.ends_with("\r\n\r\ntoo many sessions are being opened; retry after the given delay\n")
        );
        assert!(answer.contains("content-length: 64\r\n"), "{answer}");
    }

    #[test]
    fn who_finds_no_place_reads_both_delays_too() {
        let refusal = Refused {
            status: http::StatusCode::TOO_MANY_REQUESTS,
            header: None,
            pushback: Some(Duration::from_millis(1001)),
            sentence: "full",
        };
        let answer = text(&refused(&refusal));
        for header in ["grpc-status: 8\r\n", "grpc-retry-pushback-ms: 1001\r\n", "retry-after: 2\r\n"] {
            assert!(answer.contains(header), "{header} in {answer}");
        }
        assert!(answer.ends_with("connection: close\r\n\r\nfull\n"), "{answer}");
    }

    #[test]
    fn an_answer_is_its_message_alone() {
        let answer = text(&ended(&CallStatus::ok(), b"abc", true));
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nabc"), "{answer}");
        assert!(answer.contains("content-length: 3\r\nconnection: keep-alive\r\n"), "{answer}");
    }

    #[test]
    fn no_sentence_of_ours_breaks_a_head() {
        let status = CallStatus::from(&CloseReason::Protocol("a\r\nset-cookie: b".to_owned()));
        let answer = text(&ended(&status, b"", false));
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(!head.contains("\r\nset-cookie"), "{head}");
        assert_eq!(body, "a\r\nset-cookie: b\n");
    }

    #[test]
    fn the_reason_of_a_close_fits_whatever_the_sentence() {
        for (sentence, begins) in [("é".repeat(200), "éé"), ("short".to_owned(), "short")] {
            let frame = close(&CallStatus::from(&CloseReason::Protocol(sentence)));
            assert_eq!(frame[..4], [0x88, u8::try_from(frame.len() - 2).expect("short"), 0x0f, 0xa3]);
            assert!(frame.len() <= 2 + 2 + MAX_REASON_BYTES);
            assert!(std::str::from_utf8(&frame[4..]).expect("is UTF-8").starts_with(begins));
        }
    }

    #[test]
    fn a_delay_stands_at_the_end_of_the_reason_and_is_never_cut() {
        let frame = close(&refusal(Duration::from_micros(1_500_001)));
        let reason = std::str::from_utf8(&frame[4..]).expect("is UTF-8");
        assert_eq!(
            reason,
            "too many sessions are being opened; retry after the given delay [grpc-retry-pushback-ms=1501]"
        );
        assert_eq!(http1::read_reason(reason).1, Some(1501));
        let longest = CloseReason::Draining { reconnect_after: Duration::MAX };
        let frame = close(&CallStatus::from(&longest));
        assert!(frame.len() <= 4 + MAX_REASON_BYTES);
        let reason = std::str::from_utf8(&frame[4..]).expect("is UTF-8");
        assert_eq!(http1::read_reason(reason).1, Some(u64::MAX));
    }
}

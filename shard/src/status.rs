//! How the end of a call looks on the wire: gRPC's status, its sentence, and the delay that a
//! caller must keep. What the status is was decided by `CloseReason`, `Refusal` or `TunnelClose`.
//!
//! 1. A sentence is percent-encoded, so it is always a valid header, and cut at `MAX_MESSAGE_BYTES`.
//! 2. A delay is given in whole milliseconds, rounded up.

use std::time::Duration;

use gateway_core::close::CloseReason;
use gateway_core::relay::Refusal;
use gateway_core::tunnel::TunnelClose;
use gateway_proto::{header, status_message};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

/// Longest sentence sent, in bytes before it is encoded.
const MAX_MESSAGE_BYTES: usize = 1024;

/// `NOT_FOUND`, which only the health check answers.
const NOT_FOUND: u8 = 5;

/// The end of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallStatus {
    code: u8,
    message: String,
    pushback: Option<Duration>,
}

impl From<&CloseReason> for CallStatus {
    fn from(reason: &CloseReason) -> Self {
        let code = reason.status() as u8;
        let message = if code == 0 { String::new() } else { reason.to_string() };
        Self { code, message, pushback: reason.pushback() }
    }
}

impl From<&Refusal> for CallStatus {
    fn from(refusal: &Refusal) -> Self {
        Self { code: refusal.code as u8, message: refusal.sentence.clone(), pushback: refusal.retry_after }
    }
}

impl From<&TunnelClose> for CallStatus {
    fn from(close: &TunnelClose) -> Self {
        let message = if *close == TunnelClose::Finished { String::new() } else { close.to_string() };
        Self { code: close.code() as u8, message, pushback: None }
    }
}

impl CallStatus {
    /// The number of the status.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// How long its caller must wait.
    pub(crate) fn pushback(&self) -> Option<Duration> {
        self.pushback
    }

    pub(crate) fn ok() -> Self {
        Self { code: 0, message: String::new(), pushback: None }
    }

    pub(crate) fn not_found(message: &str) -> Self {
        Self { code: NOT_FOUND, message: message.to_owned(), pushback: None }
    }

    /// The trailers of a call whose headers were sent.
    pub(crate) fn trailers(&self) -> HeaderMap {
        let mut map = HeaderMap::with_capacity(3);
        self.write_into(&mut map);
        map
    }

    /// The whole answer of a call that ends before its headers were sent.
    pub(crate) fn trailers_only(&self) -> Response<()> {
        let mut response = headers();
        self.write_into(response.headers_mut());
        response
    }

    fn write_into(&self, map: &mut HeaderMap) {
        map.insert(header::GRPC_STATUS, HeaderValue::from(u16::from(self.code)));
        if !self.message.is_empty()
            && let Ok(message) = HeaderValue::from_str(&status_message::encoded(cut(&self.message)))
        {
            map.insert(header::GRPC_MESSAGE, message);
        }
        if let Some(pushback) = self.pushback {
            map.insert(header::RETRY_PUSHBACK_MS, HeaderValue::from(whole_millis(pushback)));
        }
    }
}

/// The headers of a gRPC answer.
pub(crate) fn headers() -> Response<()> {
    let mut response = Response::new(());
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, HeaderValue::from_static(header::CONTENT_TYPE_GRPC));
    response
}

/// The answer to what is no gRPC call.
pub(crate) fn plain(status: StatusCode) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = status;
    response
}

/// A delay as it is told.
pub(crate) fn whole_millis(delay: Duration) -> u64 {
    u64::try_from(delay.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A sentence as long as it may be.
pub(crate) fn cut(message: &str) -> &str {
    &message[..message.floor_char_boundary(MAX_MESSAGE_BYTES)]
}

#[cfg(test)]
mod tests {
    use gateway_core::close::AdmissionBound;

    use super::*;

    fn text<'a>(map: &'a HeaderMap, name: &str) -> &'a str {
        map.get(name).expect("is there").to_str().expect("is text")
    }

    #[test]
    fn a_refusal_tells_the_delay_rounded_up() {
        let retry_after = Duration::from_micros(1_500_001);
        let reason = CloseReason::Refused { bound: AdmissionBound::Streams, retry_after };
        let map = CallStatus::from(&reason).trailers();
        assert_eq!(text(&map, "grpc-status"), "8");
        assert_eq!(text(&map, "grpc-retry-pushback-ms"), "1501");
    }

    #[test]
    fn any_sentence_becomes_a_valid_header() {
        let reason = CloseReason::Protocol(format!("50% of ünïcode\nand a line {}", "é".repeat(2000)));
        let map = CallStatus::from(&reason).trailers();
        assert!(text(&map, "grpc-message").starts_with("50%25 of %C3%BCn%C3%AFcode%0Aand"));
        assert!(text(&map, "grpc-message").len() <= 3 * MAX_MESSAGE_BYTES);
    }

    #[test]
    fn a_finished_call_has_no_sentence() {
        let map = CallStatus::from(&CloseReason::Finished).trailers();
        assert_eq!(text(&map, "grpc-status"), "0");
        assert!(map.get("grpc-message").is_none());
    }
}

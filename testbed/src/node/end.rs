//! How a session ended, as its node saw it.
//!
//! 1. What came as a gRPC status is told from what the transport, the TLS layer or we ourselves did.

use std::io;
use std::time::Duration;

use gateway_proto::{header, status_message};
use http::HeaderMap;

use super::alert::alert_of;

/// What ended a session, or kept it from being opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndKind {
    /// The gateway's status, a gRPC code.
    Status(u32),
    /// A TLS alert, by its name.
    TlsAlert(String),
    /// Nobody listens there, or the connection was lost.
    Transport,
    /// Three heartbeats were not acked.
    GatewaySilent,
    /// We ended it: cut, replaced after a drain, or stopped.
    Asked,
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    pub kind: EndKind,
    /// The gateway's sentence, or what failed.
    pub message: String,
    /// `grpc-retry-pushback-ms`, where it was given.
    pub pushback: Option<Duration>,
    /// Whether `Welcome` had come: an end after it is a drop, one before it a refusal.
    pub was_welcomed: bool,
}

impl End {
    pub(crate) fn of(kind: EndKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), pushback: None, was_welcomed: false }
    }

    /// The status that headers or trailers carry; `None` where they carry none.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let code = text(header::GRPC_STATUS)?.parse().ok()?;
        let pushback = text(header::RETRY_PUSHBACK_MS).and_then(|ms| ms.parse().ok());
        Some(Self {
            kind: EndKind::Status(code),
            message: status_message::decoded(text(header::GRPC_MESSAGE).unwrap_or_default()),
            pushback: pushback.map(Duration::from_millis),
            was_welcomed: false,
        })
    }

    pub(crate) fn from_io(doing: &str, error: &io::Error) -> Self {
        let kind = alert_of(error).map_or(EndKind::Transport, EndKind::TlsAlert);
        Self::of(kind, format!("{doing}: {error}"))
    }

    // HTTP/2 keeps only the text of an I/O error; where an alert matters, see `alert`.
    pub(crate) fn from_h2(doing: &str, error: &h2::Error) -> Self {
        Self::of(EndKind::Transport, format!("{doing}: {error}"))
    }

    /// The gRPC code, where a status ended it.
    pub fn status(&self) -> Option<u32> {
        match self.kind {
            EndKind::Status(code) => Some(code),
            _ => None,
        }
    }

    /// Whether a node counts it as a drop: a session that stood has ended, and not by our doing.
    pub fn is_drop(&self) -> bool {
        self.was_welcomed && self.kind != EndKind::Asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_gives_its_status_sentence_and_pushback() {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-status", "8".parse().unwrap());
        headers.insert("grpc-message", "100%25 full%zz".parse().unwrap());
        headers.insert("grpc-retry-pushback-ms", "1250".parse().unwrap());
        let end = End::from_headers(&headers).unwrap();
        assert_eq!((end.status(), end.message.as_str()), (Some(8), "100% full%zz"));
        assert_eq!(end.pushback, Some(Duration::from_millis(1250)));
        assert_eq!(End::from_headers(&HeaderMap::new()), None);
    }
}

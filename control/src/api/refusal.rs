//! What a caller is told where nothing was done: a status, a word for programs, a sentence for people.
//!
//! 1. The word says what a program must do about it; a status may stand for several words.
//! 2. A sentence says what was wrong and what to do; it repeats no body and no name of a node.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// What a program goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalWord {
    /// The request is wrong, and stays wrong.
    InvalidArgument,
    /// The body is larger than any request need be.
    TooLarge,
    /// The certificate of the caller has none of the names that may call.
    Forbidden,
    /// There is no such call, or no such thing.
    NotFound,
    /// There is such a call, with another method.
    WrongMethod,
    /// What the gateway is doing does not allow it.
    Conflict,
    /// More is asked for than is worked off; again in a moment.
    Busy,
    /// The gateway can't answer now: it holds no lease, or it ends.
    Unavailable,
    /// A file or a thing outside the request is in the way.
    FailedPrecondition,
}

impl RefusalWord {
    /// As it stands in the answer.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::TooLarge => "TOO_LARGE",
            Self::Forbidden => "FORBIDDEN",
            Self::NotFound => "NOT_FOUND",
            Self::WrongMethod => "WRONG_METHOD",
            Self::Conflict => "CONFLICT",
            Self::Busy => "BUSY",
            Self::Unavailable => "UNAVAILABLE",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
        }
    }

    const fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument => StatusCode::BAD_REQUEST,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::WrongMethod => StatusCode::METHOD_NOT_ALLOWED,
            Self::Conflict => StatusCode::CONFLICT,
            Self::Busy => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::FailedPrecondition => StatusCode::UNPROCESSABLE_ENTITY,
        }
    }
}

/// What a caller is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub word: RefusalWord,
    pub sentence: String,
}

impl Refusal {
    /// With the sentence as it is shown.
    pub fn new(word: RefusalWord, sentence: impl Into<String>) -> Self {
        Self { word, sentence: sentence.into() }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = json!({ "error": self.sentence, "code": self.word.as_str() });
        let mut response = (self.word.status(), axum::Json(body)).into_response();
        if matches!(self.word, RefusalWord::Busy | RefusalWord::Unavailable) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

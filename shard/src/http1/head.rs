//! The head of an HTTP/1.1 request, and what it asks for. No I/O: bytes in, a request or a refusal out.
//!
//! Two things are asked for here: a WebSocket for a session or a tunnel, and a call with one message each way.
//!
//! 1. A head is whole within `max_bytes` and `MAX_HEADERS`, or refused.
//! 2. A body has a declared length; none other is received.
//! 3. No sentence repeats what the peer sent.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use data_encoding::BASE64;
use gateway_proto::{http1, path};
use http::StatusCode;
use httparse::{EMPTY_HEADER, Header, Status};
use sha1::{Digest, Sha1};

const MAX_HEADERS: usize = 64;
const END: &[u8] = b"\r\n\r\n";
/// What RFC 6455 has a server append to the key of a client.
const ACCEPT_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const KEY_BYTES: usize = 16;
/// No body that we take has a length of more digits.
const MAX_LENGTH_DIGITS: usize = 15;

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// A session or a tunnel over WebSocket; the value of `sec-websocket-accept` that proves that we speak it.
    Upgrade { path: &'static str, accept: String },
    /// A call whose one message is the body.
    Call { path: &'static str, body_bytes: usize, keep_alive: bool, expects_continue: bool },
}

/// What a request that is none of ours is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    /// A header that belongs to the status.
    pub(crate) header: Option<(&'static str, &'static str)>,
    /// How long its peer is to wait, where a bound refuses it.
    pub(crate) pushback: Option<Duration>,
    pub(crate) sentence: &'static str,
}

const fn refused(status: StatusCode, sentence: &'static str) -> Refused {
    Refused { status, header: None, pushback: None, sentence }
}

const fn bad(sentence: &'static str) -> Refused {
    refused(StatusCode::BAD_REQUEST, sentence)
}

#[derive(Debug)]
pub(crate) struct HeadReader {
    max_bytes: usize,
    bytes: BytesMut,
}

impl HeadReader {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, bytes: BytesMut::new() }
    }

    /// Takes the next bytes; the request once its head is whole, with what came behind it.
    pub(crate) fn handle_bytes(&mut self, bytes: &[u8]) -> Result<Option<(Request, Bytes)>, Refused> {
        // The end may lie across two reads.
        let from = self.bytes.len().saturating_sub(END.len() - 1);
        self.bytes.extend_from_slice(bytes);
        let end = self.bytes[from..].windows(END.len()).position(|window| window == END);
        match end.map(|at| from + at + END.len()) {
            Some(whole) if whole <= self.max_bytes => {
                let head = self.bytes.split_to(whole);
                let request = parse(&head)?;
                Ok(Some((request, std::mem::take(&mut self.bytes).freeze())))
            }
            None if self.bytes.len() < self.max_bytes => Ok(None),
            _ => Err(refused(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "the head of the request is too large (sessions.header_list_bytes)",
            )),
        }
    }

    /// Whether some of a head is here.
    pub(crate) fn has_begun(&self) -> bool {
        !self.bytes.is_empty()
    }
}

fn parse(head: &[u8]) -> Result<Request, Refused> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(Status::Complete(bytes)) if bytes == head.len() => {}
        Err(httparse::Error::TooManyHeaders) => {
            return Err(refused(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "the request has more than 64 headers",
            ));
        }
        _ => return Err(bad("the request is no valid HTTP/1.1 request")),
    }
    let (Some(method), Some(target), Some(version)) = (request.method, request.path, request.version) else {
        return Err(bad("the request line is not whole"));
    };
    let fields = Fields(request.headers);
    match (method, target) {
        ("GET", http1::SESSION) => upgrade(path::SESSION, &fields, version),
        ("GET", http1::TUNNEL) => upgrade(path::TUNNEL, &fields, version),
        ("POST", http1::JOIN) => call(path::JOIN, &fields, version),
        ("POST", http1::RENEW) => call(path::RENEW, &fields, version),
        ("POST", http1::FETCH_SECRET) => call(path::FETCH_SECRET, &fields, version),
        ("GET" | "POST", _) => Err(refused(
            StatusCode::NOT_FOUND,
            "nothing is here; a session is GET /gateway.v1/session and a tunnel GET /gateway.v1/tunnel, each with an \
             upgrade to WebSocket, and calls are POST /gateway.v1/Join, /gateway.v1/Renew and /gateway.v1/FetchSecret",
        )),
        _ => Err(Refused {
            header: Some(("allow", "GET, POST")),
            ..refused(StatusCode::METHOD_NOT_ALLOWED, "only GET and POST are known here")
        }),
    }
}

fn upgrade(path: &'static str, fields: &Fields<'_>, version: u8) -> Result<Request, Refused> {
    let needed = |sentence| Refused {
        header: Some(("upgrade", "websocket")),
        ..refused(StatusCode::UPGRADE_REQUIRED, sentence)
    };
    if version != 1 || !fields.lists("upgrade", "websocket") || !fields.lists("connection", "upgrade") {
        return Err(needed("sessions and tunnels over HTTP/1.1 need an upgrade to WebSocket"));
    }
    if fields.body_bytes()? != Some(0) && fields.body_bytes()?.is_some() {
        return Err(bad("an upgrade has no body"));
    }
    if fields.one("sec-websocket-version")? != Some(b"13") {
        return Err(Refused {
            header: Some(("sec-websocket-version", "13")),
            ..refused(StatusCode::UPGRADE_REQUIRED, "only version 13 of WebSocket is spoken here")
        });
    }
    let key = fields.one("sec-websocket-key")?.unwrap_or_default();
    if BASE64.decode(key).ok().is_none_or(|decoded| decoded.len() != KEY_BYTES) {
        return Err(bad("sec-websocket-key is not 16 bytes in base64"));
    }
    if !fields.lists("sec-websocket-protocol", http1::SUBPROTOCOL) {
        return Err(bad("the client must offer the subprotocol gateway.v1 (sec-websocket-protocol)"));
    }
    let accept = BASE64.encode(&Sha1::new().chain_update(key).chain_update(ACCEPT_SUFFIX).finalize());
    Ok(Request::Upgrade { path, accept })
}

fn call(path: &'static str, fields: &Fields<'_>, version: u8) -> Result<Request, Refused> {
    let encoding = fields.one("content-encoding")?;
    if encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case(b"identity")) {
        return Err(refused(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "compressed bodies are not supported; send the message as it is",
        ));
    }
    let Some(body_bytes) = fields.body_bytes()? else {
        return Err(refused(StatusCode::LENGTH_REQUIRED, "the body must have a content-length"));
    };
    let keep_alive = version == 1 && !fields.lists("connection", "close");
    let expects_continue = version == 1 && fields.lists("expect", "100-continue");
    Ok(Request::Call { path, body_bytes, keep_alive, expects_continue })
}

struct Fields<'a>(&'a [Header<'a>]);

impl<'a> Fields<'a> {
    fn all(&self, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
        let named = move |header: &&Header<'a>| header.name.eq_ignore_ascii_case(name);
        self.0.iter().filter(named).map(|header| header.value)
    }

    /// The value of a field that comes once at most.
    fn one(&self, name: &'static str) -> Result<Option<&'a [u8]>, Refused> {
        let mut values = self.all(name);
        match (values.next(), values.next()) {
            (value, None) => Ok(value),
            _ => Err(bad("a header that may come once came twice")),
        }
    }

    /// Whether a list holds this word.
    fn lists(&self, name: &'static str, word: &str) -> bool {
        let mut words = self.all(name).flat_map(|value| value.split(|byte| *byte == b','));
        words.any(|candidate| candidate.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
    }

    /// The declared length of the body; `None` where none is declared.
    fn body_bytes(&self) -> Result<Option<usize>, Refused> {
        if self.all("transfer-encoding").next().is_some() {
            return Err(refused(
                StatusCode::LENGTH_REQUIRED,
                "bodies in chunks are not received; send a content-length",
            ));
        }
        let Some(length) = self.one("content-length")? else { return Ok(None) };
        let is_number =
            !length.is_empty() && length.len() <= MAX_LENGTH_DIGITS && length.iter().all(u8::is_ascii_digit);
        let number = if is_number {
            std::str::from_utf8(length).ok().and_then(|text| text.parse().ok())
        } else {
            None
        };
        number.map(Some).ok_or(bad("content-length is no length"))
    }
}

#[cfg(test)]
mod tests;

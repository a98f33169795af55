//! A unary call on a connection of its own: one message out, one back, and the status.
//!
//! 1. An answer counts only with the status OK behind it, or before it where the transport is HTTP/1.1.

use std::future::poll_fn;

use gateway_proto::framing::encode;
use gateway_proto::{http1, path};
use http::{HeaderMap, HeaderName, HeaderValue};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::call::{Arrival, LONGEST_MESSAGE, Target, Transport};
use super::end::{End, EndKind};

const OK: u32 = 0;
const MAX_HEADERS: usize = 32;

/// Calls `path` of the gateway at `target`.
pub async fn unary<M: Message + Default>(
    target: &Target,
    path: &str,
    request: &impl Message,
) -> Result<M, End> {
    match target.transport {
        Transport::Http2 => grpc(target, path, request).await,
        Transport::WebSocket => Box::pin(post(target, path, request)).await,
    }
}

async fn grpc<M: Message + Default>(target: &Target, path: &str, request: &impl Message) -> Result<M, End> {
    let mut call = target.call(path, HeaderMap::new()).await?;
    call.queue(encode(request));
    call.half_close();
    let mut answer = None;
    loop {
        match poll_fn(|cx| call.poll(cx, true)).await {
            Arrival::Message(message) => answer = Some(decode(&message)?),
            Arrival::Ended(end) if end.status() == Some(OK) => {
                return answer.ok_or_else(|| broken("the call ended without an answer"));
            }
            Arrival::Ended(end) => return Err(end),
        }
    }
}

/// The same over HTTP/1.1.
async fn post<M: Message + Default>(target: &Target, path: &str, request: &impl Message) -> Result<M, End> {
    let path = match path {
        path::JOIN => http1::JOIN,
        path::RENEW => http1::RENEW,
        path::FETCH_SECRET => http1::FETCH_SECRET,
        other => return Err(broken(&format!("{other} is no call over HTTP/1.1"))),
    };
    let lost = |error: std::io::Error| End::from_io("the call", &error);
    let mut tls = Box::pin(target.connect()).await?;
    let body = request.encode_to_vec();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\ncontent-type: {}\r\n\
         content-length: {}\r\n\r\n",
        http1::CONTENT_TYPE,
        body.len()
    );
    tls.write_all(&[head.as_bytes(), &body].concat()).await.map_err(lost)?;
    tls.flush().await.map_err(lost)?;
    let mut answer = Vec::new();
    (&mut tls).take(LONGEST_MESSAGE as u64).read_to_end(&mut answer).await.map_err(lost)?;
    let (headers, body) = split(&answer)?;
    match End::from_headers(&headers) {
        Some(end) if end.status() == Some(OK) => decode(body),
        Some(end) => Err(end),
        None => Err(broken(&format!("the answer has no status: {}", String::from_utf8_lossy(body).trim()))),
    }
}

/// The headers and the body of a whole answer.
fn split(answer: &[u8]) -> Result<(HeaderMap, &[u8]), End> {
    let mut parsed = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut parsed);
    let Ok(httparse::Status::Complete(head)) = response.parse(answer) else {
        return Err(broken("the answer is no HTTP/1.1"));
    };
    let mut headers = HeaderMap::new();
    for header in &*response.headers {
        let name = HeaderName::from_bytes(header.name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(header.value)) {
            headers.append(name, value);
        }
    }
    let body = &answer[head..];
    let declared = headers.get("content-length").and_then(|length| length.to_str().ok()?.parse().ok());
    if declared != Some(body.len()) {
        return Err(broken("the answer is not as long as it says"));
    }
    Ok((headers, body))
}

fn decode<M: Message + Default>(message: &[u8]) -> Result<M, End> {
    M::decode(message).map_err(|error| broken(&format!("the answer: {error}")))
}

fn broken(why: &str) -> End {
    End::of(EndKind::Transport, why)
}

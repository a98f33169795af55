//! Heads of requests, good and bad, however they are cut.
//!
//! The key and its proof are the example of RFC 6455.

use super::*;

const UPGRADE: &str = "GET /gateway.v1/session HTTP/1.1\r\nHost: gateway\r\nUpgrade: WebSocket\r\n\
    Connection: keep-alive, Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: other, gateway.v1\r\n\r\n";

fn read(head: &str, step: usize) -> Result<Option<(Request, Bytes)>, Refused> {
    let mut reader = HeadReader::new(16 << 10);
    let mut chunks = head.as_bytes().chunks(step);
    while let Some(chunk) = chunks.next() {
        if let Some((request, behind)) = reader.handle_bytes(chunk)? {
            let rest: Vec<u8> = behind.iter().copied().chain(chunks.flatten().copied()).collect();
            return Ok(Some((request, rest.into())));
        }
    }
    Ok(None)
}

fn status(head: &str) -> u16 {
    read(head, 7).expect_err(head).status.as_u16()
}

#[test]
fn an_upgrade_is_accepted_as_the_rfc_says_and_what_follows_is_kept() {
    for step in [1, 3, 64, 4096] {
        let (request, behind) = read(&format!("{UPGRADE}behind"), step).expect("good").expect("whole");
        assert_eq!(request, accepted(path::SESSION));
        assert_eq!(behind, "behind");
    }
    let tunnel = UPGRADE.replacen("/session", "/tunnel", 1);
    let (request, _) = read(&tunnel, 64).expect("good").expect("whole");
    assert_eq!(request, accepted(path::TUNNEL));
}

fn accepted(path: &'static str) -> Request {
    Request::Upgrade { path, accept: "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_owned() }
}

#[test]
fn an_upgrade_that_is_not_ours_is_told_what_it_lacks() {
    for (from, to, status_code) in [
        ("Upgrade: WebSocket", "Upgrade: h2c", 426),
        ("Connection: keep-alive, Upgrade", "Connection: keep-alive", 426),
        ("Version: 13", "Version: 8", 426),
        ("HTTP/1.1", "HTTP/1.0", 426),
        ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Key: c2hvcnQ=", 400),
        ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "x: y", 400),
        ("other, gateway.v1", "other, gateway.v2", 400),
        ("Host: gateway", "Content-Length: 5", 400),
        ("Host: gateway", "Sec-WebSocket-Version: 13", 400),
        ("/gateway.v1/session", "/gateway.v1/sessions", 404),
        ("/gateway.v1/session", "/gateway.v1/Tunnel", 404),
        ("GET", "PUT", 405),
    ] {
        let head = UPGRADE.replacen(from, to, 1);
        assert_ne!(head, UPGRADE);
        assert_eq!(status(&head), status_code, "{to}");
    }
}

#[test]
fn a_call_has_a_body_of_a_declared_length() {
    let post = |path: &str, headers: &str| format!("POST {path} HTTP/1.1\r\nHost: g\r\n{headers}\r\n");
    let (request, _) =
        read(&post("/gateway.v1/Join", "content-length: 12\r\n"), 9).expect("good").expect("whole");
    let join = Request::Call { path: path::JOIN, body_bytes: 12, keep_alive: true, expects_continue: false };
    assert_eq!(request, join);
    let headers = "Content-Length: 0\r\nConnection: Close\r\nExpect: 100-continue\r\n";
    let (request, _) = read(&post("/gateway.v1/FetchSecret", headers), 9).expect("good").expect("whole");
    let secret =
        Request::Call { path: path::FETCH_SECRET, body_bytes: 0, keep_alive: false, expects_continue: true };
    assert_eq!(request, secret);
    for (path, headers, code) in [
        ("/gateway.v1/Renew", "", 411),
        ("/gateway.v1/Renew", "transfer-encoding: chunked\r\ncontent-length: 3\r\n", 411),
        ("/gateway.v1/Renew", "content-length: 3\r\ncontent-length: 4\r\n", 400),
        ("/gateway.v1/Renew", "content-length: +3\r\n", 400),
        ("/gateway.v1/Renew", "content-length: 99999999999999999999999\r\n", 400),
        ("/gateway.v1/Renew", "content-length: 3\r\ncontent-encoding: gzip\r\n", 415),
        ("/gateway.v1/NodeGateway/Renew", "content-length: 3\r\n", 404),
    ] {
        assert_eq!(status(&post(path, headers)), code, "{path} {headers:?}");
    }
}

#[test]
fn a_head_is_bounded_and_must_be_one() {
    let endless = format!("GET / HTTP/1.1\r\n{}", "x: y\r\n".repeat(10_000));
    assert_eq!(status(&endless), 431);
    let long = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(20_000));
    assert_eq!(status(&long), 431);
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(65));
    assert_eq!(status(&many), 431);
    for garbage in
        ["\r\n\r\n", "no request\r\n\r\n", "GET / HTTP/3.0\r\n\r\n", "GET / HTTP/1.1\r\nx y\r\n\r\n"]
    {
        assert_eq!(status(garbage), 400, "{garbage:?}");
    }
    assert_eq!(read("GET / HTTP/1.1\r\nx: y\r\n", 5), Ok(None), "it may still become one");
}

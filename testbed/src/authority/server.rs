//! The authority's gRPC server: TLS, HTTP/2, one task a call.
//!
//! It knows framing and paths; what a call is answered is the authority's to say.
//!
//! 1. Who shows no certificate of the internal authority is refused in the handshake.

use std::sync::Arc;

use bytes::Bytes;
use gateway_proto::framing::{Deframer, encode};
use gateway_proto::{header, path};
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use prost::Message;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::{INVALID_ARGUMENT, JWKS_PATH, Mood, State, Status};

const UNIMPLEMENTED: u32 = 12;
const LONGEST_REQUEST: usize = 64 << 10;

/// Serves for ever.
pub(super) async fn serve(listener: TcpListener, tls: ServerConfig, state: Arc<State>) {
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    // With the task of this future, all of theirs end: `JoinSet` aborts what it holds.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((tcp, _)) = accepted else { continue };
                connections.spawn(serve_connection(tcp, acceptor.clone(), Arc::clone(&state)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve_connection(tcp: TcpStream, acceptor: TlsAcceptor, state: Arc<State>) {
    let _ = tcp.set_nodelay(true);
    let Ok(tls) = acceptor.accept(tcp).await else { return };
    let Ok(mut connection) = h2::server::handshake(tls).await else { return };
    let mut calls = tokio::task::JoinSet::new();
    while let Some(Ok((request, respond))) = connection.accept().await {
        calls.spawn(serve_call(request, respond, Arc::clone(&state)));
        while calls.try_join_next().is_some() {}
    }
}

async fn serve_call(request: Request<RecvStream>, mut respond: SendResponse<Bytes>, state: Arc<State>) {
    let path = request.uri().path().to_owned();
    if request.method() == http::Method::GET {
        return serve_document(&path, respond, &state).await;
    }
    let outcome = match state.mood(&path) {
        Mood::Silent => std::future::pending().await,
        Mood::Failing(status) => Err(status),
        Mood::Well => answer(&path, request.into_body(), &state).await,
    };
    let mut response = Response::new(());
    let kind = header::CONTENT_TYPE_GRPC.parse().expect("a header value");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    // A caller that is gone has nobody left to be told; the same below.
    match outcome {
        Ok(message) => {
            let Ok(mut send) = respond.send_response(response, false) else { return };
            if send.send_data(message, false).is_ok() {
                let _ = send.send_trailers(trailers(&Status::new(0, "")));
            }
        }
        Err(status) => {
            response.headers_mut().extend(trailers(&status));
            let _ = respond.send_response(response, true);
        }
    }
}

/// The keys of tickets; nothing else stands here to be read.
async fn serve_document(path: &str, mut respond: SendResponse<Bytes>, state: &State) {
    if state.mood(path) != Mood::Well {
        return std::future::pending().await;
    }
    let mut response = Response::new(());
    if path != JWKS_PATH {
        *response.status_mut() = http::StatusCode::NOT_FOUND;
        let _ = respond.send_response(response, true);
        return;
    }
    if let Ok(mut send) = respond.send_response(response, false) {
        let _ = send.send_data(state.jwks().into(), true);
    }
}

async fn answer(path: &str, body: RecvStream, state: &State) -> Result<Bytes, Status> {
    match path {
        path::UPSTREAM_JOIN => state.join(receive(body).await?).await.map(|answer| encode(&answer)),
        path::UPSTREAM_RENEW => state.renew(receive(body).await?).await.map(|answer| encode(&answer)),
        path::UPSTREAM_FETCH_SECRET => {
            state.fetch_secret(receive(body).await?).await.map(|answer| encode(&answer))
        }
        path::UPSTREAM_REAUTHORIZE => state.reauthorize(receive(body).await?).map(|answer| encode(&answer)),
        _ => Err(Status::new(UNIMPLEMENTED, "no such call")),
    }
}

async fn receive<M: Message + Default>(mut body: RecvStream) -> Result<M, Status> {
    let broken = |why: String| Status::new(INVALID_ARGUMENT, why);
    let mut deframer = Deframer::new(LONGEST_REQUEST);
    while let Some(chunk) = body.data().await {
        let chunk = chunk.map_err(|error| broken(error.to_string()))?;
        let _ = body.flow_control().release_capacity(chunk.len());
        deframer.push(chunk);
        if let Some(message) = deframer.next().map_err(|error| broken(error.to_string()))? {
            return M::decode(message).map_err(|error| broken(error.to_string()));
        }
    }
    Err(broken("the call ended without a request".to_owned()))
}

fn trailers(status: &Status) -> HeaderMap {
    let mut map = HeaderMap::new();
    map.insert(header::GRPC_STATUS, status.code.into());
    if !status.message.is_empty() {
        let encoded: String = status.message.bytes().fold(String::new(), |mut text, byte| {
            match byte {
                b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
                byte => text.push_str(&format!("%{byte:02X}")),
            }
            text
        });
        if let Ok(value) = encoded.parse() {
            map.insert(header::GRPC_MESSAGE, value);
        }
    }
    if let Some(delay) = status.retry_after {
        let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        map.insert(header::RETRY_PUSHBACK_MS, millis.into());
    }
    map
}

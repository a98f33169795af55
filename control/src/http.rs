//! Health and metrics over plain HTTP on loopback, and the bounds of who may ask.
//!
//! 1. At most `MAX_CONNECTIONS` are served at once; one more ends the oldest, so that whoever may open a local socket
//!    can't keep a balancer from its answer.
//! 2. A connection ends after `MAX_LIFE`, whatever the peer does.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};

use crate::api::calls;
use crate::status::Status;
use crate::strangers::Strangers;

const MAX_CONNECTIONS: usize = 64;
const MAX_LIFE: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Between accepts that fail (no descriptor left), so that the thread does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves for ever.
pub(crate) async fn serve(listener: TcpListener, status: Arc<dyn Status>) {
    let router = Router::new()
        .route("/v1/health", get(health))
        .route("/metrics", get(scrape))
        .fallback(unknown)
        .with_state(status);
    let mut strangers = Strangers::new(MAX_CONNECTIONS);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => strangers.admit(serve_connection(stream, router.clone())),
            Err(error) => {
                tracing::warn!(%error, "control: a connection can't be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, router: Router) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(16 << 10);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // A peer that breaks HTTP or goes away ends its own connection and concerns nobody else.
    let _ = tokio::time::timeout(MAX_LIFE, connection).await;
}

async fn health(State(status): State<Arc<dyn Status>>) -> Response {
    calls::health(&status)
}

async fn scrape(State(status): State<Arc<dyn Status>>) -> Response {
    calls::scrape(&status)
}

async fn unknown() -> Response {
    let sentence = "There is GET /v1/health and GET /metrics; all else is on control.api_listen.\n";
    (StatusCode::NOT_FOUND, sentence).into_response()
}

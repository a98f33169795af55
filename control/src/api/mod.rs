//! The control API: what services and operators ask of a gateway, over HTTP/2 with internal mTLS, in JSON.
//!
//! `listener` owns the connections, `handshakes` those that are not proved yet, `streams` what is open on one, `tls` who may
//! open one, `refusal` what is said where nothing was done, `body` what is taken of a request,
//! `answers` how much may wait of what is answered. What is asked of the writer goes over the `Desk`, which the gateway
//! brings along; health and metrics come from `Status`.
//!
//! 1. Every call but tunnels only hastens what happens anyway: nothing depends on this room.
//! 2. An answer is JSON, and says what was done; where nothing was, `{"error", "code"}` with a fitting status.
//! 3. No call waits for another thread longer than `ANSWERED_WITHIN`.

mod answers;
mod body;
pub(crate) mod calls;
mod desk;
mod handshakes;
mod listener;
mod refusal;
mod streams;
mod tls;
mod tunnels;
mod vitals;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Router, middleware};
use gateway_core::mail::Post;
use gateway_core::seam::ToShard;
use tokio::sync::{Semaphore, watch};

use self::answers::Answers;
use self::body::{Bodies, Passed};
use crate::status::Status;
use crate::tunnel::TunnelDoor;

pub use self::desk::{Desk, DeskAway, DeskFuture, TlsReload};
pub use self::listener::MAX_DESCRIPTORS;
pub(crate) use self::listener::serve;
pub use self::refusal::{Refusal, RefusalWord};
pub use self::tls::{ApiFile, ApiTls, ApiTlsError};
pub(crate) use self::vitals::Shards;

/// What the listener of the API is given.
pub struct ApiConfig {
    /// Port 0 takes a free one.
    pub listen: SocketAddr,
    /// What new connections get; another takes its place when files were renewed.
    pub tls: watch::Receiver<Arc<ApiTls>>,
    /// Names of clients, each a DNS name or a URI of a certificate; none: whoever the CA vouches for.
    pub clients: Arc<[String]>,
    /// Over how long a drain spreads the nodes, where its caller does not say.
    pub drain_within: Duration,
    /// How often a silent peer is asked whether it is there; it has as long to answer.
    pub ping_every: Duration,
    pub desk: Arc<dyn Desk>,
    /// To each shard, by its number.
    pub to_shards: Vec<Post<ToShard>>,
    /// The start of the process's clock.
    pub started: Instant,
}

impl std::fmt::Debug for ApiConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiConfig")
            .field("listen", &self.listen)
            .field("clients", &self.clients)
            .finish_non_exhaustive()
    }
}

/// What the handlers of calls share.
#[derive(Clone)]
pub(crate) struct ApiState {
    pub(crate) status: Arc<dyn Status>,
    pub(crate) desk: Arc<dyn Desk>,
    pub(crate) drain_within: Duration,
    pub(crate) shards: Arc<Shards>,
    pub(crate) bodies: Arc<Bodies>,
    /// For callers who have not said yet which tunnel they want.
    pub(crate) opens: Arc<Semaphore>,
    /// `None` where no tunnels are offered.
    pub(crate) tunnels: Option<TunnelDoor>,
}

/// Who has opened a connection: every name of its certificate.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) names: Arc<[String]>,
    pub(crate) share: Arc<Share>,
}

/// What all connections of the name that lets them in may hold together, of what all names share.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) opens: Semaphore,
    pub(crate) answers: Arc<Semaphore>,
}

impl Default for Share {
    fn default() -> Self {
        Self {
            opens: Semaphore::new(tunnels::MAX_UNSAID_OF_ONE),
            answers: Arc::new(Semaphore::new(answers::OF_ONE_BYTES)),
        }
    }
}

/// The calls, for callers that may have them answered.
pub(crate) fn router(state: ApiState) -> Router {
    Router::new()
        .route(
            "/v1/health",
            get(async |State(state): State<ApiState>, _: Passed| calls::health(&state.status)),
        )
        .route("/metrics", get(async |State(state): State<ApiState>, _: Passed| calls::scrape(&state.status)))
        .route("/v1/dispatch", post(calls::dispatch))
        .route("/v1/specs", post(calls::specs))
        .route("/v1/cancel", post(calls::cancel))
        .route("/v1/revoke", post(calls::revoke))
        .route("/v1/drain", post(calls::drain))
        .route("/v1/undrain", post(calls::undrain))
        .route("/v1/tls/reload", post(calls::reload_tls))
        .route("/v1/tunnels", post(tunnels::open))
        .route("/v1/tunnels/close", post(tunnels::close))
        .route("/v1/sessions", get(calls::sessions))
        .route("/v1/sessions/{*node}", get(calls::session))
        .method_not_allowed_fallback(calls::wrong_method)
        .fallback(calls::unknown)
        .layer(middleware::from_fn_with_state(Arc::<Answers>::default(), answers::bounded))
        .with_state(state)
}

/// What a caller is answered, whatever it asks, who may not call or finds no place.
pub(crate) fn turned_away(refusal: Refusal) -> Router {
    Router::new().fallback(|_: Passed| async { refusal })
}

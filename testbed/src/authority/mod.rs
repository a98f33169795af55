//! A development authority: the join service, the renewal service and the secret broker that gateways pass
//! calls on to, as `gateway.upstream.v1` says, with a throw-away CA; and for tunnels the api that mints tickets
//! and publishes its keys, and the IAM service that is asked about callers.
//!
//! A real gRPC server over internal mTLS, for tests and the demonstration. It is what a platform would
//! write itself, small, and lives outside of the gateway's own crates, none of which can sign.
//!
//! 1. A join token is good for one certificate, of the node that it was minted for, within its time.
//! 2. A renewal is for a certificate that is known in `node_certs` as the caller's, live and not revoked.
//! 3. A certificate's row is in `node_certs` before the certificate is given away.

mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use bytes::Bytes;
use gateway_proto::path;
use gateway_proto::upstream::v1::{
    Caller, FetchSecretCall, JoinCall, ReauthorizeAnswer, ReauthorizeCall, RenewCall,
};
use gateway_proto::v1::{FetchSecretResponse, JoinResponse, RenewResponse};
use sqlx::{Connection, PgConnection};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::database::register_nodes;
use crate::pki::{NodeIssuer, Pki, PkiError};
use crate::tickets::TicketMint;

/// Where the keys of tickets are published.
pub(crate) const JWKS_PATH: &str = "/.well-known/jwks.json";

const INVALID_ARGUMENT: u32 = 3;
const NOT_FOUND: u32 = 5;
const PERMISSION_DENIED: u32 = 7;
const INTERNAL: u32 = 13;
const UNAUTHENTICATED: u32 = 16;

/// Why an authority did not start.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("its certificates: {0}")]
    Pki(#[from] PkiError),
    #[error("listening: {0}")]
    Listen(#[from] std::io::Error),
}

/// The end of a call that has no answer: a gRPC status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub code: u32,
    pub message: String,
    pub retry_after: Option<Duration>,
}

impl Status {
    pub fn new(code: u32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retry_after: None }
    }
}

/// How it takes calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Mood {
    #[default]
    Well,
    /// Calls get no answer, ever.
    Silent,
    /// Calls end like this.
    Failing(Status),
}

/// A call as it came.
#[derive(Debug, Clone, PartialEq)]
pub enum Received {
    Join(JoinCall),
    Renew(RenewCall),
    FetchSecret(FetchSecretCall),
    Reauthorize(ReauthorizeCall),
    /// The keys of tickets were fetched.
    Jwks,
}

struct Token {
    node: String,
    expires: Instant,
    used: bool,
}

struct SecretVersion {
    version: String,
    value: Bytes,
    expires_at_unix_ms: i64,
}

struct State {
    issuer: NodeIssuer,
    database_url: String,
    tokens: Mutex<BTreeMap<String, Token>>,
    /// Versions, the newest last.
    secrets: Mutex<BTreeMap<String, Vec<SecretVersion>>>,
    life: Mutex<Duration>,
    mood: Mutex<Mood>,
    mint: Arc<TicketMint>,
    /// How questions about callers of tunnels are taken.
    iam_mood: Mutex<Mood>,
    /// Callers that may have no tunnel any more.
    forbidden: Mutex<BTreeSet<String>>,
    received: Mutex<Vec<Received>>,
    connection: tokio::sync::Mutex<Option<PgConnection>>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running authority; it ends when dropped.
pub struct Authority {
    address: SocketAddr,
    state: Arc<State>,
    task: JoinHandle<()>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Authority {
    /// Listens on `listen` (port 0: any free one) on the present tokio runtime. Certificates live for
    /// `life`; their rows go to the database of `database_url`.
    pub async fn start(
        pki: &Pki,
        listen: SocketAddr,
        database_url: &str,
        life: Duration,
    ) -> Result<Self, AuthorityError> {
        let tls = pki.internal_server_config()?;
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            issuer: pki.node_issuer(),
            database_url: database_url.to_owned(),
            tokens: Mutex::default(),
            secrets: Mutex::default(),
            life: Mutex::new(life),
            mood: Mutex::default(),
            mint: Arc::default(),
            iam_mood: Mutex::default(),
            forbidden: Mutex::default(),
            received: Mutex::default(),
            connection: tokio::sync::Mutex::default(),
        });
        let task = tokio::spawn(server::serve(listener, tls, Arc::clone(&state)));
        Ok(Self { address, state, task })
    }

    /// For `[upstream]`.
    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.address.port())
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A join token for the node that goes by `node`, good for `within`.
    pub fn mint_token(&self, node: &str, within: Duration) -> String {
        let token = format!("join-{}", Uuid::new_v4().simple());
        let entry = Token { node: node.to_owned(), expires: Instant::now() + within, used: false };
        locked(&self.state.tokens).insert(token.clone(), entry);
        token
    }

    /// Keeps a new version of a secret.
    pub fn keep_secret(&self, name: &str, version: &str, value: impl Into<Bytes>) {
        let entry = SecretVersion { version: version.to_owned(), value: value.into(), expires_at_unix_ms: 0 };
        locked(&self.state.secrets).entry(name.to_owned()).or_default().push(entry);
    }

    /// How long certificates live that are issued from now on.
    pub fn set_certificate_life(&self, life: Duration) {
        *locked(&self.state.life) = life;
    }

    pub fn set_mood(&self, mood: Mood) {
        *locked(&self.state.mood) = mood;
    }

    /// Who signs tickets for tunnels.
    pub fn mint(&self) -> &Arc<TicketMint> {
        &self.state.mint
    }

    /// For `tunnels.jwks_url`.
    pub fn jwks_url(&self) -> String {
        format!("{}{JWKS_PATH}", self.url())
    }

    /// Takes questions about callers of tunnels so, whatever the other calls get.
    pub fn set_iam_mood(&self, mood: Mood) {
        *locked(&self.state.iam_mood) = mood;
    }

    /// Says no from now on when it is asked about this caller.
    pub fn forbid(&self, subject: &str) {
        locked(&self.state.forbidden).insert(subject.to_owned());
    }

    /// All calls that came so far.
    pub fn received(&self) -> Vec<Received> {
        locked(&self.state.received).clone()
    }
}

impl State {
    fn mood(&self, path: &str) -> Mood {
        let mood = if path == path::UPSTREAM_REAUTHORIZE { &self.iam_mood } else { &self.mood };
        locked(mood).clone()
    }

    async fn join(&self, call: JoinCall) -> Result<JoinResponse, Status> {
        locked(&self.received).push(Received::Join(call.clone()));
        let request =
            call.request.ok_or_else(|| Status::new(INVALID_ARGUMENT, "the call holds no request"))?;
        let node = self.take_token(&request.token)?;
        let issued = self.issue(&self.issuer.node_id(&node), &request.csr_der, None).await;
        if issued.is_err() {
            // Nothing was given away for it.
            if let Some(token) = locked(&self.tokens).get_mut(&request.token) {
                token.used = false;
            }
        }
        let trust_bundle_pem = self.issuer.server_ca_pem().to_owned();
        issued.map(|certificate_chain_pem| JoinResponse { certificate_chain_pem, trust_bundle_pem })
    }

    fn take_token(&self, token: &str) -> Result<String, Status> {
        let mut tokens = locked(&self.tokens);
        let refused = |why: &str| Status::new(UNAUTHENTICATED, why);
        let token = tokens.get_mut(token).ok_or_else(|| refused("the join token is not known"))?;
        if token.expires <= Instant::now() {
            return Err(refused("the join token is too old"));
        }
        if std::mem::replace(&mut token.used, true) {
            return Err(refused("the join token was used before"));
        }
        Ok(token.node.clone())
    }

    async fn renew(&self, call: RenewCall) -> Result<RenewResponse, Status> {
        locked(&self.received).push(Received::Renew(call.clone()));
        let (Some(caller), Some(request)) = (call.caller, call.request) else {
            return Err(Status::new(INVALID_ARGUMENT, "the call holds no caller or no request"));
        };
        self.check_live(&caller).await?;
        let old = Some(caller.certificate_serial.as_str());
        let certificate_chain_pem = self.issue(&caller.node_id, &request.csr_der, old).await?;
        Ok(RenewResponse { certificate_chain_pem, trust_bundle_pem: self.issuer.server_ca_pem().to_owned() })
    }

    async fn fetch_secret(&self, call: FetchSecretCall) -> Result<FetchSecretResponse, Status> {
        locked(&self.received).push(Received::FetchSecret(call.clone()));
        let request =
            call.request.ok_or_else(|| Status::new(INVALID_ARGUMENT, "the call holds no request"))?;
        let secrets = locked(&self.secrets);
        let versions = secrets.get(&request.name).map_or(&[][..], Vec::as_slice);
        let found = match request.version.as_str() {
            "" => versions.last(),
            version => versions.iter().find(|found| found.version == version),
        };
        let found = found.ok_or_else(|| Status::new(NOT_FOUND, "there is no such secret"))?;
        Ok(FetchSecretResponse {
            value: found.value.clone(),
            version: found.version.clone(),
            expires_at_unix_ms: found.expires_at_unix_ms,
        })
    }

    fn reauthorize(&self, call: ReauthorizeCall) -> Result<ReauthorizeAnswer, Status> {
        let is_forbidden = locked(&self.forbidden).contains(&call.subject);
        locked(&self.received).push(Received::Reauthorize(call));
        if is_forbidden {
            return Err(Status::new(PERMISSION_DENIED, "the caller may not"));
        }
        Ok(ReauthorizeAnswer {})
    }

    fn jwks(&self) -> String {
        locked(&self.received).push(Received::Jwks);
        self.mint.jwks()
    }

    /// Signs and records; with `old`, as what follows the certificate of that serial.
    async fn issue(&self, node_id: &str, csr_der: &[u8], old: Option<&str>) -> Result<String, Status> {
        let life = *locked(&self.life);
        let issued = self
            .issuer
            .issue(csr_der, node_id, life)
            .map_err(|_| Status::new(INVALID_ARGUMENT, "the CSR can't be signed"))?;
        let not_after = issued.not_after.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let mut held = self.connection.lock().await;
        let mut connection = self.taken(&mut held).await.map_err(away)?;
        register_nodes(&mut connection, &[node_id.to_owned()]).await.map_err(away)?;
        let statement = match old {
            None => "INSERT INTO node_certs (serial, node_id, not_after) VALUES ($1, $2, to_timestamp($3))",
            Some(_) => "SELECT record_renewal($2, $1, to_timestamp($3))",
        };
        let row = sqlx::query(statement).bind(&issued.serial).bind(old.unwrap_or(node_id)).bind(not_after);
        row.execute(&mut connection).await.map_err(away)?;
        *held = Some(connection);
        Ok(issued.chain_pem)
    }

    async fn check_live(&self, caller: &Caller) -> Result<(), Status> {
        let statement =
            "SELECT node_id, revoked_at IS NOT NULL, not_after <= now() FROM node_certs WHERE serial = $1";
        let mut held = self.connection.lock().await;
        let mut connection = self.taken(&mut held).await.map_err(away)?;
        let row: Option<(String, bool, Option<bool>)> = sqlx::query_as(statement)
            .bind(&caller.certificate_serial)
            .fetch_optional(&mut connection)
            .await
            .map_err(away)?;
        *held = Some(connection);
        match row {
            Some((node, false, Some(false) | None)) if node == caller.node_id => Ok(()),
            Some(_) => {
                Err(Status::new(PERMISSION_DENIED, "the certificate is revoked, expired, or another's"))
            }
            None => Err(Status::new(PERMISSION_DENIED, "the certificate was not issued here")),
        }
    }

    /// The connection to the database; whoever takes it puts it back when its work went well.
    async fn taken(&self, held: &mut Option<PgConnection>) -> Result<PgConnection, sqlx::Error> {
        match held.take() {
            Some(connection) => Ok(connection),
            None => PgConnection::connect(&self.database_url).await,
        }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it is what map_err gives")]
fn away(error: sqlx::Error) -> Status {
    Status::new(INTERNAL, format!("the database: {error}"))
}

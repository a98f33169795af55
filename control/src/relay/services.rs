//! The services that calls are passed on to, as traits: what an embedder replaces an upstream with.
//!
//! 1. A service is called with what the node sent and, but for Join, with who proved to be its caller.
//! 2. A call that takes longer than `upstream.timeout` is dropped where it stands.
//! 3. What a service returns as a `Refusal` is what its node is told.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use gateway_core::certificate::CertificateRecord;
use gateway_core::relay::{Caller, FetchSecret, Issued, Join, Refusal, Renew, Secret};

/// What a call of a service returns.
pub type RelayFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Refusal>> + Send + 'a>>;

/// Gives a machine that has a join token its first certificate. See `gateway.upstream.v1.JoinService`.
pub trait JoinService: Send + Sync + 'static {
    /// A token is good for one certificate; a used one is `Unauthenticated`.
    fn join(&self, join: Join) -> RelayFuture<'_, Issued>;
}

/// Gives a node its next certificate. See `gateway.upstream.v1.RenewalService`.
pub trait RenewalService: Send + Sync + 'static {
    /// For the identity of `caller`, whatever the CSR asks for.
    fn renew(&self, caller: Caller, renew: Renew) -> RelayFuture<'_, Issued>;
}

/// Gives a node a secret. See `gateway.upstream.v1.SecretBroker`.
pub trait SecretBroker: Send + Sync + 'static {
    /// Asked for known certificates alone that no tenant controls.
    fn fetch_secret(&self, caller: Caller, fetch: FetchSecret) -> RelayFuture<'_, Secret>;
}

/// The database can't be asked now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificatesAway;

/// What a look at a certificate's row returns; `None` where there is none.
pub type CertificateLook<'a> =
    Pin<Box<dyn Future<Output = Result<Option<CertificateRecord>, CertificatesAway>> + Send + 'a>>;

/// Where the rows of certificates are read: the gateway's database.
pub trait Certificates: Send + Sync + 'static {
    /// The row of a serial, in upper-case hex.
    fn look<'a>(&'a self, serial: &'a str) -> CertificateLook<'a>;
}

/// Who answers which call. `None`: the call is refused.
#[derive(Clone)]
pub struct RelayServices {
    pub join: Option<Arc<dyn JoinService>>,
    pub renewal: Option<Arc<dyn RenewalService>>,
    pub secrets: Option<Arc<dyn SecretBroker>>,
    pub certificates: Arc<dyn Certificates>,
}

impl fmt::Debug for RelayServices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayServices")
            .field("join", &self.join.is_some())
            .field("renewal", &self.renewal.is_some())
            .field("secrets", &self.secrets.is_some())
            .finish_non_exhaustive()
    }
}

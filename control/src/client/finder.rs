//! Which gateway has a node now: found in the database, dialled by what `gateways` says.
//!
//! The database is asked through `Registry`, which whoever embeds it implements (`gateway::client` does, with
//! SQL). Which gateway has a node is asked each time; where a gateway is, is remembered for `URL_COUNTS_FOR`.
//!
//! 1. A gateway that is not registered, or has no control API, is unavailable; nobody is dialled on a guess.
//! 2. A client is kept as long as its gateway's URL stays the same, so its connection is too.
//! 3. At most `MAX_KEPT` clients are kept.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::GatewayClient;
use crate::relay::UpstreamFiles;

const URL_COUNTS_FOR: Duration = Duration::from_secs(30);
const MAX_KEPT: usize = 1024;

/// The database did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the database does not say which gateway it is: {0}")]
pub struct RegistryAway(pub String);

/// An answer of the database to come.
pub type RegistryLook<'a, T> = Pin<Box<dyn Future<Output = Result<T, RegistryAway>> + Send + 'a>>;

/// Which gateway has a node's live session; `None` where it has none.
pub type OwnerLook<'a> = RegistryLook<'a, Option<String>>;

/// What the database knows of nodes and gateways.
pub trait Registry: Send + Sync + 'static {
    /// The gateway of the node's live session.
    fn owner<'a>(&'a self, node: &'a str) -> OwnerLook<'a>;
    /// The `internal_url` of a gateway; `None` where it is not registered.
    fn url<'a>(&'a self, gateway: &'a str) -> RegistryLook<'a, Option<String>>;
}

/// A gateway that was found.
#[derive(Debug, Clone)]
pub struct Found {
    pub gateway: String,
    pub client: Arc<GatewayClient>,
}

/// Why none was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FindError {
    #[error("the node has no live session on any gateway")]
    NotConnected,
    #[error("the gateway {gateway:?} is not registered: it has never served this database")]
    Unregistered { gateway: String },
    #[error("the gateway {gateway:?} has no control API that could be called, only {url:?}: {why}")]
    NoApi { gateway: String, url: String, why: String },
    #[error("{0}")]
    Away(#[from] RegistryAway),
}

impl FindError {
    /// The word for programs, as in the refusals of a control API.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotConnected => "NOT_FOUND",
            Self::Unregistered { .. } | Self::NoApi { .. } | Self::Away(_) => "UNAVAILABLE",
        }
    }
}

struct Kept {
    url: String,
    looked_at: Instant,
    client: Arc<GatewayClient>,
}

/// Finds gateways, and keeps clients of them.
pub struct Finder {
    registry: Arc<dyn Registry>,
    files: UpstreamFiles,
    kept: Mutex<BTreeMap<String, Kept>>,
}

impl std::fmt::Debug for Finder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Finder").finish_non_exhaustive()
    }
}

impl Finder {
    /// With what its clients prove themselves by.
    pub fn new(registry: Arc<dyn Registry>, files: UpstreamFiles) -> Self {
        Self { registry, files, kept: Mutex::default() }
    }

    /// The gateway that has the node's live session.
    pub async fn of_node(&self, node: &str) -> Result<Found, FindError> {
        let gateway = self.registry.owner(node).await?.ok_or(FindError::NotConnected)?;
        self.gateway(&gateway).await
    }

    /// A gateway by its id.
    pub async fn gateway(&self, gateway: &str) -> Result<Found, FindError> {
        self.gateway_at(gateway, Instant::now()).await
    }

    async fn gateway_at(&self, gateway: &str, now: Instant) -> Result<Found, FindError> {
        let gateway = gateway.to_owned();
        if let Some(client) = self.known(&gateway, now) {
            return Ok(Found { gateway, client });
        }
        let Some(url) = self.registry.url(&gateway).await? else {
            self.lock().remove(&gateway);
            return Err(FindError::Unregistered { gateway });
        };
        let mut kept = self.lock();
        if let Some(known) = kept.get_mut(&gateway).filter(|known| known.url == url) {
            known.looked_at = now;
            return Ok(Found { gateway, client: Arc::clone(&known.client) });
        }
        let client = match GatewayClient::new(&url, self.files.clone()) {
            Ok(client) => Arc::new(client),
            Err(why) => return Err(FindError::NoApi { gateway, url, why }),
        };
        if kept.len() >= MAX_KEPT {
            let oldest = kept.iter().min_by_key(|(_, kept)| kept.looked_at).map(|(id, _)| id.clone());
            oldest.map(|id| kept.remove(&id));
        }
        kept.insert(gateway.clone(), Kept { url, looked_at: now, client: Arc::clone(&client) });
        Ok(Found { gateway, client })
    }

    fn known(&self, gateway: &str, now: Instant) -> Option<Arc<GatewayClient>> {
        let kept = self.lock();
        let known = kept.get(gateway)?;
        let counts = now.saturating_duration_since(known.looked_at) < URL_COUNTS_FOR;
        counts.then(|| Arc::clone(&known.client))
    }

    // Held for look-ups alone, never across a wait.
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Book {
        urls: Mutex<BTreeMap<String, String>>,
        looks: AtomicUsize,
    }

    impl Book {
        fn write(&self, gateway: &str, url: &str) {
            self.urls.lock().unwrap().insert(gateway.to_owned(), url.to_owned());
        }
    }

    impl Registry for Book {
        fn owner<'a>(&'a self, node: &'a str) -> OwnerLook<'a> {
            Box::pin(async move { Ok((node == "here").then(|| "g".to_owned())) })
        }

        fn url<'a>(&'a self, gateway: &'a str) -> RegistryLook<'a, Option<String>> {
            self.looks.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move { Ok(self.urls.lock().unwrap().get(gateway).cloned()) })
        }
    }

    fn finder() -> (Arc<Book>, Finder) {
        let book = Arc::<Book>::default();
        let file = || std::path::PathBuf::from("/nowhere");
        let files = UpstreamFiles { ca: file(), certificate: file(), key: file() };
        (Arc::clone(&book), Finder::new(book, files))
    }

    #[tokio::test]
    async fn a_url_is_asked_for_once_in_thirty_seconds_and_a_client_lasts_as_long_as_its_url() {
        let (book, finder) = finder();
        book.write("g", "https://one:1");
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let first = finder.gateway_at("g", start).await.unwrap().client;
        book.write("g", "https://two:2");
        let same = finder.gateway_at("g", at(29)).await.unwrap().client;
        assert!(Arc::ptr_eq(&first, &same));
        assert_eq!(book.looks.load(Ordering::Relaxed), 1);
        let next = finder.gateway_at("g", at(30)).await.unwrap().client;
        assert!(!Arc::ptr_eq(&first, &next), "it has moved");
        let again = finder.gateway_at("g", at(61)).await.unwrap().client;
        assert!(Arc::ptr_eq(&again, &next), "it has not");
        assert_eq!(book.looks.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn who_is_not_registered_or_has_no_api_is_not_dialled() {
        let (book, finder) = finder();
        assert_eq!(
            finder.of_node("here").await.unwrap_err(),
            FindError::Unregistered { gateway: "g".to_owned() }
        );
        assert_eq!(finder.of_node("here").await.unwrap_err().code(), "UNAVAILABLE");
        assert_eq!(finder.of_node("gone").await.unwrap_err(), FindError::NotConnected);
        book.write("g", "http://127.0.0.1:7480");
        assert!(matches!(finder.of_node("here").await, Err(FindError::NoApi { .. })));
        book.write("g", "https://g:1");
        assert_eq!(finder.of_node("here").await.unwrap().gateway, "g");
    }
}

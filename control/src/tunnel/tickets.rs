//! Tickets: their signatures, checked with the keys that their issuer publishes as a JWKS.
//!
//! It fetches, parses and checks. When keys are fetched is decided by `gateway_core::tunnel::keys`, and what a
//! ticket must say by `gateway_core::tunnel::ticket`.
//!
//! 1. A ticket names its key (`kid`); algorithm and kind of key must fit each other, and are of a short list.
//! 2. At most one fetch is under way; who needs a key that it may bring waits for it, and nobody else does. It goes on though
//!    who began it is gone.
//! 3. No line of the log holds anything of a ticket or of a key.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gateway_core::time::{Moment, UnixMillis};
use gateway_core::tunnel::keys::{KeyShelf, KeyVerdict};
use gateway_core::tunnel::ticket::{MAX_TICKET_BYTES, TicketClaims, TicketFault};
use http::Uri;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::Deserialize;

use super::crypto;
use crate::relay::{Channel, UpstreamAddress, UpstreamFiles};
use crate::small_file;

const MAX_KEYS: usize = 256;

/// A JWKS document, or why there is none.
pub type JwksFuture<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send + 'a>>;

/// Where the keys of tickets come from.
pub trait TicketKeys: Send + Sync + 'static {
    /// The JWKS as it is published now.
    fn jwks(&self) -> JwksFuture<'_>;
}

/// A file.
#[derive(Debug)]
pub struct JwksFile(pub PathBuf);

impl TicketKeys for JwksFile {
    fn jwks(&self) -> JwksFuture<'_> {
        // A small local file: read at once.
        let read = small_file::read(&self.0);
        Box::pin(async move { read.map_err(|error| format!("{} {error}", self.0.display())) })
    }
}

/// A URL of a service behind the gateway, reached with internal mTLS.
#[derive(Debug)]
pub struct JwksUrl {
    channel: Channel,
    path: String,
}

impl JwksUrl {
    /// `url` is `https://host[:port]/path`; the error says what is wrong with it.
    pub fn new(url: &str, files: UpstreamFiles, timeout: Duration) -> Result<Self, String> {
        let (address, path) = parts(url)?;
        Ok(Self { channel: Channel::new("ticket keys (JWKS)", address, files, timeout), path })
    }

    /// What is wrong with such a URL.
    pub fn check(url: &str) -> Result<(), String> {
        parts(url).map(drop)
    }
}

fn parts(url: &str) -> Result<(UpstreamAddress, String), String> {
    let uri: Uri = url.parse().map_err(|_| "is no URL: write \"https://name:port/path\"".to_owned())?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let authority = uri.authority().ok_or_else(|| "names no host".to_owned())?;
    let scheme = uri.scheme_str().unwrap_or_default();
    Ok((UpstreamAddress::parse(&format!("{scheme}://{authority}"))?, path))
}

impl TicketKeys for JwksUrl {
    fn jwks(&self) -> JwksFuture<'_> {
        Box::pin(async move { self.channel.get(&self.path).await.map(Vec::from) })
    }
}

/// The keys that are known, and what checks tickets with them.
pub(crate) struct Tickets {
    source: Arc<dyn TicketKeys>,
    timeout: Duration,
    started: Instant,
    known: Mutex<Known>,
    /// Held by whoever fetches, and by whoever may get its key by that.
    fetching: Arc<tokio::sync::Mutex<()>>,
}

struct Known {
    shelf: KeyShelf,
    keys: BTreeMap<String, Key>,
    is_failing: bool,
}

#[derive(Clone)]
struct Key {
    algorithm: Algorithm,
    key: DecodingKey,
}

#[derive(Deserialize)]
struct Claims {
    aud: Audiences,
    sub: String,
    node: String,
    iat: f64,
    nbf: Option<f64>,
    exp: f64,
    jti: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Many(Vec<String>),
}

impl Tickets {
    /// Nothing is fetched before the first ticket. A fetch takes at most `timeout`.
    pub(crate) fn new(
        source: Arc<dyn TicketKeys>,
        max_age: Duration,
        timeout: Duration,
        started: Instant,
    ) -> Self {
        crypto::install();
        let known = Known { shelf: KeyShelf::new(max_age), keys: BTreeMap::new(), is_failing: false };
        Self { source, timeout, started, known: Mutex::new(known), fetching: Arc::default() }
    }

    /// What a ticket says, if its issuer has signed it.
    pub(crate) async fn verified(self: &Arc<Self>, ticket: &str) -> Result<TicketClaims, TicketFault> {
        if ticket.len() > MAX_TICKET_BYTES {
            return Err(TicketFault::Malformed);
        }
        let header = jsonwebtoken::decode_header(ticket).map_err(|_| TicketFault::Malformed)?;
        let (Some(name), Algorithm::ES256 | Algorithm::EdDSA) = (header.kid, header.alg) else {
            return Err(TicketFault::Malformed);
        };
        let key = self.key(&name).await?;
        if key.algorithm != header.alg {
            return Err(TicketFault::Signature);
        }
        let mut validation = Validation::new(key.algorithm);
        // What it says is judged by the core, with a clock that is passed in.
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        let claims = jsonwebtoken::decode::<Claims>(ticket, &key.key, &validation).map_err(fault)?.claims;
        let (Some(issued_at), Some(expires_at)) = (date(claims.iat), date(claims.exp)) else {
            return Err(TicketFault::Malformed);
        };
        let not_before = claims.nbf.map(|nbf| date(nbf).ok_or(TicketFault::Malformed)).transpose()?;
        let audiences = match claims.aud {
            Audiences::One(audience) => vec![audience],
            Audiences::Many(audiences) => audiences,
        };
        Ok(TicketClaims {
            audiences,
            subject: claims.sub,
            node: claims.node,
            issued_at,
            not_before,
            expires_at,
            id: claims.jti,
        })
    }

    async fn key(self: &Arc<Self>, name: &str) -> Result<Key, TicketFault> {
        if let (KeyVerdict::Use, known) = self.judged(name) {
            return known;
        }
        let turn = Arc::clone(&self.fetching).lock_owned().await;
        if self.judged(name).0 == KeyVerdict::Fetch {
            self.known().shelf.handle_tried(self.now());
            let tickets = Arc::clone(self);
            let fetching = tokio::spawn(async move {
                tickets.fetch().await;
                drop(turn);
            });
            // It has panicked, then: what is known is as it was.
            let _ = fetching.await;
        }
        self.judged(name).1
    }

    /// What is to be done about a key, and what it is if nothing is.
    fn judged(&self, name: &str) -> (KeyVerdict, Result<Key, TicketFault>) {
        let known = self.known();
        let verdict = known.shelf.judge(name, self.now());
        let key = match verdict {
            KeyVerdict::Use => known.keys.get(name).cloned().ok_or(TicketFault::UnknownKey),
            KeyVerdict::Fetch => Err(TicketFault::KeysAway),
            KeyVerdict::Refuse(fault) => Err(fault),
        };
        (verdict, key)
    }

    // Held for look-ups alone, never across a wait.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fetch(&self) {
        let fetched = match tokio::time::timeout(self.timeout, self.source.jwks()).await {
            Ok(Ok(text)) => parsed(&text),
            Ok(Err(why)) => Err(why),
            Err(_) => Err(format!("they did not come within {:?}", self.timeout)),
        };
        let mut known = self.known();
        match fetched {
            Ok(keys) => {
                if std::mem::replace(&mut known.is_failing, false) {
                    tracing::info!("the keys of tickets are there again");
                }
                known.shelf.handle_fetched(keys.keys().cloned(), self.now());
                known.keys = keys;
            }
            Err(why) => {
                if !std::mem::replace(&mut known.is_failing, true) {
                    tracing::warn!(why, "the keys of tickets (JWKS) can't be fetched; see [tunnels]");
                }
                known.shelf.handle_tried(self.now());
            }
        }
    }

    fn now(&self) -> Moment {
        Moment::on_clock(self.started, Instant::now())
    }
}

fn parsed(text: &[u8]) -> Result<BTreeMap<String, Key>, String> {
    // The text of the error could repeat the document.
    let set: JwkSet = serde_json::from_slice(text).map_err(|_| "the document is no JWKS".to_owned())?;
    let keys: BTreeMap<String, Key> = set.keys.iter().take(MAX_KEYS).filter_map(usable).collect();
    if keys.is_empty() {
        return Err("the JWKS holds no key for signatures (P-256 or Ed25519) that has a kid".to_owned());
    }
    Ok(keys)
}

fn usable(jwk: &Jwk) -> Option<(String, Key)> {
    let algorithm = match &jwk.algorithm {
        AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P256 => Algorithm::ES256,
        AlgorithmParameters::OctetKeyPair(pair) if pair.curve == EllipticCurve::Ed25519 => Algorithm::EdDSA,
        _ => return None,
    };
    let is_for_signatures =
        jwk.common.public_key_use.as_ref().is_none_or(|of| *of == PublicKeyUse::Signature);
    let name = jwk.common.key_id.clone().filter(|_| is_for_signatures)?;
    Some((name, Key { algorithm, key: DecodingKey::from_jwk(jwk).ok()? }))
}

fn fault(error: jsonwebtoken::errors::Error) -> TicketFault {
    use jsonwebtoken::errors::ErrorKind as Kind;
    match error.kind() {
        Kind::InvalidSignature | Kind::InvalidAlgorithm | Kind::InvalidKeyFormat => TicketFault::Signature,
        _ => TicketFault::Malformed,
    }
}

/// A date of a token, in seconds since 1970.
fn date(seconds: f64) -> Option<UnixMillis> {
    let millis = seconds * 1000.0;
    // Within what an integer holds, with room for what is added to it.
    (millis.is_finite() && millis.abs() < 1e16).then_some(UnixMillis(millis as i64))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    /// The example of RFC 7515, appendix A.3.
    const JWKS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"a","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;

    /// An issuer that never answers.
    #[derive(Default)]
    struct Silent(AtomicUsize);

    impl TicketKeys for Silent {
        fn jwks(&self) -> JwksFuture<'_> {
            self.0.fetch_add(1, Relaxed);
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test]
    async fn a_made_up_key_holds_up_nobody_whose_key_is_known_and_makes_one_fetch() {
        let (issuer, started) = (Arc::<Silent>::default(), Instant::now() - Duration::from_secs(60));
        let timeout = Duration::from_millis(500);
        let tickets = Tickets::new(Arc::clone(&issuer) as _, Duration::from_secs(300), timeout, started);
        let tickets = Arc::new(tickets);
        let fetched = parsed(JWKS.as_bytes()).expect("a JWKS");
        tickets.known().shelf.handle_fetched(fetched.keys().cloned(), Moment::default());
        tickets.known().keys = fetched;
        let made_up = |name: &'static str| {
            let tickets = Arc::clone(&tickets);
            tokio::spawn(async move { tickets.key(name).await.map(drop) })
        };
        let (first, second, gone) = (made_up("b"), made_up("c"), made_up("d"));
        while issuer.0.load(Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        gone.abort();
        assert!(tickets.key("a").await.is_ok());
        assert!(!first.is_finished() && !second.is_finished(), "they wait for the fetch, and it did not");
        assert_eq!(first.await.unwrap(), Err(TicketFault::UnknownKey));
        assert_eq!(second.await.unwrap(), Err(TicketFault::UnknownKey));
        assert_eq!(issuer.0.load(Relaxed), 1);
    }
}

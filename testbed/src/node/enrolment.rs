//! How a node comes by its certificates: from a join token alone, then by renewals, as protocol.md asks.
//!
//! Owns the node's tokens and its present certificate with its key, which never leaves the node: a CSR is
//! what goes out. Who dials uses what stands here at that time.
//!
//! 1. A node without a certificate, or with one that has expired, joins before it dials.
//! 2. It renews when two thirds of the certificate's life have passed, and tries again until it has
//!    expired. A renewed one is used from the next dial on.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gateway_proto::path;
use gateway_proto::v1::{
    FetchSecretRequest, FetchSecretResponse, JoinRequest, JoinResponse, RenewRequest, RenewResponse,
};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::sync::Notify;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::call::Target;
use super::end::{End, EndKind};
use super::unary::unary;
use crate::pki::ClientTls;

/// The shortest pause between two tries to renew.
const RENEW_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// A certificate of a node, with its key.
#[derive(Clone)]
pub struct Credential {
    chain: Vec<CertificateDer<'static>>,
    key: Arc<KeyPair>,
    pub chain_pem: String,
    /// As `node_certs` has it.
    pub serial: String,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("serial", &self.serial).finish_non_exhaustive()
    }
}

impl Credential {
    fn new(chain_pem: String, key: Arc<KeyPair>) -> Result<Self, End> {
        let broken = |why: String| End::of(EndKind::Transport, format!("the certificate: {why}"));
        let chain = CertificateDer::pem_slice_iter(chain_pem.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| broken(error.to_string()))?;
        let leaf = chain.first().ok_or_else(|| broken("none came".to_owned()))?;
        let (_, parsed) = X509Certificate::from_der(leaf).map_err(|error| broken(error.to_string()))?;
        let at = |seconds: i64| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let validity = parsed.validity();
        let (not_before, not_after) =
            (at(validity.not_before.timestamp()), at(validity.not_after.timestamp()));
        let serial: String = parsed.raw_serial().iter().map(|byte| format!("{byte:02X}")).collect();
        let serial = serial.trim_start_matches('0').to_owned();
        Ok(Self { chain, key, chain_pem, serial, not_before, not_after })
    }

    /// When two thirds of its life have passed.
    pub fn renew_at(&self) -> SystemTime {
        let life = self.not_after.duration_since(self.not_before).unwrap_or_default();
        self.not_before + life * 2 / 3
    }

    /// Whether its time is over.
    pub fn has_expired(&self) -> bool {
        self.not_after <= SystemTime::now()
    }

    /// Its key as PEM.
    pub fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }
}

#[derive(Default)]
struct State {
    credential: Option<Arc<Credential>>,
    tokens: VecDeque<String>,
}

/// The enrolment of one node.
pub struct Enrolment {
    tls: ClientTls,
    machine: String,
    state: Mutex<State>,
    changed: Notify,
}

impl fmt::Debug for Enrolment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enrolment").field("credential", &self.credential()).finish_non_exhaustive()
    }
}

impl Enrolment {
    /// Of a node that has nothing but this token.
    pub fn new(tls: ClientTls, machine: &str, token: &str) -> Arc<Self> {
        let state = State { credential: None, tokens: VecDeque::from([token.to_owned()]) };
        Arc::new(Self { tls, machine: machine.to_owned(), state: Mutex::new(state), changed: Notify::new() })
    }

    /// One more token, for when the certificate has expired.
    pub fn give_token(&self, token: &str) {
        self.locked().tokens.push_back(token.to_owned());
    }

    /// The present certificate.
    pub fn credential(&self) -> Option<Arc<Credential>> {
        self.locked().credential.clone()
    }

    /// `target` with the present certificate; joins there first where the node has none that is valid.
    pub async fn dressed(&self, target: &Target) -> Result<Target, End> {
        let credential = match self.credential().filter(|credential| !credential.has_expired()) {
            Some(credential) => credential,
            None => self.join(target).await?,
        };
        self.with_tls(target, Some(&credential))
    }

    /// Joins with the oldest token, which is forgotten once it was good.
    pub async fn join(&self, target: &Target) -> Result<Arc<Credential>, End> {
        let token = self.locked().tokens.front().cloned();
        let token = token.ok_or_else(|| {
            End::of(EndKind::Transport, "the node has no certificate that is valid, and no join token")
        })?;
        let (key, csr_der) = new_csr()?;
        let request = JoinRequest {
            token: token.clone(),
            csr_der: csr_der.into(),
            machine: self.machine.clone(),
            software_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let answer: JoinResponse = unary(&self.with_tls(target, None)?, path::JOIN, &request).await?;
        let credential = Arc::new(Credential::new(answer.certificate_chain_pem, key)?);
        let mut state = self.locked();
        state.tokens.retain(|kept| *kept != token);
        state.credential = Some(Arc::clone(&credential));
        drop(state);
        self.changed.notify_one();
        Ok(credential)
    }

    /// Renews the present certificate.
    pub async fn renew(&self, target: &Target) -> Result<Arc<Credential>, End> {
        let present = self.credential();
        let (key, csr_der) = new_csr()?;
        let target = self.with_tls(target, present.as_deref())?;
        let request = RenewRequest { csr_der: csr_der.into() };
        let answer: RenewResponse = unary(&target, path::RENEW, &request).await?;
        let credential = Arc::new(Credential::new(answer.certificate_chain_pem, key)?);
        self.locked().credential = Some(Arc::clone(&credential));
        Ok(credential)
    }

    /// Fetches a secret; an empty version is the newest.
    pub async fn fetch_secret(
        &self,
        target: &Target,
        name: &str,
        version: &str,
    ) -> Result<FetchSecretResponse, End> {
        let target = self.with_tls(target, self.credential().as_deref())?;
        let request = FetchSecretRequest { name: name.to_owned(), version: version.to_owned() };
        unary(&target, path::FETCH_SECRET, &request).await
    }

    /// Waits until the present certificate is to be renewed. To be asked again after each renewal or try.
    pub(super) async fn renewal_due(&self) {
        loop {
            // Listening before looking: a join in between is not missed.
            let changed = self.changed.notified();
            let Some(credential) = self.credential().filter(|credential| !credential.has_expired()) else {
                changed.await;
                continue;
            };
            let left = credential.renew_at().duration_since(SystemTime::now()).unwrap_or_default();
            tokio::select! {
                () = tokio::time::sleep(left) => return,
                () = changed => {}
            }
        }
    }

    /// How long to wait after a try that failed.
    pub(super) fn renew_again_after(&self, end: &End) -> Duration {
        let left = self
            .credential()
            .and_then(|credential| credential.not_after.duration_since(SystemTime::now()).ok())
            .unwrap_or_default();
        end.pushback.unwrap_or(left / 8).max(RENEW_AGAIN_AFTER)
    }

    fn with_tls(&self, target: &Target, credential: Option<&Credential>) -> Result<Target, End> {
        let shown = credential.map(|credential| {
            let key = PrivatePkcs8KeyDer::from(credential.key.serialize_der());
            (credential.chain.clone(), PrivateKeyDer::Pkcs8(key))
        });
        let tls = self
            .tls
            .config(shown)
            .map_err(|error| End::of(EndKind::Transport, format!("the node's TLS: {error}")))?;
        Ok(Target { tls: Arc::new(tls), ..target.clone() })
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A new key, and a CSR for it that asks for nothing: who signs it knows what it is for.
fn new_csr() -> Result<(Arc<KeyPair>, Vec<u8>), End> {
    let made = || {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let csr = CertificateParams::default().serialize_request(&key)?;
        Ok((Arc::new(key), csr.der().to_vec()))
    };
    made().map_err(|error: rcgen::Error| End::of(EndKind::Transport, format!("the CSR: {error}")))
}

//! Whether a node's certificate counts in the handshake: its chain, its time, and that it is not revoked.
//!
//! rustls' own verifier judges the chain; this asks it, at more than one time where the clocks may differ, and looks
//! the serial up. Who the node is, is read elsewhere.
//!
//! 1. A chain is judged at the host's time first. Only where its time alone speaks against it, it is judged again,
//!    at a time that is shifted by the leeway: whatever else is wrong with it is found then too.
//! 2. A certificate is looked up only when its chain is good: nobody learns here what is revoked.
//! 3. A refusal is told in the log, since an alert has no words; one for its time with both times and the leeway.
//!    Who has issued a certificate is known where its time alone speaks against it, or what comes after the chain.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gateway_core::close::CloseReason;
use gateway_core::revocation::{RevokedSet, SerialKey, Verdict};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::time::ASN1Time;

use crate::identity::serial_of_client;
use crate::refusals::{Issuer, Refusals, Shown};

#[derive(Debug)]
pub(crate) struct NodeVerifier {
    pub(crate) chains: Arc<dyn ClientCertVerifier>,
    pub(crate) leeway: Duration,
    pub(crate) revoked: Arc<RevokedSet>,
    pub(crate) refusals: Arc<Refusals>,
}

/// How a certificate is out of its time. Times are since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutOfTime {
    Expired { not_after: Duration },
    NotYet { not_before: Duration },
}

impl OutOfTime {
    fn of(error: &Error) -> Option<Self> {
        let since = |time: &UnixTime| Duration::from_secs(time.as_secs());
        match error {
            Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. }) => {
                Some(Self::Expired { not_after: since(not_after) })
            }
            Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. }) => {
                Some(Self::NotYet { not_before: since(not_before) })
            }
            _ => None,
        }
    }

    /// The time at which it is judged again.
    fn shifted(self, now: UnixTime, leeway: Duration) -> UnixTime {
        let now = Duration::from_secs(now.as_secs());
        UnixTime::since_unix_epoch(match self {
            Self::Expired { .. } => now.saturating_sub(leeway),
            Self::NotYet { .. } => now.saturating_add(leeway),
        })
    }

    /// A time at which it counted, or will.
    fn good_time(self) -> UnixTime {
        UnixTime::since_unix_epoch(match self {
            Self::Expired { not_after } => not_after,
            Self::NotYet { not_before } => not_before,
        })
    }
}

impl fmt::Display for OutOfTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired { not_after } => write!(f, "it expired at {}", date(*not_after)),
            Self::NotYet { not_before } => write!(f, "it counts from {} on", date(*not_before)),
        }
    }
}

/// A time since 1970, for people.
fn date(since: Duration) -> String {
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    ASN1Time::from_timestamp(seconds).map_or_else(|_| format!("{seconds} s"), |date| date.to_string())
}

/// Why a certificate is refused, and who has issued it.
type Refused = (Error, Issuer);

impl NodeVerifier {
    fn verify_chain(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Refused> {
        let error = match self.chains.verify_client_cert(certificate, intermediates, now) {
            Err(error) => error,
            Ok(good) => return Ok(good),
        };
        let Some(out_of_time) = OutOfTime::of(&error) else { return Err((error, Issuer::Unknown)) };
        let judge = |at| self.chains.verify_client_cert(certificate, intermediates, at);
        if !self.leeway.is_zero()
            && let Ok(good) = judge(out_of_time.shifted(now, self.leeway))
        {
            return Ok(good);
        }
        match judge(out_of_time.good_time()) {
            Ok(_) => Err((error, Issuer::Ours)),
            Err(_) => Err((error, Issuer::Unknown)),
        }
    }

    fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Refused> {
        let ours = |error: CertificateError| (Error::from(error), Issuer::Ours);
        let good = self.verify_chain(certificate, intermediates, now)?;
        // A chain is verified for clients where a certificate names its usages, and for all where it names none.
        let serial = serial_of_client(certificate).map_err(ours)?;
        match self.revoked.verdict(SerialKey::of(&serial)) {
            Some(Verdict::Revoked) => Err(ours(CertificateError::Revoked)),
            // It is told so where it opens a session.
            Some(Verdict::Quarantined) | None => Ok(good),
        }
    }

    fn tell(&self, certificate: &CertificateDer<'_>, (error, issuer): &Refused, now: UnixTime) {
        let (reason, advice) = match (OutOfTime::of(error), error) {
            (Some(out_of_time), _) => {
                let now = date(Duration::from_secs(now.as_secs()));
                let reason = format!(
                    "it, or an authority in its chain, is out of its time: {out_of_time}, now is {now}, the leeway \
                     (identity.clock_skew) is {:?}",
                    self.leeway
                );
                (reason, "renew it, or set the clocks")
            }
            (None, Error::InvalidCertificate(why)) => told(why),
            (None, error) => (error.to_string(), UNKNOWN_ADVICE),
        };
        self.refusals.tell(&Shown::of(certificate), *issuer, &reason, advice, now.as_secs());
    }
}

const UNKNOWN_ADVICE: &str =
    "see what dials this port; a node's certificate comes from an authority of tls.node_ca";

/// What is wrong with a certificate whose time is not, and what to do.
fn told(why: &CertificateError) -> (String, &'static str) {
    match why {
        CertificateError::Revoked => {
            let reason = CloseReason::Revoked("it is revoked".to_owned());
            (reason.to_string(), reason.certificate_advice().unwrap_or_default())
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => (
            "it is not for clients: its extended key usage lacks clientAuth".to_owned(),
            "issue the node a certificate for clients",
        ),
        CertificateError::UnknownIssuer => (
            "no authority of tls.node_ca has issued it".to_owned(),
            "give the node a certificate of this fleet, or add its authority to tls.node_ca",
        ),
        CertificateError::BadSignature => (
            "its signature is not its authority's".to_owned(),
            "see who made it up: an authority makes no such one",
        ),
        other => (Error::from(other.clone()).to_string(), UNKNOWN_ADVICE),
    }
}

impl ClientCertVerifier for NodeVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.chains.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chains.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(certificate, intermediates, now).map_err(|refused| {
            self.tell(certificate, &refused, now);
            refused.0
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::{SystemTime, UNIX_EPOCH};

    use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
    use rustls::RootCertStore;
    use rustls::server::WebPkiClientVerifier;

    use super::*;

    /// How many lines were logged.
    #[derive(Clone, Default)]
    struct Lines(Arc<AtomicUsize>);

    impl Write for Lines {
        fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
            self.0.fetch_add(1, Relaxed);
            Ok(line.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_node_that_dials_again_and_again_with_an_expired_certificate_is_told_of_once_a_minute() {
        let key = || KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("an authority");
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority_key = key();
        let mut roots = RootCertStore::empty();
        let root = params.self_signed(&authority_key).expect("a root");
        roots.add(root.der().clone()).expect("a root");
        let authority = Issuer::new(params, authority_key);
        let mut node = CertificateParams::new(vec!["n".to_owned()]).expect("a node");
        node.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        node.not_after = (SystemTime::now() - Duration::from_secs(3_600)).into();
        let node = node.signed_by(&key(), &authority).expect("a certificate");

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chains = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = NodeVerifier {
            chains: chains.build().expect("a verifier"),
            leeway: Duration::ZERO,
            revoked: Arc::default(),
            refusals: Arc::default(),
        };
        let lines = Lines::default();
        let written = lines.clone();
        let log = tracing_subscriber::fmt().with_writer(move || written.clone()).finish();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let dials = |later| {
            let at = UnixTime::since_unix_epoch(now + Duration::from_secs(later));
            let refused = verifier.verify_client_cert(node.der(), &[], at).expect_err("it has expired");
            assert!(matches!(refused, Error::InvalidCertificate(CertificateError::ExpiredContext { .. })));
        };
        tracing::subscriber::with_default(log, || {
            (0..60).for_each(dials);
            assert_eq!(lines.0.load(Relaxed), 1);
            dials(60);
            assert_eq!(lines.0.load(Relaxed), 2);
        });
    }
}

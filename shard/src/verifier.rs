//! Whether a node's certificate counts in the handshake: its chain, its time, and that it is not revoked.
//!
//! rustls' own verifier judges the chain; this asks it, at more than one time where the clocks may differ, and looks
//! the serial up. Who the node is, is read elsewhere.
//!
//! 1. A chain is judged at the host's time first. Only where its time alone speaks against it, it is judged again,
//!    at a time that is shifted by the leeway: whatever else is wrong with it is found then too.
//! 2. A certificate is looked up only when its chain is good: nobody learns here what is revoked.
//! 3. A refusal for its time is told in the log, with both times and the leeway: an alert has no words. It is told
//!    of certificates of our own roots alone, so that no stranger fills the log.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gateway_core::revocation::{RevokedSet, SerialKey, Verdict};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::time::ASN1Time;

use crate::identity::{is_for_clients, serial_of};

#[derive(Debug)]
pub(crate) struct NodeVerifier {
    pub(crate) chains: Arc<dyn ClientCertVerifier>,
    pub(crate) leeway: Duration,
    pub(crate) revoked: Arc<RevokedSet>,
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

impl NodeVerifier {
    fn verify_chain(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let error = match self.chains.verify_client_cert(certificate, intermediates, now) {
            Err(error) => error,
            good => return good,
        };
        let Some(out_of_time) = OutOfTime::of(&error) else { return Err(error) };
        let judge = |at| self.chains.verify_client_cert(certificate, intermediates, at);
        if !self.leeway.is_zero()
            && let Ok(good) = judge(out_of_time.shifted(now, self.leeway))
        {
            return Ok(good);
        }
        if judge(out_of_time.good_time()).is_ok() {
            tracing::warn!(
                serial = serial_of(certificate).unwrap_or_default(),
                "a node's certificate, or an authority in its chain, is out of its time: {out_of_time}, now is {}, the \
                 leeway (identity.clock_skew) is {:?}; renew it, or set the clocks",
                date(Duration::from_secs(now.as_secs())),
                self.leeway
            );
        }
        Err(error)
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
        let good = self.verify_chain(certificate, intermediates, now)?;
        // A chain is verified for clients where a certificate names its usages, and for all where it names none.
        if !is_for_clients(certificate) {
            return Err(CertificateError::InvalidPurpose.into());
        }
        let serial = serial_of(certificate).ok_or(CertificateError::BadEncoding)?;
        match self.revoked.verdict(SerialKey::of(&serial)) {
            Some(Verdict::Revoked) => Err(CertificateError::Revoked.into()),
            // It is told so where it opens a session.
            Some(Verdict::Quarantined) | None => Ok(good),
        }
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

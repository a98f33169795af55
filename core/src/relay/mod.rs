//! Calls that a gateway passes on: Join, Renew and FetchSecret, each to a service behind it.
//!
//! Owns what crosses between a shard and the relays of the control thread, who may have which call passed
//! on (`standing`), which upstream's answer a node gets (`refusal`), how many calls a peer may have on a shard
//! (`places`), and how many are under way and wait (`lanes`). It signs nothing, keeps no answer, and never looks into a token, a CSR or a secret.
//!
//! 1. What may not be logged is `Hidden`: its `Debug` shows nothing of it.
//! 2. A call has exactly one answer, at its deadline at the latest.
//! 3. What the services say of themselves reaches no log line; what they say to a node is cut.

pub mod lanes;
pub mod places;
pub mod refusal;
pub mod standing;

use std::fmt;

use bytes::Bytes;

use crate::ids::ShardId;
use crate::mail::Weigh;
use crate::revocation::SerialKey;
use crate::seam::Identity;
use crate::time::Moment;

pub use refusal::{Refusal, RefusalCode};
pub use standing::Caller;

/// Longest join token, and longest CSR.
pub const MAX_TOKEN_BYTES: usize = 8 << 10;
pub const MAX_CSR_BYTES: usize = 16 << 10;
/// Longest name and longest version of a secret.
pub const MAX_SECRET_NAME_BYTES: usize = 256;
/// Largest message of a node that asks for a relay.
pub const MAX_REQUEST_BYTES: usize = 32 << 10;
/// Largest answer of a service: a chain of certificates, or a secret.
pub const MAX_ANSWER_BYTES: usize = 256 << 10;

// Any request that keeps its fields' bounds fits.
const _: () = assert!(MAX_TOKEN_BYTES + MAX_CSR_BYTES + (4 << 10) < MAX_REQUEST_BYTES);

/// What no log line may hold.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Hidden<T>(pub T);

impl<T> fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// The three calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RelayKind {
    Join,
    Renew,
    FetchSecret,
}

impl RelayKind {
    /// Every kind, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Join, Self::Renew, Self::FetchSecret];

    /// A word for logs and metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Renew => "renew",
            Self::FetchSecret => "fetch-secret",
        }
    }

    /// The name of the call as nodes know it.
    pub const fn call(self) -> &'static str {
        match self {
            Self::Join => "Join",
            Self::Renew => "Renew",
            Self::FetchSecret => "FetchSecret",
        }
    }

    /// What answers it.
    pub const fn service(self) -> &'static str {
        match self {
            Self::Join => "join service",
            Self::Renew => "renewal service",
            Self::FetchSecret => "secret broker",
        }
    }

    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Join => 0,
            Self::Renew => 1,
            Self::FetchSecret => 2,
        }
    }
}

/// A node's wish for its first certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    pub token: Hidden<String>,
    /// PKCS#10, DER.
    pub csr_der: Hidden<Bytes>,
    /// As the node says, unproven.
    pub machine: String,
    pub software_version: String,
}

/// A node's wish for its next certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renew {
    /// PKCS#10, DER.
    pub csr_der: Hidden<Bytes>,
}

/// A node's wish for a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchSecret {
    pub name: String,
    /// Empty: the newest.
    pub version: String,
}

/// A certificate that was issued, as PEM texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Issued {
    /// Leaf first.
    pub chain_pem: String,
    /// The roots of the gateways; empty where they stay as they are.
    pub trust_bundle_pem: String,
}

/// A secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secret {
    pub value: Hidden<Bytes>,
    pub version: String,
    /// Milliseconds since 1970; 0: it does not expire.
    pub expires_at_unix_ms: i64,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    Join(Join),
    Renew(Identity, Renew),
    FetchSecret(Identity, FetchSecret),
}

impl Asked {
    pub const fn kind(&self) -> RelayKind {
        match self {
            Self::Join(_) => RelayKind::Join,
            Self::Renew(..) => RelayKind::Renew,
            Self::FetchSecret(..) => RelayKind::FetchSecret,
        }
    }

    /// The certificate that it is asked under; a join is asked under none.
    pub fn certificate(&self) -> Option<SerialKey> {
        match self {
            Self::Join(_) => None,
            Self::Renew(identity, _) | Self::FetchSecret(identity, _) => {
                Some(SerialKey::of(&identity.certificate_serial))
            }
        }
    }
}

/// What a service answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answered {
    Issued(Issued),
    Secret(Secret),
}

/// Which call of which shard. A slot's serial is never used twice in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelayKey {
    pub shard: ShardId,
    pub slot: u32,
    pub serial: u32,
}

/// From a shard to the relays.
#[derive(Debug, PartialEq, Eq)]
pub struct RelayRequest {
    pub key: RelayKey,
    pub asked: Asked,
    /// When the node must have its answer.
    pub due_at: Moment,
}

/// From the relays to a shard: the one answer to a `RelayRequest`.
#[derive(Debug, PartialEq, Eq)]
pub struct RelayAnswer {
    pub key: RelayKey,
    pub outcome: Result<Answered, Refusal>,
}

impl Weigh for RelayRequest {
    fn weight_bytes(&self) -> usize {
        let variable = match &self.asked {
            Asked::Join(join) => {
                join.token.0.len() + join.csr_der.0.len() + join.machine.len() + join.software_version.len()
            }
            Asked::Renew(_, renew) => renew.csr_der.0.len(),
            Asked::FetchSecret(_, fetch) => fetch.name.len() + fetch.version.len(),
        };
        variable + 512
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_not_be_logged_is_not_in_what_debug_shows() {
        let join = Join {
            token: Hidden("t0ken".to_owned()),
            csr_der: Hidden(Bytes::from_static(b"csr")),
            machine: "m".to_owned(),
            software_version: "1".to_owned(),
        };
        let secret = Secret {
            value: Hidden(Bytes::from_static(b"s3cret")),
            version: "3".to_owned(),
            expires_at_unix_ms: 0,
        };
        let key = RelayKey { shard: ShardId(0), slot: 1, serial: 2 };
        let request = RelayRequest { key, asked: Asked::Join(join), due_at: Moment::default() };
        let answer = RelayAnswer { key, outcome: Ok(Answered::Secret(secret)) };
        let shown = format!("{request:?} {answer:?}");
        for hidden in ["t0ken", "csr\"", "s3cret", "115, 51"] {
            assert!(!shown.contains(hidden), "{shown}");
        }
        assert!(shown.contains("token: (hidden)") && shown.contains("version: \"3\""), "{shown}");
    }
}

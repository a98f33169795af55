//! Between the messages of Join, Renew and FetchSecret and what the relays are asked and answer.
//!
//! It checks form alone: that a message is one, and how long its fields are. What is in a token, a CSR or a
//! secret is for the service that it is for.
//!
//! 1. No field is passed on that is longer than its bound.
//! 2. No sentence repeats text of the node.

use bytes::Bytes;
use gateway_core::close::CloseReason;
use gateway_core::limits::MAX_TEXT_BYTES;
use gateway_core::relay::{
    Answered, Asked, FetchSecret, Hidden, Join, MAX_CSR_BYTES, MAX_SECRET_NAME_BYTES, MAX_TOKEN_BYTES,
    RelayKind, Renew,
};
use gateway_core::revocation::SerialKey;
use gateway_core::seam::Identity;
use gateway_proto::{framing, v1};
use prost::Message;

/// Whose call it is: nobody's for Join, which is for machines without a certificate.
#[derive(Debug, Clone)]
pub(crate) enum Asking {
    Join,
    Renew(Identity),
    FetchSecret(Identity),
}

impl Asking {
    pub(crate) const fn kind(&self) -> RelayKind {
        match self {
            Self::Join => RelayKind::Join,
            Self::Renew(_) => RelayKind::Renew,
            Self::FetchSecret(_) => RelayKind::FetchSecret,
        }
    }

    /// Whose places the call takes.
    pub(crate) fn certificate(&self) -> Option<SerialKey> {
        match self {
            Self::Join => None,
            Self::Renew(identity) | Self::FetchSecret(identity) => {
                Some(SerialKey::of(&identity.certificate_serial))
            }
        }
    }

    /// What the message asks for.
    pub(crate) fn decode(&self, message: Bytes) -> Result<Asked, CloseReason> {
        match self {
            Self::Join => {
                let v1::JoinRequest { token, csr_der, machine, software_version } = parse(message)?;
                bound("token", token.len(), 1, MAX_TOKEN_BYTES)?;
                bound("csr_der", csr_der.len(), 1, MAX_CSR_BYTES)?;
                bound("machine", machine.len(), 0, MAX_TEXT_BYTES)?;
                bound("software_version", software_version.len(), 0, MAX_TEXT_BYTES)?;
                let (token, csr_der) = (Hidden(token), Hidden(csr_der));
                Ok(Asked::Join(Join { token, csr_der, machine, software_version }))
            }
            Self::Renew(identity) => {
                let v1::RenewRequest { csr_der } = parse(message)?;
                bound("csr_der", csr_der.len(), 1, MAX_CSR_BYTES)?;
                Ok(Asked::Renew(identity.clone(), Renew { csr_der: Hidden(csr_der) }))
            }
            Self::FetchSecret(identity) => {
                let v1::FetchSecretRequest { name, version } = parse(message)?;
                bound("name", name.len(), 1, MAX_SECRET_NAME_BYTES)?;
                bound("version", version.len(), 0, MAX_SECRET_NAME_BYTES)?;
                Ok(Asked::FetchSecret(identity.clone(), FetchSecret { name, version }))
            }
        }
    }
}

fn parse<M: Message + Default>(message: Bytes) -> Result<M, CloseReason> {
    M::decode(message)
        .map_err(|_| CloseReason::Protocol("the request is no valid message of this call".to_owned()))
}

fn bound(field: &str, bytes: usize, least: usize, most: usize) -> Result<(), CloseReason> {
    if (least..=most).contains(&bytes) {
        return Ok(());
    }
    Err(CloseReason::Protocol(format!("{field} is {bytes} bytes; it must be {least} to {most}")))
}

/// The answer as a framed message of its call.
pub(crate) fn encode(kind: RelayKind, answered: Answered) -> Bytes {
    match (kind, answered) {
        (RelayKind::Join, Answered::Issued(issued)) => framing::encode(&v1::JoinResponse {
            certificate_chain_pem: issued.chain_pem,
            trust_bundle_pem: issued.trust_bundle_pem,
        }),
        (_, Answered::Issued(issued)) => framing::encode(&v1::RenewResponse {
            certificate_chain_pem: issued.chain_pem,
            trust_bundle_pem: issued.trust_bundle_pem,
        }),
        (_, Answered::Secret(secret)) => framing::encode(&v1::FetchSecretResponse {
            value: secret.value.0,
            version: secret.version,
            expires_at_unix_ms: secret.expires_at_unix_ms,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(message: &impl Message) -> String {
        Asking::Join.decode(message.encode_to_vec().into()).expect_err("is refused").to_string()
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_a_request_or_refused(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
        ) {
            let node = gateway_core::ids::NodeId::new("spiffe://a/site/s/node/n").expect("a node id");
            let identity = Identity { node, site: "s".to_owned(), certificate_serial: "0A".to_owned() };
            for asking in [Asking::Join, Asking::Renew(identity.clone()), Asking::FetchSecret(identity)] {
                if let Ok(asked) = asking.decode(bytes.clone().into()) {
                    proptest::prop_assert_eq!(asked.kind(), asking.kind());
                }
            }
        }
    }

    #[test]
    fn a_field_that_is_missing_or_too_long_is_named_and_not_shown() {
        let good =
            v1::JoinRequest { token: "secret-token".into(), csr_der: vec![1].into(), ..Default::default() };
        assert!(Asking::Join.decode(good.encode_to_vec().into()).is_ok());
        let missing = v1::JoinRequest { csr_der: Bytes::new(), ..good.clone() };
        assert_eq!(sentence(&missing), "csr_der is 0 bytes; it must be 1 to 16384");
        let long = v1::JoinRequest { token: "secret-token".repeat(1000), ..good };
        assert_eq!(sentence(&long), "token is 12000 bytes; it must be 1 to 8192");
        let garbage = Asking::Join.decode(Bytes::from_static(b"\xff\xff")).expect_err("no message");
        assert_eq!(garbage.to_string(), "the request is no valid message of this call");
    }
}

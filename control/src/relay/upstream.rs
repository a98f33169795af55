//! A service on the network: a gRPC client for one kind of call, over HTTP/2 and internal mTLS.
//!
//! It carries typed requests of the core as messages of `gateway.upstream.v1`, and answers back, over a
//! `Channel`.
//!
//! 1. A service that can't be used is `Unavailable` to the node, without what it said.

use std::time::Duration;

use gateway_core::relay::{
    Caller, FetchSecret, Hidden, Issued, Join, Refusal, RefusalCode, RelayKind, Renew, Secret,
};
use gateway_proto::upstream::v1 as upstream;
use gateway_proto::{path, v1};
use prost::Message;

use super::channel::{Channel, Failure, UpstreamAddress};
use super::services::{JoinService, RelayFuture, RenewalService, SecretBroker};
use super::tls::UpstreamFiles;

/// A service, for one kind of call.
#[derive(Debug)]
pub struct Upstream {
    kind: RelayKind,
    gateway_id: String,
    channel: Channel,
}

impl Upstream {
    /// Nothing is dialled before the first call. `timeout` is told to the service.
    pub fn new(
        kind: RelayKind,
        address: UpstreamAddress,
        files: UpstreamFiles,
        gateway_id: String,
        timeout: Duration,
    ) -> Self {
        Self { kind, gateway_id, channel: Channel::new(kind.service(), address, files, timeout) }
    }

    /// One unary call.
    async fn call<M: Message + Default>(&self, path: &str, request: &impl Message) -> Result<M, Refusal> {
        match self.channel.unary(path, request).await {
            Ok(answer) => {
                self.channel.note(None);
                Ok(answer)
            }
            Err(Failure::Status(code, sentence, retry_after)) => {
                let refusal = Refusal::of_service(self.kind, code, &sentence, retry_after);
                let is_away = refusal.code == RefusalCode::Unavailable;
                let why = is_away.then(|| format!("it ended a call with the gRPC status {code}"));
                self.channel.note(why.as_deref());
                Err(refusal)
            }
            Err(Failure::NotSent(why) | Failure::Lost(why)) => {
                self.channel.note(Some(&why));
                Err(Refusal::unavailable(self.kind, "can't be reached; retry"))
            }
        }
    }

    fn issued(chain_pem: String, trust_bundle_pem: String, kind: RelayKind) -> Result<Issued, Refusal> {
        if chain_pem.is_empty() {
            return Err(Refusal::unavailable(kind, "gave no certificate; retry"));
        }
        Ok(Issued { chain_pem, trust_bundle_pem })
    }
}

fn caller_message(caller: Caller) -> upstream::Caller {
    upstream::Caller {
        node_id: caller.identity.node.as_str().to_owned(),
        site: caller.identity.site,
        certificate_serial: caller.identity.certificate_serial,
        role: caller.role,
        tenant_controlled: caller.tenant_controlled,
    }
}

impl JoinService for Upstream {
    fn join(&self, join: Join) -> RelayFuture<'_, Issued> {
        let request = upstream::JoinCall {
            gateway_id: self.gateway_id.clone(),
            request: Some(v1::JoinRequest {
                token: join.token.0,
                csr_der: join.csr_der.0,
                machine: join.machine,
                software_version: join.software_version,
            }),
        };
        Box::pin(async move {
            let answer: v1::JoinResponse = self.call(path::UPSTREAM_JOIN, &request).await?;
            Self::issued(answer.certificate_chain_pem, answer.trust_bundle_pem, RelayKind::Join)
        })
    }
}

impl RenewalService for Upstream {
    fn renew(&self, caller: Caller, renew: Renew) -> RelayFuture<'_, Issued> {
        let request = upstream::RenewCall {
            gateway_id: self.gateway_id.clone(),
            caller: Some(caller_message(caller)),
            request: Some(v1::RenewRequest { csr_der: renew.csr_der.0 }),
        };
        Box::pin(async move {
            let answer: v1::RenewResponse = self.call(path::UPSTREAM_RENEW, &request).await?;
            Self::issued(answer.certificate_chain_pem, answer.trust_bundle_pem, RelayKind::Renew)
        })
    }
}

impl SecretBroker for Upstream {
    fn fetch_secret(&self, caller: Caller, fetch: FetchSecret) -> RelayFuture<'_, Secret> {
        let request = upstream::FetchSecretCall {
            gateway_id: self.gateway_id.clone(),
            caller: Some(caller_message(caller)),
            request: Some(v1::FetchSecretRequest { name: fetch.name, version: fetch.version }),
        };
        Box::pin(async move {
            let answer: v1::FetchSecretResponse = self.call(path::UPSTREAM_FETCH_SECRET, &request).await?;
            Ok(Secret {
                value: Hidden(answer.value),
                version: answer.version,
                expires_at_unix_ms: answer.expires_at_unix_ms,
            })
        })
    }
}

//! The IAM service, which says whether the caller of a tunnel may still have it.
//!
//! 1. A service that can't be asked, or does not answer in time, is away: it neither allows nor refuses.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gateway_core::tunnel::registry::{IamQuestion, IamVerdict};
use gateway_proto::path;
use gateway_proto::upstream::v1 as upstream;

use crate::relay::{Channel, Failure, UpstreamAddress, UpstreamFiles};

/// An answer to come.
pub type IamFuture<'a> = Pin<Box<dyn Future<Output = IamVerdict> + Send + 'a>>;

/// Who is asked about callers. See `gateway.upstream.v1.TunnelIam`.
pub trait TunnelIam: Send + Sync + 'static {
    /// Whether this caller may still have this tunnel.
    fn reauthorize(&self, question: IamQuestion) -> IamFuture<'_>;

    /// Looks at the start whether the service can be asked, so that the log says so before a tunnel needs it.
    fn look(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }
}

/// Lets it look, where there is one; on the runtime that it is asked on.
pub(super) fn look_at_the_start(iam: Option<&Arc<dyn TunnelIam>>) {
    if let Some(iam) = iam.cloned() {
        tokio::spawn(async move { iam.look().await });
    }
}

/// A service on the network.
#[derive(Debug)]
pub struct UpstreamIam {
    channel: Channel,
    gateway_id: String,
}

impl UpstreamIam {
    /// Nothing is dialled before the first look or question.
    pub fn new(
        address: UpstreamAddress,
        files: UpstreamFiles,
        gateway_id: String,
        timeout: Duration,
    ) -> Self {
        Self { channel: Channel::new("IAM service", address, files, timeout), gateway_id }
    }
}

impl TunnelIam for UpstreamIam {
    fn reauthorize(&self, question: IamQuestion) -> IamFuture<'_> {
        let call = upstream::ReauthorizeCall {
            gateway_id: self.gateway_id.clone(),
            tunnel_id: Bytes::copy_from_slice(&question.tunnel.0),
            subject: question.subject,
            ticket_id: question.ticket_id,
            node_id: question.node.as_str().to_owned(),
            kind: question.kind,
        };
        Box::pin(async move {
            let answer: Result<upstream::ReauthorizeAnswer, Failure> =
                self.channel.unary(path::UPSTREAM_REAUTHORIZE, &call).await;
            let (verdict, why) = match answer {
                Ok(upstream::ReauthorizeAnswer {}) => (IamVerdict::Allowed, None),
                // NOT_FOUND, PERMISSION_DENIED, UNAUTHENTICATED.
                Err(Failure::Status(5 | 7 | 16, ..)) => (IamVerdict::Refused, None),
                Err(Failure::Status(code, ..)) => {
                    (IamVerdict::Away, Some(format!("it ended a call with the gRPC status {code}")))
                }
                Err(Failure::NotSent(why) | Failure::Lost(why)) => (IamVerdict::Away, Some(why)),
            };
            self.channel.note(why.as_deref());
            verdict
        })
    }

    fn look(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.channel.look())
    }
}

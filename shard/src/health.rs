//! The standard health check, on the node listener: `SERVING` while sessions are served here.
//!
//! 1. It needs no certificate, so what it may cost is small: short requests, in time, and at most
//!    `MAX_WATCHERS` watches a shard.
//! 2. A watcher is told the present state and each change; what it did not take in time is replaced.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use gateway_core::close::{AdmissionBound, CloseReason};
use gateway_core::time::Moment;
use gateway_proto::framing;
use gateway_proto::health::health_check_response::ServingStatus;
use gateway_proto::health::{HealthCheckRequest, HealthCheckResponse};
use prost::Message;

use crate::bell::Bell;
use crate::outbox::{Flush, Outbox};
use crate::receive::{FrameReader, ReadEnd};
use crate::shard::{Shard, Stage};
use crate::status::CallStatus;
use crate::stream::{Afterwards, Stream};
use crate::transport::Exchange;

/// Watches of one shard.
const MAX_WATCHERS: usize = 64;
/// Longest request.
const MAX_REQUEST_BYTES: usize = 1024;
const SERVICES: [&str; 2] = ["", "gateway.v1.NodeGateway"];
/// What a watcher that finds no place is told to wait.
const RETRY_WATCH: std::time::Duration = std::time::Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HealthCall {
    Check,
    Watch,
}

pub(crate) struct HealthIo {
    shard: Rc<Shard>,
    call: HealthCall,
    reader: FrameReader,
    request_due_at: Moment,
    /// Whether the service that was asked about exists; once the request is there.
    known: Option<bool>,
    outbox: Outbox,
    told: Option<ServingStatus>,
    place: Option<WatchPlace>,
}

struct WatchPlace {
    shard: Rc<Shard>,
    index: usize,
}

impl Drop for WatchPlace {
    fn drop(&mut self) {
        self.shard.watchers.borrow_mut().try_remove(self.index);
    }
}

impl HealthIo {
    pub(crate) fn open(
        shard: &Rc<Shard>,
        bell: &Arc<Bell>,
        call: HealthCall,
        exchange: Exchange<'_>,
    ) -> Result<Option<Stream>, CloseReason> {
        let place = match call {
            HealthCall::Check => None,
            HealthCall::Watch => Some(take_place(shard, bell)?),
        };
        let Some((source, outlet)) = exchange.accept() else { return Ok(None) };
        Ok(Some(Stream::Health(Box::new(Self {
            call,
            reader: FrameReader::new(source, MAX_REQUEST_BYTES, shard, bell),
            request_due_at: shard.clock.now() + shard.limits.hello_timeout,
            known: None,
            outbox: Outbox::new(outlet, bell),
            told: None,
            place,
            shard: Rc::clone(shard),
        }))))
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>, now: Moment) -> Poll<Afterwards> {
        if self.known.is_none()
            && let Some(status) = self.read_request(context, now)
        {
            return self.finish(&status);
        }
        let Some(known) = self.known else { return Poll::Pending };
        let present = self.present(known);
        match self.call {
            HealthCall::Check if !known => {
                return self.finish(&CallStatus::not_found("this gateway has no service of that name"));
            }
            HealthCall::Watch if self.shard.stage.get() == Stage::Stopping => {
                return self.finish(&CallStatus::from(&CloseReason::Stopping));
            }
            _ => {}
        }
        if self.outbox.is_empty() && self.told != Some(present) {
            self.told = Some(present);
            self.outbox.push(framing::encode(&HealthCheckResponse { status: present as i32 }));
        }
        match (self.outbox.poll_flush(context, now), self.call) {
            (Flush::PeerGone, _) => Poll::Ready(Afterwards::Serve),
            (Flush::Empty, HealthCall::Check) => self.finish(&CallStatus::ok()),
            (Flush::Empty, HealthCall::Watch) if self.told != Some(self.present(known)) => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            (Flush::Empty, HealthCall::Watch) => Poll::Pending,
            (Flush::Stalled, _) => {
                let deadline = self.outbox.stall_deadline(self.shard.limits.send_timeout);
                if deadline.is_some_and(|deadline| deadline <= now) {
                    self.outbox.clear();
                    let _ = self.finish(&CallStatus::from(&CloseReason::SlowPeer));
                    return Poll::Ready(Afterwards::Close);
                }
                Poll::Pending
            }
        }
    }

    pub(crate) fn deadline(&self) -> Option<Moment> {
        match self.known {
            None => Some(self.request_due_at),
            Some(_) => self.outbox.stall_deadline(self.shard.limits.send_timeout),
        }
    }

    pub(crate) fn fail(mut self: Box<Self>, reason: &CloseReason) {
        self.outbox.clear();
        self.outbox.end(&CallStatus::from(reason));
    }

    /// Takes the request; the status that ends the call if there is no good one.
    fn read_request(&mut self, context: &mut Context<'_>, now: Moment) -> Option<CallStatus> {
        let broken = |why: &str| Some(CallStatus::from(&CloseReason::Protocol(why.to_owned())));
        match self.reader.poll_frame(context, now) {
            Poll::Pending if now >= self.request_due_at => broken("no HealthCheckRequest came in time"),
            Poll::Pending => None,
            Poll::Ready(Ok(message)) => match HealthCheckRequest::decode(message) {
                Ok(request) => {
                    self.known = Some(SERVICES.contains(&request.service.as_str()));
                    None
                }
                Err(_) => broken("the request is no valid HealthCheckRequest"),
            },
            Poll::Ready(Err(ReadEnd::Broken(reason))) => Some(CallStatus::from(&reason)),
            Poll::Ready(Err(ReadEnd::HalfClosed | ReadEnd::PeerGone)) => {
                broken("the request ended without a HealthCheckRequest")
            }
        }
    }

    fn present(&self, known: bool) -> ServingStatus {
        match (known, self.shard.is_serving()) {
            (false, _) => ServingStatus::ServiceUnknown,
            (true, true) => ServingStatus::Serving,
            (true, false) => ServingStatus::NotServing,
        }
    }

    fn finish(&mut self, status: &CallStatus) -> Poll<Afterwards> {
        self.place = None;
        self.outbox.end(status);
        Poll::Ready(Afterwards::Serve)
    }
}

fn take_place(shard: &Rc<Shard>, bell: &Arc<Bell>) -> Result<WatchPlace, CloseReason> {
    let mut watchers = shard.watchers.borrow_mut();
    if watchers.len() >= MAX_WATCHERS {
        return Err(CloseReason::Refused { bound: AdmissionBound::Streams, retry_after: RETRY_WATCH });
    }
    Ok(WatchPlace { shard: Rc::clone(shard), index: watchers.insert(Arc::clone(bell)) })
}

//! The relays: Join, Renew and FetchSecret of nodes, passed on to the services behind the gateway.
//!
//! One room of the control thread. Requests of all shards come in through one mailbox; each is carried out
//! by a task of its own, and its answer goes to its shard's mailbox. `gateway_core::relay` says how many
//! may be under way, who may have what passed on, and what a service's status means; `upstream` speaks
//! with a service over the network; an embedder's own service is Rust (`services`).
//!
//! 1. Every request has one answer, at its deadline at the latest: a service that hangs is left alone.
//! 2. A service that panics fails its call, and nothing else.
//! 3. No session depends on this room: when it stands still, relayed calls are refused, and nothing more.
//! 4. No line of the log holds what a node or a service has said.

mod channel;
mod services;
mod status;
mod tls;
mod upstream;

use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gateway_core::limits::Limits;
use gateway_core::mail::{Inbox, Post, Weigh};
use gateway_core::relay::lanes::RelayLanes;
use gateway_core::relay::{
    Answered, Asked, Caller, Refusal, RefusalCode, RelayAnswer, RelayKey, RelayKind, RelayRequest, standing,
};
use gateway_core::revocation::SerialKey;
use gateway_core::seam::{Identity, ToShard};
use gateway_core::time::Moment;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::courier;

pub use self::channel::UpstreamAddress;
pub(crate) use self::channel::{Channel, Failure};
pub use self::services::{
    CertificateLook, Certificates, CertificatesAway, JoinService, RelayFuture, RelayServices, RenewalService,
    SecretBroker,
};
pub use self::status::RelayStatus;
pub use self::tls::{UpstreamFiles, UpstreamTlsError};
pub use self::upstream::Upstream;

/// What the room is given.
#[derive(Debug)]
pub struct RelayConfig {
    /// From all shards.
    pub inbox: Inbox<RelayRequest>,
    /// To each shard, by its number.
    pub to_shards: Vec<Post<ToShard>>,
    pub limits: Arc<Limits>,
    /// The start of the process's clock.
    pub started: Instant,
    pub services: RelayServices,
    pub status: Arc<RelayStatus>,
}

/// A request that is over.
struct End {
    key: RelayKey,
    kind: RelayKind,
    certificate: Option<SerialKey>,
    weight_bytes: usize,
    took: Duration,
    outcome: Result<Answered, Refusal>,
}

struct Room {
    inbox: Inbox<RelayRequest>,
    lanes: RelayLanes,
    started: Instant,
    services: Arc<RelayServices>,
    status: Arc<RelayStatus>,
    ends: mpsc::UnboundedSender<End>,
    couriers: Vec<mpsc::UnboundedSender<ToShard>>,
}

/// Passes calls on until all shards are gone.
pub(crate) async fn run(config: RelayConfig) {
    // Neither channel grows beyond the calls that are open: the lanes and the shards bound those.
    let (ends, mut ended) = mpsc::unbounded_channel();
    let couriers = config.to_shards.into_iter().map(|post| {
        let (courier, answers) = mpsc::unbounded_channel();
        tokio::spawn(courier::carry(post, answers, usize::MAX));
        courier
    });
    let mut room = Room {
        inbox: config.inbox,
        lanes: RelayLanes::new(config.limits.relays_in_flight, config.limits.relays_waiting),
        started: config.started,
        services: Arc::new(config.services),
        status: config.status,
        ends,
        couriers: couriers.collect(),
    };
    loop {
        room.settle();
        let wake_at = room.lanes.next_deadline();
        let late = async {
            match wake_at {
                Some(at) => tokio::time::sleep(at.since(room.now())).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            request = poll_fn(|context| room.inbox.poll_take(context)) => match request {
                Some(request) => room.handle_request(request),
                None => return,
            },
            Some(end) = ended.recv() => room.handle_end(end),
            () = late => {}
        }
    }
}

impl Room {
    fn now(&self) -> Moment {
        Moment::on_clock(self.started, Instant::now())
    }

    fn handle_request(&mut self, request: RelayRequest) {
        if let Err(refused) = self.lanes.handle_request(request) {
            let kind = refused.asked.kind();
            self.inbox.release_bytes(refused.weight_bytes());
            self.status.note_refused(kind);
            self.answer(refused.key, Err(Refusal::too_many(kind)));
        }
    }

    fn handle_end(&mut self, end: End) {
        self.lanes.handle_end(end.kind, end.certificate);
        self.inbox.release_bytes(end.weight_bytes);
        self.status.note_end(end.kind, &end.outcome, end.took);
        self.answer(end.key, end.outcome);
    }

    /// Starts what may start, refuses what waited too long.
    fn settle(&mut self) {
        let now = self.now();
        while let Some(late) = self.lanes.poll_late(now) {
            let kind = late.asked.kind();
            self.inbox.release_bytes(late.weight_bytes());
            self.status.note_refused(kind);
            self.answer(late.key, Err(Refusal::unavailable(kind, "had no time for the call; retry")));
        }
        while let Some(request) = self.lanes.poll_start() {
            let left = request.due_at.since(now);
            tokio::spawn(carry_out(Arc::clone(&self.services), request, left, self.ends.clone()));
        }
        for kind in RelayKind::ALL {
            self.status.set_load(kind, self.lanes.load(kind));
        }
    }

    fn answer(&self, key: RelayKey, outcome: Result<Answered, Refusal>) {
        if let Some(courier) = self.couriers.get(usize::from(key.shard.0)) {
            // It ends with its shard, which then has no call that waits.
            let _ = courier.send(ToShard::Relayed(Box::new(RelayAnswer { key, outcome })));
        }
    }
}

/// Carries out one request, and says how it ended.
async fn carry_out(
    services: Arc<RelayServices>,
    request: RelayRequest,
    left: Duration,
    ends: mpsc::UnboundedSender<End>,
) {
    let begun = Instant::now();
    let (key, kind, weight_bytes) = (request.key, request.asked.kind(), request.weight_bytes());
    let certificate = request.asked.certificate();
    // A task of its own: what panics in it is found here.
    let mut work = Abort(tokio::spawn(async move { pass_on(&services, request.asked).await }));
    let outcome = match tokio::time::timeout(left, &mut work.0).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => {
            tracing::error!(service = kind.service(), "a service of the embedder has panicked");
            Err(Refusal::new(RefusalCode::Internal, format!("the {} has failed", kind.service())))
        }
        Err(_) => Err(Refusal::unavailable(kind, "did not answer in time; retry")),
    };
    // The room is gone only with its thread.
    let _ = ends.send(End { key, kind, certificate, weight_bytes, took: begun.elapsed(), outcome });
}

/// Ends a task that nobody waits for any more.
struct Abort(JoinHandle<Result<Answered, Refusal>>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn pass_on(services: &RelayServices, asked: Asked) -> Result<Answered, Refusal> {
    match asked {
        Asked::Join(join) => {
            let service = services.join.as_ref().ok_or_else(|| Refusal::not_configured(RelayKind::Join))?;
            service.join(join).await.map(Answered::Issued)
        }
        Asked::Renew(identity, renew) => {
            let service =
                services.renewal.as_ref().ok_or_else(|| Refusal::not_configured(RelayKind::Renew))?;
            let caller = admit(services, RelayKind::Renew, identity).await?;
            service.renew(caller, renew).await.map(Answered::Issued)
        }
        Asked::FetchSecret(identity, fetch) => {
            let service =
                services.secrets.as_ref().ok_or_else(|| Refusal::not_configured(RelayKind::FetchSecret))?;
            let caller = admit(services, RelayKind::FetchSecret, identity).await?;
            service.fetch_secret(caller, fetch).await.map(Answered::Secret)
        }
    }
}

/// Reads the row of the certificate and asks the core.
async fn admit(services: &RelayServices, kind: RelayKind, identity: Identity) -> Result<Caller, Refusal> {
    let row = services.certificates.look(&identity.certificate_serial).await.map_err(|CertificatesAway| {
        Refusal::new(RefusalCode::Unavailable, "the database can't be asked about the certificate; retry")
    })?;
    standing::admit(kind, identity, row)
}

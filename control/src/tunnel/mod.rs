//! The tunnels: a room of the control thread that opens them, relays them and ends them.
//!
//! Nodes' streams come by mail from the shards, callers through the `TunnelDoor`, which the control API holds.
//! `gateway_core::tunnel` says what may open, when whom to ask, and why something ends; this room carries that
//! out. `tickets` checks signatures, `iam` asks about callers, `caller` is a caller's side of a tunnel.
//!
//! 1. The room looks into no frame but for its kind, and holds none: a frame goes on at once, and the windows
//!    of its tunnel bound what is on its way.
//! 2. What is over is forgotten at once, with all that it held here; what still waits for a caller is the caller's, who has
//!    a `Place` as long.
//! 3. No session and no command depends on this room.
//! 4. No line of the log holds what a tunnel carries, nor a ticket.

mod caller;
mod crypto;
mod iam;
mod status;
mod tickets;
mod wire;

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gateway_core::ids::{NodeId, ShardId};
use gateway_core::limits::TunnelLimits;
use gateway_core::mail::{Inbox, Post, Weigh};
use gateway_core::seam::ToShard;
use gateway_core::time::{Moment, UnixMillis};
use gateway_core::tunnel::registry::{IamQuestion, IamVerdict, OpenWish, TunnelAction, Tunnels};
use gateway_core::tunnel::ticket::{TicketClaims, UsedTickets, judge};
use gateway_core::tunnel::{
    FromTunnels, OpenTunnel, ToTunnels, TunnelClose, TunnelFrame, TunnelId, TunnelKey,
};
use tokio::sync::{mpsc, oneshot};

pub(crate) use self::caller::{CallerInput, CallerOutput, Messages};
pub use self::iam::{IamFuture, TunnelIam, UpstreamIam};
pub use self::status::TunnelStatus;
pub(crate) use self::tickets::Tickets;
pub use self::tickets::{JwksFile, JwksFuture, JwksUrl, TicketKeys};
pub(crate) use self::wire::{Wanted, broken, wanted};
use crate::courier;

/// Messages of the shards that are taken before others have their turn.
const MAIL_PER_TURN: usize = 64;

/// What the room is given.
pub struct TunnelConfig {
    /// From all shards.
    pub inbox: Inbox<ToTunnels>,
    /// To each shard, by its number.
    pub to_shards: Vec<Post<ToShard>>,
    pub limits: Arc<TunnelLimits>,
    /// The start of the process's clock.
    pub started: Instant,
    /// The keys of tickets, and who is asked about callers; without either no tunnel is opened.
    pub keys: Option<Arc<dyn TicketKeys>>,
    pub iam: Option<Arc<dyn TunnelIam>>,
    /// The audience that a ticket must name.
    pub audience: String,
    /// How old keys may be.
    pub keys_max_age: Duration,
    /// How long the keys may take.
    pub keys_timeout: Duration,
    /// How long a caller may take to take something of a tunnel that is over, before the rest is let go of.
    pub taken_within: Duration,
    pub status: Arc<TunnelStatus>,
}

impl std::fmt::Debug for TunnelConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TunnelConfig").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Where callers come in.
#[derive(Clone)]
pub struct TunnelDoor {
    tickets: Option<Arc<Tickets>>,
    asks: mpsc::UnboundedSender<Ask>,
    window_bytes: usize,
    /// How long a caller may take to take something of a tunnel that is over.
    pub(crate) taken_within: Duration,
}

impl std::fmt::Debug for TunnelDoor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TunnelDoor")
    }
}

/// What callers ask of the room. Each caller has a few at most, and their number is the API's to bound.
enum Ask {
    Open(Box<Opening>),
    HalfClosed(TunnelId),
    Left(TunnelId),
    Ended(TunnelId, TunnelClose),
    Close(CloseWish, oneshot::Sender<usize>),
}

struct Opening {
    id: TunnelId,
    wanted: Wanted,
    claims: TicketClaims,
    answer: oneshot::Sender<Result<Joined, TunnelClose>>,
}

/// Which tunnels are to be closed.
#[derive(Debug)]
pub(crate) enum CloseWish {
    One(TunnelId, TunnelClose),
    OfNode(NodeId, TunnelClose),
}

/// A caller's place among those that have a tunnel, or have not yet taken what is left of one.
struct Place {
    id: TunnelId,
    asks: mpsc::UnboundedSender<Ask>,
}

impl Drop for Place {
    fn drop(&mut self) {
        // The room is gone only with its thread; the same below.
        let _ = self.asks.send(Ask::Left(self.id));
    }
}

/// What a caller has of a tunnel that was joined.
struct Joined {
    place: Place,
    stream: TunnelKey,
    courier: mpsc::UnboundedSender<ToShard>,
    frames: mpsc::UnboundedReceiver<FromNode>,
    cut: oneshot::Receiver<TunnelClose>,
    grants: mpsc::UnboundedReceiver<usize>,
}

/// What comes from the node, in its order.
enum FromNode {
    Frame(TunnelFrame),
    Finished,
}

/// A tunnel's way to its caller, and what is left of the caller's for the time when it is joined.
struct Live {
    opening: Option<oneshot::Sender<Result<Joined, TunnelClose>>>,
    frames: mpsc::UnboundedSender<FromNode>,
    cut: Option<oneshot::Sender<TunnelClose>>,
    grants: mpsc::UnboundedSender<usize>,
    receivers: Option<(
        mpsc::UnboundedReceiver<FromNode>,
        oneshot::Receiver<TunnelClose>,
        mpsc::UnboundedReceiver<usize>,
    )>,
}

/// Lets go of a tunnel unless it is told not to: for an open that is given up.
struct Hold {
    id: TunnelId,
    asks: mpsc::UnboundedSender<Ask>,
    is_kept: bool,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = self.asks.send(Ask::Ended(self.id, TunnelClose::CallerGone));
        }
    }
}

impl TunnelDoor {
    /// What may be on its way in one direction of a tunnel.
    pub(crate) fn window_bytes(&self) -> u32 {
        u32::try_from(self.window_bytes).unwrap_or(u32::MAX)
    }

    /// Opens a tunnel; resolves when its node has joined. Dropped before, nothing of it is left.
    pub(crate) async fn open(
        &self,
        wanted: Wanted,
    ) -> Result<(TunnelId, CallerInput, CallerOutput), TunnelClose> {
        let tickets = self.tickets.as_ref().ok_or(TunnelClose::NotOffered)?;
        let claims = tickets.verified(&wanted.ticket.0).await.map_err(TunnelClose::Ticket)?;
        let early_by = claims.early_by(unix_now());
        if !early_by.is_zero() {
            tokio::time::sleep(early_by).await;
        }
        let id = new_id();
        let (answer, answered) = oneshot::channel();
        let mut hold = Hold { id, asks: self.asks.clone(), is_kept: false };
        let opening = Box::new(Opening { id, wanted, claims, answer });
        self.asks.send(Ask::Open(opening)).map_err(|_| TunnelClose::Stopping)?;
        let joined = answered.await.map_err(|_| TunnelClose::Stopping)??;
        hold.is_kept = true;
        let Joined { place, stream, courier, frames, cut, grants } = joined;
        let input =
            CallerInput::new(id, stream, courier.clone(), self.asks.clone(), grants, self.window_bytes);
        let output = CallerOutput::new(place, stream, courier, frames, cut, self.window_bytes);
        Ok((id, input, output))
    }

    /// Closes tunnels; gives how many there were.
    pub(crate) async fn close(&self, wish: CloseWish) -> Result<usize, TunnelClose> {
        let (answer, answered) = oneshot::channel();
        self.asks.send(Ask::Close(wish, answer)).map_err(|_| TunnelClose::Stopping)?;
        answered.await.map_err(|_| TunnelClose::Stopping)
    }
}

/// 128 bits of the system's chance.
fn new_id() -> TunnelId {
    let mut bytes = [0; 16];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)
        .expect("the system gives chance, or no TLS would work");
    TunnelId(bytes)
}

/// The room; see `Room::run`.
pub(crate) struct Room {
    inbox: Inbox<ToTunnels>,
    asks: mpsc::UnboundedReceiver<Ask>,
    verdicts: mpsc::UnboundedReceiver<(TunnelId, IamVerdict)>,
    hands: Hands,
}

/// All of the room but what comes in.
struct Hands {
    tunnels: Tunnels,
    used: UsedTickets,
    live: HashMap<TunnelId, Live>,
    asks: mpsc::UnboundedSender<Ask>,
    couriers: Vec<mpsc::UnboundedSender<ToShard>>,
    verdict: mpsc::UnboundedSender<(TunnelId, IamVerdict)>,
    iam: Option<Arc<dyn TunnelIam>>,
    direct_address: String,
    audience: String,
    iam_timeout: Duration,
    started: Instant,
    status: Arc<TunnelStatus>,
}

impl Room {
    /// The room, and its door. To be called on the runtime that it runs on.
    pub(crate) fn new(config: TunnelConfig) -> (TunnelDoor, Self) {
        let (asks, asked) = mpsc::unbounded_channel();
        let (verdict, verdicts) = mpsc::unbounded_channel();
        let offers = config.limits.most > 0 && config.iam.is_some();
        let tickets = config.keys.filter(|_| offers).map(|keys| {
            Arc::new(Tickets::new(keys, config.keys_max_age, config.keys_timeout, config.started))
        });
        iam::look_at_the_start(config.iam.as_ref().filter(|_| offers));
        let shards = (0..config.to_shards.len()).filter_map(|number| u16::try_from(number).ok()).map(ShardId);
        let tunnels = Tunnels::new(Arc::clone(&config.limits), shards.collect());
        let couriers = config.to_shards.into_iter().map(|post| {
            let (courier, messages) = mpsc::unbounded_channel();
            tokio::spawn(courier::carry(post, messages, courier::MOST_WAITING));
            courier
        });
        let hands = Hands {
            tunnels,
            used: UsedTickets::new(config.limits.used_tickets, unix_now()),
            live: HashMap::new(),
            asks: asks.clone(),
            couriers: couriers.collect(),
            verdict,
            iam: config.iam,
            direct_address: config.limits.direct_address.clone().unwrap_or_default(),
            audience: config.audience,
            iam_timeout: config.limits.iam_timeout,
            started: config.started,
            status: config.status,
        };
        let (window_bytes, taken_within) = (config.limits.window_bytes, config.taken_within);
        let door = TunnelDoor { tickets, asks, window_bytes, taken_within };
        (door, Self { inbox: config.inbox, asks: asked, verdicts, hands })
    }

    /// Serves until all shards are gone.
    pub(crate) async fn run(mut self) {
        loop {
            self.hands.settle();
            let wake_at = self.hands.tunnels.next_deadline();
            let late = async {
                match wake_at {
                    Some(at) => tokio::time::sleep(at.since(self.hands.now())).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                word = poll_fn(|context| self.inbox.poll_take(context)) => match word {
                    Some(word) => self.take_mail(word),
                    None => return,
                },
                Some(ask) = self.asks.recv() => self.hands.handle_ask(ask),
                Some((id, verdict)) = self.verdicts.recv() => {
                    let now = self.hands.now();
                    self.hands.tunnels.handle_verdict(id, verdict, now);
                }
                () = late => {}
            }
            let now = self.hands.now();
            if self.hands.tunnels.next_deadline().is_some_and(|at| at <= now) {
                self.hands.tunnels.handle_time(now);
            }
        }
    }

    fn take_mail(&mut self, first: ToTunnels) {
        let mut next = Some(first);
        let mut bytes = 0;
        for _ in 0..MAIL_PER_TURN {
            let Some(word) = next.take() else { break };
            bytes += word.weight_bytes();
            self.hands.handle_word(word);
            next = self.inbox.take();
        }
        if let Some(word) = next {
            bytes += word.weight_bytes();
            self.hands.handle_word(word);
        }
        self.inbox.release_bytes(bytes);
        self.inbox.announce_space();
    }
}

impl Hands {
    fn now(&self) -> Moment {
        Moment::on_clock(self.started, Instant::now())
    }

    fn handle_word(&mut self, word: ToTunnels) {
        match word {
            ToTunnels::Frame { id, frame } => {
                let is_half_close = frame == TunnelFrame::HalfClose;
                if let Some(live) = self.live.get(&id) {
                    // A caller that is gone is heard of by itself.
                    let _ = live.frames.send(FromNode::Frame(frame));
                }
                if is_half_close {
                    self.tunnels.handle_node_half_closed(id);
                }
            }
            ToTunnels::Grant { id, bytes } => {
                if let Some(live) = self.live.get(&id) {
                    let _ = live.grants.send(bytes);
                }
            }
            ToTunnels::Sought { id, shard, found } => self.tunnels.handle_sought(id, shard, found),
            ToTunnels::Refused { session, refused } => self.tunnels.handle_refused(session, &refused),
            ToTunnels::SessionEnded { session } => self.tunnels.handle_session_ended(session),
            ToTunnels::Hello { stream, node, id, ticket } => {
                self.tunnels.handle_hello(stream, &node, id, &ticket);
            }
            ToTunnels::Ended { stream, id, close } => self.tunnels.handle_node_ended(stream, id, close),
        }
    }

    fn handle_ask(&mut self, ask: Ask) {
        match ask {
            Ask::Open(opening) => self.open(*opening),
            Ask::HalfClosed(id) => self.tunnels.handle_caller_half_closed(id),
            Ask::Left(id) => {
                self.live.remove(&id);
                self.tunnels.handle_caller_left(id);
            }
            Ask::Ended(id, close) => {
                // Who has broken the protocol may be there still, and is told so.
                self.close_caller(id, close.clone());
                self.tunnels.handle_caller_ended(id, close);
            }
            Ask::Close(wish, answer) => {
                let closed = match wish {
                    CloseWish::One(id, close) => usize::from(self.tunnels.handle_close(id, close)),
                    CloseWish::OfNode(node, close) => self.tunnels.handle_close_node(&node, &close),
                };
                let _ = answer.send(closed);
            }
        }
    }

    fn open(&mut self, opening: Opening) {
        let Opening { id, wanted, claims, answer } = opening;
        if let Err(close) = self.try_open(id, wanted, claims) {
            self.status.note_over(&close, false);
            let _ = answer.send(Err(close));
            return;
        }
        let (frames, of_node) = mpsc::unbounded_channel();
        let (cut, is_cut) = oneshot::channel();
        let (grants, granted) = mpsc::unbounded_channel();
        let receivers = Some((of_node, is_cut, granted));
        self.live.insert(id, Live { opening: Some(answer), frames, cut: Some(cut), grants, receivers });
    }

    fn try_open(&mut self, id: TunnelId, wanted: Wanted, claims: TicketClaims) -> Result<(), TunnelClose> {
        let date = unix_now();
        let grant = judge(claims, &self.audience, wanted.node.as_str(), date).map_err(TunnelClose::Ticket)?;
        self.tunnels.admit(&wanted.node)?;
        self.used.handle_use(&grant, date).map_err(TunnelClose::Ticket)?;
        let open = OpenTunnel {
            id,
            ticket: wanted.ticket,
            kind: wanted.kind,
            parameters: wanted.parameters,
            direct_address: self.direct_address.clone(),
        };
        self.tunnels.handle_open(OpenWish { node: wanted.node, grant, open }, self.now())
    }

    /// Carries out what is to be done.
    fn settle(&mut self) {
        while let Some(action) = self.tunnels.poll_action() {
            match action {
                TunnelAction::Seek { id, node } => {
                    for courier in &self.couriers {
                        let _ = courier.send(ToShard::Tunnel(FromTunnels::Seek { id, node: node.clone() }));
                    }
                }
                TunnelAction::Offer { session, open } => {
                    self.tell(session.shard, FromTunnels::Offer { session, open });
                }
                TunnelAction::Join { id, stream } => self.join(id, stream),
                TunnelAction::AskIam(question) => self.ask(*question),
                TunnelAction::CloseStream { stream, close } => {
                    self.tell(stream.shard, FromTunnels::Close { stream, close });
                }
                TunnelAction::CloseCaller { id, close } => self.close_caller(id, close),
                TunnelAction::Over { close, was_joined } => self.status.note_over(&close, was_joined),
            }
        }
        self.status.set_load(self.tunnels.load(), self.tunnels.leaving(), self.used.len());
    }

    fn tell(&self, shard: ShardId, word: FromTunnels) {
        if let Some(courier) = self.couriers.get(usize::from(shard.0)) {
            // It ends with its shard, whose streams have ended then.
            let _ = courier.send(ToShard::Tunnel(word));
        }
    }

    fn join(&mut self, id: TunnelId, stream: TunnelKey) {
        self.tell(stream.shard, FromTunnels::Admit { stream });
        self.status.note_joined();
        let courier = self.couriers.get(usize::from(stream.shard.0)).cloned();
        // Given back with whoever has it, and at once where nobody takes it.
        let place = Place { id, asks: self.asks.clone() };
        if let Some(live) = self.live.get_mut(&id)
            && let (Some(opening), Some((frames, cut, grants)), Some(courier)) =
                (live.opening.take(), live.receivers.take(), courier)
        {
            // A caller that has just gone is heard of by itself.
            let _ = opening.send(Ok(Joined { place, stream, courier, frames, cut, grants }));
        }
    }

    fn close_caller(&mut self, id: TunnelId, close: TunnelClose) {
        let Some(live) = self.live.remove(&id) else { return };
        if let Some(opening) = live.opening {
            let _ = opening.send(Err(close));
        } else if close == TunnelClose::Finished {
            // After all that the node has said.
            let _ = live.frames.send(FromNode::Finished);
        } else if let Some(cut) = live.cut {
            let _ = cut.send(close);
        }
    }

    fn ask(&self, question: IamQuestion) {
        let (verdicts, patience, iam) = (self.verdict.clone(), self.iam_timeout, self.iam.clone());
        let id = question.tunnel;
        tokio::spawn(async move {
            let Some(iam) = iam else { return };
            // A task of its own: what panics in it is found here.
            let asking = tokio::spawn(async move { iam.reauthorize(question).await });
            let abort = asking.abort_handle();
            let verdict = match tokio::time::timeout(patience, asking).await {
                Ok(Ok(verdict)) => verdict,
                Ok(Err(_)) => {
                    tracing::error!("the IAM service of the embedder has panicked");
                    IamVerdict::Away
                }
                Err(_) => IamVerdict::Away,
            };
            abort.abort();
            let _ = verdicts.send((id, verdict));
        });
    }
}

fn unix_now() -> UnixMillis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMillis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;

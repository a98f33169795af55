//! What all tasks of a shard share: its limits, its clock, the slots of its sessions, its stage.
//!
//! It lives on one thread, in an `Rc`; nothing here is seen by another thread but the counters and
//! the admission, which are atomics.
//!
//! 1. A slot's serial is never used twice in a row: mail for a session that is gone finds nobody.
//! 2. `connections` holds every connection from its accept to the end of its last task.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use gateway_core::admission::Admission;
use gateway_core::close::CloseReason;
use gateway_core::crowd::Crowd;
use gateway_core::desk::{Vitals, VitalsAsk};
use gateway_core::drain::DrainOrder;
use gateway_core::ids::{SessionKey, ShardId};
use gateway_core::limits::Limits;
use gateway_core::mail::Post;
use gateway_core::relay::RelayRequest;
use gateway_core::revocation::{Revocation, SerialKey};
use gateway_core::seam::SessionNews;
use gateway_core::splitmix::SplitMix;
use gateway_core::time::Moment;
use gateway_core::tunnel::{OpenTunnel, ToTunnels};
use slab::Slab;

use crate::accept::HandshakeSlots;
use crate::bell::{Bell, Wish};
use crate::breather::Breather;
use crate::counters::ShardCounters;
use crate::executor::{Clock, Queues};
use crate::identity::IdentityRules;
use crate::listener_tls::ListenerTls;
use crate::outbound::Outbound;
use crate::receive_budget::ReceiveBudget;
use crate::relay_io::RelayDesk;
use crate::rest::Rest;
use crate::sleeper::Sleeper;
use crate::timers::Timers;
use crate::tls::TlsMaterial;
use crate::tunnel_desk::TunnelDesk;
use crate::turnstile::Turnstile;

/// What a shard does about new streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The gateway holds no lease: sessions are refused.
    Closed,
    Serving,
    /// New sessions are refused, those that are there are served.
    Draining(DrainOrder),
    Stopping,
}

pub(crate) struct Shard {
    pub(crate) id: ShardId,
    pub(crate) clock: Clock,
    pub(crate) limits: Arc<Limits>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) listener_tls: ListenerTls,
    pub(crate) http2: h2::server::Builder,
    pub(crate) identity: Arc<IdentityRules>,
    pub(crate) counters: Arc<ShardCounters>,
    pub(crate) outbound: Outbound,
    pub(crate) timers: Rc<Timers>,
    pub(crate) receive_budget: Rc<ReceiveBudget>,
    pub(crate) handshakes: Rc<HandshakeSlots>,
    pub(crate) turnstile: Turnstile,
    pub(crate) crowd: RefCell<Crowd>,
    pub(crate) queues: Queues,
    pub(crate) stage: Cell<Stage>,
    pub(crate) breather: Breather,
    /// Of its own, so that who waits for it keeps nothing else of the shard alive.
    pub(crate) rest: Rc<Rest>,
    pub(crate) watchers: RefCell<Slab<Arc<Bell>>>,
    pub(crate) relays: Rc<RelayDesk>,
    pub(crate) tunnels: Rc<TunnelDesk>,
    slots: RefCell<Slab<Rc<Mailslot>>>,
    next_serial: Cell<u32>,
    connections: RefCell<Slab<Arc<Bell>>>,
    connections_waiter: Sleeper,
    random: Cell<SplitMix>,
}

/// What the mailbox's task leaves for a session's connection to take.
#[derive(Debug)]
pub(crate) enum Mail {
    News(SessionNews),
    Drain(DrainOrder),
    Cut(DrainOrder),
    Revoked(Box<Revocation>),
    Offer(Box<OpenTunnel>),
    End(CloseReason),
}

#[derive(Debug)]
pub(crate) struct Mailslot {
    key: SessionKey,
    /// The serial of its certificate.
    certificate: SerialKey,
    /// When its node was heard to be alive.
    heartbeat: Cell<Option<Moment>>,
    bell: Arc<Bell>,
    mail: RefCell<VecDeque<Mail>>,
}

/// A session's slot, as long as the session lasts.
pub(crate) struct SlotLease {
    shard: Rc<Shard>,
    slot: Rc<Mailslot>,
}

/// A connection's entry, as long as the connection lasts.
pub(crate) struct ConnectionLease {
    shard: Rc<Shard>,
    index: usize,
    bell: Arc<Bell>,
}

/// All that `Shard::new` needs, beside what the configuration gave.
pub(crate) struct Parts {
    pub(crate) id: ShardId,
    pub(crate) clock: Clock,
    pub(crate) limits: Arc<Limits>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) tls: Arc<TlsMaterial>,
    pub(crate) websocket: bool,
    pub(crate) identity: Arc<IdentityRules>,
    pub(crate) counters: Arc<ShardCounters>,
    pub(crate) outbound: Outbound,
    pub(crate) relays: Post<RelayRequest>,
    pub(crate) tunnels: Post<ToTunnels>,
    pub(crate) queues: Queues,
    pub(crate) rest: Rc<Rest>,
}

impl Shard {
    pub(crate) fn new(parts: Parts) -> Rc<Self> {
        let limits = parts.limits;
        Rc::new(Self {
            id: parts.id,
            clock: parts.clock,
            admission: parts.admission,
            listener_tls: ListenerTls::new(parts.tls, parts.websocket),
            http2: crate::connection::http2(&limits),
            identity: parts.identity,
            counters: parts.counters,
            outbound: parts.outbound,
            timers: Rc::default(),
            receive_budget: ReceiveBudget::new(limits.receive_bytes_per_shard),
            handshakes: HandshakeSlots::new(limits.handshakes_at_once),
            turnstile: Turnstile::default(),
            crowd: RefCell::new(Crowd::new(limits.connections_per_certificate)),
            queues: parts.queues,
            stage: Cell::new(Stage::Closed),
            breather: Breather::default(),
            rest: parts.rest,
            watchers: RefCell::default(),
            relays: RelayDesk::new(parts.id, parts.relays),
            tunnels: TunnelDesk::new(parts.id, parts.tunnels, &limits.tunnels),
            slots: RefCell::default(),
            next_serial: Cell::new(0),
            connections: RefCell::default(),
            connections_waiter: Sleeper::default(),
            random: Cell::new(SplitMix::new(std::hash::RandomState::new().build_hasher().finish())),
            limits,
        })
    }

    /// The next of a row of numbers that nobody can foresee well, seeded by the system.
    pub(crate) fn random(&self) -> u64 {
        let mut row = self.random.get();
        let number = row.next();
        self.random.set(row);
        number
    }

    /// Takes a slot for a new session of the connection that `bell` wakes, under this certificate.
    pub(crate) fn lease_slot(self: &Rc<Self>, bell: &Arc<Bell>, certificate: SerialKey) -> SlotLease {
        let serial = self.next_serial.get();
        self.next_serial.set(serial.wrapping_add(1));
        let mut slots = self.slots.borrow_mut();
        let entry = slots.vacant_entry();
        let slot = u32::try_from(entry.key()).expect("fewer sessions than descriptors, and those fit an i32");
        let key = SessionKey { shard: self.id, slot, serial };
        let mailslot = Rc::new(Mailslot {
            key,
            certificate,
            heartbeat: Cell::default(),
            bell: Arc::clone(bell),
            mail: RefCell::default(),
        });
        entry.insert(Rc::clone(&mailslot));
        SlotLease { shard: Rc::clone(self), slot: mailslot }
    }

    /// Leaves mail for a session; dropped where the session is gone.
    pub(crate) fn deliver(&self, key: SessionKey, mail: Mail) {
        if let Some(slot) = self.slots.borrow().get(key.slot as usize)
            && slot.key == key
        {
            slot.mail.borrow_mut().push_back(mail);
            slot.bell.ring();
        }
    }

    /// Tells the control API when these sessions had their last heartbeats.
    pub(crate) fn answer_vitals(&self, ask: VitalsAsk) {
        let slots = self.slots.borrow();
        let heard = ask.keys.iter().filter_map(|key| {
            let slot = slots.get(key.slot as usize).filter(|slot| slot.key == *key)?;
            Some((*key, slot.heartbeat.get()?))
        });
        // Who asked may have gone.
        let _ = ask.answer.post(Vitals(heard.collect()));
        ask.answer.ring();
    }

    /// All sessions, each with the serial of its certificate.
    pub(crate) fn sessions(&self) -> Vec<(SessionKey, SerialKey)> {
        self.slots.borrow().iter().map(|(_, slot)| (slot.key, slot.certificate)).collect()
    }

    pub(crate) fn lease_connection(self: &Rc<Self>) -> ConnectionLease {
        let bell = Arc::<Bell>::default();
        let index = self.connections.borrow_mut().insert(Arc::clone(&bell));
        self.counters.connections.one_more();
        ConnectionLease { shard: Rc::clone(self), index, bell }
    }

    /// A connection's turn is over, or the connection.
    pub(crate) fn end_turn(&self, bell: &Arc<Bell>, outcome: Poll<()>) -> Poll<()> {
        self.outbound.ring();
        self.tunnels.ring();
        self.rest.handle_turn();
        bell.end_turn();
        if outcome.is_pending() && bell.is_over_budget() {
            self.breather.ring_after_io(bell);
        }
        outcome
    }

    /// Asks something of every connection.
    pub(crate) fn ask_connections(&self, wish: Wish) {
        let bells: Vec<_> = self.connections.borrow().iter().map(|(_, bell)| Arc::clone(bell)).collect();
        for bell in bells {
            bell.ask(wish);
        }
    }

    /// Resolves when no connection is left.
    pub(crate) async fn connections_gone(&self) {
        self.connections_waiter.until(|| self.connections.borrow().is_empty()).await;
    }

    pub(crate) fn set_stage(&self, stage: Stage) {
        // Stopping is final.
        if self.stage.get() != Stage::Stopping && self.stage.replace(stage) != stage {
            let bells: Vec<_> = self.watchers.borrow().iter().map(|(_, bell)| Arc::clone(bell)).collect();
            for bell in bells {
                bell.ring();
            }
        }
    }

    pub(crate) fn is_serving(&self) -> bool {
        self.stage.get() == Stage::Serving
    }
}

impl SlotLease {
    pub(crate) fn key(&self) -> SessionKey {
        self.slot.key
    }

    pub(crate) fn note_heartbeat(&self, now: Moment) {
        self.slot.heartbeat.set(Some(now));
    }

    pub(crate) fn take_mail(&self) -> Option<Mail> {
        let mut mail = self.slot.mail.borrow_mut();
        let next = mail.pop_front();
        if mail.is_empty() && mail.capacity() > 4 {
            *mail = VecDeque::new();
        }
        next
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        self.shard.slots.borrow_mut().try_remove(self.slot.key.slot as usize);
    }
}

impl ConnectionLease {
    pub(crate) fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }
}

impl Drop for ConnectionLease {
    fn drop(&mut self) {
        self.bell.forget_task();
        let mut connections = self.shard.connections.borrow_mut();
        connections.try_remove(self.index);
        self.shard.counters.connections.one_less();
        if connections.is_empty() {
            self.shard.connections_waiter.wake();
        }
    }
}

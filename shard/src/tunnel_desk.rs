//! A shard's side of the tunnels' room: the way to it, which sessions take tunnels, and the streams of nodes.
//!
//! It brings messages from one thread to the other and finds whom they are for. What a tunnel may do is
//! decided by `gateway_core::tunnel`.
//!
//! 1. Messages leave in the order in which they were sent. What finds the room's box full waits here, and
//!    `accepts` turns false: streams then read nothing more, so at most what one turn had begun waits.
//! 2. A session stands here from its `Welcome` to its end; one that was offered a tunnel owes `SessionEnded`.
//! 3. Of a certificate there are at most as many streams as its crowd may be, so that no node takes the places of others.
//! 4. A slot's serial is never used twice in a row: mail for a stream that is gone finds nobody.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;

use gateway_core::close::{AdmissionBound, CloseReason};
use gateway_core::crowd::Crowd;
use gateway_core::ids::{NodeId, SessionEpoch, SessionKey, ShardId};
use gateway_core::limits::TunnelLimits;
use gateway_core::mail::Post;
use gateway_core::revocation::SerialKey;
use gateway_core::tunnel::{
    FromTunnels, MAX_UNJOINED_STREAMS, ToTunnels, TunnelClose, TunnelFrame, TunnelKey,
};
use slab::Slab;

use crate::backlog::Backlog;
use crate::bell::Bell;
use crate::relay_io::RETRY_RELAY;
use crate::shard::{Mail, Shard};

#[derive(Debug)]
pub(crate) struct TunnelDesk {
    shard: ShardId,
    backlog: Backlog<ToTunnels>,
    /// Streams that wait until the room takes more.
    waiting: RefCell<Vec<Arc<Bell>>>,
    by_node: RefCell<BTreeMap<NodeId, (SessionEpoch, SessionKey)>>,
    /// Whether each was offered a tunnel.
    sessions: RefCell<BTreeMap<SessionKey, bool>>,
    slots: RefCell<Slab<Rc<TunnelSlot>>>,
    crowd: RefCell<Crowd>,
    next_serial: Cell<u32>,
    most_streams: usize,
}

/// What the mailbox's task leaves for a stream.
#[derive(Debug)]
pub(crate) enum TunnelMail {
    Admit,
    Frame(TunnelFrame),
    Grant(usize),
    Close(TunnelClose),
}

#[derive(Debug)]
struct TunnelSlot {
    key: TunnelKey,
    certificate: SerialKey,
    bell: Arc<Bell>,
    mail: RefCell<VecDeque<TunnelMail>>,
}

/// A stream's slot, as long as the stream lasts.
pub(crate) struct TunnelLease {
    desk: Rc<TunnelDesk>,
    slot: Rc<TunnelSlot>,
}

/// A session's place among those that take tunnels.
pub(crate) struct SessionPlace {
    desk: Rc<TunnelDesk>,
    node: NodeId,
    key: SessionKey,
}

impl TunnelDesk {
    pub(crate) fn new(shard: ShardId, post: Post<ToTunnels>, limits: &TunnelLimits) -> Rc<Self> {
        Rc::new(Self {
            shard,
            backlog: Backlog::new(post),
            waiting: RefCell::default(),
            by_node: RefCell::default(),
            sessions: RefCell::default(),
            slots: RefCell::default(),
            // As many again may be on their way out.
            crowd: RefCell::new(Crowd::new(u32::try_from(2 * limits.per_node).unwrap_or(u32::MAX))),
            next_serial: Cell::new(0),
            most_streams: limits.most + MAX_UNJOINED_STREAMS,
        })
    }

    // -- to the room -----------------------------------------------------------------------------

    /// Whether streams may give out what they have.
    pub(crate) fn accepts(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Sends a message. The room learns of it at the next `ring`. Where its thread is gone, the process ends.
    pub(crate) fn send(&self, message: ToTunnels) {
        self.backlog.send(message);
    }

    /// Tells the room of all that was posted since the last time.
    pub(crate) fn ring(&self) {
        self.backlog.ring();
    }

    /// The bell rings when there is room again.
    pub(crate) fn wait_for_room(&self, bell: &Arc<Bell>) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|known| Arc::ptr_eq(known, bell)) {
            waiting.push(Arc::clone(bell));
        }
    }

    /// Posts what waits, whenever there is room, for ever.
    pub(crate) async fn run(&self) {
        loop {
            poll_fn(|context| self.backlog.poll_empty(context)).await;
            for bell in self.waiting.take() {
                bell.ring();
            }
            self.backlog.until_used().await;
        }
    }

    // -- from the room ---------------------------------------------------------------------------

    /// Brings a message to whom it is for.
    pub(crate) fn deliver(&self, shard: &Shard, word: FromTunnels) {
        match word {
            FromTunnels::Seek { id, node } => {
                let found = self.by_node.borrow().get(&node).copied();
                self.send(ToTunnels::Sought { id, shard: self.shard, found });
            }
            FromTunnels::Offer { session, open } => match self.sessions.borrow_mut().get_mut(&session) {
                Some(was_offered) => {
                    *was_offered = true;
                    shard.deliver(session, Mail::Offer(open));
                }
                None => self.send(ToTunnels::SessionEnded { session }),
            },
            FromTunnels::Admit { stream } => self.leave(stream, TunnelMail::Admit),
            FromTunnels::Frame { stream, frame } => self.leave(stream, TunnelMail::Frame(frame)),
            FromTunnels::Grant { stream, bytes } => self.leave(stream, TunnelMail::Grant(bytes)),
            FromTunnels::Close { stream, close } => self.leave(stream, TunnelMail::Close(close)),
        }
        self.ring();
    }

    /// Ends the streams of these certificates.
    pub(crate) fn revoke(&self, serials: &HashSet<SerialKey>) {
        for (_, slot) in self.slots.borrow().iter() {
            if serials.contains(&slot.certificate) {
                slot.mail.borrow_mut().push_back(TunnelMail::Close(TunnelClose::Revoked));
                slot.bell.ring();
            }
        }
    }

    fn leave(&self, stream: TunnelKey, mail: TunnelMail) {
        if let Some(slot) = self.slots.borrow().get(stream.slot as usize)
            && slot.key == stream
        {
            slot.mail.borrow_mut().push_back(mail);
            slot.bell.ring();
        }
    }

    // -- places ----------------------------------------------------------------------------------

    /// A session that takes tunnels is welcomed.
    pub(crate) fn enter(
        self: &Rc<Self>,
        node: &NodeId,
        epoch: SessionEpoch,
        key: SessionKey,
    ) -> SessionPlace {
        self.sessions.borrow_mut().insert(key, false);
        let mut by_node = self.by_node.borrow_mut();
        // The older of two is about to be superseded.
        if by_node.get(node).is_none_or(|(known, _)| *known <= epoch) {
            by_node.insert(node.clone(), (epoch, key));
        }
        SessionPlace { desk: Rc::clone(self), node: node.clone(), key }
    }

    /// A slot for a stream of the connection that `bell` wakes.
    pub(crate) fn lease(
        self: &Rc<Self>,
        bell: &Arc<Bell>,
        certificate: SerialKey,
    ) -> Result<TunnelLease, CloseReason> {
        let mut slots = self.slots.borrow_mut();
        if slots.len() >= self.most_streams || !self.crowd.borrow_mut().handle_arrival(certificate) {
            return Err(CloseReason::Refused { bound: AdmissionBound::Tunnels, retry_after: RETRY_RELAY });
        }
        let serial = self.next_serial.get();
        self.next_serial.set(serial.wrapping_add(1));
        let entry = slots.vacant_entry();
        let slot = u32::try_from(entry.key()).expect("there are few slots");
        let key = TunnelKey { shard: self.shard, slot, serial };
        let slot = Rc::new(TunnelSlot { key, certificate, bell: Arc::clone(bell), mail: RefCell::default() });
        entry.insert(Rc::clone(&slot));
        Ok(TunnelLease { desk: Rc::clone(self), slot })
    }
}

impl TunnelLease {
    pub(crate) fn key(&self) -> TunnelKey {
        self.slot.key
    }

    pub(crate) fn take_mail(&self) -> Option<TunnelMail> {
        self.slot.mail.borrow_mut().pop_front()
    }
}

impl Drop for TunnelLease {
    fn drop(&mut self) {
        self.desk.slots.borrow_mut().try_remove(self.slot.key.slot as usize);
        self.desk.crowd.borrow_mut().handle_departure(self.slot.certificate);
    }
}

impl Drop for SessionPlace {
    fn drop(&mut self) {
        let mut by_node = self.desk.by_node.borrow_mut();
        if by_node.get(&self.node).is_some_and(|(_, key)| *key == self.key) {
            by_node.remove(&self.node);
        }
        if self.desk.sessions.borrow_mut().remove(&self.key) == Some(true) {
            self.desk.send(ToTunnels::SessionEnded { session: self.key });
            self.desk.ring();
        }
    }
}

//! A call that is passed on: Join, Renew, FetchSecret. One message in, one answer of a service out.
//!
//! It carries: the request to the relays' mailbox, their answer to the node. Who may have what passed on,
//! and what a service's status means, is decided by `gateway_core::relay`.
//!
//! 1. A shard never waits: the answer comes as mail (`ToShard::Relayed`), to the slot of its call.
//! 2. How many are open, and how many of one peer, `relay::places` decides; a request must come within `hello_timeout`, its answer within
//!    `relay_timeout` and a moment, even if the relays' thread stands still.
//! 3. An answer must be read within `send_timeout`, however busily its peer reads.
//! 4. A node that goes away takes nothing back: what a service has begun for it goes on to its end.
//! 5. What is asked and answered is on no log line.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use gateway_core::close::CloseReason;
use gateway_core::ids::ShardId;
use gateway_core::mail::{Post, PostError};
use gateway_core::relay::places::RelayPlaces;
use gateway_core::relay::{
    Answered, Asked, MAX_REQUEST_BYTES, Refusal, RelayAnswer, RelayKey, RelayKind, RelayRequest,
};
use gateway_core::revocation::SerialKey;
use gateway_core::time::Moment;
use slab::Slab;

use crate::bell::Bell;
use crate::outbox::{Flush, Outbox};
use crate::receive::{FrameReader, ReadEnd};
use crate::relay_wire::{self, Asking};
use crate::shard::{Shard, Stage};
use crate::status::CallStatus;
use crate::stream::{Afterwards, Stream};
use crate::transport::Exchange;

/// How much later than its deadline an answer may still come: the relays keep the deadline themselves.
const GRACE: Duration = Duration::from_secs(1);
/// What a call that finds no place is told to wait.
pub(crate) const RETRY_RELAY: Duration = Duration::from_secs(1);

/// A shard's side of the relays: the way to them, and the calls that wait for their answers.
#[derive(Debug)]
pub(crate) struct RelayDesk {
    shard: ShardId,
    post: Post<RelayRequest>,
    slots: RefCell<Slab<Rc<Slot>>>,
    places: RefCell<RelayPlaces>,
    next_serial: Cell<u32>,
}

#[derive(Debug)]
struct Slot {
    key: RelayKey,
    bell: Arc<Bell>,
    outcome: RefCell<Option<Result<Answered, Refusal>>>,
}

/// A call's slot and its place, as long as the call lasts.
struct SlotLease {
    desk: Rc<RelayDesk>,
    certificate: Option<SerialKey>,
    slot: Rc<Slot>,
}

impl RelayDesk {
    pub(crate) fn new(shard: ShardId, post: Post<RelayRequest>) -> Rc<Self> {
        Rc::new(Self {
            shard,
            post,
            slots: RefCell::default(),
            places: RefCell::default(),
            next_serial: Cell::new(0),
        })
    }

    /// Leaves the answer for its call; dropped where the call is gone.
    pub(crate) fn deliver(&self, answer: RelayAnswer) {
        if let Some(slot) = self.slots.borrow().get(answer.key.slot as usize)
            && slot.key == answer.key
        {
            slot.outcome.replace(Some(answer.outcome));
            slot.bell.ring();
        }
    }

    fn lease(
        self: &Rc<Self>,
        bell: &Arc<Bell>,
        certificate: Option<SerialKey>,
    ) -> Result<SlotLease, CloseReason> {
        self.places.borrow_mut().handle_open(certificate)?;
        let mut slots = self.slots.borrow_mut();
        let serial = self.next_serial.get();
        self.next_serial.set(serial.wrapping_add(1));
        let entry = slots.vacant_entry();
        let slot = u32::try_from(entry.key()).expect("there are few slots");
        let key = RelayKey { shard: self.shard, slot, serial };
        let slot = Rc::new(Slot { key, bell: Arc::clone(bell), outcome: RefCell::default() });
        entry.insert(Rc::clone(&slot));
        Ok(SlotLease { desk: Rc::clone(self), certificate, slot })
    }

    fn ask(&self, request: RelayRequest) -> Result<(), Refusal> {
        let kind = request.asked.kind();
        self.post.post(request).map_err(|error| match error {
            PostError::Full(_) => Refusal::too_many(kind),
            PostError::Gone(_) => Refusal::unavailable(kind, "can't be asked; reconnect"),
        })?;
        self.post.ring();
        Ok(())
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        self.desk.slots.borrow_mut().try_remove(self.slot.key.slot as usize);
        self.desk.places.borrow_mut().handle_end(self.certificate);
    }
}

enum State {
    Receiving {
        due_at: Moment,
    },
    Waiting {
        due_at: Moment,
    },
    /// What is to be said was said; then this, when it was read.
    Ending(CallStatus),
}

pub(crate) struct RelayIo {
    shard: Rc<Shard>,
    asking: Asking,
    lease: SlotLease,
    reader: FrameReader,
    outbox: Outbox,
    state: State,
}

impl RelayIo {
    pub(crate) fn open(
        shard: &Rc<Shard>,
        bell: &Arc<Bell>,
        asking: Asking,
        exchange: Exchange<'_>,
    ) -> Result<Option<Stream>, CloseReason> {
        let refuse = |reason| {
            shard.counters.count_refusal(&reason);
            reason
        };
        may_open(shard, asking.kind()).map_err(refuse)?;
        let lease = shard.relays.lease(bell, asking.certificate()).map_err(refuse)?;
        let Some((source, outlet)) = exchange.accept() else { return Ok(None) };
        shard.counters.relays.one_more();
        shard.rest.note_activity();
        Ok(Some(Stream::Relay(Box::new(Self {
            asking,
            lease,
            reader: FrameReader::new(source, MAX_REQUEST_BYTES, shard, bell),
            outbox: Outbox::new(outlet, bell),
            state: State::Receiving { due_at: shard.clock.now() + shard.limits.hello_timeout },
            shard: Rc::clone(shard),
        }))))
    }

    /// Carries what there is to carry. `Ready` when the call is over.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, now: Moment) -> Poll<Afterwards> {
        if self.shard.stage.get() == Stage::Stopping && !matches!(self.state, State::Ending(_)) {
            self.state = self.ending(CallStatus::from(&CloseReason::Stopping), now);
        }
        if let State::Receiving { due_at } = self.state {
            self.receive(context, due_at, now);
        }
        if let State::Waiting { due_at } = self.state {
            self.wait(due_at, now);
        }
        match self.outbox.poll_flush(context, now) {
            Flush::PeerGone => Poll::Ready(Afterwards::Serve),
            Flush::Stalled => {
                if self.unread_deadline().is_none_or(|deadline| deadline > now) {
                    return Poll::Pending;
                }
                self.outbox.clear();
                self.outbox.end(&CallStatus::from(&CloseReason::SlowPeer));
                Poll::Ready(Afterwards::Close)
            }
            Flush::Empty => match &self.state {
                State::Ending(status) => {
                    self.outbox.end(status);
                    Poll::Ready(Afterwards::Serve)
                }
                _ => Poll::Pending,
            },
        }
    }

    /// When `poll` must be called, though nothing rang.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        match self.state {
            State::Receiving { due_at } => self.reader.deadline().into_iter().chain([due_at]).min(),
            State::Waiting { due_at } => Some(due_at + GRACE),
            State::Ending(_) => self.unread_deadline(),
        }
    }

    /// Ends the call after a panic.
    pub(crate) fn fail(mut self: Box<Self>, reason: &CloseReason) {
        self.outbox.clear();
        self.outbox.end(&CallStatus::from(reason));
    }

    /// When what is not read yet is dropped.
    fn unread_deadline(&self) -> Option<Moment> {
        self.outbox.deadline(self.shard.limits.send_timeout)
    }

    fn ending(&mut self, status: CallStatus, now: Moment) -> State {
        self.outbox.begin_farewell(now + self.shard.limits.send_timeout);
        State::Ending(status)
    }

    fn receive(&mut self, context: &mut Context<'_>, due_at: Moment, now: Moment) {
        let broken = |why: &str| Err(CloseReason::Protocol(why.to_owned()));
        let asked = match self.reader.poll_frame(context, now) {
            Poll::Pending if now < due_at => return,
            Poll::Pending => broken("the request did not come in time"),
            Poll::Ready(Ok(message)) => self.asking.decode(message),
            Poll::Ready(Err(ReadEnd::Broken(reason))) => Err(reason),
            Poll::Ready(Err(ReadEnd::HalfClosed | ReadEnd::PeerGone)) => {
                broken("the call ended without a request")
            }
        };
        self.state = match asked.and_then(|asked| self.admit(asked, now)) {
            Ok(asked) => self.pass_on(asked, now),
            Err(reason) => self.ending(CallStatus::from(&reason), now),
        };
    }

    /// A join takes its token here, when all of it has come: half a request costs nobody one.
    fn admit(&self, asked: Asked, now: Moment) -> Result<Asked, CloseReason> {
        if asked.kind() == RelayKind::Join
            && let Err(reason) = self.shard.admission.handle_join(self.shard.random(), now)
        {
            self.shard.counters.count_refusal(&reason);
            return Err(reason);
        }
        Ok(asked)
    }

    fn pass_on(&mut self, asked: Asked, now: Moment) -> State {
        let due_at = now + self.shard.limits.relay_timeout;
        match self.shard.relays.ask(RelayRequest { key: self.lease.slot.key, asked, due_at }) {
            Ok(()) => State::Waiting { due_at },
            Err(refusal) => self.ending(CallStatus::from(&refusal), now),
        }
    }

    fn wait(&mut self, due_at: Moment, now: Moment) {
        let kind = self.asking.kind();
        let outcome = match self.lease.slot.outcome.take() {
            None if now < due_at + GRACE => return,
            None => Err(Refusal::unavailable(kind, "did not answer in time; retry")),
            Some(outcome) => outcome,
        };
        let status = match outcome {
            Ok(answered) => {
                self.outbox.push(relay_wire::encode(kind, answered));
                CallStatus::ok()
            }
            Err(refusal) => CallStatus::from(&refusal),
        };
        self.state = self.ending(status, now);
    }
}

/// Whether calls of this kind are passed on now.
fn may_open(shard: &Shard, kind: RelayKind) -> Result<(), CloseReason> {
    match shard.stage.get() {
        Stage::Serving => Ok(()),
        Stage::Closed => Err(CloseReason::Fenced),
        // Who has a session here may need its secrets to the end; who comes anew is sent elsewhere.
        Stage::Draining(order) if kind == RelayKind::Join => Err(order.refusal(shard.random())),
        Stage::Draining(_) => Ok(()),
        Stage::Stopping => Err(CloseReason::Stopping),
    }
}

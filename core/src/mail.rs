//! The hand-off between threads: a queue bounded in messages and in bytes, and two bells.
//!
//! A poster posts without ever waiting, and rings once for all that it posted; the receiver drains
//! until empty, then waits for the bell. A poster that found the box full registers for space, and
//! the receiver announces space once a drain. It works between executors of different kinds, since
//! all it asks of either side is a `Waker`.
//!
//! 1. `post` never blocks; a full box gives the message back.
//! 2. A message posted before a `ring` is seen by the drain that follows it: the receiver
//!    registers its waker before it looks the last time. The same holds for space.
//! 3. The bytes of a message count from `post` until the receiver releases them, which may be long
//!    after it took the message: what the receiver still works on is bounded too.
//! 4. Who leaves takes its waker along.
//! 5. A message heavier than the byte bound passes when it is alone, so nothing is stuck for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;
use crossbeam_channel::{Receiver, Sender, TryRecvError, TrySendError};

/// How many bytes a message keeps in memory, beside its own fixed size.
pub trait Weigh {
    /// The bytes that count against the bound.
    fn weight_bytes(&self) -> usize;
}

#[derive(Debug)]
struct Shared {
    bell: AtomicWaker,
    held_bytes: AtomicUsize,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct Vacancy {
    wanted: AtomicBool,
    waker: AtomicWaker,
}

/// A box for at most `capacity` messages of together at most `max_bytes`, with one `Post` for each
/// of `posters` threads.
pub fn mailbox<T: Weigh>(capacity: usize, max_bytes: usize, posters: usize) -> (Vec<Post<T>>, Inbox<T>) {
    let (sender, receiver) = crossbeam_channel::bounded(capacity);
    let shared = Arc::new(Shared { bell: AtomicWaker::new(), held_bytes: AtomicUsize::new(0), max_bytes });
    let vacancies: Vec<Arc<Vacancy>> = (0..posters).map(|_| Arc::default()).collect();
    let posts = vacancies
        .iter()
        .map(|vacancy| Post {
            sender: sender.clone(),
            shared: Arc::clone(&shared),
            vacancy: Arc::clone(vacancy),
            _farewell: Farewell { shared: Arc::clone(&shared), vacancy: Arc::clone(vacancy) },
        })
        .collect();
    (posts, Inbox { receiver, shared, vacancies })
}

/// One poster's side.
#[derive(Debug)]
pub struct Post<T> {
    sender: Sender<T>,
    shared: Arc<Shared>,
    vacancy: Arc<Vacancy>,
    // Dropped after `sender`: a waiting receiver then learns that a poster left.
    _farewell: Farewell,
}

#[derive(Debug)]
struct Farewell {
    shared: Arc<Shared>,
    vacancy: Arc<Vacancy>,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        // Who leaves takes its waker along, on its own thread: a task of an executor that has ended is not to be
        // woken, or let go of, by another.
        drop(self.vacancy.waker.take());
        self.shared.bell.wake();
    }
}

/// Why a message was not taken; it comes back with the reason.
#[derive(Debug, PartialEq, Eq)]
pub enum PostError<T> {
    Full(T),
    /// The receiver is gone, so its thread has ended.
    Gone(T),
}

impl<T: Weigh> Post<T> {
    /// Puts a message into the box. The receiver is not woken: `ring` does that.
    pub fn post(&self, message: T) -> Result<(), PostError<T>> {
        let bytes = message.weight_bytes();
        let reserved = self.shared.held_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| {
            (held == 0 || held.saturating_add(bytes) <= self.shared.max_bytes)
                .then(|| held.saturating_add(bytes))
        });
        if bytes > 0 && reserved.is_err() {
            return Err(PostError::Full(message));
        }
        self.sender.try_send(message).map_err(|error| {
            if reserved.is_ok() {
                self.shared.held_bytes.fetch_sub(bytes, Ordering::AcqRel);
            }
            match error {
                TrySendError::Full(message) => PostError::Full(message),
                TrySendError::Disconnected(message) => PostError::Gone(message),
            }
        })
    }

    /// Wakes the receiver; once for everything posted before.
    pub fn ring(&self) {
        self.shared.bell.wake();
    }

    /// Resolves at the receiver's next announcement of space. To be polled after a `post` came
    /// back `Full`; the caller then posts again once before it waits (`register` first, look last).
    pub fn register_for_space(&self, context: &Context<'_>) {
        self.vacancy.waker.register(context.waker());
        self.vacancy.wanted.store(true, Ordering::SeqCst);
        // Each side says what it did before it looks at what the other did: one of them sees the other.
        fence(Ordering::SeqCst);
    }

    /// Whether the receiver has announced space since `register_for_space`.
    pub fn space_was_announced(&self) -> bool {
        !self.vacancy.wanted.load(Ordering::Acquire)
    }

    /// How many messages wait in the box.
    pub fn len(&self) -> usize {
        self.sender.len()
    }

    /// Whether no message waits in the box.
    pub fn is_empty(&self) -> bool {
        self.sender.is_empty()
    }
}

/// The receiving side.
#[derive(Debug)]
pub struct Inbox<T> {
    receiver: Receiver<T>,
    shared: Arc<Shared>,
    vacancies: Vec<Arc<Vacancy>>,
}

impl<T> Inbox<T> {
    /// The task that polled it does not wait any more. To be called on its thread, where the box outlives it.
    pub fn forget_waker(&self) {
        drop(self.shared.bell.take());
    }
}

impl<T> Drop for Inbox<T> {
    fn drop(&mut self) {
        self.forget_waker();
    }
}

impl<T: Weigh> Inbox<T> {
    /// The next message; `Ready(None)` when every poster is gone and the box is empty.
    /// Only one task may poll an inbox.
    pub fn poll_take(&self, context: &mut Context<'_>) -> Poll<Option<T>> {
        for last_look in [false, true] {
            match self.receiver.try_recv() {
                Ok(message) => return Poll::Ready(Some(message)),
                Err(TryRecvError::Disconnected) => return Poll::Ready(None),
                Err(TryRecvError::Empty) if last_look => {}
                Err(TryRecvError::Empty) => self.shared.bell.register(context.waker()),
            }
        }
        Poll::Pending
    }

    /// The next message, if one is there.
    pub fn take(&self) -> Option<T> {
        self.receiver.try_recv().ok()
    }

    /// Gives back the bytes of messages that are done with.
    pub fn release_bytes(&self, bytes: usize) {
        self.shared.held_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Wakes the posters that wait for space; once a drain or a release.
    pub fn announce_space(&self) {
        fence(Ordering::SeqCst);
        for vacancy in &self.vacancies {
            if vacancy.wanted.swap(false, Ordering::AcqRel) {
                vacancy.waker.wake();
            }
        }
    }

    /// How many messages wait in the box.
    pub fn len(&self) -> usize {
        self.receiver.len()
    }

    /// Whether no message waits in the box.
    pub fn is_empty(&self) -> bool {
        self.receiver.is_empty()
    }

    /// The bytes that posted and not yet released messages hold.
    pub fn held_bytes(&self) -> usize {
        self.shared.held_bytes.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    struct Parcel(usize);

    impl Weigh for Parcel {
        fn weight_bytes(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn a_full_box_gives_the_message_back_and_says_when_there_is_space() {
        let (posts, inbox) = mailbox(1, 100, 2);
        posts[0].post(Parcel(1)).expect("the box is empty");
        assert_eq!(posts[1].post(Parcel(2)), Err(PostError::Full(Parcel(2))));
        let context = Context::from_waker(std::task::Waker::noop());
        posts[1].register_for_space(&context);
        assert_eq!(inbox.take(), Some(Parcel(1)));
        inbox.release_bytes(1);
        assert!(!posts[1].space_was_announced());
        inbox.announce_space();
        assert!(posts[1].space_was_announced());
        posts[1].post(Parcel(2)).expect("there is space");
    }

    #[test]
    fn bytes_count_until_they_are_released() {
        let (posts, inbox) = mailbox(10, 100, 1);
        posts[0].post(Parcel(80)).expect("within the bound");
        assert_eq!(inbox.take(), Some(Parcel(80)));
        assert_eq!(posts[0].post(Parcel(30)), Err(PostError::Full(Parcel(30))));
        posts[0].post(Parcel(0)).expect("weighs nothing");
        inbox.release_bytes(80);
        posts[0].post(Parcel(30)).expect("released");
        assert_eq!(inbox.held_bytes(), 30);
    }

    #[test]
    fn a_message_over_the_byte_bound_passes_alone() {
        let (posts, _inbox) = mailbox(10, 100, 1);
        posts[0].post(Parcel(500)).expect("alone");
        assert_eq!(posts[0].post(Parcel(1)), Err(PostError::Full(Parcel(1))));
    }

    #[test]
    fn the_receiver_learns_that_every_poster_left() {
        let (posts, inbox) = mailbox::<Parcel>(1, 100, 2);
        drop(posts);
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert_eq!(inbox.poll_take(&mut context), Poll::Ready(None));
    }
}

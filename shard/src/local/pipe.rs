//! One direction of a connection in memory: frames from one thread to another, bounded in number and in bytes,
//! with an end behind the last one.
//!
//! Over a mailbox of `gateway_core::mail`, whose other users end with the process: here either side may go away
//! while the other waits.
//!
//! 1. Frames arrive in the order in which they were sent, and the end after all of them.
//! 2. A sender that is dropped without an end has cut the connection: its receiver learns that there is none.
//! 3. Whoever waits for room learns that the receiver is gone.
//! 4. A frame heavier than the bound passes when it is alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use gateway_core::mail::{Inbox, Post, PostError, Weigh, mailbox};

use super::Taken;

/// A frame on its way.
#[derive(Debug)]
struct Parcel(Bytes);

impl Weigh for Parcel {
    fn weight_bytes(&self) -> usize {
        self.0.len()
    }
}

#[derive(Debug)]
struct Shared<E> {
    end: OnceLock<E>,
    sender_gone: AtomicBool,
    receiver_gone: AtomicBool,
}

/// Where frames are put in.
#[derive(Debug)]
pub(super) struct PipeSender<E> {
    post: Post<Parcel>,
    shared: Arc<Shared<E>>,
}

/// Where they come out.
#[derive(Debug)]
pub(super) struct PipeReceiver<E> {
    inbox: Inbox<Parcel>,
    shared: Arc<Shared<E>>,
}

/// What came out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received<E> {
    Frame(Bytes),
    /// Nothing more comes.
    Ended(E),
    /// Nothing more comes, and the sender has not said why.
    Cut,
}

/// A pipe for at most `frames` frames of together at most `bytes`.
pub(super) fn pipe<E>(frames: usize, bytes: usize) -> (PipeSender<E>, PipeReceiver<E>) {
    let (mut posts, inbox) = mailbox(frames, bytes, 1);
    let shared = Arc::new(Shared {
        end: OnceLock::new(),
        sender_gone: AtomicBool::new(false),
        receiver_gone: AtomicBool::new(false),
    });
    let post = posts.pop().expect("a mailbox has as many posts as were asked for");
    (PipeSender { post, shared: Arc::clone(&shared) }, PipeReceiver { inbox, shared })
}

impl<E> PipeSender<E> {
    /// Sends a frame, if there is room for it.
    pub(super) fn send(&self, frame: Bytes) -> Taken {
        if self.shared.receiver_gone.load(Ordering::Acquire) {
            return Taken::Gone;
        }
        match self.post.post(Parcel(frame)) {
            Ok(()) => {
                self.post.ring();
                Taken::Yes
            }
            Err(PostError::Full(Parcel(frame))) => Taken::Later(frame),
            Err(PostError::Gone(_)) => Taken::Gone,
        }
    }

    /// The same, and wakes the task when there may be room, or when the receiver is gone.
    pub(super) fn poll_send(&self, frame: Bytes, context: &Context<'_>) -> Taken {
        match self.send(frame) {
            Taken::Later(frame) => {
                // Registered before the last look, so that no room is missed.
                self.post.register_for_space(context);
                self.send(frame)
            }
            other => other,
        }
    }

    /// Sends the end, for which there is always room.
    pub(super) fn end(self, end: E) {
        // It was not set: that takes the sender.
        let _ = self.shared.end.set(end);
    }
}

impl<E> Drop for PipeSender<E> {
    fn drop(&mut self) {
        // Before the post is dropped, which rings.
        self.shared.sender_gone.store(true, Ordering::Release);
    }
}

impl<E: Clone> PipeReceiver<E> {
    /// The next frame, or the end; the end again and again.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Received<E>> {
        match ready!(self.inbox.poll_take(context)) {
            Some(parcel) => {
                self.inbox.release_bytes(parcel.weight_bytes());
                self.inbox.announce_space();
                Poll::Ready(Received::Frame(parcel.0))
            }
            None => Poll::Ready(self.shared.end.get().cloned().map_or(Received::Cut, Received::Ended)),
        }
    }

    /// Whether the sender went away without an end; frames may still be there.
    pub(super) fn is_cut(&self) -> bool {
        self.shared.sender_gone.load(Ordering::Acquire) && self.shared.end.get().is_none()
    }
}

impl<E> Drop for PipeReceiver<E> {
    fn drop(&mut self) {
        self.shared.receiver_gone.store(true, Ordering::Release);
        self.inbox.announce_space();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::{Wake, Waker};

    use super::*;

    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn frame(bytes: usize) -> Bytes {
        Bytes::from(vec![7; bytes])
    }

    #[test]
    fn frames_come_in_order_and_the_end_behind_them_though_the_pipe_is_full() {
        let (sender, receiver) = pipe(2, 100);
        let context = &mut Context::from_waker(Waker::noop());
        assert_eq!(sender.send(frame(1)), Taken::Yes);
        assert_eq!(sender.send(frame(2)), Taken::Yes);
        assert_eq!(sender.send(frame(3)), Taken::Later(frame(3)));
        sender.end("over");
        assert_eq!(receiver.poll(context), Poll::Ready(Received::Frame(frame(1))));
        assert_eq!(receiver.poll(context), Poll::Ready(Received::Frame(frame(2))));
        assert!(!receiver.is_cut());
        for _ in 0..2 {
            assert_eq!(receiver.poll(context), Poll::Ready(Received::Ended("over")));
        }
    }

    #[test]
    fn a_sender_that_goes_away_without_an_end_has_cut_the_connection() {
        let (sender, receiver) = pipe::<()>(2, 100);
        let context = &mut Context::from_waker(Waker::noop());
        assert_eq!((receiver.poll(context), receiver.is_cut()), (Poll::Pending, false));
        sender.send(frame(1));
        drop(sender);
        assert!(receiver.is_cut());
        assert_eq!(receiver.poll(context), Poll::Ready(Received::Frame(frame(1))));
        assert_eq!(receiver.poll(context), Poll::Ready(Received::Cut));
    }

    #[test]
    fn whoever_waits_for_room_is_woken_by_room_and_by_the_receivers_end() {
        let (sender, receiver) = pipe::<()>(8, 100);
        let task = Arc::new(Task::default());
        let waker = Waker::from(Arc::clone(&task));
        let context = &mut Context::from_waker(&waker);
        // Heavier than the bound, and alone.
        assert_eq!(sender.poll_send(frame(500), context), Taken::Yes);
        assert_eq!(sender.poll_send(frame(1), context), Taken::Later(frame(1)));
        assert_eq!(task.0.load(Ordering::SeqCst), 0);
        assert!(receiver.poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert_eq!(task.0.load(Ordering::SeqCst), 1);
        assert_eq!(sender.poll_send(frame(100), context), Taken::Yes);
        assert_eq!(sender.poll_send(frame(1), context), Taken::Later(frame(1)));
        drop(receiver);
        assert_eq!(task.0.load(Ordering::SeqCst), 2);
        // The bytes of what was never taken do not hide it.
        assert_eq!(sender.poll_send(frame(1), context), Taken::Gone);
    }
}

//! The way of a shard's messages into the mailbox of another thread, and what waits while that has no room.
//!
//! While the mailbox has room a message is posted at once. When it has none, the message waits here, and so does
//! all that comes after it; whoever sends asks `is_empty` before it takes on more, so what waits is little.
//!
//! 1. Messages leave in the order in which they were sent.
//! 2. Nothing is dropped, unless the other thread is gone; then everything is.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::{Context, Poll};

use gateway_core::mail::{Post, PostError, Weigh};

use crate::sleeper::Sleeper;

/// Room for so many is kept when none waits.
const KEPT: usize = 64;

#[derive(Debug)]
pub(crate) struct Backlog<T> {
    post: Post<T>,
    waiting: RefCell<VecDeque<T>>,
    /// Something was posted since the other thread was last rung.
    unrung: Cell<bool>,
    gone: Cell<bool>,
    pump: Sleeper,
}

/// What a message met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Met {
    /// It is in the mailbox, or waits behind others.
    Way,
    /// It is the first that found the mailbox full, and waits.
    Full,
    /// There is nobody to have it.
    Nobody,
}

impl<T: Weigh> Backlog<T> {
    pub(crate) fn new(post: Post<T>) -> Self {
        Self {
            post,
            waiting: RefCell::default(),
            unrung: Cell::new(false),
            gone: Cell::new(false),
            pump: Sleeper::default(),
        }
    }

    /// Whether nothing waits here.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }

    /// Whether the other thread is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// Sends a message. The other thread learns of it at the next `ring`.
    pub(crate) fn send(&self, message: T) -> Met {
        if self.gone.get() {
            return Met::Nobody;
        }
        if !self.is_empty() {
            self.waiting.borrow_mut().push_back(message);
            return Met::Way;
        }
        match self.post.post(message) {
            Ok(()) => {
                self.unrung.set(true);
                Met::Way
            }
            Err(PostError::Full(message)) => {
                self.waiting.borrow_mut().push_back(message);
                self.pump.wake();
                Met::Full
            }
            Err(PostError::Gone(_)) => {
                self.gone.set(true);
                Met::Nobody
            }
        }
    }

    /// Tells the other thread of all that was posted since the last time.
    pub(crate) fn ring(&self) {
        if self.unrung.replace(false) {
            self.post.ring();
        }
    }

    /// Waits until something waits here.
    pub(crate) async fn until_used(&self) {
        self.pump.until(|| !self.is_empty()).await;
    }

    /// Posts what waits as there is room. `Ready` when nothing waits any more.
    pub(crate) fn poll_empty(&self, context: &Context<'_>) -> Poll<()> {
        loop {
            // Registered first: space that is announced from here on is seen.
            self.post.register_for_space(context);
            self.post_waiting();
            self.ring();
            if self.is_empty() {
                return Poll::Ready(());
            }
            if !self.post.space_was_announced() {
                return Poll::Pending;
            }
        }
    }

    fn post_waiting(&self) {
        let mut waiting = self.waiting.borrow_mut();
        while let Some(message) = waiting.pop_front() {
            match self.post.post(message) {
                Ok(()) => self.unrung.set(true),
                Err(PostError::Full(message)) => return waiting.push_front(message),
                Err(PostError::Gone(_)) => {
                    waiting.clear();
                    self.gone.set(true);
                }
            }
        }
        if waiting.capacity() > KEPT {
            *waiting = VecDeque::new();
        }
    }
}

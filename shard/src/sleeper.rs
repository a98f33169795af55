//! A place where one task of a shard waits for something that another task of it brings about.
//!
//! It keeps only who waits. What is waited for is a condition over the shard's own state, which is
//! looked at before the first wait and after each wake.
//!
//! 1. One task waits at a time; a later one takes its place.
//! 2. Who changes the state wakes after the change; a wake for nothing is no harm.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

#[derive(Debug, Default)]
pub(crate) struct Sleeper(RefCell<Option<Waker>>);

impl Sleeper {
    /// The condition may hold now.
    pub(crate) fn wake(&self) {
        if let Some(task) = self.0.take() {
            task.wake();
        }
    }

    /// Waits until `holds` is true.
    pub(crate) async fn until(&self, mut holds: impl FnMut() -> bool) {
        self.until_some(|| holds().then_some(())).await;
    }

    /// Waits until `look` finds something; gives it.
    pub(crate) async fn until_some<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        poll_fn(|context| match look() {
            Some(found) => Poll::Ready(found),
            None => {
                self.0.replace(Some(context.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}

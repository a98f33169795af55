//! The streams of one connection of the API: how many are open, and how long one may be.
//!
//! hyper runs a stream as one future, from its request until its answer is sent; these are the tasks that it
//! runs them as. What is asked and answered is no concern of this file.
//!
//! 1. A call is over `Patience::call` after its request came, and `Patience::taken` after its answer stood, whether or not its
//!    peer has read that.
//! 2. A tunnel's stream lasts until it has ended by itself, or is let go of through its `StreamEnd`.
//! 3. A stream that is over has reset itself and holds nothing more.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{Notify, watch};

tokio::task_local! {
    static STREAM: Arc<StreamEnd>;
}

/// What ends a stream from outside.
#[derive(Debug, Default)]
pub(crate) struct StreamEnd {
    is_tunnel: AtomicBool,
    answered: Notify,
    over: Notify,
}

impl StreamEnd {
    /// Lets go of the stream, whatever is not sent of it.
    pub(crate) fn reach(&self) {
        self.over.notify_one();
    }

    async fn reached(&self, patience: Patience) {
        let late = async {
            if tokio::time::timeout(patience.call, self.answered.notified()).await.is_ok() {
                tokio::time::sleep(patience.taken).await;
            }
        };
        tokio::select! {
            () = self.over.notified() => return,
            () = late => {}
        }
        if self.is_tunnel.load(Relaxed) {
            self.over.notified().await;
        }
    }
}

/// The stream whose call this is becomes a tunnel's. `None` outside of any.
pub(crate) fn of_tunnel() -> Option<Arc<StreamEnd>> {
    let end = STREAM.try_with(Arc::clone).ok()?;
    end.is_tunnel.store(true, Relaxed);
    Some(end)
}

/// The answer of this call stands. Nothing outside of any.
pub(crate) fn answered() {
    let _ = STREAM.try_with(|end| end.answered.notify_one());
}

/// How long calls may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// From the request to the answer.
    pub(crate) call: Duration,
    /// From the answer until it is taken.
    pub(crate) taken: Duration,
}

/// The streams of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Streams {
    open: watch::Sender<usize>,
    patience: Patience,
}

impl Streams {
    pub(crate) fn new(patience: Patience) -> Self {
        Self { open: watch::Sender::new(0), patience }
    }

    /// Resolves when a stream has come.
    pub(crate) async fn first(&self) {
        // The sender is here.
        let _ = self.open.subscribe().changed().await;
    }

    /// Resolves when none was open for so long.
    pub(crate) async fn none_for(&self, time: Duration) {
        let mut open = self.open.subscribe();
        loop {
            // The sender is here; the same below.
            let _ = open.wait_for(|open| *open == 0).await;
            if tokio::time::timeout(time, open.changed()).await.is_err() {
                return;
            }
        }
    }
}

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.open.send_modify(|open| *open += 1);
        let (open, end) = (Open(self.open.clone()), Arc::new(StreamEnd::default()));
        let patience = self.patience;
        drop(tokio::spawn(STREAM.scope(Arc::clone(&end), async move {
            let _open = open;
            tokio::select! {
                () = stream => {}
                () = end.reached(patience) => {}
            }
        })));
    }
}

struct Open(watch::Sender<usize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

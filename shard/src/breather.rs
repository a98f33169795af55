//! Lets connections that have read their turn's share wait until the shard has looked at its sockets.
//!
//! A connection that goes on at once keeps its queue filled, and the runtime looks for I/O only when
//! the queues are empty or the preempt timer fires, which is far off (see `executor`). So it goes on
//! after a breath: a timer, which the runtime can only reach through a look at the sockets.
//!
//! 1. A connection that waits here is rung, within a breath and the turns of the others.
//! 2. It costs nothing while no connection is over its budget.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use crate::bell::Bell;
use crate::executor;
use crate::sleeper::Sleeper;

/// Long enough that it has not passed when it is first looked at, or there would be no look at I/O.
const BREATH: Duration = Duration::from_micros(50);

#[derive(Debug, Default)]
pub(crate) struct Breather {
    waiting: RefCell<Vec<Arc<Bell>>>,
    task: Sleeper,
}

impl Breather {
    /// Rings `bell` after the shard has looked at its sockets.
    pub(crate) fn ring_after_io(&self, bell: &Arc<Bell>) {
        self.waiting.borrow_mut().push(Arc::clone(bell));
        self.task.wake();
    }

    /// Breathes for ever.
    pub(crate) async fn run(&self) {
        loop {
            self.task.until(|| !self.waiting.borrow().is_empty()).await;
            executor::sleep(BREATH).await;
            for bell in self.waiting.take() {
                bell.ring();
            }
        }
    }
}

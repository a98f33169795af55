//! Makes sure that no task waits for ever although it was woken.
//!
//! glommio 0.9.0 can go to sleep with tasks ready to run: if a completion that nobody waits for (the
//! preempt timer's, or that of a wake from another thread) arrives between its poll for I/O and its
//! first look at the queues, it runs nothing, takes that for "nothing to run", and parks. The next
//! event of any kind brings the tasks back; on a quiet shard there may be none for a long time.
//! `tests/wakes.rs` shows it within seconds where this file's tick is turned off.
//!
//! The preempt timer is kept too long for that by `executor`; what remains is the mail of the writer,
//! the one thing that wakes a shard from another thread. So there is always a next event: a timer,
//! close while the shard is active, sparse while it rests (each tick costs an idle core a wake-up).
//!
//! 1. A woken task runs after `ACTIVE_TICK` at the latest on a shard that is active, after
//!    `RESTING_TICK` on one that rests.
//! 2. It ticks until nothing of the shard is awaited any more, and keeps nothing of it alive.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::counters::ShardCounters;
use crate::executor::{self, Clock};
use crate::rest::Rest;

/// About one wake in ten thousand is forgotten: this is what such a one waits.
const ACTIVE_TICK: Duration = Duration::from_millis(25);
const RESTING_TICK: Duration = Duration::from_millis(250);
/// Ticks without activity after which a shard rests.
const TICKS_TO_REST: u32 = 20;

/// Ticks for ever.
pub(crate) async fn run(rest: Rc<Rest>, clock: Clock, counters: Arc<ShardCounters>) {
    let mut quiet_ticks = 0;
    loop {
        let tick = if quiet_ticks < TICKS_TO_REST { ACTIVE_TICK } else { RESTING_TICK };
        let due = clock.now() + tick;
        executor::sleep(tick).await;
        counters.ring_lateness.note(clock.now().since(due));
        quiet_ticks = if rest.take_active() { 0 } else { (quiet_ticks + 1).min(TICKS_TO_REST) };
        if quiet_ticks == TICKS_TO_REST {
            rest.begin();
        }
    }
}

//! What a drain of the gateway means to a session.
//!
//! 1. A live session tells its node when to dial anew, and goes on as before: the node leaves when its
//!    next session is welcomed, so that no command waits.
//! 2. One that is not welcomed yet is refused, with a delay; one that is finishing is left to finish.

use super::Session;
use super::lifecycle::{Event, Step};
use crate::drain::DrainOrder;
use crate::frame::GatewayFrame;
use crate::time::Moment;

impl Session {
    /// The gateway drains.
    pub fn handle_drain(&mut self, order: &DrainOrder, now: Moment) {
        match self.phase.on(Event::Drain) {
            Step::Stay => {
                let millis = order.delay_of(self.key).as_millis();
                let reconnect_after_ms = u32::try_from(millis).unwrap_or(u32::MAX);
                self.outbox.push(GatewayFrame::Drain { reconnect_after_ms });
            }
            Step::End(_) => self.end(order.cut(self.key)),
            Step::To(_) | Step::Drop | Step::Stray => {}
        }
        self.settle(now);
    }

    /// The drain is over, and the session still here.
    pub fn handle_cut(&mut self, order: &DrainOrder, now: Moment) {
        self.handle_close(order.cut(self.key), now);
    }
}

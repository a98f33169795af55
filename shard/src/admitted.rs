//! A session's place under the gateway's bounds.
//!
//! 1. What admission gave is given back once, by whatever way the session ends, and when it does, not when its
//!    end was read: first that its Hello has an outcome or never will, then the stream.

use std::rc::Rc;

use gateway_core::close::CloseReason;

use crate::shard::Shard;

pub(crate) struct Admitted {
    shard: Rc<Shard>,
    over_websocket: bool,
    hello_pending: bool,
}

impl Admitted {
    /// Asks admission for a place of a session, over WebSocket or HTTP/2.
    pub(crate) fn ask(shard: &Rc<Shard>, over_websocket: bool) -> Result<Self, CloseReason> {
        shard.admission.handle_open(shard.random(), shard.clock.now())?;
        shard.counters.opens.one_more();
        shard.counters.sessions.one_more();
        if over_websocket {
            shard.counters.websocket_sessions.one_more();
        }
        Ok(Self { shard: Rc::clone(shard), over_websocket, hello_pending: true })
    }

    /// The Hello has its outcome.
    pub(crate) fn note_hello_done(&mut self) {
        if std::mem::take(&mut self.hello_pending) {
            self.shard.admission.handle_hello_done(self.shard.clock.now());
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.note_hello_done();
        self.shard.admission.handle_close(self.shard.clock.now());
        self.shard.counters.sessions.one_less();
        if self.over_websocket {
            self.shard.counters.websocket_sessions.one_less();
        }
    }
}

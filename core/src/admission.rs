//! Who may open a session now, and when the others should come back.
//!
//! One `Admission` serves all shards of a gateway; it is made of atomics alone.
//! (Skeleton: the bounds are still to be built.)

use crate::close::CloseReason;
use crate::limits::Limits;
use crate::time::Moment;

/// The bounds over the sessions of a gateway, shared by its shards.
#[derive(Debug)]
pub struct Admission {}

impl Admission {
    /// With the bounds of `limits`, at `now`, with all tokens there.
    pub fn new(_limits: &Limits, _now: Moment) -> Self {
        todo!()
    }

    /// A stream asks to be opened. `random` is any number: the jitter is taken from it.
    /// `Err` is a `CloseReason::Refused` with the bound and the delay.
    pub fn handle_open(&self, _random: u64, _now: Moment) -> Result<(), CloseReason> {
        todo!()
    }

    /// An admitted stream's Hello has its outcome, or will never have one. Once a stream.
    pub fn handle_hello_done(&self, _now: Moment) {
        todo!()
    }

    /// An admitted stream is over. Once a stream, after `handle_hello_done`.
    pub fn handle_close(&self, _now: Moment) {
        todo!()
    }

    /// How many streams are open.
    pub fn streams(&self) -> usize {
        todo!()
    }
}

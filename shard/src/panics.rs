//! What a panic may end: one connection, or one stream of it, never the shard.
//!
//! 1. The panicked value is dropped, and a second panic while it is dropped is caught too.
//! 2. Every panic has an id, in the log and in what the peer is told.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use gateway_core::close::CloseReason;

use crate::shard::Shard;

/// Most of a panic's message that is logged, in characters.
const MAX_MESSAGE_CHARS: usize = 300;

/// Runs `work`, which may leave what it touched half done when it panics.
pub(crate) fn contain<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(work)).map_err(Panic)
}

/// Drops what may panic while it is dropped.
pub(crate) fn discard<T>(value: T) {
    // The panic that broke the value was told; what its ruins say adds nothing.
    let _ = contain(move || drop(value));
}

/// A panic that was caught.
pub(crate) struct Panic(Box<dyn Any + Send>);

impl Panic {
    /// Logs and counts it. The reason is what the peer is told.
    pub(crate) fn report(self, shard: &Shard, place: &'static str) -> CloseReason {
        let id = shard.random();
        shard.counters.panics.one_more();
        let message = text(self.0.as_ref());
        tracing::error!(
            shard = shard.id.0,
            id = format!("{id:016x}"),
            place,
            message,
            "a panic was contained"
        );
        CloseReason::Bug { id }
    }
}

/// What a panic said.
pub(crate) fn text(payload: &(dyn Any + Send)) -> String {
    let message = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    message.chars().take(MAX_MESSAGE_CHARS).flat_map(char::escape_debug).collect()
}

//! Signals, brought into the queue of events.
//!
//! 1. The first SIGTERM or SIGINT is an event; the second ends the process at once, whatever the
//!    gateway does: the kernel's handler does it, no thread need run.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crossbeam_channel::Sender;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::supervision::Event;
use crate::error::GatewayError;

/// Exit code of a process that was told twice.
const CUT_SHORT: i32 = 1;

/// Starts to listen. SIGPIPE is ignored by Rust's runtime already.
pub(super) fn listen(sender: &Sender<Event>) -> Result<(), GatewayError> {
    let failed = |error: std::io::Error| GatewayError::Machine(format!("signals can't be received: {error}"));
    let told_once = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // In this order: the first signal finds the flag down, the second finds it up.
        signal_hook::flag::register_conditional_shutdown(signal, CUT_SHORT, Arc::clone(&told_once))
            .map_err(failed)?;
        signal_hook::flag::register(signal, Arc::clone(&told_once)).map_err(failed)?;
    }
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
    let sender = sender.clone();
    let forward = move || {
        for signal in signals.forever() {
            if sender.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(forward).map(drop).map_err(failed)
}

//! Signals, brought into the queue of events.
//!
//! SIGTERM drains first, where that is configured; SIGINT stops, and so does a SIGTERM during the drain.
//!
//! 1. Each SIGTERM and SIGINT is an event until the stop has begun; one after that ends the process at
//!    once, whatever the gateway does: the kernel's handler does it, no thread need run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::Sender;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::supervision::Event;
use crate::error::GatewayError;

/// Exit code of a process that was told again.
const CUT_SHORT: i32 = 1;

/// Whether the next signal ends the process.
#[derive(Debug, Clone, Default)]
pub(super) struct StopMark(Arc<AtomicBool>);

impl StopMark {
    /// The stop has begun.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Starts to listen. SIGPIPE is ignored by Rust's runtime already.
pub(super) fn listen(sender: &Sender<Event>, drains: bool) -> Result<StopMark, GatewayError> {
    let failed = |error: std::io::Error| GatewayError::Machine(format!("signals can't be received: {error}"));
    let mark = StopMark::default();
    for signal in [SIGTERM, SIGINT] {
        // In this order: the first that stops finds the mark down, the next finds it up.
        signal_hook::flag::register_conditional_shutdown(signal, CUT_SHORT, Arc::clone(&mark.0))
            .map_err(failed)?;
        // A SIGTERM that drains stops nothing yet; who takes the event sets the mark when the stop begins.
        if signal == SIGINT || !drains {
            signal_hook::flag::register(signal, Arc::clone(&mark.0)).map_err(failed)?;
        }
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
    let spawned = std::thread::Builder::new().name("signals".to_owned()).spawn(forward);
    spawned.map(|_| mark).map_err(failed)
}

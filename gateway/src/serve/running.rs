//! A gateway whose threads run: what its owner may ask of it, and what it is told.
//!
//! 1. A gateway that is dropped is not stopped: who owns it stops it, and joins it.
//! 2. The lock is held, and the TLS files are watched, as long as it is there.
//! 3. After a crash nothing of it runs, and its lease is as it was.
//! 4. The runtime of shards leaves one file of each open when it ends (glommio 0.9): a process that starts and stops
//!    thousands of gateways needs as many.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use gateway_control::ControlStopper;
use gateway_core::drain::DrainPlan;
use gateway_core::mail::Post;
use gateway_core::seam::ToShard;
use gateway_core::writer::Phase;
use gateway_db_writer::StopHandle;

use super::handle::GatewayHandle;
use super::readings::Readings;
use super::start::CONTROL_THREAD;
use super::supervision::{Event, Meaning, Supervision};
use super::tls_watch::LookAsked;
use crate::error::GatewayError;
use crate::lock_file::LockFile;

/// Between two looks at the time, whatever time there is.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// A gateway whose threads run.
#[derive(Debug)]
pub struct RunningGateway {
    pub(super) handle: GatewayHandle,
    pub(super) address: SocketAddr,
    pub(super) control_address: SocketAddr,
    pub(super) api_address: Option<SocketAddr>,
    pub(super) readings: Arc<Readings>,
    pub(super) stopper: Stopper,
    pub(super) control: ControlStopper,
    pub(super) sender: Sender<Event>,
    pub(super) events: Receiver<Event>,
    pub(super) supervision: Supervision,
    pub(super) bells: Vec<Post<ToShard>>,
    /// Asks for a look at the TLS files; they are watched as long as this is there.
    pub(super) reload: Sender<LookAsked>,
    pub(super) _lock: LockFile,
}

/// Asks a gateway to stop, from any thread.
#[derive(Debug, Clone)]
pub struct Stopper(pub(super) StopHandle);

impl Stopper {
    /// Streams end `UNAVAILABLE`, disconnects are written, the lease is released, all threads end.
    pub fn stop(&self) {
        self.0.stop();
    }

    /// Nodes are told to move to another gateway, each at a moment of its own, and new sessions are refused;
    /// then the same as `stop`, when all have left or have had long enough.
    pub fn drain_and_stop(&self, plan: DrainPlan) {
        self.0.drain(plan);
    }
}

impl RunningGateway {
    /// Where nodes connect, with the port that was taken.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where health and metrics are.
    pub const fn control_address(&self) -> SocketAddr {
        self.control_address
    }

    /// Where the control API is, if it is served.
    pub const fn api_address(&self) -> Option<SocketAddr> {
        self.api_address
    }

    /// What the threads have counted.
    pub const fn readings(&self) -> &Arc<Readings> {
        &self.readings
    }

    /// What may be asked of it from any thread: status, sessions, drains, sessions in memory.
    pub fn handle(&self) -> GatewayHandle {
        self.handle.clone()
    }

    /// A handle that stops it, for other threads.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Waits until the lease is held, so that sessions may be opened; at most `timeout`.
    pub fn wait_until_serving(&mut self, timeout: Duration) -> Result<(), GatewayError> {
        let began = Instant::now();
        while self.readings.phase() != Phase::Serving {
            let left = timeout.saturating_sub(began.elapsed()).min(LONGEST_WAIT);
            match self.events.recv_timeout(left) {
                Ok(event) => {
                    if self.take(event)? {
                        return Err(GatewayError::ThreadEnded("it was stopped before it served".to_owned()));
                    }
                }
                Err(RecvTimeoutError::Timeout) if began.elapsed() < timeout => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(GatewayError::Database(format!("no lease within {timeout:?}")));
                }
                Err(RecvTimeoutError::Disconnected) => unreachable!("this gateway holds a sender"),
            }
        }
        Ok(())
    }

    /// Asks it to stop; `join` waits for the end.
    pub fn stop(&mut self) {
        self.supervision.handle_stop_asked();
        self.stopper.stop();
    }

    /// Asks it to send its nodes away, and to stop then; `join` waits for the end. A drain that is taken back is
    /// `GatewayHandle::drain`'s.
    pub fn drain_and_stop(&mut self, plan: DrainPlan) {
        self.supervision.handle_drain_asked();
        self.stopper.drain_and_stop(plan);
    }

    /// Ends it as `kill -9` ends its process, for tests of an embedder's nodes: nodes see their connections lost, in
    /// memory as on sockets, and are told nothing; nothing is written, no disconnect, no release of the lease; a
    /// statement that the database had already is carried out or not. Blocks until every thread has ended.
    ///
    /// The lock is free then, so a gateway of the same id may be started at once and takes the lease over; any other
    /// waits for it to run out.
    ///
    /// # Errors
    /// `GatewayError::ThreadEnded` where a thread had failed before.
    pub fn crash(mut self) -> Result<(), GatewayError> {
        self.supervision.handle_stop_asked();
        // The writer first: it writes nothing of what it hears from shards that die.
        self.stopper.0.crash();
        self.handle.crash_shards();
        self.control.stop();
        self.join()
    }

    /// Waits for the end. An error where a thread has failed, or has ended without a stop: then the others are stopped,
    /// and have ended too. The lock is free when this returns, not before.
    pub fn join(mut self) -> Result<(), GatewayError> {
        let mut fault = None;
        while self.supervision.somebody_runs() {
            let event = self.events.recv().expect("this gateway holds a sender");
            if let Err(error) = self.take(event) {
                self.stop();
                fault.get_or_insert(error);
            }
        }
        fault.map_or(Ok(()), Err)
    }

    /// Looks at the TLS files now, without waiting for it.
    pub fn reload_tls(&self) {
        // Full: a look is to come anyway.
        let _ = self.reload.try_send(LookAsked::default());
    }

    pub(super) const fn events(&self) -> &Receiver<Event> {
        &self.events
    }

    pub(super) const fn sender(&self) -> &Sender<Event> {
        &self.sender
    }

    pub(super) fn bells(&mut self) -> Vec<Post<ToShard>> {
        std::mem::take(&mut self.bells)
    }

    pub(super) const fn is_leaving(&self) -> bool {
        self.supervision.is_leaving()
    }

    pub(super) const fn is_stopping(&self) -> bool {
        self.supervision.is_stopping()
    }

    /// Takes an event in; `true` when every thread has ended as asked.
    pub(super) fn take(&mut self, event: Event) -> Result<bool, GatewayError> {
        // Whoever holds a `Stopper` may have asked. The phase does not tell: a drain that the control API asked
        // for leads to no stop.
        if self.stopper.0.drain_was_asked() {
            self.supervision.handle_drain_asked();
        }
        if self.stopper.0.stop_was_asked() {
            self.supervision.handle_stop_asked();
        }
        match event {
            Event::Phase(Phase::Stopping) => self.supervision.handle_stop_asked(),
            Event::Phase(_) | Event::Signal(_) => {}
            Event::Ended { thread, end } => {
                // Else the shards would not learn that the writer is gone.
                self.bells.clear();
                match self.supervision.handle_ended(&thread, end) {
                    Meaning::GoOn => {}
                    Meaning::AllEnded => return Ok(true),
                    Meaning::Fault(sentence) => {
                        self.control.stop();
                        return Err(GatewayError::ThreadEnded(sentence));
                    }
                }
                // The last to go: it shows the others' end.
                if self.supervision.is_stopping() && self.supervision.only_runs(CONTROL_THREAD) {
                    self.control.stop();
                }
            }
        }
        Ok(false)
    }
}

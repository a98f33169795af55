//! The control thread: health as JSON and metrics for Prometheus, over HTTP on a loopback address; and the
//! relays, which pass calls of nodes on to the services behind the gateway.
//!
//! It reads what other threads have counted, through `Status`, and decides nothing. No session and
//! no command depends on it.
//!
//! 1. It serves a loopback address alone: there is no encryption yet.
//! 2. It depends on core and, for what it says to services, on proto; the gateway hands the numbers in.
//! 3. A fault of a caller ends that caller's connection, never the thread.

mod http;
mod metrics;
mod process;
pub mod relay;
mod status;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::Notify;

use relay::RelayConfig;

pub use status::{
    Distribution, Family, Health, Label, LoopHealth, Points, QueueHealth, ShardHealth, Status, SweepHealth,
    Unit, number, phase_label,
};

/// What the thread needs.
pub struct ControlConfig {
    /// A loopback address; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The cpu to pin the thread to.
    pub cpu: Option<usize>,
    pub status: Arc<dyn Status>,
    /// `None`: no calls are passed on from here.
    pub relays: Option<RelayConfig>,
}

impl std::fmt::Debug for ControlConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlConfig")
            .field("listen", &self.listen)
            .field("cpu", &self.cpu)
            .finish_non_exhaustive()
    }
}

/// The thread has panicked; the sentence says where it stood.
#[derive(Debug, thiserror::Error)]
#[error("the control thread has panicked; its last lines in the log say where")]
pub struct ControlError;

/// A running control thread.
#[derive(Debug)]
pub struct ControlHandle {
    address: SocketAddr,
    stopper: ControlStopper,
    thread: JoinHandle<()>,
}

/// Ends a control thread; may be cloned to wherever the decision falls.
#[derive(Debug, Clone)]
pub struct ControlStopper(Arc<Notify>);

impl ControlStopper {
    /// Asks the thread to end; open connections are cut.
    pub fn stop(&self) {
        self.0.notify_one();
    }
}

impl ControlHandle {
    /// Where it listens, with the port that was taken.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What ends it.
    pub fn stopper(&self) -> ControlStopper {
        self.stopper.clone()
    }

    /// Asks it to end.
    pub fn stop(&self) {
        self.stopper.stop();
    }

    /// Waits for its end.
    pub fn join(self) -> Result<(), ControlError> {
        self.thread.join().map_err(|_| ControlError)
    }
}

/// Binds the address and starts the thread `control`.
pub fn spawn(config: ControlConfig) -> io::Result<ControlHandle> {
    if !config.listen.ip().is_loopback() {
        let sentence = format!("{} is not a loopback address", config.listen);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, sentence));
    }
    let listener = TcpListener::bind(config.listen)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let stopper = ControlStopper(Arc::default());
    let stop = Arc::clone(&stopper.0);
    let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || {
        if let Some(cpu) = config.cpu {
            pin(cpu);
        }
        runtime.block_on(async move {
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => tokio::select! {
                    () = http::serve(listener, config.status, stop) => {}
                    () = pass_on(config.relays) => {}
                },
                Err(error) => tracing::error!(%error, "control: the listener can't be watched"),
            }
        });
    })?;
    Ok(ControlHandle { address, stopper, thread })
}

/// Passes calls on, and goes on to be there when the shards are gone.
async fn pass_on(relays: Option<RelayConfig>) {
    if let Some(config) = relays {
        relay::run(config).await;
    }
    std::future::pending().await
}

fn pin(cpu: usize) {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &cpus) {
        tracing::warn!(%error, cpu, "control: the thread can't be pinned and runs anywhere");
    }
}

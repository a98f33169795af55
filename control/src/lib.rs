//! The control thread: health and metrics over plain HTTP on a loopback address; the control API over
//! HTTP/2 with internal mTLS (`api`); the relays, which pass calls of nodes on to the services behind the
//! gateway; and the tunnels (`tunnel`).
//!
//! It reads what other threads have counted, through `Status`, asks the writer through `api::Desk`, and decides
//! nothing. No session and no command depends on it.
//!
//! 1. What is not encrypted is served on a loopback address alone, and changes nothing.
//! 2. It depends on core and, for what it says to services, on proto; the gateway hands the rest in.
//! 3. A fault of a caller ends that caller's connection, never the thread.

pub mod api;
pub mod client;
mod courier;
mod dial;
mod http;
mod metrics;
mod process;
pub mod relay;
pub mod small_file;
mod socket;
mod status;
mod strangers;
pub mod tunnel;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::Notify;

use api::ApiConfig;
use relay::RelayConfig;
use tunnel::{Room as TunnelRoom, TunnelConfig, TunnelDoor};

pub use status::{
    Distribution, Family, Headroom, Health, Label, LeaseHealth, LoopHealth, Points, QueueHealth, Room,
    ShardHealth, Status, SweepHealth, Unit, number, phase_label,
};

/// Connections that may wait to be accepted; the kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// What the thread needs.
pub struct ControlConfig {
    /// A loopback address; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The cpu to pin the thread to.
    pub cpu: Option<usize>,
    pub status: Arc<dyn Status>,
    /// `None`: there is no control API.
    pub api: Option<ApiConfig>,
    /// `None`: no calls are passed on from here.
    pub relays: Option<RelayConfig>,
    /// `None`: no tunnels are opened from here.
    pub tunnels: Option<TunnelConfig>,
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
    api_address: Option<SocketAddr>,
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

    /// Where the API listens, with the port that was taken.
    pub const fn api_address(&self) -> Option<SocketAddr> {
        self.api_address
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

/// Which address can't be had, and why.
#[derive(Debug, thiserror::Error)]
#[error("{address}: {error}")]
pub struct ListenError {
    pub address: SocketAddr,
    #[source]
    pub error: io::Error,
}

/// Binds the addresses and starts the thread `control`.
pub fn spawn(config: ControlConfig) -> Result<ControlHandle, ListenError> {
    let plain = config.listen;
    let failed = |error| ListenError { address: plain, error };
    if !plain.ip().is_loopback() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "is not a loopback address")));
    }
    let (listener, address) = bind(plain)?;
    let api = match config.api {
        Some(api) => Some((bind(api.listen)?, api)),
        None => None,
    };
    let api_address = api.as_ref().map(|((_, address), _)| *address);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(failed)?;
    let stopper = ControlStopper(Arc::default());
    let stop = Arc::clone(&stopper.0);
    let (cpu, status, relays, tunnels) = (config.cpu, config.status, config.relays, config.tunnels);
    let serve = move || {
        if let Some(cpu) = cpu {
            pin(cpu);
        }
        runtime.block_on(async move {
            let api = api.map(|((listener, _), api)| (listener, api));
            let (door, room) = tunnels.map(TunnelRoom::new).unzip();
            tokio::select! {
                () = serve_plain(listener, Arc::clone(&status)) => {}
                () = serve_api(api, status, door) => {}
                () = pass_on(relays) => {}
                () = relay_tunnels(room) => {}
                () = stop.notified() => {}
            }
        });
    };
    let thread = std::thread::Builder::new().name("control".to_owned()).spawn(serve).map_err(failed)?;
    Ok(ControlHandle { address, api_address, stopper, thread })
}

fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ListenError> {
    let bound = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        // The standard library lets 128 wait, which a storm fills between two looks.
        rustix::net::listen(&listener, BACKLOG)?;
        let taken = listener.local_addr()?;
        Ok((listener, taken))
    };
    bound().map_err(|error| ListenError { address, error })
}

async fn serve_plain(listener: TcpListener, status: Arc<dyn Status>) {
    match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => http::serve(listener, status).await,
        Err(error) => tracing::error!(%error, "control: the listener can't be watched"),
    }
}

/// Serves the API; where there is none, it goes on to be there.
async fn serve_api(
    api: Option<(TcpListener, ApiConfig)>,
    status: Arc<dyn Status>,
    tunnels: Option<TunnelDoor>,
) {
    let Some((listener, config)) = api else { return std::future::pending().await };
    match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => api::serve(listener, config, status, tunnels).await,
        Err(error) => tracing::error!(%error, "control: the listener of the API can't be watched"),
    }
}

/// Passes calls on, and goes on to be there when the shards are gone.
async fn pass_on(relays: Option<RelayConfig>) {
    if let Some(config) = relays {
        relay::run(config).await;
    }
    std::future::pending().await
}

/// Relays tunnels, and goes on to be there when the shards are gone.
async fn relay_tunnels(room: Option<TunnelRoom>) {
    if let Some(room) = room {
        room.run().await;
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

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;

    #[test]
    fn hundreds_may_wait_to_be_accepted() {
        let (_listener, address) = bind(([127, 0, 0, 1], 0).into()).unwrap();
        let waiting: Vec<_> = (0..400)
            .map(|_| TcpStream::connect_timeout(&address, Duration::from_secs(5)).expect("it may wait"))
            .collect();
        assert_eq!(waiting.len(), 400);
    }
}

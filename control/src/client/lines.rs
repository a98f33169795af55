//! The connections of a client to its gateway: as many as what is open needs.
//!
//! It dials and hands out; what is asked over a connection is its user's.
//!
//! 1. At most `MOST_ON_ONE` requests are on a connection, fewer than a gateway takes: none waits behind tunnels.
//! 2. A connection that was renounced, or is gone, is handed out to nobody else; what is open on it goes on.
//! 3. A connection on which nothing is open is the gateway's to end, a minute later.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::sync::Mutex;

use crate::dial::{Dialled, End, Pinged, dial};
use crate::relay::{UpstreamAddress, UpstreamFiles};

/// A gateway takes 256.
const MOST_ON_ONE: usize = 200;

/// The connections of a client.
pub(super) struct Lines {
    address: UpstreamAddress,
    files: UpstreamFiles,
    known: Mutex<Vec<Known>>,
}

struct Known {
    requests: SendRequest<Bytes>,
    end: End,
    load: Arc<Load>,
}

#[derive(Debug, Default)]
struct Load {
    open: AtomicUsize,
    is_renounced: AtomicBool,
}

/// A request's share in a connection, as long as it is held.
pub(super) struct Line {
    pub(super) requests: SendRequest<Bytes>,
    end: End,
    load: Arc<Load>,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Line")
    }
}

impl Line {
    fn of(known: &Known) -> Self {
        known.load.open.fetch_add(1, Relaxed);
        Self { requests: known.requests.clone(), end: known.end.clone(), load: Arc::clone(&known.load) }
    }

    /// Why a request over it failed.
    pub(super) fn why(&self, error: impl std::fmt::Display) -> String {
        self.end.why(error)
    }

    /// The connection is handed out no more.
    pub(super) fn renounce(&self) {
        self.load.is_renounced.store(true, Relaxed);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.load.open.fetch_sub(1, Relaxed);
    }
}

impl Lines {
    pub(super) fn new(address: UpstreamAddress, files: UpstreamFiles) -> Self {
        Self { address, files, known: Mutex::default() }
    }

    /// One that has room; it is dialled where there is none. The error says where that failed.
    pub(super) async fn line(&self) -> Result<Line, String> {
        // Held over a dial: who comes meanwhile has its room.
        let mut known = self.known.lock().await;
        known.retain(|known| !known.load.is_renounced.load(Relaxed));
        for known in known.iter().filter(|known| known.load.open.load(Relaxed) < MOST_ON_ONE) {
            if known.requests.clone().ready().await.is_ok() {
                return Ok(Line::of(known));
            }
            known.load.is_renounced.store(true, Relaxed);
        }
        let Dialled { requests, end } = Box::pin(dial(&self.address, &self.files, Pinged::Yes)).await?;
        let dialled = Known { requests, end, load: Arc::default() };
        let line = Line::of(&dialled);
        known.push(dialled);
        Ok(line)
    }
}

//! The way from the API to the writer and to the TLS files; the gateway brings it along.
//!
//! This crate knows neither the writer's thread nor who watches files; it knows what may be asked.
//!
//! 1. An ask that can't wait is refused at once: the way is bounded, and it stalls nobody.
//! 2. An answer that does not come within `ANSWERED_WITHIN` is given up.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use gateway_core::desk::{DeskAnswer, DeskAsk, DeskRefusal};

use super::refusal::{Refusal, RefusalWord};

/// Longest that a call waits for a thread of the gateway; each turns at least once a second.
pub(crate) const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// An answer to come.
pub type DeskFuture<T> = Pin<Box<dyn Future<Output = Result<T, DeskAway>> + Send>>;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeskAway {
    /// As many asks wait as may.
    Full,
    /// The thread has ended, or does not answer.
    Gone,
}

/// What a look at the TLS files came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsReload {
    /// Whether the files of the nodes' listener, and of this API, had changed and are in use.
    pub nodes: Result<bool, String>,
    pub control: Result<bool, String>,
}

/// Whom the API asks.
pub trait Desk: Send + Sync + 'static {
    /// Asks the writer.
    fn ask(&self, ask: DeskAsk) -> DeskFuture<DeskAnswer>;
    /// Has the TLS files looked at, now.
    fn reload_tls(&self) -> DeskFuture<TlsReload>;
}

/// Asks, and waits at most `ANSWERED_WITHIN`.
pub(crate) async fn answered<T>(asking: DeskFuture<T>) -> Result<T, Refusal> {
    match tokio::time::timeout(ANSWERED_WITHIN, asking).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(DeskAway::Full)) => Err(Refusal::new(
            RefusalWord::Busy,
            "more is asked for than is worked off; ask again in a second",
        )),
        Ok(Err(DeskAway::Gone)) | Err(_) => {
            let sentence =
                "the gateway does not answer: it ends, waits for its database at its start, or stands still";
            Err(Refusal::new(RefusalWord::Unavailable, sentence))
        }
    }
}

/// What a refusal of the writer is to a caller.
pub(crate) fn refused(refusal: DeskRefusal) -> Refusal {
    match refusal {
        DeskRefusal::NoLease => Refusal::new(
            RefusalWord::Unavailable,
            "the gateway does not hold its lease, so no session is here; ask again when it serves",
        ),
        DeskRefusal::Stopping => {
            Refusal::new(RefusalWord::Conflict, "the gateway stops, which is not taken back: start it anew")
        }
    }
}

//! Handshakes of the API's listener: how many are under way, and which one ends for another.
//!
//! Owns their places; what a handshake does is its task's.
//!
//! 1. At most `MAX_HANDSHAKES` are under way. One more ends the one that is silent for longest: bare TCP connections, however
//!    fast they come, end each other and nobody who has begun to prove itself.
//! 2. Where none is silent, one more ends the oldest when that has stood for a while, and waits until then. So those who
//!    have begun have this long, however many come.
//! 3. A handshake that is over takes no place.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::AbortHandle;

pub(crate) const MAX_HANDSHAKES: usize = 256;
/// How long one that has spoken may stand whoever comes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// What a handshake tells of its peer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Peer(Arc<AtomicBool>);

impl Peer {
    /// It has said how it would prove itself.
    pub(crate) fn has_spoken(&self) {
        self.0.store(true, Relaxed);
    }

    fn is_silent(&self) -> bool {
        !self.0.load(Relaxed)
    }
}

/// Those under way, the oldest first.
pub(crate) struct Handshakes {
    patience: Duration,
    open: VecDeque<Handshake>,
    ended: Arc<Notify>,
}

struct Handshake {
    since: Instant,
    peer: Peer,
    task: AbortHandle,
}

impl Handshakes {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { patience, open: VecDeque::new(), ended: Arc::default() }
    }

    /// Resolves when one more may begin, for which another may have ended.
    pub(crate) async fn place(&mut self) {
        loop {
            self.open.retain(|one| !one.task.is_finished());
            if self.open.len() < MAX_HANDSHAKES {
                return;
            }
            let silent = self.open.iter().position(|one| one.peer.is_silent());
            let stood = self.open.front().map_or(Duration::ZERO, |oldest| oldest.since.elapsed());
            let remaining = self.patience.saturating_sub(stood);
            let goes = silent.or_else(|| remaining.is_zero().then_some(0));
            if let Some(one) = goes.and_then(|at| self.open.remove(at)) {
                one.task.abort();
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(remaining) => {}
                () = self.ended.notified() => {}
            }
        }
    }

    /// One begins, for which there is a place.
    pub(crate) fn begin<F>(&mut self, shake: impl FnOnce(Peer) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (peer, ended) = (Peer::default(), Arc::clone(&self.ended));
        let shaking = shake(peer.clone());
        let task = tokio::spawn(async move {
            shaking.await;
            ended.notify_one();
        });
        self.open.push_back(Handshake { since: Instant::now(), peer, task: task.abort_handle() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that stays; what it gives ends with it.
    async fn stays(handshakes: &mut Handshakes, speaks: bool) -> Arc<()> {
        handshakes.place().await;
        let (held, here) = (Arc::new(()), Arc::new(()));
        let held = (held, Arc::clone(&here));
        handshakes.begin(|peer| async move {
            let _held = held;
            if speaks {
                peer.has_spoken();
            }
            std::future::pending().await
        });
        tokio::task::yield_now().await;
        here
    }

    fn is_there(one: &Arc<()>) -> bool {
        Arc::strong_count(one) > 1
    }

    #[tokio::test]
    async fn silent_peers_end_each_other_and_nobody_who_has_begun() {
        let mut handshakes = Handshakes::new(Duration::from_secs(600));
        let honest = stays(&mut handshakes, true).await;
        let first = stays(&mut handshakes, false).await;
        for _ in 0..10 * MAX_HANDSHAKES {
            stays(&mut handshakes, false).await;
        }
        assert!(is_there(&honest) && !is_there(&first));
        assert_eq!(handshakes.open.len(), MAX_HANDSHAKES);
    }

    #[tokio::test]
    async fn who_has_begun_has_its_time_however_many_come_and_one_more_waits_for_a_place() {
        let patience = Duration::from_secs(1);
        let mut handshakes = Handshakes::new(patience);
        let began = Instant::now();
        let oldest = stays(&mut handshakes, true).await;
        for _ in 2..MAX_HANDSHAKES {
            stays(&mut handshakes, true).await;
        }
        let (end, ends) = tokio::sync::oneshot::channel::<()>();
        handshakes.begin(|peer| async move {
            peer.has_spoken();
            let _ = ends.await;
        });
        tokio::task::yield_now().await;
        assert!(tokio::time::timeout(patience / 4, handshakes.place()).await.is_err(), "all have time");
        end.send(()).unwrap();
        handshakes.place().await;
        assert!(is_there(&oldest), "one that is over gives its place");
        stays(&mut handshakes, true).await;
        handshakes.place().await;
        tokio::task::yield_now().await;
        assert!(!is_there(&oldest) && began.elapsed() >= patience);
    }
}

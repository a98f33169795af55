//! The TLS files, watched: certificates that were renewed on disk reach new handshakes without a restart.
//!
//! A thread of its own reads the files at an interval, and at once when it is asked to. It compares what they hold,
//! not when they were written: files that a symlink swaps in whole (kubelet and cert-manager do that) are like any.
//! There are two sets of them, the nodes' listener's and the control API's; neither concerns the other.
//!
//! 1. Who uses a set gets the new one whole, by message, or nothing: one that can't be read or used changes nothing.
//! 2. A set that is refused is told once in the log, until the files change again; its loop shows it as long as it
//!    is so. Whoever asked for the look is told: by an answer, or by the log where a signal can't be answered. Calls
//!    that change nothing make no lines.
//! 3. Open sessions and connections keep what they were opened with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use gateway_control::api::{ApiTls, TlsReload};
use gateway_core::mail::{Post, PostError};
use gateway_db_writer::LoopStatus;
use gateway_shard::TlsNews;
use gateway_shard::tls::{Serving, TlsMaterial};
use tokio::sync::{oneshot, watch};

use super::api::ApiFiles;
use super::files::TlsFiles;
use crate::config::ConfigError;
use crate::error::GatewayError;

/// What health and the metrics show of one set of files.
#[derive(Debug, Default)]
pub struct TlsStatus {
    /// Looks at the files: one that finds a set that can't be used has failed.
    pub looks: LoopStatus,
    /// Sets that took the place of the one before.
    pub reloads: AtomicU64,
    /// When the certificate that is shown ends, in seconds since 1970; 0 where that is not told.
    pub ends_at: AtomicU64,
}

impl TlsStatus {
    /// This certificate is shown from now on.
    pub fn note_serving(&self, serving: &Serving) {
        self.ends_at.store(serving.ends_at.as_secs(), Ordering::Relaxed);
    }
}

/// A wish for a look, and who is told what it came to, if anybody.
#[derive(Debug, Default)]
pub(super) struct LookAsked(pub(super) Option<oneshot::Sender<TlsReload>>);

/// Files that may change, and what is made of them.
pub(super) trait FileSet {
    /// What listeners get.
    type Material;
    /// Which certificate is shown, for the log and the metrics; `None` where that is not told.
    fn serving(_material: &Self::Material) -> Option<&Serving> {
        None
    }
    /// What they hold, in order.
    fn read(&self) -> Result<Vec<Vec<u8>>, ConfigError>;
    /// What listeners make of that.
    fn material(&self, read: &[Vec<u8>]) -> Result<Self::Material, ConfigError>;
    /// Who gets it, for the log.
    const USERS: &str;
}

/// A set of files, and what was seen of it. Not to be shown: it holds the key.
struct Watched<S> {
    set: S,
    status: Arc<TlsStatus>,
    /// What is in use.
    current: Vec<Vec<u8>>,
    /// What was refused last.
    refused: Option<Refused>,
}

#[derive(PartialEq, Eq)]
enum Refused {
    Unreadable(String),
    Unusable(Vec<Vec<u8>>),
}

impl<S: FileSet> Watched<S> {
    /// What the files make, where they have changed.
    ///
    /// Who sent a `signal` for the look finds an answer in the log, whatever it is.
    fn look(&mut self, signal: bool) -> Result<Option<S::Material>, String> {
        self.status.looks.begin();
        let outcome = self.try_look(signal);
        self.status.looks.end(outcome.as_ref().err().cloned());
        outcome
    }

    fn try_look(&mut self, signal: bool) -> Result<Option<S::Material>, String> {
        let read = self.set.read().map_err(|error| {
            let sentence = sentence(&error);
            self.refuse(Refused::Unreadable(sentence.clone()), &sentence, signal);
            sentence
        })?;
        if read == self.current {
            if self.refused.take().is_some() {
                tracing::info!("the TLS files of {} hold again what is in use", S::USERS);
            } else if signal {
                tracing::info!("the TLS files of {} hold what is in use", S::USERS);
            } else {
                tracing::debug!("the TLS files of {} hold what is in use", S::USERS);
            }
            return Ok(None);
        }
        match self.set.material(&read) {
            Ok(material) => {
                self.current = read;
                self.refused = None;
                self.status.reloads.fetch_add(1, Ordering::Relaxed);
                let serving = S::serving(&material);
                if let Some(serving) = serving {
                    self.status.note_serving(serving);
                }
                tracing::info!(
                    serial = serving.map(|serving| serving.serial.as_str()),
                    until = serving.map(|serving| serving.until.as_str()),
                    "the TLS files of {} have changed: new connections get what they hold, open ones keep theirs",
                    S::USERS
                );
                Ok(Some(material))
            }
            Err(error) => {
                let sentence = sentence(&error);
                self.refuse(Refused::Unusable(read), &sentence, signal);
                Err(sentence)
            }
        }
    }

    fn refuse(&mut self, refused: Refused, sentence: &str, signal: bool) {
        if signal || self.refused.as_ref() != Some(&refused) {
            tracing::error!(
                "the TLS files of {} have changed and can't be used, what was read before stays: {sentence}",
                S::USERS
            );
            self.refused = Some(refused);
        }
    }
}

/// What is watched, and who is told.
pub(super) struct TlsWatch {
    nodes: Watched<TlsFiles>,
    shards: Vec<Post<TlsNews>>,
    /// What shards must still be told, since their boxes were full.
    owed: Option<Arc<TlsMaterial>>,
    api: Option<(Watched<ApiFiles>, watch::Sender<Arc<ApiTls>>)>,
}

impl TlsWatch {
    /// Of files that held this.
    pub(super) fn new(
        files: TlsFiles,
        current: Vec<Vec<u8>>,
        shards: Vec<Post<TlsNews>>,
        status: Arc<TlsStatus>,
    ) -> Self {
        let nodes = Watched { set: files, status, current, refused: None };
        Self { nodes, shards, owed: None, api: None }
    }

    /// Of the control API's files too, which held this.
    pub(super) fn with_api(
        mut self,
        files: ApiFiles,
        current: Vec<Vec<u8>>,
        listener: watch::Sender<Arc<ApiTls>>,
        status: Arc<TlsStatus>,
    ) -> Self {
        self.api = Some((Watched { set: files, status, current, refused: None }, listener));
        self
    }

    /// Watches on a thread of its own, until nobody can ask any more.
    pub(super) fn start(mut self, every: Duration, asked: Receiver<LookAsked>) -> Result<(), GatewayError> {
        let watch = move || {
            loop {
                let (answer, signal) = match asked.recv_timeout(every) {
                    Err(RecvTimeoutError::Disconnected) => return,
                    Ok(LookAsked(answer)) => {
                        let signal = answer.is_none();
                        (answer, signal)
                    }
                    Err(RecvTimeoutError::Timeout) => (None, false),
                };
                let looked = self.look(signal);
                if let Some(answer) = answer {
                    // Who asked may have gone.
                    let _ = answer.send(looked);
                }
            }
        };
        std::thread::Builder::new()
            .name("tls-watch".to_owned())
            .spawn(watch)
            .map(drop)
            .map_err(|error| GatewayError::Machine(format!("the thread tls-watch can't be started: {error}")))
    }

    fn look(&mut self, signal: bool) -> TlsReload {
        let nodes = self.nodes.look(signal).map(|material| {
            let has_changed = material.is_some();
            self.owed = material.map(Arc::new).or(self.owed.take());
            has_changed
        });
        self.tell_owed();
        let control = match &mut self.api {
            None => Ok(false),
            Some((watched, listener)) => watched.look(signal).map(|material| {
                let has_changed = material.is_some();
                material.into_iter().for_each(|tls| drop(listener.send_replace(Arc::new(tls))));
                has_changed
            }),
        };
        TlsReload { nodes, control }
    }

    /// Posts what is owed; a box that is full gets it with the next look.
    fn tell_owed(&mut self) {
        let Some(material) = self.owed.take() else { return };
        for post in &self.shards {
            match post.post(TlsNews(Arc::clone(&material))) {
                Ok(()) | Err(PostError::Gone(_)) => post.ring(),
                Err(PostError::Full(_)) => self.owed = Some(Arc::clone(&material)),
            }
        }
    }
}

fn sentence(error: &ConfigError) -> String {
    let told: Vec<String> =
        error.problems.iter().map(|problem| format!("{} {}", problem.key, problem.sentence)).collect();
    told.join("; ")
}

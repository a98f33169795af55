//! The TLS files, watched: certificates that were renewed on disk reach new handshakes without a restart.
//!
//! A thread of its own reads the files at an interval, and at once when it is asked to. It compares what they hold,
//! not when they were written: files that a symlink swaps in whole (kubelet and cert-manager do that) are like any.
//! There are two sets of them, the nodes' listener's and the control API's; neither concerns the other.
//!
//! 1. Who uses a set gets the new one whole, by message, or nothing: one that can't be read or used changes nothing.
//! 2. A set that is refused is told once in the log, until the files change again; its loop shows it as long as it
//!    is so, and whoever asked for the look is told.
//! 3. Open sessions and connections keep what they were opened with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use gateway_control::api::{ApiTls, TlsReload};
use gateway_core::mail::{Post, PostError};
use gateway_db_writer::LoopStatus;
use gateway_shard::TlsNews;
use gateway_shard::tls::TlsMaterial;
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
}

/// A wish for a look, and who is told what it came to, if anybody.
#[derive(Debug, Default)]
pub(super) struct LookAsked(pub(super) Option<oneshot::Sender<TlsReload>>);

/// Files that may change, and what is made of them.
pub(super) trait FileSet {
    /// What listeners get.
    type Material;
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
    fn look(&mut self) -> Result<Option<S::Material>, String> {
        self.status.looks.begin();
        let outcome = self.try_look();
        self.status.looks.end(outcome.as_ref().err().cloned());
        outcome
    }

    fn try_look(&mut self) -> Result<Option<S::Material>, String> {
        let read = self.set.read().map_err(|error| {
            let sentence = sentence(&error);
            self.refuse(Refused::Unreadable(sentence.clone()), &sentence);
            sentence
        })?;
        if read == self.current {
            if self.refused.take().is_some() {
                tracing::info!("the TLS files of {} hold again what is in use", S::USERS);
            }
            return Ok(None);
        }
        match self.set.material(&read) {
            Ok(material) => {
                self.current = read;
                self.refused = None;
                self.status.reloads.fetch_add(1, Ordering::Relaxed);
                tracing::info!(
                    "the TLS files of {} have changed: new connections get what they hold, open ones keep theirs",
                    S::USERS
                );
                Ok(Some(material))
            }
            Err(error) => {
                let sentence = sentence(&error);
                self.refuse(Refused::Unusable(read), &sentence);
                Err(sentence)
            }
        }
    }

    fn refuse(&mut self, refused: Refused, sentence: &str) {
        if self.refused.as_ref() != Some(&refused) {
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
                let answer = match asked.recv_timeout(every) {
                    Err(RecvTimeoutError::Disconnected) => return,
                    Ok(LookAsked(answer)) => answer,
                    Err(RecvTimeoutError::Timeout) => None,
                };
                let looked = self.look();
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

    fn look(&mut self) -> TlsReload {
        let nodes = self.nodes.look().map(|material| {
            let has_changed = material.is_some();
            self.owed = material.map(Arc::new).or(self.owed.take());
            has_changed
        });
        self.tell_owed();
        let control = match &mut self.api {
            None => Ok(false),
            Some((watched, listener)) => watched.look().map(|material| {
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

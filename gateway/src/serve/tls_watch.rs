//! The TLS files, watched: certificates that were renewed on disk reach new handshakes without a restart.
//!
//! A thread of its own reads the files at an interval, and at once when it is asked to. It compares what they hold,
//! not when they were written: files that a symlink swaps in whole (kubelet and cert-manager do that) are like any.
//!
//! 1. Shards get the new set whole, by message, or nothing: a set that can't be read or used changes nothing.
//! 2. A set that is refused is told once in the log, until the files change again; its loop shows it as long as it
//!    is so.
//! 3. Open sessions keep what they were opened with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use gateway_core::mail::{Post, PostError};
use gateway_db_writer::LoopStatus;
use gateway_shard::TlsNews;
use gateway_shard::tls::TlsMaterial;

use super::files::TlsFiles;
use crate::config::ConfigError;
use crate::error::GatewayError;

/// What health and the metrics show of it.
#[derive(Debug, Default)]
pub struct TlsStatus {
    /// Looks at the files: one that finds a set that can't be used has failed.
    pub looks: LoopStatus,
    /// Sets that took the place of the one before.
    pub reloads: AtomicU64,
}

/// What is watched, and who is told. Not to be shown: it holds the key.
pub(super) struct TlsWatch {
    files: TlsFiles,
    shards: Vec<Post<TlsNews>>,
    status: Arc<TlsStatus>,
    /// What shards have.
    current: Vec<Vec<u8>>,
    /// What was refused last.
    refused: Option<Refused>,
    /// What shards must still be told, since their boxes were full.
    owed: Option<Arc<TlsMaterial>>,
}

#[derive(PartialEq, Eq)]
enum Refused {
    Unreadable(String),
    Unusable(Vec<Vec<u8>>),
}

impl TlsWatch {
    /// Of files that held this.
    pub(super) fn new(
        files: TlsFiles,
        current: Vec<Vec<u8>>,
        shards: Vec<Post<TlsNews>>,
        status: Arc<TlsStatus>,
    ) -> Self {
        Self { files, shards, status, current, refused: None, owed: None }
    }

    /// Watches on a thread of its own, until nobody can ask any more.
    pub(super) fn start(mut self, every: Duration, asked: Receiver<()>) -> Result<(), GatewayError> {
        let watch = move || {
            loop {
                match asked.recv_timeout(every) {
                    Err(RecvTimeoutError::Disconnected) => return,
                    Ok(()) | Err(RecvTimeoutError::Timeout) => self.look(),
                }
            }
        };
        std::thread::Builder::new()
            .name("tls-watch".to_owned())
            .spawn(watch)
            .map(drop)
            .map_err(|error| GatewayError::Machine(format!("the thread tls-watch can't be started: {error}")))
    }

    fn look(&mut self) {
        self.status.looks.begin();
        let outcome = self.try_look();
        self.status.looks.end(outcome.err());
        self.tell_owed();
    }

    fn try_look(&mut self) -> Result<(), String> {
        let read = self.files.read().map_err(|error| {
            let sentence = sentence(&error);
            self.refuse(Refused::Unreadable(sentence.clone()), &sentence);
            sentence
        })?;
        if read == self.current {
            if self.refused.take().is_some() {
                tracing::info!("the TLS files hold again what is in use");
            }
            return Ok(());
        }
        match self.files.material(&read) {
            Ok(material) => {
                self.current = read;
                self.refused = None;
                self.owed = Some(Arc::new(material));
                self.status.reloads.fetch_add(1, Ordering::Relaxed);
                tracing::info!(
                    "the TLS files have changed: new connections get what they hold, open ones keep theirs"
                );
                Ok(())
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
                "the TLS files have changed and can't be used, what was read before stays: {sentence}"
            );
            self.refused = Some(refused);
        }
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

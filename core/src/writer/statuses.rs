//! Statuses as entries of a group commit, and what their outcomes mean.
//!
//! Owns an entry until its session has its one answer. Never knows what a handler does: only that each
//! takes a savepoint.
//!
//! 1. Storing a status twice is harmless, so a batch goes again after any failure.
//! 2. Of one id of a node, at most one status is in a batch, and they commit in order of arrival: the
//!    first that is stored is the one that counts.

use std::time::Duration;

use super::Writer;
use super::batch::{Entry, GroupQueue};
use crate::frame::RejectCode;
use crate::hooks::HookedKinds;
use crate::ids::NodeId;
use crate::limits::Limits;
use crate::mail::Weigh;
use crate::seam::{SessionNews, StatusRequest};
use crate::store::{StatusOutcome, StoreError};
use crate::time::Moment;

/// A status on its way.
#[derive(Debug, Clone)]
pub(super) struct StatusEntry {
    request: StatusRequest,
    savepoints: usize,
}

impl Entry for StatusEntry {
    type Exclusive = (NodeId, String);

    fn exclusive(&self) -> (NodeId, String) {
        (self.request.node.clone(), self.request.status.id.clone())
    }

    fn bytes(&self) -> usize {
        self.request.weight_bytes()
    }

    fn savepoints(&self) -> usize {
        self.savepoints
    }

    fn node(&self) -> &NodeId {
        &self.request.node
    }
}

#[derive(Debug)]
pub(super) struct StatusQueue {
    queue: GroupQueue<StatusEntry>,
    hooked: HookedKinds,
}

impl StatusQueue {
    pub(super) fn new(hooked: HookedKinds) -> Self {
        Self { queue: GroupQueue::new(), hooked }
    }

    fn push(&mut self, request: StatusRequest) {
        let savepoints = self.hooked.of_status(&request.status.kind);
        self.queue.push(StatusEntry { request, savepoints });
    }

    /// Forgets all that waits; the bytes of it.
    pub(super) fn forsake(&mut self) -> usize {
        self.queue.forsake().iter().map(StatusEntry::bytes).sum()
    }

    /// The next batch, which is in flight from here on.
    pub(super) fn poll_batch(&mut self, limits: &Limits, now: Moment) -> Option<Vec<StatusRequest>> {
        let entries = self.queue.poll_batch(limits, now)?;
        Some(entries.into_iter().map(|entry| entry.request).collect())
    }

    pub(super) fn queue(&self) -> &GroupQueue<StatusEntry> {
        &self.queue
    }
}

impl Writer {
    pub(super) fn take_status(&mut self, request: StatusRequest) {
        if self.may_store(request.weight_bytes()) {
            self.statuses.push(request);
        }
    }

    pub(super) fn take_status_outcomes(&mut self, outcomes: &[StatusOutcome], took: Duration) {
        let (entries, forsaken) = self.statuses.queue.handle_committed(outcomes.len());
        self.statuses.queue.note_hooks(entries.iter().map(Entry::savepoints).sum(), took);
        for (entry, outcome) in entries.into_iter().zip(outcomes) {
            self.released_bytes += entry.bytes();
            if !forsaken {
                self.counts.statuses_stored += u64::from(outcome.is_new);
                self.tell(entry.request.key, SessionNews::Stored { state: None });
            }
        }
    }

    pub(super) fn take_status_error(&mut self, error: &StoreError, now: Moment) {
        let setback = self.statuses.queue.handle_failed(error, now);
        if let Some((entry, sentence)) = self.settle_setback(setback) {
            self.not_stored(entry.request.key, RejectCode::NotStorable, sentence);
            self.count_bad_entry(entry.request.key);
        }
    }
}

//! Runs of journals as entries of a group commit, and what their outcomes mean.
//!
//! Owns an entry until its session has its one answer. Never looks at a journal's cursor: a store
//! says what is contiguous.
//!
//! 1. Storing a run twice is harmless, so a run goes again after any failure.
//! 2. A run that the database refuses, and that is alone in its batch, is stored piece by piece, in
//!    order, until the event that is to blame is alone. A tombstone takes its place, and the rest
//!    follows. Only a tombstone that is refused too ends in `NotStored`.
//! 3. A run whose hooks are more than a transaction takes now (see `hook_pace`) goes piece by piece too,
//!    each with company.
//! 4. A session is answered when the last piece is stored. What it weighs is released once.

use std::sync::Arc;
use std::time::Duration;

use super::Writer;
use super::batch::{Entry, GroupQueue, Setback};
use crate::frame::{Event, EventBatch, RefusedEvent, RejectCode};
use crate::hooks::HookedKinds;
use crate::ids::{EventSeq, NodeId, SessionKey};
use crate::limits::Limits;
use crate::mail::Weigh;
use crate::seam::{EventsRequest, SessionNews};
use crate::store::{EventsOutcome, StoreError};
use crate::time::Moment;

/// A run on its way, or the piece of it that is next.
#[derive(Debug, Clone)]
pub(super) struct EventsEntry {
    request: EventsRequest,
    /// Of the piece that is next.
    savepoints: usize,
    /// What follows the piece, the next one last.
    rest: Vec<Arc<EventBatch>>,
    /// Whether the database refused a part of it, so that it shares no batch any more.
    is_suspect: bool,
    /// The first tombstone of the pieces that are stored.
    refused: Option<(EventSeq, RefusedEvent)>,
    /// Of the whole run, as it came.
    bytes: usize,
}

impl Entry for EventsEntry {
    // A session has one durable frame with the writer, so nothing is kept apart: a store takes
    // several runs of one journal in a batch.
    type Exclusive = SessionKey;

    fn exclusive(&self) -> SessionKey {
        self.request.key
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn savepoints(&self) -> usize {
        self.savepoints
    }

    fn node(&self) -> &NodeId {
        &self.request.node
    }
}

/// What became of a batch that did not commit.
#[derive(Debug, Default)]
struct Trouble {
    released_bytes: usize,
    /// A session one of whose events became a tombstone.
    offender: Option<SessionKey>,
    /// A session whose frame can't be stored, not even as a tombstone.
    not_stored: Option<(SessionKey, String)>,
}

#[derive(Debug)]
pub(super) struct EventsQueue {
    queue: GroupQueue<EventsEntry>,
    hooked: HookedKinds,
}

impl EventsQueue {
    pub(super) fn new(hooked: HookedKinds) -> Self {
        Self { queue: GroupQueue::new(), hooked }
    }

    fn push(&mut self, request: EventsRequest) {
        let bytes = request.weight_bytes();
        let savepoints = self.hooked.of_events(&request.batch);
        let mut entry =
            EventsEntry { request, savepoints, rest: Vec::new(), is_suspect: false, refused: None, bytes };
        let at_most = self.queue.savepoints_at_most();
        if savepoints > at_most {
            entry.rest = fitting_pieces(&entry.request.batch, &self.hooked, at_most);
            entry.rest.reverse();
            self.take_next_piece(&mut entry);
        }
        self.queue.push(entry);
    }

    /// Makes the next piece of an entry the one that is to be stored. Whether there is one.
    fn take_next_piece(&self, entry: &mut EventsEntry) -> bool {
        let Some(next) = entry.rest.pop() else { return false };
        entry.savepoints = self.hooked.of_events(&next);
        entry.request.batch = next;
        true
    }

    /// A piece of an entry is stored: its next one goes, or there is none and the entry is given back.
    fn go_on(&mut self, mut entry: EventsEntry) -> Option<EventsEntry> {
        if !self.take_next_piece(&mut entry) {
            return Some(entry);
        }
        if entry.is_suspect {
            self.queue.push_first(entry);
        } else {
            self.queue.push(entry);
        }
        None
    }

    /// Forgets all that waits; the bytes of it.
    pub(super) fn forsake(&mut self) -> usize {
        self.queue.forsake().iter().map(|entry| entry.bytes).sum()
    }

    fn handle_failed(&mut self, error: &StoreError, now: Moment) -> Trouble {
        let mut trouble = Trouble::default();
        match self.queue.handle_failed(error, now) {
            Setback::GoesAgain => {}
            Setback::Forsaken(entries) => {
                trouble.released_bytes = entries.iter().map(|entry| entry.bytes).sum();
            }
            Setback::Bad(mut entry, sentence) => {
                let key = entry.request.key;
                let narrowed = narrow(&mut entry, &sentence);
                entry.savepoints = self.hooked.of_events(&entry.request.batch);
                entry.is_suspect = true;
                match narrowed {
                    Narrowed::Halved => self.queue.push_first(entry),
                    Narrowed::Tombstone => {
                        trouble.offender = Some(key);
                        self.queue.push_first(entry);
                    }
                    Narrowed::Hopeless => {
                        trouble.released_bytes = entry.bytes;
                        trouble.not_stored = Some((key, sentence));
                    }
                }
            }
        }
        trouble
    }

    // -- outputs and getters ---------------------------------------------------------------------

    /// The next batch, which is in flight from here on.
    pub(super) fn poll_batch(&mut self, limits: &Limits, now: Moment) -> Option<Vec<EventsRequest>> {
        let entries = self.queue.poll_batch(limits, now)?;
        Some(entries.into_iter().map(|entry| entry.request).collect())
    }

    pub(super) fn queue(&self) -> &GroupQueue<EventsEntry> {
        &self.queue
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Narrowed {
    Halved,
    Tombstone,
    Hopeless,
}

/// Makes of a refused piece its first half, or of a refused event a tombstone.
fn narrow(entry: &mut EventsEntry, sentence: &str) -> Narrowed {
    let batch = &entry.request.batch;
    match batch.events.as_slice() {
        [] => Narrowed::Hopeless,
        [only] if only.refused.is_some() => Narrowed::Hopeless,
        [only] => {
            let mut event = only.clone();
            event.refuse(RejectCode::NotStorable, sentence.to_owned());
            entry.request.batch = piece(batch, &[event]);
            Narrowed::Tombstone
        }
        events => {
            let (first, second) = events.split_at(events.len() / 2);
            let (first, second) = (piece(batch, first), piece(batch, second));
            entry.rest.push(second);
            entry.request.batch = first;
            Narrowed::Halved
        }
    }
}

/// A run in pieces, in order, each of which takes `at_most` so many savepoints, or is one event.
fn fitting_pieces(whole: &EventBatch, hooked: &HookedKinds, at_most: usize) -> Vec<Arc<EventBatch>> {
    let mut pieces = Vec::new();
    let (mut begin, mut savepoints) = (0, 0);
    for (place, event) in whole.events.iter().enumerate() {
        let more = hooked.of_event(event);
        if savepoints > 0 && savepoints + more > at_most {
            pieces.push(piece(whole, &whole.events[begin..place]));
            (begin, savepoints) = (place, 0);
        }
        savepoints += more;
    }
    pieces.push(piece(whole, &whole.events[begin..]));
    pieces
}

fn piece(whole: &EventBatch, events: &[Event]) -> Arc<EventBatch> {
    Arc::new(EventBatch {
        frame_ref: whole.frame_ref,
        journal: whole.journal.clone(),
        boot_id: whole.boot_id.clone(),
        events: events.to_vec(),
    })
}

fn first_refused(batch: &EventBatch) -> Option<(EventSeq, RefusedEvent)> {
    batch.events.iter().find_map(|event| Some((event.seq, event.refused.clone()?)))
}

impl Writer {
    pub(super) fn take_events(&mut self, request: EventsRequest) {
        if self.may_store(request.weight_bytes()) {
            self.events.push(request);
        }
    }

    pub(super) fn take_events_outcomes(&mut self, outcomes: Vec<EventsOutcome>, took: Duration) {
        let (entries, forsaken) = self.events.queue.handle_committed(outcomes.len());
        self.events.queue.note_hooks(entries.iter().map(Entry::savepoints).sum(), took);
        for (mut entry, EventsOutcome { acked }) in entries.into_iter().zip(outcomes) {
            if forsaken {
                self.released_bytes += entry.bytes;
                continue;
            }
            let batch = Arc::clone(&entry.request.batch);
            entry.refused = entry.refused.take().or_else(|| first_refused(&batch));
            let refused = batch.events.iter().filter(|event| event.refused.is_some() && event.seq <= acked);
            self.counts.events_refused += refused.count() as u64;
            let Some(entry) = self.events.go_on(entry) else { continue };
            self.counts.event_batches_stored += 1;
            self.released_bytes += entry.bytes;
            let refused = entry.refused.filter(|(seq, _)| *seq <= acked);
            let journal = batch.journal.clone();
            self.tell(entry.request.key, SessionNews::EventsStored { journal, acked, refused });
        }
    }

    pub(super) fn take_events_error(&mut self, error: &StoreError, now: Moment) {
        let trouble = self.events.handle_failed(error, now);
        self.released_bytes += trouble.released_bytes;
        if let Some((key, sentence)) = trouble.not_stored {
            self.not_stored(key, RejectCode::NotStorable, sentence);
            self.count_bad_entry(key);
        }
        if let Some(key) = trouble.offender {
            self.count_bad_entry(key);
        }
    }
}

//! Group commit of one queue: what gathers, what is in flight, and what must go again.
//!
//! Owns the entries from the moment they are taken from a shard until their outcome is known. Never
//! looks into them, but for the three things that shape a batch: what excludes another entry from the
//! same batch, bytes, and savepoints.
//!
//! 1. One batch is in flight; the next gathers meanwhile. A lone entry leaves at once.
//! 2. A batch holds at most `batch_entries` entries, `batch_bytes` bytes (or one entry), `MAX_SAVEPOINTS`
//!    savepoints (or one entry), and no two that exclude each other; of two that do, the earlier goes
//!    first. An entry whose savepoints don't fit waits; those behind it that need none pass it.
//! 3. A batch that failed goes again before anything newer: whole after `Retry` and
//!    `OutcomeUnknown`, in halves after `Rejected`, down to the one entry that is to blame.
//! 4. What was forsaken by a fence is handed back with its outcome, marked so.

use std::collections::{BTreeMap, BTreeSet};

use super::backoff::Backoff;
use crate::limits::{Limits, MAX_SAVEPOINTS};
use crate::store::StoreError;
use crate::time::Moment;

/// What can be group-committed.
pub(super) trait Entry: Clone {
    /// Entries with the same one never share a batch.
    type Exclusive: Ord;

    fn exclusive(&self) -> Self::Exclusive;
    fn bytes(&self) -> usize;

    /// Savepoints that storing it takes.
    fn savepoints(&self) -> usize {
        0
    }
}

/// An entry's place among those that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

#[derive(Debug)]
struct Flight<T> {
    entries: Vec<T>,
    forsaken: bool,
}

#[derive(Debug)]
pub(super) struct GroupQueue<T> {
    waiting: BTreeMap<Ticket, T>,
    next_ticket: u64,
    /// Batches that go again, the next one last.
    again: Vec<Vec<T>>,
    in_flight: Option<Flight<T>>,
    backoff: Backoff,
}

/// What became of a batch in flight that did not commit.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Setback<T> {
    /// Its entries go again; nobody is told anything.
    GoesAgain,
    /// This entry alone is refused by the database, with its sentence.
    Bad(T, String),
    /// The batch was forsaken; nothing goes again.
    Forsaken(Vec<T>),
}

impl<T: Entry> GroupQueue<T> {
    pub(super) fn new() -> Self {
        Self {
            waiting: BTreeMap::new(),
            next_ticket: 0,
            again: Vec::new(),
            in_flight: None,
            backoff: Backoff::for_queue(),
        }
    }

    pub(super) fn push(&mut self, entry: T) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.waiting.insert(ticket, entry);
        ticket
    }

    /// Puts a newer entry in the place of one that is not yet in a batch.
    pub(super) fn replace(&mut self, ticket: Ticket, entry: T) {
        self.waiting.insert(ticket, entry);
    }

    /// The entry that waits at that place.
    pub(super) fn waiting(&self, ticket: Ticket) -> Option<&T> {
        self.waiting.get(&ticket)
    }

    /// Takes an entry back that is not yet in a batch.
    pub(super) fn withdraw(&mut self, ticket: Ticket) -> Option<T> {
        self.waiting.remove(&ticket)
    }

    /// Drops entries that would go again and are not worth it any more.
    pub(super) fn drop_from_again(&mut self, mut unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut dropped = Vec::new();
        for batch in &mut self.again {
            dropped.extend(batch.extract_if(.., |entry| unwanted(entry)));
        }
        self.again.retain(|batch| !batch.is_empty());
        dropped
    }

    /// The next batch, which is in flight from here on.
    pub(super) fn poll_batch(&mut self, limits: &Limits, now: Moment) -> Option<Vec<T>> {
        if self.in_flight.is_some() || !self.backoff.is_ready(now) {
            return None;
        }
        let entries = match self.again.pop() {
            Some(entries) => entries,
            None => self.gather(limits),
        };
        if entries.is_empty() {
            return None;
        }
        self.in_flight = Some(Flight { entries: entries.clone(), forsaken: false });
        Some(entries)
    }

    fn gather(&mut self, limits: &Limits) -> Vec<T> {
        let mut taken = BTreeSet::new();
        let mut tickets = Vec::new();
        let (mut bytes, mut savepoints) = (0_usize, 0);
        for (ticket, entry) in &self.waiting {
            bytes = bytes.saturating_add(entry.bytes());
            let full = tickets.len() == limits.batch_entries || bytes > limits.batch_bytes;
            if full && !tickets.is_empty() {
                break;
            }
            let fits = tickets.is_empty() || savepoints + entry.savepoints() <= MAX_SAVEPOINTS;
            // What excludes the entry is asked even of one that does not fit: the later of two must not pass it.
            if taken.insert(entry.exclusive()) && fits {
                savepoints += entry.savepoints();
                tickets.push(*ticket);
            } else {
                bytes -= entry.bytes();
            }
        }
        tickets.iter().filter_map(|ticket| self.waiting.remove(ticket)).collect()
    }

    /// Puts an entry that was looked at alone back, to be the next batch.
    pub(super) fn push_first(&mut self, entry: T) {
        self.again.push(vec![entry]);
    }

    /// The batch in flight committed, with one outcome for each of `slots` entries. Gives the
    /// entries and whether they were forsaken.
    pub(super) fn handle_committed(&mut self, slots: usize) -> (Vec<T>, bool) {
        let flight = self.in_flight.take().expect("an outcome follows its job");
        assert_eq!(flight.entries.len(), slots, "a store answers slot for slot");
        self.backoff.handle_success();
        (flight.entries, flight.forsaken)
    }

    /// The batch in flight did not commit, or nobody knows; it is safe to commit it again.
    pub(super) fn handle_failed(&mut self, error: &StoreError, now: Moment) -> Setback<T> {
        let mut flight = self.in_flight.take().expect("an outcome follows its job");
        let rejected = matches!(error, StoreError::Rejected(_));
        if rejected {
            self.backoff.handle_success();
            self.backoff.note(error.to_string());
        } else {
            self.backoff.handle_failure(error, now);
        }
        if flight.forsaken {
            return Setback::Forsaken(flight.entries);
        }
        if rejected && flight.entries.len() == 1 {
            let StoreError::Rejected(sentence) = error else { return Setback::GoesAgain };
            return match flight.entries.pop() {
                Some(entry) => Setback::Bad(entry, sentence.clone()),
                None => Setback::GoesAgain,
            };
        }
        if rejected {
            let second = flight.entries.split_off(flight.entries.len() / 2);
            self.again.push(second);
        }
        self.again.push(flight.entries);
        Setback::GoesAgain
    }

    /// The routing transaction committed nothing because the lease is gone.
    pub(super) fn handle_lease_lost(&mut self) -> (Vec<T>, bool) {
        let flight = self.in_flight.take().expect("an outcome follows its job");
        self.backoff.handle_success();
        (flight.entries, flight.forsaken)
    }

    /// Forgets all that waits and hands it back; what is in flight is only marked.
    pub(super) fn forsake(&mut self) -> Vec<T> {
        if let Some(flight) = &mut self.in_flight {
            flight.forsaken = true;
        }
        let mut dropped: Vec<T> = self.again.drain(..).flatten().collect();
        dropped.extend(std::mem::take(&mut self.waiting).into_values());
        dropped
    }

    /// Entries that are not in flight.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.again.iter().map(Vec::len).sum::<usize>()
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.again.is_empty() && self.waiting.is_empty()
    }

    pub(super) fn backoff(&self) -> &Backoff {
        &self.backoff
    }

    /// When a job that waits for its back-off may start.
    pub(super) fn next_deadline(&self) -> Option<Moment> {
        (self.in_flight.is_none() && !self.is_idle()).then(|| self.backoff.ready_at())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Parcel {
        name: u32,
        group: u32,
        bytes: usize,
        savepoints: usize,
    }

    impl Entry for Parcel {
        type Exclusive = u32;
        fn exclusive(&self) -> u32 {
            self.group
        }
        fn bytes(&self) -> usize {
            self.bytes
        }
        fn savepoints(&self) -> usize {
            self.savepoints
        }
    }

    fn parcel(name: u32) -> Parcel {
        Parcel { name, group: name, bytes: 1, savepoints: 0 }
    }

    fn names(batch: Option<Vec<Parcel>>) -> Vec<u32> {
        batch.unwrap_or_default().iter().map(|parcel| parcel.name).collect()
    }

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    fn limits(batch_entries: usize, batch_bytes: usize) -> Limits {
        Limits { batch_entries, batch_bytes, ..Limits::default() }
    }

    #[test]
    fn the_next_batch_gathers_while_one_is_in_flight() {
        let limits = limits(3, 100);
        let mut queue = GroupQueue::new();
        queue.push(parcel(0));
        assert_eq!(names(queue.poll_batch(&limits, at(0))), [0], "a lone entry does not wait");
        (1..6).for_each(|name| {
            queue.push(parcel(name));
        });
        assert_eq!(queue.poll_batch(&limits, at(0)), None);
        queue.handle_committed(1);
        assert_eq!(names(queue.poll_batch(&limits, at(0))), [1, 2, 3]);
        queue.handle_committed(3);
        assert_eq!(names(queue.poll_batch(&limits, at(0))), [4, 5]);
    }

    #[test]
    fn bytes_end_a_batch_but_one_entry_always_passes() {
        let limits = limits(10, 5);
        let mut queue = GroupQueue::new();
        for (name, bytes) in [(0, 50), (1, 3), (2, 2), (3, 1)] {
            queue.push(Parcel { bytes, ..parcel(name) });
        }
        for expected in [vec![0], vec![1, 2], vec![3]] {
            let batch = queue.poll_batch(&limits, at(0));
            let slots = batch.as_ref().map_or(0, Vec::len);
            assert_eq!(names(batch), expected);
            queue.handle_committed(slots);
        }
    }

    #[test]
    fn entries_that_exclude_each_other_go_one_after_the_other() {
        let limits = limits(10, 100);
        let mut queue = GroupQueue::new();
        for (name, group) in [(0, 7), (1, 7), (2, 8), (3, 7)] {
            queue.push(Parcel { group, ..parcel(name) });
        }
        for expected in [vec![0, 2], vec![1], vec![3]] {
            let batch = queue.poll_batch(&limits, at(0));
            let slots = batch.as_ref().map_or(0, Vec::len);
            assert_eq!(names(batch), expected);
            queue.handle_committed(slots);
        }
        assert!(queue.is_idle());
    }

    #[test]
    fn savepoints_of_a_batch_are_few_and_what_needs_none_does_not_wait_for_it() {
        let limits = limits(10, 1000);
        let mut queue = GroupQueue::new();
        // 4 excludes 2, which has to wait: it must not overtake it.
        for (name, savepoints) in [(0, 20), (1, 0), (2, 41), (3, 40), (4, 0), (5, 0)] {
            let group = if name == 4 { 2 } else { name };
            queue.push(Parcel { savepoints, group, ..parcel(name) });
        }
        for expected in [vec![0, 1, 3, 5], vec![2], vec![4]] {
            let batch = queue.poll_batch(&limits, at(0));
            let slots = batch.as_ref().map_or(0, Vec::len);
            assert_eq!(names(batch), expected);
            queue.handle_committed(slots);
        }
        queue.push(Parcel { savepoints: 1000, ..parcel(7) });
        assert_eq!(names(queue.poll_batch(&limits, at(0))), [7], "one entry always passes");
    }

    #[test]
    fn one_bad_entry_fails_alone_and_all_others_commit() {
        for bad in 0..13 {
            let limits = limits(500, 1000);
            let mut queue = GroupQueue::new();
            (0..13).for_each(|name| {
                queue.push(parcel(name));
            });
            let mut committed = Vec::new();
            let mut blamed = Vec::new();
            while let Some(batch) = queue.poll_batch(&limits, at(0)) {
                if batch.iter().any(|parcel| parcel.name == bad) {
                    if let Setback::Bad(parcel, _) =
                        queue.handle_failed(&StoreError::Rejected("bad".into()), at(0))
                    {
                        blamed.push(parcel.name);
                    }
                } else {
                    committed.extend(queue.handle_committed(batch.len()).0.iter().map(|parcel| parcel.name));
                }
            }
            assert_eq!(blamed, [bad]);
            assert_eq!(committed, (0..13).filter(|name| *name != bad).collect::<Vec<_>>(), "in order");
        }
    }

    #[test]
    fn a_database_that_is_away_is_no_bad_entry() {
        let limits = limits(10, 100);
        let mut queue = GroupQueue::new();
        queue.push(parcel(0));
        queue.push(parcel(1));
        queue.poll_batch(&limits, at(0));
        queue.push(parcel(2));
        let away = StoreError::Retry("away".into());
        assert_eq!(queue.handle_failed(&away, at(0)), Setback::GoesAgain);
        assert_eq!(queue.poll_batch(&limits, at(49)), None);
        assert_eq!(queue.next_deadline(), Some(at(50)));
        assert_eq!(names(queue.poll_batch(&limits, at(50))), [0, 1]);
    }

    #[test]
    fn what_a_fence_forsook_does_not_go_again() {
        let limits = limits(1, 100);
        let mut queue = GroupQueue::new();
        (0..3).for_each(|name| {
            queue.push(parcel(name));
        });
        queue.poll_batch(&limits, at(0));
        assert_eq!(queue.forsake().len(), 2);
        let away = StoreError::Retry("away".into());
        assert_eq!(queue.handle_failed(&away, at(0)), Setback::Forsaken(vec![parcel(0)]));
        assert!(queue.is_idle());
    }
}

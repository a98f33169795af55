//! Group commit of one queue: what gathers, what is in flight, and what must go again.
//!
//! Owns the entries from the moment they are taken from a shard until their outcome is known. Never
//! looks into them, but for the few things that shape a batch: what excludes another entry from the
//! same batch, bytes, savepoints, and whose it is.
//!
//! 1. One batch is in flight; the next gathers meanwhile. A lone entry leaves at once.
//! 2. A batch holds at most `batch_entries` entries, `batch_bytes` bytes (or one entry), the savepoints of
//!    `hook_pace` (or one entry), and no two that exclude each other, unless the later joins the one before it;
//!    the earlier goes first. An entry whose savepoints don't fit waits; those behind it that need none pass it.
//! 3. A batch that failed goes again before anything newer: whole after `Retry` and
//!    `OutcomeUnknown`, in halves after `Rejected`, down to the one entry that is to blame.
//! 4. What was forsaken by a fence is handed back with its outcome, marked so.
//! 5. Entries of suspects (see `suspects`) stand in a line of their own, and share a batch with none but
//!    each other. The two lines take turns, batch by batch, what goes again included: with a node that
//!    makes nothing but bad entries, all others lose one short job in two. All that a node has
//!    waiting is in one line, in order of arrival.

use std::collections::BTreeMap;
use std::time::Duration;

use super::backoff::Backoff;
use super::hook_pace::HookPace;
use super::suspects::Suspects;
use crate::ids::NodeId;
use crate::limits::{Limits, MAX_SUSPECT_BATCH_ENTRIES};
use crate::store::StoreError;
use crate::time::Moment;

/// What can be group-committed.
pub(super) trait Entry: Clone {
    /// Entries with the same one share no batch, but for those that join one another.
    type Exclusive: Ord;

    fn exclusive(&self) -> Self::Exclusive;

    /// Whether it may stand in one batch with the last entry before it that excludes it.
    fn joins(&self, _earlier: &Self) -> bool {
        false
    }

    fn bytes(&self) -> usize;

    /// Savepoints that storing it takes.
    fn savepoints(&self) -> usize {
        0
    }

    /// Whose it is.
    fn node(&self) -> &NodeId;
}

/// An entry's place among those that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

#[derive(Debug)]
struct Flight<T> {
    entries: Vec<T>,
    of: Standing,
    forsaken: bool,
}

/// Which line an entry stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Trusted,
    Suspected,
}

/// What a batch holds at most.
#[derive(Debug, Clone, Copy)]
struct Most {
    entries: usize,
    bytes: usize,
    savepoints: usize,
}

#[derive(Debug)]
struct Line<T> {
    waiting: BTreeMap<Ticket, T>,
    /// Batches that go again, the next one last.
    again: Vec<Vec<T>>,
}

#[derive(Debug)]
pub(super) struct GroupQueue<T> {
    trusted: Line<T>,
    suspected: Line<T>,
    suspects: Suspects,
    next_ticket: u64,
    /// Whose turn it is, where both have something.
    turn: Standing,
    in_flight: Option<Flight<T>>,
    backoff: Backoff,
    pace: HookPace,
}

impl Standing {
    const fn other(self) -> Self {
        match self {
            Self::Trusted => Self::Suspected,
            Self::Suspected => Self::Trusted,
        }
    }
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

impl<T: Entry> Line<T> {
    const fn new() -> Self {
        Self { waiting: BTreeMap::new(), again: Vec::new() }
    }

    fn next_batch(&mut self, most: Most) -> Vec<T> {
        match self.again.pop() {
            Some(entries) => entries,
            None => self.gather(most),
        }
    }

    fn gather(&mut self, most: Most) -> Vec<T> {
        // With who may be joined; `None` where whoever comes next has to wait.
        let mut taken: BTreeMap<T::Exclusive, Option<&T>> = BTreeMap::new();
        let mut tickets = Vec::new();
        let (mut bytes, mut savepoints) = (0_usize, 0);
        for (ticket, entry) in &self.waiting {
            bytes = bytes.saturating_add(entry.bytes());
            let full = tickets.len() == most.entries || bytes > most.bytes;
            if full && !tickets.is_empty() {
                break;
            }
            let fits = tickets.is_empty() || savepoints + entry.savepoints() <= most.savepoints;
            let exclusive = entry.exclusive();
            let may_share = match taken.get(&exclusive) {
                None => true,
                Some(earlier) => earlier.is_some_and(|earlier| entry.joins(earlier)),
            };
            let goes = fits && may_share;
            if goes {
                savepoints += entry.savepoints();
                tickets.push(*ticket);
            } else {
                bytes -= entry.bytes();
            }
            // One that waits is kept too: what it excludes must not pass it.
            taken.insert(exclusive, goes.then_some(entry));
        }
        tickets.iter().filter_map(|ticket| self.waiting.remove(ticket)).collect()
    }

    /// Takes out of what goes again, in its order.
    fn drop_from_again(&mut self, mut unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut dropped = Vec::new();
        for batch in self.again.iter_mut().rev() {
            dropped.extend(batch.extract_if(.., |entry| unwanted(entry)));
        }
        self.again.retain(|batch| !batch.is_empty());
        dropped
    }

    fn len(&self) -> usize {
        self.waiting.len() + self.again.iter().map(Vec::len).sum::<usize>()
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.again.is_empty()
    }

    fn drain(&mut self) -> Vec<T> {
        let mut entries: Vec<T> = self.again.drain(..).flatten().collect();
        entries.extend(std::mem::take(&mut self.waiting).into_values());
        entries
    }
}

impl<T: Entry> GroupQueue<T> {
    pub(super) fn new() -> Self {
        Self {
            trusted: Line::new(),
            suspected: Line::new(),
            suspects: Suspects::default(),
            next_ticket: 0,
            turn: Standing::Trusted,
            in_flight: None,
            backoff: Backoff::for_queue(),
            pace: HookPace::new(),
        }
    }

    fn standing(&self, entry: &T) -> Standing {
        if self.suspects.has(entry.node()) { Standing::Suspected } else { Standing::Trusted }
    }

    fn line(&mut self, standing: Standing) -> &mut Line<T> {
        match standing {
            Standing::Trusted => &mut self.trusted,
            Standing::Suspected => &mut self.suspected,
        }
    }

    pub(super) fn push(&mut self, entry: T) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let standing = self.standing(&entry);
        self.line(standing).waiting.insert(ticket, entry);
        ticket
    }

    /// Puts a newer entry in the place of one that is not yet in a batch.
    pub(super) fn replace(&mut self, ticket: Ticket, entry: T) {
        let standing = self.standing(&entry);
        self.line(standing).waiting.insert(ticket, entry);
    }

    /// The entry that waits at that place.
    pub(super) fn waiting(&self, ticket: Ticket) -> Option<&T> {
        self.trusted.waiting.get(&ticket).or_else(|| self.suspected.waiting.get(&ticket))
    }

    /// Takes an entry back that is not yet in a batch.
    pub(super) fn withdraw(&mut self, ticket: Ticket) -> Option<T> {
        self.trusted.waiting.remove(&ticket).or_else(|| self.suspected.waiting.remove(&ticket))
    }

    /// Drops entries that would go again and are not worth it any more.
    pub(super) fn drop_from_again(&mut self, mut unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut dropped = self.trusted.drop_from_again(&mut unwanted);
        dropped.extend(self.suspected.drop_from_again(&mut unwanted));
        dropped
    }

    /// The next batch, which is in flight from here on.
    pub(super) fn poll_batch(&mut self, limits: &Limits, now: Moment) -> Option<Vec<T>> {
        if self.in_flight.is_some() || !self.backoff.is_ready(now) {
            return None;
        }
        let mut of = self.turn;
        if self.line(of).is_empty() {
            of = of.other();
        }
        let entries = match of {
            Standing::Trusted => limits.batch_entries,
            Standing::Suspected => limits.batch_entries.min(MAX_SUSPECT_BATCH_ENTRIES),
        };
        let most = Most { entries, bytes: limits.batch_bytes, savepoints: self.pace.at_most() };
        let entries = self.line(of).next_batch(most);
        if entries.is_empty() {
            return None;
        }
        self.turn = of.other();
        self.in_flight = Some(Flight { entries: entries.clone(), of, forsaken: false });
        Some(entries)
    }

    /// Puts an entry that was looked at alone back, to be the next batch of its line.
    pub(super) fn push_first(&mut self, entry: T) {
        let standing = self.standing(&entry);
        self.line(standing).again.push(vec![entry]);
    }

    /// An entry of the node was refused: from now on it stands with the suspects, with all that it has.
    fn suspect(&mut self, node: &NodeId) {
        self.suspects.handle_bad(node);
        let again = self.trusted.drop_from_again(|entry| entry.node() == node);
        if !again.is_empty() {
            // Below what goes again there: none of that is this node's.
            self.suspected.again.insert(0, again);
        }
        let waiting = self.trusted.waiting.extract_if(.., |_, entry| entry.node() == node);
        self.suspected.waiting.extend(waiting);
        while let Some(forgotten) = self.suspects.poll_forgotten() {
            self.trust(&forgotten);
        }
    }

    /// The node is no suspect any more: all that it has goes back, what goes again before what waits.
    fn trust(&mut self, node: &NodeId) {
        let again = self.suspected.drop_from_again(|entry| entry.node() == node);
        if !again.is_empty() {
            self.trusted.again.insert(0, again);
        }
        let waiting = self.suspected.waiting.extract_if(.., |_, entry| entry.node() == node);
        self.trusted.waiting.extend(waiting);
    }

    /// The batch in flight committed, with one outcome for each of `slots` entries. Gives the
    /// entries and whether they were forsaken.
    pub(super) fn handle_committed(&mut self, slots: usize) -> (Vec<T>, bool) {
        let flight = self.in_flight.take().expect("an outcome follows its job");
        assert_eq!(flight.entries.len(), slots, "a store answers slot for slot");
        self.backoff.handle_success();
        if flight.of == Standing::Suspected {
            for entry in &flight.entries {
                if self.suspects.handle_good(entry.node()) {
                    self.trust(entry.node());
                }
            }
        }
        (flight.entries, flight.forsaken)
    }

    /// A batch that committed, with so many savepoints, took so long.
    pub(super) fn note_hooks(&mut self, savepoints: usize, took: Duration) {
        self.pace.handle_run(savepoints, took);
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
                Some(entry) => {
                    self.suspect(entry.node());
                    Setback::Bad(entry, sentence.clone())
                }
                None => Setback::GoesAgain,
            };
        }
        let second = rejected.then(|| flight.entries.split_off(flight.entries.len() / 2));
        let again = &mut self.line(flight.of).again;
        again.extend(second);
        again.push(flight.entries);
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
        let mut dropped = self.trusted.drain();
        dropped.extend(self.suspected.drain());
        dropped
    }

    /// Savepoints that the next batch takes at most.
    pub(super) const fn savepoints_at_most(&self) -> usize {
        self.pace.at_most()
    }

    /// Entries that are not in flight.
    pub(super) fn len(&self) -> usize {
        self.trusted.len() + self.suspected.len()
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.trusted.is_empty() && self.suspected.is_empty()
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
    use crate::limits::GOOD_ENTRIES_OF_A_SUSPECT;
    use crate::writer::testing::node;

    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Parcel {
        name: u32,
        group: u32,
        bytes: usize,
        savepoints: usize,
        node: NodeId,
        joins: bool,
    }

    impl Entry for Parcel {
        type Exclusive = u32;
        fn exclusive(&self) -> u32 {
            self.group
        }
        fn bytes(&self) -> usize {
            self.bytes
        }
        fn joins(&self, _: &Self) -> bool {
            self.joins
        }

        fn savepoints(&self) -> usize {
            self.savepoints
        }

        fn node(&self) -> &NodeId {
            &self.node
        }
    }

    fn parcel(name: u32) -> Parcel {
        let node = node(&format!("node{name}"));
        Parcel { name, group: name, bytes: 1, savepoints: 0, node, joins: false }
    }

    fn of_node(name: u32, of: &str) -> Parcel {
        Parcel { node: node(of), ..parcel(name) }
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
    fn entries_join_the_one_before_them_but_none_that_waits_for_another() {
        let limits = limits(10, 1000);
        let mut queue = GroupQueue::new();
        // In group 0 all join. In group 1 the third would join the second, which waits.
        for (name, group, joins) in
            [(0, 0, false), (1, 1, false), (2, 0, true), (3, 1, false), (4, 1, true), (5, 0, true)]
        {
            queue.push(Parcel { group, joins, ..parcel(name) });
        }
        for expected in [vec![0, 1, 2, 5], vec![3, 4]] {
            let batch = queue.poll_batch(&limits, at(0));
            let slots = batch.as_ref().map_or(0, Vec::len);
            assert_eq!(names(batch), expected);
            queue.handle_committed(slots);
        }
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

    /// Commits or refuses the next batch, by whether one of `bad` is in it; its names and what was blamed.
    fn step(queue: &mut GroupQueue<Parcel>, bad: impl Fn(u32) -> bool) -> (Vec<u32>, Option<u32>) {
        let batch = names(queue.poll_batch(&limits(500, 10_000), at(0)));
        if batch.iter().any(|name| bad(*name)) {
            return match queue.handle_failed(&StoreError::Rejected("bad".into()), at(0)) {
                Setback::Bad(parcel, _) => (batch, Some(parcel.name)),
                _ => (batch, None),
            };
        }
        queue.handle_committed(batch.len());
        (batch, None)
    }

    #[test]
    fn five_hundred_good_entries_share_one_batch_with_a_bad_node_and_no_second() {
        let mut queue = GroupQueue::new();
        // All that node `bad` sends is bad.
        let is_bad = |name: u32| name % 500 == 499;
        for turn in 0..20 {
            for name in turn * 500..(turn + 1) * 500 {
                let of = if is_bad(name) { "bad".to_owned() } else { format!("good{}", name % 500) };
                queue.push(of_node(name, &of));
            }
            let (mut jobs, mut carried, mut stored, mut blamed) = (0, 0, 0, Vec::new());
            while !queue.is_idle() {
                let (batch, bad) = step(&mut queue, is_bad);
                jobs += 1;
                carried += batch.len();
                stored += if batch.iter().any(|name| is_bad(*name)) { 0 } else { batch.len() };
                blamed.extend(bad);
            }
            assert_eq!((stored, blamed), (499, vec![turn * 500 + 499]));
            if turn == 0 {
                // Each level of the search: the half that is refused, and the half that is stored.
                assert!(jobs <= 2 * 9 + 1, "{jobs} jobs to find one bad entry");
                assert!(carried <= 500 * 3, "{carried} entries in them");
            } else {
                assert_eq!((jobs, carried), (2, 500), "one batch of all that is good, one of what is bad");
            }
        }
    }

    #[test]
    fn a_crowd_of_suspects_holds_up_every_second_job_at_most_and_with_a_small_one() {
        let mut queue = GroupQueue::new();
        let is_bad = |name: u32| name >= 1_000_000;
        (0..200).for_each(|name| {
            queue.push(of_node(1_000_000 + name, &format!("bad{name}")));
        });
        while !queue.is_idle() {
            step(&mut queue, is_bad);
        }
        (0..200).for_each(|name| {
            queue.push(of_node(2_000_000 + name, &format!("bad{name}")));
        });
        for round in 0..50 {
            queue.push(parcel(2 * round));
            queue.push(parcel(2 * round + 1));
            let mut batches: Vec<Vec<u32>> = (0..2).map(|_| step(&mut queue, is_bad).0).collect();
            batches.sort_by_key(|batch| batch[0]);
            assert_eq!(batches[0], [2 * round, 2 * round + 1], "those that are good go in every second job");
            assert!(batches[1].len() <= MAX_SUSPECT_BATCH_ENTRIES, "{batches:?}");
        }
    }

    #[test]
    fn what_a_node_sent_keeps_its_order_when_it_becomes_a_suspect_and_when_it_is_none_any_more() {
        let mut queue = GroupQueue::new();
        let same_group = |name| Parcel { group: 7, ..of_node(name, "a") };
        // Two of its entries in one batch, of which the first is bad, and two that wait behind it.
        queue.push(of_node(0, "a"));
        queue.push(same_group(1));
        queue.push(same_group(2));
        queue.push(parcel(3));
        let mut order = Vec::new();
        while !queue.is_idle() {
            let (batch, bad) = step(&mut queue, |name| name == 0);
            if !batch.contains(&0) {
                order.extend(batch.into_iter().filter(|name| *name != 3));
            }
            if bad.is_some() {
                queue.push(same_group(4));
            }
        }
        assert_eq!(order, [1, 2, 4]);
        // Good ones in a row end it; what waits then goes with the others.
        let more = 10..10 + 2 * GOOD_ENTRIES_OF_A_SUSPECT;
        more.clone().for_each(|name| {
            queue.push(same_group(name));
        });
        order.clear();
        let mut together = 0;
        while !queue.is_idle() {
            queue.push(parcel(3));
            let (batch, _) = step(&mut queue, |_| false);
            together += usize::from(batch.len() > 1);
            order.extend(batch.into_iter().filter(|name| *name != 3));
            if order.len() as u32 == 2 * GOOD_ENTRIES_OF_A_SUSPECT {
                break;
            }
        }
        assert_eq!(order, more.collect::<Vec<_>>());
        assert!(together > 0, "it shares batches again");
    }
}

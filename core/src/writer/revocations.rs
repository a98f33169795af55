//! The feed of revocations: what the gateway knows to be revoked, and when it looks for more.
//!
//! Owns the set that shards read, and the looks that fill it. Never ends a session: a shard does, which is told
//! what is new. That a Hello of a revoked certificate is refused does not depend on it.
//!
//! 1. While the lease is held, a look at what changed comes every `poll`, and soon after a poke; never twice within
//!    `LEAST_GAP`. It begins `OVERLAP` before the last one: a transaction may commit that much after its statement.
//! 2. All that is revoked is read, page by page, when the lease is won and every `scan` from then on: that finds what
//!    took longer than the overlap, and lets go what has expired or was deleted. A page waits for no change.
//! 3. What is known stays known through failures, outages and fences: only a look that says so takes a certificate
//!    out of the set.
//! 4. The set holds at most `MAX_REVOKED`; what is more is counted, and left to the Hellos' own look.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Writer;
use super::backoff::Backoff;
use crate::limits::{MAX_REVOKED, MAX_REVOKED_PER_LOOK};
use crate::revocation::{Revocation, RevokedSet, SerialKey, Verdict};
use crate::seam::ToShard;
use crate::store::{CertificateState, ChangeMark, RevocationLook, RevocationsFound, StoreError};
use crate::time::Moment;

/// Pokes within this time share a look.
const LEAST_GAP: Duration = Duration::from_millis(100);
/// How long after its statement a transaction may commit, to be seen by the looks at changes.
const OVERLAP_MICROS: i64 = 60_000_000;

/// A reading of all that is revoked.
#[derive(Debug, Default)]
struct Scan {
    after: String,
    found: BTreeMap<SerialKey, Verdict>,
    /// What the looks at changes have said since it began: they are later than its pages.
    meanwhile: BTreeMap<SerialKey, Option<Verdict>>,
    left_out: usize,
}

/// What is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flight {
    Changes,
    Page,
}

/// What shards must be told.
pub(super) type RevocationNews = (Arc<RevokedSet>, Arc<[Revocation]>);

#[derive(Debug)]
pub(super) struct RevocationFeed {
    set: Arc<RevokedSet>,
    poll: Duration,
    scan_every: Duration,
    wanted: bool,
    in_flight: Option<Flight>,
    not_before: Moment,
    next_poll: Moment,
    next_scan: Moment,
    scan: Option<Scan>,
    /// The database's clock at the last look, in microseconds since 1970.
    looked_at: Option<i64>,
    more_changes: Option<ChangeMark>,
    /// By the last full reading.
    left_out: usize,
    backoff: Backoff,
}

impl RevocationFeed {
    pub(super) fn new(poll: Duration, scan_every: Duration) -> Self {
        Self {
            set: Arc::default(),
            poll,
            scan_every,
            wanted: false,
            in_flight: None,
            not_before: Moment::default(),
            next_poll: Moment::default(),
            next_scan: Moment::default(),
            scan: None,
            looked_at: None,
            more_changes: None,
            left_out: 0,
            backoff: Backoff::for_queue(),
        }
    }

    /// The lease was won: nobody looked for how long nobody knows.
    pub(super) fn handle_serving(&mut self, now: Moment) {
        self.wanted = true;
        self.next_scan = now;
    }

    /// A poke: something was revoked, or is no longer.
    pub(super) fn want_look(&mut self) {
        self.wanted = true;
    }

    /// The next look, which is in flight from here on.
    pub(super) fn poll_look(&mut self, now: Moment) -> Option<RevocationLook> {
        if self.in_flight.is_some() || !self.backoff.is_ready(now) {
            return None;
        }
        let (flight, look) = match self.next_changes(now) {
            Some(after) => {
                (Flight::Changes, RevocationLook::Changes { after, at_most: MAX_REVOKED_PER_LOOK })
            }
            None => {
                if self.scan.is_none() && now >= self.next_scan {
                    self.scan = Some(Scan::default());
                    self.next_scan = now + self.scan_every;
                }
                let after = self.scan.as_ref()?.after.clone();
                (Flight::Page, RevocationLook::All { after, at_most: MAX_REVOKED_PER_LOOK })
            }
        };
        self.in_flight = Some(flight);
        Some(look)
    }

    fn next_changes(&mut self, now: Moment) -> Option<ChangeMark> {
        // Before the first page there is no date to look from, and it tells of everything.
        let from = self.looked_at? - OVERLAP_MICROS;
        if let Some(after) = self.more_changes.take() {
            return Some(after);
        }
        let due = (self.wanted && now >= self.not_before) || now >= self.next_poll;
        due.then(|| {
            self.wanted = false;
            self.not_before = now + LEAST_GAP;
            self.next_poll = now + self.poll;
            ChangeMark { micros: from, serial: String::new() }
        })
    }

    /// What the look in flight has found; gives what shards must be told.
    pub(super) fn handle_found(&mut self, found: RevocationsFound) -> Option<RevocationNews> {
        self.backoff.handle_success();
        let flight = self.in_flight.take();
        self.looked_at = self.looked_at.max(Some(found.now_micros));
        let mut changes = BTreeMap::new();
        let mut added = Vec::new();
        for state in found.certificates {
            self.take_state(state, flight, &mut changes, &mut added);
        }
        if flight == Some(Flight::Changes) {
            self.more_changes = found.more_changes;
        } else if let Some(scan) = &mut self.scan {
            match found.more_after {
                Some(after) => scan.after = after,
                None => self.end_scan(&mut changes),
            }
        }
        if changes.is_empty() {
            return None;
        }
        self.set = Arc::new(self.set.changed(&changes));
        Some((Arc::clone(&self.set), added.into()))
    }

    fn take_state(
        &mut self,
        state: CertificateState,
        flight: Option<Flight>,
        changes: &mut BTreeMap<SerialKey, Option<Verdict>>,
        added: &mut Vec<Revocation>,
    ) {
        let key = SerialKey::of(&state.serial);
        let revocation = state.revocation();
        let verdict = revocation.as_ref().map(Revocation::verdict);
        if let Some(scan) = &mut self.scan {
            match (flight, verdict) {
                (Some(Flight::Changes), _) => drop(scan.meanwhile.insert(key, verdict)),
                (_, Some(_)) if scan.found.len() >= MAX_REVOKED => {
                    scan.left_out += 1;
                    return;
                }
                (_, Some(verdict)) => {
                    scan.found.insert(key, verdict);
                    // The page is later than what was said of it before.
                    scan.meanwhile.remove(&key);
                }
                _ => {}
            }
        }
        let is_known = self.set.verdict(key) == verdict;
        // Past the bound the next full reading counts what is left out.
        if is_known || (verdict.is_some() && self.set.len() + changes.len() >= MAX_REVOKED) {
            return;
        }
        changes.insert(key, verdict);
        added.extend(revocation);
    }

    /// All was read: what is not among it, and was not found since, is not revoked any more.
    fn end_scan(&mut self, changes: &mut BTreeMap<SerialKey, Option<Verdict>>) {
        let Some(Scan { mut found, meanwhile, left_out, .. }) = self.scan.take() else { return };
        self.left_out = left_out;
        for (key, verdict) in meanwhile {
            match verdict {
                Some(verdict) => drop(found.insert(key, verdict)),
                None => drop(found.remove(&key)),
            }
        }
        for key in self.set.keys().filter(|key| !found.contains_key(key)) {
            changes.insert(key, None);
        }
    }

    pub(super) fn handle_failed(&mut self, error: &StoreError, now: Moment) {
        self.backoff.handle_failure(error, now);
        // A look at changes begins anew; a page goes again by itself.
        self.wanted |= self.in_flight.take() == Some(Flight::Changes);
    }

    /// When `poll_look` may have one.
    pub(super) fn next_deadline(&self) -> Option<Moment> {
        if self.in_flight.is_some() {
            return None;
        }
        let changes = match (self.looked_at, &self.more_changes) {
            (None, _) => None,
            (Some(_), Some(_)) => Some(Moment::default()),
            (Some(_), None) if self.wanted => Some(self.not_before.min(self.next_poll)),
            (Some(_), None) => Some(self.next_poll),
        };
        let page = if self.scan.is_some() { Moment::default() } else { self.next_scan };
        Some(changes.map_or(page, |changes| changes.min(page)).max(self.backoff.ready_at()))
    }

    /// How many certificates are known to be revoked.
    pub(super) fn known(&self) -> usize {
        self.set.len()
    }

    /// How many more were revoked, at the last full reading.
    pub(super) fn left_out(&self) -> usize {
        self.left_out
    }

    pub(super) fn backoff(&self) -> &Backoff {
        &self.backoff
    }
}

impl Writer {
    /// A notification: certificates were revoked, or are no longer.
    pub fn handle_certificates_poke(&mut self, now: Moment) {
        self.observe_time(now);
        self.revocations.want_look();
    }

    /// Certificates that shards refuse by the set.
    pub fn revoked_certificates(&self) -> usize {
        self.revocations.known()
    }

    /// Certificates that are revoked and do not fit into the set; only their Hellos are refused.
    pub fn revocations_left_out(&self) -> usize {
        self.revocations.left_out()
    }

    pub(super) fn take_revocations(&mut self, found: RevocationsFound) {
        if let Some((set, added)) = self.revocations.handle_found(found) {
            for shard in self.shards() {
                let (set, added) = (Arc::clone(&set), Arc::clone(&added));
                self.to_shard.push_back((shard, ToShard::Revoked { set, added }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::testing::{at, away};

    const SCAN_EVERY: Duration = Duration::from_secs(60);

    fn feed() -> RevocationFeed {
        RevocationFeed::new(Duration::from_secs(1), SCAN_EVERY)
    }

    fn revoked(serial: &str) -> CertificateState {
        CertificateState { serial: serial.into(), revoked: Some("key leaked".into()) }
    }

    fn cleared(serial: &str) -> CertificateState {
        CertificateState { serial: serial.into(), revoked: None }
    }

    /// At so many seconds of the database's clock.
    fn found(seconds: i64, certificates: Vec<CertificateState>) -> RevocationsFound {
        let now_micros = (1_000 + seconds) * 1_000_000;
        RevocationsFound { certificates, more_changes: None, more_after: None, now_micros }
    }

    fn is_page(look: Option<RevocationLook>) -> bool {
        matches!(look, Some(RevocationLook::All { .. }))
    }

    /// Where a look at changes begins, in seconds of the database's clock.
    fn changes_from(look: Option<RevocationLook>) -> i64 {
        match look {
            Some(RevocationLook::Changes { after, .. }) => after.micros / 1_000_000 - 1_000,
            other => panic!("no look at changes: {other:?}"),
        }
    }

    fn holds(feed: &RevocationFeed, serial: &str) -> bool {
        feed.set.verdict(SerialKey::of(serial)).is_some()
    }

    /// A feed that has read all, which was this, at 0 s.
    fn begun(certificates: Vec<CertificateState>) -> RevocationFeed {
        let mut feed = feed();
        feed.handle_serving(at(0));
        assert!(is_page(feed.poll_look(at(0))), "all is read first");
        assert_eq!(feed.poll_look(at(0)), None, "one look at a time");
        feed.handle_found(found(0, certificates));
        changes_from(feed.poll_look(at(0)));
        feed.handle_found(found(0, Vec::new()));
        feed
    }

    #[test]
    fn what_is_revoked_is_told_once_and_what_is_cleared_is_let_go() {
        let mut feed = begun(vec![revoked("A")]);
        assert_eq!(feed.poll_look(at(999)), None);
        assert_eq!(changes_from(feed.poll_look(at(1_000))), -60, "the overlap");
        let (set, added) = feed.handle_found(found(1, vec![revoked("A"), revoked("B")])).expect("B is new");
        assert_eq!(added.iter().map(|one| one.serial.as_str()).collect::<Vec<_>>(), ["B"]);
        assert_eq!((set.len(), feed.known()), (2, 2));
        feed.want_look();
        assert_eq!(changes_from(feed.poll_look(at(1_100))), -59, "a poke does not wait for the poll");
        assert!(feed.handle_found(found(1, vec![revoked("A"), revoked("B")])).is_none(), "nothing is new");
        feed.want_look();
        feed.poll_look(at(1_200));
        let (set, added) = feed.handle_found(found(1, vec![cleared("A")])).expect("A is let go");
        assert!(added.is_empty() && set.verdict(SerialKey::of("A")).is_none());
    }

    #[test]
    fn a_storm_of_pokes_is_one_look() {
        let mut feed = begun(Vec::new());
        feed.want_look();
        feed.want_look();
        assert_eq!(feed.next_deadline(), Some(at(100)));
        assert_eq!(feed.poll_look(at(99)), None);
        assert!(feed.poll_look(at(100)).is_some());
        feed.want_look();
        assert_eq!((feed.poll_look(at(300)), feed.next_deadline()), (None, None), "one look at a time");
    }

    #[test]
    fn a_full_reading_lets_go_what_is_gone_and_keeps_what_came_meanwhile() {
        let mut feed = begun(vec![revoked("A"), revoked("B"), revoked("C")]);
        changes_from(feed.poll_look(at(60_000)));
        feed.handle_found(found(60, Vec::new()));
        assert!(is_page(feed.poll_look(at(60_000))));
        let page = RevocationsFound { more_after: Some("A".into()), ..found(60, vec![revoked("A")]) };
        assert!(feed.handle_found(page).is_none());
        // Between two pages: one is revoked, one that the first page had is cleared.
        feed.want_look();
        changes_from(feed.poll_look(at(60_200)));
        assert!(feed.handle_found(found(60, vec![revoked("0"), cleared("A")])).is_some());
        let look = feed.poll_look(at(60_300));
        assert!(matches!(&look, Some(RevocationLook::All { after, .. }) if after == "A"), "{look:?}");
        // B has expired; D was revoked by a transaction that took long.
        let (_, added) = feed.handle_found(found(60, vec![revoked("C"), revoked("D")])).expect("D is new");
        assert_eq!(added.len(), 1);
        let held = ["0", "A", "B", "C", "D"].map(|serial| holds(&feed, serial));
        assert_eq!(held, [true, false, false, true, true]);
        assert_eq!(feed.next_scan, at(60_000) + SCAN_EVERY);
    }

    #[test]
    fn what_is_known_outlasts_failures_and_the_look_goes_again() {
        let mut feed = begun(vec![revoked("A")]);
        for second in 1..100 {
            if feed.poll_look(at(second * 1_000)).is_some() {
                feed.handle_failed(&away(), at(second * 1_000));
            }
        }
        assert!(holds(&feed, "A"), "it fails closed");
        assert!(feed.backoff.health().consecutive_failures > 10);
        assert!(feed.poll_look(at(102_000)).is_some());
        feed.handle_found(found(102, Vec::new()));
        assert_eq!(feed.backoff.health().consecutive_failures, 0);
    }

    #[test]
    fn many_changes_are_read_to_their_end() {
        let mut feed = begun(Vec::new());
        feed.poll_look(at(1_000));
        let mark = ChangeMark { micros: 5, serial: "A".into() };
        let more = RevocationsFound { more_changes: Some(mark.clone()), ..found(1, vec![revoked("A")]) };
        feed.handle_found(more);
        let look = feed.poll_look(at(1_000));
        assert!(matches!(look, Some(RevocationLook::Changes { after, .. }) if after == mark));
    }

    #[test]
    fn a_gateway_that_wins_its_lease_back_reads_all_again() {
        let mut feed = begun(Vec::new());
        feed.handle_serving(at(5_000));
        changes_from(feed.poll_look(at(5_000)));
        feed.handle_found(found(5, Vec::new()));
        assert!(is_page(feed.poll_look(at(5_000))));
    }
}

//! What an outcome means, queue by queue: who is told, what enters and leaves the directory and the
//! ledger, and what goes again.
//!
//! 1. An error is handled by what the caller must do: `Retry` and `OutcomeUnknown` go again (every
//!    job but a dispatch is idempotent; a dispatch's lanes are read first), `Rejected` is bisected
//!    until one entry is to blame, `Fatal` goes again at the slowest pace.
//! 2. An outcome from before a fence is dropped here, but for Hellos that were granted: those are
//!    written as disconnected.

use super::Writer;
use super::batch::{Entry, Setback};
use super::directory::LiveSession;
use super::dispatch::Deliveries;
use super::hellos::Answered;
use super::lanes::Look;
use super::settlement::{RowState, Settlement};
use crate::close::CloseReason;
use crate::duplicate;
use crate::frame::RejectCode;
use crate::ids::{Credits, LaneSeq, SessionKey};
use crate::mail::Weigh;
use crate::seam::{Granted, SessionNews, UpdateRequest};
use crate::store::{
    Claim, HelloGrant, HelloOutcome, LaneState, Outcome, PresenceEntry, PresenceOutcome, Routed, StoreError,
    UpdateOutcome, WantedCancel,
};
use crate::time::Moment;

/// Entries that no batch could store, after which their session is cut: each costs many commits.
const BAD_ENTRIES_OF_A_SESSION: u32 = 8;

/// Why a session ended whose Hello was granted when nobody waited for it any more.
const UNWELCOMED: &str = "unwelcomed";

impl Writer {
    pub(super) fn take_outcome(&mut self, outcome: Outcome, started: Moment, now: Moment) {
        match outcome {
            Outcome::Lease(_) => {}
            Outcome::Hellos(Ok(Routed::Committed(outcomes))) => self.take_hello_outcomes(outcomes, now),
            Outcome::Hellos(Ok(Routed::LeaseLost)) => {
                let (counts, bytes) = self.hellos.handle_lease_lost();
                self.released_bytes += bytes;
                self.routing_refused(counts, now);
            }
            Outcome::Hellos(Err(error)) => self.take_hello_error(&error, now),
            Outcome::Dispatch(Ok(Routed::Committed(claims))) => self.take_claims(claims),
            Outcome::LanesRead(Ok(Routed::Committed(states))) => self.take_lanes_read(states),
            Outcome::Dispatch(Ok(Routed::LeaseLost)) | Outcome::LanesRead(Ok(Routed::LeaseLost)) => {
                let counts = self.dispatch.handle_lease_lost();
                self.routing_refused(counts, now);
            }
            Outcome::Dispatch(Err(error)) | Outcome::LanesRead(Err(error)) => {
                self.dispatch.handle_failed(&error, &mut self.ledger, now);
            }
            Outcome::Updates(Ok(outcomes)) => self.take_update_outcomes(outcomes),
            Outcome::Updates(Err(error)) => self.take_update_error(&error, now),
            Outcome::Events(Ok(outcomes)) => self.take_events_outcomes(outcomes, now.since(started)),
            Outcome::Events(Err(error)) => self.take_events_error(&error, now),
            Outcome::Statuses(Ok(outcomes)) => self.take_status_outcomes(&outcomes, now.since(started)),
            Outcome::Statuses(Err(error)) => self.take_status_error(&error, now),
            Outcome::Inventory(Ok(outcomes)) => self.take_inventory_outcomes(outcomes),
            Outcome::Inventory(Err(error)) => self.take_inventory_error(&error, now),
            Outcome::Presence(Ok(outcomes)) => self.take_presence_outcomes(&outcomes),
            Outcome::Presence(Err(error)) => self.presence.handle_failed(&error, now),
            Outcome::Cancels(Ok(wanted)) => self.take_wanted_cancels(wanted, now),
            Outcome::Cancels(Err(error)) => self.cancels.handle_failed(&error, now),
            Outcome::SpecsDue(Ok(found)) => self.take_specs_found(found, now),
            Outcome::SpecsDue(Err(error)) => self.take_specs_look_error(&error, now),
            Outcome::SpecsApplied(Ok(outcomes)) => self.take_spec_answers(outcomes),
            Outcome::SpecsApplied(Err(error)) => self.take_spec_answers_error(&error, now),
            Outcome::Revocations(Ok(found)) => self.take_revocations(found),
            Outcome::Revocations(Err(error)) => self.revocations.handle_failed(&error, now),
            Outcome::Sweep(outcome) => self.take_swept(outcome, started, now),
        }
    }

    fn routing_refused(&mut self, counts: bool, now: Moment) {
        if counts {
            let change = self.lease.handle_routing_refused(now);
            self.follow_lease(change, now);
        }
    }

    // -- Hellos --------------------------------------------------------------------------------------

    fn take_hello_outcomes(&mut self, outcomes: Vec<HelloOutcome>, now: Moment) {
        let answered = self.hellos.handle_committed(outcomes.len());
        for (hello, outcome) in answered.into_iter().zip(outcomes) {
            self.released_bytes += hello.request.weight_bytes();
            match outcome {
                HelloOutcome::Granted(grant) if hello.wanted => self.grant(hello, *grant, now),
                HelloOutcome::Granted(grant) => {
                    let node = hello.request.identity.node;
                    // The bumped epoch fenced an older session here too, though nobody took its place.
                    if let Some(older) = self.directory.of_node(&node).map(|session| session.key) {
                        self.supersede(older);
                    }
                    let entry = PresenceEntry::Disconnected { node, epoch: grant.epoch, reason: UNWELCOMED };
                    self.presence.push(entry);
                }
                HelloOutcome::Quarantined(identity) => {
                    let reason = duplicate::quarantined(&identity.certificate_serial);
                    self.counts.hellos_refused += 1;
                    self.counts.certificates_quarantined += 1;
                    let other = self.directory.of_node(&identity.node);
                    if let Some(other) = other.map(|session| session.key) {
                        self.end_fenced(other, reason.clone());
                    }
                    if hello.wanted {
                        self.tell(hello.request.key, SessionNews::Close(reason));
                    }
                }
                HelloOutcome::Refused(reason) => {
                    self.counts.hellos_refused += 1;
                    if hello.wanted {
                        self.tell(hello.request.key, SessionNews::Close(reason));
                    }
                }
            }
        }
    }

    fn grant(&mut self, hello: Answered, grant: HelloGrant, now: Moment) {
        let Answered { request, overlap, poked, .. } = hello;
        let (key, node) = (request.key, request.identity.node);
        let mut lanes = Vec::with_capacity(request.hello.lanes.len());
        let read_ahead = self.config.limits.read_ahead_bytes(request.hello.lanes.len());
        for (slot, announced) in request.hello.lanes.into_iter().enumerate() {
            if self.ledger.find(&lanes, &announced.lane).is_some() {
                continue;
            }
            let cursor = grant.cursors.get(slot).copied().unwrap_or(LaneSeq(0));
            let lane =
                self.ledger.open((key, &node, grant.epoch), announced.lane, announced.capacity, cursor);
            self.ledger.set_read_ahead(lane, read_ahead);
            lanes.push(lane);
        }
        for held in grant.in_flight {
            let lane = self.ledger.find(&lanes, &held.lane).unwrap_or_else(|| {
                // Declared no more: nothing new goes there, but what is there can be canceled.
                let lane = self.ledger.open((key, &node, grant.epoch), held.lane, Credits(0), LaneSeq(0));
                lanes.push(lane);
                lane
            });
            self.ledger.debit(lane, held.id, held.attempt);
        }
        for replay in &grant.replays {
            if let Some(lane) = self.ledger.find(&lanes, &replay.lane) {
                self.ledger.note_sent(lane, replay.id, replay.payload.len());
            }
        }
        overlap.apply(&node, &lanes, &mut self.ledger);
        if grant.has_pending || poked {
            lanes.iter().for_each(|lane| self.ledger.mark(*lane, Look::Urgent));
        }
        self.counts.hellos_granted += 1;
        self.counts.hellos_of_unknown_certificates += u64::from(!grant.is_recorded);
        let session = LiveSession { key, node, epoch: grant.epoch, lanes, bad_entries: 0 };
        if let Some(older) = self.directory.enter(session) {
            self.counts.sessions_superseded += 1;
            self.ledger.close(&older.lanes);
            self.specs.forget(older.key);
            self.tell(older.key, SessionNews::Close(CloseReason::Superseded));
        }
        if self.next_poll.is_none() {
            self.next_poll = Some(now + self.config.poll_every);
        }
        self.cancels.note_told(key, &grant.cancels, now);
        self.specs.handle_hello(key, request.hello.specs);
        let granted = Granted {
            epoch: grant.epoch,
            server_time: grant.server_time,
            journal_acked: grant.journal_acked,
            replays: grant.replays,
            cancels: grant.cancels,
            inventory_wanted: grant.inventory_wanted,
        };
        self.tell(key, SessionNews::Granted(Box::new(granted)));
    }

    fn take_hello_error(&mut self, error: &StoreError, now: Moment) {
        let (bad, bytes) = self.hellos.handle_failed(error, now);
        self.released_bytes += bytes;
        if let Some((hello, sentence)) = bad {
            self.counts.hellos_refused += 1;
            self.released_bytes += hello.request.weight_bytes();
            if hello.wanted {
                let reason = CloseReason::Protocol(format!("the Hello can't be stored: {sentence}"));
                self.tell(hello.request.key, SessionNews::Close(reason));
            }
        }
    }

    // -- dispatch ------------------------------------------------------------------------------------

    fn take_claims(&mut self, claims: Vec<Claim>) {
        self.counts.commands_claimed += claims.len() as u64;
        let deliveries = self.dispatch.handle_claims(claims, &mut self.ledger, &self.directory);
        self.deliver(deliveries);
    }

    fn take_lanes_read(&mut self, states: Vec<LaneState>) {
        let (deliveries, superseded) =
            self.dispatch.handle_lanes_read(states, &mut self.ledger, &self.directory);
        self.deliver(deliveries);
        // Another gateway has their nodes: what is in flight was claimed for the sessions there.
        superseded.into_iter().for_each(|key| self.supersede(key));
    }

    fn deliver(&mut self, deliveries: Deliveries) {
        for (key, commands) in deliveries {
            self.tell(key, SessionNews::Commands(commands));
        }
    }

    // -- updates -------------------------------------------------------------------------------------

    fn take_update_outcomes(&mut self, outcomes: Vec<UpdateOutcome>) {
        let (entries, forsaken) = self.updates.handle_committed(outcomes.len());
        for (request, outcome) in entries.into_iter().zip(outcomes) {
            self.released_bytes += request.weight_bytes();
            if !forsaken {
                self.settle(request, outcome);
            }
        }
    }

    fn settle(&mut self, request: UpdateRequest, outcome: UpdateOutcome) {
        let UpdateRequest { key, node, update } = request;
        let (id, attempt) = (update.id, update.attempt);
        match outcome {
            UpdateOutcome::Stored { state, lane, conflict } => {
                self.counts.updates_stored += 1;
                self.counts.update_conflicts += u64::from(conflict);
                self.enter(&Settlement { node, id, attempt, row: RowState::In { state, lane } });
                self.tell(key, SessionNews::Stored { state: Some(state) });
            }
            UpdateOutcome::UnknownCommand => {
                self.enter(&Settlement { node, id, attempt, row: RowState::Past });
                let message = format!("command {id} is not one of this node");
                self.not_stored(key, RejectCode::UnknownCommand, message);
            }
            UpdateOutcome::OldAttempt { current } => {
                self.enter(&Settlement { node, id, attempt, row: RowState::Past });
                let message = format!("attempt {attempt} of command {id} is over; it is at {current}");
                self.not_stored(key, RejectCode::OldAttempt, message);
            }
        }
    }

    fn enter(&mut self, settlement: &Settlement) {
        if let Some(session) = self.directory.of_node(&settlement.node) {
            settlement.apply(&session.lanes, &mut self.ledger);
        }
        self.hellos.handle_settlement(settlement);
        self.dispatch.handle_settlement(settlement);
    }

    pub(super) fn not_stored(&mut self, key: SessionKey, code: RejectCode, message: String) {
        self.counts.updates_not_stored += 1;
        self.tell(key, SessionNews::NotStored { code, message, retryable: false });
    }

    fn take_update_error(&mut self, error: &StoreError, now: Moment) {
        let setback = self.updates.handle_failed(error, now);
        if let Some((request, sentence)) = self.settle_setback(setback) {
            self.not_stored(request.key, RejectCode::NotStorable, sentence);
            self.count_bad_entry(request.key);
        }
    }

    /// Releases the bytes of what will not go again; gives the one entry that is to blame, with the
    /// database's sentence.
    pub(super) fn settle_setback<T: Entry>(&mut self, setback: Setback<T>) -> Option<(T, String)> {
        match setback {
            Setback::GoesAgain => None,
            Setback::Forsaken(entries) => {
                self.released_bytes += entries.iter().map(Entry::bytes).sum::<usize>();
                None
            }
            Setback::Bad(entry, sentence) => {
                self.released_bytes += entry.bytes();
                Some((entry, sentence))
            }
        }
    }

    pub(super) fn count_bad_entry(&mut self, key: SessionKey) {
        let Some(session) = self.directory.get_mut(key) else { return };
        session.bad_entries += 1;
        if session.bad_entries == BAD_ENTRIES_OF_A_SESSION {
            let reason = "the session keeps sending what can't be stored".to_owned();
            self.tell(key, SessionNews::Close(CloseReason::Protocol(reason)));
        }
    }

    // -- presence and feed ---------------------------------------------------------------------------

    fn take_presence_outcomes(&mut self, outcomes: &[PresenceOutcome]) {
        let entries = self.presence.handle_committed(outcomes.len());
        for (entry, outcome) in entries.into_iter().zip(outcomes) {
            let (PresenceEntry::Alive { node, epoch }, PresenceOutcome::Superseded) = (entry, outcome) else {
                continue;
            };
            let Some(key) = self.directory.of_epoch(&node, epoch).map(|session| session.key) else {
                continue;
            };
            self.supersede(key);
        }
    }

    /// The session's row has a newer epoch, and no session here took its place.
    pub(super) fn supersede(&mut self, key: SessionKey) {
        self.counts.sessions_superseded += u64::from(self.end_fenced(key, CloseReason::Superseded));
    }

    /// The same for any reason. Whether it was here.
    fn end_fenced(&mut self, key: SessionKey, reason: CloseReason) -> bool {
        let Some(session) = self.directory.remove(key) else { return false };
        self.ledger.close(&session.lanes);
        self.specs.forget(session.key);
        self.tell(key, SessionNews::Close(reason));
        true
    }

    fn take_wanted_cancels(&mut self, wanted: Vec<WantedCancel>, now: Moment) {
        let told = self.cancels.handle_wanted(wanted, &self.directory, &self.ledger, now);
        for (key, cancel) in told {
            self.tell(key, SessionNews::Cancel(cancel));
        }
    }
}

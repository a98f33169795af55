//! Specs: when which session's are looked at, what each was sent, and what nodes answered.
//!
//! Owns the wish to look, from a Hello, a poke or the sweep until a look has brought all there is, and the
//! answers of nodes until they are stored. A store says what is due; nothing here knows a generation but those
//! that were sent.
//!
//! 1. One job of the queue is in flight, a look or answers; where both wait they take turns.
//! 2. What a session was sent is not sent again before a whole sweep has passed without an answer.
//! 3. What is on its way is bounded, for a session and for all, from the look until the shard says that it has
//!    left (`SpecsSent`). A session without room waits for that, and others go on; one that takes nothing for
//!    `SLOW_AFTER` no longer counts against the others.
//! 4. A look is taken back after any failure. One that the database refuses is halved until the session that is
//!    to blame is alone, which then waits for the next sweep.
//! 5. Nothing depends on pokes: the sweep comes to every session of this gateway.

use std::time::Duration;

use super::backoff::Backoff;
use super::batch::{Entry, GroupQueue};
use super::directory::Directory;
use super::spec_places::{Place, Places};
use super::{Writer, WriterConfig};
use crate::frame::{RejectCode, Spec, SpecGeneration};
use crate::ids::{NodeId, SessionKey, SpecName};
use crate::limits::{Limits, MAX_SPEC_BYTES_ON_THE_WAY, MAX_SPEC_BYTES_PER_PASS, MAX_SPEC_LOOKS};
use crate::mail::Weigh;
use crate::seam::{SessionNews, SpecAnswer};
use crate::store::{Job, SpecAppliedOutcome, SpecsFound, SpecsLook, StoreError};
use crate::time::Moment;

impl Entry for SpecAnswer {
    type Exclusive = (NodeId, SpecName);

    fn exclusive(&self) -> Self::Exclusive {
        (self.node.clone(), self.name.clone())
    }

    fn bytes(&self) -> usize {
        self.weight_bytes()
    }

    fn node(&self) -> &NodeId {
        &self.node
    }
}

/// How far a sweep has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sweep {
    /// This gateway does not serve.
    Off,
    DueAt(Moment),
    Behind(Option<SessionKey>),
}

#[derive(Debug)]
struct LookInFlight {
    keys: Vec<SessionKey>,
    forsaken: bool,
}

#[derive(Debug)]
pub(super) struct Specs {
    answers: GroupQueue<SpecAnswer>,
    places: Places,
    look: Option<LookInFlight>,
    /// Sessions that one look may ask for: fewer after one was refused.
    looks_at_once: usize,
    backoff: Backoff,
    answers_had_the_turn: bool,
    sweep: Sweep,
    /// Something was missed behind the place that the sweep has come to.
    sweep_again: bool,
    sweep_every: Duration,
    /// The state of the jitter.
    jitter: u64,
}

/// What a look asks for, and whose it is.
type Page = (Vec<SessionKey>, Vec<SpecsLook>);

impl Specs {
    pub(super) fn new(config: &WriterConfig) -> Self {
        Self {
            answers: GroupQueue::new(),
            places: Places::default(),
            look: None,
            looks_at_once: MAX_SPEC_LOOKS,
            backoff: Backoff::for_queue(),
            answers_had_the_turn: false,
            sweep: Sweep::Off,
            sweep_again: false,
            sweep_every: config.spec_sweep_every,
            // No other process has the same owner, so no two sweep in step.
            jitter: config.owner.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
            }),
        }
    }

    /// A session's Hello is durable; it listed these.
    pub(super) fn handle_hello(&mut self, key: SessionKey, listed: Vec<SpecGeneration>) {
        self.places.at(key).listed = Some(listed);
        self.places.line_up(key);
    }

    /// A spec of the session's node may have changed.
    pub(super) fn handle_poke(&mut self, key: SessionKey) {
        self.places.line_up(key);
    }

    /// Specs may have changed of which nothing was heard.
    pub(super) fn handle_missed_pokes(&mut self, now: Moment) {
        match self.sweep {
            Sweep::Off => {}
            Sweep::DueAt(_) => self.sweep = Sweep::DueAt(now),
            Sweep::Behind(_) => self.sweep_again = true,
        }
    }

    /// Specs of that weight have left for the session's node.
    pub(super) fn handle_sent(&mut self, key: SessionKey, bytes: usize, now: Moment) {
        self.places.note_sent(key, bytes, now);
    }

    /// The session is over.
    pub(super) fn forget(&mut self, key: SessionKey) {
        self.places.remove(key);
    }

    /// The fence: nothing is known of any session. Gives the bytes of the answers that waited.
    pub(super) fn forsake(&mut self) -> usize {
        self.places.clear();
        self.sweep = Sweep::Off;
        if let Some(look) = &mut self.look {
            look.forsaken = true;
        }
        self.answers.forsake().iter().map(Weigh::weight_bytes).sum()
    }

    // -- jobs ------------------------------------------------------------------------------------

    /// The next job, which is in flight from here on; a look only if `may_look`.
    fn poll_job(
        &mut self,
        may_look: bool,
        directory: &Directory,
        config: &WriterConfig,
        now: Moment,
    ) -> Option<Job> {
        if self.look.is_some() {
            return None;
        }
        if may_look {
            self.begin_sweep(now);
        }
        let look_first = self.answers_had_the_turn;
        if look_first && let Some(job) = self.poll_look(may_look, directory, config, now) {
            return Some(job);
        }
        if self.answers.is_in_flight() {
            return None;
        }
        if let Some(entries) = self.answers.poll_batch(&config.limits, now) {
            self.answers_had_the_turn = true;
            return Some(Job::SpecsApplied { entries });
        }
        self.poll_look(may_look && !look_first, directory, config, now)
    }

    fn begin_sweep(&mut self, now: Moment) {
        match self.sweep {
            Sweep::Off => self.sweep = Sweep::DueAt(self.next_sweep(now)),
            Sweep::DueAt(due) if now >= due => self.sweep = Sweep::Behind(None),
            Sweep::DueAt(_) | Sweep::Behind(_) => {}
        }
    }

    fn poll_look(
        &mut self,
        may_look: bool,
        directory: &Directory,
        config: &WriterConfig,
        now: Moment,
    ) -> Option<Job> {
        if !may_look || self.answers.is_in_flight() || !self.backoff.is_ready(now) {
            return None;
        }
        let on_the_way = self.places.on_the_way(now, MAX_SPEC_BYTES_ON_THE_WAY);
        let at_most_bytes = MAX_SPEC_BYTES_PER_PASS.min(MAX_SPEC_BYTES_ON_THE_WAY.saturating_sub(on_the_way));
        if at_most_bytes == 0 {
            return None;
        }
        let (keys, looks) = self.next_page(directory, &config.limits, now);
        if keys.is_empty() {
            return None;
        }
        self.answers_had_the_turn = false;
        self.look = Some(LookInFlight { keys, forsaken: false });
        Some(Job::SpecsDue { gateway: config.gateway.clone(), looks, at_most_bytes })
    }

    /// Those that stand in line, then the next of the sweep.
    fn next_page(&mut self, directory: &Directory, limits: &Limits, now: Moment) -> Page {
        let room = limits.spec_bytes_to_a_node();
        let mut page = Page::default();
        let sweeps = matches!(self.sweep, Sweep::Behind(_));
        // However many are poked, a sweep comes to its end.
        let of_the_line = self.looks_at_once - if sweeps { self.looks_at_once / 4 } else { 0 };
        while page.0.len() < of_the_line
            && let Some(key) = self.places.next_in_line(room)
        {
            self.look_at(&mut page, key, directory, room);
        }
        while let Sweep::Behind(after) = self.sweep
            && page.0.len() < self.looks_at_once
        {
            let Some(session) = directory.following(after) else {
                let again = std::mem::take(&mut self.sweep_again);
                self.sweep = Sweep::DueAt(if again { now } else { self.next_sweep(now) });
                break;
            };
            self.sweep = Sweep::Behind(Some(session.key));
            self.places.age(session.key);
            if !page.0.contains(&session.key) && self.places.take_for_look(session.key, room) {
                self.look_at(&mut page, session.key, directory, room);
            }
        }
        page
    }

    fn look_at(&mut self, page: &mut Page, key: SessionKey, directory: &Directory, room: usize) {
        let Some(session) = directory.get(key) else { return self.places.remove(key) };
        let place = self.places.get(key);
        page.0.push(key);
        page.1.push(SpecsLook {
            node: session.node.clone(),
            epoch: session.epoch,
            known: place.map(Place::known).unwrap_or_default(),
            answered_too: place.is_some_and(|place| place.listed.is_some()),
            room: place.map_or(room, |place| place.room(room)),
        });
    }

    /// A period from now, give or take a quarter: gateways that start together drift apart.
    fn next_sweep(&mut self, now: Moment) -> Moment {
        self.jitter =
            self.jitter.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let thousandths = 750 + (self.jitter >> 33) % 501;
        now + self.sweep_every.mul_f64(thousandths as f64 / 1000.0)
    }

    // -- outcomes --------------------------------------------------------------------------------

    /// What a look found; gives what sessions must be sent.
    fn handle_found(
        &mut self,
        found: Vec<SpecsFound>,
        directory: &Directory,
        now: Moment,
    ) -> Vec<(SessionKey, Vec<Spec>)> {
        let look = self.look.take().expect("an outcome follows its job");
        assert_eq!(look.keys.len(), found.len(), "a store answers slot for slot");
        self.backoff.handle_success();
        self.looks_at_once = (self.looks_at_once * 2).min(MAX_SPEC_LOOKS);
        let mut deliveries = Vec::new();
        for (key, SpecsFound { specs, more }) in look.keys.into_iter().zip(found) {
            if look.forsaken || directory.get(key).is_none() {
                continue;
            }
            if more {
                self.places.line_up(key);
            } else {
                self.places.at(key).listed = None;
            }
            if !specs.is_empty() {
                self.places.note_given(key, &specs, now);
                deliveries.push((key, specs));
            }
            self.places.drop_if_empty(key);
        }
        deliveries
    }

    fn handle_look_failed(&mut self, error: &StoreError, now: Moment) {
        let look = self.look.take().expect("an outcome follows its job");
        let refused = matches!(error, StoreError::Rejected(_));
        if refused {
            self.backoff.handle_success();
            self.backoff.note(error.to_string());
        } else {
            self.backoff.handle_failure(error, now);
        }
        if look.forsaken {
            return;
        }
        if let ([alone], true) = (&look.keys[..], refused) {
            return self.places.drop_if_empty(*alone);
        }
        if refused {
            self.looks_at_once = look.keys.len() / 2;
        }
        self.places.return_to_front(look.keys);
    }

    // -- getters ---------------------------------------------------------------------------------

    pub(super) fn answers(&self) -> &GroupQueue<SpecAnswer> {
        &self.answers
    }

    /// The queue's health is that of what failed last.
    pub(super) fn backoff(&self) -> &Backoff {
        let (looks, answers) = (&self.backoff, self.answers.backoff());
        if answers.health().consecutive_failures > looks.health().consecutive_failures {
            answers
        } else {
            looks
        }
    }

    /// Answers and sessions that wait.
    pub(super) fn len(&self) -> usize {
        self.answers.len() + self.places.in_line()
    }

    /// When a look may start; only for a gateway that may look.
    pub(super) fn next_look(&self) -> Option<Moment> {
        if self.look.is_some() || self.answers.is_in_flight() {
            return None;
        }
        let has_room = self.places.all_on_the_way() < MAX_SPEC_BYTES_ON_THE_WAY;
        let wants = self.places.in_line() > 0 || matches!(self.sweep, Sweep::Behind(_));
        match self.sweep {
            _ if wants && has_room => Some(self.backoff.ready_at()),
            Sweep::DueAt(due) => Some(due),
            Sweep::Off | Sweep::Behind(_) => None,
        }
    }

    /// When answers that wait for their back-off may go.
    pub(super) fn next_answers(&self) -> Option<Moment> {
        if self.look.is_some() { None } else { self.answers.next_deadline() }
    }
}

impl Writer {
    /// A notification: the specs of these nodes have changed (`None`: some were not heard, look at all).
    pub fn handle_specs_poke(&mut self, node: Option<&NodeId>, now: Moment) {
        self.observe_time(now);
        match node {
            None => self.specs.handle_missed_pokes(now),
            // A Hello that is on its way looks by itself.
            Some(node) => {
                if let Some(session) = self.directory.of_node(node) {
                    self.specs.handle_poke(session.key);
                }
            }
        }
        self.advance_stop(now);
    }

    pub(super) fn take_spec_applied(&mut self, answer: SpecAnswer) {
        if self.may_store(answer.weight_bytes()) {
            self.specs.answers.push(answer);
        }
    }

    pub(super) fn poll_specs_job(&mut self, now: Moment) -> Option<Job> {
        let may_look = self.may_route() && self.directory.len() > 0;
        self.specs.poll_job(may_look, &self.directory, &self.config, now)
    }

    pub(super) fn take_specs_found(&mut self, found: Vec<SpecsFound>, now: Moment) {
        for (key, specs) in self.specs.handle_found(found, &self.directory, now) {
            self.counts.specs_pushed += specs.len() as u64;
            self.tell(key, SessionNews::Specs(specs));
        }
    }

    pub(super) fn take_specs_look_error(&mut self, error: &StoreError, now: Moment) {
        self.specs.handle_look_failed(error, now);
    }

    pub(super) fn take_spec_answers(&mut self, outcomes: Vec<SpecAppliedOutcome>) {
        let (entries, forsaken) = self.specs.answers.handle_committed(outcomes.len());
        for (answer, outcome) in entries.into_iter().zip(outcomes) {
            self.released_bytes += answer.weight_bytes();
            if forsaken {
                continue;
            }
            self.specs.places.note_answered(answer.key, &answer.name, answer.generation);
            match outcome {
                SpecAppliedOutcome::Stored => {
                    self.counts.spec_answers_stored += 1;
                    self.tell(answer.key, SessionNews::Stored { state: None });
                }
                SpecAppliedOutcome::UnknownSpec => {
                    let message = "this node has no spec of that name".to_owned();
                    self.spec_not_stored(answer.key, RejectCode::UnknownSpec, message);
                }
                SpecAppliedOutcome::UnknownGeneration { current } => {
                    let message =
                        format!("generation {} was never sent; the spec is at {current}", answer.generation);
                    self.spec_not_stored(answer.key, RejectCode::UnknownSpec, message);
                }
            }
        }
    }

    pub(super) fn take_spec_answers_error(&mut self, error: &StoreError, now: Moment) {
        let setback = self.specs.answers.handle_failed(error, now);
        if let Some((answer, sentence)) = self.settle_setback(setback) {
            self.spec_not_stored(answer.key, RejectCode::NotStorable, sentence);
            self.count_bad_entry(answer.key);
        }
    }

    fn spec_not_stored(&mut self, key: SessionKey, code: RejectCode, message: String) {
        self.counts.spec_answers_refused += 1;
        self.tell(key, SessionNews::NotStored { code, message, retryable: false });
    }
}

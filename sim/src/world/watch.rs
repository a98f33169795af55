//! What must hold of sessions and writers by what passes between them, and what of their tables that covers.
//!
//! Owns the checks that need both a machine and its world: its time, its store, its links. It is shown what
//! passes and changes nothing.
//!
//! 1. A lease is believed in for half its TTL after the start of the last good attempt, no longer, and by one
//!    process of a gateway (but where the database's clock has just jumped ahead).
//! 2. Without the lease there is no session, at the writer at once and at its shards soon.
//! 3. A superseded session is over soon, and only a session with a newer one is superseded.
//! 4. A session ends for a reason that it has. A silent one ends in time, and one that is heard does not.
//! 5. A heartbeat is answered at once.
//! 6. Admission counts the streams and the Hellos that there are, never more than its bounds, and refuses only
//!    where one is hit, with a delay that is neither nothing nor for ever.

use std::collections::BTreeMap;
use std::time::Duration;

use gateway_core::admission::{MAX_RETRY, MIN_RETRY};
use gateway_core::close::CloseReason;
use gateway_core::frame::Command;
use gateway_core::ids::SessionKey;
use gateway_core::limits::Limits;
use gateway_core::seam::{ToShard, ToWriter};
use gateway_core::session::{Phase as SessionPhase, SessionEvent};
use gateway_core::store::{Claim, HelloOutcome, Job, LeaseJob, LeaseOutcome, Outcome, Routed};
use gateway_core::time::Moment;
use gateway_core::writer::{LeaseEvent, LeaseState, Phase};

use super::{Event, Fnv, TICK, World};
use crate::check::must;
use crate::oracle::check_shape;
use crate::process::{LEASE_TTL, Process};

/// A disconnect leaves at once, and goes again after a failure.
const WRITTEN_WITHIN: Duration = Duration::from_secs(3);
/// Twice the time between two writes of liveness, then a poll.
const NOTICED_WITHIN: Duration = Duration::from_millis(8_500);
/// Mail takes less, and so does whatever a session must then do.
const SOON: Duration = Duration::from_millis(1_500);

impl World {
    // -- sessions --------------------------------------------------------------------------------

    pub(super) fn watch_frame(&mut self, process: usize, key: SessionKey, event: SessionEvent) {
        let Some(open) = self.processes[process].sessions.get_mut(&key) else { return };
        open.watch.heard_at = self.now;
        match event {
            SessionEvent::HalfClose => open.watch.is_finishing = true,
            SessionEvent::Goodbye => {
                open.watch.is_finishing = true;
                open.watch.is_rude |= open.session.phase() == SessionPhase::Opening;
            }
            SessionEvent::Hello => open.watch.is_rude |= open.session.phase() != SessionPhase::Opening,
            _ => open.watch.is_rude |= open.session.phase() == SessionPhase::Opening,
        }
    }

    /// Notes the steps that a session took by itself.
    pub(super) fn note_steps(&mut self, before: SessionPhase, after: SessionPhase, event: SessionEvent) {
        use SessionPhase::{Ended, Farewell, Finishing};
        // An end from outside is no step of its own.
        let by_itself = event != SessionEvent::Close;
        if before == Finishing && by_itself && matches!(after, Farewell | Ended) {
            self.coverage.note_session(Finishing, SessionEvent::AllAnswered);
        }
        if matches!(before, Finishing | Farewell) && by_itself && after == Ended {
            self.coverage.note_session(Farewell, SessionEvent::AllTaken);
        }
    }

    pub(super) fn note_time(&mut self, before: SessionPhase, process: usize, key: SessionKey) {
        let Some(open) = self.processes[process].sessions.get(&key) else { return };
        let event = match (before, open.session.phase()) {
            (SessionPhase::Opening, SessionPhase::Ended) => SessionEvent::HelloLate,
            (SessionPhase::Live, SessionPhase::Ended) => SessionEvent::Silence,
            _ => return,
        };
        self.coverage.note_session(before, event);
    }

    /// To be called between a heartbeat and whatever else a session is given.
    pub(super) fn check_heartbeat(&mut self, process: usize, key: SessionKey, sequence: u64) {
        let Some(open) = self.processes[process].sessions.get(&key) else { return };
        let waits = open.session.waiting_answers() > 0;
        let is_live = open.session.phase() == SessionPhase::Live;
        must("a heartbeat is answered at once", waits || !is_live, || format!("{sequence} of {key:?}"));
    }

    pub(super) fn check_session_end(&mut self, process: usize, key: SessionKey, reason: &CloseReason) {
        let gateway = &self.processes[process];
        let Some(open) = gateway.sessions.get(&key) else { return };
        open.watch.check_end(reason);
        let silent_for = self.now.since(open.watch.heard_at);
        let epoch = open.session.epoch();
        let node = self.store.sessions().get(open.session.node());
        let right = match reason {
            CloseReason::Finished => open.watch.is_finishing,
            CloseReason::Superseded => node.is_some_and(|row| Some(row.epoch) > epoch || !row.connected),
            CloseReason::HeartbeatTimeout => silent_for >= gateway.limits.heartbeat_timeout(),
            CloseReason::Fenced => gateway.writer.as_ref().is_some_and(|writer| writer.counts().fences > 0),
            CloseReason::Stopping => {
                gateway.writer.as_ref().is_some_and(|writer| writer.phase() != Phase::Serving)
            }
            // Its gateway sends everyone away; it may have been taken back since.
            CloseReason::Draining { .. } => gateway.writer.as_ref().is_some_and(|writer| {
                let leaves = matches!(writer.phase(), Phase::Draining | Phase::Stopping | Phase::Stopped);
                leaves || gateway.watch.has_stood
            }),
            // The same sentence for whoever has the certificate.
            CloseReason::NotPermitted(_) => self.store.is_quarantined(open.session.node()),
            // It may have been cleared since: what counts is that it was.
            CloseReason::Revoked(_) => self.was_revoked.contains(open.session.node()),
            CloseReason::PeerGone => true,
            CloseReason::Protocol(sentence) => {
                let late = sentence.contains("no Hello came") && silent_for >= gateway.limits.hello_timeout;
                let node = self.number_of(open.session.node());
                let poisons = node.is_some_and(|node| self.nodes[node].poisons());
                open.watch.is_rude || late || poisons
            }
            _ => false,
        };
        must("a session ends for a reason that it has", right, || {
            format!("{reason:?} of {open:?}, silent for {silent_for:?}, now {node:?}")
        });
    }

    pub(super) fn must_be_over(&mut self, process: usize, keys: Vec<SessionKey>, why: &'static str) {
        if !keys.is_empty() {
            let incarnation = self.processes[process].incarnation;
            self.at(SOON, Event::MustBeOver { process, incarnation, keys, why });
        }
    }

    pub(super) fn check_over(&self, process: usize, keys: &[SessionKey], why: &'static str) {
        for key in keys {
            let open = self.processes[process].sessions.get(key);
            must(why, open.is_none(), || format!("{open:?}"));
        }
    }

    /// A session that is silent for long is over.
    pub(super) fn check_silence(&self) {
        for gateway in self.processes.iter().filter(|gateway| self.is_awake(gateway.asleep_until)) {
            for open in gateway.sessions.values() {
                let since = open.watch.heard_at.max(open.watch.unread_at);
                let silent_for = self.now.since(since);
                // A session that is read again notices with its next input, at its old deadline at the latest:
                // no output has the time. A timer that is late gives its node one heartbeat more.
                let was_unread = open.watch.unread_at >= open.watch.heard_at;
                let times = if was_unread { 2 } else { 1 };
                let Limits { heartbeat_interval, .. } = *gateway.limits;
                let most = gateway.limits.heartbeat_timeout() * times + heartbeat_interval + TICK;
                let watched = open.session.wants_read() && open.session.phase() == SessionPhase::Live;
                let woke = self.now.since(gateway.asleep_until) <= heartbeat_interval + TICK;
                let silent_for = if woke { Duration::ZERO } else { silent_for };
                must("a silent session ends", !watched || silent_for < most || gateway.is_dazed, || {
                    format!("{open:?}, silent for {silent_for:?}")
                });
            }
        }
    }

    /// When all is calm, a session is over some time after its node has a newer one elsewhere, and whatever
    /// ended is written.
    pub(super) fn check_leftovers(&mut self) {
        let mut outdated = BTreeMap::new();
        for (process, gateway) in self.processes.iter().enumerate() {
            if gateway.stuck.is_none() && self.now >= gateway.asleep_until + WRITTEN_WITHIN {
                let long_ago = self.now.as_nanos().saturating_sub(WRITTEN_WITHIN.as_nanos() as u64);
                gateway.watch.check_owed(Moment::from_nanos(long_ago));
            }
            for (key, open) in &gateway.sessions {
                let row = self.store.sessions().get(open.session.node());
                let is_live = row.is_some_and(|row| row.connected && Some(row.epoch) == open.session.epoch());
                if !is_live && open.session.epoch().is_some() {
                    let since = self.outdated_since.get(&(process, *key)).copied().unwrap_or(self.now);
                    must("a superseded session ends", self.now.since(since) <= NOTICED_WITHIN, || {
                        format!("{open:?} since {since:?}, now {row:?}")
                    });
                    outdated.insert((process, *key), since);
                }
            }
        }
        self.outdated_since = outdated;
    }

    fn is_awake(&self, asleep_until: Moment) -> bool {
        // What came meanwhile is given a little later.
        self.now >= asleep_until + Duration::from_millis(500)
    }

    /// A stream was asked for, on a shard that serves.
    pub(super) fn check_open(&mut self, process: usize, asked: &Result<(), CloseReason>) {
        let (now, awake) = (self.now, self.is_awake(self.processes[process].asleep_until));
        let Process { admission, limits, watch, .. } = &mut self.processes[process];
        let counted = (admission.streams(), admission.pending_hellos());
        watch.check_open(asked, counted, limits, now);
        let left = awake && watch.leaves_since.is_some_and(|since| now >= since + SOON);
        must("a gateway that leaves lets nobody in", !left, || {
            format!("{process} since {:?}", watch.leaves_since)
        });
    }

    pub(super) fn check_refusal(&self, process: usize, retry_after: Duration) {
        let within = (MIN_RETRY..=MAX_RETRY).contains(&retry_after);
        must("a refusal has a delay within bounds", within, || format!("{retry_after:?} of {process}"));
    }

    fn check_admission(&self, process: &Process) {
        let Process { admission, sessions, limits, .. } = process;
        let waiting = sessions.values().filter(|open| open.hello_waits).count();
        let counted = (admission.streams(), admission.pending_hellos());
        must("admission counts what there is", counted == (sessions.len(), waiting), || {
            format!("{counted:?}, not {:?}", (sessions.len(), waiting))
        });
        let within = counted.0 <= limits.streams && counted.1 <= limits.pending_hellos;
        must("admission keeps its bounds", within, || format!("{counted:?}"));
    }

    // -- writers ---------------------------------------------------------------------------------

    pub(super) fn watch_message(&mut self, process: usize, message: &ToWriter) {
        self.processes[process].watch.handle_message(message, self.now);
    }

    pub(super) fn watch_told(&mut self, process: usize, message: &ToShard) {
        let over = self.processes[process].watch.handle_told(message, self.now);
        self.must_be_over(process, over, "a superseded session ends");
    }

    pub(super) fn watch_job(&mut self, process: usize, lease: LeaseState, job: &Job) {
        let gateway = &self.processes[process];
        check_shape(job, &gateway.limits, &gateway.hooked);
        let (epoch, phase) = gateway
            .writer
            .as_ref()
            .map_or((None, Phase::Stopped), |writer| (writer.lease_epoch(), writer.phase()));
        match job {
            Job::Lease(LeaseJob::Release { .. }) => self.coverage.note_lease(lease, LeaseEvent::ReleaseTaken),
            Job::Lease(_) => self.coverage.note_lease(lease, LeaseEvent::AttemptTaken),
            Job::Hellos { proof, .. } | Job::Dispatch { proof, .. } | Job::ReadLanes { proof, .. } => {
                let may = epoch == Some(proof.epoch) && matches!(phase, Phase::Serving | Phase::Draining);
                must("routing is asked for while the lease is held", may, || format!("{proof:?}, {phase:?}"));
            }
            _ => {}
        }
        gateway.watch.company.check(job);
        if let Job::Dispatch { wants, .. } = job {
            wants.iter().for_each(|want| gateway.watch.check_want(want));
        }
    }

    /// The writer hears of a job.
    pub(super) fn heard(&mut self, process: usize, job: &Job, outcome: Outcome, started: Moment) {
        if let (Job::Hellos { entries, .. }, Outcome::Hellos(Ok(Routed::Committed(outcomes)))) =
            (job, &outcome)
        {
            let nodes: Vec<_> = entries.iter().map(|entry| entry.identity.node.clone()).collect();
            let fenced = self.processes[process].watch.handle_hellos(&nodes, outcomes, self.now);
            self.must_be_over(process, fenced, "a superseded session ends");
            let refused = |outcome: &HelloOutcome| !matches!(outcome, HelloOutcome::Granted(_));
            let refused = entries.iter().zip(outcomes).filter(|(_, outcome)| refused(outcome));
            let refused = refused.map(|(entry, _)| entry.key).collect();
            self.must_be_over(process, refused, "who is not let in is told so");
        }
        let gateway = &mut self.processes[process];
        let held = gateway.writer.as_ref().is_some_and(|writer| writer.lease_epoch().is_some());
        if held && started >= gateway.watch.acquired_at {
            gateway.watch.company.handle_outcome(job, outcome.error());
        }
        match (job, &outcome) {
            (Job::Updates { entries }, Outcome::Updates(Ok(outcomes))) => {
                self.processes[process].watch.handle_updates(entries, outcomes);
            }
            (Job::Presence { entries, .. }, Outcome::Presence(Ok(_))) => {
                self.processes[process].watch.handle_presence(entries);
            }
            _ => {}
        }
        if let Outcome::Dispatch(Ok(Routed::Committed(claims))) = &outcome {
            for Claim { node, command, .. } in claims {
                let Command { id, attempt, lane, .. } = command;
                self.processes[process].watch.hold(node, lane, *id, *attempt);
            }
        }
        if let (Job::ReadLanes { lanes, .. }, Outcome::LanesRead(Ok(Routed::Committed(states)))) =
            (job, &outcome)
        {
            for (lane, state) in lanes.iter().zip(states) {
                self.processes[process].watch.handle_reading(lane, state);
            }
        }
        // It looks at the time first, but for the lease's own outcome.
        if !matches!(outcome, Outcome::Lease(_)) {
            self.note_overdue(process);
        }
        let Some(writer) = &self.processes[process].writer else { return };
        let state = writer.lease_state();
        let epoch = writer.lease_epoch();
        let is_late = self.now >= started + LEASE_TTL / 2;
        let is_refused = matches!(
            outcome,
            Outcome::Hellos(Ok(Routed::LeaseLost))
                | Outcome::Dispatch(Ok(Routed::LeaseLost))
                | Outcome::LanesRead(Ok(Routed::LeaseLost))
        );
        // The same process may have the same lease again, under the same epoch, when it hears what it asked for
        // before its fence. That says nothing of what it has now: the fence forsook the job.
        let of_this_lease = match job {
            Job::Hellos { proof, .. } | Job::Dispatch { proof, .. } | Job::ReadLanes { proof, .. } => {
                epoch == Some(proof.epoch) && started >= self.processes[process].watch.acquired_at
            }
            _ => false,
        };
        let routing_refused = is_refused && of_this_lease;
        let event = match &outcome {
            Outcome::Lease(Ok(LeaseOutcome::Held { epoch: held })) => {
                Some(if state == LeaseState::Renewing && Some(*held) != epoch {
                    LeaseEvent::HeldByOther
                } else if is_late {
                    LeaseEvent::GoodTooLate
                } else {
                    LeaseEvent::Good
                })
            }
            Outcome::Lease(Ok(LeaseOutcome::HeldByOther { .. })) => Some(LeaseEvent::HeldByOther),
            Outcome::Lease(Ok(LeaseOutcome::Released)) => Some(LeaseEvent::Released),
            Outcome::Lease(Err(_)) => Some(LeaseEvent::NotCommitted),
            _ => routing_refused.then_some(LeaseEvent::RoutingRefused),
        };
        if let Some(event) = event {
            self.coverage.note_lease(state, event);
        }
        let gained =
            event == Some(LeaseEvent::Good) && matches!(state, LeaseState::Acquiring | LeaseState::Renewing);
        if gained {
            self.processes[process].watch.lease_good_since = Some(started);
            if state == LeaseState::Acquiring {
                self.processes[process].watch.acquired_at = self.now;
            }
        }
        if state == LeaseState::Acquiring && gained && self.lease_changed_hands(process) {
            self.note_fault("lease taken over");
        }
        let overdue = self.is_overdue(process);
        if let Some(writer) = &mut self.processes[process].writer {
            let before = writer.counts().fences;
            writer.handle_outcome(outcome, started, self.now);
            let lost_now = matches!(event, Some(LeaseEvent::HeldByOther | LeaseEvent::GoodTooLate));
            let may = overdue || routing_refused || (lost_now && state == LeaseState::Renewing);
            must("a fence has a reason", may || writer.counts().fences == before, || {
                format!("{process}: {event:?} while {state:?}, by {job:?}")
            });
            let lost = event == Some(LeaseEvent::HeldByOther) && state == LeaseState::Renewing;
            must("a lease that another holds is given up", !lost || writer.lease_epoch().is_none(), || {
                format!("{:?} of {process}", writer.lease_state())
            });
            let fenced = writer.lease_epoch().is_none() && writer.sessions() == 0;
            must("a lease that routing found gone is given up", !routing_refused || fenced, || {
                format!("{:?} of {process}", writer.lease_state())
            });
        }
        self.processes[process].is_dazed = false;
        self.pump_writer(process);
    }

    fn lease_changed_hands(&self, process: usize) -> bool {
        let gateway = &self.processes[process].gateway;
        self.store.leases().get(gateway).is_some_and(|row| row.epoch.0 > 1)
    }

    /// What a writer does first with any input: it looks whether its lease is overdue.
    pub(super) fn note_overdue(&mut self, process: usize) {
        let Some(writer) = &self.processes[process].writer else { return };
        let state = writer.lease_state();
        if self.is_overdue(process) && matches!(state, LeaseState::Held | LeaseState::Renewing) {
            self.coverage.note_lease(state, LeaseEvent::Overdue);
        }
    }

    pub(super) fn is_overdue(&self, process: usize) -> bool {
        let since = self.processes[process].watch.lease_good_since;
        since.is_some_and(|since| self.now >= since + LEASE_TTL / 2)
    }

    /// After every step.
    pub(super) fn check_processes(&self) {
        for (number, process) in self.processes.iter().enumerate() {
            let Some(writer) = &process.writer else { continue };
            self.check_admission(process);
            // Whoever stands still, or has not looked at the time since, can't know better.
            if self.now < process.asleep_until || process.is_dazed {
                continue;
            }
            let since = process.watch.lease_good_since;
            if writer.lease_epoch().is_some() {
                let in_time = since.is_some_and(|since| self.now <= since + LEASE_TTL / 2);
                must("a lease is believed in for half its TTL", in_time, || {
                    format!("{number}: since {since:?}")
                });
            }
            let known = (writer.sessions(), process.watch.live());
            must("a writer knows the sessions that it granted", known.0 == known.1, || format!("{known:?}"));
            let without = matches!(
                writer.lease_state(),
                LeaseState::Unheld | LeaseState::Acquiring | LeaseState::Fenced | LeaseState::Released
            );
            must("a fenced writer keeps no session", !without || writer.sessions() == 0, || {
                format!("{number}: {:?}", writer.lease_state())
            });
        }
        self.check_believers();
    }

    fn check_believers(&self) {
        // Whoever holds a lease by its own clock may have lost it by the database's.
        if self.jumped_lately() {
            return;
        }
        for gateway in ["ga", "gb"] {
            let holders = self.processes.iter().filter(|process| {
                process.gateway.as_str() == gateway
                    && self.now >= process.asleep_until
                    && !process.is_dazed
                    && process.writer.as_ref().is_some_and(|writer| writer.lease_epoch().is_some())
            });
            let holders = holders.count();
            must("one process believes that it holds a lease", holders <= 1, || {
                format!("{holders} hold {gateway}")
            });
        }
    }

    fn jumped_lately(&self) -> bool {
        self.weather.jumped_ahead_at.is_some_and(|at| self.now <= at + LEASE_TTL / 2)
    }

    /// After a session was given the drain, and what it said to that was taken.
    pub(super) fn check_drain_told(&self, process: usize, key: SessionKey) {
        let open = self.processes[process].sessions.get(&key);
        let untold =
            open.filter(|open| open.session.phase() == SessionPhase::Live && !open.watch.is_sent_away);
        must("a live session tells its node to leave", untold.is_none(), || format!("{untold:?}"));
    }

    pub(super) fn check_stopped(&self, process: usize) {
        let gateway = &self.processes[process];
        let has_written = self.is_calm() && gateway.stuck.is_none();
        gateway.watch.check_owed(if has_written { self.now } else { Moment::default() });
        must("a gateway that stopped has no session", gateway.sessions.is_empty(), || format!("{gateway:?}"));
        if !self.is_calm() {
            return;
        }
        let (row, now) = (self.store.leases().get(&gateway.gateway), self.clock());
        let Some(row) = row.filter(|row| row.owner == gateway.owner()) else { return };
        must("a gateway that stopped gave its lease back", row.expires <= now, || {
            format!("{row:?} at {now}")
        });
        if !has_written {
            return;
        }
        let left = self.store.sessions().iter().find(|(_, session)| {
            let is_its = session.gateway.as_ref() == Some(&gateway.gateway);
            session.connected && is_its && session.lease_epoch == row.epoch
        });
        must("a gateway that stopped left no session", left.is_none(), || format!("{left:?}"));
        let bytes = (gateway.posted_bytes, gateway.released_bytes);
        must("a gateway that stopped released all", bytes.0 == bytes.1, || format!("{bytes:?}"));
    }

    pub(super) fn note_outcome(&mut self, outcome: &Outcome) {
        let mut digest = Fnv(self.story.digest);
        match outcome {
            Outcome::SpecsDue(Ok(found)) => {
                for spec in found.iter().flat_map(|found| &found.specs) {
                    digest.take(&(&spec.name, spec.generation));
                }
            }
            other => digest.take(other),
        }
        self.story.digest = digest.0;
    }
}

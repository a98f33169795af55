//! The sweeps that one gateway does for all: commands whose time has passed, sessions of the dead.
//!
//! Owns when this gateway asks to lead, prolongs that, and which sweep comes next. Never decides which
//! row is swept: that is the store's, under the lease `leader:sweeps` and by the database's clock.
//!
//! 1. One sweep job is in flight at most, and none is asked for before this process leads.
//! 2. A pass that came back full is followed by the next at once; else a run ends, and the next one
//!    begins `every` later.
//! 3. A run begins where the last one came to, less `OVERLAP`, so that rows that died long ago are not
//!    read again; once in `LOOK_AT_ALL_EVERY` it begins at the start, for commands that were skipped
//!    or became pending late.
//! 4. Who does not hold its gateway's lease does not sweep. A stop gives the lead back, and tries once.

use std::collections::VecDeque;
use std::time::Duration;

use super::backoff::Backoff;
use super::{Writer, WriterConfig};
use crate::ids::{LeaseEpoch, NodeId};
use crate::limits::MAX_SWEPT_ROWS;
use crate::store::{DeadGateway, ExpiryPass, Job, LeaderProof, ReapPass, StoreError, SweepJob, SweepOutcome};
use crate::time::{Moment, UnixMillis};

/// How far a run goes back behind the last: an enqueue may take so long to commit.
const OVERLAP: Duration = Duration::from_secs(10);
/// How often a run begins at the start.
const LOOK_AT_ALL_EVERY: Duration = Duration::from_secs(60);
/// The lead of another gateway is asked for no sooner than this.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// What the writer wants of the sweeps at its point of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Aim {
    Sweep,
    Resign,
    Nothing,
}

/// The lead, as far as this process knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lead {
    epoch: LeaseEpoch,
    /// Start of the last attempt that was good.
    good_since: Moment,
}

/// The next sweep of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// None is due before `next_run`.
    Rest,
    Expire,
    FindDead,
    Reap,
}

/// How far the look through one dead gateway's sessions has come.
#[derive(Debug, Default, PartialEq, Eq)]
struct Scan {
    after: Option<NodeId>,
    since: Option<UnixMillis>,
    skipped: bool,
}

#[derive(Debug)]
pub(super) struct Sweeps {
    every: Duration,
    ttl: Duration,
    renew_every: Duration,
    lead: Option<Lead>,
    step: Step,
    /// `None` while this gateway does not serve.
    next_run: Option<Moment>,
    look_at_all_at: Moment,
    /// Where the next pass begins.
    from: UnixMillis,
    /// The earliest that this run skipped.
    skipped: Option<UnixMillis>,
    dead: VecDeque<DeadGateway>,
    scan: Scan,
    in_flight: bool,
    /// What is in flight is from before a fence.
    forsaken: bool,
    backoff: Backoff,
}

/// What one outcome adds to what is counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Swept {
    pub(super) expired: u32,
    pub(super) reaped: u32,
    /// Whether a run has ended.
    pub(super) run_ended: bool,
}

impl Sweeps {
    pub(super) fn new(config: &WriterConfig) -> Self {
        Self {
            every: config.sweep_every,
            ttl: config.lease_ttl,
            renew_every: config.lease_renew_every,
            lead: None,
            step: Step::Rest,
            next_run: None,
            look_at_all_at: Moment::default(),
            from: UnixMillis::default(),
            skipped: None,
            dead: VecDeque::new(),
            scan: Scan::default(),
            in_flight: false,
            forsaken: false,
            backoff: Backoff::for_queue(),
        }
    }

    /// The lease was lost: nothing is led, and what is in flight means nothing.
    pub(super) fn forsake(&mut self) {
        self.forsaken = self.in_flight;
        self.next_run = None;
        self.give_up();
    }

    fn give_up(&mut self) {
        self.lead = None;
        self.step = Step::Rest;
        self.dead.clear();
    }

    fn poll_job(&mut self, aim: Aim, config: &WriterConfig, now: Moment) -> Option<SweepJob> {
        if aim == Aim::Sweep {
            self.next_run.get_or_insert(now + self.every);
        }
        // A stop does not wait for a better time.
        if self.in_flight || (aim == Aim::Sweep && !self.backoff.is_ready(now)) {
            return None;
        }
        if self.lead.is_some_and(|lead| now >= lead.good_since + self.ttl) {
            self.give_up();
        }
        let job = match (aim, self.lead) {
            (Aim::Nothing, _) | (Aim::Resign, None) => None,
            (Aim::Resign, Some(lead)) => {
                self.give_up();
                Some(SweepJob::Resign { proof: proof(config, lead) })
            }
            (Aim::Sweep, Some(lead)) if now < lead.good_since + self.renew_every => {
                self.poll_sweep(proof(config, lead), now)
            }
            (Aim::Sweep, lead) => {
                let asks = lead.is_some() || self.is_run_due(now);
                asks.then(|| SweepJob::Lead {
                    owner: config.owner.clone(),
                    dead_owner_prefix: config.dead_owner_prefix.clone(),
                    ttl: self.ttl,
                })
            }
        };
        self.in_flight = job.is_some();
        job
    }

    fn poll_sweep(&mut self, proof: LeaderProof, now: Moment) -> Option<SweepJob> {
        if self.step == Step::Rest && self.is_run_due(now) {
            self.step = Step::Expire;
            self.skipped = None;
            if now >= self.look_at_all_at {
                self.look_at_all_at = now + LOOK_AT_ALL_EVERY;
                self.from = UnixMillis::default();
            }
        }
        match self.step {
            Step::Rest => None,
            Step::Expire => Some(SweepJob::Expire { proof, from: self.from, at_most: MAX_SWEPT_ROWS }),
            Step::FindDead => Some(SweepJob::FindDead { proof }),
            Step::Reap => Some(SweepJob::Reap {
                proof,
                dead: self.dead.front()?.clone(),
                after: self.scan.after.clone(),
                since: self.scan.since,
                skipped: self.scan.skipped,
                at_most: MAX_SWEPT_ROWS,
            }),
        }
    }

    fn is_run_due(&self, now: Moment) -> bool {
        self.next_run.is_some_and(|due| now >= due)
    }

    /// What the store did. `started` is when the job was handed to it.
    fn handle_outcome(
        &mut self,
        outcome: Result<SweepOutcome, StoreError>,
        started: Moment,
        now: Moment,
    ) -> Swept {
        self.in_flight = false;
        let forsaken = std::mem::take(&mut self.forsaken);
        let outcome = match outcome {
            Ok(outcome) => {
                self.backoff.handle_success();
                outcome
            }
            // Each is harmless when it is done twice, so the same goes again.
            Err(error) => {
                self.backoff.handle_failure(&error, now);
                return Swept::default();
            }
        };
        let mut swept = Swept::default();
        match outcome {
            SweepOutcome::Expired(pass) => swept.expired = pass.expired,
            SweepOutcome::Reaped(ReapPass { reaped, .. }) => swept.reaped = reaped,
            _ => {}
        }
        if !forsaken {
            swept.run_ended = self.follow(outcome, started, now);
        }
        swept
    }

    /// Steps on; gives whether a run has ended.
    fn follow(&mut self, outcome: SweepOutcome, started: Moment, now: Moment) -> bool {
        match outcome {
            SweepOutcome::Leads { epoch } => {
                if self.lead.is_none_or(|lead| lead.epoch != epoch) {
                    self.look_at_all_at = now;
                }
                self.lead = Some(Lead { epoch, good_since: started });
            }
            SweepOutcome::LedByOther { expires_in } => {
                self.give_up();
                self.next_run =
                    Some(now + expires_in.clamp(ASK_AGAIN_AFTER, self.every.max(ASK_AGAIN_AFTER)));
            }
            SweepOutcome::LeadLost => {
                self.give_up();
                self.next_run = Some(now + self.every);
            }
            SweepOutcome::Resigned => {}
            // From before the lead was given up: another may be at it.
            _ if self.lead.is_none() => {}
            SweepOutcome::Expired(pass) => self.follow_expiry(pass),
            SweepOutcome::Dead(gateways) => {
                self.dead = gateways.into();
                return self.look_through_next(now);
            }
            SweepOutcome::Reaped(pass) => return self.follow_page(pass, now),
        }
        false
    }

    fn follow_expiry(&mut self, pass: ExpiryPass) {
        self.skipped = self.skipped.into_iter().chain(pass.skipped).min();
        let moves = pass.expired > 0 || pass.next > self.from;
        self.from = pass.next;
        if !(pass.is_full && moves) {
            let reached = self.skipped.map_or(pass.next, |skipped| skipped.min(pass.next));
            self.from = UnixMillis(reached.0.saturating_sub(OVERLAP.as_millis() as i64));
            self.step = Step::FindDead;
        }
    }

    fn follow_page(&mut self, pass: ReapPass, now: Moment) -> bool {
        if pass.is_dead && pass.next.is_some() {
            self.scan.after = pass.next;
            self.scan.since.get_or_insert(pass.now);
            self.scan.skipped |= pass.skipped;
            return false;
        }
        self.dead.pop_front();
        self.look_through_next(now)
    }

    fn look_through_next(&mut self, now: Moment) -> bool {
        self.scan = Scan::default();
        if !self.dead.is_empty() {
            self.step = Step::Reap;
            return false;
        }
        self.step = Step::Rest;
        self.next_run = Some(now + self.every);
        true
    }

    pub(super) const fn leads(&self) -> bool {
        self.lead.is_some()
    }

    /// Whether nothing is left that a stop should wait for.
    pub(super) const fn is_over(&self) -> bool {
        !self.in_flight && self.lead.is_none()
    }

    pub(super) const fn backoff(&self) -> &Backoff {
        &self.backoff
    }

    /// When `poll_job` may have something, for a gateway that serves.
    fn next_deadline(&self) -> Option<Moment> {
        if self.in_flight {
            return None;
        }
        let run = if self.step == Step::Rest { self.next_run? } else { Moment::default() };
        let renewal = self.lead.map(|lead| lead.good_since + self.renew_every);
        Some(renewal.map_or(run, |renewal| renewal.min(run)).max(self.backoff.ready_at()))
    }
}

fn proof(config: &WriterConfig, lead: Lead) -> LeaderProof {
    LeaderProof { owner: config.owner.clone(), epoch: lead.epoch }
}

impl Writer {
    pub(super) fn poll_sweep_job(&mut self, now: Moment) -> Option<Job> {
        let aim = match (self.may_route(), self.stop.is_begun()) {
            (true, _) => Aim::Sweep,
            (false, true) => Aim::Resign,
            (false, false) => Aim::Nothing,
        };
        self.sweeps.poll_job(aim, &self.config, now).map(Job::Sweep)
    }

    pub(super) fn take_swept(
        &mut self,
        outcome: Result<SweepOutcome, StoreError>,
        started: Moment,
        now: Moment,
    ) {
        let swept = self.sweeps.handle_outcome(outcome, started, now);
        self.counts.commands_expired += u64::from(swept.expired);
        self.counts.sessions_reaped += u64::from(swept.reaped);
        self.counts.sweeps += u64::from(swept.run_ended);
    }

    pub(super) fn sweep_deadline(&self) -> Option<Moment> {
        self.sweeps.next_deadline().filter(|_| self.may_route())
    }

    /// Whether this gateway is the one that sweeps for all.
    pub fn leads_sweeps(&self) -> bool {
        self.sweeps.leads()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::config;
    use super::*;
    use crate::ids::GatewayId;
    use crate::writer::testing::{at, away};

    /// The machine at its desk; a run is due every 5 s, a renewal too, and a lead lasts 20 s.
    struct Desk {
        sweeps: Sweeps,
        config: WriterConfig,
        now: Moment,
    }

    impl Desk {
        /// Serving since 0 ms, and leading since the first run, at 5 s.
        fn leading() -> Self {
            let mut desk = Self::serving();
            desk.at(5_000);
            assert_eq!(desk.job(), "lead");
            desk.done(SweepOutcome::Leads { epoch: LeaseEpoch(7) });
            desk
        }

        fn serving() -> Self {
            let config = WriterConfig { sweep_every: Duration::from_secs(5), ..config() };
            let mut desk = Self { sweeps: Sweeps::new(&config), config, now: at(0) };
            assert_eq!(desk.job(), "none", "the first run is a period after the start");
            desk
        }

        fn at(&mut self, millis: u64) {
            self.now = at(millis);
        }

        fn take(&mut self, aim: Aim) -> Option<SweepJob> {
            self.sweeps.poll_job(aim, &self.config, self.now)
        }

        fn job(&mut self) -> String {
            match self.take(Aim::Sweep) {
                None => "none".into(),
                Some(SweepJob::Lead { .. }) => "lead".into(),
                Some(SweepJob::Expire { from, .. }) => format!("expire from {from}"),
                Some(SweepJob::FindDead { .. }) => "find dead".into(),
                Some(SweepJob::Reap { dead, after, since, skipped, .. }) => {
                    format!("reap {} {after:?} {since:?} {skipped}", dead.gateway)
                }
                Some(SweepJob::Resign { .. }) => "resign".into(),
            }
        }

        fn done(&mut self, outcome: SweepOutcome) -> Swept {
            self.sweeps.handle_outcome(Ok(outcome), self.now, self.now)
        }

        fn expired(&mut self, expired: u32, is_full: bool, next: i64, skipped: Option<i64>) {
            let (next, skipped) = (UnixMillis(next), skipped.map(UnixMillis));
            let swept = self.done(SweepOutcome::Expired(ExpiryPass { expired, is_full, next, skipped }));
            assert_eq!(swept.expired, expired);
        }
    }

    fn page(next: Option<&str>, skipped: bool) -> SweepOutcome {
        let next = next.map(|name| NodeId::new(name).expect("a node id"));
        SweepOutcome::Reaped(ReapPass { is_dead: true, reaped: 3, skipped, next, now: UnixMillis(70) })
    }

    fn dead(names: &[&str]) -> SweepOutcome {
        let dead = |name: &&str| DeadGateway {
            gateway: GatewayId::new(name).expect("a gateway id"),
            epoch: LeaseEpoch(1),
            is_expired: true,
        };
        SweepOutcome::Dead(names.iter().map(dead).collect())
    }

    #[test]
    fn full_passes_follow_at_once_and_an_ended_run_rests() {
        let mut desk = Desk::leading();
        assert_eq!(desk.job(), "expire from 0");
        assert_eq!(desk.job(), "none", "one job at a time");
        desk.expired(1000, true, 90_000, None);
        assert_eq!(desk.job(), "expire from 90000");
        desk.expired(10, false, 100_000, None);
        assert_eq!(desk.job(), "find dead");
        assert!(desk.done(dead(&[])).run_ended);
        assert_eq!(desk.job(), "none");
        assert_eq!(desk.sweeps.next_deadline(), Some(at(10_000)));
        desk.at(10_000);
        assert_eq!(desk.job(), "lead", "the lead is renewed first");
        desk.done(SweepOutcome::Leads { epoch: LeaseEpoch(7) });
        assert_eq!(desk.job(), "expire from 90000", "what died long ago is not read again");
    }

    #[test]
    fn what_was_skipped_is_where_the_next_run_begins() {
        let mut desk = Desk::leading();
        desk.job();
        desk.expired(999, true, 90_000, Some(60_000));
        desk.job();
        desk.expired(0, false, 100_000, None);
        assert_eq!(desk.sweeps.from, UnixMillis(50_000));
    }

    #[test]
    fn rows_that_others_hold_do_not_make_it_spin() {
        let mut desk = Desk::leading();
        desk.job();
        desk.expired(0, true, 90_000, Some(90_000));
        assert_eq!(desk.job(), "expire from 90000", "there may be more behind them");
        desk.expired(0, true, 90_000, Some(90_000));
        assert_eq!(desk.job(), "find dead");
    }

    #[test]
    fn once_in_a_while_a_run_looks_at_all() {
        let mut desk = Desk::leading();
        let mut froms = Vec::new();
        for run in 1..=14 {
            desk.at(run * 5_000);
            while desk.sweeps.next_run.is_some_and(|due| desk.now >= due) {
                let job = desk.job();
                match job.as_str() {
                    "lead" => drop(desk.done(SweepOutcome::Leads { epoch: LeaseEpoch(7) })),
                    "find dead" => drop(desk.done(dead(&[]))),
                    _ => {
                        froms.push(job == "expire from 0");
                        desk.expired(0, false, 1_000_000, None);
                    }
                }
            }
        }
        let at_all: Vec<usize> = (0..froms.len()).filter(|run| froms[*run]).collect();
        assert_eq!(at_all, [0, 12]);
    }

    #[test]
    fn a_dead_gateway_is_looked_through_page_by_page() {
        let mut desk = Desk::leading();
        desk.job();
        desk.expired(0, false, 100_000, None);
        assert_eq!(desk.job(), "find dead");
        assert!(!desk.done(dead(&["g1", "g2"])).run_ended);
        assert_eq!(desk.job(), "reap g1 None None false");
        assert_eq!(desk.done(page(Some("n5"), true)), Swept { reaped: 3, ..Swept::default() });
        assert_eq!(desk.job(), "reap g1 Some(NodeId(\"n5\")) Some(UnixMillis(70)) true");
        desk.done(page(None, false));
        assert_eq!(desk.job(), "reap g2 None None false");
        assert!(desk.done(page(None, false)).run_ended);
    }

    #[test]
    fn a_gateway_that_came_back_is_let_alone() {
        let mut desk = Desk::leading();
        desk.job();
        desk.expired(0, false, 100_000, None);
        desk.job();
        desk.done(dead(&["g1"]));
        desk.job();
        let alive = ReapPass { is_dead: false, reaped: 0, skipped: false, next: None, now: UnixMillis(1) };
        assert!(desk.done(SweepOutcome::Reaped(alive)).run_ended);
    }

    #[test]
    fn who_does_not_lead_asks_again_and_sweeps_nothing() {
        let mut desk = Desk::serving();
        desk.at(5_000);
        assert_eq!(desk.job(), "lead");
        desk.done(SweepOutcome::LedByOther { expires_in: Duration::from_secs(18) });
        assert_eq!(desk.job(), "none");
        desk.at(9_999);
        assert_eq!(desk.job(), "none");
        desk.at(10_000);
        assert_eq!(desk.job(), "lead");
        desk.done(SweepOutcome::LedByOther { expires_in: Duration::from_secs(1) });
        assert_eq!(desk.sweeps.next_deadline(), Some(at(11_000)), "it ends sooner than a period");
    }

    #[test]
    fn a_failure_backs_off_and_the_same_goes_again_until_the_lead_has_run_out() {
        let mut desk = Desk::leading();
        assert_eq!(desk.job(), "expire from 0");
        desk.sweeps.handle_outcome(Err(away()), desk.now, desk.now);
        assert_eq!(desk.job(), "none");
        assert_eq!(desk.sweeps.next_deadline(), Some(at(5_050)));
        desk.at(5_050);
        assert_eq!(desk.job(), "expire from 0");
        desk.sweeps.handle_outcome(Err(away()), desk.now, desk.now);
        desk.at(25_000);
        assert_eq!(desk.job(), "lead");
        assert!(!desk.sweeps.leads(), "20 s without a good renewal");
    }

    #[test]
    fn a_fence_forgets_the_lead_and_what_is_in_flight() {
        let mut desk = Desk::leading();
        assert_eq!(desk.job(), "expire from 0");
        desk.sweeps.forsake();
        assert!(!desk.sweeps.is_over(), "its outcome is waited for");
        let pass = ExpiryPass { expired: 5, is_full: true, next: UnixMillis(9), skipped: None };
        assert_eq!(desk.done(SweepOutcome::Expired(pass)).expired, 5, "it did happen");
        assert!(desk.take(Aim::Nothing).is_none());
        assert_eq!(desk.job(), "none", "serving again, it waits for a period");
        desk.at(10_000);
        assert_eq!(desk.job(), "lead");
    }

    #[test]
    fn a_stop_gives_the_lead_back_and_tries_once() {
        let mut desk = Desk::leading();
        assert_eq!(desk.job(), "expire from 0");
        assert!(desk.take(Aim::Resign).is_none(), "one job at a time");
        desk.sweeps.handle_outcome(Err(away()), desk.now, desk.now);
        assert!(matches!(desk.take(Aim::Resign), Some(SweepJob::Resign { .. })));
        assert!(!desk.sweeps.is_over());
        desk.sweeps.handle_outcome(Err(away()), desk.now, desk.now);
        assert!(desk.sweeps.is_over());
        assert!(desk.take(Aim::Resign).is_none());
    }
}

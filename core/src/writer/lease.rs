//! The lease of this gateway id: when it is asked for, renewed, given back, and when it is gone.
//!
//! The lease is the right of one process to route as this gateway. It is asked for until it is had, then
//! renewed every quarter of its time or sooner, on a connection of its own, ahead of every other job. The
//! database proves it in each routing transaction, under a lock that a renewal passes and a takeover waits
//! for: so what a zombie had open is over before a successor begins, and what it opens later is refused.
//! It does not wait to be told: half the TTL after its last good attempt it lets go by itself, which is
//! well before anyone else may take the lease. Then every stream on every shard ends, nothing is
//! remembered, and the lease is asked for anew. At a stop it is given back, so that nobody need wait.
//!
//! Owns the lifecycle and its deadlines. Never touches sessions: it says `Serve` or `Fence`, and the
//! writer does what follows.
//!
//! 1. A renewal counts from the start of its attempt, never from its answer.
//! 2. Half the TTL after the start of the last good attempt, without another, the lease is gone,
//!    whatever is in flight; so is it with another owner, or when a routing transaction says so.
//! 3. The answer to an attempt from before a fence changes nothing but that the next may start.
//! 4. At most one lease job is in flight.

use std::time::Duration;

use super::backoff::Backoff;
use crate::ids::LeaseEpoch;
use crate::store::{LeaseOutcome, StoreError};
use crate::time::Moment;

/// Wait before the next attempt to acquire: at least this, at most `ACQUIRE_SLOWEST`.
const ACQUIRE_FASTEST: Duration = Duration::from_millis(250);
const ACQUIRE_SLOWEST: Duration = Duration::from_secs(2);

/// Where the lease is in its life, as far as this process knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// Not ours; no job in flight.
    Unheld,
    Acquiring,
    Held,
    Renewing,
    /// Not ours, but a renewal from before the fence is still in flight.
    Fenced,
    Releasing,
    /// A release failed, or nobody knows: not relied on any more, and still to be given back.
    Parting,
    /// Given back, for good.
    Released,
}

impl LeaseState {
    /// In the order of the enum.
    pub const ALL: [Self; 8] = [
        Self::Unheld,
        Self::Acquiring,
        Self::Held,
        Self::Renewing,
        Self::Fenced,
        Self::Releasing,
        Self::Parting,
        Self::Released,
    ];
}

/// What can happen to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseEvent {
    /// The shell took an acquisition or a renewal.
    AttemptTaken,
    /// The shell took the release.
    ReleaseTaken,
    /// The store says that the lease is ours.
    Good,
    /// The same, but the attempt started half a TTL ago or earlier.
    GoodTooLate,
    HeldByOther,
    Released,
    /// The store failed.
    NotCommitted,
    /// A Hello or a dispatch found the lease gone.
    RoutingRefused,
    /// Half the TTL has passed without a good renewal.
    Overdue,
}

impl LeaseEvent {
    /// In the order of the enum.
    pub const ALL: [Self; 9] = [
        Self::AttemptTaken,
        Self::ReleaseTaken,
        Self::Good,
        Self::GoodTooLate,
        Self::HeldByOther,
        Self::Released,
        Self::NotCommitted,
        Self::RoutingRefused,
        Self::Overdue,
    ];
}

/// What the writer must do about a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseChange {
    Nothing,
    Serve,
    Fence,
}

impl LeaseState {
    /// The whole table. What is not named leaves the state as it is.
    pub(super) const fn on(self, event: LeaseEvent) -> (Self, LeaseChange) {
        use LeaseChange::{Fence, Nothing, Serve};
        use LeaseEvent as E;
        match (self, event) {
            (Self::Unheld, E::AttemptTaken) => (Self::Acquiring, Nothing),

            (Self::Acquiring, E::Good) => (Self::Held, Serve),
            (Self::Acquiring, E::GoodTooLate | E::HeldByOther | E::NotCommitted | E::Released) => {
                (Self::Unheld, Nothing)
            }

            (Self::Held, E::AttemptTaken) => (Self::Renewing, Nothing),
            (Self::Held, E::ReleaseTaken) => (Self::Releasing, Nothing),
            (Self::Held, E::RoutingRefused | E::Overdue) => (Self::Unheld, Fence),

            (Self::Renewing, E::Good | E::NotCommitted) => (Self::Held, Nothing),
            (Self::Renewing, E::GoodTooLate | E::HeldByOther | E::Released) => (Self::Unheld, Fence),
            (Self::Renewing, E::RoutingRefused | E::Overdue) => (Self::Fenced, Fence),

            (Self::Fenced, E::Good | E::GoodTooLate | E::HeldByOther | E::NotCommitted | E::Released) => {
                (Self::Unheld, Nothing)
            }

            (Self::Releasing, E::Good | E::GoodTooLate | E::HeldByOther | E::Released) => {
                (Self::Released, Nothing)
            }
            (Self::Releasing, E::NotCommitted) => (Self::Parting, Nothing),
            (Self::Parting, E::ReleaseTaken) => (Self::Releasing, Nothing),

            (state, _) => (state, Nothing),
        }
    }
}

/// What the writer wants of the lease at its point of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseAim {
    /// To have it: acquired where it is not held, renewed where it is.
    Hold,
    /// To keep it while it lasts, and not to ask for it anew.
    Keep,
    /// To give it back.
    Release,
}

/// What the writer should ask of the store about the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseWish {
    Acquire,
    Renew(LeaseEpoch),
    Release(LeaseEpoch),
}

#[derive(Debug)]
pub(super) struct Lease {
    state: LeaseState,
    epoch: LeaseEpoch,
    ttl: Duration,
    renew_every: Duration,
    /// Start of the last good attempt.
    good_since: Moment,
    next_attempt: Moment,
    /// What a renewal writes has changed since the last one left.
    has_news: bool,
    backoff: Backoff,
}

impl Lease {
    pub(super) fn new(ttl: Duration, renew_every: Duration, now: Moment) -> Self {
        Self {
            state: LeaseState::Unheld,
            epoch: LeaseEpoch(0),
            ttl,
            renew_every,
            good_since: now,
            next_attempt: now,
            has_news: false,
            backoff: Backoff::new(ACQUIRE_FASTEST, ACQUIRE_SLOWEST),
        }
    }

    /// The next renewal has something to tell: it leaves as soon as none is in flight.
    pub(super) fn handle_news(&mut self) {
        self.has_news = true;
    }

    /// A routing transaction that counts found the lease gone.
    pub(super) fn handle_routing_refused(&mut self, now: Moment) -> LeaseChange {
        self.next_attempt = now;
        self.step(LeaseEvent::RoutingRefused)
    }

    /// Looks whether the lease is overdue.
    pub(super) fn handle_time(&mut self, now: Moment) -> LeaseChange {
        if self.is_held() && now >= self.good_since + self.ttl / 2 {
            self.next_attempt = now;
            return self.step(LeaseEvent::Overdue);
        }
        LeaseChange::Nothing
    }

    /// The outcome of the lease job that was started at `started`.
    pub(super) fn handle_outcome(
        &mut self,
        outcome: Result<LeaseOutcome, StoreError>,
        started: Moment,
        now: Moment,
    ) -> LeaseChange {
        let event = match outcome {
            Ok(LeaseOutcome::Held { epoch }) => self.event_of_held(epoch, started, now),
            Ok(LeaseOutcome::HeldByOther { owner, expires_in }) => {
                self.backoff.note(format!("the lease is held by {owner}"));
                self.next_attempt = now + expires_in.clamp(ACQUIRE_FASTEST, ACQUIRE_SLOWEST);
                LeaseEvent::HeldByOther
            }
            Ok(LeaseOutcome::Released) => LeaseEvent::Released,
            Err(error) => {
                self.backoff.handle_failure(&error, now);
                self.next_attempt = self.backoff.ready_at();
                LeaseEvent::NotCommitted
            }
        };
        self.step(event)
    }

    fn event_of_held(&mut self, epoch: LeaseEpoch, started: Moment, now: Moment) -> LeaseEvent {
        self.backoff.handle_success();
        if matches!(self.state, LeaseState::Renewing) && epoch != self.epoch {
            // The owner is this process, yet the epoch rose: another one had it in between.
            self.next_attempt = now;
            return LeaseEvent::HeldByOther;
        }
        if now >= started + self.ttl / 2 {
            self.next_attempt = now;
            return LeaseEvent::GoodTooLate;
        }
        if matches!(self.state, LeaseState::Acquiring | LeaseState::Renewing) {
            self.epoch = epoch;
            self.good_since = started;
            self.next_attempt = started + self.renew_every;
        } else {
            self.next_attempt = now;
        }
        LeaseEvent::Good
    }

    /// What to ask of the store now; the job counts as in flight from here on.
    pub(super) fn poll_wish(&mut self, aim: LeaseAim, now: Moment) -> Option<LeaseWish> {
        let due = now >= self.next_attempt;
        let has_news = self.has_news && self.backoff.is_ready(now);
        match (self.state, aim) {
            (LeaseState::Held | LeaseState::Parting, LeaseAim::Release) if self.backoff.is_ready(now) => {
                self.step(LeaseEvent::ReleaseTaken);
                Some(LeaseWish::Release(self.epoch))
            }
            (LeaseState::Unheld, LeaseAim::Hold) if due => {
                self.step(LeaseEvent::AttemptTaken);
                Some(LeaseWish::Acquire)
            }
            (LeaseState::Held, LeaseAim::Hold | LeaseAim::Keep) if due || has_news => {
                self.has_news = false;
                self.step(LeaseEvent::AttemptTaken);
                Some(LeaseWish::Renew(self.epoch))
            }
            _ => None,
        }
    }

    fn step(&mut self, event: LeaseEvent) -> LeaseChange {
        let (state, change) = self.state.on(event);
        self.state = state;
        change
    }

    pub(super) fn is_held(&self) -> bool {
        matches!(self.state, LeaseState::Held | LeaseState::Renewing)
    }

    /// Whether nothing is held and nothing is in flight that could make it so.
    pub(super) fn is_given_up(&self) -> bool {
        matches!(self.state, LeaseState::Unheld | LeaseState::Fenced | LeaseState::Released)
    }

    pub(super) fn state(&self) -> LeaseState {
        self.state
    }

    /// When the last good attempt began.
    pub(super) fn good_since(&self) -> Moment {
        self.good_since
    }

    pub(super) fn epoch(&self) -> Option<LeaseEpoch> {
        self.is_held().then_some(self.epoch)
    }

    pub(super) fn backoff(&self) -> &Backoff {
        &self.backoff
    }

    /// When `handle_time` or `poll_wish` has something to do.
    pub(super) fn next_deadline(&self, aim: LeaseAim) -> Option<Moment> {
        let overdue = self.good_since + self.ttl / 2;
        match (self.state, aim) {
            (LeaseState::Unheld, LeaseAim::Hold) => Some(self.next_attempt),
            (LeaseState::Held, LeaseAim::Release) => Some(self.backoff.ready_at().min(overdue)),
            (LeaseState::Parting, _) => Some(self.backoff.ready_at()),
            (LeaseState::Held, _) if self.has_news => {
                Some(self.backoff.ready_at().min(self.next_attempt).min(overdue))
            }
            (LeaseState::Held, _) => Some(self.next_attempt.min(overdue)),
            (LeaseState::Renewing, _) => Some(overdue),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::default() + Duration::from_millis(millis)
    }

    fn lease() -> Lease {
        Lease::new(Duration::from_secs(20), Duration::from_secs(5), at(0))
    }

    fn held(epoch: u64) -> Result<LeaseOutcome, StoreError> {
        Ok(LeaseOutcome::Held { epoch: LeaseEpoch(epoch) })
    }

    fn away() -> Result<LeaseOutcome, StoreError> {
        Err(StoreError::Retry("the database is away".into()))
    }

    #[test]
    fn every_state_and_event_has_its_transition() {
        let mut table = String::new();
        for state in LeaseState::ALL {
            for event in LeaseEvent::ALL {
                let (next, change) = state.on(event);
                table.push_str(&format!("{state:?} + {event:?} = {next:?}, {change:?}\n"));
            }
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn a_renewal_counts_from_its_start() {
        let mut lease = lease();
        assert_eq!(lease.poll_wish(LeaseAim::Hold, at(0)), Some(LeaseWish::Acquire));
        assert_eq!(lease.handle_outcome(held(1), at(0), at(400)), LeaseChange::Serve);
        assert_eq!(lease.next_deadline(LeaseAim::Hold), Some(at(5_000)));
        assert_eq!(lease.poll_wish(LeaseAim::Hold, at(5_000)), Some(LeaseWish::Renew(LeaseEpoch(1))));
        assert_eq!(lease.handle_outcome(held(1), at(5_000), at(9_000)), LeaseChange::Nothing);
        assert_eq!(lease.poll_wish(LeaseAim::Hold, at(10_000)), Some(LeaseWish::Renew(LeaseEpoch(1))));
        assert_eq!(lease.handle_time(at(14_999)), LeaseChange::Nothing);
        assert_eq!(lease.handle_time(at(15_000)), LeaseChange::Fence);
    }

    #[test]
    fn an_answer_from_before_the_fence_resurrects_nothing() {
        let mut lease = lease();
        lease.poll_wish(LeaseAim::Hold, at(0));
        lease.handle_outcome(held(1), at(0), at(0));
        lease.poll_wish(LeaseAim::Hold, at(5_000));
        assert_eq!(lease.handle_time(at(10_000)), LeaseChange::Fence);
        assert_eq!(lease.poll_wish(LeaseAim::Hold, at(10_500)), None, "the renewal is still in flight");
        assert_eq!(lease.handle_outcome(held(1), at(5_000), at(11_000)), LeaseChange::Nothing);
        assert_eq!(lease.epoch(), None);
        assert_eq!(lease.poll_wish(LeaseAim::Hold, at(11_000)), Some(LeaseWish::Acquire));
    }

    #[test]
    fn an_acquisition_that_took_half_the_ttl_is_asked_for_again() {
        let mut lease = lease();
        lease.poll_wish(LeaseAim::Hold, at(0));
        assert_eq!(lease.handle_outcome(held(1), at(0), at(10_000)), LeaseChange::Nothing);
        assert_eq!(lease.poll_wish(LeaseAim::Hold, at(10_000)), Some(LeaseWish::Acquire));
    }

    #[test]
    fn anothers_lease_is_asked_for_again_no_faster_than_it_can_end() {
        let mut lease = lease();
        let other = |millis| {
            Ok(LeaseOutcome::HeldByOther { owner: "b".into(), expires_in: Duration::from_millis(millis) })
        };
        lease.poll_wish(LeaseAim::Hold, at(0));
        lease.handle_outcome(other(900), at(0), at(0));
        assert_eq!(lease.next_deadline(LeaseAim::Hold), Some(at(900)));
        lease.poll_wish(LeaseAim::Hold, at(900));
        lease.handle_outcome(other(19_000), at(900), at(900));
        assert_eq!(lease.next_deadline(LeaseAim::Hold), Some(at(2_900)));
        lease.poll_wish(LeaseAim::Hold, at(2_900));
        lease.handle_outcome(other(0), at(2_900), at(2_900));
        assert_eq!(lease.next_deadline(LeaseAim::Hold), Some(at(3_150)));
    }

    #[test]
    fn failed_renewals_are_repeated_until_the_fence() {
        let mut lease = lease();
        lease.poll_wish(LeaseAim::Hold, at(0));
        lease.handle_outcome(held(1), at(0), at(0));
        let mut now = 5_000;
        let mut attempts = 0;
        while lease.handle_time(at(now)) == LeaseChange::Nothing {
            if lease.poll_wish(LeaseAim::Hold, at(now)).is_some() {
                attempts += 1;
                lease.handle_outcome(away(), at(now), at(now));
            }
            now += 50;
        }
        assert_eq!(now, 10_000);
        assert!((4..=8).contains(&attempts), "{attempts} attempts");
    }

    #[test]
    fn a_release_that_fails_is_tried_again() {
        let mut lease = lease();
        lease.poll_wish(LeaseAim::Hold, at(0));
        lease.handle_outcome(held(3), at(0), at(0));
        assert_eq!(lease.poll_wish(LeaseAim::Release, at(10)), Some(LeaseWish::Release(LeaseEpoch(3))));
        lease.handle_outcome(away(), at(10), at(20));
        assert_eq!(lease.poll_wish(LeaseAim::Release, at(20)), None);
        assert_eq!(lease.poll_wish(LeaseAim::Release, at(270)), Some(LeaseWish::Release(LeaseEpoch(3))));
        lease.handle_outcome(Ok(LeaseOutcome::Released), at(270), at(280));
        assert!(lease.is_given_up());
        assert_eq!(lease.poll_wish(LeaseAim::Hold, at(90_000)), None);
    }
}

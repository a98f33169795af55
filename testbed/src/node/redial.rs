//! When a node dials again: pure decisions, the caller keeps the time.
//!
//! 1. A pushback is kept exactly.
//! 2. Without one: a random delay up to a bound that doubles from `first` to `max`, and starts over
//!    once a session was welcomed.
//! 3. An identity that was refused waits the longest; a node that is not permitted stops.

use std::time::Duration;

use super::end::{End, EndKind};

const PERMISSION_DENIED: u32 = 7;
const UNAUTHENTICATED: u32 = 16;

/// What a node does after the end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redial {
    After(Duration),
    Never,
}

/// The bounds of the back-off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedialBounds {
    pub first: Duration,
    pub max: Duration,
}

impl Default for RedialBounds {
    fn default() -> Self {
        Self { first: Duration::from_millis(250), max: Duration::from_secs(30) }
    }
}

/// The back-off of one node.
#[derive(Debug)]
pub struct Redialer {
    bounds: RedialBounds,
    failures: u32,
}

impl Redialer {
    pub fn new(bounds: RedialBounds) -> Self {
        Self { bounds, failures: 0 }
    }

    /// A session ended or was not opened. `random` is any number.
    pub fn handle_end(&mut self, end: &End, random: u64) -> Redial {
        if end.was_welcomed {
            self.failures = 0;
        }
        match end.kind {
            EndKind::Status(PERMISSION_DENIED) => return Redial::Never,
            EndKind::Status(UNAUTHENTICATED) | EndKind::TlsAlert(_) => return Redial::After(self.bounds.max),
            _ => {}
        }
        if let Some(pushback) = end.pushback {
            return Redial::After(pushback);
        }
        let bound = self.bounds.first.saturating_mul(1 << self.failures.min(20)).min(self.bounds.max);
        self.failures = self.failures.saturating_add(1);
        let millis = u64::try_from(bound.as_millis()).unwrap_or(u64::MAX);
        Redial::After(Duration::from_millis(random % millis.saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(was_welcomed: bool) -> End {
        End { was_welcomed, ..End::of(EndKind::Transport, "lost") }
    }

    #[test]
    fn a_pushback_is_kept_exactly_and_a_forbidden_node_stops() {
        let mut redialer = Redialer::new(RedialBounds::default());
        let refused = End {
            pushback: Some(Duration::from_millis(4321)),
            ..End::of(EndKind::Status(8), "too many sessions are being opened")
        };
        assert_eq!(redialer.handle_end(&refused, u64::MAX), Redial::After(Duration::from_millis(4321)));
        assert_eq!(redialer.handle_end(&End::of(EndKind::Status(7), ""), 0), Redial::Never);
    }

    #[test]
    fn a_refused_identity_waits_the_longest() {
        let mut redialer = Redialer::new(RedialBounds::default());
        for kind in [EndKind::Status(16), EndKind::TlsAlert("CertificateExpired".into())] {
            assert_eq!(redialer.handle_end(&End::of(kind, ""), 0), Redial::After(Duration::from_secs(30)));
        }
    }

    #[test]
    fn the_back_off_doubles_to_its_bound_and_starts_over_after_a_welcome() {
        let mut redialer = Redialer::new(RedialBounds::default());
        // A random number that gives the whole bound.
        let mut bounds = Vec::new();
        for power in 0..9 {
            let bound = (250u64 << power).min(30_000);
            assert_eq!(redialer.handle_end(&lost(false), bound), Redial::After(Duration::from_millis(bound)));
            bounds.push(bound);
        }
        assert_eq!(bounds[7..], [30_000, 30_000]);
        assert_eq!(redialer.handle_end(&lost(false), 30_001), Redial::After(Duration::ZERO));
        assert_eq!(redialer.handle_end(&lost(true), 250), Redial::After(Duration::from_millis(250)));
    }
}

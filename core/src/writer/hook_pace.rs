//! How many hooks the next transaction runs: fewer, where they turn out to be slow.
//!
//! Hooks of one transaction run one after the other, and all who wait for it wait for all of them. Where each
//! hangs until its time-out, a full transaction would hold up everybody's events for minutes; so the next one
//! takes as many as would have run in `TARGET`, and one at least: then what others send waits for one hook.
//!
//! 1. Slow hooks cut it at once, in proportion; quick ones give it back one by one, so that a hook that hangs
//!    among many that do not keeps it small.
//! 2. Never more than `MAX_SAVEPOINTS`, never none.

use std::time::Duration;

use crate::limits::MAX_SAVEPOINTS;

/// How long the hooks of a transaction may take together.
const TARGET: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct HookPace {
    at_most: usize,
}

impl HookPace {
    pub(super) const fn new() -> Self {
        Self { at_most: MAX_SAVEPOINTS }
    }

    /// A transaction with so many savepoints took so long.
    pub(super) fn handle_run(&mut self, savepoints: usize, took: Duration) {
        if savepoints == 0 {
            return;
        }
        self.at_most = if took > TARGET {
            let fit = savepoints as u128 * TARGET.as_nanos() / took.as_nanos();
            usize::try_from(fit).unwrap_or(MAX_SAVEPOINTS).clamp(1, self.at_most)
        } else {
            (self.at_most + 1).min(MAX_SAVEPOINTS)
        };
    }

    /// Savepoints that the next transaction takes at most.
    pub(super) const fn at_most(&self) -> usize {
        self.at_most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_that_hang_go_one_by_one_and_quick_ones_give_the_pace_back_slowly() {
        let mut pace = HookPace::new();
        pace.handle_run(60, Duration::from_millis(400));
        assert_eq!(pace.at_most(), 60);
        pace.handle_run(20, Duration::from_secs(2));
        assert_eq!(pace.at_most(), 5);
        pace.handle_run(5, Duration::from_secs(10));
        assert_eq!(pace.at_most(), 1);
        pace.handle_run(0, Duration::from_secs(10));
        (0..3).for_each(|_| pace.handle_run(1, Duration::from_millis(1)));
        assert_eq!(pace.at_most(), 4);
        // One entry may take more than its share; what is slow does not raise it.
        pace.handle_run(40, Duration::from_millis(600));
        assert_eq!(pace.at_most(), 4);
        (0..100).for_each(|_| pace.handle_run(1, Duration::from_millis(1)));
        assert_eq!(pace.at_most(), MAX_SAVEPOINTS);
    }
}

//! Many histories on all cores, and what they came to together.
//!
//! Owns the threads and the sum. A history knows neither: each is lived whole on one thread, so a seed is
//! one history wherever and beside whatever it is lived.
//!
//! 1. Of several seeds that fail the lowest is reported, whatever thread was first.
//! 2. What failed is told by the name of its check, or by the place of the assertion.

use std::cell::RefCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use crate::check::name_of;
use crate::coverage::Coverage;
use crate::world::{Plan, Story, World};

/// A history in which something did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub seed: u64,
    /// The check that found it.
    pub check: String,
    pub message: String,
}

/// What a range of seeds came to.
#[derive(Debug, Default)]
pub struct Survey {
    /// Histories that were lived to their end.
    pub lived: u64,
    pub sum: Story,
    /// The shortest history, in events.
    pub fewest_events: u64,
    pub coverage: Coverage,
    /// Of the lowest seed that failed.
    pub failure: Option<Failure>,
}

/// Lives through the seeds on `threads` threads; after a failure none higher is begun.
pub fn survey(seeds: Range<u64>, plan: Plan, threads: usize) -> Survey {
    hear_panics();
    let next = AtomicU64::new(seeds.start);
    let end = AtomicU64::new(seeds.end);
    let whole = Mutex::new(Survey { fewest_events: u64::MAX, ..Survey::default() });
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let mut part = Survey { fewest_events: u64::MAX, ..Survey::default() };
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end.load(Ordering::Relaxed) {
                        break;
                    }
                    if let Err(failure) = part.add(seed, plan) {
                        end.fetch_min(failure.seed, Ordering::Relaxed);
                        part.failure = Some(failure);
                    }
                }
                whole.lock().unwrap_or_else(PoisonError::into_inner).take_in(part);
            });
        }
    });
    whole.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Survey {
    fn add(&mut self, seed: u64, plan: Plan) -> Result<(), Failure> {
        LAST_PANIC.set(Some(String::new()));
        let lived = catch_unwind(AssertUnwindSafe(|| World::new(seed, plan).live_covered()));
        let place = LAST_PANIC.take().unwrap_or_default();
        let (story, coverage) = lived.map_err(|payload| {
            let message = payload
                .downcast::<String>()
                .map(|text| *text)
                .or_else(|payload| payload.downcast::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_default();
            let check = name_of(&message).map_or(place, str::to_owned);
            Failure { seed, check, message }
        })?;
        self.lived += 1;
        self.fewest_events = self.fewest_events.min(story.events);
        self.sum.add(&story);
        self.coverage.add(&coverage);
        Ok(())
    }

    fn take_in(&mut self, part: Self) {
        self.lived += part.lived;
        self.sum.add(&part.sum);
        self.fewest_events = self.fewest_events.min(part.fewest_events);
        self.coverage.add(&part.coverage);
        let failures = self.failure.take().into_iter().chain(part.failure);
        self.failure = failures.min_by_key(|failure| failure.seed);
    }
}

thread_local! {
    /// Where the last panic of this thread was, while it lives through histories.
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A history that fails is told once, by its survey; panics of other threads are told as ever.
fn hear_panics() {
    static HEARD: Once = Once::new();
    HEARD.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let is_mine = LAST_PANIC.with_borrow_mut(|last| {
                let mine = last.is_some();
                if mine && let Some(place) = panic.location() {
                    *last = Some(format!("assertion at {}:{}", place.file(), place.line()));
                }
                mine
            });
            if !is_mine {
                before(panic);
            }
        }));
    });
}

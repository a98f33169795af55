//! What the relays count: calls by kind and outcome, how long they took, how many are open.
//!
//! Written by the relays alone, read by whoever scrapes; each number by itself, relaxed.
//!
//! 1. Labels are words of our own: a kind of call, an outcome.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use gateway_core::relay::{Answered, Refusal, RefusalCode, RelayKind};

use crate::status::{Distribution, Family, Label, Points, Unit, number};

/// Upper bounds of the histogram of durations, in seconds; one more takes what is longer.
const BOUNDS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 10.0];

/// The numbers.
#[derive(Debug, Default)]
pub struct RelayStatus([OfKind; RelayKind::ALL.len()]);

#[derive(Debug, Default)]
struct OfKind {
    answered: AtomicU64,
    /// By the service, or since its certificate does not allow it.
    refused: AtomicU64,
    /// The service did not answer, or can't.
    unavailable: AtomicU64,
    /// Too many were open, or waited too long.
    not_started: AtomicU64,
    in_flight: AtomicU64,
    waiting: AtomicU64,
    micros: AtomicU64,
    buckets: [AtomicU64; BOUNDS.len() + 1],
}

impl RelayStatus {
    fn of(&self, kind: RelayKind) -> &OfKind {
        &self.0[RelayKind::ALL.iter().position(|known| *known == kind).unwrap_or_default()]
    }

    pub(super) fn note_end(&self, kind: RelayKind, outcome: &Result<Answered, Refusal>, took: Duration) {
        let of = self.of(kind);
        let counter = match outcome {
            Ok(_) => &of.answered,
            Err(refusal) if refusal.code == RefusalCode::Unavailable => &of.unavailable,
            Err(_) => &of.refused,
        };
        counter.fetch_add(1, Relaxed);
        of.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
        let seconds = took.as_secs_f64();
        let bucket = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        of.buckets[bucket].fetch_add(1, Relaxed);
    }

    pub(super) fn note_refused(&self, kind: RelayKind) {
        self.of(kind).not_started.fetch_add(1, Relaxed);
    }

    pub(super) fn set_load(&self, kind: RelayKind, (in_flight, waiting): (usize, usize)) {
        self.of(kind).in_flight.store(in_flight as u64, Relaxed);
        self.of(kind).waiting.store(waiting as u64, Relaxed);
    }

    /// For `/metrics`.
    pub fn families(&self) -> Vec<Family> {
        let kinds =
            || RelayKind::ALL.into_iter().map(|kind| (Label::Word("call", kind.label()), self.of(kind)));
        let outcomes = kinds().flat_map(|(call, of)| {
            [
                ("answered", &of.answered),
                ("refused", &of.refused),
                ("unavailable", &of.unavailable),
                ("not-started", &of.not_started),
            ]
            .map(|(word, counter)| (vec![call, Label::Word("outcome", word)], number(counter.load(Relaxed))))
        });
        let gauge = |read: fn(&OfKind) -> &AtomicU64| {
            kinds().map(|(call, of)| (vec![call], number(read(of).load(Relaxed)))).collect()
        };
        let seconds = kinds().map(|(call, of)| {
            let buckets: Vec<(f64, u64)> = BOUNDS
                .into_iter()
                .chain([f64::INFINITY])
                .zip(of.buckets.iter().map(|count| count.load(Relaxed)))
                .collect();
            let count = buckets.iter().map(|(_, count)| count).sum();
            (vec![call], Distribution { sum: number(of.micros.load(Relaxed)) / 1e6, count, buckets })
        });
        let family = |name, help, unit, points| Family { name, help, unit, points };
        vec![
            family(
                "relays",
                "Calls of nodes that are passed on to a service",
                None,
                Points::Counters(outcomes.collect()),
            ),
            family(
                "relay",
                "How long calls took that were passed on",
                Some(Unit::Seconds),
                Points::Histograms(seconds.collect()),
            ),
            family(
                "relays_in_flight",
                "Calls that are under way to their service",
                None,
                Points::Gauges(gauge(|of| &of.in_flight)),
            ),
            family("relays_waiting", "Calls that wait to be", None, Points::Gauges(gauge(|of| &of.waiting))),
        ]
    }
}

//! What the tunnels count: how many there are, how they ended, how full the memory of tickets is.
//!
//! Written by the room alone, read by whoever scrapes; each number by itself, relaxed.
//!
//! 1. Labels are words of our own.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gateway_core::tunnel::TunnelClose;

use crate::status::{Family, Label, Points, number};

const REASONS: usize = TunnelClose::LABELS.len();

/// The numbers.
#[derive(Debug, Default)]
pub struct TunnelStatus {
    /// From the open on.
    open: AtomicU64,
    /// Of those, the ones whose node has joined.
    joined: AtomicU64,
    /// Over, and not let go of by their callers.
    leaving: AtomicU64,
    used_tickets: AtomicU64,
    joins: AtomicU64,
    /// Ends of tunnels that were joined, and of opens that were not, by reason.
    ended: [AtomicU64; REASONS],
    not_opened: [AtomicU64; REASONS],
}

impl TunnelStatus {
    pub(super) fn set_load(&self, (open, joined): (usize, usize), leaving: usize, used_tickets: usize) {
        self.leaving.store(leaving as u64, Relaxed);
        self.open.store(open as u64, Relaxed);
        self.joined.store(joined as u64, Relaxed);
        self.used_tickets.store(used_tickets as u64, Relaxed);
    }

    pub(super) fn note_joined(&self) {
        self.joins.fetch_add(1, Relaxed);
    }

    pub(super) fn note_over(&self, close: &TunnelClose, was_joined: bool) {
        let counters = if was_joined { &self.ended } else { &self.not_opened };
        let label = close.label();
        if let Some(at) = TunnelClose::LABELS.iter().position(|known| *known == label) {
            counters[at].fetch_add(1, Relaxed);
        }
    }

    /// For `/metrics`.
    pub fn families(&self) -> Vec<Family> {
        let by_reason = |counters: &[AtomicU64; REASONS]| {
            let point = |(label, count): (&'static str, &AtomicU64)| {
                (vec![Label::Word("reason", label)], number(count.load(Relaxed)))
            };
            Points::Counters(TunnelClose::LABELS.into_iter().zip(counters).map(point).collect())
        };
        vec![
            Family::gauge("tunnels", "Tunnels, from the open on", self.open.load(Relaxed)),
            Family::gauge("tunnels_joined", "Tunnels whose node has joined", self.joined.load(Relaxed)),
            Family::gauge(
                "tunnels_leaving",
                "Tunnels that are over and have a place until their caller has taken the rest",
                self.leaving.load(Relaxed),
            ),
            Family::gauge(
                "tunnel_tickets_remembered",
                "Used tickets that have not expired",
                self.used_tickets.load(Relaxed),
            ),
            Family::counter("tunnel_joins", "Tunnels that nodes have joined", self.joins.load(Relaxed)),
            Family {
                name: "tunnel_ends",
                help: "Ends of tunnels that were joined, by reason",
                unit: None,
                points: by_reason(&self.ended),
            },
            Family {
                name: "tunnel_opens_failed",
                help: "Opens of tunnels that were not joined, by reason; 'ticket' is any fault of a ticket",
                unit: None,
                points: by_reason(&self.not_opened),
            },
        ]
    }
}

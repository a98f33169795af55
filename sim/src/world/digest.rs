//! The digest of a history: two runs of one seed came to the same if their digests are the same.
//!
//! Owns how an event is taken in. Never looks at what an event means.
//!
//! 1. All of an event counts, but the bodies of specs, which are known by their generations.

use gateway_core::frame::GatewayFrame;
use gateway_core::seam::{SessionNews, ToShard};
use gateway_core::time::Moment;

use super::Event;

/// FNV-1a: the same on every machine and in every process.
pub(super) struct Fnv(pub(super) u64);

impl std::fmt::Write for Fnv {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
        Ok(())
    }
}

impl Fnv {
    /// The digest after an event.
    pub(super) fn next(before: u64, now: Moment, event: &Event) -> u64 {
        let mut digest = Self(before ^ now.as_nanos());
        digest.take_event(event);
        digest.0
    }

    pub(super) fn take(&mut self, what: &impl std::fmt::Debug) {
        // It never fails: nothing is written anywhere.
        let _ = std::fmt::Write::write_fmt(self, format_args!("{what:?}"));
    }

    /// Bodies of specs are long, and known by their generation.
    fn take_event(&mut self, event: &Event) {
        match event {
            Event::Down { link, frame: GatewayFrame::Spec(spec) } => {
                self.take(&(link, &spec.name, spec.generation, spec.body.len()));
            }
            Event::Mail {
                process,
                message: ToShard::Session { key, news: SessionNews::Specs(specs) },
                ..
            } => {
                self.take(&(process, key));
                specs.iter().for_each(|spec| self.take(&(&spec.name, spec.generation, spec.body.len())));
            }
            other => self.take(other),
        }
    }
}

//! Which certificates that were refused were told of lately: nodes dial again and again.
//!
//! Atomics alone, since all shards share one; where two of them race, a line may come twice.
//!
//! 1. One serial is told of once a minute, and at most `SERIALS` of them in a minute.
//! 2. What is not told is counted, and the next line says how many that were.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const EVERY_SECONDS: u32 = 60;

/// Who was told of, and when, of so many serials: the upper half of a place has the serial's hash, the lower the seconds since 1970.
#[derive(Debug)]
pub(crate) struct Told<const SERIALS: usize> {
    places: [AtomicU64; SERIALS],
    untold: AtomicU64,
}

impl<const SERIALS: usize> Default for Told<SERIALS> {
    fn default() -> Self {
        Self { places: [const { AtomicU64::new(0) }; SERIALS], untold: AtomicU64::new(0) }
    }
}

impl<const SERIALS: usize> Told<SERIALS> {
    /// Whether to tell of this serial now; gives how many were not told since the last that was.
    pub(crate) fn may_tell(&self, serial: &str, now_seconds: u64) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        serial.hash(&mut hasher);
        let tag = hasher.finish() >> 32;
        let now = now_seconds as u32;
        // A clock that was set back makes all of them old.
        let is_old = |place: u64| now.wrapping_sub(place as u32) >= EVERY_SECONDS;
        let mut free = None;
        for place in &self.places {
            let held = place.load(Relaxed);
            if is_old(held) {
                free = free.or(Some(place));
            } else if held >> 32 == tag {
                free = None;
                break;
            }
        }
        let Some(place) = free else {
            self.untold.fetch_add(1, Relaxed);
            return None;
        };
        place.store(tag << 32 | u64::from(now), Relaxed);
        Some(self.untold.swap(0, Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    #[test]
    fn a_serial_is_told_of_once_a_minute_and_then_with_what_was_not_told() {
        let told = Told::<64>::default();
        assert_eq!(told.may_tell("5A", NOW), Some(0));
        for second in 0..60 {
            assert_eq!(told.may_tell("5A", NOW + second), None);
        }
        assert_eq!(told.may_tell("5B", NOW + 59), Some(60), "another one is told of meanwhile");
        assert_eq!(told.may_tell("5A", NOW + 60), Some(0));
        assert_eq!(told.may_tell("5A", NOW - 1_000), Some(0), "a clock that was set back hushes nobody");
    }

    #[test]
    fn a_whole_fleet_is_told_of_by_no_more_lines_than_are_remembered() {
        let told = Told::<64>::default();
        let lines =
            |now| (0..10_000).filter(|serial| told.may_tell(&format!("{serial:X}"), now).is_some()).count();
        assert_eq!(lines(NOW), 64);
        assert_eq!(lines(NOW + 30), 0);
        assert_eq!(lines(NOW + 60), 64);
    }
}

//! When a session was last heard, and when its life is written to the database.
//!
//! It holds times and compares them; what follows from them is the machine's.
//!
//! 1. Any frame is a sign of life.
//! 2. Silence counts only while the gateway reads: a pause of reading restarts the count.
//! 3. A look that comes more than a heartbeat late shows that this side stood still (the frames may
//!    wait in the socket): the node is given one more heartbeat, once a silence.
//! 4. Two writes of liveness are at least `liveness_write_every` apart, and the Hello is the first.

use crate::ids::SessionKey;
use crate::limits::Limits;
use crate::time::Moment;

#[derive(Debug)]
pub(super) struct Vitals {
    silence_due_at: Moment,
    write_due_at: Moment,
    write_owed: bool,
    reading_paused: bool,
    grace_given: bool,
}

impl Vitals {
    /// From the Hello's grant at `now` on. The first write is put off by up to one period more,
    /// by the session's key, so that sessions opened together do not write together.
    pub(super) fn new(key: SessionKey, limits: &Limits, now: Moment) -> Self {
        let every = limits.liveness_write_every;
        let put_off = every.mul_f64(f64::from(spread(key)) / f64::from(u32::MAX));
        Self {
            silence_due_at: now + limits.heartbeat_timeout(),
            write_due_at: now + every + put_off,
            write_owed: false,
            reading_paused: false,
            grace_given: false,
        }
    }

    /// The node sent something.
    pub(super) fn handle_frame(&mut self, limits: &Limits, now: Moment) {
        self.restart_silence(limits, now);
        if now >= self.write_due_at {
            self.write_due_at = now + limits.liveness_write_every;
            self.write_owed = true;
        }
    }

    /// Whether the gateway reads the session, as of `now`.
    pub(super) fn handle_reading(&mut self, reads: bool, limits: &Limits, now: Moment) {
        if reads && self.reading_paused {
            self.restart_silence(limits, now);
        }
        self.reading_paused = !reads;
    }

    /// Whether the node has been silent for too long at `now`. To be asked after `handle_reading`.
    pub(super) fn handle_time(&mut self, limits: &Limits, now: Moment) -> bool {
        if self.reading_paused || now < self.silence_due_at {
            return false;
        }
        if !self.grace_given && now.since(self.silence_due_at) > limits.heartbeat_interval {
            self.grace_given = true;
            self.silence_due_at = now + limits.heartbeat_interval;
            return false;
        }
        true
    }

    /// Takes the owed write of liveness.
    pub(super) fn poll_write(&mut self) -> bool {
        std::mem::take(&mut self.write_owed)
    }

    /// When `handle_time` must be asked.
    pub(super) fn deadline(&self) -> Moment {
        self.silence_due_at
    }

    fn restart_silence(&mut self, limits: &Limits, now: Moment) {
        self.silence_due_at = now + limits.heartbeat_timeout();
        self.grace_given = false;
    }
}

/// A number that differs from session to session, evenly spread (the finalizer of MurmurHash3).
fn spread(key: SessionKey) -> u32 {
    let mut mixed = key.slot ^ key.serial.rotate_left(16) ^ (u32::from(key.shard.0) << 20);
    mixed = (mixed ^ (mixed >> 16)).wrapping_mul(0x85eb_ca6b);
    mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35);
    mixed ^ (mixed >> 16)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ids::ShardId;

    fn key(slot: u32) -> SessionKey {
        SessionKey { shard: ShardId(1), slot, serial: 7 }
    }

    fn at(seconds: u64) -> Moment {
        Moment::default() + Duration::from_secs(seconds)
    }

    #[test]
    fn a_thousand_sessions_opened_together_do_not_write_together() {
        let limits = Limits::default();
        let mut in_second = [0u32; 60];
        for slot in 0..1000 {
            let mut vitals = Vitals::new(key(slot), &limits, at(0));
            for second in 1..60 {
                vitals.handle_frame(&limits, at(second));
                if vitals.poll_write() {
                    in_second[second as usize] += 1;
                    break;
                }
            }
        }
        assert_eq!(in_second[..30].iter().sum::<u32>(), 0, "the Hello counts as a write");
        assert!(in_second.iter().all(|writes| *writes < 70), "{in_second:?}");
    }

    #[test]
    fn two_writes_are_a_period_apart() {
        let limits = Limits::default();
        let mut vitals = Vitals::new(key(3), &limits, at(0));
        let mut written = vec![at(0)];
        for second in 1..600 {
            vitals.handle_frame(&limits, at(second));
            if vitals.poll_write() {
                written.push(at(second));
            }
        }
        assert!(written.len() > 15, "{written:?}");
        assert!(written.windows(2).all(|pair| pair[1].since(pair[0]) >= limits.liveness_write_every));
    }

    #[test]
    fn a_gateway_that_stood_still_does_not_take_its_nodes_for_dead() {
        let limits = Limits::default();
        let mut vitals = Vitals::new(key(0), &limits, at(0));
        assert!(!vitals.handle_time(&limits, at(300)), "the first look comes late");
        assert_eq!(vitals.deadline(), at(310));
        assert!(!vitals.handle_time(&limits, at(309)));
        assert!(vitals.handle_time(&limits, at(600)), "no second grace in one silence");
    }
}

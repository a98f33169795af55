//! Who may open a session or join now, and when the others should come back.
//!
//! One `Admission` serves all shards of a gateway; it is made of atomics alone. Three bounds, in this
//! order: a token bucket over opens, the streams, the Hellos that wait for the database. Who is
//! refused gets a place in a queue that exists only as times: each bound remembers the last moment
//! that it promised to someone, and promises the next caller one step later, where a step is the
//! measured time in which the bound makes room for one. So a herd comes back as a file.
//! Beside them it bounds the connections of peers without a certificate, who are given no promise, and
//! the joins, which anybody may ask for: by a bucket and a queue of their own.
//!
//! 1. No count ever exceeds its bound, not even for an instant.
//! 2. A refusal changes no count and takes no token.
//! 3. A delay is at least `MIN_RETRY` and at most `MAX_RETRY`.
//! 4. Measures may be off by what races; bounds may not.
//! 5. Nothing that a peer without a certificate sends delays the open of a node.

mod pace;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::close::{AdmissionBound, CloseReason};
use crate::limits::Limits;
use crate::time::Moment;

use pace::{Promises, Throughput, TokenBucket};

/// Shortest delay given.
pub const MIN_RETRY: Duration = Duration::from_millis(5);
/// Longest delay given.
pub const MAX_RETRY: Duration = Duration::from_secs(60);

/// The bounds over the sessions of a gateway, shared by its shards.
#[derive(Debug)]
pub struct Admission {
    bucket: TokenBucket,
    bucket_promises: Promises,
    joins: TokenBucket,
    join_promises: Promises,
    streams: Room,
    pending_hellos: Room,
    anonymous: Room,
}

/// A count with a bound, and how fast it makes room.
#[derive(Debug)]
struct Room {
    taken: AtomicUsize,
    bound: usize,
    throughput: Throughput,
    promises: Promises,
}

impl Admission {
    /// With the bounds of `limits`, at `now`, with all tokens there.
    pub fn new(limits: &Limits, now: Moment) -> Self {
        let bucket = TokenBucket::new(limits.opens_per_second, limits.opens_burst, now);
        let guess = bucket.step();
        Self {
            bucket,
            bucket_promises: Promises::default(),
            joins: TokenBucket::new(limits.joins_per_second, limits.joins_burst, now),
            join_promises: Promises::default(),
            streams: Room::new(limits.streams, guess, now),
            pending_hellos: Room::new(limits.pending_hellos, guess, now),
            anonymous: Room::new(limits.anonymous_connections, guess, now),
        }
    }

    /// A stream asks to be opened. `random` is any number: the jitter is taken from it.
    /// `Err` is a `CloseReason::Refused` with the bound and the delay.
    pub fn handle_open(&self, random: u64, now: Moment) -> Result<(), CloseReason> {
        let step = self.bucket.step();
        if let Err(free_in) = self.bucket.take(now) {
            return Err(refused(
                AdmissionBound::OpensPerSecond,
                self.bucket_promises.promise(free_in, step, random, now),
            ));
        }
        if !self.streams.enter(now) {
            self.bucket.give_back();
            return Err(refused(AdmissionBound::Streams, self.streams.promise(step, random, now)));
        }
        if !self.pending_hellos.enter(now) {
            self.streams.leave_unused();
            self.bucket.give_back();
            return Err(refused(
                AdmissionBound::PendingHellos,
                self.pending_hellos.promise(step, random, now),
            ));
        }
        Ok(())
    }

    /// Somebody asks to join, with a request that is whole: it takes a token, and nothing else.
    ///
    /// The protocol's text has one bucket over opens and joins. They are apart here: who joins has proven
    /// nothing, and a stranger who took the tokens of opens, or their places in the queue, would keep out
    /// every node with a certificate.
    pub fn handle_join(&self, random: u64, now: Moment) -> Result<(), CloseReason> {
        self.joins.take(now).map_err(|free_in| {
            let step = self.joins.step();
            refused(AdmissionBound::JoinsPerSecond, self.join_promises.promise(free_in, step, random, now))
        })
    }

    /// A connection of a peer that shows no certificate of a node came. Whether it may stay.
    pub fn handle_anonymous(&self, now: Moment) -> bool {
        self.anonymous.enter(now)
    }

    /// One that might stay has left. Once a connection.
    pub fn handle_anonymous_left(&self) {
        self.anonymous.leave_unused();
    }

    /// An admitted stream's Hello has its outcome, or will never have one. Once a stream.
    pub fn handle_hello_done(&self, now: Moment) {
        self.pending_hellos.leave(now);
    }

    /// An admitted stream is over. Once a stream, after `handle_hello_done`.
    pub fn handle_close(&self, now: Moment) {
        self.streams.leave(now);
    }

    /// How many streams are open.
    pub fn streams(&self) -> usize {
        self.streams.taken.load(Ordering::Acquire)
    }

    /// How many streams wait for their Hello or for its outcome.
    pub fn pending_hellos(&self) -> usize {
        self.pending_hellos.taken.load(Ordering::Acquire)
    }
}

impl Room {
    fn new(bound: usize, guess: Duration, now: Moment) -> Self {
        Self {
            taken: AtomicUsize::new(0),
            bound,
            throughput: Throughput::new(guess, now),
            promises: Promises::default(),
        }
    }

    /// Takes a place, if one is free.
    fn enter(&self, now: Moment) -> bool {
        let entered = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
            (taken < self.bound).then_some(taken + 1)
        });
        // While the room was empty nothing could leave: that time says nothing of its pace.
        if entered == Ok(0) {
            self.throughput.restart(now);
        }
        entered.is_ok()
    }

    /// Gives back a place that was served.
    fn leave(&self, now: Moment) {
        self.leave_unused();
        self.throughput.handle_served(now);
    }

    /// Gives back a place that was taken and never used.
    fn leave_unused(&self) {
        let left = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| taken.checked_sub(1));
        debug_assert!(left.is_ok(), "a stream was given back that was never admitted");
    }

    /// The delay for one who found no place. `floor` is the pace at which anyone is let in at all.
    fn promise(&self, floor: Duration, random: u64, now: Moment) -> Duration {
        let step = self.throughput.step(now).max(floor);
        self.promises.promise(step, step, random, now)
    }
}

fn refused(bound: AdmissionBound, retry_after: Duration) -> CloseReason {
    CloseReason::Refused { bound, retry_after }
}

#[cfg(test)]
mod tests;

//! How many relayed calls are under way and how many wait, for each kind by itself.
//!
//! A machine: requests in, ends in; requests to be started and requests that waited too long out. It never
//! looks at what is asked. Kinds are apart, so that a secret broker that hangs keeps no node from joining; and
//! so are certificates, so that none that asks without end takes a kind from all others.
//!
//! 1. Of a kind at most `in_flight` are under way, and at most `waiting` wait; more are refused at once.
//! 2. One certificate has at most a quarter of either, and one at least.
//! 3. Requests of a kind start in the order in which they came, but past those whose certificate has its
//!    share under way.
//! 4. A request that is not started by its deadline never is; it comes out of `poll_late` once.

use std::collections::VecDeque;

use super::{RelayKind, RelayRequest};
use crate::crowd::Crowd;
use crate::revocation::SerialKey;
use crate::time::Moment;

/// The part of a bound that one certificate may have.
const SHARE: usize = 4;

/// The machine.
#[derive(Debug)]
pub struct RelayLanes {
    in_flight_bound: usize,
    waiting_bound: usize,
    lanes: [Lane; RelayKind::ALL.len()],
}

#[derive(Debug)]
struct Lane {
    in_flight: usize,
    under_way: Crowd,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    /// None's, where a stranger asks.
    certificate: Option<SerialKey>,
    request: RelayRequest,
}

impl RelayLanes {
    /// With the bounds of each kind.
    pub fn new(in_flight: usize, waiting: usize) -> Self {
        let share = u32::try_from(share(in_flight)).unwrap_or(u32::MAX);
        let lanes = RelayKind::ALL.map(|_| Lane {
            in_flight: 0,
            under_way: Crowd::new(share),
            waiting: VecDeque::new(),
        });
        Self { in_flight_bound: in_flight, waiting_bound: waiting, lanes }
    }

    /// A shard asks; the request comes back where no more may wait. To be followed by `poll_start`.
    #[allow(clippy::result_large_err, reason = "it is what came in, given back")]
    pub fn handle_request(&mut self, request: RelayRequest) -> Result<(), RelayRequest> {
        let lane = &mut self.lanes[request.asked.kind().index()];
        let certificate = request.asked.certificate();
        let starts = lane.in_flight < self.in_flight_bound
            && certificate.is_none_or(|certificate| lane.under_way.has_room(certificate));
        let may_wait = lane.waiting.len() < self.waiting_bound
            && (certificate.is_none() || lane.waiting_of(certificate) < share(self.waiting_bound));
        if !starts && !may_wait {
            return Err(request);
        }
        lane.waiting.push_back(Waiting { certificate, request });
        Ok(())
    }

    /// A started request has its answer; `certificate` is what `Asked::certificate` told of it.
    pub fn handle_end(&mut self, kind: RelayKind, certificate: Option<SerialKey>) {
        let lane = &mut self.lanes[kind.index()];
        debug_assert!(lane.in_flight > 0, "a relay ended that was not started");
        lane.in_flight = lane.in_flight.saturating_sub(1);
        if let Some(certificate) = certificate {
            lane.under_way.handle_departure(certificate);
        }
    }

    /// A request whose deadline passed before it could start, to be refused.
    pub fn poll_late(&mut self, now: Moment) -> Option<RelayRequest> {
        // All have the same time from their coming, so the first is the first to be late.
        self.lanes
            .iter_mut()
            .find_map(|lane| lane.waiting.pop_front_if(|waiting| waiting.request.due_at <= now))
            .map(|waiting| waiting.request)
    }

    /// A request to be started now.
    pub fn poll_start(&mut self) -> Option<RelayRequest> {
        let bound = self.in_flight_bound;
        self.lanes.iter_mut().filter(|lane| lane.in_flight < bound).find_map(|lane| {
            let Lane { under_way, waiting, .. } = lane;
            let first = waiting.iter().position(|waiting| {
                waiting.certificate.is_none_or(|certificate| under_way.handle_arrival(certificate))
            })?;
            lane.in_flight += 1;
            waiting.remove(first).map(|waiting| waiting.request)
        })
    }

    /// When `poll_late` has something, though nothing happens.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.lanes.iter().filter_map(|lane| lane.waiting.front()).map(|waiting| waiting.request.due_at).min()
    }

    /// How many of a kind are under way, and how many wait.
    pub fn load(&self, kind: RelayKind) -> (usize, usize) {
        let lane = &self.lanes[kind.index()];
        (lane.in_flight, lane.waiting.len())
    }
}

impl Lane {
    fn waiting_of(&self, certificate: Option<SerialKey>) -> usize {
        self.waiting.iter().filter(|waiting| waiting.certificate == certificate).count()
    }
}

fn share(bound: usize) -> usize {
    (bound / SHARE).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::{NodeId, ShardId};
    use crate::relay::{Asked, FetchSecret, Hidden, RelayKey, Renew};
    use crate::seam::Identity;

    /// Each of a certificate of its own.
    fn request(kind: RelayKind, slot: u32, due_ms: u64) -> RelayRequest {
        request_of(&format!("{slot:X}"), kind, slot, due_ms)
    }

    fn request_of(serial: &str, kind: RelayKind, slot: u32, due_ms: u64) -> RelayRequest {
        let identity = Identity {
            node: NodeId::new("spiffe://a/site/s/node/n").expect("a node id"),
            site: "s".to_owned(),
            certificate_serial: serial.to_owned(),
        };
        let asked = match kind {
            RelayKind::FetchSecret => {
                Asked::FetchSecret(identity, FetchSecret { name: "n".to_owned(), version: String::new() })
            }
            _ => Asked::Renew(identity, Renew { csr_der: Hidden::default() }),
        };
        RelayRequest {
            key: RelayKey { shard: ShardId(0), slot, serial: 0 },
            asked,
            due_at: Moment::from_nanos(due_ms * 1_000_000),
        }
    }

    fn slot(request: Option<RelayRequest>) -> Option<u32> {
        request.map(|request| request.key.slot)
    }

    #[test]
    fn a_kind_that_hangs_keeps_no_other_from_starting() {
        let mut lanes = RelayLanes::new(2, 1);
        for n in 0..3 {
            lanes.handle_request(request(RelayKind::FetchSecret, n, 10)).expect("there is room");
            if n < 2 {
                assert_eq!(slot(lanes.poll_start()), Some(n));
            }
        }
        assert_eq!(slot(lanes.poll_start()), None, "two are under way");
        let refused = lanes.handle_request(request(RelayKind::FetchSecret, 3, 10));
        assert_eq!(refused.expect_err("one waits").key.slot, 3);
        lanes.handle_request(request(RelayKind::Renew, 4, 10)).expect("another kind");
        assert_eq!(slot(lanes.poll_start()), Some(4));
        lanes.handle_end(RelayKind::FetchSecret, Some(SerialKey::of("0")));
        assert_eq!(slot(lanes.poll_start()), Some(2), "in order");
    }

    #[test]
    fn a_request_that_waited_too_long_never_starts() {
        let mut lanes = RelayLanes::new(1, 5);
        for (n, due) in [(0, 10), (1, 20), (2, 30)] {
            lanes.handle_request(request(RelayKind::Renew, n, due)).expect("there is room");
        }
        assert_eq!(slot(lanes.poll_start()), Some(0));
        assert_eq!(lanes.next_deadline(), Some(Moment::from_nanos(20_000_000)));
        assert_eq!(lanes.poll_late(Moment::from_nanos(19_999_999)), None);
        assert_eq!(slot(lanes.poll_late(Moment::from_nanos(20_000_000))), Some(1));
        assert_eq!(lanes.poll_late(Moment::from_nanos(20_000_000)), None, "once");
        lanes.handle_end(RelayKind::Renew, Some(SerialKey::of("0")));
        assert_eq!(slot(lanes.poll_start()), Some(2));
    }

    #[test]
    fn one_certificate_that_asks_without_end_has_a_quarter_and_others_pass_it() {
        let kind = RelayKind::FetchSecret;
        let mut lanes = RelayLanes::new(8, 16);
        let taken = (0..100).filter(|n| {
            let is_taken = lanes.handle_request(request_of("HOG", kind, *n, 10)).is_ok();
            while lanes.poll_start().is_some() {}
            is_taken
        });
        assert_eq!(taken.count(), 2 + 4);
        assert_eq!(lanes.load(kind), (2, 4));
        for n in 200..206 {
            lanes.handle_request(request(kind, n, 10)).expect("others have the rest");
            assert_eq!(slot(lanes.poll_start()), Some(n));
        }
        assert_eq!(lanes.load(kind), (8, 4));
        lanes.handle_request(request(kind, 300, 10)).expect("others may wait");
        lanes.handle_end(kind, Some(SerialKey::of(&format!("{:X}", 200))));
        assert_eq!(slot(lanes.poll_start()), Some(300), "past the four of the hog");
        lanes.handle_end(kind, Some(SerialKey::of("HOG")));
        assert_eq!(slot(lanes.poll_start()), Some(2), "the hog's own next");
        assert_eq!(lanes.poll_start(), None);
    }

    #[test]
    fn strangers_share_a_kind_of_their_own() {
        let join = |slot| RelayRequest {
            asked: Asked::Join(crate::relay::Join {
                token: Hidden::default(),
                csr_der: Hidden::default(),
                machine: String::new(),
                software_version: String::new(),
            }),
            ..request(RelayKind::Renew, slot, 10)
        };
        let mut lanes = RelayLanes::new(4, 4);
        for n in 0..8 {
            lanes.handle_request(join(n)).expect("they are not told apart");
            assert_eq!(slot(lanes.poll_start()), (n < 4).then_some(n));
        }
        assert_eq!(lanes.handle_request(join(8)).expect_err("no more").key.slot, 8);
        lanes.handle_end(RelayKind::Join, None);
        assert_eq!(slot(lanes.poll_start()), Some(4));
    }

    proptest! {
        #[test]
        fn no_bound_is_passed_and_every_request_comes_out_once(
            steps in proptest::collection::vec((0u8..4, any::<bool>(), 0u8..4), 1..200),
        ) {
            let (mut lanes, mut now, mut asked) = (RelayLanes::new(5, 4), 0u64, 0u32);
            let mut open = [const { Vec::new() }; 3];
            let mut out = std::collections::BTreeSet::new();
            for (step, is_secret, serial) in steps {
                let kind = if is_secret { RelayKind::FetchSecret } else { RelayKind::Renew };
                now += 1;
                match step {
                    0 | 1 => {
                        if let Err(refused) = lanes.handle_request(request_of(&serial.to_string(), kind, asked, now + 8)) {
                            prop_assert!(out.insert(refused.key.slot));
                        }
                        asked += 1;
                    }
                    2 => {
                        if let Some(certificate) = open[kind.index()].pop() {
                            lanes.handle_end(kind, certificate);
                        }
                    }
                    _ => {}
                }
                while let Some(late) = lanes.poll_late(Moment::from_nanos(now * 1_000_000)) {
                    prop_assert!(out.insert(late.key.slot));
                }
                while let Some(started) = lanes.poll_start() {
                    prop_assert!(started.due_at > Moment::from_nanos(now * 1_000_000));
                    prop_assert!(out.insert(started.key.slot));
                    open[started.asked.kind().index()].push(started.asked.certificate());
                }
                for kind in RelayKind::ALL {
                    let (in_flight, waiting) = lanes.load(kind);
                    prop_assert_eq!(in_flight, open[kind.index()].len());
                    let certificates = &open[kind.index()];
                    for one in certificates {
                        let under_way = certificates.iter().filter(|other| *other == one).count();
                        prop_assert!(under_way <= share(5));
                    }
                    prop_assert!(in_flight <= 5 && waiting <= 4);
                }
            }
            let waiting: usize = RelayKind::ALL.into_iter().map(|kind| lanes.load(kind).1).sum();
            prop_assert_eq!(out.len() + waiting, asked as usize);
        }
    }
}

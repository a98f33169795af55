//! How many relayed calls are under way and how many wait, for each kind by itself.
//!
//! A machine: requests in, ends in; requests to be started and requests that waited too long out. It never
//! looks at what is asked. Kinds are apart, so that a secret broker that hangs keeps no node from joining.
//!
//! 1. Of a kind at most `in_flight` are under way, and at most `waiting` wait; more are refused at once.
//! 2. Requests of a kind start in the order in which they came.
//! 3. A request that is not started by its deadline never is; it comes out of `poll_late` once.

use std::collections::VecDeque;

use super::{RelayKind, RelayRequest};
use crate::time::Moment;

/// The machine.
#[derive(Debug)]
pub struct RelayLanes {
    in_flight_bound: usize,
    waiting_bound: usize,
    lanes: [Lane; RelayKind::ALL.len()],
}

#[derive(Debug, Default)]
struct Lane {
    in_flight: usize,
    waiting: VecDeque<RelayRequest>,
}

impl RelayLanes {
    /// With the bounds of each kind.
    pub fn new(in_flight: usize, waiting: usize) -> Self {
        Self { in_flight_bound: in_flight, waiting_bound: waiting, lanes: Default::default() }
    }

    /// A shard asks; the request comes back where no more may wait. To be followed by `poll_start`.
    #[allow(clippy::result_large_err, reason = "it is what came in, given back")]
    pub fn handle_request(&mut self, request: RelayRequest) -> Result<(), RelayRequest> {
        let lane = &mut self.lanes[request.asked.kind().index()];
        if lane.in_flight >= self.in_flight_bound && lane.waiting.len() >= self.waiting_bound {
            return Err(request);
        }
        lane.waiting.push_back(request);
        Ok(())
    }

    /// A started request has its answer.
    pub fn handle_end(&mut self, kind: RelayKind) {
        let lane = &mut self.lanes[kind.index()];
        debug_assert!(lane.in_flight > 0, "a relay ended that was not started");
        lane.in_flight = lane.in_flight.saturating_sub(1);
    }

    /// A request whose deadline passed before it could start, to be refused.
    pub fn poll_late(&mut self, now: Moment) -> Option<RelayRequest> {
        // All have the same time from their coming, so the first is the first to be late.
        RelayKind::ALL
            .into_iter()
            .find_map(|kind| self.lanes[kind.index()].waiting.pop_front_if(|request| request.due_at <= now))
    }

    /// A request to be started now.
    pub fn poll_start(&mut self) -> Option<RelayRequest> {
        let bound = self.in_flight_bound;
        self.lanes.iter_mut().filter(|lane| lane.in_flight < bound).find_map(|lane| {
            let request = lane.waiting.pop_front()?;
            lane.in_flight += 1;
            Some(request)
        })
    }

    /// When `poll_late` has something, though nothing happens.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.lanes.iter().filter_map(|lane| lane.waiting.front()).map(|request| request.due_at).min()
    }

    /// How many of a kind are under way, and how many wait.
    pub fn load(&self, kind: RelayKind) -> (usize, usize) {
        let lane = &self.lanes[kind.index()];
        (lane.in_flight, lane.waiting.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::{NodeId, ShardId};
    use crate::relay::{Asked, FetchSecret, Hidden, RelayKey, Renew};
    use crate::seam::Identity;

    fn request(kind: RelayKind, slot: u32, due_ms: u64) -> RelayRequest {
        let identity = Identity {
            node: NodeId::new("spiffe://a/site/s/node/n").expect("a node id"),
            site: "s".to_owned(),
            certificate_serial: "0A".to_owned(),
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
        lanes.handle_end(RelayKind::FetchSecret);
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
        lanes.handle_end(RelayKind::Renew);
        assert_eq!(slot(lanes.poll_start()), Some(2));
    }

    proptest! {
        #[test]
        fn no_bound_is_passed_and_every_request_comes_out_once(
            steps in proptest::collection::vec((0u8..4, any::<bool>()), 1..200),
        ) {
            let (mut lanes, mut now, mut asked) = (RelayLanes::new(3, 4), 0u64, 0u32);
            let mut open = [0usize; 3];
            let mut out = std::collections::BTreeSet::new();
            for (step, is_secret) in steps {
                let kind = if is_secret { RelayKind::FetchSecret } else { RelayKind::Renew };
                now += 1;
                match step {
                    0 | 1 => {
                        if let Err(refused) = lanes.handle_request(request(kind, asked, now + 8)) {
                            prop_assert!(out.insert(refused.key.slot));
                        }
                        asked += 1;
                    }
                    2 if open[kind.index()] > 0 => {
                        open[kind.index()] -= 1;
                        lanes.handle_end(kind);
                    }
                    _ => {}
                }
                while let Some(late) = lanes.poll_late(Moment::from_nanos(now * 1_000_000)) {
                    prop_assert!(out.insert(late.key.slot));
                }
                while let Some(started) = lanes.poll_start() {
                    prop_assert!(started.due_at > Moment::from_nanos(now * 1_000_000));
                    prop_assert!(out.insert(started.key.slot));
                    open[started.asked.kind().index()] += 1;
                }
                for kind in RelayKind::ALL {
                    let (in_flight, waiting) = lanes.load(kind);
                    prop_assert_eq!(in_flight, open[kind.index()]);
                    prop_assert!(in_flight <= 3 && waiting <= 4);
                }
            }
            let waiting: usize = RelayKind::ALL.into_iter().map(|kind| lanes.load(kind).1).sum();
            prop_assert_eq!(out.len() + waiting, asked as usize);
        }
    }
}

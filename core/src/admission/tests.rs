//! Herds in simulated time, and threads that race for the bounds.
//!
//! A herd obeys every delay that it is given; what is asserted is how soon all are in and that the
//! database is never asked faster than it answers. The races are the only tests of the core with threads:
//! admission is the one thing that shards share.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::AtomicBool;

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Open(usize),
    HelloDone,
}

/// How a herd got in.
#[derive(Debug)]
struct Herd {
    all_in_after: Duration,
    refusals_a_node: f64,
    worst_refusals: u32,
    peak_hellos: usize,
}

fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state
}

/// `nodes` dial within `spread`, obey every delay, and have their Hello served one after the other,
/// each in `hello_takes`.
fn run_herd(nodes: usize, spread: Duration, hello_takes: Duration, limits: &Limits) -> Herd {
    let start = Moment::from_nanos(1_000_000_000);
    let admission = Admission::new(limits, start);
    let mut random = 7;
    let mut queue = BinaryHeap::new();
    for node in 0..nodes {
        let late = spread.mul_f64(node as f64 / nodes as f64);
        queue.push(Reverse((start + late, Due::Open(node))));
    }
    let mut refusals = vec![0u32; nodes];
    let (mut last_in, mut writer_free_at, mut peak_hellos) = (start, start, 0);
    while let Some(Reverse((now, due))) = queue.pop() {
        match due {
            Due::HelloDone => admission.handle_hello_done(now),
            Due::Open(node) => match admission.handle_open(next_random(&mut random), now) {
                Ok(()) => {
                    last_in = last_in.max(now);
                    peak_hellos = peak_hellos.max(admission.pending_hellos());
                    writer_free_at = writer_free_at.max(now) + hello_takes;
                    queue.push(Reverse((writer_free_at, Due::HelloDone)));
                }
                Err(reason) => {
                    refusals[node] += 1;
                    let delay = reason.pushback().expect("a refusal has a pushback");
                    assert!((MIN_RETRY..=MAX_RETRY).contains(&delay), "{delay:?}");
                    queue.push(Reverse((now + delay, Due::Open(node))));
                }
            },
        }
    }
    assert_eq!(admission.streams(), nodes.min(limits.streams));
    assert_eq!(admission.pending_hellos(), 0);
    Herd {
        all_in_after: last_in.since(start),
        refusals_a_node: f64::from(refusals.iter().sum::<u32>()) / nodes as f64,
        worst_refusals: refusals.into_iter().max().unwrap_or(0),
        peak_hellos,
    }
}

#[test]
fn a_herd_that_obeys_is_in_at_the_pace_of_the_bucket() {
    for spread in [Duration::ZERO, Duration::from_secs(2), Duration::from_secs(10)] {
        let herd = run_herd(5_000, spread, Duration::from_millis(1), &Limits::default());
        eprintln!("over {spread:?}: {herd:?}");
        assert!(herd.all_in_after <= Duration::from_secs(27), "{herd:?}");
        assert!(herd.refusals_a_node <= 2.0, "{herd:?}");
        assert!(herd.worst_refusals <= 12, "{herd:?}");
    }
}

#[test]
fn a_herd_at_a_slow_database_comes_back_at_its_pace() {
    // 100 Hellos a second are served; the bucket would let in 200.
    let limits = Limits { pending_hellos: 300, ..Limits::default() };
    let herd = run_herd(5_000, Duration::ZERO, Duration::from_millis(10), &limits);
    eprintln!("{herd:?}");
    assert!(herd.peak_hellos <= 300, "{herd:?}");
    assert!(herd.all_in_after <= Duration::from_secs(60), "the pace alone takes 47 s: {herd:?}");
    assert!(herd.refusals_a_node <= 3.0, "{herd:?}");
}

#[test]
fn a_herd_beyond_the_horizon_is_still_spread() {
    let limits = Limits { streams: 20_000, ..Limits::default() };
    let herd = run_herd(20_000, Duration::ZERO, Duration::from_millis(1), &limits);
    eprintln!("{herd:?}");
    assert!(herd.all_in_after <= Duration::from_secs(125), "the bucket alone takes 99 s: {herd:?}");
    assert!(herd.refusals_a_node <= 4.0, "{herd:?}");
}

fn refusal(admission: &Admission, random: u64, now: Moment) -> (AdmissionBound, Duration) {
    match admission.handle_open(random, now) {
        Err(CloseReason::Refused { bound, retry_after }) => (bound, retry_after),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_refusal_takes_nothing() {
    let now = Moment::from_nanos(5_000_000_000);
    let limits = Limits { streams: 2, pending_hellos: 1, opens_burst: 3, ..Limits::default() };
    let admission = Admission::new(&limits, now);
    assert_eq!(admission.handle_open(1, now), Ok(()));
    for random in 0..100 {
        assert_eq!(refusal(&admission, random, now).0, AdmissionBound::PendingHellos);
    }
    assert_eq!((admission.streams(), admission.pending_hellos()), (1, 1));
    admission.handle_hello_done(now);
    assert_eq!(admission.handle_open(1, now), Ok(()), "the token of a refused open is still there");
    admission.handle_hello_done(now);
    for random in 0..100 {
        assert_eq!(refusal(&admission, random, now).0, AdmissionBound::Streams);
    }
    admission.handle_close(now);
    assert_eq!(admission.handle_open(1, now), Ok(()), "the last of three tokens");
    assert_eq!(refusal(&admission, 1, now).0, AdmissionBound::OpensPerSecond);
    assert_eq!((admission.streams(), admission.pending_hellos()), (2, 1));
}

#[test]
fn the_bucket_promises_each_caller_a_token_of_its_own() {
    let now = Moment::default();
    let limits = Limits { opens_per_second: 10, opens_burst: 1, ..Limits::default() };
    let admission = Admission::new(&limits, now);
    assert_eq!(admission.handle_open(0, now), Ok(()));
    for nth in 1..=100u32 {
        let (_, delay) = refusal(&admission, u64::from(nth), now);
        let token = Duration::from_millis(100) * nth;
        assert!(
            delay >= token && delay <= token + token / 16 + Duration::from_millis(20),
            "{nth}: {delay:?}"
        );
    }
}

#[test]
fn a_stalled_database_puts_callers_off_for_longer() {
    let start = Moment::from_nanos(1);
    let limits = Limits { pending_hellos: 1, ..Limits::default() };
    let at_once = Admission::new(&limits, start);
    assert_eq!(at_once.handle_open(0, start), Ok(()));
    assert!(refusal(&at_once, 0, start).1 < Duration::from_millis(100));

    let stalled = Admission::new(&limits, start);
    assert_eq!(stalled.handle_open(0, start), Ok(()));
    let delay = refusal(&stalled, 0, start + Duration::from_secs(5)).1;
    assert!(delay >= Duration::from_secs(5), "nothing was served for 5 s: {delay:?}");
}

#[test]
fn the_end_of_a_stall_is_not_taken_for_the_pace() {
    let start = Moment::from_nanos(1);
    let admission = Admission::new(&Limits { pending_hellos: 150, ..Limits::default() }, start);
    for _ in 0..150 {
        assert_eq!(admission.handle_open(0, start), Ok(()));
    }
    // 5 s of nothing, then one commit of 149, then one more.
    for _ in 0..149 {
        admission.handle_hello_done(start + Duration::from_secs(5));
    }
    let later = start + Duration::from_millis(5_300);
    admission.handle_hello_done(later);
    for _ in 0..150 {
        assert_eq!(admission.handle_open(0, later), Ok(()));
    }
    let (bound, delay) = refusal(&admission, 0, later);
    assert_eq!(bound, AdmissionBound::PendingHellos);
    assert!(delay < Duration::from_millis(100), "{delay:?}");
}

#[test]
fn delays_stay_within_their_bounds_for_any_limits() {
    let now = Moment::from_nanos(u64::MAX / 2);
    for (rate, burst) in [(0, 0), (1, 1), (u32::MAX, u32::MAX), (1, u32::MAX)] {
        let limits = Limits {
            opens_per_second: rate,
            opens_burst: burst,
            streams: 3,
            pending_hellos: 3,
            ..Limits::default()
        };
        let admission = Admission::new(&limits, now);
        for random in [0, 1, u64::MAX, u64::MAX / 3].into_iter().cycle().take(2_000) {
            if let Err(reason) = admission.handle_open(random, now + Duration::from_secs(1)) {
                let delay = reason.pushback().expect("a refusal has a pushback");
                assert!((MIN_RETRY..=MAX_RETRY).contains(&delay), "{delay:?}");
            }
        }
    }
}

#[test]
fn racing_shards_never_exceed_a_bound() {
    const SHARDS: u64 = 4;
    const HELD_BEFORE: usize = 30;
    let start = Moment::from_nanos(1);
    let limits = Limits {
        streams: 40,
        pending_hellos: 10,
        opens_per_second: 1_000_000_000,
        opens_burst: 1_000_000,
        ..Limits::default()
    };
    let admission = Admission::new(&limits, start);
    // So many that a shard meets the bound though the others may not run at the same time.
    for _ in 0..HELD_BEFORE {
        admission.handle_open(1, start).expect("there is room");
        admission.handle_hello_done(start);
    }
    let done = AtomicBool::new(false);
    let (mut admitted, mut refused_opens) = (0, 0);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                assert!(admission.streams() <= 40);
                assert!(admission.pending_hellos() <= 10);
            }
        });
        let shards: Vec<_> = (0..SHARDS)
            .map(|shard| {
                let admission = &admission;
                scope.spawn(move || {
                    let (mut random, mut held, mut admitted, mut refused) = (shard, 0, 0, 0);
                    for turn in 0..10_000u64 {
                        let now = start + Duration::from_nanos(turn * 100);
                        match admission.handle_open(next_random(&mut random), now) {
                            Ok(()) => {
                                admitted += 1;
                                held += 1;
                                // Sometimes the Hello is slow, so that both bounds are met.
                                if random >> 62 == 0 {
                                    std::thread::yield_now();
                                }
                                admission.handle_hello_done(now);
                            }
                            Err(_) => refused += 1,
                        }
                        if held > 0 && (held > 12 || random >> 63 == 0) {
                            held -= 1;
                            admission.handle_close(now);
                        }
                    }
                    for _ in 0..held {
                        admission.handle_close(start);
                    }
                    (admitted, refused)
                })
            })
            .collect();
        for shard in shards {
            let (in_shard, out_shard) = shard.join().expect("a shard's thread");
            admitted += in_shard;
            refused_opens += out_shard;
        }
        done.store(true, Ordering::Release);
        watcher.join().expect("the bounds held");
    });
    (0..HELD_BEFORE).for_each(|_| admission.handle_close(start));
    assert_eq!(admitted + refused_opens, SHARDS * 10_000);
    assert!(admitted > 0 && refused_opens > 0, "{admitted} {refused_opens}");
    assert_eq!((admission.streams(), admission.pending_hellos()), (0, 0));
}

#[test]
fn racing_callers_never_get_more_tokens_than_there_are() {
    let now = Moment::from_nanos(1);
    let admission = Admission::new(&Limits::default(), now);
    let admitted: usize = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|caller| {
                let admission = &admission;
                scope.spawn(move || {
                    (0..1_000)
                        .filter(|turn| admission.handle_open(caller * 1_000 + turn, now).is_ok())
                        .count()
                })
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().expect("a caller's thread")).sum()
    });
    assert_eq!(admitted, 200, "the burst, and not one more");
    assert_eq!(admission.streams(), 200);
}

#[test]
fn strangers_who_ask_to_join_without_end_put_off_no_node() {
    let limits = Limits { joins_per_second: 10, joins_burst: 3, opens_burst: 2, ..Limits::default() };
    let now = Moment::from_nanos(1);
    let admission = Admission::new(&limits, now);
    for _ in 0..3 {
        assert_eq!(admission.handle_join(0, now), Ok(()));
    }
    for random in 0..10_000 {
        let refused = admission.handle_join(random, now).expect_err("the burst is spent");
        let CloseReason::Refused { bound: AdmissionBound::JoinsPerSecond, retry_after } = refused else {
            panic!("{refused:?}");
        };
        assert!(retry_after >= Duration::from_millis(100), "{retry_after:?}");
    }
    assert_eq!(admission.handle_open(0, now), Ok(()));
    assert_eq!(admission.handle_open(0, now), Ok(()), "both tokens of opens are there");
    let (bound, delay) = refusal(&admission, 0, now);
    assert_eq!(bound, AdmissionBound::OpensPerSecond);
    assert!(delay < Duration::from_millis(50), "the first in the queue of opens: {delay:?}");
    assert_eq!((admission.streams(), admission.pending_hellos()), (2, 2), "a join is no stream");
}

#[test]
fn nodes_that_open_without_end_keep_no_machine_from_joining() {
    let now = Moment::from_nanos(1);
    let admission = Admission::new(&Limits { opens_burst: 1, ..Limits::default() }, now);
    assert_eq!(admission.handle_open(0, now), Ok(()));
    for random in 0..1_000 {
        assert_eq!(refusal(&admission, random, now).0, AdmissionBound::OpensPerSecond);
    }
    assert_eq!(admission.handle_join(0, now), Ok(()));
}

//! Whether a shard hears the bell: always, at its start and in the middle of its sleep.
//!
//! A bell that rings while the shard is about to sleep is the one that gets lost, so rings are spread over
//! every moment of both. What the mail says does not matter here; `sessions` asks that.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::time::{Duration, Instant};

use gateway_core::limits::Limits;
use gateway_core::seam::ToShard;
use support::{Gateway, story};

fn wait_for_mail(gateway: &Gateway, taken: u64, what: &str) -> Duration {
    let begun = Instant::now();
    while gateway.counters[0].mail_taken.get() < taken {
        assert!(begun.elapsed() < Duration::from_secs(3), "{what}: mail {taken} was not taken");
        std::thread::yield_now();
    }
    begun.elapsed()
}

#[test]
fn a_ring_in_any_moment_of_the_start_is_heard() {
    for _ in 0..std::env::var("STARTS").map_or(20, |n| n.parse().unwrap()) {
        story(async {
            let gateway = Gateway::start(Limits::default());
            wait_for_mail(&gateway, 1, "at the start");
            let (outcomes, _writer) = gateway.stop().await;
            assert!(outcomes[0].is_ok());
        });
    }
}

#[test]
fn a_ring_in_any_moment_of_the_sleep_is_heard() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let rings = std::env::var("RINGS").map_or(5_000, |n| n.parse().unwrap());
        let mut waits = Vec::new();
        for n in 0..rings {
            // From right after the last look to deep in the sleep.
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_nanos(n * 37 % 60_000) {}
            gateway.tell_all(|| ToShard::Serving(true));
            waits.push(wait_for_mail(&gateway, n + 2, "in the middle"));
        }
        waits.sort_unstable();
        println!(
            "p50 {:?}, p99 {:?}, last {:?}",
            waits[waits.len() / 2],
            waits[waits.len() * 99 / 100],
            waits.last()
        );
    });
}

//! Histories by seed. A seed that fails names itself; repeat it with
//! `GATEWAY_SIM_SEED=<seed> cargo test -p gateway-sim --test seeds one_seed`.
//!
//! What must hold is checked by the world itself. Here stands how many histories are lived, that a seed is
//! one history, and that each kind of fault and each reachable cell of the machines' tables came.

use std::fmt::Write;

use gateway_sim::{FAULTS, Plan, Survey, live, survey};

/// Histories of the normal tests.
const SEEDS: u64 = 2_000;
/// What each history has at least.
const EVENTS_OF_EACH: u64 = 3_000;
/// How often each kind of fault comes in them together.
const TIMES_OF_EACH_FAULT: u64 = 60;

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Panics with the seed that failed and how to repeat it.
fn must_hold(whole: &Survey) {
    if let Some(failure) = &whole.failure {
        panic!(
            "seed {} fails: {}\nrepeat: GATEWAY_SIM_SEED={} cargo test -p gateway-sim --test seeds one_seed\n{}",
            failure.seed, failure.check, failure.seed, failure.message
        );
    }
}

#[test]
fn whatever_fails_every_command_ends_once_and_every_event_is_stored_once_and_in_order() {
    let whole = survey(0..SEEDS, Plan::default(), threads());
    must_hold(&whole);
    let all = &whole.sum;
    assert_eq!(whole.lived, SEEDS);
    assert!(whole.fewest_events >= EVENTS_OF_EACH, "a history of {} events", whole.fewest_events);
    assert!(all.executions > 60_000 && all.journaled > 60_000, "{all:?}");
    assert!(all.spec_changes > 20_000 && all.specs_failed > 500, "{all:?}");
    // Some are read again, after a lost answer or connection, but none without end.
    assert!(all.specs_read < 3 * all.spec_changes, "{all:?}");
    assert!(all.sections > 60_000, "{all:?}");
    assert!(all.joined > 1_000, "{all:?}");
    let happened =
        [all.tombstones, all.fences, all.superseded, all.rejected, all.conflicts, all.expired, all.reaped];
    assert!(happened.iter().all(|times| *times > 200), "what never happens is not tested: {all:?}");
    let faults = whole.coverage.faults();
    let rare: Vec<_> = FAULTS
        .iter()
        .map(|fault| (fault, faults.get(fault).copied().unwrap_or(0)))
        .filter(|(_, times)| *times < TIMES_OF_EACH_FAULT)
        .collect();
    assert!(rare.is_empty(), "a fault that hardly happens tests nothing: {rare:?}");
    assert!(faults.keys().all(|fault| FAULTS.contains(fault)), "a fault is not in the list: {faults:?}");
    let missed = whole.coverage.missed();
    assert!(missed.is_empty(), "no history came to {missed:#?}");
    let wrongly = whole.coverage.wrongly_out_of_reach();
    assert!(wrongly.is_empty(), "said to be out of reach, and is not: {wrongly:#?}");
}

#[test]
fn a_seed_is_one_history() {
    for seed in [1, 2, 3] {
        assert_eq!(live(seed, Plan::default()), live(seed, Plan::default()));
    }
    // Other seeds, other histories; and none depends on what is lived beside it.
    let (alone, beside) = (survey(7..27, Plan::default(), 1), survey(7..27, Plan::default(), 4));
    must_hold(&alone);
    assert_eq!(alone.sum, beside.sum);
    assert_ne!(live(1, Plan::default()).digest, live(2, Plan::default()).digest);
}

/// Seeds that once failed, each with what it found.
#[test]
fn seeds_that_once_failed_hold() {
    for (seed, found) in [
        (11, "a session that a sweep took for dead lived on, and nothing was dispatched to it"),
        (510, "an attempt that was refused while its lane was read was sent again"),
        (1555, "a spec that was answered while the look of its Hello went on was sent again"),
        (2804, "an end was forgotten for what was told late of an older attempt, and the attempt sent again"),
    ] {
        let whole = survey(seed..seed + 1, Plan::default(), 1);
        let mut told = String::new();
        let _ = write!(told, "{found}: {:?}", whole.failure);
        assert!(whole.failure.is_none(), "{told}");
    }
}

#[test]
fn one_seed() {
    let seed = std::env::var("GATEWAY_SIM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    live(seed, Plan::default());
}

/// Many seeds, from `GATEWAY_SIM_SEED` on, `GATEWAY_SIM_SEEDS` of them.
#[test]
#[ignore = "takes as long as it is told to"]
fn many_seeds() {
    let number =
        |name, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let first: u64 = number("GATEWAY_SIM_SEED", SEEDS);
    must_hold(&survey(first..first + number("GATEWAY_SIM_SEEDS", 10_000), Plan::default(), threads()));
}

//! Histories by seed. A seed that fails names itself; repeat it with
//! `GATEWAY_SIM_SEED=<seed> cargo test -p gateway-sim --test seeds one_seed`.
//!
//! What must hold is checked by the world itself (`world/checks.rs`). Here stands how many
//! histories are lived, that a seed is one history, and that each kind of fault did happen.

use std::panic::{AssertUnwindSafe, catch_unwind};

use gateway_sim::{Plan, Story, live};

fn live_named(seed: u64, plan: Plan) -> Story {
    catch_unwind(AssertUnwindSafe(|| live(seed, plan))).unwrap_or_else(|_| {
        panic!("seed {seed} fails; repeat: GATEWAY_SIM_SEED={seed} cargo test -p gateway-sim --test seeds one_seed")
    })
}

fn sum(seeds: std::ops::Range<u64>) -> Story {
    seeds.map(|seed| live_named(seed, Plan::default())).fold(Story::default(), |sum, story| Story {
        events: sum.events + story.events,
        executions: sum.executions + story.executions,
        fences: sum.fences + story.fences,
        superseded: sum.superseded + story.superseded,
        rejected: sum.rejected + story.rejected,
        conflicts: sum.conflicts + story.conflicts,
        unknown_outcomes: sum.unknown_outcomes + story.unknown_outcomes,
        crashes: sum.crashes + story.crashes,
        journaled: sum.journaled + story.journaled,
        tombstones: sum.tombstones + story.tombstones,
        sections: sum.sections + story.sections,
        expired: sum.expired + story.expired,
        reaped: sum.reaped + story.reaped,
        spec_changes: sum.spec_changes + story.spec_changes,
        specs_failed: sum.specs_failed + story.specs_failed,
        specs_read: sum.specs_read + story.specs_read,
        simulated: sum.simulated + story.simulated,
        ..sum
    })
}

#[test]
fn whatever_fails_every_command_ends_once_and_every_event_is_stored_once_and_in_order() {
    let all = sum(0..400);
    assert!(all.executions > 8_000, "{all:?}");
    assert!(all.journaled > 8_000, "{all:?}");
    assert!(all.spec_changes > 4_000 && all.specs_failed > 100, "{all:?}");
    // Some are read again, after a lost answer or connection, but none without end.
    assert!(all.specs_read < 3 * all.spec_changes, "{all:?}");
    assert!(all.sections > 8_000, "{all:?}");
    let happened = [
        all.tombstones,
        all.crashes,
        all.fences,
        all.superseded,
        all.unknown_outcomes,
        all.rejected,
        all.conflicts,
        all.expired,
        all.reaped,
    ];
    assert!(happened.iter().all(|times| *times > 20), "a fault that never happens tests nothing: {all:?}");
}

#[test]
fn a_seed_is_one_history() {
    for seed in [1, 2, 3] {
        assert_eq!(live_named(seed, Plan::default()), live_named(seed, Plan::default()));
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
    let first: u64 = number("GATEWAY_SIM_SEED", 1_000);
    sum(first..first + number("GATEWAY_SIM_SEEDS", 10_000));
}

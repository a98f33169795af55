//! The model conformance tests: PostgreSQL's store and the simulator's reference store are taken
//! through the same made-up sequences, and must agree, outcome by outcome and then row by row.
//!
//! A sequence that fails is shrunk, and printed with what repeats it:
//! `GATEWAY_MODEL_SEED=<seed> cargo test -p gateway-db-writer --test model one_seed`.
//! Many: `GATEWAY_MODEL_SEED=<first> GATEWAY_MODEL_SEEDS=<count> cargo test -p gateway-db-writer
//! --test model -- --ignored`. Sequences that once failed are kept in `model/regressions.rs`.

#![allow(clippy::unwrap_used, unreachable_pub)]

#[path = "model/certificates.rs"]
mod certificates;
#[path = "model/journals.rs"]
mod journals;
#[path = "model/operations.rs"]
mod operations;
#[path = "model/pair.rs"]
mod pair;
#[path = "model/postgres.rs"]
mod postgres;
#[path = "model/regressions.rs"]
mod regressions;
mod support;
#[path = "model/sweeps.rs"]
mod sweeps;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use operations::{Op, sequences};
use pair::Pair;
use postgres::Postgres;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use tokio::runtime::Runtime;

/// A sequence has at most so many operations.
const LONGEST: usize = 100;
/// Of the normal tests.
const SEEDS: u64 = 60;

/// Both stores, for as many sequences as are asked for.
struct Stage {
    runtime: Runtime,
    postgres: RefCell<Postgres>,
    number: Cell<u64>,
}

impl Stage {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let postgres = RefCell::new(runtime.block_on(Postgres::start()));
        Self { runtime, postgres, number: Cell::new(0) }
    }

    /// What the two differ in, or what the model found broken in itself.
    fn live(&self, sequence: &[Op]) -> Result<(), String> {
        self.number.set(self.number.get() + 1);
        let mut postgres = self.postgres.borrow_mut();
        let lived = catch_unwind(AssertUnwindSafe(|| {
            self.runtime
                .block_on(async { Pair::new(&mut postgres, self.number.get()).await.live(sequence).await })
        }));
        match lived {
            Ok(Ok(())) => Ok(()),
            Ok(Err(difference)) => Err(format!("after {} operations\n{}", difference.step, difference.what)),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                Err(text.or(panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
            }
        }
    }

    fn live_seed(&self, seed: u64) {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let config =
            Config { cases: 1, max_shrink_iters: 3_000, failure_persistence: None, ..Config::default() };
        let outcome = TestRunner::new_with_rng(config, rng)
            .run(&sequences(LONGEST), |sequence| self.live(&sequence).map_err(TestCaseError::fail));
        match outcome {
            Ok(()) => {}
            Err(TestError::Fail(why, sequence)) => panic!(
                "seed {seed}: {why}\nby\n{}\nRepeat: GATEWAY_MODEL_SEED={seed} \
                 cargo test -p gateway-db-writer --test model one_seed",
                sequence.iter().map(|operation| format!("    {operation:?},\n")).collect::<String>()
            ),
            Err(TestError::Abort(why)) => panic!("seed {seed} made no sequence: {why}"),
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn postgresql_and_the_model_agree_whatever_is_asked_of_them() {
    let stage = Stage::new();
    (0..SEEDS).for_each(|seed| stage.live_seed(seed));
}

#[test]
fn sequences_that_once_told_them_apart_no_longer_do() {
    let stage = Stage::new();
    for (story, sequence) in regressions::all() {
        if let Err(why) = stage.live(&sequence) {
            panic!("{story}: {why}");
        }
    }
}

#[test]
fn one_seed() {
    Stage::new().live_seed(number("GATEWAY_MODEL_SEED", 0));
}

/// Many seeds, from `GATEWAY_MODEL_SEED` on, `GATEWAY_MODEL_SEEDS` of them.
#[test]
#[ignore = "takes as long as it is told to"]
fn many_seeds() {
    let stage = Stage::new();
    let first = number("GATEWAY_MODEL_SEED", 1_000);
    (first..first + number("GATEWAY_MODEL_SEEDS", 2_000)).for_each(|seed| stage.live_seed(seed));
}

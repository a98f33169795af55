//! Lives through many histories and says what they came to.
//!
//! Owns the command line. What must hold is the library's.
//!
//! Exit status: 0 all held, 1 something did not, 2 the command line is wrong.

use std::io::Write;
use std::process::ExitCode;

use gateway_sim::{Plan, survey};

const USAGE: &str = "\
Usage: histories [--from SEED] [--seeds COUNT] [--threads COUNT] [--coverage] [--told]

Lives through COUNT histories (1000), from SEED on (0), and stops at the first that fails.
  --coverage  prints what of the machines' tables and which faults the histories came to
  --told      tells every event and every commit on stderr, as it happens; for one seed
";

struct Wish {
    from: u64,
    seeds: u64,
    threads: usize,
    coverage: bool,
    told: bool,
}

fn wish(mut arguments: impl Iterator<Item = String>) -> Option<Wish> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut wish = Wish { from: 0, seeds: 1_000, threads, coverage: false, told: false };
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next()?.parse::<u64>().ok();
        match argument.as_str() {
            "--from" => wish.from = number()?,
            "--seeds" => wish.seeds = number()?,
            "--threads" => wish.threads = usize::try_from(number()?).ok()?,
            "--coverage" => wish.coverage = true,
            "--told" => wish.told = true,
            _ => return None,
        }
    }
    Some(wish)
}

fn main() -> ExitCode {
    let mut out = std::io::stdout().lock();
    let Some(wish) = wish(std::env::args().skip(1)) else {
        let _ = out.write_all(USAGE.as_bytes());
        return ExitCode::from(2);
    };
    let plan = Plan { told: wish.told, ..Plan::default() };
    let whole = survey(wish.from..wish.from.saturating_add(wish.seeds), plan, wish.threads);
    let mut text = String::new();
    if wish.coverage {
        text.push_str(&whole.coverage.to_string());
    }
    match &whole.failure {
        None => text.push_str(&format!(
            "held: {} histories, {} events, at least {} in each\n{:#?}\n",
            whole.lived, whole.sum.events, whole.fewest_events, whole.sum
        )),
        Some(failure) => text.push_str(&format!(
            "found: {}\nseed: {}\nafter: {} histories\n{}\nrepeat: GATEWAY_SIM_SEED={} cargo test -p gateway-sim \
             --test seeds one_seed\n",
            failure.check,
            failure.seed,
            failure.seed - wish.from + 1,
            failure.message,
            failure.seed
        )),
    }
    let told = out.write_all(text.as_bytes());
    if whole.failure.is_some() || told.is_err() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

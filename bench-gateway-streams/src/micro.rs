//! `micro`: what the core's own work costs, in instructions, which no noise of the machine changes.
//!
//! An operation runs so many turns under valgrind in a process of its own, then twice as many: the difference is
//! that of the turns alone. Sessions and writer are the real machines; the store is the simulator's.
//!
//! 1. Counts depend on compiler and profile, and on nothing else: a baseline holds for the release build of one
//!    compiler, and is made anew with the next (`--report` over it).
//! 2. What a lane costs to plan may not rise with the number of lanes, and no operation over what the baseline allows:
//!    these are its gates.

mod rig;

use std::process::Stdio;

use anyhow::Context;
use gateway_testbed::bare::push_frame;
use serde_json::{Value, json};

use self::rig::Rig;
use crate::arguments::{MicroArguments, MicroOperation};
use crate::progress::{print, say};
use crate::{compare, host};

/// What an operation may cost, of what it cost in the baseline.
const MOST_TO_BASELINE: f64 = 1.1;
/// What planning a lane among ten times as many may cost more.
const STEEPEST: f64 = 1.5;

/// Runs it; true if its gate held.
pub(crate) async fn run(arguments: MicroArguments) -> anyhow::Result<bool> {
    if let Some(operation) = arguments.only {
        turn(operation, arguments.turns)?;
        return Ok(true);
    }
    let mut figures = serde_json::Map::new();
    let mut of_lanes = Vec::new();
    for operation in MicroOperation::ALL {
        say(&format!("{} …", operation.name()));
        let turns = operation.turns();
        let (once, twice) = (count(operation, turns).await?, count(operation, 2 * turns).await?);
        let each = (twice - once) / (turns * operation.items()) as f64;
        print(&format!("  {:<44}{each:>12.0} instructions", operation.words()));
        figures.insert(operation.name().to_owned(), each.into());
        if operation.items() > 1 {
            of_lanes.push(each);
        }
    }
    let steepness = of_lanes.last().zip(of_lanes.first()).map(|(many, few)| many / few);
    let mut held = steepness.is_some_and(|steepness| steepness <= STEEPEST);
    let shown = steepness.unwrap_or(f64::NAN);
    print(&format!("  a lane among ten times as many costs x {shown:.2}; at most x {STEEPEST} is allowed"));
    if let Some(path) = &arguments.baseline {
        let missed = over(&figures, &compare::read(path)?);
        missed.iter().for_each(|line| print(&format!("  missed: {line}")));
        held &= missed.is_empty();
    }
    if let Some(path) = &arguments.report {
        let report = json!({
            "scenario": "micro",
            "commit": host::commit(),
            "machine": host::Machine::this(),
            "micro": Value::Object(figures),
            "lanes_steepness": steepness,
            "gate": {"held": held},
        });
        std::fs::write(path, serde_json::to_string_pretty(&report)? + "\n")
            .with_context(|| format!("writing {}", path.display()))?;
        say(&format!("report: {}", path.display()));
    }
    Ok(held)
}

/// What costs more than the baseline allows, or is not in it.
fn over(figures: &serde_json::Map<String, Value>, baseline: &Value) -> Vec<String> {
    let missed = figures.iter().filter_map(|(name, figure)| {
        let figure = figure.as_f64().unwrap_or(f64::NAN);
        let Some(kept) = baseline["micro"][name].as_f64() else {
            return Some(format!("{name} is not in the baseline"));
        };
        let ratio = figure / kept;
        (ratio.is_nan() || ratio > MOST_TO_BASELINE).then(|| {
            format!("{name}: {figure:.0} instructions are x {ratio:.2} of the baseline's {kept:.0}; at most x {MOST_TO_BASELINE} is allowed")
        })
    });
    missed.collect()
}

/// Instructions of a process that does so many turns.
async fn count(operation: MicroOperation, turns: u64) -> anyhow::Result<f64> {
    let mut command = tokio::process::Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(std::env::current_exe()?);
    command.args(["micro", "--only", operation.name(), "--turns"]).arg(turns.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    let output =
        command.output().await.context("running valgrind, which counts; install it (package valgrind)")?;
    let told = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "valgrind ended with {}: {told}", output.status);
    collected(&told).with_context(|| format!("valgrind told no count: {told}"))
}

fn collected(told: &str) -> Option<f64> {
    let line = told.lines().find_map(|line| line.split_once("Collected :"))?;
    line.1.trim().parse().ok()
}

// What is counted: the turns, after what they need was set up.
fn turn(operation: MicroOperation, turns: u64) -> anyhow::Result<()> {
    match operation {
        MicroOperation::CommandToBytes => {
            for _ in 0..turns {
                std::hint::black_box(push_frame(std::hint::black_box(128)));
            }
        }
        MicroOperation::FrameToMail => {
            let mut rig = Rig::with_sessions(1)?;
            (0..turns).try_for_each(|_| rig.update())?;
        }
        MicroOperation::CommandToFrame => {
            let mut rig = Rig::with_sessions(1)?;
            (0..turns).try_for_each(|_| rig.command())?;
        }
        MicroOperation::Plan500 | MicroOperation::Plan5000 => {
            let lanes = usize::try_from(operation.items())?;
            let mut rig = Rig::with_sessions(lanes)?;
            for _ in 0..turns {
                let planned = rig.plan();
                anyhow::ensure!(planned == lanes, "{planned} of {lanes} lanes were asked for");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_does_what_it_counts() {
        for operation in MicroOperation::ALL {
            turn(operation, 2).unwrap_or_else(|error| panic!("{}: {error:#}", operation.name()));
        }
    }

    #[test]
    fn what_costs_over_a_tenth_more_or_is_unknown_to_the_baseline_is_told() {
        let baseline = json!({"micro": {"one": 100.0, "two": 100.0}});
        let told = |name: &str, figure: f64| {
            over(&[(name.to_owned(), figure.into())].into_iter().collect(), &baseline)
        };
        assert_eq!(told("one", 109.0), Vec::<String>::new());
        assert!(told("two", 111.0)[0].contains("x 1.11"), "{:?}", told("two", 111.0));
        assert_eq!(told("three", 1.0), ["three is not in the baseline"]);
    }

    #[test]
    fn the_count_is_read_where_valgrind_tells_it() {
        let told = "==7== Events    : Ir\n==7== Collected : 123456\n==7==\n==7== I   refs:      123,456\n";
        assert_eq!((collected(told), collected("==7== nothing")), (Some(123_456.0), None));
    }
}

//! How a run ends: what is still under way is awaited, the nodes' logs are held against the rows, and the
//! report says whether the gate held.
//!
//! Owns nothing of a scenario. What is broken comes from whoever looked.
//!
//! 1. What never arrives is not waited for without end: the ledger finds it.
//! 2. A report is printed, and written where that was asked for, whether its gate held or not.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gateway_testbed::ledger::{LedgerReport, LedgerScope, check_ledger};

use crate::gate::{Check, GateBounds};
use crate::plots;
use crate::progress::say;
use crate::report::{Commands, Gate, Report, Verify};
use crate::tracker::Tracker;
use crate::world::World;

const TICK: Duration = Duration::from_millis(20);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits for what was enqueued last.
pub(super) async fn drain(tracker: &Tracker) {
    let started = Instant::now();
    while tracker.open() > 0 && started.elapsed() < DRAIN_TIMEOUT {
        tokio::time::sleep(TICK).await;
    }
    if tracker.open() > 0 {
        let (open, seconds) = (tracker.open(), DRAIN_TIMEOUT.as_secs());
        say(&format!("{open} commands are not done {seconds} s after the last enqueue"));
    }
}

/// Holds the nodes' logs against the rows.
pub(super) async fn ledger(world: &World, tracker: &Tracker) -> anyhow::Result<LedgerReport> {
    let scope = if world.is_own() { LedgerScope::WholeDatabase } else { LedgerScope::OnlyEnqueued };
    ledger_in(world, tracker, scope).await
}

/// The same of the run's own commands alone.
pub(super) async fn ledger_of_own(world: &World, tracker: &Tracker) -> anyhow::Result<LedgerReport> {
    ledger_in(world, tracker, LedgerScope::OnlyEnqueued).await
}

async fn ledger_in(world: &World, tracker: &Tracker, scope: LedgerScope) -> anyhow::Result<LedgerReport> {
    say("holding the nodes' logs against the database …");
    world.log().flush()?;
    let logs = world.logs();
    let logs: Vec<&Path> = logs.iter().map(PathBuf::as_path).collect();
    Ok(check_ledger(&mut world.connect().await?, &tracker.enqueued(), &logs, scope).await?)
}

/// What `gateway verify` finds; nothing where there is no binary to run it with.
pub(super) async fn judgement(world: &World) -> anyhow::Result<Vec<String>> {
    if !world.has_binary() {
        say("gateway verify is left out: there is no gateway's binary beside this program (--gateway-bin)");
        return Ok(Vec::new());
    }
    say("gateway verify …");
    world.verify().await
}

/// What became of the commands.
pub(super) fn commands(tracker: &Tracker, ledger: &LedgerReport) -> Commands {
    Commands {
        enqueued: tracker.figures().committed,
        succeeded: ledger.in_state("succeeded"),
        lost: ledger.lost,
        duplicated: ledger.duplicated,
    }
}

/// Judges a report that is whole but for that; true if its gate held.
pub(super) fn verdict(
    mut report: Report,
    violations: Vec<String>,
    gate: &GateBounds,
    path: Option<&Path>,
) -> anyhow::Result<bool> {
    report.verify = Verify { ok: violations.is_empty(), violations };
    let checks = gate.checks(&report);
    let missed: Vec<String> = checks.iter().filter_map(Check::miss).collect();
    report.gate = Gate { held: missed.is_empty(), missed, checks };
    report.print();
    if let Some(path) = path {
        report.write(path)?;
        say(&format!("report: {}", path.display()));
        for plot in plots::of_report(&report, path)? {
            say(&format!("plot: {}", plot.display()));
        }
    }
    Ok(report.gate.held)
}

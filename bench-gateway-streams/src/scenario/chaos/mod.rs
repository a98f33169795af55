//! `chaos`: three gateways behind HAProxy under load, and one fault after the other done to the real
//! processes. What `scripts/chaos` runs.
//!
//! 1. Order, victims and times come of one seed, which is printed.
//! 2. No fault begins before 200 commands a second end and 100 are unacked; both are printed.
//! 3. Recovery counts from the end of a fault (a kill and a cut end when they are done) until every node
//!    has the session that the rows name, and every command enqueued before is done.
//! 4. After each fault the load is ended, and `gateway verify --node-logs` has to find nothing.

mod database;
mod dice;
mod hold;
mod network;
mod own;
mod rows;
pub(crate) mod soak;
mod stage;
mod zombie;

use std::time::{Duration, Instant};

use self::dice::Dice;
use self::own::Rights;
use self::stage::Stage;
use super::verdict::{commands, judgement, ledger, verdict};
use crate::arguments::{ChaosArguments, ChaosPlan, Fault};
use crate::host;
use crate::progress::{print, say};
use crate::report::{ChaosRow, ChaosShare, Report, SoakShare};
use crate::statistics;

pub(crate) use self::own::{SmallDisk, in_namespaces_of_its_own};

/// In the order in which they are told of; a run shuffles them.
const ALL: [Fault; 9] = [
    Fault::Kill,
    Fault::Zombie,
    Fault::DatabaseKilled,
    Fault::DatabaseFrozen,
    Fault::ConnectionsCut,
    Fault::DiskFull,
    Fault::ConnectionLimit,
    Fault::BlackHole,
    Fault::HalfOpen,
];

/// Runs it; true if nothing was lost and nothing that must hold was broken.
pub(crate) async fn run(arguments: Box<ChaosArguments>) -> anyhow::Result<bool> {
    let plan = arguments.plan()?;
    let rights = Rights::of_this_process();
    let (faults, refused) = allowed(&plan, rights)?;
    say(&format!("seed {} (--seed {0} repeats order, victims and times)", plan.seed));
    for fault in &refused {
        say(&format!("{} is left out: {}", fault.name(), rights.why_not()));
    }
    let mut dice = Dice::new(plan.seed);
    let mut stage = Box::pin(Stage::set(&plan, arguments.gateway.clone(), &faults)).await?;
    let started = Instant::now();
    let mut rows = Vec::new();
    for round in 0..plan.rounds {
        let mut order = faults.clone();
        dice.shuffle(&mut order);
        for fault in order {
            let row = Box::pin(stage.suffer(fault, &mut dice)).await?;
            say(&row.line());
            let stands = row.recovery_ms.is_some();
            rows.push(row);
            if !stands {
                // What comes after would be judged by what this one left behind.
                say(&format!("no recovery from {} in round {}: the run ends here", fault.name(), round + 1));
                let ending = Ending { rows, refused, took: started.elapsed(), soak: None };
                return Box::pin(conclude(&plan, stage, ending)).await;
            }
        }
    }
    let ending = Ending { rows, refused, took: started.elapsed(), soak: None };
    Box::pin(conclude(&plan, stage, ending)).await
}

// What was asked for, or all; of all, without what the caller has no right to do.
fn allowed(plan: &ChaosPlan, rights: Rights) -> anyhow::Result<(Vec<Fault>, Vec<Fault>)> {
    let asked: &[Fault] = if plan.faults.is_empty() { &ALL } else { &plan.faults };
    let (faults, refused): (Vec<Fault>, Vec<Fault>) =
        asked.iter().partition(|fault| rights.are_namespaces() || !fault.needs_root());
    if let (Some(fault), false) = (refused.first(), plan.faults.is_empty()) {
        anyhow::bail!("{} can't be brought about: {}", fault.name(), rights.why_not());
    }
    Ok((faults, refused))
}

/// What was done and seen when a run ends.
struct Ending {
    rows: Vec<ChaosRow>,
    refused: Vec<Fault>,
    took: Duration,
    /// Of a run with quiet stretches.
    soak: Option<SoakShare>,
}

async fn conclude(plan: &ChaosPlan, stage: Stage, ending: Ending) -> anyhow::Result<bool> {
    let Ending { rows, refused, took, soak } = ending;
    let (world, tracker, counts) = stage.close().await?;
    let ledger = ledger(&world, &tracker).await?;
    // After a fault it was run already; a quiet stretch has followed.
    let broken = match soak {
        Some(_) => judgement(&world).await?,
        None => Vec::new(),
    };
    let settings = statistics::settings(&mut world.connect().await?).await?;
    let rss = world.gateway_usage()?.map(|usage| usage.rss_peak_bytes);
    let unclean = world.close().await?;
    let of_faults = rows
        .iter()
        .flat_map(|row| row.violations.iter().map(|violation| format!("after {}: {violation}", row.fault)));
    let violations: Vec<String> =
        of_faults.chain(ledger.violations.iter().cloned()).chain(broken).chain(unclean).collect();
    let mut report = Report {
        scenario: if soak.is_some() { "soak" } else { "chaos" },
        commit: host::commit(),
        machine: host::Machine::this(),
        sessions: plan.load.sessions,
        duration_s: took.as_secs_f64(),
        drops: counts.drops(),
        commands: commands(&tracker, &ledger),
        commands_per_second: plan.load.commands_per_second,
        heartbeat_s: plan.load.heartbeat.as_secs_f64(),
        session_ends: counts.ends(),
        chaos: Some(ChaosShare {
            seed: plan.seed,
            lease_ttl_s: plan.lease_ttl.as_secs_f64(),
            refused: refused.iter().map(|fault| fault.name()).collect(),
            rows,
        }),
        ..Report::default()
    };
    report.gateway.rss_bytes_max = rss;
    if let Some(soak) = soak {
        report.gateway.rss_growth_ratio = soak.rss_growth_ratio();
        report.windows = soak.windows();
        report.soak = Some(soak);
    }
    report.database.settings = settings;
    let held = verdict(report, violations, &plan.gate, plan.load.report.as_deref())?;
    if !held {
        print(&format!("  repeat it with --seed {}", plan.seed));
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, Scenario};

    fn plan(flags: &[&str]) -> ChaosPlan {
        use clap::Parser;
        let all = ["bench-gateway-streams", "chaos"].iter().chain(flags);
        match Arguments::try_parse_from(all).expect("flags").scenario {
            Scenario::Chaos(arguments) => arguments.plan().expect("a plan"),
            _ => unreachable!("chaos was named"),
        }
    }

    #[test]
    fn who_is_not_root_is_told_what_is_left_out_and_refused_what_was_asked_for() {
        let (faults, refused) = allowed(&plan(&[]), Rights::NotRoot).expect("the others");
        assert_eq!(refused, [Fault::DiskFull, Fault::BlackHole]);
        assert_eq!(faults.len() + refused.len(), ALL.len());
        let (faults, refused) = allowed(&plan(&[]), Rights::Namespaces).expect("all");
        assert_eq!((faults.as_slice(), refused.len()), (&ALL[..], 0));
        let error = allowed(&plan(&["--faults", "kill,disk-full"]), Rights::NotRoot).expect_err("refused");
        assert!(error.to_string().contains("disk-full") && error.to_string().contains("root"), "{error}");
    }
}

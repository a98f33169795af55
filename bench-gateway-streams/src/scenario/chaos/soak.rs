//! `soak`: hours of load, quiet stretches and faults in turn. What it does to the processes is what `chaos` does.
//!
//! 1. Each quiet stretch is measured by itself; growth and drift are the last one to the first.
//! 2. After each fault `gateway verify --node-logs` has to find nothing, as in `chaos`.
//! 3. Every fault has its turn before one comes again, in an order that the seed decides.

use std::time::{Duration, Instant};

use super::dice::Dice;
use super::own::Rights;
use super::stage::Stage;
use super::{Ending, allowed, conclude};
use crate::arguments::SoakArguments;
use crate::progress::say;
use crate::report::{CalmRow, SoakShare};

/// Runs it; true if nothing was lost, nothing that must hold was broken, and its gate held.
pub(crate) async fn run(arguments: Box<SoakArguments>) -> anyhow::Result<bool> {
    let plan = arguments.plan()?;
    let rights = Rights::of_this_process();
    let (faults, refused) = allowed(&plan.chaos, rights)?;
    say(&format!("seed {} (--seed {0} repeats order, victims and times)", plan.chaos.seed));
    let mut dice = Dice::new(plan.chaos.seed);
    let mut stage = Box::pin(Stage::set(&plan.chaos, arguments.chaos.gateway.clone(), &faults)).await?;
    let started = Instant::now();
    let (mut rows, mut share, mut order) = (Vec::new(), SoakShare::default(), Vec::new());
    loop {
        let calm = Box::pin(stage.calm(plan.calm, started)).await?;
        say(&format!(
            "quiet until second {:.0}: dispatch p99 {:.2} ms over {} commands, {:.1} MiB",
            calm.at_s,
            calm.dispatch_ms.p99,
            calm.commands,
            calm.rss_bytes as f64 / f64::from(1 << 20)
        ));
        share.calm.push(calm);
        if left(plan.length, started).is_zero() {
            break;
        }
        if order.is_empty() {
            order.clone_from(&faults);
            dice.shuffle(&mut order);
        }
        let Some(fault) = order.pop() else { break };
        let row = Box::pin(stage.suffer(fault, &mut dice)).await?;
        say(&row.line());
        let stands = row.recovery_ms.is_some();
        rows.push(row);
        if !stands {
            say(&format!("no recovery from {}: the run ends here", fault.name()));
            break;
        }
    }
    share.faults = rows.len();
    let ending = Ending { rows, refused, took: started.elapsed(), soak: Some(share) };
    Box::pin(conclude(&plan.chaos, stage, ending)).await
}

fn left(length: Duration, started: Instant) -> Duration {
    length.saturating_sub(started.elapsed())
}

impl Stage {
    // The load without a fault, for so long.
    async fn calm(&mut self, how_long: Duration, started: Instant) -> anyhow::Result<CalmRow> {
        let enqueuer = self.load().await?;
        drop(self.tracker.take_recent());
        tokio::select! {
            ended = enqueuer.finished() => ended?,
            () = tokio::time::sleep(how_long) => {}
        }
        let latencies = self.tracker.take_recent();
        let rss_bytes = self.rss_bytes()?;
        enqueuer.stop();
        enqueuer.finished().await?;
        drop(enqueuer);
        let open = self.drain().await;
        anyhow::ensure!(open == 0, "{open} commands of a quiet stretch are not done");
        Ok(CalmRow {
            at_s: started.elapsed().as_secs_f64(),
            commands: latencies.count(),
            dispatch_ms: latencies.percentiles().unwrap_or_default(),
            rss_bytes,
        })
    }

    fn rss_bytes(&mut self) -> anyhow::Result<u64> {
        let mut sum = 0;
        for member in self.world.members()? {
            sum += member.usage()?.map_or(0, |usage| usage.rss_bytes);
        }
        Ok(sum)
    }
}

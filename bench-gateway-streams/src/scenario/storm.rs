//! `storm`: all sessions are lost at once, by a cut of every connection or by the death of the gateway,
//! and the nodes come back by their rules, under load.
//!
//! 1. Times count from the fault to each node's next `Welcome`, which follows its durable Hello.
//! 2. The yardsticks, bare handshakes and bare streams of the same clients, are measured in the same run, before it.

use std::time::Duration;

use super::upheaval::{AtWork, fault_begins};
use crate::arguments::{StormArguments, StormBy, StormPlan};
use crate::bare;
use crate::progress::say;
use crate::report::{Report, StormShare};
use crate::world::{World, WorldPlan};

/// All are back long before, or something is wrong.
const LONGEST: Duration = Duration::from_secs(180);

/// Runs it; true if its gate held.
pub(crate) async fn run(arguments: Box<StormArguments>) -> anyhow::Result<bool> {
    let plan = arguments.plan()?;
    let load = &plan.load;
    let mut world = Box::pin(World::build(WorldPlan {
        opens_per_second: plan.opens_per_second,
        ..WorldPlan::new(load.sessions, load.heartbeat, arguments.gateway.clone())
    }))
    .await?;
    if plan.by == StormBy::Kill {
        // Refused here, not after the fleet stands.
        world.members()?;
    }
    let bare = match plan.with_bare_handshakes && world.is_own() {
        true => Some(bare::measure(world.node_names(), world.pki(), world.gateway_files()?).await?),
        false => None,
    };
    let work = AtWork::begin(load, &world).await?;
    let nodes = world.node_ids().to_vec();
    let before = work.fleet.counts().refusals();
    let fault_ns = fault_begins();
    strike(&plan, &mut world, &work).await?;
    let back = work.await_return(&nodes, fault_ns, LONGEST).await;
    let refusals = work.fleet.counts().refusals();
    let at = |share: f64| {
        let needed = ((nodes.len() as f64 * share).ceil() as usize).max(1);
        back.get(needed - 1).map(|nanoseconds| *nanoseconds as f64 / 1e6)
    };
    let storm = StormShare {
        p50_ms: at(0.5),
        p95_ms: at(0.95),
        all_ms: at(1.0),
        refused: refusals.count - before.count,
        bare_handshakes_ms: bare.map(|bare| bare.handshakes_ms),
        by: name_of(plan.by),
        pushbacks_given: refusals.with_delay - before.with_delay,
        pushbacks_kept: refusals.kept - before.kept,
        opens_per_second: plan.opens_per_second,
        bare_streams_ms: bare.map(|bare| bare.streams_ms),
    };
    let report = Report { scenario: "storm", storm: Some(storm), ..Report::default() };
    Box::pin(work.conclude(load, &plan.gate, world, report)).await
}

async fn strike(plan: &StormPlan, world: &mut World, work: &AtWork) -> anyhow::Result<()> {
    match plan.by {
        StormBy::Cut => {
            say("every connection is cut …");
            work.fleet.cut_all();
        }
        StormBy::Kill => {
            say("the gateway is killed, and started again …");
            for member in world.members()? {
                member.kill()?;
                member.start_again().await?;
            }
        }
    }
    Ok(())
}

const fn name_of(by: StormBy) -> &'static str {
    match by {
        StormBy::Cut => "cut",
        StormBy::Kill => "kill",
    }
}

//! `multi`: three gateways behind HAProxy share a fleet and a database, and one of them is killed, killed and
//! started again, or drained.
//!
//! 1. Whose nodes they are is read from the rows, just before.
//! 2. Times count from the kill, or from SIGTERM, to each such node's next `Welcome`, which follows its durable
//!    Hello.
//! 3. Nodes of the other gateways must not lose a session, nor must those of one that is drained: they leave.

use std::time::{Duration, Instant};

use anyhow::Context;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use sqlx::PgConnection;

use super::upheaval::{AtWork, fault_begins};
use crate::arguments::{MultiArguments, MultiBy};
use crate::latency::Latencies;
use crate::progress::say;
use crate::report::{MultiShare, Report};
use crate::world::{World, WorldPlan};

pub(super) const GATEWAYS: usize = 3;
/// All are back long before, or something is wrong.
const LONGEST: Duration = Duration::from_secs(120);

/// Runs it; true if its gate held.
pub(crate) async fn run(arguments: Box<MultiArguments>) -> anyhow::Result<bool> {
    let plan = arguments.plan()?;
    let load = &plan.load;
    let mut world = Box::pin(World::build(WorldPlan {
        gateways: GATEWAYS,
        opens_per_second: Some(plan.opens_per_second),
        drain: (plan.by == MultiBy::Drain).then_some(plan.drain),
        ..WorldPlan::new(load.sessions, load.heartbeat, arguments.gateway.clone())
    }))
    .await?;
    let work = AtWork::begin(load, &world).await?;
    let victim = SmallRng::seed_from_u64(plan.seed).random_range(0..GATEWAYS);
    let mut connection = world.connect().await?;
    let member = world.members()?.get_mut(victim).context("there is no such gateway")?;
    let id = member.id().to_owned();
    let lost = nodes_of(&mut connection, &id).await?;
    let kept: Vec<String> = world.node_ids().iter().filter(|node| !lost.contains(*node)).cloned().collect();
    anyhow::ensure!(!lost.is_empty(), "{id} has no node: the balancer does not spread them");
    let what = if plan.by == MultiBy::Drain { "drained" } else { "killed" };
    say(&format!("seed {}: {id} is {what}, which has {} nodes …", plan.seed, lost.len()));
    let before = work.fleet.counts().refusals();
    let (fault_ns, begun) = (fault_begins(), Instant::now());
    let member = world.members()?.get_mut(victim).context("there is no such gateway")?;
    match plan.by {
        MultiBy::Kill => member.kill()?,
        MultiBy::Restart => {
            member.kill()?;
            member.start_again().await?;
        }
        MultiBy::Drain => member.ask_to_stop()?,
    }
    let back = work.await_return(&lost, fault_ns, LONGEST).await;
    let mut exit_ms = None;
    if plan.by == MultiBy::Drain {
        let member = world.members()?.get_mut(victim).context("there is no such gateway")?;
        let unclean = member.await_end().await?;
        anyhow::ensure!(unclean.is_none(), "{}", unclean.unwrap_or_default());
        exit_ms = Some(begun.elapsed().as_secs_f64() * 1000.0);
    }
    let mut rehome = Latencies::new();
    back.iter().for_each(|nanoseconds| rehome.record_ns(*nanoseconds));
    let multi = MultiShare {
        rehome_ms: rehome.percentiles().filter(|_| back.len() == lost.len()),
        by: plan.by.label(),
        seed: plan.seed,
        victim: id,
        rehomed: back.len(),
        cut: work.fleet.counts().dropped_since(&lost, fault_ns),
        exit_ms,
        lost_elsewhere: work.fleet.counts().dropped_since(&kept, fault_ns),
        refused: work.fleet.counts().refusals().count - before.count,
        spread: spread(&mut connection).await?,
    };
    let report = Report { scenario: "multi", multi: Some(multi), ..Report::default() };
    Box::pin(work.conclude(load, &plan.gate, world, report)).await
}

/// The nodes whose session a gateway has, by the rows.
pub(super) async fn nodes_of(connection: &mut PgConnection, gateway: &str) -> anyhow::Result<Vec<String>> {
    let statement = "SELECT node_id FROM node_sessions WHERE gateway_id = $1 AND disconnected_at IS NULL";
    let nodes: Vec<(String,)> = sqlx::query_as(statement).bind(gateway).fetch_all(connection).await?;
    Ok(nodes.into_iter().map(|(node,)| node).collect())
}

async fn spread(connection: &mut PgConnection) -> anyhow::Result<Vec<(String, i64)>> {
    let statement = "SELECT gateway_id, count(*) FROM node_sessions WHERE disconnected_at IS NULL \
                     GROUP BY gateway_id ORDER BY gateway_id";
    Ok(sqlx::query_as(statement).fetch_all(connection).await?)
}

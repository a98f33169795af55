//! `fanout`: one command to every node at once, over several rounds, beside a bare push to the same clients.
//!
//! 1. One statement enqueues all; times count from the moment before its COMMIT is sent.
//! 2. A round is over when every result is stored, so that no round works off what another left.
//! 3. The yardstick is taken in the same run, as often, before the fleet stands. What the database's part alone takes is
//!    measured at the end, while the fleet stands idle.

use gateway_testbed::node::Behaviour;

use super::ground::{Ground, Judged};
use crate::arguments::FanoutArguments;
use crate::bare;
use crate::latency::Latencies;
use crate::progress::say;
use crate::report::{FanoutShare, Report};
use crate::world::{World, WorldPlan};

/// Rounds that warm all up and are not told.
const WARM_UP: u32 = 1;

/// Runs it; true if its gate held.
pub(crate) async fn run(arguments: Box<FanoutArguments>) -> anyhow::Result<bool> {
    let plan = arguments.plan()?;
    let load = &plan.load;
    let world = WorldPlan::new(load.sessions, load.heartbeat, arguments.gateway.clone());
    let world = Box::pin(World::build(world)).await?;
    let bare_push = match plan.with_bare_push && world.is_own() {
        true => {
            let (names, files) = (world.node_names(), world.gateway_files()?);
            let measuring = bare::measure_push(names, world.pki(), files, plan.rounds, plan.payload_bytes);
            Some(Box::pin(measuring).await?)
        }
        false => None,
    };
    let mut ground = Ground::stand(world, load.connect_rate, Behaviour::default(), false).await?;
    let nodes = ground.world.node_ids().to_vec();
    let payload = vec![b'x'; plan.payload_bytes];
    let mut share = FanoutShare { bare_push, ..FanoutShare::default() };
    let mut all = Latencies::new();
    for number in 0..plan.rounds + WARM_UP {
        let reached = Box::pin(ground.reach_all(&nodes, &payload)).await?;
        share.missing += reached.missing;
        if number >= WARM_UP {
            let (round, ms) = (reached.round, reached.latencies.percentiles().unwrap_or_default());
            say(&format!(
                "round {number}: enqueued in {:.1} ms; p50 {:.1} ms, p99 {:.1} ms, all have it at {:.1} ms, all \
                 results are stored at {:.1} ms",
                round.enqueue_ms, ms.p50, ms.p99, ms.max, round.done_ms
            ));
            all.add(&reached.latencies);
            share.rounds.push(round);
        }
        tokio::time::sleep(plan.pause).await;
    }
    if ground.world.is_own() {
        share.bare_statements = Some(bare::measure_statements(&ground.world, plan.payload_bytes).await?);
    }
    let mut report =
        Report { scenario: "fanout", fanout_ms: all.percentiles(), fanout: Some(share), ..Report::default() };
    report.curves.insert("fan-out", all.curve());
    Box::pin(ground.conclude(load, &plan.gate, report, Judged::All)).await
}

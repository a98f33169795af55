//! The gateway is killed while it works. The next process of its id serves at once, the nodes come
//! back by themselves, and every command has one end and ran once.
//!
//! 1. The load at the kill is asserted, not assumed: commands ended in the last second, commands unacked.
//! 2. The successor is killed too, in the middle of Hellos and replays.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use gateway_testbed::clock::monotonic_ns;
use gateway_testbed::database::await_all_done;
use gateway_testbed::gateway_process::{GatewayOptions, GatewayProcess};
use gateway_testbed::node::{Execution, LogEvent, Node, Verdict};
use support::load::Load;
use support::{World, measured, seconds};
use uuid::Uuid;

const NODES: usize = 40;
const PER_SECOND: usize = 300;
/// The default TTL of a lease: what a successor would have to wait out that can't prove anything.
const LEASE_TTL: Duration = Duration::from_secs(20);

#[tokio::test]
async fn killed_at_full_load_the_next_process_serves_at_once_and_nothing_is_lost_or_done_twice() {
    let world = World::new("kill").await;
    let gateway = world.gateway("g", "").await;
    let nodes = world
        .nodes("node", NODES, "g", |options| {
            options.lanes = vec![("default".to_owned(), 8)];
            options.behaviour.execution = Execution::After(Duration::from_millis(600));
        })
        .await;
    let names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
    let mut database = world.connect().await;
    let load = Load::start(world.connect().await, names, PER_SECOND, b"work".to_vec());

    // Full load: what ends in a second is what is enqueued in one.
    let rate = world
        .watch
        .until(Duration::from_secs(20), "200 commands end within a second, and 100 are unacked", |seen| {
            let since = monotonic_ns().saturating_sub(1_000_000_000);
            let ended = seen.settled.iter().rev().take_while(|one| one.at_ns >= since).count();
            (ended >= 220 && seen.unsettled() >= 120).then_some(ended)
        })
        .await;
    let options = gateway.kill().unwrap();
    let killed = Instant::now();
    let unacked = world.watch.look(|seen| seen.unsettled());
    let (in_flight,): (i64,) = sqlx::query_as("SELECT count(*) FROM commands WHERE phase = 'f'")
        .fetch_one(&mut database)
        .await
        .unwrap();
    measured("commands per second when the gateway was killed", rate);
    measured("commands unacked at that moment, by the nodes", unacked);
    measured("commands in flight at that moment, by the rows", in_flight);
    assert!(rate >= 200, "{rate} commands/s at the kill");
    assert!(unacked >= 100 && in_flight >= 100, "{unacked} unacked, {in_flight} rows in flight at the kill");

    let gateway = start_at_once(&world, options).await;
    world
        .watch
        .until(Duration::from_secs(10), "half of the nodes have dialled again", |seen| {
            let back = nodes.iter().filter(|node| seen.epoch_of(node.name()) >= 2).count();
            (back >= NODES / 2).then_some(())
        })
        .await;
    // Again, in the middle of the others' Hellos and of the replays.
    let epochs: Vec<u64> = nodes.iter().map(|node| world.watch.epoch_of(node.name())).collect();
    let _gateway = start_at_once(&world, gateway.kill().unwrap()).await;
    world
        .watch
        .until(Duration::from_secs(10), "every node has dialled again", |seen| {
            let is_back = |(node, before): (&Node, &u64)| seen.epoch_of(node.name()) > *before;
            nodes.iter().zip(&epochs).all(is_back).then_some(())
        })
        .await;
    measured("from the first of two kills until every node was back", seconds(killed));

    let ids = load.stop().await;
    await_all_done(&mut database, Duration::from_secs(20)).await.unwrap();
    measured("from the first kill until all was done", seconds(killed));
    world.watch.all_settled(&ids, Duration::from_secs(10)).await;
    let report = world.ledger(&mut database, &ids).await;
    assert_eq!(report.in_state("succeeded"), ids.len() as u64, "{report:?}");
    let mut starts: HashMap<Uuid, u32> = HashMap::new();
    for line in world.log_lines().iter().filter(|line| line.event == LogEvent::Started) {
        *starts.entry(line.id).or_default() += 1;
    }
    assert!(ids.iter().all(|id| starts.get(id) == Some(&1)), "one execution start each");
    assert_eq!(starts.len(), ids.len());
    // A node's Hello lists what it has: none of that is sent again, only what was lost on the way.
    let again = world.watch.look(|seen| {
        let twice = seen.received.iter().filter(|one| one.verdict != Verdict::Execute);
        twice.cloned().collect::<Vec<_>>()
    });
    assert!(again.is_empty(), "{} commands were sent to nodes that had them: {again:?}", again.len());
    let epochs: Vec<(i64,)> =
        sqlx::query_as("SELECT epoch FROM leases_history WHERE name LIKE 'gateway:%' ORDER BY epoch")
            .fetch_all(&mut database)
            .await
            .unwrap();
    assert_eq!(epochs, [(1,), (2,), (3,)], "the lease changed hands with each process");
    measured("commands", ids.len());
}

async fn start_at_once(world: &World, options: GatewayOptions) -> GatewayProcess {
    let spawned = Instant::now();
    let gateway = world.start(options).await;
    let took_over = spawned.elapsed();
    measured("from the spawn of the next process to READY", format!("{:.3} s", took_over.as_secs_f64()));
    assert!(took_over < LEASE_TTL / 4, "it waited {took_over:?}: it must not wait out its own lease");
    gateway
}

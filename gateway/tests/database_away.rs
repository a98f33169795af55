//! The database goes away, or does not answer. Short outages are ridden out with backpressure; a long one
//! fences the gateway, which comes back by itself; and what waits meanwhile is bounded.
//!
//! 1. The server really stops, by `immediate`, or is really locked; no error is made up.
//! 2. What was sent into the outage is counted, so that a story without load fails.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use gateway::config::Config;
use gateway_proto::health::health_check_response::ServingStatus;
use gateway_testbed::cluster::StopMode;
use gateway_testbed::database::enqueue_many;
use gateway_testbed::node::{Behaviour, Execution, LogEvent};
use sqlx::{Connection, Executor, PgConnection};
use support::health::{HealthWatch, control_address, health};
use support::{SOON, UNAVAILABLE, World, asked_until, measured, seconds};
use uuid::Uuid;

/// A fence at 20 s: a crashed server that syncs its files on a busy disk may need some seconds.
const LONG_LEASE: &str = "[lease]\nttl = \"40s\"\nrenew_every = \"5s\"\n";
/// A fence at 2 s.
const SHORT_LEASE: &str = "[lease]\nttl = \"4s\"\nrenew_every = \"1s\"\n";

#[tokio::test]
async fn a_crash_of_the_database_within_the_fence_costs_no_session_and_no_update() {
    let mut world = World::with_own_cluster("short_outage").await;
    let _gateway = world.gateway("g", LONG_LEASE).await;
    let nodes = world
        .nodes("node", 20, "g", |options| {
            options.lanes = vec![("default".to_owned(), 4)];
            options.behaviour.execution = Execution::After(Duration::from_millis(100));
        })
        .await;
    let names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
    let ids = enqueue_rounds(&mut world.connect().await, &names, 50).await;
    world.watch.until(SOON, "the work is under way", |seen| (seen.settled.len() >= 100).then_some(())).await;

    let away = Instant::now();
    world.cluster().stop(StopMode::Immediate).unwrap();
    let (settled, started) = world.watch.look(|seen| (seen.settled.len(), seen.started.len()));
    assert!(settled < ids.len(), "the outage came while there was work");
    // Every node has finished what it had and waits for its acks: reports were sent into the outage.
    let mut watched = world.watch.look(|seen| seen.started.len());
    asked_until(SOON, "the nodes have done all that they were sent", async || {
        let finished = world.log_lines().iter().filter(|line| line.event == LogEvent::Finished).count();
        watched = world.watch.look(|seen| seen.started.len());
        (finished == watched).then_some(())
    })
    .await;
    let unacked = watched - world.watch.look(|seen| seen.settled.len());
    assert!(unacked >= 20, "{unacked} reports were sent into the outage ({started} started at its begin)");
    world.cluster().start_again().unwrap();
    measured("the database was away for", seconds(away));
    measured("reports that waited for it", unacked);
    assert!(away.elapsed() < Duration::from_secs(18), "too slow a machine: the fence is at 20 s");

    world.watch.all_settled(&ids, Duration::from_secs(20)).await;
    measured("from the outage until all was stored", seconds(away));
    let drops = world.watch.look(|seen| seen.ended.clone());
    assert!(drops.is_empty(), "no session ended: {drops:?}");
    let mut database = world.connect().await;
    let report = world.ledger(&mut database, &ids).await;
    assert_eq!(report.in_state("succeeded"), ids.len() as u64, "{report:?}");
}

#[tokio::test]
async fn away_for_longer_than_the_fence_the_gateway_sends_its_nodes_off_and_comes_back() {
    let mut world = World::with_own_cluster("long_outage").await;
    let gateway = world.gateway("g", SHORT_LEASE).await;
    let nodes = world
        .nodes("node", 10, "g", |options| {
            options.lanes = vec![("default".to_owned(), 4)];
            options.behaviour.execution = Execution::After(Duration::from_millis(100));
        })
        .await;
    let names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
    let mut database = world.connect().await;
    let control = control_address(&mut database, "g").await;
    let identity = world.register("onlooker").await;
    let (mut told, first) = HealthWatch::open(&world.target("g", &identity)).await;
    assert_eq!(first, ServingStatus::Serving);
    let ids = enqueue_rounds(&mut database, &names, 40).await;
    world.watch.until(SOON, "the work is under way", |seen| (seen.settled.len() >= 40).then_some(())).await;

    let away = Instant::now();
    world.cluster().stop(StopMode::Immediate).unwrap();
    let ends = world
        .watch
        .until(SOON, "every session is ended by the fence", |seen| {
            let ends: Vec<_> = seen.drops().map(|ended| ended.end.clone()).collect();
            (ends.len() >= names.len()).then_some(ends)
        })
        .await;
    measured("from the outage to the fence", seconds(away));
    assert!(away.elapsed() < Duration::from_secs(4), "the fence is at half the TTL of 4 s");
    for end in &ends {
        assert_eq!(end.status(), Some(UNAVAILABLE), "{end:?}");
        assert_eq!(end.message, "gateway fenced; reconnect");
    }
    told.becomes(ServingStatus::NotServing, SOON).await;
    let (code, body) = health(&control).await;
    assert_eq!((code, &body["fenced"], &body["serving"]), (503, &true.into(), &false.into()), "{body}");
    let refused = world
        .watch
        .until(SOON, "a node that dials again is refused", |seen| {
            seen.ended.iter().find(|ended| !ended.end.was_welcomed).map(|ended| ended.end.clone())
        })
        .await;
    assert_eq!(refused.status(), Some(UNAVAILABLE), "{refused:?}");
    assert_eq!(world.watch.look(|seen| seen.connected.len()), names.len(), "nobody was let in");

    world.cluster().start_again().unwrap();
    told.becomes(ServingStatus::Serving, SOON).await;
    measured("from the outage until it served again", seconds(away));
    world
        .watch
        .until(SOON, "every node is back", |seen| {
            names.iter().all(|name| seen.epoch_of(name) >= 2).then_some(())
        })
        .await;
    world.watch.all_settled(&ids, Duration::from_secs(20)).await;
    let mut database = world.connect().await;
    let report = world.ledger(&mut database, &ids).await;
    assert_eq!(report.in_state("succeeded"), ids.len() as u64, "{report:?}");
    let log = gateway.logged("all clear: the database is back").await;
    assert!(log.contains("all clear: the database is back"), "the log says that the outage is over: {log}");
}

/// What one story of the blocked writer uses, small enough that the load is far over the bounds.
const SMALL_BOUNDS: &str = r#"
[lease]
ttl = "4s"
renew_every = "1s"
[shards]
count = 2
pin = false
receive_bytes = "2MiB"
[db_writer]
queue_bytes = "4MiB"
[group_commit]
batch_bytes = "2MiB"
[sessions]
frame_bytes = "128KiB"
result_bytes = "64KiB"
inbox_bytes = "64KiB"
outbox_bytes = "128KiB"
"#;

#[tokio::test]
async fn a_writer_that_is_blocked_for_five_seconds_keeps_memory_bounded_its_lease_and_every_result() {
    let world = World::new("blocked_writer").await;
    let options = world.options("g", SMALL_BOUNDS);
    let gateway = world.start(options.clone()).await;
    let limits = Config::load(&options.config_path()).unwrap().limits();
    const NODES: usize = 60;
    const PER_NODE: usize = 16;
    let result = Bytes::from(vec![7; limits.result_bytes]);
    let nodes = world
        .nodes("node", NODES, "g", |options| {
            options.lanes = vec![("default".to_owned(), u32::try_from(PER_NODE).unwrap())];
            options.behaviour = Behaviour {
                execution: Execution::Held,
                result: Some(result.clone()),
                ..Behaviour::default()
            };
        })
        .await;
    // One that beats often, and whose heartbeats come behind a report that is not stored.
    let beating = world
        .node("beating", "g", |options| {
            options.heartbeat = Some(Duration::from_millis(200));
            options.behaviour.execution = Execution::Held;
        })
        .await;
    let names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
    let mut database = world.connect().await;
    let mut ids = enqueue_rounds(&mut database, &names, PER_NODE).await;
    ids.extend(enqueue_rounds(&mut database, &[beating.name().to_owned()], 1).await);
    let arrived = |seen: &support::watch::Seen| (seen.acks >= ids.len()).then_some(());
    world.watch.until(SOON, "every command was accepted, and that is stored", arrived).await;
    let control = control_address(&mut database, "g").await;
    let offered = NODES * PER_NODE * limits.result_bytes;
    let bound = limits.to_writer_bytes
        + 2 * limits.receive_bytes_per_shard
        + (NODES + 1) * (limits.session_inbox_bytes + limits.session_outbox_bytes);
    assert!(offered > 2 * bound, "the load ({offered} bytes) must be far over the bound ({bound})");

    let before = gateway.usage().unwrap();
    let mut blocker = world.connect().await;
    let mut lock = blocker.begin().await.unwrap();
    lock.execute("LOCK TABLE commands IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let locked = Instant::now();
    for node in nodes.iter().chain([&beating]) {
        node.release(None);
    }
    // The lock's own time, not a wait for something: five seconds in which every sample must hold.
    let mut most = 0;
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    while locked.elapsed() < Duration::from_secs(5) {
        pace.tick().await;
        most = most.max(gateway.usage().unwrap().rss_bytes.saturating_sub(before.rss_bytes));
    }
    let (code, body) = health(&control).await;
    let settled = world.watch.look(|seen| seen.settled.len());
    lock.rollback().await.unwrap();
    measured("offered in results", mebibytes(offered));
    measured("the sum of the bounds", mebibytes(bound));
    measured("the gateway grew by", mebibytes(usize::try_from(most).unwrap()));
    assert_eq!(settled, 0, "nothing was acked that could not be stored");
    assert!(most < bound as u64, "the gateway grew by {most} bytes; its bounds allow {bound}");
    assert_eq!((code, &body["fenced"]), (200, &false.into()), "the lease was renewed all the while: {body}");

    world.watch.all_settled(&ids, Duration::from_secs(20)).await;
    measured("from the lock until all was stored", seconds(locked));
    let report = world.ledger(&mut database, &ids).await;
    assert_eq!(report.in_state("succeeded"), ids.len() as u64, "{report:?}");
    let stored: (i64,) = sqlx::query_as("SELECT count(*) FROM commands WHERE octet_length(result) = $1")
        .bind(i32::try_from(limits.result_bytes).unwrap())
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert_eq!(usize::try_from(stored.0), Ok(NODES * PER_NODE), "results stored whole");
    let (ended, beats) = world.watch.look(|seen| {
        let beats = seen.beats.iter().filter(|(node, ..)| &**node == beating.name());
        (seen.ended.clone(), beats.map(|(_, _, round_trip)| *round_trip).collect::<Vec<_>>())
    });
    assert!(ended.is_empty(), "no session ended: {ended:?}");
    let slowest = beats.iter().max().copied().unwrap_or_default();
    measured("slowest heartbeat meanwhile", format!("{slowest:?} of {}", beats.len()));
    assert!(beats.len() >= 20 && slowest < Duration::from_secs(1), "heartbeats wait for no writer");
    let (epochs,): (i64,) = sqlx::query_as("SELECT count(*) FROM leases_history WHERE name = 'gateway:g'")
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert_eq!(epochs, 1, "the lease was never lost");
}

async fn enqueue_rounds(database: &mut PgConnection, nodes: &[String], rounds: usize) -> Vec<Uuid> {
    let mut ids = Vec::new();
    for _ in 0..rounds {
        ids.extend(enqueue_many(database, nodes, b"work").await.unwrap());
    }
    ids
}

fn mebibytes(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

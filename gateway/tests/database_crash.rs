//! The database crashes while commands are on their way, with dispatches that wait for the disk and
//! with those that do not. Either way nothing is lost and nothing is executed twice.
//!
//! 1. The crash is real: `immediate`, with a WAL that nobody writes out unless a commit waits for it.
//! 2. Where marks of dispatches can be lost, the story goes on until some were, by the gateway's own
//!    word; where they can't, it sees that none was.
//! 3. What holds at the end is asked of the rows and of the nodes' own logs.
//! 4. The long run crashes at any moment, with work, cancellations and a killed gateway in between; a
//!    failure names its seed.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use gateway_core::splitmix::SplitMix;
use gateway_testbed::cluster::StopMode;
use gateway_testbed::database::{await_all_done, cancel, enqueue_many};
use gateway_testbed::gateway_process::GatewayProcess;
use gateway_testbed::node::{Behaviour, Execution, Node};
use sqlx::Executor;
use support::{SOON, World, asked_until, measured};
use uuid::Uuid;

/// A fence at 20 s: a crashed server that syncs its files on a busy disk may need some seconds.
const LONG_LEASE: &str = "[lease]\nttl = \"40s\"\nrenew_every = \"5s\"\n";
const NODES: usize = 20;
/// Each is one more chance that no other commit wrote the marks out before the crash.
const MOST_CRASHES: usize = 8;
/// What a gateway logs of them.
const LOST_MARKS: &str = "lost marks of dispatches";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    Synchronous,
    Asynchronous,
}

#[tokio::test]
async fn dispatches_that_waited_for_the_disk_survive_a_crash() {
    crash(Durability::Synchronous).await;
}

#[tokio::test]
async fn dispatches_that_a_crash_forgot_are_marked_again_and_executed_once() {
    crash(Durability::Asynchronous).await;
}

/// What the default of `dispatch.durability` stands on. A crash takes about two seconds.
#[tokio::test]
#[ignore = "long; ARCHITECTURE.md, long runs, has the command"]
async fn crashes_at_any_moment_lose_and_double_nothing() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (crashes, seed) =
        (number("GATEWAY_CRASHES").unwrap_or(20), number("GATEWAY_CRASH_SEED").unwrap_or(1));
    measured("seed", seed);
    let mut dice = Dice(SplitMix::new(seed));
    let mut world = World::with_own_cluster("crashes").await;
    let mut database = world.connect().await;
    database.execute("ALTER SYSTEM SET wal_writer_delay = '10s'").await.unwrap();
    database.execute("SELECT pg_reload_conf()").await.unwrap();
    let options = world.options("g", &format!("{LONG_LEASE}[dispatch]\ndurability = \"asynchronous\"\n"));
    let mut gateway = Some(world.start(options).await);
    let working =
        Behaviour { execution: Execution::After(Duration::from_millis(50)), ..Behaviour::default() };
    let nodes = world
        .nodes("node", NODES, "g", |options| {
            options.lanes = vec![("default".to_owned(), 4)];
            options.behaviour = working.clone();
        })
        .await;
    let names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
    let (mut ids, mut kills, mut worst) = (Vec::new(), 0, 0);
    for _ in 0..crashes {
        if dice.one_in(3) {
            worst += 1;
            ids.extend(crash_after_a_dispatch(&mut world, &nodes, &names, Durability::Asynchronous).await);
            nodes.iter().for_each(|node| node.behave(working.clone()));
            continue;
        }
        let mut database = world.connect().await;
        let settled = world.watch.look(|seen| seen.settled.len());
        let begun = ids.len();
        for _ in 0..=dice.below(10) {
            ids.extend(enqueue_many(&mut database, &names, b"work").await.unwrap());
        }
        for _ in 0..dice.below(10) {
            let index = begun + dice.below(ids.len() - begun);
            cancel(&mut database, &names[(index - begun) % NODES], ids[index], "not needed").await.unwrap();
        }
        let enough = settled + dice.below((ids.len() - begun) / 2);
        let moment = |seen: &support::watch::Seen| (seen.settled.len() >= enough).then_some(());
        world.watch.until(SOON, "the moment of the crash", moment).await;
        let killed = match dice.one_in(3) {
            true => gateway.take().map(|process| process.kill().unwrap()),
            false => None,
        };
        world.cluster().stop(StopMode::Immediate).unwrap();
        world.cluster().start_again().unwrap();
        if let Some(options) = killed {
            kills += 1;
            gateway = Some(world.start(options).await);
        }
        await_all_done(&mut world.connect().await, Duration::from_secs(60)).await.unwrap();
    }
    measured("crashes, of them at the worst moment", format!("{crashes}, {worst}"));
    measured("gateways killed with the database", kills);
    let told = gateway.as_ref().map(|gateway| gateway.log_tail(100_000).matches(LOST_MARKS).count());
    measured("times that its log tells of lost marks", told.unwrap_or_default());
    let report = world.ledger(&mut world.connect().await, &ids).await;
    let ended = report.in_state("succeeded") + report.in_state("canceled");
    assert_eq!(ended, ids.len() as u64, "{report:?}");
    measured("commands", ids.len());
}

/// What one seed decides.
struct Dice(SplitMix);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.0.next() % bound.max(1) as u64).unwrap()
    }

    fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }
}

async fn crash(durability: Durability) {
    let word = format!("{durability:?}").to_lowercase();
    let mut world = World::with_own_cluster(&format!("crash_{word}")).await;
    let mut database = world.connect().await;
    database.execute("ALTER SYSTEM SET wal_writer_delay = '10s'").await.unwrap();
    database.execute("SELECT pg_reload_conf()").await.unwrap();
    let gateway = world.gateway("g", &format!("{LONG_LEASE}[dispatch]\ndurability = \"{word}\"\n")).await;
    let working =
        Behaviour { execution: Execution::After(Duration::from_millis(100)), ..Behaviour::default() };
    let nodes = world
        .nodes("node", NODES, "g", |options| {
            options.lanes = vec![("default".to_owned(), 4)];
            options.behaviour = working.clone();
        })
        .await;
    let names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();

    // Under load: commands in every state are in flight.
    let mut ids = Vec::new();
    for _ in 0..50 {
        ids.extend(enqueue_many(&mut database, &names, b"work").await.unwrap());
    }
    world.watch.until(SOON, "the work is under way", |seen| (seen.settled.len() >= 100).then_some(())).await;
    world.cluster().stop(StopMode::Immediate).unwrap();
    let (settled, unsettled) = world.watch.look(|seen| (seen.settled.len(), seen.unsettled()));
    measured("commands settled and unsettled at the crash", format!("{settled}, {unsettled}"));
    assert!(settled < ids.len() && unsettled > 0, "the crash came while there was work");
    world.cluster().start_again().unwrap();
    world.watch.all_settled(&ids, Duration::from_secs(30)).await;

    // At the worst moment: the nodes have just read what they were sent, and have said nothing of it.
    let mut crashes = 0;
    while crashes < MOST_CRASHES && (crashes == 0 || durability == Durability::Asynchronous) {
        crashes += 1;
        ids.extend(crash_after_a_dispatch(&mut world, &nodes, &names, durability).await);
        if marks_were_lost(&gateway) {
            break;
        }
    }
    measured("crashes at the worst moment", crashes);
    assert_eq!(marks_were_lost(&gateway), durability == Durability::Asynchronous, "after {crashes} crashes");

    let drops = world.watch.look(|seen| seen.ended.clone());
    assert!(drops.is_empty(), "no session ended: {drops:?}");
    let mut database = world.connect().await;
    let report = world.ledger(&mut database, &ids).await;
    assert_eq!(report.in_state("succeeded"), ids.len() as u64, "{report:?}");
}

/// One command for each node; the database crashes when all have it, and each is settled after that.
async fn crash_after_a_dispatch(
    world: &mut World,
    nodes: &[Node],
    names: &[String],
    durability: Durability,
) -> Vec<Uuid> {
    let silent = Behaviour { execution: Execution::Held, reports: false, ..Behaviour::default() };
    nodes.iter().for_each(|node| node.behave(silent.clone()));
    let mut database = world.connect().await;
    let ids = enqueue_many(&mut database, names, b"work").await.unwrap();
    let read = |seen: &support::watch::Seen| {
        let read = seen.started.iter().filter(|(_, id, _)| ids.contains(id)).count();
        (read == ids.len()).then_some(())
    };
    world.watch.until(SOON, "every node has its command", read).await;
    world.cluster().stop(StopMode::Immediate).unwrap();
    world.cluster().start_again().unwrap();
    let mut database = world.connect().await;
    // The gateway's poll finds the crash, and gives back what was lost before it dispatches anew.
    asked_until(SOON, "every command has the mark of its dispatch", async || {
        let marked = "SELECT count(*) FROM commands WHERE id = ANY ($1) AND dispatched_at IS NOT NULL";
        let (marked,): (i64,) = sqlx::query_as(marked).bind(&ids).fetch_one(&mut database).await.unwrap();
        if durability == Durability::Synchronous {
            assert_eq!(usize::try_from(marked), Ok(ids.len()), "a mark that waited for the disk is gone");
        }
        (usize::try_from(marked) == Ok(ids.len())).then_some(())
    })
    .await;
    let reporting = Behaviour { reports: true, ..silent };
    for node in nodes {
        node.behave(reporting.clone());
        node.release(None);
    }
    world.watch.all_settled(&ids, Duration::from_secs(20)).await;
    ids
}

fn marks_were_lost(gateway: &GatewayProcess) -> bool {
    gateway.log_tail(10_000).contains(LOST_MARKS)
}

//! What the loops of a gateway do is there to be read: one that is stuck and one that fails show in health
//! and in the metrics, and are clean again when what held them is gone.
//!
//! That a loop that dies ends its thread is told in `db-writer/src/turn.rs`, that a thread that dies ends the
//! process in `supervision`, that a thread which stands still shows in `watchdog`.

#![allow(clippy::unwrap_used)]

mod support;

use serde_json::Value;
use support::health::{control_address, get, health};
use support::{SOON, World, asked_until};

fn named(health: &Value, name: &str) -> Value {
    let loops = health["loops"].as_array().expect("loops");
    loops.iter().find(|one| one["loop"] == name).unwrap_or_else(|| panic!("no loop {name}: {health}")).clone()
}

#[tokio::test]
async fn a_loop_that_is_stuck_or_fails_shows_until_it_is_clean_again() {
    let world = World::new("loops").await;
    let _gateway = world.gateway("g", "").await;
    let mut database = world.connect().await;
    let control = control_address(&mut database, "g").await;
    let _node = world.node("node", "g", |_| {}).await;
    let body = health(&control).await.1;
    for name in ["lease", "hellos", "dispatch", "feed", "sweeps", "specs", "listener", "shard-0", "db-writer"]
    {
        named(&body, name);
    }
    asked_until(SOON, "the feed and the listener have run", async || {
        let body = health(&control).await.1;
        let is_clean = |name| named(&body, name)["last_clean_run_at"].is_number();
        (is_clean("feed") && is_clean("listener") && is_clean("lease")).then_some(())
    })
    .await;

    // Stuck: a lock that the poll waits for.
    sqlx::raw_sql("BEGIN; LOCK TABLE commands IN ACCESS EXCLUSIVE MODE")
        .execute(&mut database)
        .await
        .unwrap();
    asked_until(SOON, "the feed has been running for two seconds", async || {
        let shown = named(&health(&control).await.1, "feed");
        shown["running_seconds"].as_f64().is_some_and(|running| running >= 2.0).then_some(())
    })
    .await;
    let metrics = get(&control, "/metrics").await.1;
    let running =
        metrics.lines().find_map(|line| line.strip_prefix("gateway_loop_running_seconds{loop=\"feed\"} "));
    assert!(running.and_then(|running| running.parse::<f64>().ok()).is_some_and(|running| running >= 2.0));

    // Failing: its connection is cut while it waits.
    let mut other = world.connect().await;
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name LIKE 'gateway g feed%'";
    asked_until(SOON, "the feed's connection is cut", async || {
        let cut: Vec<(bool,)> = sqlx::query_as(cut).fetch_all(&mut other).await.unwrap();
        (!cut.is_empty()).then_some(())
    })
    .await;
    asked_until(SOON, "that shows", async || {
        let shown = named(&health(&control).await.1, "feed");
        let failed = shown["consecutive_failures"].as_u64().is_some_and(|failures| failures > 0);
        (failed && shown["last_error"].is_string() && shown["last_error_at"].is_number()).then_some(())
    })
    .await;

    sqlx::raw_sql("ROLLBACK").execute(&mut database).await.unwrap();
    asked_until(SOON, "the feed is clean again, and its failure is remembered", async || {
        let shown = named(&health(&control).await.1, "feed");
        let is_clean = shown["consecutive_failures"] == 0;
        (is_clean && shown["failures"].as_u64() > Some(0) && shown["last_error"].is_string()).then_some(())
    })
    .await;
}

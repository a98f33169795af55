//! The thread: from a shard's message to the database and back, with a real PostgreSQL and a shard
//! that is played by the test.
//!
//! What only the running thread can show: wake-ups, the poll, outages, a second owner, mail that a shard
//! does not take, the stop, and that an idle thread sleeps. Each job for itself is tested in the
//! other files of this folder.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gateway_core::close::CloseReason;
use gateway_core::command::CommandState;
use gateway_core::ids::SessionEpoch;
use gateway_core::mail::mailbox;
use gateway_core::seam::{SessionNews, ToShard, ToWriter};
use gateway_core::writer::Phase;
use gateway_db_writer::{DbWriterConfig, DbWriterError, desk, spawn};
use support::shard::*;
use support::*;

#[tokio::test]
async fn a_command_goes_down_and_its_result_comes_up() {
    let mut db = database().await;
    db.nodes(2).await;
    let mut running = start(&db.url, "o1", |_| {});
    let mut shards = std::mem::take(&mut running.shards);
    for shard in &mut shards {
        shard.until_serving().await;
    }
    // Two nodes on two shards: what crosses, crosses.
    for (index, name) in ["n1", "n2"].iter().enumerate() {
        let shard = &mut shards[index];
        assert_eq!(shard.granted(7, name).await.epoch, SessionEpoch(1));
        let id = db.enqueue(name, "default").await;
        let (slot, SessionNews::Commands(commands)) = shard.news().await else { panic!("no command") };
        assert_eq!((slot, commands.len(), commands[0].id), (7, 1, id));
        assert_eq!(&commands[0].payload[..], b"body");
        for state in [CommandState::Accepted, CommandState::Running, CommandState::Succeeded] {
            shard.report(7, name, id, state).await;
            let (_, SessionNews::Stored { state: kept }) = shard.news().await else { panic!("not stored") };
            assert_eq!(kept, Some(state));
        }
        assert_eq!(db.state(id).await, "succeeded");
    }
    assert_eq!(running.status.commands_claimed.load(Ordering::Relaxed), 2);
    assert_eq!(running.status.phase(), Phase::Serving);
    running.shards = shards;
    stop(running).await;
    assert_eq!(text(&mut db.sql, "SELECT draining FROM gateways").await, "t");
    assert_eq!(number(&mut db.sql, "SELECT count(*) FROM leases WHERE expires_at <= compute_now()").await, 1);
    assert_eq!(
        number(&mut db.sql, "SELECT count(*) FROM node_sessions WHERE disconnected_at IS NULL").await,
        0
    );
}

#[tokio::test]
async fn an_enqueue_is_heard_long_before_the_poll() {
    let mut db = database().await;
    db.nodes(1).await;
    let mut running = start_with(&db.url, "o1", 1, 4096, |config| {
        // A poll that a test would not live to see.
        config.writer.poll_every = Duration::from_secs(3600);
    });
    let mut shards = std::mem::take(&mut running.shards);
    let shard = &mut shards[0];
    shard.until_serving().await;
    shard.granted(1, "n1").await;
    let started = Instant::now();
    while !running.status.listening.load(Ordering::Relaxed) {
        assert!(started.elapsed() < Duration::from_secs(20), "the probe never came back");
        tokio::task::yield_now().await;
    }
    for _ in 0..5 {
        let id = db.enqueue("n1", "default").await;
        let (_, SessionNews::Commands(commands)) = shard.news().await else { panic!("no command") };
        assert_eq!(commands[0].id, id);
        shard.report(1, "n1", id, CommandState::Succeeded).await;
        let (_, SessionNews::Stored { .. }) = shard.news().await else { panic!("not stored") };
    }
    assert_eq!(running.status.pokes.load(Ordering::Relaxed), 5);
    running.shards = shards;
    stop(running).await;
}

#[tokio::test]
async fn without_notifications_the_poll_finds_what_is_there() {
    let mut db = database().await;
    db.nodes(1).await;
    let name = text(&mut db.sql, "SELECT current_database()").await;
    run(&mut db.sql, &format!("ALTER DATABASE {name} SET gateway.notify = off")).await;
    let mut running = start_with(&db.url, "o1", 1, 4096, |config| config.listen = false);
    let mut shards = std::mem::take(&mut running.shards);
    let shard = &mut shards[0];
    shard.until_serving().await;
    shard.granted(1, "n1").await;
    let mut quiet = db.client("quiet").await;
    run(&mut quiet, "SELECT enqueue_command('n1', 'work')").await;
    let (_, SessionNews::Commands(commands)) = shard.news().await else { panic!("no command") };
    assert_eq!(commands.len(), 1);
    assert_eq!(running.status.pokes.load(Ordering::Relaxed), 0);
    running.shards = shards;
    stop(running).await;
}

#[tokio::test]
async fn a_database_that_ends_all_connections_is_ridden_out_and_nothing_is_lost() {
    let mut db = database().await;
    db.nodes(1).await;
    let mut running = start_with(&db.url, "o1", 1, 4096, |_| {});
    let mut shards = std::mem::take(&mut running.shards);
    let shard = &mut shards[0];
    shard.until_serving().await;
    shard.granted(1, "n1").await;
    for round in 0..5 {
        let id = db.enqueue("n1", "default").await;
        run(
            &mut db.sql,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'gateway g1%' \
             AND datname = current_database()",
        )
        .await;
        let (_, SessionNews::Commands(commands)) = shard.news().await else { panic!("no command") };
        assert_eq!(commands[0].id, id, "round {round}");
        shard.report(1, "n1", id, CommandState::Succeeded).await;
        let (_, SessionNews::Stored { state }) = shard.news().await else { panic!("not stored") };
        assert_eq!((state, db.state(id).await.as_str()), (Some(CommandState::Succeeded), "succeeded"));
    }
    assert_eq!(running.status.fences.load(Ordering::Relaxed), 0);
    running.shards = shards;
    stop(running).await;
}

#[tokio::test]
async fn another_owner_closes_every_session() {
    let mut db = database().await;
    db.nodes(1).await;
    let mut running = start_with(&db.url, "o1", 1, 4096, |config| {
        config.writer.lease_renew_every = Duration::from_millis(200);
    });
    let mut shards = std::mem::take(&mut running.shards);
    let shard = &mut shards[0];
    shard.until_serving().await;
    shard.granted(1, "n1").await;
    db.runner(gateway_core::store::Queue::Lease).run(&acquire("g1", "o2", Some("o1"))).await;
    let mut fenced = (false, false);
    while fenced != (true, true) {
        match shard.next().await {
            ToShard::Serving(false) => fenced.0 = true,
            ToShard::CloseAll(CloseReason::Fenced) => fenced.1 = true,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(running.status.fences.load(Ordering::Relaxed), 1);
    running.shards = shards;
    stop(running).await;
}

#[tokio::test]
async fn a_shard_that_takes_nothing_holds_no_other_up_and_gets_all_in_the_end() {
    let mut db = database().await;
    db.nodes(41).await;
    let mut running = start_with(&db.url, "o1", 2, 2, |_| {});
    let mut shards = std::mem::take(&mut running.shards);
    for shard in &mut shards {
        shard.until_serving().await;
    }
    // Forty answers wait for a shard whose box holds two.
    for slot in 1..=40 {
        shards[0].say_hello(slot, &format!("n{slot}"), &[]).await;
    }
    for _ in 0..3 {
        let epoch = shards[1].granted(1, "n41").await.epoch;
        shards[1]
            .post(ToWriter::Closed { key: shards[1].key(1), node: node("n41"), reason: "peer-gone" })
            .await;
        shards[1].open.clear();
        assert!(epoch.0 > 0);
    }
    let mut slots = Vec::new();
    for _ in 0..40 {
        let (slot, SessionNews::Granted(_)) = shards[0].news().await else { panic!("not granted") };
        slots.push(slot);
    }
    slots.sort_unstable();
    assert_eq!(slots, (1..=40).collect::<Vec<_>>());
    running.shards = shards;
    stop(running).await;
}

#[tokio::test]
async fn a_schema_that_it_does_not_serve_ends_the_thread_with_the_command_to_run() {
    let mut db = database().await;
    run(&mut db.sql, "DELETE FROM _sqlx_migrations").await;
    let running = start(&db.url, "o1", |_| {});
    let error = tokio::task::spawn_blocking(|| running.handle.join()).await.unwrap().unwrap_err();
    assert!(matches!(error, DbWriterError::Schema(_)), "{error:?}");
    assert!(error.to_string().contains("gateway migrate"), "{error}");
}

#[tokio::test]
async fn a_stop_while_the_database_is_away_ends_the_thread() {
    let running = start("postgres://gateway@127.0.0.1:1/none", "o1", |_| {});
    running.handle.stop_handle().stop();
    tokio::task::spawn_blocking(|| running.handle.join()).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_cpu_that_is_not_there_is_an_error_at_the_start() {
    let (posts, inbox) = mailbox::<ToWriter>(1, 1, 1);
    drop(posts);
    let mut config = None;
    let url = "postgres://gateway@127.0.0.1:1/none";
    let running = start(url, "o1", |made| {
        config = Some(made.writer.clone());
    });
    running.handle.stop_handle().stop();
    let config = DbWriterConfig {
        database_url: url.to_owned(),
        listen_url: None,
        writer: config.unwrap(),
        cpu: Some(1023),
        inbox,
        shards: Vec::new(),
        desk: desk().1,
        started: Instant::now(),
        synchronous_dispatch: true,
        listen: false,
        status: Arc::default(),
        hooks: Arc::default(),
        destructive_kinds: Arc::default(),
    };
    let error = spawn(config).unwrap_err();
    assert!(error.to_string().contains("cpu 1023"), "{error}");
}

#[tokio::test]
async fn an_idle_thread_turns_about_once_a_second_and_not_more() {
    let mut db = database().await;
    db.nodes(1).await;
    let mut running = start_with(&db.url, "o1", 1, 4096, |_| {});
    let mut shards = std::mem::take(&mut running.shards);
    shards[0].until_serving().await;
    shards[0].granted(1, "n1").await;
    let (before, started) = (running.status.ticks.load(Ordering::Relaxed), Instant::now());
    while started.elapsed() < Duration::from_secs(5) {
        // A renewal tells when time has passed: the row changes without anyone's doing.
        number(&mut db.sql, "SELECT count(*) FROM leases WHERE pg_sleep(0.5) IS NOT NULL").await;
    }
    let turns = running.status.ticks.load(Ordering::Relaxed) - before;
    assert!((4..60).contains(&turns), "{turns} turns in 5 s");
    running.shards = shards;
    stop(running).await;
}

#[tokio::test]
async fn a_gateway_that_hears_its_own_probe_says_so_and_one_that_does_not_listen_does_not() {
    let mut db = database().await;
    db.nodes(1).await;
    let mut running = start(&db.url, "o1", |_| {});
    let started = Instant::now();
    while !running.status.listening.load(Ordering::Relaxed) {
        assert!(started.elapsed() < Duration::from_secs(20), "its probe never arrived");
        tokio::task::yield_now().await;
    }
    running.shards[0].until_serving().await;
    stop(running).await;
    let mut deaf = start(&db.url, "o1", |config| config.listen = false);
    deaf.shards[0].until_serving().await;
    deaf.shards[0].granted(7, "n1").await;
    // It is found by the poll, long after a probe would have been heard.
    db.enqueue("n1", "default").await;
    assert!(matches!(deaf.shards[0].news().await, (7, SessionNews::Commands(_))));
    assert!(!deaf.status.listening.load(Ordering::Relaxed));
    stop(deaf).await;
}

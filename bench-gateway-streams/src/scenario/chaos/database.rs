//! What befalls the database: killed, frozen, its connections cut or all taken, its disk full.
//!
//! 1. The server is the real one, and each of these ends: what was taken is given back.
//! 2. A fault that did not bite fails the run: the server's own words or its rows show that it did.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use gateway_testbed::cluster::{Cluster, StopMode};
use sqlx::{Connection, Executor, PgConnection};
use tokio::task::JoinSet;

use super::dice::Dice;
use super::hold::hold;
use super::own::SmallDisk;
use super::stage::{Stage, Struck};

const SECOND: Duration = Duration::from_secs(1);
/// At once, so that what a gateway loses is not taken back by it.
const HOGS: usize = 8;

pub(super) async fn killed(stage: &mut Stage, dice: &mut Dice) -> anyhow::Result<Struck> {
    let away = dice.between(SECOND, 4 * SECOND);
    stage.world.on_cluster(|cluster| cluster.stop(StopMode::Immediate)).await?;
    hold("PostgreSQL is dead", away).await;
    stage.world.on_cluster(Cluster::start_again).await?;
    Ok(told(format!("dead for {:.1} s", away.as_secs_f64())))
}

pub(super) async fn frozen(stage: &mut Stage, dice: &mut Dice) -> anyhow::Result<Struck> {
    // Longer than the fence, which is at half of it.
    let how_long = dice.between(stage.lease_ttl.mul_f64(0.6), stage.lease_ttl.mul_f64(1.2));
    stage.world.on_cluster(Cluster::freeze).await?;
    hold("PostgreSQL stands still", how_long).await;
    stage.world.on_cluster(Cluster::thaw).await?;
    let ttl = stage.lease_ttl.as_secs_f64();
    Ok(told(format!("frozen for {:.1} s, TTL {ttl:.0} s", how_long.as_secs_f64())))
}

pub(super) async fn connections_cut(stage: &mut Stage) -> anyhow::Result<Struck> {
    let mut connection = stage.world.connect().await?;
    let statement = "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity \
                     WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let cut: i64 = sqlx::query_scalar(statement).fetch_one(&mut connection).await?;
    anyhow::ensure!(cut > 0, "no connection was there to be cut");
    Ok(told(format!("{cut} connections; from the cut")))
}

pub(super) async fn disk_full(stage: &mut Stage, dice: &mut Dice) -> anyhow::Result<Struck> {
    let how_long = dice.between(4 * SECOND, 8 * SECOND);
    let url = stage.world.database_url().to_owned();
    let doubts = stage.tracker.doubts();
    let disk = stage.disk.as_ref().context("the database has no disk of its own")?;
    let filler = disk.fill()?;
    let full = Instant::now();
    let (mut refused, mut asked, mut died) = (0, 0, false);
    while full.elapsed() < how_long {
        hold("the disk is full", SECOND / 2).await;
        asked += 1;
        refused += u32::from(finds_no_room(&url).await);
        died = died || stage.world.cluster()?.has_died();
        // What the server has freed meanwhile is taken too.
        stage.disk.as_ref().map_or(Ok(PathBuf::new()), SmallDisk::fill)?;
    }
    std::fs::remove_file(&filler).context("removing the filler")?;
    died = died || stage.world.cluster()?.has_died();
    if died {
        stage.world.on_cluster(|cluster| cluster.restart(StopMode::Immediate)).await?;
    }
    let failed = stage.tracker.doubts() - doubts;
    anyhow::ensure!(died || refused > 0, "the server found room on the disk all the while");
    let end = if died { "the server ended of it and was started again" } else { "the server stayed" };
    Ok(told(format!(
        "{:.1} s, {refused} of {asked} statements that need room refused, {failed} enqueues failed; {end}",
        full.elapsed().as_secs_f64()
    )))
}

/// Whether a statement that needs room is refused for want of it; nothing of it stays.
async fn finds_no_room(url: &str) -> bool {
    const DISK_FULL: &str = "53100";
    let asking = async {
        let mut connection = PgConnection::connect(url).await?;
        let statement = "CREATE TEMP TABLE room AS SELECT repeat('x', 1000) FROM generate_series(1, 2000)";
        connection.execute(statement).await
    };
    let answer = tokio::time::timeout(Duration::from_secs(5), asking).await;
    let error = answer.ok().and_then(Result::err);
    error.is_some_and(|error| {
        error.as_database_error().is_some_and(|error| error.code().as_deref() == Some(DISK_FULL))
    })
}

pub(super) async fn connection_limit(stage: &mut Stage, dice: &mut Dice) -> anyhow::Result<Struck> {
    const THEIRS: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'gateway%' AND pid <> pg_backend_pid()";
    const CUT: &str = "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity \
                       WHERE application_name LIKE 'gateway%' AND pid <> pg_backend_pid()";
    let how_long = dice.between(4 * SECOND, 8 * SECOND);
    let mut admin = stage.world.connect().await?;
    let before: i64 = sqlx::query_scalar(THEIRS).fetch_one(&mut admin).await?;
    let mut hogs = JoinSet::new();
    for _ in 0..HOGS {
        hogs.spawn(hog(stage.world.database_url().to_owned()));
    }
    let begun = Instant::now();
    while begun.elapsed() < how_long {
        let _: i64 = sqlx::query_scalar(CUT).fetch_one(&mut admin).await?;
        hold("all connections are taken", SECOND / 2).await;
    }
    let left: i64 = sqlx::query_scalar(THEIRS).fetch_one(&mut admin).await?;
    hogs.shutdown().await;
    anyhow::ensure!(left < before / 2, "the gateways have {left} of their {before} connections");
    Ok(told(format!(
        "the gateways had {left} of {before} connections after {:.1} s",
        begun.elapsed().as_secs_f64()
    )))
}

/// Takes connections and keeps them, until it is aborted.
async fn hog(url: String) {
    let mut taken = Vec::new();
    loop {
        match PgConnection::connect(&url).await {
            Ok(connection) => taken.push(connection),
            Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
        }
    }
}

fn told(detail: String) -> Struck {
    Struck { detail, ..Struck::default() }
}

//! A thread that dies ends the whole process, with its reason: here the writer's, of a gateway that waits for
//! its database with all its threads and is then shown one that it can't serve from.
//!
//! That a loop which dies ends its thread is told in `db-writer/src/turn.rs`, that a thread which panics is
//! noticed in `serve/supervision.rs`.

#![allow(clippy::unwrap_used)]

mod support;

use std::process::Stdio;

use sqlx::{AssertSqlSafe, Executor};
use support::{SOON, World, within};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;

#[tokio::test]
async fn a_writer_that_dies_while_its_shards_live_ends_the_process_and_says_why() {
    let world = World::new("dead_thread").await;
    let mut database = world.connect().await;
    let name = format!("{}_bare", world.database);
    for statement in [
        format!("CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0"),
        format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"),
    ] {
        database.execute(AssertSqlSafe(statement)).await.unwrap();
    }
    let mut options = world.options("g", "");
    options.database_url = world.url.replace(&world.database, &name);
    options.write().unwrap();
    let mut gateway = tokio::process::Command::new(env!("CARGO_BIN_EXE_gateway"))
        .args(["serve", "--config", &options.config_path().display().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(gateway.stderr.take().unwrap()).lines();
    let mut seen = String::new();
    let waits = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            seen.push_str(&line);
            seen.push('\n');
            if line.contains("the database is away") {
                return true;
            }
        }
        false
    };
    assert!(within(SOON, "it waits for its database", waits).await, "it ended instead:\n{seen}");
    // Its shards listen.
    let _node = TcpStream::connect(&options.listen).await.unwrap();
    assert!(gateway.try_wait().unwrap().is_none());

    let there = format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true");
    database.execute(AssertSqlSafe(there)).await.unwrap();
    let rest = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            seen.push_str(&line);
            seen.push('\n');
        }
    };
    within(SOON, "it ends", rest).await;
    let status = within(SOON, "it ends", gateway.wait()).await.unwrap();
    assert_eq!(status.code(), Some(1), "{seen}");
    assert!(
        seen.contains("the thread db-writer has failed") && seen.contains("run `gateway migrate`"),
        "{seen}"
    );
}

//! A gateway whose log can't be written, as where its disk is full, serves and stops like any other.
//!
//! 1. Its lines are lost, and nothing else.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs::OpenOptions;
use std::process::Stdio;

use support::health::{control_address, health};
use support::{SOON, World, asked_until, within};

#[tokio::test]
async fn a_full_disk_under_the_log_ends_no_gateway() {
    let world = World::new("full_log").await;
    let options = world.options("g", "[log]\nlevel = \"debug\"");
    options.write().unwrap();
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut gateway = tokio::process::Command::new(env!("CARGO_BIN_EXE_gateway"))
        .arg("serve")
        .arg("--config")
        .arg(options.config_path())
        .stderr(Stdio::from(full))
        .kill_on_drop(true)
        .spawn()
        .unwrap();

    let mut database = world.connect().await;
    asked_until(SOON, "the gateway's row", async || {
        assert_eq!(gateway.try_wait().unwrap(), None, "it ended for want of a log");
        sqlx::query("SELECT FROM gateways WHERE id = 'g'").fetch_optional(&mut database).await.unwrap()
    })
    .await;
    let control = control_address(&mut database, "g").await;
    let (code, told) = health(&control).await;
    assert_eq!(code, 200, "{told}");
    let node = world.node("n", "g", |_| {}).await;
    world.watch.connected_after(node.name(), 0).await;

    let process = rustix::process::Pid::from_raw(gateway.id().unwrap() as i32).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    let status = within(SOON, "the clean stop", gateway.wait()).await.unwrap();
    assert_eq!(status.code(), Some(0));
}

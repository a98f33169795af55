//! A gateway whose log can't be written, as where its disk is full or where nobody reads the pipe that its stderr is,
//! serves and stops like any other.
//!
//! 1. Its lines are lost, and nothing else; they are counted.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs::OpenOptions;
use std::io::{PipeReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{ExitStatus, Stdio};

use support::health::{control_address, get, health};
use support::{SOON, World, asked_until, within};
use tokio::process::Child;

#[tokio::test]
async fn a_full_disk_under_the_log_ends_no_gateway() {
    let world = World::new("full_log").await;
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (mut gateway, control) = serving(&world, "[log]\nlevel = \"debug\"", Stdio::from(full)).await;
    let (code, told) = health(&control).await;
    assert_eq!(code, 200, "{told}");
    let node = world.node("n", "g", |_| {}).await;
    world.watch.connected_after(node.name(), 0).await;
    assert_eq!(stopped(&mut gateway).await.code(), Some(0));
}

#[tokio::test]
async fn a_log_that_nobody_reads_holds_up_no_session_and_no_stop() {
    let world = World::new("unread_log").await;
    let (mut gateway, control, _pipe) = unread(&world).await;
    let node = world.node("n", "g", |_| {}).await;
    lines_are_lost(&world, &control).await;
    let before = world.watch.look(|seen| seen.beats.len());
    world
        .watch
        .until(SOON, "heartbeats are acked", |seen| (seen.beats.len() >= before + 3).then_some(()))
        .await;
    let (code, told) = health(&control).await;
    assert_eq!(code, 200, "{told}");
    drop(node);
    // Its last words have a bound too.
    assert_eq!(stopped(&mut gateway).await.code(), Some(0));
}

#[tokio::test]
async fn a_log_that_is_read_again_says_how_much_was_lost_and_has_the_last_line() {
    let world = World::new("reread_log").await;
    let (mut gateway, control, mut pipe) = unread(&world).await;
    lines_are_lost(&world, &control).await;
    let reading = std::thread::spawn(move || {
        let mut text = Vec::new();
        pipe.read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    });
    // What is queued is written, or the end of it would be cut off.
    let counted = lost(&control).await;
    assert_eq!(stopped(&mut gateway).await.code(), Some(0));
    let text = within(SOON, "the log's end", tokio::task::spawn_blocking(|| reading.join())).await;
    let text = text.unwrap().unwrap();
    let told: Vec<u64> = text
        .lines()
        .filter(|line| line.contains("log lines were lost"))
        .filter_map(|line| line.rsplit("lines=").next()?.trim().parse().ok())
        .collect();
    assert!(told.iter().sum::<u64>() >= counted && counted > 0, "{told:?}, {counted} were counted");
    assert!(text.trim_end().lines().any(|line| line.ends_with("stopped")), "its last line is there");
}

/// A gateway with this stderr, that holds its lease, and where its control API is.
async fn serving(world: &World, extra: &str, stderr: Stdio) -> (Child, String) {
    let options = world.options("g", extra);
    options.write().unwrap();
    let mut gateway = tokio::process::Command::new(env!("CARGO_BIN_EXE_gateway"))
        .arg("serve")
        .arg("--config")
        .arg(options.config_path())
        .stderr(stderr)
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
    asked_until(SOON, "it serves", async || (health(&control).await.0 == 200).then_some(())).await;
    (gateway, control)
}

/// A gateway that logs every frame to a pipe that is full, and whose reading end nobody reads.
async fn unread(world: &World) -> (Child, String, PipeReader) {
    let (reader, writer) = std::io::pipe().unwrap();
    // By a description of its own: the gateway's waits, as a shell's does.
    let mut filler = OpenOptions::new()
        .write(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open(format!("/proc/self/fd/{}", writer.as_raw_fd()))
        .unwrap();
    while filler.write(b"full\n").is_ok() {}
    let extra = "[log]\nlevel = \"debug,h2=trace\"\n[sessions]\nheartbeat_interval = \"1s\"";
    let (gateway, control) = serving(world, extra, Stdio::from(writer)).await;
    (gateway, control, reader)
}

/// Lines that the gateway counts as lost.
async fn lost(control: &str) -> u64 {
    let metrics = get(control, "/metrics").await.1;
    let count = metrics.lines().find_map(|line| line.strip_prefix("gateway_log_lines_lost_total "));
    let count: Option<f64> = count.and_then(|count| count.parse().ok());
    count.map(|count| count as u64).unwrap_or_else(|| panic!("no count of lost lines: {metrics}"))
}

/// Makes nodes come until the queue of lines is full.
async fn lines_are_lost(world: &World, control: &str) {
    for round in 0..200 {
        if lost(control).await > 0 {
            return;
        }
        drop(world.nodes(&format!("r{round}"), 10, "g", |_| {}).await);
    }
    panic!("no line was lost, though nobody reads them");
}

async fn stopped(gateway: &mut Child) -> ExitStatus {
    let process = rustix::process::Pid::from_raw(gateway.id().unwrap() as i32).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    within(SOON, "the clean stop", gateway.wait()).await.unwrap()
}

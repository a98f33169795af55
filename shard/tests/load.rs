//! A look at what many sessions cost one shard; it prints and holds only coarse bounds.
//!
//! The nodes run in a process of their own (this binary again, one ignored test), so that the memory
//! that is measured is the shard's.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::process::{Command, Stdio};
use std::time::Instant;

use gateway_core::frame::Command as NodeCommand;
use gateway_core::ids::{Attempt, CommandId, LaneName, LaneSeq, SessionEpoch};
use gateway_core::limits::Limits;
use gateway_core::seam::{SessionNews, ToShard, ToWriter};
use gateway_proto::v1::gateway_frame::Frame;
use support::client::{Client, update};
use support::pki::Pki;
use support::{Gateway, story, until};

/// How many sessions, where others than `SESSIONS` are wanted.
const COUNT: &str = "SHARD_LOAD_SESSIONS";
const SESSIONS: usize = 500;
const DIR: &str = "SHARD_LOAD_DIR";
const ADDR: &str = "SHARD_LOAD_ADDR";

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn five_hundred_sessions_are_cheap_and_all_are_served() {
    story(async {
        let sessions = std::env::var(COUNT).map_or(SESSIONS, |count| count.parse().unwrap());
        let limits = Limits {
            opens_per_second: 100_000,
            opens_burst: 100_000,
            // The nodes of these tests differ in their names, not in their serials.
            connections_per_certificate: u32::MAX,
            ..Limits::default()
        };
        let mut gateway = Gateway::start(limits);
        let dir = std::env::temp_dir().join(format!("shard-load-{}", std::process::id()));
        gateway.pki.write_nodes(&dir, sessions);
        gateway.node("warm-up").await.session().await;
        gateway.writer.closed().await;
        let (before, begun) = (resident_kib(), Instant::now());
        let mut nodes = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "--nocapture", "nodes_of_the_load"])
            .env(DIR, &dir)
            .env(ADDR, gateway.addr.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut keys = Vec::new();
        while keys.len() < sessions {
            keys.push(gateway.writer.hello().await.key);
        }
        let connected = begun.elapsed();
        let cost = (resident_kib() - before) as f64 / sessions as f64;
        println!("{sessions} sessions in {connected:?}, {cost:.1} KiB each");

        let pushed = Instant::now();
        for (n, key) in keys.iter().enumerate() {
            let news = SessionNews::Commands(vec![command(n as u128 + 1)]);
            gateway.posts[0].post(ToShard::Session { key: *key, news }).unwrap();
        }
        gateway.posts[0].ring();
        let mut took = Vec::new();
        while took.len() < sessions {
            if let ToWriter::Update(_) = gateway.writer.next().await {
                took.push(pushed.elapsed());
            }
        }
        println!("a command to each and back: p50 {:?}, last {:?}", took[sessions / 2], took[sessions - 1]);
        nodes.kill().unwrap();
        nodes.wait().unwrap();
        until("all are gone", || gateway.admission.streams() == 0).await;
        std::fs::remove_dir_all(dir).unwrap();
        // The system's allocator and a debug build: coarse.
        assert!(cost < 100.0, "{cost} KiB a session");
    });
}

fn command(number: u128) -> NodeCommand {
    NodeCommand {
        id: CommandId(uuid::Uuid::from_u128(number)),
        attempt: Attempt(1),
        lane: LaneName::new("default").unwrap(),
        seq: LaneSeq(1),
        kind: "noop".to_owned(),
        payload: vec![1; 200].into(),
        not_after: None,
        session_epoch: SessionEpoch(1),
    }
}

#[test]
#[ignore = "the other process of the load; started by it"]
fn nodes_of_the_load() {
    let (Ok(dir), Ok(addr)) = (std::env::var(DIR), std::env::var(ADDR)) else { return };
    let addr = addr.parse().unwrap();
    story(async move {
        let nodes = Pki::read_nodes(dir.as_ref());
        let mut tasks = Vec::new();
        for (roots, node) in nodes {
            tasks.push(tokio::task::spawn_local(async move {
                let mut client = Client::connect(addr, &roots, Some(&node)).await.unwrap();
                let (mut session, _) = client.session().await;
                while let Some(frame) = session.next_or_wait().await {
                    if let Frame::Command(command) = frame {
                        session.frame(update(command.seq, command.command_id[15], 0));
                    }
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
}

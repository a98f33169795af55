//! `gateway top` as an operator has it: the binary, on a terminal and off one, beside a gateway under load.
//!
//! 1. What it shows is held against what was done to the gateway, number by number.
//! 2. Nothing is judged by how fast it came.

#![allow(clippy::unwrap_used)]

mod support;

use std::process::Stdio;

use gateway_proto::path;
use gateway_testbed::gateway_process::GatewayProcess;
use gateway_testbed::node::{Target, Transport};
use gateway_testbed::raw::RawCall;
use http::HeaderMap;
use pty_process::Size;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use support::api::{client, client_files};
use support::load::Load;
use support::{SOON, World, within};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};

/// What the command needs to know.
fn arguments(gateway: &GatewayProcess, more: &[&str]) -> Vec<String> {
    let files = client_files(gateway);
    let mut all = vec!["top".to_owned(), "--gateway".to_owned(), gateway.options().id.clone()];
    for (option, file) in [("--ca", &files.ca), ("--certificate", &files.certificate), ("--key", &files.key)]
    {
        all.extend([option.to_owned(), file.display().to_string()]);
    }
    all.extend(more.iter().map(|option| (*option).to_owned()));
    all
}

/// `gateway top`, off a terminal.
struct Top {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    stderr: ChildStderr,
}

impl Top {
    fn start(world: &World, gateway: &GatewayProcess, more: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_gateway"))
            .args(arguments(gateway, more))
            .args(["--database-url", &world.url])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let stderr = child.stderr.take().unwrap();
        Self { child, lines, stderr }
    }

    async fn line(&mut self) -> String {
        let line = within(SOON, "a look", self.lines.next_line()).await.unwrap();
        match line {
            Some(line) => line,
            None => panic!("it ended: {}", self.told().await),
        }
    }

    async fn view(&mut self) -> Value {
        let line = self.line().await;
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line}"))
    }

    /// The next look of which that is true.
    async fn view_in_which(&mut self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let looking = async {
            loop {
                let view = self.view().await;
                if is_so(&view) {
                    return view;
                }
            }
        };
        within(SOON, what, looking).await
    }

    async fn told(&mut self) -> String {
        let mut told = String::new();
        within(SOON, "stderr ends", self.stderr.read_to_string(&mut told)).await.unwrap();
        told
    }

    fn interrupt(&self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
    }

    async fn ends(&mut self) -> i32 {
        within(SOON, "it ends", self.child.wait()).await.unwrap().code().unwrap_or(-1)
    }
}

fn number(view: &Value, field: &str) -> f64 {
    view[field].as_f64().unwrap_or_else(|| panic!("{field} is no number in {view}"))
}

fn sum(rows: &Value, field: &str) -> f64 {
    rows.as_array().unwrap().iter().map(|row| number(row, field)).sum()
}

#[tokio::test]
async fn it_shows_what_a_gateway_under_load_does() {
    let world = World::new("top_load").await;
    let gateway = world.start(world.options_with_api("g", "[shards]\ncount = 3\n")).await;
    let nodes = world.nodes("n", 8, "g", |options| options.target.transport = Transport::Http2).await;
    let _other = world.node("ws", "g", |options| options.target.transport = Transport::WebSocket).await;
    let names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
    let load = Load::start(world.connect().await, names, 100, vec![7; 100]);
    let mut top = Top::start(&world, &gateway, &["--json", "--interval", "300ms"]);
    let queue = |view: &Value, queue: &str| {
        let queues = view["queues"].as_array().unwrap();
        queues.iter().find(|one| one["queue"] == queue).unwrap_or_else(|| panic!("{view}")).clone()
    };
    let busy = |view: &Value| {
        view["dispatch"]["latency_p99_seconds"].is_f64()
            && queue(view, "updates")["entries_per_commit"].is_f64()
    };
    let view = top.view_in_which("commands are dispatched", busy).await;

    assert_eq!((&view["gateway"], &view["phase"]), (&json!("g"), &json!("serving")), "{view}");
    assert_eq!((&view["takes_sessions"], &view["draining"]), (&json!(true), &json!(false)));
    assert_eq!(view["sessions"], 9);
    assert_eq!(view["sessions_by_transport"], json!({ "h2": 8, "websocket": 1 }));
    assert_eq!((&view["streams"]["used"], view["shards"].as_array().unwrap().len()), (&json!(9), 3));
    assert_eq!((sum(&view["shards"], "sessions"), sum(&view["shards"], "connections")), (9.0, 9.0));
    assert!(number(&view, "over_seconds") >= 0.25, "{view}");
    assert_eq!((&view["lease"]["held"], &view["lease"]["epoch"]), (&json!(true), &json!(1)));
    let dispatch = &view["dispatch"];
    let (p50, p99) = (number(dispatch, "latency_p50_seconds"), number(dispatch, "latency_p99_seconds"));
    assert!(0.0 < p50 && p50 <= p99, "{view}");
    for field in [
        "frames_in_per_second",
        "frames_out_per_second",
        "bytes_in_per_second",
        "bytes_out_per_second",
        "commits_per_second",
        "cpu_cores",
        "resident_bytes",
    ] {
        assert!(number(&view, field) > 0.0, "{field}: {view}");
    }
    assert!(number(dispatch, "sent_per_second") > 0.0, "{view}");
    let near = |one: f64, other: f64| (one - other).abs() <= 1e-6 * one.abs().max(1.0);
    for field in ["frames_in_per_second", "frames_out_per_second", "opens_per_second"] {
        assert!(near(sum(&view["shards"], field), number(&view, field)), "{field}: {view}");
    }
    assert!(near(sum(&view["queues"], "commits_per_second"), number(&view, "commits_per_second")), "{view}");
    let updates = &queue(&view, "updates");
    assert!(number(updates, "entries_per_commit") >= 1.0, "{view}");
    assert!(number(updates, "flush_p50_seconds") <= number(updates, "flush_p99_seconds"), "{view}");
    assert_eq!(view["loops_in_trouble"], json!([]));

    // What happens only now and then: an open, a refusal, a drain.
    let _late = world.node("late", "g", |_| {}).await;
    top.view_in_which("an open", |view| number(view, "opens_per_second") > 0.0).await;
    top.view_in_which("its session", |view| view["sessions"] == 10).await;
    let anonymous = Target::new(gateway.address(), world.pki.client_config(None).unwrap());
    let mut refused = RawCall::open(&anonymous, path::SESSION, HeaderMap::new()).await.unwrap();
    assert!(refused.end(SOON).await.is_some());
    let seen = |view: &Value| number(view, "refusals_per_second") > 0.0;
    let view = top.view_in_which("a refusal", seen).await;
    let reasons = &view["refusals_by_reason"];
    assert!(number(reasons, "unauthenticated") > 0.0 && reasons.as_object().unwrap().len() == 1, "{view}");
    let api = client(&world, &gateway).await;
    api.post("/v1/drain", &json!({ "within_seconds": 600 })).await.unwrap();
    let view = top.view_in_which("it drains", |view| view["draining"] == true).await;
    assert_eq!((&view["phase"], &view["takes_sessions"]), (&json!("draining"), &json!(false)));
    assert!(view["reasons"][0].as_str().unwrap().contains("drains"), "{view}");
    top.interrupt();
    assert_eq!(top.ends().await, 0);
    let ids = load.stop().await;
    world.watch.all_settled(&ids, SOON * 3).await;
}

#[tokio::test]
async fn a_loop_that_fails_is_shown_with_its_reason() {
    let mut world = World::with_own_cluster("top_trouble").await;
    let gateway = world.start(world.options_with_api("g", "")).await;
    let mut top = Top::start(&world, &gateway, &["--json", "--interval", "200ms"]);
    top.view().await;
    world.cluster().stop(gateway_testbed::cluster::StopMode::Immediate).unwrap();
    let fails = |view: &Value| view["loops_in_trouble"].as_array().is_some_and(|loops| !loops.is_empty());
    let view = top.view_in_which("a loop fails", fails).await;
    let one = &view["loops_in_trouble"][0];
    assert!(one["loop"].is_string() && one["consecutive_failures"].is_u64(), "{view}");
}

#[tokio::test]
async fn off_a_terminal_each_look_is_a_line_and_a_gateway_that_is_gone_is_told_of() {
    let world = World::new("top_lines").await;
    let gateway = world.start(world.options_with_api("g", "")).await;
    let _node = world.node("n", "g", |_| {}).await;
    let mut top = Top::start(&world, &gateway, &["--interval", "100ms"]);
    for _ in 0..3 {
        let line = top.line().await;
        assert!(line.contains(" g serving · sessions 1 · opens 0.0/s"), "{line}");
        assert!(line.contains(" · lease epoch 1, ") && line.chars().all(|sign| !sign.is_control()), "{line}");
    }
    let once = arguments(&gateway, &["--once", "--interval", "100ms", "--database-url", &world.url]);
    let run = async || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gateway"));
        within(SOON, "one look", command.args(&once).kill_on_drop(true).output()).await.unwrap()
    };
    let output = run().await;
    let told = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{told}");
    for text in ["g 0.", "sessions 1 (", "SHARD", "QUEUE", "hellos"] {
        assert!(told.contains(text), "{text} is not in {told}");
    }
    assert!(!told.contains('\u{1b}'), "{told}");

    gateway.kill().unwrap();
    let output = run().await;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && told.contains("can't be reached"), "{told}");
    // The one that runs goes on, and says so at each look.
    let mut errors = BufReader::new(top.stderr).lines();
    for _ in 0..2 {
        let told = within(SOON, "it is told", errors.next_line()).await.unwrap().unwrap();
        assert!(told.contains("can't be reached"), "{told}");
    }
    let pid = Pid::from_raw(i32::try_from(top.child.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(within(SOON, "it ends", top.child.wait()).await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn on_a_terminal_it_draws_over_itself_and_leaves_it_as_it_was() {
    let world = World::new("top_terminal").await;
    let gateway = world.start(world.options_with_api("g", "")).await;
    let (pty, pts) = pty_process::open().unwrap();
    pty.resize(Size::new(20, 60)).unwrap();
    let line = arguments(&gateway, &["--interval", "100ms", "--database-url", &world.url]);
    let mut child = pty_process::Command::new(env!("CARGO_BIN_EXE_gateway"))
        .args(line)
        .kill_on_drop(true)
        .spawn(pts)
        .unwrap();
    let (mut reader, mut writer) = pty.into_split();
    let mut seen = String::new();
    let drawing = async {
        while seen.matches("\u{1b}[HG").count() + seen.matches("\u{1b}[Hg").count() < 3 {
            let mut space = [0; 4096];
            let bytes = reader.read(&mut space).await.unwrap();
            seen.push_str(&String::from_utf8_lossy(&space[..bytes]));
        }
    };
    let drawn = tokio::time::timeout(SOON, drawing).await;
    assert!(drawn.is_ok(), "no three frames: {seen:?}");
    // The terminal makes CR LF of LF, also where a CR is.
    let seen = seen.replace("\r\r\n", "\r\n");
    assert!(seen.starts_with("\u{1b}[?1049h\u{1b}[?25l"), "{seen:?}");
    let whole = seen.split("\u{1b}[H").nth(1).unwrap();
    let lines: Vec<&str> = whole.split("\u{1b}[K\r\n").collect();
    assert!(lines.len() <= 20 && lines.iter().any(|line| line.starts_with("SHARD")), "{lines:?}");
    assert!(
        lines.iter().all(|line| line.trim_end_matches("\u{1b}[K\u{1b}[J").chars().count() <= 60),
        "{lines:?}"
    );
    // Ctrl-C, as the terminal makes it of the key.
    writer.write_all(&[3]).await.unwrap();
    let mut rest = String::new();
    let ending = async {
        let mut space = [0; 4096];
        while let Ok(bytes @ 1..) = reader.read(&mut space).await {
            rest.push_str(&String::from_utf8_lossy(&space[..bytes]));
        }
        child.wait().await.unwrap().code()
    };
    assert_eq!(within(SOON, "it ends", ending).await, Some(0));
    assert!(rest.ends_with("\u{1b}[?25h\u{1b}[?1049l"), "the terminal is not left as it was: {rest:?}");
}

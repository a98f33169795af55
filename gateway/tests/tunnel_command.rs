//! `gateway tunnel NODE` on a real terminal: the command of the binary, through a gateway that it finds in the
//! database, to a shell of a node on a real terminal; and the same with two gateways behind a balancer.
//!
//! Stories: size and exit status, every way out of it, pipes without a terminal, refusals, a drained gateway, a killed one.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::time::Duration;

use gateway_testbed::balancer::{Balancer, BalancerOptions, Server};
use gateway_testbed::gateway_process::GatewayProcess;
use gateway_testbed::node::{Target, TunnelTaker};
use pty_process::{OwnedReadPty, OwnedWritePty, Size};
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{LocalModes, tcgetattr};
use support::tunnels::{TunnelStage, client_files, rest_of, tunnel_options};
use support::{SOON, World, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Child;

/// The command on a terminal.
struct Session {
    reader: OwnedReadPty,
    writer: OwnedWritePty,
    child: Child,
    seen: String,
    /// For a look at its modes.
    terminal: OwnedFd,
}

struct CommandLine<'a> {
    url: &'a str,
    files: &'a gateway::client::InternalFiles,
    node: String,
    ticket: String,
}

impl CommandLine<'_> {
    fn arguments(&self) -> Vec<String> {
        let path = |path: &std::path::Path| path.display().to_string();
        let mut all = vec!["tunnel".to_owned(), self.node.clone()];
        for (option, value) in [
            ("--database-url", self.url.to_owned()),
            ("--ca", path(&self.files.ca)),
            ("--certificate", path(&self.files.certificate)),
            ("--key", path(&self.files.key)),
        ] {
            all.extend([option.to_owned(), value]);
        }
        all
    }

    fn on_terminal(&self, columns: u16, rows: u16) -> Session {
        let (pty, pts) = pty_process::open().unwrap();
        let terminal = pty.as_fd().try_clone_to_owned().unwrap();
        pty.resize(Size::new(rows, columns)).unwrap();
        let child = pty_process::Command::new(env!("CARGO_BIN_EXE_gateway"))
            .args(self.arguments())
            .env("GATEWAY_TICKET", &self.ticket)
            .env("TERM", "gateway-test-terminal")
            .kill_on_drop(true)
            .spawn(pts)
            .unwrap();
        let (reader, writer) = pty.into_split();
        Session { reader, writer, child, seen: String::new(), terminal }
    }
}

impl Session {
    async fn types(&mut self, line: &str) {
        self.writer.write_all(line.as_bytes()).await.unwrap();
    }

    async fn sees(&mut self, text: &str) {
        let reading = async {
            while !self.seen.contains(text) {
                let mut space = [0; 4096];
                let bytes = self.reader.read(&mut space).await.unwrap_or(0);
                assert!(bytes > 0, "the terminal ended before {text:?}; seen {:?}", self.seen);
                self.seen.push_str(&String::from_utf8_lossy(&space[..bytes]));
            }
        };
        let waited = tokio::time::timeout(SOON, reading).await;
        assert!(waited.is_ok(), "no {text:?}; seen {:?}", self.seen);
        self.seen.clear();
    }

    /// Types a line again and again: the shell hears of a change as soon as it has made its way.
    async fn types_until(&mut self, line: &str, text: &str) {
        let trying = async {
            while !self.seen.contains(text) {
                self.types(line).await;
                let mut space = [0; 4096];
                let reading = tokio::time::timeout(Duration::from_millis(200), self.reader.read(&mut space));
                if let Ok(Ok(bytes)) = reading.await {
                    self.seen.push_str(&String::from_utf8_lossy(&space[..bytes]));
                }
            }
        };
        within(SOON, text, trying).await;
        self.seen.clear();
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.terminal).unwrap().local_modes.contains(LocalModes::ICANON)
    }

    fn resize(&self, columns: u16, rows: u16) {
        self.writer.resize(Size::new(rows, columns)).unwrap();
    }

    async fn exit_code(mut self) -> Option<i32> {
        self.ended().await
    }

    async fn ended(&mut self) -> Option<i32> {
        // What is still written must be read, or the command waits.
        let draining = async {
            let mut space = [0; 4096];
            while let Ok(bytes) = self.reader.read(&mut space).await
                && bytes > 0
            {
                self.seen.push_str(&String::from_utf8_lossy(&space[..bytes]));
            }
            self.child.wait().await.unwrap().code()
        };
        within(SOON, "the command ends", draining).await
    }
}

#[tokio::test]
async fn the_command_gives_a_shell_that_follows_the_terminals_size_and_ends_with_its_status() {
    let stage = TunnelStage::new("tunnel_command", "").await;
    let node = stage.node("n1").await;
    let line = CommandLine {
        url: &stage.world.url,
        files: &stage.files,
        node: node.name().to_owned(),
        ticket: stage.authority.mint().mint(node.name()),
    };
    let mut session = line.on_terminal(97, 31);
    session.types("stty -echo; stty size\n").await;
    session.sees("31 97").await;
    session.resize(120, 40);
    session.types_until("stty size\n", "40 120").await;
    session.types("echo it is $TERM\n").await;
    session.sees("it is gateway-test-terminal").await;
    session.types("exit 7\n").await;
    assert_eq!(session.exit_code().await, Some(7));
    stage.at_rest().await;
}

#[tokio::test]
async fn however_it_is_left_the_terminal_is_as_it_was() {
    let stage = TunnelStage::new("tunnel_left", "").await;
    let node = stage.node("n1").await;
    for (way, said) in [
        (Some(Signal::TERM), "SIGTERM"),
        (Some(Signal::HUP), "SIGHUP"),
        (Some(Signal::INT), "SIGINT"),
        (None, "left with ~."),
    ] {
        let line = CommandLine {
            url: &stage.world.url,
            files: &stage.files,
            node: node.name().to_owned(),
            ticket: stage.authority.mint().mint(node.name()),
        };
        let mut session = line.on_terminal(80, 24);
        // What the terminal itself echoes is not what is waited for.
        session.types("stty -echo; echo re''ady\n").await;
        session.sees("ready\r\n").await;
        assert!(session.is_raw(), "{said}");
        match way {
            Some(signal) => {
                let pid = Pid::from_raw(session.child.id().unwrap().try_into().unwrap()).unwrap();
                kill_process(pid, signal).unwrap();
            }
            None => session.types("sleep 60\r~.").await,
        }
        assert_eq!(session.ended().await, Some(255), "{said}");
        assert!(session.seen.contains(said), "{said}: {:?}", session.seen);
        assert!(!session.is_raw(), "{said}");
    }
    stage.at_rest().await;
}

#[tokio::test]
async fn without_a_terminal_it_is_a_pipe_and_what_fails_is_255() {
    let stage = TunnelStage::new("tunnel_pipe", "").await;
    let node = stage.node("n1").await;
    let line = |ticket: String| CommandLine {
        url: &stage.world.url,
        files: &stage.files,
        node: node.name().to_owned(),
        ticket,
    };
    let run = async |line: &CommandLine<'_>, more: &[&str], input: &[u8]| {
        let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_gateway"))
            .args(line.arguments())
            .args(more)
            .env("GATEWAY_TICKET", &line.ticket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input).await.unwrap();
        drop(stdin);
        within(SOON, "the command ends", child.wait_with_output()).await.unwrap()
    };
    let good = line(stage.authority.mint().mint(node.name()));
    let output = run(&good, &["--", "echo hello; exit 3"], b"").await;
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), &b"hello\r\n"[..]));
    let used = run(&good, &[], b"").await;
    let told = String::from_utf8_lossy(&used.stderr).into_owned();
    assert_eq!(used.status.code(), Some(255), "{told}");
    assert!(told.contains("used before"), "{told}");
    for code in ["-9", "256", "300"] {
        let ticket = stage.authority.mint().mint(node.name());
        let (kind, code_is) = (["--kind", "ends", "--parameter"], format!("code={code}"));
        let ended = run(&line(ticket), &[&kind[..], &[&code_is]].concat(), b"").await;
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(255), "{told}");
        assert!(told.contains(&format!("exit status {code} is out of 0 to 255")), "{told}");
    }
    let none = run(&line(stage.authority.mint().mint(node.name())), &["--kind", "ends"], b"").await;
    let told = String::from_utf8_lossy(&none.stderr).into_owned();
    assert_eq!(none.status.code(), Some(255), "a script takes 0 for success: {told}");
    assert!(told.contains("without an exit status"), "{told}");
    let data: Vec<u8> = (0..400_000u32).map(|n| (n % 251) as u8).collect();
    let echo = run(&line(stage.authority.mint().mint(node.name())), &["--kind", "echo"], &data).await;
    assert!(echo.status.success() && echo.stdout == data, "{} bytes came back", echo.stdout.len());
    stage.at_rest().await;
}

/// Where a gateway says in its log that it serves its health.
async fn health_address(gateway: &GatewayProcess) -> SocketAddr {
    let log = gateway.logged("health at http://").await;
    let at = log.rsplit_once("health at http://").unwrap().1;
    at.split('/').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn behind_a_balancer_each_node_gets_its_tunnels_from_the_gateway_that_has_it() {
    let world = World::new("tunnel_balanced").await;
    let authority = support::tunnels::authority(&world).await;
    let mut gateways = Vec::new();
    for id in ["g1", "g2", "g3"] {
        gateways.push(world.start(tunnel_options(&world, &authority, id, "")).await);
    }
    let mut servers = Vec::new();
    for id in ["g1", "g2", "g3"] {
        let control = health_address(&gateways[servers.len()]).await;
        servers.push(Server { address: world.address_of(id), control });
    }
    let dir = tempfile::tempdir().unwrap();
    let listen = world.address_of("balancer");
    let balancer = Balancer::start(BalancerOptions { dir: dir.path().to_owned(), listen, servers }).await;
    let _balancer = match balancer {
        Ok(balancer) => balancer,
        Err(error) => panic!("{error}"),
    };
    let files = client_files(gateways[0].options());
    let mut nodes = Vec::new();
    for name in ["n1", "n2", "n3", "n4", "n5", "n6"] {
        let mint = authority.mint();
        let node = world
            .node(name, "g1", |options| {
                let tls = options.target.clone();
                options.target = Target { address: listen, ..tls };
                options.tunnels = Some(TunnelTaker::of(mint));
            })
            .await;
        nodes.push(node);
    }
    for node in &nodes {
        let line = CommandLine {
            url: &world.url,
            files: &files,
            node: node.name().to_owned(),
            ticket: authority.mint().mint(node.name()),
        };
        let mut session = line.on_terminal(80, 24);
        session.types("stty -echo; stty size\n").await;
        session.sees("24 80").await;
        session.resize(101, 33);
        session.types_until("stty size\n", "33 101").await;
        session.types("exit 7\n").await;
        assert_eq!(session.exit_code().await, Some(7), "{}", node.name());
    }
    let gateway_of = "SELECT node_id, gateway_id FROM node_sessions WHERE disconnected_at IS NULL";
    let homes: Vec<(String, String)> =
        sqlx::query_as(gateway_of).fetch_all(&mut world.connect().await).await.unwrap();
    let all: BTreeSet<&str> = homes.iter().map(|(_, gateway)| gateway.as_str()).collect();
    assert!(all.len() >= 2, "the balancer has sent all to one: {homes:?}");
    // A gateway that is killed cuts its tunnels; the command says so.
    let (_, gateway) = homes.iter().find(|(node, _)| node == nodes[0].name()).unwrap();
    let at = ["g1", "g2", "g3"].iter().position(|id| id == gateway).unwrap();
    let line = CommandLine {
        url: &world.url,
        files: &files,
        node: nodes[0].name().to_owned(),
        ticket: authority.mint().mint(nodes[0].name()),
    };
    let mut session = line.on_terminal(80, 24);
    // What the terminal itself echoes is not what is waited for.
    session.types("stty -echo; echo he''re\n").await;
    session.sees("here\r\n").await;
    gateways.remove(at).kill().unwrap();
    assert_eq!(session.ended().await, Some(255));
    assert!(session.seen.contains("was cut"), "{:?}", session.seen);
}

#[tokio::test]
async fn a_gateway_that_drains_lets_tunnels_go_on_until_its_end() {
    let extra = "[gateway]\ndrain = \"1s\"\ndrain_grace = \"2s\"\n";
    let mut stage = TunnelStage::new("tunnel_drain", extra).await;
    let _node = stage.node_as("n1", |options| options.behaviour.drains = false).await;
    let mut tunnel = stage.open("n1", "echo").await;
    stage.gateway.signal(Signal::TERM).unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    support::tunnels::say(&mut tunnel, "still here").await;
    support::tunnels::data_until(&mut tunnel, "still here").await;
    let (_, _, code, message) = rest_of(&mut tunnel).await;
    assert_ne!(code, 0, "{message}");
}

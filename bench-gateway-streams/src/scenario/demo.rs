//! `demo`: the main job, live in the terminal. What `scripts/quickstart` runs.
//!
//! 1. It ends by itself with a summary; with --keep it stays up for a node of one's own.
//! 2. Cluster and certificates stay in its folder, and a second run uses them again.
//! 3. Ctrl-C while it stays up is a clean stop, not a failure.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use gateway_testbed::cluster::Cluster;
use gateway_testbed::database::{register_certificates, register_nodes};
use gateway_testbed::ledger::{LedgerReport, LedgerScope, check_ledger};
use gateway_testbed::node::{Behaviour, Execution, Node, NodeOptions, Target, TunnelTaker};
use gateway_testbed::pki::Identity;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::arguments::{DemoArguments, GatewayArguments};
use crate::enqueuer::{EnqueuePlan, Enqueuer};
use crate::fleet::{Fleet, FleetPlan};
use crate::interrupt::{interrupted, unless_interrupted};
use crate::progress::{print, say};
use crate::tracker::Tracker;
use crate::world::{World, WorldPlan};

const OWN_NODE: &str = "my-node";
/// As in production: who has a certificate that nobody recorded is refused. The demo records its own.
const STRICT: &str = "[identity]\nunknown_serial = \"refuse\"\n";
/// The node that the join token is for.
const JOINING_NODE: &str = "joined-node";
/// The one that takes tunnels.
const SHELL_NODE: &str = "shell-node";
const TICKET_EVERY: Duration = Duration::from_secs(10);
const TOKEN_LIFE: Duration = Duration::from_secs(24 * 3600);
const FRAME_EVERY: Duration = Duration::from_millis(250);
const LINE_EVERY: Duration = Duration::from_secs(4);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// What stands when the show is over.
struct Stage {
    world: World,
    fleet: Fleet,
    tracker: Arc<Tracker>,
    ledger: LedgerReport,
}

/// Runs it; true if all that was enqueued was executed once and stored.
pub(crate) async fn run(arguments: DemoArguments) -> anyhow::Result<bool> {
    let stage = unless_interrupted(Box::pin(perform(&arguments))).await?;
    summarize(&stage);
    let sound = stage.ledger.is_sound();
    if arguments.keep {
        invite(&stage.world).await?;
        let shell = invite_to_a_shell(&stage.world).await?;
        let word = tokio::select! {
            word = interrupted() => word,
            error = keep_ticket(&stage.world) => return Err(error),
        };
        say(&format!("{word}: stopping …"));
        drop(shell);
    } else {
        suggest();
    }
    let Stage { world, fleet, .. } = stage;
    fleet.close().await?;
    for violation in world.close().await? {
        say(&violation);
    }
    Ok(sound)
}

async fn perform(arguments: &DemoArguments) -> anyhow::Result<Stage> {
    anyhow::ensure!(arguments.sessions > 0, "--sessions must be at least 1");
    let per_second = arguments.commands_per_second;
    anyhow::ensure!(per_second.is_finite() && per_second > 0.0, "--commands-per-second must be above 0");
    let dir = std::path::absolute(&arguments.dir)?;
    let gateway = GatewayArguments::of(arguments.gateway_bin.clone(), arguments.shards);
    let world = Box::pin(World::build(WorldPlan {
        cluster_dir: cluster_folder(&dir)?,
        dir: Some(dir),
        listen: arguments.listen.unwrap_or_else(free_address),
        authority: arguments.keep,
        more_toml: STRICT,
        ..WorldPlan::new(arguments.sessions, Duration::from_secs(10), gateway)
    }))
    .await?;
    let tracker = Arc::new(Tracker::default());
    let behaviour = Behaviour {
        execution: Execution::After(Duration::from_millis(20)),
        reports_running: true,
        ..Behaviour::default()
    };
    let recorded_in = Some(world.database_url().to_owned());
    let plan = FleetPlan { behaviour, recorded_in, ..FleetPlan::of(&world, 200.0) };
    let fleet = Box::pin(Fleet::open(plan, world.pki(), Arc::clone(&tracker))).await?;
    let enqueue = EnqueuePlan {
        database_url: world.database_url().to_owned(),
        node_ids: world.node_ids(),
        per_second,
        duration: Some(arguments.duration),
        kind: "demo".to_owned(),
        payload_bytes: 64,
        rides_out: false,
    };
    let enqueuer = Enqueuer::start(enqueue, Arc::clone(&tracker)).await?;
    show(&world, &fleet, &tracker, &enqueuer).await?;
    world.log().flush()?;
    let (enqueued, logs) = (tracker.enqueued(), [world.log().path()]);
    let ledger =
        check_ledger(&mut world.connect().await?, &enqueued, &logs, LedgerScope::OnlyEnqueued).await?;
    Ok(Stage { world, fleet, tracker, ledger })
}

// As root the database runs as another account, which may not reach, say, /root.
fn cluster_folder(dir: &Path) -> anyhow::Result<Option<PathBuf>> {
    let inside = dir.join("postgres");
    if Cluster::check_reach(&inside).is_ok() {
        return Ok(None);
    }
    let name: String =
        dir.to_string_lossy().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let outside = Path::new("/var/lib/gateway-demo").join(name.trim_matches('-'));
    Cluster::check_reach(&outside)?;
    say(&format!(
        "the database's account can't reach {}; its data is in {}",
        dir.display(),
        outside.display()
    ));
    Ok(Some(outside))
}

fn free_address() -> SocketAddr {
    let usual = SocketAddr::from(([127, 0, 0, 1], 7443));
    match TcpListener::bind(usual) {
        Ok(_) => usual,
        Err(error) => {
            say(&format!(
                "{usual} can't be had ({error}): the gateway takes a free port instead; --listen names one"
            ));
            SocketAddr::from(([127, 0, 0, 1], 0))
        }
    }
}

/// The view: lines that are drawn over on a terminal, and told now and then elsewhere.
struct View {
    lines: Option<(MultiProgress, Vec<ProgressBar>)>,
    last_told: Instant,
}

const VIEW_LINES: usize = 16;

impl View {
    fn new() -> Self {
        let lines = std::io::stderr().is_terminal().then(|| {
            let all = MultiProgress::new();
            let style =
                ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
            let bars =
                (0..VIEW_LINES).map(|_| all.add(ProgressBar::new(1)).with_style(style.clone())).collect();
            (all, bars)
        });
        Self { lines, last_told: Instant::now() }
    }

    fn draw(&mut self, text: &[String]) {
        if let Some((_, bars)) = &self.lines {
            for (bar, line) in bars.iter().zip(text.iter().map(String::as_str).chain(std::iter::repeat(""))) {
                bar.set_message(line.to_owned());
            }
        } else if self.last_told.elapsed() >= LINE_EVERY {
            self.last_told = Instant::now();
            say(&text.iter().take(3).map(|line| line.trim()).collect::<Vec<_>>().join(" | "));
        }
    }

    fn close(self) {
        if let Some((all, bars)) = self.lines {
            for bar in &bars {
                bar.finish_and_clear();
            }
            let _ = all.clear();
        }
    }
}

// Until all was enqueued and everything is done.
async fn show(world: &World, fleet: &Fleet, tracker: &Tracker, enqueuer: &Enqueuer) -> anyhow::Result<()> {
    let mut view = View::new();
    let mut finished = std::pin::pin!(enqueuer.finished());
    let mut enqueued_all: Option<Instant> = None;
    // Completed commands of the last two seconds, for the rate.
    let mut recent: VecDeque<(Instant, u64)> = VecDeque::new();
    loop {
        tokio::select! {
            outcome = &mut finished, if enqueued_all.is_none() => {
                outcome?;
                enqueued_all = Some(Instant::now());
            }
            () = tokio::time::sleep(FRAME_EVERY) => {}
        }
        let completed = tracker.figures().completed;
        recent.push_back((Instant::now(), completed));
        while recent.len() > 1 && recent.front().is_some_and(|(at, _)| at.elapsed() > Duration::from_secs(2))
        {
            recent.pop_front();
        }
        let rate = recent
            .front()
            .map_or(0.0, |(at, then)| (completed - then) as f64 / at.elapsed().as_secs_f64().max(0.001));
        view.draw(&frame(world, fleet, tracker, rate));
        if let Some(since) = enqueued_all
            && (tracker.open() == 0 || since.elapsed() > DRAIN_TIMEOUT)
        {
            break;
        }
    }
    view.close();
    Ok(())
}

fn frame(world: &World, fleet: &Fleet, tracker: &Tracker, rate: f64) -> Vec<String> {
    let (figures, counts) = (tracker.figures(), fleet.counts());
    let ms = |latencies: &crate::latency::Latencies| {
        let ms = latencies.percentiles().unwrap_or_default();
        format!("p50 {:.2} ms  p99 {:.2} ms  max {:.2} ms", ms.p50, ms.p99, ms.max)
    };
    let mut lines = vec![
        format!(
            "  nodes connected  {} over mutual TLS to {}, {} drops",
            counts.connected(),
            world.address(),
            counts.drops()
        ),
        format!(
            "  commands         {} enqueued, {} completed, {rate:.1}/s",
            figures.committed, figures.completed
        ),
        format!("  dispatch         {}", ms(&figures.dispatch)),
        format!("  completion       {}", ms(&figures.completion)),
    ];
    if let Ok(Some(usage)) = world.gateway_usage() {
        lines.push(format!("  gateway          {:.1} MiB", usage.rss_bytes as f64 / f64::from(1 << 20)));
    }
    lines.push(String::new());
    lines.push("  last completed".to_owned());
    for completed in counts.last_completed() {
        let node = completed.node.rsplit('/').next().unwrap_or_default().to_owned();
        lines.push(format!("    {node}  {}  {}", completed.id, completed.state));
    }
    lines
}

fn summarize(stage: &Stage) {
    let (figures, ledger) = (stage.tracker.figures(), &stage.ledger);
    let ms = |latencies: &crate::latency::Latencies| {
        let ms = latencies.percentiles().unwrap_or_default();
        format!("p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms", ms.p50, ms.p99, ms.max)
    };
    print("");
    print("What happened");
    print(&format!(
        "  {} nodes held a session each over mutual TLS; {} commands were enqueued in PostgreSQL,",
        stage.fleet.counts().connected(),
        figures.committed
    ));
    print(&format!(
        "  sent, executed, and their results stored: {} succeeded.",
        ledger.in_state("succeeded")
    ));
    print(&format!("  dispatch (commit -> the node has it):         {}", ms(&figures.dispatch)));
    print(&format!("  completion (commit -> the result is durable): {}", ms(&figures.completion)));
    if ledger.is_sound() {
        print("  The nodes' own logs and the database agree: one execution and one stored result each.");
    } else {
        print(&format!("  NOT SOUND: {} violations of the ledger:", ledger.violation_count));
        for violation in ledger.violations.iter().take(10) {
            print(&format!("    {violation}"));
        }
    }
}

async fn invite(world: &World) -> anyhow::Result<()> {
    let folder = world.dir().join(OWN_NODE);
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let (node_id, identity) = registered(world, OWN_NODE).await?;
    let (certificate, key) = identity.write(&folder, "node")?;
    let server_ca = world.dir().join("tls/server-ca.crt");
    print("");
    print("It stays up until Ctrl-C. Connect a node of your own:");
    print(&format!("  endpoint     {} (gRPC over TLS 1.3, package gateway.v1)", world.address()));
    print(&format!("  CA           {}", server_ca.display()));
    print(&format!("  certificate  {}", certificate.display()));
    print(&format!("  key          {}", key.display()));
    print(&format!("  node id      {node_id}"));
    tell_of_gateway(world);
    invite_by_token(world, &server_ca)?;
    print("Enqueue a command to it:");
    print(&format!(
        "  psql '{}' -c \"SELECT enqueue_command(node_id => '{node_id}', kind => 'hello', payload => 'world')\"",
        world.database_url()
    ));
    print("and see what became of it:");
    print(&format!(
        "  psql '{}' -c \"SELECT id, state, waits_for FROM command_status WHERE node_id = '{node_id}'\"",
        world.database_url()
    ));
    Ok(())
}

/// Where the gateway itself is looked at.
fn tell_of_gateway(world: &World) {
    let Some(member) = world.first_member() else { return };
    let (binary, config, log) = member.files();
    print("Certificates are recorded in node_certs: one that is not there is refused, as in production.");
    print("The gateway itself:");
    print(&format!("  configuration  {}", config.display()));
    print(&format!("  log            {}", log.display()));
    print(&format!("  health         http://{}/v1/health", member.control()));
    // Each finds the gateway, its CA and a certificate that may call it in the configuration.
    for (what, command) in [
        ("watch it", "top"),
        ("how it is", "health"),
        ("its sessions", "live-sessions"),
        ("certificates", "certs list"),
    ] {
        print(&format!("  {what:<13}  {} {command} --config {}", binary.display(), config.display()));
    }
}

/// What a machine needs that has no certificate yet.
fn invite_by_token(world: &World, server_ca: &Path) -> anyhow::Result<()> {
    let Some(authority) = world.authority() else { return Ok(()) };
    let file = world.dir().join(OWN_NODE).join("join-token");
    authority.keep_secret("greeting", "1", "hello from the secret broker");
    write_for_us_alone(&file, &authority.mint_token(JOINING_NODE, TOKEN_LIFE))?;
    print("or let a machine join that has no certificate yet, with a token that is good once, for a day:");
    print(&format!(
        "  conformance/join --endpoint {} --ca {} --token-file {} --out {}",
        world.address(),
        server_ca.display(),
        file.display(),
        world.dir().join(JOINING_NODE).display()
    ));
    print("and with that certificate fetch the secret that is called greeting, or renew it:");
    let folder = world.dir().join(JOINING_NODE);
    let shown = format!(
        "--endpoint {} --ca {} --cert {} --key {}",
        world.address(),
        server_ca.display(),
        folder.join("node.crt").display(),
        folder.join("node.key").display()
    );
    print(&format!("  conformance/secret {shown} --name greeting"));
    print(&format!("  conformance/renew {shown} --out {}", world.dir().join("renewed").display()));
    Ok(())
}

/// A node beside the fleet, with a certificate that is recorded.
async fn registered(world: &World, name: &str) -> anyhow::Result<(String, Identity)> {
    let (node_id, identity) = (world.pki().node_id(name), world.pki().node(name)?);
    let (mut connection, node_ids) = (world.connect().await?, std::slice::from_ref(&node_id));
    register_nodes(&mut connection, node_ids).await?;
    register_certificates(&mut connection, node_ids, std::slice::from_ref(&identity.serial)).await?;
    Ok((node_id, identity))
}

/// A simulated node that gives a shell of this machine, to this account alone: the ticket's file is closed to others.
async fn invite_to_a_shell(world: &World) -> anyhow::Result<Option<Node>> {
    let (Some(authority), Some(member)) = (world.authority(), world.first_member()) else { return Ok(None) };
    let (node_id, identity) = registered(world, SHELL_NODE).await?;
    let target = Target::new(world.address(), world.pki().client_config(Some(&identity))?);
    let tunnels = Some(TunnelTaker::of(authority.mint()));
    let node = Node::start(NodeOptions { tunnels, ..NodeOptions::new(&node_id, target) });
    write_ticket(world)?;
    let (binary, config, _) = member.files();
    print(
        "Open a shell over a tunnel, at a simulated node that gives one of this machine (a fresh ticket lies there every",
    );
    print(&format!("{} s):", TICKET_EVERY.as_secs()));
    print(&format!(
        "  {} tunnel {node_id} --config {} --ticket-file {}",
        binary.display(),
        config.display(),
        ticket_file(world).display()
    ));
    Ok(Some(node))
}

fn ticket_file(world: &World) -> PathBuf {
    world.dir().join(OWN_NODE).join("ticket")
}

fn write_ticket(world: &World) -> anyhow::Result<()> {
    let Some(authority) = world.authority() else { return Ok(()) };
    write_for_us_alone(&ticket_file(world), &authority.mint().mint(&world.pki().node_id(SHELL_NODE)))
}

/// A ticket is good once, for half a minute. Ends with an error alone.
async fn keep_ticket(world: &World) -> anyhow::Error {
    loop {
        tokio::time::sleep(TICKET_EVERY).await;
        if let Err(error) = write_ticket(world) {
            return error;
        }
    }
}

fn write_for_us_alone(file: &Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    // A file that is there keeps its mode when it is opened; and who reads one finds the old or the new, never half.
    let fresh = file.with_extension("new");
    let _ = std::fs::remove_file(&fresh);
    let writing = || format!("writing {}", file.display());
    let mut opened = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    writeln!(opened, "{text}").with_context(writing)?;
    std::fs::rename(&fresh, file).with_context(writing)
}

fn suggest() {
    print("");
    print("What to try next");
    print("  scripts/quickstart --keep   leaves it running for a node of your own");
    print("  scripts/test                runs all tests");
    print(
        "  target/release/bench-gateway-streams steady --sessions 5000 --commands-per-second 50 --duration 120s",
    );
}

//! `hostile`: what peers that break every rule cost those that keep them, on the same shard.
//!
//! For each attack, three kinds of stretches follow each other in one run: without peers, with peers that are at
//! a bystander, and with peers that are at the gateway. Heartbeats of the healthy sessions are timed in all.
//! The bystander is another gateway on the same machine: what its peers cost is what the machine takes for them
//! (they and the gateways share its cores), and what is beyond that, the gateway has let through. The peers
//! are a process of their own (`peer`), what they do is in `attacks`, what a refusal costs in `admission`.
//!
//! 1. A gateway runs with one shard, so that all meet there, and without its doze, which would hide how fast
//!    it is. Its time-outs are 2 s, so that a stretch sees how peers end who wait for them.
//! 2. What was disturbed is compared with what was not in the same minute, never with another run.
//! 3. Where the bystander's peers cost less than none, it is noise, and none is what is compared with.

mod admission;
mod attacks;
mod peer;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use super::upheaval::AtWork;
use crate::arguments::{Attack, Calls, HostileArguments, HostilePlan};
use crate::fleet::FleetCounts;
use crate::latency::Latencies;
use crate::progress::say;
use crate::report::{HostileRow, HostileShare, Report};
use crate::world::{World, WorldPlan};

pub(crate) use self::peer::{Tally, serve};

const LOOK: Duration = Duration::from_millis(100);
/// How long the gateway is left alone after a disturbed stretch, so that its end is not in the next.
const REST: Duration = Duration::from_millis(500);
const ENDS_SHOWN: usize = 2;
/// What a run sets of the gateway, beside what all runs set.
const SETTINGS: &str = r#"
[shards]
doze = "0ms"
[sessions]
handshake_timeout = "2s"
hello_timeout = "2s"
streamless_timeout = "2s"
send_timeout = "2s"
"#;

/// Runs it; true if its gate held.
pub(crate) async fn run(arguments: Box<HostileArguments>) -> anyhow::Result<bool> {
    let plan = arguments.plan()?;
    let mut gateway = arguments.gateway.clone();
    gateway.shards = Some(1);
    let admission = match plan.with_admission {
        true => Some(Box::pin(admission::measure(&gateway, plan.stretch)).await?),
        false => None,
    };
    let load = &plan.load;
    let mut world_plan = WorldPlan::new(load.sessions, load.heartbeat, gateway);
    world_plan.more_toml = SETTINGS;
    world_plan.bystander = true;
    let world = Box::pin(World::build(world_plan)).await?;
    let peers = Peers::new(&world, "hostile").await?;
    let work = AtWork::begin(load, &world).await?;
    let mut rows = Vec::new();
    for attack in &plan.attacks {
        let row = Box::pin(measure(*attack, &plan, &world, &peers, work.fleet.counts())).await?;
        say(row.line().trim_start());
        rows.push(row);
    }
    let share = HostileShare { stretch_s: plan.stretch.as_secs_f64(), rounds: plan.rounds, rows, admission };
    let report = Report { scenario: "hostile", hostile: Some(share), ..Report::default() };
    Box::pin(work.conclude(load, &plan.gate, world, report)).await
}

async fn measure(
    attack: Attack,
    plan: &HostilePlan,
    world: &World,
    peers: &Peers,
    counts: &Arc<FleetCounts>,
) -> anyhow::Result<HostileRow> {
    let (mut quiet, mut beside, mut disturbed) = (Latencies::new(), Latencies::new(), Latencies::new());
    let mut row = HostileRow { attack: attack.name(), ..HostileRow::default() };
    let mut tally = Tally::default();
    let before = rss(world)?;
    for _ in 0..plan.rounds {
        counts.restart_heartbeats();
        tokio::time::sleep(plan.stretch).await;
        quiet.add(&counts.heartbeats());
        let mut elsewhere = peers.start(world.bystander_address()?, Some(attack), None)?;
        counts.restart_heartbeats();
        tokio::time::sleep(plan.stretch).await;
        beside.add(&counts.heartbeats());
        elsewhere.stop().await?;
        tokio::time::sleep(REST).await;
        let mut running = peers.start(world.address(), Some(attack), None)?;
        counts.restart_heartbeats();
        let began = Instant::now();
        while began.elapsed() < plan.stretch {
            tokio::time::sleep(LOOK).await;
            row.memory_bytes = row.memory_bytes.max(rss(world)?.saturating_sub(before));
        }
        disturbed.add(&counts.heartbeats());
        tally.add(&running.stop().await?);
        tokio::time::sleep(REST).await;
    }
    let mut ends: Vec<(String, u64)> = tally.ends.into_iter().collect();
    ends.sort_by_key(|(end, count)| (std::cmp::Reverse(*count), end.clone()));
    row.attempts = ends.iter().map(|(_, count)| count).sum();
    let shown = ends.iter().take(ENDS_SHOWN).map(|(end, count)| format!("{count} x {end}"));
    row.ended = match row.attempts {
        0 => "still there when the stretch ended".to_owned(),
        _ => shown.collect::<Vec<_>>().join(", "),
    };
    row.quiet_ms = quiet.percentiles();
    row.beside_ms = beside.percentiles();
    row.disturbed_ms = disturbed.percentiles();
    Ok(row)
}

fn rss(world: &World) -> anyhow::Result<u64> {
    Ok(world.gateway_usage()?.context("the gateway's process is not known")?.rss_bytes)
}

/// How peers are started.
#[derive(Debug)]
struct Peers {
    server_ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

/// Peers that are at it.
#[derive(Debug)]
struct Running(Child);

impl Peers {
    /// With the certificate of a node of that name, which the gateway knows.
    async fn new(world: &World, name: &str) -> anyhow::Result<Self> {
        world.make_known(&[name.to_owned()]).await?;
        let (certificate, key) = world.pki().node(name)?.write(world.dir(), name)?;
        let server_ca = world.gateway_files()?.server_ca.clone();
        Ok(Self { server_ca, certificate, key })
    }

    fn start(
        &self,
        address: SocketAddr,
        attack: Option<Attack>,
        calls: Option<Calls>,
    ) -> anyhow::Result<Running> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("hostile-peer").arg("--connect").arg(address.to_string());
        command.arg("--server-ca").arg(&self.server_ca).arg("--certificate").arg(&self.certificate);
        command.arg("--key").arg(&self.key).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        if let Some(attack) = attack {
            command.args(["--attack", attack.name()]);
        }
        if let Some(calls) = calls {
            command.args(["--calls", calls.name()]);
        }
        Ok(Running(command.spawn().context("starting hostile peers")?))
    }
}

impl Running {
    /// Ends them; what they saw.
    async fn stop(&mut self) -> anyhow::Result<Tally> {
        drop(self.0.stdin.take());
        let mut told = String::new();
        if let Some(mut output) = self.0.stdout.take() {
            output.read_to_string(&mut told).await?;
        }
        let status = self.0.wait().await?;
        let last = told.lines().last().unwrap_or_default();
        anyhow::ensure!(status.success(), "the hostile peers ended with {status}: {told}");
        serde_json::from_str(last).with_context(|| format!("what the hostile peers saw: {told}"))
    }
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.handshakes += other.handshakes;
        for (end, count) in &other.ends {
            *self.ends.entry(end.clone()).or_default() += count;
        }
    }
}

//! What it costs a gateway to refuse, against what it costs to accept: handshakes, and opens of a session.
//!
//! Counted by the client, divided by the CPU time that the gateway's process took meanwhile: so a figure is
//! of one core, however many others want it. PostgreSQL's time is not in it.
//!
//! 1. An open is asked for on a connection that stands; what the connection's handshake costs is measured
//!    before and taken off.
//! 2. Opens are refused by a bucket that is empty, handshakes for a certificate of another authority.

use std::time::Duration;

use anyhow::Context;
use gateway_testbed::pki::WrongCertificate;

use super::{Peers, Running, SETTINGS, Tally};
use crate::arguments::{Calls, GatewayArguments};
use crate::progress::say;
use crate::report::AdmissionShare;
use crate::world::{World, WorldPlan};

/// Starts and settles before it counts.
const WARM: Duration = Duration::from_millis(300);

/// Measures all four, each for `stretch`.
pub(super) async fn measure(gateway: &GatewayArguments, stretch: Duration) -> anyhow::Result<AdmissionShare> {
    let mut share = AdmissionShare::default();
    // One open may be let in a second, which is none among those that are refused.
    for opens_per_second in [None, Some(1)] {
        let mut plan = WorldPlan::new(1, Duration::from_secs(10), gateway.clone());
        plan.more_toml = SETTINGS;
        plan.opens_per_second = opens_per_second;
        let world = Box::pin(World::build(plan)).await?;
        let peers = Peers::new(&world, "caller").await?;
        let shakes =
            counted(&world, peers.start(world.address(), None, Some(Calls::Handshakes))?, stretch).await?;
        let accepted = shakes.per_cpu_second("served");
        if opens_per_second.is_none() {
            share.accepted_handshakes_per_core_s = accepted;
            let wrong = world.pki().wrong("stranger", WrongCertificate::OtherAuthority)?;
            let (certificate, key) = wrong.write(world.dir(), "stranger")?;
            let strangers = Peers { certificate, key, ..Peers::new(&world, "other").await? };
            let refused =
                counted(&world, strangers.start(world.address(), None, Some(Calls::Handshakes))?, stretch)
                    .await?;
            share.refused_handshakes_per_core_s = refused.per_cpu_second("TLS alert");
        }
        let opens = counted(&world, peers.start(world.address(), None, Some(Calls::Opens))?, stretch).await?;
        let shaking = opens.tally.handshakes as f64 / accepted.max(1.0);
        let opens = Counted { cpu_s: (opens.cpu_s - shaking).max(0.01), ..opens };
        match opens_per_second {
            None => share.accepted_opens_per_core_s = opens.per_cpu_second("welcomed"),
            Some(_) => share.refused_opens_per_core_s = opens.per_cpu_second("refused"),
        }
        world.close().await?;
    }
    share.lines().iter().for_each(|line| say(line.trim_start()));
    Ok(share)
}

/// What was counted, and what the gateway took for it.
struct Counted {
    tally: Tally,
    cpu_s: f64,
}

impl Counted {
    fn per_cpu_second(&self, end: &str) -> f64 {
        let ends = self.tally.ends.iter().filter(|(name, _)| name.starts_with(end));
        ends.map(|(_, count)| *count).sum::<u64>() as f64 / self.cpu_s.max(0.01)
    }
}

async fn counted(world: &World, mut running: Running, stretch: Duration) -> anyhow::Result<Counted> {
    let cpu = || anyhow::Ok(world.gateway_usage()?.context("the gateway's process is not known")?.cpu);
    let before = cpu()?;
    tokio::time::sleep(stretch + WARM).await;
    let tally = running.stop().await?;
    let cpu_s = cpu()?.saturating_sub(before).as_secs_f64();
    Ok(Counted { tally, cpu_s })
}

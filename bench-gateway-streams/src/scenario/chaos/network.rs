//! What befalls the network: packets that vanish, and sockets that stand half open in the thousands.
//!
//! Nodes that will be black-holed dial from an address of the run's own network. When it is taken away,
//! what they send has nowhere to come from and what they are sent has nowhere to go: their sockets stay
//! open on both sides, nobody is told, and TCP sends again into the void. When it is back, what was kept
//! goes on, if anybody has kept it.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use gateway_testbed::clock::monotonic_ns;
use tokio::net::TcpStream;

use super::dice::Dice;
use super::hold::{hold, until};
use super::own::run;
use super::rows;
use super::stage::{HOLE, Stage, Struck};

/// Silent sockets of a flood.
pub(super) const HALF_OPEN: usize = 3000;
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(60);

/// Gives the run an address of its own.
pub(super) fn appear(address: Ipv4Addr) -> anyhow::Result<()> {
    run("ip", &["address", "add", &format!("{address}/32"), "dev", "lo"])
}

fn vanish(address: Ipv4Addr) -> anyhow::Result<()> {
    run("ip", &["address", "del", &format!("{address}/32"), "dev", "lo"])
}

pub(super) async fn black_hole(stage: &mut Stage, dice: &mut Dice) -> anyhow::Result<Struck> {
    vanish(HOLE)?;
    let begun = Instant::now();
    let url = stage.world.database_url();
    let given_up = until(GIVEN_UP_WITHIN, "the gateways give up the nodes that are away", async || {
        let Some(rows) = rows::sessions(url).await else { return Ok(None) };
        Ok((!stage.holes.iter().any(|node| rows.contains_key(node))).then(|| begun.elapsed()))
    });
    let given_up = given_up.await;
    // Whatever came of it, the address comes back.
    let outcome = match given_up {
        Ok(given_up) => {
            hold("packets go on vanishing", dice.between(Duration::ZERO, Duration::from_secs(3))).await;
            Ok(given_up)
        }
        Err(error) => Err(error),
    };
    appear(HOLE)?;
    let mut struck = Struck::default();
    match outcome {
        Ok(given_up) => {
            let (count, seconds) = (stage.holes.len(), given_up.as_secs_f64());
            struck.detail = format!("{count} nodes, given up by all gateways after {seconds:.1} s");
        }
        Err(error) => {
            struck.detail = format!("{} nodes", stage.holes.len());
            struck.violations.push(format!("{error:#}"));
        }
    }
    Ok(struck)
}

pub(super) async fn half_open(stage: &mut Stage, dice: &mut Dice) -> anyhow::Result<Struck> {
    let addresses = stage.world.addresses();
    let mut silent = Vec::with_capacity(HALF_OPEN);
    for address in addresses.iter().cycle().take(HALF_OPEN) {
        silent.push(TcpStream::connect(address).await?);
    }
    let cut_ns = monotonic_ns();
    let cut = stage.fleet.cut_some(dice.pick(3), 3);
    hold("silent sockets stand", dice.between(Duration::from_secs(4), Duration::from_secs(7))).await;
    let back = stage.fleet.counts().back_since(&cut, cut_ns);
    let slowest = back.iter().max().copied().unwrap_or_default() as f64 / 1e9;
    let (sockets, cut, back) = (silent.len(), cut.len(), back.len());
    drop(silent);
    let detail = format!(
        "{sockets} silent sockets; of {cut} nodes that dialled behind them {back} got in meanwhile, the last \
         after {slowest:.1} s"
    );
    Ok(Struck { detail, ..Struck::default() })
}

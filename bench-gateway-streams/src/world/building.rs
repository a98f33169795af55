//! The pieces that a world is made of: its gateways and their balancers, its binary, its nodes.
//!
//! It keeps nothing: what it starts is given to the world, which ends it. What is set of a gateway is in
//! `settings`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use gateway_testbed::balancer::{Balancer, BalancerOptions, Server};
use gateway_testbed::database::register_nodes;
use gateway_testbed::gateway_process::GatewayOptions;
use gateway_testbed::pki::Pki;
use sqlx::PgConnection;

use super::settings::merged;
use super::{Member, WorldPlan, fixed_address};
use crate::progress::say;

/// A balancer has two descriptors a session, and a process often no more than 20,000.
const SESSIONS_A_BALANCER: usize = 9_000;
/// An address has some 28,000 ports to dial from, and one that was used rests for a while.
const SESSIONS_AN_ADDRESS: usize = 10_000;

pub(super) async fn start_bystander(
    plan: &WorldPlan,
    base: &GatewayOptions,
) -> anyhow::Result<Option<Member>> {
    if !plan.bystander {
        return Ok(None);
    }
    let mut options = base.clone();
    let control = fixed_address()?;
    options.id = "bystander".to_owned();
    options.dir = base.dir.join(&options.id);
    options.listen = "127.0.0.1:0".to_owned();
    options.extra = merged(&base.extra, &format!("[control]\nlisten = \"{control}\"\n"))?;
    Member::start(options, control).await.map(Some)
}

// One gateway takes any port; several keep the ports that the balancers know.
pub(super) async fn start_members(plan: &WorldPlan, base: GatewayOptions) -> anyhow::Result<Vec<Member>> {
    let mut members = Vec::with_capacity(plan.gateways);
    for index in 1..=plan.gateways {
        let mut options = base.clone();
        let control = fixed_address()?;
        let mut ports = format!("[control]\nlisten = \"{control}\"\n");
        if options.api.is_some() {
            ports.push_str(&format!("api_listen = \"{}\"\n", fixed_address()?));
        }
        options.extra = merged(&base.extra, &ports)?;
        if plan.gateways > 1 {
            options.id = format!("gateway-{index}");
            options.dir = base.dir.join(&options.id);
            options.listen = fixed_address()?.to_string();
        }
        let member = Member::start(options, control).await?;
        let pid = member.pid().unwrap_or_default();
        match plan.gateways {
            1 => say(&format!("the gateway (process {pid}) listens on {}", member.address())),
            _ => say(&format!("{} (process {pid}) listens on {}", member.id(), member.address())),
        }
        members.push(member);
    }
    Ok(members)
}

pub(super) async fn start_balancers(
    plan: &WorldPlan,
    members: &[Member],
    dir: &Path,
) -> anyhow::Result<Vec<Balancer>> {
    let mut balancers = Vec::new();
    if plan.gateways > 1 {
        for index in 0..plan.sessions.div_ceil(SESSIONS_A_BALANCER) {
            let server = |member: &Member| Server { address: member.address(), control: member.control() };
            let options = BalancerOptions {
                dir: dir.join(format!("balancer-{index}")),
                listen: fixed_address()?,
                servers: members.iter().map(server).collect(),
            };
            let balancer = Balancer::start(options).await?;
            say(&format!(
                "the balancer (process {}, {}) listens on {}",
                balancer.pid(),
                balancer.version(),
                balancer.address()
            ));
            balancers.push(balancer);
        }
    }
    Ok(balancers)
}

pub(super) fn gateway_binary(asked: Option<&Path>) -> anyhow::Result<PathBuf> {
    let beside = || {
        let program = std::env::current_exe().context("looking for this program's folder")?;
        Ok::<_, anyhow::Error>(program.with_file_name("gateway"))
    };
    let binary = match asked {
        Some(binary) => std::path::absolute(binary)?,
        None => beside()?,
    };
    anyhow::ensure!(
        binary.is_file(),
        "there is no gateway at {}; build it (cargo build --release) or name it with --gateway-bin",
        binary.display()
    );
    Ok(binary)
}

// How many processes, and how many addresses to dial from.
pub(super) fn spread_of(plan: &WorldPlan) -> (usize, u16) {
    let enough = u16::try_from(plan.sessions.div_ceil(SESSIONS_AN_ADDRESS)).unwrap_or(u16::MAX);
    (usize::from(plan.gateway.load_processes), plan.gateway.source_addresses.unwrap_or(enough))
}

pub(super) fn names_of(prefix: &str, sessions: usize) -> Vec<String> {
    (0..sessions).map(|index| format!("{prefix}-{index:05}")).collect()
}

pub(super) async fn make_nodes_known(
    connection: &mut PgConnection,
    pki: &Pki,
    names: &[String],
) -> anyhow::Result<()> {
    let ids: Vec<String> = names.iter().map(|name| pki.node_id(name)).collect();
    register_nodes(connection, &ids).await.context("registering the nodes")
}

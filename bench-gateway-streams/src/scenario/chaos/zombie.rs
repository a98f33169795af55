//! A gateway sleeps through its lease, a process of the same id takes over elsewhere, and the sleeper
//! wakes with everything at hand to do wrong.
//!
//! Nodes that dial it past the balancer make it so: some hold sessions that look alive in its memory,
//! with commands enqueued for them while it slept, others dial while it sleeps, and their Hellos wait.
//!
//! 1. By the rows it commits no Hello and no dispatch after the other has taken its lease.
//! 2. It fences itself, by its own word.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use gateway_testbed::clock::monotonic_ns;
use gateway_testbed::database::enqueue_many;
use gateway_testbed::node::{Node, Target};
use serde_json::Value;
use sqlx::PgConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::dice::Dice;
use super::hold::{hold, until};
use super::stage::{Stage, Struck};
use crate::fleet::start_node;
use crate::progress::say;
use crate::scenario::multi::GATEWAYS;
use crate::world::{Member, fixed_address};

const DIRECT: usize = 5;
const COMMANDS_EACH: usize = 4;
const SOON: Duration = Duration::from_secs(30);

pub(super) async fn strike(stage: &mut Stage, dice: &mut Dice) -> anyhow::Result<Struck> {
    let victim = dice.pick(GATEWAYS);
    let (id, address) = (stage.member(victim)?.id().to_owned(), stage.member(victim)?.address());
    let control = stage.member(victim)?.control();
    let run = uuid::Uuid::new_v4().simple().to_string();
    let stays = direct_nodes(stage, &format!("stays-{}", &run[..8]), address).await?;
    let stays_ids: Vec<String> = stays.iter().map(|node| node.name().to_owned()).collect();
    let counts = Arc::clone(stage.fleet.counts());
    until(SOON, "nodes that dial it directly have sessions", async || {
        Ok((counts.live(&stays_ids) == DIRECT).then_some(()))
    })
    .await?;
    let mut database = stage.world.connect().await?;
    let (epoch,) = lease(&mut database, &id).await?;

    stage.member(victim)?.pause()?;
    let slept_at = monotonic_ns();
    say(&format!("  {id} sleeps; another process takes its lease when it has run out …"));
    let late = direct_nodes(stage, &format!("late-{}", &run[..8]), address).await?;
    let late_ids: Vec<String> = late.iter().map(|node| node.name().to_owned()).collect();
    let heirs_control = fixed_address()?;
    let elsewhere = stage.member(victim)?.elsewhere(&format!("{id}-heir-{}", &run[..8]), heirs_control)?;
    let mut heir = Member::start(elsewhere, heirs_control).await?;
    let (heirs_epoch,) = lease(&mut database, &id).await?;
    anyhow::ensure!(heirs_epoch > epoch, "the heir has lease epoch {heirs_epoch}, the sleeper had {epoch}");
    let waiting: Vec<String> = (0..COMMANDS_EACH).flat_map(|_| stays_ids.iter().cloned()).collect();
    let ids = enqueue_many(&mut database, &waiting, b"for a node of the sleeper").await?;
    stage.tracker.also_enqueued(&ids);
    hold("it sleeps on", dice.between(Duration::ZERO, Duration::from_secs(2))).await;
    let slept = (monotonic_ns() - slept_at) as f64 / 1e9;

    stage.member(victim)?.resume()?;
    until(SOON, "the sleeper says that it is fenced", async || {
        Ok(health(control).await.filter(|health| health["fenced"] == true).map(drop))
    })
    .await?;
    // Nodes that were refused have been told by then; what it may have committed is in the rows.
    until(SOON, "the sleeper has ended the sessions that it had", async || {
        Ok((counts.live(&stays_ids) == 0).then_some(()))
    })
    .await?;
    let sleeper = Sleeper { id: &id, epoch, heirs_epoch };
    let violations = sleeper.judge(&mut database, &late_ids).await?;

    // Its end; its heir goes too, and the one that the balancer knows comes back.
    stage.member(victim)?.kill()?;
    if let Some(unclean) = heir.terminate().await? {
        say(&unclean);
    }
    stage.member(victim)?.start_again().await?;
    let detail = format!(
        "{id} slept {slept:.1} s, woke with {} commands, {DIRECT} sessions and {DIRECT} Hellos waiting; by the \
         rows it committed {}",
        ids.len(),
        if violations.is_empty() { "no Hello and no dispatch" } else { "what it must not" }
    );
    Ok(Struck { detail, violations, more: stays.into_iter().chain(late).collect(), ..Struck::default() })
}

/// Whose rows are looked for.
struct Sleeper<'a> {
    id: &'a str,
    epoch: i64,
    heirs_epoch: i64,
}

impl Sleeper<'_> {
    async fn judge(&self, database: &mut PgConnection, late: &[String]) -> anyhow::Result<Vec<String>> {
        let taken = "(SELECT acquired_at FROM leases_history WHERE name = 'gateway:' || $1 AND epoch = $3)";
        let mut violations = Vec::new();
        for (what, table, owner, at) in [
            ("dispatches", "commands", "dispatched_by", "dispatched_at"),
            ("Hellos", "node_sessions", "gateway_id", "connected_at"),
        ] {
            let statement = format!(
                "SELECT count(*) FROM {table} WHERE {owner} = $1 AND lease_epoch = $2 AND {at} >= {taken}"
            );
            let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(statement))
                .bind(self.id)
                .bind(self.epoch)
                .bind(self.heirs_epoch)
                .fetch_one(&mut *database)
                .await?;
            if count > 0 {
                violations.push(format!("{} committed {count} {what} after it had lost its lease", self.id));
            }
        }
        // A Hello of a node that no other gateway was dialled by can only be the sleeper's.
        let statement = "SELECT count(*) FROM node_sessions WHERE node_id = ANY ($1) AND session_epoch > 0";
        let count: i64 = sqlx::query_scalar(statement).bind(late.to_vec()).fetch_one(&mut *database).await?;
        if count > 0 {
            violations.push(format!("{count} nodes that dialled {} alone have a session", self.id));
        }
        Ok(violations)
    }
}

async fn direct_nodes(stage: &Stage, prefix: &str, address: SocketAddr) -> anyhow::Result<Vec<Node>> {
    let names: Vec<String> = (0..DIRECT).map(|index| format!("{prefix}-{index}")).collect();
    stage.world.make_known(&names).await?;
    let (pki, plan) = (stage.world.pki(), Stage::nodes_like(&stage.world));
    let identities = pki.nodes(names.iter().map(String::as_str))?;
    let nodes = names.iter().zip(&identities).map(|(name, identity)| {
        let target = Target::new(address, pki.client_config(Some(identity))?);
        Ok(start_node(&plan, &pki.node_id(name), target, stage.fleet.counts()))
    });
    nodes.collect()
}

async fn lease(database: &mut PgConnection, id: &str) -> anyhow::Result<(i64,)> {
    let statement = "SELECT epoch FROM leases WHERE name = 'gateway:' || $1";
    sqlx::query_as(statement).bind(id).fetch_one(database).await.context("the gateway's lease")
}

/// `GET /v1/health`; `None` while it gives no answer.
async fn health(control: SocketAddr) -> Option<Value> {
    let asking = async {
        let mut stream = TcpStream::connect(control).await.ok()?;
        let request = format!("GET /v1/health HTTP/1.1\r\nhost: {control}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    };
    tokio::time::timeout(Duration::from_secs(2), asking).await.ok()?
}

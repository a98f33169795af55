//! What the database's part of a command costs: the gateway's own statements, on one connection with nobody else at
//! work, for a command to each of the same nodes.
//!
//! 1. They are the texts that run in the product, in batches as large as the writer's under load.
//! 2. All is one transaction that is taken back: no gateway and no node ever hears of it, and no commit is in it.
//! 3. The best of three rounds counts: a yardstick must not profit from noise.

use std::time::{Duration, Instant};

use anyhow::Context;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::flood::ENQUEUE;
use crate::report::BareStatements;
use crate::world::World;

const ROUNDS: usize = 3;
/// Commands of an enqueue.
const BATCH: usize = 500;
/// Commands whose results are of a batch: an acceptance and the end behind it each, by one write of the row.
const RESULTS: usize = BATCH / 2;
/// Lanes of a dispatch pass, where many wait.
const LANES: usize = 250;
const MOST_CLAIMS: i64 = 1_000;

const SESSIONS: &str = "SELECT s.node_id, s.session_epoch, s.gateway_id, l.owner, l.epoch, coalesce(top.seq, 0) \
    FROM node_sessions s JOIN leases l ON l.name = 'gateway:' || s.gateway_id \
    LEFT JOIN LATERAL (SELECT c.seq FROM commands c WHERE c.node_id = s.node_id AND c.lane = 'default' \
                       AND c.dispatched_at IS NOT NULL AND NOT c.deferred ORDER BY c.seq DESC LIMIT 1) top ON true \
    WHERE s.node_id = ANY ($1) AND s.disconnected_at IS NULL ORDER BY s.node_id";

/// A session that stands, and its lane's cursor.
type Session = (String, i64, String, String, i64, i64);

/// Takes the yardstick, over the nodes of the world that have a session.
pub(crate) async fn measure(world: &World, payload_bytes: usize) -> anyhow::Result<BareStatements> {
    let mut connection = world.connect().await?;
    sqlx::raw_sql(include_str!("../../sql/ceilings/session.sql")).execute(&mut connection).await?;
    let payload = vec![b'x'; payload_bytes];
    let mut best: Option<BareStatements> = None;
    for _ in 0..ROUNDS {
        let round = round(&mut connection, &world.node_ids(), &payload).await?;
        if best.is_none_or(|best| round.all_us() < best.all_us()) {
            best = Some(round);
        }
    }
    best.context("no round was measured")
}

async fn round(
    connection: &mut PgConnection,
    node_ids: &[String],
    payload: &[u8],
) -> anyhow::Result<BareStatements> {
    let mut within = connection.begin().await?;
    let sessions: Vec<Session> = sqlx::query_as(SESSIONS).bind(node_ids).fetch_all(&mut *within).await?;
    anyhow::ensure!(!sessions.is_empty(), "no session stands");
    let ids: Vec<Uuid> = sessions.iter().map(|_| Uuid::now_v7()).collect();
    let began = Instant::now();
    for (sessions, ids) in sessions.chunks(BATCH).zip(ids.chunks(BATCH)) {
        let nodes: Vec<&str> = sessions.iter().map(|session| session.0.as_str()).collect();
        sqlx::query(ENQUEUE).bind(nodes).bind(payload).bind(ids).execute(&mut *within).await?;
    }
    let enqueued = began.elapsed();
    for lanes in sessions.chunks(LANES) {
        claim(&mut within, lanes).await?;
    }
    let claimed = began.elapsed();
    for (sessions, ids) in sessions.chunks(RESULTS).zip(ids.chunks(RESULTS)) {
        store(&mut within, sessions, ids).await?;
    }
    let stored = began.elapsed();
    within.rollback().await?;
    let each = |time: Duration| time.as_secs_f64() * 1e6 / sessions.len() as f64;
    Ok(BareStatements {
        nodes: sessions.len(),
        enqueue_us: each(enqueued),
        claim_us: each(claimed - enqueued),
        results_us: each(stored - claimed),
    })
}

async fn claim(sql: &mut PgConnection, lanes: &[Session]) -> anyhow::Result<()> {
    let [first, ..] = lanes else { return Ok(()) };
    let count = lanes.len();
    let cursors: Vec<i64> = lanes.iter().map(|session| session.5).collect();
    let rows = sqlx::query(include_str!("../../../db-writer/queries/dispatch.sql"))
        .bind(&first.2)
        .bind(&first.3)
        .bind(first.4)
        .bind(lanes.iter().map(|session| session.0.as_str()).collect::<Vec<_>>())
        .bind(lanes.iter().map(|session| session.1).collect::<Vec<_>>())
        .bind(vec!["default"; count])
        .bind(vec![1_i32; count])
        .bind(&cursors)
        .bind(vec![16_i32; count])
        .bind(vec![0_i32; count])
        .bind(MOST_CLAIMS)
        .bind(Vec::<String>::new())
        .bind("")
        .bind(&cursors)
        .fetch_all(sql)
        .await?;
    anyhow::ensure!(rows.len() == count, "{} of {count} commands were claimed", rows.len());
    Ok(())
}

async fn store(sql: &mut PgConnection, sessions: &[Session], ids: &[Uuid]) -> anyhow::Result<()> {
    let count = ids.len();
    let rows = sqlx::query(include_str!("../../../db-writer/queries/updates.sql"))
        .bind(sessions.iter().map(|session| session.0.as_str()).collect::<Vec<_>>())
        .bind(ids)
        .bind(vec![1_i32; count])
        .bind(vec!["succeeded"; count])
        .bind(vec![None::<&str>; count])
        .bind(vec![b"done".as_slice(); count])
        .bind(vec![None::<&str>; count])
        .bind(vec![None::<&str>; count])
        .bind(vec![false; count])
        // With its acceptance, without a start.
        .bind(vec![true; count])
        .bind(vec![false; count])
        .fetch_all(sql)
        .await?;
    anyhow::ensure!(rows.len() == count, "{} of {count} were stored", rows.len());
    Ok(())
}

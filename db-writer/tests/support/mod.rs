//! A private PostgreSQL of the test process, a migrated database a test, and the words of its stories.
//!
//! 1. Nothing here sleeps for a time: who waits is read from the server, until it is so.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod shard;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use gateway_core::certificate::UnknownSerial;
use gateway_core::command::CommandState;
use gateway_core::frame::{CommandUpdate, Hello, KnownCommand, LaneCapacity, Refusal, RefusalReason};
use gateway_core::ids::*;
use gateway_core::seam::{HelloRequest, Identity, UpdateRequest};
use gateway_core::store::*;
use gateway_db_writer::QueueRunner;
use gateway_testbed::cluster::{Cluster, ClusterOptions};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Row};
use uuid::Uuid;

pub const DISPATCH: &str = include_str!("../../queries/dispatch.sql");
pub const TTL: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(20);

fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let settings = vec![("autovacuum".to_owned(), "off".to_owned())];
        Cluster::start(ClusterOptions { settings, ..ClusterOptions::default() }).unwrap()
    })
}

/// What the server has written, of this crate's tests together.
pub fn server_log() -> String {
    std::fs::read_to_string(cluster().log_path()).unwrap()
}

/// Whether tables are partitioned by node: in the crate of `partitioned.rs`, which tells the same stories.
pub fn is_partitioned() -> bool {
    env!("CARGO_CRATE_NAME") == "partitioned"
}

/// Migrates a database, and partitions its tables where that is the story.
pub async fn migrate(url: &str) -> PgConnectOptions {
    gateway_db_writer::migrate(url).await.unwrap();
    let options: PgConnectOptions = url.parse().unwrap();
    if is_partitioned() {
        run(&mut client(&options, "partition").await, include_str!("partition.sql")).await;
    }
    options
}

/// A migrated database of the test's own.
pub struct Db {
    pub url: String,
    pub options: PgConnectOptions,
    pub sql: PgConnection,
}

pub async fn database() -> Db {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("story_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let url = cluster().create_database(&name).await.unwrap();
    let options = migrate(&url).await;
    let sql = client(&options, "story").await;
    Db { url, options, sql }
}

pub async fn client(options: &PgConnectOptions, name: &str) -> PgConnection {
    PgConnection::connect_with(&options.clone().application_name(name).disable_statement_logging())
        .await
        .unwrap()
}

/// Runs statements that need no parameters.
pub async fn run(sql: &mut PgConnection, text: &str) {
    sqlx::raw_sql(AssertSqlSafe(text.to_owned())).execute(sql).await.unwrap();
}

/// The first column of the only row, as text.
pub async fn text(sql: &mut PgConnection, query: &str) -> String {
    texts(sql, query).await.pop().unwrap_or_default()
}

/// The first column of each row, as text.
pub async fn texts(sql: &mut PgConnection, query: &str) -> Vec<String> {
    let rows = sqlx::raw_sql(AssertSqlSafe(query.to_owned())).fetch_all(sql).await.unwrap();
    rows.iter()
        .map(|row| row.try_get_unchecked::<Option<String>, _>(0).unwrap().unwrap_or_default())
        .collect()
}

pub async fn number(sql: &mut PgConnection, query: &str) -> i64 {
    text(sql, query).await.parse().unwrap()
}

pub fn gateway(name: &str) -> GatewayId {
    GatewayId::new(name).unwrap()
}

pub fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

pub fn lane(name: &str) -> LaneName {
    LaneName::new(name).unwrap()
}

impl Db {
    pub fn runner(&self, queue: Queue) -> QueueRunner {
        self.runner_of("g1", queue)
    }

    pub fn runner_of(&self, name: &str, queue: Queue) -> QueueRunner {
        // Most stories are not about certificates, and record none.
        QueueRunner::new(&self.options, &gateway(name), queue, true)
            .with_unknown_serial(UnknownSerial::Accept)
    }

    pub async fn client(&self, name: &str) -> PgConnection {
        client(&self.options, name).await
    }

    /// Registers `n1` to `n<count>`.
    pub async fn nodes(&mut self, count: u32) {
        run(&mut self.sql, &format!("SELECT register_node('n' || i) FROM generate_series(1, {count}) i"))
            .await;
    }

    /// The lease of `g1`, held by owner `o1`.
    pub async fn lease(&self) -> LeaseProof {
        self.lease_of("g1", "o1").await
    }

    pub async fn lease_of(&self, name: &str, owner: &str) -> LeaseProof {
        let outcome = self.runner_of(name, Queue::Lease).run(&acquire(name, owner, None)).await;
        let Outcome::Lease(Ok(LeaseOutcome::Held { epoch })) = outcome else { panic!("{outcome:?}") };
        LeaseProof { gateway: gateway(name), owner: owner.to_owned(), epoch }
    }

    /// A session of `name` with lanes; gives its grant.
    pub async fn connect(&self, proof: &LeaseProof, name: &str, lanes: &[(&str, u32)]) -> HelloGrant {
        let entries = vec![hello(name, lanes, &[])];
        let mut runner = self.runner_of(proof.gateway.as_str(), Queue::Hellos);
        granted(runner.run(&Job::Hellos { proof: proof.clone(), entries }).await).pop().unwrap()
    }

    pub async fn enqueue(&mut self, name: &str, lane: &str) -> CommandId {
        self.enqueue_with(name, lane, "").await
    }

    /// `more`: further named arguments, such as `, not_before => …`.
    pub async fn enqueue_with(&mut self, name: &str, lane: &str, more: &str) -> CommandId {
        let query = format!("SELECT enqueue_command('{name}', 'work', 'body', lane => '{lane}'{more})");
        CommandId(text(&mut self.sql, &query).await.parse::<Uuid>().unwrap())
    }

    pub async fn state(&mut self, id: CommandId) -> String {
        text(&mut self.sql, &format!("SELECT state FROM commands WHERE id = '{id}'")).await
    }

    /// Lets the clock of the database run `offset` ahead.
    pub async fn set_clock(&mut self, offset: &str) {
        let body = format!("SELECT statement_timestamp() + interval '{offset}'");
        let function = format!(
            "CREATE OR REPLACE FUNCTION compute_now() RETURNS timestamptz LANGUAGE sql STABLE AS $$ {body} $$"
        );
        run(&mut self.sql, &function).await;
    }

    /// Waits until the backend named `waiter` waits for a lock that `holder` has.
    pub async fn until_waits_for(&mut self, waiter: &str, holder: &str) {
        let query = format!(
            "SELECT count(*) FROM pg_stat_activity w, pg_stat_activity h WHERE w.application_name = '{waiter}' \
             AND h.application_name = '{holder}' AND h.pid = ANY (pg_blocking_pids(w.pid)) \
             AND w.datname = current_database() AND h.datname = current_database()"
        );
        let started = Instant::now();
        while number(&mut self.sql, &query).await == 0 {
            assert!(started.elapsed() < PATIENCE, "{waiter} never waited for {holder}");
            tokio::task::yield_now().await;
        }
    }
}

pub fn acquire(name: &str, owner: &str, dead_owner_prefix: Option<&str>) -> Job {
    Job::Lease(LeaseJob::Acquire {
        gateway: gateway(name),
        owner: owner.to_owned(),
        dead_owner_prefix: dead_owner_prefix.map(str::to_owned),
        ttl: TTL,
        row: GatewayRow {
            region: "r".to_owned(),
            internal_url: "http://g".to_owned(),
            version: "1".to_owned(),
            max_streams: 10,
        },
    })
}

pub fn renew(proof: &LeaseProof) -> Job {
    Job::Lease(LeaseJob::Renew { proof: proof.clone(), ttl: TTL, sessions: 3, draining: false })
}

pub fn hello(name: &str, lanes: &[(&str, u32)], known: &[(CommandId, u32, CommandState)]) -> HelloRequest {
    HelloRequest {
        key: SessionKey { shard: ShardId(0), slot: 1, serial: 1 },
        identity: Identity {
            node: node(name),
            site: "s".to_owned(),
            certificate_serial: format!("{:X}", 4096 + name.len()),
        },
        hello: Hello {
            protocol: 1,
            features: Vec::new(),
            boot_id: "boot".to_owned(),
            machine: "machine".to_owned(),
            software_version: "0.1".to_owned(),
            role: "node".to_owned(),
            lanes: lanes
                .iter()
                .map(|(name, capacity)| LaneCapacity { lane: lane(name), capacity: Credits(*capacity) })
                .collect(),
            journal: None,
            specs: Vec::new(),
            known_commands: known
                .iter()
                .map(|(id, attempt, state)| KnownCommand {
                    id: *id,
                    attempt: Attempt(*attempt),
                    state: *state,
                })
                .collect(),
            inventory: Vec::new(),
        },
    }
}

pub fn want(name: &str, epoch: SessionEpoch, lane_name: &str, free: u32) -> LaneWant {
    LaneWant {
        node: node(name),
        epoch,
        lane: lane(lane_name),
        free: Credits(free),
        cursor: LaneSeq(0),
        floor: LaneSeq(0),
        capacity: Credits(free),
        in_flight: Credits(0),
    }
}

pub fn update(name: &str, id: CommandId, attempt: u32, state: CommandState) -> UpdateRequest {
    UpdateRequest {
        key: SessionKey { shard: ShardId(0), slot: 1, serial: 1 },
        node: node(name),
        update: CommandUpdate {
            frame_ref: FrameRef(1),
            id,
            attempt: Attempt(attempt),
            state,
            progress: None,
            result: Bytes::from_static(b"result"),
            error: None,
            refusal: (state == CommandState::Refused)
                .then_some(Refusal { reason: RefusalReason::LaneFull, retryable: false }),
        },
    }
}

pub fn refusal(name: &str, id: CommandId, attempt: u32) -> UpdateRequest {
    let mut request = update(name, id, attempt, CommandState::Refused);
    request.update.refusal = Some(Refusal { reason: RefusalReason::LaneFull, retryable: true });
    request
}

pub fn stored(state: CommandState, lane_name: &str) -> UpdateOutcome {
    UpdateOutcome::Stored { state, lane: lane(lane_name), conflict: false }
}

/// The grants of a batch of Hellos in which none was refused.
pub fn granted(outcome: Outcome) -> Vec<HelloGrant> {
    let Outcome::Hellos(Ok(Routed::Committed(outcomes))) = outcome else { panic!("{outcome:?}") };
    outcomes
        .into_iter()
        .map(|outcome| match outcome {
            HelloOutcome::Granted(grant) => *grant,
            refused => panic!("{refused:?}"),
        })
        .collect()
}

pub fn claimed(outcome: Outcome) -> Vec<Claim> {
    let Outcome::Dispatch(Ok(Routed::Committed(claims))) = outcome else { panic!("{outcome:?}") };
    claims
}

pub fn ids(claims: &[Claim]) -> Vec<CommandId> {
    claims.iter().map(|claim| claim.command.id).collect()
}

pub fn updated(outcome: Outcome) -> Vec<UpdateOutcome> {
    let Outcome::Updates(Ok(outcomes)) = outcome else { panic!("{outcome:?}") };
    outcomes
}

pub async fn dispatch(runner: &mut QueueRunner, proof: &LeaseProof, wants: Vec<LaneWant>) -> Vec<Claim> {
    claimed(runner.run(&Job::Dispatch { proof: proof.clone(), wants }).await)
}

/// The settings of a gateway's connection, as far as they shape its plans.
pub const PLANNING: &str = "SET jit = off; SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; \
     SET enable_bitmapscan = off; SET enable_mergejoin = off; SET enable_hashjoin = off; SET random_page_cost = 0.1; SET seq_page_cost = 0.1; \
     SET cpu_tuple_cost = 1; SET cpu_index_tuple_cost = 1; SET cpu_operator_cost = 0.1; SET max_parallel_workers_per_gather = 0";

/// `EXECUTE` of a dispatch that was prepared as `pass`, for wants of one lane each.
pub fn dispatch_arguments(proof: &LeaseProof, wants: &[LaneWant]) -> String {
    let list = |of: &dyn Fn(&LaneWant) -> String| {
        let items: Vec<String> = wants.iter().map(of).collect();
        format!("ARRAY[{}]", items.join(","))
    };
    format!(
        "'{}', '{}', {}, {}, {}, {}, {}, {}, {}, {}, 1000, ARRAY['wipe'], 'barred', {}",
        proof.gateway,
        proof.owner,
        proof.epoch,
        list(&|want| format!("'{}'", want.node)),
        list(&|want| want.epoch.to_string()),
        list(&|want| format!("'{}'", want.lane)),
        list(&|want| want.free.to_string()),
        list(&|want| want.cursor.to_string()),
        list(&|want| want.capacity.to_string()),
        list(&|want| want.in_flight.to_string()),
        list(&|want| want.floor.to_string()),
    )
}

/// Buffers that a statement reads when it is executed, after it was executed before.
pub async fn buffers(sql: &mut PgConnection, statement: &str) -> u64 {
    run(sql, "BEGIN").await;
    let plan = texts(sql, &format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) {statement}")).await;
    run(sql, "ROLLBACK").await;
    let line = plan.iter().find(|line| line.contains("Buffers:")).unwrap();
    let number = |word: &str| -> u64 {
        let rest = line.split(word).nth(1).unwrap_or("0");
        rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
    };
    number("hit=") + number("read=")
}

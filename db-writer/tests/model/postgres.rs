//! The PostgreSQL side of the model conformance tests: a server, a clock that stands still, the
//! store's runners, and its rows as the model has them.
//!
//! 1. `compute_now()` reads a table, so a statement sees the time that the test has set and no other.
//! 2. Each sequence begins with empty tables, since sweeps look at all that there is; its nodes and
//!    gateways have names of its own besides, so that nothing which was left could pass for its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gateway_core::certificate::UnknownSerial;
use gateway_core::duplicate::DuplicateRule;
use gateway_core::ids::*;
use gateway_core::store::*;
use gateway_core::time::UnixMillis;
use gateway_db_writer::QueueRunner;
use gateway_db_writer::hooks::{EmbeddedHooks, Hooks};
use gateway_sim::store::{EnqueueRefusal, NewCommand};
use gateway_testbed::cluster::{Cluster, ClusterOptions};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};
use uuid::Uuid;

use super::certificates::COMMAND_KINDS;
use super::support::{client, gateway, migrate, run};

/// PostgreSQL with the writer's own store.
pub struct Postgres {
    sql: PgConnection,
    runners: BTreeMap<Queue, QueueRunner>,
    _cluster: Cluster,
}

/// The clock of the database is a row.
const CLOCK: &str = "
    CREATE UNLOGGED TABLE story_clock (at timestamptz NOT NULL);
    INSERT INTO story_clock VALUES (now());
    CREATE OR REPLACE FUNCTION compute_now() RETURNS timestamptz
        LANGUAGE sql STABLE PARALLEL SAFE AS 'SELECT at FROM public.story_clock';
";

/// Everything that both sides keep of a command, side by side.
const COMMANDS: &str = "
    SELECT concat_ws(' ', seq, 'on', lane, state, 'attempt', attempt, 'of', max_attempts,
                     CASE WHEN deferred THEN 'deferred' END,
                     CASE WHEN dispatched_at IS NOT NULL THEN 'dispatched' END,
                     'enqueued ' || unix_millis(enqueued_at),
                     'before ' || unix_millis(not_before), 'after ' || unix_millis(not_after),
                     'key ' || idempotency_key,
                     CASE WHEN cancel_requested_at IS NOT NULL THEN 'cancel ' || cancel_reason END,
                     'progress ' || progress, 'result ' || encode(result, 'escape'), 'error ' || error,
                     'refusal ' || refusal), node_id || ' ' || id
    FROM commands WHERE starts_with(node_id, $1)";
const SPECS: &str = "
    SELECT concat_ws(' ', generation, encode(body, 'escape'), 'answered ' || applied_generation, applied_outcome),
           node_id || ' ' || name
    FROM specs WHERE starts_with(node_id, $1)";
const SESSIONS: &str = "
    SELECT concat_ws(' ', gateway_id, session_epoch,
                     CASE WHEN gateway_id IS NOT NULL AND disconnected_at IS NULL THEN 'connected' END), node_id
    FROM node_sessions WHERE starts_with(node_id, $1)";
const LEASES: &str = "
    SELECT concat_ws(' ', owner, epoch, unix_millis(expires_at)), name
    FROM leases WHERE starts_with(name, 'gateway:' || $1) OR name = 'leader:sweeps'";
const GATEWAYS: &str = "
    SELECT concat_ws(' ', 'below', sessions_reaped_below, 'through ' || unix_millis(sessions_reaped_at)),
           'reaped ' || id
    FROM gateways WHERE starts_with(id, $1)";
const JOURNALS: &str = "
    SELECT acked_seq::text, 'journal ' || node_id || ' ' || journal_id
    FROM node_journals WHERE starts_with(node_id, $1)";
const EVENTS: &str = "
    SELECT concat_ws(' ', '''' || kind || '''', '''' || encode(body, 'escape') || '''', 'boot ' || boot_id,
                     'signed ' || encode(signed_body, 'escape'), signed_kid, encode(signature, 'escape'),
                     'rejected ' || rejected),
           'event ' || node_id || ' ' || journal_id || ' ' || seq
    FROM events WHERE starts_with(node_id, $1)";

/// Every table of the schema. Rows are deleted and tables not truncated, which would cost each sequence
/// the plans of all connections.
const EMPTY: &str = "
    DO $$
    DECLARE
        name regclass;
    BEGIN
        FOR name IN
            SELECT c.oid FROM pg_class c
            WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
              AND c.relname NOT IN ('_sqlx_migrations', 'story_clock')
        LOOP
            EXECUTE format('DELETE FROM %s', name);
        END LOOP;
    END $$";

const STATUSES: &str = "
    SELECT concat_ws(' ', kind, encode(body, 'escape'), boot_id), 'status ' || node_id || ' ' || id
    FROM node_statuses WHERE starts_with(node_id, $1)";
const WORKED: &str = "
    SELECT count(*)::text, 'worked ' || hook || ' ' || subject
    FROM story_worked WHERE starts_with(subject, $1) GROUP BY hook, subject";
const FAILED: &str = "
    SELECT count(*)::text, concat_ws(' ', 'failed', regexp_replace(body ->> 'hook', '_(report|status)$', ''), node_id,
                                     body ->> 'journal_id', body ->> 'seq', body ->> 'status_id')
    FROM outbox WHERE kind = 'node.report-failed' AND starts_with(node_id, $1) GROUP BY 2";

/// So few that a short sequence has them.
pub const DUPLICATES: DuplicateRule = DuplicateRule { flips: 2, within: Duration::from_secs(60) };

const CERTIFICATES: &str = "
    SELECT node_id || ' ' || role || CASE WHEN tenant_controlled THEN ' tenant' ELSE '' END || coalesce(' kinds ' || array_to_string(allowed_kinds, ','), '')
           || CASE WHEN revoked_at IS NOT NULL THEN ' revoked ' || revoked_reason ELSE '' END
           || coalesce(' changed ' || unix_millis(revocation_changed_at), ''), 'certificate ' || serial
    FROM node_certs WHERE starts_with(node_id, $1)";
const MOVES: &str = "
    SELECT certificate_serial || ': '
           || (SELECT coalesce(string_agg(concat_ws(' ', p.machine, p.boot, p.at), ', ' ORDER BY p.place), '')
               FROM unnest(machines, boots, left_at) WITH ORDINALITY p (machine, boot, at, place))
           || '; ' || array_to_string(returned_at, ', '), 'moves ' || node_id
    FROM node_moves WHERE starts_with(node_id, $1)";

/// Kinds, their hooks, and whether one fails.
pub const HOOKS: [(&str, &str, bool); 4] = [
    ("worked", "story_works", false),
    ("both", "story_works", false),
    ("both", "story_fails", true),
    ("failed", "story_fails", true),
];

/// Each hook as a function for reports and one for statuses. One that fails does so after it has written.
const HOOK_FUNCTIONS: &str = "
    CREATE TABLE story_worked (hook text NOT NULL, subject text NOT NULL);
    CREATE FUNCTION story_works_report(told report) RETURNS void LANGUAGE sql AS $$
        INSERT INTO story_worked VALUES ('story_works', concat_ws(' ', told.node_id, told.journal_id, told.seq)) $$;
    CREATE FUNCTION story_works_status(told status_report) RETURNS void LANGUAGE sql AS $$
        INSERT INTO story_worked VALUES ('story_works', concat_ws(' ', told.node_id, told.id)) $$;
    CREATE FUNCTION story_fails_report(told report) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO story_worked VALUES ('story_fails', concat_ws(' ', told.node_id, told.journal_id, told.seq));
        PERFORM 1 / 0;
    END $$;
    CREATE FUNCTION story_fails_status(told status_report) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO story_worked VALUES ('story_fails', concat_ws(' ', told.node_id, told.id));
        PERFORM 1 / 0;
    END $$;
";

const SECTIONS: &str = "
    SELECT concat_ws(' ', encode(body, 'escape'), session_epoch, (hash = sha256(body))::text), node_id || ' ' || section
    FROM inventory_sections WHERE starts_with(node_id, $1)";
const WORK: &str = "SELECT '', kind || ' ' || key FROM work WHERE starts_with(key, $1)";

impl Postgres {
    pub async fn start() -> Self {
        // Nothing here is about the disk, and every operation commits.
        let settings = vec![("fsync".to_owned(), "off".to_owned())];
        let cluster = Cluster::start(ClusterOptions { settings, ..ClusterOptions::default() }).unwrap();
        let url = cluster.create_database("model").await.unwrap();
        let options = migrate(&url).await;
        let mut sql = client(&options, "model").await;
        run(&mut sql, CLOCK).await;
        run(&mut sql, HOOK_FUNCTIONS).await;
        let mut hooks = Hooks::new(Duration::from_secs(5), EmbeddedHooks::default());
        for (kind, hook, _) in HOOKS {
            hooks.add_report_function(kind, &format!("{hook}_report"));
            hooks.add_status_function(kind, &format!("{hook}_status"));
        }
        let hooks = Arc::new(hooks);
        let runner = |queue| {
            QueueRunner::new(&options, &gateway("model"), queue, true)
                .with_duplicates(DUPLICATES)
                .with_unknown_serial(UnknownSerial::Accept)
                .with_destructive_kinds(Arc::new([COMMAND_KINDS[1].to_owned()]))
                .with_hooks(Arc::clone(&hooks), Arc::default())
        };
        let runners = Queue::ALL.into_iter().map(|queue| (queue, runner(queue))).collect();
        Self { sql, runners, _cluster: cluster }
    }

    pub async fn empty(&mut self) {
        run(&mut self.sql, EMPTY).await;
    }

    pub async fn set_clock(&mut self, now: UnixMillis) {
        let at = format!("to_timestamp({}::numeric / 1000)", now.0);
        run(&mut self.sql, &format!("UPDATE story_clock SET at = {at}")).await;
    }

    pub async fn register(&mut self, node: &NodeId) {
        run(&mut self.sql, &format!("SELECT register_node('{node}')")).await;
    }

    pub async fn run(&mut self, statement: &str) {
        run(&mut self.sql, statement).await;
    }

    pub async fn commit(&mut self, job: &Job) -> Outcome {
        self.runners.get_mut(&job.queue()).unwrap().run(job).await
    }

    pub async fn enqueue(&mut self, new: &NewCommand) -> Result<CommandId, EnqueueRefusal> {
        let date = |date: Option<UnixMillis>| match date {
            Some(date) => format!("to_timestamp({}::numeric / 1000)", date.0),
            None => "NULL".to_owned(),
        };
        let key = new.idempotency_key.as_ref().map_or_else(|| "NULL".to_owned(), |key| format!("'{key}'"));
        let query = format!(
            "SELECT enqueue_command('{}', '{}', '{}', lane => '{}', idempotency_key => {key}, not_before => {}, \
             not_after => {}, max_attempts => {}, id => '{}')",
            new.node,
            new.kind,
            String::from_utf8(new.payload.to_vec()).unwrap(),
            new.lane,
            date(new.not_before),
            date(new.not_after),
            new.max_attempts,
            new.id,
        );
        match sqlx::query_scalar::<_, Uuid>(AssertSqlSafe(query)).fetch_one(&mut self.sql).await {
            Ok(id) => Ok(CommandId(id)),
            Err(error) => Err(refusal(&error)),
        }
    }

    pub async fn cancel(&mut self, node: &NodeId, id: CommandId, reason: &str) -> Option<String> {
        let query = format!("SELECT cancel_command('{node}', '{id}', '{reason}')");
        match sqlx::query_scalar::<_, String>(AssertSqlSafe(query)).fetch_one(&mut self.sql).await {
            Ok(state) => Some(state),
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("P0002") => None,
            Err(error) => panic!("cancel: {error}"),
        }
    }

    pub async fn set_spec(&mut self, node: &NodeId, name: &SpecName, body: &str) -> Option<Generation> {
        let query = format!("SELECT set_spec('{node}', '{name}', '{body}')");
        match sqlx::query_scalar::<_, i64>(AssertSqlSafe(query)).fetch_one(&mut self.sql).await {
            Ok(generation) => Some(Generation(generation as u64)),
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("23503") => None,
            Err(error) => panic!("set_spec: {error}"),
        }
    }

    pub async fn lose_marks(&mut self, node: &NodeId, commands: &[CommandId]) {
        for id in commands {
            let lose = format!(
                "UPDATE commands SET state = 'pending', dispatched_at = NULL WHERE node_id = '{node}' AND id = '{id}'"
            );
            run(&mut self.sql, &lose).await;
        }
    }

    /// The rows of this prefix, each as a line, by what they are of.
    pub async fn rows(&mut self, prefix: &str) -> BTreeMap<String, String> {
        let mut rows = BTreeMap::new();
        for query in [
            COMMANDS,
            SPECS,
            SESSIONS,
            LEASES,
            GATEWAYS,
            JOURNALS,
            EVENTS,
            STATUSES,
            WORKED,
            FAILED,
            SECTIONS,
            WORK,
            CERTIFICATES,
            MOVES,
        ] {
            let found = sqlx::query(query).bind(prefix).fetch_all(&mut self.sql).await.unwrap();
            rows.extend(found.into_iter().map(|row| (row.get(1), row.get(0))));
        }
        rows
    }
}

fn refusal(error: &sqlx::Error) -> EnqueueRefusal {
    let sqlx::Error::Database(error) = error else { panic!("enqueue: {error}") };
    match error.code().as_deref() {
        Some("22023") if error.message().contains("not_after") => EnqueueRefusal::TooLate,
        Some("22023") if error.message().contains("max_attempts") => EnqueueRefusal::NoAttempts,
        Some("23503") => EnqueueRefusal::UnknownNode,
        Some("23505") => EnqueueRefusal::SameId,
        _ => panic!("enqueue: {error}"),
    }
}

//! The operator's commands as an operator has them: the binary, a real database, a real gateway.
//!
//! `verify` is told in verify.rs.
//!
//! 1. Every answer is judged by its exit code and what stands on stdout and stderr.

#![allow(clippy::unwrap_used)]

mod support;

use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use gateway_testbed::cluster::StopMode;
use gateway_testbed::node::{Behaviour, Execution};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Executor, PgConnection};
use support::{SOON, World, within};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

const ABSENT: &str = "019b0a5e-7c1d-7d3e-8c4f-0123456789ab";

/// What a command answered.
struct Answer {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Answer {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap_or(-1);
        Self { code, stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    fn is(&self, code: i32) {
        assert_eq!(self.code, code, "{}{}", self.stdout, self.stderr);
    }

    /// The lines of stdout as JSON, of a command that ended with `code`.
    fn json(&self, code: i32) -> Vec<Value> {
        assert_eq!(self.code, code, "{}{}", self.stdout, self.stderr);
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gateway"));
    command.env_remove("GATEWAY_CONFIG").env_remove("GATEWAY_DATABASE_URL").args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

async fn run(arguments: &[&str]) -> Answer {
    Answer::of(&within(SOON, &format!("gateway {arguments:?}"), command(arguments).output()).await.unwrap())
}

/// The command on the world's database.
async fn ask(world: &World, arguments: &[&str]) -> Answer {
    run(&[arguments, &["--database-url", &world.url]].concat()).await
}

async fn sql(connection: &mut PgConnection, statements: &str) {
    connection.execute(AssertSqlSafe(statements.to_owned())).await.unwrap();
}

fn behave(execution: Execution) -> Behaviour {
    Behaviour { execution, ..Behaviour::default() }
}

#[tokio::test]
async fn an_enqueue_that_waits_tells_the_end_by_its_exit_code() {
    let world = World::new("enqueue_wait").await;
    let _gateway = world.gateway("g", "").await;
    let node = world.node("n1", "g", |_| {}).await;
    let name = node.name().to_owned();

    let done =
        ask(&world, &["enqueue", &name, "echo", "--payload", "hello", "--wait", "20s", "--json"]).await;
    let row = done.json(0).remove(0);
    assert_eq!(
        (&row["state"], &row["result"], &row["known"]),
        (&"succeeded".into(), &"hello".into(), &false.into())
    );
    let shown =
        ask(&world, &["commands", "--id", row["id"].as_str().unwrap(), "--json"]).await.json(0).remove(0);
    assert_eq!(
        (&shown["result"], &shown["seq"], &shown["waits_for"]),
        (&"hello".into(), &1.into(), &Value::Null)
    );

    // From stdin, with bytes that are no text.
    let mut child = command(&[
        "enqueue",
        &name,
        "echo",
        "--payload",
        "-",
        "--wait",
        "--json",
        "--database-url",
        &world.url,
    ]);
    let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"\xff\x00").await.unwrap();
    let piped = Answer::of(&within(SOON, "the end", child.wait_with_output()).await.unwrap());
    assert_eq!(piped.json(0)[0]["result_hex"], "ff00");

    node.behave(behave(Execution::Failing("\u{1b}[2Jboom".to_owned())));
    let failed = ask(&world, &["enqueue", &name, "echo", "--wait", "20s"]).await;
    assert_eq!(failed.code, 3, "{}{}", failed.stdout, failed.stderr);
    assert!(
        failed.stdout.contains("failed") && failed.stdout.contains("\\u{1b}[2Jboom"),
        "{}",
        failed.stdout
    );

    node.behave(behave(Execution::Held));
    let late = ask(&world, &["enqueue", &name, "echo", "--wait", "700ms", "--json"]).await;
    let row = late.json(4).remove(0);
    assert_eq!((&row["timed_out"], &row["waits_for"]), (&true.into(), &"the node has it".into()));
    let asked =
        ask(&world, &["cancel", &name, row["id"].as_str().unwrap(), "--reason", "enough", "--json"]).await;
    assert_eq!(asked.json(0)[0]["asked"], true);
    let ended = ask(&world, &["cancel", &name, shown["id"].as_str().unwrap()]).await;
    assert_eq!(ended.code, 3, "{}", ended.stdout);
    assert!(ended.stdout.contains("had ended before: succeeded"), "{}", ended.stdout);

    let sound = ask(&world, &["verify"]).await;
    assert_eq!(sound.code, 0, "{}{}", sound.stdout, sound.stderr);
}

#[tokio::test]
async fn a_repeat_of_an_idempotency_key_waits_for_the_first_though_it_told_nobody() {
    let world = World::new("enqueue_known").await;
    let _gateway = world.gateway("g", "").await;
    let node = world.node("n1", "g", |options| options.behaviour = behave(Execution::Held)).await;
    let name = node.name().to_owned();
    let enqueue = ["enqueue", &name, "echo", "--payload", "x", "--idempotency-key", "k", "--json"];
    // Not asked to notify, so only the look every second can find its end.
    let first = ask(&world, &enqueue).await.json(0).remove(0);
    assert_eq!(first["known"], false);
    let id = first["id"].as_str().unwrap().parse().unwrap();
    world.watch.received(id, SOON).await;
    let waiting = [&enqueue[..], &["--wait", "20s", "--database-url", &world.url]].concat();
    let child = command(&waiting).spawn().unwrap();
    node.release(None);
    let repeat =
        Answer::of(&within(SOON, "the end", child.wait_with_output()).await.unwrap()).json(0).remove(0);
    assert_eq!(
        (&repeat["known"], &repeat["id"], &repeat["state"]),
        (&true.into(), &first["id"], &"succeeded".into())
    );
    assert_eq!(ask(&world, &["commands", "--node", &name, "--json"]).await.json(0).len(), 1);
}

#[tokio::test]
async fn lists_show_what_is_there_and_say_when_they_are_cut() {
    let world = World::new("lists").await;
    let _gateway = world.gateway("g", "").await;
    let node = world.node("n1", "g", |_| {}).await;
    let (name, idle) = (node.name().to_owned(), world.id("idle"));
    world.register("idle").await;
    for payload in ["a", "b", "c"] {
        ask(&world, &["enqueue", &idle, "later", "--payload", payload, "--lane", "slow"]).await.is(0);
    }
    let nodes = ask(&world, &["nodes", "--json"]).await.json(0);
    let of = |id: &str| nodes.iter().find(|row| row["node_id"] == id).unwrap().clone();
    assert_eq!((&of(&idle)["connected"], &of(&idle)["pending"]), (&false.into(), &3.into()));
    assert_eq!((&of(&name)["connected"], &of(&name)["gateway_id"]), (&true.into(), &"g".into()));
    let connected = ask(&world, &["nodes", "--connected", "--like", "n1", "--json"]).await.json(0);
    assert_eq!((connected.len(), &connected[0]["node_id"]), (1, &name.clone().into()));
    assert!(ask(&world, &["nodes", "--tenant", "nobody"]).await.stdout.contains("No node fits."));

    let session = ask(&world, &["sessions", "--gateway", "g", "--json"]).await.json(0).remove(0);
    assert_eq!((&session["live"], &session["gateway_holds_lease"]), (&true.into(), &true.into()));
    assert_eq!(session["lanes"], serde_json::json!([{ "lane": "default", "capacity": 16 }]));

    let pending =
        ask(&world, &["commands", "--state", "pending,running", "--lane", "slow", "--limit", "2"]).await;
    assert_eq!(pending.code, 0, "{}", pending.stderr);
    assert_eq!(pending.stdout.lines().count(), 3, "a heading and two rows: {}", pending.stdout);
    assert!(pending.stdout.contains("the node is not connected"), "{}", pending.stdout);
    assert!(pending.stderr.contains("more than 2 commands"), "{}", pending.stderr);
    let waits = ask(&world, &["commands", "--node", &idle, "--since", "1h", "--json"]).await.json(0);
    assert_eq!(
        waits.iter().map(|row| row["seq"].as_i64().unwrap()).collect::<Vec<_>>(),
        [3, 2, 1],
        "newest first"
    );
}

#[tokio::test]
async fn specs_are_listed_with_what_they_wait_for_or_what_came_of_them() {
    let world = World::new("specs_listed").await;
    world.register("n1").await;
    let id = world.id("n1");
    let mut database = world.connect().await;
    sql(
        &mut database,
        &format!("SELECT set_spec('{id}', 'dns', 'text'), set_spec('{id}', 'gpu', '\\xff00')"),
    )
    .await;
    sql(
        &mut database,
        "UPDATE specs SET applied_generation = 1, applied_outcome = 'failed: no device', applied_at = now()
         WHERE name = 'gpu'",
    )
    .await;
    let table = ask(&world, &["specs", "--node", &id]).await;
    assert!(table.stdout.contains("the node is not connected"), "{}", table.stdout);
    assert!(table.stdout.contains("failed: no device"), "{}", table.stdout);
    let rows = ask(&world, &["specs", "--unanswered", "--json"]).await.json(0);
    assert_eq!((rows.len(), &rows[0]["name"], &rows[0]["body_bytes"]), (1, &"dns".into(), &4.into()));
    assert_eq!(rows[0].get("body"), None, "a body is shown to who asks for one spec");
    let one = |name: &'static str| {
        let (world, id) = (&world, id.clone());
        async move { ask(world, &["specs", "--node", &id, "--name", name, "--json"]).await.json(0).remove(0) }
    };
    let (dns, gpu) = (one("dns").await, one("gpu").await);
    assert_eq!(
        (&dns["body"], &dns["generation"], &dns["answered"]),
        (&"text".into(), &1.into(), &false.into())
    );
    assert_eq!((&gpu["body_hex"], &gpu["outcome"]), (&"ff00".into(), &"failed: no device".into()));
    let cut = ask(&world, &["specs", "--limit", "1"]).await;
    assert!(cut.stderr.contains("more than 1 specs"), "{}", cut.stderr);
}

#[tokio::test]
async fn each_error_says_what_was_wrong_where_and_what_to_do() {
    let world = World::new("errors").await;
    world.register("n1").await;
    let id = world.id("n1");
    sql(&mut world.connect().await, &format!("CREATE DATABASE {}_empty TEMPLATE template0", world.database))
        .await;
    let empty = world.url.replace(&world.database, &format!("{}_empty", world.database));
    let nowhere = "postgresql:///gateway?host=/nowhere/at/all&user=postgres".to_owned();
    let absent = world.url.replace(&world.database, "no_such_database");
    let at = |url: &str, line: &[&str]| -> Vec<String> {
        line.iter()
            .map(|word| (*word).to_owned())
            .chain(["--database-url".to_owned(), url.to_owned()])
            .collect()
    };
    let here = &world.url;
    for (line, code, said) in [
        (
            at(here, &["enqueue", "n1", "echo"]),
            1,
            vec!["'n1' is not registered", "Or did you mean", id.as_str()],
        ),
        (at(here, &["enqueue", &id, ""]), 1, vec!["is no command kind", "1 to 128 bytes"]),
        (
            at(here, &["enqueue", &id, "echo", "--not-before", "2h", "--not-after", "1h"]),
            1,
            vec!["not_after", "never be sent"],
        ),
        (
            at(here, &["enqueue", &id, "echo", "--not-after", "2026-13-44T00:00:00Z"]),
            1,
            vec!["2026-13-44", "Write the time as"],
        ),
        (at(here, &["enqueue", &id, "echo", "--not-after", "tomorrow"]), 2, vec!["2026-12-24T18:00:00Z"]),
        (at(here, &["enqueue", &id, "echo", "--payload", "@/nowhere/x"]), 2, vec!["--payload", "/nowhere/x"]),
        (at(here, &["cancel", &id, ABSENT]), 1, vec!["has no command", ABSENT]),
        (at(here, &["cancel", &id, "17"]), 2, vec!["UUID such as"]),
        (at(here, &["nodes", "--like", r"%\"]), 2, vec!["--like", r"a \ itself is written \\"]),
        (at(here, &["commands", "--id", ABSENT]), 1, vec!["there is no such command"]),
        (at(here, &["commands", "--state", "lost"]), 2, vec!["pending"]),
        (at(here, &["verify", "--only", "luck"]), 2, vec!["there is no invariant", "fifo"]),
        (at(&nowhere, &["nodes"]), 1, vec!["no connection", "/nowhere/at/all", "--database-url"]),
        (at(&nowhere, &["verify"]), 2, vec!["nothing is said", "no connection"]),
        (at(&absent, &["sessions"]), 1, vec!["no_such_database", "gateway migrate"]),
        (at(&empty, &["events"]), 1, vec!["has schema 0", "gateway migrate"]),
        (
            vec!["nodes".to_owned(), "--config".to_owned(), "/nowhere/g.toml".to_owned()],
            2,
            vec!["/nowhere/g.toml", "--config"],
        ),
        (vec!["migrate".to_owned()], 2, vec!["which database", "GATEWAY_DATABASE_URL"]),
    ] {
        let words: Vec<&str> = line.iter().map(String::as_str).collect();
        let answer = run(&words).await;
        assert_eq!(answer.code, code, "{line:?}: {}{}", answer.stdout, answer.stderr);
        for word in said {
            assert!(answer.stderr.contains(word), "{line:?} does not say {word:?}: {}", answer.stderr);
        }
        assert!(answer.stdout.is_empty(), "{line:?}: {}", answer.stdout);
    }
}

#[tokio::test]
async fn what_a_node_calls_itself_can_not_write_on_the_operators_terminal() {
    let world = World::new("hostile_strings").await;
    world.register("n1").await;
    let id = world.id("n1");
    ask(&world, &["enqueue", &id, "echo"]).await.is(0);
    let hostile = r"U&'\001B[2J\000Ax\202E\009B31m'";
    sql(
        &mut world.connect().await,
        &format!(
            "UPDATE node_sessions SET gateway_id = {hostile}, software_version = {hostile}, machine = {hostile},
                    lanes = ARRAY[{hostile}], lane_capacities = '{{1}}', connected_at = now();
             UPDATE commands SET state = 'failed', finished_at = now(), error = {hostile};
             INSERT INTO journals VALUES ('{id}', 'j');
             INSERT INTO events (node_id, journal_id, seq, kind, body)
                 VALUES ('{id}', 'j', 1, {hostile}, convert_to({hostile}, 'UTF8'));
             INSERT INTO specs (node_id, name, generation, body, applied_generation, applied_outcome, applied_at)
                 VALUES ('{id}', 'dns', 1, '', 1, 'failed: ' || {hostile}, now());
             INSERT INTO inventory_sections (node_id, section, hash, body)
                 SELECT '{id}', {hostile}, sha256(b), b FROM convert_to({hostile}, 'UTF8') b"
        ),
    )
    .await;
    for list in ["nodes", "sessions", "commands", "events", "specs", "inventory", "verify"] {
        for more in [&[][..], &["--json"][..]] {
            let answer = ask(&world, &[&[list], more].concat()).await;
            let obeyed = |sign: char| (sign.is_control() && sign != '\n') || sign == '\u{202e}';
            let (stdout, stderr) = (&answer.stdout, &answer.stderr);
            assert!(
                !stdout.contains(obeyed) && !stderr.contains(obeyed),
                "{list} {more:?}: {stdout:?}{stderr:?}"
            );
            if list != "verify" {
                let lines = if more.is_empty() { 2 } else { 1 };
                assert_eq!(stdout.lines().count(), lines, "{list} {more:?}: {stdout:?}");
                assert!(stdout.contains("[2J"), "{list} {more:?} shows it as text: {stdout:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_list_can_not_write_and_takes_no_longer_than_it_may() {
    let world = World::new("read_only").await;
    let mut connection = world.connect().await;
    // The clock is the one function that the lists call: it writes, and then it sleeps.
    sql(
        &mut connection,
        "CREATE OR REPLACE FUNCTION compute_now() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
         BEGIN INSERT INTO outbox (kind, created_at) VALUES ('written', now()); RETURN now(); END $$;
         INSERT INTO nodes (node_id, registered_at) VALUES ('n1', now());
         INSERT INTO commands (node_id, id, seq, lane, kind, enqueued_at)
             VALUES ('n1', gen_random_uuid(), 1, 'default', 'x', now())",
    )
    .await;
    let writing = ask(&world, &["commands", "--since", "1h"]).await;
    assert_eq!(writing.code, 1, "{}", writing.stdout);
    assert!(writing.stderr.contains("read-only transaction"), "{}", writing.stderr);
    sql(
        &mut connection,
        "CREATE OR REPLACE FUNCTION compute_now() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
         BEGIN PERFORM pg_sleep(3600); RETURN now(); END $$",
    )
    .await;
    let began = Instant::now();
    let slow = ask(&world, &["commands", "--since", "1h", "--timeout", "300ms"]).await;
    assert_eq!(slow.code, 1, "{}", slow.stdout);
    assert!(
        slow.stderr.contains("took longer than 300ms") && slow.stderr.contains("--timeout"),
        "{}",
        slow.stderr
    );
    assert!(began.elapsed() < SOON);
}

#[tokio::test]
async fn a_follower_shows_each_event_once_in_whatever_order_they_are_committed() {
    let world = World::new("follow").await;
    world.register("n1").await;
    let (id, mut connection, mut slow) = (world.id("n1"), world.connect().await, world.connect().await);
    let store = |journal: &str, from: i64, to: i64| {
        format!(
            "INSERT INTO journals (node_id, journal_id) VALUES ('{id}', '{journal}') ON CONFLICT DO NOTHING;
             INSERT INTO events (node_id, journal_id, seq, kind, body)
                 SELECT '{id}', '{journal}', i, 'k', convert_to('{journal}' || i, 'UTF8')
                 FROM generate_series({from}, {to}) i"
        )
    };
    sql(&mut connection, &store("a", 1, 3)).await;
    // Stored before what follows, and committed after it.
    sql(&mut slow, &format!("BEGIN; {}", store("b", 1, 2))).await;
    let line = ["events", "--follow", "--json", "--limit", "2", "--database-url", &world.url];
    let mut child = command(&line).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || {
        let line = within(SOON, "an event", lines.next_line()).await.unwrap().unwrap();
        serde_json::from_str::<Value>(&line).unwrap()["body"].as_str().unwrap().to_owned()
    };
    assert_eq!((next().await, next().await), ("a2".to_owned(), "a3".to_owned()));
    // More than one look takes.
    sql(&mut connection, &store("a", 4, 203)).await;
    for seq in 4..=203 {
        assert_eq!(next().await, format!("a{seq}"));
    }
    sql(&mut slow, "COMMIT").await;
    assert_eq!((next().await, next().await), ("b1".to_owned(), "b2".to_owned()));
    sql(&mut connection, &store("c", 1, 1)).await;
    assert_eq!(next().await, "c1");
    // A reader that goes away ends it, without a complaint.
    drop(lines);
    sql(&mut connection, &store("c", 2, 2)).await;
    let status = within(Duration::from_secs(20), "the follower's end", child.wait()).await.unwrap();
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn a_follower_goes_on_where_it_was_when_the_database_comes_back() {
    let mut world = World::with_own_cluster("follow_restart").await;
    world.register("n1").await;
    let id = world.id("n1");
    let store = |seq: i64| {
        format!(
            "INSERT INTO journals (node_id, journal_id) VALUES ('{id}', 'j') ON CONFLICT DO NOTHING;
             INSERT INTO events (node_id, journal_id, seq, kind) VALUES ('{id}', 'j', {seq}, 'k')"
        )
    };
    sql(&mut world.connect().await, &store(1)).await;
    let line = ["events", "--follow", "--json", "--database-url", &world.url];
    let mut child = command(&line).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut remarks = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut next = async || {
        let line = within(SOON, "an event", lines.next_line()).await.unwrap().unwrap();
        serde_json::from_str::<Value>(&line).unwrap()["seq"].as_i64().unwrap()
    };
    assert_eq!(next().await, 1);
    for (seq, mode) in [(2, StopMode::Fast), (3, StopMode::Immediate)] {
        world.cluster().stop(mode).unwrap();
        let remark = within(SOON, "a word that the database is away", remarks.next_line()).await;
        let remark = remark.unwrap().unwrap();
        assert!(remark.contains("followed again when it is back"), "{remark}");
        world.cluster().start_again().unwrap();
        sql(&mut world.connect().await, &store(seq)).await;
        assert_eq!(next().await, seq, "each once");
    }
    assert!(child.try_wait().unwrap().is_none(), "it follows on");
    child.kill().await.unwrap();
}

#[tokio::test]
async fn certificates_are_listed_with_what_speaks_against_them() {
    let world = World::new("certs_list").await;
    let _gateway = world.gateway("g", "").await;
    let node = world.node("n1", "g", |_| {}).await;
    let name = node.name().to_owned();
    let mut database = world.connect().await;
    let statements = format!(
        "INSERT INTO node_certs (serial, node_id, not_after, role, revoked_at, revoked_reason) VALUES \
         ('AA01', '{name}', compute_now() + interval '3 days', 'storage', NULL, NULL), \
         ('AA02', '{name}', compute_now() - interval '1 day', 'node', compute_now(), E'key\nleaked'), \
         ('AA03', 'another', compute_now() + interval '1 year', 'node', NULL, NULL)"
    );
    sql(&mut database, &statements).await;
    let serials = |answer: &Answer| -> Vec<String> {
        answer.json(0).iter().map(|row| row["serial"].as_str().unwrap().to_owned()).collect()
    };
    let all = ask(&world, &["certs", "list", "--node", &name, "--json"]).await;
    let rows = all.json(0);
    assert_eq!(rows.len(), 3, "{}", all.stdout);
    // Who recorded the first did not say when it ends.
    assert_eq!((&rows[0]["in_use"], &rows[0]["expires_at"]), (&true.into(), &Value::Null), "{}", all.stdout);
    assert_eq!((&rows[1]["serial"], &rows[1]["role"]), (&"AA01".into(), &"storage".into()));
    assert_eq!((&rows[1]["expired"], &rows[1]["revoked_at"]), (&false.into(), &Value::Null));
    assert_eq!((&rows[2]["expired"], &rows[2]["revoked_reason"]), (&true.into(), &"key\nleaked".into()));
    assert_eq!(serials(&ask(&world, &["certs", "list", "--revoked", "--json"]).await), ["AA02"]);
    let soon = ask(&world, &["certs", "list", "--expires-within", "7d", "--json"]).await;
    assert_eq!(serials(&soon), ["AA01", "AA02"]);
    let table = ask(&world, &["certs", "list", "--node", &name]).await;
    table.is(0);
    assert_eq!(table.stdout.lines().count(), 4, "a row is a line: {}", table.stdout);
    assert!(table.stdout.contains("EXPIRES") && table.stdout.contains("key\\nleaked"), "{}", table.stdout);
    let cut = ask(&world, &["certs", "list", "--limit", "1"]).await;
    assert!(cut.stderr.contains("more than 1 certificate"), "{}", cut.stderr);
}

#[tokio::test]
async fn a_session_was_last_seen_at_its_hello_until_its_liveness_is_written() {
    let world = World::new("last_seen").await;
    let _gateway = world.gateway("g", "").await;
    let _node = world.node("n1", "g", |_| {}).await;
    for list in ["sessions", "nodes"] {
        let row = ask(&world, &[list, "--json"]).await.json(0).remove(0);
        assert!(row["last_seen_at"].is_string(), "{list}: {row}");
        assert!(row["last_seen_at"].as_str() >= row["connected_at"].as_str(), "{list}: {row}");
    }
}

#[tokio::test]
async fn gateways_are_listed_with_their_lease_also_those_that_are_gone() {
    let world = World::new("gateways_list").await;
    let gateway = world.gateway("g1", "").await;
    let mut database = world.connect().await;
    // What one that was killed long ago leaves behind.
    let gone = "INSERT INTO gateways (id, region, internal_url, version, max_streams, sessions, heartbeat_at) \
                VALUES ('g0', 'x', 'https://g0:1', '0', 9, 2, compute_now() - interval '1 hour')";
    sql(&mut database, gone).await;
    let rows = ask(&world, &["gateways", "--json"]).await.json(0);
    let shown: Vec<_> = rows.iter().map(|row| (row["id"].as_str().unwrap(), &row["lease_held"])).collect();
    assert_eq!(shown, [("g0", &false.into()), ("g1", &true.into())], "{rows:?}");
    assert!(rows[0]["heartbeat_age_seconds"].as_f64().unwrap() >= 3_600.0, "{rows:?}");
    let serving = ask(&world, &["gateways", "--serving", "--json"]).await.json(0);
    assert_eq!((serving.len(), &serving[0]["id"]), (1, &"g1".into()));
    let table = ask(&world, &["gateways"]).await;
    table.is(0);
    assert!(table.stdout.contains("https://g0:1") && table.stdout.contains("LAST WROTE"), "{}", table.stdout);
    drop(gateway);
}

//! The control API over real HTTP/2 and mTLS: what each call hastens, whom it refuses, and that nothing depends on it.
//!
//! 1. Where a call is told from a poll, the poll is a minute away and no notification is heard.

#![allow(clippy::unwrap_used)]

mod support;

use std::process::Stdio;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gateway::client::{CallError, DatabaseRegistry, FindError, Finder, GatewayClient, publish};
use gateway_testbed::database::{self, NewCommand};
use gateway_testbed::gateway_process::GatewayProcess;
use gateway_testbed::node::{Behaviour, Execution, Node};
use http::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::{Executor, PgConnection};
use support::api::{assert_nothing_fell, client, client_as, client_files, exposition, files};
use support::health::control_address;
use support::{SOON, World, asked_until, measured, seconds, within};
use tokio::io::AsyncReadExt;
use uuid::Uuid;

/// Whatever comes within the waits of a story did not come by itself.
const FAR: &str = "[database]\nnotify = false\n[dispatch]\npoll_every = \"60s\"\n[specs]\nsweep_every = \"1h\"\n\
                   [identity]\nrevocation_poll = \"60s\"\nrevocation_scan = \"1h\"\n";

async fn start(world: &World, id: &str, extra: &str) -> (GatewayProcess, GatewayClient) {
    let gateway = world.start(world.options_with_api(id, extra)).await;
    let api = client(world, &gateway).await;
    (gateway, api)
}

async fn post(api: &GatewayClient, path: &str, body: Value) -> Value {
    within(SOON, path, api.post(path, &body)).await.unwrap_or_else(|error| panic!("{path}: {error}"))
}

async fn set_spec(database: &mut PgConnection, node: &str, body: &str) {
    let query = sqlx::query("SELECT set_spec($1, 'dns', $2)").bind(node).bind(body.as_bytes());
    query.execute(database).await.unwrap();
}

async fn revoke(database: &mut PgConnection, serial: &str) {
    let statement =
        "UPDATE node_certs SET revoked_at = compute_now(), revoked_reason = 'leaked' WHERE serial = $1";
    sqlx::query(statement).bind(serial).execute(database).await.unwrap();
}

async fn state(database: &mut PgConnection, id: Uuid) -> String {
    let query = sqlx::query_as("SELECT state::text FROM commands WHERE id = $1").bind(id);
    let (state,): (String,) = query.fetch_one(database).await.unwrap();
    state
}

/// The HTTP status and the code of a refusal.
async fn refused(api: &GatewayClient, method: Method, path: &str, body: &str) -> (u16, String) {
    let (status, text) = api.call(method, path, Bytes::from(body.to_owned())).await.unwrap();
    let said: Value = serde_json::from_slice(&text).unwrap_or_else(|_| panic!("{path}: {text:?}"));
    assert!(said["error"].as_str().is_some_and(|sentence| sentence.len() > 20), "{path}: {said}");
    (status.as_u16(), said["code"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn each_call_does_at_once_what_would_come_by_itself_a_minute_later() {
    let world = World::new("api_calls").await;
    let (_gateway, api) = start(&world, "g", FAR).await;
    let mut database = world.connect().await;
    let held = Behaviour { execution: Execution::Held, ..Behaviour::default() };
    let node = world.node("node", "g", |options| options.behaviour = held).await;
    let name = node.name().to_owned();

    // Sessions that have just begun look once by themselves; what comes after that is asked for.
    let first = database::enqueue(&mut database, &NewCommand::new(&name, b"x")).await.unwrap();
    let answer = post(&api, "/v1/dispatch", json!({ "nodes": [name, "spiffe://elsewhere"] })).await;
    assert_eq!(answer, json!({ "looking": true, "named": 2, "here": 1 }));
    world.watch.received(first, SOON).await;
    let begun = Instant::now();
    let second = database::enqueue(&mut database, &NewCommand::new(&name, b"x")).await.unwrap();
    post(&api, "/v1/dispatch", json!({})).await;
    world.watch.received(second, SOON).await;
    measured("from before the enqueue until the node had it, by a call", seconds(begun));

    asked_until(SOON, "it is accepted", async || {
        (state(&mut database, second).await == "accepted").then_some(())
    })
    .await;
    assert_eq!(database::cancel(&mut database, &name, second, "not needed").await.unwrap(), "accepted");
    let commands = json!([{ "node_id": name, "id": second }, { "node_id": name, "id": Uuid::nil() }]);
    let answer = post(&api, "/v1/cancel", json!({ "commands": commands })).await;
    assert_eq!(answer, json!({ "looking": true, "named": 2, "here": 2, "in_flight": 1 }));
    let told = |seen: &support::watch::Seen| seen.cancels.iter().any(|(_, id)| *id == second).then_some(());
    world.watch.until(SOON, "the node is told of the cancellation", told).await;

    set_spec(&mut database, &name, "one").await;
    assert_eq!(post(&api, "/v1/specs", json!({ "nodes": [name] })).await["here"], 1);
    let read = |seen: &support::watch::Seen| seen.specs.iter().any(|(_, _, at)| *at == 1).then_some(());
    world.watch.until(SOON, "the node has the spec", read).await;

    let session = within(SOON, "the node's session", async {
        loop {
            let path = format!("/v1/sessions/{}", name.replace('/', "%2F"));
            let session = api.get(&path).await.unwrap();
            if session["last_heartbeat_at"].is_f64() {
                return session;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert_eq!((&session["node_id"], &session["epoch"]), (&json!(name), &json!(1)));
    let lanes = session["lanes"].as_array().unwrap();
    assert!(lanes.iter().any(|lane| lane["in_flight"].as_u64() >= Some(1)), "{session}");

    let thief = world.register("thief").await;
    let mut options = world.node_options("thief", &thief, "g");
    options.behaviour.reports = true;
    let thief_node = Node::start(options);
    world.watch.connected_after(thief_node.name(), 0).await;
    revoke(&mut database, &thief.serial).await;
    let answer = post(&api, "/v1/revoke", json!({ "node_id": thief_node.name() })).await;
    assert_eq!(answer, json!({ "looking": true, "named": 1, "here": 1 }));
    let ends = thief_node.name().to_owned();
    let ended = |seen: &support::watch::Seen| seen.drops().any(|one| *one.node == *ends).then_some(());
    world.watch.until(SOON, "the session of the revoked certificate ends", ended).await;
}

#[tokio::test]
async fn all_comes_to_pass_without_the_api_and_without_notifications() {
    let world = World::new("without_api").await;
    let settings =
        "[gateway]\ndrain = \"1s\"\n[database]\nnotify = false\n[specs]\nsweep_every = \"300ms\"\n";
    let mut gateway = world.gateway("g", settings).await;
    let mut database = world.connect().await;
    database.execute("SET gateway.notify = off").await.unwrap();
    let url = control_address(&mut database, "g").await;
    assert!(url.starts_with("127.0.0.1:"), "there is health alone, over plain HTTP: {url}");
    let held = Behaviour { execution: Execution::Held, ..Behaviour::default() };
    let node = world.node("node", "g", |options| options.behaviour = held).await;
    let name = node.name().to_owned();

    let id = database::enqueue(&mut database, &NewCommand::new(&name, b"x")).await.unwrap();
    world.watch.received(id, SOON).await;
    asked_until(SOON, "it is accepted", async || {
        (state(&mut database, id).await == "accepted").then_some(())
    })
    .await;
    database::cancel(&mut database, &name, id, "not needed").await.unwrap();
    asked_until(SOON, "it is canceled", async || {
        (state(&mut database, id).await == "canceled").then_some(())
    })
    .await;
    set_spec(&mut database, &name, "one").await;
    let acked = |seen: &support::watch::Seen| (!seen.spec_acks.is_empty()).then_some(());
    world.watch.until(SOON, "the spec is applied and acked", acked).await;

    let thief = world.register("thief").await;
    let thief_node = Node::start(world.node_options("thief", &thief, "g"));
    world.watch.connected_after(thief_node.name(), 0).await;
    revoke(&mut database, &thief.serial).await;
    let ends = thief_node.name().to_owned();
    let ended = |seen: &support::watch::Seen| seen.drops().any(|one| *one.node == *ends).then_some(());
    world.watch.until(SOON, "the session of the revoked certificate ends", ended).await;
    drop(thief_node);

    gateway.signal(Signal::TERM).unwrap();
    world
        .watch
        .until(SOON, "its node is told to leave", |seen| (!seen.drains.is_empty()).then_some(()))
        .await;
    drop(node);
    assert_eq!(within(SOON, "it stops", gateway.wait()).await.unwrap().code(), Some(0));
    world.verify().await;
}

#[tokio::test]
async fn a_drain_over_the_api_empties_a_gateway_and_is_taken_back() {
    let world = World::new("api_drain").await;
    let (mut old, api) = start(&world, "old", "").await;
    let _new = world.gateway("new", "").await;
    let mut database = world.connect().await;
    let names: Vec<String> = (0..8).map(|index| format!("node-{index}")).collect();
    let identities = world.register_all(&names).await;
    let start_node = |index: usize| {
        let mut options = world.node_options(&names[index], &identities[index], "old");
        options.elsewhere = vec![world.target("new", &identities[index])];
        Node::start(options)
    };
    let nodes: Vec<Node> = (0..8).map(start_node).collect();
    for node in &nodes {
        world.watch.connected_after(node.name(), 0).await;
    }
    let page = api.get("/v1/sessions?limit=5").await.unwrap();
    assert_eq!((page["sessions"].as_array().unwrap().len(), &page["in_all"]), (5, &json!(8)));
    let more = page["more"].as_str().unwrap();
    let rest = api.get(&format!("/v1/sessions?limit=5&after={more}")).await.unwrap();
    assert_eq!((rest["sessions"].as_array().unwrap().len(), &rest["more"]), (3, &Value::Null));

    let answer = post(&api, "/v1/drain", json!({ "within_seconds": 1 })).await;
    assert_eq!(answer, json!({ "draining": true, "began_now": true, "sessions": 8, "within_seconds": 1.0 }));
    assert_eq!(post(&api, "/v1/drain", json!({})).await["began_now"], false);
    let (serves, health) = api.health().await.unwrap();
    assert_eq!((serves, &health["phase"]), (false, &json!("draining")), "{health}");
    assert!(health["reasons"][0].as_str().unwrap().contains("drains"), "{health}");
    asked_until(SOON, "every node has left", async || {
        (api.get("/v1/sessions").await.unwrap()["in_all"] == 0).then_some(())
    })
    .await;
    let at_new = "SELECT count(*) FROM node_sessions WHERE gateway_id = 'new' AND disconnected_at IS NULL";
    let (moved,): (i64,) = sqlx::query_as(at_new).fetch_one(&mut database).await.unwrap();
    assert_eq!(moved, 8);
    world.watch.look(|seen| assert_eq!(seen.drops().count(), 0, "nobody was cut"));
    assert!(old.try_wait().unwrap().is_none(), "it goes on running");
    let (draining,): (bool,) = sqlx::query_as("SELECT draining FROM gateways WHERE id = 'old'")
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert!(draining);

    assert_eq!(
        post(&api, "/v1/undrain", json!({})).await,
        json!({ "draining": false, "was_draining": true })
    );
    assert!(api.health().await.unwrap().0);
    world.node("late", "old", |_| {}).await;
    assert_eq!(post(&api, "/v1/undrain", json!({})).await["was_draining"], false);

    // A SIGTERM while it stands takes its place, and stops it: nobody is left to wait for but the late one, which
    // has gone with its handle.
    post(&api, "/v1/drain", json!({ "within_seconds": 0 })).await;
    old.signal(Signal::TERM).unwrap();
    assert_eq!(within(SOON, "it stops", old.wait()).await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn whoever_may_not_call_or_calls_wrong_is_told_why_in_json() {
    let world = World::new("api_refusals").await;
    let (gateway, api) = start(&world, "g", "").await;
    let is = |status: u16, code: &str| (status, code.to_owned());
    for (method, path, body, expected) in [
        (Method::GET, "/v1/nothing", "", is(404, "NOT_FOUND")),
        (Method::GET, "/v1/dispatch", "", is(405, "WRONG_METHOD")),
        (Method::POST, "/v1/dispatch", "{", is(400, "INVALID_ARGUMENT")),
        (Method::POST, "/v1/dispatch", "[]", is(400, "INVALID_ARGUMENT")),
        (Method::POST, "/v1/dispatch", r#"{"node":["a"]}"#, is(400, "INVALID_ARGUMENT")),
        (Method::POST, "/v1/dispatch", r#"{"nodes":[""]}"#, is(400, "INVALID_ARGUMENT")),
        (
            Method::POST,
            "/v1/cancel",
            r#"{"commands":[{"node_id":"a","id":"7"}]}"#,
            is(400, "INVALID_ARGUMENT"),
        ),
        (Method::POST, "/v1/revoke", "{}", is(400, "INVALID_ARGUMENT")),
        (Method::POST, "/v1/drain", r#"{"within_seconds":601}"#, is(400, "INVALID_ARGUMENT")),
        (Method::POST, "/v1/drain", r#"{"within_seconds":-1}"#, is(400, "INVALID_ARGUMENT")),
        (Method::GET, "/v1/sessions?limit=501", "", is(400, "INVALID_ARGUMENT")),
        (Method::GET, "/v1/sessions?after=x", "", is(400, "INVALID_ARGUMENT")),
        (Method::GET, "/v1/sessions/unknown", "", is(404, "NOT_FOUND")),
        (Method::GET, "/v1/sessions/%00%ff", "", is(400, "INVALID_ARGUMENT")),
    ] {
        assert_eq!(refused(&api, method, path, body).await, expected, "{path} {body}");
    }
    let many: Vec<String> = (0..1_001).map(|number| format!("n{number}")).collect();
    let body = json!({ "nodes": many }).to_string();
    assert_eq!(refused(&api, Method::POST, "/v1/dispatch", &body).await, is(400, "INVALID_ARGUMENT"));
    let large = json!({ "nodes": ["x".repeat(300 << 10)] }).to_string();
    assert_eq!(refused(&api, Method::POST, "/v1/dispatch", &large).await, is(413, "TOO_LARGE"));

    let other = world.pki.control_client("spiffe://testbed.gateway/service/other").unwrap();
    let stranger = client_as(&world, &gateway, "other", &other).await;
    assert_eq!(refused(&stranger, Method::GET, "/v1/health", "").await, is(403, "FORBIDDEN"));
    assert_eq!(refused(&stranger, Method::POST, "/v1/drain", "{}").await, is(403, "FORBIDDEN"));
    // A node's certificate is of another authority: it does not come through the handshake.
    let node = world.register("node").await;
    let intruder = client_as(&world, &gateway, "node", &node).await;
    let error = intruder.health().await.unwrap_err();
    assert!(matches!(error, CallError::Unreachable { .. }), "{error}");
    assert!(api.health().await.unwrap().0, "and all the while it serves, and was not drained");
}

#[tokio::test]
async fn renewed_files_reach_new_connections_of_the_api_and_wrong_ones_change_nothing() {
    let world = World::new("api_tls").await;
    let (mut gateway, api) = start(&world, "g", "[tls]\nreload_every = \"1h\"\n").await;
    for _ in 0..3 {
        let unchanged = post(&api, "/v1/tls/reload", json!({})).await;
        assert_eq!(unchanged, json!({ "changed": false, "nodes": false, "control": false }));
    }
    // Who calls has its answer; who sends a signal finds it in the log, for both sets.
    gateway.signal(rustix::process::Signal::HUP).unwrap();
    let log_path = gateway.options().log_path();
    let told = |what: &str| {
        let log = std::fs::read_to_string(&log_path).unwrap();
        log.lines().filter(|line| line.contains(what)).count()
    };
    let in_use = "hold what is in use";
    asked_until(SOON, "the signal's look", async || (told(in_use) >= 2).then_some(())).await;

    // Another CA of clients: whoever showed a certificate of the old one is out with its next connection.
    let api_files = files(&gateway).clone();
    let other = gateway_testbed::pki::Pki::new().unwrap();
    let renewed = other.write_control_files(&gateway.options().dir.join("renewed")).unwrap();
    let before = std::fs::read(&api_files.ca).unwrap();
    std::fs::write(&api_files.ca, "no PEM").unwrap();
    let (status, code) = refused(&api, Method::POST, "/v1/tls/reload", "").await;
    assert_eq!((status, code.as_str()), (422, "FAILED_PRECONDITION"));
    let told_since = async || (told("have changed and can't be used") > 0).then_some(());
    asked_until(SOON, "a line behind all of these", told_since).await;
    assert_eq!(told(in_use), 2, "calls that change nothing make no lines");
    let (_, health) = api.health().await.unwrap();
    let loops = health["loops"].as_array().unwrap();
    let watched = loops.iter().find(|one| one["loop"] == "control-tls-files").unwrap();
    assert_eq!(watched["consecutive_failures"], 1, "{watched}");

    std::fs::copy(&renewed.ca, &api_files.ca).unwrap();
    let changed = post(&api, "/v1/tls/reload", json!({})).await;
    assert_eq!(changed, json!({ "changed": true, "nodes": false, "control": true }));
    let unknown = client_files(&gateway);
    std::fs::write(gateway.options().dir.join("server-ca.crt"), &before).unwrap();
    let mut as_before = unknown.clone();
    as_before.ca = gateway.options().dir.join("server-ca.crt");
    let mut url = world.connect().await;
    let (url,): (String,) =
        sqlx::query_as("SELECT internal_url FROM gateways WHERE id = 'g'").fetch_one(&mut url).await.unwrap();
    let out = GatewayClient::new(&url, as_before.clone()).unwrap();
    assert!(
        matches!(out.health().await, Err(CallError::Unreachable { .. })),
        "its CA does not count any more"
    );
    let mut renewed_client = as_before;
    (renewed_client.certificate, renewed_client.key) = (renewed.client_certificate, renewed.client_key);
    let inside = GatewayClient::new(&url, renewed_client).unwrap();
    assert!(inside.health().await.unwrap().0);
    asked_until(SOON, "a connection of the old CA takes no more calls", async || {
        matches!(api.health().await, Err(CallError::Unreachable { .. })).then_some(())
    })
    .await;
    assert!(inside.health().await.unwrap().0, "and one of the new CA does");
    let metrics = exposition(&inside.metrics().await.unwrap());
    let reloads = &metrics["gateway_control_tls_reloads"].samples;
    assert_eq!(reloads.values().sum::<f64>(), 1.0);

    // The same for the files of the nodes' listener.
    let folder = gateway.options().dir.join("renewed-nodes");
    std::fs::create_dir_all(&folder).unwrap();
    let renewed = world.pki.write_gateway_files(&folder).unwrap();
    std::fs::copy(&renewed.key, &world.files.key).unwrap();
    std::fs::copy(&renewed.certificate, &world.files.certificate).unwrap();
    let changed = post(&inside, "/v1/tls/reload", json!({})).await;
    assert_eq!(changed, json!({ "changed": true, "nodes": true, "control": false }));
    world.node("after", "g", |_| {}).await;
}

#[tokio::test]
async fn what_prometheus_reads_is_right_in_every_line_and_counters_never_fall() {
    let world = World::new("api_metrics").await;
    let (_gateway, api) = start(&world, "g", "[shards]\ncount = 2\n").await;
    let mut database = world.connect().await;
    let nodes = world.nodes("node", 6, "g", |_| {}).await;
    let names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
    let mut before = exposition(&api.metrics().await.unwrap());
    for _ in 0..5 {
        let ids = database::enqueue_many(&mut database, &names, b"x").await.unwrap();
        world.watch.all_settled(&ids, SOON).await;
        let text = api.metrics().await.unwrap();
        assert!(!text.contains("spiffe") && !text.contains("node-0"), "a node is in it");
        let after = exposition(&text);
        assert_nothing_fell(&before, &after);
        before = after;
    }
    let sum = |name: &str, suffix: &str| -> f64 {
        let family = before.get(name).unwrap_or_else(|| panic!("there is no {name}"));
        let ours = family.samples.iter().filter(|((sample, _), _)| *sample == format!("{name}{suffix}"));
        ours.map(|(_, value)| value).sum()
    };
    assert_eq!(sum("gateway_sessions", ""), 6.0);
    assert_eq!(sum("gateway_opens", "_total"), 6.0);
    assert_eq!(sum("gateway_handshake_seconds", "_count"), 6.0);
    assert_eq!(sum("gateway_dispatch_latency_seconds", "_count"), 30.0);
    assert_eq!(sum("gateway_dispatch_pass_rows", "_sum"), 30.0);
    assert_eq!(sum("gateway_lease_held", ""), 1.0);
    // Each round has a commit of claims and one of results at least; how many go together is the writer's.
    assert!(sum("gateway_flush_seconds", "_count") >= 10.0);
    assert!(sum("gateway_frames_in_by_kind", "_total") <= sum("gateway_frames_in", "_total"));
    let kinds = &before["gateway_frames_out_by_kind"].samples;
    let commands: f64 = kinds
        .iter()
        .filter(|((_, labels), _)| labels.contains("kind=\"command\""))
        .map(|(_, value)| value)
        .sum();
    assert_eq!(commands, 30.0);
    for name in [
        "gateway_refusals",
        "gateway_bytes_in",
        "gateway_bytes_out",
        "gateway_queue_depth",
        "gateway_mail_waiting",
        "gateway_writer_full_waits",
        "gateway_batch_entries",
        "gateway_credits_exhausted",
        "gateway_lease_age_seconds",
        "gateway_fences",
        "gateway_loop_failures",
        "gateway_relay_seconds",
        "gateway_process_resident_memory_bytes",
        "gateway_ring_lateness_seconds",
        "gateway_asks",
    ] {
        assert!(before.contains_key(name), "there is no {name}");
    }
}

#[tokio::test]
async fn the_owner_of_a_node_is_found_and_poked_by_notification_or_by_call() {
    let world = World::new("api_finder").await;
    let slow = "[dispatch]\npoll_every = \"60s\"\n";
    let (one, _) = start(&world, "one", slow).await;
    let _two = world.gateway("two", slow).await;
    let mut database = world.connect().await;
    database.execute("SET gateway.notify = off").await.unwrap();
    let node = world.node("node", "one", |_| {}).await;
    let other = world.node("other", "two", |_| {}).await;
    let registry = std::sync::Arc::new(DatabaseRegistry::new(&world.url).unwrap());
    let finder = Finder::new(registry, client_files(&one));
    let found = finder.of_node(node.name()).await.unwrap();
    assert_eq!(found.gateway, "one");
    assert!(found.client.health().await.unwrap().0);
    assert!(matches!(finder.of_node(other.name()).await, Err(FindError::NoApi { .. })), "two has no API");
    assert_eq!(finder.of_node("nobody").await.unwrap_err(), FindError::NotConnected);
    let unregistered = finder.gateway("three").await.unwrap_err();
    assert_eq!(unregistered, FindError::Unregistered { gateway: "three".to_owned() });

    for node_named in [Some(other.name()), None] {
        let begun = Instant::now();
        sqlx::query("BEGIN").execute(&mut database).await.unwrap();
        let id = database::enqueue(&mut database, &NewCommand::new(other.name(), b"x")).await.unwrap();
        publish(&mut database, "gw:two", node_named).await.unwrap();
        sqlx::query("COMMIT").execute(&mut database).await.unwrap();
        world.watch.received(id, SOON).await;
        measured("from the enqueue to the node, by the notifier", seconds(begun));
        world.watch.all_settled(&[id], SOON).await;
    }
}

/// `gateway COMMAND`, with the files of a client: its exit code, stdout and stderr.
async fn run(world: &World, gateway: &GatewayProcess, arguments: &[&str]) -> (i32, String, String) {
    let files = client_files(gateway);
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_gateway"));
    command
        .args(arguments)
        .env_remove("GATEWAY_CONFIG")
        .env("GATEWAY_DATABASE_URL", &world.url)
        .env("GATEWAY_CONTROL_CA", &files.ca)
        .env("GATEWAY_CONTROL_CERTIFICATE", &files.certificate)
        .env("GATEWAY_CONTROL_KEY", &files.key)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = within(SOON, &format!("gateway {arguments:?}"), command.output()).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

async fn answer(world: &World, gateway: &GatewayProcess, code: i32, arguments: &[&str]) -> Value {
    let (ended, stdout, stderr) = run(world, gateway, arguments).await;
    assert_eq!(ended, code, "{arguments:?}: {stdout}{stderr}");
    serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{arguments:?}: {stdout}{stderr}"))
}

#[tokio::test]
async fn an_operator_has_all_of_it_at_the_command_line() {
    let world = World::new("api_cli").await;
    let (gateway, _) = start(&world, "g", FAR).await;
    let _silent = world.gateway("silent", "").await;
    let node = world.node("node", "g", |_| {}).await;
    let name = node.name().to_owned();
    let at = ["--gateway", "g", "--json"];
    let with = |arguments: &[&'static str]| [arguments, &at[..]].concat();

    let health = answer(&world, &gateway, 0, &with(&["health"])).await;
    assert_eq!((&health["serving"], &health["lease"]["held"]), (&json!(true), &json!(true)));
    assert_eq!(health["headroom"]["streams"]["used"], 1);
    let session = answer(&world, &gateway, 0, &with(&["live-sessions"])).await;
    assert_eq!(session["node_id"], name.as_str());
    let dispatched = answer(&world, &gateway, 0, &[&["dispatch", &name], &at[..]].concat()).await;
    assert_eq!(dispatched["here"], 1);
    assert_eq!(answer(&world, &gateway, 0, &with(&["reload-tls"])).await["changed"], false);

    let (code, told, _) =
        run(&world, &gateway, &["drain", "--gateway", "g", "--within", "0s", "--wait", "1s"]).await;
    // The node knows no other gateway, so it comes back to this one, which refuses it.
    assert!((code == 0) == told.contains("no session is left") && [0, 4].contains(&code), "{code}: {told}");
    assert!(code == 0 || !told.contains("No other gateway"), "silent serves: {told}");
    let health = answer(&world, &gateway, 3, &with(&["health"])).await;
    assert_eq!(health["phase"], "draining");
    let (code, told, _) = run(&world, &gateway, &["health", "--gateway", "g"]).await;
    assert!(code == 3 && told.contains("It takes no new sessions: it drains"), "{told}");
    let before = world.watch.epoch_of(&name);
    assert_eq!(answer(&world, &gateway, 0, &with(&["undrain"])).await["was_draining"], true);
    assert_eq!(answer(&world, &gateway, 0, &with(&["undrain"])).await["was_draining"], false);
    let is_here = async || answer(&world, &gateway, 0, &with(&["health"])).await["sessions"] == 1;
    asked_until(SOON, "the node is here (again)", async || is_here().await.then_some(())).await;
    assert!(world.watch.epoch_of(&name) >= before);

    let revoked = answer(&world, &gateway, 0, &["revoke", &name, "--reason", "key leaked", "--json"]).await;
    assert_eq!((&revoked["gateway"], &revoked["hastened"]), (&json!("g"), &json!(true)), "{revoked}");
    let ends = |seen: &support::watch::Seen| {
        seen.revocations.iter().any(|(of, reason, _)| **of == *name && reason == "key leaked").then_some(())
    };
    world.watch.until(SOON, "the node is told that it is revoked", ends).await;
    let again = answer(&world, &gateway, 3, &["revoke", &name, "--json"]).await;
    assert_eq!(again["revoked"], json!([]));
    world.connect().await.execute("SELECT register_node('bare')").await.unwrap();
    for (who, said) in [
        (&["bare"][..], "is registered, and has no certificate"),
        (&["nobody"], "is no node that is registered"),
        (&[&name], "revoked already"),
        (&[&name, "--serial", "0F"], "no certificate with that serial"),
    ] {
        let (code, told, _) = run(&world, &gateway, &[&["revoke"], who].concat()).await;
        assert!(code == 3 && told.contains(said), "{who:?}: {told}");
    }

    let (code, _, told) = run(&world, &gateway, &["health", "--gateway", "nobody"]).await;
    assert!(code == 1 && told.contains("not registered"), "{told}");
    let (code, _, told) = run(&world, &gateway, &["drain", "--gateway", "silent"]).await;
    assert!(code == 1 && told.contains("no control API"), "{told}");
    let (code, _, told) = run(&world, &gateway, &["undrain"]).await;
    assert!(code == 2 && told.contains("which gateway is meant"), "{told}");
}

/// `gateway COMMAND --config FILE` and nothing else: what the file has is all that there is.
async fn run_by(file: &std::path::Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_gateway"));
    for variable in ["GATEWAY_CONFIG", "GATEWAY_DATABASE_URL", "GATEWAY_CONTROL_CA"] {
        command.env_remove(variable);
    }
    command.env_remove("GATEWAY_CONTROL_CERTIFICATE").env_remove("GATEWAY_CONTROL_KEY");
    command.args(arguments).arg("--config").arg(file).stdin(Stdio::null()).kill_on_drop(true);
    let output = within(SOON, &format!("gateway {arguments:?}"), command.output()).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

#[tokio::test]
async fn a_gateway_is_called_by_its_own_file_and_what_is_wrong_about_that_is_said() {
    let world = World::new("api_by_file").await;
    let (gateway, _) = start(&world, "g", "").await;
    let files = client_files(&gateway);
    let row = sqlx::query_as("SELECT internal_url FROM gateways WHERE id = 'g'");
    let (url,): (String,) = row.fetch_one(&mut world.connect().await).await.unwrap();
    let log = gateway.logged("ready; health at").await;
    let ready = log.lines().find(|line| line.contains("ready; health at")).unwrap();
    let api = url.strip_prefix("https://").unwrap();
    assert!(ready.contains(api) && ready.contains("tunnels") && ready.contains("upstream"), "{ready}");

    // Its own certificate is a server's: the gateway refuses it, and it is named.
    let file = gateway.options().config_path();
    let (code, _, told) = run_by(&file, &["health"]).await;
    let shown = gateway.options().api.as_ref().unwrap().certificate.display().to_string();
    assert!(code == 1 && told.contains(&shown) && told.contains("clientAuth"), "{told}");

    // The database is away, and the gateway of the file is asked all the same.
    let mut config: toml::Table = std::fs::read_to_string(&file).unwrap().parse().unwrap();
    config["database"]["url"] = "postgresql:///gateway?host=/nowhere".into();
    let away = file.with_file_name("away.toml");
    let with_certificate =
        ["--certificate", files.certificate.to_str().unwrap(), "--key", files.key.to_str().unwrap()];
    let health = [&["health"], &with_certificate[..]].concat();
    std::fs::write(&away, config.to_string()).unwrap();
    let (code, _, told) = run_by(&away, &health).await;
    assert!(code == 1 && told.contains("/nowhere") && told.contains("--url"), "which database? {told}");
    config["control"]["api_listen"] = api.into();
    std::fs::write(&away, config.to_string()).unwrap();
    let (code, stdout, told) = run_by(&away, &health).await;
    assert!(code == 0 && stdout.contains("g ") && stdout.contains("serving"), "{stdout}{told}");
    assert!(told.contains("/nowhere") && told.contains(&url), "{told}");

    // A gateway that has no control API.
    config["control"].as_table_mut().unwrap().retain(|key, _| key == "listen");
    config["control"]["listen"] = "127.0.0.1:7999".into();
    config["database"]["url"] = world.url.clone().into();
    std::fs::write(&away, config.to_string()).unwrap();
    let (code, _, told) = run_by(&away, &["status"]).await;
    assert!(code == 2 && told.contains("away.toml has no [control] client_ca"), "{told}");
    assert!(told.contains("api_listen") && told.contains("http://127.0.0.1:7999/v1/health"), "{told}");
    let node = world.node("node", "g", |_| {}).await;
    let (code, told, _) = run(&world, &gateway, &["drain", "--gateway", "g", "--within", "1m"]).await;
    assert!(code == 0 && told.contains("No other gateway serves"), "{told}");
    let (code, _, told) = run_by(&away, &["revoke", node.name()]).await;
    assert!(code == 0 && told.contains("it is revoked, and gateways find that"), "{told}");
    assert!(told.contains("None was called: ") && told.contains("has no [control] client_ca"), "{told}");
}

#[tokio::test]
async fn who_connects_and_says_nothing_is_let_go_and_holds_up_nobody() {
    let world = World::new("api_silent").await;
    let (_gateway, api) = start(&world, "g", "").await;
    let mut database = world.connect().await;
    let address = control_address(&mut database, "g").await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(tokio::net::TcpStream::connect(&address).await.unwrap());
    }
    assert!(api.health().await.unwrap().0, "others are served beside them");
    for stream in &mut silent {
        let ended = within(SOON, "the silent connection is closed", stream.read(&mut [0; 16])).await;
        assert!(ended.is_err() || ended.is_ok_and(|bytes| bytes == 0));
    }
    assert!(api.health().await.unwrap().0);
}

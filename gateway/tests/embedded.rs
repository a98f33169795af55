//! Gateways that a program embeds, with nodes in the same process: real threads, a real PostgreSQL, no socket between
//! node and gateway.
//!
//! The testbed's simulated nodes run over `gateway::local` as they do over TLS, and are judged by the same ledger
//! and `gateway verify`. The documented example runs here too.
#![allow(clippy::unwrap_used)]

#[path = "../examples/embedded.rs"]
#[allow(dead_code, unreachable_pub)]
mod example;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use gateway::config::Config;
use gateway::report::{AskError, NodeId, Phase};
use gateway::tunnels::{EmbeddedTunnels, IamFuture, IamQuestion, IamVerdict, TunnelIam};
use gateway::{Gateway, GatewayBuilder, GatewayError, RunningGateway};
use gateway_control::client::TunnelOpen;
use gateway_control::tunnel::JwksFile;
use gateway_testbed::database::{NewCommand, enqueue, enqueue_many};
use gateway_testbed::node::{EndKind, Execution, Node, TunnelTaker};
use gateway_testbed::tickets::TicketMint;
use sqlx::PgConnection;
use support::local::InProcess;
use support::tunnels::{client_files, client_of, data_until, rest_of, say};
use support::{ABORTED, RESOURCE_EXHAUSTED, SOON, UNAVAILABLE, World, asked_until};
use uuid::Uuid;

/// Nodes in one process with their gateway.
const MANY: usize = 300;

/// A world with a gateway that this program embeds.
struct Stage {
    world: World,
    dialled: Arc<InProcess>,
}

impl Stage {
    async fn new(story: &str) -> Self {
        Self { world: World::new(story).await, dialled: InProcess::new() }
    }

    fn builder(&self, id: &str, extra: &str) -> GatewayBuilder {
        let options = self.world.options(id, extra);
        options.write().unwrap();
        let file = options.config_path();
        Gateway::builder_from_file(file).unwrap().database(self.world.url.clone())
    }

    /// Starts a gateway, which nodes dial from now on.
    async fn serve(&self, id: &str, extra: &str) -> RunningGateway {
        let builder = self.builder(id, extra);
        let running = tokio::task::spawn_blocking(move || builder.serve(SOON)).await.unwrap().unwrap();
        self.dialled.set(Some(running.handle()));
        running
    }

    /// Nodes of this process that have their `Welcome`.
    async fn nodes(&self, prefix: &str, count: usize, execution: &Execution) -> Vec<Node> {
        let names: Vec<String> = (0..count).map(|index| format!("{prefix}-{index:03}")).collect();
        let identities = self.world.register_all(&names).await;
        let mut nodes = Vec::new();
        for (name, identity) in names.iter().zip(&identities) {
            self.dialled.know(&self.world.id(name), &identity.serial);
            let mut options = self.world.node_options(name, identity, "nowhere");
            options.within = Some(Arc::clone(&self.dialled) as _);
            options.behaviour.execution = execution.clone();
            nodes.push(Node::start(options));
        }
        self.all_welcomed_after(&nodes, 0).await;
        nodes
    }

    async fn all_welcomed_after(&self, nodes: &[Node], epoch: u64) {
        self.world
            .watch
            .until(3 * SOON, "every node has its Welcome", |seen| {
                nodes.iter().all(|node| seen.epoch_of(node.name()) > epoch).then_some(())
            })
            .await;
    }

    async fn enqueue_for(&self, connection: &mut PgConnection, nodes: &[Node], each: usize) -> Vec<Uuid> {
        let names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
        let mut ids = Vec::new();
        for _ in 0..each {
            ids.extend(enqueue_many(connection, &names, b"x").await.unwrap());
        }
        ids
    }
}

/// Off the runtime's threads: it blocks until all threads have ended.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    support::within(2 * SOON, "a gateway's end", tokio::task::spawn_blocking(work)).await.unwrap()
}

#[tokio::test]
async fn hundreds_of_nodes_in_memory_do_their_commands_once_through_a_crash_and_its_takeover() {
    let stage = Stage::new("embedded_many").await;
    let mut database = stage.world.connect().await;
    let first = stage.serve("g", "[shards]\ncount = 2\n").await;
    let nodes = stage.nodes("m", MANY, &Execution::After(Duration::from_millis(30))).await;
    for node in &nodes {
        node.emit("noise", Bytes::from_static(b"one"));
    }
    let mut ids = stage.enqueue_for(&mut database, &nodes, 2).await;
    stage
        .world
        .watch
        .until(SOON, "some are under way", |seen| (seen.started.len() > MANY / 2).then_some(()))
        .await;

    let handle = first.handle();
    assert_eq!(handle.status().sessions, MANY);
    let sessions = handle.sessions().await.unwrap();
    assert_eq!(sessions.len(), MANY);
    for shard in [0, 1] {
        let of_shard = sessions.iter().filter(|session| session.key.shard.0 == shard).count();
        assert!(of_shard > MANY / 4, "shards take turns: {of_shard}");
    }

    // It dies as a process does: no status, no farewell, and the database is told nothing.
    stage.dialled.set(None);
    let epoch: (i64,) = sqlx::query_as("SELECT epoch FROM leases WHERE name = 'gateway:g'")
        .fetch_one(&mut database)
        .await
        .unwrap();
    blocking(|| first.crash()).await.unwrap();
    let lost = stage
        .world
        .watch
        .until(SOON, "every node has lost its session", |seen| {
            let lost: Vec<_> = seen.drops().cloned().collect();
            (lost.len() >= MANY).then_some(lost)
        })
        .await;
    assert!(
        lost.iter().all(|lost| lost.end.kind == EndKind::Transport),
        "nobody was told anything: {lost:?}"
    );
    let (connected, held): (i64, bool) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM node_sessions WHERE disconnected_at IS NULL AND connected_at IS NOT NULL), \
                (SELECT expires_at > now() FROM leases WHERE name = 'gateway:g')",
    )
    .fetch_one(&mut database)
    .await
    .unwrap();
    assert_eq!((connected, held), (MANY as i64, true), "nothing was written for its end");
    assert_eq!(handle.sessions().await, Err(AskError::Stopped));
    ids.extend(stage.enqueue_for(&mut database, &nodes, 1).await);

    // A successor in the same process takes the lease over at once, since the lock is free.
    let second = stage.serve("g", "[shards]\ncount = 2\n").await;
    let after: (i64,) = sqlx::query_as("SELECT epoch FROM leases WHERE name = 'gateway:g'")
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert!(after.0 > epoch.0, "{after:?} follows {epoch:?}");
    stage.all_welcomed_after(&nodes, 1).await;
    for node in &nodes {
        node.emit("noise", Bytes::from_static(b"two"));
    }
    stage.world.watch.all_settled(&ids, 3 * SOON).await;
    stage
        .world
        .watch
        .until(SOON, "every event is acked", |seen| {
            nodes.iter().all(|node| seen.events_acked_to(node.name()) == 2).then_some(())
        })
        .await;
    let report = stage.world.ledger(&mut database, &ids).await;
    eprintln!("{report:?}");
    assert_eq!(second.handle().status().sessions, MANY);

    let mut second = second;
    second.stop();
    blocking(|| second.join()).await.unwrap();
    let told = stage
        .world
        .watch
        .look(|seen| seen.drops().filter(|ended| ended.end.status() == Some(UNAVAILABLE)).count());
    assert!(told >= MANY, "a stop tells every node, a crash none: {told}");
    let (left,): (i64,) = sqlx::query_as(
        "SELECT count(*) FROM node_sessions WHERE disconnected_at IS NULL AND connected_at IS NOT NULL",
    )
    .fetch_one(&mut database)
    .await
    .unwrap();
    assert_eq!(left, 0, "a stop writes the disconnects");
}

#[tokio::test]
async fn a_storm_in_memory_is_spread_by_pushbacks_and_everyone_gets_in() {
    let stage = Stage::new("embedded_pushback").await;
    let extra = "[admission]\nopens_per_second = 20\nopens_burst = 10\n[shards]\ncount = 1\n";
    let running = stage.serve("g", extra).await;
    let nodes = stage.nodes("s", 40, &Execution::Instantly).await;
    let refused = stage
        .world
        .watch
        .look(|seen| seen.ended.iter().filter(|ended| !ended.end.was_welcomed).cloned().collect::<Vec<_>>());
    assert!(refused.len() >= 20, "{}", refused.len());
    for ended in &refused {
        assert_eq!(ended.end.status(), Some(RESOURCE_EXHAUSTED), "{ended:?}");
        assert!(ended.end.pushback.is_some_and(|pushback| !pushback.is_zero()), "{ended:?}");
    }
    assert_eq!(running.handle().status().sessions, nodes.len());
    blocking(|| running.crash()).await.unwrap();
}

#[tokio::test]
async fn a_drain_that_an_embedder_asks_for_refuses_with_a_pushback_and_is_taken_back() {
    let stage = Stage::new("embedded_drain").await;
    let running = stage.serve("g", "").await;
    let handle = running.handle();
    let node = stage.nodes("d", 1, &Execution::Instantly).await.remove(0);
    let id = NodeId::new(node.name()).unwrap();
    let session = handle.session(id.clone()).await.unwrap().expect("it is here");
    assert_eq!((session.epoch.0, session.lanes.len()), (1, 1));

    let drained = handle.drain(Duration::from_secs(60)).await.unwrap();
    assert_eq!((drained.sessions, drained.is_new), (1, true));
    assert!(!handle.drain(Duration::from_secs(1)).await.unwrap().is_new, "the first one stands");
    asked_until(SOON, "its status says so", async || {
        (handle.status().phase == Phase::Draining).then_some(())
    })
    .await;
    node.cut();
    stage
        .world
        .watch
        .until(SOON, "it is refused with a delay", |seen| {
            let refused = |ended: &&support::watch::Ended| {
                ended.end.status() == Some(UNAVAILABLE) && ended.end.pushback.is_some()
            };
            seen.ended.iter().find(refused).map(|_| ())
        })
        .await;
    assert_eq!(handle.session(id).await, Ok(None));
    assert_eq!(handle.undrain().await, Ok(true));
    assert_eq!(handle.undrain().await, Ok(false));
    stage.all_welcomed_after(std::slice::from_ref(&node), 1).await;

    handle.stop();
    blocking(|| running.join()).await.unwrap();
    assert_eq!(handle.undrain().await, Err(AskError::Stopped));
    assert_eq!(handle.status().phase, Phase::Stopped);
}

#[tokio::test]
async fn a_node_in_memory_and_one_over_tls_with_the_same_identity_supersede_each_other() {
    let stage = Stage::new("embedded_supersede").await;
    let running = stage.serve("g", "[sessions]\nduplicate_flips = 0\n").await;
    let names = ["twin".to_owned()];
    let identity = stage.world.register_all(&names).await.remove(0);
    stage.dialled.know(&stage.world.id("twin"), &identity.serial);
    let mut options = stage.world.node_options("twin", &identity, "g");
    options.within = Some(Arc::clone(&stage.dialled) as _);
    options.redial.first = Duration::from_secs(3600);
    options.redial.max = options.redial.first;
    let in_memory = Node::start(options);
    let epoch = stage.world.watch.connected_after(in_memory.name(), 0).await;
    let over_tls = Node::start(stage.world.node_options("twin", &identity, "g"));
    stage.world.watch.connected_after(over_tls.name(), epoch).await;
    stage
        .world
        .watch
        .until(SOON, "the one in memory is superseded", |seen| {
            seen.drops().find(|ended| ended.end.status() == Some(ABORTED)).map(|_| ())
        })
        .await;
    let mut database = stage.world.connect().await;
    let id = enqueue(&mut database, &NewCommand::new(over_tls.name(), b"x")).await.unwrap();
    stage.world.watch.all_settled(&[id], SOON).await;
    drop((in_memory, over_tls));
    blocking(|| running.crash()).await.unwrap();
}

#[tokio::test]
async fn nobody_unknown_gets_in_by_living_in_the_same_process() {
    let stage = Stage::new("embedded_unknown").await;
    let running = stage.serve("g", "").await;
    let identity = stage.world.register_all(&["known".to_owned()]).await.remove(0);
    let handle = running.handle();
    for (node, serial, status) in [
        // A serial that node_certs does not have, a node that it has another serial of, a domain of others.
        (stage.world.id("known"), "ABCDEF", 16),
        (stage.world.id("unknown"), identity.serial.as_str(), 7),
        ("spiffe://elsewhere.example/site/a/node/b".to_owned(), identity.serial.as_str(), 16),
    ] {
        stage.dialled.know(&node, serial);
        let mut options = stage.world.node_options("any", &identity, "g");
        options.name.clone_from(&node);
        options.within = Some(Arc::clone(&stage.dialled) as _);
        let peer = Node::start(options);
        let end = stage
            .world
            .watch
            .until(SOON, "it is refused", |seen| {
                seen.ended.iter().find(|ended| *ended.node == *node).map(|ended| ended.end.clone())
            })
            .await;
        assert_eq!(end.status(), Some(status), "{node}: {end:?}");
        drop(peer);
    }
    assert_eq!(handle.sessions().await.unwrap(), []);
    blocking(|| running.crash()).await.unwrap();
}

#[tokio::test]
async fn what_is_wrong_with_the_parts_is_said_when_they_are_put_together() {
    let stage = Stage::new("embedded_wrong").await;
    let builder = stage.builder("g", "").database("mysql://u:secret@h/d");
    let error = blocking(|| builder.start().map(drop)).await.unwrap_err();
    let sentence = error.to_string();
    assert!(matches!(error, GatewayError::Config(_)) && sentence.contains("database.url"), "{sentence}");
    assert!(!sentence.contains("secret"), "{sentence}");
    let (config, _) = Config::parse("[gateway]\nid = \"g\"\n[sessions]\nlanes_per_node = 0\n").unwrap();
    let error = blocking(|| Gateway::builder(config).start().map(drop)).await.unwrap_err();
    assert!(error.to_string().contains("sessions.lanes_per_node"), "{error}");
    // The lock is one a gateway, in one process as in two.
    let running = stage.serve("g", "").await;
    let twin = stage.builder("g", "");
    let error = blocking(|| twin.start().map(drop)).await.unwrap_err();
    assert!(matches!(error, GatewayError::AlreadyRunning(_)), "{error}");
    blocking(|| running.crash()).await.unwrap();
}

#[tokio::test]
async fn the_documented_example_runs() {
    let world = World::new("embedded_example").await;
    let mut options = world.options("example", "");
    options.trust_domain = Some("fleet.example".to_owned());
    options.write().unwrap();
    let config = options.config_path();
    let done = blocking(move || example::run(&config)).await.unwrap();
    assert_eq!(done, "hello");
    let mut database = world.connect().await;
    let work = asked_until(SOON, "the hook's work", async || {
        let (count,): (i64,) = sqlx::query_as("SELECT count(*) FROM work WHERE kind = 'door.look'")
            .fetch_one(&mut database)
            .await
            .unwrap();
        (count > 0).then_some(count)
    });
    assert_eq!(work.await, 1);
    world.verify_rows().await;
}

/// Allows callers until it is told not to.
struct Allows(Arc<AtomicBool>);

impl TunnelIam for Allows {
    fn reauthorize(&self, question: IamQuestion) -> IamFuture<'_> {
        assert_eq!((question.kind.as_str(), question.subject.as_str()), ("echo", "ada"));
        let verdict = if self.0.load(Relaxed) { IamVerdict::Allowed } else { IamVerdict::Refused };
        Box::pin(async move { verdict })
    }
}

#[tokio::test]
async fn a_program_brings_the_keys_of_tickets_as_a_file_and_is_asked_about_callers_itself() {
    let stage = Stage::new("embedded_tunnels").await;
    let (mint, allows) = (Arc::<TicketMint>::default(), Arc::new(AtomicBool::new(true)));
    let options = stage.world.options_with_api("g", "[tunnels]\nreauthorize_every = \"200ms\"\n");
    options.write().unwrap();
    let jwks = options.dir.join("jwks.json");
    std::fs::write(&jwks, mint.jwks()).unwrap();
    let tunnels = EmbeddedTunnels::default().with_keys(JwksFile(jwks)).with_iam(Allows(Arc::clone(&allows)));
    let builder = Gateway::builder_from_file(options.config_path()).unwrap();
    let builder = builder.database(stage.world.url.clone()).tunnels(tunnels);
    let mut running = blocking(move || builder.serve(SOON)).await.unwrap();
    let taker = TunnelTaker::of(&mint);
    let node = stage.world.node("n1", "g", |options| options.tunnels = Some(taker)).await;
    let client = client_of(&stage.world, "g", &client_files(&options)).await;
    let wish = TunnelOpen {
        ticket: mint.mint(node.name()),
        node_id: node.name().to_owned(),
        kind: "echo".to_owned(),
        parameters: [].into(),
    };
    let mut tunnel = support::within(SOON, "a tunnel", client.open_tunnel(&wish)).await.unwrap();
    say(&mut tunnel, "hello").await;
    data_until(&mut tunnel, "hello").await;
    allows.store(false, Relaxed);
    let (_, _, code, why) = rest_of(&mut tunnel).await;
    assert_eq!(code, 7, "PERMISSION_DENIED: {why}");
    drop(node);
    blocking(move || {
        running.stop();
        running.join()
    })
    .await
    .unwrap();
}

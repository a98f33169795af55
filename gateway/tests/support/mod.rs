//! The world of a socket story: a real PostgreSQL, a throw-away PKI, the gateway's own binary as a
//! process, and simulated nodes over TLS.
//!
//! A story makes a `World`, starts gateways in it, and lets nodes dial them. What nodes see goes to
//! one `Watch`, what they do to one execution log; both are what a story awaits and judges by.
//!
//! 1. One cluster serves all stories of a test binary, each with a database of its own; a story that
//!    stops the server has a cluster of its own.
//! 2. A gateway keeps its port over restarts: `World` holds the port all the time.
//! 3. Nothing is slept for: each wait has a signal, a deadline, and a sentence for when it passes.
//! 4. A story that fails shows the ends of its gateways' logs.

#![allow(dead_code, unreachable_pub)]

pub mod api;
pub mod health;
pub mod load;
pub mod local;
pub mod tunnels;
pub mod watch;
pub mod wire;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use gateway_testbed::cluster::{Cluster, ClusterOptions, tail};
use gateway_testbed::database::{register_certificates, register_nodes};
use gateway_testbed::gateway_process::{GatewayOptions, GatewayProcess};
use gateway_testbed::ledger::{LedgerReport, LedgerScope, check_ledger};
use gateway_testbed::node::{ExecutionLog, LogLine, Node, NodeOptions, RedialBounds, Target, Transport};
use gateway_testbed::pki::{GatewayFiles, Identity, Pki};
use socket2::{Domain, Protocol, Socket, Type};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use uuid::Uuid;

pub use watch::Watch;

/// How long a story waits for what should take milliseconds, on a machine that others use too.
pub const SOON: Duration = Duration::from_secs(20);
/// Nodes of stories dial again quickly.
pub const QUICK_REDIAL: RedialBounds =
    RedialBounds { first: Duration::from_millis(50), max: Duration::from_millis(400) };

/// gRPC codes that stories look for.
pub const RESOURCE_EXHAUSTED: u32 = 8;
pub const ABORTED: u32 = 10;
pub const UNAVAILABLE: u32 = 14;

/// All that a story stands on.
pub struct World {
    cluster: Option<Cluster>,
    folder: TempDir,
    pub pki: Pki,
    pub files: GatewayFiles,
    /// The name of the story's database, and its URL.
    pub database: String,
    pub url: String,
    pub watch: Arc<Watch>,
    log: Arc<ExecutionLog>,
    places: Mutex<Vec<Place>>,
    gateway_logs: Mutex<Vec<PathBuf>>,
}

/// A gateway's port, held by a socket that does not listen: the kernel gives it to nobody else, and
/// lets the gateway's listeners of the same user share it.
struct Place {
    name: String,
    address: SocketAddr,
    _socket: Socket,
}

impl World {
    /// On the cluster that the stories of this binary share.
    pub async fn new(story: &str) -> Self {
        static CLUSTER: OnceLock<Cluster> = OnceLock::new();
        let cluster =
            CLUSTER.get_or_init(|| Cluster::start(ClusterOptions::default()).expect("a private cluster"));
        Self::on(cluster, story).await
    }

    /// On a cluster of its own, which the story may stop, kill or pause.
    pub async fn with_own_cluster(story: &str) -> Self {
        let cluster = Cluster::start(ClusterOptions::default()).expect("a private cluster");
        let mut world = Self::on(&cluster, story).await;
        world.cluster = Some(cluster);
        world
    }

    async fn on(cluster: &Cluster, story: &str) -> Self {
        static STORIES: AtomicU32 = AtomicU32::new(0);
        let database = format!("{story}_{}", STORIES.fetch_add(1, Ordering::Relaxed));
        let url = cluster.create_database(&database).await.expect("a database for the story");
        let folder = tempfile::Builder::new().prefix("gateway-story-").tempdir().expect("a folder");
        let pki = Pki::new().expect("a throw-away PKI");
        let files = pki.write_gateway_files(folder.path()).expect("the gateway's TLS files");
        let log = ExecutionLog::open(&folder.path().join("nodes.jsonl")).expect("the nodes' log");
        let world = Self {
            cluster: None,
            folder,
            pki,
            files,
            database,
            url,
            watch: Arc::default(),
            log: Arc::new(log),
            places: Mutex::default(),
            gateway_logs: Mutex::default(),
        };
        world.options("migration", "").migrate().await.expect("gateway migrate");
        world
    }

    /// The story's own cluster.
    pub fn cluster(&mut self) -> &mut Cluster {
        self.cluster.as_mut().expect("the story was begun with World::with_own_cluster")
    }

    /// A new connection to the story's database.
    pub async fn connect(&self) -> PgConnection {
        let connecting = PgConnection::connect(&self.url);
        within(SOON, "a connection to the database", connecting).await.expect("the database")
    }

    // -- gateways --------------------------------------------------------------------------------

    /// How to run the gateway `id`: quiet timings as in production, its folder and port by its id,
    /// `extra` TOML merged over the rest.
    pub fn options(&self, id: &str, extra: &str) -> GatewayOptions {
        self.options_in(id, id, extra)
    }

    /// The same with a folder and a port that go by `place`: a process on "another host".
    pub fn options_in(&self, place: &str, id: &str, extra: &str) -> GatewayOptions {
        let binary = PathBuf::from(env!("CARGO_BIN_EXE_gateway"));
        let (dir, files) = (self.folder.path().join(place), self.files.clone());
        let mut options = GatewayOptions::new(binary, dir, self.url.clone(), files);
        options.id = id.to_owned();
        options.listen = self.address_of(place).to_string();
        options.extra = extra.to_owned();
        options.ready_timeout = Duration::from_secs(20);
        options
    }

    /// The same with a control API.
    pub fn options_with_api(&self, id: &str, extra: &str) -> GatewayOptions {
        let mut options = self.options(id, extra);
        let folder = self.folder.path().join(format!("{id}-control"));
        let files = self.pki.write_control_files(&folder).expect("the control API's files");
        options.api = Some(Box::new(files));
        options
    }

    /// Starts a gateway and waits until it serves.
    pub async fn start(&self, options: GatewayOptions) -> GatewayProcess {
        self.remember_log(options.log_path());
        match GatewayProcess::start(options).await {
            Ok(gateway) => gateway,
            Err(error) => panic!("{error}"),
        }
    }

    fn remember_log(&self, log: PathBuf) {
        let mut logs = self.gateway_logs.lock().unwrap_or_else(PoisonError::into_inner);
        if !logs.contains(&log) {
            logs.push(log);
        }
    }

    /// The gateway `id`, serving.
    pub async fn gateway(&self, id: &str, extra: &str) -> GatewayProcess {
        self.start(self.options(id, extra)).await
    }

    /// Where the gateway of that place listens, or will.
    pub fn address_of(&self, place: &str) -> SocketAddr {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = places.iter().find(|known| known.name == place) {
            return known.address;
        }
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).expect("a socket");
        // As the gateway's listeners do it, or they could not share the port with this socket.
        socket.set_reuse_port(true).expect("SO_REUSEPORT");
        socket.set_reuse_address(true).expect("SO_REUSEADDR");
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("a free port");
        let address = socket.local_addr().ok().and_then(|address| address.as_socket());
        let address = address.expect("a bound socket has an address");
        places.push(Place { name: place.to_owned(), address, _socket: socket });
        address
    }

    // -- nodes -----------------------------------------------------------------------------------

    /// The node id of the node that stories call `name`.
    pub fn id(&self, name: &str) -> String {
        self.pki.node_id(name)
    }

    /// Makes a node known to the database; gives its certificate.
    pub async fn register(&self, name: &str) -> Identity {
        self.register_all(&[name.to_owned()]).await.remove(0)
    }

    /// Makes nodes known to the database; gives their certificates.
    pub async fn register_all(&self, names: &[String]) -> Vec<Identity> {
        let identities = self.pki.nodes(names.iter().map(String::as_str)).expect("certificates");
        let ids: Vec<String> = names.iter().map(|name| self.id(name)).collect();
        let serials: Vec<String> = identities.iter().map(|identity| identity.serial.clone()).collect();
        let mut connection = self.connect().await;
        register_nodes(&mut connection, &ids).await.expect("registering nodes");
        register_certificates(&mut connection, &ids, &serials).await.expect("registering certificates");
        identities
    }

    /// Where and as whom to dial the gateway of `place`.
    pub fn target(&self, place: &str, identity: &Identity) -> Target {
        let tls = self.pki.client_config(Some(identity)).expect("a client's TLS configuration");
        Target::new(self.address_of(place), tls).over(transport())
    }

    /// A node of the gateway at `place`, watched and logged.
    pub fn node_options(&self, name: &str, identity: &Identity, place: &str) -> NodeOptions {
        let mut options = NodeOptions::new(&self.id(name), self.target(place, identity));
        options.observer = Arc::clone(&self.watch) as _;
        options.log = Some(Arc::clone(&self.log));
        options.redial = QUICK_REDIAL;
        options
    }

    /// Registers a node, starts it as `shape` makes it, and waits for its `Welcome`.
    pub async fn node(&self, name: &str, place: &str, shape: impl FnOnce(&mut NodeOptions)) -> Node {
        let identity = self.register(name).await;
        let mut options = self.node_options(name, &identity, place);
        shape(&mut options);
        let before = self.watch.epoch_of(&options.name);
        let node = Node::start(options);
        self.watch.connected_after(node.name(), before).await;
        node
    }

    /// Registers `count` nodes called `<prefix>-000…`, starts each as `shape` makes it, and waits
    /// until all have their `Welcome`.
    pub async fn nodes(
        &self,
        prefix: &str,
        count: usize,
        place: &str,
        shape: impl Fn(&mut NodeOptions),
    ) -> Vec<Node> {
        let names: Vec<String> = (0..count).map(|index| format!("{prefix}-{index:03}")).collect();
        let identities = self.register_all(&names).await;
        let nodes = names.iter().zip(&identities).map(|(name, identity)| {
            let mut options = self.node_options(name, identity, place);
            shape(&mut options);
            Node::start(options)
        });
        let nodes: Vec<Node> = nodes.collect();
        self.watch
            .until(SOON, "every node has its Welcome", |seen| {
                nodes.iter().all(|node| seen.epoch_of(node.name()) > 0).then_some(())
            })
            .await;
        nodes
    }

    // -- judging ---------------------------------------------------------------------------------

    /// What the nodes did so far.
    pub fn log_lines(&self) -> Vec<LogLine> {
        self.log.flush().expect("the nodes' log");
        ExecutionLog::read(self.log.path()).expect("the nodes' log")
    }

    /// Holds the rows against what was enqueued and what the nodes did: every command has one
    /// terminal row, and one execution start where it ran.
    pub async fn ledger(&self, connection: &mut PgConnection, enqueued: &[Uuid]) -> LedgerReport {
        self.log.flush().expect("the nodes' log");
        let enqueued: HashSet<Uuid> = enqueued.iter().copied().collect();
        let logs: [&Path; 1] = [self.log.path()];
        let report = check_ledger(connection, &enqueued, &logs, LedgerScope::WholeDatabase)
            .await
            .expect("reading the ledger");
        assert!(report.is_sound(), "the ledger is not sound: {report:#?}");
        self.verify().await;
        report
    }

    /// `gateway verify`, with the nodes' logs: what must always hold does.
    pub async fn verify(&self) {
        self.log.flush().expect("the nodes' log");
        self.verify_with(&[OsStr::new("--node-logs"), self.log.path().as_os_str()]).await;
    }

    /// The same of the database alone, for stories in which a node loses what it knew.
    pub async fn verify_rows(&self) {
        self.verify_with(&[]).await;
    }

    async fn verify_with(&self, more: &[&OsStr]) {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_gateway"));
        command.args(["verify", "--database-url", &self.url]).args(more);
        let output = within(SOON * 3, "gateway verify", command.kill_on_drop(true).output()).await;
        let output = output.expect("gateway verify runs");
        let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "gateway verify: {}\n{told}", output.status);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for log in self.gateway_logs.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                eprintln!("── the end of {} ──\n{}", log.display(), tail(log, 40));
            }
            eprintln!("── what nodes saw last ──\n{}", self.watch.summary());
        }
    }
}

/// What nodes speak: HTTP/2, or with `GATEWAY_TRANSPORT=websocket` what most stories hold for too.
pub fn transport() -> Transport {
    match std::env::var("GATEWAY_TRANSPORT").as_deref() {
        Ok("websocket") => Transport::WebSocket,
        Ok("h2") | Err(_) => Transport::Http2,
        Ok(other) => panic!("GATEWAY_TRANSPORT is {other:?}; it may be h2 or websocket"),
    }
}

/// Awaits `future`; a story that waits longer than `limit` fails with the sentence.
pub async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, future).await {
        Ok(output) => output,
        Err(_) => panic!("not within {limit:?}: {what}"),
    }
}

/// Asks `question` every 20 ms until it has an answer: only for what nothing signals.
pub async fn asked_until<T>(limit: Duration, what: &str, mut question: impl AsyncFnMut() -> Option<T>) -> T {
    let asked = async {
        let mut pace = tokio::time::interval(Duration::from_millis(20));
        loop {
            pace.tick().await;
            if let Some(answer) = question().await {
                return answer;
            }
        }
    };
    within(limit, what, asked).await
}

/// Tells a number that the story measured.
pub fn measured(what: &str, value: impl std::fmt::Display) {
    eprintln!("measured: {what}: {value}");
}

/// Seconds since `since`, as text.
pub fn seconds(since: Instant) -> String {
    format!("{:.3} s", since.elapsed().as_secs_f64())
}

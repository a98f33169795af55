//! What stands around a run: cluster, certificates, database, gateway.
//!
//! 1. Everything that was started ends with it, the gateway first.
//! 2. The gateway runs with its defaults, but for what a run has to set: admission wide open, room
//!    for all sessions, the heartbeat asked for.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use gateway_testbed::cluster::{Cluster, ClusterOptions};
use gateway_testbed::database::register_nodes;
use gateway_testbed::gateway_process::{GatewayOptions, GatewayProcess};
use gateway_testbed::node::ExecutionLog;
use gateway_testbed::pki::Pki;
use gateway_testbed::process::{Usage, usage};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

use crate::arguments::GatewayArguments;
use crate::progress::say;

const DATABASE: &str = "gateway";
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// What to build.
#[derive(Debug)]
pub(crate) struct WorldPlan {
    pub(crate) sessions: usize,
    pub(crate) heartbeat: Duration,
    pub(crate) gateway: GatewayArguments,
    /// Where cluster, certificates and gateway live; `None`: temporary folders.
    pub(crate) dir: Option<PathBuf>,
    /// Instead of `<dir>/postgres`, where the database's account can't reach that.
    pub(crate) cluster_dir: Option<PathBuf>,
    pub(crate) listen: SocketAddr,
}

/// All that a run needs. Fields are dropped from top to bottom.
#[derive(Debug)]
pub(crate) struct World {
    gateway: Gateway,
    cluster: Option<Cluster>,
    pki: Pki,
    database_url: String,
    log: Arc<ExecutionLog>,
    node_names: Vec<String>,
    dir: PathBuf,
    _folder: Option<TempDir>,
}

#[derive(Debug)]
enum Gateway {
    Own(Box<GatewayProcess>),
    Running { address: SocketAddr, pid: Option<u32> },
}

impl World {
    /// Builds it, or attaches to what runs.
    pub(crate) async fn build(plan: WorldPlan) -> anyhow::Result<Self> {
        // Connections of the nodes here and of the gateway there, and some for all the rest.
        crate::host::allow_files(plan.sessions as u64 + 300)?;
        let (dir, folder) = match &plan.dir {
            Some(dir) => (std::path::absolute(dir)?, None),
            None => {
                let folder = tempfile::Builder::new().prefix("bench-gateway-").tempdir()?;
                (folder.path().to_owned(), Some(folder))
            }
        };
        std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        let log_path = dir.join("nodes.jsonl");
        // An older run's log tells nothing about this one.
        let _ = std::fs::remove_file(&log_path);
        let log = Arc::new(ExecutionLog::open(&log_path).context("opening the nodes' log")?);
        match (plan.gateway.attach, &plan.gateway.database_url, &plan.gateway.pki) {
            (Some(address), Some(url), Some(folder_of_pki)) => {
                let pki = Pki::open(folder_of_pki)?;
                let mut connection =
                    PgConnection::connect(url).await.context("the database of --database-url")?;
                // Names of this run's own: two nodes of one name would end each other's sessions.
                let run = uuid::Uuid::new_v4().simple().to_string();
                let node_names =
                    names_of(&format!("bench-{}", run.get(..8).unwrap_or_default()), plan.sessions);
                make_nodes_known(&mut connection, &pki, &node_names).await?;
                let gateway = Gateway::Running { address, pid: plan.gateway.gateway_pid };
                let database_url = url.clone();
                Ok(Self { gateway, cluster: None, pki, database_url, log, node_names, dir, _folder: folder })
            }
            _ => Self::build_own(&plan, dir, folder, log).await,
        }
    }

    async fn build_own(
        plan: &WorldPlan,
        dir: PathBuf,
        folder: Option<TempDir>,
        log: Arc<ExecutionLog>,
    ) -> anyhow::Result<Self> {
        let binary = gateway_binary(plan.gateway.gateway_bin.as_deref())?;
        say("starting a PostgreSQL cluster …");
        let cluster_dir = match (&plan.cluster_dir, &folder) {
            (Some(dir), _) => Some(dir.clone()),
            (None, None) => Some(dir.join("postgres")),
            // A temporary one is closed to the database's account; it gets its own.
            (None, Some(_)) => None,
        };
        let cluster = Cluster::start(ClusterOptions { dir: cluster_dir, ..ClusterOptions::default() })?;
        let database_url = cluster.create_database(DATABASE).await?;
        let pki = match &folder {
            Some(_) => Pki::new()?,
            None => Pki::open(&dir.join("pki"))?,
        };
        let files = pki.write_gateway_files(&dir.join("tls"))?;
        let mut options = GatewayOptions::new(binary, dir.join("gateway"), database_url.clone(), files);
        options.id = "bench-gateway".to_owned();
        options.listen = plan.listen.to_string();
        options.shards = plan.gateway.shards;
        options.orphan_folder = folder.as_ref().map(|folder| folder.path().to_owned());
        options.extra = gateway_toml(plan)?;
        say("migrating the database and starting the gateway …");
        let migrated = options.migrate().await;
        match folder.is_some() {
            true => migrated?,
            false => {
                migrated.with_context(|| format!("to start over, delete {}", cluster.dir().display()))?
            }
        }
        let mut connection = cluster.connect(DATABASE).await?;
        let node_names = names_of("node", plan.sessions);
        make_nodes_known(&mut connection, &pki, &node_names).await?;
        let gateway = GatewayProcess::start(options).await?;
        say(&format!("the gateway (process {}) listens on {}", gateway.pid(), gateway.address()));
        let gateway = Gateway::Own(Box::new(gateway));
        Ok(Self { gateway, cluster: Some(cluster), pki, database_url, log, node_names, dir, _folder: folder })
    }

    pub(crate) fn pki(&self) -> &Pki {
        &self.pki
    }

    /// The run's nodes, by the names in their certificates.
    pub(crate) fn node_names(&self) -> &[String] {
        &self.node_names
    }

    /// Their node ids, in the same order.
    pub(crate) fn node_ids(&self) -> Arc<[String]> {
        self.node_names.iter().map(|name| self.pki.node_id(name)).collect()
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn log(&self) -> &Arc<ExecutionLog> {
        &self.log
    }

    pub(crate) fn database_url(&self) -> &str {
        &self.database_url
    }

    /// Where nodes connect.
    pub(crate) fn address(&self) -> SocketAddr {
        match &self.gateway {
            Gateway::Own(gateway) => gateway.address(),
            Gateway::Running { address, .. } => *address,
        }
    }

    /// Whether nobody else uses the gateway's database.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.gateway, Gateway::Own(_))
    }

    /// The gateway's process, where it is known.
    pub(crate) fn gateway_pid(&self) -> Option<u32> {
        match &self.gateway {
            Gateway::Own(gateway) => Some(gateway.pid()),
            Gateway::Running { pid, .. } => *pid,
        }
    }

    /// What the gateway uses and holds, where its process is known.
    pub(crate) fn gateway_usage(&self) -> anyhow::Result<Option<Usage>> {
        match self.gateway_pid() {
            Some(pid) => {
                Ok(Some(usage(pid).with_context(|| format!("the gateway (process {pid}) is gone"))?))
            }
            None => Ok(None),
        }
    }

    /// Stops the gateway for a while and lets it go on.
    pub(crate) async fn stall(&mut self, how_long: Duration) -> anyhow::Result<()> {
        match &mut self.gateway {
            Gateway::Own(gateway) => {
                gateway.pause()?;
                tokio::time::sleep(how_long).await;
                Ok(gateway.resume()?)
            }
            Gateway::Running { .. } => anyhow::bail!("--inject-stall needs a gateway of the harness's own"),
        }
    }

    /// A connection of the harness's own.
    pub(crate) async fn connect(&self) -> anyhow::Result<PgConnection> {
        PgConnection::connect(&self.database_url).await.context("connecting to the database")
    }

    /// Stops what was started, cleanly. Gives what did not end as it should.
    pub(crate) async fn close(mut self) -> anyhow::Result<Vec<String>> {
        let mut violations = Vec::new();
        if let Gateway::Own(gateway) = &mut self.gateway {
            let status = gateway.terminate(STOP_TIMEOUT).await?;
            if !status.success() {
                violations.push(format!("the gateway ended with {status}:\n{}", gateway.log_tail(10)));
            }
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.stop(gateway_testbed::cluster::StopMode::Fast)?;
        }
        Ok(violations)
    }
}

fn gateway_binary(asked: Option<&Path>) -> anyhow::Result<PathBuf> {
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

fn names_of(prefix: &str, sessions: usize) -> Vec<String> {
    (0..sessions).map(|index| format!("{prefix}-{index:05}")).collect()
}

async fn make_nodes_known(connection: &mut PgConnection, pki: &Pki, names: &[String]) -> anyhow::Result<()> {
    let ids: Vec<String> = names.iter().map(|name| pki.node_id(name)).collect();
    register_nodes(connection, &ids).await.context("registering the nodes")
}

fn gateway_toml(plan: &WorldPlan) -> anyhow::Result<String> {
    let (room, heartbeat) = (plan.sessions + 1000, humantime::format_duration(plan.heartbeat));
    let mut text = format!(
        "[admission]\nopens_per_second = 100000\nopens_burst = 100000\nmax_streams = {room}\n\
         max_pending_hellos = {room}\n[sessions]\nheartbeat_interval = \"{heartbeat}\"\n"
    );
    if let Some(path) = &plan.gateway.gateway_toml {
        let more = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let mut base: toml::Table = text.parse()?;
        let more: toml::Table = more.parse().with_context(|| path.display().to_string())?;
        for (section, keys) in more {
            match (base.get_mut(&section), keys) {
                (Some(toml::Value::Table(base)), toml::Value::Table(keys)) => base.extend(keys),
                (_, keys) => drop(base.insert(section, keys)),
            }
        }
        text = base.to_string();
    }
    Ok(text)
}

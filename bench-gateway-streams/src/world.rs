//! What stands around a run: cluster, certificates, database, gateways, and where there are several, the
//! balancers before them.
//!
//! 1. Everything that was started ends with it, the balancers first, then the gateways.
//! 2. A gateway runs with its defaults, but for what a run has to set: the admission asked for, room
//!    for all sessions, the heartbeat asked for.

mod building;
mod enrolling;
mod members;
mod metrics;
mod settings;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use gateway_testbed::authority::Authority;
use gateway_testbed::balancer::Balancer;
use gateway_testbed::cluster::{Cluster, ClusterError, ClusterOptions};
use gateway_testbed::gateway_process::GatewayOptions;
use gateway_testbed::node::ExecutionLog;
use gateway_testbed::pki::{GatewayFiles, Pki};
use gateway_testbed::process::{Usage, usage};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

use crate::arguments::GatewayArguments;
use crate::fleet::log_of;
use crate::progress::say;
use crate::scenario::chaos::SmallDisk;

use self::building::{
    gateway_binary, make_nodes_known, names_of, spread_of, start_balancers, start_bystander, start_members,
};
use self::settings::gateway_toml;

pub(crate) use self::members::{Member, fixed_address};
pub(crate) use self::metrics::{Metrics, MetricsSource};

const DATABASE: &str = "gateway";

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
    /// Further settings of the database server.
    pub(crate) cluster_settings: Vec<(String, String)>,
    pub(crate) listen: SocketAddr,
    /// Several stand behind balancers.
    pub(crate) gateways: usize,
    /// Sessions that each gateway opens in a second; `None`: wide open.
    pub(crate) opens_per_second: Option<u32>,
    /// The leases' time to live; `None`: the gateway's own.
    pub(crate) lease_ttl: Option<Duration>,
    /// Whether a development authority stands behind the gateway, so that machines can join; it then has a control API
    /// too, which its own certificate may call.
    pub(crate) authority: bool,
    /// Over how long a gateway that is told to stop spreads its nodes; `None`: the gateway's own.
    pub(crate) drain: Option<Duration>,
    /// Whether one more gateway runs on the same database, which none of the run's nodes knows.
    pub(crate) bystander: bool,
    /// What the scenario sets beside that.
    pub(crate) more_toml: &'static str,
}

impl WorldPlan {
    /// One gateway with its admission wide open, everything in temporary folders.
    pub(crate) fn new(sessions: usize, heartbeat: Duration, gateway: GatewayArguments) -> Self {
        Self {
            sessions,
            heartbeat,
            gateway,
            dir: None,
            cluster_dir: None,
            cluster_settings: Vec::new(),
            listen: ([127, 0, 0, 1], 0).into(),
            gateways: 1,
            opens_per_second: None,
            lease_ttl: None,
            authority: false,
            drain: None,
            bystander: false,
            more_toml: "",
        }
    }
}

/// All that a run needs. Fields are dropped from top to bottom.
#[derive(Debug)]
pub(crate) struct World {
    balancers: Vec<Balancer>,
    gateway: Gateway,
    bystander: Option<Member>,
    authority: Option<Authority>,
    cluster: Option<Cluster>,
    pki: Pki,
    files: Option<GatewayFiles>,
    binary: Option<PathBuf>,
    database_url: String,
    log: Arc<ExecutionLog>,
    node_names: Vec<String>,
    load_processes: usize,
    source_addresses: u16,
    pki_folder: Option<PathBuf>,
    dir: PathBuf,
    _disk: Option<SmallDisk>,
    _folder: Option<TempDir>,
}

#[derive(Debug)]
enum Gateway {
    Own(Vec<Member>),
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
        let (load_processes, source_addresses) = spread_of(&plan);
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
                let binary = gateway_binary(plan.gateway.gateway_bin.as_deref()).ok();
                Ok(Self {
                    balancers: Vec::new(),
                    gateway,
                    bystander: None,
                    authority: None,
                    cluster: None,
                    pki,
                    files: None,
                    binary,
                    database_url,
                    log,
                    node_names,
                    load_processes,
                    source_addresses,
                    pki_folder: Some(folder_of_pki.clone()),
                    dir,
                    _disk: None,
                    _folder: folder,
                })
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
        let cluster = Cluster::start(ClusterOptions {
            dir: cluster_dir,
            settings: plan.cluster_settings.clone(),
            ..ClusterOptions::default()
        })?;
        let database_url = cluster.create_database(DATABASE).await?;
        let (load_processes, source_addresses) = spread_of(plan);
        let pki_folder = (folder.is_none() || load_processes > 1).then(|| dir.join("pki"));
        let pki = match &pki_folder {
            None => Pki::new()?,
            Some(folder) => Pki::open(folder)?,
        };
        let files = pki.write_gateway_files(&dir.join("tls"))?;
        let mut options =
            GatewayOptions::new(binary.clone(), dir.join("gateway"), database_url.clone(), files.clone());
        options.id = "bench-gateway".to_owned();
        options.listen = plan.listen.to_string();
        options.shards = plan.gateway.shards;
        options.orphan_folder = folder.as_ref().map(|folder| folder.path().to_owned());
        options.extra = gateway_toml(plan)?;
        let authority = enrolling::start(plan.authority, &pki, &database_url).await?;
        enrolling::open_api(&mut options, authority.as_ref(), &pki, &dir.join("tls"))?;
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
        let bystander = start_bystander(plan, &options).await?;
        let members = Box::pin(start_members(plan, options)).await?;
        let balancers = start_balancers(plan, &members, &dir).await?;
        Ok(Self {
            balancers,
            gateway: Gateway::Own(members),
            bystander,
            authority,
            cluster: Some(cluster),
            pki,
            files: Some(files),
            binary: Some(binary),
            database_url,
            log,
            node_names,
            load_processes,
            source_addresses,
            pki_folder,
            dir,
            _disk: None,
            _folder: folder,
        })
    }

    /// Processes that the nodes are spread over.
    pub(crate) fn load_processes(&self) -> usize {
        self.load_processes
    }

    /// Addresses that they dial from.
    pub(crate) fn source_addresses(&self) -> u16 {
        self.source_addresses
    }

    /// The authority of their certificates as files, where there are any.
    pub(crate) fn pki_folder(&self) -> Option<&Path> {
        self.pki_folder.as_deref()
    }

    pub(crate) fn pki(&self) -> &Pki {
        &self.pki
    }

    /// The development authority, where the plan has one.
    pub(crate) fn authority(&self) -> Option<&Authority> {
        self.authority.as_ref()
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

    /// The nodes' logs, of all load processes.
    pub(crate) fn logs(&self) -> Vec<PathBuf> {
        let own = self.log.path();
        let others = (1..).map(|number| log_of(own, number)).take_while(|log| log.is_file());
        std::iter::once(own.to_owned()).chain(others).collect()
    }

    pub(crate) fn database_url(&self) -> &str {
        &self.database_url
    }

    /// Where nodes connect: the balancers where there are some, else the gateway.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        match &self.gateway {
            Gateway::Running { address, .. } => vec![*address],
            Gateway::Own(members) if self.balancers.is_empty() => {
                members.iter().map(Member::address).collect()
            }
            Gateway::Own(_) => self.balancers.iter().map(Balancer::address).collect(),
        }
    }

    /// Where nodes connect, if there is but one such place.
    pub(crate) fn address(&self) -> SocketAddr {
        self.addresses().first().copied().unwrap_or_else(|| ([0, 0, 0, 0], 0).into())
    }

    /// Whether `gateway verify` can be run.
    pub(crate) fn has_binary(&self) -> bool {
        self.binary.is_some()
    }

    /// Where the bystander listens.
    pub(crate) fn bystander_address(&self) -> anyhow::Result<SocketAddr> {
        let bystander = self.bystander.as_ref();
        bystander.map(Member::address).context("this needs a gateway of the harness's own, not --attach")
    }

    /// Whether nobody else uses the gateway's database.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.gateway, Gateway::Own(_))
    }

    /// Whether the gateway is one that ran already.
    pub(crate) fn is_attached(&self) -> bool {
        matches!(self.gateway, Gateway::Running { .. })
    }

    /// The gateways of the harness's own; an error where it is attached to another.
    pub(crate) fn members(&mut self) -> anyhow::Result<&mut [Member]> {
        match &mut self.gateway {
            Gateway::Own(members) => Ok(members),
            Gateway::Running { .. } => {
                anyhow::bail!("this needs gateways of the harness's own, not --attach")
            }
        }
    }

    /// The gateway of the harness's own, of several the first; `None` where it is attached to another.
    pub(crate) fn first_member(&self) -> Option<&Member> {
        match &self.gateway {
            Gateway::Own(members) => members.first(),
            Gateway::Running { .. } => None,
        }
    }

    /// The database server of the harness's own.
    pub(crate) fn cluster(&mut self) -> anyhow::Result<&mut Cluster> {
        self.cluster.as_mut().context("this needs a database server of the harness's own, not --attach")
    }

    /// Does something with the database server that takes its time, beside the nodes.
    pub(crate) async fn on_cluster<T: Send + 'static>(
        &mut self,
        act: impl FnOnce(&mut Cluster) -> Result<T, ClusterError> + Send + 'static,
    ) -> anyhow::Result<T> {
        let mut cluster = self.cluster.take().context("this needs a database server of the harness's own")?;
        let acting = tokio::task::spawn_blocking(move || {
            let outcome = act(&mut cluster);
            (cluster, outcome)
        });
        let (cluster, outcome) = acting.await?;
        self.cluster = Some(cluster);
        Ok(outcome?)
    }

    /// Makes more nodes known, by the names in their certificates.
    pub(crate) async fn make_known(&self, names: &[String]) -> anyhow::Result<()> {
        make_nodes_known(&mut self.connect().await?, &self.pki, names).await
    }

    /// Keeps the disk that the server has its data on.
    pub(crate) fn keep_until_the_end(&mut self, disk: Option<SmallDisk>) {
        self._disk = disk;
    }

    /// The certificates of the gateways, as files.
    pub(crate) fn gateway_files(&self) -> anyhow::Result<&GatewayFiles> {
        self.files.as_ref().context("this needs a gateway of the harness's own, not --attach")
    }

    /// The gateway's process, where it is known; of several, the first.
    pub(crate) fn gateway_pid(&self) -> Option<u32> {
        match &self.gateway {
            Gateway::Own(members) => members.first().and_then(Member::pid),
            Gateway::Running { pid, .. } => *pid,
        }
    }

    /// What the gateway uses and holds, where its process is known; of several, the one that holds most.
    pub(crate) fn gateway_usage(&self) -> anyhow::Result<Option<Usage>> {
        let usages: Vec<Usage> = match &self.gateway {
            Gateway::Own(members) => {
                members.iter().filter_map(|member| member.usage().transpose()).collect::<Result<_, _>>()?
            }
            Gateway::Running { pid: Some(pid), .. } => {
                vec![usage(*pid).with_context(|| format!("the gateway (process {pid}) is gone"))?]
            }
            Gateway::Running { pid: None, .. } => Vec::new(),
        };
        Ok(usages.into_iter().max_by_key(|usage| usage.rss_bytes))
    }

    /// What the gateway's metrics say now, by name and labels as they are written; empty where it is not ours.
    pub(crate) async fn metrics(&self) -> anyhow::Result<Metrics> {
        match &self.gateway {
            Gateway::Own(members) => {
                let member = members.first().context("there is no gateway")?;
                Metrics::read(member.control()).await
            }
            Gateway::Running { .. } => Ok(Metrics::default()),
        }
    }

    /// Where the metrics of a gateway of our own are scraped; of several, of the first.
    pub(crate) fn metrics_source(&self) -> anyhow::Result<MetricsSource> {
        match &self.gateway {
            Gateway::Own(members) => {
                Ok(MetricsSource::of(members.first().context("there is no gateway")?.control()))
            }
            Gateway::Running { .. } => {
                anyhow::bail!("--scrape needs a gateway of the harness's own, not --attach")
            }
        }
    }

    /// Stops the gateway for a while and lets it go on.
    pub(crate) async fn stall(&mut self, how_long: Duration) -> anyhow::Result<()> {
        let member = self.members()?.first_mut().context("there is no gateway")?;
        member.pause()?;
        tokio::time::sleep(how_long).await;
        member.resume()
    }

    /// `gateway verify` with the nodes' logs: what does not hold, as lines; empty if everything does. Of a
    /// gateway that runs elsewhere the rows alone are looked at, as other nodes have their logs.
    pub(crate) async fn verify(&self) -> anyhow::Result<Vec<String>> {
        self.log.flush()?;
        let binary = self.binary.as_ref();
        let binary =
            binary.context("`gateway verify` needs a gateway's binary; name it with --gateway-bin")?;
        let mut command = tokio::process::Command::new(binary);
        command.args(["verify", "--database-url", &self.database_url, "--timeout", "300s"]);
        if self.is_own() {
            command.arg("--node-logs").args(self.logs());
        }
        let output = command.kill_on_drop(true).output().await?;
        let told = String::from_utf8_lossy(&output.stdout);
        match output.status.code() {
            Some(0) => Ok(Vec::new()),
            Some(1) => {
                let broken = told.lines().filter(|line| !line.starts_with("holds "));
                Ok(broken.map(|line| line.trim().to_owned()).collect())
            }
            _ => anyhow::bail!(
                "gateway verify ended with {}: {told}{}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            ),
        }
    }

    /// A connection of the harness's own.
    pub(crate) async fn connect(&self) -> anyhow::Result<PgConnection> {
        PgConnection::connect(&self.database_url).await.context("connecting to the database")
    }

    /// Stops what was started, cleanly. Gives what did not end as it should.
    pub(crate) async fn close(mut self) -> anyhow::Result<Vec<String>> {
        let mut violations = Vec::new();
        self.balancers.clear();
        if let Gateway::Own(members) = &mut self.gateway {
            for member in members.iter_mut().chain(&mut self.bystander) {
                violations.extend(member.terminate().await?);
            }
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.stop(gateway_testbed::cluster::StopMode::Fast)?;
        }
        Ok(violations)
    }
}

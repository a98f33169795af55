//! The gateway's binary as a process of its own, configured as an operator would.
//!
//! It is ready when it says so on the socket of `NOTIFY_SOCKET`, as under systemd; the address it
//! listens on comes with it. Its log goes to a file.
//!
//! 1. It is killed when dropped, and when we are gone.
//! 2. A restart uses the same configuration, state folder and identity.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::net::UnixDatagram;
use toml::{Table, Value};

use crate::cluster::tail;
use crate::pki::{CONTROL_CLIENT, ControlFiles, GatewayFiles};
use crate::process::{Guarded, Usage, usage};

/// A socket's path must fit into `sockaddr_un`.
const LONGEST_SOCKET_PATH: usize = 106;

/// Why a gateway did not do as it was told.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    #[error("there is no gateway at {0:?}; build it: cargo build --bin gateway")]
    NoBinary(PathBuf),
    #[error("the extra configuration is not TOML: {0}")]
    BadExtra(#[from] toml::de::Error),
    #[error("`{command}` ended with {status}:\n{output}")]
    Failed { command: String, status: ExitStatus, output: String },
    #[error("the gateway was not ready ({why}); the end of its log {log:?}:\n{tail}")]
    NotReady { why: String, log: PathBuf, tail: String },
    #[error("{doing}: {error}")]
    Io { doing: String, error: io::Error },
}

fn io_error(doing: impl Into<String>) -> impl FnOnce(io::Error) -> GatewayError {
    let doing = doing.into();
    move |error| GatewayError::Io { doing, error }
}

/// How to run a gateway.
#[derive(Debug, Clone)]
pub struct GatewayOptions {
    pub binary: PathBuf,
    /// For its configuration, state and log.
    pub dir: PathBuf,
    pub id: String,
    pub database_url: String,
    pub files: GatewayFiles,
    pub trust_domain: Option<String>,
    /// Port 0: any free one.
    pub listen: String,
    pub shards: Option<u16>,
    /// Where Join, Renew and FetchSecret go; `None`: nowhere.
    pub upstream_url: Option<String>,
    /// The files of a control API on a free loopback port, for clients by the name `CONTROL_CLIENT`; `None`: there
    /// is none.
    pub api: Option<Box<ControlFiles>>,
    /// Further TOML, merged over the rest key by key.
    pub extra: String,
    pub environment: Vec<(String, String)>,
    pub ready_timeout: Duration,
    /// A temporary folder of the caller's, removed after the gateway should the caller be killed.
    pub orphan_folder: Option<PathBuf>,
}

impl GatewayOptions {
    /// One gateway on a free loopback port, with the defaults for all the rest.
    pub fn new(binary: PathBuf, dir: PathBuf, database_url: String, files: GatewayFiles) -> Self {
        Self {
            binary,
            dir,
            id: "testbed-gateway".to_owned(),
            database_url,
            files,
            trust_domain: Some(crate::pki::TRUST_DOMAIN.to_owned()),
            listen: "127.0.0.1:0".to_owned(),
            shards: None,
            upstream_url: None,
            api: None,
            extra: String::new(),
            environment: Vec::new(),
            ready_timeout: Duration::from_secs(60),
            orphan_folder: None,
        }
    }

    /// The configuration file's path.
    pub fn config_path(&self) -> PathBuf {
        self.dir.join("gateway.toml")
    }

    /// The log file's path.
    pub fn log_path(&self) -> PathBuf {
        self.dir.join("gateway.log")
    }

    /// The configuration's text.
    pub fn config(&self) -> Result<String, GatewayError> {
        let path = |path: &Path| Value::String(path.display().to_string());
        let text = |text: &str| Value::String(text.to_owned());
        let mut config = Table::new();
        let mut section = |name: &str, keys: Vec<(&str, Value)>| {
            let keys = keys.into_iter().map(|(key, value)| (key.to_owned(), value));
            config.insert(name.to_owned(), Value::Table(keys.collect()));
        };
        section(
            "gateway",
            vec![
                ("id", text(&self.id)),
                ("region", text("testbed")),
                // There is mostly no other gateway that its nodes could go to.
                ("drain", text("0s")),
                ("state_dir", path(&self.dir.join("state"))),
            ],
        );
        section("listen", vec![("address", text(&self.listen))]);
        let mut tls = vec![
            ("certificate", path(&self.files.certificate)),
            ("key", path(&self.files.key)),
            ("node_ca", path(&self.files.node_ca)),
        ];
        if let Some(domain) = &self.trust_domain {
            tls.push(("trust_domain", text(domain)));
        }
        section("tls", tls);
        section("database", vec![("url", text(&self.database_url))]);
        let mut control = vec![("listen", text("127.0.0.1:0"))];
        if let Some(api) = &self.api {
            control.extend([
                ("api_listen", text("127.0.0.1:0")),
                ("certificate", path(&api.certificate)),
                ("key", path(&api.key)),
                ("client_ca", path(&api.ca)),
                ("clients", Value::Array(vec![text(CONTROL_CLIENT)])),
            ]);
        }
        section("control", control);
        if let Some(shards) = self.shards {
            section("shards", vec![("count", Value::Integer(shards.into()))]);
        }
        if let Some(url) = &self.upstream_url {
            section(
                "upstream",
                vec![
                    ("join_url", text(url)),
                    ("renew_url", text(url)),
                    ("secret_url", text(url)),
                    ("ca", path(&self.files.internal_ca)),
                    ("certificate", path(&self.files.internal_certificate)),
                    ("key", path(&self.files.internal_key)),
                ],
            );
        }
        merge(&mut config, self.extra.parse()?);
        Ok(config.to_string())
    }

    /// Writes the configuration file and makes the state folder.
    pub fn write(&self) -> Result<(), GatewayError> {
        if !self.binary.is_file() {
            return Err(GatewayError::NoBinary(self.binary.clone()));
        }
        fs::create_dir_all(self.dir.join("state")).map_err(io_error("making the state folder"))?;
        fs::write(self.config_path(), self.config()?).map_err(io_error("writing the configuration"))
    }

    /// Runs `gateway migrate` and waits for its end.
    pub async fn migrate(&self) -> Result<(), GatewayError> {
        self.run("migrate").await.map(|_| ())
    }

    /// Runs another subcommand with `--config` and waits for its end; gives what it printed.
    pub async fn run(&self, subcommand: &str) -> Result<String, GatewayError> {
        self.write()?;
        let output = tokio::process::Command::new(&self.binary)
            .arg(subcommand)
            .arg("--config")
            .arg(self.config_path())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(io_error(format!("running gateway {subcommand}")))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(GatewayError::Failed {
                command: format!("gateway {subcommand} --config {}", self.config_path().display()),
                status: output.status,
                output: format!("{}\n{}", text(&output.stdout), text(&output.stderr)),
            }),
        }
    }
}

fn merge(base: &mut Table, over: Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(base)), Value::Table(over)) => merge(base, over),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

/// A running gateway.
#[derive(Debug)]
pub struct GatewayProcess {
    options: GatewayOptions,
    process: Guarded,
    notify: UnixDatagram,
    _notify_folder: TempDir,
    address: SocketAddr,
}

impl GatewayProcess {
    /// Starts `gateway serve` and waits until it is ready.
    pub async fn start(options: GatewayOptions) -> Result<Self, GatewayError> {
        options.write()?;
        // Beside the configuration where its path is short enough for a socket's address.
        let beside = options.dir.as_os_str().len() + "/notify-123456/notify".len() <= LONGEST_SOCKET_PATH;
        let place = if beside { options.dir.clone() } else { std::env::temp_dir() };
        let notify_folder = tempfile::Builder::new()
            .prefix("notify-")
            .tempdir_in(place)
            .map_err(io_error("making the notify socket's folder"))?;
        let socket = notify_folder.path().join("notify");
        let notify = UnixDatagram::bind(&socket).map_err(io_error("opening the notify socket"))?;
        let log = fs::OpenOptions::new().create(true).append(true).open(options.log_path());
        let log = log.map_err(io_error("opening the gateway's log"))?;
        let also_log = log.try_clone().map_err(io_error("opening the gateway's log"))?;
        let mut command = Command::new(&options.binary);
        command
            .arg("serve")
            .arg("--config")
            .arg(options.config_path())
            .env("NOTIFY_SOCKET", &socket)
            .env_remove("WATCHDOG_USEC")
            .envs(options.environment.iter().map(|(key, value)| (key, value)))
            .stdout(Stdio::from(log))
            .stderr(Stdio::from(also_log));
        let process = Guarded::spawn(&mut command, "KILL", options.orphan_folder.as_deref())
            .map_err(io_error("starting the gateway"))?;
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut gateway = Self { options, process, notify, _notify_folder: notify_folder, address: nowhere };
        gateway.await_ready().await?;
        Ok(gateway)
    }

    async fn await_ready(&mut self) -> Result<(), GatewayError> {
        let within = self.options.ready_timeout;
        let Self { process, notify, .. } = self;
        let mut listening = None;
        let readiness = async {
            let mut buffer = [0u8; 4096];
            loop {
                let length = notify.recv(&mut buffer).await?;
                let message = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()).into_owned();
                for line in message.lines() {
                    if let Some(address) = line.strip_prefix("STATUS=listening on ") {
                        listening =
                            address.split_ascii_whitespace().next().and_then(|text| text.parse().ok());
                    }
                }
                if message.lines().any(|line| line == "READY=1") {
                    return io::Result::Ok(());
                }
            }
        };
        let why = tokio::select! {
            ready = readiness => match ready {
                Ok(()) => None,
                Err(error) => Some(error.to_string()),
            },
            ended = process.wait() => Some(match ended {
                Ok(status) => format!("it ended with {status}"),
                Err(error) => error.to_string(),
            }),
            () = tokio::time::sleep(within) => Some(format!("{} s passed", within.as_secs())),
        };
        match (why, listening) {
            (None, Some(address)) => {
                self.address = address;
                Ok(())
            }
            (why, _) => {
                let log = self.options.log_path();
                let why = why.unwrap_or_else(|| "it did not say where it listens".to_owned());
                let tail = tail(&log, 20);
                Err(GatewayError::NotReady { why, log, tail })
            }
        }
    }

    /// Where nodes connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// How it was started.
    pub fn options(&self) -> &GatewayOptions {
        &self.options
    }

    /// What it uses and holds.
    pub fn usage(&self) -> io::Result<Usage> {
        usage(self.pid())
    }

    /// The exit status, if it has ended.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, GatewayError> {
        self.process.try_wait().map_err(io_error("looking at the gateway"))
    }

    /// Waits for its end.
    pub async fn wait(&mut self) -> Result<ExitStatus, GatewayError> {
        self.process.wait().await.map_err(io_error("waiting for the gateway"))
    }

    /// SIGKILL; gives back the options, to start it again.
    pub fn kill(mut self) -> Result<GatewayOptions, GatewayError> {
        self.process.kill().map_err(io_error("killing the gateway"))?;
        Ok(self.options.clone())
    }

    /// SIGTERM, and waits for the end. What still runs after `within` is killed, and an error.
    pub async fn terminate(&mut self, within: Duration) -> Result<ExitStatus, GatewayError> {
        self.signal(Signal::TERM)?;
        match tokio::time::timeout(within, self.process.wait()).await {
            Ok(status) => status.map_err(io_error("waiting for the gateway")),
            Err(_) => {
                let log = self.options.log_path();
                let _ = self.process.kill();
                let why = format!("it did not stop within {} s of SIGTERM", within.as_secs());
                let tail = tail(&log, 20);
                Err(GatewayError::NotReady { why, log, tail })
            }
        }
    }

    /// SIGSTOP: nothing of it runs until `resume`.
    pub fn pause(&mut self) -> Result<(), GatewayError> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    pub fn resume(&mut self) -> Result<(), GatewayError> {
        self.signal(Signal::CONT)
    }

    /// Any signal, such as SIGHUP.
    pub fn signal(&mut self, signal: Signal) -> Result<(), GatewayError> {
        self.process.signal(signal).map_err(io_error("sending a signal to the gateway"))
    }

    /// The last lines of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.options.log_path(), lines)
    }

    /// The whole log, once it has this text, or after five seconds: a line is written by a thread of its own, a
    /// moment after what it tells of.
    pub async fn logged(&self, text: &str) -> String {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
        loop {
            let log = fs::read_to_string(self.options.log_path()).unwrap_or_default();
            if log.contains(text) || tokio::time::Instant::now() >= deadline {
                return log;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(dir: &Path, script: &str) -> GatewayOptions {
        use std::os::unix::fs::PermissionsExt;
        let binary = dir.join("gateway");
        fs::write(&binary, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&binary, PermissionsExt::from_mode(0o755)).unwrap();
        let file = |name: &str| dir.join(name);
        let files = GatewayFiles {
            certificate: file("gateway.crt"),
            key: file("gateway.key"),
            node_ca: file("node-ca.crt"),
            server_ca: file("server-ca.crt"),
            internal_ca: file("internal-ca.crt"),
            internal_certificate: file("internal.crt"),
            internal_key: file("internal.key"),
        };
        GatewayOptions::new(binary, dir.to_owned(), "postgresql:///x?host=/tmp".to_owned(), files)
    }

    #[test]
    fn extra_toml_wins_key_by_key() {
        let dir = tempfile::tempdir().unwrap();
        let mut options = options(dir.path(), "");
        options.extra = "[gateway]\nregion = \"north\"\n[admission]\nopens_per_second = 9\n".to_owned();
        let config: Table = options.config().unwrap().parse().unwrap();
        assert_eq!(config["gateway"]["region"].as_str(), Some("north"));
        assert_eq!(config["gateway"]["id"].as_str(), Some("testbed-gateway"));
        assert_eq!(config["admission"]["opens_per_second"].as_integer(), Some(9));
    }

    #[tokio::test]
    async fn a_gateway_that_dies_at_its_start_shows_its_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let error = GatewayProcess::start(options(dir.path(), "echo no database here >&2; exit 3")).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains("no database here") && error.contains("exit status: 3"), "{error}");
    }

    #[tokio::test]
    async fn a_gateway_that_never_gets_ready_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut options = options(dir.path(), "exec sleep 1000");
        options.ready_timeout = Duration::from_millis(200);
        let error = GatewayProcess::start(options).await.unwrap_err();
        assert!(matches!(error, GatewayError::NotReady { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_missing_binary_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let options = GatewayOptions { binary: "/nowhere/gateway".into(), ..options(dir.path(), "") };
        assert!(matches!(options.migrate().await, Err(GatewayError::NoBinary(_))));
    }
}

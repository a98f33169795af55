//! A private PostgreSQL cluster: its own data, its own socket, nobody else's business.
//!
//! The server is our child (see `process`), so it can be stopped in each of PostgreSQL's ways,
//! killed, paused and started again, as a test of faults needs. Clients of this machine reach it
//! by a unix socket in a folder closed to others; a loopback port can be asked for and then needs
//! the password.
//!
//! 1. fsync is on: durability is what is measured and tested.
//! 2. It is ready when the server says so in its pid file, never after a time.
//! 3. A dropped cluster is stopped at once (`immediate`); a folder that was made for it is gone.
//! 4. A folder that has data of the same version is used again.

mod account;
mod binaries;
mod error;

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tempfile::TempDir;

use self::account::Account;
pub use self::binaries::Binaries;
pub use self::error::ClusterError;
use crate::process::{Guarded, children};

/// The superuser of every private cluster.
pub const SUPERUSER: &str = "postgres";
/// Names the socket's file where no loopback port is open.
const SOCKET_PORT: u16 = 5432;
/// A socket's path must fit into `sockaddr_un`.
const LONGEST_SOCKET_PATH: usize = 106;
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// How to start a cluster.
#[derive(Debug, Clone, Default)]
pub struct ClusterOptions {
    /// Where the data, log and socket are. Kept, and used again by a second start. `None`: a
    /// temporary folder, removed at the end.
    pub dir: Option<PathBuf>,
    /// Whether a free loopback port is opened too; clients of it need `Cluster::password`.
    pub loopback_tcp: bool,
    /// Server settings, such as `("max_connections", "50")`; they win over the defaults.
    pub settings: Vec<(String, String)>,
}

/// How the server is stopped; PostgreSQL's own words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// Clients are disconnected, everything is written out.
    Fast,
    /// Like a crash: the next start recovers from the log.
    Immediate,
}

/// A private cluster. Stopped when dropped.
#[derive(Debug)]
pub struct Cluster {
    // The order matters at the end: first the server stops, then its folders go.
    server: Option<Guarded>,
    /// What stands still with it.
    frozen: Vec<Pid>,
    binaries: Binaries,
    account: Option<Account>,
    dir: PathBuf,
    socket_dir: PathBuf,
    settings: Vec<(String, String)>,
    tcp_port: Option<u16>,
    password: String,
    _socket_folder: Option<TempDir>,
    owned: Option<TempDir>,
}

impl Cluster {
    /// Makes the data folder where it has none, starts the server and waits until it is ready.
    /// Blocks the thread for about a second.
    pub fn start(options: ClusterOptions) -> Result<Self, ClusterError> {
        let binaries = Binaries::find()?;
        let account = Account::for_server()?;
        let owned = match &options.dir {
            Some(_) => None,
            None => Some(temporary_folder("gateway-pg-")?),
        };
        let dir = options.dir.or_else(|| owned.as_ref().map(|folder| folder.path().to_owned()));
        let dir = std::path::absolute(dir.unwrap_or_default())
            .map_err(|error| ClusterError::io("resolving the cluster's folder".to_owned(), error))?;
        prepare_folder(&dir, account.as_ref())?;
        let socket_folder = match socket_path_bytes(&dir) > LONGEST_SOCKET_PATH {
            true => Some(temporary_folder("gateway-pg-socket-")?),
            false => None,
        };
        let socket_dir =
            socket_folder.as_ref().map_or_else(|| dir.clone(), |folder| folder.path().to_owned());
        if let Some(folder) = &socket_folder {
            prepare_folder(folder.path(), account.as_ref())?;
        }
        let tcp_port = match options.loopback_tcp {
            true => Some(free_port()?),
            false => None,
        };
        let mut settings = default_settings(&binaries, &socket_dir, tcp_port);
        settings.extend(options.settings);
        let mut cluster = Self {
            server: None,
            frozen: Vec::new(),
            binaries,
            account,
            dir,
            socket_dir,
            settings,
            tcp_port,
            password: String::new(),
            _socket_folder: socket_folder,
            owned,
        };
        cluster.initialize()?;
        cluster.launch()?;
        Ok(cluster)
    }

    /// Whether the account that would run the server can reach `dir`.
    pub fn check_reach(dir: &Path) -> Result<(), ClusterError> {
        match Account::for_server()? {
            Some(account) => account.check_reach(dir),
            None => Ok(()),
        }
    }

    /// Where data, log and socket are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The folder of the unix socket.
    pub fn socket_dir(&self) -> &Path {
        &self.socket_dir
    }

    /// The loopback port, where one was asked for.
    pub fn tcp_port(&self) -> Option<u16> {
        self.tcp_port
    }

    /// The superuser's password; only the loopback port asks for it.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// The server's log.
    pub fn log_path(&self) -> PathBuf {
        self.dir.join("postgres.log")
    }

    /// PostgreSQL's programs, as used here.
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// The server's process id; `None` while it is stopped.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Guarded::pid)
    }

    /// The URL of `database` over the unix socket; psql takes it too.
    pub fn url(&self, database: &str) -> String {
        let (socket, port) = (self.socket_dir.display(), self.tcp_port.unwrap_or(SOCKET_PORT));
        format!("postgresql:///{database}?host={socket}&port={port}&user={SUPERUSER}")
    }

    /// The URL of `database` over the loopback port, where one was asked for.
    pub fn tcp_url(&self, database: &str) -> Option<String> {
        let port = self.tcp_port?;
        Some(format!("postgresql://{SUPERUSER}:{}@127.0.0.1:{port}/{database}", self.password))
    }

    /// Opens a connection to `database`.
    pub async fn connect(&self, database: &str) -> Result<PgConnection, ClusterError> {
        let url = self.url(database);
        PgConnection::connect(&url)
            .await
            .map_err(|error| ClusterError::Sql { doing: format!("connecting to {url}"), error })
    }

    /// Creates `database` where it does not exist; gives its URL. Where the library is there, it
    /// has `pg_stat_statements`.
    pub async fn create_database(&self, database: &str) -> Result<String, ClusterError> {
        let sql = |doing: &str| {
            let doing = format!("{doing} {database}");
            move |error| ClusterError::Sql { doing, error }
        };
        let mut admin = self.connect("postgres").await?;
        let (exists,): (bool,) = sqlx::query_as("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
            .bind(database)
            .fetch_one(&mut admin)
            .await
            .map_err(sql("looking for the database"))?;
        if !exists {
            let name = database.replace('"', "\"\"");
            admin
                .execute(AssertSqlSafe(format!("CREATE DATABASE \"{name}\"")))
                .await
                .map_err(sql("creating the database"))?;
        }
        if self.has_statistics() {
            self.connect(database)
                .await?
                .execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
                .await
                .map_err(sql("adding pg_stat_statements to"))?;
        }
        Ok(self.url(database))
    }

    /// Whether the server collects `pg_stat_statements`.
    pub fn has_statistics(&self) -> bool {
        self.settings
            .iter()
            .any(|(key, value)| key == "shared_preload_libraries" && value.contains("pg_stat_statements"))
    }

    /// Stops the server and waits until it is gone.
    pub fn stop(&mut self, mode: StopMode) -> Result<(), ClusterError> {
        self.thaw()?;
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let signal = match mode {
            StopMode::Fast => Signal::INT,
            StopMode::Immediate => Signal::QUIT,
        };
        let stopping = |error| ClusterError::io("stopping the server".to_owned(), error);
        server.signal(signal).map_err(stopping)?;
        server.signal(Signal::CONT).map_err(stopping)?;
        match server.wait_blocking(STOP_TIMEOUT).map_err(stopping)? {
            Some(_) => Ok(()),
            None => Err(ClusterError::DidNotStop { seconds: STOP_TIMEOUT.as_secs() }),
        }
    }

    /// Starts a stopped server again, on the same data.
    pub fn start_again(&mut self) -> Result<(), ClusterError> {
        match self.server {
            Some(_) => Ok(()),
            None => self.launch(),
        }
    }

    /// Stops and starts the server.
    pub fn restart(&mut self, mode: StopMode) -> Result<(), ClusterError> {
        self.stop(mode)?;
        self.launch()
    }

    /// Sends a signal to the server's first process, such as SIGSTOP and SIGCONT.
    pub fn signal(&mut self, signal: Signal) -> Result<(), ClusterError> {
        match &mut self.server {
            Some(server) => server
                .signal(signal)
                .map_err(|error| ClusterError::io("sending a signal to the server".to_owned(), error)),
            None => Ok(()),
        }
    }

    /// SIGSTOP of the whole server: nothing of it runs, and no client is told, until `thaw` or `stop`.
    pub fn freeze(&mut self) -> Result<(), ClusterError> {
        let freezing = |error| ClusterError::io("freezing the server".to_owned(), error);
        // The first process first, so that it starts no others meanwhile.
        self.signal(Signal::STOP)?;
        let Some(pid) = self.pid() else { return Ok(()) };
        self.frozen = children(pid).map_err(freezing)?;
        for child in &self.frozen {
            // One that has ended meanwhile is as still as one can be.
            let _ = kill_process(*child, Signal::STOP);
        }
        Ok(())
    }

    /// SIGCONT of what `freeze` stopped.
    pub fn thaw(&mut self) -> Result<(), ClusterError> {
        for child in self.frozen.drain(..) {
            let _ = kill_process(child, Signal::CONT);
        }
        self.signal(Signal::CONT)
    }

    /// Whether the server has ended without having been told to.
    pub fn has_died(&mut self) -> bool {
        self.server.as_mut().is_some_and(|server| server.try_wait().is_ok_and(|status| status.is_some()))
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.binaries.program(program));
        command
            .env_clear()
            .envs([("LC_ALL", "C"), ("TZ", "UTC"), ("PATH", "/usr/bin:/bin")])
            .current_dir(&self.dir);
        if let Some(account) = &self.account {
            account.apply(&mut command);
        }
        command
    }

    fn initialize(&mut self) -> Result<(), ClusterError> {
        let data = self.data_dir();
        let password_file = self.dir.join("password");
        if let Ok(version) = fs::read_to_string(data.join("PG_VERSION")) {
            if version.trim() != self.binaries.major.to_string() {
                let made_by = version.trim().to_owned();
                return Err(ClusterError::OtherVersion { folder: data, made_by, found: self.binaries.major });
            }
            self.refuse_second_server(&data)?;
            self.password = fs::read_to_string(&password_file)
                .map_err(|error| ClusterError::io(format!("reading {}", password_file.display()), error))?;
            return Ok(());
        }
        self.password = uuid::Uuid::new_v4().simple().to_string();
        fs::write(&password_file, &self.password)
            .and_then(|()| fs::set_permissions(&password_file, PermissionsExt::from_mode(0o600)))
            .map_err(|error| ClusterError::io(format!("writing {}", password_file.display()), error))?;
        if let Some(account) = &self.account {
            account.own(&password_file)?;
        }
        let mut initdb = self.command("initdb");
        initdb
            .arg("--pgdata")
            .arg(&data)
            .args(["--username", SUPERUSER, "--encoding=UTF8", "--locale=C", "--auth-local=trust"])
            .args(["--auth-host=scram-sha-256", "--pwfile"])
            .arg(&password_file);
        if self.owned.is_some() {
            // Gone with the machine if that goes: nothing of the new folder need reach the disk. What the
            // server itself commits does (fsync is on).
            initdb.arg("--no-sync");
        }
        let output = initdb.output().map_err(|error| ClusterError::io("running initdb".to_owned(), error))?;
        if output.status.success() {
            return Ok(());
        }
        // Half a data folder would be taken for a whole one by the next start.
        let _ = fs::remove_dir_all(&data);
        Err(ClusterError::Program {
            program: "initdb".to_owned(),
            status: output.status.to_string(),
            output: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }

    fn refuse_second_server(&self, data: &Path) -> Result<(), ClusterError> {
        let Ok(pid_file) = fs::read_to_string(data.join("postmaster.pid")) else { return Ok(()) };
        let Some(pid) = pid_file.lines().next().and_then(|line| line.trim().parse::<u32>().ok()) else {
            return Ok(());
        };
        match fs::read_to_string(format!("/proc/{pid}/comm")) {
            Ok(name) if name.starts_with("postgres") => {
                Err(ClusterError::AlreadyRunning { folder: self.dir.clone(), pid })
            }
            _ => Ok(()),
        }
    }

    fn launch(&mut self) -> Result<(), ClusterError> {
        let log_path = self.log_path();
        let opening = |error| ClusterError::io(format!("opening {}", log_path.display()), error);
        let log = fs::OpenOptions::new().create(true).append(true).open(&log_path).map_err(opening)?;
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data_dir());
        for (key, value) in &self.settings {
            command.arg("-c").arg(format!("{key}={value}"));
        }
        command.stdout(Stdio::from(log.try_clone().map_err(opening)?)).stderr(Stdio::from(log));
        let remove = self.owned.as_ref().map(TempDir::path);
        // SIGQUIT is `immediate`: the server ends its own children.
        let server = Guarded::spawn(&mut command, "QUIT", remove)
            .map_err(|error| ClusterError::io("starting postgres".to_owned(), error))?;
        self.server = Some(server);
        self.await_ready()
    }

    // What `pg_ctl -w` does: the eighth line of the pid file is the server's own word for it.
    fn await_ready(&mut self) -> Result<(), ClusterError> {
        let pid_file = self.data_dir().join("postmaster.pid");
        let started = Instant::now();
        loop {
            let Some(server) = &mut self.server else { return Ok(()) };
            let pid = server.pid().to_string();
            let text = fs::read_to_string(&pid_file).unwrap_or_default();
            let mut lines = text.lines();
            if lines.next() == Some(&pid) && lines.nth(6).is_some_and(|word| word.trim() == "ready") {
                return Ok(());
            }
            let ended = server
                .wait_blocking(Duration::from_millis(5))
                .map_err(|error| ClusterError::io("waiting for postgres".to_owned(), error))?;
            let why = match ended {
                Some(status) => format!("it ended with {status}"),
                None if started.elapsed() > READY_TIMEOUT => format!("{} s passed", READY_TIMEOUT.as_secs()),
                None => continue,
            };
            self.server = None;
            let log = self.log_path();
            let tail = tail(&log, 20);
            return Err(ClusterError::NotReady { why, log, tail });
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A shutdown by signal lets the server end its children; what does not end is killed.
        let _ = self.stop(StopMode::Immediate);
    }
}

/// The last `lines` lines of a text file; empty where it can't be read.
pub fn tail(path: &Path, lines: usize) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n")
}

fn default_settings(binaries: &Binaries, socket_dir: &Path, tcp: Option<u16>) -> Vec<(String, String)> {
    let port = tcp.unwrap_or(SOCKET_PORT).to_string();
    let mut settings = vec![
        ("unix_socket_directories", socket_dir.display().to_string()),
        ("listen_addresses", tcp.map_or("", |_| "127.0.0.1").to_owned()),
        ("port", port),
        ("max_connections", "200".to_owned()),
        ("shared_buffers", "256MB".to_owned()),
        ("max_wal_size", "2GB".to_owned()),
        ("fsync", "on".to_owned()),
        ("logging_collector", "off".to_owned()),
        ("log_line_prefix", "%m [%p] %a ".to_owned()),
    ];
    if binaries.has_library("pg_stat_statements") {
        settings.push(("shared_preload_libraries", "pg_stat_statements".to_owned()));
        settings.push(("pg_stat_statements.track", "top".to_owned()));
    }
    settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn socket_path_bytes(dir: &Path) -> usize {
    dir.join(".s.PGSQL.65535.lock").as_os_str().len()
}

fn temporary_folder(prefix: &str) -> Result<TempDir, ClusterError> {
    tempfile::Builder::new()
        .prefix(prefix)
        .tempdir()
        .map_err(|error| ClusterError::io("making a temporary folder".to_owned(), error))
}

fn prepare_folder(dir: &Path, account: Option<&Account>) -> Result<(), ClusterError> {
    let preparing = |error| ClusterError::io(format!("preparing {}", dir.display()), error);
    fs::create_dir_all(dir).map_err(preparing)?;
    fs::set_permissions(dir, PermissionsExt::from_mode(0o700)).map_err(preparing)?;
    match account {
        Some(account) => account.check_reach(dir).and_then(|()| account.own(dir)),
        None => Ok(()),
    }
}

// Another process may take it before the server does; then the start fails with the server's own words.
fn free_port() -> Result<u16, ClusterError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| ClusterError::io("looking for a free port".to_owned(), error))
}

#[cfg(test)]
mod tests;

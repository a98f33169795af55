//! HAProxy before several gateways, by the very configuration that operators are given
//! (`configs/haproxy.cfg`), with its addresses replaced.
//!
//! 1. It is ready when its own statistics say that it takes every server, never after a time.
//! 2. It is ended when dropped, and when we are gone.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::cluster::tail;
use crate::process::Guarded;

const EXAMPLE: &str = include_str!("../../configs/haproxy.cfg");
/// By `PATH`, and where distributions have it that an ordinary user's `PATH` does not name.
const PROGRAMS: [&str; 3] = ["haproxy", "/usr/sbin/haproxy", "/usr/local/sbin/haproxy"];
const READY_TIMEOUT: Duration = Duration::from_secs(20);
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Why there is no balancer.
#[derive(Debug, thiserror::Error)]
pub enum BalancerError {
    #[error(
        "HAProxy is not installed (Debian, Ubuntu: apt-get install haproxy; Fedora: dnf install haproxy)"
    )]
    NotInstalled,
    #[error("configs/haproxy.cfg has {found} servers; {asked} gateways can't be put in their places")]
    Servers { found: usize, asked: usize },
    #[error("the balancer was not ready ({why}); the end of its log {log:?}:\n{tail}")]
    NotReady { why: String, log: PathBuf, tail: String },
    #[error("{doing}: {error}")]
    Io { doing: String, error: io::Error },
}

fn io_error(doing: &str) -> impl FnOnce(io::Error) -> BalancerError + use<> {
    let doing = doing.to_owned();
    move |error| BalancerError::Io { doing, error }
}

/// A gateway behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Server {
    /// Where sessions go.
    pub address: SocketAddr,
    /// Where its health is asked.
    pub control: SocketAddr,
}

/// How to run a balancer.
#[derive(Debug, Clone)]
pub struct BalancerOptions {
    /// For its configuration and log.
    pub dir: PathBuf,
    pub listen: SocketAddr,
    /// As many as the example has.
    pub servers: Vec<Server>,
}

/// What the balancer says of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerState {
    pub name: String,
    /// HAProxy's own word: `UP`, `DOWN`, `NOLB`, with a count while it changes.
    pub status: String,
    /// Sessions on it now.
    pub sessions: usize,
}

/// A running balancer.
#[derive(Debug)]
pub struct Balancer {
    process: Guarded,
    options: BalancerOptions,
    socket: PathBuf,
    version: String,
    _socket_folder: TempDir,
}

impl Balancer {
    /// Starts it, and waits until it takes every server.
    pub async fn start(options: BalancerOptions) -> Result<Self, BalancerError> {
        let (program, version) = find()?;
        fs::create_dir_all(&options.dir).map_err(io_error("making the balancer's folder"))?;
        // A folder of its own with a short path: a socket's address has little room.
        let socket_folder = tempfile::Builder::new()
            .prefix("balancer-")
            .tempdir()
            .map_err(io_error("making the folder of the balancer's socket"))?;
        let socket = socket_folder.path().join("stats");
        let config = options.dir.join("haproxy.cfg");
        fs::write(&config, configured(EXAMPLE, &options, &socket)?)
            .map_err(io_error("writing the balancer's configuration"))?;
        let log = fs::File::create(log_of(&options.dir)).map_err(io_error("opening the balancer's log"))?;
        let also_log = log.try_clone().map_err(io_error("opening the balancer's log"))?;
        let mut command = Command::new(program);
        command.arg("-db").arg("-f").arg(&config).stdout(Stdio::from(log)).stderr(Stdio::from(also_log));
        let process = Guarded::spawn(&mut command, "TERM", Some(socket_folder.path()))
            .map_err(io_error("starting haproxy"))?;
        let mut balancer = Self { process, options, socket, version, _socket_folder: socket_folder };
        balancer.await_ready().await?;
        Ok(balancer)
    }

    /// Where nodes connect.
    pub fn address(&self) -> SocketAddr {
        self.options.listen
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What it calls itself.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// What it says of its servers, in the order of the configuration.
    pub async fn servers(&self) -> io::Result<Vec<ServerState>> {
        let mut stream = UnixStream::connect(&self.socket).await?;
        stream.write_all(b"show stat\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(states(&text))
    }

    // Nothing of HAProxy's tells when its first checks are over, so this asks.
    async fn await_ready(&mut self) -> Result<(), BalancerError> {
        let started = Instant::now();
        loop {
            let states = self.servers().await.unwrap_or_default();
            let up = states.iter().filter(|state| state.status == "UP").count();
            if up == self.options.servers.len() {
                return Ok(());
            }
            let ended = self.process.try_wait().map_err(io_error("looking at haproxy"))?;
            let why = match ended {
                Some(status) => format!("it ended with {status}"),
                None if started.elapsed() > READY_TIMEOUT => format!("its servers are {states:?}"),
                None => {
                    tokio::time::sleep(ASK_EVERY).await;
                    continue;
                }
            };
            let log = log_of(&self.options.dir);
            let tail = tail(&log, 20);
            return Err(BalancerError::NotReady { why, log, tail });
        }
    }
}

fn log_of(dir: &Path) -> PathBuf {
    dir.join("haproxy.log")
}

/// The program, and what it calls itself.
fn find() -> Result<(&'static str, String), BalancerError> {
    for program in PROGRAMS {
        match Command::new(program).arg("-v").output() {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout);
                let words: Vec<&str> = text.split_ascii_whitespace().take(3).collect();
                return Ok((program, words.join(" ")));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_error("running haproxy -v")(error)),
        }
    }
    Err(BalancerError::NotInstalled)
}

/// The example with the addresses of `options` in the places of its own; all else stays as it is.
fn configured(example: &str, options: &BalancerOptions, socket: &Path) -> Result<String, BalancerError> {
    let mut servers = options.servers.iter();
    let (mut text, mut found) = (String::new(), 0);
    for line in example.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let line = match words[..] {
            ["stats", "socket", path, ..] => line.replace(path, &socket.display().to_string()),
            ["bind", address, ..] => line.replace(address, &options.listen.to_string()),
            ["server", _, address, "port", port] => {
                found += 1;
                match servers.next() {
                    None => continue,
                    Some(server) => line
                        .replace(&format!("port {port}"), &format!("port {}", server.control.port()))
                        .replace(address, &server.address.to_string()),
                }
            }
            _ => line.to_owned(),
        };
        text.push_str(&line);
        text.push('\n');
    }
    match found == options.servers.len() {
        true => Ok(text),
        false => Err(BalancerError::Servers { found, asked: options.servers.len() }),
    }
}

/// Reads `show stat`: a table with commas, whose first line names the columns.
fn states(text: &str) -> Vec<ServerState> {
    let mut lines = text.trim_start_matches("# ").lines();
    let columns: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let place = |name: &str| columns.iter().position(|column| *column == name);
    let (Some(name), Some(status), Some(sessions)) = (place("svname"), place("status"), place("scur")) else {
        return Vec::new();
    };
    let rows = lines.map(|line| line.split(',').collect::<Vec<_>>());
    let rows = rows.filter_map(|row| {
        let name = (*row.get(name)?).to_owned();
        let sessions = row.get(sessions)?.parse().unwrap_or(0);
        Some(ServerState { name, status: (*row.get(status)?).to_owned(), sessions })
    });
    rows.filter(|state| !["FRONTEND", "BACKEND", ""].contains(&state.name.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(servers: u16) -> BalancerOptions {
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let servers = (0..servers).map(|n| Server { address: local(11_000 + n), control: local(12_000 + n) });
        BalancerOptions { dir: PathBuf::new(), listen: local(10_000), servers: servers.collect() }
    }

    #[test]
    fn the_example_is_run_with_nothing_but_its_addresses_replaced() {
        let text = configured(EXAMPLE, &options(3), Path::new("/tmp/x/stats")).unwrap();
        let changed: Vec<(&str, &str)> = EXAMPLE.lines().zip(text.lines()).filter(|(a, b)| a != b).collect();
        assert_eq!(EXAMPLE.lines().count(), text.lines().count());
        assert_eq!(changed.len(), 5, "{changed:#?}");
        let all = changed.iter().map(|(_, new)| new.trim()).collect::<Vec<_>>().join("\n");
        for part in ["/tmp/x/stats", "bind 127.0.0.1:10000 ", "127.0.0.1:11002 port 12002"] {
            assert!(all.contains(part), "{part} in\n{all}");
        }
        assert!(matches!(
            configured(EXAMPLE, &options(2), Path::new("/x")),
            Err(BalancerError::Servers { .. })
        ));
    }

    #[test]
    fn what_it_says_of_its_servers_is_read_by_the_names_of_the_columns() {
        let text = "# pxname,svname,scur,status,\nnodes,FRONTEND,9,OPEN,\nnodes,gateway-1,4,UP,\n\
                    nodes,gateway-2,5,DOWN 1/2,\nnodes,BACKEND,9,UP,\n\n";
        let read: Vec<_> = states(text).into_iter().map(|one| (one.name, one.status, one.sessions)).collect();
        let expected = [("gateway-1", "UP", 4), ("gateway-2", "DOWN 1/2", 5)];
        assert_eq!(read, expected.map(|(name, status, count)| (name.to_owned(), status.to_owned(), count)));
        assert_eq!(states(""), []);
    }
}

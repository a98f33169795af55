//! Child processes that cannot outlive us, and what `/proc` says about them.
//!
//! Each child has a watchdog: a shell that waits at a pipe whose other end only we hold. When we
//! are gone, however that came about, the pipe ends and the shell kills the child. (The kernel's
//! parent-death signal follows the thread that forked, which in a test ends before its process.)
//!
//! 1. A child and its watchdog are in process groups of their own: a Ctrl-C at the terminal
//!    reaches us alone, and we decide in which order things stop.
//! 2. A dropped `Guarded` has killed and reaped both.
//! 3. Exits are awaited (SIGCHLD, or a pidfd where the thread may block), never polled for.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tokio::signal::unix::{SignalKind, signal};

/// What the watchdog runs: `$1` the child, `$2` the signal, `$3` a folder to remove afterwards.
const WATCHDOG: &str = r#"read -r _
kill -s "$2" "$1" 2>/dev/null
kill -s CONT "$1" 2>/dev/null
n=0
while kill -0 "$1" 2>/dev/null && [ $n -lt 100 ]; do n=$((n+1)); sleep 0.1; done
kill -s KILL "$1" 2>/dev/null
[ -z "$3" ] || rm -rf -- "$3"
"#;

/// A running child process.
#[derive(Debug)]
pub struct Guarded {
    child: Child,
    watchdog: Child,
    pidfd: OwnedFd,
    pid: Pid,
    status: Option<ExitStatus>,
}

impl Guarded {
    /// Starts `command`. Should this process end without stopping it, the child gets `on_orphan`
    /// (a name as `kill -s` takes it), and `remove`, a folder of ours, is deleted after it.
    pub fn spawn(command: &mut Command, on_orphan: &str, remove: Option<&Path>) -> io::Result<Self> {
        let mut child = command.process_group(0).stdin(Stdio::null()).spawn()?;
        match Self::watch(&mut child, on_orphan, remove) {
            Ok((watchdog, pidfd, pid)) => Ok(Self { child, watchdog, pidfd, pid, status: None }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    fn watch(child: &mut Child, on_orphan: &str, remove: Option<&Path>) -> io::Result<(Child, OwnedFd, Pid)> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the child has no process id"))?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let watchdog = Command::new("/bin/sh")
            .args(["-c", WATCHDOG, "watchdog", &child.id().to_string(), on_orphan])
            .arg(remove.unwrap_or_else(|| Path::new("")))
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok((watchdog, pidfd, pid))
    }

    /// The child's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal; one to a child that has ended already is no error.
    pub fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if self.try_wait()?.is_some() {
            return Ok(());
        }
        Ok(kill_process(self.pid, signal)?)
    }

    /// The exit status, if the child has ended.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    /// Waits for the child's end; `None` if it still runs after `timeout`. Blocks the thread.
    pub fn wait_blocking(&mut self, timeout: Duration) -> io::Result<Option<ExitStatus>> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(Some(status));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits for the child's end.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        // Listening before looking: an exit in between is not missed.
        let mut children = signal(SignalKind::child())?;
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            children.recv().await;
        }
    }

    /// SIGKILL, and waits until the child is gone.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.try_wait()? {
            return Ok(status);
        }
        self.child.kill()?;
        let status = self.child.wait()?;
        self.status = Some(status);
        Ok(status)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.kill();
        let _ = self.watchdog.kill();
        let _ = self.watchdog.wait();
    }
}

/// The children of a process, now.
pub fn children(of: u32) -> io::Result<Vec<Pid>> {
    let mut children = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // One that has ended meanwhile is nobody's child.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(1));
        if parent.and_then(|text| text.parse::<u32>().ok()) == Some(of) {
            children.extend(Pid::from_raw(pid));
        }
    }
    Ok(children)
}

/// What a process has used and holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Resident memory now.
    pub rss_bytes: u64,
    /// Highest resident memory so far.
    pub rss_peak_bytes: u64,
    /// User and system time of all threads so far; the kernel counts it in ticks of 10 ms.
    pub cpu: Duration,
    /// Threads now.
    pub threads: u32,
}

/// Reads the usage of a process.
pub fn usage(pid: u32) -> io::Result<Usage> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid} is malformed"));
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The command's name, in parentheses, may hold anything; fields are counted after it.
    let fields: Vec<&str> = stat.rsplit_once(')').ok_or_else(malformed)?.1.split_ascii_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|text| text.parse::<u64>().ok());
    let ticks = ticks(11).zip(ticks(12)).map(|(user, system)| user + system).ok_or_else(malformed)?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let number = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    Ok(Usage {
        rss_bytes: number("VmRSS:").unwrap_or(0) * 1024,
        rss_peak_bytes: number("VmHWM:").unwrap_or(0) * 1024,
        cpu: Duration::from_nanos(ticks.saturating_mul(1_000_000_000 / per_second)),
        threads: number("Threads:").and_then(|count| u32::try_from(count).ok()).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_alive(pid: u32) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z")))
    }

    #[test]
    fn a_dropped_child_is_gone() {
        let child = Guarded::spawn(Command::new("sleep").arg("1000"), "KILL", None).unwrap();
        let pid = child.pid();
        assert!(is_alive(pid));
        drop(child);
        assert!(!is_alive(pid));
    }

    #[tokio::test]
    async fn the_watchdog_ends_an_orphan_and_its_folder() {
        let folder = tempfile::tempdir().unwrap().keep();
        let mut child = Guarded::spawn(Command::new("sleep").arg("1000"), "TERM", Some(&folder)).unwrap();
        // What the death of this process does: the pipe ends.
        drop(child.watchdog.stdin.take());
        let status = tokio::time::timeout(Duration::from_secs(20), child.wait()).await.unwrap().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
        child.watchdog.wait().unwrap();
        assert!(!folder.exists());
    }

    #[test]
    fn a_wait_ends_with_its_timeout_while_the_child_runs_on() {
        let mut child = Guarded::spawn(Command::new("sleep").arg("1000"), "KILL", None).unwrap();
        assert_eq!(child.wait_blocking(Duration::from_millis(20)).unwrap(), None);
    }

    #[test]
    fn a_child_is_found_by_its_parent() {
        let child = Guarded::spawn(Command::new("sleep").arg("1000"), "KILL", None).unwrap();
        let mine = children(std::process::id()).unwrap();
        assert!(mine.contains(&child.pid) && children(child.pid()).unwrap().is_empty(), "{mine:?}");
    }

    #[test]
    fn usage_of_this_process_is_plausible() {
        let mine = usage(std::process::id()).unwrap();
        assert!(mine.rss_bytes > 100_000 && mine.rss_peak_bytes >= mine.rss_bytes && mine.threads >= 1);
    }
}

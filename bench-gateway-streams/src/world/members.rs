//! The gateways of a run that are the harness's own: processes that may be killed, stopped and started
//! again, each under its id, in its folder and on its ports.
//!
//! 1. A member that is started again has the address and the control port that it had.
//! 2. It decides nothing: what is done to which member when, a scenario says.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::Context;
use gateway_testbed::gateway_process::{GatewayOptions, GatewayProcess};
use gateway_testbed::process::Usage;
use rand::RngExt;
use rustix::process::Signal;

use super::settings::merged;

const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Below the ports that the kernel gives to outgoing connections, so that none of them takes one while a
/// member is down.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// One gateway: how it is run, and its process while it has one.
#[derive(Debug)]
pub(crate) struct Member {
    options: GatewayOptions,
    process: Option<GatewayProcess>,
    address: SocketAddr,
    control: SocketAddr,
}

impl Member {
    /// Starts it; at `control` its health and its metrics are asked.
    pub(crate) async fn start(options: GatewayOptions, control: SocketAddr) -> anyhow::Result<Self> {
        let process = GatewayProcess::start(options.clone()).await?;
        let address = process.address();
        Ok(Self { options, process: Some(process), address, control })
    }

    pub(crate) fn id(&self) -> &str {
        &self.options.id
    }

    /// How a process of the same id would be run on another host: nothing but the id and the database is
    /// shared.
    pub(crate) fn elsewhere(&self, folder: &str, control: SocketAddr) -> anyhow::Result<GatewayOptions> {
        let mut options = self.options.clone();
        options.dir = options.dir.with_file_name(folder);
        options.listen = "127.0.0.1:0".to_owned();
        options.extra = merged(&options.extra, &format!("[control]\nlisten = \"{control}\"\n"))?;
        Ok(options)
    }

    /// Its binary, its configuration and its log.
    pub(crate) fn files(&self) -> (&Path, PathBuf, PathBuf) {
        (&self.options.binary, self.options.config_path(), self.options.log_path())
    }

    /// Where nodes connect.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where its health and its metrics are asked.
    pub(crate) fn control(&self) -> SocketAddr {
        self.control
    }

    /// The process id; `None` while it is down.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(GatewayProcess::pid)
    }

    /// What it uses; an error if it should run and does not.
    pub(crate) fn usage(&self) -> anyhow::Result<Option<Usage>> {
        let Some(process) = &self.process else { return Ok(None) };
        let pid = process.pid();
        Ok(Some(process.usage().with_context(|| format!("{} (process {pid}) is gone", self.id()))?))
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(process) = self.process.take() {
            process.kill()?;
        }
        Ok(())
    }

    /// Starts it again after a kill, and waits until it serves.
    pub(crate) async fn start_again(&mut self) -> anyhow::Result<()> {
        if self.process.is_none() {
            let mut options = self.options.clone();
            options.listen = self.address.to_string();
            self.process = Some(GatewayProcess::start(options).await?);
        }
        Ok(())
    }

    /// SIGSTOP.
    pub(crate) fn pause(&mut self) -> anyhow::Result<()> {
        self.running()?.pause().map_err(Into::into)
    }

    /// SIGCONT.
    pub(crate) fn resume(&mut self) -> anyhow::Result<()> {
        self.running()?.resume().map_err(Into::into)
    }

    fn running(&mut self) -> anyhow::Result<&mut GatewayProcess> {
        let id = self.options.id.clone();
        self.process.as_mut().with_context(|| format!("{id} does not run"))
    }

    /// SIGTERM, and no more: it sends its nodes away, then ends.
    pub(crate) fn ask_to_stop(&mut self) -> anyhow::Result<()> {
        self.running()?.signal(Signal::TERM).map_err(Into::into)
    }

    /// Waits for the end of one that was asked to stop; says if it is not as it should be.
    pub(crate) async fn await_end(&mut self) -> anyhow::Result<Option<String>> {
        let id = self.options.id.clone();
        let ended = tokio::time::timeout(STOP_TIMEOUT, self.running()?.wait()).await;
        let status = ended.with_context(|| format!("{id} still runs after {STOP_TIMEOUT:?}"))??;
        Ok(self.note_end(status))
    }

    /// A clean stop; says what did not end as it should.
    pub(crate) async fn terminate(&mut self) -> anyhow::Result<Option<String>> {
        let Some(process) = &mut self.process else { return Ok(None) };
        let status = process.terminate(STOP_TIMEOUT).await?;
        Ok(self.note_end(status))
    }

    fn note_end(&mut self, status: ExitStatus) -> Option<String> {
        let process = self.process.take()?;
        let bad = || format!("{} ended with {status}:\n{}", self.options.id, process.log_tail(10));
        (!status.success()).then(bad)
    }
}

/// A loopback port that nobody listens on, that no outgoing connection is given, and that was not given
/// before in this run.
pub(crate) fn fixed_address() -> anyhow::Result<SocketAddr> {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU16::new(rand::rng().random_range(0..PORTS.len() as u16)));
    for _ in 0..200 {
        let port = PORTS.start + next.fetch_add(1, Ordering::Relaxed) % PORTS.len() as u16;
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return listener.local_addr().context("a free port");
        }
    }
    anyhow::bail!("no free port in {PORTS:?}")
}

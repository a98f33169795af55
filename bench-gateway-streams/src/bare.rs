//! The yardsticks of a storm (that of a fan-out is in `push`, that of the database in `statements`): the mTLS handshakes
//! of the same clients with a server that does nothing else, and the same with an HTTP/2 stream on top, in a process of its
//! own as the gateway is, in the same run.
//!
//! 1. A handshake counts when the server's first byte came, which it sends once it has verified the
//!    client's certificate: a client of TLS 1.3 is through before that.
//! 2. A stream counts when its call's first message came: a storm without sessions, and without a database.
//! 3. The clients dial as nodes do after a loss: each within the first bound of the back-off.
//! 4. The best of three rounds counts: a yardstick must not profit from noise.

mod push;
mod statements;

use std::io::BufRead as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use gateway_testbed::bare::{BareServer, PushClient, greeting};
use gateway_testbed::node::{End, RedialBounds, Target};
use gateway_testbed::pki::{GatewayFiles, Pki};
use gateway_testbed::process::Guarded;
use rand::RngExt;
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::arguments::BareServerArguments;
use crate::flood::PAYLOAD_BYTES;
use crate::progress::say;
use crate::world::fixed_address;

pub(crate) use self::push::measure as measure_push;
pub(crate) use self::statements::measure as measure_statements;

const ROUNDS: usize = 3;
const READY_TIMEOUT: Duration = Duration::from_secs(10);
const ROUND_TIMEOUT: Duration = Duration::from_secs(120);

/// What the process of the yardstick does, until it is killed.
pub(crate) async fn serve(arguments: BareServerArguments) -> anyhow::Result<bool> {
    let BareServerArguments { listen, certificate, key, node_ca, push } = arguments;
    crate::host::allow_files(20_000).or_else(|_| crate::host::allow_files(6_000))?;
    let server = BareServer::bind(listen, &certificate, &key, &node_ca)?;
    let Some(payload_bytes) = push else {
        server.serve().await;
        return Ok(true);
    };
    let (turn, turns) = watch::channel(0);
    let (tell_end, ended) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("turns".to_owned()).spawn(move || {
        std::io::stdin()
            .lock()
            .lines()
            .map_while(Result::ok)
            .for_each(|_| turn.send_modify(|turn| *turn += 1));
        let _ = tell_end.send(());
    })?;
    tokio::select! {
        () = server.serve_pushes(turns, payload_bytes) => {}
        _ = ended => {}
    }
    Ok(true)
}

/// The server's command line.
fn server_command(address: SocketAddr, files: &GatewayFiles) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("bare-server").arg("--listen").arg(address.to_string());
    command.arg("--certificate").arg(&files.certificate).arg("--key").arg(&files.key);
    command.arg("--node-ca").arg(&files.node_ca).stdout(Stdio::null());
    Ok(command)
}

// One that pushes when a line comes on what is given beside it, and ends with that.
fn push_server(
    address: SocketAddr,
    files: &GatewayFiles,
    payload_bytes: usize,
) -> anyhow::Result<(Child, ChildStdin)> {
    let mut command = tokio::process::Command::from(server_command(address, files)?);
    command.arg("--push").arg(payload_bytes.to_string()).stdin(Stdio::piped()).kill_on_drop(true);
    let mut server = command.spawn().context("starting the bare server")?;
    let turns = server.stdin.take().context("the bare server's input")?;
    Ok((server, turns))
}

// It says nothing of itself: it is there when it lets one connect.
async fn await_listening(
    address: SocketAddr,
    mut has_ended: impl FnMut() -> std::io::Result<bool>,
) -> anyhow::Result<()> {
    let started = Instant::now();
    while TcpStream::connect(address).await.is_err() {
        anyhow::ensure!(!has_ended()?, "the bare server has ended");
        anyhow::ensure!(started.elapsed() < READY_TIMEOUT, "the bare server does not listen");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Milliseconds until all of `names` had theirs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BareStorm {
    pub(crate) handshakes_ms: f64,
    pub(crate) streams_ms: f64,
}

/// Takes both yardsticks of a storm.
pub(crate) async fn measure(names: &[String], pki: &Pki, files: &GatewayFiles) -> anyhow::Result<BareStorm> {
    let targets = |address| targets_of(address, names, pki);
    let address = fixed_address()?;
    let mut server = Guarded::spawn(&mut server_command(address, files)?, "KILL", None)
        .context("starting the bare server")?;
    await_listening(address, || Ok(server.try_wait()?.is_some())).await?;
    let handshakes_ms = best("mTLS handshakes", &targets(address)?, greet).await?;
    drop(server);
    let address = fixed_address()?;
    let (mut server, _turns) = push_server(address, files, PAYLOAD_BYTES)?;
    await_listening(address, || Ok(server.try_wait()?.is_some())).await?;
    let streams_ms = best("streams", &targets(address)?, open_stream).await?;
    Ok(BareStorm { handshakes_ms, streams_ms })
}

async fn greet(target: Target) -> Result<impl Send, End> {
    greeting(&target).await
}

async fn open_stream(target: Target) -> Result<impl Send, End> {
    Box::pin(PushClient::open(&target)).await
}

async fn best<T: Send + 'static, F: Future<Output = Result<T, End>> + Send + 'static>(
    what: &str,
    targets: &[Target],
    open: impl Fn(Target) -> F,
) -> anyhow::Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let round = tokio::time::timeout(ROUND_TIMEOUT, round(targets, &open)).await;
        best = best.min(round.with_context(|| format!("bare {what} took too long"))??);
    }
    say(&format!("bare {what} of {} clients: {best:.0} ms (best of {ROUNDS})", targets.len()));
    Ok(best)
}

// A storm's clients and a fan-out's are those of the run.
fn targets_of(address: SocketAddr, names: &[String], pki: &Pki) -> anyhow::Result<Vec<Target>> {
    let identities = pki.nodes(names.iter().map(String::as_str))?;
    let targets =
        identities.iter().map(|identity| Ok(Target::new(address, pki.client_config(Some(identity))?)));
    targets.collect()
}

async fn round<T: Send + 'static, F: Future<Output = Result<T, End>> + Send + 'static>(
    targets: &[Target],
    open: impl Fn(Target) -> F,
) -> anyhow::Result<f64> {
    let bound = RedialBounds::default().first;
    let mut clients = JoinSet::new();
    let held = Arc::new(tokio::sync::Semaphore::new(0));
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let started = Instant::now();
    for target in targets {
        let delay = bound.mul_f64(rand::rng().random::<f64>());
        let (opening, held, tell) = (open(target.clone()), Arc::clone(&held), tell.clone());
        clients.spawn(async move {
            tokio::time::sleep(delay).await;
            let opened = opening.await;
            let _ = tell.send(opened.as_ref().map(drop).map_err(|end| end.message.clone()));
            // The connection stays until all have theirs, as sessions do.
            let _ = held.acquire().await;
            drop(opened);
        });
    }
    for _ in targets {
        let opened = told.recv().await.context("a client of the bare server ended")?;
        opened.map_err(|message| anyhow::anyhow!("a client of the bare server: {message}"))?;
    }
    let took = started.elapsed().as_secs_f64() * 1000.0;
    held.close();
    while clients.join_next().await.is_some() {}
    Ok(took)
}

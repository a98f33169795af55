//! The runtime of a shard, behind one seam: threads, queues, sockets, time. Nothing else in this
//! crate names glommio, so that another thread-per-core runtime could take its place.
//!
//! 1. Sessions and handshakes have a queue each; that of handshakes has a small share and is interrupted.
//!    The thread dozes in a third, when nothing else is ready.
//! 2. The thread ends with an outcome: a shard's panic or an executor that can't start is told by
//!    `ShardHandle`, never lost.
//! 3. What is spawned here ends before the executor does: `stopping` waits for it.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::os::fd::IntoRawFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use gateway_core::ids::ShardId;
use gateway_core::mail::Inbox;
use gateway_core::seam::ToShard;
use gateway_core::time::Moment;
use glommio::{Latency, LocalExecutor, LocalExecutorBuilder, Placement, Shares, TaskQueueHandle};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt};

use crate::outbound::Outbound;
use crate::rest::Rest;
use crate::shard::{Parts, Shard};
use crate::stopping::HandoverFailed;
use crate::{ShardConfig, TlsNews, accept, listener_tls, local, mailbox, metronome, panics, stopping};

/// An accepted socket.
pub(crate) type TcpSocket = glommio::net::TcpStream;
/// An accepted socket with the traits that TLS and HTTP/2 speak.
pub(crate) type Tcp = Compat<TcpSocket>;

/// Three rings register this memory each; the default of 10 MiB does not fit a common memlock.
const IO_MEMORY_BYTES: usize = 64 << 10;
const RING_DEPTH: usize = 1024;
/// When the runtime looks for I/O although tasks are ready. A short one saves nothing here (turns are
/// short, and a connection that wants more waits for I/O by itself: `breather`) and is a danger: if the
/// timer fires before the thread has looked at its queues, its wakes are forgotten (`metronome`), and
/// at the thread's start nothing would bring them back. Handshakes are the work that is long.
const PREEMPT_AFTER: Duration = Duration::from_millis(100);
const PREEMPT_HANDSHAKES_AFTER: Duration = Duration::from_millis(2);
/// How long a start waits for locked memory, and how often it looks.
const MEMORY_PATIENCE: Duration = Duration::from_secs(2);
const MEMORY_LOOK: Duration = Duration::from_millis(10);
const SESSION_SHARES: usize = 1000;
const HANDSHAKE_SHARES: usize = 200;

/// Why a shard ended badly.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    #[error("shard {} panicked: {message}", .shard.0)]
    Panicked { shard: ShardId, message: String },
    #[error("shard {} could not hand its last messages to the writer, which takes none", .shard.0)]
    HandoverFailed { shard: ShardId },
    #[error("shard {} stopped since the writer's thread is gone", .shard.0)]
    WriterGone { shard: ShardId },
}

/// A shard's thread.
#[derive(Debug)]
pub struct ShardHandle {
    shard: ShardId,
    thread: JoinHandle<Result<(), ShardError>>,
}

impl ShardHandle {
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// Whether the thread has ended, so that `join` does not block.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the thread's end. `Ok` after `ToShard::Stop` and `local::Visitors::crash` alone.
    pub fn join(self) -> Result<(), ShardError> {
        self.thread.join().unwrap_or_else(|payload| {
            Err(ShardError::Panicked { shard: self.shard, message: panics::text(payload.as_ref()) })
        })
    }
}

/// Starts a shard on a thread of its own; returns when its executor is up, or with why it is not.
pub fn spawn(config: ShardConfig) -> io::Result<ShardHandle> {
    let shard = config.shard;
    let (started, outcome) = mpsc::channel();
    let thread = std::thread::Builder::new().name(format!("shard-{}", shard.0)).spawn(move || {
        match build_executor(config.cpu, config.spin) {
            Ok(executor) => {
                // The receiver waits for this message, unless its thread is gone with the process.
                let _ = started.send(Ok(()));
                drop(started);
                executor.run(serve(config))
            }
            Err(error) => {
                let _ = started.send(Err(error));
                Ok(())
            }
        }
    })?;
    match outcome.recv() {
        Ok(Ok(())) => Ok(ShardHandle { shard, thread }),
        Ok(Err(error)) => Err(error),
        // The builder panicked (it does where io_uring is forbidden), so nothing was sent.
        Err(_) => {
            let payload = thread.join().err();
            let message = payload.map_or_else(String::new, |payload| panics::text(payload.as_ref()));
            Err(io::Error::other(format!("the executor of shard {} can't start: {message}", shard.0)))
        }
    }
}

/// The kernel gives the locked memory of an executor back a moment after its end, so right after a
/// shard or a process that ended there may be none: what a user may lock counts over all processes.
fn build_executor(cpu: Option<usize>, spin: Duration) -> io::Result<LocalExecutor> {
    let begun = Instant::now();
    loop {
        match try_build_executor(cpu, spin) {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && begun.elapsed() < MEMORY_PATIENCE => {
                // Nothing tells when it is given back.
                std::thread::sleep(MEMORY_LOOK);
            }
            outcome => return outcome,
        }
    }
}

fn try_build_executor(cpu: Option<usize>, spin: Duration) -> io::Result<LocalExecutor> {
    LocalExecutorBuilder::new(cpu.map_or(Placement::Unbound, Placement::Fixed))
        .io_memory(IO_MEMORY_BYTES)
        .ring_depth(RING_DEPTH)
        .preempt_timer(PREEMPT_AFTER)
        .spin_before_park(spin)
        .make()
        .map_err(io::Error::from)
}

/// The whole life of a shard, on its executor.
async fn serve(config: ShardConfig) -> Result<(), ShardError> {
    let id = config.shard;
    let (listener, listener_key) = Listener::open(config.listener).map_err(|error| ShardError::Panicked {
        shard: id,
        message: format!("its listener can't be used: {error}"),
    })?;
    let shard = Shard::new(Parts {
        id,
        clock: Clock { started: config.started },
        limits: config.limits,
        admission: config.admission,
        tls: config.tls,
        websocket: config.websocket,
        identity: config.identity,
        outbound: Outbound::new(config.writer, config.counters.clone()),
        counters: config.counters,
        relays: config.relays,
        tunnels: config.tunnels,
        queues: Queues::new(),
        rest: Rc::new(Rest::new(if config.spin.is_zero() { config.doze } else { Duration::ZERO })),
    });
    let metronome = shard.queues.spawn_helper(metronome::run(
        Rc::clone(&shard.rest),
        shard.clock,
        Arc::clone(&shard.counters),
    ));
    let acceptor = shard.queues.spawn_acceptor(accept::run(Rc::clone(&shard), listener));
    let helpers = spawn_helpers(&shard, config.tls_news);
    let visitors = Rc::new(config.visitors);
    let dying = shard.queues.spawn_helper({
        let (shard, visitors) = (Rc::clone(&shard), Rc::clone(&visitors));
        async move { local::run(&shard, &visitors).await }
    });
    let mail = shard.queues.spawn_helper({
        let (shard, inbox) = (Rc::clone(&shard), config.inbox);
        async move { (mailbox::run(&shard, &inbox).await, inbox) }
    });
    let outcome = match select(mail.0, dying.0).await {
        // A writer that died with the gateway is no reason to say farewell.
        Either::Left(((cause, inbox), dying)) if !visitors.is_crashed() => {
            let outcome = stop(&shard, listener_key, cause, &inbox).await;
            dying.cancel().await;
            outcome
        }
        Either::Left((_, dying)) => {
            dying.cancel().await;
            stopping::die(&shard, listener_key).await;
            Ok(())
        }
        Either::Right(((), mail)) => {
            mail.cancel().await;
            stopping::die(&shard, listener_key).await;
            Ok(())
        }
    };
    acceptor.0.await;
    for helper in helpers {
        helper.0.cancel().await;
    }
    // Last, and not awaited: without it an await may not end.
    drop(metronome);
    outcome
}

/// What runs beside the sessions, as long as they do.
fn spawn_helpers(shard: &Rc<Shard>, tls_news: Inbox<TlsNews>) -> Vec<Helper<()>> {
    let on = || Rc::clone(shard);
    let (timed, pumped, breathed, turned, renewed) = (on(), on(), on(), on(), on());
    let (desk, rest) = (Rc::clone(&shard.tunnels), Rc::clone(&shard.rest));
    let queues = shard.queues;
    vec![
        queues.spawn_helper(async move { timed.timers.run(timed.clock).await }),
        queues.spawn_helper(async move { pumped.outbound.run().await }),
        queues.spawn_helper(async move { desk.run().await }),
        queues.spawn_helper(async move { breathed.breather.run().await }),
        queues.spawn_helper(async move { turned.turnstile.run().await }),
        queues.spawn_dozer(async move { rest.run().await }),
        queues.spawn_helper(async move { listener_tls::run(&renewed, &tls_news).await }),
    ]
}

/// The good end of a shard.
async fn stop(
    shard: &Rc<Shard>,
    listener: ListenerKey,
    cause: mailbox::StopCause,
    inbox: &Inbox<ToShard>,
) -> Result<(), ShardError> {
    let id = shard.id;
    let handed_over = {
        let (stopping, drain) = (stopping::run(shard, listener), mailbox::drain(inbox));
        match select(pin!(stopping), pin!(drain)).await {
            Either::Left((handed_over, _)) => handed_over,
            Either::Right(_) => Ok(()),
        }
    };
    match (cause, handed_over) {
        (mailbox::StopCause::WriterGone, _) => Err(ShardError::WriterGone { shard: id }),
        (_, Err(HandoverFailed)) => Err(ShardError::HandoverFailed { shard: id }),
        (mailbox::StopCause::Asked, Ok(())) => Ok(()),
    }
}

/// The process's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    started: Instant,
}

impl Clock {
    pub(crate) fn now(self) -> Moment {
        Moment::on_clock(self.started, Instant::now())
    }
}

/// The queues of a shard's executor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queues {
    sessions: TaskQueueHandle,
    handshakes: TaskQueueHandle,
    rest: TaskQueueHandle,
}

/// A task that the shard ends itself.
#[must_use]
pub(crate) struct Helper<T>(glommio::Task<T>);

impl Queues {
    fn new() -> Self {
        let executor = glommio::executor();
        Self {
            sessions: executor.create_task_queue(
                Shares::Static(SESSION_SHARES),
                Latency::NotImportant,
                "sessions",
            ),
            handshakes: executor.create_task_queue(
                Shares::Static(HANDSHAKE_SHARES),
                Latency::Matters(PREEMPT_HANDSHAKES_AFTER),
                "handshakes",
            ),
            rest: executor.create_task_queue(Shares::Static(1), Latency::NotImportant, "rest"),
        }
    }

    /// Runs the task of a connection; its `ConnectionLease` is what the shard's end waits for.
    pub(crate) fn spawn_session(self, task: impl Future<Output = ()> + 'static) {
        spawn_into(task, self.sessions).detach();
    }

    /// Runs a handshake; its `ConnectionLease` is what the shard's end waits for.
    pub(crate) fn spawn_handshake(self, task: impl Future<Output = ()> + 'static) {
        spawn_into(task, self.handshakes).detach();
    }

    fn spawn_acceptor<T: 'static>(self, task: impl Future<Output = T> + 'static) -> Helper<T> {
        Helper(spawn_into(task, self.handshakes))
    }

    fn spawn_dozer<T: 'static>(self, task: impl Future<Output = T> + 'static) -> Helper<T> {
        Helper(spawn_into(task, self.rest))
    }

    fn spawn_helper<T: 'static>(self, task: impl Future<Output = T> + 'static) -> Helper<T> {
        Helper(spawn_into(task, self.sessions))
    }
}

fn spawn_into<T: 'static>(
    task: impl Future<Output = T> + 'static,
    queue: TaskQueueHandle,
) -> glommio::Task<T> {
    glommio::spawn_local_into(task, queue).expect("a shard's queues live as long as its executor")
}

/// Lets the other tasks and queues have their turn.
pub(crate) async fn yield_now() {
    glommio::executor().yield_task_queue_now().await;
}

pub(crate) async fn sleep(time: Duration) {
    glommio::timer::sleep(time).await;
}

/// A socket, set up for small frames that must not wait for one another.
pub(crate) fn stream(socket: TcpSocket) -> io::Result<Tcp> {
    socket.set_nodelay(true).map_err(io::Error::from)?;
    Ok(socket.compat())
}

/// The shard's listener, for accepting.
pub(crate) struct Listener(glommio::net::TcpListener);

/// The shard's listener, for closing.
pub(crate) struct ListenerKey(std::net::TcpListener);

impl Listener {
    #[allow(unsafe_code)]
    fn open(listener: std::net::TcpListener) -> io::Result<(Self, ListenerKey)> {
        use std::os::fd::FromRawFd;

        // io_uring gives EAGAIN back for a non-blocking descriptor instead of waiting.
        listener.set_nonblocking(false)?;
        let key = ListenerKey(listener.try_clone()?);
        // SAFETY: `into_raw_fd` gave up the only owner of this descriptor, which is open and is a
        // listening socket; glommio's listener becomes its owner.
        let listener = unsafe { glommio::net::TcpListener::from_raw_fd(listener.into_raw_fd()) };
        Ok((Self(listener), key))
    }

    pub(crate) async fn accept(&self) -> io::Result<TcpSocket> {
        self.0.accept().await.map_err(io::Error::from)
    }
}

impl ListenerKey {
    /// Takes the socket out of the kernel's group of listeners, whoever else has it open, and ends
    /// the accept that is under way.
    pub(crate) fn close(self) {
        // It fails only for a socket that does not listen any more.
        let _ = socket2::SockRef::from(&self.0).shutdown(Shutdown::Both);
    }
}
